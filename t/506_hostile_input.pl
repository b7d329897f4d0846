# Names, identities, values, reasons and roles that try to break out of what they are put
# into: a line of the log, a JSON object, an SQL statement, a message.

use strict;
use warnings;

use JSON::PP;
use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('hostile', conf => "log_line_prefix = '%m [%p] %q%a '\nlog_statement = none\nlog_min_error_statement = panic\nlog_min_messages = warning\nleader_election.notify = on\n");
my $boss = session($node);
my $ear = session($node, app => 'ear');
ask($ear, 'LISTEN leader_election');
my $json = JSON::PP->new->utf8;

sub bytes_of
{
	my ($string) = @_;
	utf8::encode($string);
	return $string;
}

# What the log makes of it
sub on_line
{
	my ($string) = @_;
	utf8::decode($string);
	$string =~ s/(["\\])/\\$1/g;
	$string =~ s/([\x00-\x1f\x7f])/sprintf '\\x%02x', ord $1/ge;
	$string =~ s/([\x{80}-\x{9f}\x{61c}\x{200e}\x{200f}\x{2028}-\x{202e}\x{2066}-\x{2069}])/sprintf '\\u%04x', ord $1/ge;
	utf8::encode($string);
	return $string;
}

# All are strings of bytes, in UTF-8
my @strings = (
	'"', "'", '\\', '\\"', '\\\\n', "\n", "\r\n", "\t", join('', map { chr } 1 .. 31, 127),
	'%s %n %d %m %%', '$1 :name \gset', '$$', q{'); DROP TABLE le_leases; --},
	'", "event": "elected", "token": 9, "x": "', '"}', '{"election": null},', '\u0000', '\\u000a', '[1,2', 'null', '</script>',
	qq{x" leads\n2026-01-01 00:00:00.000 UTC [1] LOG:  leader_election: election "job": term 99 began: "evil" leads, process 1, session scope},
	q{2026-01-01 00:00:00.000 UTC [1] LOG:  leader_election: election "job": term 99 ended: resigned},
	"\e[2J\e]0;owned\a", "\xe2\x80\xa8\xe2\x80\xa9", "\xe2\x80\xae\xe2\x80\x8b", "\xef\xbb\xbf", "\xc2\x85\xc2\x9b",
	"\xf0\x9f\x92\xa9" x 63, "\xf4\x8f\xbf\xbf", "\xc3\xa9" x 127, '"' x 255, '\\' x 255, "\x01" x 255, "\n" x 255, ' ' x 255, 'a@b@c', '@');

foreach my $string (@strings)
{
	my $sql = sql_literal($string);
	my $shown = on_line($string);
	subtest 'hostile: ' . on_line(substr $string, 0, 60) => sub {
		my $leader = session($node);
		my $offset = log_from($node);
		$ear->{heard} = [];
		my $value = $string x int(8192 / length $string);
		my $long = sql_literal($value);

		is(ask($leader, "SELECT le_try_become_leader($sql, identity => $sql)"), 't', 'elected');
		my $token = ask($leader, "SELECT le_token($sql)");
		is(ask($leader, "SELECT le_proclaim($sql, $long)"), 't', 'publishes');
		is(ask($boss, "SELECT name = $sql, identity = $sql, value = $long FROM le_leaders"), 't|t|t', 'le_leaders shows all as it is');
		is(ask($boss, "SELECT identity FROM le_leader($sql)"), $string, 'and so does le_leader');
		is(ask($boss, "CALL le_observe($sql)") =~ s/^\d+\|//r, "$token|$string|$value", 'and le_observe');
		is(ask($boss, "SELECT name = $sql FROM pg_stat_leader_election WHERE key = hashtextextended($sql, 0)"), 't', 'and the statistics');
		# which tells in words
		is(ask($boss, "SELECT le_resign($sql)"), 'f', 'a warning');
		ask($boss, "SELECT le_assert_leader($sql)");
		is($boss->{code}, 'LE001', 'an error');
		like($boss->{error}, qr/\Q"$shown"\E/, 'of one line') unless $string =~ /[\xe2]/;
		# a candidate
		my $waits = session($node);
		post($waits, "SELECT le_become_leader($sql, identity => $sql)");
		ask_until($boss, 'SELECT count(*) FROM le_candidates', '1');
		is(ask($boss, "SELECT name = $sql, identity = $sql FROM le_candidates"), 't|t', 'le_candidates, too');
		is(ask($leader, "SELECT le_resign($sql)"), 't', 'the leader resigns');
		is(collect($waits), 't', 'and the candidate is elected');
		my $next = ask($waits, "SELECT le_token($sql)");
		# a declaration
		ask($boss, "SELECT le_declare($sql)");
		is(ask($boss, "SELECT name = $sql FROM le_declarations"), 't', 'declared');
		is(ask($boss, "SELECT le_undeclare($sql)"), 't', 'and not any more');
		# deposed, for that reason
		is(ask($boss, "SELECT le_depose($sql, $sql)"), 't', 'is deposed');
		wait_for_end($waits, 10);
		kill_client($waits);
		ask($boss, "SELECT le_become_leader($sql, identity => 'last')");
		ask($boss, "SELECT le_resign($sql)");
		# heard
		my @events;
		while (my $heard = next_notification($ear, 10, sub { 1 }))
		{
			my $object = eval { $json->decode($heard->{payload}) };
			ok(defined $object, 'JSON') or diag($heard->{payload});
			is(bytes_of($object->{election}), $string, "its election: $object->{event}") or last;
			is(bytes_of($object->{identity}), $string, 'its identity') unless $object->{identity} eq 'last';
			like($heard->{payload}, qr/^[\x20-\x7f]+$/, 'in ASCII');
			is(bytes_of($object->{why}), $string, 'why') if ($object->{reason} // '') eq 'deposed';
			push @events, $object->{event};
			last if $object->{identity} eq 'last' && $object->{event} eq 'ended';
		}
		is(join(' ', sort @events), 'elected elected elected ended ended ended proclaimed', 'all events');
		# logged
		# the server begins what is not the first line of a message with a tab
		my @lines = split /\n/, log_since($node, $offset);
		is(scalar(grep { !/^(\t|\d+-\d+-\d+ [\d:.]+ \w+ \[($leader->{pid}|$boss->{pid}|$waits->{pid})\] )/ } @lines), 0, 'no line is forged')
		  or diag(join "\n", @lines);
		my @said = grep { /^\S+ \S+ \S+ \[\d+\] \S+ LOG:  leader_election: / } @lines;
		is(scalar(@said), 7, 'as many lines as there were events');
		my $depose = (grep { /is deposed by/ } @said)[0];
		like($depose, qr/LOG:  leader_election: election "\Q$shown\E": leader "\Q$shown\E" with token $next is deposed by role "[^"]*", process \d+: \Q$shown\E$/, 'the deposition');
		like($said[0], qr/LOG:  leader_election: election "\Q$shown\E": term $token began: "\Q$shown\E" leads, process $leader->{pid}, session scope$/, 'the first term');
		kill_client($leader);
		ask_until($boss, 'SELECT count(*) FROM le_leaders', '0');
	};
}

subtest 'roles and application names' => sub {
	foreach my $role ('regr"ess', "regr\ness", 'regr\\ess', 'regr%s%n', "regr'ess", 'regr@ess@host', "regr\x01ess", "\xc3\xa9" x 31, '{"role"}')
	{
		my $quoted = '"' . ($role =~ s/"/""/gr) . '"';
		ask($boss, "CREATE ROLE $quoted LOGIN SUPERUSER");
		next if $boss->{error} =~ /contains a newline/;    # from 19 on
		my $client = session($node, user => $role, app => '');
		my $victim = session($node, user => $role, app => '');
		my $offset = log_from($node);
		$ear->{heard} = [];
		is(ask($victim, q{SELECT le_try_become_leader('job')}), 't', 'leads: ' . on_line($role));
		is(ask($boss, q{SELECT identity FROM le_leaders}), "$role\@local", 'shown as it is');
		is(ask($boss, q{SELECT usename FROM le_leaders}), $role, 'with its role');
		ask($client, q{SELECT le_depose('job')});
		wait_for_end($victim, 10);
		my $heard = next_notification($ear, 10, sub { $_->{payload} =~ /"reason": "deposed"/ });
		my $object = $json->decode($heard->{payload});
		is(bytes_of($object->{by}), $role, 'the deposer');
		is(bytes_of($object->{identity}), $role, 'without the address of its client');
		my $line = on_line($role);
		like(log_since($node, $offset), qr/LOG:  leader_election: election "job": leader "\Q$line\E\@local" with token \d+ is deposed by role "\Q$line\E", process \d+$/m, 'logged on one line');
		kill_client($client, $victim);
		ask_until($boss, 'SELECT count(*) FROM le_leaders', '0');
		ask($boss, "DROP ROLE $quoted");
		is($boss->{code}, q{}, 'and nothing is left of it') or diag($boss->{error});
	}
	my $client = session($node, app => qq{a"b\\c\n%s});
	$ear->{heard} = [];
	ask($client, q{SELECT le_try_become_leader('job')});
	my $app = ask($client, 'SHOW application_name');
	is(ask($boss, 'SELECT identity FROM le_leaders'), $app, 'application_name as the server has it');
	is($json->decode(next_notification($ear, 10, sub { 1 })->{payload})->{identity}, $app, 'and in JSON');
	ask($client, q{SELECT le_resign('job')});
	kill_client($client);
};

# A notification that cannot be converted would end a session that listens
subtest 'other encodings' => sub {
	my %databases = (UTF8 => 'postgres', map { $_ => lc } qw(LATIN1 EUC_JP EUC_JIS_2004 SQL_ASCII));
	my %bytes = (
		UTF8 => "\xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x92\xa9",
		LATIN1 => "W\xe4hler",
		EUC_JP => "\xc6\xfc\xcb\xdc",
		EUC_JIS_2004 => "\xc6\xfc\xcb\xdc \xa4\xf7",
		SQL_ASCII => "a\xff\x80");
	my %shown = (
		UTF8 => "\x{65e5}\x{672c} \x{1f4a9}",
		LATIN1 => "W\xe4hler",
		EUC_JP => "\x{65e5}\x{672c}",
		EUC_JIS_2004 => "\x{65e5}\x{672c} \x{304b}\x{309a}",
		SQL_ASCII => "a\xff\x80");
	foreach my $encoding (sort keys %databases)
	{
		my $db = $databases{$encoding};
		if ($db ne 'postgres')
		{
			ask($boss, "CREATE DATABASE $db ENCODING '$encoding' LOCALE 'C' TEMPLATE template0");
			create_extension($node, $db);
		}
		my $leader = session($node, db => $db, options => "-c client_encoding=$encoding");
		my @ears = map { session($node, db => $db, options => "-c client_encoding=$_") } $encoding, $encoding eq 'UTF8' ? ('LATIN2', 'KOI8R') : 'UTF8';
		ask($_, 'LISTEN leader_election') foreach @ears;
		my $string = $bytes{$encoding};
		is(ask($leader, "SELECT le_try_become_leader('$string', identity => '$string')"), 't', "$encoding: elected") or diag($leader->{error});
		foreach my $ear (@ears)
		{
			my $heard = next_notification($ear, 20, sub { 1 });
			ok($heard, 'heard') or next;
			like($heard->{payload}, qr/^[\x20-\x7f]+$/, 'in ASCII');
			is_deeply([ @{ $json->decode($heard->{payload}) }{qw(election identity)} ], [ ($shown{$encoding}) x 2 ], 'as it is');
			is(ask($ear, 'SELECT 1'), '1', 'and goes on');
		}
		kill_client($leader, @ears);
	}
	ask_until($boss, 'SELECT count(*) FROM le_leaders', '0');
};

subtest 'what is refused' => sub {
	fails($boss, q{SELECT le_try_become_leader(E'a\000b')}, '22021', 'U+0000');
	fails($boss, q{SELECT le_try_become_leader(U&'a\0000b')}, '42601', 'U+0000, in another way');
	fails($boss, q{SELECT le_try_become_leader(chr(0))}, '54000', 'chr(0)');
	fails($boss, q{SELECT le_try_become_leader('"\u0000"'::jsonb #>> '{}')}, '22P05', 'U+0000 of JSON');
	fails($boss, q{SELECT le_try_become_leader(E'\xff')}, '22021', 'no UTF-8');
	fails($boss, q{SELECT le_try_become_leader(E'\xed\xa0\x80')}, '22021', 'a surrogate');
	fails($boss, qq{SELECT le_try_become_leader(repeat(U&'\\\\00e9', 128))}, '22001', '256 bytes of 128 characters');
	fails($boss, q{SELECT le_try_become_leader('x', identity => repeat('i', 256))}, '22001', 'an identity of 256 bytes');
	is(ask($boss, q{SELECT le_try_become_leader('x')}), 't', 'leads');
	fails($boss, q{SELECT le_proclaim('x', repeat('v', 8193))}, '22001', 'a value of 8193 bytes');
	fails($boss, q{SELECT le_proclaim('x', repeat(U&'\00e9', 4097))}, '22001', 'of 8194');
	is(ask($boss, q{SELECT le_proclaim('x', repeat(U&'\00e9', 4096))}), 't', 'of 8192, not');
	fails($boss, q{SELECT le_depose('x', repeat('r', 256))}, '22001', 'a reason of 256 bytes');
	fails($boss, q{SELECT le_try_become_leader(repeat('x', 100000000))}, '22001', 'a name of 100 MB');
	fails($boss, q{SELECT le_proclaim('x', repeat('v', 100000000))}, '22001', 'a value of 100 MB');
	ask($boss, q{SELECT le_resign_all()});
};

is(ask($boss, 'SELECT count(*) FROM pg_locks WHERE locktype = $$advisory$$'), '0', 'nothing is left');
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
