# The ways to switch the extension off, as doc/administration.md has them: each command is taken from
# that page and run, and programs get what its table says.  What it says of switching on again
# holds, too.  A candidate that waits is not forgotten, and nothing is left that leads.
#
# Nothing runs in a server that has preloaded the library and is not called.
#
# alone: it replaces the installed library

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my ($page) = slurp_file('doc/administration.md') =~ /^## Switching Off\n(.*?)^## /ms or die 'the page has no such section';
my ($block) = $page =~ /^```sql skip=t\/008_switch_off.pl runs it\n(.*?)^```$/ms or die 'the page has no commands';
my %commands = $block =~ /^-- (\d+)\. [^\n]*\n((?:(?!-- \d)[^\n]*\n)+)/mg;
my %rows = map { $_->[0] => $_ } map { [ /^\| (\d+) \| (.*?) \| (.*?) \|$/ ] } grep { /^\| \d+ \|/ } split /\n/, $page;
my %tried;

my $node = new_server('switch_off', extension => 0);
my $library = $node->safe_psql('postgres', q{SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR'}) . '/leader_election.so';
my $aside = $node->basedir . '/leader_election.so';
$node->safe_psql('postgres', 'CREATE ROLE app LOGIN');

END
{
	my $status = $?;
	system('mv', $aside, $library) if defined $aside && -e $aside;
	$? = $status;
}

# As psql runs it in the database, as a superuser; the library is put aside in the test's own folder
sub run_commands
{
	my ($commands) = @_;
	my $folder = $node->basedir;
	my ($status, undef, $errors) = $node->psql('shop', $commands =~ s{/var/tmp/}{$folder/}gr, on_error_stop => 1);

	is($status, 0, 'each command succeeds') or diag($errors);
	return;
}

sub app { return session($node, db => 'shop', user => 'app', app => $_[0]); }

# The SQLSTATE of the statement, or nothing
sub code
{
	my ($client, $sql) = @_;
	my $fresh = $client // app('fresh');

	ask($fresh, $sql);
	my $code = $fresh->{closed} && !$fresh->{code} ? 'closed' : $fresh->{code};
	end_session($fresh) unless $client;
	return $code;
}

# What a role gets that bids
sub bid_code { return code(undef, qq{SELECT le_try_become_leader('$_[0]')}); }

# Of a program that leads or waits: its session has been terminated
sub is_terminated
{
	my ($client, $test) = @_;

	wait_for_end($client);
	is($client->{code}, '57P01', $test);
	return;
}

# Nothing of a role leads any more
sub nothing_leads
{
	my ($where) = @_;
	is($node->safe_psql('shop', "SELECT count(*) FROM le_leaders WHERE $where"), '0', "nothing leads: $where");
	return;
}

# Make the database anew, let programs lead in each scope and wait, switch off by this way, and on again
sub way
{
	my ($number, $check, $check_again) = @_;

	$tried{$number} = 1;
	$node->safe_psql('postgres', 'DROP DATABASE IF EXISTS shop WITH (FORCE)');
	$node->safe_psql('postgres', 'CREATE DATABASE shop');
	create_extension($node, 'shop');
	$node->safe_psql('shop', q{
GRANT CREATE ON SCHEMA public TO app;
CREATE TABLE invoice (id integer);
CREATE TRIGGER only_the_leader BEFORE INSERT ON invoice EXECUTE FUNCTION le_guard('scheduler');
GRANT ALL ON invoice TO app});
	my %clients = map { $_ => app($_) } qw(leader holder candidate pooled);
	is(ask($clients{leader}, q{SELECT le_try_become_leader('scheduler')}), 't', 'one leads');
	my $token = lease_take($clients{holder}, 'mailer', '1 h');
	post($clients{candidate}, q{CALL le_campaign('scheduler')});
	wait_until_waiting($node, $clients{candidate}{pid}, 'shop');
	is(ask($clients{pooled}, q{SELECT le_try_become_leader('scheduler')}), 'f', 'one has bid');

	run_commands($commands{$number});
	my @codes = $check->(\%clients, $token);
	like($rows{$number}[1] =~ s/as (\d)/$rows{$1}[1]/r, qr/$_/, "the page tells of $_") foreach @codes;

	$check_again->();
	leave(values %clients);
	return;
}

# What the page says to switch on again, by psql
sub switch_on
{
	my ($number) = @_;
	run_commands(join '', map { /^\\/ ? "$_\n" : "$_;\n" } $rows{$number}[2] =~ /`([^`]*)`/g);
	return;
}

sub elects_again
{
	my $client = app('again');
	ok($node->poll_query_until('shop', q{SELECT NOT EXISTS (SELECT FROM le_leaders WHERE name = 'scheduler')}), 'vacant');
	is(ask($client, q{SELECT le_try_become_leader('scheduler')}), 't', 'elected again');
	end_session($client);
	return;
}

subtest 'one election' => sub {
	way(1, sub {
		my ($clients) = @_;
		is_terminated($clients->{$_}, "$_: terminated") foreach 'leader', 'candidate';
		nothing_leads(q{name = 'scheduler'});
		is(bid_code('scheduler'), '42501', 'a bid');
		is(code($clients->{pooled}, q{SELECT le_try_become_leader('scheduler')}), '42501', 'a bid of a session that was there');
		is(bid_code('another'), '', 'another election');
		return ('57P01', '42501');
	}, sub { switch_on(1); elects_again(); });
};

subtest 'one role' => sub {
	way(2, sub {
		my ($clients, $token) = @_;
		is_terminated($clients->{$_}, "$_: terminated") foreach 'leader', 'candidate', 'holder', 'pooled';
		nothing_leads(q{usename = 'app'});
		is(bid_code($_), '42501', "a bid, $_") foreach 'scheduler', 'another';
		is(code(undef, "SELECT le_assert_leader('mailer', $token)"), 'LE001', 'a guard by the token');
		my $other = session($node, db => 'shop');
		is(ask($other, q{SELECT le_try_become_leader('scheduler')}), 't', 'another role');
		end_session($other);
		return ('57P01', '42501', 'LE001');
	}, sub { switch_on(2); elects_again(); });
};

subtest 'one database' => sub {
	way(3, sub {
		my ($clients, $token) = @_;
		is_terminated($clients->{$_}, "$_: terminated") foreach 'leader', 'candidate', 'holder', 'pooled';
		nothing_leads('true');
		is(bid_code($_), '42501', "a bid, $_") foreach 'scheduler', 'another';
		is(code(undef, "SELECT le_assert_leader('mailer', $token)"), 'LE001', 'a guard by the token');
		return ('57P01', '42501', 'LE001');
	}, sub { switch_on(3); elects_again(); });
};

subtest 'all databases' => sub {
	way(4, sub {
		my ($clients) = @_;
		is_terminated($clients->{$_}, "$_: terminated") foreach 'leader', 'candidate';
		nothing_leads('true');
		is(bid_code('another'), '42501', 'a bid');
		ask_until($clients->{pooled}, q{SHOW leader_election.declared_only}, 'on');
		is(code($clients->{pooled}, q{SELECT le_try_become_leader('another')}), '42501', 'a bid of a session that was there');
		$node->safe_psql('shop', q{SELECT le_declare('declared')});
		is(bid_code('declared'), '', 'a declared election stays open');
		return ('57P01', '42501');
	}, sub {
		switch_on(4);
		my $client = app('again');
		ask_until($client, q{SELECT le_am_leader('x'), current_setting('leader_election.declared_only')}, 'f|off');
		end_session($client);
		elects_again();
	});
};

subtest 'a guard' => sub {
	my $write = 'INSERT INTO invoice VALUES (1)';
	way(5, sub {
		my ($clients) = @_;
		is(code(undef, $write), '', 'a write by a program that does not lead');
		is(code(undef, q{SELECT le_assert_leader('scheduler')}), 'LE001', 'le_assert_leader');
		return ('LE001');
	}, sub { switch_on(5); is(code(undef, $write), 'LE001', 'the guard is back'); });
};

SKIP:
{
	skip 'the library cannot be replaced where it is installed', 1 unless -w $library;

	subtest 'the library' => sub {
		way(6, sub {
			my ($clients) = @_;
			is_terminated($clients->{$_}, "$_: terminated") foreach keys %$clients;
			is(bid_code('scheduler'), '58P01', 'a bid');
			is(code(undef, 'TABLE le_leaders'), '58P01', 'a view');
			is(code(undef, 'INSERT INTO invoice VALUES (1)'), '58P01', 'a write to a guarded table');
			is(code(undef, 'SELECT 1'), '', 'anything else');
			$node->command_ok([ 'pg_dump', '-f', $node->basedir . '/dump.sql', $node->connstr('shop') ], 'a dump');
			return ('57P01', '58P01');
		}, sub { switch_on(6); elects_again(); });
	};
}
$tried{6} = 1;

subtest 'the extension' => sub {
	way(7, sub {
		my ($clients) = @_;
		is(bid_code('scheduler'), '42883', 'a bid');
		is(code($clients->{leader}, q{SELECT le_am_leader('scheduler')}), '42883', 'the leader asks');
		is(code(undef, 'INSERT INTO invoice VALUES (1)'), '', 'a write to a table that was guarded');
		return ('42883');
	}, sub {
		switch_on(7);
		is($node->safe_psql('shop', q{SELECT count(*) FROM le_leaders WHERE name = 'mailer'}), '0', 'the lease is over');
		is(bid_code('mailer'), '', 'a bid');
	});
};

is(join(' ', sort keys %commands), join(' ', sort keys %tried), 'each way of the page is tried');
is(join(' ', sort keys %rows), join(' ', sort keys %commands), 'and has its row');

subtest 'a server that has preloaded the library, and is not called' => sub {
	# what the server's processes are, and that no hook is set, shows in the processes that there are
	my $processes = q{SELECT string_agg(DISTINCT backend_type, ',' ORDER BY backend_type) FROM pg_stat_activity WHERE backend_type NOT LIKE 'autovacuum%'};
	my $memory = q{SELECT count(*) FROM pg_shmem_allocations WHERE name ILIKE '%leader%'};
	$node->restart;
	my $without = $node->safe_psql('postgres', $processes);
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'leader_election'\n");
	$node->restart;
	is($node->safe_psql('postgres', $processes), $without, 'no process more');
	is($node->safe_psql('postgres', $memory), '0', 'no shared memory');
	my $session = session($node);
	ask($session, 'CREATE TABLE plain (i integer)', 'INSERT INTO plain VALUES (1)');
	is($session->{messages}, '', 'plain work');
	is(ask($session, $memory), '0', 'and still none');
	end_session($session);

	fails_without_file() if -w $library;
};

# Without its file, a server that preloads it does not start: the page warns of that
sub fails_without_file
{
	$node->stop;
	rename $library, $aside or die "$library: $!";
	ok(!$node->start(fail_ok => 1), 'the server does not start without the file');
	$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', "''");
	ok($node->start(fail_ok => 1), 'it does without the setting');
	rename $aside, $library or die "$aside: $!";
	return;
}

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
