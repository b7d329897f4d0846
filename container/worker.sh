#!/bin/bash
# A worker that shows handovers, with psql only: it waits until it is elected, leads for some
# seconds, resigns, and begins again.  SIGTERM ends it, and its term.
#
#	ELECTION=demo	the name of the election
#	IDENTITY=name	the worker's; the host's name unless given
#	HOLD=5			how many seconds it leads
#	PGHOST ...		the server, as libpq takes it

set -u

# The pause stands for the worker's job.
campaign()
{
	exec psql -XqAt -v ON_ERROR_STOP=1 -v election="${ELECTION:-demo}" \
		-v identity="${IDENTITY:-$(hostname)}" -v hold="${HOLD:-5}" <<-'END'
			CALL le_campaign(:'election', identity => :'identity') \gset
			\echo :identity leads with token :token
			SELECT FROM pg_sleep(:hold);
			SELECT le_resign(:'election') AS resigned \gset
			\echo :identity has resigned
		END
}

# SIGINT has psql cancel what it waits for and end, once it has begun to handle it.
stop()
{
	trap '' TERM INT
	while kill -INT "$psql" 2>/dev/null; do
		sleep 0.1
	done
	echo "${IDENTITY:-$(hostname)} has stopped"
	exit 0
}

psql=''
trap stop TERM INT
while true; do
	campaign &
	psql=$!
	# a server that cannot be reached now may be reached later
	wait "$psql" || sleep 1
done
