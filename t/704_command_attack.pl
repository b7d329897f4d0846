# pg_leader under attack: processes that are stopped, descriptors that are closed or exhausted,
# connections that never end.
#
# Wrong outcomes: the status of the command is lost; the command runs on after the term; a message
# is written into a connection; pg_leader waits for ever, uses a processor, or says nothing.
#
# editions: C, SQL

use strict;
use warnings;

use IO::Handle;
use IO::Socket::INET;
use POSIX ();
use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Command;

my $node = new_server('command_attack', conf => q{listen_addresses = '127.0.0.1'});
my $connstr = $node->connstr('postgres');
my $watcher = session($node, app => 'watcher');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $bound = 10;
my $count = 0;
my $forever = 'while :; do sleep 0.05; done';

sub start { return start_command($connstr, 'run', @_); }

sub runs { return wait_for_line($_[0], qr/^pid (\d+)/); }

sub leads { return ask($watcher, "SELECT count(*) FROM le_leader('$_[0]')") eq '1'; }

# The keeper of a command
sub keeper_of
{
	my ($command) = @_;
	my $keeper;
	my $is_one = sub { open my $file, '<', "/proc/$_[0]/comm" or return 0; return (readline($file) // '') =~ /pg_leader:keep/; };
	wait_until(sub { ($keeper) = grep { $is_one->($_) } processes_of($command); defined $keeper });
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
	$command = start('paused', 'sh', '-c', "echo pid \$\$; until test -e $dir/later; do sleep 0.05; done; exit 8");
	$pid = runs($command);
	pause_process($pid);
	append_to_file("$dir/later", '');
	my $paused = ask($watcher, 'SELECT clock_timestamp()');
	ok(ask_until($watcher, "SELECT state_change > '$paused' FROM pg_stat_activity WHERE application_name = 'leader_election: paused'", 't'), 'leadership is confirmed');
	kill 'CONT', $pid;
	is(wait_for_status($command, $bound), 8, 'a command that was stopped and goes on');

	$command = start('paused', 'sh', '-c', "trap 'exit 9' TERM; echo pid \$\$; $forever");
	pause_process(runs($command));
	signal_command($command, 'TERM');
	is(wait_for_status($command, $bound), 9, 'a command that is stopped is told to stop');
};

subtest 'the keeper is stopped' => sub {
	# once: it goes on
	my $command = start('--grace', '20', 'kept', 'sh', '-c', "trap 'exit 5' TERM; echo pid \$\$; $forever");
	runs($command);
	kill "STOP", keeper_of($command);
	signal_command($command, 'TERM');
	is(wait_for_status($command, $bound), 5, 'a signal reaches the command');

	# again and again, as in a debugger
	foreach my $way ([ '--ttl', '2' ], [ '--heartbeat', '2' ], [ '--grace', '0.5' ])
	{
		my $command = start(@$way, "kept @$way", 'sh', '-c', "trap '' TERM; setsid sleep 1000 & echo pid \$\$; $forever");
		my $pid = runs($command);
		my $keeper = keeper_of($command);
		my $stopper = fork() // die $!;
		if ($stopper == 0)
		{
			my $end = monotonic() + 3 * $bound;
			1 while kill('STOP', $keeper) && monotonic() < $end;
			POSIX::_exit(0);
		}
		my $asked = monotonic();
		ask($watcher, "SELECT le_depose('kept @$way')") unless "@$way" =~ /heartbeat/;
		ok(wait_until(sub { grep({ $_ != $keeper && $_ != $command->{pid} } processes_of($command)) == 0 }, $bound), "@$way: all is killed");
		cmp_ok(monotonic() - $asked, '<', 2.5, 'in time');
		is(wait_for_status($command, $bound), 123, 'leadership was lost');
		kill 'KILL', $stopper;
		waitpid $stopper, 0;
	}
};

subtest 'the keeper is killed in a debugger' => sub {
	my $command = start('--ttl', '2', 'debugged', 'sh', '-c', "setsid sleep 1000 & echo pid \$\$; $forever");
	runs($command);
	my $keeper = keeper_of($command);
	# a debugger that does nothing: ptrace(PTRACE_SEIZE) of x86-64
	pipe my $said, my $says or die $!;
	my $debugger = fork() // die $!;
	if ($debugger == 0)
	{
		my $seized = (POSIX::uname())[4] eq 'x86_64' && syscall(101, 0x4206, $keeper + 0, 0, 0) == 0;
		syswrite $says, $seized ? 'y' : 'n';
		sleep 1000;
	}
	sysread $said, my $seized, 1;
  SKIP:
	{
		skip 'the keeper cannot be debugged' unless $seized eq 'y';
		kill 'KILL', $keeper;
		ok(wait_until(sub { grep({ $_ != $command->{pid} } processes_of($command)) == 0 }, $bound), 'all is killed');
		is(wait_for_status($command, $bound), 128 + 9, 'and pg_leader ends');
	}
	kill 'KILL', $debugger;
	waitpid $debugger, 0;
	signal_command($command, 'TERM');
	wait_for_status($command);
};

# Start pg_leader by a shell command that ends with it
sub start_by
{
	my ($shell, @arguments) = @_;
	my $script = "$dir/by." . ++$count;
	my $program = $ENV{LE_COMMAND} // 'pg_leader';

	append_to_file($script, $shell =~ s/PG_LEADER/$program/r . "\n");
	local $ENV{LE_COMMAND} = "bash $script";
	return start_command($connstr, @arguments);
}

subtest 'descriptors' => sub {
	my $command = start_by('exec PG_LEADER "$@" <&- >&- 2>&-', 'run', '-v', 'closed', 'sh', '-c', "x=\$(readlink /proc/\$\$/fd/0 /proc/\$\$/fd/1 /proc/\$\$/fd/2); echo \"\$x\" >$dir/closed; echo rubbish; echo rubbish >&2; exit 4");
	is(wait_for_status($command), 4, 'without standard descriptors');
	is(-e "$dir/closed" ? slurp_file("$dir/closed") : undef, "/dev/null\n" x 3, 'the command has them');


	# a test can have inherited some itself, and valgrind has its own
	return if ($ENV{LE_COMMAND} // '') =~ /valgrind/;
	my $list = 'cd /proc/self/fd; echo *';
	my @own = split ' ', `sh -c '$list' </dev/null 2>/dev/null`;
	my @others = split ' ', (run_to_end($connstr, 'run', '--heartbeat', '20', 'inherited', 'sh', '-c', $list))[1];
	is(scalar(@others), @own + 1, 'the command gets no descriptor of pg_leader, but that for heartbeats');
};

subtest 'a full disk' => sub {
	my $leader = start('full', 'sh', '-c', "echo pid \$\$; $forever");
	runs($leader);
	foreach my $what ([ 'list' ], [ 'list', '--json' ], [ 'follow', 'full' ], [ 'follow', '--json', 'full' ])
	{
		my $command = start_by('exec PG_LEADER "$@" >/dev/full', @$what);
		is(wait_for_status($command, $bound), 1, "@$what: the status");
		like(command_output($command, 'err'), qr/error: could not write output: No space left on device/, 'is explained');
	}
	signal_command($leader, 'TERM');
	wait_for_status($leader, $bound);
};

subtest 'too few descriptors or processes' => sub {
	plan skip_all => 'valgrind and the sanitizers need more of them' if defined $ENV{LE_COMMAND};
	my %seen;
	# the first ones are too few for the libraries
	foreach my $limit (4 .. 24)
	{
		my $command = start_by("ulimit -n $limit; exec PG_LEADER \"\$@\"", 'run', '--no-wait', 'few', 'echo', 'ran');
		my $status = wait_for_status($command, 3 * $bound);
		next if $status == 127;
		$seen{$status}++;
		is($status, command_output($command) eq "ran\n" ? 0 : 125, "$limit: the status");
		isnt(command_output($command, 'err'), '', 'what is missing is said') if $status;
		is(ask($watcher, q{SELECT count(*) FROM le_leader('few')}), '0', 'nothing leads');
	}
	ok($seen{0} && $seen{125}, 'it works with enough of them, and was tried with fewer');
	my $command = start_by('ulimit -u 1; exec PG_LEADER "$@"', 'run', 'few', 'echo', 'ran');
	is(wait_for_status($command, $bound), 125, 'no process can be started');
	like(command_output($command, 'err'), qr/could not start a process: Resource temporarily unavailable/, 'and that is said');
	is(ask($watcher, q{SELECT count(*) FROM le_leader('few')}), '0', 'nothing leads');
};

subtest 'a server that says nothing' => sub {
	my $silent = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die $!;
	my $to = 'host=127.0.0.1 dbname=postgres port=' . $silent->sockport;
	foreach my $wait ([ '--no-wait' ], [ '--wait', '0.5' ])
	{
		my $asked = monotonic();
		my $command = start_command($to, 'run', @$wait, 'silent', 'true');
		wait_until(sub { monotonic() - $asked > 2 || -e "$dir/never" });
		cmp_ok(processor_time($command->{pid}), '<', 0.5, "@$wait: costs no processor time") unless command_ended($command);
		is(wait_for_status($command), 125, 'the status');
	}
	foreach my $way ([ 'connect_timeout=2', {} ], [ '', { PGCONNECT_TIMEOUT => 2 } ])
	{
		my ($parameter, $env) = @$way;
		my $asked = monotonic();
		is((run_to_end("$to $parameter", { env => $env }, 'run', '--no-wait', 'silent', 'true'))[0], 125, 'no connection');
		cmp_ok(monotonic() - $asked, '<', 4, "within connect_timeout");
		cmp_ok(monotonic() - $asked, '>', 1.9, "and no sooner");
		my $host = $node->host;
		my ($port, $other) = ($silent->sockport, $node->port);
		is((run_to_end("host=127.0.0.1,127.0.0.1,$host port=$port,$port,$other dbname=postgres $parameter", { env => $env }, 'run', '--no-wait', 'silent', 'true'))[0], 0, 'nor is the next host given up');
	}
};

subtest 'names that are not looked up' => sub {
	plan skip_all => 'the sanitizers have a getaddrinfo() of their own' if ($ENV{LE_COMMAND} // '') =~ /ASAN_OPTIONS/;
	my $file = "$dir/slow";
	my $library = build_test_library('slow_names', '-D_GNU_SOURCE');
	my %slow = (env => { SLOW_NAMES => $file, LD_PRELOAD => join(':', grep { defined } $ENV{LD_PRELOAD}, $library) });
	my $by_name = 'host=localhost dbname=postgres port=' . $node->port;
	my $begin = sub { return start_command($by_name, \%slow, 'run', @_); };

	# a leader, whose other connection ends meanwhile
	my $leader = $begin->('--every', '1 s', 'names', 'sh', '-c', "echo due \$LE_DUE token \$LE_TOKEN");
	ok(wait_until(sub { command_lines($leader) >= 2 }), 'a command each second');
	my $waiting = $begin->('names', 'true');
	ok(wait_until(sub { ask($watcher, q{SELECT count(*) FROM le_candidates WHERE name = 'names'}) eq '1' }), 'one waits');
	append_to_file($file, '');
	my $lines = command_lines($leader);
	ok(wait_until(sub { command_lines($leader) >= $lines + 2 }, $bound), 'the connection for due times is kept');
	ask($watcher, q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pg_leader'});
	Time::HiRes::sleep(9);
	$lines = command_lines($leader);
	unlink $file;
	ok(wait_until(sub { command_lines($leader) > $lines }, 2 * $bound), 'it goes on');
	my %tokens = map { /token (\d+)/ => 1 } command_lines($leader);
	is(scalar(keys %tokens), 1, 'in the same term');
	unlike(command_output($leader, 'err'), qr/doubt|lost/, 'which was never in doubt');

	# what cannot connect ends at once, nevertheless
	append_to_file($file, '');
	my @starting = map { $begin->(@$_, 'names', 'true') } [], [ '--ttl', '15' ], [ '--wait', '60' ];
	ok(wait_until(sub { !grep { (() = glob "/proc/$_->{pid}/task/*") < 2 } @starting }), 'names are being looked up');
	my $asked = monotonic();
	signal_command($_, 'TERM') foreach $waiting, @starting, $leader;
	is(wait_for_status($_), 128 + 15, 'TERM') foreach $waiting, @starting;
	wait_for_status($leader);
	cmp_ok(monotonic() - $asked, '<', 1 + 1, 'is heeded at once');
	unlink $file;

	is((run_to_end('host=no-such-host.invalid,localhost dbname=postgres port=1,' . $node->port, 'run', '-n', 'other', 'true'))[0], 0, 'the second name');
	my ($status, undef, $err) = run_to_end('host=no-such-host.invalid dbname=postgres', 'run', '-n', 'other', 'true');
	like("$status $err", qr/^125 .*could not translate host name "no-such-host.invalid"/, 'a name that does not exist');
};

subtest 'a terminal' => sub {
	plan skip_all => 'no pseudo-terminal can be had'
	  if system('script -qec true /dev/null </dev/null >/dev/null 2>&1') != 0;
	my $program = $ENV{LE_COMMAND} // 'pg_leader';
	my $file = "$dir/terminal";
	append_to_file("$dir/run", "$program run -d '$connstr' terminal sh -c 'echo begins; read x; echo got \$x; exit 6'; echo status \$?\n");
	open my $keyboard, '|-', "timeout -k 1 60 script -qfec 'sh $dir/run' $file >/dev/null" or die $!;
	$keyboard->autoflush(1);
	my $shows = sub { my ($pattern) = @_; return wait_until(sub { -e $file && slurp_file($file) =~ $pattern }, $bound); };
	ok($shows->(qr/begins/), 'the command runs');
	print $keyboard "\cZ";
	ok($shows->(qr/\^Z/), 'control and Z');
	print $keyboard "line\n";
	ok($shows->(qr/got line\s/), 'does not suspend it, and it reads from the terminal');
	ok($shows->(qr/status 6\s/), 'its status');
	close $keyboard;

	# while the command has the terminal, pg_leader is in the background, as a pager of its output is
	$file = "$dir/background_leader";
	append_to_file("$dir/stopped", "stty tostop; $program run -d '$connstr' tostop sh -c 'echo begins; exec sleep 1000'; echo status \$?\n");
	open $keyboard, '|-', "timeout -k 1 60 script -qfec 'sh $dir/stopped' $file >/dev/null" or die $!;
	ok($shows->(qr/begins/), 'the command has the terminal');
	kill 'TTIN', ask($watcher, q{SELECT split_part(identity, ':', 2) FROM le_leaders WHERE name = 'tostop'});
	ask($watcher, q{SELECT le_depose('tostop')});
	ok($shows->(qr/warning.*status 123\s/s), 'what is read and written in the background does not stop pg_leader');
	close $keyboard;

	# in the background, while the shell, which has just reaped its job, has not yet taken the terminal back
	append_to_file("$dir/shell", q{use POSIX; $SIG{TTOU} = 'IGNORE';
		sub job { my $pid = fork() // die $!; if (!$pid) { setpgid(0, 0); $SIG{TTOU} = 'DEFAULT'; exec @_; } setpgid($pid, $pid); return $pid; }
		my $foreground = job('sleep', 1000);
		POSIX::tcsetpgrp(0, $foreground) or die $!;
		kill 'KILL', $foreground;
		waitpid $foreground, 0;
		waitpid job(@ARGV), 0;
		print 'the terminal is ', POSIX::tcgetpgrp(0) == $foreground ? 'left' : 'taken', "\n";
	});
	my $shell = "perl $dir/shell $program run -d \"$connstr\" background true";
	run_command([ 'timeout', '-k', '1', '60', 'script', '-qfec', $shell, "$dir/background" ]);
	like(slurp_file("$dir/background"), qr/the terminal is left/, 'in the background, it takes no terminal');
};

END
{
	my $status = $?;
	stop_commands();
	$? = $status;
}

done_testing();
