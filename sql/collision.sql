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
SELECT hashtextextended(:'a', 0) = hashtextextended(:'b', 0) AS collide;

-- alone, either is an election like any other
SELECT le_try_become_leader(:'b'), le_am_leader(:'b'), le_resign(:'b');
SELECT le_try_become_leader(:'a', identity => 'me');

-- a leader of the one gets an error from every call for the other
SELECT le_try_become_leader(:'b');
\echo :LAST_ERROR_SQLSTATE
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
SELECT call, pg_temp.came_of(format(call, :'b')) FROM unnest(ARRAY[
 'SELECT le_become_leader(%L)', 'SELECT le_become_leader(%L, ''0'')', 'SELECT le_become_leader(%L, ''1 s'')', 'SELECT le_lease(%L, ''1 hour'')',
 'SELECT le_try_become_leader_xact(%L)', 'SELECT le_become_leader_xact(%L)', 'SELECT le_become_leader_xact(%L, ''1 s'')',
 'SELECT le_am_leader(%L)', 'SELECT le_token(%L)', 'SELECT le_resign(%L)', 'SELECT le_assert_leader(%L)', 'SELECT le_assert_leader(%L, le_token(''worker-queue-mail.sender''))', 'SELECT le_depose(%L)',
 'SELECT le_proclaim(%L, ''v'')', 'CALL le_observe(%L)', 'CALL le_observe(%L, 1, ''50 ms'')']) call;
-- but the leader can be read
SELECT name, identity FROM le_leader(:'b');
SELECT name, identity FROM le_leader(:'a');
SELECT name FROM le_leaders;
-- none of which touched the term
SELECT le_am_leader(:'a'), count(*) AS locks FROM advisory;

SELECT le_resign(:'a');
SELECT le_am_leader(:'b'), le_token(:'b');
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
-- Leases
--
SELECT le_lease(:'a', '1 hour', identity => 'me') AS t1 \gset
CREATE TEMP TABLE guarded (i int);
CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION le_guard(:'b');
SELECT le_lease(:'b', '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT call, pg_temp.came_of(format(call, :'b', :t1)) FROM unnest(ARRAY[
 'SELECT le_lease(%L, ''1 hour'', token => %s)', 'SELECT le_try_become_leader(%L)', 'SELECT le_try_become_leader_xact(%L)', 'SELECT le_become_leader(%L, ''1 hour'')', 'SELECT le_become_leader(%L)',
-- its token is no token of the other one
 'SELECT concat(le_am_leader(%1$L, %2$s), le_renew(%1$L, %2$s), le_renew(%1$L, %2$s, ''1 s''))',
 'SELECT le_assert_leader(%L)', 'SELECT le_assert_leader(%L, %s)', 'INSERT INTO guarded VALUES (1)', 'SELECT le_depose(%L)',
 'SELECT le_proclaim(%L, ''v'', %s)', 'CALL le_observe(%L)']) call;
BEGIN;
SET LOCAL leader_election.token = :t1;
SELECT pg_temp.came_of('INSERT INTO guarded VALUES (1)') AS by_token, le_assert_leader(:'a', :t1), pg_temp.came_of('INSERT INTO guarded VALUES (1)') AS guarded;
ROLLBACK;
SELECT count(*) FROM le_leader(:'b');
SELECT name, ttl, renewals, candidates FROM le_leader(:'a');
SELECT count(*) FROM le_candidates;
SELECT * FROM advisory;
-- in the transaction that has taken it
SELECT le_resign(:'a', :t1);
BEGIN;
SELECT le_lease(:'a', '1 hour', identity => 'me') AS t2 \gset
SELECT pg_temp.came_of(format('SELECT le_lease(%L, ''1 hour'')', :'b'));
SELECT pg_temp.came_of(format('SELECT le_try_become_leader(%L)', :'b'));
SELECT le_am_leader(:'a', :t2);
ROLLBACK;
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

--
-- An election that is declared: the other name is refused wherever it could be in the way
--
SELECT le_declare(:'a', max_ttl => '1 min');
SELECT le_declare(:'b');
\echo :LAST_ERROR_SQLSTATE
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
-- an earlier leader of the other one goes on, and can be deposed
SELECT le_undeclare(:'a');
SELECT le_lease(:'b', '1 hour') AS before \gset
SELECT le_declare(:'a');
SELECT le_renew(:'b', :before), le_am_leader(:'b', :before);
SELECT pg_temp.came_of(format('SELECT le_try_become_leader(%L)', :'a'));
SELECT pg_temp.came_of(format('SELECT le_assert_leader(%L, %s)', :'b', :before));
SELECT le_depose(:'b'), le_try_become_leader(:'a'), le_resign(:'a');
-- the table does not take both
\set VERBOSITY terse
INSERT INTO _le_declarations (name) VALUES (:'b');
\set VERBOSITY default
SELECT le_try_become_leader(:'a'), le_resign(:'a'), le_undeclare(:'a'), le_try_become_leader(:'b'), le_resign(:'b');

SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
SELECT * FROM advisory;
