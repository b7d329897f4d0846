--
-- Two names with one 64-bit key
--
-- A name of 24 bytes is hashed in two blocks of 12; the first leaves a known
-- state, to which the second is added: see hash_bytes_extended().
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/advisory.psql
\set a worker-queue-mail.sender
\set b HwFfjYHs9PGi-Rwb-Amyj4y5
SELECT hashtextextended(:'a', 0) = hashtextextended(:'b', 0) AS collide,
       hashtextextended(:'a', 0) = hashtextextended(:'b', 0) AS keys;

-- alone, either is an election like any other
SELECT le_try_become_leader(:'b'), le_am_leader(:'b'), le_resign(:'b');
SELECT le_try_become_leader(:'a', identity => 'me');

-- a leader of the one gets an error from every call for the other
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
-- but the key itself, and the leader, can be read
SELECT hashtextextended(:'b', 0) = hashtextextended(:'a', 0) AS key;
SELECT name, identity FROM le_leader(:'b');
SELECT name, identity FROM le_leader(:'a');
SELECT name FROM le_leaders;
-- none of which touched the term
SELECT le_am_leader(:'a'), count(*) AS locks FROM advisory;

-- the bare key is another election altogether
SELECT le_try_become_leader(hashtextextended(:'b', 0)), le_am_leader(hashtextextended(:'b', 0)), le_resign(hashtextextended(:'b', 0));

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

--
-- An election that is declared: the other name is refused wherever it could be in the way
--
CREATE FUNCTION pg_temp.came_of(what text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE what INTO result;
	RETURN 'done: ' || coalesce(result, '');
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ' ' || SQLERRM;
END
$$;
SELECT le_declare(:'a', max_ttl => '1 min');
SELECT le_declare(:'b');
\echo :LAST_ERROR_SQLSTATE
CREATE TEMP TABLE guarded (i int);
CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION le_guard(:'b');
SET client_min_messages = error;
SELECT call, pg_temp.came_of(format(call, :'b', :'a')) FROM unnest(ARRAY[
 'SELECT le_try_become_leader(%1$L)', 'SELECT le_become_leader(%1$L)', 'SELECT le_become_leader(%1$L, ''0'')', 'SELECT le_become_leader(%1$L, ''1 s'')',
 'SELECT le_try_become_leader_xact(%1$L)', 'SELECT le_become_leader_xact(%1$L)', 'SELECT le_lease(%1$L, ''1 s'')', 'SELECT le_lease(%1$L, ''1 s'', token => 7)',
 'CALL le_campaign(%1$L)', 'CALL le_campaign(%1$L, ''0'')', 'CALL le_campaign(ARRAY[%1$L])', 'CALL le_campaign(ARRAY[%1$L], ''0'', ttl => ''1 s'')',
 'CALL le_campaign(ARRAY[%2$L, %1$L], ''0'')', 'CALL le_observe(%1$L)', 'CALL le_observe(%1$L, 1, ''1 s'')',
 'SELECT le_assert_leader(%1$L)', 'SELECT le_assert_leader(%1$L, 7)', 'INSERT INTO guarded VALUES (1)']) call;
RESET client_min_messages;
-- which has left nothing, and has let the declared one be
SELECT le_resign(:'a');
SELECT * FROM advisory;
SELECT le_try_become_leader(:'a'), le_am_leader(:'a'), le_resign(:'a');
SELECT le_lease(:'a', '1 s') AS taken \gset
SELECT pg_temp.came_of(format('SELECT le_lease(%L, ''1 s'')', :'b')), le_resign(:'a', :taken);
SELECT name, terms FROM pg_stat_leader_election WHERE key = hashtextextended(:'a', 0) AND name IS NOT NULL;
-- the bare key is another election
SELECT le_try_become_leader(hashtextextended(:'b', 0)), le_resign(hashtextextended(:'b', 0));
-- an earlier leader of the other one goes on, and can be deposed
SELECT le_undeclare(:'a');
SELECT le_lease(:'b', '1 hour') AS before \gset
SELECT le_declare(:'a');
SELECT le_renew(:'b', :before), le_am_leader(:'b', :before);
SELECT pg_temp.came_of(format('SELECT le_try_become_leader(%L)', :'a'));
SELECT pg_temp.came_of(format('SELECT le_assert_leader(%L, %s)', :'b', :before));
SELECT le_depose(:'b'), le_try_become_leader(:'a'), le_resign(:'a');
-- of two that were declared otherwise, the first one counts
INSERT INTO le_declarations (name) VALUES (:'b');
SELECT le_try_become_leader(:'a'), le_resign(:'a'), pg_temp.came_of(format('SELECT le_try_become_leader(%L)', :'b'));
SELECT le_undeclare(:'a'), le_try_become_leader(:'b'), le_resign(:'b'), pg_temp.came_of(format('SELECT le_try_become_leader(%L)', :'a'));
SELECT le_undeclare(:'b'), le_try_become_leader(:'a'), le_resign(:'a'), le_try_become_leader(:'b'), le_resign(:'b');

SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
SELECT * FROM advisory;
