--
-- Leases in the views, beside the other scopes
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
SET application_name = 'regress views';
SELECT clock_timestamp() AS t0 \gset
SELECT le_lease('lease', '1 hour', identity => 'l') AS t1 \gset
SELECT le_try_become_leader('session', identity => 's');
BEGIN;
SELECT le_try_become_leader_xact('xact', identity => 'x'), le_lease('uncommitted', '1 hour', identity => 'u') > 0 AS u;
SELECT name, scope, identity, pid IS NOT NULL AS pid, usename = current_user AS usename, application_name, client_addr,
	candidates, ttl, renewed_at IS NOT NULL AS renewed_at, renewals, expires_in IS NOT NULL AS expires_in
FROM le_leaders ORDER BY name;
COMMIT;

-- the same row, by all ways to it
SELECT to_jsonb(a) @> to_jsonb(b) - '{renewed_at,expires_in}'::text[] AS same
FROM le_leaders a, le_leader('lease') b WHERE a.name = 'lease';
SELECT key = hashtextextended('lease', 0) AS key, token = :t1 AS token, since BETWEEN :'t0' AND clock_timestamp() AS since FROM le_leader('lease');
SELECT count(*) FROM le_leader('lease') a, le_leader('uncommitted') b;
SELECT count(*) FROM le_leaders WHERE key = hashtextextended('lease', 0) AND name IS NULL;
SELECT count(*) FROM le_leaders WHERE name = 'lease';
SELECT lock_class, key = hashtextextended('lease', 0) AS key, name, scope, pid, role::regrole = current_user::regrole AS role, ttl
FROM _le_registry_terms() WHERE lock_class = 19525 AND key = hashtextextended('lease', 0);
SELECT count(*) FROM _le_registry_terms() WHERE lock_class = 1 AND key = hashtextextended('lease', 0);
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

-- one that is over is nowhere
SELECT le_lease('short', '100 ms') > 0 AS short;
SELECT pg_sleep(0.15);
SELECT name FROM le_leaders WHERE scope = 'lease' ORDER BY name;
SELECT count(*) FROM le_leader('short');
SELECT count(*) FROM _le_registry_terms() WHERE lock_class = 19525 AND key = hashtextextended('short', 0);
SELECT count(*) FROM le_leaders WHERE name = 'short';

-- a join does not repeat it, a cursor and a materialized copy can have it
SELECT count(*) FROM le_leaders a JOIN le_leaders b USING (name) WHERE a.scope = 'lease';
BEGIN;
DECLARE c CURSOR FOR SELECT name, ttl FROM le_leaders WHERE scope = 'lease' ORDER BY name;
SELECT le_resign('lease', :t1);
FETCH ALL c;
COMMIT;

-- many
SELECT count(le_lease('many ' || i, '1 hour')) FROM generate_series(1, 500) i;
SELECT count(*), count(DISTINCT (name, key)), sum(candidates) FROM le_leaders WHERE name LIKE 'many %';
SELECT count(*) FROM generate_series(1, 500, 100) i, le_leader('many ' || i) WHERE expires_in > '0';
SELECT count(*) FILTER (WHERE le_resign(name, token)), le_resign_all() FROM le_leaders WHERE scope = 'lease';
RESET application_name;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
