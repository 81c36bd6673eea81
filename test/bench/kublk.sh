# shellcheck shell=bash
# The kernel tree's own ublk server in C, tools/testing/selftests/ublk, built from
# the source package that the user-mode kernel is built from. It is linked
# statically, so that it needs nothing of the guest. Beside it go the headers that
# it wants, newer than Debian 12's; nothing is installed.
#
# In the cache: kublk/kublk, and kublk/version, which says what it was built for.

KUBLK_LIBURING_SUITE=trixie
KUBLK_SUITE=trixie-backports

# kublk_version: the version of the kernel source that is wanted: the one of the
# user-mode kernel in the cache; empty if there is none.
kublk_version() {
	local link
	link=$(readlink "$VM_CACHE/kernels/uml") || return 0
	link=${link#uml-}
	echo "${link%-*}"
}

kublk_ready() {
	local want
	want=$(kublk_version)
	stamped "$VM_CACHE/kublk" && [[ -z $want || $(<"$VM_CACHE/kublk/version") == "$want" ]]
}

ensure_kublk() {
	kublk_ready || with_lock kublk build_kublk
}

build_kublk() {
	local package=linux-source-$UML_SERIES want version temp sources
	kublk_ready && return
	[[ $(uname -m) == x86_64 ]] || die "the C server is built on x86_64 only; this machine is $(uname -m)"
	need uml-build gcc xz tar
	rm -rf "$VM_CACHE"/build.kublk.*
	temp=$(mktemp -d "$VM_CACHE/build.kublk.XXXXXX")
	# shellcheck disable=SC2064
	trap "rm -rf '$temp'" EXIT
	apt_suite "$KUBLK_LIBURING_SUITE" || die "liburing is in $KUBLK_LIBURING_SUITE, which could not be read (see above)"
	apt_unpack "$temp/x" liburing-dev || die "liburing could not be fetched (see above)"
	apt_suite "$KUBLK_SUITE" || die "the kernel source is in $KUBLK_SUITE, which could not be read (see above)"
	want=$(kublk_version)
	version=$(apt_show "$package=${want:-none}" Version)
	if [[ -z $version ]]; then
		version=$(apt_show "$package" Version)
		[[ -n $version ]] || die "$KUBLK_SUITE has no $package"
		[[ -z $want ]] || say "$KUBLK_SUITE has no $package of $want any more: taking $version"
	fi
	apt_unpack "$temp/x" "$package=$version" "linux-libc-dev=$version" || die "the kernel source could not be fetched (see above)"
	mkdir "$temp/src" "$temp/new"
	tick "unpacking the C server" tar -xf "$temp/x/usr/src/$package.tar.xz" -C "$temp/src" --strip-components=5 \
		"$package/tools/testing/selftests/ublk" || die "no C server"
	mapfile -t sources < <(find "$temp/src" -maxdepth 1 -name '*.c' ! -name metadata_size.c)
	# As its own Makefile does, with -O3.
	tick "compiling the C server" gcc -O3 -w -static -D_GNU_SOURCE= -o "$temp/new/kublk" \
		-I "$temp/x/usr/include" -I "$temp/x/usr/include/x86_64-linux-gnu" "${sources[@]}" \
		-L "$temp/x/usr/lib/x86_64-linux-gnu" -luring -lpthread -lm || die "no C server"
	echo "${want:-$version}" >"$temp/new/version"
	(cd "$temp/new" && stamp . kublk version)
	rm -rf "${VM_CACHE:?}/kublk"
	mv "$temp/new" "$VM_CACHE/kublk"
	say "the C server of $version is ready"
}
