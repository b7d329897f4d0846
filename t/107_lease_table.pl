# What the owner does to le_leases, and what keeps it locked, neither revives a lease
# nor ends one, nor keeps a candidate beyond its time.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('lease_table', conf => 'leader_election.max_elections = 1000000');

# A rollback throws the new file away, and with it what was overwritten there
subtest 'nothing is overwritten in a file that a rollback would throw away' => sub {
	my $session = session($node);
	my $over = lease_take($session, 'over', '100 ms');
	my $held = lease_take($session, 'held', '1 h');
	sleep_past(monotonic() + 0.1);
	foreach my $sql (
		q{SELECT le_try_become_leader('over')},
		q{SELECT le_lease('over', '1 h')},
		q{SELECT le_lease('new', '1 h')},
		"SELECT le_resign('held', $held)",
		"SELECT le_renew('held', $held, '2 h')")
	{
		ask($session, 'BEGIN; CLUSTER le_leases USING le_leases_pkey');
		ask($session, $sql);
		like($session->{messages}, qr/ERROR:  55000: cannot begin or end a lease in the transaction that created or changed table "le_leases"/, "refused: $sql");
		ask($session, 'ROLLBACK');
	}
	is(ask($session, "SELECT le_renew('held', $held), le_renew('over', $over)"), 't|f', 'the one runs on, the other is over');
	is(ask($session, q{SELECT le_try_become_leader('over')}), 't', 'elected');
	$node->stop('immediate');
	$node->start;
	end_session($session);
	$session = session($node);
	is(ask($session, "SELECT le_renew('held', $held), le_renew('over', $over)"), 't|f', 'after a crash as well');
	end_session($session);
};

subtest 'a resignation that cannot be written down is none' => sub {
	my $session = session($node);
	my $blocker = session($node);
	my $token = lease_take($session, 'job', '1 h');
	my $offset = log_from($node);
	ask($blocker, 'BEGIN; LOCK TABLE le_leases');
	ask($session, q{SET statement_timeout = '200 ms'});
	ask($session, "SELECT le_resign('job', $token)");
	like($session->{messages}, qr/canceling statement due to statement timeout/, 'cancelled');
	ask($session, 'RESET statement_timeout');
	is(ask($session, "SELECT le_am_leader('job', $token), le_renew('job', $token)"), 't|t', 'the lease runs on');
	unlike(log_since($node, $offset), qr/ended: resigned/, 'and the log does not say otherwise');
	ask($blocker, 'ROLLBACK');
	is(ask($session, "SELECT le_resign('job', $token)"), 't', 'resigned');
	like(log_since($node, $offset), qr/term $token ended: resigned/, 'and logged');
	end_session($session, $blocker);
};

subtest 'a candidate that sleeps on a lease and has to look things up keeps to its timeout' => sub {
	foreach my $limit ('timeout', 'lock_timeout')
	{
		my $holder = session($node);
		my $token = lease_take($holder, "job for $limit", '1 h');
		my $session = session($node);
		my $blocker = session($node);
		ask($session, q{SET lock_timeout = '9 s'}) if $limit eq 'lock_timeout';
		my $asked = monotonic();
		post($session, "SELECT le_become_leader('job for $limit'" . ($limit eq 'timeout' ? q{, '9 s')} : ')'));
		wait_until_sleeping($node, $session->{pid});
		ask($holder, 'ALTER TABLE le_leases SET (fillfactor = 90)');
		ask($blocker, 'BEGIN; LOCK TABLE pg_extension IN ACCESS EXCLUSIVE MODE');
		sleep_past($asked + 6);
		ask($blocker, 'ROLLBACK');
		my $answer = collect($session);
		cmp_ok(monotonic() - $asked, '>=', 8.9, "$limit: waited that long");
		if ($limit eq 'timeout')
		{
			is($answer, 'f', 'and gave up');
		}
		else
		{
			like($session->{messages}, qr/canceling statement due to lock timeout/, 'and gave up');
		}
		is(ask($holder, "SELECT le_resign('job for $limit', $token)"), 't', 'resigned');
		end_session($holder, $session, $blocker);
	}
};

# The leases run only when nothing can fail any more, so that the next attempt ends none of them
subtest 'an error after the table was read' => sub {
	my ($session, $other) = (session($node), session($node));
	my $token = lease_take($session, 'whole', '1 h');
	end_session($session, $other);
	$node->restart;
	($session, $other) = (session($node), session($node));
	ask($other, 'BEGIN; ALTER SEQUENCE le_token_seq RENAME TO renamed; ALTER SEQUENCE renamed RENAME TO le_token_seq');
	post($session, "SELECT le_renew('whole', $token)");
	ask_until($other, "SELECT count(*) FROM pg_locks WHERE pid = $session->{pid} AND NOT granted", q{1});
	ask($other, "SELECT pg_cancel_backend($session->{pid}); ROLLBACK");
	collect($session);
	is($session->{code}, '57014', 'canceled while the sequence is locked');
	is(ask($session, "SELECT le_renew('whole', $token)"), 't', 'the lease runs');
	is(ask($session, q{SELECT terms, lock_released, expired FROM pg_stat_leader_election WHERE name = 'whole'}), '0|0|0', 'and no term has ended');
	end_session($session, $other);
};

# Rows as le_lease writes them, only many at once.  Those that are looked at later than
# at once run for longer.
subtest 'a table that is read in vain at first' => sub {
	my $session = session($node);
	my $token = lease_take($session, 'one', '4 s');
	ask($session, q{INSERT INTO le_leases SELECT 1000000 + i, CASE WHEN i IN (1, 200000) THEN ttl ELSE '1 h' END, since, database, role, identity_has_client, 'many ' || i, identity
		FROM le_leases, generate_series(1, 200000) i WHERE name = 'one'});
	end_session($session);
	$node->restart;
	$session = session($node);
	my $offset = log_from($node);

	# it has no room for what the registry needs
	my ($size) = slurp_file("/proc/$session->{pid}/status") =~ /^VmSize:\s+(\d+) kB/m;
	is(system('prlimit', '--pid', $session->{pid}, '--as=' . 1024 * ($size + 20000) . ':'), 0, 'a limit is set');
	ask($session, "SELECT le_renew('one', $token)");
	like($session->{error}, qr/shared memory/, 'it fails');
	is(system('prlimit', '--pid', $session->{pid}, '--as=unlimited:'), 0, 'the limit is lifted');
	sleep_past(monotonic() + 4);
	is(ask($session, "SELECT le_renew('one', $token), le_renew('many 1', 1000001), le_renew('many 200000', 1200000)"), 't|t|t', 'each runs for its ttl from when all had been read');
	is(ask($session, q{SELECT count(*) FROM le_leaders WHERE name LIKE 'many %' AND ttl = '1 h'}), '199998', 'all others are there');
	like(log_since($node, $offset), qr/leader_election: 20000\d leases still running in database "postgres"/, 'and counted');
	end_session($session);
};

# Vacuum keeps the rows of all leases since the oldest snapshot, but a lease does not visit them
subtest 'beside an old snapshot' => sub {
	my ($session, $old) = (session($node), session($node));
	my $visited = q{SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'le_leases_pkey'};
	my $take = sub {
		my ($count, $then) = @_;
		ask($session, qq{DO \$\$ DECLARE t bigint; BEGIN FOR i IN 1 .. $count LOOP
			t := le_lease('often', '1 min'); $then; PERFORM le_resign('often', t); COMMIT; END LOOP; END \$\$});
		ask($session, 'SELECT pg_stat_force_next_flush()');
		return ask($session, $visited);
	};
	ask($old, 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
	my $before = $take->(100, 'COMMIT');
	cmp_ok($take->(1000, 'COMMIT') - $before, '<', 10_000, 'a thousand leases visit few rows each');
	$take->(3, 'ROLLBACK');
	ask($session, q{BEGIN; SELECT le_resign('often', le_lease('often', '1 min')), le_resign('often', le_lease('often', '1 min')); ROLLBACK});
	$take->(2, 'COMMIT');
	is(ask($session, q{SELECT count(*) <= 1 FROM le_leases WHERE name = 'often'}), 't', 'but leave no row after a rollback');
	end_session($session, $old);
};

subtest 'a copy of the database has none of its leases' => sub {
	my $session = session($node);
	my $token = lease_take($session, 'copied', '1 h');
	end_session($session);
	$node->safe_psql('template1', 'CREATE DATABASE copy TEMPLATE postgres');
	my $copy = session($node, db => 'copy');
	is(ask($copy, "SELECT le_am_leader('copied', $token), count(*) FROM le_leaders"), 'f|0', 'there is no leader there');
	is(ask($copy, q{SELECT le_lease('copied', '1 h') IS NOT NULL}), 't', 'a lease is granted');
	$session = session($node);
	is(ask($session, "SELECT le_renew('copied', $token)"), 't', 'here it runs on');
	end_session($session, $copy);
};

subtest 'rows that the extension cannot have written' => sub {
	$node->safe_psql('postgres', q{
		TRUNCATE le_leases;
		INSERT INTO le_leases SELECT i, ttl, now(), d.oid, role, false, 'forged ' || i, 'x'
		FROM pg_database d, (VALUES (1, '1 h'::interval, 0::oid), (2, '-1 h', 10), (3, '25 h', 10), (4, '1 h', 10)) v (i, ttl, role)
		WHERE d.datname = current_database()});
	$node->restart;
	my $session = session($node);
	cmp_ok(ask($session, q{SELECT le_lease('after', '1 s')}), '>', 0, 'the first bid after a restart');
	is(ask($session, q{SELECT string_agg(name, ' ') FROM le_leaders WHERE name LIKE 'forged %'}), 'forged 4', 'they are no leases');
	ask($session, 'DELETE FROM le_leases');
	end_session($session);
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
