# PgBouncer before a server.
#
# needs: pgbouncer
package Pooler;

use strict;
use warnings;

use Exporter 'import';
use IO::Socket::INET;
use POSIX ();
use Time::HiRes;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(pooler_program new_pooler start_pooler stop_pooler pooled_session);

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

		# what runs in the background of a shell ignores it, see stop_pooler
		$SIG{QUIT} = 'DEFAULT';
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

# Stop it at once, with its clients connected; nothing if it does not run
#
# TERM makes one of 1.23 and newer wait until they have gone.
sub stop_pooler
{
	my ($pooler) = @_;

	return unless $pooler && $pooler->{pid};
	kill 'QUIT', $pooler->{pid};
	waitpid $pooler->{pid}, 0;
	$pooler->{pid} = 0;
	return;
}

# A client of that database through it
sub pooled_session
{
	my ($pooler, $database) = @_;
	return session($pooler->{node}, host => '127.0.0.1', port => $pooler->{port}, db => $database);
}

1;
