--
-- Transaction scope: just as long as pg_try_advisory_xact_lock
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql
-- a plain transaction-level lock, key 42, is taken beside each bid
-- (on_record comes first: the question whether it leads would tidy up)
CREATE TEMP VIEW beside AS
SELECT (SELECT count(*) FROM on_record WHERE name = 'job') AS on_record,
       count(*) FILTER (WHERE objid <> 42) AS election,
       count(*) FILTER (WHERE objid = 42) AS plain,
       le_am_leader('job') AS leads, le_token('job') IS NOT NULL AS token
FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND pid = pg_backend_pid();

-- commit
BEGIN;
SELECT le_try_become_leader_xact('job'), pg_try_advisory_xact_lock(42);
SELECT le_try_become_leader_xact('job'), le_become_leader_xact('job'), le_become_leader_xact('job', '0');
SELECT name, key = hashtextextended('job', 0) AS key, scope FROM le_leaders WHERE name = 'job';
SELECT count(*) AS candidates FROM le_candidates;
SELECT mode, granted FROM advisory;
TABLE beside;
COMMIT;
TABLE beside;
TABLE on_record;

-- rollback, and an error
BEGIN;
SELECT le_try_become_leader_xact('job'), pg_try_advisory_xact_lock(42);
ROLLBACK;
TABLE beside;
BEGIN;
SELECT le_become_leader_xact('job', '1 s'), pg_try_advisory_xact_lock(42);
SELECT 1 / 0;
ROLLBACK;
TABLE beside;

-- outside a block: for the statement
SELECT le_try_become_leader_xact('job'), pg_try_advisory_xact_lock(42), le_am_leader('job');
TABLE beside;

-- rollback to a savepoint set before
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact('job'), pg_try_advisory_xact_lock(42);
TABLE beside;
ROLLBACK TO a;
TABLE beside;
SELECT le_try_become_leader_xact('job'), pg_try_advisory_xact_lock(42);
SELECT 1 / 0;
ROLLBACK TO a;
TABLE beside;
TABLE on_record;
COMMIT;

-- rollback to a savepoint set after
BEGIN;
SELECT le_try_become_leader_xact('job'), pg_try_advisory_xact_lock(42);
SELECT le_token('job') AS t1 \gset
SAVEPOINT a;
SELECT le_try_become_leader_xact('job'), pg_try_advisory_xact_lock(42);
ROLLBACK TO a;
TABLE beside;
SELECT le_token('job') = :t1 AS same;
COMMIT;
TABLE beside;

-- release passes it on, over several levels
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SAVEPOINT c;
SELECT le_try_become_leader_xact('job'), pg_try_advisory_xact_lock(42);
RELEASE c;
TABLE beside;
SAVEPOINT d;
ROLLBACK TO d;
TABLE beside;
RELEASE b;
TABLE beside;
ROLLBACK TO a;
TABLE beside;
COMMIT;
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT le_try_become_leader_xact('job'), pg_try_advisory_xact_lock(42);
RELEASE a;
SAVEPOINT e;
ROLLBACK TO e;
TABLE beside;
COMMIT;
TABLE beside;

-- savepoints of one name
BEGIN;
SAVEPOINT s;
SELECT le_try_become_leader_xact('job'), pg_try_advisory_xact_lock(42);
SAVEPOINT s;
ROLLBACK TO s;
TABLE beside;
RELEASE s;
ROLLBACK TO s;
TABLE beside;
ROLLBACK;

-- many terms in many subtransactions
BEGIN;
SELECT count(*) FROM generate_series(1, 20) i WHERE le_try_become_leader_xact('outer ' || i);
SAVEPOINT a;
SELECT count(*) FROM generate_series(1, 20) i WHERE le_try_become_leader_xact('inner ' || i);
SELECT count(*) FROM generate_series(1, 20) i WHERE le_try_become_leader_xact('outer ' || i);
SELECT count(*) FROM advisory;
ROLLBACK TO a;
SELECT count(*), bool_and(name LIKE 'outer %') FROM le_leaders;
SELECT count(*) FROM advisory;
COMMIT;
SELECT count(*) FROM advisory;

-- an exception block is a subtransaction
SET client_min_messages = warning;
DO $$
BEGIN
	BEGIN
		PERFORM le_try_become_leader_xact('job');
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		RAISE INFO 'after the exception: %', le_am_leader('job');
	END;
	BEGIN
		PERFORM le_try_become_leader_xact('job');
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
	RAISE INFO 'after the block: %', le_am_leader('job');
	COMMIT;
	RAISE INFO 'after the commit: %', le_am_leader('job');
	PERFORM le_try_become_leader_xact('job');
	ROLLBACK;
	RAISE INFO 'after the rollback: %', le_am_leader('job');
	PERFORM le_become_leader_xact('job', '1 s');
END
$$;
RESET client_min_messages;
TABLE beside;

-- a cursor opened before the savepoint: the bid belongs to where it is fetched
BEGIN;
DECLARE c CURSOR FOR SELECT le_try_become_leader_xact('job') FROM generate_series(1, 2);
SAVEPOINT a;
FETCH c;
ROLLBACK TO a;
TABLE beside;
FETCH c;
TABLE beside;
COMMIT;
TABLE beside;
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT le_try_become_leader_xact('job');
COMMIT;
FETCH c;
TABLE beside;
CLOSE c;

-- resigning does not end it
BEGIN;
SELECT le_try_become_leader_xact('job');
SELECT le_resign('job');
SELECT le_resign_all();
TABLE beside;
COMMIT;

-- a session that leads does not lead the same election for the transaction, too
SELECT le_try_become_leader('job'), le_token('job') AS t1 \gset
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact('job');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO a;
SELECT le_become_leader_xact('job', '1 s');
ROLLBACK TO a;
SELECT le_token('job') = :t1 AS same, le_resign('job');
-- once it has resigned, it does, and then not for the session
SELECT le_try_become_leader_xact('job'), le_token('job') > :t1 AS greater;
SAVEPOINT b;
SELECT le_try_become_leader('job');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO b;
SELECT le_become_leader('job', '1 s', heartbeat => '1 h');
ROLLBACK TO b;
CALL le_campaign('job', '1 s', ttl => '1 s');
ROLLBACK TO b;
-- on one line, whatever the name is
SELECT le_try_become_leader_xact(E'jo"b\n');
SELECT le_try_become_leader(E'jo"b\n');
ROLLBACK TO b;
SELECT le_resign('job');
TABLE beside;
ROLLBACK TO a;
SET LOCAL client_min_messages = warning;
SELECT le_try_become_leader('job');
COMMIT;
SELECT le_resign('job');

-- tokens, isolation levels
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT le_try_become_leader_xact('job');
SELECT le_token('job') > :t1 AS greater;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT le_try_become_leader_xact('job', identity => 'me');
SELECT name, identity FROM le_leaders;
COMMIT AND CHAIN;
SHOW transaction_isolation;
TABLE beside;
COMMIT;

-- elected as the transaction commits, by a deferred trigger
CREATE TEMP TABLE t (i int);
CREATE FUNCTION pg_temp.elect() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM le_try_become_leader_xact('job');
	RAISE INFO 'leads: %', le_am_leader('job');
	RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER elect AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION pg_temp.elect();
BEGIN;
INSERT INTO t VALUES (1);
TABLE beside;
COMMIT;
TABLE beside;
DROP TABLE t;

TABLE on_record;
SELECT * FROM advisory;
