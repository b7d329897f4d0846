--
-- le_proclaim and the end of its transaction: the value is that of a term which runs at the commit
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
CREATE TEMP TABLE note (note text);
CREATE TEMP VIEW v AS SELECT value FROM le_leader('job');

-- the transaction itself does not see it before
SELECT le_try_become_leader('job');
BEGIN;
SELECT le_proclaim('job', 'one');
TABLE v;
COMMIT;
TABLE v;
-- a lock that went away
BEGIN;
INSERT INTO note VALUES ('by a leader that is none');
SELECT le_proclaim('job', 'v');
SELECT pg_advisory_unlock_all();
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
\echo :LAST_ERROR_SQLSTATE
TABLE note;
-- and was taken again
SELECT le_try_become_leader('job');
BEGIN;
SELECT le_proclaim('job', 'v');
SELECT pg_advisory_unlock_all();
SELECT le_try_become_leader('job');
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
SELECT le_am_leader('job'), value IS NULL AS none FROM le_leader('job');

-- a transaction that is to be prepared cannot publish
BEGIN;
SELECT le_proclaim('job', 'v');
PREPARE TRANSACTION 'regress_proclaim';
\echo :LAST_ERROR_SQLSTATE
TABLE v;
SELECT count(*) FROM pg_prepared_xacts;

-- in read-only transactions, as everything else about terms
BEGIN READ ONLY;
SELECT le_proclaim('job', 'read only');
COMMIT;
TABLE v;
SELECT le_resign('job');

-- a role that may not use the token when it proclaims is refused, one that no
-- longer may at commit is not
CREATE ROLE regress_proclaim_owner;
CREATE ROLE regress_proclaim_other;
SET ROLE regress_proclaim_owner;
SELECT le_lease('job', '1 hour') AS t1 \gset
RESET ROLE;
BEGIN;
SET LOCAL ROLE regress_proclaim_owner;
SELECT le_proclaim('job', 'the owner''s', :t1);
SET LOCAL ROLE regress_proclaim_other;
COMMIT;
TABLE v;
SELECT le_resign('job', :t1);
DROP ROLE regress_proclaim_owner, regress_proclaim_other;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
