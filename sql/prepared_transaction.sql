--
-- PREPARE TRANSACTION: a prepared transaction has no session to lead
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/advisory.psql
SELECT le_try_become_leader('session');

BEGIN;
SELECT le_try_become_leader_xact('xact');
PREPARE TRANSACTION 'regress_le';
\echo :LAST_ERROR_SQLSTATE
SELECT le_am_leader('xact'), le_am_leader('session');
SELECT gid FROM pg_prepared_xacts;

-- a savepoint
\set VERBOSITY terse
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact(E'in\na savepoint');
PREPARE TRANSACTION 'regress_le';
SELECT le_am_leader('session');
SELECT gid FROM pg_prepared_xacts;

-- from a deferred trigger, at the last moment
CREATE TABLE regress_le_t (i int);
CREATE FUNCTION regress_le_elect() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM le_try_become_leader_xact('from a trigger');
	RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER elect AFTER INSERT ON regress_le_t DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION regress_le_elect();
BEGIN;
INSERT INTO regress_le_t VALUES (1);
PREPARE TRANSACTION 'regress_le';
DROP TABLE regress_le_t;
DROP FUNCTION regress_le_elect;

-- leadership that a savepoint has given back is none
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact('xact');
ROLLBACK TO a;
PREPARE TRANSACTION 'regress_le';
COMMIT PREPARED 'regress_le';

-- session scope stays with the session
BEGIN;
SELECT le_try_become_leader('begun in it');
SELECT le_token('begun in it') AS t1 \gset
SELECT le_try_become_leader('session'), le_am_leader('session');
PREPARE TRANSACTION 'regress_le';
SELECT gid FROM pg_prepared_xacts;
SELECT name, scope FROM le_leaders ORDER BY name;
SELECT le_token('begun in it') = :t1 AS same;
SELECT count(*) FROM advisory;
SELECT le_resign('begun in it');
ROLLBACK PREPARED 'regress_le';
SELECT name, scope FROM le_leaders ORDER BY name;

-- so does a resignation
BEGIN;
SELECT le_resign('session');
PREPARE TRANSACTION 'regress_le';
SELECT le_am_leader('session'), le_try_become_leader('session');
COMMIT PREPARED 'regress_le';
SELECT le_am_leader('session');

-- and a lock that went away
BEGIN;
SELECT pg_advisory_unlock_all();
PREPARE TRANSACTION 'regress_le';
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
COMMIT PREPARED 'regress_le';
SELECT le_am_leader('session');

--
-- Leases
--
\set VERBOSITY default
SELECT le_lease('before', '1 hour') AS t1 \gset

BEGIN;
SELECT le_lease('job', '1 hour') AS t2 \gset
PREPARE TRANSACTION 'regress_le';
\echo :LAST_ERROR_SQLSTATE
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
SELECT gid FROM pg_prepared_xacts;
