# Prometheus and its postgres_exporter, for the tests of what monitoring/ has: started on a
# free port, asked by HTTP, and stopped.
#
# needs: prometheus prometheus-postgres-exporter
package Monitoring;

use strict;
use warnings;

use Exporter 'import';
use HTTP::Tiny;
use JSON::PP;
use POSIX ();
use Test::More;
use Time::HiRes;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  monitoring_program server_has_libxml start_daemon stop_daemons
  start_exporter scrape value_of labels_of
  start_prometheus ask_prometheus firing
);

my $http = HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default);
my @daemons;

# The program of that name, as Debian has it; undef where it is not installed
sub monitoring_program
{
	my ($name) = @_;
	my ($program) = grep { -x } map { "$_/$name" } split /:/, $ENV{PATH};
	return $program;
}

# Can the server run our queries?
sub server_has_libxml
{
	return `pg_config --configure` =~ /--with-libxml/;
}

# Start a program that listens at the port, and wait until that page is there
sub start_daemon
{
	my ($port, $page, $environment, @command) = @_;
	my $output = PostgreSQL::Test::Utils::tempdir() . '/output';
	my $daemon = { port => $port, output => $output };

	$daemon->{pid} = fork() // die "fork: $!";
	if ($daemon->{pid} == 0)
	{
		%ENV = (%ENV, %$environment);
		open STDIN, '<', '/dev/null';
		open STDOUT, '>', $output;
		open STDERR, '>&', \*STDOUT;
		exec @command or POSIX::_exit(127);
	}
	push @daemons, $daemon;
	foreach my $attempt (1 .. 20 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return $daemon if $http->get("http://127.0.0.1:$port$page")->{success};
		if (waitpid($daemon->{pid}, POSIX::WNOHANG()) > 0)
		{
			pop @daemons;
			last;
		}
		Time::HiRes::sleep(0.05);
	}
	die "$command[0] does not answer: " . slurp_file($output);
}

sub stop_daemons
{
	foreach my $daemon (splice @daemons)
	{
		kill 'KILL', $daemon->{pid};
		waitpid $daemon->{pid}, 0;
	}
	return;
}

# An exporter with our queries, for a server; %params: db, user, args
sub start_exporter
{
	my ($node, %params) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $source = sprintf "user=%s host=%s port=%d dbname=%s sslmode=disable",
	  $params{user} // scalar getpwuid($>), $node->host, $node->port, $params{db} // 'postgres';

	return start_daemon($port, '/', { DATA_SOURCE_NAME => $source },
		monitoring_program('prometheus-postgres-exporter'), "--web.listen-address=127.0.0.1:$port",
		'--extend.query-path=' . ($params{queries} // 'monitoring/postgres_exporter.yaml'), @{ $params{args} // [] });
}

# What it answers now: a list of {name}, {labels}, {value}
sub scrape
{
	my ($exporter) = @_;
	my $answer = $http->get("http://127.0.0.1:$exporter->{port}/metrics");
	my @metrics;

	is($answer->{status}, 200, 'the exporter answers') or diag($answer->{content}), return [];
	foreach my $line (split /\n/, $answer->{content})
	{
		next unless $line =~ /^(\w+)(?:\{(.*)\})? (\S+)$/;
		my ($name, $list, $value) = ($1, $2 // '', $3);
		my %labels;
		while ($list =~ /(\w+)="((?:[^"\\]|\\.)*)"/gs)
		{
			my ($label, $text) = ($1, $2);
			$labels{$label} = $text =~ s/\\(.)/$1 eq 'n' ? "\n" : $1/ger;
		}
		push @metrics, { name => $name, labels => \%labels, value => $value };
	}
	return \@metrics;
}

sub select_metrics
{
	my ($metrics, $name, %labels) = @_;
	return grep {
		my $metric = $_;
		$metric->{name} eq $name && !grep { ($metric->{labels}{$_} // '') ne $labels{$_} } keys %labels
	} @$metrics;
}

# The value of the metric that has these labels, among others; empty if there is none, and all
# of them if there are several
sub value_of
{
	my ($metrics, $name, %labels) = @_;
	return join ' ', map { $_->{value} + 0 } select_metrics($metrics, $name, %labels);
}

# The values that this label has, in order
sub labels_of
{
	my ($metrics, $name, $label, %labels) = @_;
	return join ' ', sort map { $_->{labels}{$label} // '' } select_metrics($metrics, $name, %labels);
}

# A Prometheus that scrapes that exporter each half second, with these rules
sub start_prometheus
{
	my ($exporter, $rules) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $port = PostgreSQL::Test::Cluster::get_free_port();

	append_to_file("$dir/rules.yaml", $rules);
	append_to_file("$dir/prometheus.yaml", <<"YAML");
global: { scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 500ms }
rule_files: [rules.yaml]
scrape_configs:
  - job_name: postgres
    static_configs: [{ targets: ['127.0.0.1:$exporter->{port}'] }]
YAML
	return start_daemon($port, '/-/ready', {}, monitoring_program('prometheus'),
		"--config.file=$dir/prometheus.yaml", "--storage.tsdb.path=$dir/data", "--web.listen-address=127.0.0.1:$port");
}

# What its API answers there
sub ask_prometheus
{
	my ($prometheus, $page, %parameters) = @_;
	my $answer = $http->get("http://127.0.0.1:$prometheus->{port}/api/v1/$page?" . $http->www_form_urlencode(\%parameters));

	die "Prometheus: $page " . ($parameters{query} // '') . ": $answer->{status} $answer->{content}" unless $answer->{success};
	return decode_json($answer->{content})->{data};
}

# The alerts of that name that fire now, by the label
sub firing
{
	my ($prometheus, $name, $label) = @_;
	return join ' ', sort map { $_->{labels}{$label} // '' }
	  grep { $_->{state} eq 'firing' && $_->{labels}{alertname} eq $name }
	  @{ ask_prometheus($prometheus, 'alerts')->{alerts} };
}

# also where the test has died
END
{
	my $status = $?;
	stop_daemons();
	$? = $status;
}

1;
