--
-- Fencing tokens: they grow, and leave lastval() and currval() alone
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;

-- NULL without leadership, constant within a term, as the view shows it
SELECT le_token('job'), le_token(42);
SELECT le_try_become_leader('job'), le_try_become_leader(42);
SELECT le_token('job') AS t1, le_token(42) AS t2 \gset
SELECT :t1 >= 1 AS positive, :t2 > :t1 AS grows;
SELECT token = :t1 AS name, (SELECT token = :t2 FROM le_leaders WHERE key = 42) AS key FROM le_leader('job');
SELECT le_try_become_leader('job'), le_token('job') = :t1 AS same;

-- it begins by the clock, in seconds since 2025, and is exact where numbers are floats
SELECT now() - to_timestamp(:t1 / (1 << 22) + 1735689600) BETWEEN '0' AND '1 day' AS clock, (:t1::float8)::bigint = :t1 AS exact;
SELECT setval('le_token_seq', (2 ^ 53)::bigint);

-- a question draws none, nor does a bid of the leader
SELECT le_try_become_leader('job'), le_become_leader('job'), le_am_leader('job'), le_token('job') IS NULL FROM generate_series(1, 3);
SELECT le_try_become_leader('next'), le_token('next') = :t2 + 1 AS next;
SELECT le_resign_all();

-- nor does a bid that is denied
BEGIN;
SELECT pg_advisory_xact_lock(43);
PREPARE TRANSACTION 'regress_tokens';
SELECT le_try_become_leader('job'), le_token('job') AS t1 \gset
SELECT le_try_become_leader(43), le_become_leader(43, '1 ms');
ROLLBACK PREPARED 'regress_tokens';
SELECT le_try_become_leader(43), le_token(43) = :t1 + 1 AS next;
SELECT le_resign_all();

-- a rollback takes none back
SELECT le_try_become_leader('job'), le_token('job') AS t1, le_resign('job') \gset
BEGIN;
SELECT le_try_become_leader_xact('job'), le_token('job') > :t1 AS greater;
SELECT le_token('job') AS t1 \gset
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact('job'), le_token('job') > :t1 AS greater;
SELECT le_token('job') AS t1 \gset
ROLLBACK TO a;
SELECT le_try_become_leader_xact('job'), le_token('job') > :t1 AS greater;
COMMIT;

-- strictly growing, over the ends of blocks, drawn by a role without rights, in
-- a read-only transaction, under an exception block
CREATE ROLE regress_le_tokens;
DO $$
DECLARE
	tokens bigint[];
BEGIN
	SET LOCAL leader_election.log_terms = off;
	SET LOCAL transaction_read_only = on;
	SET LOCAL ROLE regress_le_tokens;
	FOR i IN 1 .. 2500 LOOP
		BEGIN
			PERFORM le_try_become_leader_xact('job');
			tokens[i] = le_token('job');
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END LOOP;
	RAISE INFO 'tokens: %, read-only: %, role: %', cardinality(tokens),
		current_setting('transaction_read_only'), current_user;
	PERFORM set_config('regress.tokens', tokens::text, false);
END
$$;
SELECT count(*) AS not_growing
FROM (SELECT t, lag(t) OVER (ORDER BY i) AS before
      FROM unnest(current_setting('regress.tokens')::bigint[]) WITH ORDINALITY u(t, i)) AS d
WHERE t <= before;
SELECT current_user = session_user AS role_restored;

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
SELECT last_value AS last FROM le_token_seq \gset
SELECT max(t) AS t1 FROM unnest(current_setting('regress.tokens')::bigint[]) t \gset
SELECT :last >= :t1 AS last_value_covers_all;
DROP ROLE regress_le_tokens;
SELECT le_try_become_leader('job'), le_token('job') > :t1 AS greater, le_resign('job');

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
SELECT le_try_become_leader('job'), le_token('job') BETWEEN :raised AND :raised + 1024 AS raised, le_resign('job');
SELECT last_value BETWEEN :raised + 1023 AND :raised + 2047 AS covers FROM le_token_seq;
