--
-- What each role sees of an identity that was not given: of a bid that was denied, and of a leader
-- that has set the role of a group
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS leader_election;
RESET client_min_messages;
CREATE ROLE regress_le_leader LOGIN;
CREATE ROLE regress_le_member LOGIN IN ROLE regress_le_leader;
CREATE ROLE regress_le_stats LOGIN IN ROLE pg_read_all_stats;
CREATE ROLE regress_le_other LOGIN;

-- a bid under another identity is counted as denied
SELECT pg_stat_leader_election_reset();
SELECT le_try_become_leader('job', identity => 'worker 1'), le_try_become_leader('job', identity => 'worker 3');
SELECT le_become_leader('job', '0', identity => 'worker 3'), le_lease('job', '1 s', identity => 'worker 3');
CALL le_campaign('job', '0', identity => 'worker 3');
CALL le_campaign('job', '0', identity => 'worker 3', ttl => '1 s');
CALL le_campaign('job', '1 h', identity => 'worker 3', ttl => '1 s');
SELECT denied FROM pg_stat_leader_election WHERE name = 'job';
SELECT le_resign_all();

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

-- the address belongs to the role that connected, as in pg_stat_activity: not
-- to the group whose role the session had set
CREATE ROLE regress_le_group;
GRANT regress_le_group TO regress_le_leader, regress_le_other;
SELECT le_lease('denied in a group', '1 h') AS token \gset
SET SESSION AUTHORIZATION regress_le_leader;
SET ROLE regress_le_group;
SELECT le_try_become_leader('denied in a group');
RESET SESSION AUTHORIZATION;
SET ROLE regress_le_other;
SELECT last_denied_identity AS shown_to_fellow_member FROM le_leaders WHERE name = 'denied in a group';
RESET ROLE;
SELECT le_resign('denied in a group', :token);

DROP ROLE regress_le_leader, regress_le_member, regress_le_stats, regress_le_other, regress_le_group;
