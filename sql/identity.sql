--
-- Identity: the application's name for the leader, and what each role sees
--
-- editions: C, SQL
--
\getenv abs_srcdir PG_ABS_SRCDIR
\i :abs_srcdir/sql/include/editions.psql
CREATE ROLE regress_le_leader LOGIN;
CREATE ROLE regress_le_member LOGIN IN ROLE regress_le_leader;
CREATE ROLE regress_le_stats LOGIN IN ROLE pg_read_all_stats;
CREATE ROLE regress_le_other LOGIN;

-- the default is application_name at the time of the bid
SET application_name = 'worker 1';
SELECT le_try_become_leader('job');
SET application_name = 'worker 2';
SELECT identity, application_name FROM le_leaders WHERE name = 'job';
SELECT le_try_become_leader('job'), le_try_become_leader('job', identity => 'worker 1');
SELECT identity FROM le_leader('job');

-- a bid under another identity is another client's, on the same connection
SELECT le_try_become_leader('job', identity => 'worker 3');
SELECT le_become_leader('job', '1 h', identity => 'worker 3');
\echo :LAST_ERROR_SQLSTATE
CALL le_campaign('job', '1 h', identity => 'worker 3');
\echo :LAST_ERROR_SQLSTATE
CALL le_campaign('job', '0', identity => 'worker 3');
SELECT le_am_leader('job', identity => 'worker 1') AS one, le_am_leader('job', identity => 'worker 3') AS three,
       le_am_leader('job', identity => 'worker 11') AS eleven, le_am_leader('job', identity => 'worker ') AS shorter, le_am_leader('job') AS anybody;
SELECT le_resign('job', identity => 'worker 3');
SELECT identity, le_am_leader('job') FROM le_leader('job');
SELECT le_am_leader('other', identity => 'worker 1'), le_resign('other', identity => 'worker 1');
SELECT le_am_leader('job', identity => '');
SELECT le_resign('job', identity => '');
SELECT le_resign('job', identity => 'worker 1'), le_try_become_leader('job', identity => 'worker 3');
-- with the token of a lease
SELECT le_lease('lease', '1 h', identity => 'a') AS token \gset
SELECT le_lease('lease', '1 h', identity => 'a', token => :token) = :token AS renewed, le_lease('lease', '1 h', token => :token) = :token AS by_anybody;
SELECT le_am_leader('lease', :token, identity => 'a') AS a, le_am_leader('lease', :token, identity => 'b') AS b, le_am_leader('lease', :token) AS anybody;
SELECT le_lease('lease', '1 h', identity => 'b', token => :token);
CALL le_campaign('lease', '0', identity => 'b', ttl => '1 h', token => :token);
SELECT le_resign('lease', :token, identity => 'b');
SELECT identity, renewals FROM le_leader('lease');
SELECT le_am_leader('lease', :token - 1, identity => 'b') AS earlier, le_resign('lease', :token, identity => 'a');
-- in the transaction that takes it
BEGIN;
SELECT le_lease('lease', '1 h', identity => 'a') AS token \gset
SELECT le_am_leader('lease', :token, identity => 'a') AS a, le_am_leader('lease', :token, identity => 'b') AS b;
ROLLBACK;
SELECT le_resign('job'), le_try_become_leader('job', identity => 'given');
SELECT identity FROM le_leader('job');
SELECT le_resign('job'), le_become_leader('job', '1 s');
SELECT identity FROM le_leader('job');
SELECT le_resign('job'), le_try_become_leader('job', identity => E'two\nlines, "quoted", ünïcödé');
SELECT identity FROM le_leader('job');
SELECT le_resign('job');

-- without one: user@client
\set user :USER
\c - regress_le_leader
SET application_name = '';
SELECT le_try_become_leader('job');
SELECT identity, usename FROM le_leaders;
-- a given one that looks like it is just text
SELECT le_try_become_leader('given', identity => 'user@host');
SELECT le_resign_all();
\c - :user
SET SESSION AUTHORIZATION regress_le_leader;
SET application_name = '';
SELECT le_try_become_leader('job'), le_try_become_leader('given', identity => 'user@host');
SELECT name, identity, usename = :'user' AS of_who_logged_in FROM le_leaders ORDER BY name;
RESET SESSION AUTHORIZATION;

-- what others see of it
SET ROLE regress_le_member;
SELECT name, identity FROM le_leaders ORDER BY name;
SET ROLE regress_le_stats;
SELECT name, identity FROM le_leaders ORDER BY name;
SET ROLE regress_le_other;
SELECT name, identity FROM le_leaders ORDER BY name;
SELECT identity FROM le_leader('job');
RESET ROLE;
SELECT le_resign_all();

-- a name with an @ in it is cut at the last one
CREATE ROLE "regress_le@home" LOGIN;
SET SESSION AUTHORIZATION "regress_le@home";
SELECT le_try_become_leader('job');
RESET SESSION AUTHORIZATION;
SET ROLE regress_le_other;
SELECT identity FROM le_leader('job');
RESET ROLE;

-- the role goes, the term stays
DROP ROLE "regress_le@home";
SELECT name, identity FROM le_leaders;
SET ROLE regress_le_other;
SELECT name, identity FROM le_leaders;
RESET ROLE;
SELECT le_resign_all();

-- a role switched to is not the role that connected
SET SESSION AUTHORIZATION regress_le_member;
SET application_name = '';
SET ROLE regress_le_leader;
SELECT current_user, le_try_become_leader('job');
SELECT identity FROM le_leaders;
SELECT le_resign_all();
RESET SESSION AUTHORIZATION;

-- the address belongs to the role that connected, as in pg_stat_activity: not
-- to the group whose role the session had set
CREATE ROLE regress_le_group;
GRANT regress_le_group TO regress_le_leader, regress_le_other;
SET SESSION AUTHORIZATION regress_le_leader;
SET application_name = '';
SET ROLE regress_le_group;
SELECT le_try_become_leader('job');
RESET SESSION AUTHORIZATION;
SET ROLE regress_le_other;
SELECT identity AS shown_to_fellow_member FROM le_leader('job');
RESET ROLE;
SELECT le_resign_all();

-- under another identity, it is another client on this connection: it does not wait
SELECT le_try_become_leader('job', identity => 'worker 1'), le_try_become_leader('job', identity => 'worker 3');
SELECT le_become_leader('job', '0', identity => 'worker 3'), le_lease('job', '1 s', identity => 'worker 3');
SELECT le_become_leader_xact('job', '0', identity => 'worker 3');
CALL le_campaign('job', '0', identity => 'worker 3');
CALL le_campaign('job', '0', identity => 'worker 3', ttl => '1 s');
CALL le_campaign(ARRAY['job'], '0', identity => 'worker 3', ttl => '1 s');
SELECT le_become_leader('job', '1 h', identity => 'worker 3');
CALL le_campaign('job', '1 h', identity => 'worker 3');
CALL le_campaign('job', '1 h', identity => 'worker 3', ttl => '1 s');
CALL le_campaign(ARRAY['job', 'free'], '1 h', identity => 'worker 3');
CALL le_campaign(ARRAY['free', 'job'], '1 h', identity => 'worker 3');
\echo :LAST_ERROR_SQLSTATE
CALL le_campaign(ARRAY['job', 'other'], '0', identity => 'worker 3') \gset
SELECT name, identity FROM le_leaders ORDER BY name;
SELECT le_resign_all();

DROP ROLE regress_le_leader, regress_le_member, regress_le_stats, regress_le_other, regress_le_group;
