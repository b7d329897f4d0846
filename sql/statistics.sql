--
-- pg_stat_leader_election: what is counted of each election
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
SELECT pg_stat_leader_election_reset();
-- no times
CREATE TEMP VIEW counts AS
SELECT name, terms, resigned, session_ended AS session, transaction_ended AS xact, expired, lock_released AS released,
       extension_dropped AS dropped, denied, candidates
FROM pg_stat_leader_election WHERE name LIKE 'stat%' OR key IN (4711, 4712) ORDER BY name, key;
-- all the time since the reset is led or vacant
CREATE TEMP VIEW balance AS
SELECT name, time_vacant + time_led <= clock_timestamp() - stats_reset + interval '0.1 s' AS bounded,
       time_vacant >= '0' AND time_led >= '0' AND longest_wait >= '0' AS sane
FROM pg_stat_leader_election, pg_stat_leader_election_info WHERE name LIKE 'stat%' ORDER BY name;
\d pg_stat_leader_election
\d pg_stat_leader_election_info

-- every column that counts: terms by the way they end
SELECT le_try_become_leader('stat'), le_try_become_leader('stat');
TABLE counts;
SELECT le_resign('stat');
TABLE counts;
BEGIN;
SELECT le_try_become_leader_xact('stat');
COMMIT;
BEGIN;
SELECT le_try_become_leader_xact('stat');
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact('stat');
ROLLBACK TO a;
COMMIT;
TABLE counts;
SELECT le_try_become_leader('stat');
SELECT pg_advisory_unlock_all();
TABLE counts;
SELECT le_lease('stat', '1 hour') AS t1 \gset
SELECT le_renew('stat', :t1), le_renew('stat', :t1, '2 hours'), le_lease('stat', '1 hour', token => :t1) = :t1 AS renewed;
TABLE counts;
SELECT le_resign('stat', :t1);
TABLE counts;
-- a lease that has never been
BEGIN;
SELECT le_lease('stat', '1 hour') > 0 AS lease;
TABLE counts;
ROLLBACK;
BEGIN;
SELECT le_lease('stat', '1 hour') AS t1 \gset
SELECT le_resign('stat', :t1);
COMMIT;
TABLE counts;
-- one that has expired: counted once, by the session that finds it
SELECT le_lease('stat', '100 ms') > 0 AS lease;
SELECT pg_sleep(0.15);
TABLE counts;
CALL le_observe('stat') \gset
TABLE counts;
SELECT le_lease('stat', '100 ms') > 0 AS lease;
SELECT pg_sleep(0.15);
SELECT le_try_become_leader('stat'), le_resign('stat');
TABLE counts;
-- a lease that does not begin
SET client_min_messages = error;
BEGIN;
SELECT le_lease('stat rolled back', '1 hour') IS NOT NULL AS taken;
SAVEPOINT a;
SELECT le_lease('stat rolled back to', '1 hour') IS NOT NULL AS taken;
ROLLBACK TO a;
COMMIT;
BEGIN;
SELECT le_lease('stat rolled back to', '1 hour') IS NOT NULL AS taken;
SELECT 1 / 0;
ROLLBACK;
BEGIN;
SELECT le_resign('stat rolled back to', le_lease('stat rolled back to', '1 hour'));
ROLLBACK;
RESET client_min_messages;
SELECT name, terms, leases_rolled_back FROM pg_stat_leader_election WHERE name LIKE 'stat rolled%' ORDER BY name;

-- one that has expired counts as such from then on, although no session has noticed it
SELECT le_lease('stat expires', '100 ms') IS NOT NULL AS taken;
SELECT pg_sleep(0.15);
SELECT name, terms, expired, vacant_since IS NOT NULL AS vacant FROM pg_stat_leader_election WHERE name = 'stat expires';
SELECT le_lease('stat expires', '1 hour') IS NOT NULL AS taken;
SELECT name, terms, expired, vacant_since IS NOT NULL AS vacant FROM pg_stat_leader_election WHERE name = 'stat expires';
SELECT le_depose('stat expires'), le_depose('stat rolled back');

-- denied: at once, and after the timeout
SELECT le_lease('stat denied', '1 hour') AS t1 \gset
SELECT le_try_become_leader('stat denied'), le_become_leader('stat denied', '0'), le_become_leader('stat denied', '10 ms'), le_lease('stat denied', '1 hour'), le_lease('stat denied', '1 hour', token => 0);
SELECT denied FROM pg_stat_leader_election WHERE name = 'stat denied';
BEGIN;
SELECT le_try_become_leader_xact('stat denied'), le_become_leader_xact('stat denied', '10 ms');
ROLLBACK;
CALL le_campaign('stat denied', '0');
CALL le_campaign('stat denied', '10 ms', ttl => '1 hour');
SELECT denied, terms FROM pg_stat_leader_election WHERE name = 'stat denied';
-- the last of them: when, and by which identity
SELECT clock_timestamp() AS now \gset
SELECT le_lease('stat denied', '1 hour', identity => 'first'), le_lease('stat denied', '1 hour', identity => 'second');
SELECT last_denied_at BETWEEN :'now' AND clock_timestamp() AS at, last_denied_identity FROM pg_stat_leader_election WHERE name = 'stat denied';
-- by the same identity, with each bid; when the wait is over, and not when it began
SELECT last_denied_at AS before FROM pg_stat_leader_election WHERE name = 'stat denied' \gset
SELECT le_become_leader('stat denied', '20 ms', identity => 'second');
SELECT last_denied_at >= :'before'::timestamptz + interval '20 ms' AS at, last_denied_identity FROM pg_stat_leader_election WHERE name = 'stat denied';
CALL le_campaign('{stat denied}'::text[], '0', identity => 'many');
SELECT last_denied_identity FROM pg_stat_leader_election WHERE name = 'stat denied';
-- whatever becomes of the transaction
BEGIN;
SELECT le_try_become_leader('stat denied', identity => 'third');
ROLLBACK;
SELECT l.last_denied_at = s.last_denied_at AS at, l.last_denied_identity, s.last_denied_identity
FROM pg_stat_leader_election s JOIN le_leaders l USING (name) WHERE name = 'stat denied';
SELECT last_denied_at, last_denied_identity FROM pg_stat_leader_election WHERE name = 'stat';
SELECT last_denied_at AS last FROM pg_stat_leader_election WHERE name = 'stat denied' \gset
-- no bid: to ask, to renew, to resign, to observe, bad input
SET client_min_messages = error;
SELECT le_am_leader('stat denied'), le_am_leader('stat denied', 0), le_renew('stat denied', 0), le_resign('stat denied'), le_resign('stat denied', 0), le_token('stat denied'), le_proclaim('stat denied', 'v');
CALL le_observe('stat denied') \gset
CALL le_observe('stat denied', :version, '10 ms') \gset
\set VERBOSITY sqlstate
SELECT le_try_become_leader('stat denied', identity => '');
SELECT le_become_leader('stat denied', '-1 s');
\set VERBOSITY default
RESET client_min_messages;
SELECT denied FROM pg_stat_leader_election WHERE name = 'stat denied';
-- a cancel is no denial
SET statement_timeout = '300 ms';
SELECT le_become_leader('stat denied');
SET statement_timeout = 0;
SET lock_timeout = '50 ms';
SELECT le_become_leader('stat denied');
RESET lock_timeout;
SELECT denied, candidates, last_denied_at = :'last' AS last FROM pg_stat_leader_election WHERE name = 'stat denied';
-- but it is a wait; bounds are shorter, since the timeouts begin a moment before
SELECT longest_wait BETWEEN '200 ms' AND '1 min' AS waited FROM pg_stat_leader_election WHERE name = 'stat denied';
SELECT le_become_leader('stat denied', '500 ms');
SELECT longest_wait BETWEEN '400 ms' AND '1 min' AS waited, longest_wait AS longest FROM pg_stat_leader_election WHERE name = 'stat denied' \gset
SELECT :'waited' AS waited;
SELECT le_become_leader('stat denied', '20 ms');
SELECT longest_wait = :'longest' AS the_longest FROM pg_stat_leader_election WHERE name = 'stat denied';
-- a session that need not wait has none
SELECT le_try_become_leader('stat none'), le_resign('stat none');
SELECT le_become_leader('stat none', '1 hour'), le_resign('stat none');
SELECT longest_wait FROM pg_stat_leader_election WHERE name = 'stat none';
-- a session that was elected after one
SELECT le_lease('stat waited', '600 ms') > 0 AS lease;
CALL le_campaign('stat waited') \gset
SELECT longest_wait > '0' AS waited, le_resign('stat waited') FROM pg_stat_leader_election WHERE name = 'stat waited';
SELECT le_lease('stat waited 2', '600 ms') > 0 AS lease;
CALL le_campaign('{stat waited 2, stat denied}'::text[]) \gset
SELECT longest_wait > '0' AS waited, le_resign('stat waited 2') FROM pg_stat_leader_election WHERE name = 'stat waited 2';
SELECT le_resign('stat denied', :t1);

-- times
SELECT le_try_become_leader('stat time'), pg_sleep(0.1);
SELECT le_resign('stat time'), pg_sleep(0.1);
SELECT pg_sleep(0.1);
SELECT time_led >= '80 ms' AS led, time_vacant >= '80 ms' AS vacant, time_led AS t1, time_vacant AS v1 FROM pg_stat_leader_election WHERE name = 'stat time' \gset
SELECT :'led' AS led, :'vacant' AS vacant;
-- without a leader, the vacancy grows, and nothing else
SELECT pg_sleep(0.05);
SELECT time_led = :'t1' AS led, time_vacant - :'v1' >= '40 ms' AS vacant, time_vacant AS v1 FROM pg_stat_leader_election WHERE name = 'stat time' \gset
SELECT :'led' AS led, :'vacant' AS vacant;
-- with a leader, the time led grows
SELECT le_lease('stat time', '1 hour') AS t2 \gset
SELECT time_vacant AS v1, time_led AS t1 FROM pg_stat_leader_election WHERE name = 'stat time' \gset
SELECT pg_sleep(0.05);
SELECT time_vacant = :'v1' AS vacant, time_led - :'t1' >= '40 ms' AS led FROM pg_stat_leader_election WHERE name = 'stat time';
SELECT le_resign('stat time', :t2);
-- while a lease is not committed, there is no leader
SELECT time_led AS t1, time_vacant AS v1 FROM pg_stat_leader_election WHERE name = 'stat time' \gset
BEGIN;
SELECT le_lease('stat time', '1 hour') > 0 AS lease, pg_sleep(0.05);
SELECT time_led = :'t1' AS led, time_vacant - :'v1' >= '40 ms' AS vacant FROM pg_stat_leader_election WHERE name = 'stat time';
ROLLBACK;
-- a lease that has run out has led until then, found or not
SELECT le_lease('stat over', '100 ms') > 0 AS lease;
SELECT pg_sleep(0.3);
SELECT time_led > '0' AND time_led <= '100.01 ms' AS led, time_vacant >= '150 ms' AS vacant, expired, time_led AS t1 FROM pg_stat_leader_election WHERE name = 'stat over' \gset
SELECT :'led' AS led, :'vacant' AS vacant, :expired AS expired;
SELECT time_led = :'t1' AS same FROM pg_stat_leader_election WHERE name = 'stat over';
CALL le_observe('stat over') \gset
SELECT time_led = :'t1' AS same, time_vacant >= '150 ms' AS vacant, expired FROM pg_stat_leader_election WHERE name = 'stat over';
SELECT le_lease('stat over', '1 hour') > 0 AS lease;
SELECT time_led >= :'t1' AND time_led < '1 min' AS same, time_vacant >= '150 ms' AS vacant, le_resign('stat over', token) FROM pg_stat_leader_election s, le_leader('stat over') WHERE s.name = 'stat over';
TABLE balance;

-- an election that was only asked for is there, too
CALL le_observe('stat asked') \gset
SELECT name, key = hashtextextended('stat asked', 0) AS key, terms, time_led FROM pg_stat_leader_election WHERE name = 'stat asked';

-- reset: all from zero, and what runs runs on; what was resigned is removed
SELECT le_try_become_leader('stat runs'), le_lease('stat lease', '1 hour') AS t3 \gset
SELECT le_try_become_leader('stat lease');
SELECT last_denied_at IS NOT NULL AS at FROM le_leaders WHERE name = 'stat lease';
SELECT elections AS e1, evictions AS ev1 FROM pg_stat_leader_election_info \gset
SELECT pg_sleep(0.1);
SELECT clock_timestamp() AS now, pg_stat_leader_election_reset() \gset
SELECT stats_reset BETWEEN :'now' AND clock_timestamp() AS reset, elections < :e1 AS forgotten, evictions = :ev1 AS evictions FROM pg_stat_leader_election_info;
SELECT * FROM counts WHERE name IN ('stat runs', 'stat lease');
SELECT last_denied_at, last_denied_identity FROM le_leaders WHERE name = 'stat lease';
SELECT max(longest_wait), max(time_led) < clock_timestamp() - :'now' AS led, max(time_vacant) < clock_timestamp() - :'now' AS vacant,
       bool_and(time_led = '0' OR name IN ('stat runs', 'stat lease')) AS others FROM pg_stat_leader_election;
SELECT name, time_led > '0' AS led, time_vacant FROM pg_stat_leader_election WHERE name IN ('stat runs', 'stat lease') ORDER BY name;
SELECT le_am_leader('stat runs'), le_am_leader('stat lease', :t3);
SELECT le_resign('stat runs'), le_resign('stat lease', :t3);
CALL le_observe('stat lease') \gset
SELECT :version AS vacant \gset
SELECT name, terms, resigned, time_led > '0' AS led FROM pg_stat_leader_election WHERE name IN ('stat runs', 'stat lease') ORDER BY name;
SELECT * FROM balance WHERE name IN ('stat runs', 'stat lease');
-- a lease that had run out before, and was not found
SELECT le_lease('stat unseen', '100 ms') > 0 AS lease;
SELECT pg_sleep(0.3);
SELECT pg_stat_leader_election_reset() AS reset, clock_timestamp() AS now \gset
SELECT time_vacant <= clock_timestamp() - :'now' + interval '0.1 s' AS vacant, time_led FROM pg_stat_leader_election WHERE name = 'stat unseen';
-- the vacancy before the reset is no news to observers
CALL le_observe('stat lease') \gset
SELECT :version = :vacant AS same, :{?token} AS led;

-- rights: all roles may look, only a role that is granted that may reset
CREATE ROLE regress_statistics;
SET ROLE regress_statistics;
SELECT count(*) > 0 AS seen FROM pg_stat_leader_election;
SELECT stats_reset IS NOT NULL AS seen FROM pg_stat_leader_election_info;
SELECT pg_stat_leader_election_reset();
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION pg_stat_leader_election_reset() TO regress_statistics;
SET ROLE regress_statistics;
SELECT pg_stat_leader_election_reset();
RESET ROLE;
REVOKE EXECUTE ON FUNCTION pg_stat_leader_election_reset() FROM regress_statistics;
DROP ROLE regress_statistics;
-- it is not undone
SELECT le_try_become_leader('stat'), le_resign('stat');
BEGIN;
SELECT pg_stat_leader_election_reset();
ROLLBACK;
SELECT terms FROM pg_stat_leader_election WHERE name = 'stat';

-- each database has its own
CREATE DATABASE regress_statistics;
\set database :DBNAME
\c regress_statistics
CREATE EXTENSION leader_election;
SELECT stats_reset FROM pg_stat_leader_election_info;
SELECT * FROM pg_stat_leader_election;
SELECT le_try_become_leader('stat'), le_try_become_leader('stat mine');
SELECT name, terms FROM pg_stat_leader_election ORDER BY name;
SELECT pg_stat_leader_election_reset();
-- the end of the extension
SELECT le_resign('stat');
SELECT le_lease('stat', '1 hour') > 0 AS lease;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
SELECT le_try_become_leader('stat'), le_resign('stat');
SELECT terms, resigned, expired, extension_dropped FROM pg_stat_leader_election WHERE name = 'stat';
-- the end of a session
SELECT le_try_become_leader('stat session');
\c regress_statistics
SELECT le_become_leader('stat session', '1 min');
SELECT terms, session_ended FROM pg_stat_leader_election WHERE name = 'stat session';
SELECT terms, session_ended FROM pg_stat_leader_election WHERE name = 'stat mine';
\c :database
DROP DATABASE regress_statistics;
SELECT terms FROM pg_stat_leader_election WHERE name = 'stat';

-- of two names with one key: see collision.sql
SELECT le_try_become_leader('worker-queue-mail.sender'), le_resign('worker-queue-mail.sender');
SELECT le_try_become_leader('HwFfjYHs9PGi-Rwb-Amyj4y5'), le_resign('HwFfjYHs9PGi-Rwb-Amyj4y5');
SELECT name, terms, resigned FROM pg_stat_leader_election WHERE key = hashtextextended('worker-queue-mail.sender', 0) AND name IS NOT NULL;

SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
