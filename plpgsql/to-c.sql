/*
 * to-c.sql: move the elections of the SQL edition to the C extension
 *
 * A superuser runs this script in the database, once the library is installed
 * and loaded (shared_preload_libraries):
 *
 *		psql -X -v ON_ERROR_STOP=1 -f to-c.sql
 *
 * It creates the extension in the schema "leader_election".  Programs go on
 * calling the functions of "le", which then call the extension: triggers, views,
 * prepared statements and search paths remain.  Leases continue with their
 * tokens.  Sessions that lead are terminated, and others are elected by the
 * extension.  from-c.sql is the way back.  doc/managed.md describes the move.
 *
 * For other schemas, replace the words "le" and "leader_election" in the names.
 *
 * Only one edition elects at a time.  A bid of the SQL edition looks at "elects"
 * after it has locked the table, and the last statement here changes this under
 * a lock that waits for all bids, renewals and guards.  So no term of the SQL
 * edition begins after that, and those that run are in the extension as well,
 * or their sessions have ended.
 */
\set ON_ERROR_STOP 1

DO $$
BEGIN
	IF NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) THEN
		RAISE EXCEPTION 'only a superuser can move elections to the C extension';
	ELSIF (SELECT s.moved FROM le.le_settings s) THEN
		RAISE EXCEPTION 'the elections have moved already';
	ELSIF EXISTS (SELECT FROM pg_catalog.pg_extension e WHERE e.extname = 'leader_election') THEN
		RAISE EXCEPTION 'extension "leader_election" exists already'
			USING HINT = 'Drop it first: this script creates it.';
	ELSIF NOT EXISTS (SELECT FROM pg_catalog.pg_available_extensions e WHERE e.name = 'leader_election')
		OR pg_catalog.current_setting('leader_election.max_ttl', true) IS NULL THEN
		RAISE EXCEPTION 'the library of the C extension is not installed, or not loaded'
			USING HINT = 'Add leader_election to shared_preload_libraries, and restart the server.';
	ELSIF pg_catalog.current_setting('leader_election.max_ttl')::pg_catalog.interval < (SELECT s.max_ttl FROM le.le_settings s) THEN
		RAISE EXCEPTION 'the setting leader_election.max_ttl is shorter than max_ttl of le_settings';
	END IF;
END $$;

-- No new terms.  Those that run continue, and candidates wait.
UPDATE le.le_settings SET elects = false;

-- Lock the table as soon as no transaction uses it, without keeping renewals
-- waiting meanwhile
CREATE FUNCTION pg_temp.lock_elections() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		BEGIN
			SET LOCAL lock_timeout = '100 ms';
			LOCK TABLE le.le_elections IN EXCLUSIVE MODE;
			SET LOCAL lock_timeout = 0;
			RETURN;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			PERFORM pg_catalog.pg_sleep(0.05);
		END;
	END LOOP;
END $$;

-- bids that have not seen that flag end
BEGIN;
SELECT pg_temp.lock_elections();
COMMIT;

-- Terms in session scope end with their sessions
SELECT pg_catalog.count(pg_catalog.pg_terminate_backend(e.pid, 5000)) AS sessions_terminated
FROM le._le_terms(NULL) e WHERE e.scope = 'session';

BEGIN;
SELECT pg_temp.lock_elections();
DO $$
BEGIN
	IF EXISTS (SELECT FROM le._le_terms(NULL) e WHERE e.scope = 'session') THEN
		RAISE EXCEPTION 'a session that leads has not ended'
			USING HINT = 'Run this script again, or "UPDATE le.le_settings SET elects = true" to stay.';
	END IF;
END $$;
CREATE SCHEMA IF NOT EXISTS leader_election;
CREATE EXTENSION leader_election SCHEMA leader_election;

-- whoever may use the schema "le" may use the other
DO $$
DECLARE
	grantee text;
BEGIN
	FOR grantee IN
		SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::pg_catalog.regrole::text END
		FROM pg_catalog.pg_namespace n, pg_catalog.aclexplode(n.nspacl) a
		WHERE n.nspname = 'le' AND a.privilege_type = 'USAGE'
	LOOP
		EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA leader_election TO %s', grantee);
	END LOOP;
END $$;

-- Leases continue, and run anew for their ttl.  Jobs that were done are done.
INSERT INTO leader_election.le_leases (token, ttl, since, database, role, identity_has_client, name, identity)
SELECT e.token, e.lasts, e.since, d.oid, e.role, e.shows_client, e.name, e.identity
FROM le.le_elections e, pg_catalog.pg_database d
WHERE e.scope = 'lease' AND d.datname = pg_catalog.current_database()
	AND EXISTS (SELECT FROM le._le_terms(e.name) t WHERE t.token = e.token);
INSERT INTO leader_election.le_once_done (name, due, token, role)
SELECT o.name, o.due, o.token, o.role FROM le.le_once_done o;

-- Tokens go on from the clock, and from those of the SQL edition if these are ahead of it
SELECT pg_catalog.setval('leader_election.le_token_seq', pg_catalog.pg_sequence_last_value('le.le_token_seq'))
WHERE pg_catalog.pg_sequence_last_value('le.le_token_seq') > 0;

-- A new token is what guards and renewals notice that wait for the lock here
UPDATE le.le_elections SET token = NULL, ended = NULL, value = NULL;
UPDATE le.le_settings SET moved = true;

-- The functions of "le" call those of the extension
DO $$
DECLARE
	f record;
	call text;
	body text;
BEGIN
	FOR f IN
		SELECT p.oid, p.proname AS name, p.prokind AS kind, p.proretset AS set,
			pg_catalog.pg_get_function_arguments(p.oid) AS arguments, pg_catalog.pg_get_function_result(p.oid) AS result,
			(SELECT pg_catalog.string_agg(CASE p.prokind WHEN 'p' THEN pg_catalog.quote_ident(a.name)
					ELSE pg_catalog.format('%I.%I', p.proname, a.name) END, ', ' ORDER BY a.i)
			FROM ROWS FROM (pg_catalog.unnest(p.proargnames), pg_catalog.unnest(p.proargmodes)) WITH ORDINALITY a(name, mode, i)
			WHERE COALESCE(a.mode, 'i') IN ('i', 'b')) AS passed
		FROM pg_catalog.pg_proc p
		WHERE p.pronamespace = 'le'::pg_catalog.regnamespace AND pg_catalog.starts_with(p.proname::text, 'le_')
	LOOP
		call := pg_catalog.format('leader_election.%I(%s)', f.name, f.passed);
		body := CASE
			WHEN f.kind = 'p' THEN 'CALL ' || call
			WHEN f.result = 'trigger' THEN $b$
				IF pg_catalog.current_setting('leader_election.token', true) OPERATOR(pg_catalog.<>) ''
					AND NOT leader_election.le_am_leader(TG_ARGV[0]) THEN
					PERFORM leader_election.le_assert_leader(TG_ARGV[0],
						pg_catalog.current_setting('leader_election.token')::pg_catalog.int8);
				ELSE
					PERFORM leader_election.le_assert_leader(TG_ARGV[0]);
				END IF;
				IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
					RETURN OLD;
				END IF;
				RETURN NEW$b$
			WHEN f.set THEN 'RETURN QUERY SELECT * FROM ' || call
			WHEN f.result = 'void' THEN 'PERFORM ' || call
			ELSE 'RETURN ' || call END;
		EXECUTE pg_catalog.format('CREATE OR REPLACE %s le.%I(%s) %s LANGUAGE plpgsql AS %L',
			CASE f.kind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END, f.name, f.arguments,
			'RETURNS ' || f.result, 'BEGIN ' || body || '; END');
	END LOOP;
END $$;
CREATE OR REPLACE VIEW le.le_leaders AS
SELECT e.name, e.key, e.scope, e.identity, e.token, e.pid, e.usename, e.application_name, e.client_addr, e.since,
	e.candidates, e.last_denied_at, e.last_denied_identity, e.ttl, e.heartbeat, e.renewed_at, e.renewals,
	e.expires_in, e.value FROM leader_election.le_leaders e;
CREATE OR REPLACE VIEW le.le_candidates AS
SELECT c.name, c.key, c."position", c.identity, c.pid, c.usename, c.application_name, c.client_addr, c.since,
	c.waits_for, c.blocked_by FROM leader_election.le_candidates c;
COMMIT;
SELECT le.le_version();
