# The alert rules in monitoring/alerts.yaml, with made-up metrics, by promtool; and in a
# Prometheus that scrapes the exporter of a server where an election becomes vacant.  The
# dashboard monitoring/grafana.json: every query of its panels and variables, expanded as
# Grafana does, has a result in that Prometheus when elections are led in each scope, waited for,
# and vacant.

use strict;
use warnings;

use JSON::PP;
use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Monitoring;

my $dashboard = decode_json(slurp_file('monitoring/grafana.json'));
my @panels = @{ $dashboard->{panels} };
my @variables = grep { $_->{type} eq 'query' } @{ $dashboard->{templating}{list} };

cmp_ok(scalar @panels, '>', 10, 'there are panels');
is_deeply([ map { $_->{id} } @panels ], [ 1 .. @panels ], 'which are numbered');
foreach my $panel (@panels)
{
	like($panel->{description} // '', qr/^[A-Z][^\n]{20,}\.$/, "$panel->{title}: a description");
	ok(defined $panel->{fieldConfig}{defaults}{unit} || $panel->{type} eq 'state-timeline', "$panel->{title}: a unit");
}
is_deeply([ grep { ($_->{datasource}{uid} // '') ne '${datasource}' } @panels, @variables ], [], 'all use the data source that is selected');
is($dashboard->{templating}{list}[0]{current}{value}, '${' . $dashboard->{__inputs}[0]{name} . '}', 'at first, the one of the import');

my $promtool = monitoring_program('promtool');
my $rules = slurp_file('monitoring/alerts.yaml');

SKIP:
{
	skip 'needs Prometheus (Debian package prometheus)', 1 unless defined $promtool;
	command_ok([ $promtool, 'check', 'rules', 'monitoring/alerts.yaml' ], 'the rules are valid');
	command_ok([ $promtool, 'test', 'rules', 'monitoring/alerts_test.yaml' ], 'they fire when they should, and not otherwise');
	my @untested = grep { slurp_file('monitoring/alerts_test.yaml') !~ /alertname: $_$/m } $rules =~ /- alert: (\w+)/g;
	is("@untested", '', 'all are tested there');

	my $program = monitoring_program('prometheus-postgres-exporter');
	skip 'needs postgres_exporter (Debian package prometheus-postgres-exporter)', 1 unless defined $program;
	skip 'this postgres_exporter knows no --extend.query-path', 1 unless `$program --help 2>&1` =~ /--extend\.query-path/;
	skip 'needs a server that is built with libxml', 1 unless server_has_libxml();
	subtest 'with a server, its exporter and a Prometheus' => \&from_end_to_end;
}

# The query with the values that are selected, as Grafana expands it; without any, all are
sub expand
{
	my ($query, %selected) = @_;
	my %value = (__rate_interval => '1m', map { $_->{name} => $_->{allValue} } @variables);

	foreach my $name (keys %selected)
	{
		my @values = map { s/\\/\\\\\\\\/gr =~ s/([\$^*{}\[\]'+?.()|])/\\\\$1/gr } @{ $selected{$name} };
		$value{$name} = @values == 1 ? $values[0] : '(' . join('|', @values) . ')';
	}
	return $query =~ s/\$(\w+)/$value{$1} \/\/ die "there is no variable $1"/ger;
}

# The series that the query of a panel has in the last half minute
sub series_of
{
	my ($prometheus, $target, %selected) = @_;
	my $query = expand($target->{expr}, %selected);
	my $now = Time::HiRes::time();

	return @{ ask_prometheus($prometheus, 'query', query => $query, time => $now)->{result} } if $target->{instant};
	return @{ ask_prometheus($prometheus, 'query_range', query => $query, start => $now - 30, end => $now, step => 1)->{result} };
}

# Repeat until it returns what is expected
sub becomes
{
	my ($found, $expected, $test) = @_;
	my $patience = monotonic() + $PostgreSQL::Test::Utils::timeout_default;
	my $value;

	Time::HiRes::sleep(0.1) while ($value = $found->()) ne $expected && monotonic() < $patience;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($value, $expected, $test);
}

# What the panel of that title shows for an election now: values, in the order of its queries, or identities
sub shown
{
	my ($prometheus, $title, $election) = @_;
	my ($panel) = grep { $_->{title} eq $title } @panels or die "no panel \"$title\"";
	my @series = map { series_of($prometheus, { %$_, instant => 1 }) } @{ $panel->{targets} };

	return join ' ', map { $_->{metric}{identity} // $_->{value}[1] } grep { ($_->{metric}{election} // '') eq $election } @series;
}

# Wait until that alert fires for these elections only
sub fires
{
	my ($prometheus, $alert, $expected, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return becomes(sub { firing($prometheus, $alert, 'election') }, $expected, $test);
}

sub from_end_to_end
{
	my $node = new_server('monitoring_alerts', conf => "autovacuum = off\n");
	my $exporter = start_exporter($node, args => ['--disable-settings-metrics']);

	# with shorter times, and for the database that we have
	(my $short = $rules) =~ s/for: \d+m/for: 1s/g;
	$short =~ s/datname="app"/datname="postgres"/g or die;
	my $prometheus = start_prometheus($exporter, $short);

	fires($prometheus, 'LeaderElectionSchedulerHasNoLeader', 'scheduler', 'an election that was never asked for');

	# --- the dashboard
	my ($leader, $candidate, $other) = map { session($node, app => $_) } qw(worker-1 worker-2 worker-3);

	ask($leader, q{SELECT le_declare(name) FROM unnest('{billing,indexer,mailer (EU),scheduler}'::text[]) name});
	ask($leader, q{SELECT le_try_become_leader('scheduler'), le_try_become_leader('indexer', heartbeat => '1 h')});
	ask($leader, q{SELECT le_once('scheduler', clock_timestamp() - interval '24 hours')});
	ask($other, q{SELECT le_lease('mailer (EU)', '1 h', identity => 'worker-4'), le_try_become_leader('scheduler'), le_try_become_leader('2929')});
	ask($other, q{SELECT le_try_become_leader('tried once'), le_resign('tried once')});
	ask($other, q{SELECT le_try_become_leader('billing'), le_resign('billing')});
	post($candidate, q{SELECT le_become_leader('scheduler')});
	wait_for_candidate($other, $candidate);

	# a counter increases if it was scraped before
	becomes(sub { shown($prometheus, 'Leaders', 'billing') }, '(vacant)', 'a vacant election');
	ask($other, q{SELECT le_try_become_leader('billing'), le_resign('billing')});

	foreach my $variable (@variables)
	{
		my ($metric, $label) = $variable->{query}{query} =~ /^label_values\((.+), (\w+)\)$/ or die "variable $variable->{name}";
		my %expected = (instance => "127.0.0.1:$exporter->{port}", datname => 'postgres', election => 'billing indexer mailer (EU) scheduler');
		becomes(sub { join ' ', @{ ask_prometheus($prometheus, "label/$label/values", 'match[]' => expand($metric)) } },
			$expected{$label}, "variable $variable->{name}");
	}
	foreach my $panel (@panels)
	{
		becomes(sub { series_of($prometheus, $_) > 0 ? 'data' : 'nothing' }, 'data', "$panel->{title}, query $_->{refId}")
		  foreach @{ $panel->{targets} };
	}
	becomes(sub { shown($prometheus, 'Leaders', $_->[0]) }, $_->[1], "the leader of $_->[0]")
	  foreach ['scheduler', 'worker-1'], ['mailer (EU)', 'worker-4'];
	becomes(sub { shown($prometheus, 'Candidates', 'scheduler') }, '1', 'its candidates');
	like(shown($prometheus, 'Vacant Elections', 'billing'), qr/^[\d.]+ 0$/, 'since when an election is vacant, without candidates');
	is(shown($prometheus, 'Vacant Elections', 'scheduler'), '', 'one that is led is not among them');

	becomes(sub { shown($prometheus, 'Registry', '') }, ask($other, q{
SELECT concat_ws(' ', elections, current_setting('leader_election.max_elections'), current_setting('leader_election.max_tracked'))
FROM pg_stat_leader_election_info}), 'the registry and its limits');

	becomes(sub { shown($prometheus, 'Undeclared Elections', '') }, '2 1', 'two are not declared, and one of them is led');

	# names that are regular expressions
	foreach my $selected (['mailer (EU)'], [ 'mailer (EU)', 'scheduler' ])
	{
		my ($panel) = grep { $_->{title} eq 'Leaders' } @panels;
		my @found = series_of($prometheus, { %{ $panel->{targets}[0] }, instant => 1 }, election => $selected, datname => ['postgres']);
		is_deeply([ sort map { $_->{metric}{election} } @found ], $selected, "selected: @$selected");
	}

	ask($other, q{SELECT le_undeclare('billing')});
	becomes(sub { shown($prometheus, 'Leaders', 'billing') }, '(not measured)', 'an election that is not declared any more');

	kill_client($leader, $candidate);

	# --- the alerts
	ask($other, q{SELECT le_undeclare('indexer'), le_declare('mailer')});
	$leader = session($node, app => 'worker-1');
	ask_until($other, q{SELECT count(*) FROM le_leaders WHERE scope = 'session'}, '0');
	ask($leader, q{SELECT le_try_become_leader('scheduler')});
	fires($prometheus, 'LeaderElectionVacant', 'mailer', 'an election for which no program has ever bid');
	ask($other, q{SELECT le_try_become_leader('mailer')});
	fires($prometheus, 'LeaderElectionSchedulerHasNoLeader', '', 'is led');
	fires($prometheus, 'LeaderElectionVacant', '', 'no election is vacant');
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
	fires($prometheus, 'LeaderElectionVacant', 'mailer', 'one of them is not asked for after a restart');
	fires($prometheus, 'LeaderElectionSchedulerHasNoLeader', '', 'the other has a leader');
	ask($other, q{SELECT le_try_become_leader('mailer')});
	fires($prometheus, 'LeaderElectionVacant', '', 'and again');
	fires($prometheus, 'LeaderElectionJobOverdue', '', 'a job of yesterday is not overdue');
	ask($other, q{UPDATE _le_once_done SET due = due - interval '2 hours'});
	fires($prometheus, 'LeaderElectionJobOverdue', 'scheduler', 'an older one is');

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
