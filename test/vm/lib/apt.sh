# shellcheck shell=bash
# Packages from any Debian suite, without touching the machine's own apt:
# each suite has its own sources, lists and cache below the cache folder. What
# is fetched is checked against Debian's signatures as usual.

# debian_mirror: the URI of the Debian archive that this machine's apt uses.
# `apt-get indextargets` reads both the one-line and the deb822 format.
debian_mirror() {
	local code
	if [[ -n ${VM_DEBIAN_MIRROR:-} ]]; then
		echo "$VM_DEBIAN_MIRROR"
		return
	fi
	code=$(debian_codename)
	# shellcheck disable=SC2016
	apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk -v code="$code" '$3 == "main" && ($2 == code || $2 == "stable" || $2 == "oldstable" || $2 == "testing") { print $1; found = 1; exit }
			END { exit !found }' ||
		die "no Debian archive with the suite $code, component main, in this machine's apt sources: set VM_DEBIAN_MIRROR to the URI of one"
}

debian_codename() {
	# shellcheck disable=SC1091
	(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
}

# apt_suite SUITE [OTHER]: makes APT_OPTS those for SUITE, with another one
# that it leans on if asked for, and reads the index at most once a day.
# Without a network the index of last time has to do.
apt_suite() {
	local suite=$1 dir=$VM_CACHE/apt/$1${2:++$2} mirror signed='' s
	mkdir -p "$dir/none" "$dir/lists/partial" "$dir/cache/archives/partial"
	APT_OPTS=(
		-o "Dir::Etc::sourcelist=$dir/sources.list" -o "Dir::Etc::sourceparts=$dir/none"
		-o Dir::Etc::preferences=/dev/null -o "Dir::Etc::preferencesparts=$dir/none"
		-o "Dir::State::lists=$dir/lists" -o "Dir::Cache=$dir/cache"
		-o APT::Sandbox::User=root -o Debug::NoLocking=true
		-o Acquire::Languages=none -o Acquire::Retries=3 -o Acquire::http::Timeout=30
		-o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
		-o Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled=false
		-o APT::Update::Post-Invoke-Success::=
	)
	if [[ -z ${VM_REFRESH:-} && -n $(find "$dir/updated" -mmin -1440 2>/dev/null) ]]; then
		return 0
	fi
	mirror=$(debian_mirror) || return
	for signed in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
		[[ -r $signed ]] && break
	done
	[[ -r $signed ]] && signed="[signed-by=$signed] " || signed=''
	for s; do echo "deb ${signed}$mirror $s main"; done >"$dir/sources.list"
	if tick "reading the package index of $suite" apt-get "${APT_OPTS[@]}" -q --error-on=any update; then
		touch "$dir/updated"
	elif [[ -e $dir/updated ]]; then
		say "going on with the index of $suite of $(date -r "$dir/updated" +%F)"
	else
		say "the suite $suite cannot be read from $mirror"
		return 1
	fi
}

# apt_show PACKAGE FIELD: a field of the newest version in the current suite; empty if there is none.
apt_show() {
	apt-cache "${APT_OPTS[@]}" -o Dir::State::status=/dev/null show "$1" 2>/dev/null |
		awk -v field="$2:" '/^$/ { exit } $1 == field { sub(/^[^:]*: */, ""); print; exit }'
}

# apt_unpack DIR PACKAGE...: fetches the packages from the current suite and unpacks them into DIR.
apt_unpack() {
	local dir=$1 debs deb bytes=0 p
	shift
	debs=$(mktemp -d "$dir.debs.XXXXXX")
	for p; do
		bytes=$((bytes + $(apt_show "${p%%=*}" Size || echo 0)))
	done
	say "fetching $* ($((bytes / 1000)) kB)"
	chmod 755 "$debs"
	# shellcheck disable=SC2016
	if ! tick "fetching $1" bash -c 'cd "$1" && shift && exec apt-get "$@"' - "$debs" "${APT_OPTS[@]}" -q download "$@"; then
		rm -rf "$debs"
		return 1
	fi
	mkdir -p "$dir"
	for deb in "$debs"/*.deb; do
		tick "unpacking $(basename "$deb")" dpkg-deb -x "$deb" "$dir" || { rm -rf "$debs"; return 1; }
	done
	rm -rf "$debs"
}

# ensure_busybox: a static busybox in the cache, from this machine's own suite.
ensure_busybox() {
	stamped "$VM_CACHE/busybox" || with_lock busybox fetch_busybox
}

fetch_busybox() {
	local temp
	stamped "$VM_CACHE/busybox" && return
	rm -rf "$VM_CACHE"/build.busybox.*
	temp=$(mktemp -d "$VM_CACHE/build.busybox.XXXXXX")
	# shellcheck disable=SC2064
	trap "rm -rf '$temp'" EXIT
	if ! { apt_suite "$(debian_codename)" && apt_unpack "$temp/x" busybox-static; }; then
		die "busybox-static could not be fetched (see above)"
	fi
	find "$temp/x" -name busybox -type f -perm -100 -exec cp {} "$temp/busybox" \;
	rm -rf "$temp/x"
	"$temp/busybox" true || die "the fetched busybox does not run: $temp/busybox"
	stamp "$temp" busybox
	rm -rf "${VM_CACHE:?}/busybox"
	chmod 755 "$temp"
	mv "$temp" "$VM_CACHE/busybox"
}
