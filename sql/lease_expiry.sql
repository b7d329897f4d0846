--
-- The end of a lease that was not renewed
--
-- Nothing here depends on what happens before a lease runs out, but for leases
-- that run for an hour.
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql

-- a lease is over even if no other session is elected
SELECT le_lease('job', '100 ms', identity => 'first') AS t1 \gset
SELECT pg_sleep(0.15);
SELECT le_am_leader('job', :t1), le_renew('job', :t1), le_renew('job', :t1, '1 hour'), le_am_leader('job', :t1);
SET client_min_messages = error;
SELECT le_resign('job', :t1);
RESET client_min_messages;
SELECT count(*) FROM le_leader('job');
SELECT count(*) FROM le_leaders WHERE name = 'job';
-- le_lease begins a new term
SELECT le_lease('job', '1 hour', identity => 'second', token => :t1) AS t2 \gset
SELECT :t2 > :t1 AS greater, le_am_leader('job', :t2), le_am_leader('job', :t1), le_renew('job', :t1);
SELECT identity, renewals FROM le_leader('job');

-- a change of the ttl counts from now on
SELECT le_renew('job', :t2, '100 ms');
SELECT pg_sleep(0.15);
SELECT le_am_leader('job', :t2), le_renew('job', :t2);
SELECT le_lease('longer', '100 ms') AS t3 \gset
SELECT le_lease('longer', '1 hour', token => :t3) AS t3 \gset
SELECT pg_sleep(0.15);
SELECT le_am_leader('longer', :t3), le_resign('longer', :t3);

-- a renewal lets the ttl run anew
SELECT le_lease('kept', '1 hour') AS t4 \gset
SELECT pg_sleep(0.6);
SELECT clock_timestamp() AS then \gset
SELECT renewed_at < :'then'::timestamptz - interval '300 ms' AS a_while_ago FROM le_leader('kept');
SELECT le_renew('kept', :t4);
SELECT renewed_at > :'then'::timestamptz - interval '300 ms' AS just_now, since < :'then' AS old, le_resign('kept', :t4) FROM le_leader('kept');

-- the other scopes are elected, too, and then the row says that it is over
SELECT le_lease('session', '100 ms') > 0 AS s, le_lease('xact', '100 ms') > 0 AS x;
SELECT pg_sleep(0.15);
SELECT le_try_become_leader('session', identity => 's');
SELECT scope, identity, ttl FROM le_leader('session');
BEGIN;
SELECT le_become_leader_xact('xact', '1 hour', identity => 'x');
ROLLBACK;
SELECT le_resign('session');
SELECT le_lease('session', '1 hour') > 0 AS s, le_lease('xact', '1 hour') > 0 AS x;

-- a waiting candidate is elected when it is over, not before
SELECT le_lease('waited for', '500 ms') > 0 AS w, clock_timestamp() AS start \gset
SELECT le_become_leader('waited for', '1 hour', identity => 'waited');
SELECT clock_timestamp() - :'start' > '400 ms' AS waited, identity, candidates FROM le_leader('waited for');
SELECT le_resign('waited for');
-- a timeout that is shorter ends the wait, and leaves nothing
SELECT le_lease('waited for', '1 hour') AS w, clock_timestamp() AS start \gset
SELECT le_become_leader('waited for', '300 ms');
SELECT clock_timestamp() - :'start' >= '300 ms' AS waited, count(*) AS candidates FROM le_candidates;
TABLE advisory;
SET lock_timeout = '100 ms';
SELECT le_become_leader('waited for');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader_xact('waited for', '1 hour');
\echo :LAST_ERROR_SQLSTATE
SET lock_timeout = '1h';
SELECT le_become_leader('waited for', '100 ms');
RESET lock_timeout;
SET statement_timeout = '200 ms';
SELECT le_become_leader('waited for');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader('waited for', '1 hour');
\echo :LAST_ERROR_SQLSTATE
RESET statement_timeout;
SHOW lock_timeout;
TABLE advisory;
SELECT count(*) AS candidates FROM le_candidates;
SELECT candidates, le_resign('waited for', token) FROM le_leader('waited for');

-- leases that are over are cleared away as new ones are taken
SELECT count(le_lease('short ' || i, '100 ms')) FROM generate_series(1, 100) i;
SELECT pg_sleep(0.3);
SELECT count(le_lease('new ' || i, '1 hour')) FROM generate_series(1, 500) i;
TABLE advisory;

SELECT count(*) FILTER (WHERE le_resign(name, token)) FROM le_leaders WHERE scope = 'lease';
