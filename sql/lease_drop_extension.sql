--
-- DROP EXTENSION ends all leases, when it is committed
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/advisory_of_leases.psql
SELECT le_lease('job', '1 hour', identity => 'me') AS t1, le_lease('other', '1 hour', identity => 'me') AS t2 \gset

-- rolled back: nothing has happened
BEGIN;
DROP EXTENSION leader_election;
ROLLBACK;
SELECT le_am_leader('job', :t1), le_renew('job', :t1), le_lease('job', '1 hour');
BEGIN;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
SELECT count(*) FROM le_leaders;
SELECT le_am_leader('job', :t1);
SAVEPOINT a;
SELECT le_lease('job', '1 hour');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO a;
ROLLBACK;
SELECT name, le_renew(name, token) FROM le_leaders ORDER BY name;
SELECT le_am_leader('job', :t1), le_lease('job', '1 hour') IS NULL AS denied, le_try_become_leader('job');

-- with a lease that the transaction has changed, or has just taken
BEGIN;
SELECT le_renew('other', :t2, '2 hours'), le_lease('third', '1 hour') AS t3 \gset
DROP EXTENSION leader_election;
ROLLBACK;
SELECT name, ttl FROM le_leaders ORDER BY name;
SELECT name, ttl FROM le_leases WHERE ttl > '0' ORDER BY name;

-- dropped, and created anew: all are over, all is free, tokens go on
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
SELECT count(*) FROM le_leaders;
SELECT count(*) FROM le_leases;
SELECT le_am_leader('job', :t1), le_renew('job', :t1), le_renew('job', :t1, '1 s'), le_lease('job', '1 hour', identity => 'new', token => :t1) AS t4 \gset
SELECT :t4 > :t1 AND :t4 > :t2 AS greater, le_am_leader('job', :t1), le_am_leader('job', :t4), le_am_leader('other', :t2);
SELECT name, identity FROM le_leaders ORDER BY name;
SELECT le_try_become_leader('other', identity => 's');
SELECT name, scope FROM le_leaders ORDER BY name;
SELECT le_resign_all();

-- in one transaction
BEGIN;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
COMMIT;
SELECT count(*) FROM le_leaders;
SELECT le_am_leader('job', :t4), le_renew('job', :t4);
SELECT le_lease('job', '1 hour') > :t4 AS greater;

-- by the very transaction that took the lease
BEGIN;
SELECT le_lease('other', '1 hour') AS t5 \gset
DROP EXTENSION leader_election;
COMMIT;
CREATE EXTENSION leader_election;
SELECT count(*) FROM le_leaders;
SELECT le_am_leader('other', :t5), le_lease('other', '1 hour') > :t5 AS greater;

-- another schema is no other table
CREATE SCHEMA regress_le;
SELECT le_lease('moved', '1 hour') AS t6 \gset
ALTER EXTENSION leader_election SET SCHEMA regress_le;
SELECT regress_le.le_am_leader('moved', :t6), regress_le.le_renew('moved', :t6, '2 hours');
SELECT ttl FROM regress_le.le_leader('moved');
SELECT ttl FROM regress_le.le_leases WHERE name = 'moved';
BEGIN;
SELECT regress_le.le_lease('in the transaction', '1 hour') > 0 AS taken;
ALTER EXTENSION leader_election SET SCHEMA public;
SELECT le_resign('moved', :t6);
COMMIT;
SELECT name, le_resign(name, token) FROM le_leaders ORDER BY name;
DROP SCHEMA regress_le;

-- created, and a lease taken, in one transaction
DROP EXTENSION leader_election;
BEGIN;
CREATE EXTENSION leader_election;
SELECT le_lease('job', '1 hour');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
CREATE EXTENSION leader_election;
SELECT le_lease('job', '1 hour') AS t7 \gset
SELECT le_resign('job', :t7);
SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL;
TABLE advisory;
