# Metrics of several databases, with the extension, with an older version of it, and without;
# by roles with different rights; on a standby.  What goes wrong in one database leaves all
# else as it is.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Monitoring;

my $program = monitoring_program('prometheus-postgres-exporter');
plan skip_all => 'needs postgres_exporter (Debian package prometheus-postgres-exporter)' unless defined $program;
plan skip_all => 'this postgres_exporter knows no --extend.query-path, or discovers no databases'
  unless `$program --help 2>&1` =~ /--auto-discover-databases.*--extend\.query-path/s;
plan skip_all => 'needs a server that is built with libxml' unless server_has_libxml();

my $node = new_server('monitoring_databases', allows_streaming => 1, conf => "autovacuum = off\n");

sub sql
{
	my ($db, $sql) = @_;
	return $node->safe_psql($db, $sql);
}

sql('postgres', $_) foreach 'CREATE DATABASE other', 'CREATE DATABASE old', 'CREATE DATABASE without',
  q{CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0},
  q{CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0},
  'CREATE ROLE regress_exporter LOGIN', 'GRANT pg_monitor TO regress_exporter', 'CREATE ROLE regress_nobody LOGIN';
sql('other', 'CREATE SCHEMA "an ""odd"" one"; CREATE EXTENSION leader_election SCHEMA "an ""odd"" one";
	GRANT USAGE ON SCHEMA "an ""odd"" one" TO regress_exporter, regress_nobody');
sql('old', q{CREATE EXTENSION leader_election});
create_extension($node, $_) foreach 'latin', 'ascii';

# The same election in each: led in some, vacant in others
my $leader = session($node);
ask($leader, q{SELECT le_try_become_leader('scheduler')});
sql('other', q{SET search_path = "an ""odd"" one"; SELECT le_try_become_leader('scheduler')});
sql('old', q{SELECT le_try_become_leader('scheduler'); SELECT le_resign('scheduler'); SELECT le_lease('mailer', '1 h')});
sql('latin', q{SELECT le_lease(chr(233), '1 h', identity => 'Andr' || chr(233))});
sql('ascii', q{SELECT le_lease('plain', '1 h')});

my @discover = ('--auto-discover-databases', '--exclude-databases=template0,template1');
my $exporter = start_exporter($node, user => 'regress_exporter', args => \@discover);
my $metrics = scrape($exporter);

# What an exporter measures besides
sub all_else_is_there
{
	my ($test) = @_;
	my @others = grep { $_->{name} =~ /^pg_/ } @$metrics;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(value_of($metrics, 'pg_up'), '1', "$test: the server is up");
	cmp_ok(scalar @others, '>', 300, "$test: and measured");
	return;
}

all_else_is_there('all databases');
is(value_of($metrics, 'pg_exporter_last_scrape_error'), '0', 'a database without the extension is no error');
is(labels_of($metrics, 'leader_election_extension_info', 'datname'), 'ascii latin old other postgres', 'those that have it');
is(value_of($metrics, 'leader_election_extension_info', datname => 'old', version => '1.0.0'), '1', 'the version is told');
my %led = map { $_ => value_of($metrics, 'leader_election_led', datname => $_, election => 'scheduler') } qw(postgres other old without latin);
is_deeply(\%led, { postgres => '1', other => '0', old => '0', without => '', latin => '' }, 'elections of one name are told apart by their database');
is(value_of($metrics, 'leader_election_leader_info', datname => 'latin', election => "\xc3\xa9", identity => "Andr\xc3\xa9"), '1', 'another encoding');

cmp_ok(value_of($metrics, 'leader_election_vacancy_age_seconds', datname => 'old', election => 'scheduler'), '>', 0, 'since when it is vacant');
is(value_of($metrics, 'leader_election_vacancy_age_seconds', datname => 'old', election => 'mailer'), '0', 'but that it is not');
is(value_of($metrics, 'leader_election_terms_begun_total', datname => 'old', election => 'scheduler'), '1', 'and all else');

# A role without any grants
my $nobody = start_exporter($node, user => 'regress_nobody', args => \@discover);
my $seen = scrape($nobody);
my %counts = map { my $of = $_; $of => scalar grep { $_->{name} =~ /^leader_election_/ } @{ $of eq 'nobody' ? $seen : $metrics } } 'nobody', 'exporter';
is($counts{nobody}, $counts{exporter}, "both measure $counts{exporter} time series");
foreach (['regress_exporter', $metrics], ['regress_nobody', $seen])
{
	my ($role, $shown) = @$_;
	is(labels_of($shown, 'leader_election_leader_info', 'identity', datname => 'postgres'),
		sql('postgres', "SET ROLE $role; SELECT identity FROM le_leaders"), "$role is shown what the views show it");
}
isnt(labels_of($seen, 'leader_election_leader_info', 'identity', datname => 'postgres'),
	labels_of($metrics, 'leader_election_leader_info', 'identity', datname => 'postgres'), 'and the address of a client is not shown to it');

# No right to use the schema
sql('other', 'REVOKE USAGE ON SCHEMA "an ""odd"" one" FROM regress_exporter');
$metrics = scrape($exporter);
is(value_of($metrics, 'pg_exporter_last_scrape_error'), '1', 'a schema that must not be used is an error');
like(slurp_file($exporter->{output}), qr/permission denied for schema/, 'that is logged');
is(value_of($metrics, 'leader_election_led', datname => 'other', election => 'scheduler'), '', 'nothing of that database is measured');
is(value_of($metrics, 'leader_election_extension_info', datname => 'other'), '1', 'but that it has the extension');
is(value_of($metrics, 'leader_election_led', datname => 'postgres', election => 'scheduler'), '1', 'and all of the others');
all_else_is_there('without the right');
sql('other', 'GRANT USAGE ON SCHEMA "an ""odd"" one" TO regress_exporter');
$metrics = scrape($exporter);
is(value_of($metrics, 'pg_exporter_last_scrape_error'), '0', 'with it, all is well again');
is(value_of($metrics, 'leader_election_led', datname => 'other', election => 'scheduler'), '0', 'and measured');

# A name that is no text in UTF-8
sql('ascii', q{SELECT le_lease(E'\xe9t\xe9', '1 h')});
$metrics = scrape($exporter);
is(value_of($metrics, 'pg_exporter_last_scrape_error'), '1', 'a name that cannot be told is an error');
is(value_of($metrics, 'leader_election_led', datname => 'ascii', election => 'plain'), '', 'nothing of that database is measured');
is(value_of($metrics, 'leader_election_led', datname => 'postgres', election => 'scheduler'), '1', 'but all of the others');
all_else_is_there('with such a name');

# The extension goes, and comes again
ask($leader, q{SELECT le_resign_all()});
sql('ascii', 'DROP EXTENSION leader_election');
sql('postgres', q{SELECT le_lease('mailer', '1 h'); DROP EXTENSION leader_election});
$metrics = scrape($exporter);
is(value_of($metrics, 'pg_exporter_last_scrape_error'), '0', 'it is no error to drop it');
is(labels_of($metrics, 'leader_election_extension_info', 'datname'), 'latin old other', 'it is not in that database any more');
is(labels_of($metrics, 'leader_election_led', 'election', datname => 'postgres'), '', 'and nothing of it is measured');
create_extension($node);
sql('postgres', q{SELECT le_lease('mailer', '1 h')});
$metrics = scrape($exporter);
is(value_of($metrics, 'leader_election_terms_ended_total', datname => 'postgres', election => 'mailer', reason => 'extension dropped'), '1',
	'when it is back, that is told as a reason');

# On a standby there is no leader, which would look like a vacancy
$node->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('monitoring_standby');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;
$exporter = start_exporter($standby, user => 'regress_exporter', args => \@discover);
$metrics = scrape($exporter);
is(labels_of($metrics, 'leader_election_extension_info', 'server_role', datname => 'old'), 'standby', 'a standby');
is(join(' ', sort map { $_->{name} } grep { $_->{name} =~ /^leader_election_/ && $_->{name} !~ /_info$/ } @$metrics), '', 'has no elections');
is(value_of($metrics, 'pg_exporter_last_scrape_error'), '0', 'which is no error');
$standby->promote;
$metrics = scrape($exporter);
is(value_of($metrics, 'leader_election_led', datname => 'old', election => 'mailer'), '1', 'until it is promoted');

stop_daemons();
$_->stop foreach $standby, $node;
done_testing();
