--
-- Transaction scope outside of a transaction block
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;

-- leadership ends with the statement: a notice
SELECT le_try_become_leader_xact('job'), le_become_leader_xact('other'), le_am_leader('job');
SELECT le_am_leader('job');
\set VERBOSITY terse
PREPARE bid AS SELECT le_try_become_leader_xact($1);
EXECUTE bid('job');
DEALLOCATE bid;
-- the statement can be the job
CREATE FUNCTION pg_temp.job() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN le_try_become_leader_xact('job') AND le_am_leader('job');
END $$;
SELECT pg_temp.job();
-- none in a block, also an implicit one
BEGIN;
SELECT le_try_become_leader_xact('job');
SAVEPOINT a;
SELECT le_try_become_leader_xact('job');
COMMIT;
SELECT le_try_become_leader_xact('job')\; SELECT le_am_leader('job');
\set AUTOCOMMIT off
SELECT le_try_become_leader_xact('job');
COMMIT;
\set AUTOCOMMIT on
