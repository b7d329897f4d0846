#!/bin/sh
# Build the extension for the server of this image, and install it below a folder, and below
# another one as an image volume of CloudNativePG has it; and pg_leader below a third one:
#
#	build-image.sh SOURCES FOLDER VOLUME COMMAND
#
# The Dockerfile runs this in a stage of its own, of which only these folders are kept.  Needs root,
# and PG_MAJOR as the official image sets it.

set -eu
sources=$1
folder=$2
volume=$3
command=$4
pg_config=/usr/lib/postgresql/${PG_MAJOR:?}/bin/pg_config

export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q -y install --no-install-recommends \
	gcc libc6-dev libkrb5-dev libmicrohttpd-dev make pkg-config "postgresql-server-dev-$PG_MAJOR"

# what another build has left may be for another server
make -C "$sources" PG_CONFIG="$pg_config" with_llvm=no COMMAND=no clean
make -C "$sources" PG_CONFIG="$pg_config" with_llvm=no COMMAND=no DESTDIR="$folder" all install
make -C "$sources" PG_CONFIG="$pg_config" with_llvm=no COMMAND=no DESTDIR="$volume" \
	datadir=/share pkglibdir=/lib install
install -D -m 644 -t "$volume/licenses/leader_election" "$sources/LICENSE"
make -C "$sources/bin" PG_CONFIG="$pg_config" MICROHTTPD=yes all
install -D -s -m 755 -t "$command/usr/bin" "$sources/bin/pg_leader"
