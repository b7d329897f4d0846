# What looks like leadership and is none is told at once, by the extended protocol as well:
# most drivers use no other, and send keys and arrays without their types.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('misuse');
my $client = session($node);

# The answer and the notices of a statement by the extended protocol
sub execute
{
	my ($sql, @values) = @_;
	my $answer = ask_with($client, $sql, @values);
	return ($answer, $client->{messages});
}

subtest 'transaction scope outside a transaction block' => sub {
	foreach my $function (qw(le_try_become_leader_xact le_become_leader_xact))
	{
		my ($answer, $notices) = execute("SELECT $function(\$1)", 'job');
		is($answer, 't', "$function: elected");
		like($notices, qr/\ANOTICE:  00000: leadership of election "job" ends with this statement\n/, 'and told that this ends it');
	}
	is((execute('SELECT * FROM le_leader($1)', 'job'))[0], '', 'there is no leader');

	execute('BEGIN');
	is_deeply([ execute('SELECT le_try_become_leader_xact($1)', 'job') ], [ 't', '' ], 'in a transaction block, nothing is told');
	execute('COMMIT');
};

subtest 'a lease that is taken in a transaction block' => sub {
	execute('BEGIN');
	my ($token, $notices) = execute('SELECT le_lease($1, $2)', 'mailer', '1 min');
	like($notices, qr/\AWARNING:  25001: the lease of election "mailer" begins when this transaction commits\nDETAIL: /, 'a warning');
	execute('COMMIT');
	is_deeply([ execute('SELECT le_lease($1, $2, token => $3) = $3', 'mailer', '1 min', $token) ], [ 't', '' ], 'it has begun');
};

subtest 'a token that code of another role has set' => sub {
	my $admin = session($node);
	ask($admin, 'CREATE ROLE app LOGIN', 'CREATE ROLE login LOGIN NOINHERIT IN ROLE app', 'CREATE ROLE mallory LOGIN', 'CREATE TABLE inventory (v int)', 'GRANT INSERT ON inventory TO app',
		q{CREATE TRIGGER guarded BEFORE INSERT ON inventory EXECUTE FUNCTION le_guard('inventory')},
		'CREATE SCHEMA mallory AUTHORIZATION mallory', 'GRANT USAGE ON SCHEMA mallory TO app', 'SET ROLE mallory',
		q{CREATE FUNCTION mallory.set(t text, local boolean) RETURNS text LANGUAGE sql SECURITY DEFINER AS 'SELECT set_config(''leader_election.token'', t, local)'},
		'RESET ROLE', 'SET ROLE app');
	my $token = lease_take($admin, 'inventory', '1 h');
	my $insert = 'INSERT INTO inventory VALUES (1)';
	my $set = "SELECT mallory.set('$token', false)";
	my $own = "SET leader_election.token = $token";
	my $loaded = q{SELECT le_am_leader('inventory')};
	foreach my $case (
		[ 'by the session', '', $loaded, $own ],
		[ 'by the session, before it loads the library', '', $own ],
		[ 'by the session, as another role then, before it loads the library', '', $own, 'SET ROLE app' ],
		[ 'by other code', 'LE001', $loaded, $set ],
		[ 'by other code, before the session loads the library', 'LE001', $set ],
		[ 'by other code, under that of the session, which ends after the library is loaded', 'LE001', $set, 'BEGIN', $own =~ s/SET/SET LOCAL/r, $loaded, 'COMMIT' ],
		[ 'by both', '', $loaded, $set, $own ],
		[ 'over that of the session', 'LE001', $loaded, $own, $set ],
		[ 'over that of the session, until a rollback', '', $loaded, $own, 'BEGIN', $set, 'ROLLBACK' ],
		[ 'by the session, until a rollback', 'LE001', $loaded, $set, 'BEGIN', $own, 'ROLLBACK' ],
		[ 'over that of the session, in a transaction', '', $loaded, $own, 'BEGIN', "SELECT mallory.set('$token', true)", 'COMMIT' ],
		[ 'by the session, in a transaction', '', $loaded, $set, 'BEGIN', "SET LOCAL leader_election.token = $token" ],
		[ 'by other code, and reset', 'LE001', $loaded, $set, 'RESET leader_election.token' ])
	{
		my ($what, $code, @sql) = @$case;
		my $client = session($node, user => $sql[-1] eq 'SET ROLE app' ? 'login' : 'app');
		ask($client, @sql);
		fails($client, $insert, $code, $what);
		end_session($client);
	}
	ask($admin, 'RESET ROLE', "SELECT le_resign('inventory', $token)", 'DROP TABLE inventory', 'DROP SCHEMA mallory CASCADE', 'DROP ROLE login, app, mallory');
	is($admin->{error}, '', 'cleaned up');
	end_session($admin);
};

subtest 'parameters without a type' => sub {
	foreach my $call ('SELECT le_try_become_leader($1)', 'SELECT le_am_leader($1)', 'SELECT le_resign($1)', 'CALL le_campaign($1)', 'CALL le_observe($1)')
	{
		execute($call, '{a,b}');
		is($client->{code}, '22023', "$call: an array is no name");
		like($client->{error}, qr/must not be enclosed in braces/, 'the rule is in the message');
	}
	is((execute('SELECT le_try_become_leader($1)', '2929'))[0], 't', 'a number is a name');
	like((execute('CALL le_campaign($1::text[])', '{a,b}'))[0], qr/^\d+\|a$/, 'an array with its type');
	is((execute('SELECT le_am_leader($1)', 'a'))[0], 't', 'a name');
	is((execute('SELECT le_am_leader($1, identity => $2)', 'a', 'another'))[0], 'f', 'with another identity');
	is((execute('SELECT le_resign($1, identity => $2)', 'a', 'another'))[0], 'f', 'which cannot resign');
	like($client->{messages}, qr/WARNING:  01000: this session leads election "a" as/, 'and is told why');
};

$node->stop;
done_testing();
