# What the TAP tests share: a server with the extension, and sessions whose
# statements can be left running and whose clients can be killed.
package LeaderElection;

use strict;
use warnings;

use Exporter 'import';
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use IPC::Run;
use POSIX ();
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  new_server create_extension
  session post collect ask stderr_of backend_pid kill_client end_session
  leads_in_view no_trace wait_until_waiting log_from log_since term_lines
  shared_size all_consistent
  monotonic sleep_past wait_until_sleeping wait_event lease_lines
  wire wire_send wire_hear wire_answer wire_ask wire_fails wire_elect wire_until wire_heard wire_ended wire_drop
  kill_server greatest_token
  pooler_program new_pooler start_pooler stop_pooler pooled_session
);

# A server that runs; %params: conf, allows_streaming, extension (0: none)
sub new_server
{
	my ($name, %params) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(
		allows_streaming => $params{allows_streaming},
		extra => [ '--locale=C.UTF-8', '--encoding=UTF8' ]);
	$node->append_conf('postgresql.conf', 'leader_election.max_ttl = 1d');
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

# A client; %params: db, connstr (added to the server's), app
sub session
{
	my ($node, %params) = @_;
	my @extra;
	my $connstr = $params{connstr} // '';

	$connstr .= " application_name='$params{app}'" if defined $params{app};
	push @extra, '-d',
	  $node->connstr($params{db} // 'postgres') . ' ' . $connstr
	  if $connstr ne '';
	my $psql = $node->background_psql($params{db} // 'postgres',
		on_error_stop => 0, extra_params => \@extra);
	$psql->{posted} = 0;
	$psql->{collected} = 0;
	return $psql;
}

# Send statements, without waiting for what they return
sub post
{
	my ($psql, $sql) = @_;
	my $banner = 'answered ' . ++$psql->{posted};

	$psql->{stdin} .= "$sql\n;\n\\echo '$banner'\n\\warn '$banner'\n";
	eval { $psql->{run}->pump_nb; };
	return;
}

# Wait for what the first statements posted return; undef when the client has
# ended without an answer
sub collect
{
	my ($psql) = @_;
	my $banner = 'answered ' . ++$psql->{collected};
	my $output;

	until ($psql->{stdout} =~ /\Q$banner\E\n/
		&& $psql->{stderr} =~ /\Q$banner\E\n/)
	{
		die "session timed out" if $psql->{timeout}->is_expired;
		my $pumped = eval { $psql->{run}->pump; };
		die $@ if $@ && $@ =~ /timeout/;
		last unless $pumped;
	}
	$psql->{errors} = $psql->{stderr};
	if ($psql->{stdout} =~ s/\A(.*?)\n?\Q$banner\E\n//s)
	{
		$output = $1;
		$psql->{stderr} =~ s/\A(.*?)\Q$banner\E\n//s;
		$psql->{errors} = $1;
	}
	return $output;
}

sub ask
{
	my ($psql, $sql) = @_;
	post($psql, $sql);
	return collect($psql);
}

# What the last answer said on stderr
sub stderr_of
{
	my ($psql) = @_;
	return $psql->{errors};
}

sub backend_pid
{
	my ($psql) = @_;
	return $psql->{backend} //= ask($psql, 'SELECT pg_backend_pid()');
}

# SIGKILL to the client; end_session is still to be called
sub kill_client
{
	my ($psql) = @_;
	kill 9, $psql->{run}{KIDS}[0]{PID};
	return;
}

# Whatever became of the client
sub end_session
{
	my (@psqls) = @_;
	foreach my $psql (@psqls)
	{
		$psql->{stdin} .= "\\q\n" if eval { $psql->{run}->pumpable };
		eval { $psql->{run}->finish; };
	}
	return;
}

# Dynamic shared memory that the session's backend has mapped, in bytes: all of the
# registry, because a look at every entry attaches every segment
sub shared_size
{
	my ($psql) = @_;
	my $pid = backend_pid($psql);
	my %segments;

	ask($psql, 'SELECT count(*) FROM le_registry_terms()');
	open my $maps, '<', "/proc/$pid/maps" or return;
	while (<$maps>)
	{
		next unless m{^([0-9a-f]+)-([0-9a-f]+) .*(/dev/shm/PostgreSQL\.\d+)};
		$segments{$3} = hex($2) - hex($1);
	}
	my $sum = 0;
	$sum += $_ foreach values %segments;
	return $sum;
}

# Who leads, as the view has it, like "alice/session"; empty: nobody
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

# Nothing of this process is left in the lock table or in the registry
sub no_trace
{
	my ($node, $pid, $test) = @_;
	is( $node->safe_psql(
			'postgres', qq{
SELECT (SELECT count(*) FROM pg_locks WHERE pid = $pid AND locktype = 'advisory'),
	(SELECT count(*) FROM le_candidates WHERE pid = $pid),
	(SELECT count(*) FROM le_registry_candidates(false) WHERE pid = $pid),
	(SELECT count(*) FROM le_registry_terms() WHERE pid = $pid)}),
		'0|0|0|0', $test);
	return;
}

# Every term on record has its lock, and no lock of an election by name is
# without a term
sub all_consistent
{
	my ($node, $test, $database) = @_;
	is( $node->safe_psql(
			$database // 'postgres', q{
WITH l AS (SELECT * FROM le_locks WHERE granted AND lock_class = 19525),
	t AS (SELECT * FROM le_registry_terms() WHERE token IS NOT NULL)
SELECT (SELECT count(*) FROM t WHERE NOT EXISTS
		(SELECT FROM le_locks g WHERE g.granted AND (g.lock_class, g.key, g.pid) = (t.lock_class, t.key, t.pid))),
	(SELECT count(*) FROM l WHERE NOT EXISTS
		(SELECT FROM t WHERE (l.lock_class, l.key, l.pid) = (t.lock_class, t.key, t.pid)))}
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

# The log's lines of terms, from "election" on
sub term_lines
{
	my ($node, $offset) = @_;
	return
	  map { /LOG:  leader_election: (election .*)$/ ? $1 : () }
	  split /\n/, log_since($node, $offset);
}

# Seconds on the clock by which leases run
sub monotonic
{
	return clock_gettime(CLOCK_MONOTONIC);
}

# Sleep until that clock has passed the time
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

# The process has the election's lock, and sleeps until its lease is over
sub wait_until_sleeping
{
	my ($node, $pid, $database) = @_;
	my $event = wait_event($node, 'Lease');
	return $node->poll_query_until($database // 'postgres',
		"SELECT wait_event = '$event' FROM pg_stat_activity a JOIN pg_locks l USING (pid)
		WHERE pid = $pid AND l.locktype = 'advisory' AND l.objsubid = 19525 AND l.granted"
	) || die "process $pid does not sleep on a lease";
}

# The log's lines of how many leases run on after a restart
sub lease_lines
{
	my ($node, $offset) = @_;
	return
	  map { /LOG:  leader_election: (\d+ leases? runs? on .*)$/ ? $1 : () }
	  split /\n/, log_since($node, $offset);
}

# A client that speaks the protocol itself: many of them cost little, and what the
# server sends unasked is heard when it comes; %params: db, user, app, options
#
# {pid}; {rows} and {error}, {code} of the last answer; {notices}; {heard}, the
# notifications with their {time}; {ready}: nothing is outstanding; {closed}.
sub wire
{
	my ($node, %params) = @_;
	my $path = $node->host . '/.s.PGSQL.' . $node->port;
	my %startup = (
		user => $params{user} // scalar getpwuid($>),
		database => $params{db} // 'postgres');
	$startup{application_name} = $params{app} if defined $params{app};
	$startup{options} = $params{options} if defined $params{options};

	my $message = pack('N', 3 << 16) . join('', map { "$_\0" } %startup) . "\0";
	my $client = { buffer => '', heard => [], notices => '' };
	$client->{socket} = IO::Socket::UNIX->new(Peer => $path) or die "connect: $!";
	wire_forget($client);
	syswrite $client->{socket}, pack('N', 4 + length $message) . $message;
	wire_answer($client);
	die "cannot connect: $client->{error}" if $client->{closed};
	return $client;
}

sub wire_forget
{
	my ($client) = @_;
	@$client{qw(ready rows error code)} = (0, [], '', '');
	return;
}

sub wire_send
{
	my ($client, $sql) = @_;
	wire_forget($client);
	local $SIG{PIPE} = 'IGNORE';
	syswrite $client->{socket}, 'Q' . pack('N', 5 + length $sql) . "$sql\0";
	return;
}

sub wire_message
{
	my ($client, $type, $body) = @_;
	if ($type eq 'D')
	{
		my ($fields, @values) = unpack 'n', $body;
		my $at = 2;
		foreach (1 .. $fields)
		{
			my $length = unpack 'l>', substr($body, $at, 4);
			push @values, $length < 0 ? '' : substr($body, $at + 4, $length);
			$at += 4 + ($length < 0 ? 0 : $length);
		}
		push @{ $client->{rows} }, join '|', @values;
	}
	elsif ($type eq 'E' || $type eq 'N')
	{
		my %fields = map { /\A(.)(.*)\z/s ? ($1 => $2) : () } split /\0/, $body;
		$client->{notices} .= "$fields{S}:  $fields{M}\n" if $type eq 'N';
		@$client{qw(error code)} = @fields{qw(M C)} if $type eq 'E';
	}
	elsif ($type eq 'A')
	{
		my ($pid, $channel, $payload) = unpack 'NZ*Z*', $body;
		push @{ $client->{heard} },
		  { pid => $pid, channel => $channel, payload => $payload, time => monotonic() };
	}
	elsif ($type eq 'K') { $client->{pid} = unpack 'N', $body; }
	elsif ($type eq 'Z') { $client->{ready} = 1; }
	return;
}

# Take in what the server has sent to any of these clients, after waiting for it for
# so many seconds at most
sub wire_hear
{
	my ($seconds, @clients) = @_;
	my %by_socket = map { $_->{socket} => $_ } grep { !$_->{closed} } @clients;
	my $select = IO::Select->new(map { $_->{socket} } values %by_socket);

	foreach my $socket ($select->can_read($seconds))
	{
		my $client = $by_socket{$socket};
		my $read = sysread $socket, $client->{buffer}, 65536, length $client->{buffer};
		wire_drop($client) unless $read;
		while (length $client->{buffer} >= 5)
		{
			my ($type, $length) = unpack 'aN', $client->{buffer};
			last if length $client->{buffer} < 1 + $length;
			wire_message($client, $type, substr($client->{buffer}, 5, $length - 4));
			substr($client->{buffer}, 0, 1 + $length) = '';
		}
	}
	return;
}

# Wait for the answer; undef if the connection has ended, or after so many seconds
sub wire_answer
{
	my ($client, $seconds) = @_;
	my $patience = monotonic() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	until ($client->{ready} || $client->{closed})
	{
		my $left = $patience - monotonic();
		return if defined $seconds && $left <= 0;
		die 'session timed out' if $left <= 0;
		wire_hear($left, $client);
	}
	return $client->{ready} ? join("\n", @{ $client->{rows} }) : undef;
}

sub wire_ask
{
	my ($client, $sql) = @_;
	wire_send($client, $sql);
	return wire_answer($client);
}

# The statement fails with this SQLSTATE
sub wire_fails
{
	my ($client, $sql, $code, $test) = @_;
	my $answer = wire_ask($client, $sql);
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is($client->{code}, $code, $test)
	  or diag("$sql: " . ($answer // 'connection lost') . " $client->{error}");
	return;
}

# Lead, resign, and return the token
sub wire_elect
{
	my ($client, $name, $function) = @_;
	$function //= 'le_try_become_leader';
	my @answers = split /\n/,
	  wire_ask($client, "BEGIN; SELECT $function('$name'); SELECT le_token('$name'); COMMIT");
	wire_ask($client, "SELECT le_resign('$name')") unless $function =~ /_xact$/;
	return $answers[1];
}

# Ask until this is the answer; false if it never is
sub wire_until
{
	my ($client, $sql, $expected, $seconds) = @_;
	my $patience = monotonic() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);
	my $answer;

	until (($answer = wire_ask($client, $sql)) eq ($expected // 't'))
	{
		if (monotonic() > $patience)
		{
			diag("$sql: $answer $client->{error}");
			return 0;
		}
		Time::HiRes::sleep(0.005);
	}
	return 1;
}

# Wait for the first notification, from {heard} on, that satisfies the condition, and
# take it and all before it off; undef after so many seconds
sub wire_heard
{
	my ($client, $seconds, $condition) = @_;
	my $patience = monotonic() + $seconds;

	while (1)
	{
		while (my $heard = shift @{ $client->{heard} })
		{
			local $_ = $heard;
			return $heard if $condition->();
		}
		my $left = $patience - monotonic();
		return if $left <= 0 || $client->{closed};
		wire_hear($left, $client);
	}
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
	# and until somebody has waited for them: a server that starts asks for its like
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

# Wait until the server has closed the connection; false if it does not
sub wire_ended
{
	my ($client, $seconds) = @_;
	my $patience = monotonic() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	wire_hear(1, $client) until $client->{closed} || monotonic() > $patience;
	return $client->{closed};
}

# Close the connection without a word: the server sees what it sees of a client that
# was killed
sub wire_drop
{
	my (@clients) = @_;
	foreach my $client (@clients)
	{
		close $client->{socket} unless $client->{closed};
		$client->{closed} = 1;
	}
	return;
}

# PgBouncer's program; undef where it is not installed, or would not run, as root
sub pooler_program
{
	my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';
	return $> == 0 ? undef : $program;
}

# A PgBouncer for the server, in transaction mode with three connections unless the
# settings say otherwise; the databases "session" and "transaction" have that mode
sub new_pooler
{
	my ($node, $settings) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $server = "host='" . $node->host . "' port=" . $node->port . ' dbname=postgres user=' . getpwuid $>;

	append_to_file("$dir/pgbouncer.ini", qq{
[databases]
* = $server
session = $server pool_mode=session
transaction = $server pool_mode=transaction
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = any
logfile = $dir/pgbouncer.log
pool_mode = transaction
default_pool_size = 3
server_round_robin = 1
ignore_startup_parameters = extra_float_digits
$settings
});
	return { node => $node, dir => $dir, port => $port, pid => 0 };
}

# Start it, and wait until it listens
sub start_pooler
{
	my ($pooler) = @_;
	my $output = "$pooler->{dir}/pgbouncer.out";
	my $program = pooler_program();

	$pooler->{pid} = fork();
	die "fork: $!" unless defined $pooler->{pid};
	if ($pooler->{pid} == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>>', $output;
		open STDERR, '>&', \*STDOUT;
		exec $program, '-q', "$pooler->{dir}/pgbouncer.ini" or POSIX::_exit(127);
	}
	foreach my $attempt (1 .. 100 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return if IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $pooler->{port}, Timeout => 1);
		die 'PgBouncer has ended: ' . slurp_file($output)
		  if waitpid($pooler->{pid}, POSIX::WNOHANG()) > 0;
		Time::HiRes::sleep(0.01);
	}
	die 'PgBouncer does not listen: ' . slurp_file($output);
}

# Stop it; nothing if it does not run
sub stop_pooler
{
	my ($pooler) = @_;

	return unless $pooler && $pooler->{pid};
	kill 'TERM', $pooler->{pid};
	waitpid $pooler->{pid}, 0;
	$pooler->{pid} = 0;
	return;
}

# A client of that database through it
sub pooled_session
{
	my ($pooler, $database) = @_;
	return session($pooler->{node}, connstr => "host=127.0.0.1 port=$pooler->{port} dbname=$database connect_timeout=10");
}

1;
