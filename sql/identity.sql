--
-- Identity: the application's name for the leader, and what each role sees
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
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
SELECT denied FROM pg_stat_leader_election WHERE name = 'job' \gset
SELECT le_try_become_leader('job', identity => 'worker 3');
SELECT le_become_leader('job', '1 h', identity => 'worker 3');
\echo :LAST_ERROR_SQLSTATE
SELECT le_become_leader('job', '0', identity => 'worker 3');
SELECT le_lease('job', '1 s', identity => 'worker 3');
CALL le_campaign('job', '1 h', identity => 'worker 3');
\echo :LAST_ERROR_SQLSTATE
CALL le_campaign('job', '1 h', identity => 'worker 3', ttl => '1 s');
CALL le_campaign('job', '0', identity => 'worker 3');
CALL le_campaign('job', '0', identity => 'worker 3', ttl => '1 s');
SELECT le_am_leader('job', identity => 'worker 1') AS one, le_am_leader('job', identity => 'worker 3') AS three,
       le_am_leader('job', identity => 'worker 11') AS eleven, le_am_leader('job', identity => 'worker ') AS shorter, le_am_leader('job') AS anybody;
SELECT le_resign('job', identity => 'worker 3');
SELECT le_resign('job', identity => 'worker 3', successor => 'worker 1');
SELECT identity, le_am_leader('job') FROM le_leader('job');
SELECT le_am_leader('other', identity => 'worker 1'), le_resign('other', identity => 'worker 1');
SELECT le_am_leader('job', identity => '');
SELECT le_resign('job', identity => '');
SELECT le_resign('job', identity => 'worker 1'), le_try_become_leader('job', identity => 'worker 3');
SELECT denied - :denied AS denied FROM pg_stat_leader_election WHERE name = 'job';
-- by bare key
SELECT le_try_become_leader(42, identity => 'a'), le_try_become_leader(42, identity => 'a');
SELECT le_try_become_leader(42, identity => 'b');
SELECT le_become_leader(42, identity => 'b');
SELECT le_resign(42);
-- with the token of a lease
SELECT le_lease('lease', '1 h', identity => 'a') AS token \gset
SELECT le_lease('lease', '1 h', identity => 'a', token => :token) = :token AS renewed, le_lease('lease', '1 h', token => :token) = :token AS by_anybody;
SELECT le_am_leader('lease', :token, identity => 'a') AS a, le_am_leader('lease', :token, identity => 'b') AS b, le_am_leader('lease', :token) AS anybody;
SELECT le_lease('lease', '1 h', identity => 'b', token => :token);
CALL le_campaign('lease', '0', identity => 'b', ttl => '1 h', token => :token);
SELECT le_resign('lease', :token, identity => 'b');
SELECT le_resign('lease', :token, successor => 'c', identity => 'b');
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
-- a role switched to is not the role that connected
SELECT le_resign_all();
\c - regress_le_member
SET application_name = '';
SET ROLE regress_le_leader;
SELECT current_user, le_try_become_leader('job');
SELECT identity, usename FROM le_leaders;
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
SELECT identity FROM _le_registry_terms() WHERE name = 'job';
RESET ROLE;
SELECT le_resign_all();

-- the same of a bid that was denied
SELECT le_lease('denied', '1 h') AS token \gset
SET SESSION AUTHORIZATION regress_le_leader;
SET application_name = '';
SELECT le_try_become_leader('denied');
RESET SESSION AUTHORIZATION;
CREATE TEMP VIEW denied AS SELECT l.last_denied_identity AS "of le_leaders", s.last_denied_identity AS "of the statistics"
FROM le_leaders l JOIN pg_stat_leader_election s USING (name) WHERE name = 'denied';
GRANT SELECT ON denied TO PUBLIC;
SET ROLE regress_le_member;
TABLE denied;
SET ROLE regress_le_stats;
TABLE denied;
SET ROLE regress_le_other;
TABLE denied;
-- one that was given is shown, even if it is the same
SET SESSION AUTHORIZATION regress_le_leader;
SELECT le_try_become_leader('denied', identity => 'regress_le_leader@local');
RESET SESSION AUTHORIZATION;
SET ROLE regress_le_other;
TABLE denied;
-- and one that was not given is hidden again
SET SESSION AUTHORIZATION regress_le_leader;
SET application_name = '';
SELECT le_try_become_leader('denied');
RESET SESSION AUTHORIZATION;
SET ROLE regress_le_other;
TABLE denied;
RESET ROLE;
SELECT le_resign('denied', :token);
DROP VIEW denied;

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

-- the address belongs to the role that connected, as in pg_stat_activity: not
-- to the group whose role the session had set
CREATE ROLE regress_le_group;
GRANT regress_le_group TO regress_le_leader, regress_le_other;
SELECT le_lease('denied in a group', '1 h') AS token \gset
SET SESSION AUTHORIZATION regress_le_leader;
SET ROLE regress_le_group;
SELECT le_try_become_leader('job'), le_try_become_leader('denied in a group');
RESET SESSION AUTHORIZATION;
SET ROLE regress_le_other;
SELECT identity AS shown_to_fellow_member FROM le_leader('job');
SELECT last_denied_identity AS shown_to_fellow_member FROM le_leaders WHERE name = 'denied in a group';
RESET ROLE;
SELECT le_resign('denied in a group', :token);
SELECT le_resign_all();

DROP ROLE regress_le_leader, regress_le_member, regress_le_stats, regress_le_other, regress_le_group;
