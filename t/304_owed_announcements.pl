# Announcements that cannot go with the commit at hand go with a later one of the session, or
# with its end, or are left to the next term: without harm to the session or to others.

use strict;
use warnings;

use JSON::PP;
use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

# What cannot be announced would wait for ever, or for the session's next statement
my $bound = 4;
my $node = new_server('owed', conf => q{
wal_level = replica
max_wal_senders = 2
max_connections = 30
max_locks_per_transaction = 10
max_prepared_transactions = 2
synchronous_commit = local
autovacuum = off
});
my $control = session($node);
my $listener = session($node, app => 'listener');
ask($control, 'CREATE TABLE written (id int)');
ask($listener, 'LISTEN leader_election');

# What is announced next, as "election event identity reason", in the time it may take;
# *time is set to when the last of them was heard
my $heard_at;
sub announced
{
	my ($what, @expected) = @_;
	my @events;

	foreach (@expected)
	{
		my $heard = next_notification($listener, $bound, sub { 1 }) // last;
		my $event = JSON::PP->new->utf8->decode($heard->{payload});
		$heard_at = $heard->{time};
		push @events, join ' ', @$event{qw(election event identity)}, $event->{reason} // ();
	}
	is_deeply(\@events, \@expected, $what);
	return;
}

# No announcement comes
sub silence
{
	my ($what, $seconds) = @_;
	is(next_notification($listener, $seconds // 0.5, sub { 1 }), undef, $what);
	return;
}

sub nothing_more
{
	my ($what) = @_;
	silence($what, 0.3);
	return;
}

sub is_idle
{
	my ($client, $what) = @_;
	ok(ask_until($control, "SELECT state, wait_event FROM pg_stat_activity WHERE pid = $client->{pid}", 'idle|ClientRead'), $what);
	return;
}

sub until_missing
{
	my ($missing, @clients) = @_;
	ask($control, "ALTER SYSTEM SET synchronous_standby_names = '$missing'");
	$node->reload;
	ask_until($_, 'SHOW synchronous_standby_names', $missing) foreach @clients, $control;
	return;
}

# Send what hangs in its commit, for want of a standby
sub hang
{
	my ($client, $sql) = @_;
	post_until_it_hangs($client, $sql);
	ok(ask_until($control, "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $client->{pid}"), 'a commit hangs');
	return;
}

subtest 'a session that does nothing but resign by token' => sub {
	my $leader = session($node, app => 'leader');
	my @tokens = map { ask($leader, "SELECT le_lease('lease $_', '1 h')") } 1 .. 3;
	announced('elected', map { "lease $_ elected leader" } 1 .. 3);

	my $other = session($node, app => 'other');
	ask($other, "SELECT le_resign('lease 1', $tokens[0])");
	announced('at once', 'lease 1 ended leader resigned');
	kill_client($other);

	$other = session($node, app => 'other');
	ask($other, $_) foreach 'BEGIN', "SELECT le_resign('lease 2', $tokens[1])", 'ROLLBACK', 'SELECT 1';
	announced('after a rollback', 'lease 2 ended leader resigned');
	kill_client($other);

	$other = session($node, app => 'other');
	ask($other, $_) foreach 'BEGIN', "SELECT le_resign('lease 3', $tokens[2])";
	silence('not in the block', 0.3);
	kill_client($other);
	announced('by one that dies', 'lease 3 ended leader resigned');
	kill_client($leader);
	nothing_more('and no more');
};

# The transaction block fails, once and again; the last statement ends it
foreach my $case (
	[ 'one error', 'SELECT 1 / 0', 'ROLLBACK' ],
	[ 'COMMIT after an error', 'SELECT 1 / 0', 'COMMIT' ],
	[ 'refused statements', 'SELECT 1 / 0', 'SELECT 1', 'SELECT 2', 'ROLLBACK' ],
	[ 'syntax errors', 'SELEC', 'SELEC', 'ROLLBACK' ],
	[ 'a refused statement, then COMMIT', 'SELECT 1 / 0', 'SELECT 1', 'COMMIT' ],
	[ 'a savepoint', 'SAVEPOINT a', 'SELECT 1 / 0', 'SELECT 1', 'ROLLBACK' ],
	[ 'back to a savepoint', 'SAVEPOINT a', 'SELECT 1 / 0', 'SELECT 1', 'ROLLBACK TO a', 'SELECT 1 / 0', 'SELECT 1', 'ROLLBACK' ],
	[ 'errors after it, too', 'SELECT 1 / 0', 'SELECT 1', 'ROLLBACK', 'SELEC', 'SELECT 1 / 0' ],
	[ 'another block that fails', 'SELECT 1 / 0', 'SELECT 1', 'ROLLBACK AND CHAIN', 'SELECT 1 / 0', 'SELECT 1', 'ROLLBACK' ],
	[ 'a failed PREPARE TRANSACTION', 'SELECT 1 / 0', 'SELECT 1', q{PREPARE TRANSACTION 'a'} ],
	[ 'all in one message', 'SELECT 1 / 0; ROLLBACK', 'SELECT 1; ROLLBACK', 'ROLLBACK' ])
{
	my ($what, @statements) = @$case;
	my $leader = session($node, app => 'leader');
	ask($leader, $_) foreach 'BEGIN', q{SELECT le_try_become_leader('job')}, @statements, 'SELECT 1';
	announced("$what: elected", 'job elected leader');
	ask($leader, $_) foreach 'BEGIN', q{SELECT le_resign('job')}, @statements, 'SELECT 1';
	announced("$what: resigned", 'job ended leader resigned');
	is(ask($leader, 'SELECT 1'), '1', "$what: the session goes on");
	kill_client($leader);
	nothing_more("$what: no more");
}

subtest 'PREPARE TRANSACTION' => sub {
	my $leader = session($node, app => 'leader');
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		ask($leader, $_) foreach 'BEGIN', 'INSERT INTO written VALUES (1)', q{SELECT le_try_become_leader('job') AND le_resign('job')}, q{PREPARE TRANSACTION 'job'};
		is($leader->{error}, '', 'prepared');
		ask($leader, 'SELECT 1');
		announced("announced before $end", 'job elected leader', 'job ended leader resigned');
		ask($leader, "$end PREPARED 'job'");
		is($leader->{error}, '', "$end PREPARED");
		nothing_more('and no more');
	}
	ask($leader, $_) foreach 'BEGIN', q{SELECT le_try_become_leader('job')}, q{SELECT le_try_become_leader_xact('other')}, q{PREPARE TRANSACTION 'job'};
	is($leader->{code}, '0A000', 'not with transaction scope');
	ask($leader, 'SELECT 1');
	announced('announced all the same', 'job elected leader', 'other elected leader', 'other ended leader transaction ended');
	kill_client($leader);
	announced('the end', 'job ended leader session ended');
};

subtest 'a commit that has written does not take announcements along' => sub {
	my $leader = session($node, app => 'leader');
	my $other = session($node, app => 'other');
	ask($leader, 'SET synchronous_commit = on');
	until_missing('nobody', $leader, $other);
	hang($leader, q{INSERT INTO written VALUES (1); SELECT le_try_become_leader('job')});
	is(ask($control, "SELECT count(*) FROM pg_locks WHERE pid = $leader->{pid} AND locktype = 'object' AND classid = 'pg_database'::regclass"), '0', 'nor the lock');
	is(ask($other, q{SELECT le_try_become_leader('other')}), 't', 'so that others are elected');
	announced('and announced', 'other elected other');
	ask($other, q{SELECT le_resign('other')});
	announced('and resign', 'other ended other resigned');
	until_missing('', $control);
	collect($leader);
	ask($leader, 'SELECT 1');
	announced('with the next one', 'job elected leader');
	ask($leader, 'BEGIN; INSERT INTO written VALUES (1); COMMIT');
	ask($leader, q{INSERT INTO written VALUES (1); SELECT le_resign('job')});
	announced('at once', 'job ended leader resigned');
	kill_client($leader, $other);
};

subtest 'a session that commits nothing but what it has written' => sub {
	my $leader = session($node, app => 'leader');
	my $time = monotonic();
	post($leader, q{DO $$ BEGIN
		PERFORM le_try_become_leader('job');
		FOR i IN 1 .. 120 LOOP
			INSERT INTO written VALUES (i);
			COMMIT;
			PERFORM pg_sleep(0.05);
		END LOOP;
	END $$});
	announced('announces', 'job elected leader');
	cmp_ok(($heard_at // 'inf') - $time, '<', $bound, 'before it is done');
	is(ask($control, "SELECT state FROM pg_stat_activity WHERE pid = $leader->{pid}"), 'active', 'still at it');
	is(collect($leader), '', 'done');
	is($leader->{error}, '', 'without an error');
	ask($leader, q{SELECT le_resign('job')});
	announced('the end', 'job ended leader resigned');
	nothing_more('nothing twice');
	kill_client($leader);
};

# All commits that notify hold one lock, and one of them hangs
subtest 'another commit is notifying, and hangs' => sub {
	my $blocker = session($node);
	my $leaving = session($node, app => 'leaving');
	my @others = map { session($node, app => "other $_") } 1 .. 3;
	my $slowest = 0;
	my $quick = sub {
		my ($client, $sql, $expected) = @_;
		my $time = monotonic();
		post($client, $sql);
		is(collect($client, 10), $expected, $sql) or diag($client->{error});
		my $took = monotonic() - $time;
		$slowest = $took if $took > $slowest;
	};

	ask($leaving, q{SELECT le_try_become_leader('leaving')});
	announced('one leads', 'leaving elected leaving');
	ask($blocker, 'SET synchronous_commit = on');
	until_missing('nobody', $blocker);
	hang($blocker, 'INSERT INTO written VALUES (1); NOTIFY unheard');

	$quick->($others[0], q{SELECT le_try_become_leader('job 0')}, 't');
	$quick->($others[1], $_, '') foreach 'BEGIN', 'INSERT INTO written VALUES (1)';
	$quick->($others[1], q{SELECT le_try_become_leader('job 1')}, 't');
	$quick->($others[1], 'COMMIT', '');
	$quick->($others[2], q{BEGIN; SELECT le_try_become_leader('job 2'); ROLLBACK; SELECT 1}, "t\n1");
	silence('nothing is announced', 1.2);
	is_idle($_, 'idle') foreach @others;

	# their announcements have waited long by now
	foreach my $round (1 .. 3)
	{
		$quick->($_, 'SELECT 1', '1') foreach @others;
		$quick->($_, 'INSERT INTO written VALUES (1)', '') foreach @others;
	}
	$quick->($others[0], q{SELECT le_resign('job 0')}, 't');
	$quick->($others[1], q{SELECT le_try_become_leader('job 0')}, 't');
	cmp_ok($slowest, '<', $bound, sprintf 'none waits (%.0f ms)', 1000 * $slowest);
	my $time = monotonic();
	my $pid = $leaving->{pid};
	kill_client($leaving);
	ok(ask_until($control, q{SELECT count(*) FROM le_leader('leaving')}, 0, 3), 'one goes');
	ok(ask_until($control, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", 0, 10), 'and is gone');
	cmp_ok(monotonic() - $time, '<', 3, 'in time');

	until_missing('', $control);
	collect($blocker);
	ask($_, 'SELECT 1') foreach @others;
	my %heard;
	while (my $heard = next_notification($listener, 0.5, sub { 1 }))
	{
		my $event = JSON::PP->new->utf8->decode($heard->{payload});
		push @{ $heard{ $event->{election} } }, "$event->{event} $event->{identity}";
	}
	is_deeply(
		\%heard,
		{
			'job 0' => [ 'elected other 1', 'ended other 1', 'elected other 2' ],
			'job 1' => ['elected other 2'],
			'job 2' => ['elected other 3'] },
		'all that lead are announced with their next commits, each election in its order');

	# what the session that has gone could not announce, the next leader does
	ask($others[0], q{SELECT le_try_become_leader('leaving')});
	announced('the next term', 'leaving ended leaving session ended', 'leaving elected other 1');
	kill_client($blocker, @others);
	ask_until($control, 'SELECT count(*) FROM le_leaders', 0);
	1 while next_notification($listener, 0.5, sub { 1 });
};

subtest 'the lock table is full' => sub {
	my $leader = session($node, app => 'leader');
	my $hog = session($node, app => 'hog');
	ask($leader, $_) foreach 'BEGIN', q{SELECT le_try_become_leader('job')};
	ask($hog, 'BEGIN');
	ask($hog, q{DO $$ BEGIN FOR i IN 1 .. 100000 LOOP PERFORM pg_advisory_lock(i); END LOOP; EXCEPTION WHEN out_of_memory THEN NULL; END $$});
	is($hog->{error}, '', 'filled up');
	ask($hog, 'SELECT pg_advisory_lock(-i) FROM generate_series(1, 100000) i');
	is($hog->{code}, '53200', 'full');
	ask($leader, 'ROLLBACK');
	silence('nothing can be announced');
	hear(0, $leader);
	ok(!$leader->{closed}, 'the leader lives');
	kill_client($hog);
	ask_until($control, 'SELECT count(*) FROM pg_locks WHERE locktype = \'advisory\'', '1');
	is(ask($leader, 'SELECT 1'), '1', 'and works');
	announced('announced when there is room', 'job elected leader');

	ask($leader, q{SELECT le_resign('job')});
	announced('and so is the end', 'job ended leader resigned');
	kill_client($leader);
};

subtest 'no announcement waits for the disk' => sub {
	$node->append_conf('postgresql.conf', "wal_writer_delay = 10s");
	$node->reload;
	my @holders = map { session($node, app => "holder $_") } 1 .. 12;
	ask_until($holders[0], 'SHOW wal_writer_delay', '10s');
	my $take = sub { my ($i) = @_; return "SELECT le_lease('lease $i', '1 min')" };

	my @tokens = map { ask($holders[$_], $take->($_)) } 0 .. $#holders;
	is(scalar(grep { /^\d+$/ } @tokens), @holders, 'leases are taken');

	# the resignation is durable, its announcement need not be
	my $behind = 0;
	foreach my $i (0 .. $#holders)
	{
		ask($holders[$i], "SELECT le_resign('lease $i', $tokens[$i])");
		$behind++ if ask($holders[$i], 'SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()') eq 't';
	}
	cmp_ok($behind, '>', @holders / 2, "$behind announcements of a resignation were not flushed");

	# what begins is durable when its holder is told, and what was written beside it
	ask($holders[0], 'SET synchronous_commit = off');
	my $durable = ask($holders[0], q{WITH w AS (INSERT INTO written VALUES (-1) RETURNING id) SELECT le_lease('beside', '1 min') FROM w});
	my $last = ask($holders[1], $take->('last'));
	$node->stop('immediate');
	$node->start;
	is($node->safe_psql('postgres', q{SELECT string_agg(token::text, ' ' ORDER BY token) FROM le_leaders}), "$durable $last", 'after a crash, the leases run on');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM written WHERE id = -1'), '1', 'and the row is there');
};

my $log = slurp_file($node->logfile);
unlike($log, qr/TRAP|PANIC|terminated by signal|could not bring|protocol synchronization|not announced/, 'no accident in the log');
$node->stop;
done_testing();
