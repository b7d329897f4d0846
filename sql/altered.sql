--
-- Tables and sequences that their owner has altered: an error, and nothing else
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
CREATE ACCESS METHOD regress_le_heap TYPE TABLE HANDLER heap_tableam_handler;
CREATE FUNCTION regress_le_nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE FUNCTION outcome(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message text;
	detail text;
	answer text;
BEGIN
	EXECUTE statement INTO answer;
	RETURN CASE WHEN statement ~ 'once' THEN answer ELSE 'done' END;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
	RETURN concat_ws(' ', sqlstate, message || '.', detail);
END $$;
-- what statements answer after the change, which is rolled back
CREATE PROCEDURE try(change text, statements text[]) LANGUAGE plpgsql AS $$
DECLARE
	statement text;
	answers text[];
BEGIN
	BEGIN
		EXECUTE change;
		FOREACH statement IN ARRAY statements LOOP
			answers := answers || outcome(statement);
		END LOOP;
		RAISE EXCEPTION USING errcode = 'RB000';
	EXCEPTION WHEN sqlstate 'RB000' THEN
		NULL;
	END;
	RAISE WARNING '%: %', change, array_to_string(answers, ' / ');
END $$;
CREATE PROCEDURE try_leases(change text) LANGUAGE sql AS $$
CALL try(change, ARRAY['SELECT le_lease(''altered'', ''1 min'')']) $$;
CREATE PROCEDURE try_declarations(change text) LANGUAGE sql AS $$
CALL try(change, ARRAY['SELECT le_try_become_leader_xact(''altered'')', 'SELECT le_declare(''altered'')']) $$;
-- a job that is done, and the next one
CREATE PROCEDURE try_once(change text) LANGUAGE sql AS $$
CALL try(change, ARRAY['SELECT le_once(''altered'', ''2026-01-02'')', 'SELECT le_once(''altered'', ''2026-01-02'')']) $$;
\set VERBOSITY terse
SELECT le_lease('as it was', '1 min') IS NOT NULL AS granted, le_declare('as it was');

-- le_leases
CALL try_leases('ALTER TABLE le_leases ADD more int');
CALL try_leases('ALTER TABLE le_leases DROP identity CASCADE');
CALL try_leases('ALTER TABLE le_leases ALTER identity TYPE varchar');
CALL try_leases('ALTER TABLE le_leases ALTER ttl TYPE text');
CALL try_leases('ALTER TABLE le_leases ALTER name TYPE text COLLATE "POSIX"');
CALL try_leases('ALTER TABLE le_leases ALTER identity DROP NOT NULL');
CALL try_leases('ALTER TABLE le_leases SET UNLOGGED');
CALL try_leases('ALTER TABLE le_leases SET ACCESS METHOD regress_le_heap');
CALL try_leases('CREATE INDEX ON le_leases (lower(name))');
CALL try_leases('CREATE INDEX ON le_leases (name, token) WHERE token > 0');
CALL try_leases('CREATE INDEX ON le_leases (token)');
CALL try_leases('ALTER TABLE le_leases ADD UNIQUE (name, token) DEFERRABLE');
CALL try_leases('ALTER TABLE le_leases DROP CONSTRAINT le_leases_pkey');
CALL try_leases('ALTER TABLE le_leases DROP CONSTRAINT le_leases_pkey, ADD PRIMARY KEY (token)');
CALL try_leases('ALTER TABLE le_leases DROP CONSTRAINT le_leases_pkey, ADD PRIMARY KEY (name, token) DEFERRABLE');
CALL try_leases('ALTER TABLE le_leases DROP CONSTRAINT le_leases_pkey, ADD PRIMARY KEY (name, token) INCLUDE (ttl)');
-- what the server itself may leave behind is harmless
CALL try_leases('CREATE UNIQUE INDEX ON le_leases (name, token)');
CALL try_leases('REINDEX TABLE le_leases');
CALL try_leases('ANALYZE le_leases');
CALL try_leases('ALTER TABLE le_leases ALTER identity SET STORAGE EXTERNAL');

-- le_declarations
CALL try_declarations('ALTER TABLE _le_declarations ADD more int');
CALL try_declarations('ALTER TABLE _le_declarations ALTER candidates TYPE text');
CALL try_declarations('ALTER TABLE _le_declarations ALTER private DROP DEFAULT, ALTER private TYPE text');
CALL try_declarations('ALTER TABLE _le_declarations ALTER private DROP NOT NULL');
CALL try_declarations('ALTER TABLE _le_declarations SET UNLOGGED');
CALL try_declarations('CREATE INDEX ON _le_declarations (lower(name))');
CALL try_declarations('CREATE INDEX ON _le_declarations (key) WHERE name > ''''');
CALL try_declarations('ALTER TABLE _le_declarations DROP CONSTRAINT _le_declarations_pkey');
CALL try_declarations('ALTER TABLE _le_declarations DROP CONSTRAINT _le_declarations_key_key, ADD UNIQUE (key) DEFERRABLE');
CALL try_declarations('ALTER TABLE _le_declarations DROP CONSTRAINT _le_declarations_key_key; CREATE INDEX ON _le_declarations (key)');
-- the index alone is used, and it is looked at again after each change
CALL try_declarations('REINDEX TABLE _le_declarations');
CALL try_declarations('ALTER TABLE _le_declarations DROP CONSTRAINT _le_declarations_key_key, ADD UNIQUE (key)');

-- le_once_done
SELECT le_try_become_leader('altered'), le_once('altered', '2026-01-01 +0');
CALL try_once('ALTER TABLE _le_once_done ADD more int');
CALL try_once('ALTER TABLE _le_once_done DROP token');
CALL try_once('ALTER TABLE _le_once_done ALTER due TYPE timestamp');
CALL try_once('ALTER TABLE _le_once_done ALTER due TYPE timestamptz(0)');
CALL try_once('ALTER TABLE _le_once_done ALTER due DROP NOT NULL');
CALL try_once('ALTER TABLE _le_once_done ALTER token TYPE numeric');
CALL try_once('ALTER TABLE _le_once_done ALTER name TYPE text COLLATE "POSIX"');
CALL try_once('ALTER TABLE _le_once_done RENAME due TO time');
CALL try_once('ALTER TABLE _le_once_done SET UNLOGGED');
CALL try_once('ALTER TABLE _le_once_done SET ACCESS METHOD regress_le_heap');
CALL try_once('CREATE INDEX ON _le_once_done (lower(name))');
CALL try_once('ALTER TABLE _le_once_done DROP CONSTRAINT _le_once_done_pkey');
CALL try_once('CREATE TRIGGER t BEFORE INSERT ON _le_once_done FOR EACH ROW EXECUTE FUNCTION regress_le_nothing()');
CALL try_once('ALTER TABLE _le_once_done ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY');
-- the owner of a table can have code run by whatever uses the table by SQL
CREATE ROLE regress_le_taker;
CREATE FUNCTION regress_le_trap(text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RAISE 'caught as %', current_user; END $$;
CALL try_once('ALTER TABLE _le_once_done OWNER TO regress_le_taker; ALTER TABLE _le_once_done ADD CHECK (regress_le_trap(name)) NOT VALID');
CALL try_once('CREATE STATISTICS regress_le_statistics ON (regress_le_trap(''x'')), due FROM le_once_done');
CALL try_once('CREATE POLICY p ON _le_once_done USING (regress_le_trap(name)); ALTER TABLE _le_once_done ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY');
DROP FUNCTION regress_le_trap;
DROP ROLE regress_le_taker;
CALL try_once('REINDEX TABLE _le_once_done');
CALL try_once('ANALYZE _le_once_done');
SELECT (SELECT due FROM le_once_done WHERE name = 'altered') = '2026-01-01 +0' AS "as it was", le_resign('altered');
DELETE FROM _le_once_done WHERE name = 'altered';

-- the sequences: a token may be left of the last block
ALTER SEQUENCE le_token_seq SET UNLOGGED;
SELECT outcome('SELECT count(le_resign(''e'')) FROM generate_series(1, 2000) WHERE le_try_become_leader(''e'')');
ALTER SEQUENCE le_token_seq SET LOGGED;

-- a table of that name that is not the extension's
CALL try($$ALTER EXTENSION leader_election DROP TABLE _le_declarations; ALTER TABLE _le_declarations RENAME TO regress_le_taken;
	CREATE TABLE _le_declarations (LIKE regress_le_taken INCLUDING ALL)$$, ARRAY['SELECT le_try_become_leader(''altered'')', 'SELECT le_declare(''altered'')']);

-- a function with further columns
BEGIN;
CREATE FUNCTION regress_le_wide(OUT a text, OUT b bigint, OUT c text) RETURNS SETOF record AS '$libdir/leader_election', 'le_registry_terms' LANGUAGE C;
SELECT * FROM regress_le_wide();
ROLLBACK;

-- all is as it was
SELECT le_resign('as it was', token), le_undeclare('as it was') FROM le_leader('as it was');
SELECT le_try_become_leader('altered'), le_resign('altered');
\set VERBOSITY default
DROP PROCEDURE try, try_leases, try_declarations, try_once;
DROP FUNCTION outcome, regress_le_nothing;
DROP ACCESS METHOD regress_le_heap;
