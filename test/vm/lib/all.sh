# shellcheck shell=bash
# The whole of lib, in the order in which the files lean on each other.
# shellcheck source=lib/common.sh
. "$HERE/lib/common.sh"
# shellcheck source=lib/apt.sh
. "$HERE/lib/apt.sh"
# shellcheck source=lib/uml.sh
. "$HERE/lib/uml.sh"
# shellcheck source=lib/debian.sh
. "$HERE/lib/debian.sh"
# shellcheck source=lib/qemu.sh
. "$HERE/lib/qemu.sh"
# shellcheck source=lib/klog.sh
. "$HERE/lib/klog.sh"
# shellcheck source=lib/launch.sh
. "$HERE/lib/launch.sh"
