--
-- DROP EXTENSION while leading, and its return; schemas
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/advisory.psql
SELECT le_try_become_leader('job', identity => 'me'), le_try_become_leader('42');
SELECT le_token('job') AS t1, le_token('42') AS t2 \gset

-- dropped and rolled back: nothing has happened
BEGIN;
DROP EXTENSION leader_election;
SELECT count(*) FROM advisory;
ROLLBACK;
SELECT le_token('job') = :t1 AS same;

-- dropped for good: the locks stay, as no leader resigned
DROP EXTENSION leader_election;
\set VERBOSITY terse
SELECT le_am_leader('job');
\set VERBOSITY default
SELECT count(*) FROM advisory;
SHOW leader_election.max_terms_per_session;

-- and it leads on when the extension is back
CREATE EXTENSION leader_election;
SELECT le_am_leader('job'), le_token('job') = :t1 AS same;
SELECT name, identity = 'me' AS identity FROM le_leaders ORDER BY name;
SELECT le_try_become_leader('job'), le_try_become_leader('next'), le_token('next') > :t2 AS greater;
SELECT le_token('next') AS t2 \gset
SELECT last_value >= :t2 AS covers FROM le_token_seq;
SELECT le_resign('job'), le_resign_all();
SELECT * FROM advisory;

-- dropped, and the locks let go while it is away
SELECT le_try_become_leader('job');
DROP EXTENSION leader_election;
SELECT pg_advisory_unlock_all();
CREATE EXTENSION leader_election;
SELECT le_am_leader('job');
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;

-- no token is drawn in the transaction that made the sequence: if it were rolled
-- back, a server that restarts could hand the token out again
SELECT le_try_become_leader('job');
SELECT le_token('job') AS t1 \gset
BEGIN;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
SAVEPOINT a;
SELECT le_try_become_leader('next');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO a;
SELECT le_am_leader('job'), le_token('job') = :t1 AS same, le_am_leader('next');
SELECT * FROM advisory;
COMMIT;
SELECT le_am_leader('job'), le_token('job') = :t1 AS same;
SELECT le_try_become_leader('next'), le_token('next') > :t1 AS greater, le_resign_all();
SELECT last_value >= :t1 AS covers FROM le_token_seq;

-- likewise where it was given a new file
SELECT last_value AS last FROM le_token_seq \gset
BEGIN;
ALTER SEQUENCE le_token_seq CACHE 1;
SET LOCAL leader_election.log_terms = off;
SET LOCAL client_min_messages = warning;
SELECT count(*) FILTER (WHERE le_try_become_leader('job') AND le_resign('job')) FROM generate_series(1, 1100);
ROLLBACK;
SELECT last_value = :last AS unchanged FROM le_token_seq;
SELECT le_resign_all();
SELECT * FROM advisory;

-- not by CASCADE from anything that an application owns
CREATE VIEW regress_le_view AS SELECT name FROM le_leaders;
\set VERBOSITY terse
DROP EXTENSION leader_election;
\set VERBOSITY default
DROP VIEW regress_le_view;
DROP VIEW le_leaders;
DROP FUNCTION le_token(text);
DROP SEQUENCE le_token_seq;
DROP EXTENSION leader_election;

-- it tells how many elections are led, in sessions that have loaded the library: by leases
-- and sessions, however it is dropped, and only if any are
CREATE EXTENSION leader_election;
SELECT le_lease('mailer', '1 hour') > 0 AS leased, le_lease('over', '100 ms') > 0 AS over, le_try_become_leader('job'), le_try_become_leader('42');
SELECT pg_sleep(0.2);
BEGIN;
SELECT le_try_become_leader_xact('in this transaction');
DROP EXTENSION leader_election;
ROLLBACK;
CREATE SCHEMA regress_le;
ALTER EXTENSION leader_election SET SCHEMA regress_le;
\set VERBOSITY terse
DROP SCHEMA regress_le CASCADE;
\set VERBOSITY default
CREATE EXTENSION leader_election;
SELECT count(*) FROM le_leaders;
SELECT le_resign('job');
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
SELECT le_resign_all();
DROP EXTENSION leader_election;
-- nor of another extension
CREATE EXTENSION leader_election;
SELECT le_try_become_leader('job');
CREATE EXTENSION dblink;
DROP EXTENSION dblink;
SELECT le_resign('job');
DROP EXTENSION leader_election;

-- in a schema of its own, called with that schema out of the path
CREATE SCHEMA regress_le;
CREATE EXTENSION leader_election SCHEMA regress_le;
\set VERBOSITY terse
SELECT le_try_become_leader('job');
\set VERBOSITY default
SELECT regress_le.le_try_become_leader('job', identity => 'me'), regress_le.le_try_become_leader('42'), regress_le.le_token('job') > :t1 AS greater;
SELECT name, identity FROM regress_le.le_leaders WHERE name = 'job';
SELECT name, identity FROM regress_le.le_leader('job');
SELECT count(*) FROM regress_le.le_leaders WHERE name = '42';
SELECT * FROM regress_le.le_candidates;
SET search_path = '';
SELECT name FROM regress_le.le_leaders WHERE name = 'job';
SELECT regress_le.le_try_become_leader_xact('other'), regress_le.le_resign('job');
RESET search_path;

-- moved to another schema while it leads
SELECT regress_le.le_try_become_leader('job');
SELECT regress_le.le_token('job') AS t1 \gset
CREATE SCHEMA regress_le_2;
ALTER EXTENSION leader_election SET SCHEMA regress_le_2;
SELECT regress_le_2.le_token('job') = :t1 AS same;
SELECT name FROM regress_le_2.le_leaders WHERE name = 'job';
SELECT name FROM regress_le_2.le_leader('job');
SELECT name FROM regress_le_2.le_leaders WHERE name = '42';
SELECT * FROM regress_le_2.le_candidates;
-- tokens go on from there, past the end of a block
SET leader_election.log_terms = off;
SET client_min_messages = warning;
DO $$ BEGIN FOR i IN 1 .. 1100 LOOP PERFORM regress_le_2.le_try_become_leader_xact('job ' || i); IF i % 100 = 0 THEN COMMIT; END IF; END LOOP; END $$;
RESET client_min_messages;
RESET leader_election.log_terms;
SELECT regress_le_2.le_try_become_leader('next'), regress_le_2.le_token('next') > :t1 + 1100 AS greater;
SELECT regress_le_2.le_resign_all();
DROP SCHEMA regress_le;
\set VERBOSITY terse
DROP SCHEMA regress_le_2;
DROP EXTENSION leader_election;
DROP SCHEMA regress_le_2;

-- objects in the schema of the extension's own names stop the installation
CREATE SCHEMA regress_le;
CREATE FUNCTION regress_le.le_token(name text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
CREATE EXTENSION leader_election SCHEMA regress_le;
DROP SCHEMA regress_le CASCADE;
CREATE EXTENSION leader_election;

--
-- Leases end when it is committed
--
\set VERBOSITY default
SELECT le_lease('job', '1 hour', identity => 'me') AS t1, le_lease('other', '1 hour', identity => 'me') AS t2 \gset

-- rolled back: nothing has happened
BEGIN;
DROP EXTENSION leader_election;
ROLLBACK;
SELECT le_am_leader('job', :t1), le_renew('job', :t1), le_lease('job', '1 hour');
BEGIN;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
SELECT count(*) FROM le_leaders;
SELECT le_am_leader('job', :t1);
SAVEPOINT a;
SELECT le_lease('job', '1 hour');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO a;
ROLLBACK;
SELECT name, le_renew(name, token) FROM le_leaders ORDER BY name;
SELECT le_am_leader('job', :t1), le_lease('job', '1 hour') IS NULL AS denied, le_try_become_leader('job');

-- with a lease that the transaction has changed, or has just taken
BEGIN;
SELECT le_renew('other', :t2, '2 hours'), le_lease('third', '1 hour') AS t3 \gset
DROP EXTENSION leader_election;
ROLLBACK;
SELECT name, ttl FROM le_leaders ORDER BY name;
SELECT name, ttl FROM le_leases WHERE ttl > '0' ORDER BY name;

-- dropped, and created anew: all are over, all is free, tokens go on
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
SELECT count(*) FROM le_leaders;
SELECT count(*) FROM le_leases;
SELECT le_am_leader('job', :t1), le_renew('job', :t1), le_renew('job', :t1, '1 s'), le_lease('job', '1 hour', identity => 'new', token => :t1) AS t4 \gset
SELECT :t4 > :t1 AND :t4 > :t2 AS greater, le_am_leader('job', :t1), le_am_leader('job', :t4), le_am_leader('other', :t2);
SELECT name, identity FROM le_leaders ORDER BY name;
SELECT le_try_become_leader('other', identity => 's');
SELECT name, scope FROM le_leaders ORDER BY name;
SELECT le_resign_all();

-- in one transaction
BEGIN;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
COMMIT;
SELECT count(*) FROM le_leaders;
SELECT le_am_leader('job', :t4), le_renew('job', :t4);
SELECT le_lease('job', '1 hour') > :t4 AS greater;

-- by the very transaction that took the lease
BEGIN;
SELECT le_lease('other', '1 hour') AS t5 \gset
DROP EXTENSION leader_election;
COMMIT;
CREATE EXTENSION leader_election;
SELECT count(*) FROM le_leaders;
SELECT le_am_leader('other', :t5), le_lease('other', '1 hour') > :t5 AS greater;

-- another schema is no other table
CREATE SCHEMA regress_le;
SELECT le_lease('moved', '1 hour') AS t6 \gset
ALTER EXTENSION leader_election SET SCHEMA regress_le;
SELECT regress_le.le_am_leader('moved', :t6), regress_le.le_renew('moved', :t6, '2 hours');
SELECT ttl FROM regress_le.le_leader('moved');
SELECT ttl FROM regress_le.le_leases WHERE name = 'moved';
BEGIN;
SELECT regress_le.le_lease('in the transaction', '1 hour') > 0 AS taken;
ALTER EXTENSION leader_election SET SCHEMA public;
SELECT le_resign('moved', :t6);
COMMIT;
SELECT name, le_resign(name, token) FROM le_leaders ORDER BY name;
DROP SCHEMA regress_le;

SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
SELECT * FROM advisory;
