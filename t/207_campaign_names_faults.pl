# A session that waits for any of many elections, or observes one, is neither
# left asleep nor kept busy by what goes wrong with others: a candidate
# cancelled at the moment it acquires the lock, a resignation that hangs, an
# extension that is dropped and created anew.
#
# alone: it measures time

use strict;
use warnings;

use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

# Fast enough to be woken up; the look-up interval is 5 seconds
my $bound = 4;
my $node = new_server('names_faults', conf => q{
wal_level = replica
max_wal_senders = 2
max_connections = 30
max_locks_per_transaction = 10
synchronous_commit = local
autovacuum = off
});
my $control = session($node);
my $holder = session($node, app => 'holder');
my @candidates = map { session($node, app => "candidate $_") } 1 .. 3;

sub until_asleep
{
	foreach my $client (@_)
	{
		ask_until($control, "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $client->{pid} AND state = 'active'", 't', 10)
		  || die "it does not wait: $client->{error}";
	}
	return;
}

sub until_in_line
{
	my ($client) = @_;
	ask_until($control, "SELECT count(*) FROM pg_locks WHERE pid = $client->{pid} AND locktype = 'advisory' AND NOT granted", 1);
	return;
}

# The answer, which comes soon after that time
sub answered
{
	my ($client, $since, $expected, $what) = @_;
	my $answer = collect_or_cancel($client, $control);
	my $took = monotonic() - $since;
	like($answer // 'none', $expected, "$what: answer") or diag($client->{error});
	cmp_ok($took, '<', $bound, sprintf '%s: in time (%.0f ms)', $what, 1000 * $took);
	return;
}

subtest 'of one election, and of one that is named twice' => sub {
	ask($holder, q{SELECT le_try_become_leader('job')});
	foreach my $array (q{ARRAY['job']}, q{ARRAY['job', 'job']})
	{
		post($candidates[0], "CALL le_campaign($array)");
		until_asleep($candidates[0]);
		is(ask($control, q{SELECT name, position, identity FROM le_candidates}), 'job||candidate 1', "$array: shown once");
		is(ask($control, q{SELECT candidates FROM le_leader('job')}), '1', 'counted once');
		is(ask($control, q{SELECT candidates FROM pg_stat_leader_election WHERE name = 'job'}), '1', 'and in the statistics');
		my $time = monotonic();
		ask($holder, q{SELECT le_resign('job')});
		answered($candidates[0], $time, qr/^\d+\|job$/, $array);
		no_candidates($control, "$array: no trace");
		ask($candidates[0], q{SELECT le_resign('job')});
		ask($holder, q{SELECT le_try_become_leader('job')});
	}
	ask($holder, q{SELECT le_resign('job')});
};

# The lock is granted to a candidate in line that does not live to see it
foreach my $case (
	[ 'cancelled', q{SELECT le_become_leader('job')}, 'INT' ],
	[ 'cancelled, in time', q{SELECT le_become_leader('job', '1 h')}, 'INT' ],
	[ 'cancelled, for a lease', q{CALL le_campaign('job', ttl => '1 h')}, 'INT' ],
	[ 'cancelled, in a subtransaction', q{DO $$ BEGIN PERFORM le_become_leader('job'); EXCEPTION WHEN query_canceled THEN PERFORM pg_sleep(60); END $$}, 'INT' ],
	[ 'terminated', q{SELECT le_become_leader('job')}, 'TERM' ],
	[ 'the client is gone', q{SELECT le_become_leader('job')}, undef ])
{
	my ($what, $sql, $signal) = @$case;
	my $queued = session($node, app => 'queued');
	ask($holder, q{SELECT le_try_become_leader('job'), le_try_become_leader('other')});
	post($queued, $sql);
	until_in_line($queued);
	post($candidates[0], q{CALL le_campaign(ARRAY['other', 'job'])});
	until_asleep($candidates[0]);

	kill 'STOP', $queued->{pid};
	is(ask($holder, q{SELECT le_resign('job')}), 't', "$what: resigned");
	ok(ask_until($control, "SELECT count(*) FROM pg_locks WHERE pid = $queued->{pid} AND locktype = 'advisory' AND granted", 1, 5), 'granted to the first in line');
	is(collect($candidates[0], 0.3), undef, 'which is not overtaken');
	my $time = monotonic();
	$signal ? kill($signal, $queued->{pid}) : kill_client($queued);
	kill 'CONT', $queued->{pid};
	answered($candidates[0], $time, qr/^\d+\|job$/, $what);
	ask($control, "SELECT pg_terminate_backend($queued->{pid})");
	ask_until($control, "SELECT count(*) FROM pg_stat_activity WHERE pid = $queued->{pid}", 0);
	kill_client($queued);
	no_candidates($control, "$what: no trace");
	ask($_, 'SELECT le_resign_all()') foreach $candidates[0], $holder;
}

# A session that resigns holds the guard lock until that is durable
subtest 'no session spins while a resignation hangs' => sub {
	my $token = ask($holder, q{SELECT le_lease('job', '1 h')});
	my $resigner = session($node, app => 'resigner');
	my $observer = session($node, app => 'observer');
	my $late = session($node, app => 'candidate 4');
	ask($control, q{SELECT le_try_become_leader('other')});
	ask($resigner, 'SET synchronous_commit = on');
	post($_, q{CALL le_campaign(ARRAY['job', 'other'], ttl => '1 h')}) foreach @candidates;
	until_asleep(@candidates);
	ask($control, q{ALTER SYSTEM SET synchronous_standby_names = 'nobody'});
	$node->reload;
	ask_until($resigner, 'SHOW synchronous_standby_names', 'nobody');

	# the checkpointer has heard of it, too, when this hangs
	my $probe = session($node);
	ask($probe, 'SET synchronous_commit = on');
	ask_until($probe, 'SHOW synchronous_standby_names', 'nobody');
	post_until_it_hangs($probe, 'CREATE TABLE probe (); DROP TABLE probe');

	post($resigner, "SELECT le_resign('job', $token)");
	ok(ask_until($control, "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $resigner->{pid}", 't', 10), 'it hangs');
	post($observer, q{CALL le_observe('job', } . version_of($observer, 'job') . q{, '20 s')});

	# the others have not been told yet; this one sees a lease that is over
	post($late, q{CALL le_campaign(ARRAY['job', 'other'], ttl => '1 h')});
	until_asleep($late);
	my @before = map { processor_time($_->{pid}) } @candidates, $late, $observer;
	Time::HiRes::sleep(2);
	my @took = map { processor_time($_->{pid}) } @candidates, $late, $observer;
	$took[$_] -= $before[$_] foreach 0 .. $#took;
	cmp_ok($took[$_], '<', 0.3, "$_: sleeps (took $took[$_] s)") foreach 0 .. $#took;
	ok(!$_->{ready}, 'none is elected') foreach @candidates, $late;

	ask($control, q{ALTER SYSTEM RESET synchronous_standby_names});
	$node->reload;
	is(collect($resigner, 10), 't', 'resigned');
	my $time = monotonic();
	collect($probe, 10);
	my $elected;
	while (!$elected && monotonic() - $time < 10)
	{
		hear(1, @candidates, $late);
		($elected) = grep { $_->{ready} } @candidates, $late;
	}
	ok($elected, 'one is elected') && answered($elected, $time, qr/^\d+\|job$/, 'after it');
	answered($observer, $time, qr/^\d+\|\d+\|candidate \d\|$/, 'the observer');
	foreach my $candidate (grep { !$elected || $_ != $elected } @candidates, $late)
	{
		ask($control, "SELECT pg_cancel_backend($candidate->{pid})");
		collect($candidate);
	}
	no_candidates($control, 'in the end: no trace');
	ask($elected, q{SELECT le_resign('job', token) FROM le_leader('job')}) if $elected;
	ask($control, 'SELECT le_resign_all()');
	kill_client($resigner, $observer, $probe, $late);
};

# Leases end with the extension; session scope does not
subtest 'the extension is dropped and created anew while they wait' => sub {
	my ($one, $any, $both) = @candidates;
	my $observer = session($node, app => 'observer');
	ask($holder, q{SELECT le_lease('one', '1 h')});
	ask($holder, q{SELECT le_lease('any', '1 h')});
	ask($holder, q{SELECT le_try_become_leader('led')});
	post($one, q{CALL le_campaign('one')});
	post($any, q{CALL le_campaign(ARRAY['led', 'any'])});
	post($both, q{CALL le_campaign(ARRAY['led'], ttl => '1 h')});
	post($observer, q{CALL le_observe('one', } . version_of($observer, 'one') . ')');
	until_asleep(@candidates, $observer);

	my $time = monotonic();
	ask($control, 'DROP EXTENSION leader_election; CREATE EXTENSION leader_election');
	is($control->{error}, '', 'it is replaced');
	my @answers = map { collect($_, 12) } $one, $any;
	like($answers[0] // 'none', qr/^\d+$/, 'the candidate is elected') or diag($one->{error});
	like($answers[1] // 'none', qr/^\d+\|any$/, 'and so is the candidate for any') or diag($any->{error});
	my $seen = collect($observer, 12);
	like($seen // 'none', qr/^\d+\|(?:\|\||\d+\|candidate 1\|)$/, 'the observer sees it') or diag($observer->{error});
	cmp_ok(monotonic() - $time, '<', 12, sprintf 'all when they look up, at the latest (%.1f s)', monotonic() - $time);
	ok(!$both->{ready}, 'the candidate behind a leader of session scope waits on');
	$time = monotonic();
	is(ask($holder, q{SELECT le_resign('led')}), 't', 'which resigns now');
	answered($both, $time, qr/^\d+\|led$/, 'and is succeeded');
	is(ask($control, q{SELECT name, scope FROM le_leaders ORDER BY 1}), "any|session\nled|lease\none|session", 'all is on record');
	no_candidates($control, 'in the end: no trace');
	ask($_, 'SELECT le_resign_all()') foreach $holder, @candidates;
	ask($both, q{SELECT le_resign('led', token) FROM le_leader('led')});
	kill_client($observer);
};

subtest 'the lock table is full' => sub {
	my $hog = session($node, app => 'hog');
	my ($any) = @candidates;
	ask($holder, q{SELECT le_try_become_leader('job')});
	post($any, q{CALL le_campaign(ARRAY['job'])});
	until_asleep($any);
	ask($hog, q{DO $$ BEGIN FOR i IN 1 .. 100000 LOOP PERFORM pg_advisory_lock(i); END LOOP; EXCEPTION WHEN out_of_memory THEN NULL; END $$});
	ask($holder, q{SELECT le_resign('job')});
	my $answer = collect($any, 3);
	ok(!$any->{closed}, 'the session lives');
	ok(defined $answer ? $any->{code} eq '53200' || $answer =~ /^\d+\|job$/ : 1, 'elected, out of room, or still waiting') or diag($any->{error});
	kill_client($hog);
	ask_until($control, "SELECT count(*) FROM pg_stat_activity WHERE pid = $hog->{pid}", 0);
	unless (defined $answer)
	{
		ask($control, "SELECT pg_cancel_backend($any->{pid})");
		collect($any);
	}
	ask($_, 'SELECT le_resign_all()') foreach $any, $holder;
	is(ask($any, q{SELECT le_try_become_leader('job') AND le_resign('job')}), 't', 'and can be elected');
	no_candidates($control, 'in the end: no trace');
};

# This wakes no session.  The leader's session ends the term when its
# transaction ends
subtest 'a lock that is pulled away in a transaction, or by a statement that lasts' => sub {
	foreach my $sql ('BEGIN; SELECT pg_advisory_unlock_all()', 'SELECT pg_advisory_unlock_all(), pg_sleep(60)')
	{
		my $any = session($node, app => 'any');
		my @names = ('pulled', map { "held $_" } 1 .. 100);
		is(ask($holder, q{SELECT count(*) FROM generate_series(1, 100) i WHERE le_try_become_leader('held ' || i)}), '100', 'others are led, too')
		  if $sql =~ /BEGIN/;
		my $leader = session($node, app => 'leader');
		is(ask($leader, q{SELECT le_try_become_leader('pulled')}), 't', 'led');
		post($any, 'CALL le_campaign(ARRAY[' . join(', ', map { "'$_'" } @names) . '])');
		until_asleep($any);
		my $before = processor_time($any->{pid});
		Time::HiRes::sleep(2);
		my $took = processor_time($any->{pid}) - $before;
		cmp_ok($took, '<', 0.2, "to look after them costs little ($took s in 2)");
		my $time = monotonic();
		post($leader, $sql);
		answered($any, $time, qr/^\d+\|pulled$/, $sql);
		ask($control, "SELECT pg_cancel_backend($leader->{pid})") if $sql =~ /sleep/;
		collect($leader);
		kill_client($leader, $any);
	}
	ask($holder, 'SELECT le_resign_all()');
};

my $log = slurp_file($node->logfile);
unlike($log, qr/TRAP|PANIC|terminated by signal|could not bring|protocol synchronization/, 'no accident in the log');
$node->stop;
done_testing();
