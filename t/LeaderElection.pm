# What the TAP tests share: a server with the extension, and what they want to know of it.
# Its clients are those of Client.pm, which comes along.
#
# The tests are numbered by subject:
#	0xx	sessions, databases, limits
#	1xx	leases
#	2xx	waiting, campaigns, handing over
#	3xx	what is told: the log, observers, announcements, monitoring
#	4xx	faults: crashes, standbys, failover, lost connections, a lack of memory or timers
#	5xx	administration and security
#	6xx	the SQL edition
#	7xx	the command pg_leader
#	9xx	documents
#
# needs: perl libipc-run-perl
package LeaderElection;

use strict;
use warnings;

use Exporter 'import';
use Test::More;
use Time::HiRes;
use Client;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = (@Client::EXPORT, qw(
  new_server create_extension
  leads_in_view no_trace wait_until_waiting log_from log_since term_lines
  shared_size all_consistent
  processor_time sleep_past wait_until_sleeping wait_event lease_lines
  wait_for_event wait_until_asleep wait_for_candidate no_candidates version_of lease_take collect_or_cancel post_until_it_hangs lead_unread
  pause_process crash_backend kill_server greatest_token build_test_library
  sql_literal some
));

# PostgreSQL::Test::Cluster bails out where a server does not start, or a command fails, and prove
# then runs no other file.  Here, only this file ends; tools/suites.sh repeats these lines at its
# end.  The latest of the servers' logs has the cause.
sub end_this_file
{
	my ($builder, $reason) = @_;
	my ($log) = sort { -M $a <=> -M $b } glob $PostgreSQL::Test::Utils::test_logfile =~ s/regress_log_(.*)$/$1_*.log/r;
	my @lines = $log ? split /\n/, slurp_file($log) : ();

	$builder->diag("$0: $_") foreach $reason, splice @lines, @lines > 3 ? -3 : 0;
	exit 255;
}

{
	no warnings 'redefine';
	*Test::Builder::BAIL_OUT = \&end_this_file;
}

# A server that runs; %params: conf, allows_streaming, extension (0: none)
sub new_server
{
	my ($name, %params) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(
		allows_streaming => $params{allows_streaming},
		extra => [ '--locale=C.UTF-8', '--encoding=UTF8' ]);
	$node->append_conf('postgresql.conf', 'leader_election.max_ttl = 1d');
	# init leaves 10 where it allows streaming, too few while clients that have gone still end
	$node->append_conf('postgresql.conf', 'max_connections = 50') if $params{allows_streaming};
	$node->append_conf('postgresql.conf', $params{conf}) if $params{conf};
	$node->start;
	create_extension($node)
	  unless defined $params{extension} && !$params{extension};
	return $node;
}

sub create_extension
{
	my ($node, $database) = @_;
	$node->safe_psql($database // 'postgres',
		'CREATE EXTENSION leader_election');
}

# A library of the tests' own, for LOAD: its source is in this directory
sub build_test_library
{
	my ($source, @options) = @_;
	my $library = PostgreSQL::Test::Utils::tempdir() . "/$source.so";
	my $pg_config = $ENV{PG_CONFIG} // 'pg_config';

	chomp(my $include = `$pg_config --includedir-server`);
	system_or_bail('cc', '-shared', '-fPIC', "-I$include", @options, '-o', $library,
		"$FindBin::RealBin/$source.c");
	return $library;
}

# Dynamic shared memory that the session's backend has mapped, in bytes: all of the
# registry, because a look at every entry attaches every segment
sub shared_size
{
	my ($client) = @_;
	my %segments;

	ask($client, 'SELECT count(*) FROM _le_registry_terms()');
	open my $maps, '<', "/proc/$client->{pid}/maps" or return;
	while (<$maps>)
	{
		next unless m{^([0-9a-f]+)-([0-9a-f]+) .*(/dev/shm/PostgreSQL\.\d+)};
		$segments{$3} = hex($2) - hex($1);
	}
	my $sum = 0;
	$sum += $_ foreach values %segments;
	return $sum;
}

# The leader as the view shows it, like "alice/session", or empty
sub leads_in_view
{
	my ($node, $name, $database) = @_;
	return $node->safe_psql($database // 'postgres',
		"SELECT identity || '/' || scope FROM le_leaders WHERE name = '$name'"
	);
}

sub wait_until_waiting
{
	my ($node, $pid, $database) = @_;
	return $node->poll_query_until($database // 'postgres',
		"SELECT count(*) = 1 FROM pg_locks WHERE pid = $pid AND NOT granted AND locktype = 'advisory'"
	) || die "process $pid does not wait";
}

# Wait until these clients are in a wait of the extension's own, or have an answer
sub wait_for_event
{
	my ($node, $watcher, $what, @clients) = @_;
	my $event = wait_event($node, $what);
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;
	foreach my $client (@clients)
	{
		until ($client->{ready}
			|| ask($watcher, "SELECT wait_event = '$event' FROM pg_stat_activity WHERE pid = $client->{pid} AND state = 'active'") eq 't')
		{
			die "process $client->{pid} does not wait: $client->{error}" if $client->{closed} || monotonic() > $patience;
			hear(0.005, $client);
		}
	}
	return;
}

# Wait until a candidate or observer sleeps, with either edition
sub wait_until_asleep
{
	my ($watcher, $client) = @_;
	ask_until($watcher, "SELECT state = 'active' AND wait_event_type IN ('Extension', 'Timeout') FROM pg_stat_activity WHERE pid = $client->{pid}")
	  or die "process $client->{pid} does not wait: $client->{error}";
	return;
}

# Wait until the client is shown as a candidate, or has an answer, and return it
sub wait_for_candidate
{
	my ($watcher, $client) = @_;
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;
	until ($client->{ready} || ask($watcher, "SELECT count(*) FROM le_candidates WHERE pid = $client->{pid}") > 0)
	{
		die "process $client->{pid} is no candidate" if $client->{closed} || monotonic() > $patience;
		hear(0.005, $client);
	}
	return $client;
}

# No candidate is shown, counted or on record
sub no_candidates
{
	my ($watcher, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is( ask($watcher, q{SELECT (SELECT count(*) FROM le_candidates), (SELECT sum(candidates) FROM pg_stat_leader_election), (SELECT count(*) FROM _le_registry_candidates(false))}),
		'0|0|0', $test);
	return;
}

# The version of the election's present state, for le_observe
sub version_of
{
	my ($client, $name) = @_;
	return ask($client, "CALL le_observe('$name')") =~ /^(\d+)\|/ ? $1 : die "no version: $client->{error}";
}

# Take a lease, and return its token
sub lease_take
{
	my ($client, $name, $ttl, $identity) = @_;
	my $token = ask($client, "SELECT le_lease('$name', '$ttl'" . (defined $identity ? ", identity => '$identity')" : ')'));
	die "lease not taken: $client->{messages}" unless $token =~ /^\d+$/;
	return $token;
}

# Wait for the answer for ten seconds, and then cancel the statement; undef if it has none
sub collect_or_cancel
{
	my ($client, $watcher) = @_;
	my $answer = collect($client, 10);
	unless (defined $answer)
	{
		ask($watcher, "SELECT pg_cancel_backend($client->{pid})");
		collect($client);
	}
	return $answer;
}

# Send this until it hangs in its commit, for want of a standby: the processes of the
# server hear of a changed setting one after the other
sub post_until_it_hangs
{
	my ($client, $sql) = @_;
	foreach my $attempt (1 .. 50)
	{
		post($client, $sql);
		last unless defined collect($client, 0.2);
		Time::HiRes::sleep(0.1);
	}
	return;
}

# Have the client lead by this bid, then sleep, and read nothing any more: the server's last
# message to it, with the statement as its context, is too long for the socket
sub lead_unread
{
	my ($watcher, $client, $bid) = @_;
	ask($client, $bid);
	post($client, q{DO $$ BEGIN EXECUTE 'SELECT pg_sleep(600) /*' || repeat('x', 20000000) || '*/'; END $$});
	ask_until($watcher, "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $client->{pid}") or die 'it does not sleep';
	return;
}

# Nothing of this process is left in the lock table or in the registry
sub no_trace
{
	my ($node, $pid, $test) = @_;
	is( $node->safe_psql(
			'postgres', qq{
SELECT (SELECT count(*) FROM pg_locks WHERE pid = $pid AND locktype = 'advisory'),
	(SELECT count(*) FROM le_candidates WHERE pid = $pid),
	(SELECT count(*) FROM _le_registry_candidates(false) WHERE pid = $pid),
	(SELECT count(*) FROM _le_registry_terms() WHERE pid = $pid)}),
		'0|0|0|0', $test);
	return;
}

# Every term on record has its lock, and no election's lock is without a term
sub all_consistent
{
	my ($node, $test, $database) = @_;
	is( $node->safe_psql(
			$database // 'postgres', q{
WITH l AS (SELECT * FROM _le_locks WHERE granted),
	t AS (SELECT * FROM _le_registry_terms() WHERE token IS NOT NULL)
SELECT (SELECT count(*) FROM t WHERE NOT EXISTS
		(SELECT FROM _le_locks g WHERE g.granted AND (g.key, g.pid) = (t.key, t.pid))),
	(SELECT count(*) FROM l WHERE NOT EXISTS
		(SELECT FROM t WHERE (l.key, l.pid) = (t.key, t.pid)))}
		),
		'0|0', $test);
	return;
}

# Where the server log ends now
sub log_from
{
	my ($node) = @_;
	return -s $node->logfile;
}

sub log_since
{
	my ($node, $offset) = @_;
	return slurp_file($node->logfile, $offset);
}

# The log's lines of terms, from "election" on, without the leader of an ended
# term and its duration: see 301_server_log.pl
sub term_lines
{
	my ($node, $offset) = @_;
	return
	  map { /LOG:  leader_election: (election .*?)(?:, ".*" led for \d\d+:\d\d:\d\d\.\d{3})?$/ ? $1 : () }
	  split /\n/, log_since($node, $offset);
}

# Seconds of processor time that a process has taken
sub processor_time
{
	my ($pid) = @_;
	my $stat = slurp_file("/proc/$pid/stat");
	my @fields = split ' ', $stat =~ s/.*\) //sr;
	return ($fields[11] + $fields[12]) / 100;
}

# Sleep until the clock by which leases run has passed the time
sub sleep_past
{
	my ($time) = @_;
	while ((my $left = $time - monotonic()) >= 0)
	{
		Time::HiRes::sleep($left + 0.001);
	}
	return;
}

# How a wait of the extension's own is called in pg_stat_activity
sub wait_event
{
	my ($node, $what) = @_;
	return $node->safe_psql('postgres', 'SHOW server_version_num') < 170000 ? 'Extension' : "LeaderElection$what";
}

# Wait until the process has the election's lock and sleeps until the lease expires.  From
# the time on that is given, the lease may have expired: then the process need not sleep.
sub wait_until_sleeping
{
	my ($node, $pid, $over) = @_;
	my $event = wait_event($node, 'Lease');
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;

	until ($node->safe_psql('postgres',
			"SELECT count(*) FROM pg_stat_activity a JOIN pg_locks l USING (pid)
			WHERE pid = $pid AND wait_event = '$event' AND l.locktype = 'advisory' AND l.objsubid = 19525 AND l.granted"))
	{
		return if defined $over && monotonic() > $over;
		die "process $pid does not sleep on a lease" if monotonic() > $patience;
	}
	return;
}

# The log's lines of how many leases still run after a restart
sub lease_lines
{
	my ($node, $offset) = @_;
	return
	  map { /LOG:  leader_election: (\d+ leases still running .*)$/ ? $1 : () }
	  split /\n/, log_since($node, $offset);
}

# SIGSTOP to a process, and wait until it has
sub pause_process
{
	my ($pid) = @_;
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;

	kill 'STOP', $pid;
	until (slurp_file("/proc/$pid/stat") =~ /\) T /)
	{
		die "process $pid does not stop" if monotonic() > $patience;
		Time::HiRes::sleep(0.001);
	}
	return $pid;
}

# SIGKILL to one backend, and wait until the server has started all others anew
sub crash_backend
{
	my ($node, $pid) = @_;
	my $offset = log_from($node);

	kill 'KILL', $pid;
	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $offset);
	$node->poll_query_until('postgres', undef, '');
	return;
}

# SIGKILL to all processes of the server
sub kill_server
{
	my ($node) = @_;
	my $postmaster = $node->{_pid};
	my @pids;

	# so that it starts no more of them
	kill 'STOP', $postmaster;
	@pids = (split(' ', `ps -o pid= --ppid $postmaster`), $postmaster);
	kill 'KILL', @pids;
	$node->kill9;
	# and until they have been reaped, as a server that starts checks for
	# others
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;
	Time::HiRes::sleep(0.01) while monotonic() < $patience && grep { kill 0, $_ } @pids;
	return;
}

# The greatest token of all terms that have begun, by the server's log
sub greatest_token
{
	my ($node) = @_;
	my $greatest = 0;

	open my $log, '<', $node->logfile or die $!;
	while (<$log>)
	{
		$greatest = $1 if /: term (\d+) began: / && $1 > $greatest;
	}
	return $greatest;
}

# A string literal, with no byte of it as it is but letters, digits and spaces
sub sql_literal
{
	my ($string) = @_;
	$string =~ s/([^A-Za-z0-9 ])/sprintf '\\x%02x', ord $1/ge;
	return "E'$string'";
}

# One of these, at random
sub some { return $_[ int rand @_ ]; }

1;
