--
-- le_renew_many: many leases in one statement
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql
\i :abs_srcdir/sql/include/outcome.psql
CREATE ROLE regress_le_renewer;
CREATE ROLE regress_le_other;
GRANT regress_le_renewer TO CURRENT_USER;
CREATE VIEW runs AS SELECT name, renewals FROM le_leaders ORDER BY name COLLATE "C";
GRANT SELECT ON runs TO PUBLIC;

SET ROLE regress_le_renewer;
SELECT le_lease('a', '1 hour') AS a, le_lease('b', '1 hour') AS b, le_lease('c', '1 hour') AS c \gset
SELECT le_renew_many(ARRAY['a', 'b', 'c'], ARRAY[:a, :b, :c]);
TABLE runs;
-- the answers are in the order of the arguments: over, another one's token, none, twice
SELECT le_resign('b', :b);
SELECT le_renew_many(ARRAY['b', 'a', 'c', 'never led', 'a'], ARRAY[:b, :a, :a, 1, :a]);
TABLE runs;
-- any text of parameters without types is an array, and any bounds are
SELECT le_renew_many('{a,c}', '{1,2}'), le_renew_many('{}', '{}'), le_renew_many('[7:8]={a,c}', format('[3:4]={%s,%s}', :a, :c)::bigint[]);
PREPARE renew AS SELECT le_renew_many($1, $2);
EXECUTE renew (ARRAY['c'], ARRAY[:c]);
-- le_renew is not ambiguous beside it
PREPARE renew_one AS SELECT le_renew($1, $2);
EXECUTE renew_one ('c', :c);

TABLE runs;
-- a lease that this transaction has taken does not run yet
BEGIN;
SET LOCAL client_min_messages = error;
SELECT le_lease('d', '1 hour') AS d \gset
SELECT le_renew_many(ARRAY['d'], ARRAY[:d]), le_renew('d', :d);
ROLLBACK;
SELECT le_renew_many(ARRAY['d'], ARRAY[:d]);

-- what it refuses: nothing is renewed
SELECT outcome('SELECT le_renew_many(NULL, ARRAY[1::bigint])'), outcome($$SELECT le_renew_many(ARRAY['a'], NULL)$$);
SELECT outcome(format($$SELECT le_renew_many(ARRAY['a', NULL], ARRAY[%s, 1])$$, :a)), outcome(format($$SELECT le_renew_many(ARRAY['a', 'b'], ARRAY[%s, NULL])$$, :a));
SELECT outcome(format($$SELECT le_renew_many(ARRAY['a', 'b'], ARRAY[%s])$$, :a)), outcome(format($$SELECT le_renew_many(ARRAY['a'], ARRAY[%s, 1])$$, :a));
SELECT outcome(format($$SELECT le_renew_many(ARRAY[['a', 'b']], ARRAY[%s, 1])$$, :a)), outcome(format($$SELECT le_renew_many(ARRAY['a', 'b'], ARRAY[[%s, 1]])$$, :a));
SELECT outcome(format($$SELECT le_renew_many(ARRAY['', 'a'], ARRAY[1, %s])$$, :a)), outcome(format($$SELECT le_renew_many(ARRAY['{}', 'a'], ARRAY[1, %s])$$, :a)), outcome(format($$SELECT le_renew_many(ARRAY[repeat('x', 256), 'a'], ARRAY[1, %s])$$, :a));
TABLE runs;
-- nor does another role renew
SET ROLE regress_le_other;
SELECT outcome(format($$SELECT le_renew_many(ARRAY['a'], ARRAY[%s])$$, :a));
RESET ROLE;
TABLE runs;

-- a cancellation takes effect between two renewals
SET ROLE regress_le_renewer;
SELECT le_lease('canceled', '1 hour') AS t \gset
CREATE TEMPORARY TABLE arguments AS SELECT array_fill('canceled'::text, ARRAY[3000000]) AS names, array_fill(:t::bigint, ARRAY[3000000]) AS tokens;
SET statement_timeout = '300ms';
SELECT le_renew_many(names, tokens) FROM arguments;
RESET statement_timeout;
SELECT renewals < 3000000 AS canceled FROM runs WHERE name = 'canceled';
DROP TABLE arguments;

-- many
SELECT count(le_lease('many ' || i, '1 hour')) FROM generate_series(1, 1000) i;
SELECT count(*) FILTER (WHERE r) AS renewed, count(*) FROM (SELECT array_agg(name ORDER BY name), array_agg(token ORDER BY name) FROM le_leaders WHERE name LIKE 'many %') l (names, tokens), unnest(le_renew_many(names, tokens)) r;
SELECT min(renewals), max(renewals), count(*) FROM le_leaders WHERE name LIKE 'many %';

SELECT count(le_resign(name, token)) FROM le_leaders;
RESET ROLE;
DROP VIEW runs;
DROP FUNCTION outcome;
DROP ROLE regress_le_renewer, regress_le_other;
TABLE on_record;
