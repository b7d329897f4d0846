# shellcheck shell=bash
# What tools/test and tools/test-asan share: to run the suites against the private
# installation, and to count in test files.
#
#	SUITES="regress isolation tap"	only these suites
#	TESTS="name t/name.pl"			only these tests, whichever suite they are in
#	KEEP=1							keep what they print and log in test-results/

# shellcheck source=tools/lib.sh
. "${BASH_SOURCE[0]%/*}/lib.sh"

tests_from=$root		# the tree of the tests: the copy, once there is one
passed=0
failed=0
suites_run=0
causes=()				# why test files of t/ ended before their end
failures=()				# what has failed, a line each
not_run=()				# test files of t/ that were skipped, with the reason

# Copy what the suites have printed and logged into the tree, instead of what was there.
keep_results()
{
	local new suite

	new=$(mktemp -d "$root/test-results.XXXXXX")
	for suite in regress isolation regress-sql isolation-sql; do
		[[ -d $work/$suite ]] || continue
		mkdir "$new/$suite"
		find "$work/$suite" -mindepth 1 -maxdepth 1 ! -name tmp_check -exec cp -rt "$new/$suite" {} +
	done
	[[ ! -d $work/tap ]] || cp -r "$work/tap/tmp_check/log" "$new/tap"
	[[ ! -d $work/reports ]] || cp -rt "$new" "$work/reports"
	chmod -R u=rwX,go=rX "$new"
	((EUID != 0)) || chown -R --reference="$root" "$new"
	rm -rf "$root/test-results"
	mv "$new" "$root/test-results"
	say "what the tests printed and logged is in $root/test-results"
}

# Tell the result and leave, with what it says as the exit status.
finish()
{
	if ((!suites_run)); then
		:
	elif [[ -n ${KEEP:-} ]]; then
		keep_results
	elif ((failed)); then
		say 'with KEEP=1, results and logs are kept in test-results/; make accept takes them for what is expected'
	fi
	if ((${#causes[@]})); then
		say 'test files that could not go on, with the end of the log of the server'
		printf '%s\n' "${causes[@]}"
	fi
	((!${#not_run[@]})) || printf 'skipped: %s\n' "${not_run[@]}"
	((!${#failures[@]})) || printf 'FAILED: %s\n' "${failures[@]}"
	echo "$passed passed, $failed failed"
	((failed == 0)) || exit 1
	exit 0
}

fail()
{
	echo "FAILED: $*"
	failures+=("$*")
	failed=$((failed + 1))
}

# Print the tests of a suite that are to run, by the names its runner knows.
tests_of()
{
	local file name want

	cd "$tests_from" || return
	case $1 in
		regress) set -- sql/*.sql ;;
		isolation) set -- specs/*.spec ;;
		tap) set -- t/*.pl ;;
		*) return 1 ;;
	esac
	for file; do
		[[ -e $file ]] || continue
		name=${file#*/}
		name=${name%.*}
		for want in ${TESTS:-"$name"}; do
			[[ $want == "$name" || $want == "$file" || $want == "${file%.*}" ]] || continue
			if [[ $file == t/* ]]; then echo "$file"; else echo "$name"; fi
		done
	done
}

# Run a regress or isolation suite: run_regress SUITE PROGRAM DATABASE TEST...
run_regress()
{
	local suite=$1 program=$2 database=$3 out=$work/$1 rc=0

	shift 3
	# a test without its expected output is to fail, not to stop the others
	(cd "$work/src" && "${as_user[@]}" mkdir -p expected &&
		for test; do "${as_user[@]}" touch -a "expected/$test.out"; done)
	"${as_user[@]}" "$pgxs_test/$program" --bindir="$bin" \
		--inputdir="$work/src" --outputdir="$out" \
		--temp-instance="$out/tmp_check" --temp-config="$work/src/test.conf" \
		--encoding=UTF8 --no-locale --dbname="$database" "$@" 2>&1 |
		# it ends with where its files are, which are on their way out
		sed -u '/^\(# \)\?The differences that caused/,$d' |
		tee "$work/$suite.out" || rc=$?

	# " All 3 tests passed. " or " 1 of 3 tests failed. ", "# " before it since 16
	if [[ $(<"$work/$suite.out") =~ All\ ([0-9]+)\ tests\ passed ]] &&
		((rc == 0 && BASH_REMATCH[1] == $#)); then
		passed=$((passed + $#))
	elif [[ $(<"$work/$suite.out") =~ ([0-9]+)\ of\ ([0-9]+)\ tests\ failed ]]; then
		passed=$((passed + BASH_REMATCH[2] - BASH_REMATCH[1]))
		failed=$((failed + BASH_REMATCH[1]))
		# "test name ... FAILED", or "not ok 2 - name" since 16; "+" for "-" among parallel ones
		mapfile -t -O "${#failures[@]}" failures < <(sed -nE "s/^(test| {4,})? *([a-z0-9_]+) +\.\.\. FAILED.*/$suite \2/p
			s/^not ok [0-9]+ +[-+] ([^ ]+).*/$suite \1/p" "$work/$suite.out")
	else
		fail "suite $suite did not run to its end"
		tail -n 30 "$out"/log/*.log || true
	fi
	if ((rc != 0)) && [[ -s $out/regression.diffs ]]; then
		head -n 500 "$out/regression.diffs"
	fi
	check_server_log "$suite" "$out/log/postmaster.log"
}

# These suites crash nothing on purpose.
check_server_log()
{
	if [[ ! -f $2 ]]; then
		fail "suite $1 left no server log"
	elif grep -nE -B 2 -A 8 'terminated by signal|PANIC: |TRAP: ' "$2"; then
		fail "the server crashed in suite $1"
	fi
}

run_tap()
{
	local out=$work/tap rc=0 files=0 bad skipped log

	"${as_user[@]}" mkdir -p "$out/tmp_check/log"
	(
		cd "$work/src"
		export PERL5LIB=$pgxs_test/perl PG_REGRESS=$pgxs_test/regress/pg_regress
		export PG_CONFIG
		export TESTDIR=$out TESTDATADIR=$out/tmp_check PGPORT=65432
		export TESTLOGDIR=$out/tmp_check/log PG_TEST_PORT_DIR=$out/portlock
		export top_builddir=$out
		# the state tells the result of each file, which the summary may not
		"${as_user[@]}" prove --nocolor --state=save "$@" 2>&1
	) | tee "$work/tap.out" || rc=$?

	[[ ! $(<"$work/tap.out") =~ Files=([0-9]+) ]] || files=${BASH_REMATCH[1]}
	bad=$(grep -c 'last_result: [^0]' "$work/src/.prove" || true)
	skipped=$(grep -cE '^t/[^ ]+ \.+ skipped' "$work/tap.out" || true)
	passed=$((passed + files - bad - skipped))
	failed=$((failed + bad))
	# the lines of prove's summary, and which tests of the files failed
	mapfile -t -O "${#failures[@]}" failures < <(sed -nE 's/^(t\/[^ ]+\.pl) +\(Wstat: .*/\1/p
		/^ *#   Failed test/ { N; s/^ *# +([^\n]*)\n *# +(at .*)/\1 \2/p }' "$work/tap.out")
	mapfile -t not_run < <(sed -nE 's/^(t\/[^ ]+) \.+ skipped: /\1: /p' "$work/tap.out")
	((skipped < $#)) || fail "every test of suite tap was skipped"
	((files == $#)) || fail "suite tap ran $files of $# files"
	((rc == 0 || bad > 0)) || fail "suite tap ended with status $rc"
	# see end_this_file in t/LeaderElection.pm
	mapfile -t causes < <(sed -n 's/^.*# \(t\/[^ ]*\.pl: \)/\1/p' "$work/tap.out")
	((rc == 0)) || for log in "$out"/tmp_check/log/*; do
		[[ $log == */regress_log_* && -s $log ]] || continue
		if ! grep -qE "^t/${log##*/regress_log_}\.pl \.+ ok" "$work/tap.out"; then
			echo "--- end of ${log##*/}"
			tail -n 60 "$log"
		fi
	done
}

run_suite()
{
	local -a tests

	mapfile -t tests < <(tests_of "$1")
	if ((${#tests[@]} == 0)); then
		[[ -n ${TESTS:-} ]] || fail "suite $1 has no tests"
		return 0
	fi
	say "suite $1"
	suites_run=$((suites_run + 1))
	case $1 in
		regress) run_regress "$1" regress/pg_regress contrib_regression "${tests[@]}" ;;
		isolation) run_regress "$1" isolation/pg_isolation_regress isolation_regression "${tests[@]}" ;;
		tap) run_tap "${tests[@]}" ;;
	esac
}

as_user_write()
{
	"${as_user[@]}" tee "$1" >/dev/null
}

# Make CREATE EXTENSION install the SQL edition, in the schema public, as tests expect it.
install_sql_edition()
{
	local dir

	dir=$work$("$PG_CONFIG" --sharedir)/extension
	as_user_write "$dir/leader_election.control" <<-END
		default_version = '1.0.0'
		relocatable = false
		schema = public
	END
	{
		echo 'ALTER SCHEMA public OWNER TO CURRENT_USER;'
		sed 's/\<le\>/public/g' "$work/src/plpgsql/leader_election.sql"
		echo "UPDATE public.le_settings SET max_ttl = '1 day';"
	} | as_user_write "$dir/leader_election--1.0.0.sql"
}

# Run those tests of a suite on the SQL edition whose heads say so, by the line
# "editions: C, SQL".  Their expected output is that of the extension.
run_sql_edition()
{
	local -a tests
	local test kept=$work/extension-in-c dir

	mapfile -t tests < <(tests_of "$1" | while read -r test; do
		! grep -qs '^\(--\|#\) editions: C, SQL$' "$tests_from/sql/$test.sql" "$tests_from/specs/$test.spec" || echo "$test"
	done)
	((${#tests[@]})) || return 0
	say "suite $1, SQL edition"
	dir=$work$("$PG_CONFIG" --sharedir)/extension
	"${as_user[@]}" mkdir "$kept"
	"${as_user[@]}" mv -t "$kept" "$dir"/leader_election{.control,--1.0.0.sql}
	install_sql_edition
	case $1 in
		regress) run_regress regress-sql regress/pg_regress contrib_regression "${tests[@]}" ;;
		isolation) run_regress isolation-sql isolation/pg_isolation_regress isolation_regression "${tests[@]}" ;;
	esac
	"${as_user[@]}" mv -t "$dir" "$kept"/*
	"${as_user[@]}" rmdir "$kept"
}

# Print the packages that those tests of t/ start programs of: a test or a module
# names them in a line "# needs: package ...", and a test needs what the modules
# that it uses need.
packages_for()
{
	local test module
	local -a files=()

	for test; do
		files+=("$root/$test")
		while IFS= read -r module; do
			[[ ! -f $root/t/$module.pm ]] || files+=("$root/t/$module.pm")
		done < <(sed -n 's/^use \(\w*\)\>.*/\1/p' "$root/$test")
	done
	((${#files[@]} == 0)) || sed -n 's/^# needs: //p' "${files[@]}" | tr ' ' '\n' | sort -u
}

# Set suites to those asked for, out of the given ones, and packages to those that
# their tests need.
# shellcheck disable=SC2034 # for scripts that source this
choose_suites()
{
	local suite test found
	local -a tests

	read -ra suites <<<"${SUITES:-$*}"
	for suite in "${suites[@]}"; do
		[[ " $* " == *" $suite "* ]] || die "no suite is called $suite"
	done
	for test in ${TESTS:-}; do
		found=$(for suite in "${suites[@]}"; do TESTS=$test tests_of "$suite"; done)
		[[ -n $found ]] || die "no test is called $test"
	done

	packages=()
	if [[ " ${suites[*]} " == *' tap '* ]]; then
		mapfile -t tests < <(tests_of tap)
		mapfile -t packages < <(packages_for "${tests[@]}")
	fi
}

# Take the tests from the copy of the tree from now on, and see where the server has
# the programs that run them.
find_tests()
{
	tests_from=$work/src
	pgxs_test=$(dirname "$("$PG_CONFIG" --pgxs)")/../test
	pgxs_test=$(cd "$pgxs_test" && pwd)
}
