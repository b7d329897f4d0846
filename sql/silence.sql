--
-- Silence: a leader that has given no heartbeat in time leads no more, and its session ends
--
-- What could go wrong: a view, a guard or an observer still takes the term for a running one;
-- its end does not reach what it has left: locks, scopes, statistics; the session goes on.
--
-- A heartbeat that is to be missed is short; one that must not be is of one hour.
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/advisory.psql
SET client_min_messages = warning;
CREATE SCHEMA regress_heartbeat;
GRANT USAGE ON SCHEMA regress_heartbeat TO PUBLIC;
SET search_path = regress_heartbeat, public;
\i :abs_srcdir/sql/include/sessions.psql
\i :abs_srcdir/sql/include/outcome.psql
CREATE ROLE regress_heartbeat_leader LOGIN;
CREATE ROLE regress_heartbeat_other;
RESET client_min_messages;
\set VERBOSITY terse
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
SELECT open('l'), falls_silent('l', 'BEGIN', 'SAVEPOINT a', $$SELECT le_try_become_leader('hs', heartbeat => '1 h')$$);
SELECT open('l'), falls_silent('l', $$SELECT le_try_become_leader('hs 2') AND le_try_become_leader('hs 3', heartbeat => '1 h')$$);
SELECT open('l'), falls_silent('l', $$SELECT pg_advisory_lock(4343)$$);
TABLE on_record;
TABLE advisory;
TABLE counted;

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

-- what it has published is gone with the term
SELECT open('l'), says('l', $$SELECT le_try_become_leader('hs', heartbeat => '1 h')$$), says('l', $$SELECT le_proclaim('hs', 'value')$$);
SELECT value FROM le_leader('hs');
SELECT falls_silent('l');
CALL le_observe('hs') \gset
SELECT :{?value} AS has_value, :{?token} AS led;

-- a bid for a longer one is none; a lease that is over has none
SELECT le_try_become_leader('hs', heartbeat => '1 h'), le_try_become_leader('hs', heartbeat => '2 h'), le_lease('lease', '1 h') AS t \gset
SELECT heartbeat, expires_in < '1:50' AS sooner, le_resign('lease', :t), le_heartbeat('lease', :t), le_resign('hs') FROM le_leader('hs');
-- a heartbeat counts at once, also in a transaction that is rolled back or cannot write; by a
-- function with its owner's rights, the owner's role counts
SELECT open('l', 'regress_heartbeat_leader'), says('l', $$SELECT le_try_become_leader('hs', identity => 'l', heartbeat => '1 h')$$);
SELECT token AS t, expires_in AS left FROM le_leader('hs') \gset
CREATE FUNCTION beat(t bigint) RETURNS boolean LANGUAGE sql SECURITY DEFINER AS $$ SELECT le_heartbeat('hs', t) $$;
BEGIN READ ONLY;
SET LOCAL ROLE regress_heartbeat_other;
SELECT pg_sleep(1), beat(:t);
RESET ROLE;
ROLLBACK;
SELECT expires_in > :'left'::interval - interval '1 s' AS put_off FROM le_leader('hs');
SELECT dblink_disconnect('l'), gone('l');

TABLE on_record;
TABLE counted;
-- nothing keeps these elections in the registry
SELECT le_try_become_leader(name), le_resign(name) FROM counted;
SELECT pg_stat_leader_election_reset();
TABLE counted;
SELECT dblink_disconnect('worker'), gone('worker');
SET client_min_messages = warning;
DROP SCHEMA regress_heartbeat CASCADE;
DROP EXTENSION dblink;
DROP ROLE regress_heartbeat_leader, regress_heartbeat_other;
