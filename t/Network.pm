# A server and its clients in two network namespaces, with links between them that can
# be cut.  A test that uses this runs in the clients' namespace.
#
# needs: iproute2
package Network;

use strict;
use warnings;

use Test::More;

# First the server's namespace, for which file descriptor 9 stands, then that of the clients
# and of the test; both vanish with their processes.  Each link between them has two ends:
# sN, 10.93.N.1, and cN, 10.93.N.2.  Behind the third is a router, which stays when the
# client's host behind that has gone.
BEGIN
{
	my $server = q{PATH=$PATH:/usr/sbin:/sbin; exec 9</proc/self/ns/net
ip link set lo up && exec unshare --net sh -c "$LE_CLIENTS" sh "$@"};
	my $clients = q{server="nsenter --net=/proc/self/fd/9"; ip link set lo up || exit
for n in 1 2 3 4; do
	ip link add c$n type veth peer name s$n netns /proc/self/fd/9 &&
	ip addr add 10.93.$n.2/24 dev c$n && $server ip addr add 10.93.$n.1/24 dev s$n &&
	ip link set c$n up && $server ip link set s$n up || exit
done
ip addr add 10.93.3.3/24 dev c3 && $server ip route add 10.93.3.2/32 via 10.93.3.3 && exec "$@"};

	if (!defined $ENV{LE_CLIENTS} && !$^C)
	{
		@ENV{qw(LE_SERVER LE_CLIENTS)} = ($server, $clients);
		my $inside = 'unshare --user --map-current-user --keep-caps --net sh -c "$LE_SERVER" sh';
		my $said = qx{$inside true 2>&1} =~ s/\s+/ /gr;
		plan skip_all => "cannot make network namespaces by unshare, ip and nsenter: $said" if $? != 0;
		exec 'sh', '-c', "exec $inside \"\$@\"", 'sh', $^X, (map { "-I$_" } @INC), $0 or die $!;
	}
	delete @ENV{qw(LE_SERVER LE_CLIENTS)};
}

use Exporter 'import';
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(new_networked_server);

# A server in its namespace, to which the links lead
sub new_networked_server
{
	my ($name, %params) = @_;
	my $system_log = \&PostgreSQL::Test::Utils::system_log;
	my $node;

	{
		no warnings 'redefine';
		local *PostgreSQL::Test::Utils::system_log = sub { $system_log->('nsenter', "--net=/proc/$$/fd/9", @_) };
		$node = new_server($name, %params, conf => "listen_addresses = '*'\nmax_connections = 150\n" . ($params{conf} // ''));
	}
	append_to_file($node->data_dir . '/pg_hba.conf', "host all all 10.93.0.0/16 trust\n");
	$node->reload;
	return $node;
}

1;
