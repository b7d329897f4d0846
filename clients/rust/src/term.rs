//! What a job knows of the term in which it runs.

use crate::env::Env;
use crate::error::{Error, Reporter};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A term of leadership, which the job gets as its argument. Clones are handles of the
/// same term.
#[derive(Clone)]
pub struct Term(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    token: i64,
    election: String,
    cancellation: CancellationToken,
    env: Env,
    /// For how long a call of `heartbeat` is valid, in a session with a heartbeat.
    patience: Option<Duration>,
    over: AtomicBool,
    /// Until when the server's confirmations hold, in nanoseconds.
    confirmed: AtomicU64,
    /// When the job called `heartbeat` last, and how often it has done so.
    beat: AtomicU64,
    beats: AtomicU64,
    reporter: Reporter,
}

impl Term {
    pub(crate) fn new(
        (election, token): (String, i64),
        env: Env,
        patience: Option<Duration>,
        reporter: Reporter,
    ) -> Self {
        let beat = AtomicU64::new(nanos((env.now)()));
        let (over, confirmed, beats) = Default::default();
        let cancellation = CancellationToken::new();
        Term(Arc::new(Inner {
            token,
            election,
            cancellation,
            env,
            patience,
            over,
            confirmed,
            beat,
            beats,
            reporter,
        }))
    }

    /// Return the fencing token, which grows from term to term. It is below 2^53, and so
    /// exact as a double.
    pub fn token(&self) -> i64 {
        self.0.token
    }

    /// Return the name of the election, or that of the seat, if the elector campaigns for
    /// seats.
    pub fn election(&self) -> &str {
        &self.0.election
    }

    /// Return the token that is cancelled when the job is to stop. See
    /// [cancellation](crate#cancellation).
    pub fn cancellation(&self) -> &CancellationToken {
        &self.0.cancellation
    }

    /// Note that the job has made progress. This costs next to nothing, sends nothing by
    /// itself, and never fails.
    pub fn heartbeat(&self) {
        self.0.beat.store(nanos((self.0.env.now)()), SeqCst);
        self.0.beats.fetch_add(1, SeqCst);
    }

    /// Return whether the job may go on: it was not told to stop, and the last confirmation
    /// holds at this moment. This reads the clock and sends nothing. Call it before each step
    /// that matters: a timer can be late, the clock is not.
    pub fn is_leading(&self) -> bool {
        !self.0.cancellation.is_cancelled() && self.is_valid()
    }

    pub(crate) fn is_valid(&self) -> bool {
        (self.0.env.now)() < self.valid_until()
    }

    pub(crate) fn valid_until(&self) -> Duration {
        if self.0.over.load(SeqCst) {
            return Duration::ZERO;
        }
        let confirmed = Duration::from_nanos(self.0.confirmed.load(SeqCst));
        let beat = Duration::from_nanos(self.0.beat.load(SeqCst));
        self.0.patience.map_or(confirmed, |patience| confirmed.min(beat + patience))
    }

    pub(crate) fn confirm_until(&self, time: Duration) {
        self.0.confirmed.store(nanos(time), SeqCst);
    }

    pub(crate) fn end(&self) {
        self.0.over.store(true, SeqCst);
    }

    pub(crate) fn beats(&self) -> u64 {
        self.0.beats.load(SeqCst)
    }

    pub(crate) fn report(&self, error: &Error) {
        self.0.reporter.report(error);
    }
}

impl std::fmt::Debug for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut term = f.debug_struct("Term");
        term.field("election", &self.0.election).field("token", &self.0.token).finish()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
