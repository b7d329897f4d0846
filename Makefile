# where this file is: elsewhere than the build in a VPATH build
here := $(patsubst %/,%,$(dir $(firstword $(MAKEFILE_LIST))))
files = $(sort $(patsubst $(here)/%,%,$(wildcard $(addprefix $(here)/,$(1)))))

MODULE_big = leader_election
OBJS := $(patsubst %.c,%.o,$(call files,src/*.c src/*/*.c))
PGFILEDESC = "leader_election - exactly one of your programs leads"

EXTENSION = leader_election
DATA := $(call files,leader_election--*.sql)

# the control file says which version this is
EXTVERSION := $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(here)/leader_election.control)
PG_CPPFLAGS = -I$(here)/src -DLE_LIBRARY_VERSION='"$(EXTVERSION)"'

# so that a header that has changed builds anew what includes it, see below
PG_CFLAGS = -MMD -MP

# make installcheck: each suite starts a server of its own, with test.conf
REGRESS := $(patsubst sql/%.sql,%,$(call files,sql/*.sql))
REGRESS_OPTS = --temp-instance=tmp_check --temp-config=$(here)/test.conf \
	--encoding=UTF8 --no-locale
ISOLATION := $(patsubst specs/%.spec,%,$(call files,specs/*.spec))
ISOLATION_OPTS = --temp-instance=tmp_check_iso --temp-config=$(here)/test.conf \
	--encoding=UTF8 --no-locale
TAP_TESTS = 1
EXTRA_CLEAN = $(foreach suffix,d gcda gcno,$(OBJS:.o=.$(suffix))) log

# Without a server's headers there is still make test, demo and lint; the
# first two install what they need.
PG_CONFIG ?= pg_config
PGXS := $(wildcard $(shell $(PG_CONFIG) --pgxs 2>/dev/null))
ifneq ($(PGXS),)
include $(PGXS)
ifdef VPATH
$(shell mkdir -p $(dir $(OBJS)))
endif
else
all install installcheck clean:
	@echo "$(PG_CONFIG) knows of no PostgreSQL server headers: install them, or set PG_CONFIG" >&2
	@exit 1
endif
-include $(OBJS:.o=.d)

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
