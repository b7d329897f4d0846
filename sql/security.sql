--
-- Privileges: each object and each setting of the extension, for a role that
-- has no rights but the public ones
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
CREATE ROLE regress_le_nobody;
CREATE TEMP VIEW members AS
SELECT d.classid::regclass AS catalog, d.objid AS oid,
       regexp_replace(pg_describe_object(d.classid, d.objid, 0), '^(function|procedure|table|view|sequence) ', '') AS object
FROM pg_depend d
WHERE d.deptype = 'e' AND d.classid <> 'pg_type'::regclass AND d.refclassid = 'pg_extension'::regclass
  AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election');

GRANT SELECT ON members TO PUBLIC;

\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/outcome.psql

--
-- Functions: a call of each, what it returns to that role, and whether all
-- roles may call it.  A function without an entry makes this fail.
--
CREATE TABLE calls (object text, call text);
GRANT SELECT ON calls TO PUBLIC;
INSERT INTO calls VALUES
 ('le_try_become_leader(text,interval,text)', $$SELECT le_try_become_leader('n', identity => 'i')$$),
 ('le_become_leader(text,interval,interval,text)', $$SELECT le_become_leader('n', '0', identity => 'i')$$),
 ('le_try_become_leader_xact(text,text)', $$SELECT le_try_become_leader_xact('x', identity => 'i')$$),
 ('le_become_leader_xact(text,interval,text)', $$SELECT le_become_leader_xact('x', '0', identity => 'i')$$),
 ('le_am_leader(text,bigint,text)', $$SELECT le_am_leader('lease', token) FROM le_leader('lease')$$),
 ('le_heartbeat(text,bigint)', $$SELECT le_heartbeat(name, token) FROM le_leader('of the administrator')$$),
 ('le_once(text,timestamp with time zone,bigint)', $$SELECT le_once('lease', 'today', token) FROM le_leader('lease')$$),
 ('le_seats(text,integer)', $$SELECT le_seats('n', 2)$$),
 ('le_token(text)', $$SELECT le_token('nobody''s')$$),
 ('le_resign(text,bigint,text)', $$SELECT le_resign('lease', token) FROM le_leader('lease')$$),
 ('le_resign_all()', $$SELECT le_resign_all() > 0$$),
 ('le_lease(text,interval,bigint,text)', $$SELECT le_lease('lease', '1 s', identity => 'i', token => token) FROM le_leader('lease')$$),
 ('le_renew(text,bigint,interval)', $$SELECT le_renew('lease', token, '1 s') FROM le_leader('lease')$$),
 ('le_assert_leader(text,bigint)', $$SELECT le_assert_leader('lease', token) FROM le_leader('lease')$$),
 ('le_guard()', 'SELECT le_guard()'),
 ('le_campaign(text,interval,interval,interval,text,bigint)', $$CALL le_campaign('lease', '0')$$),
 ('le_campaign(text[],interval,interval,interval,text,bigint,text)', $$CALL le_campaign('{lease}'::text[], '0')$$),
 ('le_observe(text,bigint,interval,bigint,text,text)', $$CALL le_observe('private', 0, '0')$$),
 ('le_depose(text,text)', $$SELECT le_depose('lease')$$),
 ('le_proclaim(text,text,bigint)', $$SELECT le_proclaim('lease', 'v', token) FROM le_leader('lease')$$),
 ('le_declare(text,regrole,interval,interval,boolean)', $$SELECT le_declare('n')$$),
 ('le_undeclare(text)', $$SELECT le_undeclare('n')$$),
 ('le_version()', 'SELECT le_version()'),
 ('le_leader(text)', $$SELECT identity FROM le_leader('lease')$$),
 ('_le_registry_terms()', $$SELECT count(value) FROM _le_registry_terms()$$),
 ('_le_registry_candidates(boolean)', 'SELECT count(*) FROM _le_registry_candidates(false)'),
 ('_le_registry_statistics()', 'SELECT count(*) > 0 FROM _le_registry_statistics()'),
 ('_le_registry_info()', 'SELECT elections > 0 FROM _le_registry_info()'),
 ('_le_origin()', 'SELECT _le_origin()'),
 ('pg_stat_leader_election_reset()', 'SELECT pg_stat_leader_election_reset()');
-- what there is to see, and to spoil
SELECT le_try_become_leader('of the administrator', identity => 'boss'), le_proclaim('of the administrator', 'public value');
SELECT le_lease('lease', '1 hour', identity => 'l') > 0 AS lease, le_declare('private', 'regress_le_nobody', private => true);
SELECT le_declare('private', session_user::regrole, private => true), le_try_become_leader('private', identity => 'p'), le_proclaim('private', 'secret');
SET ROLE regress_le_nobody;
-- OFFSET keeps the calls from being made before the sort, in an order that the plan decides
SELECT m.object, (SELECT replace(outcome(c.call), quote_ident(session_user), 'superuser') FROM calls c WHERE c.object = m.object) AS of_nobody,
       has_function_privilege('public', m.oid, 'EXECUTE') AS public
FROM (SELECT * FROM members WHERE catalog = 'pg_proc'::regclass ORDER BY object COLLATE "C" OFFSET 0) m;
RESET ROLE;
-- entries of functions that are there no more: no rows
SELECT object FROM calls EXCEPT SELECT object FROM members;
-- nothing was spoilt: leadership by session is the session's, whichever role it put on
SELECT le_resign_all() >= 0 AS resigned;
SELECT name, identity, ttl FROM le_leaders;
SELECT count(*) FROM le_declarations;
-- none has another's rights
SELECT m.object FROM members m JOIN pg_proc p ON p.oid = m.oid WHERE m.catalog = 'pg_proc'::regclass AND (p.prosecdef OR p.proleakproof);
-- none looks for anything in the caller's path: those in SQL were parsed when they were created
SELECT m.object FROM members m JOIN pg_proc p ON p.oid = m.oid WHERE m.catalog = 'pg_proc'::regclass AND p.prolang <> (SELECT oid FROM pg_language WHERE lanname = 'c')
	AND p.proconfig IS DISTINCT FROM '{"search_path=pg_catalog, pg_temp"}';
SELECT m.object FROM members m JOIN pg_proc p ON p.oid = m.oid WHERE m.catalog = 'pg_proc'::regclass AND p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'sql') AND p.prosqlbody IS NULL;

-- a function that the administrator has taken away is gone, each of them
CREATE FUNCTION revoked() RETURNS TABLE (object text) LANGUAGE plpgsql AS $$
DECLARE
	m record;
	outcome text;
BEGIN
	FOR m IN SELECT * FROM members JOIN calls USING (object) ORDER BY object LOOP
		EXECUTE format('REVOKE EXECUTE ON ROUTINE %s FROM PUBLIC', m.object);
		SET LOCAL ROLE regress_le_nobody;
		outcome := outcome(m.call);
		RESET ROLE;
		object := m.object || ': ' || outcome;
		IF outcome NOT LIKE '42501 permission denied for function %' AND outcome NOT LIKE '42501 permission denied for procedure %' THEN
			RETURN NEXT;
		END IF;
	END LOOP;
END
$$;
BEGIN;
SELECT * FROM revoked();
ROLLBACK;

--
-- Relations: what comes of each privilege for that role.  One without an entry
-- makes this fail.
--
CREATE TABLE relations (object text, may text);
INSERT INTO relations VALUES
 ('le_token_seq', 'SELECT'), ('le_lease_origin_seq', 'SELECT'),
 ('le_leases', ''), ('le_once_done', 'SELECT'),
 ('le_declarations', 'SELECT'), ('_le_locks', 'SELECT'), ('le_leaders', 'SELECT'), ('le_candidates', 'SELECT'),
 ('pg_stat_leader_election', 'SELECT'), ('pg_stat_leader_election_info', 'SELECT');
CREATE TEMP VIEW rights AS
SELECT m.object, c.relkind,
       CASE WHEN c.relkind = 'S' THEN
         (SELECT coalesce(string_agg(p, ', '), '') FROM unnest('{SELECT,USAGE,UPDATE}'::text[]) p WHERE has_sequence_privilege('regress_le_nobody', m.oid, p))
       ELSE
         (SELECT coalesce(string_agg(p, ', '), '') FROM unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) p WHERE has_table_privilege('regress_le_nobody', m.oid, p))
         || (SELECT coalesce(string_agg(DISTINCT ', column ' || p, ''), '') FROM unnest('{INSERT,UPDATE,REFERENCES}'::text[]) p WHERE has_any_column_privilege('regress_le_nobody', m.oid, p))
       END AS may
FROM members m JOIN pg_class c ON c.oid = m.oid WHERE m.catalog = 'pg_class'::regclass;
GRANT SELECT ON rights TO PUBLIC;
-- no rows
SELECT * FROM rights r FULL JOIN relations e USING (object) WHERE r.may IS DISTINCT FROM e.may;
-- other objects than functions and relations: no rows
SELECT catalog, object FROM members WHERE catalog NOT IN ('pg_proc'::regclass, 'pg_class'::regclass);
SET ROLE regress_le_nobody;
SELECT object, outcome(format('SELECT count(*) > 0 FROM %s', object)) AS read,
       left(outcome(format('DELETE FROM %s', object)), 5) AS delete, left(outcome(format('TRUNCATE %s', object)), 5) AS truncate,
       left(outcome(format('LOCK %s IN EXCLUSIVE MODE', object)), 5) AS lock, left(outcome(format('DROP %s %s', CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, object)), 5) AS drop,
       left(outcome(format('ALTER TABLE %s RENAME TO mine', object)), 5) AS alter
FROM rights ORDER BY object COLLATE "C";
SELECT object, outcome(format('SELECT nextval(%L)', object)) AS nextval, outcome(format('SELECT setval(%L, 1)', object)) AS setval,
       outcome(format('ALTER SEQUENCE %s RESTART', object)) AS restart, outcome(format('SELECT last_value > 0 FROM %s', object)) AS read
FROM rights WHERE relkind = 'S' ORDER BY object COLLATE "C";
SELECT outcome(s) FROM unnest(ARRAY['CREATE TRIGGER t AFTER INSERT ON _le_declarations EXECUTE FUNCTION le_guard(''n'')', 'ALTER TABLE _le_declarations DISABLE TRIGGER ALL',
  'CREATE RULE r AS ON INSERT TO le_leases DO INSTEAD NOTHING', 'CREATE INDEX ON le_leases (token)',
  'CREATE OR REPLACE FUNCTION le_token(name text) RETURNS bigint LANGUAGE sql AS ''SELECT 1::bigint''', 'CREATE OR REPLACE VIEW _le_locks AS SELECT 1 AS key',
  'ALTER EXTENSION leader_election DROP TABLE le_leases', 'ALTER EXTENSION leader_election SET SCHEMA pg_temp', 'DROP EXTENSION leader_election', 'COMMENT ON TABLE le_leases IS ''mine''',
  'SET session_replication_role = replica']) s;
RESET ROLE;

--
-- Settings: what an ordinary role can do with each.  One without an entry makes this fail.
--
CREATE TABLE settings (name text, value text, everybody boolean);
GRANT SELECT ON settings TO PUBLIC;
INSERT INTO settings VALUES
 ('declared_only', 'on', false), ('grace_period', '1s', false), ('log_terms', 'off', false), ('max_terms_per_session', '7', false),
 ('max_tracked', '100', false), ('max_ttl', '1s', false), ('max_elections', '1000', false), ('max_elections_per_role', '7', false),
 ('dead_peer_timeout', '20s', true), ('notify', 'off', true), ('token', '7', true);
-- no rows
SELECT * FROM settings FULL JOIN (SELECT substr(name, 17) AS name FROM pg_settings WHERE name LIKE 'leader\_election.%') s USING (name)
WHERE value IS NULL OR s.name IS NULL;
SET ROLE regress_le_nobody;
SELECT name, everybody, outcome(format('SET LOCAL leader_election.%s = %L', name, value)) AS set,
       outcome(format('SELECT set_config(%L, %L, true)', 'leader_election.' || name, value)) AS set_config
FROM settings ORDER BY name;
SELECT name, left(outcome(format('RESET leader_election.%s', name)), 5) AS reset,
       left(outcome(format('ALTER ROLE regress_le_nobody SET leader_election.%s = %L', name, value)), 5) AS alter_role,
       left(outcome(format('CREATE OR REPLACE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql SET leader_election.%s = %L AS $f$ SELECT 1 $f$', name, value)), 5) AS for_a_function,
       left(outcome(format('UPDATE pg_settings SET setting = %L WHERE name = %L', value, 'leader_election.' || name)), 5) AS pg_settings
FROM settings ORDER BY name;
ALTER SYSTEM SET leader_election.max_ttl = '1s';
RESET ROLE;
RESET ALL;
-- as the superuser, those that are not the server's
SELECT name, outcome(format('SET LOCAL leader_election.%s = %L', name, value)) AS set FROM settings WHERE NOT everybody ORDER BY name;
RESET ALL;
-- only where it is granted
GRANT SET ON PARAMETER leader_election.declared_only TO regress_le_nobody;
SET ROLE regress_le_nobody;
SELECT outcome('SET leader_election.declared_only = on'), outcome('SET leader_election.grace_period = 1');
RESET leader_election.declared_only;
RESET ROLE;
REVOKE SET ON PARAMETER leader_election.declared_only FROM regress_le_nobody;

--
-- In a schema that is closed to the role, there is nothing for it
--
CREATE SCHEMA regress_closed;
ALTER EXTENSION leader_election SET SCHEMA regress_closed;
SET ROLE regress_le_nobody;
SELECT DISTINCT outcome(regexp_replace(call, '\m(_?le_\w+|pg_stat_leader_election_reset)\M(?=\()', 'regress_closed.\1', 'g')) FROM calls;
SELECT DISTINCT outcome(format('SELECT count(*) FROM regress_closed.%s', object)) FROM unnest('{le_leaders,le_candidates,_le_locks,le_declarations,le_leases,le_token_seq,pg_stat_leader_election}'::text[]) object;
RESET ROLE;
ALTER EXTENSION leader_election SET SCHEMA public;
DROP SCHEMA regress_closed;

SELECT le_resign('lease', token), le_undeclare('private') FROM le_leader('lease');
DROP FUNCTION outcome, revoked, pg_temp.f;
DROP TABLE calls, relations CASCADE;
DROP TABLE settings;
DROP VIEW rights;
DROP ROLE regress_le_nobody;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
