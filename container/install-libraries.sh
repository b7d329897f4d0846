#!/bin/sh
# Install what pg_leader and label-leader need at run time.

set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
# the name of a library's package can end with that of a transition
apt-get -q -y install --no-install-recommends ca-certificates curl libpq5 'libmicrohttpd12*'
rm -rf /var/lib/apt/lists/*
