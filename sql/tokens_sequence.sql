--
-- The sequence of fencing tokens: what is done to it, and that lastval() and currval() are the
-- application's
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;

-- drawn by a role without rights in a read-only transaction
CREATE ROLE regress_le_tokens;
DO $$
BEGIN
	SET LOCAL transaction_read_only = on;
	SET LOCAL ROLE regress_le_tokens;
	FOR i IN 1 .. 1100 LOOP
		BEGIN
			PERFORM le_try_become_leader_xact('job');
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END LOOP;
	RAISE INFO 'read-only: %, role: %', current_setting('transaction_read_only'), current_user;
END
$$;
DROP ROLE regress_le_tokens;

-- an error in mid-draw undoes the change of role and of read-only
BEGIN;
ALTER EXTENSION leader_election DROP SEQUENCE le_token_seq;
ALTER SEQUENCE le_token_seq RENAME TO regress_elsewhere;
SAVEPOINT a;
SELECT le_try_become_leader('job');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO a;
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT le_am_leader('job');
ROLLBACK;

-- nextval's memory belongs to the application
\c -
SELECT count(*) FROM generate_series(1, 1100) WHERE le_try_become_leader_xact('job') AND le_resign_all() = 0;
DO $$ BEGIN FOR i IN 1 .. 1100 LOOP PERFORM le_try_become_leader('job') AND le_resign('job'); END LOOP; END $$;
SELECT lastval();
CREATE TEMP SEQUENCE application;
SELECT setval('application', 77), nextval('application');
DO $$ BEGIN FOR i IN 1 .. 1100 LOOP PERFORM le_try_become_leader('job') AND le_resign('job'); END LOOP; END $$;
SELECT lastval(), currval('application');

-- a sequence that was set back, which should not be done, is put right
SELECT le_try_become_leader('job'), le_token('job') AS t1, le_resign('job') \gset
SELECT setval('le_token_seq', 1);
DO $$ BEGIN FOR i IN 1 .. 1100 LOOP PERFORM le_try_become_leader('job') AND le_resign('job'); END LOOP; END $$;
SELECT le_try_become_leader('job'), le_token('job') > :t1 + 1100 AS greater, le_resign('job');
SELECT last_value > :t1 + 1100 AS last FROM le_token_seq;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;

-- a sequence that an administrator has raised, called or not
SELECT last_value + 1000000 AS raised FROM le_token_seq \gset
ALTER SEQUENCE le_token_seq RESTART WITH :raised;
SELECT count(*) FILTER (WHERE le_try_become_leader('job') AND le_resign('job')) AS elected FROM generate_series(1, 1024);
SELECT le_try_become_leader('job'), le_token('job') >= :raised AS raised, le_resign('job');
SELECT last_value >= :raised + 1023 AS covers FROM le_token_seq;
