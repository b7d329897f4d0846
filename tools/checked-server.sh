# shellcheck shell=bash
# What tools/test-asan and tools/test-valgrind share: a server that looks for
# mistakes.  It has assertions, and it tells valgrind and AddressSanitizer which
# memory may be touched.  Debian has no such server, so it is built from the
# sources of Debian's package, and kept for the next time.
#
#	PG_CONFIG=path			a server of the major version that is wanted
#	SERVER_SOURCE=path		a tar file of PostgreSQL's sources, instead of Debian's
#	CHECKED_SERVERS=path	where to keep it, instead of below /var/tmp

# shellcheck source=tools/suites.sh
. "${BASH_SOURCE[0]%/*}/suites.sh"

servers=${CHECKED_SERVERS:-}
checked_header=$root/tools/memcheck/valgrind/memcheck.h

# Leave without a verdict.
not_run()
{
	say "not run: $*"
	exit 77
}

# Print the major version of PG_CONFIG, or of what else tools/test would take.
wanted_major()
{
	local version

	if version=$("${PG_CONFIG:-pg_config}" --version 2>/dev/null); then
		version=${version#PostgreSQL }
		echo "${version%%[!0-9]*}"
	else
		choose_major
	fi
}

# Run a program of apt's without touching the system's lists.
private_apt()
{
	local apt=$work/apt

	"${as_user[@]}" env -C "$apt/files" "$1" -o Dir::Etc::SourceList=/dev/null \
		-o Dir::Etc::SourceParts="$apt/sources" -o Dir::State::Lists="$apt/lists" \
		-o Dir::Cache="$apt/cache" -o APT::Sandbox::User= "${@:2}"
}

# Print the versions of a source package that can be had, the newest first.
source_versions()
{
	local file

	"${as_user[@]}" mkdir -p "$work"/apt/{sources,lists/partial,cache,files}
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
		[[ -f $file ]] || continue
		sed -E '/^deb-src /d; s/^deb /deb-src /; s/^Types:.*/Types: deb-src/' "$file" |
			"${as_user[@]}" tee "$work/apt/sources/${file##*/}" >/dev/null
	done
	# one archive that has no sources is no reason to give up
	private_apt apt-get -qq update >/dev/null 2>&1 || true
	private_apt apt-cache madison "$1" 2>/dev/null | awk '{ print $3 }' | sort -rVu
}

# Print where the server of that version is kept.  Its name tells how it was
# built, too.
kept_at()
{
	echo "$servers/$1-$( (declare -f build_server; cat "$checked_header") | sha256sum | head -c 8)"
}

# build_server TARFILE VERSION
build_server()
{
	local source=$work/server prefix directory

	prefix=$(kept_at "$2")
	say "building a server with assertions from ${1##*/}, to be kept in $prefix"
	rm -rf "$servers/$2-"*
	"${as_user[@]}" mkdir "$source"
	"${as_user[@]}" tee "$work/${1##*/}" <"$1" >/dev/null
	"${as_user[@]}" tar -C "$source" --strip-components=1 -xf "$work/${1##*/}"
	quietly "${as_user[@]}" env -C "$source" ./configure --prefix="$prefix" \
		--enable-cassert --enable-debug --enable-tap-tests --without-readline \
		--without-icu CFLAGS='-Og -g' LDFLAGS_EX='-Wl,-z,dynamic-undefined-weak' \
		CPPFLAGS="-DUSE_VALGRIND -I$work/memcheck"
	"${as_user[@]}" mkdir -p "$work/memcheck/valgrind"
	"${as_user[@]}" tee "$work/memcheck/valgrind/memcheck.h" <"$checked_header" >/dev/null
	for directory in . contrib/dblink; do
		quietly "${as_user[@]}" make -s -j "$(nproc)" -C "$source/$directory"
		quietly "${as_user[@]}" make -s -C "$source/$directory" install
	done
	"${as_user[@]}" cp "$source/src/tools/valgrind.supp" "$prefix/"
	"${as_user[@]}" touch "$prefix/complete"
	rm -rf "$source"
}

# Build the server from the newest sources that can be had.  Done already: with
# these, or where none can be had.
provide_server()
{
	local major=$1 package=postgresql-$1 version

	if [[ -n ${SERVER_SOURCE:-} ]]; then
		version=$(source_version "$SERVER_SOURCE")
		[[ -e $(kept_at "$version")/complete ]] || build_server "$SERVER_SOURCE" "$version"
		return
	fi
	for version in $(source_versions "$package"); do
		[[ ! -e $(kept_at "${version%-*}")/complete ]] || return 0
		if private_apt apt-get -qq source --download-only --tar-only \
			"$package=$version" >/dev/null 2>&1; then
			build_server "$work/apt/files/${package}_${version%-*}".orig.tar.* "${version%-*}"
			return
		fi
		say "the sources of $package $version cannot be had"
	done
}

source_version()
{
	sed -E 's/.*[-_]([0-9][0-9a-z.]*)\.(orig\.)?tar\..*/\1/' <<<"${1##*/}"
}

# Set PG_CONFIG to such a server.  Makes the work directory.
install_checked_server()
{
	local major owner kept=''

	install_packages gcc libc6-dev make bison flex perl bzip2 zlib1g-dev \
		libipc-run-perl valgrind util-linux "$@"
	if [[ -n ${SERVER_SOURCE:-} ]]; then
		major=$(source_version "$SERVER_SOURCE")
		major=${major%%[!0-9]*}
	else
		command -v apt-get >/dev/null || not_run 'there is no apt-get: set SERVER_SOURCE'
		major=$(wanted_major)
	fi
	make_work_dir

	# anybody can write to /var/tmp: what is run from there must be the user's own
	owner=$("${as_user[@]}" id -u)
	: "${servers:=/var/tmp/leader_election-servers-$owner}"
	"${as_user[@]}" mkdir -p -m 755 "$servers"
	[[ ! -L $servers && $(stat -c %u "$servers") == "$owner" ]] ||
		die "$servers does not belong to user $owner: set CHECKED_SERVERS to another place"
	(
		flock 9
		provide_server "$major"
	) 9>"$servers/lock"
	for kept in $(printf '%s\n' "$(kept_at "$major.*")" | sort -rV); do
		[[ -e $kept/complete ]] || continue
		PG_CONFIG=$kept/bin/pg_config
		return
	done
	not_run "the sources of PostgreSQL $major cannot be had: set SERVER_SOURCE"
}

# Make the server one that starts as a shell script's text says.  $real is its
# program, which looks for its installation from where it is.
wrap_server()
{
	"${as_user[@]}" mv "$bin/postgres" "$bin/postgres.real"
	{
		printf '#!/bin/bash\nreal=%q name=%q\n' "$bin/postgres.real" "$bin/postgres"
		cat
	} | "${as_user[@]}" tee "$bin/postgres" >/dev/null
	"${as_user[@]}" chmod 755 "$bin/postgres"
}

# Count reports as one more failure, and show them: those in files of their own, and
# those in the server's log, of libubsan's and of assertions that do not hold.
check_reports()
{
	local reports

	reports=$(
		find "$work/reports" -type f -size +0 -exec cat {} +
		find "$work" -name '*.log' -exec grep -hE -A 12 'runtime error: |TRAP: ' {} +
	) || true
	if [[ -n $reports ]]; then
		head -n 1000 <<<"$reports"
		fail 'there are reports'
	else
		passed=$((passed + 1))
	fi
}
