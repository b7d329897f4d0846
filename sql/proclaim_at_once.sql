--
-- le_proclaim takes effect at once, however the transaction ends
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
CREATE TEMP VIEW v AS SELECT value FROM le_leader('job');

SELECT le_try_become_leader('job', identity => 'me');
BEGIN;
SELECT le_proclaim('job', 'two');
TABLE v;
COMMIT;
TABLE v;
BEGIN;
SELECT le_proclaim('job', 'three');
ROLLBACK;
TABLE v;
BEGIN;
SELECT le_proclaim('job', 'four');
SELECT 1 / 0;
COMMIT;
TABLE v;
-- the last one counts
BEGIN;
SELECT le_proclaim('job', 'five'), le_proclaim('job', 'six');
SAVEPOINT a;
SELECT le_proclaim('job', 'seven');
ROLLBACK TO a;
COMMIT;
TABLE v;
-- also if it is prepared
BEGIN;
SELECT le_proclaim('job', 'eight');
PREPARE TRANSACTION 'regress_proclaim';
ROLLBACK PREPARED 'regress_proclaim';
TABLE v;
-- in read-only transactions, as everything else about terms
BEGIN READ ONLY;
SELECT le_proclaim('job', 'read only');
COMMIT;
TABLE v;

-- a lock that went away
BEGIN;
SELECT le_proclaim('job', 'v');
SELECT pg_advisory_unlock_all();
\set VERBOSITY sqlstate
SELECT le_proclaim('job', 'w');
\set VERBOSITY default
COMMIT;
-- and was taken again
SELECT le_try_become_leader('job');
SELECT value IS NULL AS none FROM le_leader('job');
SELECT le_resign('job');
-- a lease that has run out
SELECT le_lease('job', '1 hour') AS t1 \gset
SELECT le_proclaim('job', 'v', :t1), le_renew('job', :t1, '100 ms');
SELECT pg_sleep(0.15);
\set VERBOSITY sqlstate
SELECT le_proclaim('job', 'w', :t1);
\set VERBOSITY default
SELECT count(*) FROM le_leader('job');
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
