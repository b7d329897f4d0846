MODULE_big = leader_election
OBJS = \
	src/announce.o \
	src/arguments.o \
	src/campaign.o \
	src/campaign_many.o \
	src/candidate.o \
	src/clock.o \
	src/declaration.o \
	src/depose.o \
	src/drop_notice.o \
	src/durability.o \
	src/election_key.o \
	src/election_lock.o \
	src/end_reason.o \
	src/extension_relation.o \
	src/follow.o \
	src/forget.o \
	src/functions.o \
	src/guard.o \
	src/handover.o \
	src/identity.o \
	src/leader_election.o \
	src/lease.o \
	src/lease_grant.o \
	src/lease_load.o \
	src/lease_sweep.o \
	src/lease_table.o \
	src/liveness.o \
	src/not_leader.o \
	src/origin.o \
	src/other_client.o \
	src/procedures.o \
	src/proclaim.o \
	src/registry.o \
	src/registry_candidates.o \
	src/registry_databases.o \
	src/registry_elections.o \
	src/registry_entry.o \
	src/registry_eviction.o \
	src/registry_leases.o \
	src/registry_news.o \
	src/registry_stats.o \
	src/registry_terms.o \
	src/resign.o \
	src/room.o \
	src/safely.o \
	src/settings.o \
	src/succession.o \
	src/term.o \
	src/term_log.o \
	src/token.o \
	src/vacancy.o \
	src/views.o \
	src/watch.o \
	src/xact_list.o
PGFILEDESC = "leader_election - exactly one of your programs leads"

EXTENSION = leader_election
DATA = $(wildcard leader_election--*.sql)

# the control file says which version this is
EXTVERSION := $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" leader_election.control)
PG_CPPFLAGS = -DLE_LIBRARY_VERSION='"$(EXTVERSION)"'

# make installcheck: each suite starts a server of its own, with test.conf
REGRESS := $(sort $(patsubst sql/%.sql,%,$(wildcard sql/*.sql)))
REGRESS_OPTS = --temp-instance=tmp_check --temp-config=test.conf \
	--encoding=UTF8 --no-locale
ISOLATION := $(sort $(patsubst specs/%.spec,%,$(wildcard specs/*.spec)))
ISOLATION_OPTS = --temp-instance=tmp_check_iso --temp-config=test.conf \
	--encoding=UTF8 --no-locale
TAP_TESTS = 1
EXTRA_CLEAN = $(wildcard src/*.gcda src/*.gcno) log

# Without a server's headers there is still make test, demo and lint; the
# first two install what they need.
PG_CONFIG ?= pg_config
PGXS := $(wildcard $(shell $(PG_CONFIG) --pgxs 2>/dev/null))
ifneq ($(PGXS),)
include $(PGXS)
else
all install installcheck clean:
	@echo "$(PG_CONFIG) knows of no PostgreSQL server headers: install them, or set PG_CONFIG" >&2
	@exit 1
endif

# make test [SUITES="regress isolation tap"] [TESTS="name ..."]
test:
	@tools/test

# make matrix [VERSIONS="17 18"] [JOBS=2]
matrix:
	@tools/matrix

# make demo [KEEP=1]
demo:
	@tools/demo

# make bench [BENCH="--rounds 3"]
bench:
	@tools/bench

# make test-patroni [ROUNDS=2]
test-patroni:
	@tools/test-patroni

# make test-examples [EXAMPLES="--only go"]
test-examples:
	@tools/test-examples

# make fuzz [FUZZ_TARGETS="names tokens"] [FUZZ_SECONDS=60] [SQLSMITH_SECONDS=600]
fuzz:
	@tools/fuzz

# make sanitize [PARTS="static asan valgrind"] [SUITES=...] [TESTS=...]
sanitize:
	@tools/sanitize

# make lint [PGINDENT=path]
lint:
	@tools/lint

# dist/leader_election-VERSION.zip, for PGXN
dist:
	@tools/dist

# make deb [MAJORS="15 17"] [SUITE=trixie] [INSTALLCHECK=1]
deb:
	@tools/deb

.PHONY: all install installcheck clean test matrix test-patroni test-examples demo bench fuzz \
	sanitize lint dist deb
