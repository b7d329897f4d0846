//! What a job is given.

use crate::error::{Error, ErrorKind, Result};
use crate::machine::{Event, Machine};
use crate::options::{literal, quote};
use crate::run::{Query, Row, Transaction};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, SystemTimeError, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A term of leadership. Clones are handles of the same term.
#[derive(Clone)]
pub struct Term(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    election: String,
    token: i64,
    pub prefix: String,
    pub events: mpsc::UnboundedSender<Event>,
    cancellation: CancellationToken,
    clock: fn() -> f64,
    times: Mutex<Times>,
}

#[derive(Default)]
pub(crate) struct Times {
    /// When leadership is in doubt, by the last confirmation and by the last heartbeat.
    pub confirmed: f64,
    pub beaten: Option<f64>,
    /// How long a call of `heartbeat` counts by itself: by a lease only.
    pub length: Option<f64>,
    pub beats: u64,
    /// The validity has been seen to have passed, and does not come back: the job, which was not
    /// polled then, would not be polled again.
    expired: bool,
}

debug!(Term, self: "election" &self.0.election, "token" &self.0.token);

impl Term {
    pub(crate) fn new(election: String, token: i64, machine: &Machine) -> Self {
        let (cancellation, clock) = (machine.gone.child_token(), machine.clock);
        let (prefix, events) = (machine.options.prefix(), machine.events.clone());
        let times = Mutex::default();
        Term(Arc::new(Inner { election, token, prefix, events, cancellation, clock, times }))
    }

    /// Return the name of the election, or that of the seat.
    pub fn election(&self) -> &str {
        &self.0.election
    }

    /// Return the fencing token, which grows from term to term, and is exact as a double.
    pub fn token(&self) -> i64 {
        self.0.token
    }

    /// Return what is cancelled when the job is to stop.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.0.cancellation
    }

    /// Tell that the job has made progress. This sends nothing by itself, and never fails.
    pub fn heartbeat(&self) {
        let mut times = self.times();
        times.beats += 1;
        if let Some(length) = times.length {
            times.beaten = Some((self.0.clock)() + length);
        }
    }

    /// Return whether the job may go on. This looks at the clock, and sends nothing.
    pub fn is_leading(&self) -> bool {
        !self.0.cancellation.is_cancelled() && self.is_confirmed()
    }

    /// Publish a value, until the term ends. This takes effect at once, also in a transaction that
    /// is rolled back.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Lost`] if the term is over, and with the
    /// server's error if the value is too long.
    pub async fn proclaim(&self, connection: &mut impl Query, value: &str) -> Result<()> {
        let (le, name, token) = (&self.0.prefix, literal(self.election()), self.token());
        let sql = format!("SELECT {le}le_proclaim({name}, {}, {token})", quote(value));
        let row = connection.ask(&sql).await?;
        (row == [Some("t".into())]).then_some(()).ok_or_else(Error::lost)
    }

    /// Run `le_assert_leader` in the job's transaction, which then cannot commit when the term is
    /// over.
    ///
    /// # Errors
    ///
    /// Fails with the server's error LE001 if the term is over, and with
    /// [`ErrorKind::Broken`] if a statement such as COMMIT has ended the transaction.
    ///
    /// A connection, which commits each statement by itself, does not compile:
    ///
    /// ```compile_fail,E0277
    /// async fn wrong(term: leader_election::Term, connection: &mut sqlx::PgConnection) {
    ///     term.guard(connection).await;
    /// }
    /// ```
    pub async fn guard(&self, transaction: &mut impl Transaction) -> Result<()> {
        ask_within(transaction, self.guard_sql()).await.map(drop)
    }

    /// Return the statement of [`Term::guard`], without parameters, for a transaction of another
    /// library.
    pub fn guard_sql(&self) -> String {
        let (le, name, token) = (&self.0.prefix, literal(self.election()), self.token());
        format!("SELECT {le}le_assert_leader({name}, {token})")
    }

    /// Run `le_once` in the job's transaction. Return whether the job of that time is to be done
    /// there: it was not done yet. This guards the transaction, too, and waits for another open
    /// transaction of the term that has recorded a job.
    ///
    /// # Errors
    ///
    /// Fails as [`Term::guard`] does, and with the server's error 22008 if the time is more than an
    /// hour ahead, and 40001 if another transaction has recorded a job since the snapshot of this
    /// one was taken.
    pub async fn once(&self, transaction: &mut impl Transaction, due: SystemTime) -> Result<bool> {
        ask_within(transaction, self.once_sql(due)).await.map(|row| row == [Some("t".into())])
    }

    /// Return the statement of [`Term::once`], without parameters, for a transaction of another
    /// library.
    pub fn once_sql(&self, due: SystemTime) -> String {
        let (le, name, token) = (&self.0.prefix, literal(self.election()), self.token());
        let before = |error: SystemTimeError| -error.duration().as_secs_f64();
        let due = due.duration_since(UNIX_EPOCH).map_or_else(before, |since| since.as_secs_f64());
        format!("SELECT {le}le_once({name}, to_timestamp({due:.6}), {token})")
    }

    pub(crate) fn times(&self) -> MutexGuard<'_, Times> {
        self.0.times.lock().unwrap()
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        let expired = (self.0.clock)() >= self.valid_until();
        self.times().expired |= expired;
        !expired
    }

    pub(crate) fn valid_until(&self) -> f64 {
        let times = self.times();
        let until = if times.expired { f64::NEG_INFINITY } else { times.confirmed };
        times.beaten.map_or(until, |beaten| beaten.min(until))
    }
}

/// Run a statement that does nothing where no transaction is open: the one that a statement of the
/// simple protocol has for itself begins at the same time.
async fn ask_within(transaction: &mut impl Transaction, sql: String) -> Result<Row> {
    let row = transaction.ask(&format!("{sql} WHERE now() <> statement_timestamp()")).await?;
    let ended = || Error::new(ErrorKind::Broken, "no transaction is open there");
    (!row.is_empty()).then_some(row).ok_or_else(ended)
}
