--
-- le_guard: the end of the transaction, the setting leader_election.token, roles, and wrong use
--
-- Messages bear tokens and process IDs: only their SQLSTATEs are shown, or the text
-- with N for each number.
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/guard_work.psql

-- each statement of the transaction is guarded once
SELECT le_try_become_leader('job', identity => 'me');
BEGIN;
INSERT INTO work VALUES (1, 'session');
TABLE guards;
UPDATE work SET done = 'again';
TABLE guards;
COMMIT;
TABLE guards;
SELECT le_resign('job');

-- the transaction is guarded: it commits only if the term still runs
SELECT le_try_become_leader('job', identity => 'me');
BEGIN;
INSERT INTO work VALUES (3, 'late');
SELECT le_resign('job');
SAVEPOINT a;
INSERT INTO work VALUES (4, 'later');
ROLLBACK TO a;
COMMIT;
TABLE work;
-- and keeps others from leading until it has ended
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SET LOCAL leader_election.token = :t1;
INSERT INTO work VALUES (3, 'late');
SELECT other(format('SELECT le_resign(''job'', %s)', :t1)), other('SELECT le_try_become_leader_xact(''job'')'), other('SELECT le_lease(''job'', ''1 hour'')');
ROLLBACK;
SELECT other('SELECT le_try_become_leader_xact(''job'')');
-- a trigger that is rolled back guards nothing
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SET LOCAL leader_election.token = :t1;
SAVEPOINT a;
INSERT INTO work VALUES (3, 'late');
TABLE guards;
ROLLBACK TO a;
TABLE guards;
SELECT le_resign('job', :t1);
COMMIT;

SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
BEGIN;
SELECT le_assert_leader('job', :t1);
INSERT INTO work VALUES (7, 'asserted');
COMMIT;
SELECT le_resign('job', :t1);
-- what is no token is refused when it is set
SHOW leader_election.token;
SET leader_election.token = '9223372036854775807';
INSERT INTO work VALUES (9, 'the greatest');
SET leader_election.token = 'scheduler';
SET leader_election.token = '0';
SET leader_election.token = '-1';
SET leader_election.token = '9223372036854775808';
SET leader_election.token = '0x10';
SET leader_election.token = '1.0';
SET leader_election.token = '1 2';
SET leader_election.token = ' ';
BEGIN;
SET LOCAL leader_election.token = '7 ';
ROLLBACK;
SELECT message, detail FROM refusal('SET leader_election.token = ''scheduler''');
SELECT set_config('leader_election.token', NULL, false);
INSERT INTO work VALUES (10, 'NULL is none');
RESET leader_election.token;
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
-- set before the library is loaded
\c
SET search_path = regress_guard, public;
SET leader_election.token = :t1;
INSERT INTO work VALUES (2, 'before the library');
\c
SET search_path = regress_guard, public;
BEGIN;
SELECT set_config('leader_election.token', :'t1', true) IS NOT NULL AS set;
INSERT INTO work VALUES (3, 'before the library');
COMMIT;
INSERT INTO work VALUES (4, 'without');
-- what is no token is dropped then, with a warning
\c
SET search_path = regress_guard, public;
SET leader_election.token = 'scheduler';
INSERT INTO work VALUES (4, 'invalid');
SHOW leader_election.token;
-- not for a role or a database
SELECT run(format('ALTER ROLE %I IN DATABASE %I SET leader_election.token = %L', current_user, current_database(), :'t1'));
\c
SET search_path = regress_guard, public;
INSERT INTO work VALUES (4, 'of the role');
SELECT run(format('ALTER ROLE %I IN DATABASE %I RESET leader_election.token', current_user, current_database()));
\c
SET search_path = regress_guard, public;
SELECT open_other();
INSERT INTO work VALUES (5, 'without');
TABLE work;

-- two tables of two elections
SET leader_election.token = :t1;
TRUNCATE work;
CREATE TABLE mail (id int, done text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON mail
FOR EACH STATEMENT EXECUTE FUNCTION le_guard('mailer');
SELECT le_lease('mailer', '1 hour', identity => 'me') AS t2 \gset
SET leader_election.token = :t1;
WITH a AS (INSERT INTO work VALUES (1, 'both') RETURNING *) INSERT INTO mail SELECT * FROM a;
TABLE work;
BEGIN;
SELECT le_assert_leader('mailer', :t2);
WITH a AS (INSERT INTO work VALUES (1, 'both') RETURNING *) INSERT INTO mail SELECT * FROM a;
TABLE guards;
COMMIT;
RESET leader_election.token;
BEGIN;
SELECT le_assert_leader('job', :t1), le_assert_leader('mailer', :t2);
INSERT INTO work VALUES (2, 'asserted');
INSERT INTO mail VALUES (2, 'asserted');
COMMIT;
BEGIN;
SET LOCAL leader_election.token = :t1;
INSERT INTO work VALUES (3, 'one by one');
SET LOCAL leader_election.token = :t2;
INSERT INTO mail VALUES (3, 'one by one');
INSERT INTO work VALUES (4, 'one by one');
COMMIT;
-- one of the two is over: nothing of either
BEGIN;
SELECT le_assert_leader('job', :t1), le_assert_leader('mailer', :t2);
INSERT INTO work VALUES (5, 'late');
INSERT INTO mail VALUES (5, 'late');
SELECT le_resign('mailer', :t2);
COMMIT;
SELECT * FROM work FULL JOIN mail USING (id) ORDER BY id;
-- one table of two elections
CREATE TRIGGER guard2 BEFORE INSERT ON work FOR EACH STATEMENT EXECUTE FUNCTION le_guard('mailer');
SET leader_election.token = :t1;
INSERT INTO work VALUES (6, 'one of two');
SELECT le_try_become_leader('mailer', identity => 'me');
INSERT INTO work VALUES (6, 'both');
SELECT le_resign('mailer');
DROP TRIGGER guard2 ON work;
DROP TABLE mail;
RESET leader_election.token;

-- roles: the one that leads, and its members; a table's owner need not be one
SELECT le_resign('job', :t1);
CREATE ROLE regress_guard_table;
CREATE ROLE regress_guard_leader;
CREATE ROLE regress_guard_member IN ROLE regress_guard_leader;
CREATE ROLE regress_guard_other;
GRANT USAGE, CREATE ON SCHEMA regress_guard TO regress_guard_table, regress_guard_leader, regress_guard_member, regress_guard_other;
CREATE TABLE boss (id int PRIMARY KEY, name text);
CREATE TABLE clerk (id int, boss int REFERENCES boss ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE guest (id int, boss int REFERENCES boss ON DELETE SET NULL ON UPDATE SET NULL);
INSERT INTO boss VALUES (1, 'one'), (2, 'two'), (3, 'three'), (4, 'four'), (5, 'five');
INSERT INTO clerk VALUES (1, 1), (2, 2), (3, 3), (4, 4);
INSERT INTO guest VALUES (1, 1), (2, 2), (3, 3), (4, 4);
ALTER TABLE boss OWNER TO regress_guard_table;
ALTER TABLE clerk OWNER TO regress_guard_table;
ALTER TABLE guest OWNER TO regress_guard_table;
ALTER TABLE work OWNER TO regress_guard_table;
GRANT ALL ON boss, clerk, guest, work, guards TO regress_guard_leader, regress_guard_member, regress_guard_other;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON clerk
FOR EACH STATEMENT EXECUTE FUNCTION le_guard('job');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guest
FOR EACH ROW EXECUTE FUNCTION le_guard('job');
SET ROLE regress_guard_leader;
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SET leader_election.token = :t1;
DELETE FROM work;
SET ROLE regress_guard_member;
INSERT INTO work VALUES (1, 'member');
SET ROLE regress_guard_other;
INSERT INTO work VALUES (2, 'other');
SELECT message, detail FROM refusal('INSERT INTO work VALUES (2)');
SET ROLE regress_guard_table;
INSERT INTO work VALUES (2, 'owner');
UPDATE clerk SET id = 0;
RESET ROLE;
INSERT INTO work VALUES (2, 'superuser');
-- cascades run as the owner: the role that has caused them counts
SET ROLE regress_guard_member;
DELETE FROM boss WHERE id = 1;
UPDATE boss SET id = 20 WHERE id = 2;
SET ROLE regress_guard_other;
DELETE FROM boss WHERE id = 3;
UPDATE boss SET id = 30 WHERE id = 3;
SET ROLE regress_guard_table;
DELETE FROM boss WHERE id = 3;
SET ROLE regress_guard_member;
RESET leader_election.token;
DELETE FROM boss WHERE id = 3;
UPDATE boss SET id = 30 WHERE id = 3;
-- a statement trigger does not look at rows, nor whether there are any
DELETE FROM boss WHERE id = 5;
-- guarded before, or by the session's own term
BEGIN;
SELECT le_assert_leader('job', :t1);
DELETE FROM boss WHERE id = 3;
COMMIT;
RESET ROLE;
SELECT le_resign('job', :t1);
SET ROLE regress_guard_other;
SELECT le_try_become_leader('job', identity => 'me');
UPDATE boss SET id = 40 WHERE id = 4;
INSERT INTO work VALUES (3, 'own term');
SELECT le_resign('job');
RESET ROLE;
SELECT * FROM clerk ORDER BY id;
SELECT * FROM guest ORDER BY id;
SELECT * FROM work ORDER BY id;
SELECT id FROM boss ORDER BY id;
-- not whose table it is
ALTER TABLE clerk OWNER TO regress_guard_leader;
INSERT INTO boss VALUES (6, 'six');
SET ROLE regress_guard_leader;
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SET leader_election.token = :t1;
INSERT INTO clerk VALUES (6, 6);
SET ROLE regress_guard_other;
DELETE FROM clerk WHERE id = 6;
DELETE FROM boss WHERE id = 6;
-- nor whose function it is that has caused the cascade
CREATE FUNCTION delete_boss(int) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = regress_guard, public AS $$
	DELETE FROM boss WHERE id = $1 $$;
CREATE FUNCTION guard_for(bigint) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = regress_guard, public AS $$
	SELECT le_assert_leader('job', $1) $$;
RESET ROLE;
ALTER FUNCTION delete_boss OWNER TO regress_guard_leader;
ALTER FUNCTION guard_for OWNER TO regress_guard_leader;
SET ROLE regress_guard_other;
SELECT delete_boss(6);
-- nor that another role has been guarded in the same transaction
BEGIN;
SELECT guard_for(:t1);
DELETE FROM boss WHERE id = 6;
ROLLBACK;
BEGIN;
SELECT guard_for(:t1);
INSERT INTO work VALUES (4, 'guarded for another');
ROLLBACK;
BEGIN;
SELECT guard_for(:t1);
SELECT le_assert_leader('job', :t1);
ROLLBACK;
BEGIN;
SET LOCAL ROLE regress_guard_member;
UPDATE clerk SET id = 7 WHERE id = 6;
SET LOCAL ROLE regress_guard_other;
UPDATE clerk SET id = 8 WHERE id = 7;
ROLLBACK;
-- nor within such a function of a third role
BEGIN;
SELECT guard_for(:t1);
SAVEPOINT a;
INSERT INTO work VALUES (4, 'guarded for another');
ROLLBACK TO a;
SELECT delete_boss(6);
ROLLBACK;
-- a role that may, causes it directly
SET ROLE regress_guard_member;
BEGIN;
DELETE FROM boss WHERE id = 6;
SELECT count(*) FROM clerk;
ROLLBACK;
RESET ROLE;
DROP FUNCTION delete_boss, guard_for;
SELECT id FROM clerk ORDER BY id;
-- a function with another's rights writes as that other
CREATE FUNCTION write_as(int) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = regress_guard, public AS $$
	INSERT INTO work VALUES ($1, 'with the rights of the leader') $$;
ALTER FUNCTION write_as OWNER TO regress_guard_leader;
SET ROLE regress_guard_other;
SET leader_election.token = :t1;
SELECT write_as(4);
INSERT INTO work VALUES (5, 'without');
RESET ROLE;
ALTER FUNCTION write_as OWNER TO regress_guard_other;
SET ROLE regress_guard_leader;
SELECT write_as(5);
RESET ROLE;
SELECT * FROM work ORDER BY id;
-- writing needs no privilege for the function, as it was checked when the
-- trigger was made
REVOKE EXECUTE ON FUNCTION le_guard FROM PUBLIC;
SET ROLE regress_guard_leader;
INSERT INTO work VALUES (6, 'revoked');
SET ROLE regress_guard_table;
CREATE TRIGGER another BEFORE INSERT ON work FOR EACH STATEMENT EXECUTE FUNCTION le_guard('job');
RESET ROLE;
GRANT EXECUTE ON FUNCTION le_guard TO PUBLIC;
RESET leader_election.token;
DROP FUNCTION write_as;
-- at the commit, the user of the session counts
CREATE TABLE late (id int);
CREATE CONSTRAINT TRIGGER guard AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION le_guard('job');
GRANT INSERT, SELECT ON late TO regress_guard_leader, regress_guard_other;
BEGIN;
SET LOCAL ROLE regress_guard_leader;
SELECT set_config('leader_election.token', :'t1', true) IS NOT NULL AS set, le_assert_leader('job', :t1);
SET LOCAL ROLE regress_guard_other;
INSERT INTO late VALUES (1);
COMMIT;
BEGIN;
SET LOCAL ROLE regress_guard_leader;
SELECT le_assert_leader('job', :t1);
INSERT INTO late VALUES (2);
COMMIT;
TABLE late;
DROP TABLE late;
DROP TABLE boss, clerk, guest;
REASSIGN OWNED BY regress_guard_table TO CURRENT_USER;
DROP OWNED BY regress_guard_table, regress_guard_leader, regress_guard_member, regress_guard_other;
SELECT le_resign('job', :t1);
DROP ROLE regress_guard_member, regress_guard_leader, regress_guard_table, regress_guard_other;

-- a role that may change the table may switch the trigger off
ALTER TABLE work DISABLE TRIGGER guard;
INSERT INTO work VALUES (7, 'disabled');
ALTER TABLE work ENABLE TRIGGER guard;
INSERT INTO work VALUES (8, 'enabled');
ALTER TABLE work DISABLE TRIGGER USER;
INSERT INTO work VALUES (8, 'disabled');
ALTER TABLE work ENABLE TRIGGER USER;
-- and a superuser all of them
SET session_replication_role = replica;
INSERT INTO work VALUES (9, 'replica');
ALTER TABLE work ENABLE ALWAYS TRIGGER guard;
INSERT INTO work VALUES (10, 'always');
RESET session_replication_role;
SELECT * FROM work WHERE id >= 7 ORDER BY id;

-- wrong use
SELECT le_guard();
DROP TRIGGER guard ON work;
-- CREATE TRIGGER does not check the arguments, so that a write has to say what is wrong
CREATE TRIGGER guard BEFORE INSERT ON work FOR EACH STATEMENT EXECUTE FUNCTION le_guard();
\x on
SELECT * FROM refusal('INSERT INTO work VALUES (20)');
CREATE OR REPLACE TRIGGER guard BEFORE INSERT ON work FOR EACH STATEMENT EXECUTE FUNCTION le_guard('job', 'another');
SELECT * FROM refusal('INSERT INTO work VALUES (20)');
\x off
CREATE OR REPLACE TRIGGER guard BEFORE INSERT ON work FOR EACH STATEMENT EXECUTE FUNCTION le_guard('');
INSERT INTO work VALUES (20);
DROP TRIGGER guard ON work;
SELECT run(format('CREATE TRIGGER guard BEFORE INSERT ON work FOR EACH STATEMENT EXECUTE FUNCTION le_guard(%L)', repeat('x', 256)));
INSERT INTO work VALUES (20);
SELECT count(*) FROM work WHERE id = 20;
DROP TRIGGER guard ON work;
-- names of any kind
SELECT run(format('CREATE TRIGGER guard BEFORE INSERT ON work FOR EACH STATEMENT EXECUTE FUNCTION le_guard(%L)', E'it''s "a" job\\ \u20ac'));
INSERT INTO work VALUES (20, 'nobody');
SELECT le_try_become_leader(E'it''s "a" job\\ \u20ac');
INSERT INTO work VALUES (20, 'odd name');
SELECT le_resign_all();
DROP TRIGGER guard ON work;
-- a number is a name, and an array is none
CREATE TRIGGER guard BEFORE INSERT ON work FOR EACH STATEMENT EXECUTE FUNCTION le_guard(2929);
SELECT le_try_become_leader('2929');
INSERT INTO work VALUES (21, 'number');
DROP TRIGGER guard ON work;
CREATE TRIGGER guard BEFORE INSERT ON work FOR EACH STATEMENT EXECUTE FUNCTION le_guard('{a,b}');
INSERT INTO work VALUES (21, 'array');
SELECT le_resign_all();
SELECT * FROM work WHERE id >= 20 ORDER BY id;
-- the trigger holds on to the extension
\set VERBOSITY terse
DROP EXTENSION leader_election;

\i :abs_srcdir/sql/include/guard_end.psql
