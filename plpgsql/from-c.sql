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
 *
 * The script waits for these statements, and for transactions that use the
 * extension or have read its views, for at most 10 seconds each
 * (-v wait='1 min').  If it gives up, the extension elects on.
 */
\ir move.sql

BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT pg_temp.lock_elections(:'wait') AS users \gset
SELECT :'users' <> '' AS used \gset
\if :used
	ROLLBACK;
	\warn 'elections are used by open transactions of these processes:' :users
	DO $$ BEGIN
		RAISE EXCEPTION 'could not move the elections to the SQL edition'
			USING HINT = 'Retry, or end those transactions.';
	END $$;
\endif
DO $$
BEGIN
	IF NOT (SELECT s.moved FROM le.le_settings s) THEN
		RAISE EXCEPTION 'the elections have not moved to the C extension by to-c.sql';
	ELSIF NOT EXISTS (SELECT FROM pg_extension e, pg_namespace n, pg_roles r
			WHERE e.extname = 'leader_election' AND n.oid = e.extnamespace AND n.nspname = 'leader_election'
				AND r.oid = n.nspowner AND r.rolsuper) THEN
		RAISE EXCEPTION 'the C extension is not in a schema "leader_election" of a superuser';
	END IF;
END $$;

-- Calls that bid do not, and others still call the extension
DO $$
DECLARE
	f record;
BEGIN
	FOR f IN
		SELECT x.proname AS name, x.prokind AS kind, pg_get_function_arguments(x.oid) AS arguments,
			pg_get_function_result(x.oid) AS result, x.proargnames[1] AS first
		FROM pg_proc p
		JOIN pg_proc x ON x.pronamespace = 'leader_election'::regnamespace AND x.proname = p.proname
			AND x.proargtypes = p.proargtypes
		WHERE p.pronamespace = 'le'::regnamespace
			AND p.proname IN ('le_try_become_leader', 'le_become_leader', 'le_campaign', 'le_lease', 'le_try_become_leader_xact',
				'le_become_leader_xact')
	LOOP
		EXECUTE format('CREATE OR REPLACE %s le.%I(%s) %s LANGUAGE plpgsql AS %L',
			CASE f.kind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END, f.name, f.arguments,
			'RETURNS ' || f.result,
			CASE
			WHEN f.name = 'le_lease' THEN $b$BEGIN
				RETURN CASE WHEN token IS NOT NULL AND leader_election.le_renew(name, token, ttl) THEN token END;
			END$b$
			WHEN f.name = 'le_try_become_leader' THEN
				format('BEGIN RETURN leader_election.le_am_leader(%I); END', f.first)
			WHEN f.name = 'le_try_become_leader_xact' THEN 'BEGIN RETURN false; END'
			ELSE $b$BEGIN
				RAISE serialization_failure USING MESSAGE = 'the elections move to the SQL edition', HINT = 'Retry.';
			END$b$ END);
	END LOOP;
END $$;
COMMIT;

-- Candidates end.  Other statements that had begun before may still bid: wait
-- for them.  Returns their processes, or '' if they have ended.
CREATE FUNCTION pg_temp.statements_since(began timestamptz, wait interval) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	others text;
BEGIN
	LOOP
		PERFORM pg_terminate_backend(c.pid, 5000) FROM leader_election.le_candidates c WHERE c.pid IS NOT NULL;
		SELECT string_agg(a.pid::text, ', ') INTO others FROM pg_stat_get_activity(NULL) a
		WHERE a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
			AND a.pid <> pg_backend_pid() AND a.state IN ('active', 'fastpath function call')
			AND a.query_start <= began
			AND a.pid IN (SELECT b.pid FROM pg_stat_get_activity(NULL) b
				WHERE b.backend_type = 'client backend');
		IF others IS NULL OR clock_timestamp() >= began + wait THEN
			RETURN COALESCE(others, '');
		END IF;
		PERFORM pg_sleep(0.02), pg_stat_clear_snapshot();
	END LOOP;
END $$;

-- Take the leases and jobs from the extension, and drop it, as soon as its
-- leaders in session scope, guards and renewals have ended.  All of this is one
-- attempt, so that no lock is kept while another is awaited.  Returns the
-- processes or objects that use the extension, or '' if it is dropped.
CREATE FUNCTION pg_temp.take_from_extension(wait interval) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + wait;
	users text;
BEGIN
	LOOP
		BEGIN
			PERFORM pg_terminate_backend(e.pid, 5000) FROM leader_election.le_leaders e
			WHERE e.pid IS NOT NULL AND e.name IS NOT NULL;
			SET LOCAL lock_timeout = '100 ms';
			LOCK TABLE leader_election.le_leases, leader_election.le_declarations, leader_election.le_once_done
				IN ACCESS EXCLUSIVE MODE;
			IF EXISTS (SELECT FROM leader_election.le_leaders e WHERE e.pid IS NOT NULL AND e.name IS NOT NULL) THEN
				RAISE lock_not_available;
			END IF;
			CREATE TEMPORARY TABLE leases ON COMMIT DROP AS
			SELECT l.name, l.token, l.role, l.since, l.ttl, l.identity_has_client, l.identity, t.value
			FROM leader_election.le_leases l
			JOIN leader_election.le_leaders t ON t.name = l.name AND t.token = l.token AND t.scope = 'lease';
			CREATE TEMPORARY TABLE jobs ON COMMIT DROP AS
			SELECT d.name, d.due, d.token, d.role FROM leader_election.le_once_done d;
			-- Tokens go on from the clock, and from those of the extension if these are ahead of it
			PERFORM setval('le.le_token_seq', greatest(pg_sequence_last_value('le.le_token_seq'),
				pg_sequence_last_value('leader_election.le_token_seq'),
				((extract(epoch FROM clock_timestamp()) - 1735689600) * 4194304)::bigint));
			DROP EXTENSION leader_election;
			SET LOCAL lock_timeout = '2 s';
			RETURN '';
		EXCEPTION
			WHEN lock_not_available OR deadlock_detected THEN
				NULL;
			WHEN dependent_objects_still_exist THEN
				GET STACKED DIAGNOSTICS users = PG_EXCEPTION_DETAIL;
				RETURN users;
		END;
		IF clock_timestamp() >= until THEN
			SELECT pg_temp.users_of(array_agg(c.oid::regclass)) INTO users
			FROM pg_class c WHERE c.relnamespace = 'leader_election'::regnamespace;
			RETURN COALESCE(users, 'unknown');
		END IF;
		PERFORM pg_sleep(0.05);
	END LOOP;
END $$;

SELECT pg_temp.statements_since(clock_timestamp(), :'wait') AS users \gset
SELECT :'users' <> '' AS used \gset
BEGIN ISOLATION LEVEL READ COMMITTED;
\if :used
\else
	SELECT pg_temp.lock_elections(:'wait') AS users \gset
	SELECT :'users' <> '' AS used \gset
\endif
\if :used
\else
	SELECT pg_temp.take_from_extension(:'wait') AS users \gset
	SELECT :'users' <> '' AS used \gset
\endif
\if :used
	SELECT pg_temp.call_extension();
	COMMIT;
	\warn 'elections are used by objects, or by statements or open transactions of these processes:' :users
	DO $$ BEGIN
		RAISE EXCEPTION 'could not move the elections to the SQL edition: the C extension elects on'
			USING HINT = 'Retry, or end those transactions, or drop those objects.';
	END $$;
\endif

ALTER TABLE le.le_elections DISABLE TRIGGER _le_take_beacon;
INSERT INTO le.le_elections AS e (name, token, scope, role, pid, xact, beacon, since, renewed_at, renewals, lasts, creator,
	shows_client, identity, value)
SELECT l.name, l.token, 'lease', l.role, 0, pg_current_xact_id(),
	('x' || left(replace(gen_random_uuid()::text, '-', ''), 15))::bit(60)::bigint, l.since, clock_timestamp(),
	0, l.ttl, l.role, l.identity_has_client, l.identity, l.value
FROM pg_temp.leases l
ON CONFLICT (name) DO UPDATE SET token = EXCLUDED.token, scope = 'lease', role = EXCLUDED.role, pid = 0, xact = EXCLUDED.xact,
	since = EXCLUDED.since, renewed_at = EXCLUDED.renewed_at, renewals = 0, lasts = EXCLUDED.lasts, ended = NULL,
	suspect_at = NULL, shows_client = EXCLUDED.shows_client, identity = EXCLUDED.identity, value = EXCLUDED.value;
INSERT INTO le.le_once_done AS o (name, due, token, role)
SELECT d.name, d.due, d.token, d.role FROM pg_temp.jobs d
ON CONFLICT (name) DO UPDATE SET due = EXCLUDED.due, token = EXCLUDED.token, role = EXCLUDED.role
WHERE o.due < EXCLUDED.due;
UPDATE le.le_settings SET moved = false, elects = true;

-- the functions of "le" as they were, which belong to the schema's owner
SELECT format('SET LOCAL ROLE %s', n.nspowner::regrole)
FROM pg_namespace n WHERE n.nspname = 'le' \gexec
\ir leader_election.sql
RESET ROLE;
-- a renewal by the extension may have come after the look at it
UPDATE le.le_elections SET renewed_at = clock_timestamp() + interval '0.9 s'
WHERE scope = 'lease' AND ended IS NULL AND token IS NOT NULL;
ALTER TABLE le.le_elections ENABLE ALWAYS TRIGGER _le_take_beacon;
DROP SCHEMA leader_election;
COMMIT;
