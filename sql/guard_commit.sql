--
-- The end of a guarded transaction: it commits if the term still runs, or not at all
--
-- Messages bear tokens and process IDs: only their SQLSTATEs are shown, or the text
-- with N for each number.
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/guard.psql
SELECT open_other();
CREATE TABLE note (note text);
RESET client_min_messages;
\set VERBOSITY sqlstate

-- by the term of another transaction
SELECT dblink_exec('other', 'BEGIN');
SELECT other('SELECT le_try_become_leader_xact(''their xact'')') AS leads, other('SELECT le_token(''their xact'')') AS t5 \gset
BEGIN;
SELECT le_assert_leader('their xact', :t5);
INSERT INTO note VALUES ('another transaction');
COMMIT;
SELECT dblink_exec('other', 'COMMIT');
SELECT le_assert_leader('their xact', :t5);
-- a statement's guard ends with the statement
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT le_assert_leader('job', :t1), other(format('SELECT le_resign(''job'', %s)', :t1)), (vacant('job')).session;
SELECT * FROM vacant('job');

SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
-- over by the commit: nothing is kept
BEGIN;
INSERT INTO note VALUES ('late');
SELECT le_assert_leader('job', :t1);
SELECT other(format('SELECT le_resign(''job'', %s)', :t1));
INSERT INTO note VALUES ('later');
COMMIT;
SELECT replace(:'LAST_ERROR_MESSAGE', :'t1', 'N');
TABLE note;
TABLE guards;
-- in a statement of its own, too
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
INSERT INTO note SELECT 'late' FROM le_assert_leader('job', :t1), other(format('SELECT le_resign(''job'', %s)', :t1));
TABLE note;
-- by its own doing
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SELECT le_assert_leader('job', :t1);
INSERT INTO note VALUES ('late');
SELECT le_resign('job', :t1);
COMMIT;
TABLE note;
SELECT le_try_become_leader('job', identity => 'me');
BEGIN;
SELECT le_assert_leader('job');
INSERT INTO note VALUES ('late');
SELECT le_resign('job');
SELECT le_assert_leader('job', :t1);
COMMIT;
SELECT le_try_become_leader('job', identity => 'me');
BEGIN;
SELECT le_assert_leader('job');
INSERT INTO note VALUES ('late');
SELECT le_resign_all();
COMMIT;
TABLE note;
-- by its lease running out
SELECT le_lease('job', '200 ms', identity => 'me') AS t1 \gset
BEGIN;
SELECT le_assert_leader('job', :t1);
INSERT INTO note VALUES ('late');
SELECT pg_sleep(0.25);
SELECT le_renew('job', :t1), le_am_leader('job', :t1);
SELECT * FROM vacant('job');
COMMIT;
TABLE note;
-- renewed in time, it commits
SELECT le_lease('job', '200 ms', identity => 'me') AS t1 \gset
BEGIN;
SELECT le_assert_leader('job', :t1);
INSERT INTO note VALUES ('in time');
SELECT le_renew('job', :t1, '1 hour');
SELECT pg_sleep(0.25);
COMMIT;
TABLE note;
TRUNCATE note;
SELECT le_resign('job', :t1);
-- with the commit of a lease that it has given up
BEGIN;
SELECT le_lease('job', '1 hour') AS t1 \gset
SELECT le_assert_leader('job', :t1), le_resign('job', :t1);
INSERT INTO note VALUES ('late');
COMMIT;

-- elected again within: its own guard does not stand in the way, but the old term is over
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SELECT le_assert_leader('job', :t1), le_resign('job', :t1);
SELECT le_lease('job', '1 hour', identity => 'me') AS t2 \gset
SELECT :t2 > :t1 AS greater, le_assert_leader('job', :t2);
SAVEPOINT a;
SELECT le_assert_leader('job', :t1);
ROLLBACK TO a;
INSERT INTO note VALUES ('of both terms');
COMMIT;
SELECT replace(:'LAST_ERROR_MESSAGE', :'t1', 'N');
SELECT * FROM vacant('job');
SELECT le_try_become_leader('job', identity => 'me') AS leads, le_token('job') AS t1 \gset
BEGIN;
SELECT le_assert_leader('job'), le_resign('job');
SET LOCAL client_min_messages = warning;
SELECT le_try_become_leader('job', identity => 'me');
SELECT le_assert_leader('job');
INSERT INTO note VALUES ('of both terms');
COMMIT;
-- what session scope took in the transaction outlives it, as always
SELECT le_am_leader('job'), le_token('job') > :t1 AS greater;
SELECT replace(:'LAST_ERROR_MESSAGE', :'t1', 'N');
TABLE note;
-- nothing is left of the first guard if it was rolled back before
BEGIN;
SAVEPOINT a;
SELECT le_assert_leader('job');
ROLLBACK TO a;
SET LOCAL client_min_messages = warning;
SELECT le_resign('job'), le_try_become_leader('job', identity => 'me');
SELECT le_assert_leader('job');
INSERT INTO note VALUES ('of the second term');
COMMIT;
TABLE note;
TRUNCATE note;
SELECT le_resign('job');

-- savepoints: released, the guard is the transaction's
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT le_assert_leader('job', :t1);
RELEASE b;
RELEASE a;
TABLE guards;
INSERT INTO note VALUES ('late');
SELECT le_resign('job', :t1);
SELECT * FROM vacant('job');
COMMIT;
TABLE note;
-- the one of the outer transaction stays
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SELECT le_assert_leader('job', :t1);
SAVEPOINT a;
SELECT le_assert_leader('job', :t1);
ROLLBACK TO a;
TABLE guards;
INSERT INTO note VALUES ('late');
SELECT le_resign('job', :t1);
SELECT * FROM vacant('job');
COMMIT;
TABLE note;
-- with the term itself
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact('xact'), le_assert_leader('xact');
SELECT le_lease('new', '1 hour') AS t3 \gset
SELECT le_assert_leader('new', :t3);
ROLLBACK TO a;
TABLE guards;
INSERT INTO note VALUES ('unguarded');
COMMIT;
TABLE note;
TRUNCATE note;

-- what the commit says comes too late to be caught
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
DO $$
DECLARE
	token bigint := (SELECT token FROM le_leader('job'));
BEGIN
	BEGIN
		PERFORM le_assert_leader('job', token), le_resign('job', token);
		INSERT INTO note VALUES ('late');
	EXCEPTION WHEN OTHERS THEN
		RAISE WARNING '%', SQLERRM;
	END;
END $$;
TABLE note;
TRUNCATE note;

-- locks that go behind our back: the guard stays, an election's lock does not
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SELECT le_assert_leader('job', :t1);
SELECT pg_advisory_unlock_all();
TABLE guards;
SELECT other(format('SELECT le_resign(''job'', %s)', :t1));
SELECT * FROM vacant('job');
ROLLBACK;
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SELECT le_assert_leader('job', :t1), pg_advisory_unlock_all();
INSERT INTO note VALUES ('by lease');
COMMIT;
SELECT le_resign('job', :t1), le_try_become_leader('job', identity => 'me');
BEGIN;
SELECT le_assert_leader('job'), pg_advisory_unlock_all();
SELECT * FROM vacant('job');
INSERT INTO note VALUES ('by session');
COMMIT;
TABLE note;
TRUNCATE note;
TABLE guards;
SELECT le_try_become_leader('job', identity => 'me');
BEGIN;
SELECT le_assert_leader('job'), pg_advisory_unlock_all();
SET LOCAL client_min_messages = warning;
SELECT le_try_become_leader('job', identity => 'me');
INSERT INTO note VALUES ('of both terms');
COMMIT;
TABLE note;
SELECT le_resign('job');

-- a prepared transaction
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
INSERT INTO note VALUES ('rolled back');
SAVEPOINT a;
SELECT le_assert_leader('job', :t1);
RELEASE a;
PREPARE TRANSACTION 'regress_guard';
TABLE guards;
ROLLBACK PREPARED 'regress_guard';
TABLE guards;
SELECT le_resign('job', :t1);
-- not if the term is over by then
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
INSERT INTO note VALUES ('late');
SELECT le_assert_leader('job', :t1), le_resign('job', :t1);
PREPARE TRANSACTION 'regress_guard';
SELECT replace(:'LAST_ERROR_MESSAGE', :'t1', 'N');
SELECT count(*) FROM pg_prepared_xacts;
TABLE guards;
TABLE note;
SELECT * FROM vacant('job');
-- a guard that was rolled back is none
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
INSERT INTO note VALUES ('unguarded');
SAVEPOINT a;
SELECT le_assert_leader('job', :t1);
ROLLBACK TO a;
SELECT le_resign('job', :t1);
PREPARE TRANSACTION 'regress_guard';
SELECT * FROM vacant('job');
COMMIT PREPARED 'regress_guard';
TABLE note;
TRUNCATE note;

-- whatever the snapshot shows
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM le_leases WHERE name = 'job' AND ttl > '0';
SELECT other('SELECT le_lease(''job'', ''1 hour'', identity => ''other'')') AS t1 \gset
SELECT le_assert_leader('job', :t1);
SELECT count(*) FROM le_leases WHERE name = 'job' AND ttl > '0';
INSERT INTO note VALUES ('repeatable read');
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM le_leases WHERE name = 'job' AND ttl > '0';
SELECT other(format('SELECT le_resign(''job'', %s)', :t1));
SAVEPOINT a;
SELECT le_assert_leader('job', :t1);
ROLLBACK TO a;
SELECT other('SELECT le_lease(''job'', ''1 hour'', identity => ''other'')') AS t2 \gset
SELECT le_assert_leader('job', :t1);
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM note;
SELECT other(format('SELECT le_resign(''job'', %s)', :t2));
SELECT other('SELECT le_lease(''job'', ''1 hour'', identity => ''other'')') AS t3 \gset
SAVEPOINT a;
SELECT le_assert_leader('job', :t2);
ROLLBACK TO a;
SELECT le_assert_leader('job', :t3);
INSERT INTO note VALUES ('serializable');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO note VALUES ('late');
SELECT le_assert_leader('job', :t3);
SELECT other(format('SELECT le_resign(''job'', %s)', :t3));
COMMIT;
TABLE note;
TRUNCATE note;

-- a transaction that only reads, reads inside the term
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN READ ONLY;
SELECT le_assert_leader('job', :t1);
TABLE guards;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT le_assert_leader('job', :t1);
SELECT le_resign('job', :t1);
COMMIT;

-- with a function's rights
CREATE ROLE regress_guard_owner;
CREATE ROLE regress_guard_other;
GRANT USAGE, CREATE ON SCHEMA regress_guard TO regress_guard_owner, regress_guard_other;
GRANT SELECT, INSERT ON note, guards TO PUBLIC;
SET ROLE regress_guard_owner;
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
RESET ROLE;
SELECT le_assert_leader('job', :t1);
CREATE FUNCTION guarded(bigint) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = public AS $$
	SELECT le_assert_leader('job', $1) $$;
ALTER FUNCTION guarded OWNER TO regress_guard_owner;
SET ROLE regress_guard_other;
BEGIN;
SELECT guarded(:t1);
TABLE guards;
INSERT INTO note VALUES ('by the function');
COMMIT;
SELECT le_assert_leader('job', :t1);
RESET ROLE;
BEGIN;
SET LOCAL ROLE regress_guard_other;
SELECT guarded(:t1);
INSERT INTO note VALUES ('late');
RESET ROLE;
SELECT le_resign('job', :t1);
COMMIT;
TABLE note;
TRUNCATE note;
DROP FUNCTION guarded;
REVOKE ALL ON SCHEMA regress_guard FROM regress_guard_owner, regress_guard_other;
REVOKE ALL ON note, guards FROM PUBLIC;
DROP ROLE regress_guard_owner, regress_guard_other;

-- what runs within the commit: a cursor that is kept, a deferred trigger
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
DECLARE kept CURSOR WITH HOLD FOR SELECT i, le_assert_leader('job', :t1) IS NOT NULL AS guarded FROM generate_series(1, 2) i;
TABLE guards;
COMMIT;
FETCH ALL FROM kept;
CLOSE kept;
TABLE guards;
BEGIN;
DECLARE kept CURSOR WITH HOLD FOR SELECT le_assert_leader('job', :t1 + 1);
INSERT INTO note VALUES ('late');
COMMIT;
BEGIN;
DECLARE kept CURSOR WITH HOLD FOR SELECT 1 AS one;
SELECT le_assert_leader('job', :t1);
INSERT INTO note VALUES ('late');
SELECT le_resign('job', :t1);
COMMIT;
CLOSE ALL;
TABLE note;
CREATE TABLE work (id bigint);
CREATE FUNCTION write_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM le_assert_leader('job', new.id);
	INSERT INTO note VALUES ('at the commit');
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON work DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION write_note();
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
INSERT INTO work VALUES (:t1);
TABLE guards;
COMMIT;
TABLE note;
BEGIN;
INSERT INTO work VALUES (:t1);
SELECT le_resign('job', :t1);
COMMIT;
-- one that ends the term
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
CREATE OR REPLACE FUNCTION write_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO note VALUES ('late');
	PERFORM le_resign('job', new.id);
	RETURN NULL;
END $$;
BEGIN;
SELECT le_assert_leader('job', :t1);
INSERT INTO work VALUES (:t1);
COMMIT;
TABLE note;
SELECT count(*) FROM work;
TABLE guards;
TRUNCATE note;

-- many elections in one transaction; it fails with the one that is over
SELECT count(le_lease('many ' || i, '1 hour')) FROM generate_series(1, 300) i;
BEGIN;
SELECT count(le_assert_leader(name, token)) FROM le_leaders WHERE name LIKE 'many %';
SELECT count(le_assert_leader(name, token)) FROM le_leaders WHERE name LIKE 'many %';
TABLE guards;
COMMIT;
TABLE guards;
BEGIN;
SELECT count(le_assert_leader(name, token)) FROM le_leaders WHERE name LIKE 'many %';
SELECT le_resign(name, token) FROM le_leader('many 237');
COMMIT;
SELECT :'LAST_ERROR_MESSAGE' LIKE '%"many 237" any more' AS named;
TABLE guards;
SELECT count(*) FILTER (WHERE le_resign(name, token)) FROM le_leaders WHERE name LIKE 'many %';

-- without the extension, a lease is over; a session leads on
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SELECT le_assert_leader('job', :t1);
DROP EXTENSION leader_election;
INSERT INTO note VALUES ('late');
COMMIT;
TABLE note;
BEGIN;
SELECT le_assert_leader('job', :t1);
DROP EXTENSION leader_election;
ROLLBACK;
TABLE guards;
SELECT le_assert_leader('job', :t1);
BEGIN;
SAVEPOINT a;
SELECT le_assert_leader('job', :t1);
ROLLBACK TO a;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election SCHEMA public;
SELECT le_assert_leader('job', :t1);
ROLLBACK;
SELECT le_resign('job', :t1);
SELECT le_try_become_leader('job', identity => 'me');
BEGIN;
SELECT le_assert_leader('job');
DROP EXTENSION leader_election;
INSERT INTO note VALUES ('by session');
COMMIT;
TABLE note;
CREATE EXTENSION leader_election SCHEMA public;
SELECT le_resign('job');

\i :abs_srcdir/sql/include/guard_end.psql
