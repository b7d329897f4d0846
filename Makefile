# where this file is: elsewhere than the build in a VPATH build
here := $(patsubst %/,%,$(dir $(firstword $(MAKEFILE_LIST))))
files = $(sort $(patsubst $(here)/%,%,$(wildcard $(addprefix $(here)/,$(1)))))

MODULE_big = leader_election
OBJS := $(patsubst %.c,%.o,$(call files,src/*/*.c))
PGFILEDESC = "leader_election - at most one of your programs leads"

EXTENSION = leader_election
DATA := $(call files,leader_election--*.sql)

# the control file says which version this is
EXTVERSION := $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(here)/leader_election.control)
PG_CPPFLAGS = -I$(here)/src -DLE_LIBRARY_VERSION='"$(EXTVERSION)"'

# so that a header that has changed builds anew what includes it, see below
PG_CFLAGS = -MMD -MP

# each suite of installcheck starts a server of its own, with test.conf
REGRESS := $(patsubst sql/%.sql,%,$(call files,sql/*.sql))
REGRESS_OPTS = --temp-instance=tmp_check --temp-config=$(here)/test.conf \
	--encoding=UTF8 --no-locale
ISOLATION := $(patsubst specs/%.spec,%,$(call files,specs/*.spec))
ISOLATION_OPTS = --temp-instance=tmp_check_iso --temp-config=$(here)/test.conf \
	--encoding=UTF8 --no-locale
TAP_TESTS = 1
EXTRA_CLEAN = $(wildcard $(foreach suffix,gcda gcno d,src/*/*.$(suffix))) log

# Without a server's headers there are still the targets below, which install
# what they need.
PG_CONFIG ?= pg_config
PGXS := $(wildcard $(shell $(PG_CONFIG) --pgxs 2>/dev/null))
ifneq ($(PGXS),)
include $(PGXS)
ifdef VPATH
$(shell mkdir -p $(dir $(OBJS)))
endif
# Debian has a header that those of its server include in another package
$(OBJS): | check-gssapi
check-gssapi:
	@! printf '#include "%s"\n' postgres.h libpq/libpq-be.h | \
		$(CC) $(CPPFLAGS) -E - 2>&1 >/dev/null | grep -q gssapi || \
		{ echo "the server's headers include gssapi/gssapi.h: install it (Debian: libkrb5-dev)" >&2; exit 1; }
.PHONY: check-gssapi

# the command pg_leader has a folder of its own; COMMAND=no leaves it out
ifneq ($(COMMAND),no)
all: all-bin
install: install-bin
uninstall: uninstall-bin
clean: clean-bin
all-bin install-bin uninstall-bin clean-bin: %-bin:
	@mkdir -p bin
	@$(MAKE) --no-print-directory -C bin -f $(abspath $(here))/bin/Makefile $*
.PHONY: all-bin install-bin uninstall-bin clean-bin
endif
else
all install installcheck clean:
	@echo "$(PG_CONFIG) knows of no PostgreSQL server headers: install them, or set PG_CONFIG" >&2
	@exit 1
endif
-include $(OBJS:.o=.d)

# What make help shows: a line "# make TARGET: ..." for each target.

# make: builds the extension [PG_CONFIG=path]
# make install: installs it, as the user who owns the server's files [DESTDIR=directory]
# make installcheck: runs regress, isolation and TAP with what is installed, not as root [TAP_TESTS=]
# make clean: removes what was built

# make help: shows this
help:
	@sed -n 's/^# \(make[^:]*\): /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

# make test: builds strictly, and runs all suites [FAST=1] [KEEP=1] [JOBS=4] [INSTALL=no] [SUITES="regress tap"] [TESTS="input t/004_limits"]
test:
	@tools/test

# make accept: what make test KEEP=1 has printed becomes what is expected [TESTS="input tokens"]
accept:
	@tools/accept

# make lint: checks the sources' format and order, the scripts, the pictures, and the words and links of documents [PGINDENT=path]
lint:
	@tools/lint

# make matrix: make test on each PostgreSQL, in a Debian of its own [VERSIONS="17 18"] [JOBS=2] [SUITES=...] [TESTS=...] [TARGET="prove SECONDS=600"]
matrix:
	@tools/matrix

# make sanitize: analyzers, sanitizers, valgrind [PARTS="static asan valgrind"] [KEEP=1] [SUITES=...] [TESTS=...]
sanitize:
	@tools/sanitize

# make fuzz: libFuzzer and sqlsmith [FUZZ_TARGETS="names tokens"] [FUZZ_SECONDS=60] [SQLSMITH_SECONDS=600]
fuzz:
	@tools/fuzz

# make test-examples: tests the client libraries and examples, and drives them through faults [LANGUAGES="go rust"] [EXAMPLES="--only go"] [EDITION=sql]
test-examples:
	@tools/test-examples

# make test-patroni: make prove under Patroni, which fails over again and again [SECONDS=240] [SEED=number] [KEEP=directory]
test-patroni:
	@PATRONI=1 tools/prove $(or $(SECONDS),240)

# make model: checks the models, and that each of their mutants fails [LARGE=1] [REFRESH=1]
model:
	@tools/model

# make prove: elects under faults, and judges the clients' histories [SECONDS=3600] [SEED=number] [FAULTS="crash-server cut-link"] [CROWD=300] [ASSERT=1] [MUTANT=name] [EDITION=sql] [LOOP=poll] [ALL=1] [JUDGE=directory]
prove:
	@tools/prove $(SECONDS)

# make prove-mutants: lets make prove find what is wrong in mutants and in published loops [MUTANTS="loops guards-not-awaited"]
prove-mutants:
	@tools/prove-mutants

# make test-container: builds and runs what container/ has, in a Debian of its own [SUITE=bookworm]
test-container:
	@tools/test-container

# make test-kubernetes: checks the manifests of examples/kubernetes, and rolls them out by the API server of Kubernetes
test-kubernetes:
	@tools/test-kubernetes

# make bench: measures the extension beside plain PostgreSQL [BENCH="--only views --rounds 1"] [RECORD=1]
bench:
	@tools/bench

# make bench-peers: measures it beside etcd, ZooKeeper, Consul, Redis and client-go [QUICK=1] [PEERS="session etcd"] [RECORD=1] [KEEP=directory]
bench-peers:
	@tools/bench-peers

# make demo: shows an election with a failover [KEEP=1] [INSTALL=no]
demo:
	@tools/demo

# make docs: builds the documents as a site in site/, and checks it in a browser [CHROMIUM=path]
docs:
	@tools/docs

# Where the project is published: nowhere yet.  This is the only place; make dist fills it in.
URL :=

# make dist: the archive for PGXN, verified, in dist/ [URL=https://...]
dist:
	@URL='$(URL)' tools/dist

# make tle: writes the SQL edition as an extension for pg_tle, in dist/ [SCHEMA=name]
tle:
	@tools/tle

# make deb: Debian packages, tried in clean systems, in dist/ [MAJORS="15 17"] [SUITE=trixie] [INSTALLCHECK=1]
deb:
	@tools/deb

.PHONY: all install installcheck clean help test accept lint matrix sanitize fuzz test-examples \
	test-patroni model prove prove-mutants test-container test-kubernetes bench bench-peers demo docs dist tle deb
