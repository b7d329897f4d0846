# pg_leader run --every, --listen and for systemd.
#
# Wrong outcomes: a time that is due is done twice, or left out, when the leader is killed, stopped
# or deposed; a probe says that a process leads that does not; bad requests, slow readers or very
# many connections keep the command from running.
#
# editions: C, SQL
# needs: curl libmicrohttpd-dev pkg-config

use strict;
use warnings;

use IO::Socket::INET;
use IO::Socket::IP;
use IO::Socket::UNIX;
use JSON::PP;
use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Command;

my $node = new_server('command_schedule');
my $connstr = $node->connstr('postgres');
my $watcher = session($node, app => 'watcher');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $until_term = q{trap 'exit 5' TERM; echo pid $$; while :; do sleep 0.05; done};
my $bound = 10;

sub start
{
	my @params = ref $_[0] ? shift : ();
	return start_command($connstr, @params, 'run', @_);
}

sub lines_of
{
	my ($file) = @_;
	my @lines = -e $file ? split(/\n/, slurp_file($file)) : ();
	return @lines;
}

subtest 'each time once' => sub {
	foreach my $way ([ '--heartbeat', '2' ], [ '--ttl', '2' ])
	{
		my $file = "$dir/once@$way" =~ s/ /_/gr;
		my $name = "once @$way";
		my @copies;
		my $add = sub { push @copies, start(@$way, '--every', '1 s', '--grace', '1', $name, 'sh', '-c', "echo \$LE_DUE \$LE_TOKEN >>$file"); };

		$add->() foreach 1 .. 3;
		ok(wait_until(sub { lines_of($file) >= 3 }), "@$way: a command each second") or diag(map { command_output($_, 'err') } @copies);
		foreach my $fault (qw(KILL TERM STOP depose))
		{
			my $before = lines_of($file);
			my $identity = ask($watcher, "SELECT identity FROM le_leader('$name')");
			my ($leader) = grep { $identity =~ /:$_->{pid}:/ } @copies;
			if ($fault eq 'depose') { ask($watcher, "SELECT le_depose('$name')"); }
			elsif ($leader) { signal_command($leader, $fault); $add->() }
			ok(wait_until(sub { lines_of($file) >= $before + 3 }), "$fault: it goes on");
			signal_command($leader, 'CONT') if $fault eq 'STOP' && $leader;
		}
		my @due = map { (split)[0] } lines_of($file);
		my %seen;
		is(scalar(grep { $seen{$_}++ } @due), 0, 'no time is done twice') or diag("@due");
		is(join(' ', @due), join(' ', sort @due), 'they are done in their order');
		signal_command($_, 'TERM') foreach @copies;
		wait_for_status($_, $bound) foreach @copies;
		is(scalar(map { processes_of($_) } @copies), 0, 'nothing is left');
	}
};

subtest 'the first leader is killed at the first time' => sub {
	my @options = ('--every', '10 s', '--record', 'end', 'first', 'sh', '-c', 'echo due $LE_DUE; sleep 100');
	my $leader = start(@options);
	ok(ask_until($watcher, q{SELECT count(*) FROM le_leader('first')}, 1), 'one leads');
	my $other = start(@options);
	ok(ask_until($watcher, q{SELECT count(*) FROM le_candidates WHERE name = 'first'}, 1), 'and one waits');
	my $due = wait_for_line($leader, qr/^due (.*)/);
	signal_command($leader, 'KILL');
	is(wait_for_line($other, qr/^due (.*)/), $due, 'the time is made up for by the next leader');
	signal_command($other, 'TERM');
	wait_for_status($other, $bound);
};

subtest 'what was missed' => sub {
	my $run = sub {
		my ($name, $count, @options) = @_;
		my $file = "$dir/$name";
		ask($watcher, "SELECT le_try_become_leader('$name')");
		ask($watcher, "SELECT le_once('$name', date_trunc('minute', clock_timestamp()) - interval '1 h')");
		ask($watcher, "SELECT le_resign('$name')");
		my $command = start('--every', '20 min', @options, $name, 'sh', '-c', "echo \$LE_DUE \$TZ >>$file");
		if ($count)
		{
			wait_until(sub { lines_of($file) >= $count });
			ask_until($watcher, "SELECT due > clock_timestamp() - interval '20 min' FROM le_once_done WHERE name = '$name'", 't');
		}
		else
		{
			ask_until($watcher, "SELECT count(*) FROM le_leader('$name')", 1);
			Time::HiRes::sleep(1);    # what it would begin at once, it does not
		}
		signal_command($command, 'TERM');
		is(wait_for_status($command, $bound), $count ? 0 : 128 + 15, "$name: the status");
		return lines_of($file);
	};
	is(scalar($run->('last', 1)), 1, 'the last one only');
	my @all = $run->('all', 3, '--missed', 'all');
	ok(@all == 3 || @all == 2, 'all of an hour') or diag("@all");
	is(join(' ', @all), join(' ', sort @all), 'in their order');
	# the last one was due more than a minute ago, unless it is a minute of these
	my $minute = ask($watcher, q{SELECT extract(minute FROM clock_timestamp())::int % 20});
	is(scalar($run->('none', 0, '--missed', 'none')), 0, 'none') if $minute > 1 && $minute < 19;
};

subtest 'recorded at the end' => sub {
	my $file = "$dir/end";
	my $command = start('--every', '1 h', '--missed', 'all', '--record', 'end', 'end', 'sh', '-c', "echo \$LE_DUE >>$file; test \$(wc -l <$file) -ge 3");
	my $recorded = "SELECT due > now() - interval '61 min' FROM le_once_done WHERE name = 'end'";
	# let an hour be missed
	signal_command($command, 'TERM');
	wait_for_status($command);
	ask($watcher, q{SELECT le_try_become_leader('end')});
	ask($watcher, q{SELECT le_once('end', clock_timestamp() - interval '90 min')});
	ask($watcher, q{SELECT le_resign('end')});
	$command = start('--every', '1 h', '--record', 'end', 'end', 'sh', '-c', "echo \$LE_DUE >>$file; test \$(wc -l <$file) -ge 3");
	ok(ask_until($watcher, $recorded, 't'), 'a command that fails is run again until it succeeds');
	is(scalar(lines_of($file)), 3, 'and no more');
	is(scalar(keys %{ { map { $_ => 1 } lines_of($file) } }), 1, 'for the same time');
	signal_command($command, 'TERM');
	wait_for_status($command);
};

subtest 'a cron expression' => sub {
	# the minute that comes, in a time zone that is half an hour off
	my ($minute, $hour) = split /\|/, ask($watcher, q{SELECT extract(minute FROM t)::int, extract(hour FROM t)::int
		FROM (SELECT (date_trunc('minute', clock_timestamp()) - interval '10 min') AT TIME ZONE 'Asia/Kolkata' AS t) AS t});
	ask($watcher, q{SELECT le_try_become_leader('cron')});
	ask($watcher, q{SELECT le_once('cron', clock_timestamp() - interval '20 min')});
	ask($watcher, q{SELECT le_resign('cron')});
	my $command = start({ env => { TZ => 'America/New_York' } }, '--every', "$minute $hour * * *", '--timezone', 'Asia/Kolkata', 'cron', 'sh', '-c', 'echo $LE_DUE $TZ');
	my $expected = ask($watcher, q{SELECT to_char((date_trunc('minute', clock_timestamp()) - interval '10 min') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI')});
	my $line = wait_for_line($command, qr/(.*T.*)/);
	like($line, qr/America\/New_York$/, 'the command has its own time zone');
	like($line, qr/^\Q$expected\E|:\d\d:00.000Z/, 'it is due');
	signal_command($command, 'TERM');
	is(wait_for_status($command), 0, 'the end');
};

subtest 'started by cron on each host' => sub {
	my $file = "$dir/by_cron";
	my @options = ('--no-wait', '--every', '* * * * *', 'by cron', 'sh', '-c', "echo \$LE_DUE >>$file; exit 4");
	# not when a minute is about to begin
	wait_until(sub { ask($watcher, 'SELECT extract(second FROM clock_timestamp()) < 30') eq 't' });
	my @statuses = map { (run_to_end($connstr, 'run', @options))[0] } 1;
	is("@statuses", '4', 'the first one runs the command');
	my @late = map { start('--no-wait', '--every', '1 day', 'by cron', 'sh', '-c', "echo \$LE_DUE >>$file") } 1 .. 3;
	is(wait_for_status($_), 124, 'one that comes later does not') foreach @late;
	is(scalar(lines_of($file)), 1, 'once');

	# not when it is nearer to the next minute
	wait_until(sub { ask($watcher, 'SELECT extract(second FROM clock_timestamp()) < 20') eq 't' });
	run_to_end($connstr, 'run', @options);
	my $lines = lines_of($file);
	is((run_to_end($connstr, 'run', @options))[0], 124, 'nor does it wait for the next minute, when this one is done');
	is(scalar(lines_of($file)), $lines, 'which is left to those that are started for it');
};

subtest 'the time zone of cron' => sub {
	wait_until(sub { ask($watcher, 'SELECT extract(second FROM clock_timestamp()) < 40') eq 't' });
	my $line = sub { return ask($watcher, "SELECT extract(minute FROM t)::int || ' ' || extract(hour FROM t)::int || ' * * *' FROM (SELECT clock_timestamp() AT TIME ZONE '$_[0]' AS t) AS t") };
	my $tokyo = $line->('Asia/Tokyo');
	my @local = ({ env => { TZ => 'Asia/Tokyo' } }, '--no-wait', '--every');
	my ($status, $out, $err) = run_to_end($connstr, $local[0], 'run', @local[1, 2], $tokyo, 'tokyo', 'sh', '-c', 'echo ran $TZ');
	is("$status $out$err", "0 ran Asia/Tokyo\n", 'is the local one');
	($status, $out, $err) = run_to_end($connstr, $local[0], 'run', @local[1, 2], $tokyo, 'tokyo', 'echo', 'ran');
	is("$status $out$err", '124 ', 'a host that comes later says nothing');
	($status, $out, $err) = run_to_end($connstr, $local[0], 'run', @local[1, 2], $line->('UTC'), 'not tokyo', 'echo', 'ran');
	like("$status $out$err", qr/^124 .*in time zone "Asia\/Tokyo": the next one is \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+0900$/, 'a line of another zone is not silent');
	($status, $out, $err) = run_to_end($connstr, $local[0], 'run', '--timezone=UTC', @local[1, 2], $line->('UTC'), 'not tokyo', 'echo', 'ran');
	is("$status $out$err", "0 ran\n", 'unless that is named');
	# with a time to wait, while another one runs the command
	my $slow = start($local[0], @local[1, 2], $tokyo, 'slow', 'sh', '-c', "echo pid; until test -e $dir/asked; do sleep 0.05; done");
	wait_for_line($slow, qr/^pid/);
	my $waiting = start($local[0], '--wait', '30', '--every', $tokyo, 'slow', 'echo', 'ran');
	ok(ask_until($watcher, q{SELECT count(*) FROM le_candidates WHERE name = 'slow'}, 1), 'another one waits');
	append_to_file("$dir/asked", '');
	is(wait_for_status($waiting) . ' ' . command_output($waiting) . command_output($waiting, 'err'), '124 ', 'nor does one that has waited for it');
};

# A time that is due, as the last one that is recorded is an hour and a half ago
sub miss_an_hour
{
	my ($name) = @_;
	ask($watcher, "SELECT le_try_become_leader('$name')");
	ask($watcher, "SELECT le_once('$name', clock_timestamp() - interval '90 min')");
	ask($watcher, "SELECT le_resign('$name')");
	return;
}

subtest 'a record that fails' => sub {
	my $file = "$dir/fails";
	my $locker = session($node);
	my $recorded = q{SELECT due > clock_timestamp() - interval '61 min' FROM le_once_done WHERE name = 'fails'};

	miss_an_hour('fails');
	ask($locker, 'BEGIN');
	ask($locker, 'LOCK TABLE ' . ask($locker, q{SELECT coalesce(to_regclass('_le_once_done'), to_regclass('le_once_done'))}) . ' IN SHARE ROW EXCLUSIVE MODE');
	my $command = start('--every', '1 h', '--record', 'end', 'fails', 'sh', '-c', "echo \$LE_DUE >>$file");
	wait_for_line($command, qr/no answer from the server about the time/, 'err');
	# and in another term; the SQL edition cannot end the statement that waits, which guards this one
	if (ask($watcher, 'SELECT le_version()') !~ /SQL edition/)
	{
		ask($watcher, q{SELECT le_depose('fails')});
		ok(wait_until(sub { (grep { /no answer from the server about the time/ } command_lines($command, 'err')) >= 2 }), 'it is tried again');
	}
	ask($locker, 'ROLLBACK');
	ok(ask_until($watcher, $recorded, 't'), 'and recorded at last');
	is(scalar(lines_of($file)), 1, 'the command is not run again for that');
	signal_command($command, 'TERM');
	wait_for_status($command);
};

subtest 'once, and leadership is lost' => sub {
	foreach my $wait ([ '--no-wait' ], [ '--wait', '1' ])
	{
		my $name = "lost @$wait";
		miss_an_hour($name);
		my $command = start(@$wait, '--every', '1 h', '--record', 'end', $name, 'sh', '-c', $until_term);
		wait_for_line($command, qr/^pid/);
		ask($watcher, "SELECT le_depose('$name')");
		is(wait_for_status($command, 3 * $bound), 123, "@$wait: the end");
	}

	# before the command has begun, as the next time is nearer than the one that is done
	wait_until(sub { ask($watcher, 'SELECT extract(second FROM clock_timestamp())::int % 20 BETWEEN 11 AND 13') eq 't' });
	ask($watcher, q{SELECT le_try_become_leader('early')});
	ask($watcher, q{SELECT le_once('early', date_bin('20 s', clock_timestamp(), '2000-01-01 00:00 UTC'))});
	ask($watcher, q{SELECT le_resign('early')});
	my $command = start('-v', '--wait', '1', '--every', '20 s', 'early', 'echo', 'ran');
	ok(wait_for_line($command, qr/elected in "early"/, 'err'), 'it waits for the time');
	ask($watcher, q{SELECT le_depose('early')});
	ok(ask_until($watcher, q{SELECT le_try_become_leader('early')}, 't'), 'another one is elected');
	is(wait_for_status($command, $bound), 123, 'it waits for an election only for that long');
	is(command_output($command), '', 'and runs nothing');
	ask($watcher, q{SELECT le_resign('early')});
};

# What curl says: status and body
sub get
{
	my ($port, $path, @options) = @_;
	my ($out, $err) = run_command([ 'curl', '-s', '-m', '5', '-w', '\n%{http_code}', @options, "http://127.0.0.1:$port$path" ]);
	my ($body, $status) = $out =~ /\A(.*)\n(\d+)\z/s;
	return ($status, $body);
}

SKIP:
{
	my $supported = (run_to_end($connstr, 'run', '--listen', '127.0.0.1:0', 'x', 'true'))[0] == 0;
	skip 'pg_leader was built without libmicrohttpd' unless $supported;

	subtest 'HTTP' => sub {
		my ($one, $two, $three) = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 3;
		my $leader = start('--listen', "127.0.0.1:$one", '--identity', 'one', 'http', 'sh', '-c', $until_term);
		wait_for_line($leader, qr/^pid/);
		my $waiting = start('--listen', $two, '--identity', 'two', 'http', 'sh', '-c', $until_term);
		my $follower = start_command($connstr, 'follow', '--listen', $three, '--identity', 'one', 'http');
		wait_until(sub { (get($two, '/leader'))[0] ne '000' && (get($three, '/health'))[0] eq '200' });

		my ($status, $body) = get($one, '/leader');
		my $json = decode_json($body);
		is($status, 200, '/leader of the leader');
		is("$json->{election} $json->{leading} $json->{identity} $json->{token}", 'http 1 one ' . ask($watcher, q{SELECT token FROM le_leader('http')}), 'what it says');
		like($json->{since}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/, 'since');
		($status, $body) = get($two, '/leader');
		$json = decode_json($body);
		is($status, 503, '/leader of another one');
		ok(!$json->{leading} && !defined $json->{token}, 'what it says');
		is((get($two, $_))[0], 200, $_) foreach qw(/live /ready /health);
		is((get($three, '/leader'))[0], 200, '/leader of a follower beside the leader');
		like((get($one, '/metrics'))[1], qr/^leader_election_leading\{election="http"\} 1$/m, '/metrics');
		like((get($two, '/metrics'))[1], qr/^leader_election_leading\{election="http"\} 0$/m, '/metrics of another one');
		is((get($one, '/nothing'))[0], 404, 'another path');
		is((get($one, '/leader', '-X', 'DELETE'))[0], 405, 'another method');
		is((get($one, '/leader', '-I'))[0], 200, 'HEAD');
		my ($as_haproxy, $other) = map { (get($_, '/leader', '-X', 'OPTIONS'))[0] } $one, $two;
		is("$as_haproxy $other", '200 503', 'OPTIONS, as option httpchk of HAProxy sends it');
		is((get($one, '/leader', '--data-binary', 'x' x 100000))[0], 405, 'a body');
		is((get($one, '/' . 'x' x 8000))[0] >= 400, 1, 'a long path');

		# rubbish, readers that are slow, and very many connections
		my @clients = map { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $one, Timeout => 1) } 1 .. 1000;
		my $n = grep { defined } @clients;
		$SIG{PIPE} = 'IGNORE';
		my $i = 0;
		foreach my $client (grep { defined } @clients)
		{
			syswrite $client, (("\0\xff\x01" x 100) . "\r\n\r\n", "GET /leader HTTP/1.1\r\nHost:", 'G', "GET / HTTP/9.9\r\n\r\n", '')[ $i++ % 5 ];
		}
		ok($n >= 100, "$n connections");
		ok(leads('http'), 'leadership is kept');
		Time::HiRes::sleep(2.5);
		ok(leads('http'), 'and still is');
		ok(wait_until(sub { (get($one, '/leader'))[0] eq '200' }), 'others are served again, though these connections stay');
		undef @clients;
		is(command_output($leader, 'err'), '', 'nothing is said of that');
		cmp_ok(processor_time($leader->{pid}), '<', 3, 'at little cost');

		# the end of the term
		pause_process($leader->{pid});
		is((get($one, '/leader', '-m', '1'))[0], '000', 'one that is stopped says nothing');
		signal_command($leader, 'CONT');
		ask($watcher, q{SELECT le_depose('http')});
		wait_for_line($waiting, qr/^pid/);
		ok(wait_until(sub { (get($two, '/leader'))[0] eq '200' }), 'the next one leads');
		ok(wait_until(sub { (get($three, '/leader'))[0] eq '503' }), 'and the follower hears of it');
		is((run_to_end($connstr, 'run', '--listen', $two, 'x', 'true'))[0], 125, 'a port that is taken');
		foreach my $wrong ('', '0.0.0.0:', '0.0.0.0:99999', '65536', '127.0.0.1:http', '127.0.0.1:-1')
		{
			my ($status, undef, $err) = run_to_end($connstr, 'run', '--listen', $wrong, 'x', 'true');
			like("$status $err", qr/^125 .*from 0 to 65535/, "no port: \"$wrong\"");
		}
		signal_command($_, 'TERM') foreach $waiting, $follower;
		wait_for_status($_) foreach $leader, $waiting, $follower;
	};

	subtest 'HTTP: without the server' => sub {
		my ($port, $other) = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2;
		my @away = (start_command('host=/nonexistent', 'run', '--listen', $port, 'away', 'true'),
			start_command('host=/nonexistent', 'follow', '--listen', $other, 'away'));
		foreach my $asked ($port, $other)
		{
			ok(wait_until(sub { (get($asked, '/health'))[0] eq '503' }), 'not healthy');
			is((get($asked, '/live'))[0], 200, 'but nothing that a restart of the process would cure');
			is((get($asked, '/ready'))[0], 200, 'and ready in the first minute');
			is((get($asked, '/leader'))[0], 503, 'no leader');
		}
		foreach my $asked ($port, $other)
		{
			ok(wait_until(sub { (get($asked, '/ready'))[0] eq '503' }, 60 + $bound), 'then no more');
			cmp_ok(monotonic() - $away[0]{began}, '>', 59, 'which is a minute');
		}
		is((get($_, '/live'))[0], 200, 'and still live') foreach $port, $other;
		pause_process($away[0]{pid});
		is((get($port, '/live', '-m', '1'))[0], '000', 'a process that hangs is not');
		signal_command($_, 'KILL') foreach @away;
		wait_for_status($_) foreach @away;
	};

	subtest 'HTTP: addresses and slow clients' => sub {
		my $port = PostgreSQL::Test::Cluster::get_free_port();
		my $leader = start('--listen', "*:$port", 'slow', 'sh', '-c', $until_term);
		wait_for_line($leader, qr/^pid/);
		is((get($port, '/leader'))[0], 200, 'by IPv4');
		my $has_ipv6 = IO::Socket::IP->new(LocalHost => '::1', Listen => 1);
		is((run_command([ 'curl', '-s', '-m', '5', '-o', '/dev/null', '-w', '%{http_code}', "http://[::1]:$port/leader" ]))[0], 200, 'by IPv6') if $has_ipv6;

		# as many connections as are served, which say nothing
		my @silent = map { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 1) } 1 .. 100;
		is(scalar(grep { (get($port, '/leader', '-m', '1'))[0] eq '200' } 1 .. 20), 20, 'delay no probe');
		undef @silent;

		# and that are never idle
		my @clients = grep { defined } map { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 1) } 1 .. 100;
		my $began = monotonic();
		my $served = wait_until(
			sub {
				syswrite $_, 'x' foreach @clients;
				return (get($port, '/leader', '-m', '0.5'))[0] eq '200';
			}, 3 * $bound);
		ok($served, 'one that sends on and on is not served for ever');
		cmp_ok(monotonic() - $began, '<', 5 + $bound, 'but for five seconds');
		like((run_command([ 'curl', '-s', '-i', '-X', 'PUT', "http://127.0.0.1:$port/leader" ]))[0], qr/^Allow: GET, HEAD, OPTIONS\r$/m, 'the methods that are allowed are told');
		signal_command($leader, 'TERM');
		is(wait_for_status($leader), 5, 'the end');
	};

	subtest 'HTTP: the server is restarted' => sub {
		my @ports = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2;
		my @copies = map { start('--restart', '--listen', $_, 'restarted', 'sh', '-c', $until_term) } @ports;
		my $all = sub { my ($code) = @_; return !grep { (get($_, '/health'))[0] ne $code } @ports };
		ok(ask_until($watcher, q{SELECT count(*) FROM le_candidates WHERE name = 'restarted'}, 1), 'one leads, and one waits');
		$node->stop;
		ok(wait_until(sub { $all->(503) }), 'both are in doubt');
		$node->start;
		ok(wait_until(sub { $all->(200) }, 3 * $bound), 'the one that waits is healthy again, too');
		signal_command($_, 'TERM') foreach @copies;
		wait_for_status($_) foreach @copies;
		$watcher = session($node, app => 'watcher');
	};
}

sub leads { return ask($watcher, "SELECT count(*) FROM le_leader('$_[0]')") eq '1'; }

subtest 'systemd' => sub {
	my $path = "$dir/notify";
	my $socket = IO::Socket::UNIX->new(Type => IO::Socket::UNIX::SOCK_DGRAM(), Local => $path) or die $!;
	my $leader = start('systemd', 'sh', '-c', $until_term);
	wait_for_line($leader, qr/^pid/);
	my $command = start({ env => { NOTIFY_SOCKET => $path, WATCHDOG_USEC => 600000 } }, 'systemd', 'sh', '-c', "echo pid \$\$ \$NOTIFY_SOCKET; $until_term");
	my ($heard, @heard) = ('');
	my $hear = sub { my ($pattern) = @_; until ($heard =~ $pattern) { recv($socket, my $message, 1000, 0); $heard .= "$message\n"; push @heard, [ monotonic(), $message ]; } return 1; };
	alarm 60;
	ok($hear->(qr/STATUS=waits/), 'STATUS while it waits');
	ok($hear->(qr/WATCHDOG=1.*WATCHDOG=1/s), 'WATCHDOG');
	unlike($heard, qr/READY/, 'not ready');
	signal_command($leader, 'TERM');
	ok($hear->(qr/READY=1/), 'READY when it leads');
	signal_command($command, 'TERM');
	ok($hear->(qr/STOPPING=1/), 'STOPPING');
	alarm 0;
	wait_for_status($_) foreach $leader, $command;
};

END
{
	my $status = $?;
	stop_commands();
	$? = $status;
}

done_testing();
