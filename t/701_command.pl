# pg_leader run: what becomes of the command and its status, by whatever ends it.
#
# Wrong outcomes: the status of the command is lost; a signal is not passed on, or not heeded while
# it waits; the command, or what it has started, runs on after the term, or after pg_leader was
# killed or stopped; two commands run at a time; an error that goes on is retried for ever.
#
# editions: C, SQL

use strict;
use warnings;

use Test::More;
use Time::HiRes;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use SqlEdition;
use Command;
use Pooler;

my $node = new_server('command', conf => 'log_connections = on');
my $connstr = $node->connstr('postgres');
my $watcher = session($node, app => 'watcher');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $bound = 10;					# something is to come at once; but the machine may be busy

# A command that says when it runs, and when it got a signal
my $trap = q{trap 'echo got TERM' TERM; trap 'echo got INT' INT; trap 'echo got HUP' HUP; }
  . q{trap 'echo got USR1' USR1; trap 'echo got USR2' USR2; trap 'echo got WINCH' WINCH; echo pid $$; };
my $forever = 'while :; do sleep 0.05; done';
my $until_term = q{trap 'exit 5' TERM; echo pid $$; } . $forever;

sub leads { return ask($watcher, "SELECT count(*) FROM le_leader('$_[0]')") eq '1'; }

sub start { return start_command($connstr, 'run', @_); }

sub runs { return wait_for_line($_[0], qr/^pid (\d+)/); }

subtest 'the status of the command' => sub {
	foreach my $way ([], [ '--ttl', '2' ], [ '--heartbeat', '30' ])
	{
		my ($status, $out, $err) = run_to_end($connstr, 'run', @$way, '--identity', 'me', 'status', '--', 'sh', '-c',
			'echo "$LE_ELECTION $LE_IDENTITY $LE_TOKEN"; exit 7');
		is($status, 7, "@$way: the exit status of the command");
		like($out, qr/^status me \d+$/, 'its environment');
		is($err, '', 'nothing else is said');
		is(ask($watcher, "SELECT count(*) FROM le_leader('status')"), '0', 'the term is resigned');
	}
	is((run_to_end($connstr, 'run', 'status', 'sh', '-c', 'kill -9 $$'))[0], 128 + 9, 'ended by a signal');
	is((run_to_end($connstr, 'run', 'status', '/nonexistent'))[0], 127, 'not found');
	is((run_to_end($connstr, 'run', 'status', '/etc/passwd'))[0], 126, 'not executable');
	is((run_to_end($connstr, 'run', 'status', 'sh', '-c', 'exec cat'))[0], 0, 'its input is that of pg_leader');
	like(join(' ', run_to_end($connstr, $_, '--version')), qr/^0 pg_leader .* \d/, "$_ --version") foreach qw(run list);
	# the SQL edition counts nothing
	is(ask($watcher, q{SELECT resigned > 5 AND session_ended = 0 AND expired = 0 FROM pg_stat_leader_election WHERE name = 'status'}),
		't', 'each of these terms is resigned') unless ask($watcher, 'SELECT le_version()') =~ /SQL edition/;
};

# Wait until a bid for a lease is the last statement, and answered, of so many sessions
sub wait_for_lease_bids
{
	ask_until($watcher, q{SELECT count(*) FROM pg_stat_activity
		WHERE application_name = 'pg_leader' AND state = 'idle' AND query LIKE 'SELECT %le_lease(%'}, $_[0]);
}

subtest 'another one leads' => sub {
	foreach my $way ([], [ '--ttl', '2' ])
	{
		my $leader = start(@$way, 'taken', 'sh', '-c', $until_term);
		runs($leader);
		my $asked = monotonic();
		is((run_to_end($connstr, 'run', @$way, '--no-wait', 'taken', 'echo', 'x'))[1], '', "@$way: not run");
		is((run_to_end($connstr, 'run', @$way, '-n', 'taken', 'echo', 'x'))[0], 124, 'not elected');
		is((run_to_end($connstr, 'run', @$way, '-n', '-E', '0', 'taken', 'echo', 'x'))[0], 0, 'as asked');
		cmp_ok(monotonic() - $asked, '<', $bound, 'at once');
		my $offset = log_from($node);
		$asked = monotonic();
		is((run_to_end($connstr, 'run', @$way, '--wait', '1.5', 'taken', 'echo', 'x'))[0], 124, 'not elected in time');
		cmp_ok(monotonic() - $asked, '>', 1.4, 'but waited');
		unlike(log_since($node, $offset), qr/FATAL|ERROR/, 'nothing in the log');

		my $next = start(@$way, 'taken', 'sh', '-c', "echo token \$LE_TOKEN; $until_term");
		wait_until(sub { ask($watcher, "SELECT count(*) FROM le_candidates WHERE name = 'taken'") > 0 }) unless @$way;
		signal_command($leader, 'TERM');
		is(wait_for_status($leader), 5, 'the leader ends as its command does');
		runs($next);
		signal_command($next, 'TERM');
		is(wait_for_status($next), 5, 'and then the next one leads');
	}
	is((run_to_end('host=/nonexistent', 'run', '--no-wait', 'taken', 'echo', 'x'))[0], 125, 'without a server');
	is((run_to_end('host=/nonexistent', 'run', '--wait', '1', 'taken', 'echo', 'x'))[0], 125, 'nor after a while');
	is((run_to_end('host=/nonexistent', 'run', '--wait', '1', '-E', '0', 'taken', 'echo', 'x'))[0], 125, 'which is not that another one leads');

	# by a lease, a bid that was denied is repeated soon
	my $leader = start('--ttl', '30', 'taken', 'sh', '-c', $until_term);
	runs($leader);
	my $next = start('--ttl', '30', 'taken', 'true');
	wait_for_lease_bids(2);
	signal_command($leader, 'TERM');
	wait_for_status($leader);
	my $ended = monotonic();
	is(wait_for_status($next), 0, 'the next one leads');
	cmp_ok(monotonic() - $ended, '<', 4, 'long before a third of the ttl');
};

subtest 'signals' => sub {
	my $command = start('signals', 'sh', '-c', $trap . $forever);
	my $pid = runs($command);
	foreach my $signal (qw(HUP USR1 USR2 WINCH INT TERM))
	{
		signal_command($command, $signal);
		is(wait_for_line($command, qr/^got $signal/), "got $signal", "$signal is passed on");
	}
	ok(leads('signals'), 'and the election is led as long as the command goes on');
	kill 'KILL', $pid;
	is(wait_for_status($command), 128 + 9, 'the end');

	foreach my $signal (qw(TERM INT HUP))
	{
		my $number = { TERM => 15, INT => 2, HUP => 1 }->{$signal};
		my $leader = start('signals', 'sh', '-c', $until_term);
		runs($leader);
		foreach my $way ([], [ '--ttl', '2' ])
		{
			my $waiting = start(@$way, '-v', 'signals', 'echo', 'ran');
			@$way ? wait_for_lease_bids(1) : ask_until($watcher, "SELECT count(*) FROM le_candidates WHERE name = 'signals'", '1');
			signal_command($waiting, $signal);
			is(wait_for_status($waiting, $bound), 128 + $number, "$signal ends the wait");
			is(command_output($waiting), '', 'nothing is run');
		}
		ok(ask_until($watcher, "SELECT count(*) FROM le_candidates WHERE name = 'signals'", '0'), 'no candidate is left');
		signal_command($leader, 'TERM');
		wait_for_status($leader);
	}
	my $unreachable = start_command('host=/nonexistent', 'run', 'signals', 'true');
	wait_for_line($unreachable, qr/No such file/, 'err');
	signal_command($unreachable, 'TERM');
	is(wait_for_status($unreachable, $bound), 128 + 15, 'TERM during a pause');
};

subtest 'what the command leaves behind' => sub {
	my ($command, @left);
	$command = start('left', '--', 'sh', '-c', 'echo pid $$; setsid sh -c "trap \"\" TERM; sleep 1000" & sleep 1001 & exit 3');
	is(wait_for_status($command, 3 * $bound), 3, 'the status is that of the command');
	is_deeply([ processes_of($command) ], [], 'nothing runs any more, not even in another session');

	# while pg_leader is killed, and with whatever it has started
	foreach my $way ([], [ '--ttl', '3' ])
	{
		$command = start(@$way, '--grace', '1', 'left', 'sh', '-c',
			'trap "" TERM; setsid sh -c "sleep 1000; sleep 1001" & sleep 1002 & echo pid $$; ' . $forever);
		my $pid = runs($command);
		my $token = ask($watcher, "SELECT token FROM le_leader('left')");
		ok(wait_until(sub { processes_of($command) >= 7 }), "@$way: it has started processes");
		my $next = start(@$way, 'left', 'sh', '-c', "ls -d /proc/$pid 2>/dev/null; echo pid \$\$");
		wait_until(sub { ask($watcher, "SELECT count(*) FROM le_candidates WHERE name = 'left'") > 0 }, 1);
		my $asked = monotonic();
		signal_command($command, 'KILL');
		is(wait_for_status($command), -9, 'pg_leader is killed');
		runs($next);
		unlike(command_output($next), qr/proc/, 'its command had ended when the next one was elected') unless @$way;
		ok(wait_until(sub { !processes_of($command) }, $bound), 'nothing is left')
		  or diag(`ps -ef --forest`);
		# not only when the last confirmation is too old
		cmp_ok(monotonic() - $asked, '<', 4, 'and the command is stopped at once') unless @$way;
		is(wait_for_status($next), 0, 'the next one');
	}

	# the keeper is killed, too
	$command = start('left', 'sh', '-c', "sleep 1000 & echo pid \$\$; $forever");
	runs($command);
	kill 'KILL', grep { (eval { slurp_file("/proc/$_/comm") } // '') =~ /pg_leader:keep/ } processes_of($command);
	is(wait_for_status($command), 128 + 9, 'the keeper is killed, and the command with it');
	ok(wait_until(sub { !processes_of($command) }, $bound), 'nothing is left');
};

subtest 'a lost term' => sub {
	foreach my $end ('SELECT pg_terminate_backend(pid) FROM le_leader(\'lost\')', 'SELECT le_depose(\'lost\')')
	{
		my $command = start('--grace', '20', 'lost', 'sh', '-c', $until_term);
		runs($command);
		my $asked = monotonic();
		ask($watcher, $end);
		is(wait_for_status($command), 123, 'the term is lost');
		cmp_ok($command->{ended} - $asked, '<', $bound, 'which is noticed at once');
		like(command_output($command, 'err'), qr/leadership of election "lost" is lost/, 'and said');
		is(scalar(grep { /^pg\w+: / } command_lines($command, 'err')), 1, 'once');
	}
	my $command = start('--grace', '1', 'lost', 'sh', '-c', $trap . $forever);
	runs($command);
	my $asked = monotonic();
	ask($watcher, 'SELECT le_depose(\'lost\')');
	is(wait_for_status($command), 123, 'a command that ignores TERM');
	like(command_output($command), qr/got TERM/, 'gets it');
	cmp_ok($command->{ended} - $asked, '>=', 0.9, 'and is killed after the grace period');
	cmp_ok($command->{ended} - $asked, '<', $bound, 'and no later');

	$command = start('--grace', '1', 'lost', 'sh', '-c', $until_term);
	kill 'STOP', runs($command);
	ask($watcher, 'SELECT le_depose(\'lost\')');
	is(wait_for_status($command, $bound), 123, 'a command that is stopped');
	is_deeply([ processes_of($command) ], [], 'nothing is left');

	# the server, or the network, falls silent
	$command = start('lost', 'sh', '-c', $until_term);
	runs($command);
	my $backend = ask($watcher, 'SELECT pid FROM le_leader(\'lost\')');
	pause_process($backend);
	$asked = monotonic();
	is(wait_for_status($command, 6 + $bound), 123, 'no answer');
	cmp_ok($command->{ended} - $asked, '>', 4, 'the command goes on for the validity of the last one');
	like(command_output($command, 'err'), qr/in doubt/, 'and then leadership is in doubt');
	kill 'CONT', $backend;
};

subtest 'pg_leader itself is stopped' => sub {
	foreach my $way ([ '--ttl', '3' ], [ '--heartbeat', '3' ])
	{
		my $command = start(@$way, 'stopped', 'sh', '-c',
			"trap 'date +%s.%N; exit 5' TERM; echo pid \$\$; while :; do echo >&\${LE_HEARTBEAT_FD:-1}; sleep 0.1; done");
		my $pid = runs($command);
		wait_until(sub { leads('stopped') });
		my $asked = monotonic();
		pause_process($command->{pid});
		ok(wait_until(sub { !-d "/proc/$pid" }, $bound), "@$way: the command is stopped");
		cmp_ok(monotonic() - $asked, '<', 2.5, 'before its term is over');
		signal_command($command, 'CONT');
		is(wait_for_status($command), 123, 'what pg_leader says, then');
	}
};

subtest 'heartbeats' => sub {
	my $file = "$dir/beat";
	my $command = start('--heartbeat', '2', 'beats', 'sh', '-c', "for i in 1 2 3 4 5 6 7 8 9 10; do echo >&\$LE_HEARTBEAT_FD; sleep 0.3; done; exit 4");
	is(wait_for_status($command), 4, 'a command that writes to the descriptor goes on');
	$command = start('--heartbeat', '2', '--heartbeat-file', $file, 'beats', 'sh', '-c',
		"for i in 1 2 3 4 5 6 7 8 9 10; do touch \"\$LE_HEARTBEAT_FILE\"; sleep 0.3; done; exit 4");
	is(wait_for_status($command), 4, 'and so does one that touches the file');
	$command = start('--ttl', '4', '--heartbeat', '2', 'beats', 'sh', '-c', "for i in 1 2 3 4 5 6 7 8 9 10; do echo >&\$LE_HEARTBEAT_FD; sleep 0.3; done; exit 4");
	is(wait_for_status($command), 4, 'by a lease, too');
	foreach my $way ([], [ '--ttl', '6' ])
	{
		my $asked = monotonic();
		$command = start(@$way, '--heartbeat', '2', '--heartbeat-file', $file, 'beats', 'sleep', '1000');
		is(wait_for_status($command, $bound), 123, "@$way: one that does not beat is stopped");
		cmp_ok(monotonic() - $asked, '>', 1, 'not before the time');
	}
};

subtest 'restart' => sub {
	my $command = start('-v', '--restart', 'again', 'sh', '-c', 'date "+at %s.%N"; echo token $LE_TOKEN; exit 1');
	ok(wait_until(sub { command_lines($command) >= 10 }), 'the command is run again and again');
	my ($first, @later) = map { /^at (.*)/ } command_lines($command);
	# pauses of 0.5, 1, 2 and 4 s, or half of these
	cmp_ok($later[3] - $first, '>', 3.7, 'but less and less often');
	my %tokens = map { $_ => 1 } grep { /token/ } command_lines($command);
	is(scalar(keys %tokens), scalar(@later) + 1, 'each time in a new term');
	my $said = join "\n", command_lines($command, 'err');
	unlike($said, qr/ended with status 1\n.*ended with status 1\n/, 'its end is told once');
	like($said, qr/ended with status 1\n/, 'and is told');
	signal_command($command, 'TERM');
	wait_for_status($command, $bound);
	is(scalar(grep { $_ > 0 } processes_of($command)), 0, 'until it is stopped');

	# a restart of the server
	my @copies = map { start(@$_, '--restart', 'again', 'sh', '-c', "echo pid \$\$; echo token \$LE_TOKEN; $forever") } ([], [], [ '--ttl', '3' ], [ '--ttl', '3' ]);
	ok(wait_until(sub { leads('again') }), 'one leads');
	my $last = ask($watcher, 'SELECT token FROM le_leader(\'again\')');
	$node->restart;
	$watcher = session($node, app => 'watcher');
	ok(wait_until(sub { leads('again') && (grep { command_output($_) =~ /token (\d+)\n\z/ && $1 > 0 } @copies) }), 'one leads after a restart of the server');
	# each command that runs is that of the leader
	my $token = ask($watcher, 'SELECT token FROM le_leader(\'again\')');
	ok(wait_until(sub { (map { my $c = $_; grep { slurp_environ($_) =~ /\0LE_TOKEN=$token\0/ } processes_of($c) } @copies) > 0 }), 'and runs its command');
	is(scalar(grep { my $e = slurp_environ($_); $e =~ /\0LE_TOKEN=(\d+)\0/ && $1 != $token } map { processes_of($_) } @copies), 0, 'no other one runs');
	signal_command($_, 'TERM') foreach @copies;
	is(wait_for_status($_, $bound), 128 + 15, 'TERM') foreach grep { command_output($_) ne '' } @copies;
	ok(wait_until(sub { !map { processes_of($_) } @copies }, $bound), 'nothing is left');
};

sub slurp_environ
{
	my ($pid) = @_;
	open my $file, '<', "/proc/$pid/environ" or return '';
	local $/;
	return "\0" . (<$file> // '');
}

subtest 'seats, identities, values' => sub {
	my @copies = map { start('--seats', '2', '--identity', "w$_", '--value', "at $_", 'seat', 'sh', '-c', "echo pid \$\$; echo in \$LE_ELECTION; $until_term") } 1 .. 3;
	ok(wait_until(sub { (grep { command_output($_) =~ /in/ } @copies) == 2 }), 'two of three have a seat');
	is(join(' ', sort map { command_output($_) =~ /in (.*)/ } @copies), 'seat/1 seat/2', 'each has one of its own');
	ok(wait_until(sub { ask($watcher, q{SELECT count(*) FROM le_leaders WHERE name LIKE 'seat/%' AND value = 'at ' || right(identity, 1)}) eq '2' }),
		'with its identity and value');
	signal_command($_, 'TERM') foreach @copies;
	wait_for_status($_) foreach @copies;
};

subtest 'permanent errors' => sub {
	my ($status, $out, $err) = run_to_end($node->connstr('template1'), 'run', 'x', 'true');
	is($status, 125, 'no extension');
	like($err, qr/hint: leader_election is not installed in database "template1"/, 'says so');
	($status, $out, $err) = run_to_end($connstr, 'run', '--ttl', '90000', 'x', 'true');
	is($status, 125, 'a wrong option');
	($status, $out, $err) = run_to_end($connstr, 'run', '--schema', 'nowhere', 'x', 'true');
	like("$status $err", qr/^125 .*leader_election is in schema "public"/s, 'a wrong schema');
	ask($watcher, 'CREATE DATABASE managed');
	is((run_script($node, 'managed', user => scalar getpwuid($>)))[0], 0, 'the SQL edition');
	($status, $out, $err) = run_to_end($node->connstr('managed'), 'run', 'x', 'true');
	like("$status $err", qr/^125 .*leader_election is in schema "le": use --schema/s, 'its schema');
	($status, $out, $err) = run_to_end($node->connstr('managed'), 'run', '--schema', 'le', 'x', 'true');
	is($status, 0, 'which works');
	ask($watcher, 'CREATE ROLE guest LOGIN', q{SELECT le_declare('closed', candidates => 'postgres')}) if getpwuid($>) eq 'postgres';
	foreach my $wrong ([ '--ttl', 'x', 'e', 'true' ], ['e'], [], [ '--json', 'e', 'true' ], [ '--no-such', 'e', 'true' ],
		[ '--every', 'soon', 'e', 'true' ], [ '--every', '60', '--timezone', 'Mars/Olympus', 'e', 'true' ], [ '--seats', '0', 'e', 'true' ])
	{
		is((run_to_end($connstr, 'run', @$wrong))[0], 125, "refused: @$wrong");
	}
	my %says = ('--ttl 0.5' => 'from 1 s to 1 day', '--ttl 90000' => 'from 1 s to 1 day', '--heartbeat 0.5' => 'from 1 s to 1 day',
		'--seats 10001' => 'from 1 to 10000', '--conflict-exit-code 256' => 'from 0 to 255', '--record end' => '--record needs --every',
		'--record start' => '--record needs --every', '--missed last' => '--missed needs --every', '--identity=' => '1 to 255 bytes');
	foreach my $wrong (sort keys %says)
	{
		($status, $out, $err) = run_to_end($connstr, 'run', split(' ', $wrong), 'e', 'true');
		like("$status $err", qr/^125 .*$says{$wrong}/, "says what is right: $wrong");
	}
};

subtest 'several hosts' => sub {
	my $host = $node->host;
	my $port = $node->port;
	my ($status, $out) = run_to_end("host=/nonexistent,$host port=1,$port dbname=postgres target_session_attrs=read-write",
		'run', 'hosts', 'echo', 'ran');
	is("$status $out", "0 ran\n", 'the second host');
	my (undef, undef, $err) = run_to_end('host=/nonexistent,/neither', 'run', '--no-wait', 'hosts', 'echo', 'ran');
	like($err, qr/"\/nonexistent.*"\/neither/s, 'what each host says');
	# a host that accepts the connection, and says nothing
	require IO::Socket::INET;
	my $silent = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die $!;
	my $asked = monotonic();
	($status, $out) = run_to_end('host=127.0.0.1,' . "$host port=" . $silent->sockport . ",$port dbname=postgres", 'run', 'hosts', 'echo', 'ran');
	is("$status $out", "0 ran\n", 'the second host, when the first is silent');
	cmp_ok(monotonic() - $asked, '<', 2.5 + $bound, 'soon');
	# hosts that accept and close, after which libpq tries no other
	my $closing = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die $!;
	my $closer = fork() // die $!;
	if ($closer == 0)
	{
		while (my $client = $closing->accept) { close $client; }
		POSIX::_exit(0);
	}
	my $closes = $closing->sockport;
	($status, $out) = run_to_end("host=127.0.0.1,127.0.0.1,$host port=$closes,$closes,$port dbname=postgres",
		'run', '--no-wait', 'hosts', 'echo', 'ran');
	is("$status $out", "0 ran\n", 'the third host, when two close the connection');
	kill 'KILL', $closer;
	waitpid $closer, 0;
};

SKIP:
{
	skip 'needs PgBouncer, and not to run as root' unless defined pooler_program();
	my $pooler = new_pooler($node, "default_pool_size = 1\nmax_client_conn = 50\nserver_login_retry = 1");
	start_pooler($pooler);
	my $through = "host=127.0.0.1 port=$pooler->{port} dbname=transaction";
	my @copies = map { start_command($through, 'run', '--ttl', '2', 'pooled', 'sh', '-c', "echo pid \$\$; $until_term") } 1 .. 3;
	ok(wait_until(sub { (grep { command_output($_) ne '' } @copies) == 1 }), 'by a lease through PgBouncer in transaction mode, one leads');
	my ($leader) = grep { command_output($_) ne '' } @copies;
	signal_command($leader, 'KILL');
	wait_for_status($leader);
	ok(wait_until(sub { (grep { command_output($_) ne '' } @copies) == 2 }), 'and the next one after it');
	ok(wait_until(sub { !processes_of($leader) }, $bound), 'nothing is left of the first');
	signal_command($_, 'TERM') foreach @copies;
	wait_for_status($_) foreach @copies;

	@copies = map { start_command($through, 'run', 'shared', 'sh', '-c', "echo pid \$\$; $until_term") } 1 .. 2;
	ok(wait_until(sub { grep { command_ended($_) } @copies }), 'in session scope, one notices that the session is shared');
	ok((grep { command_ended($_) && $_->{status} == 125 && command_output($_, 'err') =~ /a pooler shares this one.*--ttl/s } @copies), 'and says so');
	signal_command($_, 'TERM') foreach @copies;
	wait_for_status($_) foreach @copies;
	stop_pooler($pooler);
}

END
{
	my $status = $?;
	stop_commands();
	$? = $status;
}

done_testing();
