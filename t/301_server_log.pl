# What the server log says, and for which roles.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('log', conf => "log_statement = none\n");
$node->safe_psql('postgres', 'SELECT 1');
my $session = session($node, app => 'worker');
my $pid = $session->{pid};

# hours, minutes, seconds and milliseconds
my $duration = '(\d\d+:\d\d:\d\d\.\d\d\d)';

# SQL of the name or identity, and what the log makes of it
my @texts = (
	[ q{'plain'}, 'plain' ],
	[ q{E'two\nlines'}, 'two\x0alines' ],
	[ q{E'\r\n'}, '\x0d\x0a' ],
	[ q{E'a\tb'}, 'a\x09b' ],
	[ q{E'bell\007'}, 'bell\x07' ],
	[ q{E'delete\177'}, 'delete\x7f' ],
	[ q{E'single '' double "'}, q{single ' double \"} ],
	[ q{E'back\\\\slash %s %m %'}, 'back\\\\slash %s %m %' ],
	[ q{'x": term 7 began: "y" leads'}, q{x\": term 7 began: \"y\" leads} ],
	[ q{'\x0a'}, '\\\x0a' ],
	[ q{U&'\0080\009b\009f\00a0'}, "\\u0080\\u009b\\u009f\xc2\xa0" ],
	[ q{U&'\2027\2028\2029\202f'}, "\xe2\x80\xa7\\u2028\\u2029\xe2\x80\xaf" ],
	[ q{U&'\061c\200d\200e\200f\202a\202e\2066\2069\206a'}, "\\u061c\xe2\x80\x8d\\u200e\\u200f\\u202a\\u202e\\u2066\\u2069\xe2\x81\xaa" ],
	[ q{U&'\00e9\20ac\6f22\+01f600'}, "\xc3\xa9\xe2\x82\xac\xe6\xbc\xa2\xf0\x9f\x98\x80" ],
	[ q{repeat('x', 255)}, 'x' x 255 ],
	[ q{repeat(U&'\00e9', 127)}, "\xc3\xa9" x 127 ]);

foreach my $case (@texts)
{
	my ($sql, $shown) = @$case;
	subtest "as name and as identity: $sql" => sub {
		my $offset = log_from($node);
		is(ask($session, "SELECT le_try_become_leader($sql, identity => $sql)"), 't', 'elected');
		my $token = ask($session, "SELECT le_token($sql)");
		is(ask($session, "SELECT le_resign($sql)"), 't', 'resigned');
		is(ask($session, "BEGIN; SELECT le_try_become_leader_xact($sql, identity => $sql); COMMIT"), 't', 'elected');
		my $next = $token + 1;
		my $log = log_since($node, $offset);
		my @lines = split /\n/, $log;
		is(scalar(@lines), 4, 'four lines in all');
		my @expected = (
			qq{election "$shown": term $token began: "$shown" leads, process $pid, session scope},
			qq{election "$shown": term $token ended: resigned, "$shown" led for },
			qq{election "$shown": term $next began: "$shown" leads, process $pid, transaction scope},
			qq{election "$shown": term $next ended: transaction ended, "$shown" led for });
		foreach my $i (0 .. 3)
		{
			like($lines[$i], qr/LOG:  leader_election: \Q$expected[$i]\E@{[ $i % 2 ? $duration : '' ]}$/, 'line ' . ($i + 1));
		}
	};
}

# Where a character is one byte, some of those are control characters, too
subtest 'in another encoding' => sub {
	foreach my $case ([ 'LATIN1', '\x9b' . "\xa0" ], [ 'WIN1252', "\x9b\xa0" ])
	{
		my ($encoding, $shown) = @$case;
		$node->safe_psql('postgres', "CREATE DATABASE one_byte TEMPLATE template0 ENCODING $encoding LOCALE 'C'");
		create_extension($node, 'one_byte');
		my $offset = log_from($node);
		$node->safe_psql('one_byte', q{SELECT le_try_become_leader(convert_from('\x9ba0', getdatabaseencoding()))});
		like(log_since($node, $offset), qr/election "\Q$shown\E": term \d+ began/, $encoding);
		$node->safe_psql('postgres', 'DROP DATABASE one_byte');
	}
};

subtest 'every end has its line' => sub {
	my $offset = log_from($node);
	ask($session, q{SELECT le_try_become_leader('a'), le_try_become_leader('-7')});
	ask($session, 'SELECT pg_advisory_unlock_all()');
	ask($session, q{SELECT le_try_become_leader('a')});
	ask($session, 'DISCARD ALL');
	ask($session, q{SELECT le_try_become_leader('a')});
	ask($session, 'SELECT le_resign_all()');
	ask($session, q{BEGIN; SELECT le_try_become_leader_xact('a'); SAVEPOINT s; SELECT le_try_become_leader_xact('b'); ROLLBACK TO s});
	ask($session, 'ROLLBACK');
	my $ends = join ' ', map { /^election "?(.+?)"?: term \d+ ended: (.*)$/ ? "$1 $2," : () } term_lines($node, $offset);
	is($ends, 'a lock released, -7 lock released, a lock released, a resigned, b transaction ended, a transaction ended,', 'in order');
};

# For how long the last term was led, by the log, is from the least to the greatest
sub led_for
{
	my ($reason, $identity, $offset, $least, $greatest) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($led) = log_since($node, $offset) =~ /ended: $reason, "$identity" led for $duration$/m;
	is($node->safe_psql('postgres', "SELECT interval '$led' BETWEEN '$least' AND '$greatest'"), 't', "$reason: led for $led");
	return;
}

subtest 'for how long it was led' => sub {
	my $offset = log_from($node);
	my $begun = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
	ask($session, q{SELECT le_try_become_leader('long', identity => 'long leader')}, 'SELECT pg_sleep(1.2)', q{SELECT le_resign('long')});
	my $took = $node->safe_psql('postgres', "SELECT clock_timestamp() - '$begun'");
	led_for('resigned', 'long leader', $offset, '1.2 s', $took);

	# a lease, until it expired, whether a bid or an observer finds that
	foreach my $finder (q{SELECT le_lease('short', '1 s')}, q{CALL le_observe('short')})
	{
		my $token = ask($session, q{SELECT le_lease('short', '200 ms', identity => 'lessee')});
		$offset = log_from($node);
		ask($session, 'SELECT pg_sleep(1)');
		my ($found) = ask($session, $finder) =~ /^(\d+)$/;
		led_for('expired', 'lessee', $offset, '0.19 s', '0.9 s');
		ask($session, "SELECT le_resign('short', $found)") if $found;
	}
};

subtest 'where the client is' => sub {
	$node->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'");
	$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
	end_session($session);
	$node->restart;
	my $offset = log_from($node);
	$session = session($node, app => 'worker');
	my $remote = session($node, host => '127.0.0.1');
	ask($session, q{SELECT le_try_become_leader('here')});
	ask($remote, q{SELECT le_try_become_leader('there', identity => 'r'), le_lease('leased there', '1 s', identity => 'r')});
	my $remote_pid = $remote->{pid};
	my @lines = grep { / began: / } term_lines($node, $offset);
	like($lines[0], qr/"worker" leads, process \d+, session scope$/, 'a local one is not told');
	like($lines[1], qr/"r" leads, process $remote_pid, client 127\.0\.0\.1, session scope$/, 'address');
	like($lines[2], qr/"r" leads, process $remote_pid, client 127\.0\.0\.1, lease scope, ttl 1000 ms$/, 'of a lease, too');
	end_session($remote);
};

subtest 'no line reaches the client' => sub {
	my $client = session($node);
	ask($client, 'SET client_min_messages = debug5');
	ask($client, q{SELECT le_try_become_leader('quiet'), le_try_become_leader('loud')});
	my $said = $client->{messages};
	ask($client, q{SELECT le_resign('quiet')});
	$said .= $client->{messages};
	ask($client, q{BEGIN; SELECT le_try_become_leader_xact('quiet'); COMMIT});
	$said .= $client->{messages};
	ask($client, 'SET client_min_messages = log', q{SELECT le_try_become_leader('loud')}, 'SELECT pg_advisory_unlock_all()');
	$said .= $client->{messages};
	like($said, qr/DEBUG/, 'the client hears much');
	unlike($said, qr/leader_election:|election .* term/, 'but no line of a term');
	end_session($client);
};

subtest 'log_terms = off' => sub {
	my $offset = log_from($node);
	ask($session, 'SET leader_election.log_terms = off');
	is(ask($session, q{BEGIN; SELECT le_try_become_leader('quiet'), le_try_become_leader_xact('x'), le_resign('quiet'); COMMIT}), 't|t|t', 'a cycle');
	is(log_since($node, $offset), '', 'nothing in the log');
	ask($session, 'RESET leader_election.log_terms');
	ask($session, q{SELECT le_try_become_leader('loud')});
	is(scalar(term_lines($node, $offset)), 1, 'and on again');

	$node->safe_psql('postgres', 'CREATE ROLE regress_le_user LOGIN');
	my ($rc, $out, $err) = $node->psql('postgres',
		q{SELECT le_am_leader('x'); SET ROLE regress_le_user; SET leader_election.log_terms = off});
	like($err, qr/permission denied to set parameter "leader_election.log_terms"/, 'superusers only');
	$offset = log_from($node);
	($rc, $out, $err) = $node->psql('postgres',
		q{SET SESSION AUTHORIZATION regress_le_user; SET leader_election.log_terms = off; SELECT le_try_become_leader('sneaky')},
		on_error_die => 0, on_error_stop => 0);
	like($err, qr/permission denied to set parameter "leader_election.log_terms"/, 'nor before the module is loaded');
	$node->wait_for_log(qr/"sneaky": term \d+ ended/, $offset);
	is(scalar(grep { /"sneaky"/ } term_lines($node, $offset)), 2, 'its terms are logged');
};

end_session($session);
my $complaints = join "\n", grep { /WARNING|PANIC|TRAP/ && !/permission denied to set parameter/ } split /\n/, slurp_file($node->logfile);
is($complaints, '', 'no complaints in the log');
$node->stop;
done_testing();
