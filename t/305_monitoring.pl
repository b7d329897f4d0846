# What Prometheus' postgres_exporter measures by monitoring/postgres_exporter.yaml is what is so;
# then in several databases, with the extension, and without; by roles with different rights; on a
# standby.  What goes wrong in one database leaves all else as it is.

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

my $program = monitoring_program('prometheus-postgres-exporter');
plan skip_all => 'needs postgres_exporter (Debian package prometheus-postgres-exporter)' unless defined $program;
plan skip_all => 'this postgres_exporter knows no --extend.query-path, or discovers no databases'
  unless `$program --help 2>&1` =~ /--auto-discover-databases.*--extend\.query-path/s;

plan skip_all => 'needs a server that is built with libxml' unless server_has_libxml();

my $node = new_server('monitoring', allows_streaming => 1, conf => "autovacuum = off\nleader_election.max_tracked = 3000\n");
my @reasons = ('deposed', 'expired', 'extension dropped', 'lock released', 'resigned', 'session ended', 'silent', 'transaction ended');
my $query = session($node);
my $metrics;

# the exporter's role, and one that may see more
ask($query, 'CREATE ROLE regress_exporter LOGIN; CREATE ROLE regress_monitor LOGIN; GRANT pg_monitor TO regress_monitor');
my $exporter = start_exporter($node, user => 'regress_exporter');

# The metrics of one election are these
sub measured
{
	my ($election, $test, %expected) = @_;
	my %found = map { $_ => value_of($metrics, "leader_election_$_", election => $election) } keys %expected;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is_deeply(\%found, \%expected, $test) or diag(explain(\%found));
	return;
}

# So many of its terms have ended for these reasons, and none for another
sub ended
{
	my ($election, $test, %expected) = @_;
	my %found = map { $_ => value_of($metrics, 'leader_election_terms_ended_total', election => $election, reason => $_) } @reasons;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is_deeply(\%found, { (map { $_ => '0' } @reasons), %expected }, $test) or diag(explain(\%found));
	return;
}

# The metric lies between what SQL says before and after the scrape
sub between
{
	my ($name, $election, $sql, $test) = @_;
	my $before = ask($query, $sql);
	$metrics = scrape($exporter);
	my $after = ask($query, $sql);
	my $value = value_of($metrics, "leader_election_$name", election => $election);
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	($before, $after) = sort { $a <=> $b } $before, $after;
	ok($value ne '' && $value >= $before - 0.001 && $value <= $after + 0.001, $test) or diag("$before $value $after");
	return;
}

# A session that waits to be elected, in a call of le_become_leader or
# le_campaign
sub candidate
{
	my ($client, $sql) = @_;
	post($client, $sql);
	return wait_for_candidate($query, $client);
}

# --- no election has been asked for
$metrics = scrape($exporter);
is(value_of($metrics, 'leader_election_extension_info', datname => 'postgres', server_role => 'primary'), '1', 'the extension is there');
is(labels_of($metrics, 'leader_election_extension_info', 'version'), ask($query, q{SELECT extversion FROM pg_extension WHERE extname = 'leader_election'}), 'its version');
is(value_of($metrics, 'leader_election_registry_elections'), '0', 'no election is known');
is(labels_of($metrics, 'leader_election_led', 'election'), '', 'and none is measured');
is(value_of($metrics, "leader_election_undeclared_$_"), '0', "$_: zero") foreach qw(elections led candidates terms_begun bids_denied);

# --- one is declared, and not used yet
ask($query, q{SELECT le_declare(name) FROM unnest('{scheduler,reasons,mailer,indexer,guarded}'::text[]) name});
$metrics = scrape($exporter);
measured('scheduler', 'an election that is declared is vacant', led => '0', candidates => '0', terms_begun_total => '0', bids_denied_total => '0',
	vacancy_age_seconds => 'NaN', term_age_seconds => 'NaN', leader_info => '', once_due_age_seconds => '');
ended('scheduler', 'no term has ended');
is(value_of($metrics, 'leader_election_undeclared_elections'), '0', 'and is not among the others');

# --- one leads, others wait, one is denied
my $leader = session($node, app => 'worker-1');
ask($leader, q{SELECT le_try_become_leader('scheduler')});
my @waiting = map { Time::HiRes::sleep(0.1); candidate(session($node, app => "worker-$_"), q{SELECT le_become_leader('scheduler')}) } 2, 3;
ask($query, q{SELECT le_try_become_leader('scheduler')}) for 1 .. 3;
$metrics = scrape($exporter);
measured('scheduler', 'one leads and two wait', led => '1', candidates => '2', terms_begun_total => '1', bids_denied_total => '3',
	vacancy_age_seconds => '0', leader_info => '1', waiting_candidates => '2', longest_wait_seconds => '0', lease_ttl_seconds => 'NaN', heartbeat_expires_in_seconds => 'NaN');
is(labels_of($metrics, 'leader_election_leader_info', 'identity'), 'worker-1', 'the leader');
is(labels_of($metrics, 'leader_election_leader_info', 'scope'), 'session', 'in which scope');
is(labels_of($metrics, 'leader_election_waiting_candidates', 'waits_for'), 'leader', 'what they wait for');
ended('scheduler', 'no term has ended');
between('term_age_seconds', 'scheduler', q{SELECT extract(epoch FROM clock_timestamp() - since) FROM le_leaders}, 'age of the term');
between('led_seconds_total', 'scheduler', q{SELECT extract(epoch FROM time_led) FROM pg_stat_leader_election}, 'time led');
between('last_denied_age_seconds', 'scheduler', q{SELECT extract(epoch FROM clock_timestamp() - last_denied_at) FROM le_leaders}, 'since a bid was denied');
between('waiting_longest_seconds', 'scheduler', q{SELECT extract(epoch FROM clock_timestamp() - min(since)) FROM le_candidates},
	'for how long the first has waited');

# --- the leader is killed
kill_client($leader);
collect($waiting[0]);
$metrics = scrape($exporter);
measured('scheduler', 'the next one leads', led => '1', candidates => '1', terms_begun_total => '2', leader_info => '1');
is(labels_of($metrics, 'leader_election_leader_info', 'identity'), 'worker-2', 'and is named');
ended('scheduler', 'the session has ended', 'session ended' => '1');
between('longest_wait_seconds', 'scheduler', q{SELECT extract(epoch FROM longest_wait) FROM pg_stat_leader_election}, 'it has waited');
cmp_ok(value_of($metrics, 'leader_election_longest_wait_seconds', election => 'scheduler'), '>', 0, 'for some time');

# --- no leader
ask($waiting[0], 'SELECT le_resign_all()');
collect($waiting[1]);
ask($waiting[1], 'SELECT le_resign_all()');
Time::HiRes::sleep(0.2);
between('vacant_seconds_total', 'scheduler', q{SELECT extract(epoch FROM time_vacant) FROM pg_stat_leader_election}, 'time vacant');
cmp_ok(value_of($metrics, 'leader_election_vacant_seconds_total', election => 'scheduler'), '>=', 0.2, 'which is some time');
measured('scheduler', 'it is vacant', led => '0', candidates => '0', leader_info => '', term_age_seconds => 'NaN', waiting_candidates => '');
ended('scheduler', 'two have resigned', 'session ended' => '1', resigned => '2');
between('vacancy_age_seconds', 'scheduler', q{SELECT extract(epoch FROM clock_timestamp() - vacant_since) FROM pg_stat_leader_election},
	'since then');
cmp_ok(value_of($metrics, 'leader_election_vacancy_age_seconds', election => 'scheduler'), '>=', 0.2, 'which is some time, too');

# --- terms end for every reason
my $client = session($node);
ask($client, q{SELECT le_try_become_leader_xact('reasons')}) for 1 .. 4;
ask($client, q{SELECT le_try_become_leader('reasons')});
ask($client, 'SELECT pg_advisory_unlock_all()');
ask($client, q{SELECT le_lease('reasons', '1 h')});
ask($query, q{SELECT le_depose('reasons')}) for 1 .. 2;
ask($client, q{SELECT le_lease('reasons', '100 ms')});
ask_until($client, q{SELECT le_try_become_leader('reasons')});
kill_client($client);
ask_until($query, q{SELECT count(*) = 0 FROM le_leaders WHERE name = 'reasons'});
$metrics = scrape($exporter);
ended('reasons', 'each reason is counted', 'transaction ended' => '4', 'lock released' => '1', deposed => '1', expired => '1', 'session ended' => '1');
measured('reasons', 'and each term', terms_begun_total => '8', led => '0');

# --- a lease is renewed, and runs out
my $token = ask($query, q{SELECT le_lease('mailer', '10 min', identity => 'worker-5')});
ask($query, qq{SELECT le_renew('mailer', $token)}) for 1 .. 7;
$metrics = scrape($exporter);
measured('mailer', 'a lease', led => '1', last_denied_age_seconds => 'NaN', leader_info => '1', lease_ttl_seconds => '600', lease_renewals_total => '7');
is(labels_of($metrics, 'leader_election_leader_info', 'scope', election => 'mailer'), 'lease', 'by its scope');
between('lease_expires_in_seconds', 'mailer', q{SELECT extract(epoch FROM expires_in) FROM le_leader('mailer')}, 'how long it runs');
ask($query, qq{SELECT le_renew('mailer', $token, '100 ms')});
ask_until($query, q{SELECT count(*) = 0 FROM le_leader('mailer')});
$metrics = scrape($exporter);
measured('mailer', 'it is over', led => '0', leader_info => '', lease_expires_in_seconds => 'NaN', terms_begun_total => '1');

# --- a leader gives heartbeats, and then none
my $indexer = session($node);
ask($indexer, q{SELECT le_try_become_leader('indexer', heartbeat => '10 min')});
$metrics = scrape($exporter);
measured('indexer', 'a heartbeat', led => '1', leader_info => '1', heartbeat_interval_seconds => '600');
between('heartbeat_expires_in_seconds', 'indexer', q{SELECT extract(epoch FROM expires_in) FROM le_leader('indexer')}, 'how long it runs without');
ask($indexer, q{SELECT le_try_become_leader('indexer', heartbeat => '100 ms')});
ok(wait_for_end($indexer), 'its session ends');
$metrics = scrape($exporter);
ended('indexer', 'that is counted', silent => '1');
measured('indexer', 'it is over', led => '0', leader_info => '', heartbeat_expires_in_seconds => 'NaN', terms_begun_total => '1');

# --- candidates that are not kept out by a leader
$client = session($node);
my $guarded = session($node);
$token = ask($client, q{SELECT le_lease('guarded', '10 min')});
ask($guarded, qq{BEGIN; SELECT le_assert_leader('guarded', $token)});
ask($client, qq{SELECT le_resign('guarded', $token)});
ask($query, q{SELECT le_declare('graceful', grace => '1 h')});
my $lost = session($node);
ask($lost, q{SELECT le_try_become_leader('graceful')});
kill_client($lost);
ask_until($query, q{SELECT count(*) = 0 FROM le_leaders});
@waiting = (candidate(session($node), q{SELECT le_become_leader('guarded')}), candidate(session($node), q{SELECT le_become_leader('graceful')}),
	candidate(session($node), q{CALL le_campaign(ARRAY['graceful', 'guarded'])}));
ask_until($query, q{SELECT count(*) FROM le_candidates WHERE waits_for IN ('guard', 'grace')}, '2');
$metrics = scrape($exporter);
is(labels_of($metrics, 'leader_election_waiting_candidates', 'waits_for', election => 'guarded'), 'any guard', 'one waits for a guarded transaction');
is(labels_of($metrics, 'leader_election_waiting_candidates', 'waits_for', election => 'graceful'), 'any grace', 'one for the end of the grace');
measured($_, "$_ is vacant", led => '0', candidates => '2') foreach 'guarded', 'graceful';
kill_client($guarded, @waiting);

# --- a job of le_once
$client = session($node);
ask($client, q{SELECT le_try_become_leader('mailer'), le_try_become_leader('job of a name that is not declared')});
ask($client, qq{SELECT le_once('$_', clock_timestamp() - interval '3 hours')}) foreach 'mailer', 'job of a name that is not declared';
between('once_due_age_seconds', 'mailer', q{SELECT extract(epoch FROM clock_timestamp() - due) FROM le_once_done WHERE name = 'mailer'}, 'since it was due');
is(labels_of($metrics, 'leader_election_once_due_age_seconds', 'election'), 'mailer', 'of a declared election only');
kill_client($client);

# --- names that are hard to write down
my @names = ('say "hello"', 'back\\slash\\n', "line\nbreak\r", "tab\there", q{it's}, '{a="b"} 1', '<x>&amp;]]>', '[1, {"a": 2}]', '$query$', '%1$I %s',
	"\xc3\xbcbung \xf0\x9f\x98\x80", "\x01\x7f\x1b", "\xef\xbf\xbe\xef\xbf\xbf", ' ', '2929', 'x' x 255);
$client = session($node, app => "it's \"me\"\n\\");
ask($query, 'SELECT le_declare(' . sql_literal($_) . ')') foreach @names;
ask($client, 'SELECT le_try_become_leader(' . sql_literal($_) . ', identity => ' . sql_literal($_) . ')') foreach @names;
$metrics = scrape($exporter);
is(join('|', sort grep { value_of($metrics, 'leader_election_led', election => $_) eq '1' } @names), join('|', sort @names), 'every name arrives');
is(join('|', sort map { $_->{labels}{identity} } grep { $_->{name} eq 'leader_election_leader_info' } @$metrics), join('|', sort @names), 'and every identity');
ask($client, 'SELECT le_resign_all()');
$metrics = scrape($exporter);
is(value_of($metrics, 'leader_election_led', election => $_), '0', 'and is vacant again') foreach @names;
ask($query, 'SELECT le_undeclare(' . sql_literal($_) . ')') foreach @names;

# --- elections that are not declared are summed
$metrics = scrape($exporter);
my $before = $metrics;
my $known = value_of($metrics, 'leader_election_undeclared_elections');
my @elections = split / /, labels_of($metrics, 'leader_election_led', 'election');
is("@elections", 'graceful guarded indexer mailer reasons scheduler', 'names that are declared');
is($known, ask($query, 'SELECT count(*) FROM pg_stat_leader_election') - @elections, 'all others');
ask($query, q{SELECT count(le_lease('crowd ' || i, '10 min')) FROM generate_series(1, 500) i});
ask($client, q{SELECT le_try_become_leader('crowd 1')}) foreach 1 .. 3;
my $waits = candidate(session($node), q{CALL le_campaign('crowd 2')});
$metrics = scrape($exporter);
my %sums = map { my $sum = "leader_election_undeclared_$_"; $_ => value_of($metrics, $sum) - value_of($before, $sum) } qw(elections led candidates terms_begun bids_denied);
is_deeply(\%sums, { elections => 500, led => 500, candidates => 1, terms_begun => 500, bids_denied => 3 }, 'are summed')
  or diag(explain(\%sums));
my %series = map { my $of = $_; $of => scalar grep { $_->{name} =~ /^leader_election_/ } @{ $of eq 'before' ? $before : $metrics } } 'before', 'after';
is($series{after}, $series{before}, 'they make no time series');
kill_client($waits);
kill_client($client);
is(value_of($metrics, 'leader_election_registry_elections'), ask($query, 'SELECT elections FROM pg_stat_leader_election_info'), 'all are counted');
is(value_of($metrics, 'leader_election_registry_evictions_total'), '0', 'none was forgotten');
ask($query, q{ALTER SYSTEM SET leader_election.max_tracked = 100});
ask($query, 'SELECT pg_reload_conf()');
ask_until($query, q{SELECT le_try_become_leader_xact('more ' || random()::text) AND evictions > 0 FROM pg_stat_leader_election_info});
$metrics = scrape($exporter);
is(value_of($metrics, 'leader_election_registry_evictions_total'), ask($query, 'SELECT evictions FROM pg_stat_leader_election_info'), 'some were');

# --- the server is restarted
ask($query, q{SELECT le_lease('indexer', '10 min')});
$node->restart;
$query = session($node);
$metrics = scrape($exporter);
# whose first answer is that its connection is gone
$metrics = scrape($exporter) if value_of($metrics, 'leader_election_extension_info') eq '';
measured('scheduler', 'after a restart an election is vacant', led => '0', vacancy_age_seconds => 'NaN', terms_begun_total => '0');
measured('indexer', 'but a lease goes on', led => '1', vacancy_age_seconds => '0', lease_ttl_seconds => '600');

stop_daemons();
ask($query, 'ALTER SYSTEM RESET leader_election.max_tracked', 'SELECT pg_reload_conf()', 'DROP EXTENSION leader_election', 'CREATE EXTENSION leader_election');
kill_client($query);

# --- several databases
sub sql
{
	my ($db, $sql) = @_;
	return $node->safe_psql($db, $sql);
}

sql('postgres', $_) foreach 'CREATE DATABASE other', 'CREATE DATABASE old', 'CREATE DATABASE without',
  q{CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0},
  q{CREATE DATABASE windows ENCODING 'WIN1252' LOCALE 'C' TEMPLATE template0},
  q{CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0};
sql('other', 'CREATE SCHEMA "an ""odd"" one"; CREATE EXTENSION leader_election SCHEMA "an ""odd"" one";
	GRANT USAGE ON SCHEMA "an ""odd"" one" TO regress_exporter, regress_monitor');
sql('old', q{CREATE EXTENSION leader_election});
create_extension($node, $_) foreach 'latin', 'windows', 'ascii';

# The same election in each: led in some, vacant in others
$leader = session($node);
ask($leader, q{SELECT le_declare('scheduler'), le_declare('mailer'), le_try_become_leader('scheduler')});
sql('other', q{SET search_path = "an ""odd"" one"; SELECT le_declare('scheduler'), le_try_become_leader('scheduler')});
sql('old', q{SELECT le_declare('scheduler'), le_declare('mailer'), le_try_become_leader('scheduler'); SELECT le_resign('scheduler'); SELECT le_lease('mailer', '1 h')});
# and in some, names and identities that are no text in UTF-8
sql('latin', q{SELECT le_declare('caf' || chr(233)), le_lease('caf' || chr(233), '1 h', identity => 'Andr' || chr(233))});
my %strange = (windows => 'chr(129)', ascii => q{E'\xff'});
foreach my $db (sort keys %strange)
{
	sql($db, qq{SELECT le_declare(n), le_lease(n, '1 h', identity => $strange{$db} || '!') FROM (SELECT $strange{$db} || ' is declared') d(n)});
	sql($db, qq{SELECT le_lease($strange{$db} || ' is not', '1 h')});
}
# two that become equal, both led and vacant
sql('windows', q{SELECT le_declare(n), le_declare('another ' || n) FROM (VALUES (chr(129)), (chr(141))) names(n);
	SELECT le_lease(n, '1 h', identity => n) FROM (VALUES (chr(129)), (chr(141))) names(n);
	INSERT INTO _le_once_done SELECT n, now(), 1, 10 FROM (VALUES (chr(129)), (chr(141))) names(n)});
my $observer = session($node, db => 'windows');
my @wait_strangely = map { session($node, db => 'windows') } 129, 141;
post($wait_strangely[$_], 'CALL le_campaign(chr(' . (129, 141)[$_] . '))') foreach 0, 1;
wait_for_candidate($observer, $_) foreach @wait_strangely;

my @discover = ('--auto-discover-databases', '--exclude-databases=template0,template1');
$exporter = start_exporter($node, user => 'regress_exporter', args => \@discover);
$metrics = scrape($exporter);

# What an exporter measures besides
sub all_else_is_there
{
	my ($test) = @_;
	my @others = grep { $_->{name} =~ /^pg_/ } @$metrics;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(value_of($metrics, 'pg_up'), '1', "$test: the server is up");
	cmp_ok(scalar @others, '>', 300, "$test: and measured");
	return;
}

all_else_is_there('all databases');
is(value_of($metrics, 'pg_exporter_last_scrape_error'), '0', 'a database without the extension is no error');
is(labels_of($metrics, 'leader_election_extension_info', 'datname'), 'ascii latin old other postgres windows', 'those that have it');
is(value_of($metrics, 'leader_election_extension_info', datname => 'old', version => '1.0.0'), '1', 'the version is told');
my %led = map { $_ => value_of($metrics, 'leader_election_led', datname => $_, election => 'scheduler') } qw(postgres other old without latin);
is_deeply(\%led, { postgres => '1', other => '0', old => '0', without => '', latin => '' }, 'elections of one name are told apart by their database');
is(value_of($metrics, 'leader_election_leader_info', datname => 'latin', election => 'caf?', identity => 'Andr?'), '1', 'another encoding');
is(value_of($metrics, 'leader_election_leader_info', datname => $_, election => '? is declared', identity => '?!'), '1', "what is no text in UTF-8, in $_")
  foreach sort keys %strange;
is(value_of($metrics, "leader_election_$_", datname => 'windows', election => '?'), '1', "one of two elections that become equal: $_")
  foreach qw(led leader_info waiting_candidates terms_begun_total);
is(value_of($metrics, 'leader_election_led', datname => 'windows', election => 'another ?'), '0', 'also if they are vacant');
isnt(value_of($metrics, 'leader_election_once_due_age_seconds', datname => 'windows', election => '?'), '', 'and a job');
is(value_of($metrics, 'leader_election_undeclared_led', datname => $_), '1', "one that is not declared is counted, in $_") foreach sort keys %strange;
kill_client($observer, @wait_strangely);

cmp_ok(value_of($metrics, 'leader_election_vacancy_age_seconds', datname => 'old', election => 'scheduler'), '>', 0, 'since when it is vacant');
is(value_of($metrics, 'leader_election_vacancy_age_seconds', datname => 'old', election => 'mailer'), '0', 'but that it is not');
is(value_of($metrics, 'leader_election_terms_begun_total', datname => 'old', election => 'scheduler'), '1', 'and all else');

# A role that may see more
my $monitor = start_exporter($node, user => 'regress_monitor', args => \@discover);
my $seen = scrape($monitor);
my %counts = map { my $of = $_; $of => scalar grep { $_->{name} =~ /^leader_election_/ } @{ $of eq 'monitor' ? $seen : $metrics } } 'monitor', 'exporter';
foreach (['regress_exporter', $metrics], ['regress_monitor', $seen])
{
	my ($role, $shown) = @$_;
	is(labels_of($shown, 'leader_election_leader_info', 'identity', datname => 'postgres'),
		sql('postgres', "SET ROLE $role; SELECT identity FROM le_leaders"), "$role is shown what the views show it");
}
isnt(labels_of($seen, 'leader_election_leader_info', 'identity', datname => 'postgres'),
	labels_of($metrics, 'leader_election_leader_info', 'identity', datname => 'postgres'), 'and the address of a client is shown to it only');

# No right to use the schema
sql('other', 'REVOKE USAGE ON SCHEMA "an ""odd"" one" FROM regress_exporter');
$metrics = scrape($exporter);
is(value_of($metrics, 'pg_exporter_last_scrape_error'), '1', 'a schema that must not be used is an error');
like(slurp_file($exporter->{output}), qr/permission denied for schema/, 'that is logged');
is(value_of($metrics, 'leader_election_led', datname => 'other', election => 'scheduler'), '', 'nothing of that database is measured');
is(value_of($metrics, 'leader_election_extension_info', datname => 'other'), '1', 'but that it has the extension');
is(value_of($metrics, 'leader_election_led', datname => 'postgres', election => 'scheduler'), '1', 'and all of the others');
all_else_is_there('without the right');
sql('other', 'GRANT USAGE ON SCHEMA "an ""odd"" one" TO regress_exporter');
$metrics = scrape($exporter);
is(value_of($metrics, 'pg_exporter_last_scrape_error'), '0', 'with it, all is well again');
is(value_of($metrics, 'leader_election_led', datname => 'other', election => 'scheduler'), '0', 'and measured');

# The owner of a database has replaced views: each row comes twice
sql('ascii', q{DO $$
DECLARE
	v text;
BEGIN
	FOREACH v IN ARRAY '{le_leaders,pg_stat_leader_election,pg_stat_leader_election_info}'::text[] LOOP
		EXECUTE format('CREATE OR REPLACE VIEW %1$I AS SELECT * FROM (%2$s) a UNION ALL SELECT * FROM (%2$s) b', v, rtrim(pg_get_viewdef(v::regclass), ';'));
	END LOOP;
END$$});
$metrics = scrape($exporter);
is(value_of($metrics, 'leader_election_leader_info', datname => 'ascii'), '1', 'twice the same is told once');
is(value_of($metrics, 'leader_election_led', datname => 'postgres', election => 'scheduler'), '1', 'and all of the others');
all_else_is_there('with such views');

# The extension goes, and comes again
ask($leader, q{SELECT le_resign_all()});
sql('ascii', 'DROP EXTENSION leader_election');
sql('postgres', q{SELECT le_lease('mailer', '1 h'); DROP EXTENSION leader_election});
$metrics = scrape($exporter);
is(value_of($metrics, 'pg_exporter_last_scrape_error'), '0', 'it is no error to drop it');
is(labels_of($metrics, 'leader_election_extension_info', 'datname'), 'latin old other windows', 'it is not in that database any more');
is(labels_of($metrics, 'leader_election_led', 'election', datname => 'postgres'), '', 'and nothing of it is measured');
create_extension($node);
sql('postgres', q{SELECT le_declare('mailer'), le_lease('mailer', '1 h')});
$metrics = scrape($exporter);
is(value_of($metrics, 'leader_election_terms_ended_total', datname => 'postgres', election => 'mailer', reason => 'extension dropped'), '1',
	'when it is back, that is told as a reason');

# On a standby there is no leader, which would look like a vacancy
$node->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('monitoring_standby');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;
$exporter = start_exporter($standby, user => 'regress_exporter', args => \@discover);
$metrics = scrape($exporter);
is(labels_of($metrics, 'leader_election_extension_info', 'server_role', datname => 'old'), 'standby', 'a standby');
is(join(' ', sort map { $_->{name} } grep { $_->{name} =~ /^leader_election_/ && $_->{name} !~ /_info$/ } @$metrics), '', 'has no elections');
is(value_of($metrics, 'pg_exporter_last_scrape_error'), '0', 'which is no error');
$standby->promote;
$metrics = scrape($exporter);
is(value_of($metrics, 'leader_election_led', datname => 'old', election => 'mailer'), '1', 'until it is promoted');

stop_daemons();
$_->stop foreach $standby, $node;
done_testing();
