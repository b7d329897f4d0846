--
-- Version 1.0.0 works with this library, and ALTER EXTENSION UPDATE makes 1.1.0 of it
--
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS leader_election CASCADE;
CREATE EXTENSION leader_election VERSION '1.0.0';
RESET client_min_messages;
SELECT extversion FROM pg_extension WHERE extname = 'leader_election';
-- each way from one version to another
SELECT source, target, path FROM pg_extension_update_paths('leader_election')
WHERE path IS NOT NULL ORDER BY source, target;

-- what the extension consists of, with its definitions, comments and rights
CREATE VIEW objects AS
SELECT pg_describe_object(d.classid, d.objid, 0) AS object,
       coalesce(pg_get_functiondef(p.oid), pg_get_viewdef(c.oid)) AS definition,
       obj_description(d.objid, d.classid::regclass::name) AS comment,
       coalesce(p.proacl, c.relacl)::text AS acl
FROM pg_depend d
LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind = 'v'
WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
  AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election');

-- what others have built on it
CREATE ROLE regress_upgrade;
CREATE VIEW others AS SELECT name, terms, denied FROM pg_stat_leader_election;
CREATE TABLE guarded (id int);
CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH STATEMENT EXECUTE FUNCTION le_guard('up job');
REVOKE SELECT ON pg_stat_leader_election FROM PUBLIC;
GRANT SELECT ON pg_stat_leader_election TO regress_upgrade;
CREATE TABLE old_objects AS TABLE objects;

-- each scope, with the SQL objects of 1.0.0
SELECT pg_stat_leader_election_reset();
SELECT le_try_become_leader('up job', 'one'), le_try_become_leader(710), le_am_leader('up job');
SELECT le_lease('up lease', '1 hour', 'two') AS lease \gset
CALL le_campaign('up campaign', identity => 'three') \gset
SELECT le_proclaim('up campaign', 'value');
SELECT le_declare('up declared', grace => '0');
INSERT INTO guarded VALUES (1);
SELECT name, key IS NOT NULL AS has_key, scope, identity, value FROM le_leaders ORDER BY name;
SELECT * FROM others WHERE name LIKE 'up %' ORDER BY name;
\d pg_stat_leader_election
SELECT name, terms, time_led > '0' AS led FROM pg_stat_leader_election WHERE name LIKE 'up %' ORDER BY name;

-- in a transaction that thinks better of it
BEGIN;
ALTER EXTENSION leader_election UPDATE TO '1.1.0';
SELECT name, vacant_since FROM pg_stat_leader_election WHERE name = 'up job';
ROLLBACK;
SELECT extversion FROM pg_extension WHERE extname = 'leader_election';
SELECT count(*) FROM (TABLE objects EXCEPT TABLE old_objects) changed;

ALTER EXTENSION leader_election UPDATE;
SELECT extversion FROM pg_extension WHERE extname = 'leader_election';
-- what has changed, and nothing else
SELECT object FROM objects EXCEPT SELECT object FROM old_objects;
SELECT object FROM old_objects EXCEPT SELECT object FROM objects;
SELECT object FROM (TABLE objects EXCEPT TABLE old_objects) changed ORDER BY object;
\d pg_stat_leader_election
SELECT has_table_privilege('public', 'pg_stat_leader_election', 'SELECT') AS everybody,
       has_table_privilege('regress_upgrade', 'pg_stat_leader_election', 'SELECT') AS those_granted;

-- nobody has lost anything
SELECT name, key IS NOT NULL AS has_key, scope, identity, value FROM le_leaders ORDER BY name;
SELECT * FROM others WHERE name LIKE 'up %' ORDER BY name;
INSERT INTO guarded VALUES (2);
SELECT le_renew('up lease', :lease), le_token('up campaign') = :token AS same_term;
SELECT le_resign('up lease', :lease), le_resign_all();
SELECT name, terms, resigned, vacant_since IS NOT NULL AS vacant FROM pg_stat_leader_election
WHERE name LIKE 'up %' ORDER BY name;
SELECT le_undeclare('up declared');

-- there is no way back
ALTER EXTENSION leader_election UPDATE TO '1.0.0';

DROP VIEW others, objects;
DROP TABLE guarded, old_objects;
DROP OWNED BY regress_upgrade;
DROP ROLE regress_upgrade;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
