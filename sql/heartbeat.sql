--
-- Heartbeats: the arguments, the roles that may give one, what shows it, and
-- that nothing else counts as one; and leaders that have given none in time
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/advisory.psql
SET client_min_messages = warning;
CREATE SCHEMA regress_heartbeat;
GRANT USAGE ON SCHEMA regress_heartbeat TO PUBLIC;
SET search_path = regress_heartbeat, public;
\i :abs_srcdir/sql/include/sessions.psql
\i :abs_srcdir/sql/include/outcome.psql
CREATE VIEW led AS
SELECT coalesce(name, key::text) AS name, scope, identity, ttl, heartbeat,
       renewed_at IS NOT NULL AS renewed, renewals, expires_in BETWEEN '50 min' AND coalesce(ttl, heartbeat) AS expires_in
FROM le_leaders ORDER BY name COLLATE "C";
CREATE ROLE regress_heartbeat_leader LOGIN;
CREATE ROLE regress_heartbeat_member IN ROLE regress_heartbeat_leader;
CREATE ROLE regress_heartbeat_other;
RESET client_min_messages;
\set VERBOSITY terse

-- the range, and months, in each function that takes one
SELECT v AS heartbeat, outcome(format('SELECT le_try_become_leader(%L, heartbeat => %L)', 'hb', v)),
       outcome(format('SELECT le_become_leader(43, ''0'', heartbeat => %L)', v))
FROM unnest(ARRAY['99.999 ms', '0', '-1 s', '1 day 1 us', '1 mon', '-1 mon 31 days', '100 years']) v;
SELECT outcome(v) FROM unnest(ARRAY[
	$$SELECT le_become_leader('hb', heartbeat => '99 ms')$$,
	$$SELECT le_try_become_leader(43, heartbeat => '2 days')$$,
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
SELECT le_heartbeat('hb'), le_heartbeat('hb', 1), le_heartbeat('hb', 0), le_heartbeat('hb', -1), le_heartbeat(43), le_heartbeat(43, 1);
-- and none of these elections is known by it
SELECT count(*) FROM pg_stat_leader_election WHERE name = 'hb';
SELECT outcome(v) FROM unnest(ARRAY[
	$$SELECT le_heartbeat(NULL::text)$$, $$SELECT le_heartbeat(NULL::bigint, 1)$$, $$SELECT le_heartbeat('')$$,
	$$SELECT le_heartbeat('43')$$, $$SELECT le_heartbeat(repeat('x', 256))$$]) v;

-- the shortest and the longest
SELECT le_try_become_leader('longest', heartbeat => '1 day'), le_try_become_leader('in hours', heartbeat => '24:00');
SELECT name, heartbeat, expires_in BETWEEN '23:00' AND '1 day' AS expires_in FROM le_leaders ORDER BY name;
SELECT le_try_become_leader('shortest', heartbeat => '100 ms');
SELECT heartbeat FROM _le_registry_terms() WHERE name = 'shortest';
SELECT le_resign_all() >= 2 AS resigned;

-- each way to lead with one
SELECT le_try_become_leader('a', identity => 'me', heartbeat => '1 h'), le_become_leader('b', NULL, identity => 'me', heartbeat => '1 h'), le_become_leader('c', '1 min', identity => 'me', heartbeat => '1 h'),
       le_try_become_leader(43, identity => 'me', heartbeat => '1 h'), le_become_leader(44, '1 min', identity => 'me', heartbeat => '1 h');
CALL le_campaign('d', identity => 'me', heartbeat => '1 h') \gset
CALL le_campaign(ARRAY['a', 'e'], identity => 'me', heartbeat => '1 h') \gset
SELECT :'name' AS name, le_token('e') = :token AS token;
-- and without, or by a lease
SELECT le_try_become_leader('hb none', identity => 'me', heartbeat => NULL), le_lease('lease', '1 h', identity => 'me') AS lease \gset
BEGIN;
SELECT le_try_become_leader_xact('xact', identity => 'me');
TABLE led;
SELECT name, key, heartbeat, expires_in > '50 min' AS expires_in FROM le_leader('a');
SELECT key, heartbeat, expires_in > '50 min' AS expires_in FROM le_leaders WHERE key = 43;
SELECT count(*) FROM _le_registry_terms() WHERE heartbeat = '1 h' AND expires_in > '50 min' AND ttl IS NULL;
-- a heartbeat in each of them: what has none stores none, and answers all the same
SELECT name, le_heartbeat(name), le_heartbeat(name, token), le_heartbeat(name, token - 1) AS earlier, le_heartbeat(name, token + 1) AS later
FROM (SELECT * FROM le_leaders WHERE name IS NOT NULL AND scope <> 'lease' ORDER BY name OFFSET 0) l;
SELECT le_heartbeat(43), le_heartbeat(43, le_token(43)), le_heartbeat(44, le_token(43));
COMMIT;
TABLE led;
-- a lease is renewed by le_renew
SELECT le_heartbeat('lease');
\set VERBOSITY default
SELECT le_heartbeat('lease', :lease);
\set VERBOSITY terse
-- one that is over does not lead
SELECT le_resign('lease', :lease), le_heartbeat('lease', :lease);

-- a heartbeat puts the deadline off; what is rolled back, too; to ask,
-- to bid again, to publish, and to look do not
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
	$$SELECT outcome('DO $d$BEGIN PERFORM le_heartbeat(''a''); RAISE ''rolled back''; END$d$')$$,
	$$SELECT le_heartbeat('b')$$,
	$$SELECT le_am_leader('a'), le_token('a'), le_am_leader('a', le_token('a'))$$,
	$$SELECT le_try_become_leader('a'), le_become_leader('a')$$,
	$$SELECT le_try_become_leader('a', identity => 'me', heartbeat => '1 h'), le_become_leader('a', NULL, identity => 'me', heartbeat => '60 min')$$,
	$$SELECT le_try_become_leader_xact('a')$$,
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
SELECT heartbeat, expires_in < '1:50' AS sooner FROM le_leader('a');
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
SELECT says('s', $$SELECT le_try_become_leader('hb', identity => 's', heartbeat => '1 h')$$), says('s', $$SELECT le_try_become_leader(43, identity => 's', heartbeat => '1 h')$$),
       says('s', $$SELECT le_try_become_leader('hb none', identity => 's')$$), says('s', $$SELECT le_try_become_leader('short', identity => 's', heartbeat => '1 h')$$);
SELECT token AS t FROM le_leader('hb') \gset
SELECT token AS key_t FROM le_leaders WHERE key = 43 \gset
SELECT token AS none_t FROM le_leader('hb none') \gset
-- no other session's own
SELECT le_heartbeat('hb'), le_heartbeat(43), le_heartbeat('hb none');
SET ROLE regress_heartbeat_leader;
SELECT le_heartbeat('hb', :t), le_heartbeat(43, :key_t), le_heartbeat('hb none', :none_t), le_heartbeat('hb', :none_t), le_heartbeat('hb', 0);
SET ROLE regress_heartbeat_member;
SELECT le_heartbeat('hb', :t), le_heartbeat(43, :key_t), le_heartbeat('hb none', :none_t);
SET ROLE regress_heartbeat_other;
SELECT le_heartbeat('hb', :t);
\echo :LAST_ERROR_SQLSTATE
SELECT le_heartbeat(43, :key_t);
\echo :LAST_ERROR_SQLSTATE
SELECT le_heartbeat('hb none', :none_t);
\echo :LAST_ERROR_SQLSTATE
-- but to be wrong is no error
SELECT le_heartbeat('hb', :t - 1), le_heartbeat('hb'), le_heartbeat('nobody', :t);
RESET ROLE;
-- in the session that leads, the term is the session's, whatever the role
SELECT says('s', 'SET ROLE regress_heartbeat_leader'), says('s', format($$SELECT le_heartbeat('hb') AND le_heartbeat('hb', %s)$$, :t));
-- by a function with its owner's rights, the owner's role counts
CREATE FUNCTION beat(t bigint) RETURNS boolean LANGUAGE sql SECURITY DEFINER AS $$ SELECT le_heartbeat('hb', t) $$;
SET ROLE regress_heartbeat_other;
SELECT beat(:t);
RESET ROLE;
-- a transaction that cannot write gives one as well
BEGIN READ ONLY;
SELECT le_heartbeat('hb', :t);
COMMIT;

-- the session's end comes first
SELECT dblink_disconnect('s'), gone('s');
SELECT le_heartbeat('hb', :t), le_heartbeat(43, :key_t), le_heartbeat('hb none', :none_t);
SELECT name, terms, session_ended, silent FROM pg_stat_leader_election WHERE name IN ('hb', 'hb none') ORDER BY name;
TABLE led;

--
-- Silence: a leader that has given no heartbeat in time leads no more, and its session ends
--
-- What could go wrong: a view, a guard or an observer still takes the term for a running one;
-- its end does not reach what it has left: locks, scopes, statistics; the session goes on.
--
-- A heartbeat that is to be missed is short; one that must not be is of one hour.
--
-- a session that leads, and has the statements behind it, from now on gives no heartbeat; returns
-- when it has gone: whether before the deadline
CREATE FUNCTION falls_silent(who text, VARIADIC statements text[] DEFAULT '{}') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	statement text;
	since timestamptz;
BEGIN
	FOREACH statement IN ARRAY statements LOOP
		PERFORM regress_heartbeat.says(who, statement);
	END LOOP;
	since := clock_timestamp();
	PERFORM regress_heartbeat.says(who, $says$SELECT le_try_become_leader('hs', heartbeat => '100 ms')$says$);
	PERFORM regress_heartbeat.gone(who), dblink_disconnect(who);
	RETURN CASE WHEN clock_timestamp() - since >= '100 ms' THEN 'it has gone' ELSE 'GONE TOO EARLY' END;
END $$;
CREATE VIEW on_record AS
SELECT name, scope, expires_in FROM _le_registry_terms() WHERE token IS NOT NULL ORDER BY name;
CREATE VIEW counted AS
SELECT name, terms, resigned, transaction_ended, session_ended, lock_released, silent
FROM pg_stat_leader_election WHERE name LIKE 'hs%' ORDER BY name COLLATE "C";

-- over for all that look, though none waits for it
SELECT open('l'), says('l', $$SELECT le_try_become_leader('hs', heartbeat => '1 h')$$);
CALL le_observe('hs') \gset
SELECT :token > 0 AS led;
SELECT falls_silent('l');
SELECT count(*) FROM le_leaders;
TABLE on_record;
TABLE advisory;
SELECT vacant_since IS NOT NULL AS vacant, terms, silent FROM pg_stat_leader_election WHERE name = 'hs';
CALL le_observe('hs', :version, '1 min') \gset
SELECT :{?token} AS led;
-- the time that was led ends at the deadline
SELECT pg_sleep(0.3);
SELECT extract(epoch FROM time_led) < 60 AS led, extract(epoch FROM time_vacant) >= 0.3 AS vacant FROM pg_stat_leader_election WHERE name = 'hs';

-- whatever else the session holds the lock for
SELECT open('l'), falls_silent('l', 'BEGIN', $$SELECT le_try_become_leader_xact('hs')$$);
SELECT open('l'), falls_silent('l', 'BEGIN', 'SAVEPOINT a', $$SELECT le_try_become_leader('hs', heartbeat => '1 h')$$);
SELECT open('l'), falls_silent('l', $$SELECT le_try_become_leader('hs 2') AND le_try_become_leader('hs 3', heartbeat => '1 h')$$);
SELECT open('l'), falls_silent('l', $$SELECT pg_advisory_lock(4343)$$);
TABLE on_record;
TABLE advisory;
TABLE counted;

-- narrowed to the transaction, the term has no heartbeat
BEGIN;
SELECT le_try_become_leader_xact('hs'), le_token('hs') AS t1 \gset
SELECT le_try_become_leader('hs', heartbeat => '1 h'), le_token('hs') = :t1 AS same;
SELECT scope, heartbeat FROM le_leader('hs');
SELECT le_resign('hs');
SELECT scope, heartbeat, expires_in FROM le_leader('hs');
SELECT le_token('hs') = :t1 AS same, le_heartbeat('hs');
-- and widened once more
SELECT le_try_become_leader('hs', heartbeat => '1 h');
COMMIT;
SELECT scope, heartbeat FROM le_leader('hs');
SELECT count(*) FROM advisory;
-- a session without its lock is not ended
SELECT le_try_become_leader('hs', heartbeat => '1 s'), pg_advisory_unlock_all();
SELECT pg_sleep(1.1);
SELECT le_am_leader('hs');
-- nor one that has resigned, or has a longer heartbeat now, or gives them
SELECT le_try_become_leader('hs', heartbeat => '1 s'), le_resign('hs'), le_try_become_leader('hs', heartbeat => '1 h');
SELECT pg_sleep(1.1);
SELECT le_am_leader('hs'), le_resign('hs');
TABLE on_record;
TABLE advisory;
TABLE counted;

-- savepoints: a bid for the session stands, and with it the heartbeat, as it was set last
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader('hs', heartbeat => '2 h'), le_token('hs') AS t1 \gset
SAVEPOINT b;
SELECT le_try_become_leader('hs', heartbeat => '1 h');
ROLLBACK TO a;
SELECT scope, heartbeat, token = :t1 AS same FROM le_leader('hs');
SELECT le_resign('hs');
-- a transaction's hold goes with the savepoint, the session's stays
SAVEPOINT c;
SELECT le_try_become_leader_xact('hs'), le_try_become_leader('hs', heartbeat => '1 h');
ROLLBACK TO c;
SELECT scope, heartbeat FROM le_leader('hs');
SELECT le_resign('hs');
-- a transaction's term gets one in a savepoint, and is narrowed again
SELECT le_try_become_leader_xact('hs');
SAVEPOINT d;
SELECT le_try_become_leader('hs', heartbeat => '1 h'), le_resign('hs');
ROLLBACK TO d;
SELECT scope, heartbeat FROM le_leader('hs');
-- what failed before the term has left nothing
SAVEPOINT e;
SELECT le_try_become_leader('hs 3', heartbeat => '1 h'), le_try_become_leader('hs 4', heartbeat => '1 ms');
ROLLBACK TO e;
SELECT name, heartbeat FROM le_leaders ORDER BY name;
COMMIT;
SELECT le_resign_all();
TABLE on_record;
TABLE advisory;

-- guards refuse the token of a silent leader
CREATE TABLE work (done text);
CREATE TRIGGER guard BEFORE INSERT ON work FOR EACH STATEMENT EXECUTE FUNCTION le_guard('hs');
SELECT open('worker'), open('l'), says('l', $$SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '1 h')$$);
SELECT token AS t1 FROM le_leader('hs') \gset
SELECT says('worker', format($$SELECT set_config('leader_election.token', '%s', false) IS NOT NULL$$, :t1));
SELECT says('worker', $$INSERT INTO work VALUES ('in time')$$), says('worker', format($$SELECT le_assert_leader('hs', %s)$$, :t1));
-- at the commit
SELECT says('worker', 'BEGIN'), says('worker', $$INSERT INTO work VALUES ('late')$$);
SELECT falls_silent('l');
SELECT says('worker', 'COMMIT');
-- by the assertion, and in the trigger
SELECT says('worker', format($$SELECT le_assert_leader('hs', %s)$$, :t1)), says('worker', $$INSERT INTO work VALUES ('late')$$);
-- in the session itself, whose term runs to its end
SELECT open('l'), says('l', $$SELECT le_try_become_leader('hs', heartbeat => '1 h')$$);
SELECT falls_silent('l', 'BEGIN', $$INSERT INTO work VALUES ('late')$$);
SELECT done, count(*) FROM work GROUP BY done;

-- a session's term is no reason not to prepare; a prepared guard holds after the deadline, too:
-- none is elected
SELECT open('l'), says('l', $$SELECT le_try_become_leader('hs', heartbeat => '1 h')$$);
SELECT says('l', 'BEGIN'), says('l', $$INSERT INTO work VALUES ('prepared')$$), says('l', $$PREPARE TRANSACTION 'regress_heartbeat'$$);
SELECT falls_silent('l');
SELECT le_try_become_leader('hs');
COMMIT PREPARED 'regress_heartbeat';
SELECT le_try_become_leader('hs'), le_resign('hs');
SELECT done, count(*) FROM work GROUP BY done ORDER BY done;

-- bare keys
SELECT open('l'), says('l', $$SELECT le_try_become_leader(4343, heartbeat => '100 ms')$$), gone('l'), dblink_disconnect('l');
SELECT count(*) FROM le_leaders WHERE key = 4343;
TABLE advisory;

-- what it has published is gone with the term
SELECT open('l'), says('l', $$SELECT le_try_become_leader('hs', heartbeat => '1 h')$$), says('l', $$SELECT le_proclaim('hs', 'value')$$);
SELECT value FROM le_leader('hs');
SELECT falls_silent('l');
CALL le_observe('hs') \gset
SELECT :{?value} AS has_value, :{?token} AS led;

TABLE on_record;
TABLE counted;
-- nothing keeps these elections in the registry
SELECT name, le_forget(name) FROM counted;
SELECT dblink_disconnect('worker'), gone('worker');
SET client_min_messages = warning;
DROP SCHEMA regress_heartbeat CASCADE;
DROP EXTENSION dblink;
DROP ROLE regress_heartbeat_leader, regress_heartbeat_member, regress_heartbeat_other;
