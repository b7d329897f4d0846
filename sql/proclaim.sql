--
-- le_proclaim: a leader publishes a value, for the rest of its term
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql
-- the C extension has a notice where session scope is taken in a transaction
SET client_min_messages = warning;

SELECT le_try_become_leader('job', identity => 'me');
SELECT value IS NULL AS none FROM le_leader('job');
SELECT le_proclaim('job', 'one');
SELECT value FROM le_leader('job');
SELECT value FROM le_leaders WHERE name = 'job';
-- the last one counts
BEGIN;
SELECT le_proclaim('job', 'two'), le_proclaim('job', 'three');
COMMIT;
SELECT value FROM le_leader('job');
-- a procedure that commits
DO $$
BEGIN
	PERFORM le_proclaim('job', 'first');
	COMMIT;
	RAISE WARNING '%', (SELECT value FROM le_leader('job'));
END $$;

-- '' is a value, NULL is none
SELECT le_proclaim('job', '');
SELECT value = '' AS empty FROM le_leader('job');
SELECT le_proclaim('job', NULL);
SELECT value IS NULL AS none FROM le_leader('job');
SELECT le_proclaim('job', NULL);
BEGIN;
SELECT le_proclaim('job', 'v'), le_proclaim('job', NULL);
COMMIT;
SELECT value IS NULL AS none FROM le_leader('job');

-- how long: in bytes
SELECT le_proclaim('job', repeat('x', 8192));
SELECT value = repeat('x', 8192) AS whole FROM le_leader('job');
SELECT le_proclaim('job', repeat('x', 8193));
\echo :LAST_ERROR_SQLSTATE
SELECT le_proclaim('job', repeat(U&'\20AC', 2730) || 'xy');
SELECT value = repeat(U&'\20AC', 2730) || 'xy' AS whole, octet_length(value) FROM le_leader('job');
SELECT le_proclaim('job', repeat(U&'\20AC', 2731));
\echo :LAST_ERROR_SQLSTATE
SELECT octet_length(value) FROM le_leader('job');
-- as it is, and whatever it was stored as
CREATE TEMP TABLE compressed AS SELECT repeat('abc ', 2048) AS value;
SELECT le_proclaim('job', value), octet_length(value) FROM compressed;
SELECT value = repeat('abc ', 2048) AS whole FROM le_leader('job');
SELECT le_proclaim('job', E'quote''s, \\, %s, \n, \x01');
SELECT value = E'quote''s, \\, %s, \n, \x01' AS whole FROM le_leader('job');

-- the term: its end is the end of the value
SELECT le_resign('job'), le_try_become_leader('job');
SELECT value IS NULL AS none FROM le_leader('job');
-- asked again, it is the same term
SELECT le_proclaim('job', 'v'), le_try_become_leader('job');
SELECT value FROM le_leader('job');
-- by its token, too
SELECT le_proclaim('job', 'by token', le_token('job'));
SELECT value FROM le_leader('job');
SELECT le_token('job') AS t1 \gset
-- another one is refused
\set VERBOSITY sqlstate
SELECT le_proclaim('job', 'w', :t1 + 1), le_proclaim('job', 'w', -1);
SELECT le_proclaim('another', 'w', :t1);
\set VERBOSITY default
SELECT value FROM le_leader('job');

-- resigned in the same transaction: then there is nothing any more
BEGIN;
SELECT le_proclaim('job', 'last words');
SELECT le_resign('job');
COMMIT;
SELECT count(*) FROM le_leader('job');
-- and elected again
SELECT le_try_become_leader('job');
BEGIN;
SELECT le_proclaim('job', 'of the old term'), le_resign('job'), le_try_become_leader('job');
COMMIT;
SELECT value IS NULL AS none FROM le_leader('job');
SELECT le_resign('job');

-- a session that does not lead
SELECT le_proclaim('job', 'v');
\set VERBOSITY sqlstate
SELECT le_proclaim('job', 'v', :t1);
\set VERBOSITY terse
SELECT le_proclaim('job', NULL);
SELECT le_proclaim('never heard of', 'v');
SELECT le_lease('job', '1 hour', identity => 'lease') AS t2 \gset
SELECT le_proclaim('job', 'v');
\set VERBOSITY default
-- transaction scope is not enough
BEGIN;
SELECT le_try_become_leader_xact('xact');
SELECT le_proclaim('xact', 'v');
SELECT le_proclaim('xact', 'v', le_token('xact'));
SELECT value IS NULL AS none FROM le_leader('xact');
COMMIT;
-- leases: with the token
SELECT le_proclaim('job', 'leased', :t2);
SELECT value, scope FROM le_leader('job');
SELECT le_renew('job', :t2), le_renew('job', :t2, '2 hours'), le_lease('job', '1 hour', token => :t2) = :t2 AS same;
SELECT value FROM le_leader('job');
BEGIN;
SELECT le_proclaim('job', 'last words', :t2);
SELECT le_resign('job', :t2);
COMMIT;
SELECT count(*) FROM le_leader('job');
\set VERBOSITY sqlstate
SELECT le_proclaim('job', 'v', :t2);
\set VERBOSITY default
-- the next lease has none
SELECT le_lease('job', '1 hour') AS t3 \gset
SELECT value IS NULL AS none FROM le_leader('job');
SELECT le_resign('job', :t3);
-- with the commit of the lease itself
BEGIN;
SELECT le_lease('job', '1 hour') AS t4 \gset
SELECT le_proclaim('job', 'born with it', :t4);
COMMIT;
SELECT value FROM le_leader('job');
SELECT le_resign('job', :t4);
BEGIN;
SELECT le_lease('job', '1 hour') AS t5 \gset
SELECT le_proclaim('job', 'v', :t5);
ROLLBACK;
SELECT count(*) FROM le_leader('job');
BEGIN;
SAVEPOINT a;
SELECT le_lease('job', '1 hour') AS t5 \gset
SELECT le_proclaim('job', 'v', :t5);
ROLLBACK TO a;
SELECT le_lease('job', '1 hour') AS t6 \gset
COMMIT;
SELECT value IS NULL AS none, token = :t6 AS same FROM le_leader('job');
SELECT le_resign('job', :t6);
BEGIN;
SELECT le_lease('job', '1 hour') AS t5 \gset
SELECT le_proclaim('job', 'v', :t5), le_resign('job', :t5);
COMMIT;
SELECT count(*) FROM le_leader('job');

-- no trace after the end of all terms, however they end
SELECT le_resign_all();
SELECT le_try_become_leader('job');
SELECT value IS NULL AS none FROM le_leader('job');
SELECT le_proclaim('job', 'v');
DISCARD ALL;
SELECT count(*) FROM le_leaders;
SELECT le_try_become_leader('job');
SELECT value IS NULL AS none FROM le_leader('job');
SELECT le_resign('job');

CREATE TEMP VIEW v AS SELECT value FROM le_leader('job');
SELECT le_try_become_leader('job');
-- whose: terms are the session's, leases are the role's
CREATE ROLE regress_proclaim_owner;
CREATE ROLE regress_proclaim_member IN ROLE regress_proclaim_owner;
CREATE ROLE regress_proclaim_other;
SET ROLE regress_proclaim_other;
SELECT le_proclaim('job', 'by another role');
RESET ROLE;
TABLE v;
SELECT le_resign('job');
SET ROLE regress_proclaim_owner;
SELECT le_lease('job', '1 hour') AS t9 \gset
SELECT le_proclaim('job', 'the owner''s', :t9);
SET ROLE regress_proclaim_other;
SELECT le_proclaim('job', 'another''s', :t9);
\echo :LAST_ERROR_SQLSTATE
SELECT value, usename FROM le_leaders WHERE name = 'job';
SELECT value FROM le_leaders;
CALL le_observe('job') \gset
SELECT :'value' AS value;
SET ROLE regress_proclaim_member;
SELECT le_proclaim('job', 'the member''s', :t9);
RESET ROLE;
TABLE v;
SET ROLE regress_proclaim_member;
SELECT le_resign('job', :t9);
RESET ROLE;
DROP ROLE regress_proclaim_member, regress_proclaim_owner, regress_proclaim_other;

-- many at once
SELECT count(*) FILTER (WHERE le_try_become_leader('many ' || i)) FROM generate_series(1, 300) i;
SELECT count(*) FILTER (WHERE le_proclaim('many ' || i, repeat('x', 8000) || i)) FROM generate_series(1, 300) i;
SELECT count(*), count(*) FILTER (WHERE value = repeat('x', 8000) || substr(name, 6)) AS right FROM le_leaders;
SELECT le_resign_all();

-- bad input
\set VERBOSITY sqlstate
SELECT le_proclaim(NULL, 'v');
SELECT le_proclaim('', 'v');
SELECT le_proclaim(repeat('x', 256), 'v');
\set VERBOSITY default
TABLE on_record;
