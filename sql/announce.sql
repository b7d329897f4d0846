--
-- NOTIFY on the channel leader_election: when a term begins or ends, or its leader
-- publishes a value
--
-- Another connection listens, that of dblink, because psql tells process IDs with
-- what it hears.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
CREATE EXTENSION dblink;
CREATE FUNCTION connect_as(name text) RETURNS text LANGUAGE sql AS $$
SELECT dblink_connect(name, format('dbname=%L port=%L host=%L user=%L', current_database(), current_setting('port'),
                                   split_part(current_setting('unix_socket_directories'), ',', 1), current_user))
$$;
SELECT connect_as('ear');
SELECT dblink_exec('ear', 'LISTEN leader_election');
CREATE TABLE heard (n serial, payload text);
-- returns all that was announced before this call, in order: a commit of this
-- session sends what is left, and that which the ear waits for comes after it
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
		FOR heard IN SELECT extra FROM dblink_get_notify('ear') LOOP
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
       payload::json->>'identity' AS identity, payload::json->>'reason' AS reason,
       dense_rank() OVER (ORDER BY (payload::json->>'token')::bigint) AS term
FROM heard ORDER BY n;
RESET client_min_messages;

-- off by default
SELECT le_try_become_leader('job'), le_proclaim('job', 'v'), le_resign('job');
SHOW leader_election.notify;
SELECT le_lease('lease', '1 hour') AS t1 \gset
SELECT le_resign('lease', :t1);
CALL hear();
TABLE announced;
-- settable, by any role
CREATE ROLE regress_announce;
SET ROLE regress_announce;
SET leader_election.notify = on;
RESET ROLE;
DROP ROLE regress_announce;

-- which fields
SELECT le_try_become_leader('job', identity => 'me');
SELECT le_token('job') AS t1 \gset
SELECT le_proclaim('job', 'a value');
SELECT le_resign('job');
CALL hear();
SELECT replace(payload, '"token": ' || :t1, '"token": T1') FROM heard ORDER BY n;
-- nothing that changes nothing
SELECT le_try_become_leader('job', identity => 'me'), le_try_become_leader('job', identity => 'me'), le_am_leader('job');
SELECT le_lease('job', '1 hour');
SET client_min_messages = error;
SELECT le_resign('another'), le_proclaim('another', 'v'), le_resign('job', 0);
RESET client_min_messages;
CALL le_observe('job', timeout => '0') \gset
CALL hear();
TABLE announced;
SELECT le_resign_all();
CALL hear();
TABLE announced;
-- nor transaction scope, which would be over
BEGIN;
SELECT le_try_become_leader_xact('xact', identity => 'x');
COMMIT;
CALL hear();
TABLE announced;

-- what has happened for good is announced after a rollback, too
SET client_min_messages = warning;
BEGIN;
SELECT le_try_become_leader('job', identity => 'me');
ROLLBACK;
CALL hear();
TABLE announced;
BEGIN;
SELECT le_resign('job');
SELECT 1 / 0;
ROLLBACK;
CALL hear();
TABLE announced;
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader('job', identity => 'me');
ROLLBACK TO a;
SAVEPOINT b;
SELECT le_resign('job');
ROLLBACK TO b;
COMMIT;
CALL hear();
TABLE announced;
-- and after the transaction was prepared
BEGIN;
SELECT le_try_become_leader('job', identity => 'me') AND le_resign('job');
PREPARE TRANSACTION 'regress_announce';
COMMIT PREPARED 'regress_announce';
CALL hear();
TABLE announced;
RESET client_min_messages;
-- what has not, is not: leases; values are published all the same
SELECT le_try_become_leader('job', identity => 'me');
CALL hear();
BEGIN;
SELECT le_proclaim('job', 'v'), le_lease('lease', '1 hour') > 0 AS lease;
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT le_proclaim('job', 'v'), le_lease('lease', '1 hour') > 0 AS lease;
ROLLBACK TO a;
COMMIT;
CALL hear();
TABLE announced;
-- nor what was given up before it began
BEGIN;
SELECT le_lease('lease', '1 hour') AS t2 \gset
SELECT le_resign('lease', :t2);
COMMIT;
CALL hear();
TABLE announced;
-- a commit that fails
BEGIN;
SELECT le_assert_leader('job'), le_lease('lease', '1 hour') > 0 AS lease;
SELECT pg_advisory_unlock_all();
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
CALL hear();
TABLE announced;

-- a value that is born with its lease comes with the news of that
BEGIN;
SELECT le_lease('lease', '1 hour', identity => 'l') AS t3 \gset
SELECT le_proclaim('lease', 'v', :t3);
COMMIT;
SELECT le_resign('lease', :t3);
CALL hear();
TABLE announced;
-- leases
SELECT le_lease('lease', '1 hour', identity => 'l') AS t3 \gset
SELECT le_renew('lease', :t3), le_renew('lease', :t3, '2 hours'), le_proclaim('lease', 'v', :t3);
SELECT le_resign('lease', :t3);
CALL hear();
TABLE announced;
-- one that is resigned in a transaction that is rolled back
SELECT le_lease('lease', '1 hour', identity => 'l') AS t3 \gset
BEGIN;
SELECT le_proclaim('lease', 'v', :t3), le_resign('lease', :t3);
ROLLBACK;
CALL hear();
TABLE announced;
-- one that expires is announced once, by the session that finds it: the
-- observer
SELECT le_lease('lease', '100 ms', identity => 'l') AS t3 \gset
CALL le_observe('lease') \gset
CALL le_observe('lease', :version, '1 s') \gset
CALL le_observe('lease') \gset
CALL hear();
TABLE announced;
-- or the next one
SELECT le_lease('lease', '100 ms', identity => 'l') AS t3 \gset
SELECT pg_sleep(0.15);
SELECT le_try_become_leader('lease', identity => 'next');
CALL hear();
TABLE announced;
SELECT le_resign('lease');
CALL hear();
-- by the setting of that session
SELECT le_lease('lease', '100 ms', identity => 'l') > 0 AS lease;
SELECT pg_sleep(0.15);
SET leader_election.notify = off;
CALL le_observe('lease') \gset
SET leader_election.notify = on;
CALL hear();
TABLE announced;

-- locks that went away
SELECT le_try_become_leader('job', identity => 'me');
SELECT pg_advisory_unlock_all();
CALL hear();
TABLE announced;

-- the end of a session is not announced, but the beginning of the next term is
SELECT connect_as('other');
SELECT * FROM dblink('other', $$SELECT set_config('leader_election.notify', 'on', false)$$) AS t (value text);
SELECT * FROM dblink('other', $$SELECT le_try_become_leader('job', identity => 'other')$$) AS t (leads boolean);
SELECT dblink_exec('other', 'BEGIN');
SELECT * FROM dblink('other', $$SELECT le_resign('job') AND le_try_become_leader('job', identity => 'again')$$) AS t (leads boolean);
SELECT dblink_disconnect('other');
SELECT le_become_leader('job', '1 min', identity => 'me');
CALL hear();
TABLE announced;
SELECT le_resign('job');
CALL hear();

-- JSON, whatever the name, and the identity
CREATE TEMP TABLE nasty (n serial, name text);
INSERT INTO nasty (name) VALUES ('"'), ('\'), ('\"'), ('''; DROP TABLE x; --'), (E'\n\r\t\b\f'), (E'\x7f'), (repeat(E'\x01', 255)), (repeat('\', 255)), (repeat('"', 255)),
  (U&'\+01F600 \00E9 \2028'), (repeat(U&'\+01F600', 63)), ('null'), ('json {"a": 1}'), ('%s %d %n'), ('</script>');
SELECT count(*), bool_and(le_try_become_leader(name, identity => name) AND le_proclaim(name, 'v') AND le_resign(name)) FROM nasty;
SELECT count(le_lease(name, '1 hour', identity => name)) FROM nasty;
SELECT bool_and(le_resign(name, token)) FROM le_leaders;
CALL hear();
SELECT count(*), count(payload::json), bool_and(octet_length(payload) < 8000) AS fit, max(octet_length(payload)) > 3000 AS long FROM heard;
-- in ASCII
SELECT bool_and(octet_length(payload) = length(payload)) AS ascii FROM heard;
SELECT count(*), count(*) FILTER (WHERE election = identity) AS same, count(*) FILTER (WHERE election IN (SELECT name FROM nasty)) AS known FROM announced;

-- an identity that was made up of the client's address shows the user only
CREATE ROLE regress_announce LOGIN;
SET SESSION AUTHORIZATION regress_announce;
SET application_name = '';
SELECT le_try_become_leader('job');
SELECT identity FROM le_leader('job');
SELECT le_proclaim('job', 'v'), le_resign('job');
SELECT le_lease('lease', '1 hour') AS t3 \gset
SELECT le_resign('lease', :t3);
-- not what the application gave
SELECT le_try_become_leader('job', identity => 'a@b'), le_resign('job');
SET application_name = 'c@d';
SELECT le_try_become_leader('job'), le_resign('job');
RESET SESSION AUTHORIZATION;
RESET application_name;
CALL hear();
TABLE announced;
DROP ROLE regress_announce;

-- many in one transaction: the last 10,000
SET leader_election.log_terms = off;
BEGIN;
SET LOCAL client_min_messages = warning;
SELECT count(*) FILTER (WHERE le_try_become_leader('many', identity => i::text) AND le_resign('many')) FROM generate_series(1, 501) i;
ROLLBACK;
CALL hear();
SELECT count(*), count(DISTINCT payload), min((payload::json->>'identity')::int) FROM heard;
RESET leader_election.log_terms;
-- which are forgotten after that
SELECT le_try_become_leader('job', identity => 'me'), le_resign('job');
CALL hear();
TABLE announced;

SELECT dblink_disconnect('ear');
DROP PROCEDURE hear;
DROP VIEW announced;
DROP TABLE heard;
DROP FUNCTION connect_as;
DROP EXTENSION dblink;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
