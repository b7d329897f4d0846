# pg_leader list, follow and depose, beside the extension and the SQL edition.
#
# Wrong outcomes: a leader that does not lead is shown, or a change is not told; the status does not
# say whether the election is led; what is printed as JSON is none.

use strict;
use warnings;

use JSON::PP;
use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Command;

my $node = new_server('command_views');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $until_term = q{trap 'exit 5' TERM; echo pid $$; while :; do sleep 0.05; done};
my $odd = qq{t\tab "quoted" \\ \x{c3}\x{bc} 'x'};

# The editions, each in a database of its own: the extension, and the SQL script where there is one
my %editions = (extension => [ 'postgres', [] ]);
my ($script) = grep { -e } "$FindBin::RealBin/../plpgsql/leader_election.sql", $ENV{SQL_EDITION} // ();
if (defined $script)
{
	$node->safe_psql('postgres', 'CREATE DATABASE plain');
	$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('plain'), '-f', $script ], 'the SQL edition');
	$editions{'SQL edition'} = [ 'plain', [ '--schema', 'le' ] ];
}

foreach my $edition (sort keys %editions)
{
	my ($database, $options) = @{ $editions{$edition} };
	my $connstr = $node->connstr($database);
	my $start = sub { return start_command($connstr, 'run', @$options, @_); };
	my $once = sub { my $action = shift; return run_to_end($connstr, $action, @$options, @_); };

	subtest $edition => sub {
		my ($status, $out, $err) = $once->('list', '--json', 'a');
		is("$status $out", "3 []\n", 'list of an election: no leader');
		is(($once->('list', '--json'))[1], "[]\n", 'list --json: none');

		my $hook = "$dir/hook.$database";
		my $follower = start_command($connstr, 'follow', @$options, '--json', '--exec', "echo \"[\$LE_ELECTION|\$LE_IDENTITY|\$LE_VALUE|\$LE_TOKEN]\" >>$hook", 'a');
		my $plain = start_command($connstr, 'follow', @$options, 'a');
		wait_for_line($follower, qr/"token": null/);
		wait_for_line($plain, qr/a: no leader/);

		my $leader = $start->('--identity', $odd, '--value', $odd, 'a', 'sh', '-c', $until_term);
		wait_for_line($leader, qr/^pid/);
		my $waiting = $start->('--identity', 'next', 'a', 'sh', '-c', $until_term);
		my $line = wait_for_line($follower, qr/("value": "t.*)/);
		my $json = decode_json('{' . $line);
		is($json->{value}, decode('UTF-8', $odd), 'follow --json: the value');
		wait_for_line($plain, qr/a: led by t\\x09ab "quoted" .*, token \d+, value/);
		ok(wait_until(sub { -e $hook && slurp_file($hook) =~ /^\[a\|\Q$odd\E\|\Q$odd\E\|\d+\]$/m }), 'follow --exec') or diag(-e $hook && slurp_file($hook));
		wait_until(sub { ($once->('list', 'a', '--json'))[1] =~ /"candidates" : 1/ });

		($status, $out) = $once->('list', 'a');
		is($status, 0, 'list of an election: led');
		like($out, qr/^ a +\| t\s+ab "quoted"/m, 'the leader') or diag($out);
		($status, $out) = $once->('list', 'a', '--json');
		my ($listed) = @{ decode_json($out) };
		is("$listed->{identity} $listed->{candidates}", decode('UTF-8', $odd) . ' 1', 'options follow the election');
		like($listed->{since}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/, 'the format of times');
		is(decode_json(($once->('list', '--json'))[1])->[0]{election}, 'a', 'list --json');
		my ($told) = grep { defined $_->{token} } map { decode_json($_) } command_lines($follower);
		is(join(' ', grep { !exists $listed->{$_} } sort keys %$told), 'time', 'follow --json has no other names');
		like($told->{time}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/, 'and no other format');

		is(($once->('depose', 'a', '--reason', 'hung'))[0], 0, 'depose');
		is(wait_for_status($leader), 123, 'the leader has lost');
		wait_for_line($waiting, qr/^pid/);
		wait_for_line($plain, qr/led by next/);
		signal_command($waiting, 'TERM');
		wait_for_status($waiting);
		is(($once->('depose', 'a'))[0], 3, 'depose: no leader');

		$leader = $start->('--ttl', '20', '--identity', 'lessee', 'a', 'sh', '-c', $until_term);
		wait_for_line($leader, qr/^pid/);
		wait_for_line($follower, qr/"lessee"/);
		is(($once->('depose', 'a'))[0], 0, 'depose, by a lease');
		is(($once->('list', 'a'))[0], 3, 'its term is over');
		signal_command($leader, 'TERM');
		wait_for_status($leader);

		# what has been told
		wait_until(sub { command_output($follower) =~ /"token": null.*\n\z/ });
		signal_command($_, 'TERM') foreach $follower, $plain;
		is(wait_for_status($_), 128 + 15, 'TERM ends a follower') foreach $follower, $plain;
		my @lines = map { decode_json($_) } command_lines($follower);
		is($lines[-1]{token}, undef, 'at last, no leader');
		ok((grep { ($_->{identity} // '') eq 'lessee' } @lines), 'the lease was told, too');
		is(scalar(grep { ($lines[$_]{token} // 0) == ($lines[ $_ - 1 ]{token} // 0) && ($lines[$_]{value} // '') eq ($lines[ $_ - 1 ]{value} // '') } 1 .. $#lines),
			0, 'nothing is told twice');
		is(command_output($follower, 'err'), '', 'without an error');
	};

	subtest "$edition: run" => sub {
		foreach my $way ([], [ '--ttl', '2' ], [ '--heartbeat', '5' ], [ '--seats', '2' ])
		{
			my $leader = $start->(@$way, 'b', 'sh', '-c', "trap 'exit 5' TERM; echo pid \$\$; while :; do echo x >&\${LE_HEARTBEAT_FD:-1}; sleep 0.05; done");
			wait_for_line($leader, qr/^pid/);
			my $next = $start->(@$way, 'b', 'sh', '-c', 'echo next; exit 6');
			is(wait_for_status($next), 6, "@$way: another seat") if "@$way" =~ /seats/;
			signal_command($leader, 'TERM');
			is(wait_for_status($leader), 5, "@$way: the status");
			is(wait_for_status($next), 6, 'and that of the next one');
		}
		my $leader = $start->('--grace', '1', 'b', 'sh', '-c', $until_term);
		wait_for_line($leader, qr/^pid/);
		my $next = $start->('b', 'true');
		signal_command($leader, 'KILL');
		wait_for_status($leader);
		is(wait_for_status($next), 0, 'after pg_leader was killed');
		ok(wait_until(sub { !processes_of($leader) }, 5), 'nothing is left');
	};
}

subtest 'what a hook leaves behind' => sub {
	foreach my $signal (qw(TERM KILL))
	{
		my $file = "$dir/hook.$signal";
		my $follower = start_command($node->connstr('postgres'), 'follow', '--exec', "setsid sleep 1000 & echo x >>$file; sleep 1001; true", 'd');
		ok(wait_until(sub { -s $file && processes_of($follower) >= 4 }), "$signal: the hook runs") or diag(processes_of($follower));
		signal_command($follower, $signal);
		is(wait_for_status($follower), $signal eq 'TERM' ? 128 + 15 : -9, 'follow ends');
		ok(wait_until(sub { !processes_of($follower) }, 10), 'and the hook with it');
		is(command_output($follower, 'err'), '', 'nothing is said of that');
	}
	my $follower = start_command($node->connstr('postgres'), 'follow', '--exec', 'exit 3', 'd');
	wait_for_line($follower, qr/the hook has failed: .*3/, 'err');
	signal_command($follower, 'TERM');
	wait_for_status($follower);
};

# The server is restarted
my $follower = start_command($node->connstr('postgres'), 'follow', 'c');
wait_for_line($follower, qr/no leader/);
$node->restart;
wait_for_line($follower, qr/warning/, 'err');
my $leader = start_command($node->connstr('postgres'), 'run', '--identity', 'after', 'c', 'sleep', '1000');
like(wait_for_line($follower, qr/(led by .*)/), qr/led by after/, 'a follower goes on after a restart');
is((run_to_end($node->connstr('template1'), 'follow', 'c'))[0], 1, 'follow without the extension');
is((run_to_end('host=/nonexistent', 'list'))[0], 1, 'list without a server');
is((run_to_end($node->connstr('postgres'), 'list', 'c', 'd'))[0], 1, 'too many arguments');
is((run_to_end($node->connstr('postgres'), 'follow'))[0], 1, 'too few');

sub decode { require Encode; return Encode::decode(@_); }

END
{
	my $status = $?;
	stop_commands();
	$? = $status;
}

done_testing();
