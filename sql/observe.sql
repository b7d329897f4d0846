--
-- le_observe returns the leader, or a vacancy, and what the leader publishes:
-- at once, or as soon as it differs from what the client knows
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
-- what a wait must not leave behind
CREATE TEMP VIEW left_over AS
SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks,
       (SELECT count(*) FROM le_candidates) AS candidates;

-- of an unknown election: vacant, and no term is known
CALL le_observe('observed');
CALL le_observe('observed', NULL, NULL);
CALL le_observe('observed', 0);
-- what is passed in for token and identity does not matter
CALL le_observe('observed', NULL, NULL, 17, 'somebody');
-- any other number than that of the present state: at once
CALL le_observe('observed', 1);
CALL le_observe('observed', -2);
CALL le_observe('observed', 9223372036854775807);
CALL le_observe('observed', (-9223372036854775808)::bigint);
-- a value means nothing in a vacancy
CALL le_observe('observed', -1, '0', value => 'v');
-- to look is not to bid
SELECT terms, denied, candidates FROM pg_stat_leader_election WHERE name = 'observed';
SELECT count(*) FROM le_leaders;

-- known already: not before the timeout
SELECT clock_timestamp() AS start \gset
CALL le_observe('observed', -1, '50 ms');
SELECT clock_timestamp() - :'start' BETWEEN '50 ms' AND '1 min' AS waited;
SELECT clock_timestamp() AS start \gset
CALL le_observe('observed', -1, '0');
SELECT clock_timestamp() - :'start' < '1 min' AS at_once;

-- a leader
SELECT le_try_become_leader('observed', identity => 'me');
SELECT le_token('observed') AS t1 \gset
CALL le_observe('observed') \gset
SELECT :token = :t1 AS same, :'identity' AS identity, :{?value} AS has_value;
CALL le_observe('observed', -1) \gset
SELECT :token = :t1 AS same;
CALL le_observe('observed', -:t1) \gset
SELECT :token = :t1 AS same;
SELECT clock_timestamp() AS start \gset
CALL le_observe('observed', :t1, '50 ms') \gset
SELECT :token = :t1 AS same, :'identity' AS identity, clock_timestamp() - :'start' >= '50 ms' AS waited;

-- what it publishes: none, '' and others are all different
CALL le_observe('observed', :t1, '1 hour', value => 'v') \gset
SELECT :token = :t1 AS same, :{?value} AS has_value;
CALL le_observe('observed', :t1, '1 hour', value => '') \gset
SELECT :token = :t1 AS same, :{?value} AS has_value;
SELECT le_proclaim('observed', '');
CALL le_observe('observed', :t1, '1 hour') \gset
SELECT :token = :t1 AS same, :'value' AS value;
CALL le_observe('observed', :t1, '1 hour', value => 'v') \gset
SELECT :token = :t1 AS same, :'value' AS value;
SELECT clock_timestamp() AS start \gset
CALL le_observe('observed', :t1, '50 ms', value => '') \gset
SELECT :token = :t1 AS same, :'value' AS value, clock_timestamp() - :'start' >= '50 ms' AS waited;
SELECT le_proclaim('observed', 'v');
CALL le_observe('observed', :t1, '1 hour', value => '') \gset
SELECT :token = :t1 AS same, :'value' AS value;
CALL le_observe('observed', :t1, '1 hour') \gset
SELECT :token = :t1 AS same, :'value' AS value;
CALL le_observe('observed', :t1, '1 hour', value => 'V') \gset
SELECT :token = :t1 AS same, :'value' AS value;
CALL le_observe('observed', :t1, '1 hour', value => 'v ') \gset
SELECT :token = :t1 AS same, :'value' AS value;
SELECT clock_timestamp() AS start \gset
CALL le_observe('observed', :t1, '50 ms', value => 'v') \gset
SELECT :token = :t1 AS same, :'value' AS value, clock_timestamp() - :'start' >= '50 ms' AS waited;
-- the longest
SELECT le_proclaim('observed', repeat('x', 8192));
CALL le_observe('observed', :t1, '1 hour', value => 'v') \gset
SELECT :token = :t1 AS same, :'value' = repeat('x', 8192) AS value;
CALL le_observe('observed', :t1, '0', value => :'value') \gset
SELECT :token = :t1 AS same, :'value' = repeat('x', 8192) AS value;

-- a vacancy bears the number of the term before it, and ends the value
SELECT le_resign('observed');
CALL le_observe('observed', :t1, '1 hour', value => 'v') \gset
SELECT :token = -:t1 AS vacant, :{?identity} AS has_identity, :{?value} AS has_value;
CALL le_observe('observed', -:t1, '50 ms') \gset
SELECT :token = -:t1 AS vacant;
-- a vacancy before that is another one
SELECT le_try_become_leader('observed', identity => 'again'), le_token('observed') AS t2 \gset
SELECT le_resign('observed');
CALL le_observe('observed', -:t1, '1 hour') \gset
SELECT :token = -:t2 AS vacant, :t2 > :t1 AS greater;
-- and to be denied makes none
SELECT le_lease('observed', '1 hour', identity => 'lease') AS t3 \gset
SELECT le_try_become_leader('observed'), le_lease('observed', '1 min');
CALL le_observe('observed', -:t2, '1 hour') \gset
SELECT :token = :t3 AS same, :'identity' AS identity, :{?value} AS has_value;
-- to renew a lease changes nothing
SELECT le_renew('observed', :t3), le_renew('observed', :t3, '2 hours');
CALL le_observe('observed', :t3, '50 ms') \gset
SELECT :token = :t3 AS same, :'identity' AS identity;
SELECT le_resign('observed', :t3);
CALL le_observe('observed', :t3, '1 hour') \gset
SELECT :token = -:t3 AS vacant;

-- a lease that runs out: at its deadline, by the observer's own clock
SELECT le_lease('observed', '300 ms', identity => 'lease') AS t4, clock_timestamp() AS start \gset
CALL le_observe('observed', :t4, '1 hour') \gset
SELECT :token = -:t4 AS vacant, :{?identity} AS has_identity, clock_timestamp() - :'start' BETWEEN '250 ms' AND '20 s' AS at_the_deadline;
SELECT expired FROM pg_stat_leader_election WHERE name = 'observed';
SELECT le_am_leader('observed', :t4), le_renew('observed', :t4);
-- with a timeout before that
SELECT le_lease('observed', '1 hour') AS t5 \gset
CALL le_observe('observed', :t5, '50 ms') \gset
SELECT :token = :t5 AS same;
SELECT le_resign('observed', :t5);
-- one that has run out unseen
SELECT le_lease('observed', '100 ms') AS t6 \gset
SELECT pg_sleep(0.15);
CALL le_observe('observed') \gset
SELECT :token = -:t6 AS vacant;
SELECT expired FROM pg_stat_leader_election WHERE name = 'observed';

-- a lease that is not committed is none
BEGIN;
SELECT le_lease('observed', '1 hour') AS t7 \gset
CALL le_observe('observed') \gset
SELECT :token = -:t6 AS vacant, le_am_leader('observed', :t7) AS led;
CALL le_observe('observed', -:t6, '50 ms') \gset
SELECT :token = -:t6 AS vacant;
ROLLBACK;
-- and has never been
CALL le_observe('observed', -:t6, '50 ms') \gset
SELECT :token = -:t6 AS vacant;

-- transaction scope
BEGIN;
SELECT le_try_become_leader_xact('observed', identity => 'xact'), le_token('observed') AS t8 \gset
CALL le_observe('observed', -:t6, '1 hour') \gset
SELECT :token = :t8 AS same, :'identity' AS identity;
ROLLBACK;
CALL le_observe('observed', :t8, '1 hour') \gset
SELECT :token = -:t8 AS vacant;

-- where the transaction cannot be ended meanwhile, it goes on
CREATE TEMP TABLE note (note text);
BEGIN;
INSERT INTO note VALUES ('in a transaction block');
CALL le_observe('observed', -:t8, '50 ms') \gset
SELECT :token = -:t8 AS vacant;
ROLLBACK;
TABLE note;
CREATE FUNCTION pg_temp.observe(known bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	token bigint;
	identity text;
	value text;
BEGIN
	CALL le_observe('observed', known, '50 ms', token, identity, value);
	RETURN token = known AND identity IS NULL AND value IS NULL;
END $$;
SELECT pg_temp.observe(-:t8);
-- where it can, it is
DO $$
DECLARE
	token bigint;
	identity text;
	value text;
BEGIN
	INSERT INTO note VALUES ('in a DO block');
	CALL le_observe('observed', token => token, identity => identity, value => value);
	CALL le_observe('observed', token, '50 ms', token, identity, value);
	RAISE NOTICE 'vacant: %, % %', token < 0, identity, value;
	ROLLBACK;
END $$;
TABLE note;
TRUNCATE note;
DO $$
DECLARE
	token bigint;
	identity text;
	value text;
BEGIN
	INSERT INTO note VALUES ('in an exception block');
	BEGIN
		CALL le_observe('observed', token => token, identity => identity, value => value);
		RAISE NOTICE 'vacant: %', token < 0;
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
	ROLLBACK;
END $$;
TABLE note;
-- in a read-only transaction, and in a serializable one
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
CALL le_observe('observed', -:t8, '50 ms') \gset
SELECT :token = -:t8 AS vacant;
COMMIT;

-- statement_timeout ends the wait, lock_timeout has nothing to do with it
SET statement_timeout = '200 ms';
CALL le_observe('observed', -:t8);
\echo :LAST_ERROR_SQLSTATE
CALL le_observe('observed', -:t8, '1 hour');
\echo :LAST_ERROR_SQLSTATE
RESET statement_timeout;
SET lock_timeout = '10 ms';
CALL le_observe('observed', -:t8, '100 ms') \gset
SELECT :token = -:t8 AS vacant;
RESET lock_timeout;
TABLE left_over;
-- caught in a block
DO $$
DECLARE
	token bigint;
	identity text;
	value text;
BEGIN
	CALL le_observe('observed', token => token, identity => identity, value => value);
	BEGIN
		CALL le_observe('observed', token, '-1 s', token, identity, value);
	EXCEPTION WHEN invalid_parameter_value THEN
		CALL le_observe('observed', token, '50 ms', token, identity, value);
		RAISE NOTICE 'vacant: %', token < 0;
	END;
END $$;

-- bad input
\set VERBOSITY sqlstate
CALL le_observe(NULL);
CALL le_observe('');
CALL le_observe(repeat('x', 256));
CALL le_observe('observed', 1, '-1 s');
CALL le_observe('observed', 1, '-1 month 29 days');
CALL le_observe('observed', 1, '25 days');
\set VERBOSITY default
CALL le_observe(repeat('o', 255), timeout => '24 days');
-- a published value is never that long
CALL le_observe('observed', -:t8, '0', value => repeat('x', 100000)) \gset
SELECT :token = -:t8 AS vacant, :{?value} AS has_value;

-- of two names with one 64-bit key, only one can be observed at a time: see collision.sql
\set a worker-queue-mail.sender
\set b HwFfjYHs9PGi-Rwb-Amyj4y5
SELECT le_try_become_leader(:'a', identity => 'a');
\set VERBOSITY terse
CALL le_observe(:'b');
\echo :LAST_ERROR_SQLSTATE
CALL le_observe(:'b', 1, '50 ms');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY default
CALL le_observe(:'a') \gset
SELECT :token = le_token(:'a') AS same, :'identity' AS identity, le_resign(:'a');
-- what is known of the one is nothing that is known of the other
CALL le_observe(:'b');
CALL le_observe(:'a');
SELECT le_lease(:'b', '1 hour') AS t9 \gset
\set VERBOSITY terse
CALL le_observe(:'a');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY default
SELECT le_resign(:'b', :t9);
CALL le_observe(:'b') \gset
SELECT :token = -:t9 AS vacant;

TABLE left_over;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
