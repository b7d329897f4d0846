-- A job of each minute, done once by whichever of these leads: a job in SQL, with psql only.
--
--   while sleep 1; do psql -X -v election=report -v every='1 minute' -f every-minute.sql; done      (on several hosts)
--
-- It goes straight to PostgreSQL or through PgBouncer in session mode. The statement below is one transaction: what it
-- writes is committed together with the record that the job of that minute is done, or not at all. One that is elected
-- late does at most the last job that was missed. When leadership is lost, the statement fails, and psql ends.
\set ON_ERROR_STOP on
CALL le_campaign(:'election');

-- the job: here, a row of a table report (at timestamptz, connections bigint)
WITH last AS MATERIALIZED (
	SELECT date_bin(:'every', clock_timestamp(), '2000-01-01 00:00+0') AS due,
		(SELECT due FROM le_once_done WHERE name = :'election') AS done
)
INSERT INTO report
SELECT due, (SELECT count(*) FROM pg_stat_activity)
FROM last
WHERE CASE WHEN due > done OR done IS NULL THEN le_once(:'election', due) END
\watch 1
