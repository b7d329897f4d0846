# Moves between the editions that must not harm: beside transactions that stay open, and of a schema
# whose owner is hostile.
#
# Wrong outcomes: the elections stand still because a move waits for a transaction that has read a
# view, has bid, or does something else; a move that has failed leaves them closed; code of the
# schema's owner runs with the rights of the superuser that moves them.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use SqlEdition;

my $folder = "$FindBin::RealBin/../plpgsql";
my $node = sql_edition_server('sql_edition_move_refused');
my ($admin, $owner, $app, $mallory) = map { session($node, $_ ? (user => $_) : ()) } '', 'le_own', 'app', 'mallory';

sub move
{
	my ($script, %params) = @_;
	return run_script($node, 'postgres', script => "$folder/$script", user => scalar getpwuid($>), options => [ '-v', 'wait=1 s' ], %params);
}

sub moves
{
	my ($script, $test) = @_;
	my ($status, $stderr) = move($script);
	is($status, 0, "$script $test") or diag($stderr);
	is(ask($admin, q{SELECT le.le_version()}), 'leader_election 1.0.0, ' . ($script eq 'to-c.sql' ? 'C edition' : 'SQL edition'), 'moved');
	return;
}

sub elections_go_on
{
	my ($test) = @_;
	cmp_ok(ask($app, q{SET statement_timeout = '5 s'}, q{SELECT le_lease('goes on', '100 ms')}) || 0, '>', 0, $test);
	ask_until($app, q{SELECT count(*) FROM le_leaders WHERE name = 'goes on'}, '0') or die;
	return;
}

sub refused
{
	my ($script, $blocker) = @_;
	my ($status, $stderr) = move($script);
	isnt($status, 0, "$script gives up");
	like($stderr, qr/open transactions of these processes: .*\b$blocker->{pid}\b.*could not move the elections/s, 'names the process');
	elections_go_on('and the elections go on');
	return;
}

subtest 'open transactions' => sub {
	ask($mallory, 'BEGIN', 'TABLE le_leaders', 'TABLE le_candidates', 'TABLE le_once_done');
	moves('to-c.sql', 'beside a transaction that has read the views');
	ask($mallory, 'COMMIT', 'BEGIN', 'TABLE le_leaders');
	refused('from-c.sql', $mallory);
	is(ask($admin, q{SELECT le.le_version()}), 'leader_election 1.0.0, C edition', 'not moved');
	ask($mallory, 'COMMIT', 'BEGIN', q{SELECT le_lease('mine', '1 min')});
	refused('from-c.sql', $mallory);
	ask($mallory, 'ROLLBACK');
	post($mallory, q{SELECT pg_sleep(60)});
	ask_until($admin, "SELECT wait_event FROM pg_stat_activity WHERE pid = $mallory->{pid}", 'PgSleep') or die;
	refused('from-c.sql', $mallory);
	ask($admin, "SELECT pg_cancel_backend($mallory->{pid})");
	collect($mallory);
	ask($admin, q{CREATE TABLE work (n integer)}, q{CREATE TRIGGER work BEFORE INSERT ON work EXECUTE FUNCTION leader_election.le_guard('mine')});
	my ($status, $stderr) = move('from-c.sql');
	isnt($status, 0, 'from-c.sql does not drop a trigger by which a program calls the extension');
	like($stderr, qr/used by .*trigger work on table public.work/, 'names it');
	elections_go_on('and the elections go on');
	ask($admin, 'DROP TABLE work');
	moves('from-c.sql', 'after them');
	foreach my $bid (q{SELECT le_lease('mine', '1 min')}, q{SELECT le_try_become_leader_xact('mine')})
	{
		ask($mallory, 'BEGIN', $bid);
		refused('to-c.sql', $mallory);
		ask($mallory, 'ROLLBACK');
	}
	moves('to-c.sql', 'after that');
	moves('from-c.sql', 'again');
};

subtest 'a hostile owner' => sub {
	my $trap = q{ALTER ROLE le_own SUPERUSER};
	ask($admin, 'GRANT CREATE ON DATABASE postgres TO le_own');
	ask($owner, 'CREATE SCHEMA evil', 'GRANT USAGE ON SCHEMA evil TO PUBLIC',
		"CREATE FUNCTION evil.trap() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RESET ROLE; EXECUTE ''$trap''; RETURN true; EXCEPTION WHEN OTHERS THEN RETURN true; END'",
		"CREATE FUNCTION evil.trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM evil.trap(); RETURN NEW; END'",
		"CREATE FUNCTION evil.fold(integer) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN evil.trap(); END'",
		q{INSERT INTO le.le_once_done VALUES ('job', now(), 1, 10)},
		'CREATE DOMAIN evil.domain AS interval CHECK (evil.trap())');
	my $tries = sub {
		my ($script, $test, %params) = @_;
		my ($status, $stderr) = move($script, %params);
		is(ask($admin, q{SELECT rolsuper FROM pg_roles WHERE rolname = 'le_own'}), 'f', "$test: the owner does not become a superuser");
		ask($admin, 'ALTER ROLE le_own NOSUPERUSER');
		return ($status, $stderr);
	};
	my $there = sub { return ask($admin, q{SELECT count(*) FROM pg_extension WHERE extname = 'leader_election'}) eq '1' };
	foreach my $script ('to-c.sql', 'from-c.sql')
	{
		foreach my $object (
			(map { [ "CREATE TRIGGER evil BEFORE UPDATE OR INSERT ON le.$_ FOR EACH ROW EXECUTE FUNCTION evil.trigger()", "DROP TRIGGER evil ON le.$_" ],
				[ "CREATE TRIGGER evil AFTER UPDATE OR INSERT ON le.$_ FOR EACH STATEMENT EXECUTE FUNCTION evil.trigger()", "DROP TRIGGER evil ON le.$_" ],
				[ "CREATE CONSTRAINT TRIGGER evil AFTER UPDATE OR INSERT ON le.$_ DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION evil.trigger()", "DROP TRIGGER evil ON le.$_" ],
				[ "CREATE RULE evil AS ON UPDATE TO le.$_ DO ALSO SELECT evil.trap()", "DROP RULE evil ON le.$_" ],
				[ "ALTER TABLE le.$_ ADD CONSTRAINT evil CHECK (evil.trap()) NOT VALID", "ALTER TABLE le.$_ DROP CONSTRAINT evil" ],
				[ "ALTER TABLE le.$_ RENAME TO other; CREATE VIEW le.$_ AS SELECT * FROM le.other WHERE evil.trap()", "DROP VIEW le.$_; ALTER TABLE le.other RENAME TO $_" ],
				[ "CREATE TABLE evil.child () INHERITS (le.$_)", 'DROP TABLE evil.child' ],
				# the planner folds the constants of their expressions
				[ "CREATE STATISTICS evil.statistics ON (evil.fold(1)) FROM le.$_", 'DROP STATISTICS evil.statistics' ] } qw(le_settings le_elections le_once_done)),
			(map { [ "CREATE TRIGGER _le_take_beacon BEFORE UPDATE OR INSERT ON le.$_ FOR EACH ROW EXECUTE FUNCTION evil.trigger()", "DROP TRIGGER _le_take_beacon ON le.$_" ] }
				qw(le_settings le_once_done)),
			# a column's name that a table lacks is looked up as a function of its row
			(map { [ "ALTER TABLE le.$_ RENAME name TO other; CREATE FUNCTION evil.text(le.$_) RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN evil.trap(); END';
					CREATE CAST (le.$_ AS text) WITH FUNCTION evil.text(le.$_) AS IMPLICIT",
				"DROP CAST (le.$_ AS text); DROP FUNCTION evil.text; ALTER TABLE le.$_ RENAME other TO name" ] } qw(le_elections le_once_done)),
			[ 'ALTER TABLE le.le_once_done DROP token; ALTER TABLE le.le_once_done RENAME role TO "token bigint, role"',
				'ALTER TABLE le.le_once_done DROP "token bigint, role", ADD token bigint, ADD role oid; UPDATE le.le_once_done SET token = 1, role = 10' ],
			[ 'ALTER TABLE le.le_settings ALTER max_ttl TYPE evil.domain', 'ALTER TABLE le.le_settings ALTER max_ttl TYPE interval' ],
			[ 'ALTER TABLE le.le_settings ALTER moved SET DEFAULT evil.trap()', 'ALTER TABLE le.le_settings ALTER moved SET DEFAULT false' ],
			[ q{ALTER TABLE le.le_settings ALTER moved SET DEFAULT query_to_xml('SELECT evil.trap()', true, true, '') IS NULL}, 'ALTER TABLE le.le_settings ALTER moved SET DEFAULT false' ],
			[ q{ALTER TABLE le.le_settings ADD CONSTRAINT evil CHECK (query_to_xml('SELECT evil.trap()', true, true, '') IS NOT NULL) NOT VALID}, 'ALTER TABLE le.le_settings DROP CONSTRAINT evil' ],
			[ 'ALTER TABLE le.le_settings ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY evil ON le.le_settings USING (evil.trap())',
				'DROP POLICY evil ON le.le_settings; ALTER TABLE le.le_settings DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY' ],
			[ 'ALTER TABLE le.le_elections ADD UNIQUE (name, token); CREATE TABLE evil.child (name text, token bigint, FOREIGN KEY (name, token) REFERENCES le.le_elections (name, token) ON UPDATE CASCADE)',
				'DROP TABLE evil.child; ALTER TABLE le.le_elections DROP CONSTRAINT le_elections_name_token_key' ])
		{
			my ($do, $undo) = @$object;
			ask($owner, $do);
			is($owner->{code}, '', $do) or diag($owner->{messages});
			my ($status, $stderr) = $tries->($script, $do);
			isnt($status, 0, 'refused');
			like($stderr, qr/tables of the SQL edition are not as its script has created them/, 'by this rule');
			ask($owner, $undo);
			is($owner->{code}, '', $undo) or diag($owner->{messages});
		}
		ask($owner, q{SELECT le.le_lease('long', '50 s')}, q{UPDATE le.le_elections SET lasts = '24:00:50 -1 day' WHERE name = 'long'}) if $script eq 'to-c.sql';
		# functions, operators and the trigger that the owner has replaced
		my $functions = ask($admin, q{SELECT string_agg(pg_get_functiondef(oid), ';') FROM pg_proc WHERE pronamespace = 'le'::regnamespace AND prokind = 'f'});
		ask($owner, q{DO $do$ DECLARE f record; BEGIN
				FOR f IN SELECT p.oid, p.proname, pg_get_function_arguments(p.oid) AS a, pg_get_function_result(p.oid) AS r FROM pg_proc p
					WHERE p.pronamespace = 'le'::regnamespace AND p.prokind = 'f' LOOP
					EXECUTE format('CREATE OR REPLACE FUNCTION le.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', f.proname, f.a, f.r,
						CASE f.r WHEN 'trigger' THEN 'BEGIN PERFORM evil.trap(); RETURN NULL; END' ELSE 'BEGIN PERFORM evil.trap(); RAISE EXCEPTION $x$trap$x$; END' END);
				END LOOP;
			END $do$});
		is($owner->{code}, '', 'functions replaced') or diag($owner->{messages});
		ask($owner, q{CREATE FUNCTION evil.eq(text, name) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN evil.trap(); END'},
			'CREATE OPERATOR evil.= (FUNCTION = evil.eq, LEFTARG = text, RIGHTARG = name)') if $script eq 'to-c.sql';
		ask($admin, 'ALTER DATABASE postgres SET search_path = evil, pg_catalog');
		# the literal of a default calls the type's input function, and so the domain's check
		ask($owner, 'CREATE OR REPLACE FUNCTION le.le_own(a evil.domain[] DEFAULT $${1 s}$$) RETURNS text LANGUAGE sql RETURN 1');
		is($owner->{code}, '', 'function with a default') or diag($owner->{messages});
		my ($status, $stderr) = $tries->($script, 'functions, defaults and operators');
		is($status, 0, "$script, with functions replaced") or diag($stderr);
		is(ask($admin, q{SELECT ttl FROM leader_election.le_leaders WHERE name = 'long'}), '00:00:50', 'a ttl that only looks short is short') if $script eq 'to-c.sql';
		ask($admin, 'ALTER DATABASE postgres SET search_path = "$user", public, le');
	}
	is(ask($admin, q{SELECT count(*) FROM pg_namespace WHERE nspname = 'leader_election'}), '0', 'moved there and back');
	elections_go_on('with the functions of the script');

	# what the owner commits while a move waits for its lock
	my $when_awaited = q{DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM pg_locks WHERE NOT granted) LOOP PERFORM pg_sleep(0.01); END LOOP; END $$; COMMIT};
	ask($admin, q{ALTER DATABASE postgres SET default_transaction_isolation = 'repeatable read'});
	foreach my $options ([], ['-1'], [ '-v', 'AUTOCOMMIT=off' ])
	{
		ask($owner, 'BEGIN', 'CREATE TRIGGER evil BEFORE UPDATE ON le.le_settings FOR EACH ROW EXECUTE FUNCTION evil.trigger()');
		post($owner, $when_awaited);
		ask_until($admin, "SELECT wait_event FROM pg_stat_activity WHERE pid = $owner->{pid}", 'PgSleep') or die;
		my (undef, $late) = $tries->('to-c.sql', "a trigger beside a move with options '@$options'", options => [ '-v', 'wait=30 s', @$options ]);
		like($late, @$options ? qr/ISOLATION LEVEL must be called before any query/ : qr/tables of the SQL edition are not as its script has created them/, 'refused');
		ask($admin, "SELECT pg_cancel_backend($owner->{pid})") if @$options;
		collect($owner);
		ask($owner, 'ROLLBACK', 'DROP TRIGGER IF EXISTS evil ON le.le_settings');
	}
	ask($admin, 'ALTER DATABASE postgres RESET default_transaction_isolation');
	my $locks = PostgreSQL::Test::Utils::tempdir() . '/locks.sql';
	append_to_file($locks, qq{\\i $folder/move.sql\nBEGIN;\nSELECT pg_temp.lock_elections('30 s');
		DO \$\$ BEGIN IF (SELECT n.xmax = '0' FROM pg_namespace n WHERE n.nspname = 'le') THEN RAISE EXCEPTION 'not locked'; END IF; END \$\$;\n});
	ask($owner, 'BEGIN', 'ALTER SCHEMA le RENAME TO other', 'CREATE SCHEMA le',
		map { "CREATE TABLE le.$_ (LIKE other.$_)" } qw(le_settings le_elections le_once_done));
	post($owner, $when_awaited);
	my ($status, $unlocked) = run_script($node, 'postgres', script => $locks, user => scalar getpwuid($>));
	is($status, 0, 'a schema that takes the name of another is locked as well') or diag($unlocked);
	collect($owner);
	ask($owner, 'DROP SCHEMA le CASCADE', 'ALTER SCHEMA other RENAME TO le');

	# the lock that the moves take
	ask($admin, 'BEGIN', q{SELECT FROM pg_namespace WHERE nspname = 'le' FOR UPDATE});
	fails($owner, q{SET lock_timeout = '200 ms'; ALTER SCHEMA le RENAME TO other}, '55P03', 'the owner cannot rename the schema meanwhile');
	ask($admin, 'ROLLBACK');

	# the owner replaces a function in a transaction that stays open
	ask($owner, 'BEGIN', q{CREATE OR REPLACE FUNCTION le.le_version() RETURNS text LANGUAGE sql IMMUTABLE RETURN 'x'});
	my (undef, $why) = move('to-c.sql');
	like($why, qr/lock timeout/, 'a move does not wait for it for ever');
	elections_go_on('and the elections go on');
	ask($owner, 'ROLLBACK');

	ask($owner, 'CREATE SCHEMA leader_election');
	($status, my $stderr) = $tries->('to-c.sql', 'a schema of the owner');
	like($stderr, qr/schema "leader_election" exists already/, 'not into a schema of the owner');
	ask($owner, 'CREATE VIEW leader_election.le_candidates AS SELECT 1 AS pid WHERE evil.trap()', 'UPDATE le.le_settings SET moved = true');
	($status, $stderr) = $tries->('from-c.sql', 'a move that never was');
	like($stderr, qr/C extension is not in a schema "leader_election" of a superuser/, 'nor from one');
};

end_session($admin, $owner, $app, $mallory);
done_testing();
