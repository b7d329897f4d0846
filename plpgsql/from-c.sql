/*
 * from-c.sql: move the elections back from the C extension to the SQL edition
 *
 * A superuser runs this script after to-c.sql, from the directory that
 * leader_election.sql is in:
 *
 *		psql -X -v ON_ERROR_STOP=1 -f from-c.sql
 *
 * Leases continue with their tokens.  Sessions that lead or wait are terminated,
 * and others are elected by the SQL edition.  The script drops the extension.
 *
 * First, the functions of "le" let no new term begin.  As soon as all statements
 * that were running at that time have ended, the extension elects no more, and
 * its leaders can be taken over.
 */
\set ON_ERROR_STOP 1

DO $$
BEGIN
	IF NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) THEN
		RAISE EXCEPTION 'only a superuser can move elections from the C extension';
	ELSIF NOT (SELECT s.moved FROM le.le_settings s) THEN
		RAISE EXCEPTION 'the elections have not moved to the C extension by to-c.sql';
	END IF;
END $$;

-- Calls that bid do not, and others still call the extension
BEGIN;
DO $$
DECLARE
	f record;
BEGIN
	FOR f IN
		SELECT p.oid, p.proname AS name, p.prokind AS kind, pg_catalog.pg_get_function_arguments(p.oid) AS arguments,
			pg_catalog.pg_get_function_result(p.oid) AS result, p.proargnames[1] AS first
		FROM pg_catalog.pg_proc p
		WHERE p.pronamespace = 'le'::pg_catalog.regnamespace
			AND p.proname IN ('le_try_become_leader', 'le_become_leader', 'le_campaign', 'le_lease', 'le_try_become_leader_xact',
				'le_become_leader_xact')
	LOOP
		EXECUTE pg_catalog.format('CREATE OR REPLACE %s le.%I(%s) %s LANGUAGE plpgsql AS %L',
			CASE f.kind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END, f.name, f.arguments,
			'RETURNS ' || f.result,
			CASE
			WHEN f.name = 'le_lease' THEN $b$BEGIN
				RETURN CASE WHEN token IS NOT NULL AND leader_election.le_renew(name, token, ttl) THEN token END;
			END$b$
			WHEN f.name = 'le_try_become_leader' THEN
				pg_catalog.format('BEGIN RETURN leader_election.le_am_leader(%I); END', f.first)
			WHEN f.name = 'le_try_become_leader_xact' THEN 'BEGIN RETURN false; END'
			ELSE $b$BEGIN
				RAISE serialization_failure USING MESSAGE = 'the elections move to the SQL edition', HINT = 'Retry.';
			END$b$ END);
	END LOOP;
END $$;
COMMIT;

-- Candidates end.  Other statements that had begun before may still bid: wait for them.
DO $$
DECLARE
	began pg_catalog.timestamptz := pg_catalog.clock_timestamp();
	told boolean := false;
	others text;
BEGIN
	LOOP
		PERFORM pg_catalog.pg_terminate_backend(c.pid, 5000) FROM leader_election.le_candidates c WHERE c.pid IS NOT NULL;
		SELECT pg_catalog.string_agg(a.pid::text, ', ') INTO others FROM pg_catalog.pg_stat_get_activity(NULL) a
		WHERE a.datid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
			AND a.pid <> pg_catalog.pg_backend_pid() AND a.state IN ('active', 'fastpath function call')
			AND a.query_start <= began
			AND a.pid IN (SELECT b.pid FROM pg_catalog.pg_stat_get_activity(NULL) b
				WHERE b.backend_type = 'client backend');
		EXIT WHEN others IS NULL;
		IF NOT told AND pg_catalog.clock_timestamp() > began + interval '2 s' THEN
			RAISE NOTICE 'waiting for the statements of these processes, which began before the move: %', others;
			told := true;
		END IF;
		PERFORM pg_catalog.pg_sleep(0.02), pg_catalog.pg_stat_clear_snapshot();
	END LOOP;
END $$;

-- Terms in session scope end with their sessions
SELECT pg_catalog.count(pg_catalog.pg_terminate_backend(e.pid, 5000)) AS sessions_terminated
FROM leader_election.le_leaders e WHERE e.pid IS NOT NULL AND e.name IS NOT NULL;

BEGIN;
-- guards and renewals end, and the row of a lease is written by no other session
DO $$
BEGIN
	LOOP
		BEGIN
			SET LOCAL lock_timeout = '100 ms';
			LOCK TABLE leader_election.le_leases, leader_election.le_declarations, leader_election.le_once_done IN ACCESS EXCLUSIVE MODE;
			LOCK TABLE le.le_elections IN EXCLUSIVE MODE;
			SET LOCAL lock_timeout = 0;
			EXIT;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			PERFORM pg_catalog.pg_sleep(0.05);
		END;
	END LOOP;
	IF EXISTS (SELECT FROM leader_election.le_leaders e WHERE e.pid IS NOT NULL AND e.name IS NOT NULL) THEN
		RAISE EXCEPTION 'a session that leads has not ended'
			USING HINT = 'Run this script again.';
	END IF;
END $$;
-- Tokens go on from the clock, and from those of the extension if these are ahead of it
SELECT pg_catalog.setval('le.le_token_seq', greatest(
	pg_catalog.pg_sequence_last_value('le.le_token_seq'),
	pg_catalog.pg_sequence_last_value('leader_election.le_token_seq'),
	((extract(epoch FROM pg_catalog.clock_timestamp()) - 1735689600) * 4194304)::bigint));

INSERT INTO le.le_elections AS e (name, token, scope, role, pid, xact, beacon, since, renewed_at, renewals, lasts, creator,
	shows_client, identity, value)
SELECT l.name, l.token, 'lease', l.role, 0, pg_catalog.pg_current_xact_id(), le._le_new_beacon(), l.since, pg_catalog.clock_timestamp(),
	0, l.ttl, l.role, l.identity_has_client, l.identity, t.value
FROM leader_election.le_leases l
JOIN leader_election.le_leaders t ON t.name = l.name AND t.token = l.token AND t.scope = 'lease'
ON CONFLICT (name) DO UPDATE SET token = EXCLUDED.token, scope = 'lease', role = EXCLUDED.role, pid = 0, xact = EXCLUDED.xact,
	since = EXCLUDED.since, renewed_at = EXCLUDED.renewed_at, renewals = 0, lasts = EXCLUDED.lasts, ended = NULL,
	suspect_at = NULL, shows_client = EXCLUDED.shows_client, identity = EXCLUDED.identity, value = EXCLUDED.value;
INSERT INTO le.le_once_done AS o (name, due, token, role)
SELECT d.name, d.due, d.token, d.role FROM leader_election.le_once_done d
ON CONFLICT (name) DO UPDATE SET due = EXCLUDED.due, token = EXCLUDED.token, role = EXCLUDED.role
WHERE o.due < EXCLUDED.due;
UPDATE le.le_settings SET moved = false, elects = true;

-- the functions of "le" as they were, with the rights of the schema's owner
SELECT pg_catalog.format('SET LOCAL ROLE %s', n.nspowner::pg_catalog.regrole)
FROM pg_catalog.pg_namespace n WHERE n.nspname = 'le' \gexec
\ir leader_election.sql
RESET ROLE;
DROP EXTENSION leader_election;
DROP SCHEMA leader_election;
-- a renewal by the extension may have come after the look at it
UPDATE le.le_elections SET renewed_at = pg_catalog.clock_timestamp() + interval '0.9 s'
WHERE scope = 'lease' AND ended IS NULL AND token IS NOT NULL;
COMMIT;
SELECT le.le_version();
