# What ends a wait, what it leaves behind (nothing), and in which order
# candidates are elected, the dead ones left out.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;

my $node = new_server('waits',
	conf => "listen_addresses = '127.0.0.1'\nmax_connections = 40\n");
append_to_file($node->data_dir . '/pg_hba.conf',
	"host all all 127.0.0.1/32 trust\n");
$node->reload;

my $leader = session($node, app => 'leader');
ask($leader, q{SELECT le_try_become_leader('job')});

sub cancel
{
	my ($pid) = @_;
	wait_until_waiting($node, $pid);
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
}

sub terminate
{
	my ($pid) = @_;
	wait_until_waiting($node, $pid);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
}

my @ends = (
	{
		end => 'timeout',
		timeout => q{'200ms'},
		answer => 'f'
	},
	{
		end => 'timeout 0',
		timeout => q{'0'},
		answer => 'f'
	},
	{
		end => 'lock_timeout',
		before => q{SET lock_timeout = '100ms'},
		error => qr/ERROR:  55P03: canceling statement due to lock timeout/
	},
	{
		end => 'lock_timeout before timeout',
		before => q{SET lock_timeout = '100ms'},
		timeout => q{'1 min'},
		error => qr/ERROR:  55P03: canceling statement due to lock timeout/
	},
	{
		end => 'timeout before lock_timeout',
		before => q{SET lock_timeout = '1min'},
		timeout => q{'100 ms'},
		answer => 'f'
	},
	{
		end => 'statement_timeout',
		before => q{SET statement_timeout = '100ms'},
		error => qr/ERROR:  57014: canceling statement due to statement timeout/
	},
	{
		end => 'statement_timeout before timeout',
		before => q{SET statement_timeout = '100ms'},
		timeout => q{'1 min'},
		error => qr/ERROR:  57014: canceling statement due to statement timeout/
	},
	{
		end => 'cancel',
		act => \&cancel,
		error => qr/ERROR:  57014: canceling statement due to user request/
	},
	{
		end => 'cancel with a timeout',
		timeout => q{'1 min'},
		act => \&cancel,
		error => qr/ERROR:  57014: canceling statement due to user request/
	},
	{
		end => 'terminate',
		act => \&terminate,
		error => qr/FATAL:  57P01: terminating connection due to administrator command/
	},
	{
		end => 'terminate with a timeout',
		timeout => q{'1 min'},
		act => \&terminate,
		error => qr/FATAL:  57P01: terminating connection due to administrator command/
	});

foreach my $function ('le_become_leader', 'le_become_leader_xact')
{
	foreach my $case (@ends)
	{
		foreach my $block (0, 1)
		{
			my $name = "$function: $case->{end}"
			  . ($block ? ', in a subtransaction' : '');
			subtest $name => sub {
				my $candidate = session($node, app => 'candidate');
				my $pid = $candidate->{pid};
				my $timeout = $case->{timeout} // 'NULL';
				my $offset = log_from($node);

				ask($candidate, $case->{before}) if $case->{before};
				ask($candidate, 'BEGIN; SAVEPOINT one') if $block;
				post($candidate, "SELECT $function('job', $timeout)");
				$case->{act}->($pid) if $case->{act};
				my $answer = collect($candidate);
				if ($case->{error})
				{
					like($candidate->{messages}, $case->{error}, 'error');
				}
				else
				{
					is($answer, $case->{answer}, 'answer');
					unlike($candidate->{messages}, qr/ERROR|FATAL/, 'no error');
				}
				if (defined $answer)
				{
					is(ask($candidate, 'SHOW lock_timeout'),
						($case->{before} // '') =~ /lock_timeout = '(.*)'/ ? $1 : '0',
						'lock_timeout is what it was') unless $block && $case->{error};
					no_trace($node, $pid, 'nothing is left, in the session');
					if ($block)
					{
						ask($candidate, 'ROLLBACK TO one');
						is(ask($candidate, q{SELECT le_am_leader('job')}),
							'f', 'the transaction goes on');
						ask($candidate, 'COMMIT');
					}
				}
				else
				{
					$node->poll_query_until('postgres',
						"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"
					);
				}
				no_trace($node, $pid, 'nothing is left');
				is(scalar(term_lines($node, $offset)), 0, 'no line in the log');
				end_session($candidate);
			};
		}
	}
}
all_consistent($node, 'the leader leads on');
is(ask($leader, q{SELECT le_am_leader('job')}), 't', 'and knows it');

subtest 'first come, first elected' => sub {
	my @candidates;
	foreach my $i (1 .. 5)
	{
		my $candidate = session($node, app => "candidate $i");
		my $pid = $candidate->{pid};
		post($candidate,
			"SELECT le_become_leader('job'"
			  . ($i % 2 ? '' : q{, '1 hour'})
			  . ')');
		wait_until_waiting($node, $pid);
		push @candidates, $candidate;
	}
	is( $node->safe_psql(
			'postgres',
			q{SELECT string_agg(position || ' ' || identity, ', ' ORDER BY position) FROM le_candidates WHERE name = 'job'}
		),
		'1 candidate 1, 2 candidate 2, 3 candidate 3, 4 candidate 4, 5 candidate 5',
		'le_candidates shows the queue');
	is($node->safe_psql('postgres', q{SELECT candidates FROM le_leaders}),
		'5', 'le_leaders counts it');

	my $token = ask($leader, q{SELECT le_token('job')});
	my $before = $leader;
	foreach my $i (1 .. 5)
	{
		my $candidate = $candidates[ $i - 1 ];
		is(ask($before, q{SELECT le_resign('job')}), 't', 'the leader resigns');
		is(collect($candidate), 't', "candidate $i is elected");
		is(leads_in_view($node, 'job'), "candidate $i/session", 'it leads');
		is($node->safe_psql('postgres', 'SELECT count(*) FROM le_candidates'),
			5 - $i, 'the others wait');
		is(ask($candidate, q{SELECT le_token('job')}), ++$token, 'next token');
		$before = $candidate;
	}
	end_session(@candidates);
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM le_leaders');
	is(ask($leader, q{SELECT le_try_become_leader('job')}), 't', 'the leader is back');
};

foreach my $road ('Unix-domain socket', 'TCP')
{
	foreach my $scope ('', '_xact')
	{
		subtest "candidates that died while waiting, $road, le_become_leader$scope" => sub {
			my @where = $road eq 'TCP' ? (host => '127.0.0.1') : ();
			my $first = session($node, app => 'leader', @where);
			my @candidates;
			is(ask($first, q{SELECT le_try_become_leader('race')}), 't', 'a leader');
			my $token = ask($first, q{SELECT le_token('race')});
			foreach my $i (1 .. 5)
			{
				my $candidate = session($node,
					app => "candidate $i", @where);
				ask($candidate, 'BEGIN') if $scope || $i == 2;
				post($candidate,
					"SELECT le_become_leader$scope('race'"
					  . ($i == 2 ? q{, '1 hour'} : '')
					  . ')');
				wait_until_waiting($node, $candidate->{pid});
				push @candidates, $candidate;
			}
			my $offset = log_from($node);
			kill_client(@candidates[ 0, 1 ], $first);

			is(collect($candidates[2]), 't', 'the third is elected');
			is(ask($candidates[2], q{SELECT le_token('race')}),
				$token + 1, 'no token was drawn for the dead');
			is(leads_in_view($node, 'race'),
				'candidate 3/' . ($scope ? 'transaction' : 'session'), 'it leads');
			is(scalar(grep { /"race"/ } term_lines($node, $offset)), 2,
				'no lines about the dead');
			is(scalar(() = log_since($node, $offset) =~ /FATAL:  connection to client lost/g),
				2, 'their sessions ended');
			no_trace($node, $_->{pid}, 'nothing of them is left')
			  foreach @candidates[ 0, 1 ];
			is($node->safe_psql('postgres', q{SELECT count(*) FROM le_candidates WHERE name = 'race'}),
				2, 'the others wait on');
			ask($candidates[2], $scope ? 'COMMIT' : q{SELECT le_resign('race')});
			is(collect($candidates[3]), 't', 'the fourth is next');
			end_session(@candidates[ 2, 3 ]);
			is(collect($candidates[4]), 't', 'then the fifth');
			end_session($candidates[4]);
			$node->poll_query_until('postgres',
				q{SELECT count(*) = 0 FROM le_leaders WHERE name = 'race'});
		};
	}
}

subtest 'a deadlock between two leaders is found' => sub {
	my $one = session($node);
	my $two = session($node);
	ask($one, q{SELECT le_try_become_leader('left')});
	ask($two, q{SELECT le_try_become_leader('right')});
	ask($one, q{SET deadlock_timeout = '1h'});
	ask($two, q{SET deadlock_timeout = '10ms'});
	post($one, q{SELECT le_become_leader('right', '1 hour')});
	wait_until_waiting($node, $one->{pid});
	ask($two, q{SELECT le_become_leader('left', '1 hour')});
	like($two->{messages}, qr/ERROR:  40P01: deadlock detected/, 'deadlock');
	is(ask($two, q{SELECT le_am_leader('left'), le_am_leader('right')}),
		'f|t', 'its victim is not elected, and leads what it led');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM le_candidates'),
		'1', 'and is no candidate');
	ask($two, q{SELECT le_resign('right')});
	is(collect($one), 't', 'the other goes on');
	end_session($one, $two);
};

end_session($leader);
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM le_leaders');
is( $node->safe_psql('postgres',
		'SELECT (SELECT count(*) FROM _le_registry_terms()), (SELECT count(*) FROM _le_registry_candidates(false))'),
	'0|0', 'the registry is empty in the end');
unlike(slurp_file($node->logfile), qr/WARNING(?!.*can only be used in transaction blocks)|PANIC|TRAP/, 'no complaints in the log');
$node->stop;
done_testing();
