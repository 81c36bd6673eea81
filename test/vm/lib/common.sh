# shellcheck shell=bash
# What every script below test/vm shares: messages, the cache, locks, stamps.
#
# The cache (default ~/.cache/delayd) holds what was fetched or built:
#   apt/SUITE/          apt's own state for one suite, apart from the machine's
#   busybox/            a static busybox, for the initramfs and the guest's init
#   qemu/               QEMU and the libraries that the machine does not have
#   kernels/SERIES      a link to the directory of one kernel: 6.12, 7.3, uml
#   kernels/NAME/       that kernel; `stamp` has the sha256 sums of its files
#   kvm/KEY             whether KVM works on this machine, since this boot

VM_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VM_CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/delayd
ME=${ME:-vm}

say() { printf '%s: %s\n' "$ME" "$*" >&2; }

# die [CODE] MESSAGE: an error of the runner itself, exit code 97 unless given.
die() {
	local code=97
	if [[ $1 =~ ^[0-9]+$ ]]; then code=$1; shift; fi
	say "$*"
	exit "$code"
}

# need GROUP TOOL...: installs the package group when one of the tools is missing.
need() {
	local group=$1 tool missing=()
	shift
	for tool; do
		PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || missing+=("$tool")
	done
	((${#missing[@]})) || return 0
	say "missing here: ${missing[*]}; running tools/setup $group"
	"$VM_DIR/../../tools/setup" "$group" >&2 ||
		die "cannot go on without ${missing[*]}: install them (tools/setup $group, as root) and try again"
}

# tick LABEL COMMAND...: runs the command quietly. While it runs, every 15 s a
# line says how long it has taken and, through the function tick_detail when
# it is defined, how far it is. When it fails, its output is shown.
tick() {
	local label=$1 log pid start=$SECONDS rc=0 next=15
	shift
	log=$(mktemp "$VM_CACHE/log.XXXXXX")
	TICK_LOG=$log
	"${TICK_WRAP[@]}" "$@" >"$log" 2>&1 &
	pid=$!
	TICK_PID=$pid
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.2
		if ((SECONDS - start >= next)); then
			next=$((next + 15))
			say "$label: $((SECONDS - start)) s$(tick_detail "$log")"
		fi
	done
	wait "$pid" || rc=$?
	TICK_PID=''
	if ((rc)); then
		tail -n 25 "$log" >&2
		say "$label failed (exit code $rc); the last lines of its output are above"
	fi
	rm -f "$log"
	return "$rc"
}

tick_detail() { :; }
TICK_WRAP=() TICK_LOG='' TICK_PID=''

# with_lock NAME COMMAND...: runs the command (a function, usually) while no
# other run holds NAME. A signal ends the command first, with what it started;
# the lock is free when the last of its processes is gone.
with_lock() {
	local name=$1 fd rc=0 builder stopped=''
	shift
	mkdir -p "$VM_CACHE"
	exec {fd}>"$VM_CACHE/lock.$name"
	if ! flock -n "$fd"; then
		say "another run is preparing $name: waiting for it"
		flock "$fd"
	fi
	(
		trap '[[ -z $TICK_PID ]] || { kill "$TICK_PID"; wait "$TICK_PID"; }; rm -f "$TICK_LOG"; exit 143' TERM
		TICK_WRAP=(setpriv --pdeathsig TERM)
		"$@"
	) &
	builder=$!
	trap 'stopped=yes; kill -TERM "$builder"' INT TERM HUP
	wait "$builder" || rc=$?
	while [[ -n $stopped ]] && kill -0 "$builder" 2>/dev/null; do
		wait "$builder"
	done
	trap - INT TERM HUP
	exec {fd}>&-
	[[ -z $stopped ]] || exit 143
	return "$rc"
}

# stamp DIR FILE...: remembers the sums of the files and the extent of the modules.
stamp() {
	local dir=$1
	shift
	(cd "$dir" && sha256sum -- "$@" && echo "# modules $(modules_extent .)") >"$dir/stamp.new"
	mv "$dir/stamp.new" "$dir/stamp"
}

# stamped DIR: whether DIR is as its stamp says.
stamped() {
	local dir=$1 want
	[[ -s $dir/stamp ]] || return 1
	(cd "$dir" && grep -v '^#' stamp | sha256sum --quiet --strict -c - >/dev/null 2>&1) || return 1
	want=$(sed -n 's/^# modules //p' "$dir/stamp")
	[[ $want == "$(modules_extent "$dir")" ]]
}

# modules_extent DIR: number of files and bytes below DIR/lib/modules.
modules_extent() {
	[[ -d $1/lib/modules ]] || { echo none; return; }
	find "$1/lib/modules" -type f -printf '%s\n' | awk '{ n++; b += $1 } END { print n + 0, b + 0 }'
}

# publish TEMP NAME LINK: makes the finished directory TEMP the one that LINK means.
publish() {
	local temp=$1 name=$2 link=$3
	rm -rf "${VM_CACHE:?}/kernels/$name"
	mv "$temp" "$VM_CACHE/kernels/$name"
	ln -sfn "$name" "$VM_CACHE/kernels/$link"
}
