# The psql sessions that README.md shows are what psql really says.
#
# A block marked ```psql NAME belongs to the session of that name.  Each line
# that begins with the prompt is run there, and what follows must be its output,
# but for the process IDs.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $readme = slurp_file('README.md');
my $node = PostgreSQL::Test::Cluster->new('readme');
$node->init;
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION leader_election');

my %sessions;

# Run a statement in the session of that name and return what psql shows.
sub answer
{
	my ($name, $statement) = @_;

	if (!$sessions{$name})
	{
		$sessions{$name} = $node->background_psql('postgres', on_error_stop => 0);
		$sessions{$name}->query_safe(
			"\\pset format aligned\n\\pset tuples_only off\n\\set QUIET off\nSELECT 1");
	}
	my $session = $sessions{$name};
	my $output = $session->query($statement);
	my $messages = $session->{stderr};
	$session->{stderr} = '';
	return join("\n", grep { $_ ne '' } $messages, $output);
}

# Leave out what differs from run to run, or does not show in print.
sub normalize
{
	my ($text) = @_;

	$text =~ s/psql:<stdin>:\d+: //g;
	$text =~ s/process ID \d+/process ID N/g;
	$text =~ s/[ \t]+$//gm;
	$text =~ s/\n+/\n/g;
	$text =~ s/\n$//;
	return $text;
}

my $shown = 0;
while ($readme =~ /^```psql (\S+)\n(.*?)^```$/gms)
{
	my ($name, $block) = ($1, $2);

	while ($block =~ /^=# ([^\n]+)\n(.*?)(?=^=# |\z)/gms)
	{
		my ($statement, $expected) = ($1, $2);

		is(normalize(answer($name, $statement)),
			normalize($expected), "$name: $statement");
		$shown++;
	}
}
cmp_ok($shown, '>', 0, 'README.md shows psql sessions');

$_->quit foreach values %sessions;
$node->stop;
done_testing();
