--
-- Waiting: what ends a wait without leadership leaves nothing behind
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql
SET client_min_messages = warning;
\i :abs_srcdir/sql/include/sessions.psql
SELECT open('leader'), says('leader', $$SELECT le_try_become_leader('led')$$), says('leader', 'SELECT pg_advisory_lock(42)');
CREATE TEMP VIEW state AS
SELECT (SELECT count(*) FROM advisory) AS locks, (SELECT count(*) FROM le_candidates WHERE name = 'led') AS candidates,
       current_setting('lock_timeout') AS lock_timeout, le_am_leader('led') AS leads;

-- timeout over: false, in every scope, and the transaction goes on
SELECT le_become_leader('led', '1 ms'), le_become_leader_xact('led', '1 ms'), le_become_leader('led', '1 us'), le_become_leader('led', '0');
TABLE state;
BEGIN;
SELECT le_try_become_leader_xact('job');
SAVEPOINT a;
SELECT le_become_leader('led', '10 ms'), le_become_leader_xact('led', '10 ms');
SELECT le_am_leader('job');
TABLE state;
ROLLBACK TO a;
SELECT le_am_leader('job');
COMMIT;
SELECT clock_timestamp() AS t0 \gset
SELECT le_become_leader('led', '200 ms');
SELECT clock_timestamp() - :'t0' >= '200 ms' AS long_enough, clock_timestamp() - :'t0' < '10 s' AS not_too_long;
SELECT count(*) FROM generate_series(1, 5) WHERE NOT le_become_leader('led', '1 ms');
BEGIN READ ONLY;
SELECT le_become_leader('led', '1 ms');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT le_become_leader('led', '1 ms');
COMMIT;

-- in PL/pgSQL, with commits after it, and from a cursor
DO $$
BEGIN
	RAISE INFO '%', le_become_leader('led', '1 ms');
	COMMIT;
	BEGIN
		RAISE INFO '%', le_become_leader_xact('led', '1 ms');
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
	RAISE INFO '%', le_become_leader('led', '1 ms');
	ROLLBACK;
END
$$;
BEGIN;
DECLARE c CURSOR FOR SELECT i, le_become_leader('led', '1 ms') FROM generate_series(1, 3) i;
FETCH 1 FROM c;
SAVEPOINT a;
FETCH 1 FROM c;
ROLLBACK TO a;
FETCH 1 FROM c;
COMMIT;
TABLE state;

-- lock_timeout: an error if it is due first, whatever the timeout
SET lock_timeout = '20 ms';
SELECT le_become_leader('led');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader('led', '1 min');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader('led', '1 ms');
TABLE state;
BEGIN;
SAVEPOINT a;
SELECT le_become_leader_xact('led', '1 min');
ROLLBACK TO a;
TABLE state;
COMMIT;
RESET lock_timeout;

-- the wait's own timeout is not left behind for other locks
SELECT le_become_leader('led', '1 ms');
SET statement_timeout = '100 ms';
SELECT pg_advisory_lock(42);
\echo :LAST_ERROR_SQLSTATE

-- statement_timeout
SELECT le_become_leader('led');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader('led', '1 min');
\echo :LAST_ERROR_SQLSTATE
TABLE state;
DO $$
BEGIN
	PERFORM le_become_leader('led', '1 min');
EXCEPTION WHEN query_canceled THEN
	RAISE INFO 'caught: % candidates, lock_timeout %', (SELECT count(*) FROM le_candidates), current_setting('lock_timeout');
END
$$;
RESET statement_timeout;
TABLE state;

-- free: elected, and no wait
SELECT says('leader', $$SELECT le_resign('led')$$), dblink_disconnect('leader');
SELECT le_become_leader('led', '1 ms');
BEGIN;
SELECT le_become_leader_xact('xact', '1 ms');
COMMIT;
SELECT le_resign_all();
TABLE state;
SELECT * FROM le_candidates;
DROP FUNCTION open, says, waits, answer, gone;
DROP EXTENSION dblink;
