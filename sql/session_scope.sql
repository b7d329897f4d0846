--
-- Session scope: leads until it resigns, whatever becomes of transactions
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/advisory.psql

-- asked ten times, resigned once, free
SELECT count(*) FILTER (WHERE le_try_become_leader('job')) AS elected
FROM generate_series(1, 10);
SELECT le_try_become_leader('job'), le_become_leader('job'), le_become_leader('job', '0'), le_become_leader('job', '1 ms');
SELECT objsubid, key = hashtextextended('job', 0) AS key, mode, granted FROM advisory;
SELECT le_am_leader('job'), le_token('job') IS NOT NULL AS token;
SELECT name, scope, candidates FROM le_leaders;
SELECT le_resign('job');
SELECT * FROM advisory;
SELECT * FROM le_leaders;
SELECT le_am_leader('job'), le_token('job');
SELECT le_resign('job');
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;

-- several elections; one resignation does not touch the others
SELECT le_try_become_leader('other'), le_try_become_leader('third'), le_become_leader('fourth', identity => 'me');
SELECT le_resign('other');
SELECT name, identity FROM le_leaders ORDER BY name;
SELECT le_resign_all();
SELECT le_resign_all();
SELECT * FROM le_leaders;
SELECT * FROM advisory;

-- the end of the transaction is nothing to it, whichever end
BEGIN;
SELECT le_try_become_leader('commit');
SELECT le_try_become_leader('commit');
COMMIT;
BEGIN;
SELECT le_try_become_leader('rollback');
ROLLBACK;
BEGIN;
SELECT le_try_become_leader('error');
SELECT 1 / 0;
SELECT le_am_leader('error');
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader('rollback to');
SELECT le_token('rollback to') AS t1 \gset
ROLLBACK TO a;
SELECT le_am_leader('rollback to'), le_token('rollback to') = :t1 AS same;
SAVEPOINT b;
SELECT le_try_become_leader('release');
RELEASE b;
SAVEPOINT c;
SAVEPOINT d;
SELECT le_try_become_leader('deep');
SELECT 1 / 0;
ROLLBACK TO c;
SELECT le_am_leader('deep');
ROLLBACK;
SELECT name, scope FROM le_leaders ORDER BY name;
SELECT count(*) FROM advisory;

-- a resignation is not undone either
BEGIN;
SELECT le_resign('commit');
SAVEPOINT a;
SELECT le_resign('deep');
ROLLBACK TO a;
SELECT le_am_leader('deep');
ROLLBACK;
SELECT le_am_leader('commit'), le_am_leader('deep');
BEGIN;
SELECT le_resign_all();
ROLLBACK;
SELECT count(*) FROM advisory;

-- errors on the way leave it alone
SELECT le_try_become_leader('job');
SELECT le_token('job') AS t1 \gset
SELECT 1 / 0;
SELECT le_try_become_leader('');
SELECT le_try_become_leader('job', identity => ''), 1;
SELECT le_try_become_leader('job'), 1 / 0;
SELECT le_token('job') = :t1 AS same;
SELECT le_resign('job'), 1 / (length('') + 0);
SELECT le_am_leader('job');

-- many rows, CTEs, subqueries, cursors
SELECT count(*) FROM generate_series(1, 50) i WHERE le_try_become_leader('row ' || i);
SELECT count(*) FROM le_leaders;
WITH bids AS MATERIALIZED (SELECT i, le_try_become_leader('row ' || i % 5) AS won FROM generate_series(1, 20) i),
     tokens AS (SELECT le_token('row ' || i % 5) AS token FROM bids WHERE won)
SELECT count(*), count(DISTINCT token) FROM tokens;
SELECT le_resign_all();
BEGIN;
DECLARE c CURSOR FOR SELECT le_try_become_leader('cursor ' || i) FROM generate_series(1, 3) i;
FETCH 2 FROM c;
SELECT name FROM le_leaders ORDER BY name;
CLOSE c;
ROLLBACK;
SELECT name FROM le_leaders ORDER BY name;
SELECT le_resign_all();

-- in PL/pgSQL, with and without an exception block
SET client_min_messages = warning;
DO $$
BEGIN
	PERFORM le_try_become_leader('do');
	BEGIN
		PERFORM le_try_become_leader('caught');
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		RAISE INFO 'leads: %', le_am_leader('caught');
	END;
	BEGIN
		PERFORM le_try_become_leader(NULL::text);
	EXCEPTION WHEN null_value_not_allowed THEN
		RAISE INFO '%', SQLERRM;
	END;
	COMMIT;
	RAISE INFO 'leads: %, %', le_am_leader('do'), le_am_leader('caught');
	PERFORM le_try_become_leader('rolled back');
	ROLLBACK;
	RAISE INFO 'leads: %', le_am_leader('rolled back');
	PERFORM le_resign('do');
	ROLLBACK;
END
$$;
RESET client_min_messages;
SELECT name, scope FROM le_leaders ORDER BY name;
CREATE FUNCTION pg_temp.fail_after_bid(name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM le_try_become_leader(name);
	RAISE 'failed after the bid';
END
$$;
\set VERBOSITY terse
SELECT pg_temp.fail_after_bid('function');
\set VERBOSITY default
SELECT le_am_leader('function');
SELECT le_resign_all();

-- read-only transactions and every isolation level
BEGIN READ ONLY;
SELECT le_try_become_leader('read only');
SHOW transaction_read_only;
CREATE TABLE no_table ();
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT le_try_become_leader('repeatable read');
SELECT count(*) FROM le_leaders;
SELECT le_resign('repeatable read');
SELECT name FROM le_leaders;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE;
SELECT le_try_become_leader('serializable');
SELECT le_am_leader('serializable'), le_am_leader('read only');
COMMIT;
SELECT le_resign_all();

-- one statement string is a transaction block, too
SELECT 1 AS one\; SELECT le_try_become_leader('string');
SELECT le_resign('string');

SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
SELECT * FROM advisory;
