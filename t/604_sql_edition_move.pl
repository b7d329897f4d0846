# The move from the SQL edition to the C extension, and back, while three programs elect all the
# time: by a lease, in session scope, and with a trigger that guards.
#
# Wrong outcomes: two leaders; a token that does not grow; a program that has to change, or to
# be restarted; an election that stands still for longer than a session takes to be replaced.
# The gaps are printed.

use strict;
use warnings;

use Test::More;
use Time::HiRes;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use SqlEdition;

my $folder = "$FindBin::RealBin/../plpgsql";
my $node = sql_edition_server('sql_edition_move');
my $admin = session($node);
my %as_app = (user => 'app');

# What the leaders write to.  A row of "written" is numbered while its writer holds the lock of the
# election's row in "resource", so that its numbers are in the order of the commits.
ask($admin, q{CREATE TABLE resource (election text PRIMARY KEY, token bigint NOT NULL)},
	q{INSERT INTO resource VALUES ('lease', 0), ('session', 0), ('trigger', 0)},
	q{CREATE TABLE written (id bigserial, election text, token bigint, program integer, edition text, at timestamptz DEFAULT clock_timestamp())},
	q{CREATE TABLE triggered (token bigint)},
	q{CREATE TRIGGER guard BEFORE INSERT ON triggered FOR EACH ROW EXECUTE FUNCTION le.le_guard('trigger')},
	q{GRANT ALL ON resource, written, triggered TO app; GRANT USAGE ON SEQUENCE written_id_seq TO app});

# Write as the leader, in one transaction: guarded, but not fenced
sub guarded
{
	my ($client, $election, $token, $program, $guard) = @_;
	ask($client, 'BEGIN', $guard,
		"UPDATE resource SET token = token WHERE election = '$election'",
		"INSERT INTO written (election, token, program, edition) VALUES ('$election', $token, $program, split_part(le_version(), ', ', 2))",
		"UPDATE resource SET token = $token WHERE election = '$election'", 'COMMIT');
	ask($client, 'ROLLBACK') unless $client->{closed};
	return;
}

# A program: its statements are the same all the time.  Errors and lost connections are what it
# tries again after.
sub program
{
	my ($number) = @_;
	my ($client, %token, $stop);
	my $round = 0;

	local $SIG{TERM} = sub { $stop = 1 };
	until ($stop)
	{
		if (!$client || $client->{closed})
		{
			%token = map { $_ => $token{$_} } grep { $_ ne 'session' } keys %token;
			$client = eval { session($node, %as_app, app => "program $number") } or Time::HiRes::sleep(0.05), next;
			# prepared once for each session, as a driver does
			ask($client, "PREPARE lease(text, bigint) AS SELECT le_lease(\$1, '2 s', \$2, identity => 'program $number')");
		}
		$round++;
		foreach my $election (qw(lease trigger))
		{
			my $token = ask($client, "EXECUTE lease('$election', " . ($token{$election} // 'NULL') . ')');
			next if $client->{closed};
			# an error tells nothing: the lease is renewed, or found to be lost, by the next call
			next if $client->{code};
			delete $token{$election}, next unless $token;
			$token{$election} = $token;
			guarded($client, $election, $token, $number, $election eq 'lease' ? "SELECT le_assert_leader('lease', $token)"
				: ($round % 2 ? "SET LOCAL leader_election.token = '$token'" : "SELECT le_assert_leader('trigger', $token)")
				. "; INSERT INTO triggered VALUES ($token)");
			if ($round % 25 == 0)
			{
				ask($client, "SELECT le_resign('$election', $token)");
				delete $token{$election};
			}
		}
		next if $client->{closed};
		if ($token{session})
		{
			my $leads = ask($client, q{SELECT le_am_leader('session')});
			delete $token{session} if !defined $leads || $leads ne 't';
		}
		else
		{
			# a long wait in some rounds, so that candidates wait during the moves
			my $timeout = $round % 4 ? '50 ms' : '1 s';
			my $token = ask($client, "CALL le_campaign('session', '$timeout', identity => 'program $number')");
			$token{session} = $token if $token;
		}
		if ($token{session} && !$client->{closed})
		{
			guarded($client, 'session', $token{session}, $number, q{SELECT le_assert_leader('session')});
			if ($round % 20 == 0)
			{
				ask($client, q{SELECT le_resign('session')});
				delete $token{session};
			}
		}
		Time::HiRes::sleep(0.02);
	}
	POSIX::_exit(0);
}

my @programs = map {
	my $number = $_;
	my $pid = fork // die $!;
	program($number) if !$pid;
	$pid;
} 1 .. 3;

sub wait_for_terms
{
	my ($edition) = @_;
	my $from = ask($admin, 'SELECT coalesce(max(id), 0) FROM written');
	ok(ask_until($admin, "SELECT count(DISTINCT (election, token)) >= 9 AND count(DISTINCT election) = 3 FROM written WHERE id > $from AND edition = '$edition'", 't', 60),
		"terms of the $edition");
	return;
}

sub move
{
	my ($script, %params) = @_;
	my $from = monotonic();
	my ($status, $stderr) = run_script($node, 'postgres', script => "$folder/$script", user => scalar getpwuid($>), %params);
	is($status, 0, $script) or diag($stderr);
	note sprintf '%s took %.2f s', $script, monotonic() - $from;
	return;
}

sub language_of_trigger
{
	return ask($admin, q{SELECT lanname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_language l ON l.oid = p.prolang
		WHERE tgrelid = 'triggered'::regclass});
}

wait_for_terms('SQL edition');
my $kept = ask($admin, q{SELECT le.le_lease('kept', '50 s', identity => 'me')});
ask($admin, q{SELECT le.le_once('kept', '2026-01-01', } . $kept . ')');
foreach my $way (1, 2)
{
	# one that does not ask whether it still leads
	my $silent = session($node, %as_app);
	ask($silent, q{SELECT le_try_become_leader('silent')});
	is(language_of_trigger(), 'plpgsql', 'the trigger of the SQL edition');
	move('to-c.sql');
	is(language_of_trigger(), 'c', 'is that of the C extension');
	ok(wait_for_end($silent, 5), 'a leader in session scope ends');
	is(ask($admin, q{SELECT le.le_version()}), 'leader_election 1.0.0, C edition', 'the functions are those of the C extension');
	is(ask($admin, qq{SELECT le.le_renew('kept', $kept), le.le_am_leader('kept', $kept), le.le_once('kept', '2026-01-01', $kept)}), 't|t|f', 'a lease and its job continue');
	is(ask($admin, q{SELECT identity, token FROM le.le_leaders WHERE name = 'kept'}), "me|$kept", 'and are shown');
	wait_for_terms('C edition');
	my ($status, $stderr) = run_script($node, 'postgres');
	like($stderr, qr/the functions of schema "le" call the C extension/, 'the SQL edition is not installed over that');
	$silent = session($node, %as_app);
	is(ask($silent, q{SELECT le_try_become_leader('silent')}), 't', 'another one');
	move('from-c.sql');
	ok(wait_for_end($silent, 5), 'which ends as well');
	is(ask($admin, q{SELECT le.le_version()}), 'leader_election 1.0.0, SQL edition', 'the functions are those of the SQL edition');
	is(ask($admin, qq{SELECT le.le_renew('kept', $kept), le.le_am_leader('kept', $kept), le.le_once('kept', '2026-01-01', $kept)}), 't|t|f', 'a lease and its job continue');
	wait_for_terms('SQL edition');
}
ask($admin, qq{SELECT le.le_resign('kept', $kept)});

kill 'TERM', @programs;
waitpid $_, 0 foreach @programs;
is(ask($admin, q{SELECT count(*) FROM (SELECT token < lag(token) OVER (PARTITION BY election ORDER BY id) AS stale FROM written) w WHERE stale}),
	'0', 'no leader has written after its successor');
is(ask($admin, q{SELECT count(*) FROM (SELECT 1 FROM written GROUP BY election, token HAVING count(DISTINCT program) > 1) w}), '0', 'each token had one leader');
is(ask($admin, q{SELECT count(*) FROM (SELECT token FROM written GROUP BY election, token HAVING count(DISTINCT edition) > 1 AND election = 'session') w}), '0',
	'terms in session scope ended');
cmp_ok(ask($admin, q{SELECT count(*) FROM (SELECT token FROM written GROUP BY election, token HAVING count(DISTINCT edition) > 1) w}), '>', 0, 'leases moved');
note "longest gaps:\n" . ask($admin, q{SELECT election, max(gap) FROM (SELECT election, at - lag(at) OVER (PARTITION BY election ORDER BY id) AS gap FROM written) w GROUP BY 1});
note "longest gaps at the moves:\n" . ask($admin, q{SELECT election, edition, max(gap) FROM (SELECT election, edition, edition <> lag(edition) OVER o AS moved, at - lag(at) OVER o AS gap FROM written WINDOW o AS (PARTITION BY election ORDER BY id)) w WHERE moved GROUP BY 1, 2 ORDER BY 1, 2});
is(ask($admin, q{SELECT count(*) FROM (SELECT at - lag(at) OVER (PARTITION BY election ORDER BY id) AS gap FROM written) w WHERE gap > '4 s'}), '0', 'no election stood still');
end_session($admin);
done_testing();
