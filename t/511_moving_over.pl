# A fleet moves over from advisory locks: four old copies, which lead by a plain lock, and four new
# ones, which hold the lock and lead the election, as doc/getting-started.md has it.
#
# Wrong outcomes: two copies lead at a time; one kind of them never leads; a new copy is ended by a
# deadlock, or has led an election while an old copy led.

use strict;
use warnings;

use IPC::Run qw(start finish);
use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my ($lock, $bid, $resign, $unlock) = slurp_file('doc/getting-started.md') =~ /^```sql session=bid\n(.*?;).*\n(.*?;).*\n```\n.*?^```sql session=bid\n(.*?;)\n(.*?;)\n```/ms
  or die 'the statements of the page';
is("$lock $bid $resign $unlock", q{SELECT pg_try_advisory_lock(2929); SELECT le_try_become_leader('scheduler'); SELECT le_resign('scheduler'); SELECT pg_advisory_unlock(2929);},
	'the statements of the page');

# what a leader finds that leads at the same time, and by which election
my $work = q{
UPDATE at_once SET n = n + 1 RETURNING n \gset
INSERT INTO found VALUES ('%s', :n);
UPDATE at_once SET n = n - 1;
};
my $old = sprintf(q{
%s
\if :pg_try_advisory_lock
%s
%s
\endif
}, $lock, sprintf($work, 'old'), $unlock);
my $new = sprintf(q{
%s
\if :pg_try_advisory_lock
%s
\if :le_try_become_leader
%s
%s
\endif
%s
\endif
}, $lock, $bid, sprintf($work, 'new'), $resign, $unlock);
s/^(SELECT (?:pg|le)_try.*);$/$1 \\gset/mg foreach $old, $new;

my $node = new_server('moving_over');
my $control = session($node);
ask($control, 'CREATE TABLE found (copy text, n integer); CREATE UNLOGGED TABLE at_once (n integer); INSERT INTO at_once VALUES (0)');

my @running;
foreach my $copy ([ old => $old ], [ new => $new ])
{
	my ($kind, $script) = @$copy;
	my $file = $node->basedir . "/$kind.sql";
	append_to_file($file, $script);
	my $said = '';
	push @running, { kind => $kind, said => \$said,
		run => start([ 'pgbench', '-n', '-c', '4', '-T', '6', '-f', $file, $node->connstr('postgres') ], '<', \undef, '>', \$said, '2>&1') };
}
foreach my $fleet (@running)
{
	ok(finish($fleet->{run}), "four $fleet->{kind} copies") or diag(${ $fleet->{said} });
	cmp_ok(ask($control, "SELECT count(*) FROM found WHERE copy = '$fleet->{kind}'"), '>', 10, 'lead again and again');
}
is(ask($control, 'SELECT count(*) FROM found WHERE n <> 1'), '0', 'never two at a time');
is(ask($control, q{SELECT terms, denied FROM pg_stat_leader_election WHERE name = 'scheduler'}),
	ask($control, q{SELECT count(*), 0 FROM found WHERE copy = 'new'}), 'the election is led by new copies while they lead, and no other bid is made');
unlike(log_since($node, 0), qr/deadlock/, 'without a deadlock');

$node->stop;
done_testing();
