--
-- Locks that go away behind the extension's back, and what does not take them
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
CREATE SCHEMA regress_le;
CREATE VIEW regress_le.state AS
SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
        AND objsubid IN (1, 2, 19525)) AS locks,
       (SELECT count(*) FROM le_leaders) AS leaders,
       (SELECT count(*) FROM _le_registry_terms() WHERE token IS NOT NULL) AS on_record;

-- what a term survives
SELECT le_try_become_leader('job'), le_try_become_leader('other');
SELECT le_token('job') AS t1, le_token('other') AS t2 \gset
RESET ALL;
RESET SESSION AUTHORIZATION;
DISCARD PLANS;
DISCARD SEQUENCES;
DISCARD TEMP;
UNLISTEN *;
CLOSE ALL;
DEALLOCATE ALL;
SET client_min_messages = notice;
ROLLBACK;
SELECT le_token('job') = :t1 AS job, le_token('other') = :t2 AS other;
TABLE regress_le.state;

-- DISCARD ALL, as a pool sends it
DISCARD ALL;
TABLE regress_le.state;
SELECT le_am_leader('job'), le_am_leader('other'), le_token('job');
SELECT le_resign('job');
SELECT le_resign_all();
SELECT le_try_become_leader('job'), le_token('job') > :t1 AS greater;

-- pg_advisory_unlock_all() outside of a block
SELECT pg_advisory_unlock_all();
TABLE regress_le.state;
SELECT le_am_leader('job');

-- in a block: no leader at once, and a rollback does not bring it back
SELECT le_try_become_leader('job'), le_try_become_leader('other');
SELECT le_token('job') AS t1 \gset
BEGIN;
SELECT pg_advisory_unlock_all();
SELECT le_am_leader('job'), le_token('job'), le_am_leader('other');
SELECT * FROM le_leaders;
SELECT * FROM le_leader('job');
SELECT le_resign('job');
SELECT le_resign_all();
ROLLBACK;
TABLE regress_le.state;

-- re-elected in the same transaction: another term
SELECT le_try_become_leader('first'), le_try_become_leader('job'), le_try_become_leader('last');
SELECT le_token('job') AS t1 \gset
BEGIN;
SELECT pg_advisory_unlock_all();
SELECT le_try_become_leader('job', identity => 'again'), le_token('job') > :t1 AS greater;
SELECT name, identity FROM le_leaders;
COMMIT;
SELECT name, identity FROM le_leaders;
TABLE regress_le.state;
SELECT le_am_leader('first'), le_am_leader('job'), le_am_leader('last'), le_resign('job');

-- in transaction scope
SELECT le_try_become_leader('job');
SELECT le_token('job') AS t1 \gset
BEGIN;
SELECT pg_advisory_unlock_all();
SELECT le_try_become_leader_xact('job'), le_token('job') > :t1 AS greater;
SELECT name, scope FROM le_leaders;
COMMIT;
TABLE regress_le.state;

-- in one statement
SELECT le_try_become_leader('job'), le_token('job') AS t1 \gset
SELECT pg_advisory_unlock_all(), le_am_leader('job'), le_try_become_leader('job'), le_token('job') > :t1 AS greater;
SELECT le_am_leader('job'), pg_advisory_unlock_all(), le_resign_all(), le_am_leader('job');
TABLE regress_le.state;

-- resign_all counts what it ended, not what had ended before
SELECT le_try_become_leader('one'), le_try_become_leader('two');
SELECT pg_advisory_unlock_all(), le_resign_all();

-- transaction scope is not touched
BEGIN;
SELECT le_try_become_leader_xact('job');
SELECT pg_advisory_unlock_all();
SELECT le_am_leader('job'), scope FROM le_leader('job');
COMMIT;

-- beside a term in transaction scope
BEGIN;
SET LOCAL client_min_messages = warning;
SELECT le_try_become_leader_xact('job'), le_try_become_leader('other');
SELECT pg_advisory_unlock_all();
SELECT name, scope FROM le_leaders;
SELECT le_resign_all();
COMMIT;
TABLE regress_le.state;

-- in a savepoint: a rollback to it does not bring the lock back
SELECT le_try_become_leader('job');
BEGIN;
SAVEPOINT a;
SELECT pg_advisory_unlock_all();
ROLLBACK TO a;
SELECT le_am_leader('job');
COMMIT;
TABLE regress_le.state;

-- in a function, after which another bid is caught
SELECT le_try_become_leader('job');
DO $$
BEGIN
	BEGIN
		PERFORM pg_advisory_unlock_all();
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		RAISE INFO 'leads: %', le_am_leader('job');
	END;
	RAISE INFO 'elected: %', le_try_become_leader('job');
END
$$;
SELECT le_am_leader('job'), le_resign('job');

TABLE regress_le.state;
SET client_min_messages = warning;
DROP SCHEMA regress_le CASCADE;

-- a transaction that is rolled back leaves no term on record without its lock
BEGIN;
SELECT le_try_become_leader('a'), le_try_become_leader_xact('x'), le_try_become_leader('b');
SELECT pg_advisory_unlock_all();
ROLLBACK;
SELECT name FROM _le_registry_terms() WHERE token IS NOT NULL;
BEGIN;
SELECT le_try_become_leader('a'), le_try_become_leader('b');
SAVEPOINT s;
SELECT pg_advisory_unlock_all();
ROLLBACK TO s;
SELECT name FROM _le_registry_terms() WHERE token IS NOT NULL;
COMMIT;
