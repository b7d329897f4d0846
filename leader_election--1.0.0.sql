/* leader_election--1.0.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION leader_election" to load this file. \quit

CREATE FUNCTION le_version()
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN 'leader_election 1.0.0, C edition'::text;
COMMENT ON FUNCTION le_version() IS
'version of leader_election, and its edition: C, or SQL where no shared library can be loaded';

--
-- Tokens: the last value is the last token that may have been handed out.
-- They are less than 2^53, so that they are exact as JSON and double
-- precision.  A negative log_cnt tells on which server, timeline and database
-- it was written (term/origin.c).
--
CREATE SEQUENCE le_token_seq MINVALUE 1 MAXVALUE 9007199254740991;
SELECT pg_catalog.pg_extension_config_dump('le_token_seq', '');
COMMENT ON SEQUENCE le_token_seq IS
'source of fencing tokens, which are drawn in blocks; never write to it';

--
-- Where leases were last granted: a server of another origin may not know all
-- of them.  After CREATE EXTENSION, there is no lease to wait for.
--
CREATE FUNCTION _le_origin()
RETURNS bigint
AS 'MODULE_PATHNAME', 'le_origin'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION _le_origin() IS
'identifies the leases of this server and timeline';
REVOKE ALL ON FUNCTION _le_origin() FROM PUBLIC;

CREATE SEQUENCE le_lease_origin_seq;
SELECT pg_catalog.setval('le_lease_origin_seq', _le_origin());
SELECT pg_catalog.pg_extension_config_dump('le_lease_origin_seq', '');
COMMENT ON SEQUENCE le_lease_origin_seq IS
'where leases were last granted, see _le_origin(); on another server none is granted for leader_election.max_ttl';

--
-- Leases: a row is inserted when a lease is taken, and made void (ttl zero)
-- when it has ended.  The columns of fixed size come first, as the library
-- relies on it.
--
CREATE TABLE le_leases (
	token bigint NOT NULL,
	ttl interval NOT NULL,
	since timestamptz NOT NULL,
	database oid NOT NULL,
	role oid NOT NULL,
	identity_has_client boolean NOT NULL,
	name text COLLATE "C" NOT NULL,
	identity text COLLATE "C" NOT NULL,
	PRIMARY KEY (name, token)
) USING heap;
COMMENT ON TABLE le_leases IS
'leases, so that they survive a restart; le_leaders shows the leaders; never write to it';
COMMENT ON COLUMN le_leases.token IS 'fencing token of the lease';
COMMENT ON COLUMN le_leases.ttl IS 'how long the lease runs after each renewal; zero: it has ended';
COMMENT ON COLUMN le_leases.since IS 'when the lease was taken';
COMMENT ON COLUMN le_leases.database IS 'database in which the lease was taken, which a copy is not';
COMMENT ON COLUMN le_leases.role IS 'role that took the lease';
COMMENT ON COLUMN le_leases.identity_has_client IS 'true if the identity contains the address of the client';
COMMENT ON COLUMN le_leases.name IS 'name of the election';
COMMENT ON COLUMN le_leases.identity IS 'identity of the leader';

--
-- Declared elections
--
CREATE TABLE _le_declarations (
	name text COLLATE "C" PRIMARY KEY
		CHECK (pg_catalog.octet_length(name) BETWEEN 1 AND 255),
	candidates name COLLATE "C",
	grace interval CHECK (grace BETWEEN '0' AND '1 day'),
	max_ttl interval CHECK (max_ttl BETWEEN '100 ms' AND '1 day'),
	private boolean NOT NULL DEFAULT false,
	candidates_oid oid,
	origin bigint,
	key bigint UNIQUE GENERATED ALWAYS AS (pg_catalog.hashtextextended(name, 0)) STORED
) USING heap;
SELECT pg_catalog.pg_extension_config_dump('_le_declarations', '');
COMMENT ON TABLE _le_declarations IS 'the rows of le_declarations';

--
-- No role reads these tables by itself: a serialization failure comes while a
-- page of the table is locked, and a client that does not read the error would
-- keep it locked.  The function takes part in no serialization conflict.
--
CREATE FUNCTION _le_declarations(OUT name text, OUT candidates name, OUT grace interval,
								 OUT max_ttl interval, OUT private boolean,
								 OUT candidates_oid oid, OUT origin bigint, OUT key bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'le_list_declarations'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION _le_declarations() IS 'the rows of le_declarations, as of now';

CREATE VIEW le_declarations AS
SELECT d.name, d.candidates, d.grace, d.max_ttl, d.private, d.candidates_oid, d.origin, d.key
FROM _le_declarations() d;
COMMENT ON VIEW le_declarations IS
'declared elections: which roles may bid, and under which rules; written by le_declare and le_undeclare';
COMMENT ON COLUMN le_declarations.name IS 'name of the election';
COMMENT ON COLUMN le_declarations.candidates IS
'name of the role whose privileges a role needs to bid; NULL: all roles may bid';
COMMENT ON COLUMN le_declarations.grace IS
'how long the election stays vacant after a term that ended without resignation; NULL: leader_election.grace_period';
COMMENT ON COLUMN le_declarations.max_ttl IS
'the longest ttl of a lease; NULL: leader_election.max_ttl';
COMMENT ON COLUMN le_declarations.private IS
'true if only roles with the privileges of that role may see the published value';
COMMENT ON COLUMN le_declarations.candidates_oid IS
'OID of that role when it was declared, so that another role of that name does not count; NULL: the name decides';
COMMENT ON COLUMN le_declarations.origin IS
'server and database where the OID is valid; elsewhere, the name decides';
COMMENT ON COLUMN le_declarations.key IS
'key of the election, which bids look for';

CREATE FUNCTION le_declare(name text, candidates regrole DEFAULT NULL,
						   grace interval DEFAULT NULL,
						   max_ttl interval DEFAULT NULL,
						   private boolean DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_declare(text, regrole, interval, interval, boolean) IS
'declare an election, or change the given rules of its declaration: only roles with the privileges of candidates may bid; grace and max_ttl replace the settings; private: only candidates may see the published value; NULL: leave the rule as it is, or undeclared if the declaration is new';
REVOKE ALL ON FUNCTION le_declare(text, regrole, interval, interval, boolean) FROM PUBLIC;

CREATE FUNCTION le_undeclare(name text)
RETURNS boolean
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_undeclare(text) IS
'remove the declaration of an election, with all its rules; returns false if it has none';
REVOKE ALL ON FUNCTION le_undeclare(text) FROM PUBLIC;

--
-- Session scope
--
CREATE FUNCTION le_try_become_leader(name text, heartbeat interval DEFAULT NULL,
									 identity text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_try_become_leader'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_try_become_leader(text, interval, text) IS
'lead the election for the rest of the session, or until no heartbeat comes for that long, if there is no other leader; does not wait';

CREATE FUNCTION le_become_leader(name text, timeout interval DEFAULT NULL,
								 heartbeat interval DEFAULT NULL,
								 identity text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_become_leader'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_become_leader(text, interval, interval, text) IS
'wait to lead the election for the rest of the session, or until no heartbeat comes for that long; returns false after the timeout (NULL: wait forever)';

CREATE FUNCTION le_heartbeat(name text, token bigint DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_heartbeat'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION le_heartbeat(text, bigint) IS
'give a heartbeat for the term that this session leads (token NULL), or for the term with that token in any session; returns false if it has ended';

CREATE FUNCTION le_am_leader(name text, token bigint DEFAULT NULL,
							 identity text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_am_leader'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION le_am_leader(text, bigint, text) IS
'true if this session leads the election (token NULL), or if the lease with that token runs; with an identity, only if it leads under that identity';

CREATE FUNCTION le_token(name text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'le_token'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION le_token(text) IS
'fencing token of the term that this session leads; NULL if it does not lead the election';

CREATE FUNCTION le_resign(name text, token bigint DEFAULT NULL,
						  identity text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_resign'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_resign(text, bigint, text) IS
'end this session''s leadership of the election (token NULL), or the lease with that token; with an identity, only if it leads under that identity; returns false, with a warning, if the caller does not lead';

CREATE FUNCTION le_resign_all()
RETURNS integer
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_resign_all() IS
'end all leadership of this session in session scope; returns the number of elections';

--
-- Transaction scope
--
CREATE FUNCTION le_try_become_leader_xact(name text, identity text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_try_become_leader_xact'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_try_become_leader_xact(text, text) IS
'lead the election until the end of the transaction, if there is no other leader; does not wait';

CREATE FUNCTION le_become_leader_xact(name text, timeout interval DEFAULT NULL,
									  identity text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_become_leader_xact'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_become_leader_xact(text, interval, text) IS
'wait to lead the election until the end of the transaction; returns false after the timeout (NULL: wait forever)';

--
-- Lease scope
--
CREATE FUNCTION le_lease(name text, ttl interval, token bigint DEFAULT NULL,
						 identity text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'le_lease'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_lease(text, interval, bigint, text) IS
'become or stay leader for the ttl (from 100 ms to leader_election.max_ttl): renew the lease with that token, or else take a new one; returns its token, or NULL if there is another leader; does not wait';

CREATE FUNCTION le_renew(name text, token bigint, ttl interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_renew'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_renew(text, bigint, interval) IS
'renew the lease with that token, for its ttl (NULL) or another one; returns false if it does not run';

--
-- Guards
--
CREATE FUNCTION le_assert_leader(name text, token bigint DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_assert_leader(text, bigint) IS
'raise error LE001 unless the term with that token runs (NULL: unless this session leads); otherwise guard the transaction: no new term begins before its end, and it commits only if this term still runs';

CREATE FUNCTION le_guard()
RETURNS trigger
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_guard() IS
'trigger with the name of an election as its argument: the writing session must lead that election, or have the leader''s token in leader_election.token; guards the transaction as le_assert_leader does';

--
-- Jobs of points in time
--
CREATE TABLE _le_once_done (
	name text COLLATE "C" PRIMARY KEY,
	due timestamptz NOT NULL CHECK (pg_catalog.isfinite(due)),
	token bigint NOT NULL,
	role oid NOT NULL
) USING heap;
SELECT pg_catalog.pg_extension_config_dump('_le_once_done', '');
COMMENT ON TABLE _le_once_done IS
'the rows of le_once_done; may be corrected here, to have a job done again';

CREATE FUNCTION _le_once_done(OUT name text, OUT due timestamptz, OUT token bigint, OUT role oid)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'le_list_once_done'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION _le_once_done() IS 'the rows of le_once_done, as of now';

CREATE VIEW le_once_done AS
SELECT o.name, o.due, o.token, o.role
FROM _le_once_done() o;
COMMENT ON VIEW le_once_done IS
'the time of the last completed job of each election; written by le_once';
COMMENT ON COLUMN le_once_done.name IS 'name of the election';
COMMENT ON COLUMN le_once_done.due IS 'time for which the last completed job was due';
COMMENT ON COLUMN le_once_done.token IS 'fencing token of the term that did the job';
COMMENT ON COLUMN le_once_done.role IS 'role that did the job';

CREATE FUNCTION le_once(name text, due timestamptz, token bigint DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_once(text, timestamptz, bigint) IS
'true if the job for that time must be done now, in this transaction, which is then guarded as by le_assert_leader; false if that job, or a later one, is done already; raises error LE001 unless the term with that token runs (NULL: unless this session leads)';

--
-- Waiting without a snapshot
--
CREATE PROCEDURE le_campaign(name text, timeout interval DEFAULT NULL,
							 ttl interval DEFAULT NULL,
							 heartbeat interval DEFAULT NULL,
							 identity text DEFAULT NULL,
							 INOUT token bigint DEFAULT NULL)
AS 'MODULE_PATHNAME'
LANGUAGE C;
COMMENT ON PROCEDURE le_campaign(text, interval, interval, interval, text, bigint) IS
'wait to lead the election for the rest of the session, or until no heartbeat comes for that long, or with a ttl by a lease, without holding a snapshot; returns the token, or NULL after the timeout (NULL: wait forever)';

-- The name comes last, so that at each of its positions the other le_campaign
-- has the same type, apart from the first: a call with parameters of unknown
-- type then always means that one.
CREATE PROCEDURE le_campaign(names text[], timeout interval DEFAULT NULL,
							 ttl interval DEFAULT NULL,
							 heartbeat interval DEFAULT NULL,
							 identity text DEFAULT NULL,
							 INOUT token bigint DEFAULT NULL,
							 INOUT name text DEFAULT NULL)
AS 'MODULE_PATHNAME', 'le_campaign_names'
LANGUAGE C;
COMMENT ON PROCEDURE le_campaign(text[], interval, interval, interval, text, bigint, text) IS
'wait to lead any of many elections, without holding a snapshot; returns token and name of the first one won, or NULLs after the timeout (NULL: wait forever)';

CREATE FUNCTION le_seats(name text, n integer)
RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN ARRAY(SELECT name || '/' || i::text FROM pg_catalog.generate_series(1, n) i);
COMMENT ON FUNCTION le_seats(text, integer) IS
'names of n elections, name/1 to name/n, so that at most n lead: for le_campaign';

CREATE PROCEDURE le_observe(name text, INOUT version bigint DEFAULT NULL,
							timeout interval DEFAULT NULL,
							INOUT token bigint DEFAULT NULL,
							INOUT identity text DEFAULT NULL,
							INOUT value text DEFAULT NULL)
AS 'MODULE_PATHNAME'
LANGUAGE C;
COMMENT ON PROCEDURE le_observe(text, bigint, interval, bigint, text, text) IS
'wait until the election''s state has another version (NULL: do not wait), without holding a snapshot; returns that version, to be passed back, and the leader''s token, identity and published value, which are NULL while the election is vacant';

--
-- Control
--
CREATE FUNCTION le_depose(name text, reason text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_depose'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_depose(text, text) IS
'end the term of the election''s leader: terminate its session, or end its lease, and terminate the sessions whose transactions it guards; for superusers, and for roles with the privileges of the leader''s role or of pg_signal_backend; returns false, with a warning, if the election is vacant';

--
-- Publishing
--
CREATE FUNCTION le_proclaim(name text, value text, token bigint DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION le_proclaim(text, text, bigint) IS
'publish a value (at most 8 kB, NULL: no value) as the leader, at once and to the end of the term, even if the transaction is rolled back; on another connection, and with a lease, pass the token; returns false, with a warning, if that term does not run';

--
-- Leaders and candidates
--
CREATE FUNCTION _le_registry_terms(OUT key bigint,
								  OUT name text, OUT scope text,
								  OUT identity text, OUT token bigint,
								  OUT pid integer, OUT since timestamptz,
								  OUT candidates bigint, OUT ttl interval,
								  OUT heartbeat interval, OUT renewed_at timestamptz,
								  OUT renewals bigint, OUT expires_in interval,
								  OUT value text, OUT role oid,
								  OUT last_denied_at timestamptz,
								  OUT last_denied_identity text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'le_registry_terms'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 1000;
COMMENT ON FUNCTION _le_registry_terms() IS
'the terms in the registry; see le_leaders';

CREATE FUNCTION _le_registry_candidates(only_in_line boolean,
									   OUT key bigint,
									   OUT name text, OUT identity text,
									   OUT pid integer, OUT since timestamptz,
									   OUT in_line boolean,
									   OUT waits_for text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'le_registry_candidates'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 100;
COMMENT ON FUNCTION _le_registry_candidates(boolean) IS
'the candidates in the registry, or only those that wait in line for one election; see le_candidates';

CREATE VIEW _le_locks AS
SELECT l.classid::bigint << 32 | l.objid::bigint AS key, l.pid, l.granted
FROM pg_catalog.pg_locks l
WHERE l.locktype = 'advisory' AND l.objsubid = 19525
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d
					WHERE d.datname = pg_catalog.current_database());
COMMENT ON VIEW _le_locks IS 'the locks of the elections of this database';
COMMENT ON COLUMN _le_locks.key IS 'key of the election';
COMMENT ON COLUMN _le_locks.pid IS 'process that holds the lock or waits for it';
COMMENT ON COLUMN _le_locks.granted IS 'true if the process holds the lock, false if it waits';

-- The holders are looked up by IN, which hashes them: the planner expects few
-- locks, and would compare each term with each in a join.
CREATE VIEW le_leaders AS
SELECT t.name, t.key, t.scope, t.identity, t.token, t.pid,
	   COALESCE(a.usename, r.rolname) AS usename, a.application_name, a.client_addr, t.since,
	   t.candidates, t.last_denied_at, t.last_denied_identity,
	   t.ttl, t.heartbeat, t.renewed_at, t.renewals, t.expires_in, t.value
FROM _le_registry_terms() t
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = t.pid
LEFT JOIN pg_catalog.pg_roles r ON r.oid = t.role AND t.scope = 'lease'
WHERE t.scope = 'lease' OR (t.key, t.pid) IN (SELECT l.key, l.pid FROM _le_locks l WHERE l.granted);
COMMENT ON VIEW le_leaders IS 'leaders: one row for each running term';
COMMENT ON COLUMN le_leaders.name IS 'name of the election';
COMMENT ON COLUMN le_leaders.key IS 'key of the election, and of its lock in pg_locks';
COMMENT ON COLUMN le_leaders.scope IS 'scope of the term: session, transaction or lease';
COMMENT ON COLUMN le_leaders.identity IS 'identity of the leader';
COMMENT ON COLUMN le_leaders.token IS 'fencing token of the term';
COMMENT ON COLUMN le_leaders.pid IS 'process that leads; NULL for a lease, which is bound to none';
COMMENT ON COLUMN le_leaders.usename IS 'role of the process that leads, or that took the lease';
COMMENT ON COLUMN le_leaders.application_name IS 'application_name of the process that leads';
COMMENT ON COLUMN le_leaders.client_addr IS
'address of the client that leads, if the current role may see it in pg_stat_activity; NULL for a local client';
COMMENT ON COLUMN le_leaders.since IS 'when the term began';
COMMENT ON COLUMN le_leaders.candidates IS 'number of waiting candidates';
COMMENT ON COLUMN le_leaders.last_denied_at IS
'when a bid for the election was last denied, at once or after its timeout; NULL if none was';
COMMENT ON COLUMN le_leaders.last_denied_identity IS 'identity of that bid';
COMMENT ON COLUMN le_leaders.ttl IS 'how long the lease runs after each renewal; NULL if it is no lease';
COMMENT ON COLUMN le_leaders.heartbeat IS
'how long the term runs after each le_heartbeat(); NULL if it has no heartbeat';
COMMENT ON COLUMN le_leaders.renewed_at IS
'when the lease was last renewed, began, or was first read after a restart; NULL if it is no lease';
COMMENT ON COLUMN le_leaders.renewals IS
'how often the lease was renewed since it began or the server started; NULL if it is no lease';
COMMENT ON COLUMN le_leaders.expires_in IS
'time until the lease expires unless renewed, or until the next heartbeat is due; NULL if the term has neither';
COMMENT ON COLUMN le_leaders.value IS 'value that the leader has published by le_proclaim; NULL if none';

CREATE FUNCTION le_leader(INOUT name text, OUT key bigint, OUT scope text,
						  OUT identity text, OUT token bigint,
						  OUT pid integer, OUT since timestamptz,
						  OUT candidates bigint, OUT ttl interval,
						  OUT heartbeat interval, OUT renewed_at timestamptz,
						  OUT renewals bigint, OUT expires_in interval,
						  OUT value text)
RETURNS SETOF record
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 1;
COMMENT ON FUNCTION le_leader(text) IS
'leader of the election: one row, with columns as in le_leaders, or none; for programs, as it looks at this election only';

-- A candidate in line waits for the election's lock, or holds that and waits
-- for something else
CREATE VIEW le_candidates AS
WITH lines AS (
	SELECT c.key, c.name, c.identity, c.pid, c.since, c.waits_for, b.pids AS blocked_by
	FROM _le_registry_candidates(true) c
	JOIN _le_locks l ON l.key = c.key AND l.pid = c.pid
	CROSS JOIN LATERAL pg_catalog.pg_blocking_pids(c.pid) b(pids)
),
candidates AS (
	SELECT c.name, c.key,
		   (SELECT pg_catalog.count(*) + 1
			FROM pg_catalog.unnest(c.blocked_by) b(pid)
			JOIN lines o ON o.pid = b.pid
			WHERE o.key = c.key) AS position,
		   c.identity, c.pid, c.since, c.waits_for, c.blocked_by
	FROM lines c
	UNION ALL
	SELECT c.name, c.key, NULL, c.identity, c.pid, c.since, NULL, NULL
	FROM _le_registry_candidates(false) c
	WHERE NOT c.in_line
)
SELECT c.name, c.key, c.position, c.identity, c.pid,
	   a.usename, a.application_name, a.client_addr,
	   c.since, c.waits_for, c.blocked_by
FROM candidates c
JOIN pg_catalog.pg_stat_activity a ON a.pid = c.pid;
COMMENT ON VIEW le_candidates IS
'candidates: one row for each candidate and each election that it waits for';
COMMENT ON COLUMN le_candidates.name IS 'name of the election';
COMMENT ON COLUMN le_candidates.key IS 'key of the election, and of its lock in pg_locks';
COMMENT ON COLUMN le_candidates.position IS
'place in line: 1 is elected next; NULL for a candidate for many elections, which comes after all others';
COMMENT ON COLUMN le_candidates.identity IS 'identity of the candidate';
COMMENT ON COLUMN le_candidates.pid IS 'process that waits';
COMMENT ON COLUMN le_candidates.usename IS 'role of the process that waits';
COMMENT ON COLUMN le_candidates.application_name IS 'application_name of the process that waits';
COMMENT ON COLUMN le_candidates.client_addr IS
'address of the client that waits, if the current role may see it in pg_stat_activity; NULL for a local client';
COMMENT ON COLUMN le_candidates.since IS 'when the candidate began to wait';
COMMENT ON COLUMN le_candidates.waits_for IS
'leader: the leader, or candidates ahead in line; guard: transactions that are guarded by the last term; grace: the grace period, as the last term was not resigned; promotion: leases are not granted yet on a server that was promoted or restored; standby: a synchronous standby does not have yet what the new term relies on; NULL for a candidate for many elections';
COMMENT ON COLUMN le_candidates.blocked_by IS
'processes that the candidate waits for, as in pg_blocking_pids; 0: a prepared transaction';

--
-- Statistics
--
-- ended: by reason, in the order of the library; later versions may append
CREATE FUNCTION _le_registry_statistics(OUT key bigint,
									   OUT name text, OUT terms bigint,
									   OUT ended bigint[], OUT denied bigint,
									   OUT last_denied_at timestamptz,
									   OUT last_denied_identity text,
									   OUT leases_rolled_back bigint,
									   OUT time_vacant interval,
									   OUT time_led interval,
									   OUT longest_wait interval,
									   OUT vacant_since timestamptz,
									   OUT candidates bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'le_registry_statistics'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 1000;
COMMENT ON FUNCTION _le_registry_statistics() IS
'the statistics in the registry; see pg_stat_leader_election';

CREATE VIEW pg_stat_leader_election AS
SELECT s.name, s.key, s.terms, s.ended[1] AS resigned, s.ended[2] AS deposed,
	   s.ended[4] AS session_ended, s.ended[3] AS transaction_ended,
	   s.ended[6] AS expired, s.ended[5] AS lock_released,
	   s.ended[7] AS extension_dropped, s.ended[8] AS silent, s.denied,
	   s.last_denied_at, s.last_denied_identity, s.leases_rolled_back,
	   s.time_vacant, s.time_led, s.longest_wait,
	   s.candidates, s.vacant_since
FROM _le_registry_statistics() s;
COMMENT ON VIEW pg_stat_leader_election IS
'statistics of each election of this database since it became known, or since pg_stat_leader_election_reset()';
COMMENT ON COLUMN pg_stat_leader_election.name IS 'name of the election';
COMMENT ON COLUMN pg_stat_leader_election.key IS 'key of the election, and of its lock in pg_locks';
COMMENT ON COLUMN pg_stat_leader_election.terms IS 'terms that have begun';
COMMENT ON COLUMN pg_stat_leader_election.resigned IS 'terms that ended because their leader resigned';
COMMENT ON COLUMN pg_stat_leader_election.deposed IS 'terms that were ended by le_depose';
COMMENT ON COLUMN pg_stat_leader_election.session_ended IS 'terms that ended with their session';
COMMENT ON COLUMN pg_stat_leader_election.transaction_ended IS 'terms that ended with their transaction';
COMMENT ON COLUMN pg_stat_leader_election.expired IS 'leases that expired';
COMMENT ON COLUMN pg_stat_leader_election.lock_released IS
'terms that ended because their lock was released without the extension, as by DISCARD ALL';
COMMENT ON COLUMN pg_stat_leader_election.extension_dropped IS 'leases that ended with DROP EXTENSION';
COMMENT ON COLUMN pg_stat_leader_election.silent IS 'terms that ended because no heartbeat came in time';
COMMENT ON COLUMN pg_stat_leader_election.denied IS
'bids that were denied, at once or after their timeout';
COMMENT ON COLUMN pg_stat_leader_election.last_denied_at IS
'when a bid was last denied; NULL if none was';
COMMENT ON COLUMN pg_stat_leader_election.last_denied_identity IS 'identity of that bid';
COMMENT ON COLUMN pg_stat_leader_election.leases_rolled_back IS
'new leases that did not begin, because their transactions were rolled back';
COMMENT ON COLUMN pg_stat_leader_election.time_vacant IS 'time without a leader';
COMMENT ON COLUMN pg_stat_leader_election.time_led IS 'time with a leader';
COMMENT ON COLUMN pg_stat_leader_election.longest_wait IS
'longest time that a candidate waited until it was elected or gave up';
COMMENT ON COLUMN pg_stat_leader_election.candidates IS 'number of candidates that wait now';
COMMENT ON COLUMN pg_stat_leader_election.vacant_since IS
'since when the election is vacant: the end of the last term, or when the election became known; NULL if it is not vacant';

CREATE FUNCTION _le_registry_info(OUT elections bigint, OUT evictions bigint,
								 OUT stats_reset timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'le_registry_info'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION _le_registry_info() IS
'statistics of the registry itself; see pg_stat_leader_election_info';

CREATE VIEW pg_stat_leader_election_info AS
SELECT elections, evictions, stats_reset FROM _le_registry_info();
COMMENT ON VIEW pg_stat_leader_election_info IS
'one row about the statistics themselves';
COMMENT ON COLUMN pg_stat_leader_election_info.elections IS
'elections of all databases that are remembered';
COMMENT ON COLUMN pg_stat_leader_election_info.evictions IS
'elections of all databases that were evicted with their statistics, because of leader_election.max_tracked or to make room';
COMMENT ON COLUMN pg_stat_leader_election_info.stats_reset IS
'when the statistics of this database were last reset; NULL if not since the server started';

CREATE FUNCTION pg_stat_leader_election_reset()
RETURNS void
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pg_stat_leader_election_reset() IS
'reset the statistics of this database, and show elections no longer that are vacant, were resigned from, and have no candidates or observers';
REVOKE ALL ON FUNCTION pg_stat_leader_election_reset() FROM PUBLIC;

GRANT SELECT ON le_declarations, le_once_done, _le_locks, le_leaders, le_candidates, pg_stat_leader_election,
	pg_stat_leader_election_info TO PUBLIC;

-- for pg_dump
GRANT SELECT ON _le_declarations, _le_once_done, le_token_seq, le_lease_origin_seq
	TO pg_database_owner, @extowner@;

--
-- A role that has created the extension without being a superuser, as any
-- role with CREATE on the database can, owns none of its objects, and is
-- granted these privileges instead.  Only EXECUTE has a grant option: the
-- privileges to write to the relations are for restoring a dump, and for
-- correcting rows of _le_once_done.
--
GRANT EXECUTE ON FUNCTION
	le_declare(text, regrole, interval, interval, boolean),
	le_undeclare(text),
	pg_stat_leader_election_reset()
TO @extowner@ WITH GRANT OPTION;
GRANT INSERT ON _le_declarations TO @extowner@;
GRANT INSERT, UPDATE, DELETE ON _le_once_done TO @extowner@;
GRANT UPDATE ON le_token_seq, le_lease_origin_seq TO @extowner@;
