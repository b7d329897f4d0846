# The SQL edition: one script, installed by a role that owns a schema and nothing else, on a server
# that has never loaded the shared library.
#
# Wrong outcomes: the script needs more rights than that, or cannot run again; two leaders; an
# election that stays vacant because of a bid that was rolled back, canceled or crashed, or because
# of a session that takes the lock without leading; a stale writer that commits.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use SqlEdition;

my $node = sql_edition_server('sql_edition');
my %as_app = (user => 'app');
my $admin = session($node);

subtest 'installation' => sub {
	my ($status, $stderr) = run_script($node, 'postgres');
	is($status, 0, 'the script runs again') or diag($stderr);
	is(ask($admin, q{SELECT count(*) FROM pg_extension WHERE extname = 'leader_election'}), '0', 'there is no extension');
	is(ask($admin, q{SELECT DISTINCT pg_get_userbyid(proowner) FROM pg_proc WHERE pronamespace = 'le'::regnamespace}), 'le_own', 'its owner owns all');
	is(ask($admin, q{SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = 'le_own'}), 'f', 'and has no other rights');
	is(ask($admin, q{SELECT count(*) FROM pg_proc WHERE pronamespace = 'le'::regnamespace AND prosecdef
		AND NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)}), '0', 'each SECURITY DEFINER function has a fixed path');
	# with which a role can have a function compiled, also one that then runs as its owner in that session
	my $validator = session($node);
	ask($validator, 'CREATE SCHEMA shells', q{DO $$ DECLARE name text; BEGIN FOR name IN SELECT typname FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace
		LOOP EXECUTE format('CREATE TYPE shells.%I', name); END LOOP; END $$}, 'SET search_path = shells, pg_catalog');
	is(ask($validator, q{SELECT count(plpgsql_validator(p.oid)) > 50 FROM pg_proc p JOIN pg_language l ON l.oid = prolang AND lanname = 'plpgsql'
		WHERE pronamespace = 'le'::pg_catalog.regnamespace}), 't', 'no variable has a type of the search_path') or diag($validator->{messages});
	ask($validator, 'SET client_min_messages = warning', 'DROP SCHEMA shells CASCADE');
	end_session($validator);
	is(ask($admin, q{SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc WHERE pronamespace = 'le'::regnamespace AND (NOT prosecdef OR proname LIKE '\_le\_old%')
		AND prokind = 'f' AND proname LIKE '\_le%' AND has_function_privilege('app', oid, 'EXECUTE')}), '_le_candidates _le_leaders', 'internal functions are closed, but those of the views');
	is(ask($admin, q{SELECT string_agg(oid::regprocedure::text, ' ') FROM pg_proc WHERE pronamespace = 'le'::regnamespace
		AND proname LIKE 'le\_%' AND obj_description(oid) IS NULL}), '', 'each public function has a comment');
	is(ask($admin, 'SELECT le_version()'), 'leader_election 1.0.0, SQL edition', 'version');

	ask($admin, 'CREATE DATABASE other');
	my $other = session($node, db => 'other');
	ask($other, 'CREATE SCHEMA le AUTHORIZATION app');
	($status, $stderr) = run_script($node, 'other');
	like($stderr, qr/only the owner of schema "le" can install/, 'not in the schema of another role');
	ask($other, 'ALTER SCHEMA le OWNER TO le_own', 'GRANT CREATE ON SCHEMA le TO mallory');
	($status, $stderr) = run_script($node, 'other');
	like($stderr, qr/other roles can create objects/, 'nor where others can create objects');
	my $before = session($node, user => 'mallory', db => 'other');
	foreach my $object ('TABLE le.le_settings (one boolean)', 'FUNCTION le.le_renew(name text, token bigint, ttl interval) RETURNS boolean RETURN true', 'DOMAIN le.d AS text',
		'OPERATOR le.=== (LEFTARG = text, RIGHTARG = text, FUNCTION = texteq)')
	{
		ask($before, "CREATE $object");
		is($before->{code}, '', "$object: of another role");
		ask($other, 'REVOKE CREATE ON SCHEMA le FROM mallory');
		($status, $stderr) = run_script($node, 'other');
		like($stderr, qr/schema "le" contains objects of other roles\nDETAIL:  The owner of .* is "mallory"/, 'nor beside it');
		ask($other, 'DROP OWNED BY mallory', 'GRANT CREATE ON SCHEMA le TO mallory');
	}
	# a range type that was moved away leaves its constructors, which are the bootstrap superuser's
	ask($other, 'CREATE SCHEMA elsewhere AUTHORIZATION mallory', 'GRANT USAGE ON SCHEMA le TO mallory');
	ask($before, 'CREATE TYPE le.le_lease AS RANGE (SUBTYPE = text, MULTIRANGE_TYPE_NAME = elsewhere.m)', 'ALTER TYPE le.le_lease SET SCHEMA elsewhere');
	is($before->{code}, '', 'a range type');
	ask($other, 'REVOKE ALL ON SCHEMA le FROM mallory');
	foreach my $installer ('le_own', ask($other, 'SELECT current_user'))
	{
		ask($other, "ALTER SCHEMA le OWNER TO $installer");
		($status, $stderr) = run_script($node, 'other', user => $installer);
		like($stderr, qr/schema "le" contains objects of other roles\nDETAIL:  The owner of type elsewhere\.le_lease is "mallory"/, "not beside its constructors: $installer");
	}
	ask($other, 'DROP OWNED BY mallory', 'ALTER SCHEMA le OWNER TO le_own');
	# those of a role that initdb has created, and that pg_shdepend does not list
	ask($other, 'GRANT pg_monitor TO mallory', 'GRANT USAGE, CREATE ON SCHEMA le TO pg_monitor');
	ask($before, 'CREATE TABLE le.le_settings (one boolean)', 'ALTER TABLE le.le_settings OWNER TO pg_monitor');
	is($before->{code}, '', 'a table of pg_monitor, in which mallory is');
	ask($other, 'REVOKE ALL ON SCHEMA le FROM pg_monitor, mallory', 'REVOKE pg_monitor FROM mallory');
	foreach my $installer ('le_own', ask($other, 'SELECT current_user'))
	{
		ask($other, "ALTER SCHEMA le OWNER TO $installer");
		($status, $stderr) = run_script($node, 'other', user => $installer);
		like($stderr, qr/schema "le" contains objects of other roles\nDETAIL:  The owner of .* is "pg_monitor"/, "not beside it: $installer");
	}
	ask($other, 'DROP TABLE le.le_settings', 'ALTER SCHEMA le OWNER TO le_own', 'SET ROLE le_own', 'CREATE TABLE le.orders ()', 'GRANT SELECT ON le.orders TO app', 'RESET ROLE');
	ask($other, 'CREATE TABLE le.le_notes ()', 'GRANT SELECT ON le.le_notes TO app');
	end_session($before);
	($status, $stderr) = run_script($node, 'other');
	is($status, 0, 'the first installation') or diag($stderr);
	is(ask($other, q{SELECT has_table_privilege('app', 'le.orders', 'SELECT'), has_table_privilege('app', 'le.le_notes', 'SELECT')}), 't|t', "which leaves grants on the owner's other tables as they were, and on a superuser's");
	SKIP: {
		skip 'no citext on this server', 2 if ask($other, q{SELECT count(*) FROM pg_available_extensions WHERE name = 'citext'}) eq '0';
		ask($other, 'GRANT CREATE ON DATABASE other TO mallory');
		my $creator = session($node, user => 'mallory', db => 'other');
		ask($creator, 'CREATE EXTENSION citext SCHEMA le');
		is($creator->{code}, '', 'another role creates a trusted extension in the schema') or diag($creator->{messages});
		end_session($creator);
		($status, $stderr) = run_script($node, 'other');
		is($status, 0, 'which keeps nobody from an upgrade') or diag($stderr);
	}
	ask($other, 'DROP SCHEMA le CASCADE');
	is(ask($other, q{SELECT count(*) FROM pg_proc WHERE proname ~ '^_?le_'}), '0', 'one statement removes all');
	# an upgrade from a version whose internal functions were others
	ask($other, 'CREATE SCHEMA le AUTHORIZATION le_own');
	run_script($node, 'other');
	ask($other, 'SET ROLE le_own', 'DROP FUNCTION le._le_us()', 'CREATE FUNCTION le._le_us() RETURNS text RETURN NULL',
		'CREATE FUNCTION le._le_obsolete() RETURNS text RETURN NULL', 'RESET ROLE');
	($status, $stderr) = run_script($node, 'other');
	is($status, 0, 'an upgrade in place, where the result of an internal function changes') or diag($stderr);
	is(ask($other, q{SELECT count(*) FROM pg_proc WHERE proname = '_le_obsolete'}), '0', 'which removes others');
	# beside objects of other roles that use internal functions, and are in use
	ask($other, 'GRANT USAGE ON SCHEMA le TO mallory');
	my $viewer = session($node, user => 'mallory', db => 'other');
	ask($viewer, 'CREATE TEMP VIEW v AS SELECT * FROM le._le_terms(NULL)', 'BEGIN', 'TABLE v');
	# which 19 no longer has, nor its release candidates
	my $strings = ask($viewer, 'SHOW server_version_num') < 190000 ? '; SET standard_conforming_strings = off' : '';
	foreach my $upgrade (1 .. 3)
	{
		($status, $stderr) = run_script($node, 'other', options => ['-c', "SET lock_timeout = '1 s'$strings"]);
		is($status, 0, "upgrade $upgrade beside a view on an internal function") or diag($stderr);
	}
	end_session($viewer);
	ask($other, 'DROP SCHEMA le CASCADE');
	# where the owner's default privileges give all to others
	my $defaults = 'ALTER DEFAULT PRIVILEGES FOR ROLE le_own';
	ask($other, 'CREATE SCHEMA le AUTHORIZATION le_own', map { ("$defaults GRANT ALL ON $_ TO mallory", "$defaults GRANT ALL ON $_ TO PUBLIC") } qw(TABLES SEQUENCES));
	($status, $stderr) = run_script($node, 'other');
	is($status, 0, 'beside default privileges') or diag($stderr);
	is(ask($other, q{SELECT string_agg(relname || ' ' || a.privilege_type, ', ') FROM pg_class c, aclexplode(relacl) a
		WHERE relnamespace = 'le'::regnamespace AND relkind IN ('r', 'S') AND a.grantee <> relowner}), '', 'no table or sequence is open to others');
	is(ask($other, q{SELECT string_agg(DISTINCT a.privilege_type, ', ') FROM pg_class c, aclexplode(relacl) a
		WHERE relnamespace = 'le'::regnamespace AND relkind = 'v' AND a.grantee <> relowner}), 'SELECT', 'and others may only read views');
	ask($other, 'GRANT UPDATE ON le.le_settings TO mallory', 'GRANT EXECUTE ON ALL ROUTINES IN SCHEMA le TO app');
	run_script($node, 'other');
	is(ask($other, q{SELECT count(*) > 50, count(*) FILTER (WHERE prosecdef) FROM pg_proc WHERE proname LIKE '\_le\_old%'}), 't|0', 'no function of before an upgrade has the rights of the owner');
	is(ask($other, q{SELECT has_table_privilege('mallory', 'le.le_settings', 'UPDATE')}), 't', 'what the owner grants later stays after an upgrade');
	ask($other, 'DROP SCHEMA le CASCADE', map { ("$defaults REVOKE ALL ON $_ FROM mallory", "$defaults REVOKE ALL ON $_ FROM PUBLIC") } qw(TABLES SEQUENCES));
	# another schema
	my $elsewhere = $node->basedir . '/elsewhere.sql';
	ask($other, 'CREATE SCHEMA election AUTHORIZATION le_own');
	append_to_file($elsewhere, slurp_file($SqlEdition::script) =~ s/\ble\b/election/gr);
	($status, $stderr) = run_script($node, 'other', script => $elsewhere);
	is($status, 0, 'another schema') or diag($stderr);
	is(ask($other, q{SELECT count(*) FROM pg_namespace WHERE nspname = 'le'}), '0', 'only that one');
	is(ask($other, 'SET search_path = election', q{SELECT le_try_become_leader('job'), le_am_leader('job'), le_resign('job')}), 't|t|t', 'with elections');
	end_session($other);
	ask($admin, 'DROP DATABASE other');
};

subtest 'what needs the C extension' => sub {
	my $client = session($node, %as_app);
	foreach my $sql (q{le_declare('job', 'app')}, q{le_undeclare('job')})
	{
		fails($client, "SELECT $sql", '0A000', $sql);
		like($client->{messages}, qr/HINT:  This needs the C extension leader_election/, 'with a hint');
	}
	end_session($client);
};

subtest 'elections' => sub {
	my ($one, $two) = map { session($node, %as_app, app => $_) } qw(one two);
	is(ask($one, q{SELECT le_try_become_leader('job', identity => 'me')}), 't', 'elected');
	my $token = ask($one, q{SELECT le_token('job')});
	is(ask($two, q{SELECT scope, identity, pid, usename, application_name, candidates FROM le_leaders}), "session|me|$one->{pid}|app|one|0", 'le_leaders');
	is(ask($one, q{SELECT bool_and(le_am_leader('job')) FROM generate_series(1, 1000)}), 't', 'a thousand looks do not lose it');
	is(backend_holds($admin, $one->{pid}), '2|0', 'by two locks');
	post($two, q{CALL le_campaign('job', '1 min', identity => 'you')});
	ok(ask_until($admin, q{SELECT identity, position, waits_for FROM le_candidates}, 'two|1|leader'), 'a candidate in line');
	# an upgrade waits for no transaction, and no call waits for it
	ask($one, 'BEGIN', q{SELECT le_assert_leader('job')}, 'TABLE le_leaders', 'TABLE le_candidates', 'TABLE le_once_done');
	my ($status, $stderr) = run_script($node, 'postgres', options => ['-c', q{SET lock_timeout = '1 s'}]);
	is($status, 0, 'an upgrade meanwhile') or diag($stderr);
	ask($one, 'COMMIT');
	is(ask($one, q{SELECT le_am_leader('job')}), 't', 'the leader leads on');
	ok(ask_until($admin, q{SELECT identity FROM le_candidates}, 'two'), 'the candidate waits on');
	is(ask($one, q{SELECT le_resign('job'), le_am_leader('job')}), 't|f', 'resigned');
	cmp_ok(collect($two), '>', $token, 'the candidate is elected, with a greater token');
	is(ask($two, q{SELECT le_resign_all()}), '1', 'and resigns');
	is(backend_holds($admin, $_->{pid}), '0|0', 'no lock is left') foreach $one, $two;
	end_session($one, $two);
};

# Send a statement by the extended protocol, and do not wait for the answer
sub send_call
{
	my ($client, $sql, @values) = @_;
	my $message = sub { $_[0] . pack('N', 4 + length $_[1]) . $_[1] };

	Client::send_to_server($client, 1, $message->('P', "\0$sql\0" . pack('n', 0))
	  . $message->('B', "\0\0" . pack('nn', 0, scalar @values) . join('', map { pack('N/a*', $_) } @values) . pack('n', 0))
	  . $message->('E', "\0" . pack('N', 0)) . $message->('S', ''));
	return;
}

subtest 'leases' => sub {
	my ($one, $two) = map { session($node, %as_app) } 1 .. 2;
	fails($two, q{SELECT le_lease('mailer', '2 min')}, '22023', 'not beyond max_ttl');
	# in the extended protocol, where a transaction begins before the statement does
	ok(ask_with($one, q{SELECT le_lease($1, '1 min', identity => 'me')}, 'extended'), 'taken by the extended protocol');
	is($one->{messages}, '', 'without a warning');
	ask_with($two, q{CALL le_campaign($1, '300 ms')}, 'extended');
	is($two->{code}, '', 'a candidate waits there');
	send_call($two, q{CALL le_campaign($1, '1 min', ttl => '1 s')}, 'extended');
	ok(ask_until($admin, "SELECT xact_start > query_start FROM pg_stat_activity WHERE pid = $two->{pid}"), 'and commits meanwhile');
	ask($one, q{SELECT le_resign('extended', token) FROM le_leader('extended')});
	cmp_ok(collect($two), '>', 0, 'until it is elected');
	send_call($one, q{CALL le_campaign('extended', '1 min', ttl => '1 s')});
	ok(ask_until($admin, "SELECT xact_start > query_start FROM pg_stat_activity WHERE pid = $one->{pid}"), 'so does one without parameters');
	cmp_ok(collect($one), '>', 0, 'which is elected, too');
	# in a transaction block
	ask($one, 'BEGIN', q{SELECT le_lease('mailer', '1 min')});
	like($one->{messages}, qr/25001: the lease of election "mailer" begins when this transaction commits/, 'a warning in a transaction block');
	my $from = monotonic();
	is(ask($two, q{SELECT le_lease('mailer', '1 min')}), '', 'until the commit, the election is locked');
	cmp_ok(monotonic() - $from, '<', 1, 'which no bid waits for');
	ask($one, 'ROLLBACK');
	end_session($one, $two);
};

subtest 'both scopes' => sub {
	my $one = session($node, %as_app);
	is(ask($one, q{SELECT le_try_become_leader('nightly')}), 't', 'a session leads');
	ask($one, 'BEGIN');
	fails($one, q{SELECT le_try_become_leader_xact('nightly')}, '55000', 'not in both scopes');
	ask($one, 'ROLLBACK');
	is(ask($one, q{SELECT le_am_leader('nightly'), le_resign('nightly')}), 't|t', 'the session leads on');
	is(ask($one, 'BEGIN', q{SELECT le_try_become_leader_xact('nightly')}), 't', 'in the transaction');
	fails($one, q{SELECT le_try_become_leader('nightly')}, '55000', 'nor the other way round');
	is(ask($one, 'ROLLBACK', q{SELECT le_am_leader('nightly')}), 'f', 'which leads no more');
	is(backend_holds($admin, $one->{pid}), '0|0', 'no lock is left');
	end_session($one);
};

subtest 'heartbeat' => sub {
	my ($one, $two) = map { session($node, %as_app) } 1 .. 2;
	is(ask($one, q{SELECT le_try_become_leader('indexer', heartbeat => '500 ms'), le_heartbeat('indexer')}), 't|t', 'elected');
	my $token = ask($one, q{SELECT le_token('indexer')});
	my $from = monotonic();
	cmp_ok(ask($two, q{CALL le_campaign('indexer', '1 min', identity => 'two')}), '>', $token, 'a candidate takes over when none comes');
	my $waited = monotonic() - $from;
	cmp_ok($waited, '>', 0.3, 'not before');
	cmp_ok($waited, '<', 2, 'in time');
	is(ask($one, q{SELECT le_heartbeat('indexer'), le_am_leader('indexer')}), 'f|f', 'too late');
	foreach my $bid ([ '10 s', '10 s' ], [ '1 h', '10 s' ], [ '5 s', '5 s' ], [ '1 h', '5 s' ])
	{
		is(ask($one, "SELECT le_try_become_leader('other', heartbeat => '$bid->[0]')"), 't', "a bid with $bid->[0]");
		is(ask($one, "SELECT heartbeat = '$bid->[0]', expires_in <= '$bid->[1]' FROM le_leader('other')"), 't|t', 'does not extend the term');
	}
	is(ask($one, q{SELECT le_heartbeat('other')}), 't', 'a heartbeat');
	is(ask($two, q{SELECT le_proclaim('other', 'by token', token) FROM le_leader('other')}, q{SELECT value FROM le_leader('other')}), "t\nby token", 'another connection publishes by the token');
	is(ask($two, q{SELECT le_proclaim('other', 'by another token', token + 1) FROM le_leader('other')}, q{SELECT value FROM le_leader('other')}), "f\nby token", 'and not by another one');
	is(ask($one, q{SELECT expires_in > '59 min', le_resign('other') FROM le_leader('other')}), 't|t', 'does');
	fails($one, "SELECT le_assert_leader('indexer', $token)", 'LE001', 'its token');
	is(ask($two, q{SELECT le_am_leader('indexer'), le_resign('indexer')}), 't|t', 'the next leads');
	end_session($one, $two);
};

subtest 'queries for psql' => sub {
	my ($one, $two) = map { session($node, %as_app, app => $_) } qw(one two);
	my ($output, $errors);
	is(ask($one, q{SELECT le_try_become_leader('job', heartbeat => '1 h')}), 't', 'a leader') or diag($one->{messages});
	is(ask($one, q{SELECT le_once('report', now(), le_lease('report', '1 min'))}), 't', 'a lease, and a job') or diag($one->{messages});
	post($two, q{CALL le_campaign('job', '1 min')});
	ok(ask_until($admin, q{SELECT identity FROM le_candidates}, 'two'), 'a candidate in line');
	$node->psql('postgres', slurp_file('monitoring/queries.sql'), extra_params => [ '-U', 'app', '-v', 'schema=le' ], stdout => \$output, stderr => \$errors);
	is($errors, '', 'they run without an error');
	like($output, qr/^1\. .*^job\|one\|\d+\|.*^2\. .*^job\|1\|two\|\S+\|leader\|$one->{pid} idle\n3\. .*^report\|.*^7\. .*^job\|.*^8\. .*^report\|.*^9\. .*^10\. .*^report\|/ms,
		'and show what this edition has') or diag($output);
	unlike($output, qr/^[456]\. /m, 'which is no statistics');
	ask($one, q{SELECT le_resign_all()});
	collect($two);
	end_session($one, $two);
	ask($admin, q{SELECT le_depose('report')});
};

subtest 'a trigger in a guarded transaction' => sub {
	my ($one, $two, $stranger) = map { session($node, user => $_) } qw(app app mallory);
	my $write = 'INSERT INTO audit DEFAULT VALUES';
	my $forged = sub { "SET LOCAL leader_election_sql.guards = ' $_[0] '" };
	# in transactions of its own, which the error ends
	my $refused = sub {
		my ($client, $code, $test, @before) = @_;
		ask($client, 'BEGIN', @before);
		fails($client, $write, $code, $test);
		ask($client, 'ROLLBACK');
	};
	ask($admin, 'CREATE TABLE audit (at timestamptz DEFAULT now()); GRANT INSERT ON audit TO app, mallory',
		q{CREATE TRIGGER only_the_leader BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION le_guard('audit')});
	my $token = ask($one, q{SELECT le_lease('audit', '1 min')});
	my $other = ask($one, q{SELECT le_lease('other', '1 min')});
	my $guard = "SELECT le_assert_leader('audit', $token)";
	foreach my $level ('READ COMMITTED', 'SERIALIZABLE')
	{
		ask($two, "BEGIN ISOLATION LEVEL $level", "SELECT le_assert_leader('other', $other)", $guard, $guard, $write, $write, 'COMMIT');
		is($two->{code}, '', "$level: le_assert_leader");
	}
	is(ask($two, 'BEGIN', "SELECT le_once('audit', now(), $token)"), 't', 'a job');
	ask($two, $write, 'COMMIT');
	is($two->{code}, '', 'le_once');
	is(ask($admin, 'SELECT count(*) FROM audit'), '5', 'all is written');
	fails($two, $write, 'LE001', 'not in the next transaction');
	$refused->($two, 'LE001', 'nor by the guard of another election', "SELECT le_assert_leader('other', $other)");
	$refused->($two, 'LE001', 'nor by one that was rolled back', 'SAVEPOINT s', $guard, 'ROLLBACK TO s');
	$refused->($stranger, '42501', 'a forged setting of another role', $forged->($token));

	ask($two, 'BEGIN', $guard);
	is(ask($one, "SELECT le_resign('audit', $token)"), 't', 'the leader resigns');
	fails($two, $write, 'LE001', 'a writer whose term has ended since');
	ask($two, 'ROLLBACK', 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT 1');
	my $next = ask($one, q{SELECT le_lease('audit', '1 min')});
	cmp_ok($next, '>', $token, 'a successor');
	ask($two, $forged->($token));
	fails($two, $write, 'LE001', 'a stale writer with an old snapshot and a forged setting');
	ask($two, 'ROLLBACK');
	$refused->($two, 'LE001', 'a stale writer with a forged setting', $forged->($token));
	$refused->($two, 'LE001', "a forged setting: $_", $forged->($_)) foreach 'x', '1 2 3', '';
	ask($two, 'BEGIN', $forged->($next), $write, 'COMMIT');
	is($two->{code}, '', 'of its own term, it does what leader_election.token does');
	is(ask($admin, 'SELECT count(*) FROM audit'), '6', 'nothing else is written');
	ask($one, "SELECT le_resign('audit', $next), le_resign('other', $other)");
	end_session($one, $two, $stranger);
};

subtest 'notifications' => sub {
	my ($listener, $one) = map { session($node, %as_app) } 1 .. 2;
	ask($_, 'SET leader_election.notify = on') foreach $listener, $one, $admin;
	ask($listener, 'LISTEN leader_election');
	my $next = sub { (next_notification($listener, 10, sub { 1 }) // { payload => 'none' })->{payload} =~ s/"token": \d+/"token": N/r };
	my $name = q{U&'n\00fc\005c"\000a'};
	ask($one, "SELECT le_try_become_leader($name, identity => U&'\\+01F600')");
	is($next->(), q[{"election": "n\u00fc\\\\\"\n", "event": "elected", "token": N, "identity": "\ud83d\ude00"}], 'elected');
	ask($one, "SELECT le_proclaim($name, 'v'), le_resign($name)");
	is($next->(), q[{"election": "n\u00fc\\\\\"\n", "event": "proclaimed", "token": N, "identity": "\ud83d\ude00"}], 'proclaimed');
	is($next->(), q[{"election": "n\u00fc\\\\\"\n", "event": "ended", "token": N, "identity": "\ud83d\ude00", "reason": "resigned"}], 'resigned');
	ask($one, q{SET application_name = ''}, q{SELECT le_lease('short', '100 ms')});
	is($next->(), '{"election": "short", "event": "elected", "token": N, "identity": "app"}', 'a default identity, without the client');
	ok(ask_until($one, q{SELECT le_lease('short', '1 min', identity => 'i') > 0}), 'the next');
	is($next->(), '{"election": "short", "event": "ended", "token": N, "identity": "app", "reason": "expired"}', 'expired');
	is($next->(), '{"election": "short", "event": "elected", "token": N, "identity": "i"}', 'elected');
	is(ask($admin, q{SELECT le_depose('short', 'for a reason')}), 't', 'deposed');
	ask($admin, 'RESET leader_election.notify');
	my $user = ask($admin, 'SELECT current_user');
	is($next->(), qq[{"election": "short", "event": "ended", "token": N, "identity": "i", "reason": "deposed", "by": "$user", "why": "for a reason"}], 'deposed');
	ask($one, q{SELECT le_try_become_leader('gone', identity => 'i')});
	$next->();
	end_session($one);
	ask($listener, q{SELECT le_try_become_leader('gone', identity => 'j')});
	like($next->(), qr/"event": "ended".*"reason": "session ended"/, 'the end of a session, announced by the next');
	$next->();
	ask($listener, 'SET leader_election.notify = off', q{SELECT le_resign('gone')}, 'SET leader_election.notify = on', q{SELECT le_try_become_leader('told')});
	like($next->(), qr/"election": "told"/, 'not where it is off');
	end_session($listener);
};

subtest 'deposing' => sub {
	my ($leader, $other, $mallory) = map { session($node, user => $_) } qw(app app mallory);
	# as the page says for default privileges that revoke EXECUTE
	ask($admin, 'GRANT EXECUTE ON ALL ROUTINES IN SCHEMA le TO app');
	is(ask($leader, q{SELECT le_try_become_leader('throne')}), 't', 'a leader');
	fails($leader, q{SELECT le_depose('throne')}, '55000', 'not by itself');
	fails($mallory, q{SELECT le_depose('throne')}, '42501', 'nor by another role');
	is(ask($other, q{SELECT le_depose('throne')}), 't', 'deposed by its role');
	ok(wait_for_end($leader, 5), 'its session ends');
	is(ask($mallory, q{SELECT le_try_become_leader('throne')}), 't', 'another is elected');
	ask($admin, 'GRANT pg_signal_backend TO app');
	is(ask($other, q{SELECT le_depose('throne')}), 't', 'deposed by a role with pg_signal_backend');
	ask($admin, 'REVOKE pg_signal_backend FROM app');
	is(ask($other, q{SELECT le_depose('throne')}), 'f', 'vacant');
	ok(wait_for_end($mallory, 5), 'its session ends');

	# leaders with open transactions
	ask($other, q{SET statement_timeout = '20 s'});
	$mallory = session($node, user => 'mallory');
	foreach my $open ([ q{SELECT le_try_become_leader('throne', heartbeat => '1 h')}, 'BEGIN', q{SELECT le_heartbeat('throne')} ],
		[ 'BEGIN', q{SELECT le_try_become_leader_xact('throne')} ])
	{
		$leader = session($node, %as_app);
		ask($leader, @$open);
		fails($mallory, q{SELECT le_depose('throne')}, '42501', "not by another role: $open->[-1]");
		is(ask($other, q{SELECT le_depose('throne')}), 't', 'deposed');
		ok(wait_for_end($leader, 5), 'its session ends');
	}
	$leader = session($node, %as_app);
	my $token = ask($leader, q{SELECT le_lease('throne', '1 min')});
	ask($leader, 'BEGIN', "SELECT le_renew('throne', $token)");
	fails($other, q{SELECT le_depose('throne')}, '55P03', 'not a lease with a renewal in an open transaction');
	like($other->{messages}, qr/DETAIL:  It may be locked by open transactions, of processes with these IDs: $leader->{pid}\./, 'the error says of which process');
	my $short = ask($leader, 'ROLLBACK', q{SELECT le_lease('short', '200 ms')});
	ask($leader, 'BEGIN', "SELECT le_renew('short', $short)");
	ok(ask_until($other, q{SELECT count(*) FROM le_leader('short')}, '0'), 'nor one that has expired meanwhile');
	is(ask($other, q{SELECT le_depose('short')}), 'f', 'has no leader');
	like($other->{messages}, qr/DETAIL:  The election is vacant\. It may be locked by open transactions, of processes with these IDs: $leader->{pid}\./, 'a warning says why it remains vacant');
	ask($leader, 'COMMIT', 'BEGIN', "SELECT le_assert_leader('throne', $token)");
	is(ask($other, q{SELECT le_depose('throne')}), 't', 'after the commit, it is');
	post($mallory, q{SELECT le_become_leader('throne', '1 min')});
	ok(ask_until($admin, q{SELECT waits_for FROM le_candidates}, 'guard'), 'a candidate');
	is(ask($other, q{SELECT le_depose('throne')}), 'f', 'is not deposed');
	ask($leader, 'COMMIT');
	is(collect($mallory), 't', 'and elected after the guard');
	end_session($leader, $other, $mallory);
};

done_testing();
