--
-- What a lease's functions refuse, and what they just accept
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql
\i :abs_srcdir/sql/include/outcome.psql

-- NULL
SELECT statement, outcome(statement) FROM unnest(ARRAY[
 $$SELECT le_lease(NULL, '1 s')$$, $$SELECT le_lease('job', NULL)$$, $$SELECT le_renew(NULL, 1)$$, $$SELECT le_renew('job', NULL)$$,
 $$SELECT le_am_leader(NULL, 1)$$, $$SELECT le_am_leader('job', NULL)$$, $$SELECT le_resign(NULL, 1)$$]) statement;
-- that is the session's own
SELECT le_resign('job', NULL);

-- the ttl: 100 ms to 1 day, in whatever words
SELECT le_lease('job', '99.999 ms');
CREATE FUNCTION pg_temp.answer(ttl interval) RETURNS text LANGUAGE plpgsql SET client_min_messages = error AS $$
DECLARE
	t bigint;
BEGIN
	t := le_lease('ttl', ttl);
	RETURN (t > 0 AND le_renew('ttl', t, ttl) AND le_resign('ttl', t))::text;
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END
$$;
SELECT ttl, pg_temp.answer(ttl::interval)
FROM (VALUES (1, '100 ms'), (2, '100.001 ms'), (3, '1 day'), (4, '24 hours'), (5, '23:59:59.999999'),
	(6, '-1 day 25 hours'), (7, '2 days -24 hours'), (8, '1 day -1 us'),
	(9, '99.999 ms'), (10, '0'), (11, '-1 s'), (12, '-1 day'), (13, '1 day 1 us'), (14, '24:00:00.000001'),
	(15, '2 days'), (16, '-1 day 24 hours'), (17, '-1 day 24:00:00.099999'), (18, '1 day -24 hours'),
	(19, '1 month'), (20, '1 month -30 days'), (21, '1 month -30 days 1 s'), (22, '-1 month 31 days'), (23, '1 year'),
	(24, '178000000 years'), (25, '-178000000 years'), (26, '2147483647 days'), (27, '-2147483648 days'),
	(28, '2562047788:00:54.775807'), (29, '-2562047788:00:54.775807'),
	(30, '-2147483648 days 2562047788:00:54.775807')) v(n, ttl)
ORDER BY n;
SELECT pg_temp.answer(NULL);
-- which is what counts, and what is shown
SELECT le_lease('ttl', '-1 day 25 hours') AS t1 \gset
SELECT ttl FROM le_leader('ttl');
SELECT le_renew('ttl', :t1, '1 day');
SELECT ttl FROM le_leader('ttl');

-- a refused ttl leaves the lease as it is: also if another token leads, or
-- there is no leader
SELECT statement, outcome(format(statement, :t1)) FROM unnest(ARRAY[
 $$SELECT le_renew('ttl', %s, '1 day 1 us')$$, $$SELECT le_lease('ttl', '1 ms', identity => NULL, token => %s)$$,
 $$SELECT le_renew('ttl', %s + 1000000, '1 month')$$, $$SELECT le_renew('nobody''s', 1, '0')$$, $$SELECT le_lease('ttl', '1 s', identity => '', token => %s)$$]) statement;
SELECT ttl, renewals FROM le_leader('ttl');
SELECT le_renew('ttl', :t1, NULL), le_lease('ttl', '1 day', identity => NULL, token => NULL);
SELECT ttl, renewals, le_resign('ttl', :t1) FROM le_leader('ttl');

-- names and identities
SELECT statement, outcome(statement) FROM unnest(ARRAY[
 $$SELECT le_lease('', '1 s')$$, $$SELECT le_lease(repeat('n', 256), '1 s')$$, $$SELECT le_lease(repeat('ü', 128), '1 s')$$,
 $$SELECT le_lease('job', '1 s', identity => '')$$, $$SELECT le_lease('job', '1 s', identity => repeat('i', 256))$$,
 $$SELECT le_renew('', 1)$$, $$SELECT le_am_leader('', 1)$$, $$SELECT le_resign(repeat('n', 256), 1)$$]) statement;
-- none of these took anything
SELECT count(*) FROM le_leaders;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
DROP FUNCTION outcome;
