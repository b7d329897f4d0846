--
-- Leases of two names with one 64-bit key: see collision.sql
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
\set a worker-queue-mail.sender
\set b HwFfjYHs9PGi-Rwb-Amyj4y5
SELECT hashtextextended(:'a', 0) = hashtextextended(:'b', 0) AS collide;
SELECT le_lease(:'a', '1 hour', identity => 'me') AS t1 \gset

-- a bid for the other one is an error
SELECT le_lease(:'b', '1 hour');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY terse
SELECT le_lease(:'b', '1 hour', token => :t1);
\echo :LAST_ERROR_SQLSTATE
SELECT le_try_become_leader(:'b');
\echo :LAST_ERROR_SQLSTATE
SELECT le_try_become_leader_xact(:'b');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader(:'b', '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader(:'b');
\echo :LAST_ERROR_SQLSTATE
-- its token is no token of the other one
SELECT le_am_leader(:'b', :t1), le_renew(:'b', :t1), le_renew(:'b', :t1, '1 s');
SELECT count(*) FROM le_leader(:'b');
SELECT name, ttl, renewals, candidates FROM le_leader(:'a');
SELECT count(*) FROM le_candidates;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- in the transaction that has taken it
SELECT le_resign(:'a', :t1);
BEGIN;
SELECT le_lease(:'a', '1 hour', identity => 'me') AS t2 \gset
SAVEPOINT s;
SELECT le_lease(:'b', '1 hour');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO s;
SELECT le_try_become_leader(:'b');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO s;
SELECT le_am_leader(:'a', :t2);
ROLLBACK;
-- and in the session that leads the other one by the other scopes
SELECT le_try_become_leader(:'a');
SELECT le_lease(:'b', '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT le_resign(:'a');

-- the other one is free when it is over: rolled back, resigned, expired
SELECT le_lease(:'b', '1 hour') AS t3 \gset
SELECT :t3 > :t2 AS greater, le_resign(:'b', :t3);
SELECT le_lease(:'a', '100 ms') AS t4 \gset
SELECT pg_sleep(0.15);
SELECT le_lease(:'b', '1 hour', identity => 'b') AS t5 \gset
SELECT :t5 > :t4 AS greater, le_am_leader(:'a', :t4), le_am_leader(:'b', :t5);
SELECT name, identity FROM le_leaders WHERE scope = 'lease';
-- whose row tells so
SELECT name = :'b' AS b FROM le_leases WHERE name IN (:'a', :'b') AND ttl > '0';
SELECT le_resign(:'b', :t5), le_lease(:'a', '1 hour') > :t5 AS again;
SELECT le_resign(name, token) FROM le_leader(:'a');
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
