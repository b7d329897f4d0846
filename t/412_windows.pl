# What happens while a session is between two instructions: gdb stops the session there, other
# sessions act, or a deadline passes, and gdb lets it go on.
#
# Wrong outcomes: a renewal that read the clock in time revives a lease after other sessions were
# told that it has expired; a resignation revives a term whose heartbeat is missing, in the opinion
# of its transaction; the timer's signal handler marks the next term as silent, so that the next
# leader is terminated; a leader that is being deposed resigns, and its end is announced twice; the
# elections of a new database are removed for those of a dropped one that had the same OID; the
# winner of a campaign for many finds its place in the limit taken; a role that may not use a token
# holds the guard lock of the term, so that the next bids are denied; a candidate for which the
# election has been closed holds its lock until it has read that; a
# transaction that fails at SERIALIZABLE while it writes a row, or clears away the lease of another
# role, holds the page, or that election, until its client has read that; likewise, a session that is
# canceled or terminated as it is the first to read the leases after a restart keeps all others from
# them, and one for which there is no shared memory keeps them from the registry.
#
# needs: gdb

use strict;
use warnings;

use IPC::Run;
use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $tempdir = PostgreSQL::Test::Utils::tempdir();
my $debugger;		# at most one runs
my $debuggers = 0;
my $rounds = 3;		# in which a session is stopped, at most

# Start gdb on the client's backend with these commands; {output} is what it prints
sub debug
{
	my ($client, @commands) = @_;
	my $path = "$tempdir/gdb" . ++$debuggers;

	# the library is loaded when the session has used it
	ask($client, q{SELECT le_am_leader('nothing')});
	append_to_file("$path.script", join '', map { "$_\n" } 'set pagination off',
		'handle all nostop noprint pass', (map { s/PATH/$path/gr } @commands), 'detach');
	delete local @ENV{qw(DEBUGINFOD_URLS SHELL)};
	$debugger = { path => $path, output => '' };
	$debugger->{run} = IPC::Run::start(
		[ 'gdb', '-q', '-batch', '-nx', '-p', $client->{pid}, '-x', "$path.script" ],
		'<', \'', '>&', \$debugger->{output});
	return;
}

# Wait until gdb has run "shell touch PATH.$step"; false if it ends before
sub reached
{
	my ($step) = @_;
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;

	until (-e "$debugger->{path}.$step")
	{
		return -e "$debugger->{path}.$step" unless eval { $debugger->{run}->pump_nb; $debugger->{run}->pumpable };
		die "gdb does not get there: $debugger->{output}" if monotonic() > $patience;
		Time::HiRes::sleep(0.005);
	}
	return 1;
}

# Whatever the test dies of, no gdb is left behind: it detaches when it ends
END
{
	my $status = $?;
	if ($debugger && $debugger->{run})
	{
		append_to_file("$debugger->{path}.go$_", '') foreach 1 .. $rounds;
		eval { $debugger->{run}->kill_kill(grace => 5) };
	}
	$? = $status;
}

# Have gdb stop the client's backend where it calls this function, and follow these commands
# from there, in each round
sub arm
{
	my ($client, $count, $function, @commands) = @_;
	debug($client, map {
		("tbreak $function", "shell touch PATH.ready$_", 'continue', @commands, 'backtrace', "shell touch PATH.stopped$_",
			"shell timeout 60 sh -c 'until [ -e PATH.go$_ ]; do sleep 0.005; done'") } 1 .. $count);
	reached('ready1') or die "gdb is not ready: $debugger->{output}";
	return;
}

# Wait until it is stopped in this function, which that one has called, if by others
sub stopped_in
{
	my ($round, $function, $caller) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok(reached("stopped$round"), "it is stopped in $function");
	$debugger->{run}->pump_nb;
	like($debugger->{output}, qr/^#0 [^\n]*\b$function \((?:(?!^#0 ).)*^#\d+ [^\n]*\b$caller \((?:(?!^#0 ).)*\z/ms, "by way of $caller");
	return;
}

sub go_on
{
	my ($round, $last) = @_;
	append_to_file("$debugger->{path}.go$round", '');
	return unless $last;
	$debugger->{run}->finish;
	undef $debugger;
	return;
}

my $node = new_server('windows', conf => "leader_election.max_elections_per_role = 5\nleader_election.notify = on\n");
my ($watcher, $other) = map { session($node, app => $_) } 'watcher', 'other';

my @functions = qw(le_put_off_deadline le_monotonic_us on_timer le_has_expired terminate_process remove_elections le_begin_term le_require_role);

# A function that has got another name would only make the test be skipped
foreach my $function (@functions)
{
	system("grep -qrE '^$function\\(' $FindBin::RealBin/../src") == 0 or die "no function is called $function";
}

my $why = 'gdb is missing';
if (eval { debug($other, map { "break $_" } @functions); 1 })
{
	reached('its end');
	my $set = () = $debugger->{output} =~ /^Breakpoint \d+ at /mg;
	$why = $debugger->{output} =~ /ptrace: |could not attach/i ? 'gdb cannot attach to a backend'
	  : $set < @functions ? 'gdb cannot set the breakpoints: the build is stripped, or optimized too much'
	  : undef;
	diag($debugger->{output}) if $why;
	eval { $debugger->{run}->finish };
}
undef $debugger;
plan skip_all => $why if $why;

# Whichever call is the one to find the deadline passed.  The renewal would be good for half a ttl
subtest 'a renewal that has read the clock' => sub {
	my $ttl = 1;
	my $renewer = session($node, app => 'renewer');
	my @calls = ([ 'le_renew(LEASE)', 'f' ], [ 'le_am_leader(LEASE)', 'f' ], [ '(SELECT count(*) FROM le_leader(NAME))', '0' ]);
	arm($renewer, scalar @calls, 'le_put_off_deadline', 'tbreak le_monotonic_us', 'continue', 'finish');
	foreach my $round (1 .. @calls)
	{
		my $name = "lease $round";
		my $token = lease_take($watcher, $name, "$ttl s");
		my $deadline = monotonic() + $ttl;
		my ($call, $ended) = @{ $calls[ $round - 1 ] };
		my @sql = map { 'SELECT ' . $_->[0] =~ s/LEASE/NAME, $token/r =~ s/NAME/'$name'/r } @calls;
		sleep_past($deadline - $ttl / 2);
		post($renewer, "SELECT le_renew('$name', $token)");
		stopped_in($round, 'le_put_off_deadline', 'le_registry_act_on_lease');
		diag('the machine was too slow for this window') if monotonic() >= $deadline;
		sleep_past($deadline);
		is(ask($other, $sql[ $round - 1 ]), $ended, "another session is told that it has expired: $call");
		go_on($round, $round == @calls);
		is(collect($renewer), 'f', 'the renewal that was stopped fails');
		is(ask($other, $sql[$_]), $calls[$_][1], "the lease stays expired: $calls[$_][0]") foreach 0 .. $#calls;
		cmp_ok(ask($other, "SELECT le_lease('$name', '1 h')") || 0, '>', $token, 'the next one is taken');
		ask($other, "SELECT le_resign('$name', token) FROM le_leader('$name')");
	}
	end_session($renewer);
};

subtest 'the signal handler of a term without its lock' => sub {
	my ($old, $new) = map { session($node, app => $_) } 'old leader', 'new leader';
	ask($old, q{SELECT le_try_become_leader('handler', heartbeat => '1 h')});
	arm($old, 1, 'on_timer', 'tbreak le_has_expired', 'continue');
	post($old, q{SELECT le_try_become_leader('handler', heartbeat => '1 s')}, 'BEGIN', 'SELECT pg_advisory_unlock_all()');
	stopped_in(1, 'le_has_expired', 'on_timer');
	is(collect($old), "t\n", 'the leader had lost its lock before');
	is(ask($new, q{SELECT le_try_become_leader('handler', identity => 'new')}), 't', 'the next one is elected');
	my $token = ask($new, q{SELECT le_token('handler')});
	go_on(1, 1);
	is(ask($watcher, q{SELECT identity, token FROM le_leader('handler')}), "new|$token", 'it is shown by le_leader');
	is(ask($new, q{SELECT le_am_leader('handler')}), 't', 'and knows that it leads');
	is(ask($other, "SELECT count(*) FROM le_assert_leader('handler', $token)"), '1', 'its token is good in another session');
	is(ask($other, q{SELECT le_try_become_leader('handler')}), 'f', 'a bid is denied');
	is(ask($new, q{SELECT le_am_leader('handler')}), 't', 'and does not terminate the new leader');
	is(ask($old, q{SELECT le_am_leader('handler')}), 'f', 'the old leader leads no more, and its session goes on');
	end_session($old, $new);
};

subtest 'a leader resigns as it is deposed' => sub {
	my ($leader, $deposer, $listener) = map { session($node, app => $_) } 'leader', 'deposer', 'listener';
	ask($listener, 'LISTEN leader_election');
	ask($leader, q{SELECT le_try_become_leader('both')});
	my $token = ask($leader, q{SELECT le_token('both')});
	arm($deposer, 1, 'terminate_process');
	post($deposer, q{SELECT le_depose('both', 'for a test')});
	stopped_in(1, 'terminate_process', 'end_session');
	is(ask($leader, q{SELECT le_resign('both')}), 't', 'the leader resigns');
	go_on(1, 1);
	is(collect($deposer), 't', 'and is deposed');
	is(ask_until($watcher, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leader'}, '0'), 1, 'its session is terminated');
	ask($listener, 'SELECT 1');
	my @told = map { $_->{payload} =~ /"event": "ended", "token": $token\b/ ? $_->{payload} : () } @{ $listener->{heard} };
	is(scalar @told, 1, 'its end is announced once') or diag(join "\n", @told);
	like($told[0], qr/"reason": "deposed", "by": /, 'with who deposed it');
	end_session($deposer, $listener);
};

subtest 'a database gets the OID of a dropped one' => sub {
	my $create = 'CREATE DATABASE reused OID 77777 TEMPLATE template0';
	$node->safe_psql('postgres', $_) foreach $create, 'CREATE ROLE full LOGIN';
	create_extension($node, 'reused');
	is($node->safe_psql('reused', q{SELECT le_try_become_leader('job')}), 't', 'the registry knows the database');
	$node->safe_psql('postgres', 'DROP DATABASE reused WITH (FORCE)');
	my $full = session($node, user => 'full', app => 'full');
	is(ask($full, q{SELECT count(le_lease('l' || i, '1 h')) FROM generate_series(1, 5) i}), '5', 'a role at its limit');
	arm($full, 1, 'remove_elections');
	post($full, q{SELECT le_lease('one more', '1 h')});
	stopped_in(1, 'remove_elections', 'le_registry_forget_databases');
	$node->safe_psql('postgres', $create);
	my ($output, $errors) = ('', '');
	my $new = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('reused') ], '<',
		\q{CREATE EXTENSION leader_election; SELECT le_try_become_leader('job'); SELECT count(*) FROM le_leaders; SELECT pg_sleep(0.5); SELECT le_am_leader('job'), count(*) FROM le_leaders},
		'>', \$output, '2>', \$errors, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	ok( ask_until($watcher, q{SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'object' AND classid = 'pg_database'::regclass AND objid = 77777}, '1'),
		'a session of the new database waits to begin');
	go_on(1, 1);
	collect($full);
	$new->finish;
	is("$errors$output", "t\n1\n\nt|1\n", 'its term is not removed');
	ask($full, 'SELECT le_resign(name, token) FROM le_leaders');
	end_session($full);
};

subtest 'a place in the limit of the role' => sub {
	my ($winner, $rival) = map { session($node, user => 'full', app => $_) } 'winner', 'rival';
	arm($winner, 1, 'le_begin_term');
	post($winner, q{CALL le_campaign(le_seats('seat', 5))});
	stopped_in(1, 'le_begin_term', 'le_campaign_names');
	fails($rival, q{SELECT le_try_become_leader('rival')}, '53400', 'another session of the role has no place');
	go_on(1, 1);
	like(collect($winner), qr/\|seat\/1$/, 'which the winner of a campaign for many has') or diag($winner->{error});
	is(ask($rival, q{SELECT count(le_try_become_leader('rival' || i)) FROM generate_series(1, 4) i}), '4', 'once, and the role all others');
	fails($rival, q{SELECT le_try_become_leader('rival5')}, '53400', 'but no more');
	end_session($winner, $rival);
};

subtest 'the token of another role' => sub {
	my $stranger = session($node, user => 'full', app => 'stranger');
	my $token = lease_take($watcher, 'guarded', '1 h');
	arm($stranger, 1, 'le_require_role');
	post($stranger, "SELECT le_assert_leader('guarded', $token)");
	stopped_in(1, 'le_require_role', 'le_assert_leader');
	is(ask($watcher, "SELECT le_resign('guarded', $token)"), 't', 'the leader resigns');
	ok(ask($watcher, q{SELECT le_lease('guarded', '1 h') > 0}), 'and leads again at once') or diag($watcher->{error});
	go_on(1, 1);
	collect($stranger);
	is($stranger->{code}, '42501', 'the other role is refused');
	ask($watcher, q{SELECT le_resign('guarded', token) FROM le_leader('guarded')});
	end_session($stranger);
};

subtest 'a candidate that is refused when its turn comes' => sub {
	my $stranger = session($node, user => 'full', app => 'stranger');
	ask($watcher, q{SELECT le_try_become_leader('closed')});
	arm($stranger, 1, 'AbortCurrentTransaction');
	ask($stranger, 'SET client_min_messages = debug5');
	post($stranger, q{CALL le_campaign('closed')});
	wait_for_candidate($watcher, $stranger);
	ask($watcher, q{SELECT le_declare('closed', candidates => session_user::regrole)}, q{SELECT le_resign('closed')});
	stopped_in(1, 'AbortCurrentTransaction', 'PostgresMain');
	is(ask($watcher, q{SELECT le_try_become_leader('closed')}), 't', 'the next one need not wait until it has been told');
	go_on(1, 1);
	collect($stranger);
	is($stranger->{code}, '42501', 'it is refused');
	like($stranger->{messages}, qr/DEBUG: .*StartTransaction/, 'it is sent messages');
	unlike($stranger->{messages}, qr/DEBUG: .*\bAbortSubTransaction/, 'but none before the lock is released');
	ask($watcher, q{SELECT le_resign('closed'), le_undeclare('closed')});
	end_session($stranger);
};

subtest 'a serialization failure' => sub {
	my $stranger = session($node, user => 'full', app => 'stranger');
	my $due = q{date_trunc('hour', now())};
	my $once = q{SELECT le_once('%s', %s, token) FROM le_leader('%1$s')};
	my $victim = q{of another role};
	my $holds = qq{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = (hashtextextended('$victim', 0) & 4294967295)::oid};
	my @tables = map { "SELECT * FROM $_" } qw(le_leases _le_declarations _le_once_done le_token_seq le_lease_origin_seq);
	fails($stranger, $_, '42501', "another role cannot: $_") foreach @tables;
	ask($watcher, 'CREATE TABLE seen AS SELECT 1 AS v', 'CREATE TABLE written AS SELECT 1 AS v', 'GRANT ALL ON seen, written TO full',
		'GRANT EXECUTE ON FUNCTION le_declare TO full',
		q{SELECT le_lease('once', '1 h')}, qq{SELECT le_declare('$victim', candidates => session_user::regrole)});
	is(ask($stranger, q{SELECT count(le_lease('own' || i, '1 h')) FROM generate_series(1, 4) i}, sprintf $once, 'own1', "$due - interval '1 h'"), "4\nt", 'leases and a job');
	foreach my $call (q{SELECT le_lease('new', '1 h')}, sprintf($once, 'own1', $due), sprintf($once, 'own2', $due), q{SELECT le_declare('made')}, q{SELECT le_lease('one more', '1 h')})
	{
		if ($call =~ /one more/)
		{
			ask($stranger, q{SELECT le_lease('own5', '1 h')});
			is(ask($watcher, qq{SELECT le_resign('$victim', le_lease('$victim', '1 h'))}), 't', 'a lease has ended, and the role is at its limit');
		}
		arm($stranger, 1, 'AbortCurrentTransaction');
		ask($stranger, 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'SELECT v FROM seen', 'UPDATE written SET v = v + 1');
		ask($watcher, 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'SELECT FROM seen LIMIT 0');
		ask($other, 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'UPDATE seen SET v = v + 1', 'COMMIT');
		ask($watcher, 'SELECT v FROM written', 'COMMIT');
		ask($stranger, "SELECT FROM $_") foreach qw(le_declarations le_once_done le_leaders le_candidates);
		is($stranger->{error}, '', 'views do not fail');
		post($stranger, $call);
		stopped_in(1, 'AbortCurrentTransaction', 'PostgresMain');
		is(ask($watcher, $holds), '0', 'the election of the other role is free');
		post($other, q{SELECT le_resign('other', le_lease('other', '1 h'))}, sprintf($once, 'once', $due), qq{SELECT le_resign('$victim', le_lease('$victim', '1 h'))});
		ok(defined collect($other, 10), "and no page is locked: $call");
		go_on(1, 1);
		collect($_) foreach $stranger, $other;
		is($stranger->{code}, '40001', 'it has failed') or diag($stranger->{error});
		ask($stranger, 'ROLLBACK');
	}
	ask($watcher, 'SELECT le_resign(name, token) FROM le_leaders', qq{SELECT le_undeclare('$victim')}, 'DROP TABLE seen, written');
	end_session($stranger);
};

foreach my $case ([ 'a cancel', 'SIGINT', 'AbortCurrentTransaction', 'PostgresMain', '57014' ],
	[ 'a termination', 'SIGTERM', 'pq_beginmessage', 'EmitErrorReport', '57P01' ])
{
	my ($what, $signal, $function, $caller, $code) = @$case;

	subtest "$what while leases are loaded" => sub {
		ask($watcher, q{SELECT le_lease('after restart', '1 min')});
		end_session($watcher, $other);
		$node->restart;
		$watcher = session($node, app => 'watcher');
		my $stranger = session($node, user => 'full', app => 'stranger');
		arm($stranger, 1, 'le_lease_load', "tbreak $function", "signal $signal");
		post($stranger, 'SELECT name FROM le_leaders');
		stopped_in(1, $function, $caller);
		post($watcher, 'SELECT name FROM le_leaders');
		is(collect($watcher, 10), 'after restart', 'others need not wait until it has been told');
		go_on(1, 1);
		collect($_) foreach $stranger, $watcher;
		is($stranger->{code}, $code, 'it is told') or diag($stranger->{error});
		end_session($stranger);
		$other = session($node, app => 'other');
		is(ask($other, 'SELECT name FROM le_leaders'), 'after restart', 'the lease is there');
		ask($watcher, 'SELECT le_resign(name, token) FROM le_leaders');
	};
}

subtest 'no more shared memory' => sub {
	my $stranger = session($node, user => 'full', app => 'stranger');
	my $bids = q{DO $$ BEGIN FOR i IN 1 .. %d LOOP PERFORM le_try_become_leader_xact('memory' || i); COMMIT; END LOOP; END $$};
	ask($stranger, 'SET client_min_messages = warning', sprintf $bids, 10);
	arm($stranger, 1, 'AbortCurrentTransaction');

	# it can open no file, and so create no segment
	is(system('prlimit', '--pid', $stranger->{pid}, '--nofile=3:'), 0, 'a limit is set');
	post($stranger, sprintf $bids, 20000);
	stopped_in(1, 'AbortCurrentTransaction', 'PostgresMain');
	post($watcher, q{SELECT le_lease('remembered', '1 min') > 0}, q{SELECT name FROM le_leaders WHERE name = 'remembered'});
	is(collect($watcher, 10), "t\nremembered", 'others need not wait until it has been told');
	go_on(1, 1);
	collect($_) foreach $stranger, $watcher;
	like($stranger->{error}, qr/shared memory/, 'the reason');
	end_session($stranger);
	ask($watcher, 'SELECT le_resign(name, token) FROM le_leaders');
};

end_session($watcher, $other);
all_consistent($node, 'each term has its lock');
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
