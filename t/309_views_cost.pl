# le_leader costs the same however many elections, leases and advisory locks
# there are: a program that polls must not become slower with each job, nor hold
# up the server's other locks.  The views take time in proportion to these.  What the views show of a long line is right, and
# shown soon.  A transaction that takes many leases, or does other things for
# many elections, takes time in proportion to their number.
#
# Processor times are compared with others of the same run, and with generous
# bounds: what went wrong before was out of these by far.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $many = 20_000;
my $node = new_server('views_cost', conf => q{
leader_election.log_terms = off
leader_election.max_elections = 1000000
leader_election.max_terms_per_session = 1000000
max_locks_per_transaction = 1024
max_connections = 120
listen_addresses = '127.0.0.1'
log_statement = none
fsync = off
autovacuum = off
jit = off
});
my $control = session($node, app => 'control');
my $leader = session($node, app => 'leader');

ask($control, q{
CREATE PROCEDURE repeat_statement(statement text, calls integer) LANGUAGE plpgsql AS $$
DECLARE
	good boolean;
BEGIN
	FOR i IN 1 .. calls LOOP
		EXECUTE statement INTO good;
		IF good IS NOT TRUE THEN
			RAISE 'not so: %', statement;
		END IF;
	END LOOP;
END $$;

-- so many calls of the function, in so many transactions
CREATE PROCEDURE many(call text, calls integer, transactions integer) LANGUAGE plpgsql AS $$
DECLARE
	done integer;
	all_done integer := 0;
BEGIN
	FOR i IN 0 .. transactions - 1 LOOP
		EXECUTE format('SELECT count(%s) FROM generate_series(%s, %s) AS n', call,
			i * calls / transactions + 1, (i + 1) * calls / transactions) INTO done;
		all_done := all_done + done;
		COMMIT;
	END LOOP;
	IF all_done <> calls THEN
		RAISE 'done only % times: %', all_done, call;
	END IF;
END $$});

# The milliseconds of processor time that the statement takes
sub cost
{
	my ($client, $statement) = @_;
	my $before = processor_time($client->{pid});
	ask($client, $statement);
	die "$statement: $client->{error}" if $client->{error} ne '';
	return 1000 * (processor_time($client->{pid}) - $before);
}

sub timed
{
	my ($what, $calls) = @_;
	return cost($control, "CALL repeat_statement(\$\$$what\$\$, $calls)");
}

# What is asked of one election, how many times
ask($leader, q{SELECT le_try_become_leader('held', identity => 'me'), le_lease('leased', '1 day', identity => 'me')});
my %asks = (
	q{SELECT identity = 'me' FROM le_leader('held')} => 5000,
	q{SELECT identity = 'me' FROM le_leader('leased')} => 5000,
	q{SELECT count(*) = 0 FROM le_leader('vacant')} => 5000);
my %alone = map { $_ => timed($_, $asks{$_}) } keys %asks;

subtest 'clients over the network' => sub {
	my $tcp = sprintf 'host=127.0.0.1 port=%d dbname=postgres application_name=tcp', $node->port;
	my $same = q{SELECT l.usename = a.usename, l.application_name, l.client_addr, a.client_addr IS NOT DISTINCT FROM l.client_addr
	FROM le_leaders l JOIN pg_stat_activity a USING (pid) WHERE l.name = 'over the network'};

	ask($control, 'CREATE ROLE reader LOGIN');
	is($node->safe_psql('postgres', "SELECT le_try_become_leader('over the network'); $same; SET ROLE reader; $same; RESET ROLE; $same; ",
			connstr => $tcp, extra_params => ['-At']), "t\nt|tcp|127.0.0.1|t\nt|tcp||t\nt|tcp|127.0.0.1|t", 'an address is shown to its own role only');
};

subtest 'a long line' => sub {
	my $length = 60;
	my @line;

	for my $place (1 .. $length)
	{
		my $client = session($node, app => "candidate $place");
		post($client, q{SELECT le_become_leader('held')});
		ask_until($control, q{SELECT count(*) FROM le_candidates WHERE name = 'held'}, $place) or die;
		push @line, $client;
	}
	is(ask($control, q{SELECT count(*), count(DISTINCT position), max(position),
	bool_and(application_name = 'candidate ' || position), bool_and(cardinality(blocked_by) = position),
	bool_and(blocked_by @> ARRAY[(SELECT pid FROM le_leader('held'))]),
	bool_and((SELECT array_agg(b ORDER BY b) FROM unnest(blocked_by) b) = (SELECT array_agg(b ORDER BY b) FROM unnest(pg_blocking_pids(pid)) b)),
	bool_and(waits_for = 'leader' AND usename = current_user AND since < clock_timestamp())
	FROM le_candidates WHERE name = 'held'}), "$length|$length|$length|t|t|t|t|t", 'each has its place');
	is(ask($control, q{SELECT count(*) FROM le_candidates}), $length, 'they are in the whole view, too');
	is(ask($control, q{SELECT candidates FROM le_leader('held') UNION ALL SELECT candidates FROM le_leaders WHERE name = 'held'
	UNION ALL SELECT candidates FROM pg_stat_leader_election WHERE name = 'held'}), "$length\n$length\n$length", 'and are counted');
	my $listed = timed("SELECT count(*) = $length FROM le_candidates", 100);
	diag(sprintf 'le_candidates with %d: %.2f ms', $length, $listed / 100);
	cmp_ok($listed, '<', 100 * 100, 'they are soon listed');
	kill_client($_) for @line;
};

# calls of a function, in one transaction and in many
sub in_one_transaction
{
	my ($client, $what, $one, $others, $calls) = @_;
	my $several = cost($client, "CALL many(\$\$$others\$\$, $calls, 20)");
	my $at_once = cost($client, "CALL many(\$\$$one\$\$, $calls, 1)");
	diag(sprintf '%s: %d in one transaction take %.0f ms, in 20 transactions %.0f ms', $what, $calls, $at_once, $several);
	cmp_ok($at_once, '<', 3 * $several + 100, "$what takes no longer in one transaction");
	return;
}

subtest 'many in one transaction' => sub {
	my $worker = session($node, app => 'worker');

	in_one_transaction($worker, 'to take a lease',
		q{le_lease('lease a' || n, '1 day')}, q{le_lease('lease b' || n, '1 day')}, $many);
	in_one_transaction($worker, 'to lead',
		q{CASE WHEN le_try_become_leader('term a' || n) THEN 1 END},
		q{CASE WHEN le_try_become_leader('term b' || n) THEN 1 END}, $many);
	in_one_transaction($worker, 'a guard',
		q{le_assert_leader('term a' || n) IS NULL}, q{le_assert_leader('term b' || n) IS NULL}, $many);
	in_one_transaction($worker, 'to publish',
		q{CASE WHEN le_proclaim('term a' || n, 'v') THEN 1 END},
		q{CASE WHEN le_proclaim('term b' || n, 'v') THEN 1 END}, $many);
	is(ask($worker, q{BEGIN;
SELECT count(*) FROM generate_series(1, 20000) n WHERE le_proclaim('term b' || n, 'w');
SELECT count(*) FROM generate_series(1, 19999) n WHERE le_resign('term b' || n);
COMMIT;
SELECT count(*), count(value) FROM le_leaders WHERE name LIKE 'term b%'}), "20000\n19999\n1|1", 'what is resigned is published no more');
	is(ask($control, q{SELECT count(*), count(value) FROM le_leaders WHERE name LIKE 'term a%'}), '20000|20000', 'the rest is');

	# savepoints: what they take is theirs, and their end looks at no other's
	is(ask($worker, q{
BEGIN;
SELECT count(le_lease('outer ' || n, '1 day')) FROM generate_series(1, 10) n;
SAVEPOINT a;
SELECT count(le_lease('a ' || n, '1 day')) FROM generate_series(1, 10) n;
SAVEPOINT b;
SELECT count(le_lease('b ' || n, '1 day')) FROM generate_series(1, 10) n;
ROLLBACK TO b;
SELECT count(le_lease('again ' || n, '1 day')) FROM generate_series(1, 10) n;
RELEASE a;
SAVEPOINT c;
SELECT count(le_lease('c ' || n, '1 day')) FROM generate_series(1, 10) n;
ROLLBACK TO c;
COMMIT;
SELECT string_agg(kind || ' ' || count, ', ' ORDER BY kind) FROM
 (SELECT split_part(name, ' ', 1) AS kind, count(*) FROM le_leaders WHERE name ~ '^(outer|a|b|again|c) ' GROUP BY 1) l}),
		"10\n10\n10\n10\n10\na 10, again 10, outer 10", 'savepoints lose what is theirs');
	ask($worker, 'SELECT count(pg_advisory_lock(1000000 + n)) FROM generate_series(1, 5000) n');

	# all these are there now
	for my $ask (sort keys %asks)
	{
		my $crowded = timed($ask, $asks{$ask});
		diag(sprintf '%s: %.0f us, %.0f us when alone', $ask, 1000 * $crowded / $asks{$ask}, 1000 * $alone{$ask} / $asks{$ask});
		cmp_ok($crowded, '<', 3 * $alone{$ask} + 100, "$ask: no slower");
	}
	my $all = timed('SELECT count(*) > 60000 FROM le_leaders', 1);
	diag(sprintf 'le_leaders: %.2f us a row', 1000 * $all / ask($control, 'SELECT count(*) FROM le_leaders'));
	cmp_ok($all, '<', 5000, 'all leaders are soon listed');
	kill_client($worker);
};

done_testing();
