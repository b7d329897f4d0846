--
-- A lease belongs to the role that took it, and that role's members
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql
CREATE ROLE regress_le_owner;
CREATE ROLE regress_le_member IN ROLE regress_le_owner;
CREATE ROLE regress_le_nephew IN ROLE regress_le_member;
CREATE ROLE regress_le_noinherit NOINHERIT IN ROLE regress_le_owner;
CREATE ROLE regress_le_nobody;
SET ROLE regress_le_owner;
SELECT le_lease('job', '1 hour', identity => 'me') AS t1 \gset

-- no other role may, by any call, with any ttl
SET ROLE regress_le_nobody;
SELECT le_renew('job', :t1);
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY terse
SELECT le_renew('job', :t1, '1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT le_lease('job', '1 s', identity => 'me', token => :t1);
\echo :LAST_ERROR_SQLSTATE
SELECT le_am_leader('job', :t1);
\echo :LAST_ERROR_SQLSTATE
SELECT le_resign('job', :t1);
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY default
-- but to be wrong is no error
SELECT le_renew('job', 0), le_am_leader('job', 0), le_lease('job', '1 hour', identity => 'me', token => 0);
-- it sees what all roles see
SELECT name, scope, identity, token = :t1 AS token, pid, usename, application_name, client_addr, candidates, ttl, renewals
FROM le_leaders WHERE scope = 'lease';
SELECT identity, usename FROM le_leaders WHERE name = 'job';

-- membership goes one way
SET ROLE regress_le_member;
SELECT le_lease('of a member', '1 hour') AS t2 \gset
SET ROLE regress_le_owner;
SELECT le_renew('of a member', :t2);
\echo :LAST_ERROR_SQLSTATE

-- a member may do all, and so may a member of a member
SET ROLE regress_le_member;
SELECT le_am_leader('job', :t1), le_renew('job', :t1), le_lease('job', '1 hour', token => :t1) = :t1 AS lease;
SELECT le_renew('job', :t1, '10 min');
SELECT ttl FROM le_leader('job');
SET ROLE regress_le_nephew;
SELECT le_am_leader('job', :t1), le_renew('job', :t1), le_lease('job', '3 hours', token => :t1) = :t1 AS lease;
SELECT ttl, usename FROM le_leaders WHERE name = 'job';
-- a member that does not inherit has to set the role
SET ROLE regress_le_noinherit;
SELECT le_renew('job', :t1);
\echo :LAST_ERROR_SQLSTATE
SET ROLE regress_le_nephew;
SELECT le_resign('job', :t1);
RESET ROLE;
SELECT count(*) FROM le_leader('job');

-- in the transaction that has taken it, too
BEGIN;
SET LOCAL ROLE regress_le_owner;
SELECT le_lease('job', '1 hour') AS t3 \gset
SET LOCAL ROLE regress_le_member;
SELECT le_am_leader('job', :t3), le_renew('job', :t3);
SET LOCAL ROLE regress_le_nobody;
SAVEPOINT a;
SELECT le_am_leader('job', :t3);
ROLLBACK TO a;
SELECT le_renew('job', :t3);
ROLLBACK TO a;
SELECT le_resign('job', :t3);
ROLLBACK;

-- a made-up identity shows another's user name only
SET ROLE regress_le_owner;
SET application_name = '';
SELECT le_lease('made up', '1 hour') AS t4 \gset
RESET application_name;
SELECT identity LIKE '%@%' AS mine FROM le_leader('made up');
SET ROLE regress_le_nobody;
SELECT identity LIKE '%@%' AS others FROM le_leader('made up');
RESET ROLE;

-- also when the role is gone
DROP ROLE regress_le_owner, regress_le_member, regress_le_nephew, regress_le_noinherit;
SET ROLE regress_le_nobody;
SELECT identity LIKE '%@%' AS others FROM le_leader('made up');
RESET ROLE;
SELECT le_depose('made up'), le_depose('of a member');

-- an administrator may take the functions away, one by one
REVOKE EXECUTE ON FUNCTION le_lease(text, interval, bigint, text) FROM PUBLIC;
SET ROLE regress_le_nobody;
SELECT le_lease('job', '1 hour');
SELECT le_renew('job', 0);
RESET ROLE;
GRANT EXECUTE ON FUNCTION le_lease(text, interval, bigint, text) TO PUBLIC;
DROP ROLE regress_le_nobody;
