//! What drives the state machine: a queue of what has happened, a timer, and a connection.

use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::machine::{Action, Event, Machine, Statement, Way};
use crate::options::{quote, random, Options};
use crate::term::Term;
use crate::{lease, session};
use futures_util::future::{BoxFuture, FutureExt};
use std::future::{pending, poll_fn, Future};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::task::{yield_now, JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// The columns of a row, as text.
pub type Row = Vec<Option<String>>;

/// What is called when a statement has got its connection.
pub type Begun<'a> = &'a (dyn Fn() + Send + Sync);

/// A connection or a transaction. It is not for other crates to implement.
pub trait Query: Send {
    /// Run a statement by the simple protocol, which a pooler cannot tear apart. Return the first
    /// row, which is empty if there is none.
    #[doc(hidden)]
    fn ask(&mut self, sql: &str) -> impl Future<Output = Result<Row>> + Send;
}

/// A transaction, unlike a connection, which commits each statement by itself.
#[diagnostic::on_unimplemented(message = "`{Self}` is no transaction, and would guard nothing")]
pub trait Transaction: Query {}

/// A connection of its own. It is closed when it is dropped, at once, and whatever it does.
pub trait Link: Query + 'static {
    /// Wait for the end of the connection, forever if the driver cannot tell.
    fn ended(&mut self) -> impl Future<Output = Error> + Send {
        pending()
    }
    /// Say goodbye to the server, and close the connection.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// How to reach the server: a `sqlx::PgPool`, or a `Connector` for tokio-postgres. It is not for
/// other crates to implement.
pub trait Server: Send + Sync + 'static {
    /// A connection of its own, as a task of [`every`](crate::every()) gets it.
    type Link: Link;
    /// Open a connection.
    #[doc(hidden)]
    fn open(&self) -> impl Future<Output = Result<Self::Link>> + Send;
    /// Run a statement on any connection, and call a function as soon as there is one.
    #[doc(hidden)]
    fn ask(&self, sql: &str, begun: Begun<'_>) -> impl Future<Output = Result<Row>> + Send;
}

/// Return the seconds of a clock that goes on while the machine is suspended. That of macOS is
/// the monotonic one.
#[cfg(unix)]
pub(crate) fn now() -> f64 {
    use rustix::time::{clock_gettime, ClockId};
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let time = clock_gettime(CLOCK);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(not(unix))]
pub(crate) fn now() -> f64 {
    static START: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed().as_secs_f64()
}

/// Wait for an answer, or a connection, for so many seconds.
pub(crate) async fn within<T>(seconds: f64, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let silent = |_| Error::new(ErrorKind::Timeout, format!("no answer for {seconds} s"));
    timeout(Duration::from_secs_f64(seconds), answer).await.map_err(silent)?
}

/// Turn a panic of a future into an error.
pub(crate) async fn caught<T, E: From<Error>>(
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let caught = AssertUnwindSafe(future).catch_unwind().await;
    caught.unwrap_or_else(|payload| Err(Error::panicked(payload).into()))
}

/// Return what a task has returned, or an error if it has panicked.
fn joined(result: Result<Result<()>, JoinError>) -> Result<()> {
    result.unwrap_or_else(|e| e.try_into_panic().map_or(Ok(()), |p| Err(Error::panicked(p))))
}

/// Call what may block, on a thread of its own: those of the runtime can all be blocked, and keep
/// the runtime from ending.
async fn call(function: impl FnOnce() + Send + 'static) -> Result<()> {
    let ((tell, told), runtime) = (oneshot::channel(), tokio::runtime::Handle::current());
    let thread = std::thread::Builder::new().spawn(move || {
        let _runtime = runtime.enter();
        let _ = tell.send(catch_unwind(AssertUnwindSafe(function)).map_err(Error::panicked));
    });
    thread.map_err(|error| Error::new(ErrorKind::Callback, error))?;
    told.await.unwrap_or(Ok(()))
}

/// Return the first statement on a connection of its own: no timeout of the role shall end it.
pub(crate) fn settings(election: &str) -> String {
    let name = quote(&format!("leader_election: {election}"));
    format!(
        "SELECT pg_backend_pid(), count(set_config(name, CASE name WHEN 'application_name' \
         THEN {name} WHEN 'client_connection_check_interval' THEN '5s' ELSE '0' END, false)) \
         FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout', \
         'idle_session_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout') \
         OR name = 'application_name' AND setting = '' \
         OR name = 'client_connection_check_interval' AND setting = '0'"
    )
}

words! {
    /// What an elector does.
    State {
        /// It does not run yet, or not any more.
        Stopped "stopped",
        /// It campaigns.
        Waiting "waiting",
        /// Its job may go on.
        Leading "leading",
        /// Its job was told to stop, or leadership is being resigned.
        Stopping "stopping",
        /// It waits until it campaigns again.
        Paused "paused"
    }

    /// Whether an elector is well. Waiting and leading are healthy.
    Health {
        /// It waits for its election.
        Waiting "waiting",
        /// It leads.
        Leading "leading",
        /// The last attempt has failed, or the job of a lost term has not stopped.
        InDoubt "in doubt",
        /// It does not run.
        Stopped "stopped"
    }

    /// Why a term has ended.
    Reason {
        /// The elector was stopped.
        Resigned "resigned",
        /// The job has returned.
        JobReturned "job returned",
        /// The job has failed.
        JobFailed "job failed",
        /// The server has said that this elector does not lead, or the connection has ended.
        Lost "lost",
        /// The server has not confirmed leadership in time, or the job has not called heartbeat.
        InDoubt "in doubt"
    }
}

/// What an elector has counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// The terms that have begun.
    pub terms: u64,
    /// The confirmations of leadership.
    pub confirmations: u64,
    /// The errors that were reported.
    pub errors: u64,
}

/// A handle of an [`Elector`]. Clones are handles of the same elector.
#[derive(Clone)]
pub struct Handle(Arc<Mutex<Machine>>);

debug!(Handle, self: "state" &self.state());

impl Handle {
    pub(crate) fn new(options: Options, way: Way) -> Result<(Self, UnboundedReceiver<Event>)> {
        options.check()?;
        let (events, queue) = mpsc::unbounded_channel();
        let machine = Machine::new(options, way, events, now, random);
        Ok((Handle(Arc::new(Mutex::new(machine))), queue))
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().unwrap()
    }

    /// Ask the elector to stop. [`Elector::run`] returns when the job has stopped and leadership
    /// is resigned.
    pub fn stop(&self) {
        let machine = self.machine();
        let _ = machine.stopping || machine.events.send(Box::new(Machine::stop)).is_err();
    }

    /// Return what the elector does.
    pub fn state(&self) -> State {
        self.machine().state()
    }

    /// Return whether the elector is well.
    pub fn health(&self) -> Health {
        self.machine().health()
    }

    /// Return what the elector has counted.
    pub fn counters(&self) -> Counters {
        self.machine().counters
    }
}

debug!(Elector<S>, self: "handle" &self.handle);

/// Campaigns in an election, and runs a job while it leads.
///
/// ```no_run
/// # use leader_election::{BoxError, Elector, Options, Server, Term};
/// # async fn example(server: impl Server) -> Result<(), BoxError> {
/// let elector = Elector::new(server, Options::new("billing"))?; // of a `sqlx::PgPool`, say
/// let handle = elector.handle(); // stops it, by `handle.stop()`
/// let job = async |term: Term| {
///     while !term.cancellation().is_cancelled() {
///         println!("leading with token {}", term.token()); // one step of the job
///         tokio::time::sleep(std::time::Duration::from_secs(1)).await;
///     }
///     Ok::<_, BoxError>(())
/// };
/// elector.run(job).await?;
/// # Ok(()) }
/// ```
pub struct Elector<S> {
    server: S,
    handle: Handle,
    queue: UnboundedReceiver<Event>,
}

impl<S: Server> Elector<S> {
    /// Make an elector.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Argument`] if an option is wrong.
    pub fn new(server: S, options: Options) -> Result<Self> {
        let way = options.ttl.map_or_else(|| session::way(options.heartbeat), lease::way);
        let (handle, queue) = Handle::new(options, way)?;
        Ok(Elector { server, handle, queue })
    }

    /// Return a handle, by which the elector can be stopped and watched from anywhere.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Campaign, and run the job in each term, until [`Handle::stop`]. The job runs as a task of
    /// its own.
    ///
    /// Await this to its end after a stop. If the future is dropped instead, the job is aborted
    /// and the connection closed, but nothing waits for the job, and a lease is not resigned.
    ///
    /// # Errors
    ///
    /// Fails with a permanent error only. All others are reported, and the elector goes on.
    ///
    /// # Panics
    ///
    /// The future panics outside of a tokio runtime.
    pub async fn run<J, F, E>(self, job: J) -> Result<()>
    where
        J: Fn(Term) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let job = Arc::new(job);
        let run = self.lead(Box::new(Machine::campaign), move |term| {
            let job = Arc::clone(&job);
            Box::pin(async move { job(term).await.map_err(|e| Error::caused(ErrorKind::Job, e)) })
        });
        run.await.map(drop)
    }

    /// Run the job once, if this elector is elected now, or within a time. Return what the job has
    /// returned, or `None` if another one leads, or after a stop before the job has started.
    ///
    /// What [`Elector::run`] says about the job, a stop, and a future that is dropped holds here,
    /// too.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Job`] and the job's own error, with [`ErrorKind::Lost`] or
    /// [`ErrorKind::InDoubt`] if leadership was lost before the job had ended, with
    /// [`ErrorKind::SlowJob`] if the job was dropped because it had not stopped in time, with a
    /// permanent error, and with the error of the last attempt. These are not reported, except for
    /// the slow job; all others are.
    ///
    /// # Panics
    ///
    /// The future panics outside of a tokio runtime.
    pub async fn try_run<J, F, T, E>(self, wait: Duration, job: J) -> Result<Option<T>>
    where
        J: FnOnce(Term) -> F + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let (give, mut given) = oneshot::channel();
        let (mut once, wait) = (Some((job, give)), wait.as_secs_f64());
        let run = self.lead(Box::new(move |machine| machine.campaign_once(wait)), move |term| {
            let once = once.take();
            Box::pin(async move {
                let Some((job, give)) = once else { return Ok(()) };
                let value = job(term).await.map_err(|e| Error::caused(ErrorKind::Job, e))?;
                let _ = give.send(value);
                Ok(())
            })
        });
        let dropped = |_| Error::new(ErrorKind::SlowJob, "the job has not stopped in time");
        run.await?.then(|| given.try_recv().map_err(dropped)).transpose()
    }

    /// Campaign, and run the job. Return whether it has run. This is a task of its own, too: the
    /// job must be stopped in time also if the caller does not poll for a while.
    async fn lead(
        self, begin: Event,
        mut job: impl FnMut(Term) -> BoxFuture<'static, Result<()>> + Send + 'static,
    ) -> Result<bool> {
        let options = self.handle.machine().options.clone();
        // cancels the term at once if this future is dropped
        let _gone = self.handle.machine().gone.clone().drop_guard();
        let act = move |action, work: &mut JoinSet<_>| match action {
            Action::Elected(term) => {
                let elected = options.on_elected.clone();
                work.spawn(call(move || {
                    tracing::info!("elected in {} with token {}", term.election(), term.token());
                    elected(&term);
                }));
            }
            Action::Job(term) => drop(work.spawn(polled_in_time(term.clone(), job(term)))),
            Action::Ousted(term, reason) => {
                let ousted = options.on_ousted.clone();
                work.spawn(call(move || {
                    tracing::info!("term {} of {} ended: {reason}", term.token(), term.election());
                    ousted(&term, reason);
                }));
            }
            Action::Abort => work.abort_all(),
            _ => {}
        };
        let task = tokio::spawn(drive(self.server, self.handle, self.queue, begin, act));
        AbortOnDropHandle::new(task).await.map_err(|e| Error::caused(ErrorKind::Broken, e))?
    }
}

/// Poll a job only while its term is confirmed: after a pause of the machine or of the runtime, the
/// timer that stops the job is late, too.
fn polled_in_time<T>(term: Term, mut job: BoxFuture<'static, T>) -> impl Future<Output = T> {
    poll_fn(move |context| match term.is_confirmed() {
        true => job.as_mut().poll(context),
        false => Poll::Pending,
    })
}

/// Drive a machine to its end, and return whether the job has run. Everything that may take long
/// happens beside it.
pub(crate) async fn drive<S: Server>(
    server: S, handle: Handle, mut queue: UnboundedReceiver<Event>, begin: Event,
    mut act: impl FnMut(Action, &mut JoinSet<Result<()>>),
) -> Result<bool> {
    let options = handle.machine().options.clone();
    let (report, mut errors) = mpsc::unbounded_channel::<Error>();
    let on_error = options.on_error.clone();
    let reporter = tokio::spawn(async move {
        while let Some(error) = errors.recv().await {
            let (on_error, told) = (on_error.clone(), error.clone());
            if let Err(failed) = call(move || on_error(&error)).await {
                tracing::error!("on_error failed: {failed}; its error: {told:#}");
            }
        }
    });
    let (mut link, mut asking) = (None, None::<BoxFuture<'_, (Option<S::Link>, Event)>>);
    let (server, handle, mut work) = (&server, &handle, JoinSet::new());
    // cancels the term if this future is dropped, and before the connection is
    let _gone = handle.machine().gone.clone().drop_guard();
    // behind what was sent before, which may be a stop
    let _ = handle.machine().events.send(begin);
    let mut event: Event = Box::new(|_| ());
    let end = 'end: loop {
        let actions = handle.machine().step(now(), event);
        for action in actions {
            match action {
                Action::Ask(serial, statement) => {
                    let (mut link, sql) = (link.take(), handle.machine().sql(&statement));
                    asking = Some(Box::pin(async move {
                        let begun = || handle.machine().begun(serial);
                        let answer = async {
                            yield_now().await; // as one may answer at once, again and again
                            if let Statement::Open = statement {
                                link = Some(server.open().await?);
                            }
                            let Some(link) = &mut link else {
                                return server.ask(&sql, &begun).await;
                            };
                            begun();
                            link.ask(&sql).await
                        };
                        let answer = caught(answer).await;
                        let event: Event = Box::new(move |machine| machine.answer(serial, answer));
                        (link, event)
                    }));
                }
                Action::Close => {
                    asking = None;
                    if let Some(link) = link.take() {
                        let _ = timeout(Duration::from_secs(1), link.close()).await;
                    }
                }
                Action::Error(error) => drop(report.send(error)),
                Action::End(result) => break 'end result,
                action => act(action, &mut work),
            }
        }
        // a timer stands still while the machine is suspended, so the clock is looked at
        let pause = (handle.machine().wakeup() - now()).clamp(0.0, 1.0);
        event = tokio::select! {
            Some(event) = queue.recv() => event,
            (back, event) = async { asking.as_mut().unwrap().await }, if asking.is_some() => {
                (link, asking) = (back, None);
                event
            }
            error = async { link.as_mut().unwrap().ended().await }, if link.is_some() => {
                link = None;
                Box::new(move |machine| machine.broken(error))
            }
            Some(result) = work.join_next() => {
                let _ = handle.machine().events.send(Box::new(|m| m.done(joined(result))));
                Box::new(|_| ()) // behind a stop that the job or the callback has asked for
            }
            () = sleep(Duration::from_secs_f64(pause)) => Box::new(|_| ()),
        };
    };
    drop(report);
    let _ = timeout(Duration::from_secs(1), reporter).await;
    let Err(error) = end else { return end };
    Err(explain(server, &options, error).await)
}

/// End the session that a pooler has left behind, or say where the extension is.
pub(crate) async fn explain<S: Server>(server: &S, options: &Options, error: Error) -> Error {
    let (le, (names, identity)) = (options.prefix(), options.names());
    let any = options.seats.map_or("", |_| "ANY");
    let expel = format!(
        "SELECT pg_terminate_backend(pid) FROM {le}le_leaders \
         WHERE identity = {identity} AND name = {any} ({names})"
    );
    let diagnose = "SELECT (SELECT nspname::text FROM pg_proc AS p \
         JOIN pg_namespace AS n ON n.oid = pronamespace WHERE proname = 'le_version' \
         ORDER BY p.oid LIMIT 1), current_database()";
    let ask = |sql| caught(within(5.0, async move { server.open().await?.ask(sql).await }));
    // expel can run in the session that it ends, or in one that another elector ends
    let mut tries = if error.kind == ErrorKind::Pooler { 10 } else { 0 };
    while tries > 0 {
        let ended = ask(&expel).await.is_err_and(|failed| failed.sqlstate.is_some());
        tries = if ended { tries - 1 } else { 0 };
    }
    let found = if error.kind == ErrorKind::Extension { ask(diagnose).await } else { Ok(vec![]) };
    let message = match found.as_deref() {
        Ok([None, Some(database)]) => format!(
            "leader_election is not installed in database \"{database}\": \
             run CREATE EXTENSION leader_election, or install the SQL edition"
        ),
        Ok([Some(schema), _]) if options.schema.as_ref() != Some(schema) => format!(
            "leader_election is in schema \"{schema}\": \
             set the option schema to it, or add it to search_path"
        ),
        _ => return error,
    };
    Error { message, ..error }
}
