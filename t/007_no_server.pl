# A server that does not start ends the test file that needs it, and names the cause from the
# server's log.  It does not end the suite, so the other files still run.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $directory = PostgreSQL::Test::Utils::tempdir;

# Run a test file with these statements, and check what prove would read of it
sub ends
{
	my ($what, $file, $statements, $cause) = @_;

	local @ENV{qw(TESTDIR TESTDATADIR TESTLOGDIR)} = ($directory, "$directory/tmp_check", "$directory/tmp_check/log");
	append_to_file("$directory/$file.pl", "use LeaderElection; use Test::More; $statements pass('to its end'); done_testing();\n");
	my $output = qx{$^X -I'$FindBin::RealBin' '$directory/$file.pl' 2>&1};

	is($? >> 8, 255, "$what: the file has failed");
	unlike($output, qr/^(?:Bail out!|ok )/m, "$what: it has ended, but not the suite");
	like($output, qr{^# \Q$directory\E/$file\.pl: .*$cause}m, "$what: the cause is named");
	return;
}

ends('a setting', 'setting', q{new_server('node', conf => 'no_such_setting = 1');}, qr/"no_such_setting"/);
ends('a folder', 'folder', q{new_server('node', conf => "unix_socket_directories = '/nowhere'");}, qr{FATAL: .*/nowhere/});
ends('a restart', 'restart', q{my $node = new_server('node'); $node->append_conf('postgresql.conf', 'port = 0'); $node->restart;},
	qr/"port"/);
ends('a command', 'command', q{PostgreSQL::Test::Utils::system_or_bail('false');}, qr/command "false" exited with value 1/);
done_testing();
