# A schema of a hostile role has an object for each function, aggregate, operator and type of the
# server, with the same signature, and comes first in every search_path.
#
# Wrong outcome: something of the extension looks up a name by the caller's search_path, so that
# code of that role runs with the rights of the caller, or of the extension's owner.
#
# A cast has no schema, and is found by its types, which have shadows.
#
# Each object logs "shadow of ..." and raises an error.  The log has the verdict, so that the next
# name that is not qualified is found without knowing it.  The test fails as well if a call of the
# extension is missing here.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('shadows', extension => 0, conf => "max_prepared_transactions = 5\nautovacuum = off\n");
my $user = $node->safe_psql('postgres', 'SELECT current_user');

# Make the shadows; how many there are of each kind, and how many cannot be made
sub make_shadows
{
	my ($database) = @_;
	my $made = $node->safe_psql($database, q{
SET check_function_bodies = off;
SET client_min_messages = error;
SET ROLE regress_mallory;
SET search_path = pg_catalog;
CREATE FUNCTION evil.trap(what text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
	RAISE LOG 'shadow of % called by %', what, session_user;
	RAISE EXCEPTION 'shadow of %', what;
END $$;
CREATE TEMP TABLE made (kind text, done boolean);
CREATE FUNCTION pg_temp.make(kind text, VARIADIC statements text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	statement text;
BEGIN
	BEGIN
		FOREACH statement IN ARRAY statements LOOP
			EXECUTE statement;
		END LOOP;
		INSERT INTO pg_temp.made VALUES (kind, true);
	EXCEPTION WHEN OTHERS THEN
		INSERT INTO pg_temp.made VALUES (kind, false);
	END;
END $$;
CREATE FUNCTION pg_temp.body(what text) RETURNS text LANGUAGE sql AS $$
SELECT format('LANGUAGE plpgsql AS %L', format('BEGIN PERFORM evil.trap(%L); END', what)) $$;
-- "any" cannot be an argument of such a function, but anything can be one of anyelement
CREATE FUNCTION pg_temp.taken(arguments text) RETURNS text LANGUAGE sql AS $$
SELECT replace(replace(arguments, 'VARIADIC "any"', 'VARIADIC anyarray'), '"any"', 'anyelement') $$;

SELECT pg_temp.make('type', format('CREATE DOMAIN evil.%I AS pg_catalog.%1$I CHECK (evil.trap(%L))', typname, 'type ' || typname))
FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r', 'm') AND typcategory <> 'A';

SELECT pg_temp.make('function', format('CREATE FUNCTION evil.%I(%s) RETURNS %s %s', proname,
	pg_temp.taken(pg_get_function_arguments(oid)), pg_get_function_result(oid), pg_temp.body('function ' || oid::regprocedure)))
FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind IN ('f', 'w');

SELECT pg_temp.make('aggregate',
	format('CREATE FUNCTION evil.step_%s(%s) RETURNS %s %s', oid, concat_ws(', ', type, nullif(arguments, '')), type, body),
	format('CREATE FUNCTION evil.final_%s(%s) RETURNS %s %s', oid, type, type, body),
	format('CREATE AGGREGATE evil.%I(%s) (SFUNC = evil.step_%s, STYPE = %s, FINALFUNC = evil.final_%3$s)',
		proname, coalesce(nullif(arguments, ''), '*'), oid, type))
FROM (SELECT p.oid, proname, pg_temp.taken(pg_get_function_identity_arguments(p.oid)) AS arguments,
		format_type(prorettype, NULL) AS type, pg_temp.body('aggregate ' || p.oid::regprocedure) AS body
	FROM pg_proc p JOIN pg_aggregate ON aggfnoid = p.oid
	WHERE pronamespace = 'pg_catalog'::regnamespace AND aggkind = 'n') a;

SELECT pg_temp.make('operator',
	format('CREATE FUNCTION evil.operator_%s(%s) RETURNS %s %s', oid,
		concat_ws(', ', nullif(oprleft, 0)::regtype, oprright::regtype), oprresult::regtype, pg_temp.body('operator ' || oid::regoperator)),
	format('CREATE OPERATOR evil.%s (FUNCTION = evil.operator_%s, %s RIGHTARG = %s)', oprname, oid,
		'LEFTARG = ' || nullif(oprleft, 0)::regtype || ',', oprright::regtype))
FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace;

-- a relation of each name
SELECT pg_temp.make('relation', format('CREATE VIEW evil.%I AS SELECT * FROM pg_catalog.%1$I WHERE evil.trap(%L)', relname, 'relation ' || relname))
FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v') AND has_table_privilege(oid, 'SELECT');
GRANT SELECT ON ALL TABLES IN SCHEMA evil TO PUBLIC;
SELECT kind, count(*) FILTER (WHERE done), count(*) FILTER (WHERE NOT done) FROM pg_temp.made GROUP BY 1 ORDER BY 1});
	return { map { my ($kind, $done, $not) = split /\|/; $kind => [ $done, $not ] } grep { /^\w+\|\d/ } split /\n/, $made };
}

$node->safe_psql('postgres', q{
CREATE ROLE regress_mallory LOGIN;
CREATE ROLE regress_app LOGIN;
CREATE DATABASE shadows OWNER regress_mallory});
$node->safe_psql('shadows', q{
CREATE SCHEMA evil AUTHORIZATION regress_mallory;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
GRANT CREATE ON SCHEMA public TO regress_mallory});
my $made = make_shadows('shadows');
# what cannot be shadowed takes or returns internal, cstring and other types that only C has
my %least = (aggregate => 100, function => 1700, operator => 780, relation => 100, type => 50);
foreach my $kind (sort keys %least)
{
	cmp_ok($made->{$kind}[0] // 0, '>=', $least{$kind}, "${kind}s have a shadow") or diag(explain($made));
}
# others are made of it, with the shadows, and without the extension
my $count = 0;

sub new_database
{
	my ($name) = @_;
	$name .= ++$count;
	$node->safe_psql('postgres', "CREATE DATABASE $name OWNER regress_mallory TEMPLATE shadows");
	# by the owner of the database, who is no superuser
	my $path = 'evil, pg_catalog, public';
	my ($rc, $out, $err) = $node->psql($name, "ALTER DATABASE $name SET search_path = $path", extra_params => [ '-U', 'regress_mallory' ]);
	is($err, '', 'the search_path of the database');
	return $name;
}

# What the log has of shadows since then
my $offset = 0;

sub no_shadow
{
	my ($test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @called = grep { /LOG:  shadow of/ } split /\n/, log_since($node, $offset);
	is("@called[0 .. ($#called > 4 ? 4 : $#called)]", '', $test);
	$offset = log_from($node);
	return;
}

# Run it; all is to be well
sub runs
{
	my ($client, $sql, $expected) = @_;
	my $answer = ask($client, $sql);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($client->{error}, '', $sql =~ s/\s+/ /gr);
	is($answer, $expected, '... answers') if defined $expected;
	return $answer;
}

my $check = new_database('check');
my $probe = session($node, db => $check, user => 'regress_app');
foreach my $sql ('SELECT count(*)', 'SELECT current_database()', 'SELECT 1 = 1', q{SELECT 'a' || 'b'}, q{SELECT 'x'::text},
	'SELECT 1 IN (1, 2)', 'SELECT max(i) FROM (VALUES (1)) v(i)', 'SELECT oid FROM pg_class LIMIT 1')
{
	ask($probe, $sql);
	like($probe->{error}, qr/^shadow of/, "the shadow is found: $sql");
}
end_session($probe);
like(log_since($node, 0), qr/LOG:  shadow of .* called by regress_app/, 'and logs');
$offset = log_from($node);

# Every function and procedure that roles may call is called; what they need was prepared
my @calls = (
	q{SELECT public.le_try_become_leader('s', identity => 'me', heartbeat => '1 h'), public.le_become_leader('b', '1 s', identity => 'me', heartbeat => '1 h'), public.le_become_leader('43', '1 s')},
	q{SELECT public.le_heartbeat('s'), public.le_am_leader('s', identity => 'me'), public.le_token('s')},
	q{SELECT public.le_try_become_leader_xact('x', identity => 'me'), public.le_become_leader_xact('y', '1 s')},
	q{CALL public.le_campaign('c', '1 s', identity => 'me', heartbeat => '1 h')},
	q{CALL public.le_campaign('d', '1 s', identity => 'me', ttl => '1 min')},
	q{CALL public.le_campaign(ARRAY['e', 'f'], '1 s', identity => 'me')},
	q{CALL public.le_campaign(public.le_seats('g', 3), '1 s')},
	q{CALL public.le_observe('s', NULL, '1 s')},
	q{SELECT public.le_proclaim('s', 'value'), public.le_assert_leader('s')},
	q{SELECT public.le_once('s', '2026-01-01'), public.le_once('s', '2026-01-02'), public.le_once('b', '2026-01-01')},
	q{INSERT INTO public.guarded VALUES (1)},
	q{COPY public.guarded FROM PROGRAM 'echo 2'},
	q{SELECT * FROM public.le_leader('s')},
	q{SELECT public.le_resign('b', NULL, identity => 'me')},
	q{SELECT public.le_depose('vacant', 'why')},
	q{SELECT public.le_resign_all()},
);
# by these only roles that have the privilege
my @administration = (
	q{SELECT public.le_declare('declared', 'regress_app', '1 s', '20 s', true), public.le_undeclare('declared'), public.le_undeclare('declared')},
	q{SELECT public.le_declare('s', 'regress_app')},
	q{SELECT public.le_version()},
	q{SELECT public.le_undeclare('s')},
	q{SELECT public.pg_stat_leader_election_reset()},
);
my @relations = qw(le_leaders le_candidates pg_stat_leader_election pg_stat_leader_election_info _le_locks le_declarations le_once_done);

sub run_calls
{
	my ($database, $role, $may_administer) = @_;
	subtest "calls of $role in $database" => sub {
		my $client = session($node, db => $database, user => $role);
		my $other = session($node, db => $database, user => 'regress_app');

		is(ask($client, q{SELECT pg_catalog.current_setting('search_path')}), 'evil, pg_catalog, public', 'the path');
		foreach my $sql (@calls)
		{
			runs($client, $sql) unless $sql =~ /PROGRAM/ && $role ne $user;
			runs($client, "SELECT * FROM public.$_") foreach @relations;
		}
		# leases, the trigger by their token, and a candidate that waits
		my $token = runs($client, q{SELECT public.le_lease('s', '1 min', identity => 'me')});
		runs($client, qq{SELECT public.le_lease('s', '1 min', identity => 'me', token => $token), public.le_renew('s', $token, '2 min'), public.le_am_leader('s', $token), public.le_proclaim('s', 'v', $token)});
		runs($client, "SET leader_election.token = $token");
		runs($client, 'INSERT INTO public.guarded VALUES (3)');
		runs($client, qq{SELECT public.le_once('s', '2026-01-03', $token), public.le_assert_leader('s', $token)});
		post($other, q{SELECT public.le_become_leader('s')});
		runs($client, "SELECT * FROM public.$_") foreach @relations;
		# the next leader waits for a transaction that is guarded, and was prepared
		runs($client, 'BEGIN');
		runs($client, qq{SELECT public.le_assert_leader('s', $token)});
		runs($client, q{PREPARE TRANSACTION 'prepared'});
		runs($client, q{SELECT public.le_depose('s', 'why')}, 't');
		like($client->{messages}, qr/a prepared transaction is still guarded/, 'which the caller is told');
		runs($client, q{COMMIT PREPARED 'prepared'});
		is(collect($other), 't', 'the candidate is elected');
		# a session that leads
		if ($may_administer)
		{
			runs($client, q{SELECT public.le_depose('s', 'why')}, 't');
			wait_for_end($other);
			runs($client, $_) foreach @administration;
		}
		end_session($client, $other);
		no_shadow('nothing of that schema was called');
	};
	return;
}

sub prepare
{
	my ($database) = @_;
	$node->safe_psql($database, q{
SET search_path = pg_catalog;
SET ROLE regress_mallory;
CREATE TABLE public.guarded (i pg_catalog.int4);
CREATE TRIGGER guard BEFORE INSERT ON public.guarded EXECUTE FUNCTION public.le_guard('s');
GRANT INSERT ON public.guarded TO PUBLIC});
	return;
}

my $trusted = new_database('trusted');
my $owner = session($node, db => $trusted, user => 'regress_mallory');
runs($owner, 'CREATE EXTENSION leader_election SCHEMA public');
prepare($trusted);
no_shadow('the installation by the owner of the database');
$node->safe_psql($trusted, 'GRANT pg_signal_backend TO regress_mallory');
run_calls($trusted, 'regress_mallory', 1);
run_calls($trusted, 'regress_app', 0);
run_calls($trusted, $user, 1);

# the calls above are all there are
my $missing = $node->safe_psql($trusted, q{
SET search_path = pg_catalog;
SELECT string_agg(name, ' ' ORDER BY name) FROM (
	SELECT proname AS name FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname NOT LIKE '\_le\_%' AND proname <> 'guard'
	UNION SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v') AND relname NOT LIKE '\_le\_%' AND relname <> 'guarded') o
WHERE name NOT IN (} . join(', ', map { "'$_'" } (join(' ', @calls, @administration, ) =~ /public\.(\w+)/g), @relations, 'le_lease', 'le_renew', 'le_guard', 'le_leases') . ')');
is($missing, '', 'every function, view and table is tried');

subtest 'installation' => sub {
	my $database = new_database('installed');
	my $client = session($node, db => $database);
	foreach my $schema ('public', 'evil')
	{
		runs($client, "CREATE EXTENSION leader_election SCHEMA $schema");
		runs($client, 'ALTER EXTENSION leader_election SET SCHEMA public') if $schema ne 'public';
		runs($client, q{SELECT public.le_try_become_leader('s')}, 't');
		runs($client, q{SELECT public.le_resign_all()});
		runs($client, 'DROP EXTENSION leader_election');
	}
	runs($owner, $_) foreach 'DROP TABLE public.guarded', 'DROP EXTENSION leader_election', 'CREATE EXTENSION leader_election SCHEMA public';
	end_session($client);
	no_shadow('no shadow was called');
};
prepare($trusted);

subtest 'dump and restore' => sub {
	my $client = session($node, db => $trusted);
	runs($client, q{SELECT public.le_declare('s', 'regress_app', '1 s', '20 s')});
	runs($client, q{SELECT public.le_try_become_leader('t'), public.le_once('t', '2026-01-01')});
	end_session($client);
	foreach my $role ($user, 'regress_mallory')
	{
		my $file = $node->basedir . "/$role.dump";
		my $restored = new_database('restored');
		$node->command_ok([ 'pg_dump', '-U', $role, '-F', 'c', '-N', 'evil', '-f', $file, $trusted ], "dump by $role");
		$node->command_checks_all([ 'pg_restore', '-U', $role, '-d', $restored, $file ], 0, [qr//], [qr/\A\z/], 'restored');
		my $reader = session($node, db => $restored, user => 'regress_app');
		runs($reader, q{SELECT name, candidates FROM public.le_declarations}, 's|regress_app');
		runs($reader, q{SELECT due IS NOT NULL FROM public.le_once_done WHERE name OPERATOR(pg_catalog.=) 't'}, 't');
		end_session($reader);
	}
	no_shadow('no shadow was called');
};

# The blocks of a document's section that are SQL
sub statements_in
{
	my ($file, $section) = @_;
	my ($text) = slurp_file($file) =~ /^## \Q$section\E\n(.*?)(?=^## |\z)/ms or die "$file has no section $section";
	return map { s/\n\\watch \d+\n/;\n/r } $text =~ /^```sql\n(.*?)^```$/msg;
}

subtest 'monitoring' => sub {
	plan skip_all => 'needs a server that is built with libxml' unless `pg_config --configure` =~ /--with-libxml/;
	# the role is made as the document says
	my ($role) = slurp_file('doc/monitoring.md') =~ /^```sql\n(CREATE ROLE prometheus.*?)^```$/ms or die;
	$node->safe_psql('postgres', $role);
	$node->safe_psql($trusted, q{SELECT public.le_declare('t')});
	my $leader = session($node, db => $trusted, user => 'regress_app');
	my $candidate = session($node, db => $trusted, user => 'regress_app');
	# a grace period may follow the last term
	runs($leader, q{SELECT public.le_become_leader('s', '1 min')}, 't');
	runs($leader, q{SELECT public.le_try_become_leader('42', heartbeat => '1 h'), public.le_lease('t', '1 h') IS NOT NULL}, 't|t');
	post($candidate, q{CALL public.le_campaign('s')});
	my $exporter = session($node, db => $trusted, user => 'prometheus');
	ask_until($exporter, q{SELECT pg_catalog.count(*) FROM public.le_candidates}, '1');
	my %queries = slurp_file('monitoring/postgres_exporter.yaml') =~ /^(\w+):\n  query: \|\n((?:    .*\n)+)/mg;
	cmp_ok(scalar keys %queries, '>=', 8, 'the queries of the exporter');
	foreach my $name (sort keys %queries)
	{
		isnt(ask($exporter, $queries{$name}), '', "$name answers");
		is($exporter->{error}, '', 'without an error');
		like($exporter->{rows}[0] // '', qr/^$trusted\|/, 'of this database');
	}
	no_shadow('the exporter calls nothing of that schema');

	# the statements for psql, by a role without privileges, as the document says
	my $administrator = session($node, db => $trusted, user => 'regress_app');
	runs($administrator, 'SET search_path = pg_catalog');
	my @statements = map { s/\b(?=(?:le_leaders|le_candidates|pg_stat_leader_election)\b)/public./gr } (statements_in('doc/monitoring.md', 'psql'), statements_in('doc/faults.md', 'Diagnosis'));
	cmp_ok(scalar @statements, '>=', 3, 'statements for psql');
	runs($administrator, $_) foreach @statements;
	no_shadow('nor do the statements for psql');
	my ($output, $errors);
	$node->psql($trusted, slurp_file('monitoring/queries.sql'), stdout => \$output, stderr => \$errors);
	like($errors, qr/^A superuser must not query objects of an owner that is none/, 'a superuser is refused the queries for psql');
	is($output, '', 'before any');
	$node->psql($trusted, slurp_file('monitoring/queries.sql'), extra_params => [ '-U', 'regress_app' ], stdout => \$output, stderr => \$errors);
	is($errors, '', 'the queries for psql');
	like($output, qr/^1\. Leaders\b.*^s\|[^|\n]*\|\d+\|.*^10\. /ms, 'answer, in spite of the search_path of the database');
	no_shadow('nor do they');
	# in the schema of a superuser, whose view calls a function of another role
	$node->safe_psql('postgres', q{CREATE SCHEMA mixed; CREATE FUNCTION mixed.le_names() RETURNS text LANGUAGE sql AS 'SELECT NULL::text';
ALTER FUNCTION mixed.le_names() OWNER TO regress_app; CREATE VIEW mixed.le_leaders AS SELECT mixed.le_names() AS name});
	$node->psql('postgres', slurp_file('monitoring/queries.sql'), extra_params => [ '-v', 'schema=mixed' ], stdout => \$output, stderr => \$errors);
	like($errors, qr/^A superuser must not query objects of an owner that is none/, 'nor may a superuser run a function of another owner');
	# where the extension is not, the owner has made a view of its name
	$node->safe_psql('postgres', 'CREATE DATABASE without OWNER regress_mallory TEMPLATE template0');
	$node->safe_psql('without', q{SET SESSION AUTHORIZATION regress_mallory; CREATE SCHEMA trap;
CREATE FUNCTION trap.f() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
CREATE VIEW trap.le_leaders AS SELECT trap.f() AS name; ALTER DATABASE without SET search_path = trap});
	$node->psql('without', slurp_file('monitoring/queries.sql'), stdout => \$output, stderr => \$errors);
	like($errors, qr/^There is no leader_election in this database/, 'without the extension, it looks for nothing');
	$node->psql('without', slurp_file('monitoring/queries.sql'), extra_params => [ '-v', 'schema=trap' ], stdout => \$output, stderr => \$errors);
	like($errors, qr/^A superuser must not query/, 'nor in a schema that is given, if its owner is no superuser');
	# what the owner's settings let fail is not skipped, with answers of an earlier database
	$node->safe_psql('postgres', q{ALTER DATABASE without SET lock_timeout = '10 ms'});
	my $locker = session($node, db => 'without');
	ask($locker, 'BEGIN', 'LOCK TABLE pg_extension IN ACCESS EXCLUSIVE MODE');
	$node->psql('without', slurp_file('monitoring/queries.sql'), on_error_stop => 0, stdout => \$output, stderr => \$errors,
		extra_params => [ '-v', 'schema=trap', map { ('-v', $_) } 'le=trap', 'le_is_missing=f', 'le_is_refused=f' ]);
	like($errors, qr/ERROR:  canceling statement due to lock timeout\n(?!.*ERROR)/s, 'a check that fails stops it');
	is($output, '', 'before any query');
	end_session($locker);
	ask($leader, 'SELECT public.le_resign_all()');
	end_session($exporter, $administrator, $leader, $candidate);
};

# A view that is no extension's belongs to the role that has made it, whose schema or database it need not be; and a
# superuser comes back from each role that it has set
subtest 'queries for psql in a database of a superuser' => sub {
	my ($output, $errors);
	$node->safe_psql('postgres', 'CREATE DATABASE ours TEMPLATE template0');
	$node->safe_psql('ours', q{CREATE SCHEMA theirs; GRANT USAGE, CREATE ON SCHEMA theirs TO regress_mallory;
SET SESSION AUTHORIZATION regress_mallory;
CREATE FUNCTION theirs.f() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
CREATE VIEW theirs.le_leaders AS SELECT theirs.f() AS name});
	$node->psql('ours', slurp_file('monitoring/queries.sql'), extra_params => [ '-v', 'schema=theirs' ], stdout => \$output, stderr => \$errors);
	like($errors, qr/\AA superuser must not query[^\n]*\z/, 'a view of another role in a schema of a superuser');
	$node->safe_psql('postgres', 'CREATE ROLE regress_admin LOGIN; GRANT ' . $node->safe_psql('postgres', 'SELECT quote_ident(current_user)') . ' TO regress_admin');
	foreach my $session ([ $user, 'SET SESSION AUTHORIZATION regress_app' ], [ $user, 'SET ROLE regress_app' ], [ regress_admin => 'SELECT' ])
	{
		my ($role, $set) = @$session;
		$node->psql($trusted, "$set;\n" . slurp_file('monitoring/queries.sql'), extra_params => [ '-U', $role ], stdout => \$output, stderr => \$errors);
		like($errors, qr/\AA superuser must not query[^\n]*\z/, "$role, after $set");
	}
	$node->safe_psql('ours', 'CREATE EXTENSION leader_election');
	$node->psql('ours', slurp_file('monitoring/queries.sql'), stdout => \$output, stderr => \$errors);
	is($errors, '', 'where all is of superusers, they run');
};

end_session($owner);
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|terminated by signal/, 'no accident in the log');
$node->stop;
done_testing();
