# The alert rules in monitoring/alerts.yaml: with made-up metrics, by promtool; and in a
# Prometheus that scrapes the exporter of a server where an election becomes vacant.

use strict;
use warnings;

use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Monitoring;

my $promtool = monitoring_program('promtool');
plan skip_all => 'needs Prometheus (Debian package prometheus)' unless defined $promtool;

my $rules = slurp_file('monitoring/alerts.yaml');
command_ok([ $promtool, 'check', 'rules', 'monitoring/alerts.yaml' ], 'the rules are valid');
command_ok([ $promtool, 'test', 'rules', 'monitoring/alerts_test.yaml' ], 'they fire when they should, and not otherwise');
my @untested = grep { slurp_file('monitoring/alerts_test.yaml') !~ /alertname: $_$/m } $rules =~ /- alert: (\w+)/g;
is("@untested", 'LeaderElectionNotAllMeasured', 'all are tested there, but for one');

# which needs a thousand elections
my $dir = PostgreSQL::Test::Utils::tempdir();
append_to_file("$dir/alerts.yaml", $rules);
append_to_file("$dir/test.yaml", join "\n", 'rule_files: [alerts.yaml]', 'evaluation_interval: 1m', 'tests:', '  - interval: 1m', '    input_series:',
	(map { qq{      - { series: 'leader_election_led{datname="app", election="$_"}', values: '1x30' }} } 1 .. 1000),
	(map { qq{      - { series: 'leader_election_led{datname="other", election="$_"}', values: '1x30' }} } 1 .. 999),
	'    alert_rule_test:', '      - { alertname: LeaderElectionNotAllMeasured, eval_time: 9m }',
	'      - alertname: LeaderElectionNotAllMeasured', '        eval_time: 11m', '        exp_alerts:', '          - exp_labels: { severity: info, datname: app }',
	q{            exp_annotations:}, q{              summary: 'Database app has more elections than are measured: declare those that matter'},
	map({ "              $_" } $rules =~ /- alert: LeaderElectionNotAllMeasured\n.*?(description: [^\n]+)\n\s+(runbook_url: \S+)/s), '');
command_ok([ $promtool, 'test', 'rules', "$dir/test.yaml" ], 'that, too');

SKIP:
{
	my $program = monitoring_program('prometheus-postgres-exporter');
	skip 'needs postgres_exporter (Debian package prometheus-postgres-exporter)', 1 unless defined $program;
	skip 'this postgres_exporter knows no --extend.query-path', 1 unless `$program --help 2>&1` =~ /--extend\.query-path/;
	skip 'needs a server that is built with libxml', 1 unless server_has_libxml();
	subtest 'with a server, its exporter and a Prometheus' => \&from_end_to_end;
}

# Ask Prometheus until that alert fires for these elections only
sub fires
{
	my ($prometheus, $alert, $expected, $test) = @_;
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;
	my $found;

	Time::HiRes::sleep(0.1)
	  while ($found = firing($prometheus, $alert, 'election')) ne $expected && monotonic() < $patience;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($found, $expected, $test);
	return;
}

sub from_end_to_end
{
	my $node = new_server('monitoring_alerts', conf => "autovacuum = off\n");
	my $exporter = start_exporter($node, args => ['--disable-settings-metrics']);

	# with shorter times, and for the database that we have
	(my $short = $rules) =~ s/for: \d+m/for: 1s/g;
	$short =~ s/datname="app"/datname="postgres"/g or die;
	my $prometheus = start_prometheus($exporter, $short);
	my $leader = session($node, app => 'worker-1');
	my $other = session($node);

	fires($prometheus, 'LeaderElectionSchedulerHasNoLeader', 'scheduler', 'an election that was never asked for');
	ask($leader, q{SELECT le_try_become_leader('scheduler')});
	ask($other, q{SELECT le_try_become_leader('mailer')});
	fires($prometheus, 'LeaderElectionSchedulerHasNoLeader', '', 'is led');
	fires($prometheus, 'LeaderElectionVacant', '', 'no election is vacant');
	ask($other, q{SELECT le_declare('scheduler'), le_declare('mailer')});
	ask($other, q{SELECT le_try_become_leader('tried once'), le_resign('tried once')});
	kill_client($leader);
	fires($prometheus, 'LeaderElectionVacant', 'scheduler', 'the leader is killed: the election is vacant');
	fires($prometheus, 'LeaderElectionSchedulerHasNoLeader', 'scheduler', 'and the one that must not be');
	ask($other, q{SELECT le_try_become_leader('scheduler')});
	fires($prometheus, 'LeaderElectionVacant', '', 'there is a leader again');
	fires($prometheus, 'LeaderElectionSchedulerHasNoLeader', '', 'that one, too');

	# a restart: one comes back, one does not
	$node->restart;
	$other = session($node);
	ask($other, q{SELECT le_try_become_leader('scheduler')});
	fires($prometheus, 'LeaderElectionForgotten', 'mailer', 'one of them is not asked for after a restart');
	fires($prometheus, 'LeaderElectionSchedulerHasNoLeader', '', 'the other has a leader');
	ask($other, q{SELECT le_try_become_leader('mailer')});
	fires($prometheus, 'LeaderElectionForgotten', '', 'and again');

	ask($other, q{SELECT le_resign('mailer'), le_lease('mailer', '1 h')});
	ask($other, q{SELECT le_depose('mailer')});
	fires($prometheus, 'LeaderElectionDeposed', 'mailer', 'a leader is deposed');
	ask($other, 'DROP EXTENSION leader_election');
	fires($prometheus, 'LeaderElectionSchedulerHasNoLeader', 'scheduler', 'the extension is dropped');
	stop_daemons();
	$node->stop;
	return;
}

done_testing();
