# shellcheck shell=bash
# What tools/test and tools/test-asan share: to run the suites against the private
# installation, and to count in test files.
#
#	SUITES="regress isolation tap"	only these suites
#	TESTS="name t/name.pl"			only these tests, whichever suite they are in
#	KEEP=1							keep what they print and log in test-results/
#	JOBS=4							run so many files of t/ at a time
#	MAY_SKIP="t/name.pl"			only these files of t/ may be skipped as a whole

# shellcheck source=tools/lib.sh
. "${BASH_SOURCE[0]%/*}/lib.sh"

tests_from=$root		# the tree of the tests: the copy, once there is one
passed=0
failed=0
suites_run=0
started=()				# suites that run beside each other
causes=()				# why test files of t/ ended before their end
failures=()				# what has failed, a line each
skipped=()				# test files of t/ that were skipped, even in part, with the reason

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
	for suite in tap tap-sql; do
		[[ ! -d $work/$suite ]] || cp -r "$work/$suite/tmp_check/log" "$new/$suite"
	done
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
	((!${#skipped[@]})) || printf 'skipped: %s\n' "${skipped[@]}"
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

# Print the tests of a suite that are to run, by the names its runner knows.  Of each suite, those
# whose heads have the line "editions: C, SQL" are the suites regress-sql, isolation-sql and tap-sql
# as well, which run on the SQL edition with the same expected output.  Of tap, those whose heads
# have a line "# alone: REASON" are the suite tap-alone, as they measure time or change the
# installation, and the others are tap-beside.
tests_of()
{
	local file name want

	cd "$tests_from" || return
	case $1 in
		regress) set -- sql/*.sql ;;
		isolation) set -- specs/*.spec ;;
		regress-sql) mapfile -t < <(grep -ls '^-- editions: C, SQL$' sql/*.sql); set -- "${MAPFILE[@]}" ;;
		isolation-sql) mapfile -t < <(grep -ls '^# editions: C, SQL$' specs/*.spec); set -- "${MAPFILE[@]}" ;;
		tap) set -- t/*.pl ;;
		tap-sql) mapfile -t < <(grep -ls '^# editions: C, SQL$' t/*.pl); set -- "${MAPFILE[@]}" ;;
		tap-beside) mapfile -t < <(grep -Ls '^# alone: ' t/*.pl); set -- "${MAPFILE[@]}" ;;
		tap-alone) mapfile -t < <(grep -ls '^# alone: ' t/*.pl); set -- "${MAPFILE[@]}" ;;
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

# Run tests of regress or isolation: run_regress SUITE PROGRAM DATABASE TEST...
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

# Run test files of t/, JOBS at a time: run_tap NAME FILE...
run_tap()
{
	local name=$1 out=$work/tap rc=0 files=0 bad all_skipped log

	shift
	[[ $name != tap-sql ]] || out=$work/$name
	"${as_user[@]}" mkdir -p "$out/tmp_check/log"
	(
		cd "$work/src"
		export PATH=$bin:$PATH
		export PERL5LIB=$pgxs_test/perl PG_REGRESS=$pgxs_test/regress/pg_regress
		export PG_CONFIG
		export TESTDIR=$out TESTDATADIR=$out/tmp_check PGPORT=65432
		export TESTLOGDIR=$out/tmp_check/log PG_TEST_PORT_DIR=$work/portlock
		export top_builddir=$out
		# the state tells the result of each file, which the summary may not
		"${as_user[@]}" rm -f "$out/.prove"
		"${as_user[@]}" prove --nocolor --state=save --statefile="$out/.prove" -j "${JOBS:-1}" "$@" 2>&1
	) | tee "$work/$name.out" || rc=$?

	[[ ! $(<"$work/$name.out") =~ Files=([0-9]+) ]] || files=${BASH_REMATCH[1]}
	bad=$(grep -c 'last_result: [^0]' "$out/.prove" || true)
	all_skipped=$(grep -cE '^t/[^ ]+ \.+ skipped' "$work/$name.out" || true)
	passed=$((passed + files - bad - all_skipped))
	failed=$((failed + bad))
	# the lines of prove's summary, and which tests of the files failed
	mapfile -t -O "${#failures[@]}" failures < <(sed -nE 's/^(t\/[^ ]+\.pl) +\(Wstat: .*/\1/p
		/^ *#   Failed test/ { N; s/^ *# +([^\n]*)\n *# +(at .*)/\1 \2/p }' "$work/$name.out")
	note_skipped "$name" "$out" "$@"
	((all_skipped < $#)) || fail "every test of suite $name was skipped"
	((files == $#)) || fail "suite $name ran $files of $# files"
	((rc == 0 || bad > 0)) || fail "suite $name ended with status $rc"
	# see end_this_file in t/LeaderElection.pm
	mapfile -t -O "${#causes[@]}" causes < <(sed -n 's/^.*# \(t\/[^ ]*\.pl: \)/\1/p' "$work/$name.out")
	((rc == 0)) || for log in "$out"/tmp_check/log/*; do
		[[ $log == */regress_log_* && -s $log ]] || continue
		log=${log##*/regress_log_}
		if [[ " $* " == *" t/$log.pl "* ]] && ! grep -qE "^t/$log\.pl \.+ ok" "$work/$name.out"; then
			echo "--- end of regress_log_$log"
			tail -n 60 "$out/tmp_check/log/regress_log_$log"
		fi
	done
}

# Note which test files were skipped, even in part, and why: note_skipped NAME FOLDER FILE...
note_skipped()
{
	local name=$1 file reason log

	for file in "${@:3}"; do
		reason=$(sed -nE "s,^$file \.+ skipped: ,,p" "$work/$name.out")
		if [[ -n $reason ]]; then
			skipped+=("$file: $reason")
			[[ -z ${MAY_SKIP+set} || " $MAY_SKIP " == *" $file "* ]] || fail "$file was skipped: $reason"
			continue
		fi
		log=$2/tmp_check/log/regress_log_$(basename "$file" .pl)
		[[ -f $log ]] || continue
		while IFS= read -r reason; do
			skipped+=("$file, in part: $reason")
		done < <(sed -nE 's/^(\[[0-9:.]+\]\([0-9.]+s\))? *ok [0-9]+ (- .* )?# skip //ip' "$log" | sort -u)
	done
}

# Run a suite, or what there is for the SQL edition of it.  That needs an installation of its
# own: install_sql_edition.
run_suite()
{
	local -a tests

	[[ $1 != *-sql ]] || local bin=$sql_bin
	mapfile -t tests < <(tests_of "$1")
	if ((${#tests[@]} == 0)); then
		[[ -n ${TESTS:-} ]] || fail "suite $1 has no tests"
		return 0
	fi
	say "suite $1: ${#tests[@]} files"
	suites_run=$((suites_run + 1))
	case $1 in
		regress*) run_regress "$1" regress/pg_regress contrib_regression "${tests[@]}" ;;
		isolation*) run_regress "$1" isolation/pg_isolation_regress isolation_regression "${tests[@]}" ;;
		tap*) run_tap "$1" "${tests[@]}" ;;
	esac
}

# Show of what a suite prints one line for each of its files, with how many of them are done, and
# the last lines: show_progress SUITE NUMBER
show_progress()
{
	local line done=0

	while IFS= read -r line; do
		if [[ $line =~ ^(test|\ {4,})\ *[a-z0-9_]+\ +\.\.\.\  || $line =~ ^(not\ )?ok\ [0-9]+\  ||
			$line =~ ^t/[^\ ]+\.pl\ \.+ ]]; then
			done=$((done + 1))
			echo "$1, $done of $2: $line"
		elif [[ $line =~ \ tests\ (passed|failed) || $line =~ ^(Files=|Result:\ ) ]]; then
			echo "$1: $line"
		fi
	done
}

# Run a suite, showing its progress, with all that it prints in a file, and what it has counted in
# another: run_suite_apart SUITE NUMBER
run_suite_apart()
{
	passed=0 failed=0 suites_run=0 causes=() failures=() skipped=()
	run_suite "$1" > >(tee "$work/$1.said" | show_progress "$1" "$2") 2>&1
	wait $!			# for the last lines
	declare -p passed failed suites_run causes failures skipped >"$work/$1.result"
}

# Begin to run a suite beside others.
start_suite()
{
	local count

	count=$(tests_of "$1" | wc -l)
	((count > 0)) || [[ -z ${TESTS:-} ]] || return 0
	say "suite $1: $count files"
	started+=("$1")
	run_suite_apart "$1" "$count" </dev/null &
}

# Take over what a suite has counted, and show what it has printed if it has failures.
take_over()
{
	local passed=0 failed=1 suites_run=1
	local -a causes=() failures=("suite $1 did not run to its end") skipped=()

	# shellcheck disable=SC1090
	[[ ! -f $work/$1.result ]] || . "$work/$1.result"
	if ((failed)); then
		say "what suite $1 has printed"
		cat "$work/$1.said"
	fi
	sum=($((sum[0] + passed)) $((sum[1] + failed)) $((sum[2] + suites_run)))
	all_causes+=("${causes[@]}") all_failures+=("${failures[@]}") all_skipped+=("${skipped[@]}")
}

# Wait for the suites that were started, and take over what they have counted.
await_suites()
{
	local suite
	local -a sum=("$passed" "$failed" "$suites_run")
	local -a all_causes=("${causes[@]}") all_failures=("${failures[@]}") all_skipped=("${skipped[@]}")

	wait
	for suite in "${started[@]}"; do
		take_over "$suite"
	done
	passed=${sum[0]} failed=${sum[1]} suites_run=${sum[2]}
	causes=("${all_causes[@]}") failures=("${all_failures[@]}") skipped=("${all_skipped[@]}")
	started=()
}

as_user_write()
{
	"${as_user[@]}" tee "$1" >/dev/null
}

# Set sql_bin to the programs of a copy of the private installation in which CREATE EXTENSION
# installs the SQL edition, in the schema public, as tests expect it.
install_sql_edition()
{
	local dir copy=$work/sql-edition

	"${as_user[@]}" mkdir "$copy"
	for dir in --sharedir --pkglibdir --bindir; do
		dir=$("$PG_CONFIG" "$dir")
		"${as_user[@]}" mkdir -p "$copy$dir"
		"${as_user[@]}" cp -a "$work$dir/." "$copy$dir"
	done
	sql_bin=$copy$("$PG_CONFIG" --bindir)
	dir=$copy$("$PG_CONFIG" --sharedir)/extension
	"${as_user[@]}" rm "$dir"/leader_election{.control,--1.0.0.sql}
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
