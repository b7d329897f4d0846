-- Ten queries on elections for psql: \i monitoring/queries.sql
--
-- They change nothing. Each shows at most twenty rows, the most important ones first, in at most 100 columns. A comment
-- of two lines says what to do. With pg_monitor, the queries also show what the sessions of other roles do. The SQL
-- edition has no statistics, so queries 4 to 6 are left out there.
--
-- All names are looked up in pg_catalog and in the schema of the extension only, so that a superuser can run this in a
-- database of an owner that is not trusted. Where the extension does not exist, the search_path finds the SQL edition.
-- If you interrupt this, run RESET search_path.

SELECT pg_catalog.current_setting('search_path') AS le_path,
       COALESCE(pg_catalog.to_regclass('le_leaders')::pg_catalog.oid, 0) AS le_view \gset
SELECT pg_catalog.set_config('search_path', 'pg_catalog', false) AS le_ignored \gset
SELECT coalesce(extension, edition)::regnamespace AS le, extension IS NOT NULL AS le_has_statistics,
       coalesce(extension, edition) IS NULL AS le_is_missing
FROM (SELECT (SELECT extnamespace FROM pg_extension WHERE extname = 'leader_election') AS extension,
             (SELECT relnamespace FROM pg_class WHERE oid = :le_view) AS edition) AS found \gset
\if :le_is_missing
	\warn 'There is no leader_election in this database, or no SQL edition of it in the search_path.'
	SELECT set_config('search_path', :'le_path', false) AS le_ignored \gset
	\quit
\endif

\echo '1. Leaders'
-- To end the term of a leader that does not do its job: SELECT le_depose('ELECTION', 'why').
-- If an election is missing here, look at 4: it is vacant, or unknown since the server started.
SELECT left(coalesce(name, 'key ' || key), 22) AS election, scope, left(identity, 20) AS leader, pid,
       date_trunc('second', clock_timestamp() - since) AS leads_for, candidates AS waiting
FROM :le.le_leaders ORDER BY since DESC LIMIT 20;

\echo '2. Candidates, and what they wait for'
-- "leader" is normal. For "guard", end that transaction: SELECT pg_terminate_backend(PID), or ROLLBACK PREPARED.
-- "grace" and "promotion" pass by themselves. For "standby", restore the synchronous standby.
SELECT left(coalesce(name, 'key ' || key), 17) AS election, position AS pos, left(identity, 14) AS candidate,
       date_trunc('second', clock_timestamp() - c.since) AS waits, waits_for,
       left(CASE blocked_by[1] WHEN 0 THEN 'prepared transaction' ELSE concat_ws(' ', blocked_by[1], a.state) END, 26) AS blocked_by
FROM :le.le_candidates c LEFT JOIN pg_stat_activity a ON a.pid = blocked_by[1]
ORDER BY waits_for = 'leader', c.since LIMIT 20;

\echo '3. Leaders that no candidate would follow'
-- Nothing takes over if they fail: start a second copy of the program, or see why it does not bid.
-- A program that polled within five minutes counts as a candidate. The SQL edition does not know of these.
SELECT left(coalesce(name, 'key ' || key), 22) AS election, left(identity, 20) AS leader,
       date_trunc('second', clock_timestamp() - since) AS leads_for,
       date_trunc('second', clock_timestamp() - last_denied_at) AS last_bid, left(last_denied_identity, 16) AS by
FROM :le.le_leaders
WHERE candidates = 0 AND scope IN ('session', 'lease')
      AND coalesce(last_denied_at < clock_timestamp() - interval '5 minutes', true)
ORDER BY since DESC LIMIT 20;

\if :le_has_statistics
\echo '4. Vacant elections'
-- Start the program. If it waits or polls in vain, look at 2, and at its role in le_declarations.
-- If the job is retired: SELECT le_undeclare('ELECTION'), le_forget('ELECTION').
SELECT left(coalesce(name, 'key ' || key), 22) AS election, date_trunc('second', clock_timestamp() - vacant_since) AS vacant_for,
       candidates AS waiting, terms, date_trunc('second', clock_timestamp() - last_denied_at) AS last_bid,
       left(last_denied_identity, 14) AS by
FROM :le.pg_stat_leader_election WHERE vacant_since IS NOT NULL
ORDER BY candidates DESC, last_denied_at DESC NULLS LAST, vacant_since DESC LIMIT 20;

\echo '5. Elections that flap: terms in session scope and leases, by their mean duration'
-- session: the program crashes, or a pool closes its connection. released: a pool runs DISCARD ALL. expired, silent: it
-- hangs, or has a short ttl or heartbeat. None of these: it resigns too early. The server log has the times.
SELECT left(coalesce(name, 'key ' || key), 20) AS election, terms - transaction_ended AS terms,
       date_trunc('second', time_led / terms) AS mean_term, session_ended AS session, lock_released AS released,
       expired, silent, deposed
FROM :le.pg_stat_leader_election WHERE terms - transaction_ended > 1
ORDER BY time_led / terms LIMIT 20;

\echo '6. Bids that were denied, the latest first'
-- A program that polls is denied as long as another one leads: that is normal, and shows that it is ready to take over.
-- If it is denied while the election is vacant (no leader here), look at 2, and at the grace period in le_declarations.
SELECT left(coalesce(s.name, 'key ' || s.key), 22) AS election, s.denied,
       date_trunc('second', clock_timestamp() - s.last_denied_at) AS last_bid, left(s.last_denied_identity, 20) AS by,
       left(l.identity, 20) AS leader
FROM :le.pg_stat_leader_election s
     LEFT JOIN :le.le_leaders l ON l.key = s.key AND l.name IS NOT DISTINCT FROM s.name
WHERE s.denied > 0 ORDER BY s.last_denied_at DESC LIMIT 20;
\endif

\echo '7. Leaders with a connection of their own, the longest silent first'
-- A program asks each second. If it is silent for much longer, it hangs: SELECT le_depose('ELECTION', 'why').
-- With a heartbeat, the server does that itself when "ends_in" has passed.
SELECT left(coalesce(name, 'key ' || key), 17) AS election, left(identity, 13) AS leader, l.pid,
       left(replace(a.state, 'transaction', 'xact'), 12) AS state,
       date_trunc('second', clock_timestamp() - a.state_change) AS silent_for, heartbeat,
       date_trunc('second', expires_in) AS ends_in
FROM :le.le_leaders l JOIN pg_stat_activity a ON a.pid = l.pid
ORDER BY extract(epoch FROM expires_in) / extract(epoch FROM heartbeat), a.state_change LIMIT 20;

\echo '8. Leases, the closest to their end first'
-- A lease is renewed when two thirds of it are left. With less than a third: does the program hang, or wait for its pool?
-- Restart it, or let it renew between shorter steps of its job, or use a longer ttl.
SELECT left(name, 22) AS election, left(identity, 20) AS leader, ttl,
       date_trunc('milliseconds', expires_in) AS expires_in,
       round(100 * extract(epoch FROM expires_in) / extract(epoch FROM ttl)) AS "left (%)", renewals
FROM :le.le_leaders WHERE scope = 'lease' ORDER BY expires_in / extract(epoch FROM ttl) LIMIT 20;

\echo '9. Limits'
-- Above 80 percent, raise the setting. Or end what uses it up: SELECT le_depose_role('ROLE').
-- Names with a date or a number in each run fill the registry. The most in one session or role are shown.
SELECT what, used, most, round(100.0 * used / most) AS "used (%)"
FROM (SELECT 'locks in the lock table (max_locks_per_transaction, estimated)' AS what,
             (SELECT count(*) FROM pg_locks WHERE NOT fastpath) AS used,
             current_setting('max_locks_per_transaction')::bigint
             * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint) AS most
\if :le_has_statistics
      UNION ALL
      SELECT 'elections on the server (max_elections)', elections, current_setting('leader_election.max_elections')::bigint
      FROM :le.pg_stat_leader_election_info
      UNION ALL
      SELECT 'elections led in this database (45% of max_elections)', (SELECT count(*) FROM :le.le_leaders),
             current_setting('leader_election.max_elections')::bigint * 45 / 100
      UNION ALL
      SELECT 'elections that one session leads (max_terms_per_session)',
             (SELECT max(n) FROM (SELECT count(*) AS n FROM :le.le_leaders WHERE pid IS NOT NULL GROUP BY pid) AS sessions),
             current_setting('leader_election.max_terms_per_session')::bigint
      UNION ALL
      SELECT 'leases of one role in this database (max_elections_per_role)',
             (SELECT max(n) FROM (SELECT count(*) AS n FROM :le.le_leaders WHERE scope = 'lease' GROUP BY usename) AS roles),
             current_setting('leader_election.max_elections_per_role')::bigint
      UNION ALL
      SELECT 'elections that were evicted, with their counts (max_tracked)', evictions, NULL
      FROM :le.pg_stat_leader_election_info
\endif
     ) AS limits
ORDER BY used::numeric / most DESC NULLS LAST;

\echo '10. Jobs of le_once, the longest overdue first'
-- If the last point is older than the interval of the job, look for the leader of its election in 1 and 4.
-- To have a job done again: UPDATE le_once_done SET due = '...' WHERE name = 'ELECTION'.
SELECT left(name, 30) AS election, date_trunc('second', due) AS last_due,
       date_trunc('second', clock_timestamp() - due) AS age, left(pg_get_userbyid(role), 20) AS role
FROM :le.le_once_done ORDER BY due LIMIT 20;

SELECT set_config('search_path', :'le_path', false) AS le_ignored \gset
