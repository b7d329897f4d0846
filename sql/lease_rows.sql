--
-- What the library keeps of leases, in le_leases and in the registry
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/advisory_of_leases.psql

-- the ttl, and its changes
SELECT le_lease('job', '1 hour') AS t1 \gset
SELECT le_renew('job', :t1, '10 min');
SELECT ttl FROM le_leases WHERE name = 'job';
SELECT le_lease('job', '20 min', token => :t1) = :t1 AS lease;
SELECT r.ttl, t.ttl FROM le_leader('job') r JOIN le_leases t USING (name, token);
SELECT le_lease('ttl', '-1 day 25 hours') AS t2 \gset
SELECT r.ttl, t.ttl FROM le_leader('ttl') r JOIN le_leases t USING (name, token);
SELECT le_renew('ttl', :t2, '1 day');
SELECT r.ttl, t.ttl FROM le_leader('ttl') r JOIN le_leases t USING (name, token);
\set VERBOSITY sqlstate
SELECT le_renew('ttl', :t2, '1 day 1 us');
SELECT le_lease('ttl', '1 ms', token => :t2);
SELECT le_lease('none', '1 ms');
SELECT le_lease('none', '1 s', identity => '');
\set VERBOSITY default
SELECT r.ttl, t.ttl FROM le_leader('ttl') r JOIN le_leases t USING (name, token);
SELECT name FROM le_leases WHERE ttl > '0' ORDER BY name;
-- a bare key is another election
SELECT le_try_become_leader(hashtextextended('job', 0)), le_resign(hashtextextended('job', 0));
SELECT le_resign('job', :t1), le_resign('ttl', :t2);

-- a lease that is over, and the next one
SELECT le_lease('job', '100 ms') AS t1 \gset
SELECT pg_sleep(0.15);
SELECT count(*) FROM _le_registry_terms() WHERE name = 'job';
SELECT le_lease('job', '1 hour', token => :t1) AS t2 \gset
SELECT token = :t2 AS token, ttl FROM le_leases WHERE name = 'job';

-- the other scopes are elected, too, and then the row says that it is over
SELECT le_lease('session', '100 ms') > 0 AS s, le_lease('xact', '100 ms') > 0 AS x;
SELECT pg_sleep(0.15);
SELECT le_try_become_leader('session', identity => 's');
SELECT ttl FROM le_leases WHERE name = 'session';
BEGIN;
SELECT le_become_leader_xact('xact', '1 hour', identity => 'x');
ROLLBACK;
SELECT ttl FROM le_leases WHERE name = 'xact';
SELECT le_resign('session');
SELECT le_lease('session', '1 hour') > 0 AS s, le_lease('xact', '1 hour') > 0 AS x;
SELECT name, count(*), min(ttl) FROM le_leases WHERE name IN ('session', 'xact') GROUP BY name ORDER BY name;

-- leases that are over are cleared away as new ones are taken
SELECT count(le_lease('short ' || i, '100 ms')) FROM generate_series(1, 100) i;
SELECT pg_sleep(0.3);
SELECT count(le_lease('new ' || i, '1 hour')) FROM generate_series(1, 500) i;
SELECT count(*) FILTER (WHERE name LIKE 'short %') < 10 AS cleared, count(*) FILTER (WHERE name LIKE 'new %') AS new FROM le_leases;
TABLE advisory;
SELECT count(*) FILTER (WHERE le_resign(name, token)) FROM le_leaders WHERE scope = 'lease';
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
