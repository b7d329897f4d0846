--
-- le_resign with a successor: the candidate that is named is next, whatever its place in
-- line, and the others keep theirs
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
CREATE SCHEMA regress_resign;
SET search_path = regress_resign, public;
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/sessions.psql
-- these sessions wait in line, in this order; in the election's lock's queue, or the first
-- of them for the end of a lease
CREATE FUNCTION line_up(names text, VARIADIC statements text[] DEFAULT '{}') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	who text;
BEGIN
	FOREACH who IN ARRAY string_to_array(names, NULL) LOOP
		PERFORM dblink_send_query(who, coalesce((SELECT substr(s, 3) FROM unnest(statements) s WHERE s LIKE who || ':%'),
		                                        format('SELECT le_become_leader(''job'', identity => %L)', who)));
		FOR i IN 1 .. 1000 LOOP
			PERFORM pg_stat_clear_snapshot();
			EXIT WHEN EXISTS (SELECT FROM le_candidates WHERE application_name = who);
			PERFORM pg_sleep(0.005);
		END LOOP;
	END LOOP;
	RETURN (SELECT string_agg(identity, '' ORDER BY position) FROM le_candidates WHERE name = 'job');
END $$;
-- the application of the next leader
CREATE FUNCTION next_leader() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	successor text;
BEGIN
	FOR i IN 1 .. 1000 LOOP
		PERFORM pg_stat_clear_snapshot();
		SELECT application_name INTO successor FROM le_leaders WHERE name = 'job';
		EXIT WHEN FOUND;
		PERFORM pg_sleep(0.005);
	END LOOP;
	RETURN successor;
END $$;
-- the sessions that are elected, one after the other, when each leader
-- resigns; and what they are told
CREATE FUNCTION served(names text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	line text := '';
	who text;
	last bigint := 0;
	leader record;
BEGIN
	WHILE length(line) < length(names) LOOP
		FOR i IN 1 .. 1000 LOOP
			SELECT * INTO leader FROM le_leaders WHERE name = 'job';
			EXIT WHEN FOUND AND leader.identity <> 'me';
			PERFORM pg_sleep(0.005);
		END LOOP;
		IF leader IS NULL THEN
			RETURN line || ' AND NOBODY ELSE';
		END IF;
		who := coalesce(leader.application_name, leader.identity);
		line := line || leader.identity;
		IF leader.token < last THEN
			line := line || ' WITH A SMALLER TOKEN ';
		END IF;
		last := leader.token;
		IF answer(who) NOT IN ('t', leader.token::text) THEN
			line := line || ' WITHOUT KNOWING ';
		END IF;
		IF leader.scope = 'lease' THEN
			PERFORM le_resign('job', leader.token);
		ELSIF leader.scope = 'transaction' THEN
			PERFORM dblink_exec(who, 'COMMIT');
		ELSE
			PERFORM says(who, 'SELECT le_resign(''job'')');
		END IF;
	END LOOP;
	RETURN line;
END $$;
CREATE FUNCTION state() RETURNS TABLE (leader text, scope text, line text) LANGUAGE sql AS $$
SELECT l.identity, l.scope, (SELECT string_agg(identity, '' ORDER BY position) FROM le_candidates WHERE name = 'job')
FROM (VALUES (1)) v LEFT JOIN le_leader('job') l ON true
$$;
SELECT open(who, options => '-c client_min_messages=error') FROM unnest('{a,b,c,d}'::text[]) who;
SELECT pg_stat_leader_election_reset();
RESET client_min_messages;

-- from session scope: in the middle, first, last
SELECT le_try_become_leader('job', identity => 'me'), line_up('abcd');
SELECT le_resign('job', successor => 'c');
SELECT served('abcd');
SELECT le_try_become_leader('job', identity => 'me'), line_up('abcd');
SELECT le_resign('job', NULL, 'a');
SELECT served('abcd');
SELECT le_try_become_leader('job', identity => 'me'), line_up('abcd');
SELECT le_resign('job', successor => 'd');
SELECT served('abcd');
-- one alone
SELECT le_try_become_leader('job', identity => 'me'), line_up('a'), le_resign('job', successor => 'a'), served('a');
-- from a lease: the first has the election's lock, and gives way
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('abcd');
SELECT le_resign('job', :t1, 'c');
SELECT le_am_leader('job', :t1), served('abcd');
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('abcd'), le_resign('job', :t1, 'a'), served('abcd');
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('abcd'), le_resign('job', :t1, successor => 'd'), served('abcd');
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('a'), le_resign('job', :t1, successor => 'a'), served('a');
-- from one to the other, again and again
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('abcd'), le_resign('job', :t1, 'd');
SELECT answer('d');
SELECT * FROM state();
SELECT says('d', 'SELECT le_resign(''job'', successor => ''b'')'), answer('b');
SELECT * FROM state();
SELECT says('b', 'SELECT le_resign(''job'', NULL, ''c'')'), served('ca'), count(*) AS candidates FROM le_candidates;
-- each kind of candidate can be named, and can give way
CREATE FUNCTION kinds() RETURNS text[] LANGUAGE sql AS $$
SELECT ARRAY['a:CALL le_campaign(''job'', ''1 hour'', identity => ''a'', ttl => ''1 hour'')', 'b:SELECT le_become_leader_xact(''job'', ''1 hour'', identity => ''b'')', 'c:CALL le_campaign(''job'', identity => ''c'')', 'd:SELECT le_become_leader(''job'', ''1 hour'', identity => ''d'')']
$$;
SELECT dblink_exec('b', 'BEGIN'), le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('abcd', VARIADIC kinds()), le_resign('job', :t1, 'd'), served('abcd');
SELECT dblink_exec('b', 'BEGIN'), le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('bcda', VARIADIC kinds()), le_resign('job', :t1, 'a'), served('abcd');
SELECT dblink_exec('b', 'BEGIN'), le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('cdab', VARIADIC kinds()), le_resign('job', :t1, 'b'), served('abcd');
SELECT dblink_exec('b', 'BEGIN'), le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('dbac', VARIADIC kinds()), le_resign('job', :t1, 'c'), served('abcd');
SELECT dblink_exec('b', 'BEGIN'), le_try_become_leader('job', identity => 'me');
SELECT line_up('abcd', VARIADIC kinds()), le_resign('job', NULL, 'b'), served('abcd');
-- at once, and for good
SELECT le_try_become_leader('job', identity => 'me'), line_up('abc');
BEGIN;
SELECT le_resign('job', successor => 'b');
SELECT answer('b'), le_am_leader('job');
ROLLBACK;
SELECT * FROM state();
SELECT says('b', 'SELECT le_resign(''job'')'), served('ac');

-- a session that does not wait in line for this election: nothing is resigned
SELECT le_try_become_leader('job', identity => 'me'), le_lease('lease', '1 hour', identity => 'me') AS t1 \gset
SELECT le_try_become_leader('another', identity => 'me'), line_up('ab', 'b:SELECT le_become_leader(''another'', identity => ''b'')'), line_up('c', 'c:CALL le_campaign(ARRAY[''lease'', ''job'', ''another''], identity => ''c'')');
\set VERBOSITY default
SELECT le_resign('job', successor => 'd');
\set VERBOSITY terse
SELECT le_resign('job', successor => 'b'), le_resign('job', successor => 'c'), le_resign('job', successor => 'me'), le_resign('job', successor => 'A'), le_resign('job', successor => 'a '), le_resign('job', successor => E'a\n2026-11-26 LOG:  b');
SELECT le_resign('lease', :t1, 'a'), le_resign('lease', :t1, 'me'), le_resign('lease', :t1, 'c');
SELECT le_am_leader('job'), le_am_leader('lease', :t1), le_am_leader('another');
SELECT * FROM state();
SELECT dblink_cancel_query('c'), answer('c');
SELECT le_resign('another', successor => 'b'), answer('b'), says('b', 'SELECT le_resign(''another'')');
SELECT le_resign('job'), served('a'), le_resign('lease', :t1);
-- a session that has given up waiting
SELECT le_try_become_leader('job', identity => 'me'), line_up('ab'), dblink_cancel_query('b'), answer('b');
SELECT le_resign('job', successor => 'b'), le_am_leader('job');
SELECT le_resign('job', successor => 'a'), served('a');

-- a session that does not lead: as without a successor
SELECT says('d', 'SELECT le_try_become_leader(''job'', identity => ''d'')'), line_up('ab');
SELECT says('d', 'SELECT le_token(''job'')') AS t2 \gset
SELECT le_resign('job', successor => 'b'), le_resign('job', NULL, 'b');
SET client_min_messages = error;
SELECT le_resign('job', :t2, 'b'), le_resign('job', :t1, 'b'), le_resign('job', 0, 'b'), le_resign('job', -1, 'b');
SELECT says('d', 'SELECT le_resign(''job'', 0, ''b'')'), says('d', 'SELECT le_resign(''job'', le_token(''job''), ''b'')'), says('d', 'SELECT le_am_leader(''job'')');
RESET client_min_messages;
SELECT * FROM state();
SELECT says('d', 'SELECT le_resign(''job'')'), served('ab');
SELECT le_resign('job', successor => 'a'), le_resign('never heard of', successor => 'a');
SET client_min_messages = error;
SELECT le_resign('job', 17, 'a');
RESET client_min_messages;
-- without: the session's own term
SELECT le_try_become_leader('job', identity => 'me'), le_resign('job', NULL), le_try_become_leader('job'), le_resign('job', NULL, NULL), le_try_become_leader('job'), le_resign('job', token => NULL), le_am_leader('job');
SELECT le_resign('job', NULL);
-- arguments
\set VERBOSITY sqlstate
SELECT le_resign(NULL, NULL, 'a');
SELECT le_resign('', NULL, 'a');
SELECT le_resign('job', NULL, '');
SELECT le_resign('job', NULL, repeat('x', 256));
SELECT le_resign(repeat('x', 256), 1, 'a');
\set VERBOSITY terse
-- the token of another role's lease
CREATE ROLE regress_resign;
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('ab');
SET ROLE regress_resign;
SELECT le_resign('job', :t1, 'b');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT * FROM state();
SELECT le_resign('job', :t1), served('ab');
DROP ROLE regress_resign;

-- of two with one identity, the one that has waited longest
SELECT le_try_become_leader('job', identity => 'me'), line_up('abcd', 'b:SELECT le_become_leader(''job'', identity => ''x'')', 'c:SELECT le_become_leader(''job'', identity => ''x'')');
SELECT le_resign('job', successor => 'x');
SELECT next_leader();
SELECT served('abcd');

-- held by the transaction as well: it is the transaction's then, and the successor comes after it
BEGIN;
SELECT le_try_become_leader_xact('job', identity => 'me');
SELECT line_up('abc');
-- which alone cannot be resigned, and then no candidate is moved
SELECT le_resign('job', successor => 'c');
SELECT * FROM state();
SET LOCAL client_min_messages = warning;
SELECT le_try_become_leader('job');
SELECT le_resign('job', successor => 'c'), le_am_leader('job');
SELECT * FROM state();
COMMIT;
SELECT served('abc');
-- by a lease in the transaction that has taken it
BEGIN;
SELECT le_lease('job', '1 hour', identity => 'me') AS t3 \gset
SELECT line_up('abc');
SELECT le_resign('job', :t3, 'nobody'), le_am_leader('job', :t3);
SELECT le_resign('job', :t3, 'b'), le_am_leader('job', :t3);
COMMIT;
SELECT le_am_leader('job', :t3), served('abc');
BEGIN;
SELECT le_lease('job', '1 hour', identity => 'me') AS t3 \gset
SELECT line_up('abc'), le_resign('job', :t3, 'c');
ROLLBACK;
SELECT served('abc');

-- between the resignation and the handover: held up by a transaction that is guarded
SELECT open('g', options => '-c client_min_messages=error');
CREATE FUNCTION held_up() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		EXIT WHEN EXISTS (SELECT FROM le_candidates WHERE name = 'job' AND waits_for = 'guard' AND position = 1);
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN EXISTS (SELECT FROM le_candidates WHERE name = 'job' AND waits_for = 'guard' AND position = 1);
END $$;
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT dblink_exec('g', 'BEGIN'), says('g', format('SELECT le_assert_leader(''job'', %s)', :t1)), line_up('abcd');
SELECT le_resign('job', :t1, 'd'), waits('a', '', 'guard');
SELECT * FROM state();
SELECT dblink_exec('g', 'ROLLBACK'), served('abcd');
-- the successor does not wait any more
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT dblink_exec('g', 'BEGIN'), says('g', format('SELECT le_assert_leader(''job'', %s)', :t1)), line_up('abcd');
SELECT le_resign('job', :t1, 'c'), waits('a', '', 'guard'), dblink_cancel_query('c'), answer('c');
SELECT dblink_exec('g', 'ROLLBACK'), served('abd');
-- nor does the first
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT dblink_exec('g', 'BEGIN'), says('g', format('SELECT le_assert_leader(''job'', %s)', :t1)), line_up('abcd');
SELECT le_resign('job', :t1, 'd'), waits('a', '', 'guard'), dblink_cancel_query('a'), answer('a'), held_up();
SELECT dblink_exec('g', 'ROLLBACK'), served('bcd');
-- a later candidate is last
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT dblink_exec('g', 'BEGIN'), says('g', format('SELECT le_assert_leader(''job'', %s)', :t1)), line_up('abc');
SELECT le_resign('job', :t1, 'c'), waits('a', '', 'guard'), line_up('d');
SELECT dblink_exec('g', 'ROLLBACK'), served('abcd');
-- the name no longer applies in the term after that
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT dblink_exec('g', 'BEGIN'), says('g', format('SELECT le_assert_leader(''job'', %s)', :t1)), line_up('abc', 'a:CALL le_campaign(''job'', identity => ''a'', ttl => ''1 hour'')');
SELECT le_resign('job', :t1, 'c'), waits('a', '', 'guard'), dblink_cancel_query('c'), answer('c');
SELECT dblink_exec('g', 'ROLLBACK'), answer('a') = (SELECT token::text FROM le_leader('job')) AS a, line_up('c');
SELECT le_resign('job', token) FROM le_leader('job');
SELECT served('bc');
-- a session's term, in the same way
SELECT le_try_become_leader('job', identity => 'me'), dblink_exec('g', 'BEGIN'), says('g', format('SELECT le_assert_leader(''job'', %s)', le_token('job'))), line_up('abcd');
SELECT le_resign('job', successor => 'c'), waits('c', '', 'guard');
SELECT * FROM state();
SELECT dblink_cancel_query('c'), answer('c'), dblink_exec('g', 'ROLLBACK'), served('abd');

-- a candidate that has given way has its timeouts, as before
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('abcd', 'a:SELECT le_become_leader(''job'', ''500 ms'', identity => ''a'')');
SELECT le_resign('job', :t1, 'c'), answer('c'), answer('a');
SELECT * FROM state();
SELECT says('c', 'SELECT le_resign(''job'')'), served('bd');
SELECT says('a', 'SET lock_timeout = ''300 ms'''), le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('abcd'), le_resign('job', :t1, 'c'), answer('c'), answer('a');
SELECT says('c', 'SELECT le_resign(''job'')'), served('bd'), says('a', 'RESET lock_timeout');
-- and can be cancelled
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('abcd'), le_resign('job', :t1, 'c'), answer('c');
SELECT * FROM state();
SELECT dblink_cancel_query('a'), answer('a'), says('c', 'SELECT le_resign(''job'')'), served('bd');

-- a resignation has no grace
SELECT says(who, 'SET leader_election.grace_period = ''1h''') FROM unnest('{a,b,c}'::text[]) who;
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT line_up('abc'), le_resign('job', :t1, 'b'), served('abc');
SELECT le_try_become_leader('job', identity => 'me'), line_up('abc'), le_resign('job', successor => 'b'), served('abc');

SELECT count(*) AS candidates FROM le_candidates;
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
SELECT name, terms - resigned - transaction_ended AS otherwise FROM pg_stat_leader_election WHERE name = 'job';
SELECT dblink_disconnect(who) FROM unnest('{a,b,c,d,g}'::text[]) who;
SET client_min_messages = warning;
DROP SCHEMA regress_resign CASCADE;
DROP EXTENSION dblink;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
