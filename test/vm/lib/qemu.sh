# shellcheck shell=bash
# QEMU: the machine's own if it is new enough, else from a newer suite, in the
# cache. QEMU 7.2 corrupts a 6.12 guest without KVM.

QEMU_LEAST=9

# qemu_own: whether the machine's own QEMU will do.
qemu_own() {
	local major
	major=$(qemu-system-x86_64 --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p')
	((${major:-0} >= QEMU_LEAST))
}

# qemu_setup: sets QEMU to the command that starts a machine without devices.
qemu_setup() {
	local x=$VM_CACHE/qemu/x
	if qemu_own; then
		QEMU=(qemu-system-x86_64)
	else
		QEMU=(env "LD_LIBRARY_PATH=$x/usr/lib/x86_64-linux-gnu:$x/lib/x86_64-linux-gnu:$x/usr/lib/x86_64-linux-gnu/pulseaudio"
			"QEMU_MODULE_DIR=$x/usr/lib/x86_64-linux-gnu/qemu"
			"$x/usr/bin/qemu-system-x86_64" -L "$x/usr/share/qemu" -L "$x/usr/share/seabios" -L "$x/usr/lib/ipxe/qemu")
	fi
	QEMU+=(-nodefaults -no-user-config -display none -no-reboot)
}

qemu_works() {
	local QEMU
	qemu_setup
	"${QEMU[@]}" --version >/dev/null 2>&1
}

qemu_ready() {
	qemu_own || { stamped "$VM_CACHE/qemu" && qemu_works; }
}

ensure_qemu() {
	qemu_ready || with_lock qemu fetch_qemu
}

# fetch_qemu: QEMU and those of its libraries that the machine does not have
# now (a library that goes away later makes the cache heal itself: qemu_works).
fetch_qemu() {
	local code suite temp packages
	qemu_ready && return
	[[ $(uname -m) == x86_64 ]] || die "QEMU is used on x86_64; this machine is $(uname -m)"
	rm -rf "$VM_CACHE"/build.qemu.*
	temp=$(mktemp -d "$VM_CACHE/build.qemu.XXXXXX")
	# shellcheck disable=SC2064
	trap "rm -rf '$temp'" EXIT
	code=$(debian_codename)
	case $code in
	bookworm) suite=bookworm-backports ;;
	*) suite=$code ;;
	esac
	if [[ $suite == "$code" ]]; then apt_suite "$suite"; else apt_suite "$suite" "$code"; fi || die "QEMU is in $suite, which could not be read (see above)"
	# A line of the simulation: Inst NAME [OLD VERSION] (NEW VERSION SUITE [ARCH])
	packages=$(apt-get "${APT_OPTS[@]}" -t "$suite" --no-install-recommends -s install qemu-system-x86 |
		sed -n 's/^Inst \([^ ]*\) .*(\([^ ]*\) .*/\1=\2/p')
	[[ $packages == *qemu-system-x86=* ]] || die "apt finds no way to have qemu-system-x86 of $suite here: apt-get install -s qemu-system-x86 says why"
	# shellcheck disable=SC2086
	apt_unpack "$temp/x" $packages || die "QEMU could not be fetched (see above)"
	chmod 755 "$temp"
	stamp "$temp" x/usr/bin/qemu-system-x86_64
	rm -rf "${VM_CACHE:?}/qemu"
	mv "$temp" "$VM_CACHE/qemu"
	qemu_works || {
		qemu_setup
		"${QEMU[@]}" --version >&2
		die "the QEMU fetched to $VM_CACHE/qemu does not start (see above)"
	}
	say "QEMU is ready: $("$VM_CACHE/qemu/x/usr/bin/qemu-system-x86_64" --version 2>/dev/null | head -n 1)"
}

# make_initramfs KERNEL_DIR FILE: busybox, the early modules and an init.
make_initramfs() {
	local dir=$1 file=$2 root
	root=$(mktemp -d "$WORK/initramfs.XXXXXX")
	mkdir "$root"/{bin,proc,sys,dev,lower,rw,root}
	cp "$VM_CACHE/busybox/busybox" "$root/bin/busybox"
	cp -r "$dir/early" "$root/early"
	cp "$VM_DIR/guest/initramfs-init" "$root/init"
	(cd "$root" && find . | "$VM_CACHE/busybox/busybox" cpio -o -H newc >"$file" 2>/dev/null)
	rm -rf "$root"
}

# qemu_accel: the options for KVM where a guest really starts with it, else
# for TCG. /dev/kvm may exist and not work, so a boot that has a time limit
# tells; the answer is kept until the machine boots anew.
qemu_accel() {
	local key answer
	key=$({ uname -a; cat /proc/sys/kernel/random/boot_id; "${QEMU[@]}" --version; } 2>/dev/null | sha256sum | cut -c1-16)
	answer=$VM_CACHE/kvm/$key
	if [[ ! -s $answer ]]; then
		mkdir -p "$VM_CACHE/kvm"
		if probe_kvm; then echo yes; else echo no; fi >"$answer.$$"
		mv "$answer.$$" "$answer"
		say "KVM works here: $(<"$answer") (remembered until the next boot)"
	fi
	case $(<"$answer") in
	yes) echo "-accel kvm -cpu host" ;;
	*) echo "-accel tcg,thread=multi -cpu max" ;;
	esac
}

probe_kvm() {
	[[ -w /dev/kvm ]] || return 1
	say "trying whether KVM works (20 s at most)"
	make_initramfs "$VM_CACHE/kernels/$KERNEL" "$WORK/probe-initramfs"
	timeout -k 1 20 "${QEMU[@]}" -accel kvm -cpu host -m 512M -smp "$CPUS" \
		-kernel "$VM_CACHE/kernels/$KERNEL/vmlinuz" -initrd "$WORK/probe-initramfs" \
		-append "console=ttyS0 quiet panic=-1 VM_PROBE=1" -serial "file:$WORK/probe" </dev/null >/dev/null 2>&1
	grep -q "delayd probe: running" "$WORK/probe" 2>/dev/null
}
