#!/bin/sh
# A hook of pg_leader follow in a pod: give the pod the label role=leader if it leads, else
# role=standby, and try until the API has taken that.
#
#	POD			the name of the pod, which is also its identity in the election
#	ACCOUNT		the folder of the service account's token

set -eu
account=${ACCOUNT:-/var/run/secrets/kubernetes.io/serviceaccount}
host=$KUBERNETES_SERVICE_HOST
case $host in *:*) host="[$host]" ;; esac
role=standby
[ "${LE_IDENTITY:-}" != "$POD" ] || role=leader

# the token is not for the list of processes, and is renewed from time to time
until printf 'Authorization: Bearer %s\n' "$(cat "$account/token")" |
	curl -sSf -o /dev/null -m 5 --cacert "$account/ca.crt" -X PATCH -H @- \
		-H 'Content-Type: application/merge-patch+json' \
		-d "{\"metadata\": {\"labels\": {\"role\": \"$role\"}}}" \
		"https://$host:$KUBERNETES_SERVICE_PORT/api/v1/namespaces/$(cat "$account/namespace")/pods/$POD"; do
	sleep 1
done
