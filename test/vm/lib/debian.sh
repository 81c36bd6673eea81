# shellcheck shell=bash
# Debian's stock kernels, unpacked into the cache, never installed.

# What the guest's initramfs needs to reach the root file system.
EARLY_MODULES=(virtio_pci virtio_console virtio_rng 9p 9pnet_virtio overlay)

# kernel_suites SERIES: where to look for it, best first.
kernel_suites() {
	case $1 in
	6.12) echo bookworm-backports trixie ;;
	7.3) echo trixie-backports ;;
	esac
}

kernel_ready() {
	case $1 in
	uml) uml_ready ;;
	*) stamped "$VM_CACHE/kernels/$1" ;;
	esac
}

# vm_ready KERNEL: whether a run with it would fetch and build nothing.
vm_ready() {
	kernel_ready "$1" && stamped "$VM_CACHE/busybox" && { [[ $1 == uml ]] || qemu_ready; }
}

# prepare_kernel KERNEL: makes it ready, with all that a run with it needs.
prepare_kernel() {
	ensure_busybox || exit 97
	case $1 in
	uml) ensure_uml || exit 97 ;;
	*)
		ensure_qemu || exit 97
		ensure_debian_kernel "$1" || exit 97
		;;
	esac
}

ensure_debian_kernel() {
	if [[ -z ${VM_REFRESH:-} ]] && kernel_ready "$1"; then return; fi
	with_lock "$1" fetch_debian_kernel "$1"
}

fetch_debian_kernel() {
	local series=$1 suite image version name temp release package packages
	if [[ -z ${VM_REFRESH:-} ]] && kernel_ready "$series"; then return; fi
	[[ $(dpkg --print-architecture) == amd64 ]] || die "the stock kernels are run on amd64; this machine is $(dpkg --print-architecture)"
	need vm depmod modprobe xz
	find_kernel "$series"
	name=${image}_$version
	if stamped "$VM_CACHE/kernels/$name"; then
		ln -sfn "$name" "$VM_CACHE/kernels/$series"
		return
	fi
	mkdir -p "$VM_CACHE/kernels"
	rm -rf "$VM_CACHE/build.$series".*
	temp=$(mktemp -d "$VM_CACHE/build.$series.XXXXXX")
	# shellcheck disable=SC2064
	trap "rm -rf '$temp'" EXIT
	# The kernel itself, and from 7.x on the packages it was split into.
	packages=("$image=$version")
	for package in $(apt_show "$image" Depends | tr ',' '\n' | grep -oE '^ *linux-(base|binary|modules)-[^ ]+'); do
		packages+=("$package=$version")
	done
	apt_unpack "$temp/x" "${packages[@]}" || die "the kernel $series could not be fetched (see above)"
	mkdir -p "$temp/new/lib"
	if [[ -d $temp/x/usr/lib/modules ]]; then mv "$temp/x/usr/lib/modules" "$temp/new/lib/"; else mv "$temp/x/lib/modules" "$temp/new/lib/"; fi
	release=$(basename "$temp/new/lib/modules/"*)
	echo "$release" >"$temp/new/release"
	if [[ -e $temp/new/lib/modules/$release/vmlinuz ]]; then
		mv "$temp/new/lib/modules/$release/vmlinuz" "$temp/new/vmlinuz"
	else
		mv "$temp/x/boot/vmlinuz-$release" "$temp/new/vmlinuz"
	fi
	tick "listing the modules of $release" depmod -b "$temp/new" "$release" || die "no kernel $series"
	early_modules "$temp/new" "$release" || die "the modules that the initramfs needs are not all in $image: ${EARLY_MODULES[*]}"
	(cd "$temp/new" && stamp . vmlinuz release "lib/modules/$release/modules.dep" early/*)
	publish "$temp/new" "$name" "$series"
	say "the kernel $release is ready"
}

# find_kernel SERIES: sets suite, image and version. The meta-package says
# what is current; if that has moved on to another series, the newest image of
# the series that the suite still has; else what is current, and says so.
find_kernel() {
	local series=$1 meta any='' found
	for suite in $(kernel_suites "$series"); do
		apt_suite "$suite" || continue
		meta=$(apt_show linux-image-amd64 Depends | grep -oE 'linux-image-[0-9][^ ,]*-amd64' | head -n 1)
		[[ -n $meta ]] || continue
		any=${any:-$suite $meta}
		if [[ $meta != linux-image-"$series".* ]]; then
			found=$(apt-cache "${APT_OPTS[@]}" pkgnames "linux-image-$series." | grep -E '[0-9]-amd64$' | sort -V | tail -n 1)
			[[ -n $found ]] || continue
			meta=$found
		fi
		image=$meta
		version=$(apt_show "$image" Version)
		return
	done
	[[ -n $any ]] || die "no kernel $series: none of the suites $(kernel_suites "$series") could be read (see above)"
	suite=${any% *} image=${any#* }
	say "the suites $(kernel_suites "$series") have moved on from $series: taking $image"
	apt_suite "$suite"
	version=$(apt_show "$image" Version)
}

# early_modules DIR RELEASE: DIR/early gets the modules of the initramfs,
# unpacked, and `order`, their names in the order of loading.
early_modules() {
	local dir=$1 release=$2 module path
	mkdir "$dir/early"
	for module in "${EARLY_MODULES[@]}"; do
		modprobe -d "$dir" -S "$release" --show-depends "$module" || return
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$dir/early/paths"
	while read -r path; do
		module=$(basename "${path%%.ko*}").ko
		case $path in
		*.xz) xz -dc "$path" >"$dir/early/$module" ;;
		*.zst) zstd -qdc "$path" >"$dir/early/$module" ;;
		*) cp "$path" "$dir/early/$module" ;;
		esac || return
		echo "$module" >>"$dir/early/order"
	done <"$dir/early/paths"
	rm "$dir/early/paths"
	[[ -s $dir/early/order ]]
}
