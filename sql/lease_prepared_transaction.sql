--
-- A lease is not taken by a prepared transaction
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
SELECT le_lease('before', '1 hour') AS t1 \gset

BEGIN;
SELECT le_lease('job', '1 hour') AS t2 \gset
PREPARE TRANSACTION 'regress_le';
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM pg_prepared_xacts;
SELECT le_am_leader('job', :t2), le_lease('job', '1 hour') AS t3 \gset
SELECT :t3 > :t2 AS free_again, le_resign('job', :t3);
BEGIN;
SAVEPOINT a;
SELECT le_lease('job', '1 hour') > 0 AS taken;
RELEASE a;
PREPARE TRANSACTION 'regress_le';
\echo :LAST_ERROR_SQLSTATE

-- nor one that was given up: its lock would stay with the prepared transaction
BEGIN;
SELECT le_lease('job', '1 hour') AS t4 \gset
SELECT le_resign('job', :t4);
PREPARE TRANSACTION 'regress_le';
SELECT count(*) FROM pg_prepared_xacts;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory';

-- what a lease was rolled back from, or does with a lease that runs, may be
BEGIN;
SAVEPOINT a;
SELECT le_lease('job', '1 hour') > 0 AS taken;
ROLLBACK TO a;
SELECT le_renew('before', :t1, '3 hours');
PREPARE TRANSACTION 'regress_le';
SELECT r.ttl, t.ttl FROM le_leader('before') r JOIN le_leases t USING (name, token);
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory';
SELECT le_renew('before', :t1, '4 hours');
SELECT le_lease('job', '1 hour') AS t5 \gset
SELECT le_resign('job', :t5);
ROLLBACK PREPARED 'regress_le';
BEGIN;
SELECT le_resign('before', :t1);
PREPARE TRANSACTION 'regress_le';
SELECT le_am_leader('before', :t1), le_lease('before', '1 hour') AS t6 \gset
SELECT :t6 > :t1 AS successor;
ROLLBACK PREPARED 'regress_le';
SELECT le_am_leader('before', :t6), le_resign('before', :t6);
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
SELECT name FROM le_leases WHERE ttl > '0';
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
