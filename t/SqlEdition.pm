# The SQL edition on a server that has no shared library of the extension.
#
# needs: perl libipc-run-perl
package SqlEdition;

use strict;
use warnings;

use Exporter 'import';
use FindBin;
use Test::More;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(sql_edition_server sql_edition_database run_script backend_holds);

our $script = "$FindBin::RealBin/../plpgsql/leader_election.sql";

# A server with roles: le_own, which owns the schema le and nothing else, app and mallory.
sub sql_edition_server
{
	my ($name, %params) = @_;
	my $node = new_server($name, %params, extension => 0);
	$node->safe_psql('postgres', 'CREATE ROLE le_own LOGIN; CREATE ROLE app LOGIN; CREATE ROLE mallory LOGIN');
	sql_edition_database($node, 'postgres');
	return $node;
}

sub sql_edition_database
{
	my ($node, $database) = @_;
	$node->safe_psql($database, qq{CREATE SCHEMA le AUTHORIZATION le_own;
		ALTER DATABASE "$database" SET search_path = "\$user", public, le});
	my ($status, $stderr) = run_script($node, $database);
	die $stderr if $status;
	$node->safe_psql($database, 'GRANT USAGE ON SCHEMA le TO app, mallory', extra_params => [ '-U', 'le_own' ]);
	return;
}

# Run the script by psql as its owner; the exit status, and what it wrote to stderr
sub run_script
{
	my ($node, $database, %params) = @_;
	my ($stdout, $stderr);
	my @psql = (
		$node->installed_command('psql'), '-X', '-q', '-v', 'ON_ERROR_STOP=1',
		'-d', $node->connstr($database) . ' user=' . ($params{user} // 'le_own'),
		@{ $params{options} // [] }, '-f', $params{script} // $script);

	IPC::Run::run(\@psql, '>', \$stdout, '2>', \$stderr);
	return ($? >> 8, $stderr =~ s/^psql:.*NOTICE: .*\n//mgr);
}

# How many advisory locks the process holds, and how many it awaits
sub backend_holds
{
	my ($client, $pid) = @_;
	return ask($client, "SELECT count(*) FILTER (WHERE granted), count(*) FILTER (WHERE NOT granted) FROM pg_locks WHERE locktype = 'advisory' AND pid = $pid");
}

1;
