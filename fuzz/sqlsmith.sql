-- What sqlsmith is let loose upon, by tools/fuzz: the extension, little else, and
-- something to call it with.  It makes up queries of the tables and functions that it finds
-- in the catalog, rolls each back, and calls no procedures.
\set ON_ERROR_STOP on
CREATE EXTENSION leader_election;
CREATE ROLE smith_boss LOGIN SUPERUSER;
CREATE ROLE smith_worker LOGIN;
CREATE ROLE smith_candidates;
GRANT smith_candidates TO smith_worker;
CREATE SCHEMA smith;
GRANT USAGE ON SCHEMA smith TO PUBLIC;
-- set for roles: pg_proc is found in smith first, see below
ALTER ROLE smith_boss SET search_path = smith, public, pg_catalog;
ALTER ROLE smith_worker SET search_path = smith, public, pg_catalog;
ALTER ROLE smith_boss SET lock_timeout = '200ms';
ALTER ROLE smith_worker SET lock_timeout = '100ms';

-- as it makes up few constants itself
CREATE TABLE smith.material (
	name text,
	other text,
	names text[],
	key bigint,
	token bigint,
	ttl interval,
	timeout interval,
	reason text,
	lock_class integer,
	role regrole
);
INSERT INTO smith.material
SELECT (ARRAY['job', 'task', 'declared', 'private', 'guarded', 'job', 'task', E'a"b\\c\nd', '', repeat('n', 255), repeat('n', 256), NULL])[n % 12 + 1],
	(ARRAY['me', 'you', E'\t\x01\x7f', repeat(U&'\00e9', 127), repeat('v', 8192), repeat('v', 8193), '', NULL])[n % 8 + 1],
	(ARRAY['{job,task}', '{task,task,job}', '{}', '{{job},{task}}', '{job,NULL}', NULL, '[5:6]={private,declared}', '{n,"",m}'])[n % 8 + 1]::text[],
	(ARRAY[1, 2, -1, 9223372036854775807, -9223372036854775808, 0, 42, NULL])[n % 8 + 1],
	(ARRAY[1, 0, -1, 4294967297, 9223372036854775807, -9223372036854775808, NULL])[n % 7 + 1],
	(ARRAY['1s', '100ms', '99ms', '1min', '1 month', '-1s', '2 days', '1.5s', NULL])[n % 9 + 1]::interval,
	(ARRAY['0', '10ms', '1ms', '-1ms', '178000000 years', '20ms', '24 days 20:31:23.647', '1us'])[n % 8 + 1]::interval,
	(ARRAY['stuck', E'line\nfeed', '', repeat('r', 256), NULL])[n % 5 + 1],
	(ARRAY[1, 19525, 19527, 0, NULL])[n % 5 + 1],
	(ARRAY['smith_candidates', 'smith_worker', 'smith_boss', NULL])[n % 4 + 1]::regrole
FROM generate_series(1, 200) n;
CREATE TABLE smith.guarded (id bigint, name text);
INSERT INTO smith.guarded SELECT n, 'row ' || n FROM generate_series(1, 20) n;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON smith.guarded
	FOR EACH STATEMENT EXECUTE FUNCTION le_guard('guarded');
CREATE TRIGGER guard_rows BEFORE INSERT OR UPDATE OR DELETE ON smith.guarded
	FOR EACH ROW EXECUTE FUNCTION le_guard('guarded');
GRANT ALL ON smith.material, smith.guarded TO PUBLIC;

-- what to call with: some of that, or what there is now
CREATE FUNCTION smith.some_text() RETURNS text LANGUAGE sql VOLATILE AS $$
	SELECT t FROM (SELECT unnest(ARRAY[name, name, other, reason]) AS t FROM smith.material
				   UNION ALL (SELECT unnest(ARRAY[name, identity]) FROM le_candidates)) s ORDER BY random() LIMIT 1 $$;
CREATE FUNCTION smith.some_bigint() RETURNS bigint LANGUAGE sql VOLATILE AS $$
	SELECT t FROM (SELECT unnest(ARRAY[key, token]) AS t FROM smith.material
				   UNION ALL (SELECT token FROM le_leaders, generate_series(1, 100))) s ORDER BY random() LIMIT 1 $$;
CREATE FUNCTION smith.some_interval() RETURNS interval LANGUAGE sql VOLATILE AS
	'SELECT unnest(ARRAY[ttl, timeout]) FROM smith.material ORDER BY random() LIMIT 1';
CREATE FUNCTION smith.some_time() RETURNS timestamptz LANGUAGE sql VOLATILE AS
	'SELECT clock_timestamp() - n * interval ''1 min'' FROM generate_series(-100, 100) n ORDER BY random() LIMIT 1';
CREATE FUNCTION smith.some_names() RETURNS text[] LANGUAGE sql VOLATILE AS
	'SELECT names FROM smith.material ORDER BY random() LIMIT 1';
CREATE FUNCTION smith.some_tokens() RETURNS bigint[] LANGUAGE sql VOLATILE AS
	'SELECT array_agg(smith.some_bigint()) FROM generate_series(1, (random() * 4)::integer)';
CREATE FUNCTION smith.some_role() RETURNS regrole LANGUAGE sql VOLATILE AS
	'SELECT role FROM smith.material ORDER BY random() LIMIT 1';
CREATE FUNCTION smith.some_integer() RETURNS integer LANGUAGE sql VOLATILE AS
	'SELECT lock_class FROM smith.material ORDER BY random() LIMIT 1';
CREATE FUNCTION smith.some_smallint() RETURNS smallint LANGUAGE sql VOLATILE AS
	'SELECT (random() * 4)::smallint';
CREATE FUNCTION smith.some_oid() RETURNS oid LANGUAGE sql VOLATILE AS
	'SELECT oid FROM pg_database ORDER BY random() LIMIT 1';
CREATE FUNCTION smith.some_boolean() RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT random() < 0.5';
CREATE FUNCTION smith.set_token() RETURNS text LANGUAGE sql VOLATILE
	AS 'SELECT set_config(''leader_election.token'', smith.some_bigint()::text, false)';

-- It likes tables, and functions without arguments: here is one of these for each function
-- and procedure of the extension, which calls that with arguments, and a view of it.
DO $do$
DECLARE
	makers CONSTANT jsonb = '{"text": "some_text", "bigint": "some_bigint", "interval": "some_interval", "text[]": "some_names", "bigint[]": "some_tokens",
		"regrole": "some_role", "integer": "some_integer", "smallint": "some_smallint", "oid": "some_oid", "boolean": "some_boolean",
		"timestamp with time zone": "some_time"}';
	it record;
	call text;
BEGIN
	FOR it IN
		SELECT p.oid, p.proname, p.prokind, p.proretset, p.prorettype::regtype::text AS result,
			   (SELECT string_agg(format('smith.%I()', makers ->> t.type::regtype::text), ', ' ORDER BY t.n)
				FROM unnest(p.proargtypes) WITH ORDINALITY t(type, n)) AS arguments,
			   (SELECT string_agg(format('v%s %s = smith.%I()', t.n, t.type::regtype, makers ->> t.type::regtype::text), '; ' ORDER BY t.n)
				FROM unnest(p.proargtypes) WITH ORDINALITY t(type, n)) AS variables,
			   (SELECT string_agg('v' || t.n, ', ' ORDER BY t.n)
				FROM unnest(p.proargtypes) WITH ORDINALITY t(type, n)) AS names
		FROM pg_depend d JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
		WHERE d.refobjid = (SELECT e.oid FROM pg_extension e WHERE e.extname = 'leader_election')
		  AND p.prorettype NOT IN ('trigger'::regtype, 'internal'::regtype)
	LOOP
		call := format('%I(%s)', it.proname, it.arguments);
		EXECUTE CASE
			WHEN it.prokind = 'p' THEN
				format('CREATE FUNCTION smith.call_%s() RETURNS boolean LANGUAGE plpgsql AS $$
					DECLARE %s; BEGIN CALL %I(%s); RETURN true; END $$', it.oid, it.variables, it.proname, it.names)
			WHEN it.proretset OR it.result = 'record' THEN
				format('CREATE FUNCTION smith.call_%s() RETURNS bigint LANGUAGE plpgsql AS $$
					BEGIN RETURN (SELECT count(*) FROM %s); END $$', it.oid, call)
			WHEN it.result = 'void' THEN
				format('CREATE FUNCTION smith.call_%s() RETURNS boolean LANGUAGE plpgsql AS $$
					BEGIN PERFORM %s; RETURN true; END $$', it.oid, call)
			ELSE
				format('CREATE FUNCTION smith.call_%s() RETURNS %s LANGUAGE plpgsql AS $$
					BEGIN RETURN %s; END $$', it.oid, it.result, call)
		END;
		EXECUTE format('CREATE VIEW smith.view_%1$s AS SELECT smith.call_%1$s() AS result, n FROM generate_series(1, 2) n', it.oid);
		EXECUTE format('GRANT SELECT ON smith.view_%s TO PUBLIC', it.oid);
	END LOOP;
END $do$;

-- whatever fails in there is rolled back, and the transaction goes on
CREATE FUNCTION smith.lead_in_vain() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	name text = smith.some_text();
	identity text = smith.some_text();
BEGIN
	PERFORM le_try_become_leader(name, identity => identity), le_try_become_leader_xact(name, identity => identity), le_lease(name, '1s', identity => identity);
	RAISE division_by_zero;
EXCEPTION WHEN division_by_zero OR lock_not_available THEN RETURN false;
END $$;
CREATE FUNCTION smith.write_guarded() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM le_become_leader('guarded', '5ms');
	INSERT INTO smith.guarded VALUES (0, 'new');
	PERFORM le_proclaim('guarded', smith.some_text());
	RETURN le_resign('guarded');
EXCEPTION WHEN SQLSTATE 'LE001' THEN RETURN false;
END $$;

SELECT le_declare('declared', 'smith_candidates', '50ms', '10s'), le_declare('private', 'smith_boss', private => true);

-- In pg_proc sqlsmith looks for functions: here it finds those of the extension, what is
-- above, and some of the server's, to make up arguments and to disturb.
CREATE VIEW smith.pg_proc AS
SELECT p.* FROM pg_catalog.pg_proc p
WHERE p.prokind <> 'p'
  AND EXISTS (SELECT FROM pg_catalog.pg_depend d
			  WHERE d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
   OR p.pronamespace = 'smith'::regnamespace
   OR p.oid IN ('repeat(text,integer)'::regprocedure, 'md5(text)'::regprocedure, 'upper(text)'::regprocedure,
				'hashtextextended(text,bigint)'::regprocedure, 'abs(bigint)'::regprocedure, 'now()'::regprocedure,
				'make_interval(integer,integer,integer,integer,integer,integer,double precision)'::regprocedure,
				'random()'::regprocedure, 'current_database()'::regprocedure, 'array_append(anycompatiblearray,anycompatible)'::regprocedure,
				'pg_try_advisory_lock(bigint)'::regprocedure, 'pg_advisory_unlock(bigint)'::regprocedure,
				'pg_try_advisory_xact_lock(bigint)'::regprocedure, 'pg_advisory_unlock_all()'::regprocedure,
				'count("any")'::regprocedure, 'max(text)'::regprocedure, 'min(bigint)'::regprocedure);
GRANT SELECT ON smith.pg_proc TO PUBLIC;

-- Operators it finds under their full name; those of other types only spoil its queries.
SET allow_system_table_mods = on;
DELETE FROM pg_catalog.pg_operator o USING pg_catalog.pg_type t
WHERE t.oid IN (o.oprleft, o.oprright, o.oprresult)
  AND (t.typcategory IN ('G', 'R', 'V')
	   OR t.typname IN ('anyenum', 'anyrange', 'anymultirange', 'tsvector', 'tsquery', 'jsonb', 'money', 'macaddr',
						'macaddr8', 'pg_lsn', 'uuid', 'bpchar', 'aclitem', 'xml', 'txid_snapshot'));

-- count from here
SELECT pg_stat_reset();
