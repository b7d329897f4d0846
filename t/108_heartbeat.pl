# A leader that gives no heartbeat leads no more, whatever its session hangs in: how soon the
# next one leads, what ends the silent session, and what it says.
#
# Wrong outcomes: a session that hangs leads on, because nothing ends it, or what was to end it
# was stopped by an error; its end is told as another one, or twice; a leader that has given its
# heartbeats is ended; two lead at a time.

use strict;
use warnings;

use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Psql;

# Something is to come at once; but the machine may be busy
my $bound = 10;
my $heartbeat = 0.3;

my $node = new_server('heartbeat', conf => 'max_prepared_transactions = 1');
$node->safe_psql('postgres', q{
CREATE TABLE work (done text);
CREATE TABLE big AS SELECT repeat('x', 1000) AS filler FROM generate_series(1, 20000)});
my $watcher = session($node, app => 'watcher');

# A session that leads, and the token; its heartbeat is an hour until fall_silent
sub leader
{
	my ($name, %params) = @_;
	my $client = session($node, app => 'leader', %params);
	is(ask($client, "SELECT le_try_become_leader('$name', heartbeat => '1 h')"), 't', 'a leader with a heartbeat');
	return ($client, ask($client, "SELECT le_token('$name')"));
}

# From now on it is to give heartbeats, and gives none; after when, at the earliest, it leads no more
sub fall_silent
{
	my ($client, $name) = @_;
	my $asked = monotonic();
	ask($client, "SELECT le_try_become_leader('$name', heartbeat => '$heartbeat s')");
	return $asked + $heartbeat;
}

sub until_silent
{
	my ($name) = @_;
	return ask_until($watcher, "SELECT count(*) FROM le_leader('$name')", '0');
}

sub candidate
{
	my ($name, $sql) = @_;
	my $client = session($node, app => 'candidate');
	post($client, $sql // "CALL le_campaign('$name')");
	return wait_for_candidate($watcher, $client);
}

# It is elected, after the deadline and soon; how long after
sub elected
{
	my ($client, $deadline, $token, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $new = (split /\|/, collect($client, $bound + $heartbeat) // '')[0] || 0;
	my $took = monotonic() - $deadline;

	cmp_ok($new, '>', $token, "$test: the candidate is elected") or diag($client->{error});
	cmp_ok($took, '>=', 0, 'not before the deadline');
	return $took;
}

# The session was terminated, and the log tells why
sub was_told
{
	my ($client, $name, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_for_end($client, $bound), "$test: its session is terminated");
	is($client->{code}, '57P01', 'as by an administrator');
	like(slurp_file($node->logfile), qr/\[$client->{pid}\] .*LOG:  leader_election: connection terminated due to missing heartbeat in election "\Q$name\E": none has come for \d+ ms$/m, 'and the log tells why');
	return;
}

# What a session may hang in, and how the deadline finds it
my @hangs = (
	[ 'idle' ],
	[ 'idle in a transaction block', 'BEGIN' ],
	[ 'idle in a transaction block that has written', q{BEGIN; INSERT INTO work VALUES ('lost')} ],
	[ 'idle in a failed transaction block', 'BEGIN', 'SELECT 1 / 0' ],
	[ 'idle in a block with two errors', 'BEGIN', 'SELECT 1 / 0', 'SELECT 1 / 0' ],
	[ 'idle after an error', 'SELECT 1 / 0' ],
	[ 'idle after an error in a savepoint', 'BEGIN', 'SAVEPOINT a', 'SELECT 1 / 0', 'ROLLBACK TO a' ]);
my @statements = (
	[ 'in a statement', 'SELECT pg_sleep(1000)' ],
	[ 'in a statement of a transaction block', 'BEGIN; SELECT pg_sleep(1000)' ],
	[ 'in a loop that catches errors', q{DO $$ BEGIN LOOP BEGIN PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$} ],
	[ 'waiting for a lock', q{SELECT pg_advisory_lock(5555)} ],
	[ 'waiting to lead another election', q{SELECT le_become_leader('another')} ],
	[ 'waiting for any of other elections', q{CALL le_campaign(ARRAY['another', 'yet another'])} ],
	[ 'observing', q{DO $$ DECLARE v bigint; t bigint; i text; s text; BEGIN LOOP CALL le_observe('hang', v, NULL, t, i, s); END LOOP; END $$} ],
	[ 'sending to a client that does not read', 'SELECT * FROM big a, big b', 1 ],
	[ 'sending an error likewise', q{DO $$ BEGIN EXECUTE 'SELECT 1 / 0 /*' || repeat('x', 2000000) || '*/'; END $$}, 1 ]);
my @took;

my $blocker = session($node);
ask($blocker, q{SELECT pg_advisory_lock(5555), le_try_become_leader('another'), le_try_become_leader('yet another')});
subtest 'a candidate waits at the deadline' => sub {
	foreach my $hang (@hangs)
	{
		my ($what, @sql) = @$hang;
		my ($client, $token) = leader('hang');
		my $candidate = candidate('hang');
		my $deadline = fall_silent($client, 'hang');
		ask($client, $_) foreach @sql;
		push @took, elected($candidate, $deadline, $token, $what);
		was_told($client, 'hang', $what);
		end_session($candidate);
	}
	foreach my $hang (@statements)
	{
		my ($what, $sql, $deaf) = @$hang;
		my ($client, $token) = leader('hang');
		my $candidate = candidate('hang');
		my $deadline = fall_silent($client, 'hang');
		post($client, $sql);
		my $took = elected($candidate, $deadline, $token, $what);
		if ($deaf) { kill_client($client); }
		else
		{
			push @took, $took;
			was_told($client, 'hang', $what);
		}
		end_session($candidate);
	}
	is(ask($watcher, 'SELECT count(*) FROM work'), '0', 'nothing of its transactions is kept');
};
@took = sort { $a <=> $b } @took;
cmp_ok($took[ @took / 2 ], '<', 1, 'as a rule, elected at once');
diag(sprintf 'elected after the deadline: median %.1f ms, at most %.1f ms', 1000 * $took[ @took / 2 ], 1000 * $took[-1]);
end_session($blocker);

# Each way to wait is seen at the deadline
subtest 'whichever way the candidate waits' => sub {
	foreach my $sql (
		q{SELECT le_token('ways') FROM le_become_leader('ways')},
		q{SELECT le_token('ways') FROM le_become_leader('ways', '1 min')},
		q{BEGIN; SELECT le_token('ways') FROM le_become_leader_xact('ways')},
		q{CALL le_campaign('ways', '1 min', heartbeat => '1 h')},
		q{CALL le_campaign('ways', ttl => '1 min')},
		q{CALL le_campaign(ARRAY['nobody''s', 'ways'])},
		q{CALL le_campaign(ARRAY['nobody''s', 'ways'], ttl => '1 min')})
	{
		my $holder = session($node);
		ask($holder, q{SELECT le_try_become_leader('nobody''s')});
		my ($client, $token) = leader('ways');
		my $candidate = candidate('ways', $sql);
		my $deadline = fall_silent($client, 'ways');
		elected($candidate, $deadline, $token, $sql);
		was_told($client, 'ways', 'the leader');
		ask($candidate, q{COMMIT; SELECT le_resign_all(), le_resign(name, token) FROM le_leaders WHERE scope = 'lease'});
		end_session($candidate, $holder);
	}
};

subtest 'none waits at the deadline' => sub {
	foreach my $sql (
		q{SELECT le_try_become_leader('later')},
		q{BEGIN; SELECT le_try_become_leader_xact('later')},
		q{SELECT le_lease('later', '1 min') IS NOT NULL},
		q{SELECT le_become_leader('later', '0')},
		q{CALL le_campaign(ARRAY['later'], '0')})
	{
		my ($client, $token) = leader('later');
		fall_silent($client, 'later');
		was_told($client, 'later', 'the leader');
		my $bidder = session($node);
		like(ask($bidder, $sql), qr/^t|^\d/, "a bid that does not wait leads: $sql") or diag($bidder->{error});
		ask($bidder, q{COMMIT; SELECT le_resign_all(), le_resign(name, token) FROM le_leaders WHERE scope = 'lease'});
		end_session($bidder);
	}
};

subtest 'psql and the log' => sub {
	my $offset = log_from($node);
	my $psql = start_psql($node->connstr('postgres'));
	psql_ask($psql, "SELECT le_try_become_leader('seen', identity => 'me', heartbeat => '$heartbeat s')");
	my $candidate = candidate('seen');
	collect($candidate, $bound);
	like(psql_ask($psql, 'SELECT 1'), qr/FATAL:  terminating connection due to administrator command/, 'psql shows the end');
	ok($node->wait_for_log(qr/LOG:  leader_election: connection terminated due to missing heartbeat in election "seen": none has come for 300 ms/, $offset), 'and the log why');
	is_deeply([ map { s/\d{6,}/N/gr =~ s/process \d+/process P/r } term_lines($node, $offset) ],
		[
			'election "seen": term N began: "me" leads, process P, session scope, heartbeat 300 ms',
			'election "seen": term N ended: silent',
			'election "seen": term N began: "candidate" leads, process P, session scope'
		], 'the terms in the log');
	like(log_since($node, $offset), qr/ended: silent, "me" led for 00:00:00\.(?:299|3\d\d)$/m, 'which was led until the deadline');
	end_session($candidate);
	eval { kill_psql($psql) };
};

subtest 'another end is told as it is' => sub {
	# a leader that is not silent
	my ($client) = leader('not silent');
	ask($watcher, "SELECT pg_terminate_backend($client->{pid})");
	wait_for_end($client);
	is($client->{code}, '57P01', 'terminated by an administrator');
};

subtest 'heartbeats by token from another connection' => sub {
	my ($client, $token) = leader('kept');
	my $beater = session($node);
	my $candidate = candidate('kept');
	ask($client, q{SELECT le_try_become_leader('kept', heartbeat => '2 s')});
	post($client, 'SELECT pg_sleep(6)');
	my $beats = 0;
	while (!$client->{ready} && !$client->{closed})
	{
		$beats++ if ask($beater, "SELECT le_heartbeat('kept', $token)") eq 't';
		hear(0.05, $client);
	}
	ok(!$client->{closed}, "a statement of three heartbeats ends: $beats heartbeats") or diag($client->{error});
	is(ask($client, "SELECT le_token('kept')"), $token, 'the session leads on');
	hear(0, $candidate);
	ok(!$candidate->{ready}, 'the candidate waits');
	end_session($client);
	cmp_ok(collect($candidate), '>', $token, 'and is elected when the session ends');
	end_session($candidate, $beater);
};

subtest 'a backend that is stopped' => sub {
	my ($client, $token) = leader('stopped');
	fall_silent($client, 'stopped');
	my $pid = pause_process($client->{pid});
	ok(until_silent('stopped'), 'none leads from the deadline on');
	my $bidder = session($node);
	my $before = monotonic();
	is(ask($bidder, q{SELECT le_try_become_leader('stopped'), le_become_leader('stopped', '50 ms')}), 'f|f', 'its session has the lock: bids are denied');
	cmp_ok(monotonic() - $before, '<', $bound, 'in time');
	my @candidates = map { candidate('stopped', $_) } q{CALL le_campaign('stopped')}, q{CALL le_campaign(ARRAY['stopped'])};
	is(ask($watcher, "SELECT DISTINCT blocked_by FROM le_candidates WHERE name = 'stopped' AND position = 1"), "{$pid}", 'the candidates wait for it');
	is(ask($watcher, "SELECT le_heartbeat('stopped', $token)"), 'f', 'no heartbeat revives it');
	kill 'CONT', $pid;
	was_told($client, 'stopped', 'when it goes on');
	cmp_ok(collect($candidates[0], $bound), '>', $token, 'the first in line is elected');
	ask($candidates[0], q{SELECT le_resign('stopped')});
	like(collect($candidates[1], $bound), qr/^\d+\|stopped$/, 'and then the other one');
	is(ask($watcher, q{SELECT silent, session_ended FROM pg_stat_leader_election WHERE name = 'stopped'}), '1|0', 'the term ended by silence');
	end_session(@candidates, $bidder);
};

subtest 'several terms of a session' => sub {
	my ($client) = leader('several 1');
	my @names = map { "several $_" } 2 .. 5;
	ask($client, "SELECT le_try_become_leader('$_', heartbeat => '1 h')") foreach @names;
	ask($client, q{SELECT le_try_become_leader('several', heartbeat => NULL)});
	my @waiting = map { candidate("several $_") } 2, 4;
	my $deadline = fall_silent($client, 'several 4');
	elected($waiting[1], $deadline, 0, 'the candidate for the one that is silent');
	was_told($client, 'several 4', 'the session');
	like(collect($waiting[0], $bound), qr/^\d+$/, 'the other candidate is elected, as the session has ended');
	is(ask($watcher, q{SELECT string_agg(name, ', ' ORDER BY name) FILTER (WHERE silent = 1), string_agg(name, ', ' ORDER BY name) FILTER (WHERE session_ended = 1) FROM pg_stat_leader_election WHERE name LIKE 'several%'}),
		'several 4|several, several 1, several 2, several 3, several 5', 'each term ended as it did');
	end_session(@waiting);
};

subtest 'a grace period begins at the deadline' => sub {
	my ($client, $token) = leader('grace');
	my $strict = session($node, options => '-c leader_election.grace_period=1h');
	my $patient = session($node, app => 'patient', options => '-c leader_election.grace_period=2s');
	my $deadline = fall_silent($client, 'grace');
	until_silent('grace');
	post($patient, q{CALL le_campaign('grace')});
	was_told($client, 'grace', 'the candidate waits, and');
	is(ask($strict, q{SELECT le_try_become_leader('grace')}), 'f', 'a grace period follows');
	cmp_ok(collect($patient) // 0, '>', $token, 'elected after it') or diag($patient->{error});
	cmp_ok(monotonic(), '>=', $deadline + 2, 'not before that');
	end_session($strict, $patient);

	# where the silence is found late, the time since then counts
	($client, $token) = leader('grace');
	$patient = session($node, options => '-c leader_election.grace_period=1s');
	$deadline = fall_silent($client, 'grace');
	until_silent('grace');
	sleep_past(monotonic() + 1.1);
	ok(ask_until($patient, q{SELECT le_try_become_leader('grace')}, 't'), 'the grace period is over when the first bid comes');
	# most of it: the session needs time to go
	cmp_ok(monotonic() - $deadline, '<', 1 + $bound, 'and does not begin with it');
	end_session($patient);
};

subtest 'DROP EXTENSION' => sub {
	$node->safe_psql('postgres', 'CREATE DATABASE dropped');
	create_extension($node, 'dropped');
	my $client = session($node, db => 'dropped');
	my $other = session($node, db => 'dropped');
	ask($client, q{SELECT le_try_become_leader('job', heartbeat => '1 h')});
	my $token = ask($client, q{SELECT le_token('job')});
	is(ask($other, "SELECT le_heartbeat('job', $token)"), 't', 'a heartbeat');
	ask($client, "SELECT le_try_become_leader('job', heartbeat => '$heartbeat s')");
	ask($other, 'DROP EXTENSION leader_election');
	fails($client, q{SELECT le_heartbeat('job')}, '42883', 'there is none without the extension');
	ask($other, 'CREATE EXTENSION leader_election');
	# the session has been silent meanwhile, or is about to be
	my $new = ask($other, q{SELECT le_become_leader('job'), le_token('job')}) ;
	like($new, qr/^t\|\d+$/, 'the next one is elected under the new extension') or diag($other->{error});
	was_told($client, 'job', 'the leader');
	cmp_ok((split /\|/, $new)[1], '>', $token, 'with a greater token');
	end_session($other);
};

subtest 'beside dead_peer_timeout and client_connection_check_interval' => sub {
	my ($client, $token) = leader('peer', host => '127.0.0.1', options => '-c leader_election.dead_peer_timeout=60')
	  if $node->host !~ m{^/};
	($client, $token) = leader('peer') unless $client;
	my $candidate = candidate('peer');
	# a client that has gone is found before the deadline, as ever
	ask($client, q{SELECT le_try_become_leader('peer', heartbeat => '1 h')});
	post($client, 'SELECT pg_sleep(1000)');
	kill_client($client);
	cmp_ok(collect($candidate, $bound) // 0, '>', $token, 'the client has gone: elected long before the deadline');
	end_session($candidate);
	is(ask($watcher, q{SELECT session_ended, silent FROM pg_stat_leader_election WHERE name = 'peer'}), '2|0', 'that is no silence');
};

subtest 'five hundred terms' => sub {
	my ($client) = leader('many 1');
	my $before = monotonic();
	is(ask($client, q{SELECT count(*) FILTER (WHERE le_try_become_leader('many ' || i, heartbeat => '1 h')) FROM generate_series(1, 500) i}), '500', '500 terms');
	my $begun = monotonic() - $before;
	$before = monotonic();
	is(ask($client, q{SELECT count(*) FILTER (WHERE le_heartbeat('many ' || i)) FROM generate_series(1, 500) i}), '500', '500 heartbeats');
	diag(sprintf '500 terms: begun in %.0f ms, heartbeats given in %.0f ms', 1000 * $begun, 1000 * (monotonic() - $before));
	my @candidates = map { candidate("many $_") } 1, 250, 500;
	my $deadline = fall_silent($client, 'many 250');
	elected($candidates[1], $deadline, 0, 'one of them is silent');
	was_told($client, 'many 250', 'the session');
	collect($_, $bound) foreach @candidates;
	is(ask($watcher, q{SELECT sum(silent), sum(session_ended) FROM pg_stat_leader_election WHERE name LIKE 'many %'}), '1|499', 'each term ended as it did');
	end_session(@candidates);
};

# Other libraries may have threads in the server process, which do not block the timer's signal.
# The handler reads memory that only the server's own thread may change.
subtest 'a thread in the server process' => sub {
	my $library = build_test_library('threads', '-pthread');
	$node->safe_psql('postgres', qq{
CREATE FUNCTION start_thread() RETURNS boolean AS '$library' LANGUAGE C;
CREATE FUNCTION timer_waits_for_main(ms integer) RETURNS void AS '$library' LANGUAGE C});
	my ($client, $token) = leader('threads');
	is(ask($client, 'SELECT start_thread()'), 't', 'there is one');
	my $candidate = candidate('threads');
	my $deadline = fall_silent($client, 'threads');
	my $offset = log_from($node);
	ask($client, 'SELECT timer_waits_for_main(900)');
	like(log_since($node, $offset), qr/timer waits for the main thread/, 'the thread does not handle the signal of the timer');
	elected($candidate, $deadline, $token, 'with a thread');
	was_told($client, 'threads', 'the session');
	end_session($candidate);
};

# The operating system limits the timers of all processes of a user
subtest 'timers' => sub {
	my $session = session($node);
	my $timers = sub { return scalar(() = slurp_file("/proc/$session->{pid}/timers") =~ /^ID:/mg) };
	my $bid = q{SELECT le_try_become_leader('timers', heartbeat => '1 min')};
	system_or_bail('prlimit', '--pid', $session->{pid}, '--sigpending=0');
	fails($session, $bid, '53000', 'without a timer, no heartbeat');
	like($session->{messages}, qr/^HINT:  Raise the limit of pending signals \(RLIMIT_SIGPENDING\)/m, 'with a hint');
	is(ask($session, q{SELECT count(*) FROM le_leaders WHERE name = 'timers'}), '0', 'it does not lead');
	end_session($session);

	$session = session($node);
	is(ask($session, $bid), 't', 'elected');
	is($timers->(), 1, 'there is a timer');
	ask($session, q{SELECT le_try_become_leader('more timers', heartbeat => '1 min')});
	is($timers->(), 1, 'for all terms');
	ask($session, q{SELECT le_resign('more timers')});
	is($timers->(), 1, 'as long as one needs it');
	ask($session, q{SELECT le_resign('timers')});
	is($timers->(), 0, 'and no longer');
	my $leader = session($node);
	ask($leader, q{SELECT le_try_become_leader('timers')});
	is(ask($session, $bid), 'f', 'denied');
	is($timers->(), 0, 'without a timer');
	end_session($leader);
	is(ask($session, $bid), 't', 'elected again');
	is($timers->(), 1, 'with a timer');
	end_session($session);
};

# It need not end when it gets SIGTERM
subtest 'a background worker' => sub {
	my $library = build_test_library('worker');
	my $session = session($node);
	ask($session, "CREATE FUNCTION run_in_worker(library text, statement text) RETURNS boolean AS '$library' LANGUAGE C");
	my $offset = log_from($node);
	ask($session, qq{SELECT run_in_worker('$library', \$\$SELECT le_try_become_leader('worker')\$\$)});
	ok($node->wait_for_log(qr/the worker is done/, $offset), 'may lead');
	ask($session, qq{SELECT run_in_worker('$library', \$\$SELECT le_try_become_leader('worker', heartbeat => '1 s')\$\$)});
	ok($node->wait_for_log(qr/ERROR:  a background worker cannot lead with a heartbeat/, $offset), 'but not with a heartbeat');
	end_session($session);
};

no_candidates($watcher, 'no candidate is left');
all_consistent($node, 'each term has its lock');
is(ask($watcher, 'SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL'), '0', 'no term is left on record');
ask($watcher, 'SELECT count(le_try_become_leader(name)), count(le_resign(name)) FROM pg_stat_leader_election', 'SELECT pg_stat_leader_election_reset()');
is(ask($watcher, 'SELECT count(*) FROM pg_stat_leader_election'), '0', 'nothing keeps the elections in the registry');
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal|could not bring/, 'no accident in the log');
end_session($watcher);
$node->stop;
done_testing();
