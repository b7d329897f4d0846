# The move from the SQL edition to the C extension, and back, by the commands of doc/managed.md as
# they stand there.  A role runs them that owns the schema and may create others: no superuser.
# Another role, mallory, may create schemas, and objects in "public".
#
# Wrong outcomes: a term begins while the programs are stopped; a job that was done is done again; a
# token that does not grow; a stale writer that commits; a write that no trigger guards; a trigger that
# has become another one; programs that start while something elects by the old edition; code of
# mallory that runs.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use SqlEdition;

my ($page) = slurp_file('doc/managed.md') =~ /^## Move Between the Editions\n(.*?)^## /ms or die 'the page has no such section';
my @blocks = $page =~ /^ *```sql skip=t\/604_sql_edition_switch.pl runs it\n(.*?)^ *```$/msg;
is(scalar @blocks, 7, 'the page has six blocks, and one for the way back');
my ($close, $look, $move, $triggers, $uses, $drop, $back) = @blocks;
my ($options, $path) = $page =~ /`psql ([^`]+)`, after `(SET [^`]+)`/ or die 'the page does not say how to begin';
my %back = $back =~ /^-- (\d)\.[^\n]*\n((?:(?!-- \d)[^\n]*\n)+)/mg;

my $node = sql_edition_server('sql_edition_switch');
my $admin = session($node);
ask($admin, 'GRANT CREATE ON DATABASE postgres TO le_own, mallory', q{ALTER ROLE le_own SET lock_timeout = '10 s'}, 'GRANT CREATE ON SCHEMA public TO mallory',
	'CREATE SCHEMA sale_old AUTHORIZATION app', 'CREATE SCHEMA AUTHORIZATION app', 'SET ROLE app',
	'CREATE TABLE app.invoice (token bigint) PARTITION BY LIST (token)', 'CREATE TABLE app.part PARTITION OF app.invoice DEFAULT',
	q{CREATE TRIGGER "Guard" BEFORE INSERT ON app.invoice FOR EACH ROW EXECUTE FUNCTION le.le_guard('biller')},
	'ALTER TABLE app.invoice ENABLE ALWAYS TRIGGER "Guard"', 'CREATE VIEW app.entry AS TABLE app.invoice',
	q{CREATE TRIGGER guard INSTEAD OF INSERT ON app.entry FOR EACH ROW EXECUTE FUNCTION le.le_guard('biller')},
	q{CREATE TRIGGER odd BEFORE DELETE ON app.part FOR EACH ROW WHEN (OLD.token::text <> 'EXECUTE FUNCTION le_old.le_guard(' AND le.le_version() <> '') EXECUTE FUNCTION le.le_guard(' le_old.le_guard(')},
	'ALTER TABLE app.part DISABLE TRIGGER odd', 'RESET ROLE', 'SET ROLE mallory',
	map({ "CREATE FUNCTION public.$_ LANGUAGE plpgsql AS 'BEGIN RAISE ''code of mallory''; END'" }
		'setval(text, bigint) RETURNS bigint', 'same(oid, regproc) RETURNS boolean'),
	'CREATE OPERATOR public.= (FUNCTION = public.same, LEFTARG = oid, RIGHTARG = regproc)', 'RESET ROLE');
die $admin->{error} if $admin->{error};

# The exit status of psql as the page has it, what it printed, and its errors
sub psql_as
{
	my ($role, $commands) = @_;
	return $node->psql('postgres', "$path;\n$commands", on_error_stop => 0, extra_params => [ '-U', $role, split ' ', $options ]);
}

sub run_as
{
	my ($role, $commands) = @_;
	my ($status, $printed, $errors) = psql_as($role, $commands);
	is($status, 0, "commands of $role") or diag($errors);
	return $printed;
}

sub fails_as
{
	my ($role, $commands, $expected, $test) = @_;
	my ($status, $printed, $errors) = psql_as($role, $commands);
	ok($status == 3 && $errors =~ $expected, $test) or diag("$status $printed $errors");
	return;
}

# The triggers of the edition, as they are printed
sub guards
{
	return ask($admin, q{SELECT pg_get_triggerdef(oid), tgenabled FROM pg_trigger WHERE tgfoid = 'le.le_guard()'::regprocedure AND tgparentid = 0 ORDER BY tgname});
}

sub write_with
{
	my ($client, $token) = @_;
	ask($client, "SET leader_election.token = $token", "INSERT INTO invoice VALUES ($token)");
	return $client->{code};
}

sub moves
{
	my ($edition, $day, $to, %refused) = @_;
	my ($client, $leader, $reader) = map { session($node, user => 'app') } 1 .. 3;
	my $guards = guards();

	# a program that the move does not stop, and one in session scope; tokens that are ahead of the clock
	my $stale = lease_take($client, 'biller', '4 s');
	is(write_with($client, $stale), '', 'a write before the move');
	is(ask($client, "SELECT le_once('biller', '2026-01-0$day', $stale)"), 't', 'a job');
	is(ask($leader, q{SELECT le_try_become_leader('report')}), 't', 'a leader in session scope');
	ask($client, 'CREATE VIEW sale_old.leaders AS TABLE le_leaders', 'CREATE FUNCTION app.label(le_leaders) RETURNS text RETURN $1.name',
		q{CREATE FUNCTION app.take() RETURNS bigint BEGIN ATOMIC SELECT le_lease('biller', '1 min'); END});
	is(write_with($reader, $stale), '', 'a write of a session that then reads');
	ask($reader, 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'TABLE le_leaders');
	my $last = run_as('le_own', q{SELECT setval('le.le_token_seq', last_value + 500000000000) FROM le.le_token_seq});

	ask($admin, 'CREATE SCHEMA le_old AUTHORIZATION mallory');
	fails_as('le_own', join('', @$to{2 .. 4}), qr/"le_old" already exists\n*\z/, 'no move while another role has the name');
	is(ask($admin, q{DROP SCHEMA le_old; SELECT count(*) FROM pg_namespace WHERE nspname = 'le'}), 1, 'the schema is there');
	run_as('le_own', $to->{2});
	fails($admin, 'SET ROLE mallory; CREATE SCHEMA le', '42P06', 'no other role has its name');
	fails($client, q{SELECT 1 / count(le_lease('other', '1 s'))}, $refused{bid}, 'no term begins');
	like(run_as('le_own', $to->{3}), qr/^report\|/m, 'a program that still runs is shown');
	end_session($leader);
	ok($node->poll_query_until('postgres', "SELECT NOT EXISTS ($to->{look})", 't'), 'all terms end');
	is(run_as('le_own', $to->{3}), '', 'which is shown');
	run_as('le_own', $to->{4});
	is(write_with($reader, $stale), $refused{write}, 'a reader has not been waited for, and cannot write by its snapshot');
	end_session($reader);
	is(ask($client, 'SELECT le_version()'), "leader_election 1.0.0, $edition edition", 'another edition');
	is(write_with($client, $stale), $refused{write}, 'no write by the old trigger');
	fails_as('le_own', $to->{6}, qr/trigger Guard on table app.invoice depends/, 'the old edition cannot be dropped');
	is(write_with($client, $stale), $refused{write}, 'nor a write');
	run_as('app', run_as('le_own', $triggers));
	is(guards(), $guards, 'the triggers are as before');
	is(write_with($client, $stale), 'LE001', 'nor by the new one with the stale token');
	is(ask($client, "SELECT le_renew('biller', $stale)"), 'f', 'which renews nothing');

	is(join("\n", sort split /\n/, run_as('le_own', $uses)), "function app.label(le_old.le_leaders)\nfunction app.take()\nrule _RETURN on view sale_old.leaders", 'what else uses the old edition is shown');
	ask($client, 'DROP VIEW sale_old.leaders', 'DROP FUNCTION app.label, app.take');
	is(run_as('le_own', $uses), '', 'nothing does');
	run_as('le_own', $to->{6});
	is(ask($admin, q{SELECT to_regnamespace('le_old')}), '', 'the old edition is dropped');

	my $token = lease_take($client, 'biller', '1 min');
	cmp_ok($token, '>', $last, 'a token above all old ones');
	is(write_with($client, $token), '', 'a write with it');
	is(ask($client, "SELECT le_once('biller', '2026-01-0$day', $token), le_once('biller', '2026-01-0$day 12:00', $token)"), 'f|t', 'the job is still done, and the next is due');
	is(write_with($client, $stale), 'LE001', 'the table stays guarded');
	ask($client, "SELECT le_resign('biller', $token)");
	end_session($client);
	return;
}

subtest 'to the C extension' => sub {
	my ($owner, $client) = map { session($node, user => $_) } qw(le_own app);
	my $token = lease_take($client, 'guarded', '1 min');
	foreach my $commands ($close, $move)
	{
		foreach my $open (q{le_try_become_leader_xact('open')}, "le_assert_leader('guarded', $token)")
		{
			ask($client, 'BEGIN', "SELECT $open");
			post($owner, $commands);
			ok(ask_until($admin, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $owner->{pid}", 'Lock', 5), 'waits for an open bid, job or guard');
			ask($admin, "SELECT pg_cancel_backend($owner->{pid})");
			collect($owner);
			ask($_, 'ROLLBACK') foreach $owner, $client;
		}
	}
	ask($client, "SELECT le_resign('guarded', $token)");
	end_session($owner, $client);
	moves('C', 1, { 2 => $close, 3 => $look, look => $look =~ s/;$//r, 4 => $move, 6 => $drop }, bid => '22012', write => '42883');
};
# as a deployment does that was not told of the move
foreach my $installer ('le_own', ask($admin, 'SELECT current_user'))
{
	ask($admin, "ALTER SCHEMA le OWNER TO $installer");
	my ($status, $errors) = run_script($node, 'postgres', user => $installer);
	like($errors, qr/schema "le" contains the C extension/, "the script does not replace the extension: $installer");
}
ask($admin, 'ALTER SCHEMA le OWNER TO le_own');
subtest 'back to the SQL edition' => sub {
	moves('SQL', 2, { %back, look => $back{3} =~ s/;$//r }, bid => '42883', write => 'LE001');
};
like($page, qr/\Q$uses\E.*then start the programs:.*\Q$drop\E/s, 'nothing elects by the old edition when programs start');
is(ask($admin, q{SELECT rolsuper FROM pg_roles WHERE rolname = 'le_own'}), 'f', 'by no superuser');
end_session($admin);
done_testing();
