--
-- Fencing tokens: they grow
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql

-- NULL without leadership, constant within a term, as the view shows it
SELECT le_token('job'), le_token('other');
SELECT le_try_become_leader('job'), le_try_become_leader('other');
SELECT le_token('job') AS t1, le_token('other') AS t2 \gset
SELECT :t1 >= 1 AS positive, :t2 > :t1 AS grows;
SELECT token = :t1 AS shown, (SELECT token = :t2 FROM le_leaders WHERE name = 'other') AS in_the_view FROM le_leader('job');
SELECT le_try_become_leader('job'), le_token('job') = :t1 AS same;

-- it begins by the clock, in seconds since 2025, and is exact where numbers are floats
SELECT now() - to_timestamp(:t1 / (1 << 22) + 1735689600) BETWEEN '0' AND '1 day' AS clock, (:t1::float8)::bigint = :t1 AS exact;
SELECT setval('le_token_seq', (2 ^ 53)::bigint);

-- a question draws none, nor does a bid of the leader
SELECT le_try_become_leader('job'), le_become_leader('job'), le_am_leader('job'), le_token('job') IS NULL FROM generate_series(1, 3);
SELECT le_try_become_leader('next'), le_token('next') = :t2 + 1 AS next;
SELECT le_resign_all();

-- nor does a bid that is denied
SELECT le_try_become_leader('job'), le_lease('led', '1 hour') AS t1 \gset
SELECT le_try_become_leader('led'), le_become_leader('led', '1 ms'), le_lease('led', '1 min');
SELECT le_try_become_leader('next'), le_token('next') = :t1 + 1 AS next;
SELECT le_resign_all(), le_resign('led', :t1);

-- a rollback takes none back
SELECT le_try_become_leader('job'), le_token('job') AS t1, le_resign('job') \gset
BEGIN;
SELECT le_try_become_leader_xact('job'), le_token('job') > :t1 AS greater;
SELECT le_token('job') AS t1 \gset
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT le_try_become_leader_xact('job'), le_token('job') > :t1 AS greater;
SELECT le_token('job') AS t1 \gset
ROLLBACK TO a;
SELECT le_try_become_leader_xact('job'), le_token('job') > :t1 AS greater;
COMMIT;

-- strictly growing, over the ends of blocks, drawn by a role without rights, under an exception
-- block
CREATE ROLE regress_le_tokens;
DO $$
DECLARE
	tokens bigint[];
BEGIN
	SET LOCAL leader_election.log_terms = off;
	SET LOCAL client_min_messages = warning;
	SET LOCAL ROLE regress_le_tokens;
	FOR i IN 1 .. 2500 LOOP
		BEGIN
			PERFORM le_try_become_leader_xact('job');
			tokens[i] = le_token('job');
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END LOOP;
	RAISE INFO 'tokens: %, role: %', cardinality(tokens), current_user;
	PERFORM set_config('regress.tokens', tokens::text, false);
END
$$;
SELECT count(*) AS not_growing
FROM (SELECT t, lag(t) OVER (ORDER BY i) AS before
      FROM unnest(current_setting('regress.tokens')::bigint[]) WITH ORDINALITY u(t, i)) AS d
WHERE t <= before;
SELECT current_user = session_user AS role_restored;

SELECT last_value AS last FROM le_token_seq \gset
SELECT max(t) AS t1 FROM unnest(current_setting('regress.tokens')::bigint[]) t \gset
SELECT :last >= :t1 AS last_value_covers_all;
DROP ROLE regress_le_tokens;
SELECT le_try_become_leader('job'), le_token('job') > :t1 AS greater, le_resign('job');
