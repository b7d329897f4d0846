--
-- The views, and le_leader
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
\d le_leaders
\d le_candidates
\d _le_locks
\df le_leader

SET application_name = 'regress_views';
BEGIN;
SELECT le_try_become_leader('name', identity => 'who'), le_try_become_leader_xact('-1', identity => 'minus one'), le_try_become_leader_xact('xact');
SELECT name, key = hashtextextended(name, 0) AS key, scope, identity, token = le_token(name) AS token, pid = pg_backend_pid() AS pid,
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
SELECT le_try_become_leader('name'), le_try_become_leader('name', identity => 'first');
SELECT since = :'since' AS since, token = :token AS token, identity FROM le_leader('name');
COMMIT;
SELECT le_resign('name');

-- the key of each is that of its lock in pg_locks
SELECT count(*) FROM generate_series(1, 50) i WHERE le_try_become_leader('key ' || i);
SELECT count(*) AS locks, count(*) FILTER (WHERE l.key < 0) > 0 AS negative, count(*) FILTER (WHERE l.key > 0) > 0 AS positive
FROM le_leaders l JOIN pg_locks p ON p.objsubid = 19525 AND (p.classid::bigint << 32 | p.objid::bigint) = l.key AND p.pid = l.pid;
SELECT le_resign_all();

-- plain advisory locks are not elections
SELECT pg_advisory_lock(hashtextextended('plain', 0)), pg_advisory_lock(555, 556);
SELECT * FROM le_leaders;
SELECT * FROM _le_locks;
SELECT le_try_become_leader('plain'), le_resign('plain'), pg_advisory_unlock_all();

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
SELECT name, scope, pid, role::regrole = current_user::regrole AS role, ttl
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
SELECT DISTINCT l.key, l.pid, c.name, c.identity, c.since, c.waits_for
FROM _le_locks l LEFT JOIN _le_registry_candidates(true) c USING (key, pid)
WHERE NOT l.granted OR c.pid IS NOT NULL;
CREATE VIEW leaders AS
WITH lines AS (SELECT key, count(*) AS candidates FROM
	(SELECT key FROM standing UNION ALL SELECT key FROM _le_registry_candidates(false) WHERE NOT in_line) c GROUP BY 1)
SELECT t.name, l.key, t.scope, t.identity, t.token, l.pid, a.usename, a.application_name, a.client_addr, t.since,
	coalesce(s.candidates, 0) AS candidates, t.value
FROM _le_locks l
JOIN _le_registry_terms() t ON t.key = l.key AND t.pid = l.pid
LEFT JOIN lines s ON s.key = l.key
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted
UNION ALL
SELECT t.name, t.key, t.scope, t.identity, t.token, NULL, r.rolname, NULL, NULL, t.since,
	coalesce(s.candidates, 0), t.value
FROM _le_registry_terms() t LEFT JOIN lines s USING (key) LEFT JOIN pg_roles r ON r.oid = t.role
WHERE t.scope = 'lease';
CREATE VIEW candidates AS
SELECT s.name, s.key, (SELECT count(*) + 1 FROM unnest(pg_blocking_pids(s.pid)) b JOIN standing o ON o.pid = b
		WHERE o.key = s.key) AS position,
	s.identity, s.pid, a.usename, a.application_name, a.client_addr, s.since, s.waits_for,
	(SELECT array_agg(b ORDER BY b) FROM unnest(pg_blocking_pids(s.pid)) b) AS blocked_by
FROM standing s LEFT JOIN pg_stat_activity a USING (pid);
GRANT SELECT ON ALL TABLES IN SCHEMA regress_truth TO regress_le_reader;

-- compare all; what differs is shown
CREATE FUNCTION differences_now() RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_stat_clear_snapshot();
	RETURN QUERY
	WITH shown AS (SELECT name, key, scope, identity, token, pid, usename, application_name, client_addr, since, candidates, value FROM le_leaders),
		asked AS (SELECT name, key, scope, identity, token, pid, since, candidates, value FROM
			(SELECT DISTINCT name AS n FROM leaders) e, le_leader(n)),
		known AS (SELECT name, key, scope, identity, token, pid, usename, application_name, client_addr, since, candidates, value FROM leaders),
		line AS (SELECT name, key, position, identity, pid, usename, application_name, client_addr, since, waits_for,
			(SELECT array_agg(b ORDER BY b) FROM unnest(blocked_by) b) AS blocked_by FROM le_candidates WHERE position IS NOT NULL)
	SELECT 'le_leaders shows '   || x::text FROM (TABLE shown EXCEPT ALL TABLE known) x UNION ALL
	SELECT 'le_leaders lacks '   || x::text FROM (TABLE known EXCEPT ALL TABLE shown) x UNION ALL
	SELECT 'le_leader differs: ' || x::text FROM (TABLE asked
		EXCEPT ALL SELECT name, key, scope, identity, token, pid, since, candidates, value FROM known) x UNION ALL
	SELECT 'le_leader lacks '    || x::text FROM (SELECT name, key, scope, identity, token, pid, since, candidates, value FROM known
		EXCEPT ALL TABLE asked) x UNION ALL
	SELECT 'le_candidates shows ' || x::text FROM (TABLE line EXCEPT ALL TABLE candidates) x UNION ALL
	SELECT 'le_candidates lacks ' || x::text FROM (TABLE candidates EXCEPT ALL TABLE line) x UNION ALL
	SELECT 'statistics count ' || s.candidates || ' of ' || name FROM pg_stat_leader_election s JOIN le_leaders l USING (name)
		WHERE s.candidates <> l.candidates;
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
-- sessions, transactions, leases, with identities of their own and with none
SELECT says('a', $$SELECT le_try_become_leader('job', identity => 'ay') AND le_try_become_leader('second') AND le_proclaim('job', 'v')$$),
	says('b', $$SELECT le_try_become_leader('other')$$), says('c', $$SELECT le_lease('leased', '1 hour') > 0$$);
SELECT says('c', 'BEGIN'), says('c', $$SELECT le_try_become_leader_xact('until the end') AND le_lease('uncommitted', '1 hour') > 0$$);
-- a bid that is denied
SELECT says('c', $$SELECT le_try_become_leader('job', identity => 'denied')$$);
SELECT scope, last_denied_at <= clock_timestamp() AS last_denied_at, last_denied_identity FROM le_leaders WHERE name = 'job';
SELECT name, scope, candidates FROM leaders ORDER BY name COLLATE "C";
SELECT * FROM differences();

-- lines: for a session, for a lease, where the first in line holds the lock
SELECT waits('d', $$SELECT le_become_leader('job')$$), waits('b', $$SELECT le_become_leader('second')$$);
SELECT open('e'), open('f'), open('g'), open('h');
SELECT waits('e', $$SELECT le_become_leader('job', '1 hour', identity => 'also')$$), waits('f', $$CALL le_campaign('leased', ttl => '1 hour')$$);
SELECT waits('g', $$CALL le_campaign('leased', ttl => '1 hour')$$), waits('h', $$CALL le_campaign('{job,leased}'::text[], ttl => '1 hour')$$);
SELECT name, position, waits_for, application_name, cardinality(blocked_by) AS blocked_by FROM le_candidates
ORDER BY name, position, application_name;
SELECT name, candidates FROM le_leaders WHERE candidates > 0 ORDER BY 1;
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
-- candidates for a lease go first, or one of them takes an election that another session leaves
SELECT dblink_cancel_query(c), dblink_disconnect(c) FROM unnest('{f,g,h}'::text[]) c;
SELECT gone(c) FROM unnest('{f,g,h}'::text[]) c;
SELECT dblink_disconnect(c) FROM unnest(dblink_get_connections()) c;
SELECT gone(c) FROM unnest('{a,b,c,d,e,f,g,h}'::text[]) c;
SELECT count(*) FROM le_candidates;
SELECT * FROM differences();
SELECT le_depose(name) AS deposed FROM unnest('{leased,uncommitted}'::text[]) name;
SELECT mode FROM pg_locks WHERE locktype = 'advisory';
SET client_min_messages = warning;
DROP SCHEMA regress_truth CASCADE;
DROP ROLE regress_le_reader;
DROP EXTENSION dblink;
