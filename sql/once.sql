--
-- le_once: a job that is due at a point in time is done once, or not at all
--
-- Could go wrong: a job is done twice, or is taken for done after a rollback; bad times are
-- taken as they are; a role writes what is done, or uses another role's token.
--
-- editions: C, SQL
--
-- Messages bear tokens and process IDs: only their SQLSTATEs are shown, or the text with N
-- for each number.
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/guard.psql
\i :abs_srcdir/sql/include/refusal.psql
\i :abs_srcdir/sql/include/outcome.psql
SELECT open_other();
CREATE TABLE done (due timestamptz, who text DEFAULT current_setting('application_name'));
CREATE VIEW recorded AS TABLE _le_once_done;
-- what le_once has recorded
CREATE VIEW once AS SELECT name, due FROM le_once_done ORDER BY name;
CREATE FUNCTION last_once(text) RETURNS timestamptz LANGUAGE sql AS $$ SELECT due FROM public.le_once_done WHERE name = $1 $$;
RESET client_min_messages;
SET timezone = 'UTC';
SELECT dblink_exec('other', 'SET timezone = ''UTC''');

-- arguments
SELECT outcome('SELECT le_once(NULL, now())');
SELECT outcome('SELECT le_once('''', now())');
SELECT outcome('SELECT le_once(repeat(''x'', 256), now())');
SELECT outcome('SELECT le_once(''{a,b}'', now())');
SELECT outcome('SELECT le_once(''job'', NULL)');

-- without leadership
SELECT * FROM refusal('SELECT le_once(''job'', now())');
SELECT * FROM refusal('SELECT le_once(''job'', now(), 1)');
SELECT other('SELECT le_try_become_leader(''job'', identity => ''other'')');
SELECT * FROM refusal('SELECT le_once(''job'', now())');
SELECT other('SELECT le_resign(''job'')');
TABLE once;

-- the times that can be recorded
SELECT le_try_become_leader('job', identity => 'me');
SELECT outcome('SELECT le_once(''job'', ''infinity'')');
SELECT outcome('SELECT le_once(''job'', ''-infinity'')');
SELECT outcome('SELECT le_once(''job'', now() + ''1 hour 1 min'')');
SELECT outcome('SELECT le_once(''job'', ''294276-12-31'')');
TABLE once;
TABLE guards;
SELECT le_once('job', '4713-01-01 00:00 BC'), last_once('job');
SELECT le_once('job', now() + '59 min'), last_once('job') = now() + '59 min' AS recorded;
-- nothing is due for an hour after that: the owner of the table can help
SELECT le_once('job', now());
DELETE FROM recorded WHERE name = 'job';
SELECT le_once('job', '2026-01-01 12:00'), last_once('job');
-- nor does the table take others
SELECT left(outcome(format('UPDATE recorded SET due = %L', due)), 5), left(outcome(format('INSERT INTO recorded VALUES (''other'', %L, 1, 10)', due)), 5)
FROM unnest(ARRAY['infinity', '-infinity']) due;

-- once, and then later ones only
SELECT le_once('job', '2026-01-01 12:00'), le_once('job', '2026-01-01 11:59'), le_once('job', '2026-01-01 11:59:59.999999');
SELECT last_once('job');
SELECT le_once('job', '2026-01-01 12:00:00.000001'), le_once('job', '2026-01-01 13:00'), last_once('job');
SELECT le_once(name => 'job', due => '2026-01-01 12:30', token => NULL);
-- several in one statement: each sees those before
SELECT i, le_once('job', '2026-01-02'::timestamptz + i * interval '1 hour') FROM unnest(ARRAY[1, 1, 3, 2, 4]) i;
-- of each election for itself, whatever the letters
SELECT le_try_become_leader('Job', identity => 'me'), le_once('Job', '2026-01-01'), last_once('Job'), last_once('job');
TABLE once;
SELECT token = le_token('job') AS "its token" FROM le_once_done WHERE name = 'job';

-- the same time elsewhere
SET timezone = 'Asia/Tokyo';
SELECT last_once('job'), le_once('job', '2026-01-02 13:00'), le_once('job', '2026-01-02 13:00:01');
SET timezone = 'UTC';
SELECT last_once('job');

-- a rollback takes back both the record and the guard
BEGIN;
SELECT le_once('job', '2026-02-01');
INSERT INTO done VALUES ('2026-02-01');
TABLE guards;
SELECT le_once('job', '2026-02-01');
ROLLBACK;
TABLE guards;
SELECT last_once('job');
TABLE done;
BEGIN;
SELECT le_once('job', '2026-02-01');
INSERT INTO done VALUES ('2026-02-01');
COMMIT;
-- so does one to a savepoint
BEGIN;
SAVEPOINT a;
SELECT le_once('job', '2026-02-02');
INSERT INTO done VALUES ('2026-02-02');
ROLLBACK TO a;
TABLE guards;
SELECT last_once('job');
SELECT le_once('job', '2026-02-02');
INSERT INTO done VALUES ('2026-02-02');
SAVEPOINT b;
SELECT le_once('job', '2026-02-03');
INSERT INTO done VALUES ('2026-02-03');
RELEASE b;
COMMIT;
-- or an error that is caught
DO $$
BEGIN
	PERFORM le_once('job', '2026-02-04');
	BEGIN
		PERFORM le_once('job', '2026-02-05');
		INSERT INTO done VALUES ('2026-02-05');
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		RAISE WARNING 'last: %', last_once('job');
	END;
	INSERT INTO done VALUES ('2026-02-04');
END $$;
TABLE once;
TABLE done;
TRUNCATE done;
SELECT le_resign('job');
SELECT other('SELECT le_try_become_leader(''job'', identity => ''other'')');
SELECT other('SELECT due FROM public.le_once_done WHERE name = ''job'''), other('SELECT le_once(''job'', ''2026-02-06'')');
SELECT other('SELECT le_resign(''job'')');
SELECT last_once('job');

-- in transaction scope
BEGIN;
SELECT le_try_become_leader_xact('job'), le_once('job', '2026-03-01');
COMMIT;
SELECT last_once('job');
\set VERBOSITY sqlstate
SELECT le_once('job', '2026-03-02');
\set VERBOSITY default

-- by a lease, and on another connection than that which leads: with the token
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SELECT code FROM refusal('SELECT le_once(''job'', ''2026-03-03'')');
SELECT le_once('job', '2026-03-03', :t1), le_once('job', '2026-03-03', :t1), le_once('job', '2026-03-04', token => :t1);
SELECT other(format('SELECT le_once(''job'', ''2026-03-04'', %s)', :t1)), other(format('SELECT le_once(''job'', ''2026-03-05'', %s)', :t1));
SELECT code FROM refusal(format('SELECT le_once(''job'', ''2026-03-06'', %s)', :t1 + 1));
SELECT le_resign('job', :t1);
SELECT code FROM refusal(format('SELECT le_once(''job'', ''2026-03-06'', %s)', :t1));
SELECT le_try_become_leader('job', identity => 'me');
SELECT le_token('job') AS t2 \gset
SELECT other(format('SELECT le_once(''job'', ''2026-03-06'', %s)', :t2)), le_once('job', '2026-03-06');
SELECT last_once('job'), token = :t2 AS "by it" FROM le_once_done WHERE name = 'job';

-- at other isolation levels: what the snapshot does not show is not done again
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT last_once('job');
SELECT other(format('SELECT le_once(''job'', ''2026-04-01'', %s)', :t2));
SELECT outcome('SELECT le_once(''job'', ''2026-04-01'')');
SELECT outcome('SELECT le_once(''job'', ''2026-04-02'')');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT last_once('job');
SELECT other(format('SELECT le_once(''job'', ''2026-04-02'', %s)', :t2));
SELECT outcome('SELECT le_once(''job'', ''2026-04-02'')');
ROLLBACK;
-- also where it shows no row at all
SELECT le_try_become_leader('new', identity => 'me');
SELECT le_token('new') AS t3 \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT last_once('new');
SELECT other(format('SELECT le_once(''new'', ''2026-04-01'', %s)', :t3));
SELECT outcome('SELECT le_once(''new'', ''2026-04-01'')');
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT le_once('job', '2026-04-02'), le_once('job', '2026-04-03'), le_once('job', '2026-04-03'), last_once('job');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT le_once('job', '2026-04-03'), le_once('job', '2026-04-04'), le_once('job', '2026-04-04'), last_once('job');
COMMIT;
TABLE once;

-- a prepared transaction keeps the record, and the next leader waits for it
BEGIN;
SELECT le_once('job', '2026-05-01');
INSERT INTO done VALUES ('2026-05-01');
PREPARE TRANSACTION 'regress_once';
SELECT last_once('job');
SET lock_timeout = '100 ms';
SELECT outcome('SELECT le_once(''job'', ''2026-05-01'')');
RESET lock_timeout;
SELECT le_resign('job');
SELECT other('SELECT le_try_become_leader(''job'', identity => ''other'')');
COMMIT PREPARED 'regress_once';
SELECT other('SELECT le_try_become_leader(''job'', identity => ''other'')'), other('SELECT le_once(''job'', ''2026-05-01'')');
SELECT other('SELECT le_resign(''job'')');
SELECT le_try_become_leader('job', identity => 'me');
BEGIN;
SELECT le_once('job', '2026-05-02');
PREPARE TRANSACTION 'regress_once';
ROLLBACK PREPARED 'regress_once';
SELECT last_once('job'), le_once('job', '2026-05-02');
TABLE done;

-- roles: any may call it for what it leads, none may write the table
CREATE ROLE regress_once_owner;
CREATE ROLE regress_once_member IN ROLE regress_once_owner;
CREATE ROLE regress_once_other;
GRANT USAGE ON SCHEMA regress_guard TO PUBLIC;
SET ROLE regress_once_owner;
SELECT le_lease('theirs', '1 hour') AS t4 \gset
SELECT le_once('theirs', '2026-01-01', :t4), last_once('theirs'), current_user;
SELECT outcome('INSERT INTO recorded VALUES (''theirs'', now(), 1)');
SELECT outcome('UPDATE recorded SET due = now()');
SELECT outcome('DELETE FROM recorded');
SELECT name FROM le_once_done WHERE name = 'theirs';
SET ROLE regress_once_member;
SELECT le_once('theirs', '2026-01-02', :t4), current_user;
SET ROLE regress_once_other;
SELECT * FROM refusal(format('SELECT le_once(''theirs'', ''2026-01-03'', %s)', :t4));
SELECT last_once('theirs');
-- the user is as before also after an error
SELECT code, current_user FROM refusal('SELECT le_once(''theirs'', ''2026-01-03'')');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION le_once FROM PUBLIC;
SET ROLE regress_once_owner;
SELECT outcome(format('SELECT le_once(''theirs'', ''2026-01-04'', %s)', :t4));
RESET ROLE;
GRANT EXECUTE ON FUNCTION le_once TO PUBLIC;
SET ROLE regress_once_owner;
SELECT le_resign('theirs', :t4);
RESET ROLE;
REVOKE ALL ON SCHEMA regress_guard FROM PUBLIC;
DROP ROLE regress_once_member, regress_once_owner, regress_once_other;

-- a name that is quoted as it should be
SELECT le_try_become_leader($$it's "so" %s ; -- \$$, identity => 'me'), le_once($$it's "so" %s ; -- \$$, '2026-01-01'), last_once($$it's "so" %s ; -- \$$);
SELECT le_resign($$it's "so" %s ; -- \$$), le_resign_all();

SELECT dblink_disconnect('other');
SET client_min_messages = warning;
DELETE FROM recorded;
DROP SCHEMA regress_guard CASCADE;
DROP EXTENSION dblink;
RESET search_path;
RESET client_min_messages;
