--
-- le_observe returns the version of an election's state, the leader, and what it
-- publishes: at once, or as soon as the version differs from the one passed
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql
-- what a wait must not leave behind
CREATE TEMP VIEW left_over AS
SELECT (SELECT count(*) FROM advisory) AS locks,
       (SELECT count(*) FROM le_candidates) AS candidates;

-- of an unknown election: vacant, and no term is known
CALL le_observe('observed') \gset
SELECT :{?token} AS has_token, :{?identity} AS has_identity, :{?value} AS has_value;
SELECT :version AS v0 \gset
-- a version is never 0, and a number in double precision can hold it
SELECT :v0 BETWEEN 1 AND 2^53 - 1 AS small, :v0::float8::bigint = :v0 AS exact;
CALL le_observe('observed', NULL, NULL) \gset
SELECT :version = :v0 AS same;
-- what is passed in for token, identity and value does not matter
CALL le_observe('observed', NULL, NULL, 17, 'somebody', 'something') \gset
SELECT :version = :v0 AS same, :{?token} AS has_token, :{?identity} AS has_identity, :{?value} AS has_value;
CALL le_observe('observed', :v0, '0', 17, 'somebody', 'something') \gset
SELECT :version = :v0 AS same, :{?token} AS has_token, :{?identity} AS has_identity, :{?value} AS has_value;
-- any other number than that of the present state: at once
CALL le_observe('observed', 0) \gset
SELECT :version = :v0 AS same;
CALL le_observe('observed', -:v0) \gset
SELECT :version = :v0 AS same;
CALL le_observe('observed', :v0 + 1) \gset
SELECT :version = :v0 AS same;
CALL le_observe('observed', 9223372036854775807) \gset
SELECT :version = :v0 AS same;
CALL le_observe('observed', (-9223372036854775808)::bigint) \gset
SELECT :version = :v0 AS same;
-- to look is not to bid
SELECT count(*) FROM le_leaders;

-- known already: not before the timeout
SELECT clock_timestamp() AS start \gset
CALL le_observe('observed', :v0, '50 ms') \gset
SELECT :version = :v0 AS same, clock_timestamp() - :'start' BETWEEN '50 ms' AND '1 min' AS waited;
SELECT clock_timestamp() AS start \gset
CALL le_observe('observed', :v0, '0') \gset
SELECT :version = :v0 AS same, clock_timestamp() - :'start' < '1 min' AS at_once;

-- a leader
SELECT le_try_become_leader('observed', identity => 'me');
SELECT le_token('observed') AS t1 \gset
CALL le_observe('observed') \gset
SELECT :version AS v1 \gset
SELECT :v1 <> :v0 AS other, :token = :t1 AS same, :'identity' AS identity, :{?value} AS has_value;
CALL le_observe('observed', :v0, '1 hour') \gset
SELECT :version = :v1 AS same, :token = :t1 AS same_token;
SELECT clock_timestamp() AS start \gset
CALL le_observe('observed', :v1, '50 ms') \gset
SELECT :version = :v1 AS same, :token = :t1 AS same_token, :'identity' AS identity, clock_timestamp() - :'start' >= '50 ms' AS waited;

-- what it publishes: none, '' and others are all different
SELECT le_proclaim('observed', '');
CALL le_observe('observed', :v1, '1 hour') \gset
SELECT :'value' AS value, :token = :t1 AS same_token;
SELECT :version AS v_empty \gset
SELECT clock_timestamp() AS start \gset
CALL le_observe('observed', :v_empty, '50 ms') \gset
SELECT :version = :v_empty AS same, :'value' AS value, clock_timestamp() - :'start' >= '50 ms' AS waited;
SELECT le_proclaim('observed', 'v');
CALL le_observe('observed', :v_empty, '1 hour') \gset
SELECT :version AS v_v, :'value' AS value, :token = :t1 AS same_token \gset
SELECT :'value' AS value, :'same_token' AS same_token;
SELECT le_proclaim('observed', 'V');
CALL le_observe('observed', :v_v, '1 hour') \gset
SELECT :'value' AS value;
SELECT le_proclaim('observed', 'v ');
CALL le_observe('observed', :version, '1 hour') \gset
SELECT :'value' AS value;
-- no value again, and the same value again: the same states again
SELECT le_proclaim('observed', NULL);
CALL le_observe('observed', :version, '1 hour') \gset
SELECT :version = :v1 AS same, :{?value} AS has_value;
SELECT le_proclaim('observed', 'v');
CALL le_observe('observed', :version, '1 hour') \gset
SELECT :version = :v_v AS same, :'value' AS value;
SELECT clock_timestamp() AS start \gset
CALL le_observe('observed', :v_v, '50 ms') \gset
SELECT :version = :v_v AS same, :'value' AS value, clock_timestamp() - :'start' >= '50 ms' AS waited;
-- the longest
SELECT le_proclaim('observed', repeat('x', 8192));
CALL le_observe('observed', :v_v, '1 hour') \gset
SELECT :version AS v_long, :'value' = repeat('x', 8192) AS value \gset
SELECT le_proclaim('observed', repeat('x', 8191) || 'y');
CALL le_observe('observed', :v_long, '1 hour') \gset
SELECT :'value' = repeat('x', 8191) || 'y' AS value, :version AS v1 \gset
SELECT :'value' AS value;
CALL le_observe('observed', :v1, '0') \gset
SELECT :version = :v1 AS same, right(:'value', 2) AS value;
-- another session has the same version
CREATE EXTENSION dblink;
SELECT version = :v1 AS same, token = :t1 AS same_token
FROM dblink(format('dbname=%L port=%L host=%L', current_database(), current_setting('port'), split_part(current_setting('unix_socket_directories'), ',', 1)),
            $$CALL le_observe('observed')$$) AS t (version bigint, token bigint, identity text, value text);
DROP EXTENSION dblink;

-- a vacancy has no token, and ends the value
SELECT le_resign('observed');
CALL le_observe('observed', :v1, '1 hour') \gset
SELECT :{?token} AS has_token, :{?identity} AS has_identity, :{?value} AS has_value, :version = :v0 AS as_before;
SELECT :version AS vacant1 \gset
CALL le_observe('observed', :vacant1, '50 ms') \gset
SELECT :version = :vacant1 AS same, :{?token} AS has_token;
-- a vacancy before that is another one
SELECT le_try_become_leader('observed', identity => 'again');
SELECT le_resign('observed');
CALL le_observe('observed', :vacant1, '1 hour') \gset
SELECT :version = :vacant1 AS same, :{?token} AS has_token;
SELECT :version AS vacant2 \gset
-- and to be denied makes none
SELECT le_lease('observed', '1 hour', identity => 'lease') AS t3 \gset
SELECT le_try_become_leader('observed'), le_lease('observed', '1 min');
CALL le_observe('observed', :vacant2, '1 hour') \gset
SELECT :token = :t3 AS same_token, :'identity' AS identity, :{?value} AS has_value;
SELECT :version AS v3 \gset
-- to renew a lease changes nothing
SELECT le_renew('observed', :t3), le_renew('observed', :t3, '2 hours');
CALL le_observe('observed', :v3, '50 ms') \gset
SELECT :version = :v3 AS same, :'identity' AS identity;
SELECT le_resign('observed', :t3);
CALL le_observe('observed', :v3, '1 hour') \gset
SELECT :{?token} AS has_token;

-- a lease that runs out: at its deadline, by the observer's own clock
SELECT le_lease('observed', '1 hour', identity => 'lease') AS t4 \gset
CALL le_observe('observed', :version) \gset
SELECT le_renew('observed', :t4, '300 ms'), clock_timestamp() AS start \gset
CALL le_observe('observed', :version, '1 hour') \gset
SELECT :{?token} AS has_token, :{?identity} AS has_identity, clock_timestamp() - :'start' BETWEEN '250 ms' AND '20 s' AS at_the_deadline;
SELECT le_am_leader('observed', :t4), le_renew('observed', :t4);
-- with a timeout before that
SELECT le_lease('observed', '1 hour') AS t5 \gset
CALL le_observe('observed', :version) \gset
SELECT :version AS v5 \gset
CALL le_observe('observed', :v5, '50 ms') \gset
SELECT :version = :v5 AS same, :token = :t5 AS same_token;
SELECT le_resign('observed', :t5);
CALL le_observe('observed') \gset
SELECT :version AS vacant5 \gset
-- one that has run out unseen
SELECT le_lease('observed', '100 ms') AS t6 \gset
SELECT pg_sleep(0.15);
CALL le_observe('observed', :vacant5, '1 hour') \gset
SELECT :version = :vacant5 AS same, :{?token} AS has_token;
SELECT :version AS vacant \gset

-- a lease that is rolled back has never been
BEGIN;
SELECT le_lease('observed', '1 hour') AS t7 \gset
ROLLBACK;
CALL le_observe('observed', :vacant, '50 ms') \gset
SELECT :version = :vacant AS vacant;

-- transaction scope
BEGIN;
SELECT le_try_become_leader_xact('observed', identity => 'xact'), le_token('observed') AS t8 \gset
CALL le_observe('observed', :vacant, '1 hour') \gset
SELECT :token = :t8 AS same, :'identity' AS identity;
ROLLBACK;
CALL le_observe('observed', :version, '1 hour') \gset
SELECT :{?token} AS has_token;
SELECT :version AS vacant \gset

-- where the transaction cannot be ended meanwhile, it goes on
CREATE TEMP TABLE note (note text);
BEGIN;
INSERT INTO note VALUES ('in a transaction block');
CALL le_observe('observed', :vacant, '50 ms') \gset
SELECT :version = :vacant AS vacant;
ROLLBACK;
TABLE note;
-- where it can, it is
DO $$
DECLARE
	version bigint;
	token bigint;
	identity text;
	value text;
BEGIN
	INSERT INTO note VALUES ('in a DO block');
	CALL le_observe('observed', version => version, token => token, identity => identity, value => value);
	CALL le_observe('observed', version, '50 ms', token, identity, value);
	RAISE NOTICE 'vacant: %, % %', token IS NULL, identity, value;
	ROLLBACK;
END $$;
TABLE note;
TRUNCATE note;
DO $$
DECLARE
	version bigint;
	token bigint;
	identity text;
	value text;
BEGIN
	INSERT INTO note VALUES ('in an exception block');
	BEGIN
		CALL le_observe('observed', version => version, token => token, identity => identity, value => value);
		RAISE NOTICE 'vacant: %', token IS NULL;
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
	ROLLBACK;
END $$;
TABLE note;
-- in a read-only transaction, and in a serializable one
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
CALL le_observe('observed', :vacant, '50 ms') \gset
SELECT :version = :vacant AS vacant;
COMMIT;

-- statement_timeout ends the wait, lock_timeout has nothing to do with it
SET statement_timeout = '200 ms';
CALL le_observe('observed', :vacant);
\echo :LAST_ERROR_SQLSTATE
CALL le_observe('observed', :vacant, '1 hour');
\echo :LAST_ERROR_SQLSTATE
RESET statement_timeout;
SET lock_timeout = '10 ms';
CALL le_observe('observed', :vacant, '100 ms') \gset
SELECT :version = :vacant AS vacant;
RESET lock_timeout;
TABLE left_over;
-- caught in a block
DO $$
DECLARE
	version bigint;
	token bigint;
	identity text;
	value text;
BEGIN
	CALL le_observe('observed', version => version, token => token, identity => identity, value => value);
	BEGIN
		CALL le_observe('observed', version, '-1 s', token, identity, value);
	EXCEPTION WHEN invalid_parameter_value THEN
		CALL le_observe('observed', version, '50 ms', token, identity, value);
		RAISE NOTICE 'vacant: %', token IS NULL;
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
CALL le_observe(repeat('o', 255), timeout => '24 days') \gset
SELECT :version = :v0 AS same, :{?token} AS has_token;

TABLE left_over;
TABLE on_record;
