--
-- le_guard: a trigger by which only the leader may write to a table
--
-- editions: C, SQL
--
-- Messages bear tokens and process IDs: only their SQLSTATEs are shown, or the text
-- with N for each number.
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/guard_work.psql

-- without a leader, no role can write, not the owner, nor the superuser
INSERT INTO work VALUES (1, 'nobody');
UPDATE work SET done = 'nobody';
DELETE FROM work;
TRUNCATE work;
COPY work FROM stdin;
1	nobody
\.
\x on
SELECT * FROM refusal('INSERT INTO work VALUES (1)');
-- the session leads, in either scope
SELECT le_try_become_leader('job', identity => 'me');
\x off
INSERT INTO work VALUES (1, 'session');
UPDATE work SET done = 'still' WHERE id = 1;
UPDATE work SET done = 'no row' WHERE id = 0;
COPY work FROM stdin;
2	copied
3	copied
\.
TABLE work;
DELETE FROM work WHERE id = 3;
TRUNCATE work;
BEGIN;
INSERT INTO work VALUES (1, 'session');
UPDATE work SET done = 'again';
COMMIT;
SELECT le_resign('job');
INSERT INTO work VALUES (2, 'nobody');
BEGIN;
SELECT le_try_become_leader_xact('job', identity => 'me');
INSERT INTO work VALUES (2, 'transaction');
COMMIT;
INSERT INTO work VALUES (3, 'nobody');
TABLE work;
-- readers are not asked
SELECT count(*) FROM work;
BEGIN;
SELECT id FROM work WHERE id = 1 FOR UPDATE;
LOCK TABLE work;
COPY work TO stdout;
COMMIT;

-- by the token of the term, in the setting leader_election.token
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
INSERT INTO work VALUES (3, 'without');
\x on
SELECT * FROM refusal('INSERT INTO work VALUES (3)');
\x off
BEGIN;
SET LOCAL leader_election.token = :t1;
INSERT INTO work VALUES (3, 'set local');
COMMIT;
SHOW leader_election.token;
BEGIN;
SELECT set_config('leader_election.token', :'t1', true) IS NOT NULL AS set;
INSERT INTO work VALUES (4, 'set_config');
ROLLBACK;
SHOW leader_election.token;
SET leader_election.token = :'t1';
INSERT INTO work VALUES (4, 'set');
SET leader_election.token = '';
INSERT INTO work VALUES (5, 'reset');
SET leader_election.token = :'t1';
RESET leader_election.token;
INSERT INTO work VALUES (5, 'reset');
-- for a function
CREATE FUNCTION write_work(int, text) RETURNS void LANGUAGE sql AS $$ INSERT INTO work VALUES ($1, $2) $$;
SELECT run(format('ALTER FUNCTION write_work SET leader_election.token = %L', :'t1'));
SELECT write_work(5, 'function');
INSERT INTO work VALUES (6, 'without');
-- in a savepoint
BEGIN;
SAVEPOINT a;
SET LOCAL leader_election.token = :t1;
ROLLBACK TO a;
INSERT INTO work VALUES (6, 'rolled back');
ROLLBACK;
-- spelling
BEGIN;
SELECT set_config('leader_election.token', '00' || :'t1', true) IS NOT NULL AS set;
INSERT INTO work VALUES (8, 'spelling');
COMMIT;
TABLE work;
-- another token than that of the running term
SET leader_election.token = '1';
INSERT INTO work VALUES (9, 'other token');
\x on
SELECT * FROM refusal('INSERT INTO work VALUES (9)');
\x off
SELECT le_lease('another', '1 hour', identity => 'me') AS t2 \gset
SET leader_election.token = :t2;
INSERT INTO work VALUES (9, 'another''s token');
SELECT le_resign('another', :t2);
SET leader_election.token = :t1;
SELECT le_resign('job', :t1);
INSERT INTO work VALUES (9, 'over');
SELECT le_lease('job', '1 hour', identity => 'successor') AS t3 \gset
INSERT INTO work VALUES (9, 'deposed');
SET leader_election.token = :t3;
INSERT INTO work VALUES (9, 'successor');
RESET leader_election.token;
-- the session's own term counts before the token
SELECT le_resign('job', :t3), le_try_become_leader('job', identity => 'me');
SET leader_election.token = :t3;
INSERT INTO work VALUES (10, 'own');
-- another session's term, by its token
SELECT le_resign('job');
SELECT other('SELECT le_try_become_leader(''job'', identity => ''other'')') AS leads, other('SELECT le_token(''job'')') AS t4 \gset
INSERT INTO work VALUES (11, 'deposed');
SET leader_election.token = :t4;
INSERT INTO work VALUES (11, 'another session''s token');
SELECT other('SELECT le_resign(''job'')');
INSERT INTO work VALUES (12, 'late');
RESET leader_election.token;
TABLE work;
-- a lease of the same transaction
BEGIN;
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset
SAVEPOINT a;
TRUNCATE work;
ROLLBACK TO a;
SET LOCAL leader_election.token = :t1;
TRUNCATE work;
INSERT INTO work VALUES (1, 'of the same transaction');
COMMIT;
TABLE work;

-- each kind of trigger, with the token and without it
SET leader_election.token = :t1;
TRUNCATE work;
INSERT INTO work SELECT i, 'old' FROM generate_series(1, 3) i;
CREATE PROCEDURE try_all(tab text) LANGUAGE plpgsql AS $$
DECLARE
	statement text;
	code text;
BEGIN
	FOREACH statement IN ARRAY ARRAY[
		'INSERT INTO %I VALUES (4, ''new'')',
		'UPDATE %I SET done = ''new'' WHERE id = 1',
		'DELETE FROM %I WHERE id = 2',
		'UPDATE %I SET done = ''new'' WHERE id = 0',
		'DELETE FROM %I WHERE false',
		'INSERT INTO %I SELECT 5 WHERE false',
		'INSERT INTO %I SELECT i, ''new'' FROM generate_series(6, 8) i',
		'WITH a AS (INSERT INTO %1$I VALUES (5, ''new'') RETURNING id) SELECT id FROM a',
		'WITH a AS (DELETE FROM %1$I WHERE id = 3) UPDATE %1$I SET done = ''new'' WHERE id = 3',
		'INSERT INTO %I VALUES (1, ''new'') ON CONFLICT (id) DO UPDATE SET done = ''conflict''',
		'INSERT INTO %I VALUES (1, ''new'') ON CONFLICT DO NOTHING',
		'TRUNCATE %I'] LOOP
		code := (refusal(format(statement, tab))).code;
		RAISE WARNING '%: %', coalesce(code, 'passes'), format(statement, tab);
	END LOOP;
END $$;
CREATE PROCEDURE with_and_without(tab text) LANGUAGE plpgsql AS $$
DECLARE
	token text := current_setting('leader_election.token');
BEGIN
	RAISE WARNING 'without the token';
	PERFORM set_config('leader_election.token', '', true);
	CALL try_all(tab);
	RAISE WARNING 'with the token';
	PERFORM set_config('leader_election.token', token, true);
	CALL try_all(tab);
END $$;
\set VERBOSITY terse
CALL with_and_without('work');
TABLE work;
DROP TRIGGER guard ON work;
INSERT INTO work VALUES (1, 'old'), (2, 'old'), (3, 'old');
CREATE TRIGGER guard AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON work
FOR EACH STATEMENT EXECUTE FUNCTION le_guard('job');
CALL with_and_without('work');
DROP TRIGGER guard ON work;
INSERT INTO work VALUES (1, 'old'), (2, 'old'), (3, 'old');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON work
FOR EACH ROW EXECUTE FUNCTION le_guard('job');
CALL with_and_without('work');
TABLE work;
-- the row goes through as it is, and as other triggers have made it
CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN new.done := upper(new.done); RETURN new; END $$;
CREATE TRIGGER before_it BEFORE INSERT OR UPDATE ON work FOR EACH ROW EXECUTE FUNCTION change();
CREATE TRIGGER zafter_it BEFORE INSERT OR UPDATE ON work FOR EACH ROW EXECUTE FUNCTION change();
INSERT INTO work VALUES (1, 'one'), (2, 'two'), (3, NULL) RETURNING *;
UPDATE work SET done = 'three', id = 4 WHERE id = 3 RETURNING *;
DELETE FROM work WHERE id = 4 RETURNING *;
DROP TRIGGER before_it ON work;
DROP TRIGGER zafter_it ON work;
TRUNCATE work;
DROP TRIGGER guard ON work;
INSERT INTO work VALUES (1, 'old'), (2, 'old'), (3, 'old');
CREATE TRIGGER guard AFTER INSERT OR UPDATE OR DELETE ON work
FOR EACH ROW EXECUTE FUNCTION le_guard('job');
CALL with_and_without('work');
\set VERBOSITY sqlstate
DROP TRIGGER guard ON work;
-- one that is deferred to the commit
CREATE CONSTRAINT TRIGGER guard AFTER INSERT OR UPDATE OR DELETE ON work DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION le_guard('job');
BEGIN;
SET LOCAL leader_election.token = '';
INSERT INTO work VALUES (1, 'deferred');
SET LOCAL leader_election.token = :t1;
COMMIT;
BEGIN;
INSERT INTO work VALUES (2, 'deferred');
SET LOCAL leader_election.token = '';
COMMIT;
BEGIN;
INSERT INTO work VALUES (2, 'deferred');
SET CONSTRAINTS ALL IMMEDIATE;
SET LOCAL leader_election.token = '';
COMMIT;
TABLE work;
DROP TRIGGER guard ON work;
-- with a condition, and for a column only
CREATE TRIGGER guard BEFORE UPDATE OF done ON work
FOR EACH ROW WHEN (old.done IS DISTINCT FROM new.done) EXECUTE FUNCTION le_guard('job');
SET leader_election.token = '';
UPDATE work SET id = 3 WHERE id = 2;
UPDATE work SET done = 'deferred' WHERE id = 3;
UPDATE work SET done = 'done' WHERE id = 3;
DROP TRIGGER guard ON work;
TRUNCATE work;

-- a view: INSTEAD OF for its rows, or the table's own trigger
INSERT INTO work VALUES (1, 'old');
CREATE VIEW work_view AS SELECT * FROM work;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON work_view
FOR EACH STATEMENT EXECUTE FUNCTION le_guard('job');
CREATE FUNCTION write_through() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF tg_op <> 'INSERT' THEN
		DELETE FROM work WHERE id = old.id;
	END IF;
	IF tg_op <> 'DELETE' THEN
		INSERT INTO work VALUES (new.id, new.done || ' by way of the view');
		RETURN new;
	END IF;
	RETURN old;
END $$;
CREATE TRIGGER through INSTEAD OF INSERT OR UPDATE OR DELETE ON work_view
FOR EACH ROW EXECUTE FUNCTION write_through();
INSERT INTO work_view VALUES (2, 'new');
UPDATE work_view SET done = 'new';
DELETE FROM work_view;
SET leader_election.token = :t1;
INSERT INTO work_view VALUES (2, 'new');
UPDATE work_view SET done = 'newer' WHERE id = 1;
DELETE FROM work_view WHERE id = 2;
TABLE work;
DROP TRIGGER guard ON work_view;
DROP TRIGGER through ON work_view;
CREATE TRIGGER guard INSTEAD OF INSERT OR UPDATE OR DELETE ON work_view
FOR EACH ROW EXECUTE FUNCTION le_guard('job');
-- which stands for the write that is not done
INSERT INTO work_view VALUES (2, 'new') RETURNING *;
UPDATE work_view SET done = 'new' WHERE id = 1 RETURNING *;
DELETE FROM work_view WHERE id = 1 RETURNING *;
TABLE work;
SET leader_election.token = '';
INSERT INTO work_view VALUES (2, 'new');
UPDATE work_view SET done = 'new' WHERE id = 1;
UPDATE work_view SET done = 'new' WHERE id = 0;
DELETE FROM work_view WHERE id = 1;
DROP TRIGGER guard ON work_view;
-- a view that is updatable itself
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON work
FOR EACH STATEMENT EXECUTE FUNCTION le_guard('job');
INSERT INTO work_view VALUES (2, 'new');
UPDATE work_view SET done = 'new';
DELETE FROM work_view;
SET leader_election.token = :t1;
INSERT INTO work_view VALUES (2, 'new');
UPDATE work_view SET done = 'new' WHERE id = 2;
DELETE FROM work_view WHERE id = 1;
TABLE work;
-- and a rule
CREATE TABLE inbox (id int, done text);
CREATE RULE forward AS ON INSERT TO inbox DO INSTEAD INSERT INTO work VALUES (new.id, new.done);
INSERT INTO inbox VALUES (3, 'by rule');
SET leader_election.token = '';
INSERT INTO inbox VALUES (4, 'by rule');
DROP TABLE inbox;
DROP VIEW work_view;

-- MERGE
SET leader_election.token = :t1;
TRUNCATE work;
INSERT INTO work VALUES (1, 'old'), (2, 'old');
CREATE TABLE source (id int, what text);
INSERT INTO source VALUES (1, 'update'), (2, 'delete'), (3, 'insert');
PREPARE merge_all AS MERGE INTO work w USING source s ON w.id = s.id
	WHEN MATCHED AND what = 'update' THEN UPDATE SET done = 'merged'
	WHEN MATCHED AND what = 'delete' THEN DELETE
	WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'merged');
PREPARE merge_update AS MERGE INTO work w USING source s ON w.id = s.id WHEN MATCHED THEN UPDATE SET done = 'merged';
PREPARE merge_delete AS MERGE INTO work w USING source s ON w.id = s.id WHEN MATCHED THEN DELETE;
PREPARE merge_insert AS MERGE INTO work w USING source s ON w.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'merged');
PREPARE merge_nothing AS MERGE INTO work w USING source s ON w.id = s.id WHEN MATCHED THEN DO NOTHING;
SET leader_election.token = '';
EXECUTE merge_all;
EXECUTE merge_update;
EXECUTE merge_delete;
EXECUTE merge_insert;
EXECUTE merge_nothing;
SET leader_election.token = :t1;
EXECUTE merge_all;
SELECT * FROM work ORDER BY id;
-- by rows
DROP TRIGGER guard ON work;
TRUNCATE work;
INSERT INTO work VALUES (1, 'old'), (2, 'old');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON work
FOR EACH ROW EXECUTE FUNCTION le_guard('job');
SET leader_election.token = '';
EXECUTE merge_update;
EXECUTE merge_delete;
EXECUTE merge_insert;
SET leader_election.token = :t1;
EXECUTE merge_all;
SELECT * FROM work ORDER BY id;
DEALLOCATE ALL;
-- ON CONFLICT by rows: the rows that conflict
SET leader_election.token = '';
INSERT INTO work VALUES (1, 'new') ON CONFLICT DO NOTHING;
INSERT INTO work VALUES (1, 'new') ON CONFLICT (id) DO UPDATE SET done = excluded.done;
SET leader_election.token = :t1;
INSERT INTO work VALUES (1, 'new'), (4, 'new') ON CONFLICT DO NOTHING RETURNING *;
INSERT INTO work VALUES (1, 'new'), (5, 'new') ON CONFLICT (id) DO UPDATE SET done = excluded.done RETURNING *;
-- COPY by rows
SET leader_election.token = '';
COPY work FROM stdin;
6	copied
\.
SET leader_election.token = :t1;
COPY work FROM stdin;
6	copied
7	copied
\.
SELECT * FROM work ORDER BY id;
DROP TRIGGER guard ON work;

-- partitions: the statement trigger is that of the table that is named
CREATE TABLE parts (id int, done text) PARTITION BY LIST (id);
CREATE TABLE part1 PARTITION OF parts FOR VALUES IN (1);
CREATE TABLE part2 PARTITION OF parts FOR VALUES IN (2);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON parts
FOR EACH STATEMENT EXECUTE FUNCTION le_guard('job');
SET leader_election.token = '';
INSERT INTO parts VALUES (1, 'new');
COPY parts FROM stdin;
1	new
\.
TRUNCATE parts;
INSERT INTO part1 VALUES (1, 'directly');
UPDATE part1 SET done = 'directly, again';
UPDATE parts SET done = 'new';
UPDATE parts SET id = 2;
DELETE FROM parts;
TABLE parts;
TRUNCATE part1;
-- a row trigger is each partition's, also of later ones
DROP TRIGGER guard ON parts;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON parts
FOR EACH ROW EXECUTE FUNCTION le_guard('job');
CREATE TABLE part3 PARTITION OF parts FOR VALUES IN (3);
INSERT INTO parts VALUES (1, 'new');
INSERT INTO part1 VALUES (1, 'directly');
INSERT INTO part3 VALUES (3, 'directly');
COPY part2 FROM stdin;
2	directly
\.
SET leader_election.token = :t1;
INSERT INTO parts VALUES (1, 'new'), (2, 'new');
INSERT INTO part3 VALUES (3, 'directly');
SET leader_election.token = '';
UPDATE part1 SET done = 'directly';
DELETE FROM part2;
-- moved from one to another
UPDATE parts SET id = 3 WHERE id = 1;
SET leader_election.token = :t1;
UPDATE parts SET id = 3, done = 'moved' WHERE id = 1 RETURNING *;
SELECT tableoid::regclass, * FROM parts ORDER BY id, done;
-- with a trigger on one of the two only
DROP TRIGGER guard ON parts;
CREATE TRIGGER guard BEFORE INSERT ON part2 FOR EACH ROW EXECUTE FUNCTION le_guard('job');
CREATE TRIGGER guard BEFORE DELETE ON part3 FOR EACH ROW EXECUTE FUNCTION le_guard('job');
SET leader_election.token = '';
INSERT INTO parts VALUES (1, 'free');
UPDATE parts SET id = 2 WHERE id = 1;
UPDATE parts SET id = 1 WHERE id = 3;
UPDATE parts SET id = 3 WHERE id = 1;
SET leader_election.token = :t1;
UPDATE parts SET id = 2 WHERE id = 3;
SELECT tableoid::regclass, * FROM parts ORDER BY id, done;
DROP TABLE parts;
-- inheritance: the statement trigger is that of the table that is named, the rows' are each table's own
CREATE TABLE child () INHERITS (work);
TRUNCATE work;
INSERT INTO child VALUES (1, 'old');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON work
FOR EACH STATEMENT EXECUTE FUNCTION le_guard('job');
SET leader_election.token = '';
UPDATE work SET done = 'by way of the parent';
INSERT INTO child VALUES (2, 'directly');
UPDATE child SET done = 'directly';
DROP TRIGGER guard ON work;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON work
FOR EACH ROW EXECUTE FUNCTION le_guard('job');
UPDATE work SET done = 'by way of the parent';
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON child
FOR EACH ROW EXECUTE FUNCTION le_guard('job');
UPDATE work SET done = 'again';
SET leader_election.token = :t1;
UPDATE work SET done = 'by the leader';
SELECT * FROM work ORDER BY id;
DROP TABLE child;
-- once guarded, the transaction needs the token no more
BEGIN;
INSERT INTO work VALUES (5, 'guarded');
SET LOCAL leader_election.token = '';
INSERT INTO work VALUES (6, 'guarded');
COMMIT;
DROP TRIGGER guard ON work;

SELECT dblink_disconnect('other');
SET client_min_messages = warning;
DROP SCHEMA regress_guard CASCADE;
DROP EXTENSION dblink;
RESET search_path;
SELECT name, le_resign(name, token) FROM le_leaders;
