# May this candidate be elected now, and if not, what is in its way?  The rule is a
# function of what is on record, of the bid and the time (src/bid/decision.c).
# Here it is asked for each case by itself: also for those that no two sessions can
# bring about at will, as a lease that runs out at this very microsecond.
use strict;
use warnings FATAL => 'all';

use File::Temp;
use FindBin;
use Test::More;

my $directory = File::Temp->newdir;
my $config = $ENV{PG_CONFIG} || 'pg_config';
chomp(my $headers = `$config --includedir-server`);
is(system('cc', '-O2', '-Wno-cpp', "-I$FindBin::Bin/../src", '-isystem', $headers,
		'-o', "$directory/cases", "$FindBin::Bin/decision_cases.c"),
	0, 'the cases are built');
my @lines = `$directory/cases`;
cmp_ok(scalar(grep { /^ok / } @lines), '>', 20, 'cases were tried');
is(join('', grep { !/^ok |^1\.\./ } @lines), '', 'each is decided as expected');
is($?, 0, 'and the program says so');
done_testing();
