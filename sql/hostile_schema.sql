--
-- A hostile schema: first in the path, and the one that is installed to
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
SET client_min_messages = warning;
DROP EXTENSION leader_election;
CREATE SCHEMA regress_hostile;
CREATE FUNCTION regress_hostile.caught() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'caught by a hostile object'; END $$;
CREATE FUNCTION regress_hostile.always(int8, int8) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); RETURN true; END $$;
CREATE FUNCTION regress_hostile.always(int4, int4) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); RETURN true; END $$;
CREATE FUNCTION regress_hostile.always(int2, int4) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); RETURN true; END $$;
CREATE FUNCTION regress_hostile.always(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); RETURN true; END $$;
CREATE FUNCTION regress_hostile.always(oid, oid) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); RETURN true; END $$;
CREATE FUNCTION regress_hostile.always(int8) RETURNS int8 LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); RETURN 1; END $$;
CREATE OPERATOR regress_hostile.= (FUNCTION = regress_hostile.always, LEFTARG = int8, RIGHTARG = int8);
CREATE OPERATOR regress_hostile.= (FUNCTION = regress_hostile.always, LEFTARG = int4, RIGHTARG = int4);
CREATE OPERATOR regress_hostile.= (FUNCTION = regress_hostile.always, LEFTARG = int2, RIGHTARG = int4);
CREATE OPERATOR regress_hostile.= (FUNCTION = regress_hostile.always, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR regress_hostile.= (FUNCTION = regress_hostile.always, LEFTARG = oid, RIGHTARG = oid);
CREATE VIEW regress_hostile.pg_locks AS SELECT regress_hostile.caught();
CREATE VIEW regress_hostile.pg_stat_activity AS SELECT regress_hostile.caught();
CREATE VIEW regress_hostile.pg_database AS SELECT regress_hostile.caught();
CREATE VIEW regress_hostile.pg_extension AS SELECT regress_hostile.caught();
CREATE FUNCTION regress_hostile.current_database() RETURNS name LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); END $$;
CREATE FUNCTION regress_hostile.pg_blocking_pids(int) RETURNS int[] LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); END $$;
CREATE FUNCTION regress_hostile.setval(regclass, bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); END $$;
CREATE FUNCTION regress_hostile.setval_oid(regclass, bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); END $$;
CREATE FUNCTION regress_hostile.hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
-- an exact match, where the server's own is polymorphic
CREATE FUNCTION regress_hostile.unnest(int[]) RETURNS SETOF int LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); END $$;
CREATE AGGREGATE regress_hostile.count(int8) (SFUNC = int8pl, STYPE = int8);

-- first in the caller's path, before pg_catalog
CREATE EXTENSION leader_election SCHEMA public;
CREATE SEQUENCE regress_hostile.le_token_seq MAXVALUE 2;
CREATE VIEW regress_hostile._le_locks AS SELECT regress_hostile.caught();
CREATE FUNCTION regress_hostile.le_token(text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); END $$;
CREATE FUNCTION regress_hostile._le_registry_terms() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); END $$;
SET search_path = regress_hostile, pg_catalog, public;
SELECT public.le_try_become_leader('job', identity => 'me'), public.le_try_become_leader('42'), public.le_become_leader('other', '1 s');
SELECT public.le_am_leader('job'), public.le_token('job') <= (SELECT last_value FROM public.le_token_seq) AS covered;
SELECT is_called FROM regress_hostile.le_token_seq;
SELECT pg_catalog.count(*) FROM public.le_leaders;
SELECT pg_catalog.count(*) FROM public.le_candidates;
SELECT identity FROM public.le_leader('job');
SELECT identity IS NOT NULL AS identity FROM public.le_leader('42');
SELECT public.le_resign_all();
RESET search_path;
DROP EXTENSION leader_election;
DROP SEQUENCE regress_hostile.le_token_seq;
DROP VIEW regress_hostile._le_locks;
DROP FUNCTION regress_hostile.le_token, regress_hostile._le_registry_terms;

-- the schema that is installed to
CREATE EXTENSION leader_election SCHEMA regress_hostile;
SELECT regress_hostile.le_try_become_leader('job', identity => 'me'), regress_hostile.le_try_become_leader('42', identity => 'me');
SELECT identity FROM regress_hostile.le_leaders;
SELECT identity FROM regress_hostile.le_leader('job');
SELECT pg_catalog.count(*) FROM regress_hostile.le_candidates;
SELECT regress_hostile.le_resign_all();
-- what the extension made refers to nothing in it but its own
SELECT DISTINCT pg_describe_object(d.refclassid, d.refobjid, 0) AS captured
FROM pg_depend d
LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
JOIN pg_depend m ON m.deptype = 'e' AND m.refclassid = 'pg_extension'::regclass
 AND (m.classid, m.objid) IN ((d.classid, d.objid), ('pg_class'::regclass, r.ev_class))
WHERE d.deptype = 'n' AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_class'::regclass)
  AND m.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election')
  AND NOT EXISTS (SELECT FROM pg_depend own WHERE own.deptype = 'e' AND own.refobjid = m.refobjid
                  AND own.classid = d.refclassid AND own.objid = d.refobjid)
  AND pg_describe_object(d.refclassid, d.refobjid, 0) LIKE '%regress\_hostile%';
DROP EXTENSION leader_election;

-- a function that a call without arguments could mean is not taken for it
CREATE FUNCTION regress_hostile._le_registry_terms(VARIADIC int[]) RETURNS SETOF int LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_hostile.caught(); END $$;
CREATE EXTENSION leader_election SCHEMA regress_hostile;
SELECT * FROM regress_hostile.le_leaders;
DROP EXTENSION IF EXISTS leader_election;

DROP SCHEMA regress_hostile CASCADE;
CREATE EXTENSION leader_election;
