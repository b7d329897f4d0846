# What doc/monitoring.md shows is so: each statement runs in psql, by a role that may monitor,
# and shows what is so; those with \watch again and again, until they are
# interrupted.  So do the queries of monitoring/queries.sql.  It names the metrics and alerts that
# there are.

use strict;
use warnings;
use utf8;

use Encode qw(decode);
use IPC::Run;
use Test::More;
use Time::HiRes;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $doc = slurp_file('doc/monitoring.md');
my $node = new_server('monitoring_doc', conf => "autovacuum = off\n");

# --- one leads and one waits; one leads by a lease; one is vacant; one waits for a guarded transaction
my ($leader, $candidate, $guarded, $late, $restless) = map { session($node, app => $_) } qw(worker-1 worker-2 worker-3 worker-4 worker-5);
ask($leader, q{SELECT le_try_become_leader('scheduler'), le_try_become_leader('2929')});
ask($leader, q{SELECT le_try_become_leader('billing'), le_resign('billing')});
ask($leader, q{SELECT le_lease('mailer', '1 h')});
my $token = ask($guarded, q{SELECT le_lease('reports', '1 h')});
ask($guarded, qq{BEGIN; SELECT le_assert_leader('reports', $token)});
ask($leader, qq{SELECT le_resign('reports', $token)});
# one is polled for while it is led, and one while it is vacant
ask($restless, q{SELECT le_lease('mailer', '1 h')});
$token = ask($leader, q{SELECT le_lease('exports', '1 h')});
ask($guarded, qq{SELECT le_assert_leader('exports', $token)});
ask($leader, qq{SELECT le_resign('exports', $token)});
post($candidate, q{SELECT le_become_leader('scheduler')});
post($late, q{SELECT le_become_leader('reports')});
ask_until($leader, q{SELECT count(*) FROM le_candidates WHERE waits_for IN ('leader', 'guard')}, '2');

# What the statements of the document show, in order
my @shows = (
	qr/^ restless \| +[1-9]\d* \| +[1-9]\d* \| +0 \|/m,
	qr/\A(?=.*^ exports \| +0 \| worker-5\n).*^ reports \| +1 \| \n/ms,
	qr/^ le_declare /m, qr/CREATE ROLE/);
$node->safe_psql('postgres', 'CREATE ROLE monitor LOGIN; GRANT pg_monitor TO monitor');
my @blocks = $doc =~ /^```sql\n(.*?)^```$/gms;
is(scalar @blocks, scalar @shows, 'each statement is known');

# Run it in a psql, which is interrupted when it has told so often; meanwhile, terms begin and end
sub told_by_psql
{
	my ($sql, $user, $times, @options) = @_;
	my ($input, $output, $errors) = ($sql =~ s/\\watch \d+/\\watch 0.3/r, '', '');
	my $psql = IPC::Run::start([ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', @options, '-d', $node->connstr('postgres') . " user=$user" ],
		'<', \$input, '>', \$output, '2>', \$errors, my $timeout = IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

	if ($times)
	{
		while ((() = $output =~ /\(every [\d.]+s\)\n\n.*?\(\d+ rows?\)/gs) < $times && $psql->pumpable)
		{
			ask($restless, q{SELECT le_try_become_leader('restless'); SELECT le_resign('restless')});
			$psql->pump_nb;
			Time::HiRes::sleep(0.02);
			$timeout->is_expired and die 'psql shows nothing';
		}
		$psql->signal('INT');
	}
	$psql->finish;
	return ($output, $errors);
}

foreach my $block (@blocks)
{
	my ($first) = $block =~ /\A(.*)/;
	my $times = $block =~ /\\watch/ ? 3 : 0;

	ask($restless, q{SELECT le_lease('exports', '1 h')}) if $block =~ /last_denied_at >/;
	my ($output, $errors) = told_by_psql($block, $block =~ /CREATE ROLE|le_declare/ ? scalar getpwuid($>) : 'monitor', $times);

	unlike($errors, qr/ERROR/, "$first: no error") or diag($errors);
	like($output, shift @shows, "$first: shows what is so");
}

# --- the queries for psql; also with names that are too long for a screen
my $long = session($node, app => 'long ' x 20);
ask($long, qq{SELECT le_try_become_leader('long $_' || repeat('x', 60), identity => repeat('long ', 20), heartbeat => '1 h')}) foreach 1 .. 3;
ask($long, qq{SELECT le_lease('long $_' || repeat('y', 60), '1 h', identity => repeat('long ', 20))}) foreach 1 .. 3;
ask($long, q{SELECT le_resign('long 3' || repeat('x', 60))});
ask($leader, q{SELECT le_once('scheduler', '2026-01-01')});
# and a lease that is not committed
ask($restless, 'BEGIN', q{SELECT le_lease('fresh', '1 h')});
my $pid = $leader->{pid};
my @shown = (
	[ Leaders => qr/^ scheduler +\| worker-1 +\| $pid +\| \S+ +\| 00:\d\d:\d\d +\| +1$/m, qr/^ mailer +\| worker-1 +\| lease +\| \S+ +\| 00:/m, qr/^ 2929 +\| worker-1/m ],
	[ Candidates => qr/^ reports +\| +1 \| worker-4 +\| 00:\d\d:\d\d \| guard +\| $guarded->{pid} idle in xact\n scheduler +\| +1 \| worker-2 +\| 00:\d\d:\d\d \| leader +\| $pid idle$/m ],
	[ 'Leaders that no candidate' => qr/^ long 2x+… +\| …ong (?:long ?)+ +\| 00:/m, qr/\A(?!.*scheduler)(?!.*mailer)/s ],
	[ Vacant => qr/^ reports +\| 00:\d\d:\d\d +\| +1 \|.*^ billing +\| 00:\d\d:\d\d +\| +0 \| +1 \|/ms, qr/^ fresh +\| 00:\d\d:\d\d +\| +0 \| +0 \|/m, qr/\A(?!.*scheduler)/s ],
	[ 'Elections that flap' => qr/^ restless +\| +\d+ \| 00:00:00 +\| +0 \| +0 \|/m, qr/\A(?!.*scheduler)/s ],
	[ Bids => qr/^ exports +\| +\d+ \| 00:\d\d:\d\d \| worker-5 +\| $/m, qr/^ mailer +\| +1 \| 00:\d\d:\d\d \| worker-5 +\| worker-1$/m ],
	[ 'Leaders with a connection' => qr/^ scheduler +\| worker-1 +\| +$pid \| idle +\| 00:\d\d:\d\d +\| +\| *$/m, qr/^ long 2x+… \| …g (?:long ?)+ .*\| 01:00:00 +\| 00:5\d:\d\d$/m, qr/\A(?!.*mailer)/s ],
	[ Leases => qr/^ mailer +\| worker-1 +\| 01:00:00 \| 00:5\d:.*\| +(?:100|9\d) \| +0$/m ],
	[ Limits => qr/^ elections on the server +\| max_elections +\| +\d+ \| 100000 \| +0$/m, qr/^ led by one session +\| max_terms_per_session +\| +2 \| +1000 \| +0$/m ],
	[ Jobs => qr/^ scheduler +\| 2026-01-01 00:00:00\S* \| \d+ days/m ]);
# wider than the screen, a list would be written in another form
my ($output, $errors) = told_by_psql("\\i monitoring/queries.sql\nSHOW search_path", 'monitor', 0, '-P', 'expanded=auto', '-P', 'columns=100');
is($errors, '', 'the queries for psql: no error');
$output = decode('UTF-8', $output);
unlike($output, qr/^-\[ RECORD/m, 'no list is wider than 100 columns');
is((grep { length > 100 } split /\n/, $output), 0, 'nor is any line');
like($output, qr/^ "\$user", public$/m, 'the search_path is as before');
my @lists = $output =~ /^(\d+\. .*?)(?=^\d+\. |\z)/gms;
is(scalar @lists, scalar @shown, 'ten lists');
foreach my $number (1 .. @shown)
{
	my ($title, @rows) = @{ $shown[ $number - 1 ] };
	like($lists[ $number - 1 ] // '', $_, "$number. $title: shows what is so") foreach qr/\A$number\. $title/, @rows;
}
is((grep { /\A\d+\. .*\n(?:[^|\n]{20,}\n){2,3} +election +\|/ || /\A9\. .*\n(?:[^|\n]{20,}\n){3} +what +\|/ } @lists), scalar @shown, 'each says in two or three lines what to do');
like($output, qr/^Names with … are cut\./m, 'and where names are cut');
# one is copied and repeated
ask($restless, 'ROLLBACK');
my ($copied) = slurp_file('monitoring/queries.sql') =~ /^\\echo '1\. .*?^(SELECT .*?);\n/ms;
($output, $errors) = told_by_psql("\\i monitoring/queries.sql\n$copied\n\\watch 2\n", 'monitor', 3);
is($errors, '', 'a query that is repeated: no error');
like($output, qr/\(every .*^ scheduler .*\(every .*^ scheduler /ms, 'and it shows what is so again');
# other encodings may have no such character
foreach my $encoding ([ plain => 'SQL_ASCII', 'C' ], [ latin => 'LATIN1', 'C' ])
{
	my ($database, $code, $locale) = @$encoding;
	$node->safe_psql('postgres', "CREATE DATABASE $database ENCODING '$code' LOCALE '$locale' TEMPLATE template0");
	$node->safe_psql($database, 'CREATE EXTENSION leader_election');
	($output, $errors) = told_by_psql("\\c $database\n\\encoding UTF8\n\\i monitoring/queries.sql", 'monitor', 0);
	is($errors, '', "in $code: no error");
	like($output, qr/^Names with ~ are cut\./m, 'a tilde marks where names are cut');
}
$node->safe_psql('postgres', 'CREATE DATABASE without');
($output, $errors) = told_by_psql("\\c without\n\\i monitoring/queries.sql\nSHOW search_path", 'monitor', 0);
like($errors, qr/^There is no leader_election in this database/, 'without the extension, a warning') or diag($errors);
like($output, qr/^ "\$user", public$/m, 'and no more');
kill_client($long);

# --- what it names
my @metrics;
my $queries = slurp_file('monitoring/postgres_exporter.yaml');
while ($queries =~ /^(\w+):\n(.*?)(?=^\w|\z)/gms)
{
	my ($namespace, $body) = ($1, $2);
	push @metrics, map { "${namespace}_$_" } $body =~ /^    - (\w+): \{ usage: (?!LABEL)/gm;
}
cmp_ok(scalar @metrics, '>', 15, 'there are metrics');
my ($section) = $doc =~ /^### Metrics\n(.*?)^### /ms;
my %named = map { $_ => 1 } map { /`(leader_election_\w+)`/g } map { /^\| (`[^|]*) \|/ } split /\n/, $section;
is(join(' ', sort keys %named), join(' ', sort @metrics), 'all of them are in the table, and no others');
my @alerts = slurp_file('monitoring/alerts.yaml') =~ /- alert: (\w+)/g;
is(join(' ', $doc =~ /^#### (LeaderElection\w+)$/gm), "@alerts", 'each alert has its section');
foreach my $alert (@alerts)
{
	my ($text) = $doc =~ /^#### $alert\n(.*?)^#{1,4} /ms;
	my ($rule) = slurp_file('monitoring/alerts.yaml') =~ /- alert: $alert\n(.*?)(?=- alert: |\z)/s;
	like($text, qr/\A\n- \*Fires:\* .*^- \*First:\* /ms, "$alert: when it fires, what to do first");
	like($rule, qr{^ +description: '.+'\n +runbook_url: doc/monitoring\.md#\L$alert\E$}m, 'to which the alert points');
}
foreach my $file ('alerts.yaml', 'grafana.json')
{
	my %used = map { $_ => 1 } slurp_file("monitoring/$file") =~ /\b(leader_election_\w+)/g;
	is(join(' ', grep { !$named{$_} } sort keys %used), '', "$file uses such metrics only");
}

kill_client($leader, $candidate, $guarded, $late, $restless);
$node->stop;
done_testing();
