--
-- What pg_stat_leader_election_reset() removes from the statistics: elections that tell nothing
-- else, but not what is led or waited for, nor what decides whether a grace period follows
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
CREATE SCHEMA regress_reset;
SET search_path = regress_reset, public;
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/sessions.psql
SELECT open('a');
-- without leases that have ended, which are on record until they are cleared away
CREATE VIEW known AS SELECT name, terms, denied, vacant_since IS NOT NULL AS vacant
FROM pg_stat_leader_election WHERE name LIKE 'reset%' AND (vacant_since IS NULL OR name NOT LIKE '%leased') ORDER BY name;
RESET client_min_messages;

-- what is led in any scope stays, and counts from zero; a new lease stays, and can still begin
SELECT le_try_become_leader('reset led'), le_lease('reset leased', '1 hour') AS lease \gset
SELECT says('a', $$SELECT le_try_become_leader('reset led')$$);
TABLE known;
SELECT pg_stat_leader_election_reset();
TABLE known;
BEGIN;
SELECT le_try_become_leader_xact('reset xact'), le_lease('reset not yet leased', '1 hour') AS new \gset
SELECT pg_stat_leader_election_reset();
TABLE known;
COMMIT;
SELECT le_am_leader('reset led'), le_am_leader('reset leased', :lease), le_am_leader('reset not yet leased', :new);

-- what was resigned, or never led, is gone until it is next asked for; a rollback brings nothing
-- back
SELECT le_resign('reset led'), le_resign('reset leased', :lease), le_resign('reset not yet leased', :new);
BEGIN;
SELECT le_lease('reset never leased', '1 hour') > 0 AS leased;
ROLLBACK;
TABLE known;
BEGIN;
SELECT pg_stat_leader_election_reset();
ROLLBACK;
TABLE known;
SELECT le_try_become_leader('reset led'), le_lease('reset leased', '1 hour') AS lease \gset
TABLE known;
SELECT le_resign('reset led'), le_resign('reset leased', :lease);

-- a candidate in line, an observer, a candidate for many elections, a declaration
SELECT le_lease('reset waited for', '1 hour') AS lease \gset
SELECT waits('a', $$SELECT le_become_leader('reset waited for')$$);
SELECT pg_stat_leader_election_reset();
TABLE known;
SELECT le_resign('reset waited for', :lease), answer('a'), says('a', $$SELECT le_resign('reset waited for')$$);
SELECT le_try_become_leader('reset followed');
SELECT waits('a', 'CALL le_campaign(ARRAY[''reset followed''])');
SELECT le_declare('reset declared');
SELECT le_try_become_leader('reset declared'), le_resign('reset declared');
SELECT pg_stat_leader_election_reset();
TABLE known;
SELECT le_undeclare('reset declared'), dblink_cancel_query('a'), answer('a'), le_resign('reset followed');
-- the next bid finds that it is not declared
SELECT le_try_become_leader('reset declared'), le_resign('reset declared');

-- the end of a term that was not resigned is not forgotten: the grace period goes on
SELECT le_try_become_leader('reset lost'), pg_advisory_unlock_all();
SELECT pg_stat_leader_election_reset();
SET leader_election.grace_period = '1 h';
SELECT le_try_become_leader('reset lost');
RESET leader_election.grace_period;
TABLE known;
SELECT le_try_become_leader('reset lost'), le_resign('reset lost');
SELECT pg_stat_leader_election_reset();
TABLE known;

SELECT dblink_disconnect('a');
SET client_min_messages = warning;
DROP SCHEMA regress_reset CASCADE;
DROP EXTENSION dblink;
