--
-- Two names with one 64-bit key
--
-- A name of 24 bytes is hashed in two blocks of 12; the first leaves a known
-- state, to which the second is added: see hash_bytes_extended().
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
CREATE TEMP VIEW advisory AS
SELECT objsubid, classid::bigint << 32 | objid::bigint AS key, mode, granted
FROM pg_locks
WHERE locktype = 'advisory' AND objsubid IN (1, 2, 19525) AND pid = pg_backend_pid();
\set a worker-queue-mail.sender
\set b HwFfjYHs9PGi-Rwb-Amyj4y5
SELECT hashtextextended(:'a', 0) = hashtextextended(:'b', 0) AS collide,
       le_key(:'a') = le_key(:'b') AS keys, le_key(:'a') = hashtextextended(:'a', 0) AS documented;

-- alone, either is an election like any other
SELECT le_try_become_leader(:'b'), le_am_leader(:'b'), le_resign(:'b');
SELECT le_try_become_leader(:'a', 'me');

-- who leads the one gets an error from every call for the other
SELECT le_try_become_leader(:'b');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY terse
SELECT le_become_leader(:'b');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader(:'b', '0');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader(:'b', '1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT le_try_become_leader_xact(:'b');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader_xact(:'b');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader_xact(:'b', '1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT le_am_leader(:'b');
\echo :LAST_ERROR_SQLSTATE
SELECT le_token(:'b');
\echo :LAST_ERROR_SQLSTATE
SELECT le_resign(:'b');
\echo :LAST_ERROR_SQLSTATE
-- but the key itself, and who leads, may be asked for
SELECT le_key(:'b') = le_key(:'a') AS key;
SELECT name, identity FROM le_leader(:'b');
SELECT name, identity FROM le_leader(:'a');
SELECT name FROM le_leaders;
-- none of which touched the term
SELECT le_am_leader(:'a'), count(*) AS locks FROM advisory;

-- the bare key is another election altogether
SELECT le_try_become_leader(le_key(:'b')), le_am_leader(le_key(:'b')), le_resign(le_key(:'b'));

-- caught in a block
DO $$
BEGIN
	PERFORM le_try_become_leader('HwFfjYHs9PGi-Rwb-Amyj4y5');
EXCEPTION WHEN SQLSTATE 'LE002' THEN
	RAISE INFO 'caught: %', SQLERRM;
END
$$;
SELECT le_resign(:'a');
SELECT le_am_leader(:'b'), le_token(:'b');
\set VERBOSITY default
SELECT le_resign(:'b');

-- transaction scope: the other one is free again as soon as it ends
BEGIN;
SAVEPOINT s;
SELECT le_try_become_leader_xact(:'b');
SAVEPOINT t;
SELECT le_am_leader(:'a');
ROLLBACK TO t;
SELECT le_am_leader(:'b');
ROLLBACK TO s;
SELECT le_try_become_leader_xact(:'a'), le_am_leader(:'a');
COMMIT;
SELECT le_try_become_leader(:'a');

-- a lock that went away frees the key
BEGIN;
SELECT pg_advisory_unlock_all();
SELECT le_am_leader(:'b');
SELECT le_try_become_leader(:'b');
SELECT name FROM le_leaders;
COMMIT;
SELECT le_am_leader(:'b'), le_resign(:'b');

SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
SELECT * FROM advisory;
