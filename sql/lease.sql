--
-- Leases: taken for a ttl, kept by their token, given up by it
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql

-- elected, once: asked again without the token, the answer is no, to the holder, too
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT :t1 > 0 AS token;
SELECT le_lease('job', '1 hour'), le_lease('job', '1 hour', identity => 'me'), le_lease('job', '1 hour', identity => 'other');
SELECT count(le_lease('many', '1 hour')) FROM generate_series(1, 3);
TABLE advisory;

-- kept by the token, as often as one likes
SELECT le_am_leader('job', :t1), le_renew('job', :t1), le_renew('job', :t1), le_lease('job', '1 hour', token => :t1) = :t1 AS lease;
SELECT scope, identity, token = :t1 AS token, renewals FROM le_leader('job');
SELECT le_lease('job', '1 hour', identity => 'somebody else', token => :t1) = :t1 AS lease;
SELECT identity FROM le_leader('job');
SELECT le_lease(token => :t1, ttl => '1 hour', name => 'job') = :t1 AS named;

-- not by the session: it leads nothing
SELECT le_am_leader('job'), le_token('job'), le_resign_all();
SELECT pg_advisory_unlock_all();
SELECT le_am_leader('job', :t1);

-- the ttl
SELECT le_renew('job', :t1, '10 min');
SELECT ttl, expires_in <= ttl AS runs FROM le_leader('job');
SELECT le_renew('job', :t1);
SELECT le_lease('job', '20 min', token => :t1) = :t1 AS lease;
SELECT ttl, expires_in > '10 min' AS longer FROM le_leader('job');
SELECT le_lease('job', '30 min');
SELECT le_renew('job', :t1 + 1000000, '30 min');
SELECT ttl FROM le_leader('job');

-- one leader, whatever the scope
SELECT le_try_become_leader('job'), le_try_become_leader_xact('job');
SELECT le_become_leader('job', '0'), le_become_leader_xact('job', '1 ms');
TABLE advisory;
SELECT le_try_become_leader('session', identity => 's');
SELECT le_lease('session', '1 hour');
BEGIN;
SELECT le_try_become_leader_xact('xact', identity => 'x');
SELECT le_lease('xact', '1 hour');
SELECT name, scope FROM le_leaders WHERE name IN ('session', 'xact') ORDER BY name;
COMMIT;
SELECT le_lease('xact', '1 hour') > :t1 AS greater;
SELECT le_resign('session');
SELECT le_lease('session', '1 hour') > 0 AS after;
SELECT le_try_become_leader('session');

-- tokens that lead nothing: no errors
SELECT le_token('session 2') AS none, le_try_become_leader('session 2', identity => 's'), le_token('session 2') AS s2 \gset
SELECT t AS token, le_am_leader('job', n.token), le_renew('job', n.token), le_renew('job', n.token, '1 s')
FROM (VALUES ('zero', 0), ('negative', -1), ('greatest', 9223372036854775807), ('least', -9223372036854775808),
	('never was', :t1 + 1000000), ('of a session', :s2)) n(t, token);
SELECT le_am_leader('other', :t1), le_renew('other', :t1);
SELECT le_token('session 2') = :s2 AS leads, le_am_leader('session 2', :s2), le_renew('session 2', :s2);
-- resigning by one warns, and names the leader (a token is in the detail)
SELECT le_resign('nobody''s', 0);
SELECT le_resign('session 2', -1), le_resign('session 2');
\set VERBOSITY terse
SELECT le_resign('other', 9223372036854775807);
SELECT le_resign('job', 0);
SELECT le_resign('job');
\set VERBOSITY default
-- none of which ended anything
SELECT identity, le_am_leader('job', :t1) FROM le_leader('job');

-- given up, for good
SELECT le_resign('job', :t1);
SELECT le_am_leader('job', :t1), le_renew('job', :t1);
SELECT count(*) FROM le_leader('job');
SELECT le_try_become_leader('job'), le_resign('job');
SELECT le_lease('job', '1 hour', identity => 'next', token => :t1) AS t2 \gset
SELECT :t2 > :t1 AS greater, le_am_leader('job', :t2), le_am_leader('job', :t1), le_renew('job', :t1);
SELECT identity, renewals FROM le_leader('job');

-- a bid with an old token is denied
SELECT le_lease('job', '1 hour', identity => 'old', token => :t1);
SELECT identity, renewals FROM le_leader('job');

-- names as long as they may be, and of all kinds
SELECT n, le_resign(n, t), le_am_leader(n, t)
FROM (SELECT n, le_lease(n, '1 hour', identity => n) AS t FROM (VALUES (' '), ('Job'), (E'a\nb'), ('ü'), ('job ')) v(n) OFFSET 0) s;
SELECT le_resign(n, le_lease(n, '1 hour', identity => repeat('i', 255))) FROM repeat('n', 255) n;

-- no end of them, and all given up
SELECT count(le_lease('many ' || i, '1 hour')) FROM generate_series(1, 200) i;
TABLE advisory;
SELECT count(*), count(DISTINCT token), min(ttl) = max(ttl) AS ttl FROM le_leaders WHERE name LIKE 'many %';
SELECT count(*) FILTER (WHERE le_resign(name, token)) FROM le_leaders WHERE scope = 'lease';
TABLE advisory;
