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

-- leases, beside the other scopes
SELECT clock_timestamp() AS t0 \gset
SELECT le_lease('lease', '1 hour', identity => 'l') AS t1 \gset
SELECT le_try_become_leader('session', identity => 's');
BEGIN;
SELECT le_try_become_leader_xact('xact', identity => 'x'), le_lease('uncommitted', '1 hour', identity => 'u') > 0 AS u;
SELECT name, scope, identity, pid IS NOT NULL AS pid, usename = current_user AS usename, application_name, client_addr,
	candidates, ttl, renewed_at IS NOT NULL AS renewed_at, renewals, expires_in IS NOT NULL AS expires_in
FROM le_leaders ORDER BY name;
COMMIT;

SELECT key = hashtextextended('lease', 0) AS key, token = :t1 AS token, since BETWEEN :'t0' AND clock_timestamp() AS since FROM le_leader('lease');
SELECT count(*) FROM le_leader('lease') a, le_leader('uncommitted') b;
SELECT lock_class, name, scope, pid, role::regrole = current_user::regrole AS role, ttl
FROM _le_registry_terms() WHERE key = hashtextextended('lease', 0);
SELECT count(*) FROM _le_locks WHERE key = hashtextextended('lease', 0);
-- the times
SELECT renewed_at BETWEEN since - interval '1 s' AND clock_timestamp() + interval '1 s' AS renewed_at,
	expires_in > '0' AND expires_in <= ttl AS expires_in,
	abs(extract(epoch FROM renewed_at + ttl - clock_timestamp() - expires_in)) < 60 AS agree
FROM le_leader('lease');
SELECT expires_in AS e1 FROM le_leader('lease') \gset
SELECT pg_sleep(0.2);
SELECT expires_in < :'e1' AS less FROM le_leader('lease');
SELECT le_renew('lease', :t1), le_renew('lease', :t1);
SELECT renewals, since < renewed_at AS later FROM le_leader('lease');
SELECT le_renew('lease', :t1, '2 hours');
SELECT ttl, expires_in > '1 hour' AS longer, identity FROM le_leader('lease');

-- a join does not repeat it, a cursor and a materialized copy can have it
SELECT count(*) FROM le_leaders a JOIN le_leaders b USING (name) WHERE a.scope = 'lease';
BEGIN;
DECLARE c CURSOR FOR SELECT name, ttl FROM le_leaders WHERE scope = 'lease' ORDER BY name;
SELECT le_resign('lease', :t1);
FETCH ALL c;
COMMIT;

SELECT count(*) FILTER (WHERE le_resign(name, token)), le_resign_all() FROM le_leaders WHERE scope = 'lease';
RESET application_name;

--
-- What le_leader, le_leaders and le_candidates show is what the lock manager, the registry and
-- pg_stat_activity know.
--
SET client_min_messages = warning;
CREATE ROLE regress_le_reader LOGIN;
-- session b waits for a, and a for b: that is to last
ALTER ROLE regress_le_reader SET deadlock_timeout = '10 min';
CREATE SCHEMA regress_truth;
GRANT ALL ON SCHEMA regress_truth TO regress_le_reader;
SET search_path = regress_truth, public;
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/sessions.psql
RESET client_min_messages;

-- the same by joins: sessions that hold a lock, and lead by it; sessions that
-- wait for one, and as what
CREATE VIEW standing AS
SELECT l.lock_class, l.key, l.pid, bool_or(l.granted) AS holds, max(l.waitstart) AS waitstart, c.name, c.identity, c.since, c.waits_for
FROM _le_locks l LEFT JOIN _le_registry_candidates(true) c USING (lock_class, key, pid)
WHERE NOT l.granted OR c.pid IS NOT NULL
GROUP BY l.lock_class, l.key, l.pid, c.name, c.identity, c.since, c.waits_for;
CREATE VIEW leaders AS
WITH lines AS (SELECT lock_class, key, count(*) AS candidates FROM
	(SELECT lock_class, key FROM standing UNION ALL SELECT lock_class, key FROM _le_registry_candidates(false) WHERE NOT in_line) c GROUP BY 1, 2)
SELECT t.name, l.key, t.scope, t.identity, t.token, l.pid, a.usename, a.application_name, a.client_addr, t.since,
	coalesce(s.candidates, 0) AS candidates, t.value, l.lock_class
FROM _le_locks l
LEFT JOIN _le_registry_terms() t ON t.lock_class = l.lock_class AND t.key = l.key AND t.pid = l.pid AND l.exclusive
LEFT JOIN lines s ON s.lock_class = l.lock_class AND s.key = l.key
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND (t.token IS NOT NULL OR l.lock_class = 1)
UNION ALL
SELECT t.name, t.key, t.scope, t.identity, t.token, NULL, r.rolname, NULL, NULL, t.since,
	coalesce(s.candidates, 0), t.value, t.lock_class
FROM _le_registry_terms() t LEFT JOIN lines s USING (lock_class, key) LEFT JOIN pg_roles r ON r.oid = t.role
WHERE t.scope = 'lease';
CREATE VIEW candidates AS
SELECT s.name, s.key, (SELECT count(*) + 1 FROM unnest(pg_blocking_pids(s.pid)) b JOIN standing o ON o.pid = b
		WHERE o.lock_class = s.lock_class AND o.key = s.key) AS position,
	s.identity, s.pid, a.usename, a.application_name, a.client_addr, coalesce(s.since, s.waitstart) AS since,
	coalesce(s.waits_for, 'leader') AS waits_for, (SELECT array_agg(b ORDER BY b) FROM unnest(pg_blocking_pids(s.pid)) b) AS blocked_by
FROM standing s LEFT JOIN pg_stat_activity a USING (pid)
WHERE s.identity IS NOT NULL OR (s.lock_class = 1 AND EXISTS (SELECT FROM _le_registry_terms() t WHERE t.lock_class = 1 AND t.key = s.key));
GRANT SELECT ON ALL TABLES IN SCHEMA regress_truth TO regress_le_reader;

-- compare all; what differs is shown
CREATE FUNCTION differences_now() RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_stat_clear_snapshot();
	RETURN QUERY
	WITH shown AS (SELECT name, key, scope, identity, token, pid, usename, application_name, client_addr, since, candidates, value FROM le_leaders),
		asked AS (SELECT name, key, scope, identity, token, pid, since, candidates, value FROM
			(SELECT DISTINCT name AS n FROM leaders WHERE lock_class = 19525) e, le_leader(n)),
		known AS (SELECT name, key, scope, identity, token, pid, usename, application_name, client_addr, since, candidates, value FROM leaders l
			WHERE name IS NOT NULL OR EXISTS (SELECT FROM _le_registry_terms() t WHERE t.lock_class = 1 AND t.key = l.key)),
		line AS (SELECT name, key, position, identity, pid, usename, application_name, client_addr, since, waits_for,
			(SELECT array_agg(b ORDER BY b) FROM unnest(blocked_by) b) AS blocked_by FROM le_candidates WHERE position IS NOT NULL)
	SELECT 'le_leaders shows '   || x::text FROM (TABLE shown EXCEPT ALL TABLE known) x UNION ALL
	SELECT 'le_leaders lacks '   || x::text FROM (TABLE known EXCEPT ALL TABLE shown) x UNION ALL
	SELECT 'le_leader differs: ' || x::text FROM (TABLE asked
		EXCEPT ALL SELECT name, key, scope, identity, token, pid, since, candidates, value FROM known) x UNION ALL
	SELECT 'le_leader lacks '    || x::text FROM (SELECT name, key, scope, identity, token, pid, since, candidates, value FROM known
		WHERE name IS NOT NULL EXCEPT ALL TABLE asked) x UNION ALL
	SELECT 'le_candidates shows ' || x::text FROM (TABLE line EXCEPT ALL TABLE candidates) x UNION ALL
	SELECT 'le_candidates lacks ' || x::text FROM (TABLE candidates EXCEPT ALL TABLE line) x UNION ALL
	SELECT 'statistics count ' || s.candidates || ' of ' || s.key FROM pg_stat_leader_election s JOIN le_leaders l ON l.key = s.key
		AND l.name IS NOT DISTINCT FROM s.name WHERE s.candidates <> l.candidates;
END $$;
-- two looks see two moments: a difference that stays is wrong
CREATE FUNCTION differences() RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	FOR look IN 1 .. 50 LOOP
		IF NOT EXISTS (SELECT FROM regress_truth.differences_now()) THEN
			RETURN;
		END IF;
		PERFORM pg_sleep(0.1);
	END LOOP;
	RETURN QUERY SELECT * FROM regress_truth.differences_now();
END $$;

SELECT open('a'), open('b', 'regress_le_reader'), open('c'), open('d');
-- sessions, transactions, leases, bare keys, with identities of their own and with none
SELECT says('a', $$SELECT le_try_become_leader('job', identity => 'ay') AND le_try_become_leader(-7) AND le_proclaim('job', 'v')$$),
	says('b', $$SELECT le_try_become_leader('other')$$), says('c', $$SELECT le_lease('leased', '1 hour') > 0$$);
SELECT says('c', 'BEGIN'), says('c', $$SELECT le_try_become_leader_xact('until the end') AND le_lease('uncommitted', '1 hour') > 0$$);
-- plain locks, of keys that the extension was asked for, and of others
SELECT says('a', 'SELECT concat(pg_advisory_lock_shared(501), pg_advisory_lock(502))'), says('b', 'SELECT concat(pg_advisory_lock_shared(501))'),
	le_try_become_leader(501);
BEGIN;
SELECT pg_advisory_xact_lock_shared(501), pg_advisory_xact_lock(503);
PREPARE TRANSACTION 'regress_truth';
SELECT key, pid IS NULL AS prepared, scope, usename = current_user AS ours FROM le_leaders WHERE key = 501 ORDER BY 2, 4;
-- a bid that a plain lock denies
SELECT says('c', $$SELECT le_try_become_leader(501, identity => 'denied')$$);
SELECT scope, last_denied_at <= clock_timestamp() AS last_denied_at, last_denied_identity FROM le_leaders WHERE key = 501;
SELECT scope, last_denied_identity FROM le_leaders WHERE key = 501;
SELECT name, scope, candidates FROM leaders ORDER BY name COLLATE "C", key, scope;
SELECT * FROM differences();

-- lines: for a session, for a bare key, for a lease, where the first in line holds the lock
SELECT waits('d', $$SELECT le_become_leader('job')$$), waits('b', $$SELECT le_become_leader(-7)$$);
SELECT open('e'), open('f'), open('g'), open('h');
SELECT waits('e', $$SELECT le_become_leader('job', '1 hour', identity => 'also')$$), waits('f', $$CALL le_campaign('leased', ttl => '1 hour')$$);
SELECT waits('g', $$CALL le_campaign('leased', ttl => '1 hour')$$), waits('h', $$CALL le_campaign('{job,leased}'::text[], ttl => '1 hour')$$);
SELECT name, key = -7 AS bare, position, waits_for, application_name, cardinality(blocked_by) AS blocked_by FROM le_candidates
ORDER BY name, position, application_name;
SELECT name, candidates FROM le_leaders WHERE candidates > 0 ORDER BY 1;
SELECT * FROM differences();
-- a plain lock waits for a key, and a holder of a shared lock for an exclusive one
SELECT open('i');
SELECT says('a', 'SET deadlock_timeout = ''10 min''');
SELECT dblink_send_query('i', 'SELECT pg_advisory_lock(501)'), dblink_send_query('a', 'SELECT le_become_leader(501)');
DO $$ BEGIN
	FOR i IN 1 .. 1000 LOOP
		EXIT WHEN (SELECT count(*) FROM le_candidates WHERE key = 501) = 2;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
SELECT application_name, identity IS NOT NULL AS known, waits_for, cardinality(blocked_by) AS blocked_by FROM le_candidates WHERE key = 501 ORDER BY 1;
SELECT pid IS NULL AS prepared, candidates FROM le_leaders WHERE key = 501 ORDER BY 1;
SELECT * FROM differences();

-- what pg_stat_activity hides is hidden, and the rest is not
SET ROLE regress_le_reader;
SELECT * FROM differences();
RESET ROLE;
SELECT says('c', 'COMMIT');
SELECT name, scope FROM le_leaders WHERE name IN ('until the end', 'uncommitted');
SELECT * FROM differences();

SELECT n, (SELECT scope FROM le_leaders WHERE name = n), (SELECT scope FROM le_leader(n)) FROM unnest('{job,leased,nothing}'::text[]) n;
SELECT n, l.scope FROM unnest('{job,nothing}'::text[]) n LEFT JOIN le_leaders l ON l.name = n AND l.name = 'job' ORDER BY n;
SELECT name, position FROM le_candidates WHERE name = 'job' ORDER BY position, application_name;

-- nothing of it is in the way, or left behind
SELECT dblink_cancel_query('a'), dblink_cancel_query('i');
-- candidates for a lease go first, or one of them takes an election that another session leaves
SELECT dblink_cancel_query(c), dblink_disconnect(c) FROM unnest('{f,g,h}'::text[]) c;
SELECT gone(c) FROM unnest('{f,g,h}'::text[]) c;
SELECT dblink_disconnect(c) FROM unnest(dblink_get_connections()) c;
ROLLBACK PREPARED 'regress_truth';
SELECT gone(c) FROM unnest('{a,b,c,d,e,f,g,h,i}'::text[]) c;
SELECT count(*) FROM le_candidates;
SELECT * FROM differences();
SELECT le_depose(name) AS deposed FROM unnest('{leased,uncommitted}'::text[]) name;
SELECT mode FROM pg_locks WHERE locktype = 'advisory';
SET client_min_messages = warning;
DROP SCHEMA regress_truth CASCADE;
DROP ROLE regress_le_reader;
DROP EXTENSION dblink;
