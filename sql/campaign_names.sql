--
-- le_campaign for any of many elections, on one connection
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
-- what a wait must not leave behind
CREATE TEMP VIEW left_over AS
SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks,
       (SELECT count(*) FROM le_candidates) AS candidates,
       (SELECT sum(candidates) FROM pg_stat_leader_election) AS counted;
CREATE TEMP VIEW mine AS
SELECT name, scope, identity FROM le_leaders ORDER BY name;

-- which of the two procedures a call is for: columns token, or token and name
CALL le_campaign('job', '1 s', '1 min', NULL, 'me') \gdesc
CALL le_campaign('job', '1 s', '1 min', NULL, 'me') \gset
SELECT le_resign('job', :token);
CALL le_campaign('job', '1 s', '1 min', NULL, 'me', NULL) \gset
SELECT le_resign('job', :token);
CALL le_campaign('job', '1 s', NULL, NULL, 'me', NULL) \gset
SELECT :token = le_token('job') AS same, le_resign('job');
-- the third argument is the ttl
CALL le_campaign('job', '1 s', '1 min') \gset
SELECT ttl FROM le_leader('job');
SELECT le_resign('job', :token);
CALL le_campaign('job') \gset
SELECT :token = le_token('job') AS same, le_resign('job');
-- a literal that looks like an array is no name
CALL le_campaign('{job, other}');
CALL le_campaign('{job, other}', '1 s', NULL, NULL, NULL, NULL);
-- an array is many
CALL le_campaign(ARRAY['job', 'other'], '1 s', '1 min', NULL, 'me') \gset
SELECT :'name' AS name, le_am_leader(:'name', :token), le_resign(:'name', :token);
CALL le_campaign(ARRAY['job', 'other'], '1 s', '1 min', NULL, 'me', NULL, NULL) \gset
SELECT :'name' AS name, le_am_leader(:'name', :token), le_resign(:'name', :token);
CALL le_campaign('{job, other}'::text[]) \gset
SELECT :'name' AS name, le_am_leader(:'name'), le_resign(:'name');
CALL le_campaign(names => '{job, other}', timeout => '0') \gset
SELECT :'name' AS name, le_am_leader(:'name'), le_resign(:'name');
CALL le_campaign('{job, other}', name => NULL) \gset
SELECT :'name' AS name, le_am_leader(:'name'), le_resign(:'name');
CALL le_campaign('{job, other}', '1 s', '1 min', NULL, 'me', NULL, NULL) \gset
SELECT :'name' AS name, le_am_leader(:'name', :token), le_resign(:'name', :token);
-- what is passed in for the outputs does not matter
CALL le_campaign(ARRAY['job', 'other'], '0', NULL, NULL, 'me', 17, 'other') \gset
SELECT :'name' AS name, :token = le_token('job') AS same, le_resign('job');
DO $$
DECLARE
	token bigint;
	name text;
BEGIN
	CALL le_campaign(ARRAY['job', 'other'], token => token, name => name);
	RAISE NOTICE '% %', name, token = le_token('job');
	CALL le_campaign('job', token => token);
	RAISE NOTICE '%', token = le_token('job');
END $$;
SELECT le_resign_all();
TABLE left_over;

-- the first in the array that is free; those that are led by this session are passed over
CALL le_campaign(ARRAY['c', 'b', 'a'], '0', identity => 'first') \gset
SELECT :'name' AS name, :token = le_token('c') AS same;
\set c :token
CALL le_campaign(ARRAY['c', 'b', 'a'], '0', identity => 'first') \gset
SELECT :'name' AS name, :token > :c AS greater;
CALL le_campaign(ARRAY['c', 'b', 'a'], '0', identity => 'first', ttl => '1 hour') \gset
SELECT :'name' AS name;
\set a :token
TABLE mine;
CALL le_campaign(ARRAY['c', 'b', 'a'], '0', identity => 'first');
SELECT clock_timestamp() AS start \gset
CALL le_campaign(ARRAY['c', 'b', 'a'], '50 ms', identity => 'first');
SELECT clock_timestamp() - :'start' BETWEEN '50 ms' AND '1 min' AS waited;
CALL le_campaign(ARRAY['c', 'b', 'a'], '50 ms', identity => 'first', ttl => '1 hour');
TABLE mine;
SELECT le_token('c') = :c AS same, le_am_leader('a', :a);
-- one that becomes free is taken
SELECT le_resign('b');
CALL le_campaign(ARRAY['c', 'b', 'a'], '1 hour', identity => 'first') \gset
SELECT :'name' AS name, :token = le_token('b') AS same;
-- also a lease, when it runs out
SELECT le_renew('a', :a, '300 ms'), clock_timestamp() AS start \gset
CALL le_campaign(ARRAY['c', 'b', 'a'], '1 hour', identity => 'first') \gset
SELECT :'name' AS name, clock_timestamp() - :'start' BETWEEN '250 ms' AND '20 s' AS at_the_deadline;
TABLE mine;
-- under another identity, it is another client on this connection
CALL le_campaign(ARRAY['c', 'b', 'a', 'd'], '0', identity => 'second') \gset
SELECT :'name' AS name, :token = le_token('d') AS same;
CALL le_campaign(ARRAY['c', 'b', 'a', 'd'], '1 hour', identity => 'second');
\echo :LAST_ERROR_SQLSTATE
CALL le_campaign(ARRAY['c', 'free'], identity => 'second');
\echo :LAST_ERROR_SQLSTATE
TABLE left_over;
SELECT le_resign_all();
TABLE mine;
-- several leases: the one that runs out first
SELECT count(le_lease('lease ' || i, CASE i WHEN 3 THEN interval '1 s' ELSE '1 hour' END)) FROM generate_series(1, 3) i;
CALL le_campaign(ARRAY['lease 1', 'lease 2', 'lease 3'], '1 hour') \gset
SELECT :'name' AS name, le_resign(:'name');
SELECT count(le_resign(name, token)) FROM le_leaders;

-- duplicates are one
CALL le_campaign(ARRAY['job', 'job'], '0') \gset
SELECT :'name' AS name;
CALL le_campaign(ARRAY['job', 'job', 'other', 'job'], '0') \gset
SELECT :'name' AS name;
CALL le_campaign(ARRAY['job', 'job', 'other', 'job'], '50 ms');
SELECT le_resign_all();
-- one is enough
CALL le_campaign(ARRAY['job'], '0', identity => 'one') \gset
SELECT :'name' AS name, identity FROM le_leader('job');
CALL le_campaign(ARRAY['job'], '50 ms');
SELECT le_resign_all();
-- whatever the lower bound
CALL le_campaign('[5:6]={job,other}'::text[], '0') \gset
SELECT :'name' AS name, le_resign(:'name');
-- the longest names
CALL le_campaign(ARRAY[repeat('x', 255), repeat('y', 255)], '0', identity => repeat('i', 255)) \gset
SELECT :'name' = repeat('x', 255) AS name, le_resign(:'name');
-- each is counted
TABLE left_over;

-- a lock_timeout that is due earlier is an error, a later one is not
SELECT le_lease('job', '1 hour') AS t1, le_lease('other', '1 hour') AS t2 \gset
SET lock_timeout = '50 ms';
CALL le_campaign(ARRAY['job', 'other']);
\echo :LAST_ERROR_SQLSTATE
CALL le_campaign(ARRAY['job', 'other'], '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader('job', '50 ms');
CALL le_campaign(ARRAY['job', 'other'], '0');
SET lock_timeout = '1 h';
CALL le_campaign(ARRAY['job', 'other'], '50 ms');
RESET lock_timeout;
SET statement_timeout = '200 ms';
CALL le_campaign(ARRAY['job', 'other']);
\echo :LAST_ERROR_SQLSTATE
CALL le_campaign(ARRAY['job', 'other'], '1 hour', identity => 'me', ttl => '1 hour');
\echo :LAST_ERROR_SQLSTATE
RESET statement_timeout;
TABLE left_over;
SELECT name, candidates FROM le_leaders ORDER BY name;

-- in a transaction block it works, too; what it waits with then stays
BEGIN;
CALL le_campaign(ARRAY['job', 'other', 'third'], '50 ms', identity => 'me', ttl => '1 hour') \gset
SELECT :'name' AS name, le_am_leader('third', :token), count(*) FROM le_leader('third');
-- the lease that is not committed is passed over
CALL le_campaign(ARRAY['job', 'third', 'other'], '50 ms', identity => 'me', ttl => '1 hour');
CALL le_campaign(ARRAY['job', 'third', 'fourth'], '50 ms', identity => 'me') \gset
SELECT :'name' AS name;
ROLLBACK;
SELECT le_am_leader('third', :token), le_am_leader('fourth');
SELECT le_resign_all();
BEGIN;
SAVEPOINT a;
CALL le_campaign(ARRAY['third', 'fourth'], '50 ms', identity => 'me', ttl => '1 hour') \gset
ROLLBACK TO a;
CALL le_campaign(ARRAY['third', 'fourth'], '50 ms', identity => 'me', ttl => '1 hour') \gset
SELECT :'name' AS name;
COMMIT;
SELECT le_am_leader('third', :token), le_resign('third', :token);
-- a term of the transaction is passed over as well
BEGIN;
SELECT le_try_become_leader_xact('third');
CALL le_campaign(ARRAY['third', 'job'], '50 ms');
COMMIT;
-- in procedural code, where the caller may commit, it does; else it does not
CREATE TEMP TABLE note (note text);
DO $$
DECLARE
	token bigint;
	name text;
BEGIN
	INSERT INTO note VALUES ('before');
	CALL le_campaign(ARRAY['job', 'third'], '50 ms', token => token, name => name);
	RAISE NOTICE '% %', name, token = le_token('third');
	INSERT INTO note VALUES ('before one');
	CALL le_campaign('third', token => token);
	RAISE NOTICE '%', token = le_token('third');
	INSERT INTO note VALUES ('after');
	ROLLBACK;
END $$;
DO $$
DECLARE
	token bigint;
	name text;
BEGIN
	INSERT INTO note VALUES ('in an exception block');
	BEGIN
		CALL le_campaign(ARRAY['job', 'third', 'fourth'], '50 ms', token => token, name => name);
		RAISE NOTICE '% %', name, token = le_token('fourth');
		CALL le_campaign(ARRAY['job', 'third', 'fourth'], '50 ms', token => token, name => name);
		RAISE NOTICE '% %', name, token;
		CALL le_campaign('fourth', token => token);
		RAISE NOTICE '%', token = le_token('fourth');
		PERFORM 1 / 0;
	EXCEPTION WHEN division_by_zero THEN
		RAISE NOTICE 'still: %', le_am_leader('fourth');
	END;
	ROLLBACK;
END $$;
TABLE note;
CREATE FUNCTION pg_temp.campaign() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	token bigint;
	name text;
BEGIN
	CALL le_campaign(ARRAY['job', 'fifth'], '50 ms', token => token, name => name);
	RETURN name;
END $$;
SELECT pg_temp.campaign();
-- so does an observer wait in a function
CREATE FUNCTION pg_temp.observe(known bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	version bigint := known;
	token bigint;
	identity text;
	value text;
BEGIN
	CALL le_observe('fifth', version, '50 ms', token, identity, value);
	RETURN version = known AND token = le_token('fifth');
END $$;
CALL le_observe('fifth') \gset
SELECT pg_temp.observe(:version);
-- the names outlive the transaction that they came from
CREATE TEMP TABLE names AS SELECT ARRAY['job', 'sixth'] || array_agg('long ' || i || repeat('x', 200)) AS names FROM generate_series(1, 200) i;
DO $$
DECLARE
	token bigint;
	name text;
	names text[] := (SELECT n.names FROM names n);
BEGIN
	CALL le_campaign(names, token => token, name => name);
	RAISE NOTICE '%', name;
END $$;
SELECT le_resign_all();
SELECT le_resign('job', :t1), le_resign('other', :t2);

-- no more than a session may lead
SET leader_election.max_terms_per_session = 2;
CALL le_campaign(ARRAY['a', 'b', 'c'], '0') \gset
CALL le_campaign(ARRAY['a', 'b', 'c'], '0', ttl => '1 hour') \gset
\set lease :token
CALL le_campaign(ARRAY['a', 'b', 'c'], '0') \gset
SELECT :'name' AS name;
CALL le_campaign(ARRAY['d', 'e'], '0');
\echo :LAST_ERROR_SQLSTATE
CALL le_campaign(ARRAY['d', 'e']);
\echo :LAST_ERROR_SQLSTATE
TABLE mine;
SELECT le_resign_all(), le_resign('b', :lease);
RESET leader_election.max_terms_per_session;

-- bad input
\set VERBOSITY sqlstate
CALL le_campaign(NULL::text[]);
CALL le_campaign(ARRAY[]::text[]);
CALL le_campaign(ARRAY['a', NULL]);
CALL le_campaign(ARRAY[NULL]::text[]);
CALL le_campaign(ARRAY[['a', 'b'], ['c', 'd']]);
CALL le_campaign(ARRAY['a', '']);
CALL le_campaign(ARRAY['a', repeat('x', 256)]);
CALL le_campaign(ARRAY['a', 'b'], '-1 s');
CALL le_campaign(ARRAY['a', 'b'], '25 days');
CALL le_campaign(ARRAY['a', 'b'], '1 s', identity => '');
CALL le_campaign(ARRAY['a', 'b'], '1 s', identity => repeat('x', 256));
CALL le_campaign(ARRAY['a', 'b'], '1 s', identity => 'me', ttl => '99 ms');
CALL le_campaign(ARRAY['a', 'b'], '1 s', identity => 'me', ttl => '25 hours');
CALL le_campaign(ARRAY['a', 'b'], '1 s', identity => 'me', ttl => '1 month');
\set VERBOSITY default
TABLE mine;
TABLE left_over;

-- ten thousand
SET leader_election.log_terms = off;
SELECT array_agg('n ' || i ORDER BY i) AS names FROM generate_series(1, 10000) i \gset
SELECT clock_timestamp() AS start \gset
SELECT le_lease('n 1', '1 hour') > 0 AS lease;
CALL le_campaign(:'names'::text[], '0') \gset
SELECT :'name' AS name, le_resign(:'name');
CALL le_campaign(:'names'::text[], '0', identity => 'me', ttl => '1 hour') \gset
SELECT :'name' AS name, le_resign(:'name', :token);
SELECT count(le_resign(name, token)) FROM le_leaders;
-- all of them led
DO $$
BEGIN
	FOR batch IN 0..19 LOOP
		PERFORM le_lease('n ' || i, '1 hour') FROM generate_series(batch * 500 + 1, batch * 500 + 500) i;
		COMMIT;
	END LOOP;
END $$;
CALL le_campaign(:'names'::text[], '50 ms', identity => 'me', ttl => '1 hour');
SELECT le_renew('n 7777', token, '100 ms') FROM le_leader('n 7777');
CALL le_campaign(:'names'::text[], '1 hour') \gset
SELECT :'name' AS name, le_resign(:'name');
SELECT count(le_resign(name, token)) FROM le_leaders;
-- leave no heap of leases that are over to other tests
SELECT count(le_resign('n ' || i)) FROM generate_series(1, 10000) i WHERE le_try_become_leader('n ' || i);
SELECT clock_timestamp() - :'start' < '1 min' AS fast;
RESET leader_election.log_terms;
TABLE left_over;

-- two names with one 64-bit key: see collision.sql
\set a worker-queue-mail.sender
\set b HwFfjYHs9PGi-Rwb-Amyj4y5
\set VERBOSITY terse
CALL le_campaign(ARRAY[:'a', :'b'], '0');
\echo :LAST_ERROR_SQLSTATE
CALL le_campaign(ARRAY[:'a', 'free'], '0') \gset
SELECT :'name' AS name;
CALL le_campaign(ARRAY['free', :'b'], '0');
\echo :LAST_ERROR_SQLSTATE
CALL le_campaign(ARRAY['free', :'b'], '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT le_resign_all();
SELECT le_lease(:'a', '1 hour') AS t1 \gset
CALL le_campaign(ARRAY['other', :'b'], '0') \gset
SELECT :'name' AS name;
CALL le_campaign(ARRAY['other', :'b'], '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT le_resign(:'a', :t1);
SELECT le_resign_all();
\set VERBOSITY default

TABLE mine;
TABLE left_over;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
