//! The state machine.

use crate::env::{self, Env, Errors};
use crate::error::{panicked, BoxError, Error, ErrorKind, Reporter};
use crate::port::{interval, quote, within, Row, Server, Session};
use crate::term::Term;
use std::future::{self, Future};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime;
use tokio::select;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_secs(300);
/// SQLSTATE: this session leads under another identity.
const SHARED_SESSION: &str = "LE005";
const SESSION_VALIDITY: Duration = Duration::from_secs(6);

/// What an [`Elector`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It campaigns.
    Waiting,
    /// The job runs.
    Leading,
    /// The job has been told to stop, and has not stopped yet.
    Stopping,
    /// It waits before it campaigns again.
    Paused,
    /// It does not run.
    Stopped,
}

/// Why a term has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The elector was stopped, and has resigned.
    Resigned,
    /// The job has returned `Ok`, and the elector has resigned.
    JobReturned,
    /// The job has returned an error or has panicked, and the elector has resigned.
    JobFailed,
    /// The server has said that leadership is over, or the session has ended.
    Lost,
    /// The validity of the last confirmation has passed.
    InDoubt,
}

type OnOusted = Box<dyn Fn(&Term, Reason) + Send + Sync>;

/// Campaigns in an election, and runs a job while it leads.
pub struct Elector<S> {
    server: S,
    election: String,
    identity: String,
    seats: Option<u32>,
    heartbeat: Option<Duration>,
    ttl: Option<Duration>,
    renew_on_heartbeat: bool,
    stop_timeout: Duration,
    on_elected: Box<dyn Fn(&Term) + Send + Sync>,
    on_ousted: OnOusted,
    reporter: Reporter,
    stop: CancellationToken,
    state: watch::Sender<State>,
    env: Env,
}

/// The options of an [`Elector`]. See [`Elector::builder`].
pub struct Builder<S>(Elector<S>);

impl<S: Server> Builder<S> {
    /// Set the identity, which must differ from process to process. The default consists of
    /// host name, process ID and four hexadecimal digits, as in `web-1:4711:9f3c`.
    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.0.identity = identity.into();
        self
    }

    /// Campaign for one of `n` seats, so that at most `n` electors lead at a time.
    pub fn seats(mut self, n: u32) -> Self {
        self.0.seats = Some(n);
        self
    }

    /// Lead in session scope with a heartbeat: the term ends if the job has not called
    /// [`Term::heartbeat`] for that long.
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.0.heartbeat = Some(heartbeat);
        self
    }

    /// Lead by a lease with this ttl, and not in session scope.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.ttl = Some(ttl);
        self
    }

    /// Renew the lease only if the job has called [`Term::heartbeat`] since the last
    /// renewal.
    pub fn renew_on_heartbeat(mut self) -> Self {
        self.0.renew_on_heartbeat = true;
        self
    }

    /// Set how long the job may take to stop. The default is 10 s. See
    /// [The job](crate#the-job).
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.0.stop_timeout = timeout;
        self
    }

    /// Set the function that is called before the job starts. Callbacks must not block.
    pub fn on_elected(mut self, call: impl Fn(&Term) + Send + Sync + 'static) -> Self {
        self.0.on_elected = Box::new(call);
        self
    }

    /// Set the function that is called after the job has stopped, and before the next
    /// campaign.
    pub fn on_ousted(mut self, call: impl Fn(&Term, Reason) + Send + Sync + 'static) -> Self {
        self.0.on_ousted = Box::new(call);
        self
    }

    /// Set the function that is called with each error. By default, errors are logged by
    /// the crate `tracing`.
    pub fn on_error(mut self, call: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.0.reporter = Reporter(Arc::new(call));
        self
    }

    #[cfg(test)]
    pub(crate) fn env(mut self, env: Env) -> Self {
        self.0.env = env;
        self
    }

    /// Check the options, and make the elector.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Argument`] if an option is out of its range, or does not go
    /// with another one.
    pub fn build(self) -> Result<Elector<S>, Error> {
        let elector = self.0;
        let seat = elector.seats.map_or(String::new(), |n| format!("/{n}"));
        let named = |name: &str| (1..=255).contains(&name.len()) && !name.contains('\0');
        let long = |time: Option<Duration>| time.is_none_or(|time| time >= SECOND);
        let checks = [
            (named(&elector.election), "election must have 1 to 255 bytes"),
            (named(&format!("{}{seat}", elector.election)), "election is too long for its seats"),
            (named(&elector.identity), "identity must have 1 to 255 bytes"),
            (elector.seats.is_none_or(|n| (1..=10_000).contains(&n)), "seats must be 1 to 10000"),
            (long(elector.heartbeat), "heartbeat must be 1 s or longer"),
            (long(elector.ttl), "ttl must be 1 s or longer"),
            (elector.heartbeat.is_none() || elector.ttl.is_none(), "heartbeat excludes ttl"),
            (!elector.renew_on_heartbeat || elector.ttl.is_some(), "renew_on_heartbeat needs ttl"),
        ];
        match checks.into_iter().find(|(good, _)| !good) {
            Some((_, message)) => Err(Error::new(ErrorKind::Argument, message)),
            None => Ok(elector),
        }
    }
}

/// A handle of an [`Elector`] that runs. Clones are handles of the same elector.
#[derive(Clone, Debug)]
pub struct Handle {
    stop: CancellationToken,
    state: watch::Receiver<State>,
}

impl Handle {
    /// Ask the elector to stop. [`Elector::run`] returns when the job has stopped and
    /// leadership is resigned.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Return what the elector does at this moment.
    pub fn state(&self) -> State {
        let gone = self.state.has_changed().is_err();
        if gone {
            State::Stopped
        } else {
            *self.state.borrow()
        }
    }
}

/// The connection by which an elector campaigns and leads.
enum Link<'a, S: Server> {
    /// One of its own, with the process ID of its backend.
    Own(S::Session, String),
    /// Any.
    Any(&'a S),
}

impl<S: Server> Link<'_, S> {
    /// Return the row that is the answer, which must come before the deadline.
    async fn ask(&mut self, deadline: Duration, sql: &str) -> Result<Row, Error> {
        let rows = match self {
            Link::Own(session, _) => within(deadline, session.ask(sql)).await?,
            Link::Any(server) => within(deadline, server.ask(sql)).await?,
        };
        let none = || Error::new(ErrorKind::Database, "the server has returned no row");
        rows.into_iter().next().ok_or_else(none)
    }

    async fn ended(&mut self) -> Error {
        match self {
            Link::Own(session, _) => session.ended().await,
            Link::Any(_) => future::pending().await,
        }
    }

    async fn close(self) {
        if let Link::Own(session, _) = self {
            let _ = tokio::time::timeout(SECOND, session.close()).await;
        }
    }
}

/// The last sign of life of the job that the server has confirmed.
struct Beat {
    /// How often the job had called `heartbeat`; None if nothing was sent yet.
    count: Option<u64>,
    sent: Duration,
}

/// What is left of the turns before.
#[derive(Default)]
struct Past {
    errors: Errors,
    /// Two connections have been compared.
    compared: bool,
    /// The token of the last lease, if it could not be resigned.
    unresigned: Option<i64>,
}

impl<S: Server> Elector<S> {
    /// Begin to make an elector, which leads in session scope unless a
    /// [ttl](Builder::ttl) is given.
    pub fn builder(server: S, election: impl Into<String>) -> Builder<S> {
        Builder(Elector {
            server,
            election: election.into(),
            identity: env::identity(),
            seats: None,
            heartbeat: None,
            ttl: None,
            renew_on_heartbeat: false,
            stop_timeout: Duration::from_secs(10),
            on_elected: Box::new(|_| ()),
            on_ousted: Box::new(|_, _| ()),
            reporter: Reporter::default(),
            stop: CancellationToken::new(),
            state: watch::Sender::new(State::Stopped),
            env: Env::default(),
        })
    }

    /// Return a handle, by which the elector can be stopped from anywhere.
    pub fn handle(&self) -> Handle {
        Handle { stop: self.stop.clone(), state: self.state.subscribe() }
    }

    /// Return the identity.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Campaign, run the job while this elector leads, and so on until it is
    /// [stopped](Handle::stop). The job is called once for each term, and runs as a task of
    /// its own.
    ///
    /// Stop an elector by its handle, and await this future to its end. If the future is
    /// dropped instead, the job is aborted and the connection is closed, but nothing waits
    /// for the job to stop, and a lease is not resigned.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Pooler`] if session scope is used through a pooler in
    /// transaction mode. All other errors are reported, and the elector goes on.
    pub async fn run<J, F, E>(self, job: J) -> Result<(), Error>
    where
        J: Fn(Term) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let job = Arc::new(job);
        let mut past = Past::default();
        while !self.stop.is_cancelled() {
            self.state.send_replace(State::Waiting);
            let pause = match self.turn(&mut past, &job).await {
                Ok(Some(Reason::JobReturned)) => self.env.jittered(SECOND),
                Ok(Some(Reason::Resigned) | None) => continue,
                Ok(Some(_)) => past.errors.pause(&self.env),
                Err(error) if error.kind() == ErrorKind::Pooler => return Err(error),
                Err(error) => {
                    self.reporter.report(&error);
                    past.errors.pause(&self.env)
                }
            };
            self.state.send_replace(State::Paused);
            self.stop.run_until_cancelled(sleep(pause)).await;
        }
        Ok(())
    }

    /// Campaign, and lead for one term. Return why it has ended, or None if the elector was
    /// stopped before it began.
    async fn turn<J, F, E>(&self, past: &mut Past, job: &Arc<J>) -> Result<Option<Reason>, Error>
    where
        J: Fn(Term) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let link = match self.ttl {
            Some(_) => Some(Ok(Link::Any(&self.server))),
            None => self.stop.run_until_cancelled(self.open(past)).await,
        };
        let Some(mut link) = link.transpose()? else { return Ok(None) };
        let Some((sent, name, token)) = self.campaign(&mut link, past).await? else {
            return Ok(None);
        };
        past.unresigned = None;
        let patience = self.heartbeat.map(|heartbeat| heartbeat * 2 / 3);
        let term = Term::new((name, token), self.env.clone(), patience, self.reporter.clone());
        let mut beat = Beat { count: self.ttl.map(|_| 0), sent };
        let confirmed = match self.ttl {
            Some(ttl) => {
                term.confirm_until(sent + ttl * 2 / 3);
                Ok(())
            }
            None => self.question(&mut link, &term, &mut beat).await.map(|_| ()),
        };
        let (reason, held) = match confirmed {
            Ok(()) if !self.stop.is_cancelled() => {
                let (reason, held) = self.lead(&mut link, &term, beat, job).await;
                (Some(reason), held)
            }
            unled => (None, unled),
        };
        term.end();
        match &held {
            Ok(()) => match self.resign(&mut link, &term).await {
                Ok(_) => link.close().await,
                Err(error) => {
                    self.reporter.report(&error);
                    past.unresigned = self.ttl.map(|_| token);
                }
            },
            Err(error) if error.kind() == ErrorKind::Pooler => self.depose(link, &term).await,
            Err(_) => drop(link),
        }
        if let Some(reason) = reason {
            self.call("on_ousted", || (self.on_ousted)(&term, reason));
        }
        match held {
            Err(error) if reason.is_none() || error.kind() == ErrorKind::Pooler => Err(error),
            _ => Ok(reason),
        }
    }

    /// Open a connection for session scope. At first, open two, to find out whether a
    /// pooler lets them share a server connection.
    async fn open(&self, past: &mut Past) -> Result<Link<'_, S>, Error> {
        let (session, pid) = self.connect().await?;
        if !past.compared {
            let (other, others) = self.connect().await?;
            Link::<S>::Own(other, others.clone()).close().await;
            if pid == others {
                return Err(pooler("two connections share a server connection"));
            }
            past.compared = true;
        }
        Ok(Link::Own(session, pid))
    }

    async fn connect(&self) -> Result<(S::Session, String), Error> {
        let mut session = within(self.deadline(), self.server.open()).await?;
        let rows = within(self.deadline(), session.ask("SELECT pg_backend_pid()")).await?;
        Ok((session, rows.into_iter().flatten().flatten().collect()))
    }

    /// Wait to be elected. Return when the winning bid was sent, the name and the token, or
    /// None if the elector was stopped.
    async fn campaign(
        &self,
        link: &mut Link<'_, S>,
        past: &mut Past,
    ) -> Result<Option<(Duration, String, i64)>, Error> {
        let (name, identity) = (quote(&self.election), quote(&self.identity));
        let names = self.seats.map_or(name.clone(), |n| format!("le_seats({name}, {n})"));
        let token = past.unresigned.map_or("NULL".into(), |token| token.to_string());
        let sql = match (self.ttl.map(interval), self.heartbeat.map(interval)) {
            (Some(ttl), _) if self.seats.is_some() => {
                format!("CALL le_campaign({names}, timeout => '0', ttl => {ttl}, identity => {identity})")
            }
            (Some(ttl), _) => {
                format!("SELECT le_lease({name}, {ttl}, identity => {identity}, token => {token})")
            }
            (None, heartbeat) => {
                let heartbeat = heartbeat.unwrap_or("NULL".into());
                let round = interval(ROUND);
                format!(
                    "CALL le_campaign({names}, timeout => {round}, identity => {identity}, \
                     heartbeat => {heartbeat})"
                )
            }
        };
        loop {
            let sent = self.now();
            let bid = match self.ttl {
                // a lease that is granted must be resigned: the answer is waited for
                Some(_) => Some(link.ask(self.deadline(), &sql).await),
                None => {
                    let bid = link.ask(ROUND + self.deadline(), &sql);
                    self.stop.run_until_cancelled(bid).await
                }
            };
            let Some(row) = bid.transpose().map_err(shared)? else { return Ok(None) };
            past.errors.reset();
            if let Some(Some(token)) = row.first() {
                let seat = row.get(1).cloned().flatten();
                let token = token.parse().map_err(|e| {
                    Error::new(ErrorKind::Database, format!("bad token {token:?}")).caused(e)
                })?;
                return Ok(Some((sent, seat.unwrap_or_else(|| self.election.clone()), token)));
            }
            let pause = self.until(sent + self.ttl.unwrap_or_default() / 3);
            if self.stop.run_until_cancelled(pause).await.is_none() {
                return Ok(None);
            }
        }
    }

    /// Run the job until it has stopped, and confirm leadership meanwhile. Return why the
    /// term has ended, and the error if leadership is lost.
    async fn lead<J, F, E>(
        &self,
        link: &mut Link<'_, S>,
        term: &Term,
        beat: Beat,
        job: &Arc<J>,
    ) -> (Reason, Result<(), Error>)
    where
        J: Fn(Term) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        self.state.send_replace(State::Leading);
        self.call("on_elected", || (self.on_elected)(term));
        if !term.is_valid() {
            self.doubt();
            return (Reason::InDoubt, Ok(()));
        }
        let mut task = JoinSet::new(); // aborts the job when it is dropped
        let job = (Arc::clone(job), term.clone());
        let job = async move { (job.0)(job.1).await.map_err(Into::into) };
        task.spawn_on(job, &self.env.jobs.clone().unwrap_or_else(runtime::Handle::current));

        let enough = CancellationToken::new();
        let mut confirming = pin!(self.confirm(link, term, beat, &enough));
        let mut held = None; // the result of confirming
        let mut told = None; // why the job was told to stop, and until when it has time
        let mut late = false; // the job has not stopped by then
        let ended = loop {
            let leading = held.is_none() && !enough.is_cancelled();
            let time = told.map_or(Duration::MAX, |(_, time)| time);
            let over = select! {
                biased;
                ended = task.join_next() => break ended,
                result = &mut confirming, if held.is_none() => {
                    let lost = result.is_err();
                    held = Some(result);
                    if !lost { continue }
                    Reason::Lost
                }
                () = self.until(term.valid_until()), if leading => {
                    if term.is_valid() { continue } // the job has called heartbeat
                    enough.cancel();
                    self.doubt();
                    Reason::InDoubt
                }
                () = self.stop.cancelled(), if told.is_none() => Reason::Resigned,
                () = self.until(time), if told.is_some() && !late => {
                    late = true;
                    task.abort_all();
                    let error = format!("the job has not stopped within {:?}", self.stop_timeout);
                    self.reporter.report(&Error::new(ErrorKind::JobNotStopped, error));
                    continue;
                }
            };
            if over != Reason::Resigned {
                term.end();
                task.abort_all();
            }
            told = Some((over, time.min(self.now().saturating_add(self.stop_timeout))));
            self.state.send_replace(State::Stopping);
            term.cancellation().cancel();
        };
        self.state.send_replace(State::Stopping);
        term.cancellation().cancel();
        enough.cancel();
        let held = match held {
            Some(held) => held,
            None => confirming.await,
        };
        let failed = match ended {
            Some(Ok(Err(error))) => Some(error),
            Some(Err(error)) => error.try_into_panic().ok().map(|said| panicked(&*said).into()),
            _ => None,
        };
        let reason = match told {
            Some((Reason::InDoubt, _)) => Reason::InDoubt,
            _ if held.is_err() => Reason::Lost,
            Some((reason, _)) => reason,
            None if failed.is_some() => Reason::JobFailed,
            None => Reason::JobReturned,
        };
        if let Some(error) = failed {
            self.reporter.report(&Error::new(ErrorKind::Job, "the job has failed").caused(error));
        }
        (reason, held)
    }

    /// Confirm leadership by the timer, until it is enough, or leadership is lost. That is
    /// reported, unless a pooler is the cause.
    async fn confirm(
        &self,
        link: &mut Link<'_, S>,
        term: &Term,
        mut beat: Beat,
        enough: &CancellationToken,
    ) -> Result<(), Error> {
        let third = self.ttl.or(self.heartbeat).unwrap_or(Duration::MAX) / 3;
        let (interval, retry) = match self.ttl {
            Some(ttl) => (third, SECOND.min(ttl / 10)),
            None => (third.min(SECOND), SECOND),
        };
        let mut next = beat.sent + interval;
        loop {
            let error = select! {
                biased;
                () = enough.cancelled() => return Ok(()),
                error = link.ended() => error,
                () = self.until(next) => {
                    let sent = self.now();
                    match self.question(link, term, &mut beat).await {
                        Ok(asked) => {
                            next = sent + if asked { interval } else { retry };
                            continue;
                        }
                        Err(error) => error,
                    }
                }
            };
            let error = match error.kind() {
                ErrorKind::Pooler => return Err(error),
                ErrorKind::Lost => error,
                _ if self.ttl.is_none() => lost("the session has failed").caused(error),
                _ => error,
            };
            self.reporter.report(&error);
            if error.kind() == ErrorKind::Lost {
                return Err(error);
            }
            next = self.now() + retry;
        }
    }

    /// Ask the server whether this elector leads. An answer counts from before the
    /// question. Return false if nothing was asked, because the job has made no progress.
    async fn question(
        &self,
        link: &mut Link<'_, S>,
        term: &Term,
        beat: &mut Beat,
    ) -> Result<bool, Error> {
        let (sent, count) = (self.now(), Some(term.beats()));
        let alive = beat.count != count;
        let (name, identity) = (quote(term.election()), quote(&self.identity));
        let sql = match self.ttl {
            Some(_) if self.renew_on_heartbeat && !alive => return Ok(false),
            Some(_) => format!("SELECT le_renew({name}, {})", term.token()),
            None if self.heartbeat.is_some() && alive => {
                format!("SELECT le_heartbeat({name}), pg_backend_pid()")
            }
            None => {
                format!("SELECT le_am_leader({name}, identity => {identity}), pg_backend_pid()")
            }
        };
        let row = link.ask(self.deadline(), &sql).await?;
        if let (Link::Own(_, pid), Some(Some(other))) = (link, row.get(1)) {
            if pid != other {
                return Err(pooler("the connection has changed its server connection"));
            }
        }
        if row[0].as_deref() != Some("t") {
            return Err(lost("the server says that the term is over"));
        }
        if alive {
            *beat = Beat { count, sent };
        }
        let patience = self.heartbeat.map_or(Duration::MAX, |heartbeat| heartbeat * 2 / 3);
        term.confirm_until(match self.ttl {
            Some(ttl) => sent + ttl * 2 / 3,
            None => (sent + SESSION_VALIDITY).min(beat.sent.saturating_add(patience)),
        });
        Ok(true)
    }

    async fn resign(&self, link: &mut Link<'_, S>, term: &Term) -> Result<Row, Error> {
        let (name, identity) = (quote(term.election()), quote(&self.identity));
        let sql = match self.ttl {
            Some(_) => format!("SELECT le_resign({name}, {})", term.token()),
            None => format!("SELECT le_resign({name}, identity => {identity})"),
        };
        link.ask(self.deadline(), &sql).await
    }

    /// End a term that a pooler's server connection may hold, be it this one or another.
    async fn depose(&self, mut link: Link<'_, S>, term: &Term) {
        let (name, identity) = (quote(term.election()), quote(&self.identity));
        let sql = format!(
            "SELECT CASE WHEN NOT le_resign({name}, identity => {identity}) THEN \
             (SELECT le_depose(name) FROM le_leader({name}) WHERE token = {}) END",
            term.token()
        );
        if let Err(error) = link.ask(self.deadline(), &sql).await {
            self.reporter.report(&error);
        }
    }

    fn call(&self, name: &str, callback: impl FnOnce()) {
        if let Err(said) = catch_unwind(AssertUnwindSafe(callback)) {
            let error = Error::new(ErrorKind::Callback, format!("{name} has failed"));
            self.reporter.report(&error.caused(panicked(&*said)));
        }
    }

    fn doubt(&self) {
        let error = "leadership is in doubt: no confirmation within its validity";
        self.reporter.report(&Error::new(ErrorKind::InDoubt, error));
    }

    fn deadline(&self) -> Duration {
        self.ttl.or(self.heartbeat).map_or(DEADLINE, |time| DEADLINE.min(time / 3))
    }

    fn now(&self) -> Duration {
        (self.env.now)()
    }

    /// Wait until it is that time. A timer may stand still while the machine is suspended,
    /// so the clock is looked at each second.
    async fn until(&self, time: Duration) {
        while let Some(left) = time.checked_sub(self.now()).filter(|left| !left.is_zero()) {
            sleep(SECOND.min(left)).await;
        }
    }
}

fn pooler(message: &str) -> Error {
    let advice = "lead by a lease, or connect without a pooler in transaction mode";
    Error::new(ErrorKind::Pooler, format!("{message}: {advice}"))
}

fn lost(message: &str) -> Error {
    Error::new(ErrorKind::Lost, format!("leadership is lost: {message}"))
}

/// Recognize the bid of a session that leads under the identity of another process.
fn shared(error: Error) -> Error {
    if error.sqlstate() == Some(SHARED_SESSION) {
        return pooler("another process shares this session").caused(error);
    }
    error
}
