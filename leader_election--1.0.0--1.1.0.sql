-- leader_election 1.1.0: what 1.0.0 does not have yet

\echo Use "ALTER EXTENSION leader_election UPDATE TO '1.1.0'" to load this file. \quit

--
-- Since when an election is vacant.  Views of others on pg_stat_leader_election stay.
--
CREATE FUNCTION le_registry_statistics_1_1(OUT lock_class integer, OUT key bigint,
										   OUT name text, OUT terms bigint,
										   OUT resigned bigint,
										   OUT deposed bigint,
										   OUT transaction_ended bigint,
										   OUT session_ended bigint,
										   OUT lock_released bigint,
										   OUT expired bigint,
										   OUT extension_dropped bigint,
										   OUT denied bigint,
										   OUT time_vacant interval,
										   OUT time_led interval,
										   OUT longest_wait interval,
										   OUT followers integer,
										   OUT vacant_since timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 100;

CREATE OR REPLACE VIEW pg_stat_leader_election AS
SELECT s.name, s.key, s.terms, s.resigned, s.deposed, s.session_ended, s.transaction_ended,
	   s.expired, s.lock_released, s.extension_dropped, s.denied,
	   s.time_vacant, s.time_led, s.longest_wait,
	   coalesce(w.candidates, 0) + s.followers AS candidates,
	   s.vacant_since
FROM le_registry_statistics_1_1() s
LEFT JOIN (SELECT l.lock_class, l.key, pg_catalog.count(*) AS candidates
		   FROM le_locks l
		   WHERE NOT l.granted
			  OR (l.lock_class, l.key, l.pid) IN
				 (SELECT c.lock_class, c.key, c.pid FROM le_registry_candidates(true) c)
		   GROUP BY l.lock_class, l.key) w
	   ON w.lock_class = s.lock_class AND w.key = s.key;
COMMENT ON COLUMN pg_stat_leader_election.vacant_since IS
'since when nobody leads: the end of the last term, or when the election was first heard of; NULL while somebody leads';

DROP FUNCTION le_registry_statistics();
ALTER FUNCTION le_registry_statistics_1_1() RENAME TO le_registry_statistics;
COMMENT ON FUNCTION le_registry_statistics() IS
'what the registry counts; see pg_stat_leader_election';
