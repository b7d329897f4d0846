#!/bin/bash
# The worker of the acceptance test: worker.sh WAY ELECTION IDENTITY.  It becomes pg_leader, which
# runs this script again, as the job.
set -eu

say_error()
{
	while read -r line; do
		echo "$(date +%s.%3N) $identity error $line"
	done
}

say()
{
	echo "$(date +%s.%3N) $LE_IDENTITY $1 $LE_TOKEN"
}

if [ "$1" = job ]; then
	exec 2>/dev/null # bash says that its pause was terminated
	trap 'say ousted; exit 0' TERM
	say elected
	while :; do
		[ -z "${LE_HEARTBEAT_FD:-}" ] || echo >&"$LE_HEARTBEAT_FD"
		sleep 0.1
	done
fi
case $1 in
	session) set -- "$2" "$3" ;;
	heartbeat) set -- "$2" "$3" --heartbeat=5 ;;
	lease) set -- "$2" "$3" --ttl=3 ;;
esac
election=$1 identity=$2
shift 2
exec pg_leader run -d "$DATABASE_URL" --identity="$identity" --restart "$@" "$election" -- "$0" job 2> >(say_error)
