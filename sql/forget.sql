--
-- le_forget, and what pg_stat_leader_election_reset() forgets: elections that are vacant and
-- that nothing waits for, but not what decides whether a grace period follows
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
CREATE SCHEMA regress_forget;
SET search_path = regress_forget, public;
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/sessions.psql
SELECT open('a');
-- returns when a session observes an election
CREATE FUNCTION observes(who text, name text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dblink_send_query(who, format('CALL le_observe(%L, %s, ''1 min'')', name, (
		SELECT version FROM dblink(who, format('CALL le_observe(%L)', name)) AS t (version bigint, token bigint, identity text, value text))));
	FOR i IN 1 .. 1000 LOOP
		PERFORM pg_stat_clear_snapshot();
		IF EXISTS (SELECT FROM pg_stat_activity WHERE application_name = who AND wait_event_type = 'Extension') THEN
			RETURN 'it observes';
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
CREATE TABLE last (token bigint);
CREATE VIEW known AS SELECT coalesce(name, 'key ' || key) AS election, terms, denied, vacant_since IS NOT NULL AS vacant
FROM pg_stat_leader_election ORDER BY 1;
SELECT pg_stat_leader_election_reset();
TABLE known;
RESET client_min_messages;

-- not known
SELECT le_forget('unknown');
TABLE known;
-- led, in each scope
SELECT le_try_become_leader('led'), le_lease('leased', '1 hour') AS lease \gset
SELECT le_forget('led'), le_forget('leased');
BEGIN;
SELECT le_lease('not yet leased', '1 hour') > 0 AS leased;
SELECT le_forget('not yet leased');
ROLLBACK;
TABLE known;
-- resigned: gone, until it is next asked for
SELECT le_resign('led'), le_resign('leased', :lease);
SELECT le_forget('led'), le_forget('leased');
TABLE known;
SELECT le_forget('led'), le_forget('leased');
SELECT le_try_become_leader('led'), le_lease('leased', '1 hour') AS lease \gset
TABLE known;
SELECT le_resign('led'), le_resign('leased', :lease);
SELECT pg_stat_leader_election_reset();
-- a rollback brings nothing back
BEGIN;
SELECT le_forget('never was');
ROLLBACK;
-- a denied bid counts from zero
SELECT le_try_become_leader('led'), le_resign('led'), le_forget('led');
SELECT says('a', $$SELECT le_try_become_leader_xact('led')$$), le_try_become_leader('led'), le_resign('led'), le_forget('led');
SELECT says('a', $$SELECT le_lease('led', '1 hour') > 0$$), le_try_become_leader('led');
SELECT * FROM known WHERE election = 'led';
SELECT says('a', $$SELECT le_resign('led', token) FROM le_leader('led')$$), le_forget('led');

-- a lease that has run out, and was not found to have: it is over for good, as expired
SELECT le_lease('expired', '100 ms') AS lease \gset
SELECT pg_sleep(0.2);
SELECT le_forget('expired'), le_renew('expired', :lease);
TABLE known;
SELECT le_lease('expired', '1 hour') AS lease \gset
TABLE known;
SELECT le_resign('expired', :lease), le_forget('expired');

-- candidates in line, observers, candidates for many elections
SELECT le_lease('waited for', '1 hour') AS lease \gset
SELECT waits('a', $$SELECT le_become_leader('waited for')$$);
SELECT le_forget('waited for');
SELECT le_resign('waited for', :lease), answer('a'), le_forget('waited for');
SELECT says('a', $$SELECT le_resign('waited for')$$), le_forget('waited for');
INSERT INTO last SELECT le_lease('seen', '1 hour');
SELECT le_resign('seen', token) FROM last;
SELECT observes('a', 'seen'), le_forget('seen');
SELECT pg_stat_leader_election_reset();
TABLE known;
SELECT le_try_become_leader('seen'), answer('a') <> '' AS observed;
SELECT le_resign('seen'), le_forget('seen');
SELECT le_try_become_leader('followed'), pg_advisory_unlock_all();
SELECT says('a', 'SET leader_election.grace_period = ''1 h''');
SELECT waits('a', 'CALL le_campaign(ARRAY[''followed''])'), le_forget('followed');
SELECT dblink_cancel_query('a'), answer('a'), le_forget('followed');
SELECT says('a', 'RESET leader_election.grace_period');

-- the end of a term that was not resigned is not forgotten: the grace period goes on
SELECT le_try_become_leader('lost'), le_try_become_leader('lost 2'), pg_advisory_unlock_all();
SET leader_election.grace_period = '1 h';
SELECT le_forget('lost'), le_forget('lost');
SELECT pg_stat_leader_election_reset();
TABLE known;
SELECT le_try_become_leader('lost'), le_try_become_leader('lost 2');
TABLE known;
-- nor is it forgotten that one was resigned
SET leader_election.grace_period = 0;
SELECT le_try_become_leader('lost'), le_resign('lost'), le_forget('lost');
SET leader_election.grace_period = '1 h';
SELECT le_try_become_leader('lost'), le_resign('lost');
RESET leader_election.grace_period;

-- reset: what is led stays, and counts from zero
SELECT le_try_become_leader('led'), le_try_become_leader('resigned'), le_resign('resigned');
SELECT says('a', $$SELECT le_try_become_leader('led')$$);
TABLE known;
SELECT pg_stat_leader_election_reset();
TABLE known;
SELECT le_resign_all();

-- one of two names with one key: see collision.sql
SELECT le_try_become_leader('worker-queue-mail.sender'), le_resign('worker-queue-mail.sender');
SELECT le_forget('HwFfjYHs9PGi-Rwb-Amyj4y5'), le_forget('worker-queue-mail.sender');

\set VERBOSITY sqlstate
SELECT le_forget(NULL);
SELECT le_forget(6003);
SELECT le_forget('');
\set VERBOSITY default
SELECT dblink_disconnect('a');
SET client_min_messages = warning;
DROP SCHEMA regress_forget CASCADE;
DROP EXTENSION dblink;
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
