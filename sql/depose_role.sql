--
-- le_depose_role: to end all terms of a role
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/depose.psql
\i :abs_srcdir/sql/include/sessions.psql
\i :abs_srcdir/sql/include/outcome.psql
CREATE ROLE regress_depose_all LOGIN;
CREATE ROLE regress_depose_other LOGIN;
CREATE ROLE regress_depose_admin LOGIN;
CREATE ROLE regress_depose_super LOGIN SUPERUSER;
CREATE VIEW led AS SELECT name, scope, CASE usename WHEN session_user THEN 'superuser' ELSE usename END AS usename FROM le_leaders ORDER BY name COLLATE "C" NULLS FIRST, usename;
-- of the terms of a session, any one is deposed, and the others end with the session
CREATE VIEW counted AS SELECT name, terms, CASE WHEN name NOT LIKE 'dr a%' THEN deposed END AS deposed, deposed + session_ended AS either, expired
  FROM pg_stat_leader_election WHERE name LIKE 'dr %' ORDER BY name COLLATE "C";
RESET client_min_messages;
\set VERBOSITY terse

-- what it holds: in each scope, by several sessions, and leases by others' hands
SELECT open('a', 'regress_depose_all'), open('b', 'regress_depose_all'), open('c', 'regress_depose_other'), open('s', 'regress_depose_super');
SELECT says('a', $$SELECT count(*) FROM generate_series(1, 3) i WHERE le_try_become_leader('dr a' || i, identity => 'a')$$), says('a', $$SELECT le_try_become_leader('6161')$$);
SELECT dblink_exec('b', 'BEGIN'), says('b', $$SELECT le_try_become_leader_xact('dr b')$$), says('b', $$SELECT le_lease('dr uncommitted', '1 hour') > 0$$);
SELECT says('c', $$SELECT le_try_become_leader('dr other')$$), says('s', $$SELECT le_try_become_leader('dr super')$$);
SET ROLE regress_depose_all;
SELECT count(le_lease('dr l' || i, '1 hour')) FROM generate_series(1, 4) i;
SELECT le_try_become_leader('dr own');
SELECT says('s', format('SELECT le_resign(''dr l4'', %s)', token)) FROM le_leader('dr l4');
RESET ROLE;
TABLE led;
-- roles that may not
SET ROLE regress_depose_all;
SELECT outcome($$SELECT le_depose_role('regress_depose_all')$$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION le_depose_role TO regress_depose_admin;
SET ROLE regress_depose_admin;
SELECT outcome($$SELECT le_depose_role('regress_depose_super')$$), outcome($$SELECT le_depose_role(NULL)$$),
       outcome($$SELECT le_depose_role('regress_depose_nobody')$$), outcome($$SELECT le_depose_role('regress_depose_all', repeat('r', 256))$$);
SELECT outcome($$SELECT le_depose('dr super')$$);
-- a role that was granted it may depose by name as well
SELECT le_depose('dr other', 'by name'), le_depose_role('regress_depose_other');
RESET ROLE;
SELECT gone('c'), count(*) FROM led;

-- all of it, but this session's
SELECT waits('s', $$SELECT le_become_leader('dr a2', '1 min')$$);
SET ROLE regress_depose_admin;
SELECT le_depose_role('regress_depose_all', 'it has too many');
RESET ROLE;
SELECT gone('a'), gone('b'), answer('s');
TABLE led;
TABLE counted;
SELECT le_depose_role('regress_depose_all');
-- the void rows are there to be found after a restart
SELECT count(*) FROM le_leases WHERE name LIKE 'dr %' AND ttl > '0';
-- it is not kept from standing again
SET ROLE regress_depose_all;
SELECT le_lease('dr l1', '1 hour') > 0 AS taken;
RESET ROLE;
SELECT le_depose_role('regress_depose_all'), le_depose_role('regress_depose_super');
TABLE led;

-- what is guarded ends with it
SELECT dblink_disconnect(who) FROM unnest('{a,b,c,s}'::text[]) who;
SELECT open('a', 'regress_depose_all'), open('b', 'regress_depose_all'), says('a', $$SELECT le_try_become_leader('dr a1')$$);
SELECT says('b', $$SELECT le_lease('dr l1', '1 hour') > 0$$);
SELECT open('g', 'regress_depose_all'), open('h', 'regress_depose_all');
SELECT dblink_exec('g', 'BEGIN'), says('g', $$SELECT le_assert_leader('dr a1', token) IS NOT NULL FROM le_leader('dr a1')$$), dblink_exec('g', 'INSERT INTO regress_depose.note VALUES (1)');
SELECT dblink_exec('h', 'BEGIN'), says('h', $$SELECT le_assert_leader('dr l1', token) IS NOT NULL FROM le_leader('dr l1')$$), dblink_exec('h', 'INSERT INTO regress_depose.note VALUES (2)');
SELECT le_depose_role('regress_depose_all');
SELECT gone('a'), gone('g'), gone('h');
SELECT count(*) AS "of the guarded" FROM note;
SELECT says('b', 'SELECT 1') AS "of no lease's";
SELECT le_try_become_leader('dr a1'), le_try_become_leader('dr l1'), le_resign_all();
SELECT dblink_disconnect(who) FROM unnest('{a,b,g,h}'::text[]) who;

SET client_min_messages = warning;
REVOKE EXECUTE ON FUNCTION le_depose_role FROM regress_depose_admin;
DROP SCHEMA regress_depose CASCADE;
DROP ROLE regress_depose_all, regress_depose_other, regress_depose_admin, regress_depose_super;
DROP EXTENSION dblink;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory';
