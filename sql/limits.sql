--
-- leader_election.max_terms_per_session
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/advisory.psql
LOAD 'leader_election';
SET leader_election.max_terms_per_session = 3;
SELECT le_try_become_leader('one'), le_try_become_leader('two'), le_try_become_leader('three');
SELECT le_try_become_leader('four');
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM advisory;

-- every way to bid
\set VERBOSITY terse
SELECT le_become_leader('four', '0');
SELECT le_become_leader('four');
SELECT le_try_become_leader_xact('four');
SELECT le_become_leader_xact('four', '1 s');
\set VERBOSITY default

-- asking again for what it leads is no new term
SELECT le_try_become_leader('one'), le_try_become_leader('two'), le_become_leader('three', '1 s');
SELECT le_resign('two'), le_try_become_leader('four');
SELECT le_resign('one'), le_try_become_leader('five');
SELECT count(*) FROM advisory;
SELECT le_resign_all();

-- both scopes count
BEGIN;
SELECT le_try_become_leader_xact('one'), le_try_become_leader('two'), le_try_become_leader_xact('three');
SAVEPOINT a;
SELECT le_try_become_leader_xact('four');
ROLLBACK TO a;
SELECT count(*) FROM advisory;
COMMIT;
SELECT le_try_become_leader('three'), le_try_become_leader('four');
SELECT count(*) FROM advisory;

-- a savepoint gives its terms back
SELECT le_resign('four');
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact('four');
ROLLBACK TO a;
SELECT le_try_become_leader_xact('five');
COMMIT;

-- lowered below what is led: nothing ends, nothing begins
SET leader_election.max_terms_per_session = 1;
SELECT name FROM le_leaders ORDER BY name;
SELECT le_try_become_leader('two'), le_am_leader('three');
SELECT le_resign('two');
SELECT le_try_become_leader('two');
SELECT le_resign('three');
SELECT le_try_become_leader('two');
SELECT le_resign_all();

-- a bid that is denied anyway
SELECT le_lease('led', '1 hour') AS token \gset
SELECT le_try_become_leader('one');
SELECT le_try_become_leader('led');
SELECT le_resign_all();
SELECT le_try_become_leader('led'), le_become_leader('led', '1 ms');
SELECT le_try_become_leader('one'), le_resign('one'), le_resign('led', :token);

-- terms that lost their lock are no terms: the session leads nothing
SET leader_election.max_terms_per_session = 2;
BEGIN;
SELECT le_try_become_leader('one'), le_try_become_leader('two');
SELECT pg_advisory_unlock_all();
SELECT count(*) AS leads FROM le_leaders;
SELECT le_try_become_leader('three');
COMMIT;
SELECT le_am_leader('three');
SELECT pg_advisory_unlock_all();
SELECT le_try_become_leader('one'), le_try_become_leader('two');
SELECT pg_advisory_unlock_all(), le_try_become_leader('three') AS in_one_statement;
SELECT le_resign_all() >= 0 AS cleaned;
RESET leader_election.max_terms_per_session;

-- guards take slots of the lock table, too
SET leader_election.max_terms_per_session = 2;
SELECT count(le_lease('guarded ' || i, '1 hour')) FROM generate_series(1, 2) i;
SELECT le_lease('guarded 3', '1 hour') > 0 AS lease;
BEGIN;
SELECT le_assert_leader(name, token), le_assert_leader(name, token) FROM le_leaders WHERE name LIKE 'guarded _' ORDER BY name;
ROLLBACK;
SELECT le_resign(name, token) FROM le_leaders WHERE name LIKE 'guarded _';
RESET leader_election.max_terms_per_session;

-- the privilege to set it
CREATE ROLE regress_le_limits LOGIN;
SET ROLE regress_le_limits;
SET leader_election.max_terms_per_session = 2000;
SET leader_election.log_terms = off;
RESET leader_election.max_terms_per_session;
SELECT set_config('leader_election.max_terms_per_session', '2000', true);
RESET ROLE;
ALTER ROLE regress_le_limits SET leader_election.max_terms_per_session = 1;
GRANT SET ON PARAMETER leader_election.max_terms_per_session TO regress_le_limits;
SET ROLE regress_le_limits;
SET leader_election.max_terms_per_session = 2;
RESET ROLE;
REVOKE SET ON PARAMETER leader_election.max_terms_per_session FROM regress_le_limits;
RESET leader_election.max_terms_per_session;
-- what an administrator set for the role holds, also before the module is loaded
\set user :USER
\c - regress_le_limits
SELECT le_try_become_leader('one');
SELECT le_try_become_leader('two');
SELECT le_resign_all();
-- a placeholder that the role set before the module was loaded does not
\c - :user
ALTER ROLE regress_le_limits RESET ALL;
\c - regress_le_limits
SET leader_election.max_terms_per_session = 1;
SELECT le_try_become_leader('one'), le_try_become_leader('two');
SHOW leader_election.max_terms_per_session;
SELECT le_resign_all();
\c - :user
DROP ROLE regress_le_limits;

-- the default, and past it
SELECT count(*) FROM generate_series(1, 1000) i WHERE le_try_become_leader('job ' || i);
\set VERBOSITY terse
SELECT le_try_become_leader('job 1001');
SELECT count(*), count(DISTINCT token), max(token) - min(token) >= 999 AS tokens FROM le_leaders;
SELECT le_resign_all();
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
