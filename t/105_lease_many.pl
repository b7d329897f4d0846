# 100,000 leases that run in one database: what they cost, and that they do not
# slow down each other.  Leases that are neither resigned nor asked for any
# more do not pile up.

use strict;
use warnings;

use List::Util qw(min);
use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

plan skip_all => 'needs /dev/shm and /proc'
  unless -d '/dev/shm' && -r '/proc/self/maps';

my $many = 100_000;
my $node = new_server('lease_many', conf => q{
leader_election.log_terms = off
log_statement = none
leader_election.max_elections = 1000000
fsync = off
full_page_writes = off
autovacuum = off
jit = off
max_connections = 50
max_wal_size = '4GB'
shared_buffers = '256MB'
dynamic_shared_memory_type = posix
});
my $session = session($node);

$node->safe_psql('postgres', q{
CREATE PROCEDURE take(prefix text, n integer, ttl interval) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP
		IF le_lease(prefix || i, ttl, identity => 'holder') IS NULL THEN
			RAISE 'denied: %', i;
		END IF;
		COMMIT;
	END LOOP;
END $$;

-- milliseconds per call, the best of some rounds
CREATE FUNCTION timed(statement text, calls integer) RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
	begun timestamptz;
	ms double precision;
	best double precision := 'infinity';
	good boolean;
BEGIN
	FOR round IN 1 .. 5 LOOP
		begun := clock_timestamp();
		FOR i IN 1 .. calls LOOP
			EXECUTE statement INTO good;
			IF good IS NOT TRUE THEN
				RAISE 'not done: %', statement;
			END IF;
		END LOOP;
		ms := extract(epoch FROM clock_timestamp() - begun) * 1000 / calls;
		best := least(best, ms);
	END LOOP;
	RETURN best;
END $$});

sub timed
{
	my ($what, $calls) = @_;
	my $ms = ask($session, "SELECT timed(\$\$$what\$\$, $calls)");
	die $session->{messages} unless $ms =~ /^[\d.e-]+$/;
	return $ms;
}

my $token = ask($session, q{SELECT le_lease('one', '1 day', identity => 'holder')});
my %operations = (
	'le_renew' => [ "SELECT le_renew('one', $token)", 500 ],
	'le_lease by the holder' => [ "SELECT le_lease('one', '1 day', identity => 'holder', token => $token) = $token", 500 ],
	'le_lease by another' => [ q{SELECT le_lease('one', '1 day', identity => 'other') IS NULL}, 500 ],
	'le_am_leader' => [ "SELECT le_am_leader('one', $token)", 500 ],
	'le_leader' => [ "SELECT token = $token FROM le_leader('one')", 50 ]);
my %with_one = map { $_ => timed(@{ $operations{$_} }) } sort keys %operations;

subtest "$many leases" => sub {
	my $shared = shared_size($session);
	my $used = sub { processor_time($session->{pid}) };
	my $begun = $used->();
	ask($session, "CALL take('warm ', 2000, '1 day')");
	is($session->{messages}, '', '2000 are taken');
	my $first = ($used->() - $begun) / 2000;
	$begun = $used->();
	foreach my $part (1 .. 10)
	{
		ask($session, "CALL take('job $part.', $many / 10, '1 day')");
		is($session->{messages}, '', "a tenth of $many is taken");
	}
	my $each = ($used->() - $begun) / $many;
	$begun = $used->();
	ask($session, "CALL take('last ', 2000, '1 day')");
	is($session->{messages}, '', '2000 are taken after that');
	my $last = ($used->() - $begun) / 2000;
	diag(sprintf 'processor time to take a lease and commit, fsync off: %.0f us among the first 2000, %.0f us on average, %.0f us when %d run (x %.1f)',
		1e6 * $first, 1e6 * $each, 1e6 * $last, $many, $last / $first);
	cmp_ok($last, '<', 10 * $first + 0.0003, 'to take one more is not much slower');
	my $count = $many + 4001;
	is(ask($session, q{SELECT count(*) FROM _le_registry_terms() WHERE scope = 'lease'}), $count, 'all run');

	my $bytes = (shared_size($session) - $shared) / ($many + 4000);
	diag(sprintf 'shared memory: %.0f bytes a lease', $bytes);
	cmp_ok($bytes, '>', 50, 'shared memory is in sight');
	cmp_ok($bytes, '<', 2000, 'and bounded');
	diag('le_leases: ' . ask($session, "SELECT pg_total_relation_size('le_leases') / $count") . ' bytes a lease, with its index');

	$begun = monotonic();
	is(ask($session, 'SELECT count(*) FROM le_leaders'), $count, 'le_leaders shows all');
	my @looks = monotonic() - $begun;
	foreach my $i (1 .. 4)
	{
		$begun = monotonic();
		ask($session, 'SELECT count(*) FROM le_leaders');
		push @looks, monotonic() - $begun;
	}
	diag(sprintf 'SELECT count(*) FROM le_leaders: %.3f s at first, %.3f s at best', $looks[0], min(@looks));
	cmp_ok(min(@looks), '<', 5, 'in time');
	$begun = monotonic();
	is(ask($session, q{SELECT count(*), count(DISTINCT token), min(ttl) = '1 day', max(candidates), bool_and(expires_in > '1 h'), min(usename) = max(usename) FROM le_leaders}), "$count|$count|t|0|t|t", 'with all columns')
	  or diag($session->{messages});
	diag(sprintf 'with all columns: %.3f s', monotonic() - $begun);
};

subtest "as fast as with one" => sub {
	foreach my $operation (sort keys %operations)
	{
		my $now = timed(@{ $operations{$operation} });
		diag(sprintf '%s: %.1f us with one lease, %.1f us with %d: x %.2f',
			$operation, 1000 * $with_one{$operation}, 1000 * $now, $many, $now / $with_one{$operation});
		# a look at all of them takes at least some ms
		cmp_ok($now, '<', 5 * $with_one{$operation} + 1, $operation);
	}
};

subtest 'after a crash' => sub {
	$node->stop('immediate');
	$node->start;
	end_session($session);
	$session = session($node);
	my $begun = monotonic();
	is(ask($session, "SELECT le_renew('one', $token)"), 't', 'the holder renews');
	diag(sprintf 'the first look after a crash, with %d leases: %.2f s', $many, monotonic() - $begun);
	is(ask($session, 'SELECT count(*) FROM le_leaders'), $many + 4001, 'all run on');
	ask($session, 'DROP EXTENSION leader_election', 'CREATE EXTENSION leader_election');
	is(ask($session, 'SELECT count(*) FROM le_leaders'), '0', 'dropped');
	ask($session, q{CALL take('new ', 2000, '100 ms')});
	is($session->{messages}, '', 'new ones are taken');
};

# A registry without that much left over
$node->stop('immediate');
$node->start;
end_session($session);
$session = session($node);
$node->safe_psql('postgres', 'DROP EXTENSION leader_election; CREATE EXTENSION leader_election');

# Rows, of leases that run and of others
sub left_over
{
	return ask($session, 'SELECT count(*) FROM le_leases');
}

subtest 'short leases of names that are never asked for again' => sub {
	# some to grow to the usual size
	ask($session, q{CALL take('early ', 2000, '100 ms')});
	my $shared = shared_size($session);
	my @left = left_over();
	foreach my $round (1 .. 4)
	{
		ask($session, "CALL take('one-off $round ', 3000, '100 ms')");
		is($session->{messages}, '', '3000 are taken');
		push @left, left_over();
	}
	sleep_past(monotonic() + 0.11);
	ask($session, q{CALL take('late ', 2000, '100 ms')});
	push @left, left_over();
	my $grown = shared_size($session) - $shared;
	diag("rows of le_leases after 2000, 4 times 3000, and 2000 more: @left; shared memory has grown by $grown bytes");
	# what is left is what has run at a time; all but the last 2000 are over
	cmp_ok($left[-1], '<=', 8000, 'rows do not pile up: less than half of those taken are left');
	cmp_ok($grown, '<=', 4 * 1024 * 1024, 'nor does shared memory');
	cmp_ok(ask($session, 'SELECT count(*) FROM _le_registry_terms()'), '<=', 4000, 'nor is shown what is over');
};

subtest 'each in a transaction of its own that is rolled back' => sub {
	my $shared = shared_size($session);
	my $before = left_over();
	ask($session, q{DO $$ BEGIN FOR i IN 1 .. 5000 LOOP PERFORM le_lease('never ' || i, '1 day'); ROLLBACK; END LOOP; END $$});
	is($session->{messages}, '', 'taken, and rolled back');
	cmp_ok(left_over(), '<=', $before, 'no row');
	cmp_ok(shared_size($session), '<=', $shared + 4 * 1024 * 1024, 'nor memory');
	is(ask($session, q{SELECT count(*) FROM le_leaders WHERE name LIKE 'never%'}), '0', 'there is no leader');
};

# What the leases of a prefix have left, when some thousands more have been taken
sub left_of
{
	my ($prefix) = @_;
	sleep_past(monotonic() + 0.11);
	ask($session, "CALL take('after $prefix', 4000, '100 ms')");
	return ask($session, "SELECT count(*) FROM le_leases WHERE name LIKE '$prefix%'");
}

subtest 'leases that are followed by leadership of a session' => sub {
	ask($session, q{
DO $$ BEGIN
	FOR i IN 1 .. 1000 LOOP
		PERFORM le_resign('followed ' || i, le_lease('followed ' || i, '1 h'));
		COMMIT;
		IF NOT le_try_become_leader('followed ' || i) OR NOT le_resign('followed ' || i) THEN
			RAISE 'denied';
		END IF;
		COMMIT;
	END LOOP;
END $$});
	is($session->{messages}, '', 'done');
	cmp_ok(left_of('followed'), '<', 100, 'their rows do not stay');
};

subtest 'leases that are cleared away by transactions that are rolled back' => sub {
	ask($session, q{CALL take('cleared ', 2000, '100 ms')});
	sleep_past(monotonic() + 0.11);
	ask($session, q{DO $$ BEGIN FOR i IN 1 .. 10000 LOOP PERFORM le_lease('in vain ' || i, '1 day'); ROLLBACK; END LOOP; END $$});
	is($session->{messages}, '', 'done');
	left_of('cleared') foreach 1 .. 4;
	cmp_ok(left_of('cleared'), '<', 500, 'their rows do not stay');
};

subtest 'a sweep denies no bid' => sub {
	my $script = PostgreSQL::Test::Utils::tempdir() . '/own_election.sql';
	append_to_file($script, q{
SELECT coalesce(le_lease('own ' || :client_id, '15 s', identity => 'me'), 0) AS token \gset
\if :token
SELECT le_resign('own ' || :client_id, :token);
\else
SELECT nextval('denied');
\endif
});
	$node->safe_psql('postgres', 'CREATE SEQUENCE denied');
	my ($out, $err) = run_command([ 'pgbench', '-n', '-M', 'prepared', '-c', '32', '-j', '2', '-t', 1000, '-f', $script, $node->connstr('postgres') ]);
	like($out, qr/number of transactions actually processed: (\d+)\/\1\b/, '32 sessions bid for an election each')
	  or diag($err);
	is($node->safe_psql('postgres', q{SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM denied}), '0', 'and no bid is denied');
};

end_session($session);
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
