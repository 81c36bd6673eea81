# shellcheck shell=bash
# One run: its directory, its processes, its end.
#
# Everything of the guest lives in a PID namespace of its own, below
# `unshare --kill-child`, which itself dies with this shell (pdeathsig): so
# nothing is left however this program ends, kill -9 included. Only processes
# that this shell started are ever signalled, by their id.

BOOT_LIMIT=300 # seconds that a guest may take beside its command
BEGIN_LIMIT=180 # seconds after which a guest whose command has not begun is given up
BOOTS=3 # guests that are tried: under emulation a kernel hangs now and then as it boots

# launch COMMAND...: runs it and exits with its code.
launch() {
	local own_out=no rc
	WORK=$(mktemp -d "${TMPDIR:-/tmp}/delayd-vm.XXXXXX") || die "no directory for this run in ${TMPDIR:-/tmp}"
	WORK=$(readlink -f "$WORK")
	case $WORK in *[[:space:],]*) rmdir "$WORK"; WORK=$(mktemp -d /tmp/delayd-vm.XXXXXX) ;; esac
	VM_PID='' RELAYS=() STTY=''
	trap cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	trap 'exit 129' HUP
	if [[ -z ${VM_OUT:-} ]]; then
		VM_OUT=$(mktemp -d "${TMPDIR:-/tmp}/delayd-out.XXXXXX")
		own_out=yes
	fi
	mkdir -p "$VM_OUT" || die "the directory for results, VM_OUT=$VM_OUT, cannot be made"
	VM_OUT=$(readlink -f "$VM_OUT")
	[[ $own_out == yes ]] && OWN_OUT=$VM_OUT
	# shellcheck disable=SC2153
	export VM_OUT VM_KERNEL=$KERNEL

	write_run_files "$@"
	mkfifo "$WORK/stdout" "$WORK/stderr"
	if [[ $MODE == terminal ]]; then
		STTY=$(stty -g </dev/tty)
	fi
	boot
	[[ -n $STTY ]] && stty "$STTY" </dev/tty
	if [[ ! -s $WORK/rc ]]; then
		cp "$WORK/console" "$VM_OUT/kernel.log"
		say "the guest ended without an exit code${GUEST_END:+ ($GUEST_END)}; the last lines of its log, all of it in $VM_OUT/kernel.log:"
		tail -n 30 "$WORK/console" | sed 's/\r$//' >&2
		exit 98
	fi
	rc=$(<"$WORK/rc")
	((rc == 124)) && say "the time limit of $TIMEOUT s is over"
	if ! klog_clean "$WORK/console"; then
		cp "$WORK/console" "$VM_OUT/kernel.log"
		say "the kernel log has the lines above; all of it is in $VM_OUT/kernel.log"
		((rc == 0)) && rc=99
	elif [[ $KEEP_LOG == yes ]] || ((rc == 124)) || { ((rc)) && [[ $own_out == no ]]; }; then
		cp "$WORK/console" "$VM_OUT/kernel.log"
	fi
	exit "$rc"
}

# boot: a guest from its start to its end. One that ends, or hangs, before its
# command has begun has done nothing yet, and another is tried.
boot() {
	local try
	for ((try = 1; ; try++)); do
		rm -rf "$WORK/uml"
		cat <"$WORK/stdout" &
		RELAYS=($!)
		cat <"$WORK/stderr" >&2 &
		RELAYS+=($!)
		"start_$KIND"
		await_guest
		wait "${RELAYS[@]}"
		[[ -e $WORK/began || $READER_GONE == yes ]] && return
		((try < BOOTS)) || return
		say "the guest ended before its command began${GUEST_END:+ ($GUEST_END)}: trying again"
	done
}

# write_run_files COMMAND...: what the guest's init reads, see guest/init.
write_run_files() {
	local name size='' modules=$VM_CACHE/kernels/$KERNEL/lib/modules
	case $KERNEL in uml) KIND=uml ;; *) KIND=qemu ;; esac
	[[ $MODE == terminal ]] && size=$(stty size </dev/tty | awk '$1 { print "rows", $1, "cols", $2 }')
	{
		for name in KIND:"$KIND" BUSYBOX:"$VM_CACHE/busybox/busybox" OUT:"$VM_OUT" MODULES:"$(readlink -f "$modules")" \
			TIMEOUT:"$TIMEOUT" TTY_SIZE:"$size" UBLK:"$UBLK" MODE:"$MODE"; do
			printf '%s=%q\n' "${name%%:*}" "${name#*:}"
		done
	} | sed 's/^KIND=/VM_KIND=/' >"$WORK/conf"
	{
		while read -r name; do
			case $name in
			PATH | HOME | USER | LOGNAME | SHELL | LANG | LC_* | TZ | TERM | TMPDIR | XDG_CACHE_HOME | CI | GO* | CGO_* | VM_* | DELAYD_*)
				printf 'export %s=%q\n' "$name" "${!name}"
				;;
			esac
		done < <(compgen -e)
		# Without udev, libdm has to make the nodes in /dev/mapper itself.
		[[ $MODE == systemd ]] || echo 'export DM_DISABLE_UDEV=1'
		printf 'ulimit -n 65536\ncd %q || exit\nexec' "$PWD"
		printf ' %q' "$@"
		echo
	} >"$WORK/command"
	if [[ $STDIN == yes ]]; then cat >"$WORK/stdin"; else : >"$WORK/stdin"; fi
	cp "$VM_DIR/guest/init" "$WORK/"
	: >"$WORK/console"
}

# spawn PROGRAM...: starts the guest's process in a session and a PID namespace
# of its own. Not as the namespace's first process, which a signal without a
# handler does not reach: a user-mode kernel that panics ends by SIGABRT, and
# would send that to itself for ever.
spawn() {
	ulimit -c 0
	# shellcheck disable=SC2016
	setsid setpriv --pdeathsig KILL unshare --pid --fork --kill-child=KILL -- bash -c '"$@"; exit' guest "$@" &
	VM_PID=$!
}

start_uml() {
	local io="con1=null,fd:8 con2=null,fd:9"
	[[ $MODE == terminal ]] && io="con1=fd:7,fd:7"
	exec 8>"$WORK/stdout" 9>"$WORK/stderr"
	if [[ $MODE == terminal ]]; then exec 7<>/dev/tty; fi
	# shellcheck disable=SC2086
	TMPDIR=/dev/shm spawn "$VM_CACHE/kernels/uml/linux" seccomp=on "mem=$MEM" "ncpus=$CPUS" \
		root=/dev/root rootfstype=hostfs rootflags=/ ro "init=$WORK/init" "VM_CTL=$WORK" \
		con=null con0=null,fd:1 $io "uml_dir=$WORK/uml" umid=vm \
		loglevel=7 panic=-1 oops=panic null_blk.nr_devices=0 nbd.nbds_max=2 scsi_debug.add_host=0 $APPEND \
		</dev/null >"$WORK/console" 2>&1
	exec 8>&- 9>&-
}

start_qemu() {
	local accel tty=(-device "virtserialport,chardev=out,name=stdout" -device "virtserialport,chardev=err,name=stderr")
	local kernel=$VM_CACHE/kernels/$KERNEL
	qemu_setup
	accel=$(qemu_accel)
	make_initramfs "$kernel" "$WORK/initramfs"
	if [[ $MODE == terminal ]]; then
		exec 7<>/dev/tty
		tty=(-chardev "stdio,id=tty,mux=off,signal=off" -device "virtconsole,chardev=tty")
	else
		exec 7</dev/null
	fi
	# shellcheck disable=SC2086
	spawn "${QEMU[@]}" $accel -m "$MEM" -smp "$CPUS" \
		-kernel "$kernel/vmlinuz" -initrd "$WORK/initramfs" \
		-append "console=ttyS0 loglevel=7 panic=-1 oops=panic VM_CTL=$WORK VM_MODE=$MODE $APPEND" \
		-serial "file:$WORK/console" \
		-fsdev "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap" -device virtio-9p-pci,fsdev=root,mount_tag=root \
		-fsdev "local,id=ctl,path=$WORK,security_model=none" -device virtio-9p-pci,fsdev=ctl,mount_tag=ctl \
		-fsdev "local,id=out,path=$VM_OUT,security_model=none,multidevs=remap" -device virtio-9p-pci,fsdev=out,mount_tag=out \
		-device virtio-serial-pci \
		-chardev "file,id=out,path=$WORK/stdout" -chardev "file,id=err,path=$WORK/stderr" "${tty[@]}" \
		<&7 >&7 2>"$WORK/qemu.err"
}

# await_guest: returns when the guest is gone, and sees to it that it goes:
# at the hard limit, when it has left its exit code but does not power off, and
# when nobody reads its output any more. GUEST_END says why, if it was ended.
await_guest() {
	local deadline=$((SECONDS + TIMEOUT + BOOT_LIMIT)) begin=$((SECONDS + BEGIN_LIMIT)) tick done_at=''
	GUEST_END='' READER_GONE=no
	while :; do
		# What has ended is looked up, not taken from "wait -n": it can miss
		# a process that ends as it is called, and so may last until the tick.
		sleep 5 &
		tick=$!
		wait -n "$VM_PID" "$tick" "${RELAYS[@]}"
		kill "$tick" 2>/dev/null
		kill -0 "$VM_PID" 2>/dev/null || break
		if ! kill -0 "${RELAYS[0]}" 2>/dev/null || ! kill -0 "${RELAYS[1]}" 2>/dev/null; then
			# A relay ended: with the guest, as it should, or because
			# the reader of the output has gone.
			for ((i = 0; i < 20; i++)); do
				kill -0 "$VM_PID" 2>/dev/null || break 2
				sleep 0.1
			done
			GUEST_END="nobody reads its output any more" READER_GONE=yes
			break
		fi
		if [[ -s $WORK/rc ]]; then
			done_at=${done_at:-$SECONDS}
			if ((SECONDS - done_at >= 10)); then
				say "the guest did not power off within 10 s of its command's end and was killed"
				break
			fi
		elif [[ ! -e $WORK/began ]] && ((SECONDS >= begin)); then
			GUEST_END="after $BEGIN_LIMIT s"
			break
		elif ((SECONDS >= deadline)); then
			GUEST_END="killed $BOOT_LIMIT s after the time limit of $TIMEOUT s"
			break
		fi
	done
	end_guest
	[[ -s $WORK/qemu.err && ! -s $WORK/rc ]] && sed 's/^/qemu: /' "$WORK/qemu.err" >&2
	return 0
}

# end_guest: kills what is left of the guest: the namespace's keeper, by which
# all in the namespace die.
end_guest() {
	[[ -n $VM_PID ]] || return 0
	kill -KILL -- "-$VM_PID" 2>/dev/null
	kill -KILL "$VM_PID" 2>/dev/null
	wait "$VM_PID" 2>/dev/null
	VM_PID=''
}

cleanup() {
	trap '' INT TERM HUP
	end_guest
	[[ -n $STTY ]] && stty "$STTY" </dev/tty 2>/dev/null
	# The guest may take a moment to be gone from the directories.
	rm -rf "$WORK" 2>/dev/null || { sleep 0.5; rm -rf "$WORK"; }
	if [[ -n ${OWN_OUT:-} ]]; then
		rmdir "$OWN_OUT" 2>/dev/null || say "results are in $OWN_OUT"
	fi
}
