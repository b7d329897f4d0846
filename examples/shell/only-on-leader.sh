#!/bin/bash
# Run a command only if this host leads: for cron on several hosts, with psql only.
#
#   only-on-leader.sh ELECTION COMMAND [ARGUMENT...]        (the connection: DATABASE_URL, or PGHOST and so on)
#
# Exits 0 without running it when another host leads; else with the command's status. Leads in session scope, by one
# psql that is kept open while the command runs, so it goes straight to PostgreSQL or through PgBouncer in session mode.
# When leadership is lost, the command is killed, with the processes it has started (its process group): SIGTERM, and
# SIGKILL two seconds later. It may read the token from the environment, LE_TOKEN.
# While the command runs, the script gives heartbeats: a host that is suspended, or cut off by a proxy that stands still,
# loses the leadership after 15 s. What to do about a command that hangs, only its caller knows: see timeout(1).
# A host that asks when the first has finished leads as well: let a short job go on for longer than the hosts' clocks
# differ, as in: only-on-leader.sh nightly sh -c 'vacuumdb --all; sleep 30'
set -u -m # -m: the command gets a process group of its own
[ $# -ge 2 ] || { echo "usage: $0 ELECTION COMMAND [ARGUMENT...]" >&2; exit 64; }
election=$1 identity="$(hostname):$$"
shift

coproc PSQL { exec psql -XqAt -v ON_ERROR_STOP=1 -v e="$election" -v i="$identity" ${DATABASE_URL:+"$DATABASE_URL"}; }
exec 3<&"${PSQL[0]}" 4>&"${PSQL[1]}" # copies, which the watch may use, too
eval "exec ${PSQL[0]}<&- ${PSQL[1]}>&-"
trap '' PIPE
kill_command() {
	kill -TERM -- "-$command"
	for _ in {1..20}; do kill -0 -- "-$command" && sleep 0.1 || return 0; done
	kill -KILL -- "-$command"
} 2>/dev/null

echo "SELECT CASE WHEN le_try_become_leader(:'e', identity => :'i', heartbeat => '15 s') THEN le_token(:'e') ELSE 0 END;" >&4
read -r -t 30 -u 3 token || { echo "$0: no answer from the server" >&2; exit 69; }
[ "$token" != 0 ] || exit 0

(trap - PIPE && LE_TOKEN=$token exec "$@" 3<&- 4>&-) &
command=$!
watch() { # give a heartbeat each second; if the script itself is killed, the watch goes on
	while kill -0 "$command" 2>/dev/null; do
		echo "SELECT le_heartbeat(:'e');" >&4 2>/dev/null
		answer=
		read -r -t 5 -u 3 answer
		[ "$answer" = t ] || { echo "$0: leadership of \"$election\" is lost" >&2; kill_command; return; }
		read -r -t 1 -u 3 answer # a pause, which ends early when psql does
	done
}
watch &
watch=$!
trap kill_command TERM INT HUP
wait "$command"
status=$?
while kill -0 "$command" 2>/dev/null; do wait "$command"; status=$?; done # wait was interrupted by a signal
{ kill "$watch"; wait "$watch"; } 2>/dev/null # bash may say in between that the watch was terminated
echo "SELECT le_resign(:'e', identity => :'i');" >&4 2>/dev/null
exec 4>&- # psql ends
exit $status
