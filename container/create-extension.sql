-- The official image runs this in the database of a new cluster.
CREATE EXTENSION leader_election;
