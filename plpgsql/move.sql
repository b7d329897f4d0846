/*
 * move.sql: what to-c.sql and from-c.sql have in common
 *
 * The owner of the schema "le" need not be a superuser, and a superuser runs the
 * move.  So the move calls no function of that schema, and reads and writes its
 * tables only if these are as leader_election.sql has created them: a view, a
 * trigger, a rule, a policy, statistics, or an expression of another type or function
 * would run the owner's code with the rights of a superuser.  SET ROLE would not
 * prevent this, because that code can reset the role.
 *
 * No lock is awaited for longer than a tenth of a second at a time, since all
 * calls would queue up behind it, nor for longer than "wait" altogether.
 */
\set ON_ERROR_STOP 1
\if :{?wait}
\else
	\set wait '10 s'
\endif
SET search_path = pg_catalog, pg_temp;
SET IntervalStyle = postgres;
SET statement_timeout = 0;

DO $$
BEGIN
	IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
		RAISE EXCEPTION 'only a superuser can move elections to the C extension, or from it';
	ELSIF to_regclass('le.le_settings') IS NULL THEN
		RAISE EXCEPTION 'schema "le" does not contain the SQL edition';
	END IF;
END $$;

-- Return the processes that hold locks on the relations
CREATE FUNCTION pg_temp.users_of(relations regclass[]) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN (SELECT string_agg(DISTINCT COALESCE(l.pid::text, 'prepared transaction'), ', ') FROM pg_locks l
		WHERE l.relation = ANY (relations) AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
			AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()));
END $$;

-- Lock the tables of the SQL edition, except for readers, and ensure that using
-- them runs no code of their owner.  The lock of the schema's row keeps the
-- owner from renaming it.  The transaction must be READ COMMITTED, so that each
-- look at the catalogs follows the lock.  Returns the processes that use them, or
-- '' if locked.
CREATE FUNCTION pg_temp.lock_elections(wait interval) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + wait;
	tables regclass[];
	strange text;
BEGIN
	LOOP
		BEGIN
			SET LOCAL lock_timeout = '100 ms';
			PERFORM FROM pg_namespace n WHERE n.nspname = 'le' FOR UPDATE;
			IF NOT FOUND THEN
				RAISE lock_not_available;	-- it has just been renamed, and another may have its name
			END IF;
			LOCK TABLE le.le_settings, le.le_elections, le.le_once_done IN EXCLUSIVE MODE;
			-- DDL of the owner is awaited no longer than that, with the tables locked
			SET LOCAL lock_timeout = '2 s';
			EXIT;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			IF clock_timestamp() >= until THEN
				RETURN COALESCE(pg_temp.users_of('{le.le_settings,le.le_elections,le.le_once_done}'), 'unknown');
			END IF;
			PERFORM pg_sleep(0.05);
		END;
	END LOOP;
	tables := '{le.le_settings,le.le_elections,le.le_once_done}';
	SELECT string_agg(DISTINCT pg_describe_object(o.class, o.id, o.sub), ', ') INTO strange
	FROM (
		-- a name that is no column would be looked up as a function or cast of the row
		SELECT 'pg_class'::regclass, c.oid, 0 FROM pg_class c
		WHERE c.oid = ANY (tables) AND (c.relkind <> 'r' OR concat(c.relname, ': ', (
			SELECT string_agg(concat(quote_ident(a.attname), ' ', a.atttypid::regtype, a.attgenerated), ', ' ORDER BY a.attnum)
			FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)) NOT IN (
			'le_settings: one boolean, max_ttl interval, max_elections_per_role integer, elects boolean, moved boolean',
			'le_elections: name text, token bigint, scope text, role oid, login oid, pid integer, xact xid8, beacon bigint, '
			'since timestamp with time zone, renewed_at timestamp with time zone, renewals bigint, lasts interval, '
			'suspect_at timestamp with time zone, creator oid, shows_client boolean, ended text, identity text, value text',
			'le_once_done: name text, due timestamp with time zone, token bigint, role oid'))
		UNION ALL
		SELECT 'pg_class'::regclass, i.inhrelid, 0 FROM pg_inherits i
		WHERE i.inhrelid = ANY (tables) OR i.inhparent = ANY (tables)
		UNION ALL
		SELECT 'pg_attrdef'::regclass, d.oid, 0 FROM pg_attrdef d
		WHERE d.adrelid = ANY (tables)
			AND pg_get_expr(d.adbin, d.adrelid) NOT IN ('true', 'false', '10000', '''00:01:00''::interval')
		UNION ALL
		SELECT 'pg_constraint'::regclass, c.oid, 0 FROM pg_constraint c
		WHERE c.confrelid = ANY (tables) OR c.conrelid = ANY (tables) AND c.contype NOT IN ('p', 'u', 'n', 't')
			AND pg_get_constraintdef(c.oid) <> 'CHECK (one)'
		UNION ALL
		SELECT 'pg_class'::regclass, i.indexrelid, 0 FROM pg_index i
		WHERE i.indrelid = ANY (tables) AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)
		UNION ALL
		-- the move switches the script's own trigger off
		SELECT 'pg_trigger'::regclass, t.oid, 0 FROM pg_trigger t
		WHERE t.tgrelid = ANY (tables)
			AND NOT (t.tgname = '_le_take_beacon' AND t.tgrelid = 'le.le_elections'::regclass)
		UNION ALL
		-- what else belongs to a table: rules, policies, statistics of expressions
		SELECT d.classid, d.objid, 0 FROM pg_depend d
		WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = ANY (tables) AND d.deptype IN ('a', 'i')
			AND d.classid <> ALL ('{pg_class,pg_type,pg_attrdef,pg_constraint,pg_trigger}'::regclass[])
	) o(class, id, sub);
	IF strange IS NOT NULL THEN
		RAISE EXCEPTION 'the tables of the SQL edition are not as its script has created them'
			USING DETAIL = 'Altered: ' || strange || '.',
			HINT = 'Code of their owner would run as a superuser. Drop what was added.';
	END IF;
	RETURN '';
END $$;

-- Let the functions of "le" call those of the extension.  A trigger function cannot
-- call another one, so le_guard becomes that of the library.  All stay with their
-- owner.  The arguments are those of the extension: a literal as default calls the
-- input function of its type, which can check a domain of the owner.
CREATE FUNCTION pg_temp.call_extension() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	f record;
	call text;
	body text;
BEGIN
	FOR f IN
		SELECT p.proname AS name, x.prokind AS kind, x.proretset AS set,
			COALESCE(pg_get_function_arguments(x.oid), '') AS arguments,
			pg_get_function_result(COALESCE(x.oid, p.oid)) AS result,
			(SELECT string_agg(CASE x.prokind WHEN 'p' THEN quote_ident(a.name)
					ELSE format('%I.%I', p.proname, a.name) END, ', ' ORDER BY a.i)
			FROM ROWS FROM (unnest(x.proargnames), unnest(x.proargmodes)) WITH ORDINALITY a(name, mode, i)
			WHERE COALESCE(a.mode, 'i') IN ('i', 'b')) AS passed
		FROM pg_proc p
		LEFT JOIN pg_proc x ON x.pronamespace = 'leader_election'::regnamespace AND x.proname = p.proname
			AND x.proargtypes = p.proargtypes
		WHERE p.pronamespace = 'le'::regnamespace
			AND (x.prorettype <> 'trigger'::regtype
				OR p.proname IN ('_le_leaders', '_le_candidates') AND p.pronargs = 0)
	LOOP
		call := format('leader_election.%I(%s)', f.name, f.passed);
		body := CASE
			WHEN f.name ^@ '_' THEN 'RETURN QUERY SELECT * FROM leader_election.' || substr(f.name::text, 2)
			WHEN f.kind = 'p' THEN 'CALL ' || call
			WHEN f.set THEN 'RETURN QUERY SELECT * FROM ' || call
			WHEN f.result = 'void' THEN 'PERFORM ' || call
			ELSE 'RETURN ' || call END;
		EXECUTE format('CREATE OR REPLACE %s le.%I(%s) %s LANGUAGE plpgsql AS %L',
			CASE f.kind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END, f.name, f.arguments,
			'RETURNS ' || f.result, 'BEGIN ' || body || '; END');
	END LOOP;
	SELECT format('CREATE OR REPLACE FUNCTION le.le_guard() RETURNS trigger LANGUAGE c AS %L, %L', p.probin, p.prosrc)
	INTO STRICT call FROM pg_proc p
	WHERE p.pronamespace = 'leader_election'::regnamespace AND p.proname = 'le_guard';
	EXECUTE call;
END $$;
