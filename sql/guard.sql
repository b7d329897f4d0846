--
-- le_assert_leader: it guards the transaction by a term that runs
--
-- editions: C, SQL
--
-- Messages bear tokens and process IDs: only their SQLSTATEs are shown, or the text
-- with N for each number.
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/guard.psql
\i :abs_srcdir/sql/include/refusal.psql
SELECT open_other();
CREATE TABLE note (note text);
RESET client_min_messages;
\set VERBOSITY sqlstate

-- the session's own term, without a token and with it
SELECT le_try_become_leader('job', identity => 'me');
SELECT le_token('job') AS t1 \gset
SELECT le_assert_leader('job');
SELECT le_assert_leader('job', NULL), le_assert_leader('job', :t1), le_assert_leader(name => 'job', token => :t1);
TABLE guards;
BEGIN;
SELECT le_assert_leader('job');
SELECT le_assert_leader('job', :t1);
TABLE guards;
INSERT INTO note VALUES ('session');
COMMIT;
TABLE guards;
-- in transaction scope
BEGIN;
SELECT le_try_become_leader_xact('xact');
SELECT le_assert_leader('xact'), le_assert_leader('xact', le_token('xact'));
TABLE guards;
INSERT INTO note VALUES ('transaction');
COMMIT;
-- a lease has no session: it takes the token
SELECT le_lease('leased', '1 hour', identity => 'me') AS t2 \gset
SELECT le_assert_leader('leased');
BEGIN;
SELECT le_assert_leader('leased', :t2);
TABLE guards;
INSERT INTO note VALUES ('lease');
COMMIT;
-- one that the transaction has itself taken counts
BEGIN;
SELECT le_lease('new', '1 hour') AS t3 \gset
SELECT le_assert_leader('new', :t3);
INSERT INTO note VALUES ('new lease');
COMMIT;
SELECT le_am_leader('new', :t3), le_resign('new', :t3);
-- and for no other session before it is committed
SELECT dblink_exec('other', 'BEGIN');
SELECT other('SELECT le_lease(''new'', ''1 hour'')') AS t3 \gset
SELECT le_assert_leader('new', :t3);
SELECT dblink_exec('other', 'COMMIT');
SELECT le_assert_leader('new', :t3);
SELECT le_resign('new', :t3);
-- another session's term, by its token
SELECT other('SELECT le_try_become_leader(''theirs'', identity => ''other'')') AS leads, other('SELECT le_token(''theirs'')') AS t4 \gset
SELECT le_assert_leader('theirs');
BEGIN;
SELECT le_assert_leader('theirs', :t4);
TABLE guards;
INSERT INTO note VALUES ('another session');
COMMIT;
TABLE note;
TRUNCATE note;
TABLE guards;

-- a session that does not lead is told the leader
\x on
SELECT * FROM refusal('SELECT le_assert_leader(''leased'')');
SELECT * FROM refusal('SELECT le_assert_leader(''leased'', 1)');
SELECT * FROM refusal('SELECT le_assert_leader(''theirs'')');
SELECT * FROM refusal('SELECT le_assert_leader(''job'', 0)');
SELECT * FROM refusal('SELECT le_assert_leader(''never heard of'')');
\x off
-- a token is that of one election
SELECT le_assert_leader('job', :t2);
SELECT le_assert_leader('leased', :t1);
SELECT le_assert_leader('leased', -:t2);
SELECT le_assert_leader('xact', :t1);
-- of a term that is over
SELECT le_assert_leader('new', :t3);
SELECT other('SELECT le_resign(''theirs'')');
SELECT le_assert_leader('theirs', :t4);
SELECT other('SELECT le_try_become_leader(''theirs'', identity => ''other'')');
SELECT le_assert_leader('theirs', :t4);
SELECT other('SELECT le_resign(''theirs'')');
SELECT le_lease('short', '100 ms') AS t6 \gset
SELECT pg_sleep(0.15);
SELECT le_assert_leader('short', :t6);
-- names
SELECT le_assert_leader(NULL);
SELECT le_assert_leader(NULL, :t1);
SELECT le_assert_leader('', :t1);
SELECT le_assert_leader(repeat('x', 256));
SELECT le_assert_leader(repeat('x', 255));
-- none of this guards
BEGIN;
SELECT code FROM refusal('SELECT le_assert_leader(''leased'')');
SELECT code FROM refusal('SELECT le_assert_leader(''never heard of'', 7)');
TABLE guards;
SELECT session, xact FROM vacant('never heard of');
COMMIT;

-- the guard holds off the candidate that is to begin a new term, until the
-- transaction has ended
SELECT le_resign('job');
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SELECT le_assert_leader('job', :t1);
SELECT other(format('SELECT le_resign(''job'', %s)', :t1));
SELECT count(*) FROM le_leader('job');
SELECT * FROM vacant('job');
SELECT * FROM vacant('unguarded');
SELECT le_assert_leader('job', :t1);
ROLLBACK;
SELECT * FROM vacant('job');
-- it ends with each transaction of a chain, or of a procedure
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SELECT le_assert_leader('job', :t1);
COMMIT AND CHAIN;
TABLE guards;
ROLLBACK;
\set VERBOSITY terse
DO $$
DECLARE
	token bigint := (SELECT token FROM le_leader('job'));
BEGIN
	PERFORM le_assert_leader('job', token);
	RAISE WARNING '% before', (TABLE guards);
	COMMIT;
	RAISE WARNING '% after the commit', (TABLE guards);
	PERFORM le_assert_leader('job', token);
	ROLLBACK;
	RAISE WARNING '% after the rollback', (TABLE guards);
END $$;
\set VERBOSITY sqlstate

-- savepoints: rolled back, the guard is gone
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SAVEPOINT a;
SELECT le_assert_leader('job', :t1);
TABLE guards;
ROLLBACK TO a;
TABLE guards;
INSERT INTO note VALUES ('unguarded');
SELECT other(format('SELECT le_resign(''job'', %s)', :t1));
SELECT * FROM vacant('job');
COMMIT;
TABLE note;
TRUNCATE note;
-- released, it is the transaction's; to one that is rolled back, it is gone; one that fails leaves the others
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT le_assert_leader('job', :t1);
RELEASE b;
TABLE guards;
SAVEPOINT c;
SELECT le_assert_leader('another', :t1);
ROLLBACK TO c;
TABLE guards;
ROLLBACK TO a;
TABLE guards;
SELECT le_assert_leader('job', :t1);
RELEASE a;
TABLE guards;
COMMIT;

-- exception blocks are savepoints
SELECT le_resign('job', :t1), le_lease('job', '1 hour', identity => 'me') AS t1 \gset
\set VERBOSITY terse
DO $$
DECLARE
	token bigint := (SELECT token FROM le_leader('job'));
BEGIN
	BEGIN
		PERFORM le_assert_leader('job', token);
		RAISE WARNING '% within', (TABLE guards);
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		RAISE WARNING '% after the error', (TABLE guards);
	END;
	BEGIN
		PERFORM le_assert_leader('job', token + 1);
	EXCEPTION WHEN SQLSTATE 'LE001' THEN
		INSERT INTO note VALUES ('caught');
	END;
	BEGIN
		PERFORM le_assert_leader('job', token);
	EXCEPTION WHEN OTHERS THEN
		RAISE WARNING '%', SQLERRM;
	END;
	RAISE WARNING '% after the block', (TABLE guards);
END $$;
\set VERBOSITY sqlstate
TABLE note;
TRUNCATE note;
SELECT le_resign('job', :t1);

-- a prepared transaction stays guarded
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
INSERT INTO note VALUES ('prepared');
SELECT le_assert_leader('job', :t1);
PREPARE TRANSACTION 'regress_guard';
SELECT le_renew('job', :t1), le_renew('job', :t1, '2 hours'), le_assert_leader('job', :t1);
SELECT le_resign('job', :t1);
SELECT count(*) FROM le_leader('job');
SELECT * FROM vacant('job');
SELECT le_try_become_leader('job'), le_lease('job', '1 hour'), le_become_leader('job', '10 ms');
COMMIT PREPARED 'regress_guard';
TABLE note;
SELECT * FROM vacant('job');
-- of the session's own term
SELECT le_try_become_leader('job', identity => 'me');
BEGIN;
INSERT INTO note VALUES ('prepared, too');
SELECT le_assert_leader('job');
PREPARE TRANSACTION 'regress_guard';
SELECT le_am_leader('job'), le_assert_leader('job');
SELECT le_resign('job');
SELECT le_try_become_leader('job');
COMMIT PREPARED 'regress_guard';
TABLE note;
TRUNCATE note;
SELECT * FROM vacant('job');
-- whose lease: the role's, and its members'
CREATE ROLE regress_guard_owner;
CREATE ROLE regress_guard_member IN ROLE regress_guard_owner;
CREATE ROLE regress_guard_other;
GRANT USAGE ON SCHEMA regress_guard TO PUBLIC;
GRANT SELECT, INSERT ON note, guards TO PUBLIC;
SET ROLE regress_guard_owner;
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT le_assert_leader('job', :t1);
SET ROLE regress_guard_member;
SELECT le_assert_leader('job', :t1);
SET ROLE regress_guard_other;
SELECT le_assert_leader('job', :t1);
SELECT le_assert_leader('job', :t1 + 1);
SELECT message, detail FROM refusal(format('SELECT le_assert_leader(''job'', %s)', :t1));
BEGIN;
SELECT code FROM refusal(format('SELECT le_assert_leader(''job'', %s)', :t1));
TABLE guards;
COMMIT;
RESET ROLE;
-- at the commit, the role that is set by then does not matter
BEGIN;
SET LOCAL ROLE regress_guard_member;
SELECT le_assert_leader('job', :t1);
SET LOCAL ROLE regress_guard_other;
INSERT INTO note VALUES ('of a member');
COMMIT;
TABLE note;
TRUNCATE note;
-- the session's own term is the session's, whatever role it is in; by token it is the login role's
SELECT le_try_become_leader('job', identity => 'me');
SET ROLE regress_guard_other;
SELECT le_assert_leader('job'), le_assert_leader('job', le_token('job'));
RESET ROLE;
SELECT le_resign('job');
SELECT other('SELECT le_try_become_leader(''job'', identity => ''other'')') AS leads, other('SELECT le_token(''job'')') AS t1 \gset
SET ROLE regress_guard_other;
SELECT le_assert_leader('job', :t1);
RESET ROLE;
SELECT le_assert_leader('job', :t1);
SELECT other('SELECT le_resign(''job'')');
REVOKE EXECUTE ON FUNCTION le_assert_leader FROM PUBLIC;
SET ROLE regress_guard_other;
SELECT le_assert_leader('job');
RESET ROLE;
GRANT EXECUTE ON FUNCTION le_assert_leader TO PUBLIC;
DROP ROLE regress_guard_member, regress_guard_owner, regress_guard_other;

SELECT dblink_disconnect('other');
SET client_min_messages = warning;
DROP SCHEMA regress_guard CASCADE;
DROP EXTENSION dblink;
RESET search_path;
SELECT name, le_resign(name, token) FROM le_leaders ORDER BY name;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
