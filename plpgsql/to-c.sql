/*
 * to-c.sql: move the elections of the SQL edition to the C extension
 *
 * A superuser runs this script in the database, once the library is installed
 * and loaded (shared_preload_libraries):
 *
 *		psql -X -v ON_ERROR_STOP=1 -f to-c.sql
 *
 * It creates the extension in the schema "leader_election", which then belongs
 * to the superuser.  The schema "le" stays with its owner.  Programs go on
 * calling the functions of "le", which then call the extension: triggers, views,
 * prepared statements and search paths remain.  Leases continue with their
 * tokens.  Sessions that lead are terminated, and others are elected by the
 * extension.  from-c.sql is the way back.  doc/managed.md describes the move.
 *
 * For other schemas, replace the words "le" and "leader_election" in the names,
 * also in move.sql.
 *
 * The script waits for at most 10 seconds (-v wait='1 min') until no transaction
 * uses the elections.  It is one transaction: if it fails, nothing has moved.
 *
 * Only one edition elects at a time.  All bids, renewals and guards of the SQL
 * edition have locked the table to the end of their transactions, and those
 * that come later wait for this one.  A bid looks at "elects" after that.  So no
 * term of the SQL edition begins after the move, and those that run are in the
 * extension as well, or their sessions have ended.
 */
\ir move.sql

BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT pg_temp.lock_elections(:'wait') AS users \gset
SELECT :'users' <> '' AS used \gset
\if :used
	ROLLBACK;
	\warn 'elections are used by open transactions of these processes:' :users
	DO $$ BEGIN
		RAISE EXCEPTION 'could not move the elections to the C extension'
			USING HINT = 'Retry, or end those transactions.';
	END $$;
\endif

DO $$
BEGIN
	IF (SELECT s.moved FROM le.le_settings s) THEN
		RAISE EXCEPTION 'the elections have moved already';
	ELSIF EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'leader_election') THEN
		RAISE EXCEPTION 'extension "leader_election" exists already'
			USING HINT = 'Drop it first: this script creates it.';
	ELSIF to_regnamespace('leader_election') IS NOT NULL THEN
		RAISE EXCEPTION 'schema "leader_election" exists already'
			USING HINT = 'Drop it first: this script creates it. Its owner could replace what is in it.';
	ELSIF NOT EXISTS (SELECT FROM pg_available_extensions e WHERE e.name = 'leader_election')
		OR current_setting('leader_election.max_ttl', true) IS NULL THEN
		RAISE EXCEPTION 'the library of the C extension is not installed, or not loaded'
			USING HINT = 'Add leader_election to shared_preload_libraries, and restart the server.';
	ELSIF current_setting('leader_election.max_ttl')::interval < (SELECT s.max_ttl FROM le.le_settings s) THEN
		RAISE EXCEPTION 'the setting leader_election.max_ttl is shorter than max_ttl of le_settings';
	END IF;
END $$;

-- Terms in session scope end with their sessions: those that hold the beacon
DO $$
DECLARE
	until timestamptz := clock_timestamp() + interval '5 s';
	terminated bigint;
BEGIN
	LOOP
		SELECT count(pg_terminate_backend(l.pid)) INTO terminated
		FROM le.le_elections e
		JOIN pg_locks l ON l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid = e.pid
			AND l.classid = (e.beacon >> 32)::oid AND l.objid = (e.beacon & 4294967295)::oid
			AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
		WHERE e.scope = 'session' AND e.ended IS NULL;
		EXIT WHEN terminated = 0;
		IF clock_timestamp() > until THEN
			RAISE EXCEPTION 'a session that leads has not ended' USING HINT = 'Retry.';
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
CREATE SCHEMA leader_election;
CREATE EXTENSION leader_election SCHEMA leader_election;

-- whoever may use the schema "le" may use the other
DO $$
DECLARE
	grantee text;
BEGIN
	FOR grantee IN
		SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
		FROM pg_namespace n, aclexplode(n.nspacl) a
		WHERE n.nspname = 'le' AND a.privilege_type = 'USAGE'
	LOOP
		EXECUTE format('GRANT USAGE ON SCHEMA leader_election TO %s', grantee);
	END LOOP;
END $$;

-- Leases continue, and run anew for their ttl.  Those of a copied database, and
-- rows that the script would not have written, do not.  Jobs that were done are
-- done.  The extension takes no days in a ttl.
INSERT INTO leader_election.le_leases (token, ttl, since, database, role, identity_has_client, name, identity)
SELECT e.token, make_interval(secs => extract(epoch FROM e.lasts)::float8), e.since, d.oid, e.role, e.shows_client, e.name, e.identity
FROM le.le_elections e, pg_database d
WHERE e.scope = 'lease' AND e.ended IS NULL AND d.datname = current_database()
	AND e.token > COALESCE(pg_sequence_last_value('le.le_void_seq'), 0)
	AND e.token <= pg_sequence_last_value('le.le_token_seq')
	AND clock_timestamp() < e.lasts
		+ greatest(e.renewed_at, to_timestamp(pg_sequence_last_value('le.le_seen_seq') / 1000000.0))
	AND e.lasts BETWEEN '100 ms' AND (SELECT s.max_ttl FROM le.le_settings s)
	AND octet_length(e.name) BETWEEN 1 AND 255 AND octet_length(e.identity) BETWEEN 1 AND 255
	AND pg_sequence_last_value('le.le_place_seq') & 1099511627775 = 1099511627775
		& hashtextextended(concat_ws(' ', (SELECT c.system_identifier FROM pg_control_system() c),
			'le.le_token_seq'::regclass::oid, d.oid), 0);
INSERT INTO leader_election.le_once_done (name, due, token, role)
SELECT o.name, o.due, o.token, o.role FROM le.le_once_done o
WHERE octet_length(o.name) BETWEEN 1 AND 255;

-- Tokens go on from the clock, and from those of the SQL edition if these are ahead of it
SELECT setval('leader_election.le_token_seq', pg_sequence_last_value('le.le_token_seq')) AS token
WHERE pg_sequence_last_value('le.le_token_seq') > 0 \gset

-- A new token is what guards and renewals notice that wait for the lock here
ALTER TABLE le.le_elections DISABLE TRIGGER _le_take_beacon;
UPDATE le.le_elections SET token = NULL, ended = NULL, value = NULL;
UPDATE le.le_settings SET moved = true, elects = false;
ALTER TABLE le.le_elections ENABLE ALWAYS TRIGGER _le_take_beacon;

SELECT pg_temp.call_extension();
COMMIT;
SELECT leader_election.le_version();
