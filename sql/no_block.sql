--
-- Transaction scope outside of a transaction block
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;

-- leadership ends with the statement: a warning, once
SELECT le_try_become_leader_xact('job'), le_become_leader_xact('other'), le_am_leader('job');
\set VERBOSITY sqlstate
SELECT le_become_leader_xact('job', '1 s') FROM generate_series(1, 3);
\set VERBOSITY terse
PREPARE bid AS SELECT le_try_become_leader_xact($1);
EXECUTE bid('job');
DEALLOCATE bid;
WITH won AS MATERIALIZED (SELECT le_try_become_leader_xact('job')) TABLE won;
-- none where the statement is the job
CREATE FUNCTION pg_temp.job() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN le_try_become_leader_xact('job') AND le_am_leader('job');
END $$;
CREATE FUNCTION pg_temp.job_in_query() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN leads FROM le_try_become_leader_xact('job') leads;
END $$;
CREATE FUNCTION pg_temp.job_in_sql() RETURNS boolean LANGUAGE sql AS $$
	SELECT le_try_become_leader_xact('job');
	SELECT le_am_leader('job');
$$;
CREATE PROCEDURE pg_temp.job_called() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM le_try_become_leader_xact('job');
	COMMIT;
	PERFORM le_try_become_leader_xact('job');
END $$;
SELECT pg_temp.job(), pg_temp.job_in_query(), pg_temp.job_in_sql();
SELECT * FROM pg_temp.job_in_sql();
CALL pg_temp.job_called();
DO $$
BEGIN
	PERFORM le_try_become_leader_xact('job');
	EXECUTE 'SELECT le_try_become_leader_xact($1)' USING 'job';
	PERFORM pg_temp.job_in_sql();
END $$;
CREATE TEMP TABLE done (leads boolean);
INSERT INTO done SELECT le_try_become_leader_xact('job');
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
