--
-- pg_stat_leader_election.vacant_since: the beginning of a vacancy
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
SELECT pg_stat_leader_election_reset();
-- is it vacant, and not before the moment that was noted last?
CREATE TEMP TABLE moment AS SELECT clock_timestamp() AS noted;
CREATE TEMP VIEW vacancy AS
SELECT vacant_since IS NOT NULL AS vacant, vacant_since >= noted - interval '80 ms' AS since_then,
       vacant_since <= clock_timestamp() AS in_the_past
FROM pg_stat_leader_election, moment WHERE name = 'vacancy';
-- with the time since the last reset, and a bit for clocks that are read one after the other
CREATE TEMP VIEW counts AS
SELECT s.*, clock_timestamp() - stats_reset + interval '80 ms' AS since_reset
FROM pg_stat_leader_election s, pg_stat_leader_election_info;

-- unknown; led; resigned
SELECT le_resign('vacancy');
TABLE vacancy;
SELECT le_try_become_leader('vacancy');
TABLE vacancy;
SELECT pg_sleep(0.1);
UPDATE moment SET noted = clock_timestamp();
SELECT le_resign('vacancy');
TABLE vacancy;
-- removed when counts begin anew, and then vacant since it was heard of again
SELECT pg_stat_leader_election_reset();
TABLE vacancy;
UPDATE moment SET noted = clock_timestamp();
CALL le_observe('vacancy', timeout => '0') \gset
TABLE vacancy;
-- in a transaction
BEGIN;
SELECT le_try_become_leader_xact('vacancy');
TABLE vacancy;
UPDATE moment SET noted = clock_timestamp();
ROLLBACK;
TABLE vacancy;
UPDATE moment SET noted = clock_timestamp();
BEGIN;
SELECT le_try_become_leader_xact('vacancy');
SELECT pg_sleep(0.1);
COMMIT;
TABLE vacancy;

-- what leads counts from zero, too
SELECT le_try_become_leader('vacancy');
SELECT pg_sleep(0.1);
SELECT pg_stat_leader_election_reset();
SELECT time_led <= since_reset AS led_since_reset, time_vacant, vacant_since FROM counts WHERE name = 'vacancy';
SELECT le_resign('vacancy');
SELECT terms, resigned, time_led <= since_reset AS led_since_reset, time_vacant <= since_reset AS vacant_since_reset
FROM counts WHERE name = 'vacancy';

-- a lease that has expired, which no session has noticed; its end counts when it is
SELECT le_lease('vacancy', '200 ms') > 0 AS lease;
TABLE vacancy;
UPDATE moment SET noted = clock_timestamp() + interval '100 ms';
SELECT pg_sleep(0.3);
TABLE vacancy;
SELECT pg_stat_leader_election_reset();
TABLE vacancy;
-- and asked for again
SELECT le_lease('vacancy', '1 hour') AS lease \gset
SELECT terms, expired, time_led <= since_reset AS led_since_reset, time_vacant <= since_reset AS vacant_since_reset, vacant_since
FROM counts WHERE name = 'vacancy';
-- not while it is not committed
SELECT le_resign('vacancy', :lease);
BEGIN;
SELECT le_lease('vacancy', '1 hour') > 0 AS lease;
TABLE vacancy;
ROLLBACK;
TABLE vacancy;

-- a lease of an extension that was dropped, whichever session looks first
SELECT le_lease('vacancy', '1 hour') > 0 AS lease;
UPDATE moment SET noted = clock_timestamp();
SET client_min_messages = warning;
DROP EXTENSION leader_election CASCADE;
CREATE EXTENSION leader_election;
RESET client_min_messages;
SELECT terms, extension_dropped, vacant_since >= noted - interval '80 ms' AS since_then
FROM pg_stat_leader_election, moment WHERE name = 'vacancy';
