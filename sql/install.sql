--
-- What CREATE EXTENSION installs: labels, comments, settings
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
SELECT extversion, extrelocatable FROM pg_extension WHERE extname = 'leader_election';

-- every function: volatility, parallel safety, strictness, privileges
SELECT p.oid::regprocedure AS function, p.provolatile AS v, p.proparallel AS p,
       p.proisstrict AS strict, p.prosecdef AS definer,
       has_function_privilege('public', p.oid, 'EXECUTE') AS public
FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
  AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election')
ORDER BY p.proname COLLATE "C", p.oid::regprocedure::text COLLATE "C";

-- every relation, and the privilege to read it
SELECT c.oid::regclass AS relation, c.relkind,
       has_table_privilege('public', c.oid, 'SELECT') AS public_reads,
       has_table_privilege('public', c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') AS public_writes
FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e'
  AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election')
ORDER BY c.relname COLLATE "C";
SELECT has_sequence_privilege('public', 'le_token_seq', 'USAGE, UPDATE') AS public_sequence;

-- nothing else, but for the views' row types, which newer servers list as well
SELECT d.classid::regclass AS catalog, count(*)
FROM pg_depend d
WHERE d.deptype = 'e' AND d.classid <> 'pg_type'::regclass
  AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election')
GROUP BY 1 ORDER BY 1::text COLLATE "C";

-- every object has a comment: no rows
SELECT pg_describe_object(d.classid, d.objid, 0) AS without_comment
FROM pg_depend d
WHERE d.deptype = 'e' AND d.classid <> 'pg_type'::regclass
  AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election')
  AND NOT EXISTS (SELECT FROM pg_description c
                  WHERE c.classoid = d.classid AND c.objoid = d.objid
                    AND c.objsubid = 0 AND c.description <> '');
SELECT obj_description(oid, 'pg_extension') <> '' AS extension_comment
FROM pg_extension WHERE extname = 'leader_election';

-- and so has every column of every view: no rows
SELECT a.attrelid::regclass, a.attname AS without_comment
FROM pg_depend d
JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'v'
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e'
  AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election')
  AND coalesce(col_description(c.oid, a.attnum), '') = '';

-- the sequence's contents go into a dump
SELECT extconfig::regclass[] FROM pg_extension WHERE extname = 'leader_election';

-- the settings, once the module is loaded
SELECT le_am_leader('nobody');
SELECT name, setting, unit, context, vartype, min_val, max_val, boot_val, category
FROM pg_settings WHERE name LIKE 'leader\_election.%' ORDER BY name COLLATE "C";
SELECT name, short_desc <> '' AS described
FROM pg_settings WHERE name LIKE 'leader\_election.%' ORDER BY name COLLATE "C";

-- the prefix is ours
SET leader_election.no_such_setting = 1;
SET leader_election.max_terms_per_session = 0;
SET leader_election.max_terms_per_session = 'many';
SET leader_election.log_terms = 'perhaps';

-- a placeholder set before the module was loaded is refused when it is
\c -
SET leader_election.no_such_setting = 1;
SELECT le_am_leader('nobody');
SHOW leader_election.no_such_setting;

-- the privilege to install it
SELECT count(*) AS versions FROM pg_available_extension_versions
WHERE name = 'leader_election' AND version = '1.0.0' AND superuser AND trusted AND relocatable;
