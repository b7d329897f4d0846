--
-- The views, and le_leader
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
\d le_leaders
\d le_candidates
\d _le_locks
\d _le_lines
\df le_leader

SET application_name = 'regress_views';
BEGIN;
SELECT le_try_become_leader('name', identity => 'who'), le_try_become_leader_xact(-1, identity => 'minus one'), le_try_become_leader_xact('xact');
SELECT name, key = coalesce(hashtextextended(name, 0), -1) AS key, scope, identity,
       token = CASE WHEN name IS NULL THEN le_token(-1) ELSE le_token(name) END AS token, pid = pg_backend_pid() AS pid,
       usename = session_user AS usename, application_name, client_addr,
       since BETWEEN now() AND clock_timestamp() AS since, candidates
FROM le_leaders ORDER BY name;
SELECT to_jsonb(k) @> to_jsonb(l) AS same_row FROM le_leader('name') l, le_leaders k WHERE k.name = 'name';
SELECT * FROM le_leader('nobody');
SELECT * FROM le_candidates;

-- it reads what is, not what the transaction's snapshot saw
SELECT le_resign('name');
SELECT name FROM le_leaders ORDER BY name;
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM le_leaders;
SELECT le_try_become_leader_xact('name');
SELECT count(*) FROM le_leaders;
COMMIT;

-- since and token belong to the term, not to the last bid
SELECT le_try_become_leader('name', identity => 'first');
SELECT since, token FROM le_leader('name') \gset
BEGIN;
SELECT le_try_become_leader('name'), le_try_become_leader_xact('name', identity => 'first');
SELECT since = :'since' AS since, token = :token AS token, identity FROM le_leader('name');
COMMIT;
SELECT le_resign('name');

-- keys as they are: negative, with either half all ones or all zeroes
SELECT count(*) FROM unnest('{-1,-4294967296,4294967295,-9223372036854775808,9223372036854775807,2147483648,-2147483648}'::bigint[]) k
WHERE le_try_become_leader(k);
SELECT l.key, k.key = l.key AS by_key, lock.key = l.key AS lock
FROM le_leaders l, le_leaders k, _le_locks lock WHERE k.key = l.key AND lock.key = l.key ORDER BY 1;
SELECT le_resign_all();

-- plain advisory locks on keys that were never asked for are not elections
SELECT pg_advisory_lock(555), pg_advisory_lock(555, 556), pg_advisory_lock_shared(557);
SELECT le_am_leader(555), le_token(555);
SELECT * FROM le_leaders;
SELECT lock_class, key, pid = pg_backend_pid() AS pid, granted, waitstart FROM _le_locks ORDER BY key;
-- once asked for, they are, for as long as they are held
SELECT le_try_become_leader(555), le_resign(555);
SELECT key, scope, token FROM le_leaders;
SELECT pg_advisory_unlock_all();
SELECT * FROM le_leaders;
SELECT pg_advisory_lock(555);
SELECT key, scope, token FROM le_leaders;
-- a holder in shared and exclusive mode is one holder
SELECT pg_advisory_lock_shared(555);
SELECT key FROM le_leaders;
SELECT pg_advisory_unlock_all();
SELECT * FROM le_leaders;

-- bare keys that were asked for do not pile up
SELECT count(*) FROM generate_series(10001, 13000) k WHERE le_try_become_leader(k) AND le_resign(k);
SELECT count(*) < 1100 AS bounded FROM _le_registry_terms();

-- as rows anywhere
CREATE TEMP VIEW mine AS SELECT name, identity FROM le_leaders WHERE pid = pg_backend_pid();
SELECT le_try_become_leader('b', identity => 'x'), le_try_become_leader('a', identity => 'y');
SELECT * FROM mine ORDER BY name;
SELECT name, (le_leader(name)).identity FROM unnest('{a,b,c}'::text[]) name ORDER BY name;
SELECT n, l.identity FROM unnest('{a,b,c}'::text[]) n LEFT JOIN LATERAL le_leader(n) l ON true ORDER BY n;
SELECT EXISTS (SELECT FROM le_leader('a')) AS a, EXISTS (SELECT FROM le_leader('c')) AS c;
PREPARE who AS SELECT identity FROM le_leader($1);
EXECUTE who('a');
EXECUTE who('c');
SELECT le_resign_all();
EXECUTE who('a');
DEALLOCATE who;
INSERT INTO le_leaders (name) VALUES ('me');
DELETE FROM _le_locks;
