# psql, for what it shows, or as a client that is a process of its own; it is given statements
# now and then.  Where neither is the question, a client of Client.pm does.
package Psql;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(start_psql psql_post psql_collect psql_ask end_psql kill_psql);

# With this connection string; {pid} is the process ID of its backend
sub start_psql
{
	my ($connstr) = @_;
	my $psql = { stdin => '', stdout => '', stderr => '', posted => 0, collected => 0 };

	$psql->{timeout} = IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default);
	$psql->{run} = IPC::Run::start([ 'psql', '-X', '-d', $connstr, '-f', '-' ],
		'<', \$psql->{stdin}, '>', \$psql->{stdout}, '2>', \$psql->{stderr}, $psql->{timeout});
	($psql->{pid}) = psql_ask($psql, "SELECT pg_backend_pid() AS pid \\gset\n\\echo :pid") =~ /(\d+)/
	  or die "no process ID: $psql->{stderr}";
	return $psql;
}

# Give it statements, without waiting for what it shows
sub psql_post
{
	my ($psql, $sql) = @_;
	my $banner = 'answered ' . ++$psql->{posted};

	$psql->{timeout}->start($PostgreSQL::Test::Utils::timeout_default);
	$psql->{stdin} .= "$sql\n;\n\\echo '$banner'\n\\warn '$banner'\n";
	eval { $psql->{run}->pump_nb };
	return;
}

# Wait for what it shows: errors and notices, then results
sub psql_collect
{
	my ($psql) = @_;
	my $banner = 'answered ' . ++$psql->{collected};
	my @shown;

	until ($psql->{stdout} =~ /\Q$banner\E\n/ && $psql->{stderr} =~ /\Q$banner\E\n/)
	{
		last unless $psql->{run}->pump;
	}
	foreach my $stream ('stderr', 'stdout')
	{
		push @shown, $psql->{$stream} =~ s/\A(.*?)\n?\Q$banner\E\n//s ? $1 : $psql->{$stream};
	}
	return join("\n", grep { $_ ne '' } @shown);
}

sub psql_ask
{
	my ($psql, $sql) = @_;
	psql_post($psql, $sql);
	return psql_collect($psql);
}

# However far it has got
sub end_psql
{
	my (@psqls) = @_;
	foreach my $psql (@psqls)
	{
		$psql->{stdin} .= "\\q\n" if $psql->{run}->pumpable;
		eval { $psql->{run}->finish };
	}
	return;
}

sub kill_psql
{
	my ($psql) = @_;
	$psql->{run}->signal('KILL');
	eval { $psql->{run}->finish };
	return;
}

1;
