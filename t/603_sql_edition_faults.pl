# The SQL edition: crashes, restarts, failover, restores, copies, and a clock that is set.
#
# Wrong outcomes: a token that is not greater than all before; a lease of which the server has lost
# the last renewals ends early; a server that was promoted grants a lease while one runs that it has
# not received; a copy has the leases of its source; a clock that was set back keeps an election
# vacant.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use SqlEdition;

my %as_app = (user => 'app');

my $library = build_test_library('set_clock', '-D_GNU_SOURCE');
my $clock = PostgreSQL::Test::Utils::tempdir() . '/clock';
append_to_file($clock, pack 'q', 0);

sub set_clock
{
	my ($seconds) = @_;
	open my $file, '+<', $clock or die $!;
	syswrite $file, pack 'q', $seconds * 1e9;
	close $file;
	return;
}

sub start_with_clock
{
	my ($node) = @_;
	local %ENV = (%ENV, LD_PRELOAD => $library, CLOCK_OFFSET => $clock);
	$node->start;
	return;
}

my $node = sql_edition_server('sql_edition_faults', allows_streaming => 1, conf => 'restart_after_crash = on');
$node->stop;
start_with_clock($node);
my $admin = session($node);
ask($admin, q{UPDATE le.le_settings SET max_ttl = '3 s'});
my $greatest = 0;

# A token that is greater than all before
sub is_new
{
	my ($token, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($token || 0, '>', $greatest, $test);
	$greatest = $token if ($token || 0) > $greatest;
	return $token;
}

sub again
{
	end_session($admin) unless $admin->{closed};
	$admin = session($node);
	return session($node, %as_app);
}

subtest 'the server is killed' => sub {
	my ($one, $two) = map { session($node, %as_app) } 1 .. 2;
	is_new(ask($one, q{SELECT le_lease('kept', '3 s')}), 'a lease');
	my $kept = $greatest;
	is(ask($one, q{SELECT le_try_become_leader('session')}), 't', 'a session');
	is_new(ask($one, q{SELECT le_token('session')}), 'its token');
	ask($one, q{SET synchronous_commit = off}, "SELECT le_renew('kept', $kept)");
	# tokens that were drawn and never committed: what the sequence has logged of them is not on disk
	ask($two, 'BEGIN', q{SELECT count(le_lease('drawn ' || i, '3 s')) FROM generate_series(1, 100) i});
	is(ask($two, q{SELECT max(token) FROM le_leaders}) > $greatest, 1, 'tokens of an open transaction');
	$greatest = ask($two, q{SELECT max(token) FROM le_leaders});
	kill_server($node);
	start_with_clock($node);
	kill_client($_) foreach $one, $two, $admin;
	$one = again();
	my $from = monotonic();
	is(ask($one, q{SELECT le_lease('kept', '3 s')}), '', 'the lease runs');
	is(ask($one, "SELECT le_renew('kept', $kept)"), 't', 'and is renewed');
	is(ask($one, q{SELECT le_am_leader('session'), le_try_become_leader('session')}), 'f|t', 'the session does not lead');
	is_new(ask($one, q{SELECT le_token('session')}), 'the next token');
	ok(ask_until($one, q{SELECT le_lease('kept', '3 s') IS NOT NULL}), 'the lease ends');
	cmp_ok(monotonic() - $from, '>', 2.9, 'after its whole ttl');
	is_new(ask($one, q{SELECT token FROM le_leader('kept')}), 'the next token');

	# one backend is killed: the postmaster stays
	is_new(ask($one, q{SELECT le_lease('observed', '3 s')}), 'a lease');
	my $observed = $greatest;
	ask($one, q{SELECT le_try_become_leader('backend')});
	is_new(ask($one, q{SELECT le_token('backend')}), 'a term');
	$two = session($node, %as_app);
	my $offset = log_from($node);
	kill 'KILL', $one->{pid};
	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $offset);
	$node->poll_query_until('postgres', undef, '');
	kill_client($one, $two, $admin);
	$one = again();
	ask($admin, q{UPDATE le.le_elections SET renewed_at = clock_timestamp() - interval '1 hour' WHERE name = 'observed'});
	like(ask($one, q{CALL le_observe('observed')}), qr/^\d+\|$observed\|/, 'a lease runs anew for an observer');
	is(ask($one, q{SELECT le_try_become_leader('backend')}), 't', 'elected after a crash of another backend');
	is_new(ask($one, q{SELECT le_token('backend')}), 'the next token');
	end_session($one);

	# a plain restart does not keep leases from being granted
	$one = session($node, %as_app);
	is_new(ask($one, q{SELECT le_lease('resigned', '2 s')}), 'a lease');
	ok(ask_until($admin, q{SELECT clock_timestamp() > to_timestamp(last_value / 1000000.0) + interval '2 s' FROM le.le_seen_seq}), 'the last start is not new');
	$node->stop('fast');
	start_with_clock($node);
	kill_client($one, $admin);
	$one = again();
	ask($admin, q{UPDATE le.le_elections SET renewed_at = clock_timestamp() - interval '1 hour' WHERE name = 'resigned'});
	is(ask($one, "SELECT le_resign('resigned', $greatest)"), 't', 'it runs anew, and is resigned');
	is_new(ask($one, q{SELECT le_lease('after a restart', '3 s')}), 'a lease at once after a restart');
	end_session($one);
};

subtest 'lost renewals' => sub {
	my $one = session($node, %as_app);
	is_new(ask($one, q{SELECT le_lease('renewed', '3 s')}), 'a lease');
	# as if all renewals since then had been lost, and the server had started after its end
	$node->stop('fast');
	start_with_clock($node);
	kill_client($one);
	$one = again();
	ask($admin, q{UPDATE le.le_elections SET renewed_at = clock_timestamp() - interval '1 hour' WHERE name = 'renewed'});
	is(ask($one, "SELECT le_renew('renewed', $greatest)"), 't', 'runs anew after the start, for its holder');
	ask($admin, q{UPDATE le.le_elections SET renewed_at = clock_timestamp() - interval '1 hour' WHERE name = 'renewed'});
	is(ask($one, q{SELECT le_lease('renewed', '3 s')}), '', 'and for others');
	ok(ask_until($one, q{SELECT le_lease('renewed', '3 s') IS NOT NULL}), 'until its ttl is over');
	# really lost, of a lease that was extended before: a longer ttl is durable
	ask($admin, q{ALTER SYSTEM SET wal_writer_delay = '10 s'}, q{SELECT pg_reload_conf()});
	is_new(ask($one, q{SELECT le_lease('lost', '300 ms')}), 'a short lease');
	ask($one, q{SET synchronous_commit = off}, "SELECT le_lease('lost', '3 s', $greatest)");
	is(ask($one, "SELECT count(*) FROM generate_series(1, 3) i WHERE le_renew('lost', $greatest)"), '3', 'renewals');
	kill_server($node);
	start_with_clock($node);
	kill_client($one, $admin);
	$one = again();
	note 'renewals that the crash has left: ' . ask($one, q{SELECT renewals FROM le_leader('lost')});
	is(ask($admin, q{SELECT lasts FROM le.le_elections WHERE name = 'lost'}), '00:00:03', 'the longer ttl is there');
	is(ask($one, q{SELECT le_lease('lost', '3 s')}), '', 'and no other lease begins');
	is(ask($one, "SELECT le_renew('lost', $greatest), le_resign('lost', $greatest)"), 't|t', 'it goes on');
	# the end of a lease is durable, though nothing else writes what has not been flushed
	is_new(ask($one, q{SELECT le_lease('resigned', '3 s')}), 'a lease');
	is_new(ask($one, q{SELECT le_lease('deposed', '3 s')}), 'another');
	my $writer = ask($admin, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
	pause_process($writer);
	is(ask($one, 'SET synchronous_commit = off', q{SELECT le_depose('deposed')}), 't', 'deposed');
	is(ask($one, q{SELECT le_resign(name, token) FROM le_leader('resigned')}), 't', 'resigned');
	kill_server($node);
	start_with_clock($node);
	kill_client($one, $admin);
	$one = again();
	is(ask($one, q{SELECT le_lease('first', '3 s') > 0, count(name) FROM le_leaders WHERE name IN ('resigned', 'deposed')}), 't|0', 'neither lease runs again');
	ask($admin, q{ALTER SYSTEM RESET wal_writer_delay}, q{SELECT pg_reload_conf()});
	end_session($one);
};

subtest 'failover' => sub {
	my $one = session($node, %as_app);
	is_new(ask($one, q{SELECT le_lease('received', '3 s')}), 'a lease');
	my $received = $greatest;
	$node->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('sql_edition_standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	$node->wait_for_catchup($standby, 'replay', $node->lsn('flush'));
	my $there = session($standby, %as_app);
	fails($there, $_, '25006', $_) foreach q{SELECT le_try_become_leader('x')}, q{SELECT le_lease('x', '1 s')}, q{CALL le_campaign('x')},
	  q{SELECT le_try_become_leader_xact('x')}, q{SELECT le_heartbeat('x')}, "SELECT le_renew('received', $received)", q{SELECT le_assert_leader('received', 1)};
	is(ask($there, q{SELECT le_am_leader('x'), le_token('x'), count(*) FROM le_leader('x')}), 'f||0', 'reads on a standby');
	# the standby receives no more
	$standby->append_conf('postgresql.conf', q{primary_conninfo = ''});
	$standby->reload;
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_replication');
	ask($one, "SELECT le_renew('received', $received)");
	is_new(ask($one, q{SELECT le_lease('lost', '3 s')}), 'a lease that the standby does not have');
	is_new(ask($one, q{SELECT max(le_lease('lost ' || i, '3 s')) FROM generate_series(1, 200) i}), 'and more');
	kill_server($node);
	my $from = monotonic();
	$standby->promote;
	fails($there, q{SELECT le_lease('lost', '3 s')}, 'LE003', 'no lease is granted at first');
	like($there->{messages}, qr/HINT:  Retry in \d+ ms/, 'a hint tells how long');
	fails($there, q{SELECT le_lease('lost', '3 s')}, 'LE003', 'not by a second call');
	is(ask($there, "SELECT le_renew('received', $received)"), 't', 'one that was received runs');
	is(ask($there, q{SELECT le_try_become_leader('session')}), 't', 'session scope does not wait');
	is_new(ask($there, q{SELECT le_token('session')}), 'with a greater token than any that was lost');
	is_new(ask($there, q{CALL le_campaign('lost', '1 min', ttl => '3 s')}), 'a candidate waits for the lease');
	cmp_ok(monotonic() - $from, '>', 3, 'for max_ttl');
	end_session($there);
	$standby->stop('immediate');
	# the former primary goes on, as if the other had never been
	start_with_clock($node);
	kill_client($one, $admin);
	$greatest = 0;
	end_session(again());
};

subtest 'dump, restore, copy' => sub {
	my $one = again();
	ask($admin, q{UPDATE le.le_settings SET max_ttl = '1 min'});
	is_new(ask($one, q{SELECT le_lease('source', '1 min')}), 'a lease');
	my $source = $greatest;
	is_new(ask($one, q{SELECT max(le_lease('more ' || i, '1 min')) FROM generate_series(1, 10) i}), 'and more');
	my $dump = $node->basedir . '/dump.sql';
	$node->command_ok([ 'pg_dump', '-n', 'le', '-f', $dump, '-d', $node->connstr('postgres') . ' user=le_own' ], 'pg_dump by the owner');
	$node->safe_psql('postgres', 'CREATE DATABASE restored; ALTER DATABASE restored OWNER TO le_own; ALTER DATABASE restored SET search_path = public, le');
	$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored') . ' user=le_own', '-f', $dump ], 'restored');
	my $there = session($node, %as_app, db => 'restored');
	is(ask($there, q{SELECT count(*) FROM le_leaders}), '0', 'no lease of the source is shown');
	is(ask($there, "SELECT le_am_leader('source', $source)"), 'f', 'nor runs');
	is(ask($there, "SELECT le_renew('source', $source)"), 'f', 'nor is renewed');
	fails($there, "SELECT le_assert_leader('source', $source)", 'LE001', 'nor guards');
	fails($there, q{SELECT le_lease('source', '1 s')}, 'LE003', 'leases are not granted at first');
	is(ask($there, q{SELECT le_try_become_leader('source')}), 't', 'session scope does not wait');
	cmp_ok(ask($there, q{SELECT le_token('source')}), '>', $greatest, 'tokens are greater');
	end_session($there);
	is(ask($one, "SELECT le_renew('source', $source)"), 't', 'the source goes on');

	end_session($one, $admin);
	$node->safe_psql('restored', 'CREATE DATABASE copied TEMPLATE postgres');
	$node->safe_psql('restored', 'ALTER DATABASE copied SET search_path = public, le');
	$there = session($node, %as_app, db => 'copied');
	is(ask($there, q{SELECT count(*) FROM le_leaders}), '0', 'no lease of the source is shown in a copy');
	is(ask($there, 'BEGIN READ ONLY', "SELECT le_am_leader('source', $source)"), 'f', 'nor runs');
	like(ask($there, q{CALL le_observe('source', timeout => '0')}), qr/^\d+\|\|\|$/, 'nor is observed');
	is(ask($there, 'COMMIT', "SELECT le_renew('source', $source)"), 'f', 'nor is renewed, by the first call');
	foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
	{
		ask($there, "BEGIN ISOLATION LEVEL $level");
		fails($there, "SELECT le_assert_leader('source', $source)", 'LE001', "nor guards at $level");
		ask($there, 'ROLLBACK');
	}
	is(ask($there, "SELECT le_try_become_leader('source')"), 't', 'another is elected');
	end_session($there);
	end_session(again());
};

subtest 'the clock is set' => sub {
	my ($one, $two) = (again(), session($node, %as_app));
	ask($admin, q{UPDATE le.le_settings SET max_ttl = '3 s'});
	is_new(ask($one, q{SELECT le_lease('clock', '2 s')}), 'a lease');
	my $token = $greatest;
	my $from = monotonic();
	set_clock(-3600);
	is(ask($two, q{SELECT le_lease('clock', '2 s')}), '', 'set back by an hour: the lease runs');
	is(ask($one, "SELECT le_renew('clock', $token)"), 't', 'and is renewed');
	ok(ask_until($two, q{SELECT le_lease('clock', '2 s') IS NOT NULL}, 't', 20), 'and ends soon after its ttl');
	cmp_ok(monotonic() - $from, '<', 6, 'not after an hour');
	is_new(ask($two, q{SELECT token FROM le_leader('clock')}), 'the next token');
	$token = $greatest;
	# without a renewal
	$from = monotonic();
	set_clock(-7200);
	ok(ask_until($one, q{SELECT le_lease('clock', '2 s') IS NOT NULL}, 't', 20), 'set back again, without a renewal');
	cmp_ok(monotonic() - $from, '<', 6, 'not after an hour');
	is_new(ask($one, q{SELECT token FROM le_leader('clock')}), 'the next token');
	$token = $greatest;
	# forward: the lease ends early, and the token fences its holder off
	set_clock(0);
	my $next = ask($two, q{SELECT le_lease('clock', '2 s')});
	is_new($next, 'set forward: the lease ends at once, another is granted');
	is(ask($one, "SELECT le_renew('clock', $token)"), 'f', 'the former holder is told at its next renewal');
	fails($one, "SELECT le_assert_leader('clock', $token)", 'LE001', 'and cannot write');
	# behind at a crash: tokens of which nothing is on disk
	set_clock(-7200);
	my $last = q{SELECT le_token('open 100')};
	pause_process(ask($admin, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'}));
	ask($two, 'BEGIN', q{SELECT le_try_become_leader_xact('open ' || i) FROM generate_series(1, 100) i});
	is_new(ask($two, $last), 'the token of a leader in an open transaction');
	kill_server($node);
	start_with_clock($node);
	kill_client($one, $two, $admin);
	$one = again();
	ask($one, 'BEGIN', q{SELECT le_try_become_leader_xact('open 100')});
	is_new(ask($one, $last), 'the next one after a crash');
	end_session($one);
};

done_testing();
