# pg_leader under attack: processes that are stopped, descriptors that are closed or exhausted,
# connections that never end.
#
# Wrong outcomes: the status of the command is lost; the command runs on after the term; a message
# is written into a connection; pg_leader waits for ever, uses a processor, or says nothing.

use strict;
use warnings;

use IO::Socket::INET;
use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Command;

my $node = new_server('command_attack');
my $connstr = $node->connstr('postgres');
my $watcher = session($node, app => 'watcher');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $bound = 10;
my $forever = 'while :; do sleep 0.05; done';

sub start { return start_command($connstr, 'run', @_); }

sub runs { return wait_for_line($_[0], qr/^pid (\d+)/); }

sub leads { return ask($watcher, "SELECT count(*) FROM le_leader('$_[0]')") eq '1'; }

# The keeper of a command
sub keeper_of
{
	my ($command) = @_;
	my ($keeper) = grep { (slurp_file("/proc/$_/comm") // '') =~ /pg_leader:keep/ } processes_of($command);
	return $keeper;
}

subtest 'stopped and continued' => sub {
	# pg_leader: the command has ended by itself meanwhile, and the confirmation is too old
	my $command = start('--ttl', '2', 'paused', 'sh', '-c', "echo pid \$\$; until test -e $dir/end; do sleep 0.05; done; exit 7");
	my $pid = runs($command);
	pause_process($command->{pid});
	append_to_file("$dir/end", '');
	ok(wait_until(sub { !-d "/proc/$pid" }, $bound), 'the command ends');
	ok(ask_until($watcher, q{SELECT count(*) FROM le_leader('paused')}, '0'), 'and then the lease');
	signal_command($command, 'CONT');
	is(wait_for_status($command, $bound), 7, 'the status is that of the command');

	# the command
	$command = start('paused', 'sh', '-c', "echo pid \$\$; sleep 0.5; exit 8");
	$pid = runs($command);
	pause_process($pid);
	Time::HiRes::sleep(1);
	kill 'CONT', $pid;
	is(wait_for_status($command, $bound), 8, 'a command that was stopped and goes on');
};

END
{
	my $status = $?;
	stop_commands();
	$? = $status;
}

done_testing();
