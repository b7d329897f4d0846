# A database owner without superuser rights installs the extension, declares,
# resets, grants that on, dumps and restores.  Others cannot.  What a superuser
# installs gives the owner nothing.  From PostgreSQL 18 on, it need not be in
# the server's own folders.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('trusted', extension => 0);
my $superuser = $node->safe_psql('postgres', 'SELECT current_user');
my $owner = 'Odd owner';
$node->safe_psql('postgres', qq{CREATE ROLE "$owner" LOGIN; CREATE ROLE app LOGIN; CREATE ROLE stranger LOGIN});

# What psql, or another program, does as that role: output, errors
sub as
{
	my ($role, $database, $sql) = @_;
	my ($rc, $out, $err) = $node->psql($database, $sql, extra_params => [ '-U', $role ], on_error_stop => 1, on_error_die => 0);
	return ($out, $err);
}

sub does
{
	my ($role, $database, $sql, $expected, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($out, $err) = as($role, $database, $sql);
	is("$out$err", $expected, $test // "$role: $sql");
	return;
}

sub refused
{
	my ($role, $database, $sql, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($out, $err) = as($role, $database, "\\set VERBOSITY sqlstate\n$sql");
	like($err, qr/ERROR:  42501|WARNING:  01007/, $test // "$role may not: $sql");
	return;
}

sub new_database
{
	my ($name) = @_;
	$node->safe_psql('postgres', qq{CREATE DATABASE $name OWNER "$owner" TEMPLATE template0});
	return $name;
}

# As that role; what it contains
sub dump_as
{
	my ($role, $database, $format) = @_;
	my $file = $node->basedir . "/$database.$format";
	$node->command_ok([ 'pg_dump', '-U', $role, '-F', $format, '-f', $file, $database ], "$role dumps $database, format $format");
	return $file;
}

# As that role, stopping at the first error
sub restore_as
{
	my ($role, $database, $file) = @_;
	my @command = $file =~ /c$/
	  ? ('pg_restore', '-e', '-U', $role, '-d', $database, $file)
	  : ('psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-U', $role, '-d', $database, '-f', $file);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->command_checks_all(\@command, 0, [qr//], [qr/\A\z/], "$role restores it into $database");
	return;
}

# The rights on what is not public, and what pg_dump takes for those of the
# installation
my $rights = q{
SELECT string_agg(format('%s %s', object, rights), E'\n' ORDER BY object COLLATE "C"), bool_and(same)
FROM (
	SELECT p.oid::regprocedure::text AS object, p.proacl AS acl, i.initprivs
	FROM pg_proc p LEFT JOIN pg_init_privs i ON i.objoid = p.oid AND i.classoid = 'pg_proc'::regclass
	WHERE p.proname IN ('le_declare', 'le_undeclare', 'pg_stat_leader_election_reset')
	UNION ALL
	SELECT c.oid::regclass::text, c.relacl, i.initprivs
	FROM pg_class c LEFT JOIN pg_init_privs i ON i.objoid = c.oid AND i.classoid = 'pg_class'::regclass
	WHERE c.relname IN ('_le_declarations', 'le_leases', '_le_once_done', 'le_token_seq', 'le_lease_origin_seq')) o,
	LATERAL (SELECT coalesce(string_agg(format('%s:%s%s', CASE WHEN grantee = 0 THEN 'public' ELSE grantee::regrole::text END, privilege_type,
		CASE WHEN is_grantable THEN '*' END), ' ' ORDER BY grantee::regrole::text, privilege_type), '') AS rights
		FROM aclexplode(acl) WHERE pg_get_userbyid(grantee) <> 'SUPERUSER') r,
	LATERAL (SELECT acl IS NOT DISTINCT FROM initprivs AS same) s} =~ s/SUPERUSER/$superuser/r;

subtest 'the owner of a database installs it' => sub {
	my $db = new_database('mine');
	refused('stranger', $db, 'CREATE EXTENSION leader_election');
	does($owner, $db, 'CREATE EXTENSION leader_election', '', 'installed');
	is($node->safe_psql($db, $rights), qq{_le_declarations "$owner":INSERT "$owner":SELECT pg_database_owner:SELECT
_le_once_done "$owner":DELETE "$owner":INSERT "$owner":SELECT "$owner":UPDATE pg_database_owner:SELECT
le_declare(text,regrole,interval,interval,boolean) "$owner":EXECUTE*
le_lease_origin_seq "$owner":SELECT "$owner":UPDATE pg_database_owner:SELECT
le_leases 
le_token_seq "$owner":SELECT "$owner":UPDATE pg_database_owner:SELECT
le_undeclare(text) "$owner":EXECUTE*
pg_stat_leader_election_reset() "$owner":EXECUTE*|t}, 'and has these rights, which are the installation\'s');
	is($node->safe_psql($db, q{SELECT count(*) FROM pg_depend d
LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'leader_election')
AND coalesce(c.relowner, p.proowner) <> 10}), '0', 'but owns no object');

	does($owner, $db, q{SELECT le_declare('scheduler', 'app', '1 s', '20 s'), le_declare('mailer'), le_declare('other'), le_undeclare('other')}, '|||t');
	does($owner, $db, 'SELECT pg_stat_leader_election_reset()', '');
	does('app', $db, q{SELECT le_try_become_leader('scheduler'), le_resign('scheduler')}, 't|t');
	refused('stranger', $db, q{SELECT le_try_become_leader('scheduler')}, 'stranger may not bid');

	foreach my $statement (q{SELECT le_declare('x')}, q{SELECT le_undeclare('mailer')},
		'SELECT pg_stat_leader_election_reset()', q{INSERT INTO _le_declarations (name) VALUES ('x')}, q{SELECT setval('le_token_seq', 1)},
		'GRANT EXECUTE ON FUNCTION le_undeclare TO app', 'DROP EXTENSION leader_election', 'ALTER EXTENSION leader_election SET SCHEMA pg_temp')
	{
		refused('stranger', $db, $statement);
	}
	does($owner, $db, 'GRANT EXECUTE ON FUNCTION le_declare TO app', '');
	does('app', $db, q{SELECT le_declare('apps own')}, '');
	refused('app', $db, 'GRANT EXECUTE ON FUNCTION le_declare TO stranger');
	refused('app', $db, q{SELECT le_undeclare('mailer')});

	# no more than that: the objects are the superuser's
	foreach my $statement ('DELETE FROM _le_declarations', 'TRUNCATE _le_once_done', 'UPDATE _le_declarations SET private = true', 'TRUNCATE _le_declarations', 'INSERT INTO le_leases SELECT',
		'SELECT FROM le_leases', 'CREATE TRIGGER t BEFORE INSERT ON _le_declarations EXECUTE FUNCTION le_guard()', 'ALTER TABLE _le_declarations DISABLE TRIGGER ALL',
		'CREATE INDEX ON _le_declarations (name)', 'CREATE RULE r AS ON INSERT TO le_declarations DO INSTEAD NOTHING', 'ALTER SEQUENCE le_token_seq RESTART',
		'ALTER EXTENSION leader_election DROP TABLE _le_declarations', 'ALTER FUNCTION le_token(text) SECURITY DEFINER', 'ALTER TABLE _le_declarations OWNER TO CURRENT_USER',
		'GRANT INSERT ON _le_declarations TO app', q{CREATE OR REPLACE FUNCTION le_token(name text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'})
	{
		my ($out, $err) = as($owner, $db, "\\set VERBOSITY sqlstate\n$statement");
		like($err, qr/ERROR:  42501|WARNING:  01007/, "nor may the owner: $statement");
	}
};

# It is there, whole, and its tokens grow on
sub goes_on
{
	my ($db, $token) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->safe_psql($db, q{SELECT string_agg(concat_ws(' ', name, candidates, grace, max_ttl), ', ' ORDER BY name) FROM le_declarations}),
		'apps own, mailer, scheduler app 00:00:01 00:00:20', 'the declarations are there');
	my ($out, $err) = as('app', $db, q{SELECT le_become_leader('scheduler', '1 min'); SELECT le_token('scheduler')});
	is($err, '', 'elected');
	cmp_ok((split /\n/, $out)[1], '>', $token, 'with a greater token');
	refused('stranger', $db, q{SELECT le_try_become_leader('scheduler')}, 'stranger may not bid');
	return;
}

subtest 'and dumps and restores it' => sub {
	my ($out, $err) = as('app', 'mine', q{SELECT le_try_become_leader('scheduler'); SELECT le_token('scheduler')});
	my $token = (split /\n/, $out)[1];
	my $plain = dump_as($owner, 'mine', 'p');
	my $custom = dump_as($owner, 'mine', 'c');
	my @grants = grep { /^(?:GRANT|REVOKE)/ } split /\n/, slurp_file($plain);
	is("@grants", 'GRANT ALL ON FUNCTION public.le_declare(name text, candidates regrole, grace interval, max_ttl interval, private boolean) TO app;', 'what was granted since is dumped');

	foreach my $file ($plain, $custom)
	{
		my $format = substr $file, -1;
		restore_as($owner, new_database("new_$format"), $file);
		goes_on("new_$format", $token);
		does('app', "new_$format", q{SELECT le_declare('x')}, '', 'what was granted is granted there');
		new_database("over_$format");
		does($owner, "over_$format", 'CREATE EXTENSION leader_election', '', 'installed before');
		restore_as($owner, "over_$format", $file);
		goes_on("over_$format", $token);
	}
	# where a superuser restores, the owner is to install it before: so the extension is the owner's
	new_database('by_superuser');
	does($owner, 'by_superuser', 'CREATE EXTENSION leader_election', '', 'installed before');
	restore_as($superuser, 'by_superuser', $plain);
	goes_on('by_superuser', $token);

	does($owner, 'new_p', 'DROP EXTENSION leader_election', '', 'dropped by the owner');
};

subtest 'CREATE on a database suffices' => sub {
	my $db = new_database('creatable');
	$node->safe_psql($db, qq{REVOKE CREATE ON DATABASE $db FROM "$owner"; GRANT CREATE ON DATABASE $db TO stranger});
	does('stranger', $db, 'CREATE SCHEMA mine', '', 'a schema');
	does('stranger', $db, 'CREATE EXTENSION leader_election SCHEMA mine', '', 'and the extension in it');
	does('stranger', $db, q{SELECT mine.le_declare('job')}, '', 'whose creator declares');
};

subtest 'a superuser\'s installation gives the owner nothing' => sub {
	my $db = new_database('theirs');
	create_extension($node, $db);
	is($node->safe_psql($db, $rights), '_le_declarations pg_database_owner:SELECT
_le_once_done pg_database_owner:SELECT
le_declare(text,regrole,interval,interval,boolean) 
le_lease_origin_seq pg_database_owner:SELECT
le_leases 
le_token_seq pg_database_owner:SELECT
le_undeclare(text) 
pg_stat_leader_election_reset() |t', 'there are no rights but those of the owner of the database');
	foreach my $statement (q{SELECT le_declare('x')}, 'SELECT pg_stat_leader_election_reset()',
		q{INSERT INTO _le_declarations (name) VALUES ('x')}, q{SELECT setval('le_token_seq', 1)}, 'DROP EXTENSION leader_election')
	{
		refused($owner, $db, $statement);
	}
	$node->safe_psql($db, q{SELECT le_declare('scheduler', 'app', '1 s', '20 s'), le_declare('mailer'), le_declare('apps own')});
	my $token = $node->safe_psql($db, q{SELECT le_lease('x', '1 s')});
	my $dump = dump_as($superuser, $db, 'p');
	unlike(slurp_file($dump), qr/^(?:GRANT|REVOKE)/m, 'its dump has no rights');
	foreach my $role ($owner, $superuser)
	{
		my $there = new_database('of_theirs_' . ($role eq $owner ? 'owner' : 'superuser'));
		restore_as($role, $there, $dump);
		goes_on($there, $token);
	}

	# over such an installation, the owner cannot
	my $there = new_database('over_theirs');
	create_extension($node, $there);
	$node->command_checks_all([ 'psql', '-X', '-q', '-U', $owner, '-d', $there, '-f', $dump ], 0, [qr//],
		[qr/permission denied for table _le_declarations.*permission denied for sequence le_token_seq/s], 'psql goes on after errors');
	is($node->safe_psql($there, 'SELECT count(*) FROM le_declarations'), '0', 'nothing is declared');
	cmp_ok($node->safe_psql($there, q{SELECT le_lease('x', '1 s')}), '>', $token, 'tokens grow on');
};

# the roles can go
$node->safe_psql($_, qq{DROP OWNED BY "$owner" CASCADE})
  foreach split /\n/, $node->safe_psql('postgres', q{SELECT datname FROM pg_database WHERE datallowconn});
$node->safe_psql('postgres', "DROP DATABASE $_")
  foreach split /\n/, $node->safe_psql('postgres', qq{SELECT datname FROM pg_database WHERE datdba::regrole::text = '"$owner"'});
$node->safe_psql('postgres', qq{DROP ROLE "$owner", app, stranger});

subtest 'in another folder' => sub {
	plan skip_all => 'extension_control_path came with PostgreSQL 18'
	  if $node->safe_psql('postgres', 'SHOW server_version_num') < 180000;
	my $folder = $node->basedir . '/elsewhere';
	my $pg_config = $ENV{PG_CONFIG} // 'pg_config';

	# make would compile what is newer than its objects
	system_or_bail('make', '-s', "PG_CONFIG=$pg_config", 'with_llvm=no', "datadir=$folder/share", "pkglibdir=$folder/lib", "bindir=$folder/bin", 'install');
	ok(-e "$folder/share/extension/leader_election.control" && -e "$folder/lib/leader_election.so", 'make install puts it there');
	ok(-e "$folder/bin/pg_leader" && -e "$folder/share/man/man1/pg_leader.1", 'and so it does with the command');
	$node->append_conf('postgresql.conf', "extension_control_path = '$folder/share'\ndynamic_library_path = '$folder/lib'\n");
	$node->restart;
	is($node->safe_psql('postgres', q{SELECT string_agg(name, ' ') FROM pg_available_extensions}), 'leader_election', 'the server finds it there, and no other');
	create_extension($node);
	is($node->safe_psql('postgres', q{SELECT le_try_become_leader('job'), le_am_leader('job')}), 't|t', 'elected');
	is($node->safe_psql('postgres', q{SELECT DISTINCT probin FROM pg_proc WHERE proname LIKE 'le\_%' AND probin IS NOT NULL}), 'leader_election', 'the library is found by its name');
	is($node->safe_psql('postgres', q{LOAD 'leader_election'; SHOW leader_election.max_ttl}), '1d', 'also by LOAD');
	$node->safe_psql('postgres', 'DROP EXTENSION leader_election');
};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
