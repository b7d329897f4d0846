# shellcheck shell=bash
# What the tools share: they need a PostgreSQL server with the extension in it,
# but must touch neither the system's installation nor its clusters.  So they
# work on a copy of the source tree and on a private installation, both in one
# work directory that is gone when they end.  What takes long to make is kept in
# folders below /var/tmp.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=''				# the work directory
as_user=()			# runs a command as the user that owns the work directory
on_exit=(true)		# what else to do before the work directory goes
dropin=/etc/postgresql-common/createcluster.d/zz-leader_election-tools.conf
policy=/usr/sbin/policy-rc.d
lent_files=()		# files of the system's that are to be removed again
oldest_major=15
python=/usr/bin/python3		# the first in PATH may be private to the caller
[[ -x $python ]] || python=python3
unoptimized='-g -O0 -Wno-cpp'	# Debian's -D_FORTIFY_SOURCE warns of that

say()
{
	printf '== %s\n' "$*"
}

die()
{
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# Leave without a verdict: what is needed cannot be had.
not_run()
{
	say "not run: $*"
	exit 77
}

# Forget what would lead make, psql or the tests elsewhere.
clean_environment()
{
	local name

	for name in $(compgen -e PG) MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES; do
		[[ $name == PG_CONFIG ]] || unset "$name"
	done
	export LANG=C.UTF-8 LC_ALL=C.UTF-8
}

# Run a command quietly; show what it said only if it fails.
quietly()
{
	local out

	out=$("$@" 2>&1) || {
		printf '%s\n' "$out" "failed: $*" >&2
		return 1
	}
}

as_root()
{
	if ((EUID == 0)); then
		"$@"
	elif ! command -v sudo >/dev/null; then
		die "needs root or sudo for: $*"
	elif [[ -t 0 ]]; then
		sudo "$@"
	else
		sudo -n "$@"
	fi
}

# Print those of the given Debian packages that are not installed.
missing_packages()
{
	local package installed

	# shellcheck disable=SC2016 # dpkg-query's variables
	installed=$(dpkg-query -W -f '${db:Status-Status}:${Package} ' "$@" 2>/dev/null || true)
	for package; do
		[[ " $installed" == *" installed:$package "* ]] || echo "$package"
	done
}

# What the tools fetch from registries, and what says so
declare -A registries=(
	[debian]='Debian packages' [go]='Go modules' [python]='package index' [javascript]='npm registry'
	[java]='Maven repository' [rust]='crate registry'
)

# Provide a program that is at least of that version, by packages if need be, and see that the
# user of the work directory has it: provide VERSION "PROGRAM ARGUMENT..." PACKAGE...
provide()
{
	local version tries

	for tries in 1 2; do
		# shellcheck disable=SC2086 # a program with its arguments
		version=$("${as_user[@]}" $2 2>&1 | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)?' | head -n 1) || true
		! printf '%s\n' "$1" "${version:-0}" | sort -CV || return 0
		((tries == 2)) || [[ -n $version ]] || install_packages "${@:3}" || return
	done
	lack="no ${2%% *} of version $1 or newer"
	return 1
}

# Check that a registry can be used: its ordinary client is there, and the registry answers it
# about a package that the tools use.  Sets lack to what says why not.  reach NAME
reach()
{
	local folder rc=0

	lack="no ${registries[$1]}"
	folder=$("${as_user[@]}" mktemp -d)
	case $1 in
		debian) update_package_lists && ask apt-get -o APT::Sandbox::User= download debootstrap ;;
		go) provide 1.25 'go version' golang-go && ask go list -m -versions github.com/jackc/pgx/v5 ;;
		python) provide 3.9 "$python --version" python3 && provide 20.0 "$python -m pip --version" python3-pip &&
			ask "$python" -m pip --no-cache-dir index versions psycopg ;;
		javascript) provide 20.0 'node --version' nodejs && provide 7.0 'npm --version' npm &&
			ask npm --cache=npm view pg version ;;
		java) provide 17.0 'javac -version' default-jdk-headless && provide 3.0 'mvn --version' maven &&
			ask mvn -q -B -Dmaven.repo.local=m2 dependency:get -Dtransitive=false \
				-Dartifact=org.postgresql:postgresql:42.7.4:pom ;;
		rust) provide 1.94 'cargo --version' cargo-web rustc-web && ask env CARGO_HOME=cargo cargo info -q sqlx ;;
	esac || rc=1
	"${as_user[@]}" rm -rf "$folder"
	return "$rc"
}

# Run the client of a registry in the folder of reach.
ask()
{
	"${as_user[@]}" env -C "$folder" timeout 120 "$@" >/dev/null 2>&1 </dev/null
}

# Leave without a verdict unless a registry can be used: require_registry NAME
require_registry()
{
	reach "$1" || not_run "$lack"
}

# Print the address of the mirror that Debian's packages are fetched from.
debian_mirror()
{
	# shellcheck disable=SC2016 # apt's variables
	apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' |
		grep -E '/debian/?$' | head -n 1
}

# Refresh the package lists, once per run.  apt-get waits for the lock of the packages, but not
# for that of the lists, which another run may hold.
update_package_lists()
{
	local out end=$((SECONDS + 600))

	[[ -n ${lists_updated:-} ]] && return
	until out=$(as_root apt-get -qq -o DPkg::Lock::Timeout=600 update 2>&1); do
		if [[ $out != *'Could not get lock'* ]] || ((SECONDS > end)); then
			printf '%s\n' "$out" "failed: apt-get update" >&2
			return 1
		fi
		sleep 2
	done
	lists_updated=yes
}

# Write a file of the system's that is to be there while packages are installed.
lend_file()
{
	lent_files+=("$1")
	as_root install -D -m "$2" /dev/stdin "$1"
}

take_back_files()
{
	local file

	for file in "${lent_files[@]}"; do
		as_root rm -f "$file"
	done
	if ((${#lent_files[@]})); then
		as_root rmdir --ignore-fail-on-non-empty "${dropin%/*}"
	fi
	lent_files=()
}

# Install the Debian packages that are missing, or with INSTALL=no say which they are.  The
# package of a server makes a cluster, and that of a daemon starts it, unless it is told not to.
install_packages()
{
	local -a missing
	local package

	command -v dpkg-query >/dev/null || return 0
	mapfile -t missing < <(missing_packages "$@")
	((${#missing[@]})) || return 0

	if [[ ${INSTALL:-} == no ]]; then
		printf '%s: packages are missing: apt-get install --no-install-recommends %s\n' \
			"${0##*/}" "${missing[*]}" >&2
		return 1
	fi
	say "installing packages: ${missing[*]}"
	update_package_lists
	lend_file "$dropin" 644 <<<'create_main_cluster = false'
	[[ -e $policy ]] ||
		lend_file "$policy" 755 <<<$'#!/bin/sh\nexit 101'
	quietly as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get -qq -y -o DPkg::Lock::Timeout=600 install \
		--no-install-recommends "${missing[@]}"
	take_back_files

	# nor is it to start with the machine from now on
	for package in "${missing[@]}"; do
		[[ $package =~ ^(pgbouncer|patroni|etcd-server|redis-server|prometheus(-postgres-exporter)?)$ ]] || continue
		as_root systemctl disable "${package%-server}" >/dev/null 2>&1 || true
	done
}

# Run a program of apt's without touching the system's lists.
private_apt()
{
	local apt=$work/apt

	"${as_user[@]}" env -C "$apt/files" "$1" -o Dir::Etc::SourceList=/dev/null \
		-o Dir::Etc::SourceParts="$apt/sources" -o Dir::State::Lists="$apt/lists" \
		-o Dir::Cache="$apt/cache" -o APT::Sandbox::User= "${@:2}"
}

# Print the versions of a source package that can be had where the system's packages
# are from, the newest first.
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

# Fetch the tar file of a version of a source package, and print where it is.
fetch_source()
{
	private_apt apt-get -qq source --download-only --tar-only "$1=$2" >/dev/null 2>&1 &&
		echo "$work/apt/files/$1_${2%-*}".orig.tar.*
}

# Can the extension be built for, and run by, the server of this pg_config?
server_usable()
{
	local version

	version=$("$1" --version 2>/dev/null) || return
	version=${version#PostgreSQL }
	((${version%%[!0-9]*} >= oldest_major)) &&
		[[ -f $("$1" --pgxs) && -x $("$1" --bindir)/postgres &&
			-f $("$1" --includedir-server)/postgres.h ]]
}

# Print the major version of the packages to install: the one asked for by
# PG_CONFIG, or the newest server that is there, or the distribution's own.
choose_major()
{
	local dir

	if [[ ${PG_CONFIG:-} =~ ^/usr/lib/postgresql/([0-9]+)/ ]]; then
		echo "${BASH_REMATCH[1]}"
		return
	fi
	[[ -z ${PG_CONFIG:-} ]] || die "no server with its headers at $PG_CONFIG"
	for dir in $(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort -rV); do
		dir=${dir#/usr/lib/postgresql/}
		if [[ -x /usr/lib/postgresql/$dir ]] &&
			((${dir%%/*} >= oldest_major)); then
			echo "${dir%%/*}"
			return
		fi
	done
	apt-cache depends --important postgresql |
		sed -n 's/^ *Depends: postgresql-\([0-9]*\)$/\1/p'
}

# Set PG_CONFIG to a server that is installed, or else packages to those of one, and PG_CONFIG to
# where it is then.
find_server()
{
	local candidate major

	packages=()
	[[ ${PG_CONFIG:-} != pg_config ]] || PG_CONFIG=$(type -P pg_config || true)
	if [[ -n ${PG_CONFIG:-} ]]; then
		! server_usable "$PG_CONFIG" || return 0
	else
		for candidate in \
			$(printf '%s\n' /usr/lib/postgresql/*/bin/pg_config | sort -rV) \
			pg_config; do
			if server_usable "$candidate"; then
				PG_CONFIG=$(type -P "$candidate")
				return
			fi
		done
	fi

	command -v apt-get >/dev/null ||
		die "no PostgreSQL server with its headers found; set PG_CONFIG"
	[[ ${INSTALL:-} == no ]] || update_package_lists
	major=$(choose_major)
	[[ -n $major ]] || die "no package of a PostgreSQL server found"
	packages=("postgresql-$major" "postgresql-server-dev-$major")
	PG_CONFIG=/usr/lib/postgresql/$major/bin/pg_config
}

# Install what is missing, all at once: always what a build needs, and the given packages.
install_needs()
{
	local -a packages

	find_server
	install_packages "${packages[@]}" gcc libc6-dev make libkrb5-dev "$@"
	server_usable "$PG_CONFIG" || die "PostgreSQL $oldest_major or newer is needed"
}

# Take those folders out of PATH that the user of the work directory may not read, as in
# root's home.  What is there would be found first, and could not be run.
leave_out_private_folders()
{
	local folder readable=''
	local -a path

	IFS=: read -ra path <<<"$PATH"
	for folder in "${path[@]}"; do
		! "${as_user[@]}" test -x "$folder" || readable+=:$folder
	done
	export PATH=${readable#:}
}

# Make the work directory, for a user that the server accepts: not root.  Its
# path is short, for the sockets in it.
make_work_dir()
{
	local base=${TMPDIR:-/tmp} user=postgres

	((${#base} <= 40)) || base=/tmp
	work=$(mktemp -d "$base/le.XXXXXX")
	if ((EUID == 0)); then
		id -u "$user" >/dev/null 2>&1 || user=nobody
		chown "$user" "$work"
		# setpriv does not stay in between, so that signals and $! are right
		if command -v setpriv >/dev/null; then
			as_user=(setpriv "--reuid=$user" "--regid=$(id -g "$user")"
				--init-groups --)
		else
			as_user=(runuser -u "$user" --)
		fi
		leave_out_private_folders
	fi
	export HOME=$work TMPDIR=$work/tmp
	cd "$work" || exit
	"${as_user[@]}" mkdir "$TMPDIR" ||
		die "user $user cannot get at $work; set TMPDIR to another place"
}

# Set kept to a folder that stays, for the user of the work directory: below
# /var/tmp unless another place is given.  Any user can write to /var/tmp, so
# what is run from there must be the user's own.  kept_folder NAME [PLACE]
kept_folder()
{
	local owner

	owner=$("${as_user[@]}" id -u)
	kept=${2:-/var/tmp/leader_election-$1-$owner}
	"${as_user[@]}" mkdir -p -m 755 "$kept"
	[[ ! -L $kept && $(stat -c %u "$kept") == "$owner" ]] ||
		die "$kept does not belong to user $owner"
}

# Copy the source tree, with what is not committed yet, without what was built.
copy_tree()
{
	local -a git=(git -c 'safe.directory=*' -C "$root")

	"${as_user[@]}" mkdir "$1"
	if "${git[@]}" rev-parse --git-dir >/dev/null 2>&1; then
		"${git[@]}" ls-files -z --cached --others --exclude-standard |
			while IFS= read -r -d '' file; do
				[[ ! -e $root/$file ]] || printf '%s\0' "$file"
			done
	else
		(cd "$root" && find . \( -type f -o -type l \) \
			! -path './.git/*' ! -path './tmp_check*' ! -path './output_iso/*' \
			! -path './test-results*' \
			! -name '*.[od]' ! -name '*.bc' ! -name '*.so' -print0)
	fi | tar -C "$root" -c --null -T - -f - |
		"${as_user[@]}" tar -C "$1" -xo -f -
}

# build DIRECTORY [MAKE-ARGUMENT...]
build()
{
	quietly "${as_user[@]}" make -s -j "$(nproc)" -C "$1" \
		PG_CONFIG="$PG_CONFIG" with_llvm=no "${@:2}"
}

# Print the options with which a compiler lets no warning pass.
strictly()
{
	local includes

	includes=$("$PG_CONFIG" --includedir)
	echo "-Wall -Wextra -Werror -isystem $("$PG_CONFIG" --includedir-server)" \
		"-isystem $includes -isystem $("$PG_CONFIG" --pkgincludedir)/internal"
}

# Print the files of a tree that a build reads.
sources()
{
	(cd "$1" && find Makefile leader_election* src bin -type f ! -name '*.[od]' ! -name '*.so' \
		! -path bin/pg_leader -print)
}

# Bring the sources in a folder up to date with $work/src.  Those that are as they
# were keep their time, so that what was built from them is new enough.
update_sources()
{
	local file
	local -a changed=()

	while IFS= read -r file; do
		cmp -s "$work/src/$file" "$1/$file" || changed+=("$file")
	done < <(sources "$work/src")
	if ((${#changed[@]})); then
		(cd "$work/src" && "${as_user[@]}" cp --parents -t "$1" "${changed[@]}")
	fi
	# make does not miss an object, nor mind one too many, if the library is newer
	while IFS= read -r file; do
		[[ -e $work/src/$file ]] || "${as_user[@]}" rm -f "$1/$file" "$1/${file%.c}.o" "$1"/*.so
	done < <(sources "$1")
	# from these come the options of all
	if [[ " ${changed[*]} " =~ \ (Makefile|[^/ ]*\.control)\  ]]; then
		"${as_user[@]}" find "$1" \( -name '*.o' -o -name '*.so' \) -delete
	fi
}

# Set kept to a folder with a build of $work/src, not optimized, in which only what
# has changed since the last time was built.  There is one for each tree and server,
# up to eight.  It is the caller's alone until release_kept.
build_kept()
{
	kept_folder builds
	find "$kept" -mindepth 1 -maxdepth 1 -printf '%T@ %p\n' | sort -rn | sed '1,8d; s/^[^ ]* //' |
		"${as_user[@]}" xargs -r rm -rf
	kept+=/$(sha256sum <<<"$root $PG_CONFIG $("$PG_CONFIG" --version)" | head -c 16)
	"${as_user[@]}" mkdir -p "$kept"
	"${as_user[@]}" touch "$kept"
	exec {kept_lock}<"$kept"
	flock "$kept_lock"
	update_sources "$kept"
	kept_options=(CC=gcc COPT="$(strictly) $unoptimized")
	build "$kept" "${kept_options[@]}"
}

release_kept()
{
	exec {kept_lock}<&-
}

# Make a private installation of the server, with the extension as built in
# the given directory, and put its programs first in PATH.  It is made of
# symbolic links, but for the folders that the extension goes to, and for the
# programs: these look for the rest of their installation from where they really
# are.
install_privately()
{
	local dir share man

	share=$("$PG_CONFIG" --sharedir)
	man=$("$PG_CONFIG" --mandir)
	for dir in "$share" "$("$PG_CONFIG" --pkglibdir)" "$share/extension" "$man" "$man/man1"; do
		[[ -d $dir ]] || continue
		"${as_user[@]}" rm -f "$work$dir"
		"${as_user[@]}" mkdir -p "$work$dir"
		"${as_user[@]}" ln -s -t "$work$dir" "$dir"/*
	done
	bin=$work$("$PG_CONFIG" --bindir)
	"${as_user[@]}" mkdir -p "$bin"
	"${as_user[@]}" cp -L "$("$PG_CONFIG" --bindir)"/* "$bin/"
	quietly "${as_user[@]}" make -s -C "$1" PG_CONFIG="$PG_CONFIG" \
		with_llvm=no DESTDIR="$work" "${@:2}" install
	export PATH=$bin:$PATH
}

# shellcheck disable=SC2317 # called by the trap
cleanup()
{
	local rc=$? pidfile

	trap '' INT TERM HUP
	trap - EXIT
	set +e
	"${on_exit[@]}"
	take_back_files
	if [[ -n $work ]]; then
		find "$work" -name postmaster.pid | while read -r pidfile; do
			"${as_user[@]}" pg_ctl stop -s -m immediate -D "${pidfile%/*}"
		done
		cd /
		rm -rf "$work"
	fi
	exit "$rc"
}

trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
clean_environment
