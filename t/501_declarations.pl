# Declarations are kept: in a dump, over a restart, a crash and a promotion.  A
# session that bids already in the place where they arrive obeys them.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('declarations', allows_streaming => 1,
	conf => "autovacuum = off\nmax_wal_senders = 5\n");

# What does not go unquoted into SQL, or into COPY.  A role cannot have a line feed in its
# name from 19 on.
my @roles = ('regress odd', 'regress "quoted"', q{regress 'single'}, 'regress \\back', "regress\ttab",
	"regr\xc3\xa9ss", 'REGRESS', '12345', '-', '\N', 'null', 'regress.dot', '%s%n', '{regress}',
	'r' x 63);
push @roles, "regress\nline" if sql('SHOW server_version_num') < 190000;
my @names = ('job', '\N', '\.', "tab\there", "line\nhere", 'back\\slash', q{'; DROP TABLE x; --}, '"', ' ',
	"\xf0\x9f\x98\x80", "\xc3\xa9" x 127, 'x' x 255, "\x01\x7f");

sub sql
{
	my ($sql, $db) = @_;
	return $node->safe_psql($db // 'postgres', $sql);
}

# All of them, in an order of their own
my $all = q{SELECT encode(convert_to(name, 'UTF8'), 'hex'), candidates, grace, max_ttl, private
FROM le_declarations ORDER BY name};

sub role { return '"' . ($_[0] =~ s/"/""/gr) . '"'; }

sql('CREATE ROLE regress_team; CREATE ROLE regress_stranger LOGIN; CREATE ROLE regress_member LOGIN IN ROLE regress_team');
foreach my $role (@roles)
{
	sql('CREATE ROLE ' . role($role) . ' LOGIN');
	sql('SELECT le_declare(' . sql_literal("for $role") . ', (SELECT oid FROM pg_roles WHERE rolname = ' . sql_literal($role) . '), private => true)');
}
sql('SELECT le_declare(' . sql_literal($_) . q{, 'regress_team', '1 s', '1 min 0.5 s', true)}) foreach @names;
# one for a role that has no members any more
sql(q{CREATE ROLE regress_gone; SELECT le_declare('for who is gone', 'regress_gone', private => true); DROP ROLE regress_gone});
my $declared = sql($all);
is(scalar(split /\n/, sql('SELECT 1 FROM le_declarations')), @roles + @names + 1, 'all are declared');

# They hold there: strangers are shut out, of all elections, members are not
sub hold
{
	my ($there, $test, $db) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	subtest $test => sub {
		my $stranger = session($there, db => $db, user => 'regress_stranger');
		my $member = session($there, db => $db, user => 'regress_member');
		foreach my $name (@names)
		{
			my $bid = 'SELECT le_try_become_leader(' . sql_literal($name) . ')';
			fails($stranger, $bid, '42501', "a stranger may not bid for: $name");
			# in another database, after a grace period
			is(ask($member, 'SELECT le_become_leader(' . sql_literal($name) . q{, '10 s')}), 't', 'a member may');
			ask($member, 'SELECT le_resign_all()');
		}
		foreach my $role (@roles)
		{
			my $bid = 'SELECT le_try_become_leader(' . sql_literal("for $role") . ')';
			fails($stranger, $bid, '42501', "nor for that of role: $role");
		}
		fails($_, q{SELECT le_try_become_leader('for who is gone')}, '42501', 'nor any role for that of a role that is gone') foreach $stranger, $member;
		my $boss = session($there, db => $db);
		foreach my $role (@roles)
		{
			ask($boss, 'SET ROLE ' . role($role));
			is(ask($boss, 'SELECT le_try_become_leader(' . sql_literal("for $role") . ')'), 't', "the role itself may: $role");
			fails($boss, q{SELECT le_try_become_leader('job')}, '42501', 'but not for another');
			ask($boss, 'RESET ROLE; SELECT le_resign_all()');
		}
		is(ask($boss, $all), $declared, 'all of them');
		kill_client($stranger, $member, $boss);
	};
	return;
}

hold($node, 'here', 'postgres');

# Sessions that bid there before the dump arrives hear of it
foreach my $case ([ 'plain', 0 ], [ 'plain', 1 ], [ 'custom', 0 ], [ 'custom', 1 ], [ 'plain', 0, '-a' ], [ 'custom', 1, '-a' ], [ 'custom', 1, '-a', '--disable-triggers' ], [ 'directory', 1, '-a', '-j', '2' ])
{
	my ($format, $bids_there, @options) = @$case;
	my $db = 'there' . ++(our $n);
	my $how = join ' ', $format, $bids_there ? 'where a session bids' : (), @options;
	my $dump = $node->basedir . "/$db.dump";
	my $early;

	subtest "a dump: $how" => sub {
		sql("CREATE DATABASE $db TEMPLATE template0");
		my $data_only = grep { $_ eq '-a' } @options;
		my @jobs = grep { /^-j|^\d/ } @options;
		create_extension($node, $db) if $bids_there || $data_only;
		if ($bids_there)
		{
			$early = session($node, db => $db, user => 'regress_stranger');
			is(ask($early, q{SELECT le_try_become_leader('job'), le_resign('job')}), 't|t', 'a stranger leads there');
			ask($early, 'BEGIN ISOLATION LEVEL REPEATABLE READ');
			ask($early, 'SELECT count(*) FROM le_declarations');
		}
		$node->command_ok([ 'pg_dump', '-F', substr($format, 0, 1), '-f', $dump, @options[ 0 .. ($data_only ? 0 : -1) ], '-d', $node->connstr('postgres') ], 'dumped');
		$node->command_ok($format eq 'plain'
			? [ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db), '-f', $dump ]
			: [ 'pg_restore', '-e', @options, '-d', $node->connstr($db), $dump ], 'restored');
		if ($bids_there)
		{
			fails($early, q{SELECT le_try_become_leader('job')}, '42501', 'in the same transaction, it is shut out');
			ask($early, 'ROLLBACK');
			fails($early, q{SELECT le_try_become_leader('job')}, '42501', 'and after it');
			kill_client($early);
		}
		hold($node, 'they hold', $db);
		sql("DROP DATABASE $db WITH (FORCE)");
	};
}

subtest 'a copy of the database' => sub {
	sql('CREATE DATABASE model');
	create_extension($node, 'model');
	sql(q{SELECT le_declare('job', 'regress_team')}, 'model');
	sql('CREATE DATABASE copy TEMPLATE model');
	my $there = session($node, db => 'copy', user => 'regress_stranger');
	fails($there, q{SELECT le_try_become_leader('job')}, '42501', 'they hold there');
	sql('DELETE FROM _le_declarations', 'model');
	fails($there, q{SELECT le_try_become_leader('job')}, '42501', 'each database has its own');
	sql(q{SELECT le_undeclare('job')}, 'copy');
	is(ask($there, q{SELECT le_try_become_leader('job')}), 't', 'heard');
	kill_client($there);
};

subtest 'DROP and CREATE EXTENSION' => sub {
	my $there = session($node, db => 'copy', user => 'regress_stranger');
	my $waits = session($node, db => 'copy', user => 'regress_stranger');
	my $boss = session($node, db => 'copy');
	ask($boss, q{SELECT le_declare('job', 'regress_team')});
	fails($there, q{SELECT le_try_become_leader('job')}, '42501', 'declared');
	ask($boss, q{SELECT le_try_become_leader('other')});
	post($waits, q{SELECT le_become_leader('other')});
	ask_until($boss, q{SELECT count(*) FROM le_candidates}, '1');
	ask($boss, 'DROP EXTENSION leader_election; CREATE EXTENSION leader_election');
	is(ask($boss, 'SELECT count(*) FROM le_declarations'), '0', 'a new extension has none');
	is(ask($there, q{SELECT le_try_become_leader('job'), le_resign('job')}), 't|t', 'the stranger is no longer shut out');
	ask($boss, q{SELECT le_declare('job', 'regress_team'); SELECT le_declare('other', 'regress_team')});
	fails($there, q{SELECT le_try_become_leader('job')}, '42501', 'until it is declared there');
	ask($boss, q{SELECT le_resign('other')});
	collect($waits);
	is($waits->{code}, '42501', 'also for a session that waited meanwhile');
	ask($boss, 'BEGIN; DROP EXTENSION leader_election');
	ask($boss, 'ROLLBACK');
	fails($there, q{SELECT le_try_become_leader('job')}, '42501', 'they stay after a rollback');
	ask($boss, 'CREATE SCHEMA other; ALTER EXTENSION leader_election SET SCHEMA other; GRANT USAGE ON SCHEMA other TO PUBLIC');
	fails($there, q{SELECT other.le_try_become_leader('job')}, '42501', 'and in another schema');
	ask($boss, q{SELECT other.le_undeclare('job')});
	is(ask($there, q{SELECT other.le_try_become_leader('job')}), 't', 'where they can be changed');
	kill_client($there, $waits, $boss);
};

foreach my $mode ('fast', 'immediate')
{
	# the last one just before the end
	sql(q{SELECT le_declare('last', 'regress_team', private => true)});
	$node->stop($mode);
	$node->start;
	my $stranger = session($node, user => 'regress_stranger');
	fails($stranger, q{SELECT le_try_become_leader('last')}, '42501', "after $mode they hold");
	kill_client($stranger);
	sql(q{SELECT le_undeclare('last')});
	hold($node, "all, after $mode", 'postgres');
}

subtest 'settings that ordinary roles cannot turn off' => sub {
	sql('ALTER DATABASE copy SET leader_election.declared_only = on');
	foreach my $how ('startup', 'startup and SET', 'SET', 'set_config', 'ALTER ROLE', 'CREATE FUNCTION')
	{
		my $client = session($node, db => 'copy', user => 'regress_stranger',
			$how =~ /^startup/ ? (options => '-c leader_election.declared_only=off -c leader_election.grace_period=0') : ());
		ask($client, 'SET leader_election.declared_only = off') if $how =~ /SET$/;
		ask($client, q{SELECT set_config('leader_election.declared_only', 'off', false)}) if $how eq 'set_config';
		if ($how eq 'ALTER ROLE')
		{
			ask($client, 'ALTER ROLE regress_stranger SET leader_election.declared_only = off');
			is($client->{code}, '42501', 'not even for itself');
			kill_client($client);
			$client = session($node, db => 'copy', user => 'regress_stranger');
		}
		if ($how eq 'CREATE FUNCTION')
		{
			ask($client, q{CREATE FUNCTION pg_temp.f() RETURNS boolean LANGUAGE sql SET leader_election.declared_only = off AS $$ SELECT other.le_try_become_leader('any') $$});
			ask($client, 'SELECT pg_temp.f()');
			isnt($client->{code}, '', 'no function does');
		}
		fails($client, q{SELECT other.le_try_become_leader('any')}, '42501', "before the module is loaded: $how");
		if ($how =~ /^startup/)
		{
			like($client->{error}, qr/permission denied to set parameter "leader_election.declared_only"/, 'its setting is refused');
		}
		else
		{
			is(ask($client, 'SHOW leader_election.declared_only'), 'on', 'it is on');
		}
		kill_client($client);
	}
	my $boss = session($node, db => 'copy', options => '-c leader_election.declared_only=off');
	is(ask($boss, q{SELECT other.le_try_become_leader('any')}), 't', 'but a superuser may');
	kill_client($boss);
	sql('ALTER DATABASE copy RESET leader_election.declared_only');
};

# A role that is created with the name of a dropped one is not the same
# candidate here.  Where the dump is restored, only the name is known
subtest 'a role that has the name of another' => sub {
	sql('CREATE ROLE regress_gone LOGIN; CREATE DATABASE elsewhere TEMPLATE template0');
	my $dump = $node->basedir . '/elsewhere.dump';
	my $bid = q{SELECT le_try_become_leader('for who is gone')};
	my $here = session($node, user => 'regress_gone');
	fails($here, $bid, '42501', 'it may not bid where another was declared');
	fails($here, q{CALL le_observe('for who is gone')}, '42501', 'nor observe');
	$node->command_ok([ 'pg_dump', '-F', 'c', '-f', $dump, '-d', $node->connstr('postgres') ], 'dumped');
	$node->command_ok([ 'pg_restore', '-e', '-d', $node->connstr('elsewhere'), $dump ], 'restored');
	my $there = session($node, db => 'elsewhere', user => 'regress_gone');
	is(ask($there, 'SELECT le_become_leader($$for who is gone$$, $$10 s$$)'), 't', 'it may elsewhere');
	kill_client($here, $there);
	sql('DROP DATABASE elsewhere WITH (FORCE)');
	$node->restart;
	$here = session($node, user => 'regress_gone');
	fails($here, $bid, '42501', 'nor may it after a restart');
	kill_client($here);
	sql('DROP ROLE regress_gone');
};

subtest 'a standby' => sub {
	$node->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	my $early = session($standby, user => 'regress_stranger');
	my $boss = session($standby);
	is(ask($boss, $all), $declared, 'sees them');
	sql(q{SELECT le_declare('late', 'regress_team', '1 s', '2 s', true)});
	sql(q{CALL le_campaign('late', '1 min', ttl => '2 s')});
	$node->wait_for_catchup($standby, 'replay', $node->lsn('flush'));
	is(ask($boss, q{SELECT candidates, private FROM le_declarations WHERE name = 'late'}), 'regress_team|t', 'and new ones');
	is(ask($early, q{SELECT name, value IS NULL FROM le_leaders}), 'late|t', 'and the lease');
	foreach my $client ($early, $boss)
	{
		fails($client, q{SELECT le_try_become_leader('late')}, '25006', 'but elects no leader');
		fails($client, q{CALL le_observe('late')}, '25006', 'nor shows the leader');
	}
	fails($boss, q{SELECT le_declare('late')}, '25006', 'nor declares');
	fails($boss, q{SELECT le_undeclare('late')}, '25006', 'nor takes back');
	$node->stop('immediate');
	$standby->promote;
	fails($early, q{SELECT le_try_become_leader('late')}, '42501', 'once promoted, it shuts out earlier sessions');
	fails($early, q{CALL le_observe('late')}, '42501', 'also from what is private');
	ask($boss, q{DELETE FROM _le_declarations WHERE name = 'late'});
	$declared = ask($boss, $all);
	hold($standby, 'and all others', 'postgres');
	is(ask($boss, q{SELECT le_declare('new', 'regress_team')}), '', 'can be declared there');
	fails($early, q{SELECT le_try_become_leader('new')}, '42501', 'which is heard');
	kill_client($early, $boss);
	$standby->stop;
	$node->start;
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
