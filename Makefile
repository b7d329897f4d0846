MODULE_big = leader_election
OBJS = \
	src/campaign.o \
	src/election_key.o \
	src/functions.o \
	src/identity.o \
	src/leader_election.o \
	src/liveness.o \
	src/registry.o \
	src/term.o \
	src/token.o \
	src/views.o
PGFILEDESC = "leader_election - exactly one of your programs leads"

EXTENSION = leader_election
DATA = leader_election--1.0.0.sql

PG_CONFIG = pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)
