# shellcheck shell=bash
# The user-mode kernel: built once from Debian's source package, with uml.config.

UML_SERIES=7.3

uml_config_sum() { sha256sum <"$VM_DIR/uml.config" | cut -c1-12; }

# uml_ready: whether the cache has the kernel that uml.config asks for.
uml_ready() {
	local dir=$VM_CACHE/kernels/uml
	[[ $(readlink "$dir") == *-$(uml_config_sum) ]] && stamped "$dir"
}

ensure_uml() {
	if [[ -z ${VM_REFRESH:-} ]] && uml_ready; then return; fi
	with_lock uml build_uml
}

build_uml() {
	local package=linux-source-$UML_SERIES suite=trixie-backports version name temp src
	if [[ -z ${VM_REFRESH:-} ]] && uml_ready; then return; fi
	[[ $(uname -m) == x86_64 ]] || die "the user-mode kernel is for x86_64; this machine is $(uname -m)"
	need uml-build make gcc flex bison bc xz tar
	apt_suite "$suite" || die "the user-mode kernel's source is in $suite, which could not be read (see above)"
	version=$(apt_show "$package" Version)
	if [[ -z $version ]]; then
		package=$(apt_show linux-source Depends | tr -d ' ' | cut -d'(' -f1)
		version=$(apt_show "${package:-none}" Version)
		[[ -n $version ]] || die "$suite has neither linux-source-$UML_SERIES nor another linux-source"
		say "$suite has moved on from linux-source-$UML_SERIES: taking $package"
	fi
	name=uml-$version-$(uml_config_sum)
	mkdir -p "$VM_CACHE/kernels"
	if stamped "$VM_CACHE/kernels/$name"; then
		ln -sfn "$name" "$VM_CACHE/kernels/uml"
		return
	fi
	rm -rf "$VM_CACHE"/build.uml.*
	temp=$(mktemp -d "$VM_CACHE/build.uml.XXXXXX")
	# shellcheck disable=SC2064
	trap "rm -rf '$temp'" EXIT
	apt_unpack "$temp/x" "$package=$version" || die "the kernel source could not be fetched (see above)"
	say "unpacking the kernel source"
	mkdir "$temp/src"
	tick "unpacking the kernel source" tar -xf "$temp/x/usr/src/$package.tar.xz" -C "$temp/src" --strip-components=1 || die "no user-mode kernel"
	src=$temp/src
	uml_configure "$src"
	say "compiling the user-mode kernel $version (about 10 minutes on two cores)"
	# shellcheck disable=SC2317
	tick_detail() { printf ', %d of about 1150 files compiled' "$(grep -c '^  CC' "$1")"; }
	tick "compiling the user-mode kernel" make -C "$src" ARCH=um "-j$(nproc)" linux || die "no user-mode kernel"
	uml_collect "$src" "$temp/new"
	publish "$temp/new" "$name" uml
	say "the user-mode kernel $version is ready"
}

# uml_configure SRC: allnoconfig and what uml.config lists. A symbol marked
# with `!` that is not on afterwards is an error, another one is dropped.
uml_configure() {
	local src=$1 symbol value args=()
	tick "configuring the user-mode kernel" make -C "$src" ARCH=um allnoconfig || die "no user-mode kernel"
	while IFS='=' read -r symbol value; do
		case $symbol in '' | '#'*) continue ;; esac
		if [[ -n $value ]]; then
			args+=(--set-val "${symbol#!}" "$value")
		else
			args+=(-e "${symbol#!}")
		fi
	done <"$VM_DIR/uml.config"
	(cd "$src" && scripts/config "${args[@]}") || die "no user-mode kernel: scripts/config failed (see above)"
	tick "configuring the user-mode kernel" make -C "$src" ARCH=um olddefconfig || die "no user-mode kernel"
	while IFS='=' read -r symbol value; do
		[[ $symbol == !* ]] || continue
		grep -q "^CONFIG_${symbol#!}=" "$src/.config" ||
			die "this source does not offer ${symbol#!}, which uml.config needs: look for its dependencies in the Kconfig files"
	done <"$VM_DIR/uml.config"
}

# uml_collect SRC DIR: the kernel, its configuration, and the lists that let
# modprobe succeed for what is built in.
uml_collect() {
	local src=$1 dir=$2 release
	release=$(cat "$src/include/config/kernel.release")
	mkdir -p "$dir/lib/modules/$release"
	cp "$src/linux" "$dir/linux"
	strip "$dir/linux"
	cp "$src/.config" "$dir/config"
	echo "$release" >"$dir/release"
	cp "$src/modules.builtin" "$src/modules.builtin.modinfo" "$dir/lib/modules/$release/"
	: >"$dir/lib/modules/$release/modules.order"
	PATH=$PATH:/usr/sbin:/sbin depmod -b "$dir" "$release" || die "depmod failed for the user-mode kernel"
	stamp "$dir" linux config release
}
