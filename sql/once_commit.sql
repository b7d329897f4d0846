--
-- le_once: what the end of its transaction does, and whose code and schema it runs in
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/guard.psql
\i :abs_srcdir/sql/include/outcome.psql
CREATE FUNCTION last_once(text) RETURNS timestamptz LANGUAGE sql AS $$ SELECT due FROM public.le_once_done WHERE name = $1 $$;
RESET client_min_messages;
SET timezone = 'UTC';

-- the job that is not committed before the end of the term is not done
SELECT le_try_become_leader('job', identity => 'me'), le_once('job', '2026-02-04');
\set VERBOSITY sqlstate
BEGIN;
SELECT le_once('job', '2026-02-06');
SELECT le_resign('job');
COMMIT;
SELECT last_once('job');
-- false guards as well: the transaction does not commit beside another leader's
SELECT le_try_become_leader('job', identity => 'me');
BEGIN;
SELECT le_once('job', '2026-02-04');
TABLE guards;
SELECT le_resign('job');
COMMIT;
\set VERBOSITY default

-- where nothing can be written
SELECT le_try_become_leader('job', identity => 'me');
BEGIN READ ONLY;
SELECT outcome('SELECT le_once(''job'', ''2026-05-01'')');
TABLE guards;
COMMIT;

-- with a function's rights
CREATE ROLE regress_once_owner;
CREATE ROLE regress_once_other;
GRANT USAGE, CREATE ON SCHEMA regress_guard TO regress_once_owner, regress_once_other;
SET ROLE regress_once_owner;
SELECT le_lease('theirs', '1 hour') AS t4 \gset
RESET ROLE;
CREATE FUNCTION lent(due timestamptz, token bigint) RETURNS text LANGUAGE sql SECURITY DEFINER
SET search_path = public, pg_temp AS $$ SELECT le_once('theirs', $1, $2) || ' ' || current_user $$;
ALTER FUNCTION lent OWNER TO regress_once_owner;
SET ROLE regress_once_other;
SELECT lent('2026-01-03', :t4), current_user;
RESET ROLE;
-- a security-restricted operation elects no leader, and does no job
CREATE MATERIALIZED VIEW restricted AS SELECT last_once('theirs');
TABLE restricted;
CREATE MATERIALIZED VIEW denied AS SELECT le_once('theirs', '2026-01-04', (SELECT token FROM le_leader('theirs')));
SELECT le_resign('theirs', :t4);
DROP FUNCTION lent;
DROP MATERIALIZED VIEW restricted;
REVOKE ALL ON SCHEMA regress_guard FROM regress_once_owner, regress_once_other;
DROP ROLE regress_once_owner, regress_once_other;

-- the extension in another schema
CREATE SCHEMA "regress %s ""once""";
ALTER EXTENSION leader_election SET SCHEMA "regress %s ""once""";
SELECT (SELECT due FROM "regress %s ""once""".le_once_done WHERE name = 'job') AS last, "regress %s ""once""".le_once('job', '2026-06-01');
ALTER EXTENSION leader_election SET SCHEMA public;
DROP SCHEMA "regress %s ""once""";
SELECT last_once('job');
-- dropped and created: nothing is done
BEGIN;
SELECT le_once('job', '2026-06-02');
DROP EXTENSION leader_election CASCADE;
CREATE EXTENSION leader_election SCHEMA public;
SELECT last_once('job'), le_once('job', '2026-06-01');
COMMIT;
SELECT le_resign('job');

SET client_min_messages = warning;
DROP SCHEMA regress_guard CASCADE;
DROP EXTENSION dblink;
TRUNCATE _le_once_done;
