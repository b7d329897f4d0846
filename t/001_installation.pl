# CREATE EXTENSION is the whole installation; preloading changes nothing; a dump
# carries the tokens on.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('install', extension => 0, conf => "log_statement = none\n");

sub cycle
{
	my ($how) = @_;
	my $one = session($node);
	my $two = session($node);
	my $pid = $two->{pid};
	is(ask($one, q{SELECT le_try_become_leader('job', identity => 'one')}), 't', "$how: elected");
	is(ask($two, q{SELECT le_try_become_leader('job', identity => 'two')}), 'f', 'denied');
	post($two, q{SELECT le_become_leader('job', identity => 'two')});
	wait_until_waiting($node, $pid);
	is(leads_in_view($node, 'job'), 'one/session', 'shown');
	is(ask($one, q{SELECT le_resign('job')}), 't', 'resigned');
	is(collect($two), 't', 'the next one');
	end_session($one, $two);
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM le_leaders');
}

subtest 'nothing preloaded, no restart' => sub {
	is($node->safe_psql('postgres', 'SHOW shared_preload_libraries'), '', 'nothing is preloaded');
	my $early = session($node);
	ask($early, 'SELECT 1');
	create_extension($node);
	cycle('at once');
	is(ask($early, q{SELECT le_try_become_leader('early')}), 't', 'in a session that was there before');
	end_session($early);

	# the library tells which it is, from 18 on
	is($node->safe_psql('postgres', q{LOAD 'leader_election'; SELECT version = (SELECT default_version FROM pg_available_extensions WHERE name = 'leader_election')
FROM pg_get_loaded_modules() WHERE module_name = 'leader_election'}), 't', 'a library of that version')
	  if $node->safe_psql('postgres', 'SHOW server_version_num') >= 180000;
};

foreach my $setting ('shared_preload_libraries', 'session_preload_libraries')
{
	subtest $setting => sub {
		$node->append_conf('postgresql.conf', "$setting = 'leader_election'\nleader_election.max_terms_per_session = 7\n");
		$node->restart;
		is($node->safe_psql('postgres', 'SHOW leader_election.max_terms_per_session'), '7', 'the settings are there');
		cycle($setting);
		$node->adjust_conf('postgresql.conf', $setting, "''");
		$node->restart;
		is($node->safe_psql('postgres', q{SELECT le_am_leader('x'); SHOW leader_election.max_terms_per_session}), "f\n7", 'the settings take when loaded later');
	};
}

# A warning about a setting is where the server looks for cancels; the trigger loads the library
# after the cancel of its own statement
subtest 'a cancel while the library is loaded' => sub {
	my $client = session($node);
	ask($client, 'CREATE TABLE guarded (canceled boolean)',
		q{CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION le_guard('job')},
		'SET leader_election.no_such_setting = 1');
	ask($client, 'INSERT INTO guarded SELECT pg_cancel_backend(pg_backend_pid())');
	like($client->{messages}, qr/^WARNING: .*no_such_setting.*^ERROR: /ms, 'the library is loaded, and the statement fails');
	is(ask($client, q{SELECT le_try_become_leader('job')}), 't', 'the session can lead') or diag($client->{error});
	ask($client, 'DROP TABLE guarded');
	end_session($client);
};

subtest 'a dump restores, and its tokens grow on' => sub {
	my $session = session($node);
	is(ask($session, q{SELECT count(*) FROM generate_series(1, 3000) i WHERE le_try_become_leader('job') AND le_resign('job')}), '3000', 'many terms');
	ask($session, q{SELECT le_try_become_leader('job')});
	my $token = ask($session, q{SELECT le_token('job')});
	my $dump = $node->basedir . '/dump.sql';
	$node->safe_psql('postgres', 'CREATE VIEW mine AS SELECT * FROM le_leaders; CREATE FUNCTION f() RETURNS boolean LANGUAGE SQL BEGIN ATOMIC SELECT le_am_leader(\'job\'); END');
	foreach my $format ('p', 'c')
	{
		$node->command_ok([ 'pg_dump', '-F', $format, '-f', $dump, $node->connstr('postgres') ], "dumped, format $format");
		$node->safe_psql('postgres', "CREATE DATABASE restored_$format TEMPLATE template0");
		if ($format eq 'p')
		{
			my ($rc, $out, $err) = $node->psql("restored_$format", slurp_file($dump), on_error_stop => 1);
			is($err, '', 'restored without complaint');
		}
		else
		{
			$node->command_ok([ 'pg_restore', '-e', '-d', $node->connstr("restored_$format"), $dump ], 'restored');
		}
		my $there = session($node, db => "restored_$format");
		is(ask($there, 'SELECT count(*) FROM le_leaders'), '0', 'no election is led there');
		is(ask($there, q{SELECT le_try_become_leader('job')}), 't', 'a session is elected');
		cmp_ok(ask($there, q{SELECT le_token('job')}), '>', $token, 'with a greater token');
		end_session($there);
	}

	# into the same database, over the running terms
	$node->command_ok([ 'pg_dump', '-c', '-f', $dump, $node->connstr('postgres') ], 'dumped with --clean');
	my ($rc, $out, $err) = $node->psql('postgres', slurp_file($dump), on_error_stop => 1);
	is($rc, 0, 'restored over what was there');
	is(ask($session, q{SELECT le_am_leader('job'), le_resign('job')}), 't|t', 'the leader led on');
	ask($session, q{SELECT le_try_become_leader('job')});
	cmp_ok(ask($session, q{SELECT le_token('job')}), '>', $token, 'its next token is greater');
	end_session($session);
};

subtest 'a dump of a database that never elected' => sub {
	my $dump = $node->basedir . '/fresh.sql';
	$node->safe_psql('postgres', 'CREATE DATABASE fresh TEMPLATE template0');
	create_extension($node, 'fresh');
	$node->command_ok([ 'pg_dump', '-f', $dump, $node->connstr('fresh') ], 'dumped');
	$node->safe_psql('postgres', 'CREATE DATABASE fresh2 TEMPLATE template0');
	my ($rc, $out, $err) = $node->psql('fresh2', slurp_file($dump), on_error_stop => 1);
	is($err, '', 'restored');
	is($node->safe_psql('fresh2', q{SELECT le_try_become_leader('job'); SELECT now() - to_timestamp(le_token('job') / (1 << 22) + 1735689600) BETWEEN '0' AND '10 min'}), "t\nt", 'its tokens begin by the clock');
};

subtest 'another schema' => sub {
	$node->safe_psql('postgres', 'CREATE DATABASE elsewhere TEMPLATE template0');
	$node->safe_psql('elsewhere', 'CREATE SCHEMA "Odd one"; CREATE EXTENSION leader_election SCHEMA "Odd one"');
	my $session = session($node, db => 'elsewhere');
	is(ask($session, q{SELECT "Odd one".le_try_become_leader('job')}), 't', 'elected');
	my $token = ask($session, q{SELECT "Odd one".le_token('job')});
	is(ask($session, q{SELECT name FROM "Odd one".le_leaders}), 'job', 'views work with no search_path');
	ask($session, 'ALTER EXTENSION leader_election SET SCHEMA public');
	is($session->{messages}, '', 'moved');
	is(ask($session, q{SELECT le_resign('job'), le_try_become_leader('job'), le_token('job')}), 't|t|' . ($token + 1), 'works on');
	my $new = session($node, db => 'elsewhere');
	is(ask($new, q{SELECT le_try_become_leader('other'), le_token('other')}), 't|' . ($token + 2), 'in new sessions, too');
	end_session($session, $new);
};

subtest 'functions dropped and created again under a pooled session' => sub {
	my $pooled = session($node);
	ask($pooled, q{PREPARE try(text) AS SELECT le_try_become_leader($1)});
	ask($pooled, q{PREPARE token(text) AS SELECT le_token($1)});
	ask($pooled, q{PREPARE resign(text) AS SELECT le_resign($1)});
	ask($pooled, q{EXECUTE try('job')}) for 1 .. 7;
	my $before = ask($pooled, q{EXECUTE token('job')});
	ask($pooled, q{EXECUTE resign('job')});
	is($pooled->{messages}, '', 'resigned');
	$node->safe_psql('postgres', 'DROP EXTENSION leader_election CASCADE; CREATE EXTENSION leader_election');
	# the prepared statements know the old functions by OID
	foreach my $attempt (1, 2)
	{
		ask($pooled, 'DISCARD ALL');
		is(ask($pooled, q{SELECT le_try_become_leader('job')}), 't', 'elected');
		cmp_ok(ask($pooled, q{SELECT le_token('job')}), '>', $before, 'greater token');
	}
	end_session($pooled);
};

subtest 'parallel plans' => sub {
	my $session = session($node);
	# the setting's name, old or new, that forces them
	my $force = ask($session, q{SELECT name FROM pg_settings
WHERE name IN ('force_parallel_mode', 'debug_parallel_query')});
	ask($session, 'CREATE TABLE big AS SELECT g FROM generate_series(1, 20000) g', 'ANALYZE big');
	ask($session, q{SELECT le_try_become_leader('job'), le_try_become_leader('3')});
	my $token = ask($session, q{SELECT le_token('job')});
	foreach my $mode ('on', 'off')
	{
		ask($session, "SET $force = $mode; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0");
		is(ask($session, q{SELECT le_am_leader('job'), le_am_leader('3'), le_am_leader('no'), le_token('job')}), "t|t|f|$token", "alone, $mode");
		like(ask($session, q{EXPLAIN (COSTS off) SELECT count(*), le_am_leader('job') FROM big}), qr/Gather/, 'a parallel plan');
		is(ask($session, q{SELECT count(*), le_am_leader('job'), le_token('job') FROM big}), "20000|t|$token", 'over a parallel scan');
		is(ask($session, q{SELECT count(*) FROM big WHERE le_am_leader('job')}), '20000', 'in its condition');
		is(ask($session, q{SELECT l.name FROM le_leaders l, le_leader('job') WHERE l.name <> '3'}), 'job', 'views');
		is(ask($session, q{SELECT count(*) FROM le_candidates}), '0', 'views');
		is(ask($session, q{SELECT le_resign('job'), le_try_become_leader('job')}), 't|t', "bids");
		is($session->{messages}, '', 'without complaint');
		$token = ask($session, q{SELECT le_token('job')});
	}
	# a bid that hides in a function that claims to be parallel safe
	ask($session, "SET $force = on");
	ask($session, q{
CREATE FUNCTION liar() RETURNS boolean LANGUAGE SQL PARALLEL SAFE VOLATILE AS $$ SELECT le_try_become_leader('liar') $$});
	ask($session, 'SELECT liar()');
	like($session->{messages}, qr/ERROR:  25000: cannot execute a bid for leadership during a parallel operation/, 'a bid in a worker is refused');
	is(ask($session, q{SELECT le_am_leader('liar'), le_am_leader('job')}), 'f|t', 'and nothing else happens');
	# what an observer counts would stay behind if the worker is terminated
	ask($session, q{
CREATE FUNCTION spy(name text) RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS $$
DECLARE version bigint; t bigint; i text; v text; BEGIN
CALL le_observe(name, version, '0', t, i, v); CALL le_observe(name, version, '1 h', t, i, v); RETURN version; END $$});
	ask($session, q{SET statement_timeout = '1 s'}, q{SELECT spy('spied upon')}, q{RESET statement_timeout});
	like($session->{messages}, qr/ERROR:  25000: cannot execute le_observe\(\) during a parallel operation/, 'nor does a worker observe');
	# a worker does not know the configured leader_election.max_ttl, and none may write to the table
	my $lease = lease_take($session, 'leased', '1 h');
	foreach my $call ("le_renew('leased', $lease, '2 h')", "le_lease('leased', '2 h', $lease)",
		"le_resign('leased', $lease)", q{le_depose('leased')})
	{
		ask($session, "CREATE OR REPLACE FUNCTION hidden() RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS \$\$ BEGIN RETURN $call; END \$\$");
		fails($session, 'SELECT hidden()', '25000', "refused in a worker: $call");
	}
	is(ask($session, "SELECT ttl, le_resign('leased', $lease) FROM le_leader('leased')"), '01:00:00|t', 'the lease is as it was');
	all_consistent($node, 'nothing half done');
	end_session($session);
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
