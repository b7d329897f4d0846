--
-- Silence: a leader that has given no heartbeat in time leads no more, though its session has the
-- election's lock, and may go on
--
-- What could go wrong: the session, a view, a guard or an observer still takes the term for a
-- running one; its end does not reach what it has left: locks, scopes, statistics; a session whose
-- term was silent cannot lead any more.
--
-- A heartbeat that is to be missed is short; one that must not be is of one hour.
--
\getenv abs_srcdir PG_ABS_SRCDIR
SET client_min_messages = warning;
CREATE SCHEMA regress_silence;
SET search_path = regress_silence, public;
\i :abs_srcdir/sql/include/advisory.psql
\i :abs_srcdir/sql/include/sessions.psql
\i :abs_srcdir/sql/include/outcome.psql
-- returns when the leader is silent.  A look at the views does not end the term
CREATE FUNCTION until_silent(election text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		IF NOT EXISTS (SELECT FROM le_leader(election)) THEN
			RETURN 'silent';
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN 'IT LEADS';
END $$;
CREATE FUNCTION until_silent(election bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		IF NOT EXISTS (SELECT FROM le_leader(election) WHERE token IS NOT NULL) THEN
			RETURN 'silent';
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN 'IT LEADS';
END $$;
CREATE VIEW on_record AS
SELECT name, scope, expires_in FROM _le_registry_terms() WHERE token IS NOT NULL ORDER BY name;
CREATE VIEW counted AS
SELECT name, terms, resigned, transaction_ended, session_ended, lock_released, silent
FROM pg_stat_leader_election WHERE name LIKE 'hs%' ORDER BY name COLLATE "C";
RESET client_min_messages;
\set VERBOSITY terse

-- over for all that look; the session still has the lock
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '100 ms');
SELECT until_silent('hs');
SELECT count(*) FROM le_leaders;
TABLE on_record;
SELECT objsubid, key = le_key('hs') AS key, mode FROM advisory;
SELECT vacant_since IS NOT NULL AS vacant, terms, silent FROM pg_stat_leader_election WHERE name = 'hs';
CALL le_observe('hs') \gset
SELECT :token < 0 AS vacant;
-- its own next call ends the term in place: this one, each time
SELECT le_am_leader('hs');
TABLE on_record;
TABLE advisory;
TABLE counted;
-- an observer sees the same vacancy after that
SELECT :token AS vacancy \gset
CALL le_observe('hs', :vacancy, '0') \gset
SELECT :token = :vacancy AS same;
-- the time that was led ends at the deadline
SELECT le_try_become_leader('hs led', heartbeat => '100 ms');
SELECT until_silent('hs led'), pg_sleep(0.3);
SELECT extract(epoch FROM time_led) AS led, extract(epoch FROM time_vacant) >= 0.3 AS vacant FROM pg_stat_leader_election WHERE name = 'hs led' \gset
SELECT le_am_leader('hs led');
SELECT abs(extract(epoch FROM time_led) - :led) < 0.001 AS same FROM pg_stat_leader_election WHERE name = 'hs led';
-- each call that asks does so
SELECT call, outcome(format($$SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '100 ms'), until_silent('hs')$$)) AS led, outcome(call),
       (SELECT count(*) FROM on_record) AS on_record, (SELECT count(*) FROM advisory) AS locks
FROM unnest(ARRAY[
	$$SELECT le_token('hs')$$,
	$$SELECT le_heartbeat('hs')$$,
	$$SELECT le_heartbeat('hs', token) FROM _le_registry_terms() WHERE name = 'hs'$$,
	$$SELECT le_resign('hs')$$,
	$$SELECT le_resign_all()$$,
	$$SELECT le_am_leader('hs', identity => 'me')$$,
	$$SELECT le_depose('hs')$$]) call;
TABLE counted;
-- it resigns too late: false, with a warning; so it has not resigned
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '100 ms'), le_try_become_leader('hs 2', identity => 'me', heartbeat => '1 h');
SELECT until_silent('hs');
SELECT le_resign('hs');
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '100 ms');
SELECT until_silent('hs');
-- not counted here either
SELECT le_resign_all();
TABLE advisory;
TABLE counted;

-- the session may lead again: another term, with a heartbeat or without
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '1 h'), le_token('hs') AS t1 \gset
SELECT le_try_become_leader('hs', heartbeat => '100 ms');
SELECT until_silent('hs');
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '1 h'), le_token('hs') > :t1 AS greater;
SELECT le_heartbeat('hs', :t1), le_heartbeat('hs'), le_am_leader('hs');
SELECT le_token('hs') AS t1 \gset
SELECT le_try_become_leader('hs', heartbeat => '100 ms');
SELECT until_silent('hs');
SELECT le_try_become_leader('hs'), le_token('hs') > :t1 AS greater;
SELECT heartbeat, expires_in FROM le_leader('hs');
SELECT le_resign('hs');
-- as another client, too, since that one leads no more; by a lease; for many
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '100 ms');
SELECT until_silent('hs');
SELECT le_try_become_leader('hs', identity => 'somebody else', heartbeat => '100 ms');
SELECT until_silent('hs');
SELECT le_lease('hs', '1 h') AS lease \gset
SELECT le_resign('hs', :lease), le_try_become_leader('hs', identity => 'me', heartbeat => '100 ms');
SELECT until_silent('hs');
CALL le_campaign(ARRAY['hs'], '10 s', heartbeat => '1 h') \gset
SELECT :'name' AS name, le_resign('hs');

-- both scopes: the session's heartbeat ends the term of both; the lock stays as long as the
-- transaction
BEGIN;
SELECT le_try_become_leader_xact('hs'), le_token('hs') AS t1 \gset
SELECT le_try_become_leader('hs', heartbeat => '1 h'), le_token('hs') = :t1 AS same;
SELECT scope, heartbeat FROM le_leader('hs');
-- narrowed to the transaction, the term has none
SELECT le_resign('hs');
SELECT scope, heartbeat, expires_in FROM le_leader('hs');
SELECT le_token('hs') = :t1 AS same, le_heartbeat('hs');
-- and widened once more
SELECT le_try_become_leader('hs', heartbeat => '100 ms');
SELECT until_silent('hs');
SELECT le_am_leader('hs');
SELECT count(*) FROM advisory;
SELECT le_try_become_leader('hs', heartbeat => '1 h'), le_token('hs') > :t1 AS greater;
COMMIT;
SELECT scope, heartbeat FROM le_leader('hs');
SELECT count(*) FROM advisory;
SELECT le_resign('hs');
-- narrowed in silence, by the loss of the session's lock: silent it stays
BEGIN;
SELECT le_try_become_leader_xact('hs'), le_try_become_leader('hs', heartbeat => '100 ms');
SELECT until_silent('hs');
SELECT pg_advisory_unlock_all();
SELECT count(*) FROM le_leader('hs');
SELECT le_am_leader('hs');
COMMIT;
-- what ends it after the deadline does not matter
BEGIN;
SELECT le_try_become_leader_xact('hs'), le_try_become_leader('hs', heartbeat => '100 ms');
SELECT until_silent('hs');
ROLLBACK;
TABLE on_record;
SELECT le_am_leader('hs');
SELECT le_try_become_leader('hs', heartbeat => '100 ms');
SELECT until_silent('hs');
SELECT pg_advisory_unlock_all();
TABLE on_record;
TABLE advisory;
TABLE counted;

-- savepoints: a bid for the session stands, and with it the heartbeat, as it was set last
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader('hs', heartbeat => '1 h'), le_token('hs') AS t1 \gset
SAVEPOINT b;
SELECT le_try_become_leader('hs', heartbeat => '2 h');
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
-- silent in a savepoint, and ended there: the rollback brings nothing back
SAVEPOINT f;
SELECT le_try_become_leader('hs 3', heartbeat => '100 ms');
SELECT until_silent('hs 3');
SELECT le_am_leader('hs 3');
ROLLBACK TO f;
SELECT le_am_leader('hs 3');
COMMIT;
TABLE on_record;
TABLE advisory;

-- guards refuse the token of a silent leader
CREATE TABLE work (done text);
CREATE TRIGGER guard BEFORE INSERT ON work FOR EACH STATEMENT EXECUTE FUNCTION le_guard('hs');
SELECT open('worker');
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '1 h'), le_token('hs') AS t1 \gset
SELECT says('worker', format($$SELECT set_config('leader_election.token', '%s', false) IS NOT NULL$$, :t1));
INSERT INTO work VALUES ('in time');
SELECT says('worker', $$INSERT INTO work VALUES ('in time')$$), says('worker', format($$SELECT le_assert_leader('hs', %s)$$, :t1));
-- at the commit
BEGIN;
INSERT INTO work VALUES ('late');
SELECT says('worker', 'BEGIN'), says('worker', $$INSERT INTO work VALUES ('late')$$);
SELECT le_try_become_leader('hs', heartbeat => '100 ms');
SELECT until_silent('hs');
SELECT says('worker', 'COMMIT');
\set VERBOSITY sqlstate
COMMIT;
-- the commit has found it: the term has been ended
TABLE on_record;
-- by the assertion, and in the trigger
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '1 h'), le_token('hs') AS t1 \gset
SELECT le_try_become_leader('hs', heartbeat => '100 ms');
SELECT until_silent('hs');
SELECT says('worker', format($$SELECT set_config('leader_election.token', '%s', false) IS NOT NULL$$, :t1));
SELECT says('worker', format($$SELECT le_assert_leader('hs', %s)$$, :t1)), says('worker', $$INSERT INTO work VALUES ('late')$$);
TABLE on_record;
SELECT le_assert_leader('hs');
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '100 ms');
SELECT until_silent('hs');
INSERT INTO work VALUES ('late');
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '1 h'), le_token('hs') AS t1 \gset
SELECT le_try_become_leader('hs', heartbeat => '100 ms');
SELECT until_silent('hs');
SELECT le_assert_leader('hs', :t1);
\set VERBOSITY terse
SELECT done, count(*) FROM work GROUP BY done;
SELECT count(*) FROM advisory;

-- a session's term is no reason not to prepare; a silent leader's guard is
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '1 h'), le_token('hs') AS t1 \gset
BEGIN;
INSERT INTO work VALUES ('prepared');
PREPARE TRANSACTION 'regress_heartbeat';
SELECT le_am_leader('hs'), le_heartbeat('hs'), heartbeat FROM le_leader('hs');
COMMIT PREPARED 'regress_heartbeat';
BEGIN;
INSERT INTO work VALUES ('late');
SELECT le_try_become_leader('hs', heartbeat => '100 ms');
SELECT until_silent('hs');
\set VERBOSITY sqlstate
PREPARE TRANSACTION 'regress_heartbeat';
\set VERBOSITY terse
SELECT gid FROM pg_prepared_xacts;
-- prepared in time, its guard holds after the deadline, too: none is elected
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '1 h'), le_token('hs') AS t1 \gset
BEGIN;
INSERT INTO work VALUES ('in time');
PREPARE TRANSACTION 'regress_heartbeat';
SELECT le_try_become_leader('hs', heartbeat => '100 ms');
SELECT until_silent('hs');
SELECT le_try_become_leader('hs');
COMMIT PREPARED 'regress_heartbeat';
SELECT le_try_become_leader('hs'), le_resign('hs');
SELECT done, count(*) FROM work GROUP BY done ORDER BY done;

-- bare keys: shown as held, but led by none
SELECT le_try_become_leader(4343, identity => 'me', heartbeat => '1 h'), le_token(4343) AS t1 \gset
SELECT le_try_become_leader(4343, heartbeat => '100 ms');
SELECT until_silent(4343);
SELECT key, scope, identity, token, pid = pg_backend_pid() AS pid, heartbeat, expires_in FROM le_leader(4343);
SELECT le_am_leader(4343), le_heartbeat(4343), le_heartbeat(4343, :t1);
TABLE advisory;
SELECT le_try_become_leader(4343, identity => 'me', heartbeat => '100 ms');
SELECT until_silent(4343);
-- a hold of the application's own stays when the term ends
SELECT pg_advisory_lock(4343);
SELECT le_am_leader(4343);
TABLE advisory;
SELECT pg_advisory_unlock(4343), pg_advisory_unlock(4343);
TABLE advisory;

-- the lock is lost after the timer has found the term silent: that was first
SELECT le_try_become_leader('hs first', identity => 'me', heartbeat => '100 ms'), pg_sleep(0.3);
SELECT pg_advisory_unlock_all();
SELECT silent, lock_released FROM pg_stat_leader_election WHERE name = 'hs first';

-- a transaction that holds the lock, too, keeps it to its end, and no longer
BEGIN;
SELECT le_try_become_leader('hs both', identity => 'me', heartbeat => '100 ms') AS session, le_try_become_leader_xact('hs both') AS transaction;
SELECT pg_sleep(0.3);
SELECT le_am_leader('hs both'), le_resign_all();
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT silent, transaction_ended FROM pg_stat_leader_election WHERE name = 'hs both';

-- what it has published is gone with the term
SELECT le_try_become_leader('hs', identity => 'me', heartbeat => '1 h');
SELECT le_proclaim('hs', 'value');
SELECT le_try_become_leader('hs', heartbeat => '100 ms');
SELECT until_silent('hs');
CALL le_observe('hs') \gset
SELECT :{?value} AS has_value, :token < 0 AS vacant;
SELECT le_proclaim('hs', 'late');
SELECT le_am_leader('hs');

TABLE on_record;
TABLE counted;
-- nothing keeps these elections in the registry
SELECT name, le_forget(name) FROM counted;
SELECT le_forget(4343);
SELECT dblink_disconnect('worker'), gone('worker');
SET client_min_messages = warning;
DROP SCHEMA regress_silence CASCADE;
DROP EXTENSION dblink;
