--
-- Bare keys: elections that share their lock with pg_advisory_lock
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/advisory.psql

-- PostgreSQL's own lock, and nothing else
SELECT le_try_become_leader(42, identity => 'me');
SELECT objsubid, key, mode, granted FROM advisory;
SELECT name, key, scope, identity FROM le_leaders;
SELECT count(*) FROM generate_series(1, 10) WHERE le_try_become_leader(42);
SELECT le_resign(42);
SELECT * FROM advisory;
SELECT le_resign(42);

-- a name is never a key, not even the number of its key
SELECT le_try_become_leader('job');
SELECT le_am_leader(hashtextextended('job', 0)), le_am_leader('job');
SELECT le_try_become_leader(hashtextextended('job', 0));
SELECT objsubid, key = hashtextextended('job', 0) AS key FROM advisory ORDER BY objsubid;
SELECT name, key = hashtextextended('job', 0) AS key FROM le_leaders ORDER BY name;
SELECT name FROM le_leader('job');
SELECT name, key = hashtextextended('job', 0) AS key FROM le_leaders WHERE key = hashtextextended('job', 0) AND name IS NULL;
SELECT le_resign('job'), le_am_leader(hashtextextended('job', 0));
SELECT le_resign_all();

-- the edges
SELECT k, le_try_become_leader(k), le_am_leader(k), le_token(k) IS NOT NULL AS token
FROM unnest('{0,-1,1,4294967295,4294967296,-4294967296,-2147483649,9223372036854775807,-9223372036854775808}'::bigint[]) k;
SELECT key FROM le_leaders ORDER BY key;
SELECT pg_advisory_unlock(9223372036854775807), pg_advisory_unlock(-1);
SELECT le_am_leader(9223372036854775807), le_am_leader(-1), le_am_leader(0);
SELECT le_resign_all();
SELECT * FROM advisory;

-- integer and smallint are keys, too; pairs of integers are not
SELECT le_try_become_leader(7::smallint), le_am_leader(7::integer), le_resign(7);
SELECT pg_try_advisory_lock(0, 7), le_am_leader(7);
SELECT * FROM le_leaders WHERE key = 7;
SELECT pg_advisory_unlock(0, 7);

-- a session that holds the key by a plain lock
SELECT pg_advisory_lock(100);
SELECT le_am_leader(100), le_token(100);
SELECT le_resign(100);
SELECT key FROM le_leaders;
SELECT name, key, scope, identity, token, pid = pg_backend_pid() AS pid, since, candidates FROM le_leaders WHERE key = 100;
SELECT le_try_become_leader(100);
SELECT key, scope FROM le_leaders;
SELECT le_resign(100);
SELECT le_am_leader(100);
SELECT name, key, scope, identity, token, pid = pg_backend_pid() AS pid, since, candidates FROM le_leaders;
SELECT mode FROM advisory;
SELECT pg_advisory_unlock(100);
SELECT pg_advisory_unlock(100);
SELECT * FROM le_leaders;

-- a plain lock on top
SELECT le_try_become_leader(101);
SELECT pg_advisory_lock(101), pg_advisory_unlock(101);
SELECT le_am_leader(101);
SELECT pg_advisory_lock(101);
SELECT le_resign(101);
SELECT le_am_leader(101), count(*) AS locks FROM advisory;
SELECT pg_advisory_unlock(101);

-- the lock released by the application: no leader
SELECT le_try_become_leader(102);
SELECT le_token(102) AS t1 \gset
SELECT pg_advisory_unlock(102);
SELECT le_am_leader(102), le_token(102);
SELECT * FROM le_leaders;
SELECT le_resign(102);
SELECT le_try_become_leader(102), le_token(102) > :t1 AS greater;
SELECT le_token(102) AS t1 \gset
BEGIN;
SELECT pg_advisory_unlock(102);
SELECT le_am_leader(102);
SELECT * FROM le_leaders;
SELECT le_try_become_leader(102), le_token(102) > :t1 AS greater;
ROLLBACK;
SELECT le_am_leader(102), le_resign(102);
SELECT * FROM advisory;

-- the session's lock released, while the transaction holds it by a plain lock
SELECT le_try_become_leader(104);
BEGIN;
SELECT pg_advisory_xact_lock(104);
SELECT pg_advisory_unlock(104);
COMMIT;
SELECT pg_advisory_lock(104);
SELECT le_am_leader(104) AS leads_by_plain_lock;
SELECT scope, token IS NOT NULL AS token FROM le_leaders WHERE key = 104;
SELECT pg_advisory_unlock_all();

-- the same, asked again in the transaction: true must mean session scope
SELECT le_try_become_leader(105);
BEGIN;
SET LOCAL client_min_messages = warning;
SELECT pg_advisory_xact_lock(105);
SELECT pg_advisory_unlock(105);
SELECT le_try_become_leader(105);
COMMIT;
SELECT le_am_leader(105) AS leads_as_told;
SELECT pg_advisory_unlock_all();

-- plain shared locks: this session's own is no obstacle, and no leadership
SELECT pg_advisory_lock_shared(106);
SELECT le_am_leader(106);
SELECT le_resign(106);
SELECT le_try_become_leader(106), le_am_leader(106);
SELECT count(*) FROM le_leaders WHERE key = 106;
SELECT le_resign(106);
SELECT scope, token FROM le_leaders;
SELECT pg_advisory_unlock_shared(106);
BEGIN;
SELECT le_try_become_leader(106);
SELECT pg_advisory_unlock(106), pg_advisory_lock_shared(106);
SELECT scope, token IS NOT NULL AS token FROM le_leaders WHERE key = 106;
SELECT le_am_leader(106);
ROLLBACK;
SELECT pg_advisory_unlock_all();

-- transaction scope beside a plain transaction-level lock of the same key
BEGIN;
SELECT pg_advisory_xact_lock(107);
SAVEPOINT a;
SELECT le_try_become_leader_xact(107);
SELECT scope FROM le_leaders WHERE key = 107;
ROLLBACK TO a;
SELECT le_am_leader(107), count(*) AS locks FROM advisory;
SELECT scope FROM le_leaders WHERE key = 107;
SELECT le_try_become_leader(107);
ROLLBACK;
SELECT le_am_leader(107), le_resign(107);
SELECT * FROM advisory;

-- a prepared transaction holds the key: a bid is denied, and says by what
BEGIN;
SELECT pg_advisory_xact_lock(108);
PREPARE TRANSACTION 'regress_bare_key';
SELECT le_try_become_leader(108), le_try_become_leader_xact(108), le_become_leader(108, '0'), le_become_leader(108, '1 ms');
SELECT name, key, scope, identity, token, pid, candidates FROM le_leaders;
SELECT name, key, scope, identity, token, pid, candidates FROM le_leaders WHERE key = 108;
SELECT le_resign(108);
SELECT le_am_leader(108);
SELECT * FROM _le_registry_candidates(false);
ROLLBACK PREPARED 'regress_bare_key';
SELECT le_try_become_leader(108), le_resign(108);

-- keys of another database are other elections
\set database :DBNAME
\c postgres
BEGIN;
SELECT pg_advisory_xact_lock(109);
PREPARE TRANSACTION 'regress_bare_key';
\c :database
SELECT count(*) FROM le_leaders WHERE key = 109;
SELECT le_try_become_leader(109), le_resign(109);
\c postgres
ROLLBACK PREPARED 'regress_bare_key';
\c :database
SELECT * FROM le_leaders;
