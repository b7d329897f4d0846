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

-- a bare key, a released savepoint, both scopes
\set VERBOSITY terse
BEGIN;
SELECT le_try_become_leader_xact(42);
PREPARE TRANSACTION 'regress_le';
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact(E'in\na savepoint');
PREPARE TRANSACTION 'regress_le';
BEGIN;
SELECT le_try_become_leader_xact('session');
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

-- a bare key in session scope, with a plain transaction-level lock beside it:
-- the server itself refuses
SELECT le_try_become_leader(43);
BEGIN;
SELECT pg_advisory_xact_lock(43);
PREPARE TRANSACTION 'regress_le';
SELECT le_am_leader(43), le_resign(43);

SELECT gid FROM pg_prepared_xacts;
SELECT * FROM advisory;
