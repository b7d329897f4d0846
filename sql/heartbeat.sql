--
-- Heartbeats: the arguments, the roles that may give one, what shows it, and
-- that nothing else counts as one
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql
SET client_min_messages = warning;
CREATE SCHEMA regress_heartbeat;
GRANT USAGE ON SCHEMA regress_heartbeat TO PUBLIC;
SET search_path = regress_heartbeat, public;
\i :abs_srcdir/sql/include/sessions.psql
\i :abs_srcdir/sql/include/outcome.psql
CREATE VIEW led AS
SELECT name, scope, identity, ttl, heartbeat,
       renewed_at IS NOT NULL AS renewed, renewals, expires_in BETWEEN '50 min' AND coalesce(ttl, heartbeat) AS expires_in
FROM le_leaders ORDER BY name COLLATE "C";
CREATE ROLE regress_heartbeat_leader LOGIN;
CREATE ROLE regress_heartbeat_member IN ROLE regress_heartbeat_leader;
CREATE ROLE regress_heartbeat_other;
RESET client_min_messages;
\set VERBOSITY terse

-- the range, and months, in each function that takes one
SELECT v AS heartbeat, outcome(format('SELECT le_try_become_leader(%L, heartbeat => %L)', 'hb', v)),
       outcome(format('SELECT le_become_leader(%L, ''0'', heartbeat => %L)', 'hb', v))
FROM unnest(ARRAY['99.999 ms', '0', '-1 s', '1 day 1 us', '1 mon', '-1 mon 31 days', '100 years']) v;
SELECT outcome(v) FROM unnest(ARRAY[
	$$SELECT le_become_leader('hb', heartbeat => '99 ms')$$,
	$$CALL le_campaign('hb', heartbeat => '99 ms')$$,
	$$CALL le_campaign(ARRAY['hb'], heartbeat => '1 mon')$$,
	$$SELECT le_try_become_leader_xact('hb', heartbeat => '1 s')$$]) v;
-- a lease has a ttl
CALL le_campaign('hb', ttl => '1 s', heartbeat => '1 s');
\echo :LAST_ERROR_SQLSTATE
CALL le_campaign(ARRAY['hb', 'hb 2'], ttl => '1 s', heartbeat => '1 s');
\echo :LAST_ERROR_SQLSTATE
-- nothing has come of it
TABLE led;
SELECT le_heartbeat('hb'), le_heartbeat('hb', 1), le_heartbeat('hb', 0), le_heartbeat('hb', -1);
SELECT outcome(v) FROM unnest(ARRAY[
	$$SELECT le_heartbeat(NULL::text)$$, $$SELECT le_heartbeat('')$$,
	$$SELECT le_heartbeat('43')$$, $$SELECT le_heartbeat(repeat('x', 256))$$]) v;

-- the shortest and the longest
SELECT le_try_become_leader('longest', heartbeat => '1 day'), le_try_become_leader('in hours', heartbeat => '24:00');
SELECT name, heartbeat, expires_in BETWEEN '23:00' AND '1 day' AS expires_in FROM le_leaders ORDER BY name;
SELECT le_try_become_leader('shortest', heartbeat => '100 ms');
SELECT heartbeat FROM le_leader('shortest');
SELECT le_resign_all() >= 2 AS resigned;

-- each way to lead with one
SELECT le_try_become_leader('a', identity => 'me', heartbeat => '1 h'), le_become_leader('b', NULL, identity => 'me', heartbeat => '1 h'), le_become_leader('c', '1 min', identity => 'me', heartbeat => '1 h');
CALL le_campaign('d', identity => 'me', heartbeat => '1 h') \gset
CALL le_campaign(ARRAY['a', 'e'], identity => 'me', heartbeat => '1 h') \gset
SELECT :'name' AS name, le_token('e') = :token AS token;
-- and without, or by a lease
SELECT le_try_become_leader('hb none', identity => 'me', heartbeat => NULL), le_lease('lease', '1 h', identity => 'me') AS lease \gset
BEGIN;
SELECT le_try_become_leader_xact('xact', identity => 'me');
TABLE led;
SELECT name, key, heartbeat, expires_in > '50 min' AS expires_in FROM le_leader('a');
-- a heartbeat in each of them: what has none stores none, and answers all the same
SELECT name, le_heartbeat(name), le_heartbeat(name, token), le_heartbeat(name, token - 1) AS earlier, le_heartbeat(name, token + 1) AS later
FROM (SELECT * FROM le_leaders WHERE name IS NOT NULL AND scope <> 'lease' ORDER BY name OFFSET 0) l;
COMMIT;
TABLE led;
-- a lease is renewed by le_renew
SELECT le_heartbeat('lease');
\set VERBOSITY default
SELECT le_heartbeat('lease', :lease);
\set VERBOSITY terse
SELECT le_resign('lease', :lease);

-- a heartbeat puts the deadline off; to ask, to bid again, to publish, and to look do not
-- (again and again, as this session may be kept waiting between a heartbeat and the look at it)
CREATE FUNCTION put_off(what text) RETURNS boolean LANGUAGE plpgsql SET client_min_messages = error AS $$
DECLARE
	before interval;
BEGIN
	FOR i IN 1 .. 5 LOOP
		PERFORM pg_sleep(0.01);
		before := (SELECT expires_in FROM le_leader('a'));
		EXECUTE what;
		IF (SELECT expires_in FROM le_leader('a')) > before THEN
			RETURN true;
		END IF;
	END LOOP;
	RETURN false;
END $$;
SELECT what, put_off(what) FROM unnest(ARRAY[
	$$SELECT le_heartbeat('a')$$,
	$$SELECT le_heartbeat('a', le_token('a'))$$,
	$$SELECT le_heartbeat('b')$$,
	$$SELECT le_am_leader('a'), le_token('a'), le_am_leader('a', le_token('a'))$$,
	$$SELECT le_try_become_leader('a'), le_become_leader('a')$$,
	$$SELECT le_try_become_leader('a', identity => 'me', heartbeat => '1 h'), le_become_leader('a', NULL, identity => 'me', heartbeat => '60 min')$$,
	$$SELECT le_try_become_leader('a', identity => 'somebody else', heartbeat => '2 h')$$,
	$$SELECT le_proclaim('a', 'value')$$,
	$$SELECT le_assert_leader('a', le_token('a'))$$,
	$$CALL le_campaign('a', '0')$$,
	$$CALL le_observe('a')$$,
	$$TABLE le_leaders$$]) what;
-- the bid of another client was denied, and has changed nothing
SELECT heartbeat FROM le_leader('a');

-- another heartbeat counts from the bid on, in the same term
SELECT le_token('a') AS t1 \gset
SELECT le_try_become_leader('a', heartbeat => '2 h'), le_token('a') = :t1 AS same;
SELECT heartbeat FROM le_leader('a');
CALL le_campaign('a', heartbeat => '10 min') \gset
SELECT :token = :t1 AS same, heartbeat, expires_in BETWEEN '9 min' AND '10 min' AS expires_in FROM le_leader('a');
-- a term that has none gets one; what is left out leaves it as it is
SELECT le_try_become_leader('hb none', heartbeat => '1 h'), le_try_become_leader('hb none');
SELECT heartbeat, expires_in > '50 min' AS expires_in FROM le_leader('hb none');
-- a bid that fails changes nothing
SELECT outcome($$SELECT le_try_become_leader('a', heartbeat => '1 ms')$$);
SELECT heartbeat FROM le_leader('a');
SELECT le_resign_all();
TABLE led;

-- by its token, in any session of the leader's role, or of a member of it
SELECT open('s', 'regress_heartbeat_leader');
SELECT says('s', $$SELECT le_try_become_leader('hb', identity => 's', heartbeat => '1 h')$$),
       says('s', $$SELECT le_try_become_leader('hb none', identity => 's')$$), says('s', $$SELECT le_try_become_leader('short', identity => 's', heartbeat => '1 h')$$);
SELECT token AS t FROM le_leader('hb') \gset
SELECT token AS none_t FROM le_leader('hb none') \gset
SELECT le_lease('hb lease', '1 h') AS lease_t \gset
-- no other session's own
SELECT le_heartbeat('hb'), le_heartbeat('hb none');
SET ROLE regress_heartbeat_leader;
SELECT le_heartbeat('hb', :t), le_heartbeat('hb none', :none_t), le_heartbeat('hb', :none_t), le_heartbeat('hb', 0);
SET ROLE regress_heartbeat_member;
SELECT le_heartbeat('hb', :t), le_heartbeat('hb none', :none_t);
SET ROLE regress_heartbeat_other;
SELECT le_heartbeat('hb', :t);
\echo :LAST_ERROR_SQLSTATE
SELECT le_heartbeat('hb none', :none_t);
\echo :LAST_ERROR_SQLSTATE
SELECT le_heartbeat('hb lease', :lease_t);
\echo :LAST_ERROR_SQLSTATE
-- but to be wrong is no error
SELECT le_heartbeat('hb', :t - 1), le_heartbeat('hb'), le_heartbeat('nobody', :t);
RESET ROLE;
SELECT le_resign('hb lease', :lease_t);
-- in the session that leads, the term is the session's, whatever the role
SELECT says('s', 'SET ROLE regress_heartbeat_leader'), says('s', format($$SELECT le_heartbeat('hb') AND le_heartbeat('hb', %s)$$, :t));
-- the session's end comes first
SELECT dblink_disconnect('s'), gone('s');
SELECT le_heartbeat('hb', :t), le_heartbeat('hb none', :none_t);
TABLE led;

-- a lease has none, and is no error after its end
SELECT le_lease('lease', '1 hour') AS lease \gset
SELECT le_heartbeat('lease', :lease);
\echo :LAST_ERROR_SQLSTATE
SELECT le_resign('lease', :lease);
SELECT le_heartbeat('lease', :lease);

SET client_min_messages = warning;
DROP SCHEMA regress_heartbeat CASCADE;
DROP EXTENSION dblink;
DROP ROLE regress_heartbeat_leader, regress_heartbeat_member, regress_heartbeat_other;
