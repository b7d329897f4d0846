--
-- le_depose: to end another's term
--
-- Messages bear process IDs: only their first lines are shown, in which there are none.
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/depose.psql
\i :abs_srcdir/sql/include/sessions.psql
\i :abs_srcdir/sql/include/refusal.psql
-- which of the other sessions there are
CREATE FUNCTION alive() RETURNS text[] LANGUAGE sql AS $$
SELECT pg_stat_clear_snapshot();
SELECT coalesce(array_agg(application_name ORDER BY application_name), '{}') FROM pg_stat_activity
WHERE length(application_name) = 1 AND backend_type = 'client backend' AND application_name <> 'e'
$$;
-- another session leads, in each scope
CREATE FUNCTION lead(who text, scope text, election text, role text DEFAULT current_user) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM open(who, role);
	CASE scope
		WHEN 'session' THEN RETURN says(who, format('SELECT le_try_become_leader(%L, identity => %L)', election, who));
		WHEN 'transaction' THEN
			PERFORM dblink_exec(who, 'BEGIN');
			RETURN says(who, format('SELECT le_try_become_leader_xact(%L, identity => %L)', election, who));
		WHEN 'lease' THEN RETURN says(who, format('SELECT le_lease(%L, ''1 hour'', identity => %L) > 0', election, who));
	END CASE;
END $$;
CREATE VIEW counted AS SELECT name, terms, resigned, deposed, session_ended, transaction_ended, expired, lock_released FROM pg_stat_leader_election;
SET leader_election.notify = on;
SELECT open('e');
SELECT dblink_exec('e', 'LISTEN leader_election');
CREATE TABLE heard (n serial, payload text);
-- returns all that was announced before this call
CREATE PROCEDURE hear() LANGUAGE plpgsql AS $$
DECLARE
	heard text;
	done boolean := false;
BEGIN
	DELETE FROM heard;
	COMMIT;
	NOTIFY leader_election, 'that is all';
	COMMIT;
	WHILE NOT done LOOP
		FOR heard IN SELECT extra FROM dblink_get_notify('e') LOOP
			EXIT WHEN done;
			done := heard = 'that is all';
			IF NOT done THEN
				INSERT INTO heard (payload) VALUES (heard);
			END IF;
		END LOOP;
		PERFORM pg_sleep(0.005);
	END LOOP;
END $$;
CREATE VIEW announced AS
SELECT payload::json->>'election' AS election, payload::json->>'event' AS event,
       payload::json->>'identity' AS identity, payload::json->>'by' = session_user AS by_me,
       payload::json->>'by' AS by, payload::json->>'reason' AS reason, payload::json->>'why' AS why
FROM heard ORDER BY 1, 2, n;
SELECT pg_stat_leader_election_reset();
RESET client_min_messages;
\set VERBOSITY terse

-- a session
SELECT lead('w', 'session', 'job');
SELECT token AS t1 FROM le_leader('job') \gset
SELECT le_depose('job', 'it does not answer');
SELECT count(*) AS leaders FROM le_leader('job');
SELECT gone('w'), says('w', 'SELECT le_am_leader(''job'')');
SELECT dblink_disconnect('w');
CALL hear();
SELECT election, event, identity, reason, by_me, why FROM announced WHERE identity = 'w';
SELECT replace(replace(payload, '"token": ' || :t1, '"token": T1'), current_user, 'ME') AS payload FROM heard WHERE payload LIKE '%"deposed"%';
SELECT * FROM counted WHERE name = 'job';
-- free, and the next token is greater
SELECT le_try_become_leader('job'), le_token('job') > :t1 AS greater, le_resign('job');
-- a transaction
SELECT lead('w', 'transaction', 'job');
SELECT dblink_exec('w', 'INSERT INTO note VALUES (''transaction'')');
SELECT le_depose('job');
SELECT count(*) AS leaders FROM le_leader('job');
SELECT gone('w'), dblink_disconnect('w'), count(*) AS notes FROM note;
CALL hear();
SELECT election, event, identity, reason, by_me, why FROM announced WHERE identity = 'w';
SELECT payload::jsonb ? 'why' AS why FROM heard WHERE payload LIKE '%"deposed"%';
-- a lease
SELECT lead('w', 'lease', 'job');
SELECT token AS t2 FROM le_leader('job') \gset
SELECT le_depose('job', 'it was time');
SELECT alive(), (SELECT count(*) FROM le_leader('job')) AS leaders, (SELECT bool_and(ttl = '0') FROM le_leases WHERE name = 'job') AS void;
SET client_min_messages = error;
SELECT le_am_leader('job', :t2), le_renew('job', :t2), le_resign('job', :t2);
RESET client_min_messages;
SELECT le_lease('job', '1 hour', token => :t2) AS t3 \gset
SELECT :t3 > :t2 AS greater, le_resign('job', :t3);
CALL hear();
SELECT DISTINCT election, event, identity, by_me, why FROM announced WHERE reason = 'deposed' ORDER BY 1, 2, 5;
SELECT * FROM counted WHERE name = 'job';
SELECT dblink_disconnect('w'), gone('w');
-- a lease that this session has taken: it is not bound to it
SELECT le_lease('job', '1 hour') > 0 AS taken;
SELECT le_depose('job');
-- of the other elections that the session leads, the terms end as they do
SELECT lead('w', 'session', 'job'), says('w', 'SELECT le_try_become_leader(''other'')'), le_depose('job'), gone('w');
SELECT dblink_disconnect('w');
SELECT * FROM counted WHERE name = 'other';

-- whatever the leader does: a long statement, a wait for a lock, a wait to lead another
SELECT lead('w', 'session', 'job'), dblink_send_query('w', 'SELECT pg_sleep(60)'), le_depose('job'), gone('w');
SELECT dblink_disconnect('w');
BEGIN;
LOCK TABLE note;
SELECT lead('w', 'session', 'job'), dblink_send_query('w', 'TABLE note'), le_depose('job'), gone('w');
COMMIT;
SELECT dblink_disconnect('w');
SELECT le_try_become_leader('mine');
SELECT lead('w', 'session', 'job'), waits('w', 'SELECT le_become_leader(''mine'')'), le_depose('job'), gone('w');
SELECT count(*) AS candidates FROM le_candidates;
SELECT dblink_disconnect('w');
SELECT le_resign('mine');
-- a transaction that has failed has let go already
SELECT lead('w', 'transaction', 'job'), says('w', 'SELECT 1/0'), le_depose('job'), alive();
SELECT dblink_disconnect('w'), gone('w');

-- no leader
SELECT le_depose('nobody has ever heard of it'), le_depose('job', 'a reason');
SELECT le_lease('short', '100 ms') > 0 AS taken;
SELECT pg_sleep(0.15);
\set VERBOSITY default
SELECT le_depose('short');
\set VERBOSITY terse
SELECT open('w');
-- a lease that is not committed yet, that commits then
SELECT dblink_exec('w', 'BEGIN'), says('w', 'SELECT le_lease(''job'', ''1 hour'', identity => ''w'') > 0');
SELECT le_depose('job'), alive();
SELECT dblink_exec('w', 'COMMIT');
SELECT identity FROM le_leader('job');
SELECT le_depose('job'), alive();
-- a candidate does not lead
SELECT le_try_become_leader('job'), waits('w', 'SELECT le_become_leader(''job'')'), le_resign('job'), answer('w'), says('w', 'SELECT le_resign(''job'')');
SELECT le_depose('job'), alive();
SELECT dblink_disconnect('w'), gone('w');
SELECT * FROM counted WHERE name = 'short';

-- oneself
SELECT le_try_become_leader('job');
\set VERBOSITY default
SELECT le_depose('job');
\set VERBOSITY terse
SELECT le_am_leader('job'), le_resign('job');
BEGIN;
SELECT le_try_become_leader_xact('job');
SELECT code FROM refusal('SELECT le_depose(''job'')');
SELECT le_am_leader('job');
COMMIT;
BEGIN;
SELECT le_lease('job', '1 hour') AS t4 \gset
SELECT code FROM refusal('SELECT le_depose(''job'')');
COMMIT;
SELECT le_am_leader('job', :t4), le_depose('job'), le_am_leader('job', :t4);
-- what was lost by unlock_all is not led
SELECT le_try_become_leader('job'), pg_advisory_unlock_all(), le_depose('job');
SELECT * FROM counted WHERE name = 'job';

-- arguments
SELECT code, message FROM unnest(ARRAY['NULL::text', '''''', 'repeat(''x'', 256)', '''job'', ''''', '''job'', repeat(''x'', 256)', '''job'', repeat(''é'', 128)']) arguments, refusal('SELECT le_depose(' || arguments || ')');
SELECT lead('w', 'lease', 'job'), (refusal('SELECT le_depose(''job'', '''')')).code;
SELECT le_depose(reason => repeat('é', 127) || 'x', name => 'job');
SELECT dblink_disconnect('w'), gone('w');

-- what was done stays done
SELECT lead('w', 'session', 'job'), lead('v', 'lease', 'lease');
CALL hear();
BEGIN;
SELECT le_depose('job', 'rolled back'), le_depose('lease', 'rolled back');
ROLLBACK;
SELECT gone('w'), (SELECT count(*) FROM le_leaders WHERE name IN ('job', 'lease')) AS leaders, (SELECT ttl FROM le_leases WHERE name = 'lease') AS ttl;
SELECT dblink_disconnect('w');
CALL hear();
SELECT election, event, identity, by_me, why FROM announced WHERE reason = 'deposed';
DO $$
BEGIN
	PERFORM says('v', 'SELECT le_lease(''lease'', ''1 hour'')');
	PERFORM le_depose('lease');
	PERFORM 1 / 0;
EXCEPTION WHEN division_by_zero THEN
	RAISE NOTICE '% lead', (SELECT count(*) FROM le_leader('lease'));
END $$;
-- in a transaction that reads an old snapshot, and only reads
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT count(*) FROM note;
SELECT says('v', 'SELECT le_lease(''lease'', ''1 hour'') > 0'), lead('w', 'session', 'job');
SELECT le_depose('lease'), le_depose('job');
COMMIT;
SELECT gone('w'), dblink_disconnect('w'), dblink_disconnect('v'), gone('v');

-- the privilege to depose: as for pg_terminate_backend
CREATE ROLE regress_depose_leader LOGIN;
CREATE ROLE regress_depose_member IN ROLE regress_depose_leader;
CREATE ROLE regress_depose_noinherit NOINHERIT IN ROLE regress_depose_leader;
CREATE ROLE regress_depose_stranger;
CREATE ROLE regress_depose_signal IN ROLE pg_signal_backend;
CREATE ROLE regress_depose_super SUPERUSER LOGIN;
-- may that role depose the leader?  If not, the leader continues to lead
CREATE FUNCTION try(scope text, leader text, role text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
	goes_on boolean;
BEGIN
	PERFORM lead('w', scope, 'job', 'regress_depose_' || leader);
	EXECUTE 'SET ROLE regress_depose_' || role;
	BEGIN
		answer := le_depose('job', 'the reason of ' || role);
	EXCEPTION WHEN insufficient_privilege THEN
		answer := SQLERRM;
	END;
	RESET ROLE;
	goes_on := EXISTS (SELECT FROM le_leader('job'));
	IF (answer = 'true') = goes_on THEN
		answer := answer || ', BUT';
	END IF;
	-- a lease does not end with the session
	IF scope = 'lease' AND goes_on THEN
		PERFORM le_resign('job', token) FROM le_leader('job');
	END IF;
	PERFORM dblink_disconnect('w'), gone('w');
	RETURN answer;
END $$;
SELECT pg_stat_leader_election_reset();
SELECT scope, role, try(scope, 'leader', role)
FROM unnest('{session,transaction,lease}'::text[]) scope, unnest('{stranger,noinherit,signal,member,leader,super}'::text[]) role;
-- the terms of leaders that were not deposed are not counted as deposed
SELECT * FROM counted WHERE name = 'job';
SELECT scope, role, try(scope, 'super', role)
FROM unnest('{session,transaction,lease}'::text[]) scope, unnest('{stranger,signal,member,super}'::text[]) role;
SELECT * FROM counted WHERE name = 'job';
-- what each role is told
SELECT lead('w', 'session', 'job', 'regress_depose_leader'), lead('v', 'lease', 'lease', 'regress_depose_super');
SET ROLE regress_depose_stranger;
SELECT * FROM refusal('SELECT le_depose(''job'', ''a reason'')');
SELECT * FROM refusal('SELECT le_depose(''lease'', ''a reason'')');
SELECT le_depose('nobody');
RESET ROLE;
SELECT says('w', 'SELECT le_am_leader(''job'')'), says('w', 'SELECT le_resign(''job'')');
SELECT dblink_disconnect('w'), gone('w'), le_depose('lease');
-- a superuser's session that leads in the name of another role: the server does not let
-- go of it, and then it is not marked either
SELECT open('w'), dblink_exec('w', 'SET SESSION AUTHORIZATION regress_depose_leader'), says('w', 'SELECT le_try_become_leader(''job'', identity => ''w'')');
SET ROLE regress_depose_member;
SELECT code FROM refusal('SELECT le_depose(''job'')');
RESET ROLE;
SELECT pg_stat_leader_election_reset();
SELECT says('w', 'SELECT le_am_leader(''job'')'), dblink_disconnect('w'), gone('w');
SELECT name, deposed, session_ended FROM counted WHERE name = 'job';
-- a lease is of the role that took it, also if there is none of that name any more
SELECT open('w'), dblink_exec('w', 'SET ROLE regress_depose_leader'), says('w', 'SELECT le_lease(''job'', ''1 hour'') > 0');
SET ROLE regress_depose_member;
SELECT le_depose('job');
RESET ROLE;
CREATE ROLE regress_depose_gone;
SELECT dblink_exec('w', 'SET ROLE regress_depose_gone'), says('w', 'SELECT le_lease(''job'', ''1 hour'') > 0'), dblink_exec('w', 'RESET ROLE');
DROP ROLE regress_depose_gone;
SET ROLE regress_depose_stranger;
SELECT code FROM refusal('SELECT le_depose(''job'')');
RESET ROLE;
SELECT le_depose('job'), alive();
SELECT dblink_disconnect('v'), gone('v');
-- the deposer: the role that is in force, whatever its name
CREATE ROLE "regress_depose ""x"" \" SUPERUSER;
SELECT says('w', 'SELECT le_lease(''job'', ''1 hour'', identity => ''w'') > 0');
CALL hear();
SET ROLE "regress_depose ""x"" \";
SELECT le_depose('job');
RESET ROLE;
CALL hear();
SELECT by FROM announced WHERE reason = 'deposed';
DROP ROLE "regress_depose ""x"" \";

-- reasons, and names, that break something: JSON, lines of the log
CREATE TABLE nasty (n serial, name text);
INSERT INTO nasty (name) VALUES ('"'), ('\'), ('\"'), ('it''s'), (E'one line\nanother\r\n'), (E'\t\b\f'), (E'\x1b[31m\x7f'), (repeat(E'\x01', 255)), (repeat('\', 255)), (repeat('"', 255)),
  (U&'\+01F600 \00E9 \2028'), (repeat(U&'\+01F600', 63)), ('null'), ('json {"reason": 1}'), ('", "reason": "x'), ('%s %d %n'), (E'\nLOG:  leader_election: election "job": term 1 began');
CALL hear();
SELECT count(says('w', format('SELECT le_lease(%L, ''1 hour'', identity => %L) > 0', name, name))), bool_and(le_depose(name, name)) FROM nasty;
CALL hear();
SELECT count(*), count(*) FILTER (WHERE election = identity AND identity = why) AS same, count(*) FILTER (WHERE election IN (SELECT name FROM nasty)) AS known, bool_and(by_me) AS by_me FROM announced WHERE reason = 'deposed';
SELECT count(*), bool_and(reason = 'deposed') AS deposed FROM announced WHERE event = 'ended';
SELECT bool_and(octet_length(payload) = length(payload)) AS ascii, max(octet_length(payload)) < 8000 AS fit FROM heard;
SELECT sum(deposed) FROM counted WHERE name IN (SELECT name FROM nasty);
-- one line each in the log
CREATE VIEW logged AS
SELECT regexp_replace(replace(substring(line FROM 'leader_election: .*'), format('role "%s"', session_user), 'role "ME"'), '(token|process) \d+', '\1 N', 'g') AS line
FROM regexp_split_to_table(pg_read_file('../../log/postmaster.log'), '\n') line
WHERE line LIKE '%LOG:  leader_election: %is deposed by role%';
SELECT * FROM logged WHERE line LIKE ANY ('{%x0a%,%\\%s \\%d%,%it was time,%does not answer,%a key}') AND length(line) < 500 ORDER BY line COLLATE "C";
SELECT count(*) AS broken FROM regexp_split_to_table(pg_read_file('../../log/postmaster.log'), '\n') line WHERE line ~ '^(another|LOG:)';
-- also if terms are not logged; and the setting of this session counts
SET leader_election.log_terms = off;
SET leader_election.notify = off;
SELECT says('w', 'SELECT le_lease(''job'', ''1 hour'', identity => ''quiet'') > 0'), le_depose('job', 'logged always');
SELECT * FROM logged WHERE line LIKE '%logged always';
CALL hear();
SELECT count(*) FROM heard WHERE payload LIKE '%deposed%';
RESET leader_election.log_terms;
SET leader_election.notify = on;
SELECT dblink_disconnect('w'), gone('w');

-- candidates: the first of them is elected, with a greater token
SELECT open('a'), open('b');
CREATE FUNCTION succeed(scope text, OUT deposed boolean, OUT first text, OUT leads text, OUT greater boolean, OUT waits text) LANGUAGE plpgsql AS $$
DECLARE
	old bigint;
BEGIN
	PERFORM lead('w', scope, 'job');
	SELECT token INTO old FROM le_leader('job');
	PERFORM waits('a', 'SELECT le_become_leader(''job'', identity => ''a'')');
	PERFORM waits('b', 'SELECT le_become_leader(''job'', identity => ''b'')');
	deposed := le_depose('job');
	first := answer('a');
	SELECT identity, token > old INTO leads, greater FROM le_leader('job');
	SELECT identity INTO waits FROM le_candidates;
	PERFORM says('a', 'SELECT le_resign(''job'')'), answer('b'), says('b', 'SELECT le_resign(''job'')');
	PERFORM dblink_disconnect('w'), gone('w');
END $$;
SELECT scope, (s).* FROM (SELECT scope, succeed(scope) AS s FROM unnest('{session,transaction,lease}'::text[]) scope OFFSET 0) t;
-- after the grace period
SELECT says('a', 'SET leader_election.grace_period = ''1h''');
SELECT scope, lead('w', scope, scope), le_depose(scope), dblink_disconnect('w'), gone('w'), set_config('leader_election.grace_period', '1h', false),
       le_try_become_leader(scope) AS now, set_config('leader_election.grace_period', '0', false) FROM unnest('{session,transaction,lease}'::text[]) scope;
SELECT lead('w', 'lease', 'job'), waits('a', 'SELECT le_become_leader(''job'', identity => ''a'')'), le_depose('job'), waits('a', '', 'grace'), le_try_become_leader('job') AS now;
SELECT dblink_disconnect('w'), gone('w'), dblink_cancel_query('a'), answer('a'), says('a', 'SET leader_election.grace_period = 0');

-- transactions that are guarded by the term end, whatever session they are in
SELECT open('g'), open('h'), open('i');
CREATE FUNCTION guard(who text, election text, note text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dblink_exec(who, 'BEGIN'), dblink_exec(who, format('INSERT INTO note VALUES (%L)', note));
	RETURN says(who, format('SELECT le_assert_leader(%L, %s)', election, (SELECT token FROM le_leader(election))));
END $$;
TRUNCATE note;
SELECT lead('w', 'lease', 'job'), lead('v', 'lease', 'another');
SELECT guard('g', 'job', 'guarded') AS g, guard('h', 'another', 'guarded by another') AS h;
-- rolled back to before it was guarded
SELECT dblink_exec('i', 'BEGIN'), dblink_exec('i', 'INSERT INTO note VALUES (''not guarded any more'')'), dblink_exec('i', 'SAVEPOINT a'), says('i', format('SELECT le_assert_leader(''job'', %s)', token)), dblink_exec('i', 'ROLLBACK TO a') FROM le_leader('job');
SELECT le_depose('job');
-- the transactions have ended at that time
SELECT count(*) AS guarded FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 19527;
SELECT gone('g'), alive();
SELECT dblink_exec('h', 'COMMIT'), dblink_exec('i', 'COMMIT');
SELECT * FROM note ORDER BY note;
SELECT le_try_become_leader('job'), le_resign('job');
SELECT le_depose('another');
SELECT dblink_disconnect('g');
-- by le_guard, in a session that leads, and in another, while it waits for something
CREATE TABLE guarded (note text);
CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH STATEMENT EXECUTE FUNCTION le_guard('job');
SELECT open('g'), dblink_exec('w', 'BEGIN'), says('w', 'SELECT le_try_become_leader(''job'')'), dblink_exec('w', 'INSERT INTO guarded VALUES (''w'')');
SELECT dblink_exec('g', format('SET leader_election.token = %s', token)), dblink_exec('g', 'BEGIN'), dblink_exec('g', 'INSERT INTO guarded VALUES (''g'')') FROM le_leader('job');
SELECT dblink_send_query('g', 'SELECT pg_sleep(60)');
SELECT le_depose('job');
SELECT gone('g'), gone('w'), alive();
SELECT count(*) FROM guarded;
SELECT dblink_disconnect('g'), dblink_disconnect('w');
-- the deposer's own: it goes on, but does not commit
TRUNCATE note;
SELECT says('v', 'SELECT le_lease(''job'', ''1 hour'') > 0');
BEGIN;
INSERT INTO note VALUES ('the deposer''s');
SELECT le_assert_leader('job', token) FROM le_leader('job');
SELECT le_depose('job');
SELECT 1 AS goes_on;
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY terse
SELECT count(*) FROM note;
-- sessions that the deposer may not terminate remain, with a warning, and do
-- not commit
SELECT open('w', 'regress_depose_leader'), open('g'), says('w', 'SELECT le_lease(''job'', ''1 hour'') > 0');
SELECT guard('g', 'job', 'a superuser''s');
SELECT waits('a', 'SELECT le_become_leader(''job'', identity => ''a'')');
SET ROLE regress_depose_member;
SET client_min_messages = error;
SELECT le_depose('job');
RESET client_min_messages;
RESET ROLE;
SELECT waits('a', '', 'guard'), alive();
SELECT says('g', 'COMMIT'), answer('a'), says('a', 'SELECT le_resign(''job'')');
-- prepared ones, too
SELECT says('w', 'SELECT le_lease(''job'', ''1 hour'') > 0');
SELECT guard('g', 'job', 'prepared');
SELECT dblink_exec('g', 'PREPARE TRANSACTION ''regress_depose''');
SELECT waits('a', 'SELECT le_become_leader(''job'', identity => ''a'')');
SELECT le_depose('job');
SELECT waits('a', '', 'guard'), alive();
ROLLBACK PREPARED 'regress_depose';
SELECT answer('a'), says('a', 'SELECT le_resign(''job'')'), count(*) FROM note;
SELECT says('w', 'SELECT le_lease(''job'', ''1 hour'') > 0'), guard('g', 'job', 'prepared and committed');
SELECT dblink_exec('g', 'PREPARE TRANSACTION ''regress_depose''');
\set VERBOSITY default
SELECT le_depose('job'), le_try_become_leader('job') AS now;
-- which is told without a leader, too
SELECT le_depose('job');
SELECT le_depose('another job');
\set VERBOSITY terse
COMMIT PREPARED 'regress_depose';
SELECT le_try_become_leader('job'), le_resign('job'), count(*) FROM note;
SELECT dblink_disconnect(who), gone(who) FROM unnest('{a,b,e,g,h,i,v,w}'::text[]) who;

SET client_min_messages = warning;
DROP SCHEMA regress_depose CASCADE;
DROP ROLE regress_depose_leader, regress_depose_member, regress_depose_noinherit, regress_depose_stranger, regress_depose_signal, regress_depose_super;
DROP EXTENSION dblink;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
SELECT * FROM _le_registry_candidates(false);
