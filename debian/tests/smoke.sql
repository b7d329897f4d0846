CREATE EXTENSION leader_election;
SELECT le_try_become_leader('smoke', identity => 'test') AS leads, le_token('smoke') AS token \gset
SELECT count(*) AS shown FROM le_leaders WHERE name = 'smoke' AND identity = 'test' \gset
SELECT le_resign('smoke') AS resigned \gset
SELECT 1 / (:'leads' AND :token > 0 AND :shown = 1 AND :'resigned')::int AS "1 if all of it is right";
