//! The leader, as others see it.

use crate::elector::DEADLINE;
use crate::env::{Env, Errors};
use crate::error::{Error, ErrorKind, Reporter};
use crate::port::{interval, quote, within, Row, Server, Session};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const ROUND: Duration = Duration::from_secs(30);

/// The leader of an election.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The name of the election.
    pub election: String,
    /// The identity under which it leads.
    pub identity: String,
    /// The fencing token of its term.
    pub token: i64,
    /// When its term began, by the server's clock.
    pub since: SystemTime,
    /// `session`, `transaction` or `lease`.
    pub scope: String,
    /// What it has published by `le_proclaim`.
    pub value: Option<String>,
}

/// Return the leader of an election, if it has one.
///
/// # Errors
///
/// Fails if the server cannot be asked, or does not answer within 5 s.
pub async fn leader<S: Server>(server: &S, election: &str) -> Result<Option<Leader>, Error> {
    let rows = within(DEADLINE, server.ask(&query(election))).await?;
    rows.into_iter().next().map(parse).transpose()
}

/// Follow the leader of an election. Nothing is sent before the first call of
/// [`Follower::next`].
pub fn follow<S: Server>(server: S, election: impl Into<String>) -> Follower<S> {
    Follower {
        server,
        election: election.into(),
        env: Env::default(),
        reporter: Reporter::default(),
        errors: Errors::default(),
        session: None,
        version: None,
        told: None,
    }
}

/// The leaders of an election, one after the other. See [`follow`].
pub struct Follower<S: Server> {
    server: S,
    election: String,
    env: Env,
    reporter: Reporter,
    errors: Errors,
    session: Option<S::Session>,
    /// The version that `le_observe` has returned last.
    version: Option<String>,
    /// What `next` has returned last.
    told: Option<Option<Leader>>,
}

impl<S: Server> Follower<S> {
    /// Set the function that is called with each error. By default, errors are logged by
    /// the crate `tracing`.
    pub fn on_error(mut self, call: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.reporter = Reporter(Arc::new(call));
        self
    }

    /// Return the present leader, or `None` if there is none, and from then on wait until
    /// that has changed. After an error, connect again.
    ///
    /// This can be cancelled: no change is lost. The connection is closed then, and the
    /// next call opens another one.
    pub async fn next(&mut self) -> Option<Leader> {
        loop {
            match self.observe().await {
                Ok(leader) if self.told.as_ref() != Some(&leader) => {
                    self.told = Some(leader.clone());
                    return leader;
                }
                Ok(_) => {}
                Err(error) => {
                    self.reporter.report(&error);
                    tokio::time::sleep(self.errors.pause(&self.env)).await;
                }
            }
        }
    }

    /// Wait for a change, for one round, and return the leader.
    async fn observe(&mut self) -> Result<Option<Leader>, Error> {
        // a connection that still waits for an answer must not be used again
        let mut session = match self.session.take() {
            Some(session) => session,
            None => within(DEADLINE, self.server.open()).await?,
        };
        let sql = format!(
            "CALL le_observe({}, {}, timeout => {})",
            quote(&self.election),
            self.version.as_deref().unwrap_or("NULL"),
            interval(ROUND)
        );
        let seen = within(ROUND + DEADLINE, session.ask(&sql)).await?;
        let rows = within(DEADLINE, session.ask(&query(&self.election))).await?;
        let leader = rows.into_iter().next().map(parse).transpose()?;
        self.version = seen.into_iter().flatten().next().flatten();
        self.errors.reset();
        self.session = Some(session);
        Ok(leader)
    }
}

fn query(election: &str) -> String {
    format!(
        "SELECT name, identity, token, (extract(epoch FROM since) * 1000000)::bigint, scope, value \
         FROM le_leader({}) WHERE token IS NOT NULL",
        quote(election)
    )
}

fn parse(row: Row) -> Result<Leader, Error> {
    let bad = || Error::new(ErrorKind::Database, "the server has returned a bad row");
    let Ok([election, identity, token, since, scope, value]) = <[_; 6]>::try_from(row) else {
        return Err(bad());
    };
    let number = |text: Option<String>| text.and_then(|text| text.parse::<i64>().ok());
    Ok(Leader {
        election: election.ok_or_else(bad)?,
        identity: identity.unwrap_or_default(),
        token: number(token).ok_or_else(bad)?,
        since: number(since).map(time).ok_or_else(bad)?,
        scope: scope.ok_or_else(bad)?,
        value,
    })
}

/// Return the time of that many microseconds since 1970.
pub(crate) fn time(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros.unsigned_abs())
}
