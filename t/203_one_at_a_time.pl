# Many candidates, killed leaders, and never two leaders at a time.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('handover', conf => "log_statement = none\nmax_connections = 50\n");

subtest '50 leaders killed, 8 candidates' => sub {
	my @queue;
	my $dba = session($node);
	my $token = 0;
	my $problems = 0;
	foreach my $round (1 .. 50 + 8)
	{
		if (@queue == 8)
		{
			my $leader = shift @queue;
			my $elected = collect($leader);
			is($elected, 't', "round $round: the first in the queue is elected");
			my $now = ask($dba, q{SELECT string_agg(pid || '|' || token, ',') FROM le_leaders WHERE name = 'job'});
			my ($pid, $next) = split /\|/, $now;
			is($pid, $leader->{pid}, 'and leads alone');
			cmp_ok($next, '>', $token, 'with a greater token');
			$token = $next;
			kill_client($leader);
		}
		my $candidate = session($node);
		post($candidate, q{SELECT le_become_leader('job')});
		wait_until_standing($dba, $candidate->{pid});
		push @queue, $candidate;
	}
	kill_client(@queue);
	ask($dba, 'SELECT 1');
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM le_leaders');
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM _le_registry_candidates(false)');
	all_consistent($node, 'nothing is left');
	end_session($dba);
};

# Until it waits or leads
sub wait_until_standing
{
	my ($dba, $pid) = @_;
	foreach my $attempt (1 .. 100 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return
		  if ask($dba,
			"SELECT count(*) FROM pg_locks WHERE pid = $pid AND locktype = 'advisory'") > 0;
		select(undef, undef, undef, 0.01);
	}
	die "process $pid does not wait";
}

# Each client tries, and when it leads, changes a counter in two transactions
# with time to lose an update in between.  Run by pgbench.
my %scripts = (
	'session scope, try and resign' => q{
SELECT le_try_become_leader('mutex') AS leads \gset
\if :leads
SELECT n AS n FROM protected \gset
SELECT pg_sleep(0.0001);
UPDATE protected SET n = :n + 1;
INSERT INTO terms (token, n) VALUES (le_token('mutex'), :n);
SELECT le_resign('mutex');
\endif
},
	'session scope, wait and resign' => q{
SELECT le_become_leader('mutex') AS leads \gset
SELECT n AS n FROM protected \gset
UPDATE protected SET n = :n + 1;
INSERT INTO terms (token, n) VALUES (le_token('mutex'), :n);
SELECT le_resign('mutex');
},
	'session scope, wait a little, and release behind our back' => q{
SELECT le_become_leader('mutex', '5ms') AS leads \gset
\if :leads
SELECT n AS n FROM protected \gset
UPDATE protected SET n = :n + 1;
INSERT INTO terms (token, n) VALUES (le_token('mutex'), :n);
SELECT pg_advisory_unlock_all();
\endif
},
	'transaction scope' => q{
BEGIN;
SELECT le_become_leader_xact('mutex');
SELECT n AS n FROM protected \gset
UPDATE protected SET n = :n + 1;
INSERT INTO terms (token, n) VALUES (le_token('mutex'), :n);
COMMIT;
},
	'bare key, shared with pg_advisory_lock' => q{
\set plain random(0, 1)
\if :plain
SELECT pg_advisory_lock(77);
SELECT n AS n FROM protected \gset
UPDATE protected SET n = :n + 1;
INSERT INTO terms (token, n) VALUES (0, :n);
SELECT pg_advisory_unlock(77);
\else
SELECT le_become_leader(77);
SELECT n AS n FROM protected \gset
UPDATE protected SET n = :n + 1;
INSERT INTO terms (token, n) VALUES (le_token(77), :n);
SELECT le_resign(77);
\endif
});

$node->safe_psql('postgres', q{
CREATE UNLOGGED TABLE protected (n bigint) WITH (fillfactor = 10);
CREATE UNLOGGED TABLE terms (seq bigserial, token bigint, n bigint);
INSERT INTO protected VALUES (0)});

foreach my $what (sort keys %scripts)
{
	subtest "one at a time: $what" => sub {
		my $script = $node->basedir . '/script.sql';
		unlink $script;
		append_to_file($script, $scripts{$what});
		$node->safe_psql('postgres', 'TRUNCATE terms; UPDATE protected SET n = 0');
		my $offset = log_from($node);
		my $start = $node->safe_psql('postgres', 'SELECT is_called::integer * last_value FROM le_token_seq');
		$node->command_ok(
			[ 'pgbench', '-n', '-c', '8', '-j', '2', '-T', '2', '-f', $script, $node->connstr('postgres') ],
			'pgbench');
		my ($terms, $sum, $numbers) = split /\|/, $node->safe_psql('postgres',
			'SELECT count(*), (SELECT n FROM protected), count(DISTINCT n) FROM terms');
		cmp_ok($terms, '>', 10, "$terms terms");
		is($sum, $terms, 'no update was lost');
		is($numbers, $terms, 'no two leaders saw the same number');
		is( $node->safe_psql('postgres', q{
SELECT count(*) FROM (SELECT token, lag(token) OVER (ORDER BY n) AS before FROM terms WHERE token > 0) t
WHERE token <= before}),
			0, 'tokens grow in the order of the terms');

		# What the log tells: begin and end take turns, and tokens grow.  Where a
		# lock was let go behind our back, the end may be told a little later.
		my $late = $what =~ /behind our back/;
		my %runs;
		my ($wrong, $last, $began) = (0, 0, 0);
		foreach my $line (term_lines($node, $offset))
		{
			next unless $line =~ /^election (?:"mutex"|77): term (\d+) (began|ended)/;
			my ($token, $event) = ($1, $2);
			if ($event eq 'began')
			{
				$wrong++ if $token <= $last || (%runs && !$late);
				$runs{$token} = 1;
				$last = $token;
				$began++;
			}
			elsif (!delete $runs{$token})
			{
				$wrong++;
			}
		}
		is(scalar(%runs), 0, 'every term has its end in the log');
		is($wrong, 0, 'the log has one term after the other');
		is($began, $node->safe_psql('postgres', 'SELECT count(*) FROM terms WHERE token > 0'), 'each of them');
		is($node->safe_psql('postgres', 'SELECT count(*) FROM le_leaders'), '0', 'vacant in the end');
		is($node->safe_psql('postgres', q{SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL}), '0', 'nothing on record');
	};
}

subtest 'sessions killed under load' => sub {
	my $script = $node->basedir . '/load.sql';
	unlink $script;
	append_to_file($script, q{
\set i random(1, 5)
SELECT le_try_become_leader('load ' || :i), le_become_leader('load ' || (:i + 1), '3ms'), le_become_leader(:i, '3ms');
SELECT count(*) FROM le_leaders;
SELECT count(*) FROM le_candidates;
SELECT le_resign_all();
});
	my ($out, $err) = ('', '');
	my $pgbench = IPC::Run::start(
		[ 'pgbench', '-n', '-c', '12', '-j', '2', '-T', '3', '-f', $script, $node->connstr('postgres') . ' application_name=load' ],
		'>', \$out, '2>', \$err);
	$node->poll_query_until('postgres', q{SELECT count(*) = 12 FROM pg_stat_activity WHERE application_name = 'load'});
	foreach my $round (1 .. 10)
	{
		$node->safe_psql('postgres', q{
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'load' ORDER BY random() LIMIT 1});
	}
	$pgbench->finish;
	$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'load'});
	is( $node->safe_psql('postgres', q{
SELECT (SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL), (SELECT count(*) FROM _le_registry_candidates(false)),
	(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')}),
		'0|0|0', 'nothing is left');
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|WARNING(?!.*can only be used in transaction blocks)|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
