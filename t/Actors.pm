# Clients that act at the same time, each by a script of its own, driven by one test.
package Actors;

use strict;
use warnings;

use Exporter 'import';
use LeaderElection;

our @EXPORT = qw(actor play lose);

# A client with a script: that is called with the actor and the answer to what it has
# said last (undef: the connection was lost, and made again), and returns what to say
# next, and after how many seconds; nothing when it has done.  {stop} is set when it is
# to come to an end.
sub actor
{
	my ($node, $script, %params) = @_;
	my $actor = { node => $node, script => $script, params => \%params, client => session($node, %params) };
	turn($actor, '');
	return $actor;
}

sub turn
{
	my ($actor, $answer) = @_;
	my ($sql, $delay) = $actor->{script}->($actor, $answer);

	@$actor{qw(say due busy)} = ($sql, monotonic() + ($delay // 0), 0);
	$actor->{done} = !defined $sql;
	return;
}

# Connect anew; what was asked has no answer
sub lose
{
	my ($actor) = @_;
	kill_client($actor->{client});
	$actor->{client} = session($actor->{node}, %{ $actor->{params} });
	turn($actor, undef);
	return;
}

# Let them act for so many seconds, and then come to an end.  Return those that
# do not within the time allowed
sub play
{
	my ($seconds, $every, @actors) = @_;
	my $end = monotonic() + $seconds;
	my $patience = $end + $PostgreSQL::Test::Utils::timeout_default;

	while (grep { !$_->{done} } @actors)
	{
		my $now = monotonic();
		return grep { !$_->{done} } @actors if $now > $patience;
		if ($now > $end) { $_->{stop} = 1 foreach @actors; }
		elsif ($every) { $every->(); }
		foreach my $actor (grep { !$_->{done} && !$_->{busy} } @actors)
		{
			next if $actor->{due} > $now && !$actor->{stop};
			$actor->{busy} = 1;
			post($actor->{client}, $actor->{say});
		}
		hear(0.005, map { $_->{client} } grep { $_->{busy} } @actors);
		foreach my $actor (grep { $_->{busy} } @actors)
		{
			if ($actor->{client}{closed}) { lose($actor); }
			elsif ($actor->{client}{ready}) { turn($actor, join("\n", @{ $actor->{client}{rows} })); }
		}
	}
	return;
}

1;
