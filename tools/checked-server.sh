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

checked_header=$root/tools/memcheck/valgrind/memcheck.h

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

# Print where the server of that version is kept.  Its name tells how it was
# built, too.
kept_at()
{
	echo "$kept/$1-$( (declare -f build_server; cat "$checked_header") | sha256sum | head -c 8)"
}

# build_server TARFILE VERSION
build_server()
{
	local source=$work/server prefix directory

	prefix=$(kept_at "$2")
	say "building a server with assertions from ${1##*/}, to be kept in $prefix"
	rm -rf "$kept/$2-"*
	"${as_user[@]}" mkdir "$source"
	"${as_user[@]}" tee "$work/${1##*/}" <"$1" >/dev/null
	"${as_user[@]}" tar -C "$source" --strip-components=1 -xf "$work/${1##*/}"
	quietly "${as_user[@]}" env -C "$source" ./configure --prefix="$prefix" \
		--enable-cassert --enable-debug --enable-tap-tests --without-readline \
		--with-icu CFLAGS='-Og -g' LDFLAGS_EX='-Wl,-z,dynamic-undefined-weak' \
		CPPFLAGS="-DUSE_VALGRIND -I$work/memcheck"
	"${as_user[@]}" mkdir -p "$work/memcheck/valgrind"
	"${as_user[@]}" tee "$work/memcheck/valgrind/memcheck.h" <"$checked_header" >/dev/null
	for directory in . contrib/dblink contrib/postgres_fdw; do
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
	local major=$1 package=postgresql-$1 version tar

	if [[ -n ${SERVER_SOURCE:-} ]]; then
		version=$(source_version "$SERVER_SOURCE")
		[[ -e $(kept_at "$version")/complete ]] || build_server "$SERVER_SOURCE" "$version"
		return
	fi
	for version in $(source_versions "$package"); do
		[[ ! -e $(kept_at "${version%-*}")/complete ]] || return 0
		if tar=$(fetch_source "$package" "$version"); then
			build_server "$tar" "${version%-*}"
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
	local major server

	install_packages gcc libc6-dev make bison flex perl bzip2 zlib1g-dev libicu-dev pkg-config \
		libipc-run-perl valgrind util-linux "$@"
	if [[ -n ${SERVER_SOURCE:-} ]]; then
		major=$(source_version "$SERVER_SOURCE")
		major=${major%%[!0-9]*}
	else
		command -v apt-get >/dev/null || not_run 'there is no apt-get: set SERVER_SOURCE'
		major=$(wanted_major)
	fi
	make_work_dir

	kept_folder servers "${CHECKED_SERVERS:-}"
	(
		flock 9
		provide_server "$major"
	) 9<"$kept"
	for server in $(printf '%s\n' "$(kept_at "$major.*")" | sort -rV); do
		[[ -e $server/complete ]] || continue
		PG_CONFIG=$server/bin/pg_config
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
