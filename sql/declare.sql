--
-- Declared elections: their candidates, and their rules
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
CREATE EXTENSION dblink;
CREATE FUNCTION connect_as(name text, role text DEFAULT current_user) RETURNS text LANGUAGE sql AS $$
SELECT dblink_connect(name, format('dbname=%L port=%L host=%L user=%L application_name=%L', current_database(), current_setting('port'),
                                   split_part(current_setting('unix_socket_directories'), ',', 1), role, name))
$$;
RESET client_min_messages;
CREATE ROLE regress_le_team;
CREATE ROLE regress_le_member LOGIN IN ROLE regress_le_team;
CREATE ROLE regress_le_nephew IN ROLE regress_le_member;
CREATE ROLE regress_le_apart LOGIN NOINHERIT IN ROLE regress_le_team;
CREATE ROLE regress_le_stranger LOGIN;
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/outcome.psql

-- what is declared is there to be read
SELECT le_declare('job', 'regress_le_team');
SELECT le_declare('all', 'regress_le_team', '1 min', '2 min', true);
SELECT le_declare('rules', grace => '0', max_ttl => '100 ms');
CREATE VIEW declared AS SELECT name, candidates, grace, max_ttl, private, candidates_oid::regrole AS role, origin > 0 AS here FROM le_declarations ORDER BY name;
TABLE declared;
-- each declaration changes what is given, and leaves the rest as it is
SELECT le_declare('all', max_ttl => '1 h');
SELECT le_declare(name => 'rules');
SELECT le_declare('rules', NULL, NULL, NULL, NULL);
TABLE declared;
SELECT le_declare('all', 'regress_le_member', grace => '0'), le_declare('rules', private => true);
TABLE declared;
SELECT le_declare('all', private => false);
SELECT name, candidates, private FROM declared;
SELECT le_undeclare('all'), le_undeclare('rules'), le_undeclare('rules'), le_undeclare('never was');
SELECT name FROM le_declarations;

--
-- Roles that may stand, by every kind of bid in every scope
--
CREATE TABLE bids (n int, bid text);
INSERT INTO bids VALUES
 (1, $$SELECT le_try_become_leader('job')$$),
 (2, $$SELECT le_become_leader('job')$$),
 (3, $$SELECT le_become_leader('job', '0')$$),
 (4, $$SELECT le_become_leader('job', '10 ms')$$),
 (5, $$SELECT le_try_become_leader_xact('job')$$),
 (6, $$SELECT le_become_leader_xact('job')$$),
 (7, $$SELECT le_become_leader_xact('job', '10 ms')$$),
 (8, $$SELECT le_lease('job', '1 min') > 0$$),
 (9, $$SELECT le_lease('job', '1 min', token => 7) > 0$$),
 (10, $$CALL le_campaign('job')$$),
 (11, $$CALL le_campaign('job', '0')$$),
 (12, $$CALL le_campaign('job', '10 ms', ttl => '1 min')$$),
 (13, $$CALL le_campaign(ARRAY['job'])$$),
 (14, $$CALL le_campaign(ARRAY['job'], '0')$$),
 (15, $$CALL le_campaign(ARRAY['job'], '10 ms', ttl => '1 min')$$);
GRANT SELECT ON bids TO PUBLIC;
-- 'elected', or the error; and nothing is left
CREATE FUNCTION stand() RETURNS TABLE (n int, bid text, came_of_it text) LANGUAGE plpgsql
SET client_min_messages = error AS $$
DECLARE
	result text;
BEGIN
	FOR n, bid IN SELECT b.n, b.bid FROM bids b ORDER BY b.n LOOP
		BEGIN
			EXECUTE bid INTO result;
			came_of_it := CASE WHEN result IN ('true', 't') OR result ~ '^\d+$' THEN 'elected' ELSE 'not elected: ' || coalesce(result, 'null') END;
			PERFORM le_resign_all(), le_resign('job', (SELECT token FROM le_leader('job')));
			-- back to where the lock of transaction scope, too, was not held
			RAISE SQLSTATE 'XX999';
		EXCEPTION
			WHEN SQLSTATE 'XX999' THEN
			WHEN OTHERS THEN came_of_it := SQLSTATE || ' ' || SQLERRM;
		END;
		RETURN NEXT;
	END LOOP;
END
$$;
SET ROLE regress_le_stranger;
SELECT bid, came_of_it FROM stand();
SELECT le_try_become_leader('job');
SELECT count(*) FROM le_leaders;
SELECT count(*) FROM le_candidates;
RESET ROLE;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory';
-- members may, and members of members, and superusers
SET ROLE regress_le_member;
SELECT DISTINCT came_of_it FROM stand();
SET ROLE regress_le_nephew;
SELECT DISTINCT came_of_it FROM stand();
SET ROLE regress_le_team;
SELECT DISTINCT came_of_it FROM stand();
RESET ROLE;
SELECT DISTINCT came_of_it FROM stand();
-- a member that does not inherit has to set the role
SET ROLE regress_le_apart;
SELECT DISTINCT came_of_it FROM stand();
RESET ROLE;
SET SESSION AUTHORIZATION regress_le_apart;
SELECT outcome($$SELECT le_try_become_leader('job')$$);
SET ROLE regress_le_team;
SELECT outcome($$SELECT le_try_become_leader('job')$$), le_resign('job');
RESET SESSION AUTHORIZATION;
-- a session that sets a role that may not stand may not, whatever its own role
SET SESSION AUTHORIZATION regress_le_nephew;
SELECT outcome($$SELECT le_try_become_leader('job')$$), le_resign('job');
RESET SESSION AUTHORIZATION;
GRANT regress_le_stranger TO regress_le_nephew;
SET SESSION AUTHORIZATION regress_le_nephew;
SET ROLE regress_le_stranger;
SELECT outcome($$SELECT le_try_become_leader('job')$$);
RESET SESSION AUTHORIZATION;
REVOKE regress_le_stranger FROM regress_le_nephew;
-- a function with a member's rights may, for each role that may call it, until
-- the end of the transaction: see another_role.sql
CREATE FUNCTION of_member() RETURNS text LANGUAGE sql SECURITY DEFINER AS $$
	SELECT outcome('SELECT le_try_become_leader_xact(''job'')') $$;
ALTER FUNCTION of_member OWNER TO regress_le_member;
SET ROLE regress_le_stranger;
SELECT of_member();
SELECT outcome($$SELECT le_try_become_leader('job')$$);
-- a stranger's function may not, for a member
RESET ROLE;
ALTER FUNCTION of_member OWNER TO regress_le_stranger;
SET ROLE regress_le_member;
SELECT of_member();
RESET ROLE;
DROP FUNCTION of_member;
-- membership counts when the bid is made
GRANT regress_le_team TO regress_le_stranger;
SET ROLE regress_le_stranger;
SELECT outcome($$SELECT le_try_become_leader('job')$$), le_resign('job');
RESET ROLE;
REVOKE regress_le_team FROM regress_le_stranger;
SET ROLE regress_le_stranger;
SELECT outcome($$SELECT le_try_become_leader('job')$$);
RESET ROLE;
-- the role is the one with that name, when the bid is made
ALTER ROLE regress_le_team RENAME TO regress_le_renamed;
SELECT candidates FROM le_declarations;
SET ROLE regress_le_member;
SELECT le_try_become_leader('job');
RESET ROLE;
ALTER ROLE regress_le_renamed RENAME TO regress_le_team;
SET ROLE regress_le_member;
SELECT outcome($$SELECT le_try_become_leader('job')$$), le_resign('job');
RESET ROLE;
-- among many elections, one that is closed to the candidate is an error
SET ROLE regress_le_stranger;
CALL le_campaign(ARRAY['open to all', 'job'], '0', token => NULL, name => NULL) \gset won_
SELECT :'won_name' AS name, le_resign(:'won_name');
SELECT outcome($$CALL le_campaign(ARRAY['job', 'open to all'], '0')$$) AS came_of_it, count(*) AS leads FROM le_leaders;
-- other elections are open to all
SELECT le_try_become_leader('jo'), le_try_become_leader('job '), le_try_become_leader('JOB');
SELECT le_resign_all();
-- and so is this one, when it is not declared, or declared for all
RESET ROLE;
SELECT le_declare('job', grace => '1 s');
SET ROLE regress_le_stranger;
SELECT DISTINCT came_of_it FROM stand();
RESET ROLE;
SELECT le_undeclare('job'), le_declare('job', grace => '1 s');
SET ROLE regress_le_stranger;
SELECT DISTINCT came_of_it FROM stand();
RESET ROLE;
SELECT le_declare('job', 'regress_le_team');
SELECT le_undeclare('job');
SET ROLE regress_le_stranger;
SELECT DISTINCT came_of_it FROM stand();
RESET ROLE;

-- to resign, to look, and to be asked about, is not to stand
SELECT le_declare('job', 'regress_le_team');
SELECT le_try_become_leader('job', identity => 'boss');
SET ROLE regress_le_stranger;
SELECT identity FROM le_leader('job');
SELECT le_am_leader('job'), le_token('job') > 0 AS token, le_resign('job');
CALL le_observe('job', version => NULL, token => NULL, identity => NULL, value => NULL) \gset seen_
SELECT :{?seen_token} AS led;
-- the bid of a stranger is refused before it shows the leader
RESET ROLE;
SELECT le_try_become_leader('job', identity => 'boss');
SELECT connect_as('stranger', 'regress_le_stranger');
SELECT * FROM dblink('stranger', $$SELECT le_try_become_leader('job')$$, false) AS t (leads boolean);
SELECT * FROM dblink('stranger', $$SELECT le_become_leader('job', '1 s')$$, false) AS t (leads boolean);
SELECT denied FROM pg_stat_leader_election WHERE name = 'job';
SELECT le_resign('job');

--
-- Running terms go on after a declaration that shuts their leader out
--
SELECT le_undeclare('job');
SELECT * FROM dblink('stranger', $$SELECT le_try_become_leader('job')$$) AS t (leads boolean);
SELECT le_declare('job', 'regress_le_team');
SELECT * FROM dblink('stranger', $$SELECT le_am_leader('job'), le_try_become_leader('job'), le_become_leader('job'), le_proclaim('job', 'v')$$)
 AS t (leads boolean, try boolean, become boolean, proclaimed boolean);
SELECT usename, value FROM le_leaders WHERE name = 'job';
SELECT * FROM dblink('stranger', $$SELECT le_resign('job')$$) AS t (resigned boolean);
SELECT * FROM dblink('stranger', $$SELECT le_try_become_leader('job')$$, false) AS t (leads boolean);
-- a lease, too, and its renewals
SELECT le_undeclare('job');
SELECT * FROM dblink('stranger', $$SELECT le_lease('job', '1 min')$$) AS t (token bigint) \gset
SELECT le_declare('job', 'regress_le_team', max_ttl => '1 s');
SELECT * FROM dblink('stranger', format($$SELECT le_am_leader('job', %1$s), le_renew('job', %1$s), le_renew('job', %1$s, '1 s')$$, :token))
 AS t (leads boolean, renewed boolean, with_ttl boolean);
SELECT token = :token AS same FROM dblink('stranger', format($$SELECT le_lease('job', '1 s', token => %s)$$, :token)) AS t (token bigint);
SELECT ttl FROM le_leader('job');
SELECT * FROM dblink('stranger', format($$SELECT le_resign('job', %s)$$, :token)) AS t (resigned boolean);
SELECT * FROM dblink('stranger', format($$SELECT le_lease('job', '1 s', token => %s)$$, :token), false) AS t (token bigint);

--
-- max_ttl: for le_lease, le_renew, le_campaign; for members and superusers, too
--
SELECT le_declare('short', max_ttl => '1 s');
SELECT le_lease('short', '1001 ms');
\echo :LAST_ERROR_SQLSTATE
SELECT outcome($$CALL le_campaign('short', '0', ttl => '1001 ms')$$), outcome($$CALL le_campaign(ARRAY['short'], '0', ttl => '1001 ms')$$),
       outcome($$CALL le_campaign('short', ttl => '2 s')$$), outcome($$CALL le_campaign(ARRAY['short'], ttl => '2 s')$$);
SELECT le_lease('short', '1 s') AS token \gset
SELECT ttl FROM le_leader('short');
SELECT le_renew('short', :token, '1000.001 ms');
\echo :LAST_ERROR_SQLSTATE
SELECT outcome(format($$SELECT le_lease('short', '2 s', token => %s)$$, :token));
SELECT le_renew('short', :token), le_renew('short', :token, '900 ms'), le_renew('short', :token, '1 s');
-- a lease that is longer than a new declaration allows goes on as it is
SELECT le_declare('short', max_ttl => '500 ms');
SELECT le_renew('short', :token), ttl FROM le_leader('short');
SELECT outcome(format($$SELECT le_lease('short', '1 s', token => %s) = %1$s$$, :token)), outcome(format($$SELECT le_renew('short', %s, '1 s')$$, :token));
SELECT outcome(format($$SELECT le_lease('short', '999 ms', token => %s)$$, :token)), outcome(format($$SELECT le_renew('short', %s, '501 ms')$$, :token));
SELECT le_renew('short', :token, '500 ms'), le_renew('short', :token), ttl FROM le_leader('short');
SELECT outcome(format($$SELECT le_renew('short', %s, '1 s')$$, :token)), le_resign('short', :token);
-- it does not extend what the server allows
SELECT le_declare('long', max_ttl => '1 d');
SELECT outcome($$SELECT le_lease('long', '86400.001 s')$$);
-- no matter for other scopes
SELECT le_declare('short', max_ttl => '100 ms');
SELECT le_try_become_leader('short'), le_resign('short');
SELECT le_undeclare('short'), le_undeclare('long');

--
-- Grace of its own, instead of the setting
--
-- what the server knows nothing of may have been lost, too
SELECT count(*) FILTER (WHERE le_try_become_leader(name) AND le_resign(name)) FROM unnest('{none,short,set,long}'::text[]) name;
SET leader_election.grace_period = '1 d';
SELECT le_declare('none', grace => '0');
SELECT le_declare('short', grace => '200 ms');
SELECT le_try_become_leader('none'), le_try_become_leader('short'), le_try_become_leader('set');
SELECT pg_advisory_unlock_all();
SELECT le_try_become_leader('none'), le_try_become_leader('short'), le_try_become_leader('set');
SELECT le_become_leader('short', '10 s'), le_become_leader('set', '300 ms');
SELECT le_resign_all();
SET leader_election.grace_period = 0;
SELECT le_declare('long', grace => '1 d');
SELECT le_try_become_leader('long'), le_try_become_leader('none'), le_try_become_leader('set');
SELECT pg_advisory_unlock_all();
SELECT le_try_become_leader('long'), le_try_become_leader('none'), le_try_become_leader('set');
SELECT le_resign_all();
-- it is that of the declaration at the time of the bid
SELECT le_declare('long', grace => '0');
SELECT le_try_become_leader('long'), le_resign('long');
SELECT le_undeclare('long'), le_undeclare('none'), le_undeclare('short');
RESET leader_election.grace_period;

--
-- Private: the value is for members
--
SELECT le_declare('job', 'regress_le_team', private => true);
SELECT connect_as('member', 'regress_le_member');
SELECT * FROM dblink('member', $$SELECT le_try_become_leader('job', identity => 'm'), le_proclaim('job', 'secret')$$) AS t (leads boolean, said boolean);
SELECT value FROM le_leader('job');
SET ROLE regress_le_stranger;
SELECT name, identity, value FROM le_leaders;
SELECT identity, value FROM le_leader('job');
SELECT name, value FROM _le_registry_terms() WHERE token IS NOT NULL;
SELECT name, value FROM _le_registry_terms() WHERE key = hashtextextended('job', 0);
CALL le_observe('job', timeout => '0');
\echo :LAST_ERROR_SQLSTATE
SELECT outcome($$CALL le_observe('job')$$), outcome($$CALL le_observe('job', 1)$$);
SET ROLE regress_le_apart;
SELECT value FROM le_leader('job');
SELECT outcome($$CALL le_observe('job')$$);
SET ROLE regress_le_nephew;
SELECT value FROM le_leaders;
CALL le_observe('job', version => NULL, token => NULL, identity => NULL, value => NULL) \gset seen_
SELECT :'seen_value' AS value;
RESET ROLE;
CALL le_observe('job', version => NULL, token => NULL, identity => NULL, value => NULL) \gset seen_
SELECT :'seen_value' AS value;
-- as soon as it is declared, and no longer
SELECT le_declare('job', 'regress_le_team', private => false);
SET ROLE regress_le_stranger;
SELECT value FROM le_leader('job');
CALL le_observe('job', version => NULL, token => NULL, identity => NULL, value => NULL) \gset seen_
SELECT :'seen_value' AS value;
RESET ROLE;
-- an election that is private to all roles is open to all
SELECT le_undeclare('job'), le_declare('job', private => true);
SET ROLE regress_le_stranger;
SELECT value FROM le_leader('job');
RESET ROLE;
-- a lease's, too
SELECT * FROM dblink('member', $$SELECT le_resign('job')$$) AS t (resigned boolean);
SELECT le_declare('job', 'regress_le_team');
SELECT le_lease('job', '1 min', identity => 'l') AS token \gset
SELECT le_proclaim('job', 'secret', :token);
SET ROLE regress_le_stranger;
SELECT scope, identity, value FROM le_leaders;
RESET ROLE;
SELECT scope, identity, value FROM le_leaders;
SELECT le_resign('job', :token);

--
-- Transactional
--
SELECT le_undeclare('job');
BEGIN;
SELECT le_declare('job', 'regress_le_team');
SET LOCAL ROLE regress_le_stranger;
SELECT outcome($$SELECT le_try_become_leader('job')$$) AS here;
SELECT * FROM dblink('stranger', $$SELECT le_try_become_leader('job'), le_resign('job')$$) AS elsewhere (leads boolean, resigned boolean);
ROLLBACK;
SET ROLE regress_le_stranger;
SELECT outcome($$SELECT le_try_become_leader('job')$$), le_resign('job');
RESET ROLE;
SELECT le_declare('job', 'regress_le_team');
BEGIN;
SAVEPOINT a;
SELECT le_undeclare('job');
SET LOCAL ROLE regress_le_stranger;
SELECT outcome($$SELECT le_try_become_leader('job')$$), le_resign('job');
ROLLBACK TO a;
SET LOCAL ROLE regress_le_stranger;
SELECT outcome($$SELECT le_try_become_leader('job')$$) AS after_rollback;
RESET ROLE;
SAVEPOINT b;
SELECT le_declare('job'), le_declare('job', 'regress_le_member'), le_undeclare('job'), le_declare('job', 'regress_le_stranger');
RELEASE b;
SET LOCAL ROLE regress_le_stranger;
SELECT outcome($$SELECT le_try_become_leader('job')$$), le_resign('job');
SELECT * FROM dblink('stranger', $$SELECT le_try_become_leader('job')$$, false) AS elsewhere (leads boolean);
COMMIT;
SELECT * FROM dblink('stranger', $$SELECT le_try_become_leader('job'), le_resign('job')$$) AS elsewhere (leads boolean, resigned boolean);
TABLE declared;
-- in one statement, too
SELECT le_declare('job ' || i, 'regress_le_team') FROM generate_series(1, 3) i;
SELECT count(*) FROM le_declarations;
SELECT bool_and(le_undeclare(name)) FROM le_declarations WHERE name LIKE 'job _';
-- prepared, and committed by another
BEGIN;
SELECT le_declare('job', 'regress_le_team');
PREPARE TRANSACTION 'regress_declare';
SELECT * FROM dblink('stranger', $$SELECT le_try_become_leader('job'), le_resign('job')$$) AS prepared (leads boolean, resigned boolean);
COMMIT PREPARED 'regress_declare';
SELECT * FROM dblink('stranger', $$SELECT le_try_become_leader('job')$$, false) AS committed (leads boolean);

--
-- Written to by the table's owner
--
CREATE FUNCTION stranger() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN (SELECT outcome FROM dblink('stranger', $q$SELECT outcome($s$SELECT le_try_become_leader('job') AND le_resign('job')$s$)$q$) AS t (outcome text));
END
$$;
SELECT stranger();
DELETE FROM _le_declarations;
SELECT stranger();
INSERT INTO _le_declarations (name, candidates) VALUES ('job', 'regress_le_team');
SELECT stranger();
UPDATE _le_declarations SET candidates = 'regress_le_stranger';
SELECT stranger();
MERGE INTO _le_declarations d USING (VALUES ('job')) v (name) ON d.name = v.name WHEN MATCHED THEN UPDATE SET candidates = 'regress_le_team';
SELECT stranger();
TRUNCATE _le_declarations;
SELECT stranger();
COPY _le_declarations FROM stdin;
job	regress_le_team	\N	\N	f	\N	\N
\.
SELECT stranger();
BEGIN;
TRUNCATE _le_declarations;
SET LOCAL ROLE regress_le_stranger;
SELECT outcome($$SELECT le_try_become_leader('job')$$), le_resign('job');
ROLLBACK;
SELECT stranger();
BEGIN;
SAVEPOINT a;
DELETE FROM _le_declarations;
ROLLBACK TO a;
SET LOCAL ROLE regress_le_stranger;
SELECT outcome($$SELECT le_try_become_leader('job')$$);
COMMIT;
-- as a logical replica, or pg_restore --disable-triggers, does
SET session_replication_role = replica;
DELETE FROM _le_declarations;
SELECT stranger();
INSERT INTO _le_declarations (name, candidates) VALUES ('job', 'regress_le_team');
SELECT stranger();
TRUNCATE _le_declarations;
SELECT stranger();
RESET session_replication_role;
-- what the table does not take
SELECT outcome(format('INSERT INTO _le_declarations (name) VALUES (%L)', n)) FROM unnest(ARRAY['', repeat('n', 256), NULL]) n;
SELECT c, v, outcome(format('INSERT INTO _le_declarations (name, %I) VALUES (''n'', %L)', c, v))
FROM (VALUES ('grace', '-1 ms'), ('grace', '1 mon'), ('grace', '1 d 1 ms'), ('max_ttl', '0'), ('max_ttl', '99 ms'), ('max_ttl', '1 mon'), ('private', NULL)) bad (c, v);
-- a role that does not exist has no members
INSERT INTO _le_declarations (name, candidates) VALUES ('job', 'regress_le_no_such');
SELECT stranger();
DELETE FROM _le_declarations;
-- the key is the table's own
SELECT outcome($$INSERT INTO _le_declarations (name, key) VALUES ('n', 1)$$);

--
-- Roles that may declare
--
SET ROLE regress_le_stranger;
SELECT le_declare('job');
\echo :LAST_ERROR_SQLSTATE
SELECT le_undeclare('job');
\echo :LAST_ERROR_SQLSTATE
SELECT outcome($$INSERT INTO _le_declarations (name) VALUES ('n')$$), outcome('DELETE FROM _le_declarations'), outcome('TRUNCATE _le_declarations'),
       outcome($$UPDATE _le_declarations SET name = 'n'$$), outcome('LOCK _le_declarations IN EXCLUSIVE MODE');
SELECT count(*) FROM le_declarations;
RESET ROLE;
GRANT EXECUTE ON FUNCTION le_declare TO regress_le_stranger;
SET ROLE regress_le_stranger;
SELECT le_declare('job', 'regress_le_team');
SELECT outcome($$SELECT le_try_become_leader('job')$$);
SELECT le_declare('job', 'regress_le_stranger');
SELECT outcome($$SELECT le_try_become_leader('job')$$), le_resign('job');
SELECT outcome($$SELECT le_undeclare('job')$$), outcome($$DELETE FROM _le_declarations$$);
RESET ROLE;
REVOKE EXECUTE ON FUNCTION le_declare FROM regress_le_stranger;
GRANT EXECUTE ON FUNCTION le_undeclare TO regress_le_stranger;
SET ROLE regress_le_stranger;
SELECT le_undeclare('job');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION le_undeclare FROM regress_le_stranger;
-- not in a read-only transaction
BEGIN READ ONLY;
SELECT le_declare('job');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN READ ONLY;
SELECT le_undeclare('job');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- where it counts all the same
SELECT le_declare('job', 'regress_le_team');
BEGIN READ ONLY;
SET LOCAL ROLE regress_le_stranger;
SELECT le_try_become_leader('job');
ROLLBACK;
SELECT le_undeclare('job');

--
-- A role that was dropped: only superusers are left
--
CREATE ROLE regress_le_short_lived;
GRANT regress_le_short_lived TO regress_le_stranger;
SELECT le_declare('job', 'regress_le_short_lived', private => true);
SELECT stranger();
DROP ROLE regress_le_short_lived;
SELECT stranger();
SELECT candidates FROM le_declarations;
SELECT * FROM dblink('stranger', $$SELECT le_try_become_leader('job')$$, false) AS t (leads boolean);
SELECT * FROM dblink('stranger', $$CALL le_observe('job')$$, false) AS t (version bigint, token bigint, identity text, value text);
SELECT le_try_become_leader('job'), le_resign('job');
-- one that is created with that name, or given it, is another
CREATE ROLE regress_le_short_lived;
GRANT regress_le_short_lived TO regress_le_stranger;
SELECT stranger();
SELECT * FROM dblink('stranger', $$SELECT le_try_become_leader('job')$$, false) AS t (leads boolean);
SELECT * FROM dblink('stranger', $$CALL le_observe('job')$$, false) AS t (version bigint, token bigint, identity text, value text);
SELECT le_try_become_leader('job'), le_resign('job');
-- until that one is declared
SELECT le_declare('job', 'regress_le_short_lived');
SELECT stranger();
ALTER ROLE regress_le_short_lived RENAME TO regress_le_renamed;
SELECT stranger();
ALTER ROLE regress_le_renamed RENAME TO regress_le_short_lived;
SELECT stranger();
-- elsewhere, and where it was written without its OID, the name is what is meant
DROP ROLE regress_le_short_lived;
CREATE ROLE regress_le_short_lived;
GRANT regress_le_short_lived TO regress_le_stranger;
SELECT stranger();
UPDATE _le_declarations SET origin = origin + 1;
SELECT stranger();
UPDATE _le_declarations SET origin = origin - 1;
SELECT stranger();
UPDATE _le_declarations SET origin = NULL;
SELECT stranger();
UPDATE _le_declarations SET candidates_oid = NULL;
SELECT stranger();
DROP ROLE regress_le_short_lived;
SELECT stranger();
-- a number is the OID of a role, as regrole has it
SELECT le_declare('job', '10');
SELECT candidates = (SELECT rolname FROM pg_roles WHERE oid = 10) AS same FROM le_declarations;
SELECT le_undeclare('job');

--
-- declared_only
--
SET leader_election.declared_only = on;
SELECT DISTINCT came_of_it FROM stand();
SELECT le_try_become_leader('job');
\echo :LAST_ERROR_SQLSTATE
-- a declared election is open to its candidates
SELECT le_undeclare('job'), le_declare('job');
SELECT DISTINCT came_of_it FROM stand();
SELECT outcome($$CALL le_campaign(ARRAY['another', 'job'], '0')$$), le_resign_all();
SELECT le_declare('job', 'regress_le_team');
SET ROLE regress_le_stranger;
SELECT outcome($$SELECT le_try_become_leader('job')$$), outcome($$SELECT le_try_become_leader('another')$$);
-- not an ordinary role's to turn off
SET leader_election.declared_only = off;
\echo :LAST_ERROR_SQLSTATE
SELECT outcome($$SELECT set_config('leader_election.declared_only', 'off', false)$$), outcome('RESET leader_election.declared_only');
SHOW leader_election.declared_only;
RESET ROLE;
-- running terms go on; plain advisory locks are not its matter
RESET leader_election.declared_only;
SELECT le_try_become_leader('another'), le_lease('lease', '1 min') > 0 AS lease;
SET leader_election.declared_only = on;
SELECT le_am_leader('another'), le_try_become_leader('another'), le_renew('lease', token) FROM le_leader('lease');
SELECT le_resign_all(), le_resign('lease', token) FROM le_leader('lease');
SELECT pg_try_advisory_lock(42), pg_advisory_unlock(42);
RESET leader_election.declared_only;
SELECT le_undeclare('job');

--
-- Bad input
--
SELECT call, outcome('SELECT ' || call) FROM unnest(ARRAY[
 'le_declare(NULL)', $$le_declare('')$$, $$le_declare(repeat('n', 256))$$, $$le_declare(repeat(U&'\00e9', 128))$$,
 'le_undeclare(NULL)', $$le_undeclare('')$$, $$le_undeclare(repeat('n', 256))$$,
 $$le_declare('n', 'regress_le_no_such')$$, $$le_declare('n', '')$$, $$le_declare('n', '-')$$, $$le_declare('n', 0)$$, $$le_declare('n', 4294967295)$$, $$le_declare('n', 'public')$$,
 $$le_declare('n', grace => '-1 ms')$$, $$le_declare('n', grace => '1 d 1 us')$$, $$le_declare('n', grace => '1 mon')$$, $$le_declare('n', grace => '1 mon -30 d')$$, $$le_declare('n', grace => '178000000 y')$$,
 $$le_declare('n', max_ttl => '0')$$, $$le_declare('n', max_ttl => '99.999 ms')$$, $$le_declare('n', max_ttl => '1 d 1 us')$$, $$le_declare('n', max_ttl => '1 mon')$$, $$le_declare('n', max_ttl => '-1 s')$$,
 $$le_declare('{n}')$$, $$le_undeclare('{n}')$$,
 $$le_declare('n', 'regress_le_team', '1 s', '1 s', 'perhaps')$$, $$le_declare(42)$$]) call;
TABLE declared;
SELECT le_declare('n', grace => 'soon');
\echo :LAST_ERROR_SQLSTATE
SELECT le_declare('n', grace => '25 h');
SELECT le_declare('n', max_ttl => '1 ms');
-- the limits themselves
SELECT le_declare(repeat('n', 255), grace => '1 d', max_ttl => '1 d'), le_declare(repeat(U&'\00e9', 127), grace => '24 h', max_ttl => '100 ms'),
       le_declare('a', grace => '1 us'), le_declare('b', grace => '2 d -24 h');
SELECT octet_length(name), grace, max_ttl FROM le_declarations ORDER BY name;
SELECT bool_and(le_undeclare(name)) FROM le_declarations;

-- many
SELECT count(le_declare('many ' || i, 'regress_le_team')) FROM generate_series(1, 1000) i;
SET ROLE regress_le_stranger;
SELECT outcome($$SELECT le_try_become_leader('many 1')$$), outcome($$SELECT le_try_become_leader('many 1000')$$), outcome($$SELECT le_try_become_leader('many 1001')$$), le_resign('many 1001');
RESET ROLE;
SELECT count(*) FILTER (WHERE le_undeclare(name)) FROM le_declarations;

SELECT dblink_disconnect('stranger'), dblink_disconnect('member');
DROP FUNCTION stranger, stand, outcome, connect_as;
DROP VIEW declared;
DROP TABLE bids;
DROP EXTENSION dblink;
DROP ROLE regress_le_team, regress_le_member, regress_le_nephew, regress_le_apart, regress_le_stranger;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
