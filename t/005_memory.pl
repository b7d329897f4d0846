# Hundreds of thousands of elections leave the server's memory where it was.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

plan skip_all => 'needs /dev/shm and /proc'
  unless -d '/dev/shm' && -r '/proc/self/maps';

my $node = new_server('memory', conf => qq{
leader_election.log_terms = off
leader_election.max_tracked = 1000
log_statement = none
dynamic_shared_memory_type = posix
});

my $backend = session($node);
ask($backend, 'SET client_min_messages = warning');

sub private_size
{
	return ask($backend, 'SELECT sum(total_bytes) FROM pg_backend_memory_contexts');
}

sub lock_count
{
	return ask($backend, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'});
}

# After a first use of everything
ask($backend, q{SELECT le_try_become_leader('x'), le_resign('x')});
ask($backend, q{SELECT count(*) FROM le_leaders});
private_size();

sub grows_little
{
	my ($what, $sql, $expected) = @_;
	subtest $what => sub {
		my $shared = shared_size($backend);
		my $private = private_size();
		my $held = lock_count();
		cmp_ok($shared, '>', 0, "the registry is in sight: $shared bytes");
		my ($answers, $messages) = ('', '');
		foreach my $statement (ref $sql ? @$sql : $sql)
		{
			$answers .= ask($backend, $statement);
			$messages .= $backend->{messages};
		}
		is($answers, $expected, 'done');
		is($messages, '', 'without complaint');
		my $shared_now = shared_size($backend);
		my $private_now = private_size();
		cmp_ok($shared_now, '<=', $shared + 2 * 1024 * 1024,
			"shared memory: $shared bytes before, $shared_now after");
		cmp_ok($private_now, '<=', $private + 1024 * 1024,
			"private memory: $private bytes before, $private_now after");
		is(lock_count(), $held, 'no lock is left');
		cmp_ok(ask($backend, 'SELECT count(*) FROM _le_registry_terms()'), '<=', 1100,
			'the registry is small');
	};
}

grows_little('300,000 elections by name in one statement',
	q{SELECT count(*) FROM generate_series(1, 300000) i WHERE le_try_become_leader('job ' || i) AND le_resign('job ' || i)},
	'300000');

# Each statement an own transaction, with both scopes and a wait
$node->safe_psql('postgres', q{
CREATE PROCEDURE many(n integer) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP
		PERFORM le_become_leader('s' || i, '1s');
		PERFORM le_become_leader_xact('x' || i);
		PERFORM le_resign('s' || i);
		COMMIT;
	END LOOP;
END $$});
grows_little('20,000 transactions', 'CALL many(20000)', '');
grows_little('20,000 statements',
	[ map { "SELECT 1 WHERE NOT le_try_become_leader('m$_') OR NOT le_resign('m$_')" } 1 .. 20000 ], '');

grows_little('50,000 roles that come and go', q{DO $$
BEGIN
	FOR i IN 1 .. 50000 LOOP
		BEGIN
			CREATE ROLE regress_short;
			SET LOCAL ROLE regress_short;
			PERFORM le_try_become_leader_xact('short');
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	END LOOP;
END $$}, '');

# Denied by a leader, at once and after a wait
my $leader = session($node);
ask($leader, q{SELECT le_try_become_leader('taken')});
grows_little(
	'100,000 denied bids by name',
	q{SELECT count(*) FROM generate_series(1, 100000) i WHERE le_try_become_leader('taken') AND i > 0},
	'0');
grows_little(
	'1,000 waits in vain',
	q{SELECT count(*) FROM generate_series(1, 1000) i WHERE le_become_leader('taken', '1ms') AND i > 0},
	'0');
end_session($leader);

# Sessions come and go
my $shared = shared_size($backend);
$node->safe_psql('postgres', q{SELECT le_try_become_leader('s' || i) FROM generate_series(1, 50) i}) foreach 1 .. 20;
$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM le_leaders WHERE name LIKE 's%'});
cmp_ok(shared_size($backend), '<=', $shared + 1024 * 1024, 'sessions leave nothing behind');

# Databases come and go, with the leases that run there
sub drop_with_leases
{
	my ($name) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $name");
	create_extension($node, $name);
	$node->safe_psql($name, "SELECT count(le_lease('lease $_ ' || i, '1 h', identity => repeat('i', 255))) FROM generate_series(1, 1000) i")
	  foreach 1 .. 5;
	$node->safe_psql('postgres', "DROP DATABASE $name WITH (FORCE)");
}

# each is forgotten by the next
drop_with_leases('first');
drop_with_leases('second');
$shared = shared_size($backend);
drop_with_leases("next$_") foreach 1 .. 2;
cmp_ok(shared_size($backend), '<=', $shared + 2 * 1024 * 1024, 'dropped databases leave nothing behind');
end_session($backend);
$node->stop;
done_testing();
