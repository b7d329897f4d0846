-- Ten queries on elections for psql: \i monitoring/queries.sql
--
-- They change nothing. Each prints what to do, and at most twenty rows, the most important ones first, in at most 100
-- columns. With pg_monitor, the queries also show what the sessions of other roles do. The SQL edition has no
-- statistics, so queries 4 to 6 are left out there.
--
-- To repeat one query, run this file first. Then copy the query into psql, with \watch 2 instead of the semicolon.
--
-- For the SQL edition, give its schema: psql -v schema=le
--
-- A query on an object runs code of the owner of the object. Connect as a role without privileges: these queries need
-- none. In a database of an owner that is not a superuser, a superuser is refused. If you interrupt this, run
-- RESET search_path and \unset ON_ERROR_STOP.

-- An error stops this, or else what a setting of the owner lets fail would be skipped.
\set le_on_error :ON_ERROR_STOP
\set ON_ERROR_STOP on
SELECT pg_catalog.current_setting('search_path') AS le_path \gset
SET search_path = pg_catalog;
\if :{?schema}
	SELECT :'schema' AS le_schema, false AS le_has_statistics \gset
\else
	SELECT (SELECT nspname FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace
	        WHERE extname = 'leader_election') AS le_schema, true AS le_has_statistics \gset
	\if :{?le_schema}
	\else
		\set le_schema ''
	\endif
\endif
-- The owners are those of the database, the schema, the extension, its functions and relations. Role 6171 is pg_database_owner. A
-- role that could set a superuser as its role counts as one, and so does the role of the connection: code of an owner
-- could do that, or RESET SESSION AUTHORIZATION.
SELECT quote_ident(:'le_schema') AS le,
       NOT EXISTS (SELECT FROM pg_class WHERE relname = 'le_leaders' AND relnamespace = n.oid) AS le_is_missing,
       EXISTS (SELECT FROM pg_roles r JOIN pg_stat_activity a ON pg_has_role(a.usesysid, r.oid, 'MEMBER')
               WHERE rolsuper AND pid = pg_backend_pid())
       AND EXISTS (SELECT FROM pg_roles r WHERE NOT rolsuper AND r.oid <> 6171
                   AND (r.oid IN (datdba, nspowner, (SELECT extowner FROM pg_extension WHERE extname = 'leader_election'))
                        OR r.oid IN (SELECT proowner FROM pg_proc WHERE pronamespace = n.oid AND proname ~ '^_?le_')
                        OR r.oid IN (SELECT relowner FROM pg_class WHERE relnamespace = n.oid
                                     AND relname ~ '^(le|pg_stat_leader)_'))) AS le_is_refused
FROM pg_database LEFT JOIN pg_namespace n ON nspname = :'le_schema'
WHERE datname = current_database() \gset
\if :le_is_missing
	\warn 'There is no leader_election in this database. For the SQL edition, run psql -v schema=NAME.'
	\set le_stop on
\elif :le_is_refused
	\warn 'A superuser must not query objects of an owner that is none: connect as a role without privileges.'
	\set le_stop on
\else
	\set le_stop off
\endif
\if :le_stop
	SELECT set_config('search_path', :'le_path', false) AS le_ignored \gset
	\set ON_ERROR_STOP :le_on_error
	\quit
\endif
\set ON_ERROR_STOP :le_on_error

-- Mark where names are cut: elections at their end, identities at their beginning, as pods differ in their end. An
-- encoding that may lack the ellipsis gets a tilde.
SELECT cut AS le_cut, E'\\1' || cut AS le_begins, cut || E'\\1' AS le_ends
FROM chr(CASE WHEN getdatabaseencoding() = 'UTF8' AND pg_client_encoding() = 'UTF8' THEN 8230 ELSE 126 END) AS cut \gset
\echo 'Names with' :le_cut 'are cut. Whole names are in le_leaders, le_candidates and pg_stat_leader_election.'

\echo '1. Leaders: the first 20, the longest leading first'
\echo 'To end the term of a leader that does not do its job: SELECT le_depose(''ELECTION'', ''why'').'
\echo 'A lease has no process and no client address: its pid is "lease". An election that is missing here'
\echo 'is vacant (see query 4), or unknown since the server started.'
SELECT regexp_replace(name, '^(.{19})..+', :'le_begins') AS election,
       regexp_replace(identity, '^..+(.{13})$', :'le_ends') AS leader, coalesce(pid::text, scope) AS pid,
       regexp_replace(concat_ws('@', usename, host(client_addr)), '^..+(.{18})$', :'le_ends') AS "role@client",
       date_trunc('second', clock_timestamp() - since) AS leads_for, candidates AS waiting
FROM :le.le_leaders ORDER BY since LIMIT 20;

\echo '2. Candidates: the first 20, those that wait for something other than the leader first'
\echo '"leader" is normal, unless query 4 lists the election. Then, and for "guard", end the transaction in'
\echo 'blocked_by of pos 1: pg_terminate_backend(PID) or ROLLBACK PREPARED. "standby": restore the standby.'
\echo '"promotion" passes by itself; "grace" at the latest when vacant_for in query 4 is the grace period.'
SELECT regexp_replace(name, '^(.{18})..+', :'le_begins') AS election, position AS pos,
       regexp_replace(identity, '^..+(.{15})$', :'le_ends') AS candidate,
       date_trunc('second', clock_timestamp() - c.since) AS waits, waits_for,
       regexp_replace(CASE blocked_by[1] WHEN 0 THEN 'prepared transaction'
                      ELSE concat_ws(' ', blocked_by[1], replace(a.state, 'transaction', 'xact')) END,
                      '^(.{19})..+', :'le_begins') AS blocked_by
FROM :le.le_candidates c LEFT JOIN pg_stat_activity a ON a.pid = blocked_by[1]
ORDER BY waits_for = 'leader', c.since LIMIT 20;

\echo '3. Leaders that no candidate would follow: the first 20, the longest leading first'
\echo 'Nothing takes over if they fail: start a second copy of the program, or see why it does not bid.'
\echo 'A program that polled within five minutes counts as a candidate.'
\echo 'The SQL edition does not count programs that poll.'
SELECT regexp_replace(name, '^(.{21})..+', :'le_begins') AS election,
       regexp_replace(identity, '^..+(.{19})$', :'le_ends') AS leader,
       date_trunc('second', clock_timestamp() - since) AS leads_for,
       date_trunc('second', clock_timestamp() - last_denied_at) AS last_bid,
       regexp_replace(last_denied_identity, '^..+(.{11})$', :'le_ends') AS by
FROM :le.le_leaders
WHERE candidates = 0 AND scope IN ('session', 'lease')
      AND coalesce(last_denied_at < clock_timestamp() - interval '5 minutes', true)
ORDER BY since LIMIT 20;

\if :le_has_statistics
\echo '4. Vacant elections: the first 20, those with candidates first, then by their last bid'
\echo 'Start the program. If it waits or polls in vain, look at 2. Check that le_declarations.candidates'
\echo 'includes the program''s role. A retired job: SELECT le_undeclare(''ELECTION'').'
\echo 'A lease that is not committed does not count yet: it is listed, and if it is the first, terms is 0.'
SELECT regexp_replace(name, '^(.{21})..+', :'le_begins') AS election,
       date_trunc('second', clock_timestamp() - vacant_since) AS vacant_for,
       candidates AS waiting, terms, date_trunc('second', clock_timestamp() - last_denied_at) AS last_bid,
       regexp_replace(last_denied_identity, '^..+(.{13})$', :'le_ends') AS by
FROM :le.pg_stat_leader_election WHERE vacant_since IS NOT NULL
ORDER BY candidates DESC, last_denied_at DESC NULLS LAST, vacant_since DESC LIMIT 20;

\echo '5. Elections that flap: the first 20 with two terms or more, the shortest mean_term first'
\echo 'A mean_term below some minutes is suspicious. session: the program crashes, or a pool closes its'
\echo 'connection. released: the lock was released by DISCARD ALL of a pool. expired, silent: it hangs, or'
\echo 'has a short ttl or heartbeat. None of these: it resigns too early. The server log has the times.'
SELECT regexp_replace(name, '^(.{19})..+', :'le_begins') AS election,
       terms - transaction_ended AS terms, date_trunc('second', time_led / terms) AS mean_term,
       session_ended AS session, lock_released AS released, expired, silent, deposed
FROM :le.pg_stat_leader_election WHERE terms - transaction_ended > 1
ORDER BY time_led / terms LIMIT 20;

\echo '6. Bids that were denied: the first 20, the latest first'
\echo 'A program that polls is denied while another one leads: it is ready to take over. If the column'
\echo 'leader is empty, look at query 2, leader_election.grace_period and le_declarations.grace.'
SELECT regexp_replace(s.name, '^(.{21})..+', :'le_begins') AS election, s.denied,
       date_trunc('second', clock_timestamp() - s.last_denied_at) AS last_bid,
       regexp_replace(s.last_denied_identity, '^..+(.{19})$', :'le_ends') AS by,
       regexp_replace(l.identity, '^..+(.{19})$', :'le_ends') AS leader
FROM :le.pg_stat_leader_election s
     LEFT JOIN :le.le_leaders l ON l.name = s.name
WHERE s.denied > 0 ORDER BY s.last_denied_at DESC LIMIT 20;
\endif

\echo '7. Leaders with a connection of their own: the first 20, the least part of a heartbeat left first'
\echo 'Those without a heartbeat follow, the longest silent first. Programs ask each second: one that is'
\echo 'idle for much longer hangs: SELECT le_depose(''ELECTION'', ''why''). With a heartbeat, the server'
\echo 'does that itself after ends_in. One that is active may be healthy, with a query that takes long.'
SELECT regexp_replace(name, '^(.{16})..+', :'le_begins') AS election,
       regexp_replace(identity, '^..+(.{12})$', :'le_ends') AS leader, l.pid,
       left(replace(a.state, 'transaction', 'xact'), 12) AS state,
       date_trunc('second', clock_timestamp() - a.state_change) AS silent_for, heartbeat,
       date_trunc('second', expires_in) AS ends_in
FROM :le.le_leaders l JOIN pg_stat_activity a ON a.pid = l.pid
ORDER BY extract(epoch FROM expires_in) / extract(epoch FROM heartbeat), a.state_change LIMIT 20;

\echo '8. Leases: the first 20, the least part of their ttl left first'
\echo 'The libraries renew a lease when two thirds of it are left; a program in plain SQL, when it says so.'
\echo 'With less than a third: does the program hang, or wait for its pool? Restart it, or let it renew'
\echo 'between shorter steps of its job, or use a longer ttl.'
SELECT regexp_replace(name, '^(.{21})..+', :'le_begins') AS election,
       regexp_replace(identity, '^..+(.{19})$', :'le_ends') AS leader, ttl,
       date_trunc('milliseconds', expires_in) AS expires_in,
       round(100 * extract(epoch FROM expires_in) / extract(epoch FROM ttl)) AS "left (%)", renewals
FROM :le.le_leaders WHERE scope = 'lease' ORDER BY expires_in / extract(epoch FROM ttl) LIMIT 20;

\echo '9. Limits: the most used first'
\echo 'Above 80 percent, raise the setting, or end what uses it up by le_depose().'
\echo 'Rows on a session or a role show the one with the most. One database can lead 45% of max_elections.'
\echo 'If evictions grow, use names without a date or a number of the run, or raise max_tracked.'
SELECT what, setting, used, most, round(100.0 * used / most) AS "used (%)"
FROM (SELECT 'locks, estimated' AS what, 'max_locks_per_transaction' AS setting,
             (SELECT count(*) FROM pg_locks WHERE NOT fastpath) AS used,
             current_setting('max_locks_per_transaction')::bigint
             * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint) AS most
\if :le_has_statistics
      UNION ALL
      SELECT 'elections on the server', 'max_elections', elections, current_setting('leader_election.max_elections')::bigint
      FROM :le.pg_stat_leader_election_info
      UNION ALL
      SELECT 'led in this database', '45% of max_elections', (SELECT count(*) FROM :le.le_leaders),
             current_setting('leader_election.max_elections')::bigint * 45 / 100
      UNION ALL
      SELECT 'led by one session', 'max_terms_per_session',
             (SELECT max(n) FROM (SELECT count(*) AS n FROM :le.le_leaders WHERE pid IS NOT NULL GROUP BY pid) AS sessions),
             current_setting('leader_election.max_terms_per_session')::bigint
      UNION ALL
      SELECT 'leases here of one role', 'max_elections_per_role',
             (SELECT max(n) FROM (SELECT count(*) AS n FROM :le.le_leaders WHERE scope = 'lease' GROUP BY usename) AS roles),
             current_setting('leader_election.max_elections_per_role')::bigint
      UNION ALL
      SELECT 'evictions', 'max_tracked', evictions, NULL
      FROM :le.pg_stat_leader_election_info
\endif
     ) AS limits
ORDER BY used::numeric / most DESC NULLS LAST;

\echo '10. Jobs of le_once: the first 20, the oldest last_due first'
\echo 'If last_due is older than the interval of the job, look for the leader of its election in 1 and 4.'
\echo 'To have a job done again, set due back in table _le_once_done.'
SELECT regexp_replace(name, '^(.{29})..+', :'le_begins') AS election, date_trunc('second', due) AS last_due,
       date_trunc('second', clock_timestamp() - due) AS age,
       regexp_replace(pg_get_userbyid(role)::text, '^(.{15})..+', :'le_begins') AS role
FROM :le.le_once_done ORDER BY due LIMIT 20;

SELECT set_config('search_path', :'le_path', false) AS le_ignored \gset
