# pg_leader as a process, and what it leaves behind.
package Command;

use strict;
use warnings;

use Exporter 'import';
use POSIX ();
use Test::More;
use Time::HiRes;
use LeaderElection;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(start_command command_ended wait_for_status command_output command_lines
  wait_for_line wait_until processes_of run_to_end stop_commands signal_command);

my $count = 0;
my @started;

# Start pg_leader, or the command LE_COMMAND, with these arguments, for a connection string;
# %params: env
sub start_command
{
	my ($connstr, @arguments) = @_;
	my %params = ref $arguments[0] ? %{ shift @arguments } : ();
	my $command = { number => ++$count, began => monotonic(), output => PostgreSQL::Test::Utils::tempdir() . "/command.$count" };
	my $action = shift @arguments;

	push @started, $command;
	# A shell lets what it runs in the background ignore some of them.  Others have handlers, which end
	# the test's servers, and are not to run before exec.
	local @SIG{qw(HUP INT QUIT TERM)} = ('DEFAULT') x 4;
	$command->{pid} = fork();
	die "fork: $!" unless defined $command->{pid};
	return $command if $command->{pid};

	open STDIN, '<', '/dev/null';
	open STDOUT, '>', "$command->{output}.out";
	open STDERR, '>', "$command->{output}.err";
	delete @ENV{ grep { /^PG(?!CTL)/ } keys %ENV };
	# each process that descends from this one has that in its environment
	$ENV{LE_TEST} = "$$";
	$ENV{$_} = $params{env}{$_} foreach keys %{ $params{env} // {} };
	$SIG{PIPE} = 'DEFAULT';
	exec split(' ', $ENV{LE_COMMAND} // 'pg_leader'), $action, '-d', $connstr, @arguments or POSIX::_exit(99);
}

# Whether it has ended; {status} has the exit status, or minus the signal
sub command_ended
{
	my ($command) = @_;

	return 1 if defined $command->{status};
	return 0 unless waitpid($command->{pid}, POSIX::WNOHANG()) == $command->{pid};
	$command->{status} = $? & 127 ? -($? & 127) : $? >> 8;
	$command->{ended} = monotonic();
	return 1;
}

# Wait until this is so; false if it never is
sub wait_until
{
	my ($condition, $seconds) = @_;
	my $patience = monotonic() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	until ($condition->())
	{
		return 0 if monotonic() > $patience;
		Time::HiRes::sleep(0.01);
	}
	return 1;
}

sub wait_for_status
{
	my ($command, $seconds) = @_;
	return $command->{status} if wait_until(sub { command_ended($command) }, $seconds);
	diag(`ps -eo pid,ppid,pgid,stat,wchan:20,etime,args --forest | grep -v kworker | tail -50`,
		command_output($command), command_output($command, 'err'));
	return 'still runs';
}

sub command_output
{
	my ($command, $which) = @_;
	my $file = "$command->{output}." . ($which // 'out');
	return -e $file ? slurp_file($file) : '';
}

sub command_lines
{
	my ($command, $which) = @_;
	return split /\n/, command_output($command, $which);
}

# Wait until it has written a line like that, and return what the first group is, or the line
sub wait_for_line
{
	my ($command, $pattern, $which) = @_;
	my $found;

	wait_until(
		sub {
			foreach my $line (command_lines($command, $which))
			{
				next unless $line =~ $pattern;
				$found = $1 // $line;
				return 1;
			}
			return command_ended($command);
		});
	die "$pattern: not in " . command_output($command) . command_output($command, 'err') unless defined $found;
	return $found;
}

# The processes that descend from it, itself included, by their environments: dead ones have none
sub processes_of
{
	my ($command) = @_;
	my @pids;

	foreach my $file (glob '/proc/[0-9]*/environ')
	{
		open my $environ, '<', $file or next;
		local $/;
		my $all = <$environ> // '';
		push @pids, $file =~ /(\d+)/ if "\0$all" =~ /\0LE_TEST=$command->{pid}\0/;
	}
	return @pids;
}

sub signal_command
{
	my ($command, $signal) = @_;
	return kill $signal, $command->{pid};
}

# Run it, and return its exit status, output and errors
sub run_to_end
{
	my $command = start_command(@_);
	my $status = wait_for_status($command);
	return ($status, command_output($command), command_output($command, 'err'));
}

# At the end of the test, whatever has happened
sub stop_commands
{
	foreach my $command (@started)
	{
		kill 'KILL', processes_of($command);
		waitpid $command->{pid}, 0 unless defined $command->{status};
	}
	return;
}

1;
