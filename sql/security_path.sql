--
-- What a hostile search_path, and a hostile owner of the schema that is
-- installed to, can do: nothing.  See hostile_schema for functions and
-- operators for which the server's own would be found first.
--
-- newer servers tell where in the script they were
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
CREATE ROLE regress_le_mallory;
CREATE SCHEMA regress_evil AUTHORIZATION regress_le_mallory;
CREATE TABLE regress_evil.caught (who text);
GRANT ALL ON regress_evil.caught TO PUBLIC;
CREATE FUNCTION regress_evil.trap() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO regress_evil.caught VALUES (current_user);
	RETURN true;
END $$;
-- the same names, types and operators, with a better match where there can be one
SET ROLE regress_le_mallory;
SET search_path = regress_evil;
CREATE TABLE le_leases (token bigint, ttl interval, since timestamptz, database oid, role oid, identity_has_client boolean, name text, identity text);
CREATE TABLE _le_declarations (name text, candidates regrole, grace interval, max_ttl interval, private boolean);
CREATE TABLE _le_once_done (name text PRIMARY KEY, due timestamptz, token bigint, role oid);
CREATE SEQUENCE le_token_seq MAXVALUE 2;
CREATE SEQUENCE le_lease_origin_seq;
CREATE VIEW pg_locks AS SELECT 'advisory'::text AS locktype, 0::oid AS database, 7::oid AS classid, 7::oid AS objid, 19525::smallint AS objsubid, 1 AS pid, true AS granted, 'ExclusiveLock'::text AS mode, now() AS waitstart, trap();
CREATE VIEW pg_stat_activity AS SELECT 1 AS pid, trap();
CREATE VIEW pg_roles AS SELECT 10::oid AS oid, trap();
CREATE VIEW pg_extension AS SELECT 1::oid AS oid, 'leader_election'::name AS extname, trap();
CREATE DOMAIN "interval" AS text CHECK (trap());
CREATE DOMAIN regrole AS text CHECK (trap());
CREATE DOMAIN text AS pg_catalog.text CHECK (trap());
CREATE DOMAIN bigint AS pg_catalog.int8 CHECK (trap());
CREATE DOMAIN int8 AS pg_catalog.int8 CHECK (trap());
CREATE FUNCTION f(pg_catalog.text, pg_catalog.text) RETURNS boolean LANGUAGE sql AS 'SELECT regress_evil.trap()';
CREATE FUNCTION f(name, name) RETURNS boolean LANGUAGE sql AS 'SELECT regress_evil.trap()';
CREATE FUNCTION f(pg_catalog.int8, int) RETURNS pg_catalog.int8 LANGUAGE sql AS 'SELECT regress_evil.trap()::int::int8';
CREATE FUNCTION f(pg_catalog.int8, pg_catalog.int8) RETURNS pg_catalog.int8 LANGUAGE sql AS 'SELECT regress_evil.trap()::int::int8';
CREATE FUNCTION g(pg_catalog.int8, pg_catalog.int8) RETURNS boolean LANGUAGE sql AS 'SELECT regress_evil.trap()';
CREATE FUNCTION g(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT regress_evil.trap()';
CREATE FUNCTION g(smallint, int) RETURNS boolean LANGUAGE sql AS 'SELECT regress_evil.trap()';
CREATE FUNCTION f(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS 'SELECT regress_evil.trap()';
CREATE FUNCTION h(pg_catalog.text, pg_catalog.text) RETURNS pg_catalog.text LANGUAGE sql AS 'SELECT regress_evil.trap()::pg_catalog.text';
CREATE OPERATOR = (FUNCTION = f, LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text);
CREATE OPERATOR = (FUNCTION = f, LEFTARG = name, RIGHTARG = name);
CREATE OPERATOR = (FUNCTION = g, LEFTARG = pg_catalog.int8, RIGHTARG = pg_catalog.int8);
CREATE OPERATOR = (FUNCTION = g, LEFTARG = int, RIGHTARG = int);
CREATE OPERATOR = (FUNCTION = g, LEFTARG = smallint, RIGHTARG = int);
CREATE OPERATOR < (FUNCTION = g, LEFTARG = pg_catalog.int8, RIGHTARG = pg_catalog.int8);
CREATE OPERATOR < (FUNCTION = f, LEFTARG = timestamptz, RIGHTARG = timestamptz);
CREATE OPERATOR << (FUNCTION = f, LEFTARG = pg_catalog.int8, RIGHTARG = int);
CREATE OPERATOR + (FUNCTION = f, LEFTARG = pg_catalog.int8, RIGHTARG = int);
CREATE OPERATOR + (FUNCTION = f, LEFTARG = pg_catalog.int8, RIGHTARG = pg_catalog.int8);
CREATE OPERATOR | (FUNCTION = f, LEFTARG = pg_catalog.int8, RIGHTARG = pg_catalog.int8);
CREATE OPERATOR || (FUNCTION = h, LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text);
CREATE FUNCTION setval(regclass, pg_catalog.int8) RETURNS pg_catalog.int8 LANGUAGE sql AS 'SELECT regress_evil.trap()::int::int8';
CREATE FUNCTION max(timestamptz) RETURNS boolean LANGUAGE sql AS 'SELECT regress_evil.trap()';
CREATE FUNCTION octet_length(pg_catalog.text) RETURNS int LANGUAGE sql AS 'SELECT regress_evil.trap()::int';
CREATE FUNCTION pg_notification_queue_usage() RETURNS float8 LANGUAGE sql AS 'SELECT regress_evil.trap()::int::float8';
CREATE FUNCTION le_token(pg_catalog.text) RETURNS pg_catalog.int8 LANGUAGE sql AS 'SELECT regress_evil.trap()::int::int8';
CREATE FUNCTION has_privs_of_role(oid, oid) RETURNS boolean LANGUAGE sql AS 'SELECT regress_evil.trap()';
RESET ROLE;
RESET search_path;
CREATE TEMP TABLE le_leases (LIKE public.le_leases);
CREATE TEMP TABLE _le_declarations (LIKE public._le_declarations);
CREATE TEMP TABLE _le_once_done (LIKE public._le_once_done INCLUDING ALL);
CREATE TEMP SEQUENCE le_token_seq MAXVALUE 2;
CREATE TEMP VIEW pg_locks AS SELECT * FROM regress_evil.pg_locks;
CREATE TEMP VIEW _le_locks AS SELECT * FROM regress_evil.pg_locks;
CREATE TEMP TABLE pg_stat_activity (pid int);
RESET client_min_messages;

-- what all roles call, with those before all others
CREATE ROLE regress_le_team;
SET search_path = pg_temp, regress_evil, pg_catalog, public;
INSERT INTO _le_declarations VALUES ('job', 10, NULL, NULL, true);
INSERT INTO regress_evil._le_declarations VALUES ('job', 10, NULL, NULL, true);
TRUNCATE regress_evil.caught;
SELECT public.le_declare('declared', 'regress_le_team', '1 s', '2 s', true);
SELECT pg_catalog.count(*) FROM public._le_declarations;
SELECT public.le_try_become_leader('job', identity => 'me'), public.le_try_become_leader('42'), public.le_become_leader('other', '1 s'), public.le_become_leader_xact('xact', '1 s');
SELECT public.le_lease('lease', '1 min', identity => 'l') AS token \gset
SELECT public.le_am_leader('job'), public.le_token('job') IS NULL AS "null", public.le_am_leader('lease', :token), public.le_renew('lease', :token, '2 min');
SELECT pg_catalog.count(*) FROM public.le_leases WHERE name OPERATOR(pg_catalog.=) 'lease';
SELECT public.le_proclaim('job', 'v'), public.le_proclaim('lease', 'v', :token), public.le_assert_leader('lease', :token);
SELECT public.le_once('job', '2026-01-01 +0'), public.le_once('job', '2026-01-01 +0'), public.le_once('lease', '2026-01-01 +0', :token);
SELECT public.le_seats('job', 2);
SELECT identity, value FROM public.le_leaders WHERE pg_catalog.texteq(name, 'job');
SELECT identity, value FROM public.le_leader('job');
SELECT identity FROM public.le_leader('lease');
SELECT pg_catalog.count(*) FROM public.le_leader('42');
SELECT pg_catalog.count(*) FROM public.le_candidates;
SELECT pg_catalog.count(*) AS locks FROM public._le_locks;
SELECT pg_catalog.count(*) >= 5 AS counted FROM public.pg_stat_leader_election;
SELECT pg_catalog.count(*) FROM public.pg_stat_leader_election_info;
CALL public.le_campaign('campaign', '0', token => NULL) \gset won_
CALL public.le_campaign(ARRAY['many'], '0', token => NULL, name => NULL) \gset won_
CALL public.le_observe('job', version => NULL, token => NULL, identity => NULL, value => NULL) \gset seen_
SELECT :'seen_identity', :'seen_value', :'won_name';
SET ROLE regress_le_mallory;
SELECT public.le_try_become_leader('declared');
SELECT public.le_try_become_leader('theirs'), public.le_once('theirs', '2026-01-01 +0');
RESET ROLE;
SELECT public.le_undeclare('declared'), public.le_resign('lease', :token), public.le_resign_all();
SELECT public.pg_stat_leader_election_reset();
RESET search_path;
SELECT * FROM regress_evil.caught;
SELECT count(*) FROM (TABLE regress_evil._le_once_done UNION ALL TABLE pg_temp._le_once_done) o;
SELECT is_called FROM regress_evil.le_token_seq UNION ALL SELECT is_called FROM pg_temp.le_token_seq;
DROP TABLE pg_temp.le_leases, pg_temp._le_declarations, pg_temp._le_once_done, pg_temp.pg_stat_activity;
DROP VIEW pg_temp.pg_locks, pg_temp._le_locks;
DROP SEQUENCE pg_temp.le_token_seq;

-- an aggregate with the signature of the server's own, and a job of a role that has done one
SET SESSION AUTHORIZATION regress_le_mallory;
CREATE FUNCTION regress_evil.step(s pg_catalog.int8) RETURNS pg_catalog.int8 LANGUAGE sql AS 'SELECT regress_evil.trap()::int::int8';
CREATE AGGREGATE regress_evil.count(*) (SFUNC = regress_evil.step, STYPE = pg_catalog.int8, INITCOND = '0');
SET search_path = regress_evil, pg_catalog;
SELECT public.le_try_become_leader('counted'), public.le_once('counted', '2026-01-01 +0');
SELECT public.le_try_become_leader('counted, too'), public.le_once('counted, too', '2026-01-01 +0');
SELECT public.le_resign_all();
RESET search_path;
RESET SESSION AUTHORIZATION;
DROP AGGREGATE regress_evil.count(*);
SELECT * FROM regress_evil.caught;

--
-- Installed where another owns the schema, and has been there before
--
SET client_min_messages = warning;
DROP EXTENSION leader_election;
-- with the names of relations, it fails
CREATE EXTENSION leader_election SCHEMA regress_evil;
DROP TABLE regress_evil.le_leases, regress_evil._le_declarations, regress_evil._le_once_done;
DROP SEQUENCE regress_evil.le_token_seq, regress_evil.le_lease_origin_seq;
CREATE EXTENSION leader_election SCHEMA regress_evil;
DROP FUNCTION regress_evil.le_token(text);
-- what stays are domains and operators, and other functions of the names that the script
-- calls: in each case one that a call with NULLs, and one that a call without arguments
-- could mean
SET ROLE regress_le_mallory;
CREATE FUNCTION regress_evil._le_origin(text) RETURNS bigint LANGUAGE sql AS 'SELECT regress_evil.trap()::int::int8';
CREATE FUNCTION regress_evil._le_registry_candidates(anyelement) RETURNS SETOF int LANGUAGE sql AS 'SELECT regress_evil.trap()::int';
CREATE FUNCTION regress_evil._le_registry_terms(VARIADIC int[]) RETURNS SETOF int LANGUAGE sql AS 'SELECT regress_evil.trap()::int';
CREATE FUNCTION regress_evil._le_registry_statistics(VARIADIC text[]) RETURNS SETOF int LANGUAGE sql AS 'SELECT regress_evil.trap()::int';
CREATE FUNCTION regress_evil.le_token(anyelement) RETURNS bigint LANGUAGE sql AS 'SELECT regress_evil.trap()::int::int8';
CREATE FUNCTION regress_evil.pg_extension_config_dump(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT regress_evil.trap()';
RESET ROLE;
CREATE TEMP VIEW captured AS
WITH m AS (
	SELECT classid, objid FROM pg_depend
	WHERE deptype = 'e' AND refclassid = 'pg_extension'::regclass
	  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election')
), parts AS (
	SELECT * FROM m
	UNION ALL SELECT 'pg_rewrite'::regclass, r.oid FROM pg_rewrite r JOIN m ON m.classid = 'pg_class'::regclass AND r.ev_class = m.objid
	UNION ALL SELECT 'pg_constraint'::regclass, c.oid FROM pg_constraint c JOIN m ON m.classid = 'pg_class'::regclass AND c.conrelid = m.objid
	UNION ALL SELECT 'pg_type'::regclass, t.oid FROM pg_type t JOIN m ON m.classid = 'pg_class'::regclass AND t.typrelid = m.objid
)
SELECT DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid) AS part, pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid) AS refers_to
FROM pg_depend d JOIN parts p USING (classid, objid)
WHERE d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_class'::regclass, 'pg_type'::regclass)
  AND (d.refclassid, d.refobjid) NOT IN (SELECT * FROM parts)
  AND (SELECT (pg_identify_object(d.refclassid, d.refobjid, 0)).schema) = 'regress_evil'
ORDER BY 1, 2;
-- by the owner of the schema, whose traps must not be sprung by the superuser that the
-- script runs as
\set database :DBNAME
GRANT CREATE ON DATABASE :"database" TO regress_le_mallory;
SET SESSION AUTHORIZATION regress_le_mallory;
SET search_path = regress_evil, pg_catalog;
CREATE EXTENSION leader_election;
SELECT le_declare('declared', 'regress_le_team'), pg_stat_leader_election_reset();
SELECT le_try_become_leader('job', identity => 'me'), le_once('job', '2026-01-01 +0'), le_undeclare('declared');
SELECT le_resign('job');
RESET search_path;
RESET SESSION AUTHORIZATION;
SELECT DISTINCT who FROM regress_evil.caught;
SELECT extowner::regrole FROM pg_extension WHERE extname = 'leader_election';
TABLE captured;
SET SESSION AUTHORIZATION regress_le_mallory;
DROP EXTENSION leader_election;
RESET SESSION AUTHORIZATION;
REVOKE CREATE ON DATABASE :"database" FROM regress_le_mallory;
TRUNCATE regress_evil.caught;
RESET client_min_messages;
CREATE EXTENSION leader_election SCHEMA regress_evil;
SELECT regress_evil.le_try_become_leader('job', identity => 'me'), regress_evil.le_lease('lease', '1 min') > 0 AS lease;
SELECT regress_evil.le_declare('declared', 'regress_le_team');
SELECT name FROM regress_evil.le_leaders ORDER BY name;
SELECT identity FROM regress_evil.le_leader('job');
SELECT count(*) FROM regress_evil.le_candidates;
SELECT count(*) > 0 AS counted FROM regress_evil.pg_stat_leader_election;
SELECT * FROM regress_evil.caught;
-- what the extension made refers to nothing in the schema but its own: no rows
TABLE captured;
SELECT regress_evil.le_resign_all();
SELECT regress_evil.le_resign('lease', token) FROM regress_evil._le_registry_terms() WHERE name = 'lease';
-- its owner cannot change, or take out, what is the extension's
SET ROLE regress_le_mallory;
DROP FUNCTION regress_evil.le_token(text);
ALTER TABLE regress_evil._le_declarations RENAME TO mine;
DELETE FROM regress_evil._le_declarations;
DROP TABLE regress_evil._le_declarations CASCADE;
RESET ROLE;
ALTER SCHEMA regress_evil RENAME TO regress_renamed;
-- which is found wherever it is
SELECT regress_renamed.le_try_become_leader('job'), regress_renamed.le_once('job', '2026-01-01 +0'), regress_renamed.le_undeclare('declared');
ALTER EXTENSION leader_election SET SCHEMA public;
SELECT le_resign('job');

SET client_min_messages = warning;
DROP SCHEMA regress_renamed CASCADE;
DROP ROLE regress_le_mallory, regress_le_team;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
