--
-- Messages to the client: when they come, and what they say
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;

-- session scope in a transaction block: once per term
BEGIN;
SELECT le_try_become_leader('job');
SELECT le_try_become_leader('job'), le_become_leader('job'), le_become_leader('job', '1 s');
COMMIT;
BEGIN;
SELECT le_try_become_leader('job'), le_try_become_leader('other');
COMMIT;
SELECT le_resign_all();

-- by every way to bid
\set VERBOSITY terse
BEGIN;
SELECT le_become_leader('job'), le_become_leader('job 2', '1 s'), le_become_leader('job 3', '0');
SELECT le_resign_all();
SELECT le_try_become_leader_xact('job'), le_become_leader_xact('job 2');
COMMIT;
SELECT le_resign_all();
-- a new term is a new notice
BEGIN;
SELECT le_try_become_leader('job'), le_resign('job'), le_try_become_leader('job');
ROLLBACK;
SELECT le_resign('job');
-- not outside of a block, not in a function there
SELECT le_try_become_leader('job');
DO $$ BEGIN PERFORM le_try_become_leader('in a function'); END $$;
SELECT le_resign_all();
-- the server cannot tell an exception block from a savepoint in a block
DO $$ BEGIN PERFORM le_try_become_leader('in an exception block'); EXCEPTION WHEN division_by_zero THEN NULL; END $$;
SELECT le_resign_all();
-- in a function in a block
BEGIN;
DO $$ BEGIN PERFORM le_try_become_leader('in a function'); END $$;
COMMIT;
SELECT le_resign_all();
-- to a listener
BEGIN;
SET LOCAL client_min_messages = warning;
SELECT le_try_become_leader('job');
COMMIT;
SELECT le_resign('job');
\set VERBOSITY default

-- a name in a message stays on one line
BEGIN;
SELECT le_try_become_leader(E'line 1\nline 2\t"quoted"\x7f ü');
COMMIT;
SELECT le_resign_all();

-- resigning what is not led
SELECT le_resign('job');
SELECT le_resign(E'line 1\nline 2');
BEGIN;
SELECT le_try_become_leader_xact('job');
SELECT le_resign('job');
COMMIT;
SELECT le_resign_all();

-- the server log's lines are not for clients
SET client_min_messages = log;
SELECT le_try_become_leader('job'), le_resign('job');
SET client_min_messages = debug1;
SET leader_election.log_terms = off;
SELECT le_try_become_leader('job'), le_resign('job');
