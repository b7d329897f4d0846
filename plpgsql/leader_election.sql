/*
 * leader_election.sql: the SQL edition of leader_election
 *
 * The calls of the extension, in SQL and PL/pgSQL, for servers that load no
 * shared library.  It runs on PostgreSQL 15 to 19.  doc/managed.md compares
 * what the two editions guarantee.
 *
 * A role that owns the schema "le", or may create it, installs this script:
 *
 *		psql -X -f leader_election.sql
 *		GRANT USAGE ON SCHEMA le TO app;
 *		ALTER ROLE app SET search_path = "$user", public, le;
 *
 * It is one statement, which runs to its end or has no effect.  Running it again
 * upgrades in place: signatures are never changed, since triggers and views
 * depend on them.  DROP SCHEMA le CASCADE removes everything.  For another schema, as
 * "election", replace one word everywhere:
 *
 *		sed 's/\<le\>/election/g' leader_election.sql
 *
 * The invariant.  The row of an election in le_elections is the authority: the
 * leader is what the last committed version of the row says, as long as that
 * term is not over.  A term is over when "ended" is set; when its transaction
 * has ended (transaction scope); when its time has passed (a lease, or a term
 * with a heartbeat); or when no session holds its beacon (session scope).  A
 * new term begins by an UPDATE of "token", under FOR UPDATE of the row, after
 * the row was read again under that lock and its term was found to be over.
 *
 * The beacon is an advisory lock with a random key.  The session that leads
 * holds it twice, so that releasing and trying again tells whether it is held,
 * without ever freeing it.  The line is another advisory lock, with the key
 * ~beacon.  The leader holds it as well, and candidates wait for it in the lock
 * manager's queue, by a lock of their transaction.  No candidate takes the
 * beacon, so that a session which can have it, shared, knows that the leader
 * has gone, whatever candidates wait for.  The keys are replaced with each term
 * in session scope.  So neither a bid that is rolled back, nor a session that
 * takes beacon or line without leading, keeps an election vacant: the
 * former has locked keys that are in no row, and the latter is found by
 * pg_locks, and is passed over a second later.  The session takes both locks
 * in a deferred trigger, immediately before the commit, because a lock of the
 * session would outlast a rollback.
 *
 * Guards lock the row FOR KEY SHARE.  "token" is in a unique index, so that a
 * new term conflicts with them, and a renewal does not.  The transaction's
 * setting leader_election_sql.guards lists their tokens for the trigger
 * le_guard.  Any role can set it, so it is a hint: the trigger takes the guard
 * again, with all of its checks.  A forged value does what a value of
 * leader_election.token does, which is public: it lets a role write by a term
 * that runs and is its own.
 *
 * What must outlive a rollback is in sequences, which setval() changes at
 * once: the origin of the tokens, since when this server is known, and by
 * currval() what a session has taken or suspected last.  The
 * row of le_settings is locked meanwhile, in a subtransaction that is rolled
 * back, so that it is locked for an instant only.
 *
 * Lock order: line, then row of le_elections, then row of le_settings.  A
 * session that holds a row never waits for a line.
 *
 * Security.  All functions that read or change the tables are SECURITY DEFINER
 * with search_path = pg_catalog, pg_temp; internal ones are called by these
 * alone, and are revoked from PUBLIC.  The types of variables are written with a
 * schema: a session keeps those that plpgsql_validator() has found, which any role can
 * call, with a search_path of its own.  A procedure that commits cannot have a
 * search_path of its own, so procedures contain COMMIT, SET TRANSACTION and
 * calls with a schema, but no operator, cast or table.  The functions that
 * they call are open to all roles, and trust no argument.
 *
 * A transaction that fails at SERIALIZABLE can hold the lock of a page until its
 * client has read the error.  What reads or changes the tables for another role is
 * therefore followed by EXCEPTION WHEN OTHERS THEN RAISE: the lock is released with
 * the subtransaction, before that.  Declarations come before the subtransaction, and
 * read no table.  No other role reads a table itself.
 */

--
-- The schema
--
-- One statement: clients go on after an error, also in a transaction, by savepoints.
DO $install$
DECLARE
	path pg_catalog.text := pg_catalog.current_setting('search_path');
	login pg_catalog.oid;
	foreign_objects pg_catalog.text;	-- a query for them
	other pg_catalog.record;
BEGIN
	PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
	-- an older snapshot would hide what others commit while the script waits
	IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = 'leader_election must be installed at isolation level READ COMMITTED',
			HINT = 'Before that, SET default_transaction_isolation = ''read committed''.';
	END IF;
	login := (SELECT a.usesysid FROM pg_stat_get_activity(pg_backend_pid()) a);
	-- the database's owner chooses the settings of all sessions, and its code can RESET ROLE, or
	-- set a superuser as the role if that of the connection can
	IF EXISTS (SELECT FROM pg_roles r WHERE r.rolsuper AND pg_has_role(login, r.oid, 'MEMBER'))
		AND NOT EXISTS (SELECT FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba
						WHERE d.datname = current_database() AND r.rolsuper) THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'a superuser can install leader_election only in a database that a superuser owns',
			HINT = 'Connect as the owner of the database, or as a role that trusts it.';
	END IF;
	IF to_regnamespace('le') IS NULL THEN
		CREATE SCHEMA le;
	END IF;
	-- code of another owner could RESET ROLE
	IF NOT EXISTS (SELECT FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
				   WHERE n.oid = 'le'::regnamespace AND r.oid = login AND r.rolname = current_user) THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'only the owner of schema "le" can install leader_election',
			HINT = 'Connect as that role: SET ROLE does not suffice.';
	END IF;
	IF EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) a
			   WHERE n.oid = 'le'::regnamespace AND a.privilege_type = 'CREATE' AND a.grantee <> login) THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'other roles can create objects in schema "le"',
			HINT = 'Use another schema. Or run REVOKE CREATE ON SCHEMA le FROM those roles, commit, and '
				'wait for their transactions to end.';
	END IF;
	-- their owners could change what the script keeps, or what roles find that search the schema.
	-- pg_shdepend does not list roles that initdb has created, as pg_monitor.  Extensions are
	-- left out: any role with CREATE on the database can create a trusted one here, whose objects are
	-- the bootstrap superuser's.
	SELECT string_agg(format('SELECT pg_describe_object(tableoid, oid, 0) AS what, %I AS role FROM %s '
			'WHERE %I = ''le''::regnamespace AND %1$I NOT IN (%4$s, 10)', o.attname, c.oid::regclass,
			n.attname, login), ' UNION ALL ')
		-- a range type that was moved to another schema leaves its constructors here, which are the
		-- bootstrap superuser's, too: internal functions, as no others but superusers create
		|| format(' UNION ALL SELECT pg_describe_object(t.tableoid, t.oid, 0), typowner '
			'FROM pg_proc JOIN pg_type t ON t.oid = prorettype JOIN pg_language l ON l.oid = prolang '
			'WHERE pronamespace = ''le''::regnamespace AND lanname = ''internal'' '
			'AND typowner NOT IN (%s, 10)', login) INTO foreign_objects
	FROM pg_class c JOIN pg_attribute n ON n.attrelid = c.oid AND n.attname LIKE '%namespace'
		JOIN pg_attribute o ON o.attrelid = c.oid AND o.attname LIKE '%owner'
	WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind = 'r' AND c.relname <> 'pg_extension';
	EXECUTE foreign_objects INTO other;
	IF other.role IS NOT NULL THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'schema "le" contains objects of other roles',
			DETAIL = format('The owner of %s is "%s".', other.what, pg_get_userbyid(other.role)),
			HINT = 'Drop them, or use another schema.';
	END IF;
	-- This edition would not see the leaders of that one.  The functions that it replaces would remain
	-- members of the extension, which its owner can drop.
	IF EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = 'le'::regnamespace
			   AND p.proname = '_le_origin' AND p.probin IS NOT NULL) THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = 'schema "le" contains the C extension leader_election',
			HINT = 'Use another schema, or first move from that edition.';
	END IF;
COMMENT ON SCHEMA le IS 'leader election (SQL edition)';

-- The signatures of internal functions can change, except of those that views and
-- the trigger depend on.  The former functions are renamed, and dropped by the
-- next upgrade: calls that wait, as those of candidates, are executing them.  Those
-- that objects of other roles use remain.  They keep their grants, and faults that the
-- upgrade mends, so that they lose the rights of the owner.
DECLARE
	internal pg_catalog.record;
BEGIN
	FOR internal IN
		SELECT p.oid::regprocedure AS signature, starts_with(p.proname::text, '_le_old_') AS old
		FROM pg_proc p
		WHERE p.pronamespace = 'le'::regnamespace AND starts_with(p.proname::text, '_le_')
			AND p.proname <> ALL ('{_le_leaders,_le_candidates,_le_once_done,_le_take_beacon}')
	LOOP
		IF internal.old THEN
			-- DROP would wait for transactions that have read a view
			CONTINUE WHEN EXISTS (SELECT FROM pg_depend d
				WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = internal.signature::oid);
			BEGIN
				EXECUTE format('DROP FUNCTION %s', internal.signature);
			EXCEPTION WHEN dependent_objects_still_exist THEN
				NULL;
			END;
		ELSE
			EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', internal.signature);
			EXECUTE format('ALTER FUNCTION %s SECURITY INVOKER', internal.signature);
			EXECUTE format('ALTER FUNCTION %s RENAME TO _le_old_%s', internal.signature,
				internal.signature::oid);
		END IF;
	END LOOP;
END;

CREATE OR REPLACE FUNCTION le.le_version() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'leader_election 1.0.0, SQL edition';
COMMENT ON FUNCTION le.le_version() IS
'version of leader_election, and its edition: C, or SQL where no shared library can be loaded';

--
-- Tables and sequences
--
IF to_regclass('le.le_settings') IS NULL THEN
	CREATE TABLE le.le_settings (
		one boolean PRIMARY KEY DEFAULT true CHECK (one),
		max_ttl interval NOT NULL DEFAULT '1 min',
		max_elections_per_role integer NOT NULL DEFAULT 10000,
		elects boolean NOT NULL DEFAULT true
	);
	INSERT INTO le.le_settings DEFAULT VALUES;
END IF;
COMMENT ON TABLE le.le_settings IS 'settings, one row; the owner changes them by UPDATE';
COMMENT ON COLUMN le.le_settings.max_ttl IS
'longest ttl of a lease, and how long a server that was promoted or restored grants none';
COMMENT ON COLUMN le.le_settings.max_elections_per_role IS
'how many elections a role can add to le_elections';
COMMENT ON COLUMN le.le_settings.elects IS
'false: no new term begins; running terms continue';

-- An upgrade must not lock the table: renewals would wait for transactions that
-- have read it.
IF to_regclass('le.le_elections') IS NULL THEN
	CREATE TABLE le.le_elections (
		name text COLLATE "C" PRIMARY KEY,
		token bigint UNIQUE,
		scope text,
		role oid,
		login oid,
		pid integer,
		xact xid8,
		beacon bigint NOT NULL,
		since timestamptz,
		renewed_at timestamptz,
		renewals bigint,
		lasts interval,
		suspect_at timestamptz,
		creator oid NOT NULL,
		shows_client boolean,
		ended text,
		identity text
	) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
	-- not in le_elections, where an open le_proclaim would keep the lease from being renewed
	CREATE TABLE le.le_values (
		name text COLLATE "C" PRIMARY KEY REFERENCES le.le_elections ON DELETE CASCADE,
		token bigint NOT NULL,
		value text
	);
	CREATE INDEX le_elections_creator ON le.le_elections (creator);
	CREATE INDEX le_elections_beacon ON le.le_elections (beacon);
END IF;
COMMENT ON TABLE le.le_elections IS
'elections with their last terms; le_leaders shows the leaders; never write to it';
COMMENT ON COLUMN le.le_elections.token IS 'fencing token of the last term; NULL: none yet';
COMMENT ON COLUMN le.le_elections.login IS 'role with which that session began';
COMMENT ON COLUMN le.le_elections.pid
	IS 'process of the session that leads, or that took the lease';
COMMENT ON COLUMN le.le_elections.xact IS 'transaction in which the term began';
COMMENT ON COLUMN le.le_elections.beacon
	IS 'key of the advisory lock that the leader holds; candidates await that of the key ~beacon';
COMMENT ON COLUMN le.le_elections.lasts IS 'ttl of the lease, or heartbeat';
COMMENT ON COLUMN le.le_elections.suspect_at
	IS 'when a bid found the line held, but not by a leader';
COMMENT ON COLUMN le.le_elections.creator IS 'role for which the row counts';
COMMENT ON COLUMN le.le_elections.shows_client
	IS 'true if the identity contains the address of the client';
COMMENT ON COLUMN le.le_elections.ended IS 'end reason of the term, if it was ended explicitly';
COMMENT ON TABLE le.le_values IS 'values of le_proclaim, each for the term with that token';

CREATE TABLE IF NOT EXISTS le._le_once_done (
	name text COLLATE "C" PRIMARY KEY,
	due timestamptz NOT NULL CHECK (isfinite(due)),
	token bigint NOT NULL,
	role oid NOT NULL
);
COMMENT ON TABLE le._le_once_done IS
'the rows of le_once_done; may be corrected here, to have a job done again';

CREATE SEQUENCE IF NOT EXISTS le.le_token_seq MINVALUE 1 MAXVALUE 9007199254740991;
CREATE SEQUENCE IF NOT EXISTS le.le_origin_seq MINVALUE 0;
CREATE SEQUENCE IF NOT EXISTS le.le_place_seq MINVALUE 0;
CREATE SEQUENCE IF NOT EXISTS le.le_seen_seq MINVALUE 0;
CREATE SEQUENCE IF NOT EXISTS le.le_lease_seq MINVALUE 0;
CREATE SEQUENCE IF NOT EXISTS le.le_void_seq MINVALUE 0;
CREATE SEQUENCE IF NOT EXISTS le.le_beacon_seq MINVALUE 0;
CREATE SEQUENCE IF NOT EXISTS le.le_suspect_seq MINVALUE 0;
COMMENT ON SEQUENCE le.le_token_seq IS 'source of fencing tokens; never set it back';
COMMENT ON SEQUENCE le.le_origin_seq IS 'hash of _le_origin() when it was last looked at';
COMMENT ON SEQUENCE le.le_place_seq IS 'hash of _le_place() when it was last looked at';
COMMENT ON SEQUENCE le.le_seen_seq IS 'when that origin was first seen, in microseconds';
COMMENT ON SEQUENCE le.le_lease_seq IS 'when leases are granted again, in microseconds';
COMMENT ON SEQUENCE le.le_void_seq IS 'terms with tokens up to this one belong to another database';
COMMENT ON SEQUENCE le.le_beacon_seq IS 'currval() is the beacon that a session has taken last';
COMMENT ON SEQUENCE le.le_suspect_seq IS
'currval() is the beacon that a session has suspected last, in 32 bits, below the second';

--
-- The caller and its arguments
--
-- A function that checks something returns what it has checked, or true, so
-- that it is called by an expression, which costs less than PERFORM does.
--
-- The caller's name can have a collation of its own, so that it is compared by "C".
--
-- A function that runs as its owner does not know the current user of its
-- caller, but the session's user, and the role that SET ROLE has set.
CREATE OR REPLACE FUNCTION le._le_caller() RETURNS name LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN CASE current_setting('role') WHEN 'none' THEN session_user
		ELSE current_setting('role')::name END;
END $$;

-- Check whether the caller has the privileges of the role.  A superuser has
-- only its own: code of any role can run in a session of a superuser, as
-- autovacuum runs the functions of indexes.  A superuser can SET ROLE.
--
-- Such code must not use the caller's tokens, or bid in the caller's name.  So what
-- acts begins with UNLISTEN, which the server refuses in a security-restricted
-- operation, as ANALYZE is.  Elsewhere it does nothing.
CREATE OR REPLACE FUNCTION le._le_has_role(role oid) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	caller pg_catalog.name := le._le_caller();
BEGIN
	RETURN CASE current_setting('is_superuser') WHEN 'on' THEN quote_ident(caller)::regrole = role
		ELSE pg_has_role(caller, role, 'USAGE') END;
END $$;

-- Quote a name or identity for messages, so that it stays on one line of the log,
-- and within its quotes
CREATE OR REPLACE FUNCTION le._le_quote(value text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN '"' || (SELECT string_agg(CASE WHEN c IN ('"', chr(92)) THEN chr(92) || c
		WHEN c COLLATE "C" > chr(127) AND getdatabaseencoding() <> 'UTF8' THEN c
		WHEN ascii(c) < 32 OR ascii(c) = 127 THEN chr(92) || 'x' || lpad(to_hex(ascii(c)), 2, '0')
		WHEN ascii(c) <@ '{[128,160),[1564,1565),[8206,8208),[8232,8239),[8294,8298)}'::int4multirange
			THEN chr(92) || 'u' || lpad(to_hex(ascii(c)), 4, '0')
		ELSE c END, '' ORDER BY i) FROM string_to_table(value, NULL) WITH ORDINALITY t(c, i)) || '"';
END $$;

-- Raise an error unless the caller has the privileges of the term's role
CREATE OR REPLACE FUNCTION le._le_require_role(name text, role oid) RETURNS boolean
	LANGUAGE plpgsql AS $$
BEGIN
	IF NOT le._le_has_role(role) THEN
		RAISE insufficient_privilege USING MESSAGE = format(
			'permission denied for the token of election %s, which belongs to another role',
				le._le_quote(name));
	END IF;
	RETURN true;
END $$;

CREATE OR REPLACE FUNCTION le._le_text(what text, value text, shortest integer, longest integer)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF octet_length(value) < shortest THEN
		RAISE zero_length_character_string USING MESSAGE = what || ' must not be empty';
	ELSIF octet_length(value) > longest THEN
		RAISE string_data_right_truncation USING
			MESSAGE = format('%s is too long: %s bytes, at most %s', what, octet_length(value),
				longest);
	END IF;
	RETURN value;
END $$;

-- An array is what drivers make of names without a type
CREATE OR REPLACE FUNCTION le._le_name(name text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF name IS NULL THEN
		RAISE null_value_not_allowed USING MESSAGE = 'election name must not be null';
	END IF;
	IF octet_length(name) NOT BETWEEN 1 AND 255 THEN
		RETURN le._le_text('election name', name, 1, 255);
	ELSIF name COLLATE "C" LIKE '{%}' THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('election name must not be enclosed in braces: %s', le._le_quote(name)),
			HINT = 'Pass an array of names as $1::text[].';
	END IF;
	RETURN name;
END $$;

-- Return the interval without days, which can have other lengths than 24 hours
CREATE OR REPLACE FUNCTION le._le_span(what text, span interval, most interval) RETURNS interval
LANGUAGE plpgsql STABLE AS $$
DECLARE
	ms numeric := extract(epoch FROM span) * 1000;
	most_ms integer := extract(epoch FROM most) * 1000;
BEGIN
	IF ms NOT BETWEEN 100 AND most_ms OR extract(month FROM span) <> 0
		OR extract(year FROM span) <> 0 THEN
		RAISE invalid_parameter_value USING MESSAGE = format('%s must be from 100 ms to %s ms%s',
			what, most_ms,
			CASE WHEN extract(month FROM span) <> 0 OR extract(year FROM span) <> 0
				THEN ', and without months' ELSE '' END);
	END IF;
	RETURN make_interval(secs => (ms / 1000)::float8);
END $$;

CREATE OR REPLACE FUNCTION le._le_ttl(ttl interval) RETURNS interval LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
	most interval := (SELECT s.max_ttl FROM le.le_settings s);
BEGIN
	IF ttl > most AND ttl <= '1 day' THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('ttl must be from 100 ms to %s ms',
				(extract(epoch FROM most) * 1000)::integer),
			HINT = 'Ask the owner of the schema to raise max_ttl in "le_settings".';
	END IF;
	RETURN le._le_span('ttl', ttl, most);
END $$;

CREATE OR REPLACE FUNCTION le._le_timeout(timeout interval) RETURNS interval
	LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF timeout < '0' THEN
		RAISE invalid_parameter_value USING MESSAGE = 'timeout must not be negative';
	ELSIF extract(epoch FROM timeout) > 2147483.647 THEN
		RAISE interval_field_overflow USING
			MESSAGE = 'timeout must be at most 2147483647 ms, which is about 24 days',
			HINT = 'Leave it out, or pass NULL, to wait forever.';
	END IF;
	RETURN timeout;
END $$;

-- Return the text as JSON in ASCII, which every client's encoding contains.  What
-- cannot be converted, such as bytes in SQL_ASCII, is taken for Latin 1: the identity
-- of a leader must not keep the next one from being elected.
CREATE OR REPLACE FUNCTION le._le_json(value text) RETURNS text LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
	json pg_catalog.text := to_json(value)::text;
	utf8 pg_catalog.bytea := convert_to(json, 'SQL_ASCII');	-- as it is
	ascii pg_catalog.text := '';
	b integer;
	code integer;
BEGIN
	IF json !~ '[^ -~]' THEN
		RETURN json;
	END IF;
	BEGIN
		IF getdatabaseencoding() = 'SQL_ASCII' THEN
			RAISE untranslatable_character;
		END IF;
		utf8 := convert_to(json, 'UTF8');
	EXCEPTION WHEN untranslatable_character OR character_not_in_repertoire OR undefined_function THEN
		utf8 := convert(utf8, 'LATIN1', 'UTF8');
	END;
	FOR i IN 0 .. octet_length(utf8) - 1 LOOP
		b := get_byte(utf8, i);
		code := CASE WHEN b < 128 THEN b WHEN b < 192 THEN (code << 6) | (b & 63)
			ELSE b & (CASE WHEN b < 224 THEN 31 WHEN b < 240 THEN 15 ELSE 7 END) END;
		CONTINUE WHEN i + 1 < octet_length(utf8) AND (get_byte(utf8, i + 1) & 192) = 128;
		ascii := ascii || CASE WHEN code < 128 THEN chr(code)
			WHEN code < 65536 THEN chr(92) || 'u' || lpad(to_hex(code), 4, '0')
			ELSE chr(92) || 'u' || to_hex(55232 + (code >> 10)) || chr(92) || 'u' ||
				to_hex(56320 + (code & 1023)) END;
	END LOOP;
	RETURN ascii;
END $$;

-- Return the identity without the client's address, if it contains one
CREATE OR REPLACE FUNCTION le._le_public_identity(identity text, shows_client boolean) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RETURN CASE WHEN shows_client THEN left(identity, -position('@' IN reverse(identity)))
		ELSE identity END;
END $$;

-- Return the identity as the caller may see it, by the rule of pg_stat_activity
CREATE OR REPLACE FUNCTION le._le_shown_identity(e le.le_elections) RETURNS text
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN le._le_public_identity(e.identity, e.shows_client
		AND NOT pg_has_role(le._le_caller(), CASE e.scope WHEN 'lease' THEN e.role ELSE e.login END,
			'USAGE')
		AND NOT pg_has_role(le._le_caller(), 'pg_read_all_stats', 'USAGE'));
END $$;

CREATE OR REPLACE FUNCTION le._le_notify(e le.le_elections, event text, more text DEFAULT '')
	RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF e.scope <> 'transaction'
		AND current_setting('leader_election.notify', true) IN ('on', 'true', 'yes', '1') THEN
		PERFORM pg_notify('leader_election',
			format('{"election": %s, "event": "%s", "token": %s, "identity": %s%s}',
			le._le_json(e.name), event, e.token,
				le._le_json(le._le_public_identity(e.identity, e.shows_client)), more));
	END IF;
END $$;

--
-- The server: tokens, promotion, restores, copies
--
-- Return the timeline; 0 on a standby, and where the provider has no such function.
-- What the caller can bring about, such as a stack that is too small, is an error: a
-- server that seems to be another one ends leases and tokens.
CREATE OR REPLACE FUNCTION le._le_timeline() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	RETURN left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN lock_not_available THEN RAISE;
WHEN object_not_in_prerequisite_state OR feature_not_supported OR insufficient_privilege OR
	undefined_function THEN
	RETURN '0';
END $$;

-- What changes with each start, crash, promotion, restore or copy.  If one backend
-- crashes, the server program goes on, but it resets the statistics.
CREATE OR REPLACE FUNCTION le._le_origin() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	RETURN hashtextextended(concat_ws(' ', le._le_timeline(),
		extract(epoch FROM pg_postmaster_start_time()),
		extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()),
		pg_relation_filepath('le.le_token_seq')), 0) & 9223372036854775807;
END $$;

-- What a start of the server does not change: the database in 40 bits, below the timeline
CREATE OR REPLACE FUNCTION le._le_place() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
	server pg_catalog.text;
BEGIN
	BEGIN
		server := (SELECT c.system_identifier FROM pg_control_system() c)::text;
	EXCEPTION WHEN lock_not_available THEN RAISE;
	WHEN object_not_in_prerequisite_state OR feature_not_supported OR insufficient_privilege OR
		undefined_function THEN
		server := '';
	END;
	RETURN (('x' || le._le_timeline())::bit(32)::bigint & 4194303) << 40 |
		(hashtextextended(concat_ws(' ', server, 'le.le_token_seq'::regclass::oid,
			(SELECT d.oid FROM pg_database d WHERE d.datname = current_database())), 0) &
				1099511627775);
END $$;

-- Check whether this is a copy, in another database, which no bid has noticed yet
CREATE OR REPLACE FUNCTION le._le_is_copy() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	RETURN pg_sequence_last_value('le.le_place_seq') & 1099511627775 <> le._le_place() & 1099511627775;
END $$;

CREATE OR REPLACE FUNCTION le._le_us() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	RETURN extract(epoch FROM clock_timestamp()) * 1000000;
END $$;

-- Record that this server, or this start of it, is seen for the first time, or
-- that its clock was set back.
-- Tokens then continue from the clock: seconds since 2025 times 2^22, plus
-- microseconds times 4.  If the clock is behind, a large number of tokens is left
-- out: some may be unknown, as those of transactions that a crash has ended.  No
-- message, as those of debug_print_plan, is sent while all calls wait for the row: a
-- client need not read it.
CREATE OR REPLACE FUNCTION le._le_arrive() RETURNS void LANGUAGE plpgsql
SET client_min_messages = error AS $$
DECLARE
	us bigint;
	clock bigint;		-- the time as a token
	last bigint;
	place bigint;
	known bigint;
	most bigint := (SELECT extract(epoch FROM s.max_ttl) * 1000000 FROM le.le_settings s);
BEGIN
	-- a transaction can have kept the statistics of before a reset
	PERFORM pg_stat_clear_snapshot();
	PERFORM FROM le.le_settings s FOR UPDATE;
	us := le._le_us();
	clock := ((us / 1000000 - 1735689600) << 22) + us % 1000000 * 4;
	place := le._le_place();
	known := pg_sequence_last_value('le.le_place_seq');
	last := COALESCE(pg_sequence_last_value('le.le_token_seq'), 0);
	IF pg_sequence_last_value('le.le_origin_seq') IS DISTINCT FROM le._le_origin() THEN
		IF known & 1099511627775 <> place & 1099511627775 THEN
			PERFORM setval('le.le_void_seq', last);
		END IF;
		IF known <> place THEN
			PERFORM setval('le.le_lease_seq', us + most);
		END IF;
		PERFORM setval('le.le_token_seq', CASE WHEN clock > last THEN clock ELSE last + 8589934592 END),
			setval('le.le_seen_seq', us), setval('le.le_place_seq', place),
			setval('le.le_origin_seq', le._le_origin());
	ELSIF us < pg_sequence_last_value('le.le_seen_seq') THEN
		-- the clock was set back
		PERFORM setval('le.le_seen_seq', us);
		IF us + most < pg_sequence_last_value('le.le_lease_seq') THEN
			PERFORM setval('le.le_lease_seq', us + most);
		END IF;
	END IF;
	-- let go of the row: what setval() has done stays
	RAISE SQLSTATE 'LE000';
EXCEPTION WHEN SQLSTATE 'LE000' THEN
	NULL;
END $$;

-- Ensure that this server may elect, and is known, and that the caller may act: see
-- _le_has_role
CREATE OR REPLACE FUNCTION le._le_require_primary() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	UNLISTEN le_restricted;
	IF pg_is_in_recovery() THEN
		RAISE read_only_sql_transaction USING MESSAGE = 'cannot elect a leader during recovery',
			HINT = 'Connect to the primary server.';
	END IF;
	IF (pg_sequence_last_value('le.le_origin_seq') IS DISTINCT FROM le._le_origin()
			OR pg_sequence_last_value('le.le_seen_seq') > le._le_us())
		AND current_setting('transaction_read_only') = 'off' THEN
		PERFORM le._le_arrive();
	END IF;
	RETURN true;
END $$;

--
-- Terms
--
-- Check whether this session holds the beacon: exact, and without a look at
-- all locks.  One expression, so that no cancel comes between.
CREATE OR REPLACE FUNCTION le._le_held(beacon bigint) RETURNS boolean LANGUAGE plpgsql
SET client_min_messages = error AS $$
BEGIN
	RETURN CASE WHEN pg_advisory_unlock(beacon) THEN pg_try_advisory_lock(beacon) ELSE false END;
END $$;

-- When a lease or heartbeat is due.  After a start or promotion, all leases run
-- anew: the last renewals may be lost.
CREATE OR REPLACE FUNCTION le._le_deadline(scope text, renewed_at timestamptz, lasts interval)
	RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN lasts + CASE scope WHEN 'lease' THEN greatest(renewed_at,
		to_timestamp(pg_sequence_last_value('le.le_seen_seq') / 1000000.0)) ELSE renewed_at END;
END $$;

-- Check whether the session with that process ID is another one than the leader's:
-- one that began later, with another role.  A transaction keeps what it has seen of
-- the sessions before, when the process ID can have been that of another one.
CREATE OR REPLACE FUNCTION le._le_stranger(pid integer, login oid) RETURNS boolean
	LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_stat_clear_snapshot();
	RETURN EXISTS (SELECT FROM pg_stat_get_activity(pid) a, pg_roles r
		WHERE a.usesysid <> login AND r.oid = a.usesysid AND NOT r.rolsuper);
END $$;

-- Check whether this session leads the election, in session or transaction
-- scope.  Before the commit, it does not hold the beacon yet.
CREATE OR REPLACE FUNCTION le._le_mine(e le.le_elections) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF e.pid IS DISTINCT FROM pg_backend_pid() OR e.ended IS NOT NULL OR e.scope = 'lease' THEN
		RETURN false;
	ELSIF e.xact = pg_current_xact_id_if_assigned() THEN
		RETURN true;
	END IF;
	RETURN e.scope = 'session' AND e.token > COALESCE(pg_sequence_last_value('le.le_void_seq'), 0)
		AND (e.lasts IS NULL OR clock_timestamp() < le._le_deadline(e.scope, e.renewed_at, e.lasts))
			AND le._le_held(e.beacon)
		AND (e.login = quote_ident(session_user)::regrole OR NOT le._le_stranger(e.pid, e.login));
END $$;

-- Return all locks of advisory keys in this database, and those that wait for them
CREATE OR REPLACE FUNCTION le._le_locks()
	RETURNS TABLE (key bigint, pid integer, mode text, granted boolean, waitstart timestamptz)
LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY SELECT l.classid::bigint << 32 | l.objid::bigint, l.pid, l.mode, l.granted, l.waitstart
	FROM pg_locks l
	WHERE l.locktype = 'advisory' AND l.objsubid = 1
		AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
END $$;

-- Return why the last term is over, or NULL if it runs.  A thorough look finds
-- that a session has taken the beacon without leading.
CREATE OR REPLACE FUNCTION le._le_over(e le.le_elections, thorough boolean) RETURNS text
	LANGUAGE plpgsql AS $$
BEGIN
	IF e.token IS NULL THEN
		RETURN 'resigned';
	ELSIF e.ended IS NOT NULL THEN
		RETURN e.ended;
	ELSIF e.token <= pg_sequence_last_value('le.le_void_seq') THEN
		RETURN CASE e.scope WHEN 'lease' THEN 'expired' ELSE 'session ended' END;
	ELSIF e.lasts IS NOT NULL
		AND clock_timestamp() >= le._le_deadline(e.scope, e.renewed_at, e.lasts) THEN
		RETURN CASE e.scope WHEN 'lease' THEN 'expired' ELSE 'silent' END;
	ELSIF e.scope = 'lease' OR e.xact = pg_current_xact_id_if_assigned() THEN
		RETURN NULL;
	ELSIF e.scope = 'transaction' THEN
		RETURN 'transaction ended';
	ELSIF e.pid = pg_backend_pid() THEN
		RETURN CASE WHEN NOT le._le_mine(e) THEN 'lock released' END;
	ELSIF (CASE WHEN pg_try_advisory_lock_shared(e.beacon) THEN pg_advisory_unlock_shared(e.beacon)
		ELSE false END) THEN
		NULL;	-- no session holds it; one expression, as above
	ELSIF NOT thorough OR NOT le._le_stranger(e.pid, e.login)
		AND EXISTS (SELECT FROM le._le_locks() l WHERE l.key = e.beacon AND l.granted
			AND l.pid = e.pid) THEN
		RETURN NULL;
	END IF;
	RETURN CASE WHEN EXISTS (SELECT FROM pg_stat_get_activity(e.pid)) THEN 'lock released'
		ELSE 'session ended' END;
END $$;

-- End the term, unless it has been ended meanwhile
CREATE OR REPLACE FUNCTION le._le_end(e le.le_elections, reason text, more text DEFAULT '')
	RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
	UNLISTEN le_restricted;		-- see _le_has_role
	UPDATE le.le_elections t SET ended = reason
	WHERE t.name = e.name AND t.token = e.token AND t.ended IS NULL;
	IF NOT FOUND THEN
		RETURN false;
	END IF;
	PERFORM le._le_durable() WHERE e.scope = 'lease';	-- or it would run again after a crash
	PERFORM le._le_notify(e, 'ended', format(', "reason": "%s"%s', reason, more));
	PERFORM le._le_release(e);
	RETURN true;
END $$;

-- Release the beacon of a term of this session, and then the line: the first
-- candidate finds the beacon free.  Before the commit, they are held only after
-- SET CONSTRAINTS IMMEDIATE.
CREATE OR REPLACE FUNCTION le._le_release(e le.le_elections) RETURNS void
	LANGUAGE plpgsql SET client_min_messages = error AS $$
BEGIN
	IF e.scope = 'session' AND e.pid = pg_backend_pid() AND le._le_held(e.beacon) THEN
		PERFORM pg_advisory_unlock(e.beacon), pg_advisory_unlock(e.beacon),
			pg_advisory_unlock(~e.beacon);
	END IF;
END $$;

-- Release the beacon and the line that this session has taken last, if the
-- transaction of the term was rolled back after that.  currval() is not rolled back.
CREATE OR REPLACE FUNCTION le._le_sweep() RETURNS void
	LANGUAGE plpgsql SET client_min_messages = error AS $$
#variable_conflict use_variable
DECLARE
	beacon bigint;
BEGIN
	beacon := currval('le.le_beacon_seq');
	-- no snapshot is older than a term that this session has begun, but an imported one
	IF le._le_held(beacon) AND NOT EXISTS (SELECT FROM le.le_elections t
			WHERE t.beacon = beacon AND t.pid = pg_backend_pid() AND t.ended IS NULL) THEN
		PERFORM pg_advisory_unlock(beacon), pg_advisory_unlock(beacon), pg_advisory_unlock(~beacon);
	END IF;
EXCEPTION WHEN object_not_in_prerequisite_state THEN
	NULL;	-- the session has taken none yet
END $$;

-- Check whether the transaction ends with the calling statement, which the times tell
-- unless it is sent as one string.  In the extended protocol, the transaction of a
-- statement with parameters begins with an earlier message, shortly before.
CREATE OR REPLACE FUNCTION le._le_alone() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	age interval := statement_timestamp() - transaction_timestamp();
BEGIN
	RETURN age <= '0' OR age < '50 ms' AND current_query() ~ '[$][1-9]';
END $$;

CREATE OR REPLACE FUNCTION le._le_beacon_taken(e le.le_elections) RETURNS le.le_elections
	LANGUAGE plpgsql AS $$
BEGIN
	RAISE serialization_failure USING
		MESSAGE = format('could not begin the term of election %s', le._le_quote(e.name));
END $$;

-- Take beacon and line of a term in session scope, immediately before the commit.
-- The locks are taken by the last expression, after which a cancel can only come
-- while the commit waits to send notifications.  The session then holds a beacon
-- that is in no row, and releases it with its next bid in session scope, see
-- _le_sweep().  Columns of another table could have types whose casts are
-- functions of its owner, and would be called with the rights of this function.
CREATE OR REPLACE FUNCTION le._le_take_beacon() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	e le.le_elections;
BEGIN
	IF TG_RELID <> 'le.le_elections'::regclass THEN
		RAISE insufficient_privilege USING
			MESSAGE = format('permission denied for a trigger on table "%s"', TG_TABLE_NAME);
	END IF;
	BEGIN
		SELECT * INTO e FROM le.le_elections t WHERE t.name = NEW.name AND t.token = NEW.token
			AND t.beacon = NEW.beacon
			AND t.scope = 'session' AND t.ended IS NULL AND t.pid = pg_backend_pid();
	EXCEPTION WHEN OTHERS THEN RAISE;
	END;
	RETURN CASE WHEN e.name IS NULL OR setval('le.le_beacon_seq', e.beacon) IS NULL
		THEN NULL::le.le_elections
		WHEN pg_try_advisory_lock(e.beacon) AND pg_try_advisory_lock(e.beacon)
			AND pg_try_advisory_lock(~e.beacon) THEN NULL
		ELSE le._le_beacon_taken(e) END;
END $$;
IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = 'le.le_elections'::regclass
			   AND t.tgname = '_le_take_beacon') THEN
	CREATE CONSTRAINT TRIGGER _le_take_beacon AFTER UPDATE OF token, scope ON le.le_elections
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.scope = 'session')
		EXECUTE FUNCTION le._le_take_beacon();
	ALTER TABLE le.le_elections ENABLE ALWAYS TRIGGER _le_take_beacon;
END IF;

--
-- Bids
--
CREATE OR REPLACE FUNCTION le._le_new_beacon() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	RETURN ('x' || left(replace(gen_random_uuid()::text, '-', ''), 15))::bit(60)::bigint;
END $$;

-- Add a row for the election.  Returns false if another transaction is adding
-- it.  A role with too many rows first loses those of vacant elections.
CREATE OR REPLACE FUNCTION le._le_add(name text, patience interval) RETURNS boolean
	LANGUAGE plpgsql SET lock_timeout = 0 AS $$
#variable_conflict use_variable
DECLARE
	caller pg_catalog.oid := quote_ident(le._le_caller())::regrole;
	most integer := (SELECT s.max_elections_per_role FROM le.le_settings s);
BEGIN
	IF (SELECT count(*) FROM le.le_elections t WHERE t.creator = caller) >= most THEN
		DELETE FROM le.le_elections d WHERE d.name = ANY (ARRAY(
			SELECT t.name FROM le.le_elections t WHERE t.creator = caller
				AND le._le_over(t, false) IS NOT NULL
			LIMIT 100 FOR UPDATE SKIP LOCKED));
		IF NOT FOUND THEN
			RAISE configuration_limit_exceeded USING
				MESSAGE = format('too many elections for role "%s": at most %s at a time',
					le._le_caller(), most),
				HINT = 'Resign from some, or ask the owner of the schema to raise '
					'max_elections_per_role in "le_settings".';
		END IF;
	END IF;
	PERFORM set_config('lock_timeout', '10', true);
	INSERT INTO le.le_elections (name, beacon, creator) VALUES (name, le._le_new_beacon(), caller)
		ON CONFLICT DO NOTHING;
	RETURN true;
EXCEPTION
	WHEN lock_not_available THEN
		RETURN false;
	WHEN serialization_failure THEN
		-- another transaction has added it, which the snapshot does not show
		IF patience > '0' THEN
			RAISE;
		END IF;
		RETURN false;
END $$;

-- Note when the line was first found to be held without a leader.  Never
-- waits.  The row's note is lost if the transaction is rolled back, so that the
-- session has one as well.  Returns the beacon if that is older than a second.
-- A candidate keeps the session's note only: one that waits must not hold a row,
-- for which the first in line would wait.
CREATE OR REPLACE FUNCTION le._le_suspect(e le.le_elections, waits boolean) RETURNS bigint
	LANGUAGE plpgsql AS $$
DECLARE
	second bigint := le._le_us() / 1000000 - 1735689600;
	beacon bigint := e.beacon & 4294967295;
	noted bigint;
BEGIN
	BEGIN
		UPDATE le.le_elections u SET suspect_at = clock_timestamp() WHERE u.name = (
			SELECT t.name FROM le.le_elections t WHERE t.name = e.name AND NOT waits AND le._le_alone()
				AND t.token IS NOT DISTINCT FROM e.token
				AND t.beacon = e.beacon
					AND (t.suspect_at IS NULL OR t.suspect_at > clock_timestamp())
			FOR NO KEY UPDATE SKIP LOCKED);
	EXCEPTION WHEN serialization_failure THEN
		NULL;	-- the row was changed since the snapshot
	END;
	BEGIN
		noted := currval('le.le_suspect_seq');
	EXCEPTION WHEN object_not_in_prerequisite_state THEN
		NULL;	-- the session has suspected none yet
	END;
	IF noted & 4294967295 = beacon AND noted >> 32 <= second THEN
		RETURN CASE WHEN noted >> 32 < second - 1 THEN e.beacon END;
	ELSIF noted & 4294967295 = beacon OR noted IS NULL OR random() < 0.5 THEN
		-- by chance, since a session can suspect several
		PERFORM setval('le.le_suspect_seq', second << 32 | beacon);
	END IF;
	RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION le._le_pool_hint() RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RETURN 'Another client may use the same connection, as through a pooler in transaction mode or '
		'a connection pool. To lead through these, use a lease.';
END $$;

-- A bid by the session that leads the election already.  Returns 0 if the term has
-- ended meanwhile.
CREATE OR REPLACE FUNCTION le._le_bid_again(e le.le_elections, scope text, heartbeat interval,
	identity text, waits boolean)
RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
	IF identity <> e.identity AND waits THEN
		RAISE SQLSTATE 'LE005' USING HINT = le._le_pool_hint(),
			MESSAGE = format('cannot wait to lead election %s, which this session leads already',
				le._le_quote(e.name)),
			DETAIL = format('The session leads it as %s.', le._le_quote(le._le_shown_identity(e)));
	ELSIF identity <> e.identity THEN
		RAISE WARNING USING HINT = le._le_pool_hint(),
			MESSAGE = format('this session leads election %s as %s', le._le_quote(e.name),
				le._le_quote(le._le_shown_identity(e)));
		RETURN NULL;
	ELSIF scope = 'lease' AND waits THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = format('cannot wait to lead election %s, which this session leads already',
				le._le_quote(e.name)),
			DETAIL = 'The session leads it without a lease.';
	ELSIF scope = 'lease' THEN
		RETURN NULL;
	END IF;
	IF scope <> e.scope THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = format('cannot lead election %s in two scopes at a time', le._le_quote(e.name)),
			DETAIL = CASE scope WHEN 'session' THEN 'This transaction leads it until its end.'
				ELSE 'This session leads it in session scope.' END,
			HINT = CASE scope WHEN 'session' THEN 'Commit first, or bid in session scope from the '
				'beginning.' ELSE 'Resign first, or go on in session scope.' END;
	ELSIF scope = 'session' AND heartbeat <> COALESCE(e.lasts, '0') THEN
		-- the deadline does not move back
		UPDATE le.le_elections t SET lasts = heartbeat,
			renewed_at = least(clock_timestamp(), t.renewed_at + t.lasts - heartbeat)
		WHERE t.name = e.name AND t.token = e.token AND t.ended IS NULL RETURNING * INTO e;
		-- the row may have been locked for a while
		IF NOT FOUND OR NOT le._le_mine(e) THEN
			RETURN 0;
		END IF;
	END IF;
	RETURN e.token;
END $$;

-- Bid for the election, without waiting (patience NULL), or as a candidate that
-- waits for at most that long now.  Returns the token, or NULL if the caller
-- was not elected.
CREATE OR REPLACE FUNCTION le._le_bid(name text, scope text, lasts interval, identity text,
	patience interval)
RETURNS bigint LANGUAGE plpgsql SET lock_timeout = 0 AS $$
#variable_conflict use_variable
DECLARE
	waits boolean := patience IS NOT NULL;
	until pg_catalog.timestamptz := clock_timestamp() + patience;
	thorough boolean := waits OR random() < 0.2;
	e le.le_elections;
	seen le.le_elections;
	over pg_catalog.text;	-- why the last term is over, NULL: it runs
	squatted boolean;	-- pass over what holds the line
	suspect bigint;		-- beacon whose line this session has suspected before
	held le.le_elections;	-- what this candidate saw when it awaited the line in vain
	in_line boolean;	-- this transaction holds the line
	lease_us bigint;
	token bigint;
BEGIN
	PERFORM le._le_require_primary();
	IF scope = 'session' THEN
		PERFORM le._le_sweep();
	END IF;
	LOOP
		SELECT * INTO seen FROM le.le_elections t WHERE t.name = name COLLATE "C";
		IF FOUND AND le._le_mine(seen) THEN
			token := le._le_bid_again(seen, scope, lasts, identity, waits);
			CONTINUE WHEN token = 0;
			RETURN token;
		END IF;
		over := CASE WHEN FOUND THEN le._le_over(seen, thorough OR seen.suspect_at IS NOT NULL)
			ELSE 'resigned' END;
		squatted := over IS NOT NULL
			AND COALESCE(suspect = seen.beacon
			OR seen.suspect_at <= clock_timestamp() - interval '1 s', false);
		in_line := false;
		lease_us := CASE WHEN scope = 'lease' AND over IS NOT NULL
			THEN pg_sequence_last_value('le.le_lease_seq') - le._le_us() ELSE 0 END;

		IF lease_us > 0 AND NOT waits THEN
			RAISE EXCEPTION USING ERRCODE = 'LE003',
				MESSAGE = format('cannot grant a lease of election %s yet', le._le_quote(name)),
				DETAIL = 'This server was promoted or restored, and a lease that it does not know '
					'of may still run.',
				HINT = format('Retry in %s ms.', ceil(lease_us / 1000.0));
		ELSIF lease_us > 0 OR NOT (SELECT s.elects FROM le.le_settings s) THEN
			PERFORM pg_sleep(least(0.1, extract(epoch FROM until - clock_timestamp())));
		ELSIF seen.name IS NULL THEN
			CONTINUE WHEN le._le_add(name, patience);
		ELSIF over IS NOT NULL OR waits THEN
			BEGIN
				-- get in line, unless what is first there is to be passed over
				IF over = 'silent' OR squatted THEN
					NULL;
				ELSIF waits THEN
					PERFORM set_config('lock_timeout',
						(1 + 1000 * greatest(0, extract(epoch FROM least(until,
						CASE WHEN over IS NOT NULL THEN clock_timestamp() + interval '1 s'
							WHEN seen.scope = 'session'
								THEN le._le_deadline(seen.scope, seen.renewed_at, seen.lasts) END) -
								clock_timestamp())))::integer::text, true);
					PERFORM pg_advisory_xact_lock(~seen.beacon);
					in_line := true;
				ELSE
					in_line := pg_try_advisory_xact_lock(~seen.beacon);
					IF NOT in_line THEN
						RAISE SQLSTATE 'LE000';
					END IF;
				END IF;

				-- the first in line looks when a lease ends; only it does so
				WHILE waits LOOP
					SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C"
						AND t.beacon = seen.beacon;
					over := CASE WHEN FOUND THEN le._le_over(e, squatted OR in_line) END;
					EXIT WHEN over IS NOT NULL;
					IF e.name IS NULL OR clock_timestamp() >= until THEN
						RAISE SQLSTATE 'LE000';
					END IF;
					-- a leader whose session ends can release the line an instant before the beacon
					PERFORM pg_sleep(least(CASE e.scope WHEN 'session' THEN 0.01 ELSE 0.1 END,
						greatest(0.001,
						extract(epoch FROM least(until, le._le_deadline(e.scope, e.renewed_at, e.lasts)) -
						clock_timestamp()))));
				END LOOP;

				-- decide under the lock of the row: guards are over, and so is the term
				IF waits THEN
					PERFORM set_config('lock_timeout', (1 + 1000 * greatest(0,
						extract(epoch FROM until - clock_timestamp())))::integer::text, true);
					SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C"
						AND t.beacon = seen.beacon FOR UPDATE;
				ELSE
					SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C"
						AND t.beacon = seen.beacon FOR UPDATE SKIP LOCKED;
				END IF;
				over := CASE WHEN FOUND THEN le._le_over(e, squatted OR in_line) END;
				-- a lease that ran when this bid began can end before leases are granted
				IF over IS NULL OR NOT le._le_elects() OR scope = 'lease'
					AND pg_sequence_last_value('le.le_lease_seq') > le._le_us() THEN
					RAISE SQLSTATE 'LE000';
				END IF;
				IF e.token IS NOT NULL AND e.ended IS NULL AND e.scope <> 'transaction' THEN
					PERFORM le._le_notify(e, 'ended', format(', "reason": "%s"', over)),
						le._le_release(e);
				END IF;
				token := le._le_begin(e, scope, lasts, identity, NOT in_line OR scope = 'session');
				RETURN token;
			EXCEPTION
				WHEN SQLSTATE 'LE000' OR lock_not_available THEN
					NULL;
				WHEN serialization_failure THEN
					-- a transaction that keeps its snapshot would never see the change
					IF patience > '0' THEN
						RAISE;
					END IF;
			END;
			IF over IS NOT NULL AND NOT in_line AND NOT squatted THEN
				suspect := COALESCE(le._le_suspect(seen, waits), CASE WHEN waits
					AND held.beacon = seen.beacon AND held.token IS NOT DISTINCT FROM seen.token
					THEN seen.beacon END);
				held := seen;
				CONTINUE WHEN suspect IS NOT NULL;
			END IF;
		END IF;
		-- a clock that was set back does not prolong a term by more than its time; only a
		-- transaction that ends with this round locks the row, as that of le_campaign does
		IF over IS NULL AND seen.lasts IS NOT NULL
			AND seen.renewed_at > clock_timestamp() + interval '1 s' AND le._le_alone()
			AND (NOT waits OR patience = '0' OR transaction_timestamp() > statement_timestamp()) THEN
			UPDATE le.le_elections u SET renewed_at = clock_timestamp() WHERE u.name = (
				SELECT t.name FROM le.le_elections t WHERE t.name = name COLLATE "C" AND t.token = seen.token
					AND t.renewed_at > clock_timestamp() FOR NO KEY UPDATE SKIP LOCKED);
		END IF;
		IF NOT waits OR clock_timestamp() >= until THEN
			RETURN NULL;
		END IF;
	END LOOP;
END $$;

-- Make what this transaction has done durable at commit
CREATE OR REPLACE FUNCTION le._le_durable() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
END $$;

-- Begin a term, in the row that the caller has locked FOR UPDATE
CREATE OR REPLACE FUNCTION le._le_begin(e le.le_elections, scope text, lasts interval,
	identity text, new_beacon boolean)
RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	client pg_catalog.text := session_user || '@' || COALESCE(host(inet_client_addr()), 'local');
	application pg_catalog.text := NULLIF(current_setting('application_name'), '');
BEGIN
	PERFORM le._le_durable();	-- so that its token is not given out again
	UPDATE le.le_elections t SET token = nextval('le.le_token_seq'), scope = scope, lasts = lasts,
		identity = COALESCE(identity, application, client),
			shows_client = COALESCE(identity, application) IS NULL,
		role = quote_ident(le._le_caller())::regrole, login = quote_ident(session_user)::regrole,
		pid = pg_backend_pid(), xact = pg_current_xact_id(),
		since = clock_timestamp(), renewed_at = clock_timestamp(), renewals = 0,
		beacon = CASE WHEN new_beacon THEN le._le_new_beacon() ELSE t.beacon END,
		ended = NULL, suspect_at = NULL
	WHERE t.name = e.name RETURNING * INTO e;
	-- what others see of the term before the commit: the line's lock is held twice
	IF scope = 'transaction' AND NOT new_beacon THEN
		PERFORM pg_advisory_xact_lock_shared(~e.beacon);
	END IF;
	PERFORM le._le_notify(e, 'elected');
	RETURN e.token;
END $$;

-- Check whether a new term may begin.  A transaction that keeps its snapshot
-- would not see the change: locking the row is an error then.  No transaction
-- keeps that lock, for which an UPDATE of the settings would wait, nor sends a
-- message meanwhile, see _le_arrive().
CREATE OR REPLACE FUNCTION le._le_elects() RETURNS boolean LANGUAGE plpgsql
SET client_min_messages = error AS $$
BEGIN
	IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
		BEGIN
			PERFORM FROM le.le_settings s FOR SHARE NOWAIT;
			RAISE SQLSTATE 'LE000';
		EXCEPTION WHEN SQLSTATE 'LE000' OR lock_not_available THEN
			NULL;	-- let go of the row, or it is changed by an open transaction
		END;
	END IF;
	RETURN (SELECT s.elects FROM le.le_settings s);
END $$;

-- Return for how long a bid that began then may still wait in this round.  A
-- transaction that keeps its snapshot can be first in line without seeing that the
-- term is over, so that it lets others pass earlier.  Raises an error after the
-- caller's lock_timeout.
CREATE OR REPLACE FUNCTION le._le_patience(started timestamptz, timeout interval, lock_timeout text)
	RETURNS interval
LANGUAGE plpgsql AS $$
DECLARE
	locks interval := NULLIF(lock_timeout::interval, '0');
	waited interval := clock_timestamp() - started;
	round interval := CASE WHEN current_setting('transaction_isolation') IN ('repeatable read',
		'serializable') THEN '1 s' ELSE '10 s' END;
BEGIN
	IF waited >= locks AND COALESCE(locks < timeout, true) THEN
		RAISE lock_not_available USING MESSAGE = 'canceling statement due to lock timeout';
	END IF;
	RETURN greatest('0', least(round, timeout - waited, locks - waited));
END $$;

-- Wait to be elected within the caller's transaction
CREATE OR REPLACE FUNCTION le._le_wait(name text, scope text, lasts interval, identity text,
	timeout interval, lock_timeout text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	started pg_catalog.timestamptz := clock_timestamp();
	patience interval;
	token bigint;
BEGIN
	IF timeout = '0' THEN
		RETURN le._le_bid(name, scope, lasts, identity, NULL);
	END IF;
	LOOP
		patience := le._le_patience(started, timeout, lock_timeout);
		token := le._le_bid(name, scope, lasts, identity, patience);
		IF token IS NOT NULL OR patience = '0' AND timeout IS NOT NULL
			AND clock_timestamp() >= started + timeout THEN
			RETURN token;
		END IF;
	END LOOP;
END $$;

--
-- Session scope
--
CREATE OR REPLACE FUNCTION le.le_try_become_leader(name text, heartbeat interval DEFAULT NULL,
	identity text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	name := le._le_name(name);
	identity := le._le_text('identity', identity, 1, 255);
	RETURN le._le_bid(name, 'session', le._le_span('heartbeat', heartbeat, '1 day'), identity, NULL)
		IS NOT NULL;
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;
COMMENT ON FUNCTION le.le_try_become_leader(text, interval, text) IS
'lead the election for the rest of the session, or until no heartbeat comes for that long, if '
'there is no other leader; the term begins at commit; does not wait';

CREATE OR REPLACE FUNCTION le.le_become_leader(name text, timeout interval DEFAULT NULL,
	heartbeat interval DEFAULT NULL, identity text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	name := le._le_name(name);
	timeout := le._le_timeout(timeout);
	identity := le._le_text('identity', identity, 1, 255);
	RETURN le._le_wait(name, 'session', le._le_span('heartbeat', heartbeat, '1 day'), identity,
		timeout,
		current_setting('lock_timeout')) IS NOT NULL;
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;
COMMENT ON FUNCTION le.le_become_leader(text, interval, interval, text) IS
'wait to lead the election for the rest of the session, or until no heartbeat comes for that long; '
'the term begins at commit; returns false after the timeout (NULL: wait forever)';

CREATE OR REPLACE FUNCTION le.le_am_leader(name text, token bigint DEFAULT NULL,
	identity text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET client_min_messages = error AS $$
#variable_conflict use_variable
DECLARE
	e le.le_elections;
	beacon bigint;
BEGIN
	-- the usual case at once, see _le_mine() and _le_held()
	IF token IS NULL AND identity IS NULL THEN
		beacon := (SELECT t.beacon FROM le.le_elections t WHERE t.name = name COLLATE "C" AND t.pid = pg_backend_pid()
			AND t.scope = 'session' AND t.ended IS NULL AND t.lasts IS NULL
			AND t.login = quote_ident(session_user)::regrole
			AND t.token > COALESCE(pg_sequence_last_value('le.le_void_seq'), 0));
		IF (CASE WHEN pg_advisory_unlock(beacon) THEN pg_try_advisory_lock(beacon) ELSE false END) THEN
			RETURN true;
		END IF;
	END IF;
	SELECT * INTO e FROM le.le_elections t WHERE t.name = le._le_name(name) COLLATE "C";
	identity := CASE WHEN identity IS NOT NULL THEN le._le_text('identity', identity, 1, 255) END;
	IF token IS NULL THEN
		IF NOT le._le_mine(e) THEN
			RETURN false;
		END IF;
	ELSIF le._le_require_primary() THEN
		IF e.token IS DISTINCT FROM token OR e.scope <> 'lease' OR le._le_over(e, false) IS NOT NULL
			OR current_setting('transaction_read_only') = 'on' AND le._le_is_copy() THEN
			RETURN false;
		END IF;
		RETURN le._le_require_role(name, e.role) AND COALESCE(identity = e.identity, true);
	END IF;
	RETURN COALESCE(identity = e.identity, true);
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;
COMMENT ON FUNCTION le.le_am_leader(text, bigint, text) IS
'true if this session leads the election (token NULL), or if the lease with that token runs; with '
'an identity, only if it leads under that identity';

CREATE OR REPLACE FUNCTION le.le_token(name text)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
	e le.le_elections;
BEGIN
	name := le._le_name(name);
	SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C";
	RETURN CASE WHEN le._le_mine(e) THEN e.token END;
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;
COMMENT ON FUNCTION le.le_token(text) IS
'fencing token of the term that this session leads; NULL if it does not lead the election';

-- Describe the leader, and what can be done about it, for a caller that does not lead
CREATE OR REPLACE FUNCTION le._le_describe(name text, token bigint, for_lease text,
	OUT message text, OUT detail text, OUT hint text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	e le.le_elections;
BEGIN
	SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C";
	message := format('%s does not lead election %s', COALESCE('token ' || token, 'this session'),
		le._le_quote(name));
	IF le._le_over(e, true) IS NOT NULL THEN
		detail := 'The election is vacant.';
	ELSIF e.scope = 'lease' THEN
		detail := format('%s leads it, by a lease.', le._le_quote(le._le_shown_identity(e)));
		hint := for_lease;
	ELSIF e.pid = pg_backend_pid() THEN
		detail := 'This session leads it, without a lease.';
	ELSE
		detail := format('%s leads it, in the session with process ID %s.',
			le._le_quote(le._le_shown_identity(e)), e.pid);
		hint := 'Session scope belongs to the connection that took it, and a connection pool hands '
			'out another one. To lead through a pool, use a lease.';
	END IF;
	IF token IS NOT NULL AND (token IS DISTINCT FROM e.token OR detail = 'The election is vacant.') THEN
		hint := 'The term is over: stop the job, and campaign again.';
	END IF;
END $$;

-- Return the row of the term that the caller leads: that of this session, or
-- the lease with that token.  Otherwise, return NULL after a WARNING.
CREATE OR REPLACE FUNCTION le._le_led(name text, token bigint, identity text)
	RETURNS le.le_elections LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	e le.le_elections;
	d pg_catalog.record;
BEGIN
	PERFORM le._le_require_primary() WHERE token IS NOT NULL;
	SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C";
	IF token IS NULL AND le._le_mine(e) THEN
		IF e.scope = 'transaction' THEN
			RAISE WARNING USING MESSAGE = format(
				'leadership of election %s is bound to this transaction', le._le_quote(name)),
				DETAIL = 'It ends with the transaction.';
			RETURN NULL;
		END IF;
	ELSIF token = e.token AND e.scope = 'lease' AND le._le_over(e, false) IS NULL THEN
		PERFORM le._le_require_role(name, e.role);
	ELSE
		d := le._le_describe(name, token, 'To end a lease, pass its token.');
		IF d.hint IS NULL THEN
			RAISE WARNING USING MESSAGE = d.message, DETAIL = d.detail;
		ELSE
			RAISE WARNING USING MESSAGE = d.message, DETAIL = d.detail, HINT = d.hint;
		END IF;
		RETURN NULL;
	END IF;
	IF identity <> e.identity THEN
		RAISE WARNING
			USING MESSAGE = format(CASE WHEN token IS NULL
			THEN 'this session leads election %s as %s'
				ELSE 'the lease with this token leads election %s as %s' END, le._le_quote(name),
					le._le_quote(le._le_shown_identity(e))),
			HINT = CASE WHEN token IS NULL THEN le._le_pool_hint()
				ELSE 'Pass the identity under which the lease was taken, or none.' END;
		RETURN NULL;
	END IF;
	RETURN e;
END $$;

CREATE OR REPLACE FUNCTION le.le_resign(name text, token bigint DEFAULT NULL,
	identity text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	e le.le_elections;
BEGIN
	name := le._le_name(name);
	identity := le._le_text('identity', identity, 1, 255);
	e := le._le_led(name, token, identity);
	RETURN e.name IS NOT NULL AND le._le_end(e, 'resigned');
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;
COMMENT ON FUNCTION le.le_resign(text, bigint, text) IS
'end this session''s leadership of the election (token NULL), or the lease with that token, at '
'commit; with an identity, only if it leads under that identity; returns false, with a warning, if '
'the caller does not lead';

CREATE OR REPLACE FUNCTION le.le_resign_all()
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	e le.le_elections;
	resigned integer := 0;
BEGIN
	PERFORM le._le_sweep();
	FOR e IN SELECT * FROM le.le_elections t WHERE t.pid = pg_backend_pid() AND t.scope = 'session'
		AND t.ended IS NULL LOOP
		IF le._le_mine(e) AND le._le_end(e, 'resigned') THEN
			resigned := resigned + 1;
		END IF;
	END LOOP;
	RETURN resigned;
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;
COMMENT ON FUNCTION le.le_resign_all() IS
'end all leadership of this session in session scope; returns the number of elections';

CREATE OR REPLACE FUNCTION le.le_heartbeat(name text, token bigint DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
	e le.le_elections;
	runs boolean;
BEGIN
	name := le._le_name(name);
	PERFORM le._le_require_primary();
	SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C";
	IF NOT COALESCE(token = e.token, token IS NULL) THEN
		RETURN false;
	ELSIF NOT le._le_mine(e) THEN
		IF token IS NULL OR le._le_over(e, random() < 0.2) IS NOT NULL THEN
			RETURN false;
		END IF;
		PERFORM le._le_require_role(name, e.role);
	END IF;
	IF e.scope = 'lease' THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = format('election %s is led by a lease, which has no heartbeat', le._le_quote(name)),
				HINT = 'Use le_renew().';
	ELSIF e.lasts IS NULL THEN
		RETURN true;
	END IF;
	UPDATE le.le_elections t SET renewed_at = clock_timestamp()
	WHERE t.name = name COLLATE "C" AND t.token = e.token AND t.ended IS NULL
		AND clock_timestamp() < le._le_deadline(t.scope, t.renewed_at, t.lasts)
	-- as in _le_renew, after a wait
	RETURNING clock_timestamp() < le._le_deadline(t.scope, t.renewed_at, t.lasts) INTO runs;
	RETURN FOUND AND runs;
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;
COMMENT ON FUNCTION le.le_heartbeat(text, bigint) IS
'give a heartbeat for the term that this session leads (token NULL), or for the term with that '
'token in any session; returns false if it has ended';

--
-- Transaction scope
--
CREATE OR REPLACE FUNCTION le._le_elected(name text, token bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF token IS NOT NULL AND statement_timestamp() = transaction_timestamp() THEN
		RAISE NOTICE USING HINT = 'Bid and work in one transaction block.',
			MESSAGE = format('leadership of election %s ends with this statement', le._le_quote(name));
	END IF;
	RETURN token IS NOT NULL;
END $$;

CREATE OR REPLACE FUNCTION le.le_try_become_leader_xact(name text, identity text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	name := le._le_name(name);
	identity := le._le_text('identity', identity, 1, 255);
	RETURN le._le_elected(name, le._le_bid(name, 'transaction', NULL, identity, NULL));
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;
COMMENT ON FUNCTION le.le_try_become_leader_xact(text, text) IS
'lead the election until the end of the transaction, if there is no other leader; does not wait';

CREATE OR REPLACE FUNCTION le.le_become_leader_xact(name text, timeout interval DEFAULT NULL,
	identity text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	name := le._le_name(name);
	timeout := le._le_timeout(timeout);
	identity := le._le_text('identity', identity, 1, 255);
	RETURN le._le_elected(name, le._le_wait(name, 'transaction', NULL, identity, timeout,
		current_setting('lock_timeout')));
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;
COMMENT ON FUNCTION le.le_become_leader_xact(text, interval, text) IS
'wait to lead the election until the end of the transaction; returns false after the timeout '
'(NULL: wait forever)';

--
-- Lease scope
--
-- Renew the lease with that token: true if it was renewed; NULL, after a
-- WARNING, if it runs under another identity.
-- With synchronous_commit = off, a crash can take a renewal back.  That does no
-- harm, because all leases run anew for their ttl after a start.  But a ttl
-- that was raised must be durable.  The role is judged before the row is locked.  If
-- the row was locked by a transaction that was rolled back, the time when the renewal
-- began counts, and may have been long ago.
CREATE OR REPLACE FUNCTION le._le_renew(name text, token bigint, ttl interval, identity text)
	RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	e le.le_elections;
	runs boolean;
BEGIN
	UNLISTEN le_restricted;		-- see _le_has_role
	FOR i IN 1 .. 2 LOOP
		UPDATE le.le_elections t
		SET renewed_at = clock_timestamp(), renewals = t.renewals + 1,
			lasts = COALESCE(ttl, t.lasts)
		WHERE t.name = name COLLATE "C" AND t.token = token AND t.scope = 'lease' AND t.ended IS NULL
			AND clock_timestamp() < le._le_deadline(t.scope, t.renewed_at, t.lasts)
			AND COALESCE(identity = t.identity, true) AND (i = 2 OR COALESCE(ttl <= t.lasts, true)
				AND pg_sequence_last_value('le.le_origin_seq') = le._le_origin())
			AND t.token > COALESCE(pg_sequence_last_value('le.le_void_seq'), 0)
			AND le._le_has_role(t.role)
		RETURNING clock_timestamp() < le._le_deadline(t.scope, t.renewed_at, t.lasts) INTO runs;
		IF FOUND THEN
			IF i = 2 THEN
				PERFORM le._le_durable();
			END IF;
			RETURN runs;
		END IF;
		-- after a restart, a lease runs anew once the start was noticed; in a copy, none runs
		PERFORM le._le_require_primary();
	END LOOP;
	SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C" AND t.token = token
		AND t.scope = 'lease';
	IF NOT FOUND OR le._le_over(e, false) IS NOT NULL THEN
		RETURN false;
	END IF;
	e := le._le_led(name, token, identity);
	RETURN NULL;
END $$;

-- Warn in a transaction block
CREATE OR REPLACE FUNCTION le._le_warn_block(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF NOT le._le_alone() THEN
		RAISE WARNING USING ERRCODE = 'active_sql_transaction',
			MESSAGE = format('the lease of election %s begins when this transaction commits',
				le._le_quote(name)),
			DETAIL = 'Until then no program leads, and after a rollback none does.',
			HINT = 'Commit before acting as the leader, or take leases outside of transaction '
				'blocks.';
	END IF;
END $$;

CREATE OR REPLACE FUNCTION le.le_lease(name text, ttl interval, token bigint DEFAULT NULL,
	identity text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
	renewed boolean := false;
BEGIN
	name := le._le_name(name);
	identity := le._le_text('identity', identity, 1, 255);
	IF ttl IS NULL THEN
		RAISE null_value_not_allowed USING MESSAGE = 'ttl must not be null';
	END IF;
	ttl := le._le_ttl(ttl);
	IF token IS NOT NULL THEN
		renewed := le._le_renew(name, token, ttl, identity);
	END IF;
	IF renewed THEN
		RETURN token;
	ELSIF renewed IS NULL THEN
		RETURN NULL;
	END IF;
	token := le._le_bid(name, 'lease', ttl, identity, NULL);
	PERFORM le._le_warn_block(name) WHERE token IS NOT NULL;
	RETURN token;
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;
COMMENT ON FUNCTION le.le_lease(text, interval, bigint, text) IS
'become or stay leader for the ttl (from 100 ms to max_ttl of le_settings): renew the lease with '
'that token, or else take a new one; returns its token, or NULL if there is another leader; takes '
'effect at commit; does not wait';

CREATE OR REPLACE FUNCTION le.le_renew(name text, token bigint, ttl interval DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	name := le._le_name(name);
	IF token IS NULL THEN
		RAISE null_value_not_allowed USING MESSAGE = 'token must not be null';
	END IF;
	-- a subtransaction only where that is needed: it takes a transaction ID of its own
	IF current_setting('transaction_isolation') = 'serializable' THEN
		BEGIN
			RETURN le._le_renew(name, token, le._le_ttl(ttl), NULL);
		EXCEPTION WHEN OTHERS THEN RAISE;
		END;
	END IF;
	RETURN le._le_renew(name, token, le._le_ttl(ttl), NULL);
END $$;
COMMENT ON FUNCTION le.le_renew(text, bigint, interval) IS
'renew the lease with that token, for its ttl (NULL) or another one, at commit; returns false if '
'it does not run';

--
-- Guards
--
-- Keep a new term from beginning before the end of this transaction.  Returns the row of the
-- term, or NULL if the snapshot has none with that token.  VACUUM FULL does not copy the mark of
-- a row whose key was changed: an older snapshot could lock it, so that the table's file must be
-- the one that the snapshot knows.
CREATE OR REPLACE FUNCTION le._le_keep_term(name text, token bigint) RETURNS le.le_elections
	LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	e le.le_elections;
BEGIN
	SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C" AND t.token = token
		FOR KEY SHARE;
	IF token IS NOT NULL AND current_setting('transaction_isolation') <> 'read committed'
		AND pg_relation_filenode('le.le_elections') IS DISTINCT FROM (SELECT c.relfilenode
			FROM pg_class c WHERE c.oid = 'le.le_elections'::regclass) THEN
		RAISE serialization_failure USING
			MESSAGE = format('could not look at the term of election %s with token %s',
				le._le_quote(name), token),
			DETAIL = 'The table was rewritten after the snapshot of the transaction was taken.',
			HINT = 'Retry the transaction.';
	END IF;
	RETURN e;
END $$;

-- Guard the transaction by the term of this session (token NULL) or with that
-- token.  At REPEATABLE READ and SERIALIZABLE, the row is read as of the
-- snapshot: a term that has been replaced since is an error (40001), but later
-- renewals are not seen, so that the time of the term is not judged if the
-- transaction began in time.
--
-- The row is locked only for a term that runs and is the caller's, and is then read
-- again: others wait for no lock, and hold none.
CREATE OR REPLACE FUNCTION le._le_guard_row(name text, token bigint) RETURNS le.le_elections
	LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	e le.le_elections;
	d pg_catalog.record;
	over pg_catalog.text;
	mine boolean := le._le_require_primary();
BEGIN
	FOR i IN 1 .. 2 LOOP
		IF i = 1 THEN
			SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C"
				AND t.token = COALESCE(token, t.token);
		ELSE
			mine := mine OR le._le_require_role(name, e.role);
			e := le._le_keep_term(name, e.token);
		END IF;
		mine := le._le_mine(e);
		over := CASE WHEN mine THEN NULL WHEN e.name IS NULL OR token IS NULL THEN 'resigned'
			ELSE le._le_over(e, random() < 0.2) END;
		IF over IN ('expired', 'silent')
			AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
			AND e.token > COALESCE(pg_sequence_last_value('le.le_void_seq'), 0)
			AND transaction_timestamp() < le._le_deadline(e.scope, e.renewed_at, e.lasts) THEN
			over := NULL;
		END IF;
		EXIT WHEN over IS NOT NULL;
	END LOOP;
	IF over IS NOT NULL THEN
		IF e.name IS NULL AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
			AND COALESCE((SELECT t.token FROM le.le_elections t WHERE t.name = name COLLATE "C"), 0) < token THEN
			-- the term may have begun after the snapshot
			RAISE serialization_failure USING
				MESSAGE = format('could not look at the term of election %s with token %s',
					le._le_quote(name), token),
				DETAIL = 'The snapshot of the transaction is older than the term, or there is no such term.',
				HINT = 'Retry the transaction.';
		END IF;
		d := le._le_describe(name, token,
			'To act as its leader, pass the token of the lease, or set "leader_election.token" to '
			'it.');
		IF d.hint IS NULL THEN
			RAISE SQLSTATE 'LE001' USING MESSAGE = d.message, DETAIL = d.detail;
		END IF;
		RAISE SQLSTATE 'LE001' USING MESSAGE = d.message, DETAIL = d.detail, HINT = d.hint;
	END IF;
	RETURN e;
END $$;

-- The same, in a subtransaction only where that is needed: others would wait for the
-- whole transaction after a rollback to a savepoint.
CREATE OR REPLACE FUNCTION le._le_guard_by(name text, token bigint) RETURNS le.le_elections
	LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('transaction_isolation') = 'serializable' THEN
		BEGIN
			RETURN le._le_guard_row(name, token);
		EXCEPTION WHEN OTHERS THEN RAISE;
		END;
	END IF;
	RETURN le._le_guard_row(name, token);
END $$;

-- Let the trigger le_guard know that the transaction is guarded by a term with that
-- token.  A rollback to a savepoint takes back the setting with the guard.
CREATE OR REPLACE FUNCTION le._le_tell_guard(token bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	guards pg_catalog.text := COALESCE(current_setting('leader_election_sql.guards', true), '');
BEGIN
	IF position(' ' || token || ' ' IN guards) = 0 THEN
		guards := set_config('leader_election_sql.guards', rtrim(guards) || ' ' || token || ' ',
			true);
	END IF;
	RETURN true;
END $$;

CREATE OR REPLACE FUNCTION le.le_assert_leader(name text, token bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	e le.le_elections;
	told boolean;
BEGIN
	e := le._le_guard_by(le._le_name(name), token);
	told := le._le_tell_guard(e.token);
END $$;
COMMENT ON FUNCTION le.le_assert_leader(text, bigint) IS
'raise error LE001 unless the term with that token runs (NULL: unless this session leads); '
'otherwise guard the transaction: no new term begins before its end';

CREATE OR REPLACE FUNCTION le.le_guard()
RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	setting pg_catalog.text := current_setting('leader_election.token', true);
	guards pg_catalog.text := current_setting('leader_election_sql.guards', true);
	e le.le_elections;
	token bigint;
	told boolean;
BEGIN
	IF TG_NARGS <> 1 THEN
		RAISE invalid_object_definition USING
			MESSAGE = format('trigger "%s" on table "%s" must have one argument, the name of an '
				'election', TG_NAME, TG_TABLE_NAME),
			HINT = 'Create the trigger again, with EXECUTE FUNCTION le_guard(''name'').';
	END IF;
	PERFORM le._le_name(TG_ARGV[0]);
	IF setting <> '' OR guards <> '' THEN
		BEGIN
			SELECT * INTO e FROM le.le_elections t WHERE t.name = TG_ARGV[0];
		EXCEPTION WHEN OTHERS THEN RAISE;
		END;
		IF position(' ' || e.token || ' ' IN guards) > 0 THEN
			token := e.token;
		ELSIF setting <> '' AND NOT le._le_mine(e) THEN
			IF setting !~ '^0*[1-9][0-9]{0,17}$' THEN
				RAISE invalid_parameter_value USING MESSAGE = format(
					'parameter "leader_election.token" must be a token, which is a positive '
						'bigint, or empty: %s', le._le_quote(setting));
			END IF;
			token := setting;
		END IF;
	END IF;
	e := le._le_guard_by(TG_ARGV[0], token);
	told := token IS NULL OR le._le_tell_guard(token);
	IF TG_OP = 'DELETE' THEN
		RETURN OLD;
	END IF;
	RETURN NEW;
END $$;
COMMENT ON FUNCTION le.le_guard() IS
'trigger with the name of an election as its argument: the writing session must lead that '
'election, or have the leader''s token in leader_election.token; guards the transaction as '
'le_assert_leader does';

--
-- Jobs and seats
--
CREATE OR REPLACE FUNCTION le._le_record_job(name text, due timestamptz, token bigint)
	RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	caller pg_catalog.oid := quote_ident(le._le_caller())::regrole;
	most integer := (SELECT s.max_elections_per_role FROM le.le_settings s);
BEGIN
	UPDATE le._le_once_done o SET due = due, token = token WHERE o.name = name COLLATE "C"
		AND o.role = caller AND o.due < due;
	IF FOUND THEN
		RETURN true;
	ELSIF EXISTS (SELECT FROM le._le_once_done o WHERE o.name = name COLLATE "C" AND o.due >= due) THEN
		RETURN false;
	END IF;
	IF (SELECT count(*) FROM le._le_once_done o WHERE o.role = caller) >= most THEN
		RAISE configuration_limit_exceeded USING
			MESSAGE = format('too many elections with jobs that role "%s" has done: at most %s',
				le._le_caller(), most),
			HINT = 'Ask the owner of the schema to delete rows of "_le_once_done", or to raise '
				'max_elections_per_role in "le_settings".';
	END IF;
	INSERT INTO le._le_once_done AS o VALUES (name, due, token, caller)
	ON CONFLICT ON CONSTRAINT _le_once_done_pkey DO UPDATE SET due = due, token = token,
		role = caller WHERE o.due < due;
	RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION le.le_once(name text, due timestamptz, token bigint DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	e le.le_elections;
	told boolean;
BEGIN
	name := le._le_name(name);
	IF due IS NULL THEN
		RAISE null_value_not_allowed
			USING MESSAGE = 'the time for which a job is due must not be null';
	ELSIF NOT isfinite(due) THEN
		RAISE datetime_field_overflow
			USING MESSAGE = 'the time for which a job is due must be finite';
	ELSIF due > clock_timestamp() + interval '1 hour' THEN
		RAISE datetime_field_overflow
			USING MESSAGE = 'the time for which a job is due must be at most one hour from now';
	END IF;
	e := le._le_guard_by(name, token);
	told := le._le_tell_guard(e.token);
	-- as in _le_guard_by
	IF current_setting('transaction_isolation') = 'serializable' THEN
		BEGIN
			RETURN le._le_record_job(name, due, e.token);
		EXCEPTION WHEN OTHERS THEN RAISE;
		END;
	END IF;
	RETURN le._le_record_job(name, due, e.token);
END $$;
COMMENT ON FUNCTION le.le_once(text, timestamptz, bigint) IS
'true if the job for that time must be done now, in this transaction, which is then guarded as by '
'le_assert_leader; false if that job, or a later one, is done already; raises error LE001 unless '
'the term with that token runs (NULL: unless this session leads)';

CREATE OR REPLACE FUNCTION le._le_once_done()
	RETURNS TABLE (name text, due timestamptz, token bigint, role oid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN QUERY SELECT * FROM le._le_once_done;
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;

CREATE OR REPLACE FUNCTION le.le_seats(name text, n integer)
RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT ARRAY(SELECT name || '/' || i::text FROM generate_series(1, n) i);
$$;
COMMENT ON FUNCTION le.le_seats(text, integer) IS
'names of n elections, name/1 to name/n, so that at most n lead: for le_campaign';

--
-- Campaigns
--
-- Raise an error if a commit of the procedure has undone SET LOCAL ROLE, or has
-- changed the role of the session
CREATE OR REPLACE FUNCTION le._le_require_caller(caller name[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF caller <> ARRAY[le._le_caller(), session_user] THEN
		RAISE invalid_transaction_termination USING
			MESSAGE = format('role "%s" was set only until the commit in this procedure', caller[1]),
			DETAIL = format('After the commit, the role is "%s", and that of the session "%s".',
				le._le_caller(), session_user),
			HINT = 'Use SET ROLE instead of SET LOCAL ROLE.';
	END IF;
END $$;

-- Check the arguments of a campaign, and return ttl or heartbeat
CREATE OR REPLACE FUNCTION le._le_check_campaign(timeout interval, ttl interval, heartbeat interval,
	identity text, caller name[])
RETURNS interval LANGUAGE plpgsql AS $$
BEGIN
	PERFORM le._le_require_caller(caller);
	timeout := le._le_timeout(timeout);
	identity := le._le_text('identity', identity, 1, 255);
	IF ttl IS NOT NULL AND heartbeat IS NOT NULL THEN
		RAISE invalid_parameter_value USING MESSAGE = 'ttl and heartbeat must not both be given',
			DETAIL = 'A ttl is for a lease, and a heartbeat for a term in session scope.';
	END IF;
	RETURN CASE WHEN ttl IS NULL THEN le._le_span('heartbeat', heartbeat, '1 day')
		ELSE le._le_ttl(ttl) END;
END $$;

-- One round of a campaign.  "waits" tells the procedure to commit, and to call
-- again with it.  The first round does not wait, except where the procedure cannot
-- commit: there it lasts until the end.
CREATE OR REPLACE FUNCTION le._le_campaign(name text, timeout interval, ttl interval,
	heartbeat interval, identity text,
	started timestamptz, caller name[], atomic boolean, INOUT token bigint, INOUT waits boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	scope pg_catalog.text := CASE WHEN ttl IS NULL THEN 'session' ELSE 'lease' END;
	first boolean := waits IS NULL;
	lasts interval;
	patience interval;
BEGIN
	name := le._le_name(name);
	lasts := le._le_check_campaign(timeout, ttl, heartbeat, identity, caller);
	waits := false;
	IF first AND scope = 'lease' AND token IS NOT NULL
		AND le._le_renew(name, token, lasts, identity) THEN
		RETURN;
	ELSIF atomic OR timeout = '0' THEN
		token := le._le_wait(name, scope, lasts, identity, timeout,
			current_setting('lock_timeout'));
	ELSE
		patience := CASE WHEN first THEN '0'
			ELSE le._le_patience(started, timeout, current_setting('lock_timeout')) END;
		token := le._le_bid(name, scope, lasts, identity, patience);
		waits := token IS NULL AND COALESCE(clock_timestamp() < started + timeout, true);
	END IF;
	PERFORM le._le_warn_block(name) WHERE token IS NOT NULL AND scope = 'lease';
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;

CREATE OR REPLACE FUNCTION le._le_campaign_many(names text[], timeout interval, ttl interval,
	heartbeat interval, identity text,
	started timestamptz, caller name[], atomic boolean, INOUT waits boolean, OUT token bigint,
	OUT name text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
	scope pg_catalog.text := CASE WHEN ttl IS NULL THEN 'session' ELSE 'lease' END;
	lasts interval;
	pause interval;
	e le.le_elections;
BEGIN
	IF names IS NULL THEN
		RAISE null_value_not_allowed USING MESSAGE = 'election names must not be null';
	ELSIF array_ndims(names) IS DISTINCT FROM 1 THEN
		RAISE array_subscript_error
			USING MESSAGE = 'election names must be a one-dimensional array, and not empty';
	END IF;
	PERFORM le._le_name(n) FROM unnest(names) n;
	lasts := le._le_check_campaign(timeout, ttl, heartbeat, identity, caller);
	PERFORM le._le_require_primary();
	PERFORM le._le_bid_again(o.t, 'session', NULL, identity, COALESCE(timeout > '0', true))
	FROM (SELECT t FROM unnest(names) WITH ORDINALITY n(name, i)
		JOIN le.le_elections t ON t.name = n.name COLLATE "C"
		WHERE waits IS NULL AND identity <> t.identity AND le._le_mine(t) ORDER BY n.i LIMIT 1) o;
	LOOP
		-- where leases are not granted yet, only a call that does not wait is told so
		IF scope = 'session' OR timeout = '0'
			OR COALESCE(pg_sequence_last_value('le.le_lease_seq') < le._le_us(), true) THEN
			FOREACH name IN ARRAY names LOOP
				SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C";
				IF NOT le._le_mine(e) THEN
					token := le._le_bid(name, scope, lasts, identity, NULL);
				END IF;
				waits := false;
				IF token IS NOT NULL THEN
					PERFORM le._le_warn_block(name) WHERE scope = 'lease';
					RETURN;
				END IF;
			END LOOP;
		END IF;
		name := NULL;
		waits := COALESCE(clock_timestamp() < started + timeout, true);
		IF NOT waits THEN
			RETURN;
		END IF;
		pause := least('0.2 s', le._le_patience(started, timeout, current_setting('lock_timeout')));
		PERFORM pg_sleep(extract(epoch FROM pause));
		IF NOT atomic THEN
			RETURN;
		END IF;
	END LOOP;
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;

-- What a procedure must know when it begins.  If it can commit, it does so first
-- where the transaction keeps its snapshot, so that its bids see each change.
CREATE OR REPLACE FUNCTION le._le_now(told text, OUT started timestamptz, OUT caller name[],
	OUT atomic boolean, OUT commits boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	started := clock_timestamp();
	caller := ARRAY[le._le_caller(), session_user];
	BEGIN
		COMMIT;		-- refused here as well
	EXCEPTION WHEN invalid_transaction_termination THEN
		atomic := told = SQLERRM;
	END;
	commits := NOT atomic
		AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
END $$;

-- The term begins with the commit that ends the CALL: a COMMIT in here would be
-- followed by a statement, which a cancel could end with an error although the
-- session leads.
CREATE OR REPLACE PROCEDURE le.le_campaign(name text, timeout interval DEFAULT NULL,
	ttl interval DEFAULT NULL,
	heartbeat interval DEFAULT NULL, identity text DEFAULT NULL, INOUT token bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
	began pg_catalog.record;
	waits pg_catalog.bool;
BEGIN
	BEGIN
		COMMIT;
	EXCEPTION WHEN invalid_transaction_termination THEN
		SELECT * INTO began FROM le._le_now(SQLERRM);
	END;
	LOOP
		IF began.commits OR waits THEN
			COMMIT;
			SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
		END IF;
		SELECT r.token, r.waits INTO token, waits FROM le._le_campaign(name, timeout, ttl, heartbeat,
			identity, began.started, began.caller, began.atomic, token, waits) r;
		EXIT WHEN NOT waits;
	END LOOP;
END $$;
COMMENT ON PROCEDURE le.le_campaign(text, interval, interval, interval, text, bigint) IS
'wait to lead the election for the rest of the session, or until no heartbeat comes for that long, '
'or with a ttl by a lease, with a commit at least every 10 seconds; returns the token, or NULL '
'after the timeout (NULL: wait forever)';

-- The name comes last, so that at each of its positions the other le_campaign
-- has the same type, apart from the first: a call with parameters of unknown
-- type then always means that one.
CREATE OR REPLACE PROCEDURE le.le_campaign(names text[], timeout interval DEFAULT NULL,
	ttl interval DEFAULT NULL,
	heartbeat interval DEFAULT NULL, identity text DEFAULT NULL, INOUT token bigint DEFAULT NULL,
		INOUT name text DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
	began pg_catalog.record;
	waits pg_catalog.bool;
BEGIN
	BEGIN
		COMMIT;
	EXCEPTION WHEN invalid_transaction_termination THEN
		SELECT * INTO began FROM le._le_now(SQLERRM);
	END;
	LOOP
		IF began.commits OR waits THEN
			COMMIT;
			SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
		END IF;
		SELECT r.token, r.name, r.waits INTO token, name, waits FROM le._le_campaign_many(names,
			timeout, ttl, heartbeat, identity, began.started, began.caller, began.atomic, waits) r;
		EXIT WHEN NOT waits;
	END LOOP;
END $$;
COMMENT ON PROCEDURE le.le_campaign(text[], interval, interval, interval, text, bigint, text) IS
'wait to lead any of many elections, by bids at intervals of 0.2 seconds; returns token and name '
'of the first one won, or NULLs after the timeout (NULL: wait forever)';

--
-- Observing, publishing, deposing
--
-- One look of an observer; with a pause after it, if nothing has changed
CREATE OR REPLACE FUNCTION le._le_observe(name text, timeout interval, started timestamptz,
	caller name[], atomic boolean,
	INOUT version bigint, OUT token bigint, OUT identity text, OUT value text, OUT waits boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
	e le.le_elections;
	known bigint := version;
BEGIN
	name := le._le_name(name);
	timeout := le._le_timeout(timeout);
	PERFORM le._le_require_caller(caller);
	IF pg_is_in_recovery() THEN
		RAISE read_only_sql_transaction
			USING MESSAGE = 'cannot observe an election during recovery',
			HINT = 'Connect to the primary server.';
	END IF;
	PERFORM le._le_require_primary();
	LOOP
		SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C";
		IF le._le_over(e, true) IS NULL
			AND (current_setting('transaction_read_only') = 'off' OR NOT le._le_is_copy()) THEN
			token := e.token;
			identity := le._le_shown_identity(e);
			value := (SELECT v.value FROM le.le_values v WHERE v.name = e.name AND v.token = e.token);
		END IF;
		version := hashtextextended(concat_ws(' ', e.token, token IS NOT NULL,
			quote_nullable(value)), 0) & 9007199254740991;
		waits := COALESCE(version = known AND COALESCE(clock_timestamp() < started + timeout, true),
			false);
		IF NOT waits THEN
			RETURN;
		END IF;
		PERFORM pg_sleep(greatest(0,
			extract(epoch FROM least('0.1 s', started + timeout - clock_timestamp()))));
		IF NOT atomic THEN
			RETURN;
		END IF;
	END LOOP;
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;

CREATE OR REPLACE PROCEDURE le.le_observe(name text, INOUT version bigint DEFAULT NULL,
	timeout interval DEFAULT NULL,
	INOUT token bigint DEFAULT NULL, INOUT identity text DEFAULT NULL,
		INOUT value text DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
	began pg_catalog.record;
	waits pg_catalog.bool;
BEGIN
	BEGIN
		COMMIT;
	EXCEPTION WHEN invalid_transaction_termination THEN
		SELECT * INTO began FROM le._le_now(SQLERRM);
	END;
	LOOP
		SELECT l.* INTO version, token, identity, value, waits FROM le._le_observe(name, timeout,
			began.started, began.caller, began.atomic, version) l;
		EXIT WHEN NOT waits;
		COMMIT;
		SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
	END LOOP;
END $$;
COMMENT ON PROCEDURE le.le_observe(text, bigint, interval, bigint, text, text) IS
'wait until the election''s state has another version (NULL: do not wait), by looks at intervals '
'of 0.1 seconds; returns that version, to be passed back, and the leader''s token, identity and '
'published value, which are NULL while the election is vacant';

CREATE OR REPLACE FUNCTION le.le_proclaim(name text, value text, token bigint DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
	e le.le_elections;
BEGIN
	name := le._le_name(name);
	value := le._le_text('value', value, 0, 8192);
	PERFORM le._le_require_primary();
	SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C";
	IF token = e.token AND e.scope = 'session' AND NOT le._le_mine(e)
		AND le._le_over(e, random() < 0.2) IS NULL THEN
		PERFORM le._le_require_role(name, e.role);
	ELSE
		e := le._le_led(name, NULLIF(token, le.le_token(name)), NULL);
	END IF;
	-- guards the transaction, so that no later leader waits for the row of the value
	e := le._le_keep_term(name, e.token);
	IF e.name IS NOT NULL AND e.ended IS NULL THEN
		INSERT INTO le.le_values AS v VALUES (name, e.token, value)
		ON CONFLICT ON CONSTRAINT le_values_pkey DO UPDATE SET token = e.token, value = value;
		PERFORM le._le_notify(e, 'proclaimed');
		RETURN true;
	END IF;
	RETURN false;
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;
COMMENT ON FUNCTION le.le_proclaim(text, text, bigint) IS
'publish a value (at most 8 kB, NULL: no value) as the leader, from commit to the end of the term; '
'on another connection, and with a lease, pass the token; returns false, with a warning, if that '
'term does not run';

-- Say which processes have open transactions that may have locked a row.  The row
-- itself tells the subtransaction only.
CREATE OR REPLACE FUNCTION le._le_lockers() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN (SELECT format('It may be locked by open transactions, of processes with these IDs: %s.',
			string_agg(DISTINCT l.pid::text, ', '))
		FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
		WHERE l.relation = 'le.le_elections'::regclass AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
			AND l.pid <> pg_backend_pid() HAVING count(*) > 0);
END $$;

-- End the term, and return the process that leads, which only the caller's own
-- rights can terminate.  "deposed" is NULL if the term must end with that process:
-- an open transaction has locked the row, or leads itself.
CREATE OR REPLACE FUNCTION le._le_depose_by(deposer name, name text, reason text,
	OUT deposed boolean, OUT pid integer)
LANGUAGE plpgsql SET lock_timeout = '1 s' AS $$
#variable_conflict use_variable
DECLARE
	e le.le_elections;
	super boolean;
BEGIN
	name := le._le_name(name);
	reason := le._le_text('reason', reason, 1, 255);
	deposed := NOT le._le_require_primary();
	SELECT * INTO e FROM le.le_elections t WHERE t.name = name COLLATE "C";
	IF le._le_over(e, true) IS NULL THEN
		SELECT l.pid INTO pid FROM le._le_locks() l WHERE l.key = e.beacon AND l.granted
			AND l.pid = e.pid;
	ELSE
		-- others do not see the term of an open transaction, see _le_begin
		SELECT l.pid, a.usesysid, 'transaction' INTO pid, e.role, e.scope FROM le._le_locks() l
			CROSS JOIN LATERAL pg_stat_get_activity(l.pid) a
			WHERE l.key = ~e.beacon AND l.granted AND l.mode = 'ShareLock'
				AND EXISTS (SELECT FROM pg_locks w WHERE w.pid = l.pid AND w.mode = 'RowExclusiveLock'
					AND w.relation = 'le.le_elections'::regclass);
		IF NOT FOUND THEN
			RAISE WARNING USING MESSAGE = format('election %s has no leader to depose', le._le_quote(name)),
				DETAIL = concat_ws(' ', 'The election is vacant.', le._le_lockers());
			RETURN;
		END IF;
	END IF;
	IF le._le_mine(e) THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = format('cannot depose the leader of election %s, which is this session',
				le._le_quote(name)), HINT = 'Use le_resign().';
	ELSIF deposer IS NULL THEN
		deposer := le._le_caller();
		super := COALESCE((SELECT r.rolsuper FROM pg_roles r WHERE r.oid = e.role), false);
		IF NOT le._le_has_role(e.role)
			AND (super OR NOT le._le_has_role('pg_signal_backend'::regrole)) THEN
			RAISE insufficient_privilege USING MESSAGE = format(CASE WHEN super
				THEN 'permission denied to depose the leader of election %s, which is a superuser'
				ELSE 'permission denied to depose the leader of election %s: only roles with the '
					'privileges of its role or of "pg_signal_backend" may' END, le._le_quote(name));
		END IF;
	END IF;
	deposed := CASE WHEN e.scope <> 'transaction' THEN le._le_end(e, 'deposed',
		format(', "by": %s%s', le._le_json(deposer), ', "why": ' || le._le_json(reason))) END;
EXCEPTION WHEN lock_not_available THEN
	deposed := NULL;
	IF pid IS NULL THEN
		RAISE lock_not_available USING
			MESSAGE = format('could not end the term of election %s', le._le_quote(name)),
			DETAIL = COALESCE(le._le_lockers(), 'It was locked by another transaction.'),
			HINT = 'Terminate that session, and try again.';
	END IF;
END $$;

CREATE OR REPLACE FUNCTION le._le_depose(name text, reason text, OUT deposed boolean,
	OUT pid integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	SELECT * INTO deposed, pid FROM le._le_depose_by(NULL, name, reason);
END $$;

CREATE OR REPLACE FUNCTION le.le_depose(name text, reason text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	d pg_catalog.record;
BEGIN
	-- a superuser, or the owner, by its own rights: those of the current user
	IF pg_has_role((SELECT c.relowner FROM pg_class c WHERE c.oid = 'le.le_elections'::regclass),
		'USAGE') THEN
		d := le._le_depose_by(current_user, name, reason);
	ELSE
		d := le._le_depose(name, reason);
	END IF;
	IF d.pid IS NOT NULL AND pg_terminate_backend(d.pid, 5000) THEN
		d.deposed := true;
	END IF;
	RETURN COALESCE(d.deposed, false);
END $$;
COMMENT ON FUNCTION le.le_depose(text, text) IS
'end the term of the election''s leader at commit, and terminate its session; for superusers, and '
'for roles with the privileges of the leader''s role or of pg_signal_backend; returns false, with '
'a warning, if the election is vacant';

--
-- Leaders and candidates
--
-- Return the leader of one election, or of all (NULL).  _le_leaders() adds what
-- pg_stat_activity shows to the current user.
CREATE OR REPLACE FUNCTION le._le_terms(one text)
	RETURNS TABLE (name text, key bigint, scope text, identity text, token bigint,
	pid integer, role oid, since timestamptz, candidates bigint, ttl interval, heartbeat interval,
		renewed_at timestamptz, renewals bigint, expires_in interval, value text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	names pg_catalog.text[];
	void bigint := COALESCE(pg_sequence_last_value('le.le_void_seq'), 0);
	now pg_catalog.timestamptz := clock_timestamp();
BEGIN
	-- a copy in another database, before its first bid
	IF le._le_is_copy() THEN
		RETURN;
	END IF;
	names := CASE WHEN one IS NULL
		THEN ARRAY(SELECT e.name FROM le.le_elections e WHERE e.token IS NOT NULL
		AND e.ended IS NULL)
		ELSE ARRAY[one] END;
	RETURN QUERY
	WITH locks AS MATERIALIZED (
		SELECT l.key, l.pid, bool_or(l.granted) AS granted FROM le._le_locks() l GROUP BY 1, 2)
	SELECT e.name, hashtextextended(e.name, 0), e.scope, le._le_shown_identity(e), e.token,
		CASE WHEN e.scope <> 'lease' THEN e.pid END, e.role, e.since,
		count(c.key),
		CASE e.scope WHEN 'lease' THEN e.lasts END, CASE e.scope WHEN 'session' THEN e.lasts END,
		CASE e.scope WHEN 'lease' THEN e.renewed_at END, CASE e.scope WHEN 'lease'
			THEN e.renewals END,
		le._le_deadline(e.scope, e.renewed_at, e.lasts) - now,
		(SELECT v.value FROM le.le_values v WHERE v.name = e.name AND v.token = e.token)
	FROM le.le_elections e
	-- a join and no subquery, as any role can take many locks and leases
	LEFT JOIN locks c ON c.key = ~e.beacon AND (c.pid <> e.pid OR e.scope = 'lease')
	WHERE e.name = ANY (names COLLATE "C") AND e.token > void AND e.ended IS NULL
		AND CASE WHEN e.xact = pg_current_xact_id_if_assigned() THEN true
			WHEN e.scope = 'transaction'
				OR now >= le._le_deadline(e.scope, e.renewed_at, e.lasts) THEN false
			ELSE e.scope = 'lease' OR EXISTS (SELECT FROM locks l WHERE l.key = e.beacon
				AND l.pid = e.pid AND l.granted) END
	GROUP BY e.name;
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;

-- The views consist of functions, which an upgrade replaces without a lock on the
-- view: it would wait for transactions that have read it.
CREATE OR REPLACE FUNCTION le._le_leaders()
	RETURNS TABLE (name text, key bigint, scope text, identity text, token bigint, pid integer,
	usename name, application_name text, client_addr inet, since timestamptz, candidates bigint,
	last_denied_at timestamptz, last_denied_identity text, ttl interval, heartbeat interval,
	renewed_at timestamptz, renewals bigint, expires_in interval, value text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN QUERY SELECT e.name, e.key, e.scope, e.identity, e.token, e.pid,
		COALESCE(a.usename, r.rolname), a.application_name, a.client_addr, e.since, e.candidates,
		NULL::timestamptz, NULL::text, e.ttl, e.heartbeat, e.renewed_at, e.renewals, e.expires_in,
		e.value
	FROM le._le_terms(NULL) e
	LEFT JOIN pg_stat_activity a ON a.pid = e.pid
	LEFT JOIN pg_roles r ON r.oid = e.role AND e.scope = 'lease';
END $$;
IF to_regclass('le.le_leaders') IS NULL THEN
	CREATE VIEW le.le_leaders AS SELECT * FROM le._le_leaders();
	CREATE VIEW le.le_once_done AS SELECT * FROM le._le_once_done();
END IF;
GRANT SELECT ON le.le_leaders, le.le_once_done TO PUBLIC;
COMMENT ON VIEW le.le_once_done IS
'the time of the last completed job of each election; written by le_once';
COMMENT ON VIEW le.le_leaders IS 'leaders: one row for each running term in session or lease scope';
COMMENT ON COLUMN le.le_leaders.pid
	IS 'process that leads; NULL for a lease, which is bound to none';
COMMENT ON COLUMN le.le_leaders.candidates IS 'number of candidates in line';
COMMENT ON COLUMN le.le_leaders.last_denied_at IS 'always NULL; the C extension has it';
COMMENT ON COLUMN le.le_leaders.last_denied_identity IS 'always NULL; the C extension has it';

CREATE OR REPLACE FUNCTION le.le_leader(INOUT name text, OUT key bigint, OUT scope text,
	OUT identity text, OUT token bigint,
	OUT pid integer, OUT since timestamptz, OUT candidates bigint, OUT ttl interval,
		OUT heartbeat interval,
	OUT renewed_at timestamptz, OUT renewals bigint, OUT expires_in interval, OUT value text)
RETURNS SETOF record LANGUAGE plpgsql ROWS 1
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
	name := le._le_name(name);
	RETURN QUERY SELECT e.name, e.key, e.scope, e.identity, e.token, e.pid, e.since, e.candidates,
		e.ttl, e.heartbeat,
		e.renewed_at, e.renewals, e.expires_in, e.value FROM le._le_terms(name) e;
END $$;
COMMENT ON FUNCTION le.le_leader(text) IS
'leader of the election: one row, with columns as in le_leaders, or none';

-- Return the candidates in line: sessions that wait for a line, or hold it
-- without the beacon, and wait for something else
CREATE OR REPLACE FUNCTION le._le_lines()
	RETURNS TABLE (name text, key bigint, "position" bigint, pid integer,
	since timestamptz, waits_for text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN QUERY
	WITH locks AS MATERIALIZED (SELECT * FROM le._le_locks())
	SELECT e.name, hashtextextended(e.name, 0),
		row_number() OVER (PARTITION BY e.name ORDER BY l.granted DESC, l.waitstart),
		l.pid, l.waitstart, CASE WHEN NOT l.granted OR le._le_over(e, false) IS NULL THEN 'leader'
			ELSE 'guard' END
	FROM locks l
	JOIN le.le_elections e ON e.beacon = ~l.key
	WHERE l.pid <> pg_backend_pid()
		AND NOT EXISTS (SELECT FROM locks b WHERE b.pid = l.pid AND b.key = e.beacon)
		AND NOT EXISTS (SELECT FROM locks b WHERE b.pid = l.pid AND b.key = l.key AND b.mode = 'ShareLock');
EXCEPTION WHEN OTHERS THEN RAISE;
END $$;

CREATE OR REPLACE FUNCTION le._le_candidates()
	RETURNS TABLE (name text, key bigint, "position" bigint, identity text, pid integer,
	usename name, application_name text, client_addr inet, since timestamptz, waits_for text,
	blocked_by integer[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN QUERY SELECT c.name, c.key, c."position", NULLIF(a.application_name, ''), c.pid,
		a.usename, a.application_name, a.client_addr, c.since, c.waits_for, pg_blocking_pids(c.pid)
	FROM le._le_lines() c
	LEFT JOIN pg_stat_activity a ON a.pid = c.pid;
END $$;
IF to_regclass('le.le_candidates') IS NULL THEN
	CREATE VIEW le.le_candidates AS SELECT * FROM le._le_candidates();
END IF;
GRANT SELECT ON le.le_candidates TO PUBLIC;
COMMENT ON VIEW le.le_candidates IS
'candidates: one row for each session that waits in line for one election; candidates for many '
'elections, and programs that poll, are not shown';
COMMENT ON COLUMN le.le_candidates.position IS 'place in line in the present round of waiting';
COMMENT ON COLUMN le.le_candidates.identity
	IS 'application_name: an identity that was passed is not known before the election';
COMMENT ON COLUMN le.le_candidates.waits_for IS
'leader: the leader, or candidates ahead in line; guard: transactions that are guarded by the last '
'term, or that bid themselves';

--
-- Calls that need the C extension
--
DECLARE
	signature pg_catalog.text;
BEGIN
	FOREACH signature IN ARRAY ARRAY[
		'le_declare(name text, candidates regrole = NULL, grace interval = NULL, max_ttl interval '
			'= NULL, private boolean = NULL) RETURNS void',
		'le_undeclare(name text) RETURNS boolean'] LOOP
		EXECUTE format($f$CREATE OR REPLACE FUNCTION le.%s LANGUAGE plpgsql AS $b$
			BEGIN
				RAISE feature_not_supported
					USING MESSAGE = 'the SQL edition of leader_election does not support %s',
					HINT = 'This needs the C extension leader_election.';
			END $b$ $f$, signature, split_part(signature, '(', 1) || '()');
		EXECUTE
			format('COMMENT ON FUNCTION le.%s IS ''raises an error: this needs the C '
			'extension''',
			regexp_replace(regexp_replace(signature, ' RETURNS.*', ''),
				' = NULL', '', 'g'));
	END LOOP;
END;

--
-- Internal functions
--
-- They run with the rights of their caller, which for others than the owner
-- are none to the tables.  They are revoked as well, and so is the trigger's,
-- which others would attach to their own tables.  Those of the views remain.
DECLARE
	internal pg_catalog.regprocedure;
BEGIN
	FOR internal IN
		SELECT p.oid FROM pg_proc p
		WHERE p.pronamespace = 'le'::regnamespace AND starts_with(p.proname::text, '_le_')
		  AND (NOT p.prosecdef OR p.proname = '_le_take_beacon')
		  AND p.proname <> ALL ('{_le_leaders,_le_candidates}')
	LOOP
		EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', internal);
	END LOOP;
END;

-- Look again: a transaction can have created objects before CREATE was revoked, and have ended
-- after the first look, while the script waited
EXECUTE foreign_objects INTO other;
IF other.role IS NOT NULL THEN
	RAISE insufficient_privilege USING
		MESSAGE = 'another role has created objects in schema "le" meanwhile';
END IF;

--
-- The first installation
--
-- Default privileges of the owner would let other roles write what the functions
-- trust, and run triggers with the owner's rights.  Later grants are its own choice, and so
-- are those on its other tables.
-- Tokens begin by the clock, and there is no lease to wait for.
IF pg_sequence_last_value('le.le_origin_seq') IS NULL THEN
	FOR other IN
		SELECT a.privilege_type, c.oid::regclass AS relation,
			COALESCE(NULLIF(a.grantee, 0)::regrole::text, 'PUBLIC') AS grantee
		FROM pg_class c, aclexplode(c.relacl) a
		WHERE c.relnamespace = 'le'::regnamespace AND c.relowner = login AND c.relname ~ '^_?le_'
			AND a.grantee <> login AND (c.relkind <> 'v' OR a.privilege_type <> 'SELECT')
	LOOP
		EXECUTE format('REVOKE %s ON %s FROM %s CASCADE', other.privilege_type, other.relation, other.grantee);
	END LOOP;
	PERFORM le._le_arrive();
END IF;

PERFORM set_config('search_path', path, true);
END $install$;
