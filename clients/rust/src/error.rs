//! The errors of this crate.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

/// Any error, as a job or a task may return it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The kinds of [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is out of its range, or does not go with another one.
    Argument,
    /// The driver or the server has failed.
    Database,
    /// No connection or no answer came before its deadline.
    Timeout,
    /// The session or lease is over, and the job was stopped.
    Lost,
    /// The validity of the last confirmation has passed, and the job was stopped.
    InDoubt,
    /// The job, or a task of [`every`](crate::every), has returned an error or has panicked.
    Job,
    /// The job has not stopped within the stop timeout.
    JobNotStopped,
    /// A callback has panicked.
    Callback,
    /// A pooler lets clients share a server connection, which session scope cannot use.
    Pooler,
}

/// What has failed: the [kind](Error::kind), and the cause as the
/// [source](StdError::source), if there is one.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<BoxError>,
    sqlstate: Option<String>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Error { kind, message, source: None, sqlstate: None }
    }

    pub(crate) fn caused(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Make the error of a driver.
    pub(crate) fn driver(sqlstate: Option<String>, source: impl Into<BoxError>) -> Self {
        let mut error = Error::new(ErrorKind::Database, "the database has failed").caused(source);
        error.sqlstate = sqlstate;
        error
    }

    /// Return the kind of this error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Return the SQLSTATE, if the server has raised this error or its cause.
    pub fn sqlstate(&self) -> Option<&str> {
        let cause = || self.source.as_ref()?.downcast_ref::<Error>()?.sqlstate();
        self.sqlstate.as_deref().or_else(cause)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.source.as_ref().map_or(Ok(()), |source| write!(f, ": {source}"))
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

/// Where errors are reported.
#[derive(Clone)]
pub(crate) struct Reporter(pub Arc<dyn Fn(&Error) + Send + Sync>);

impl Reporter {
    pub fn report(&self, error: &Error) {
        if catch_unwind(AssertUnwindSafe(|| (self.0)(error))).is_err() {
            tracing::error!("the callback for errors has panicked: {error}");
        }
    }
}

impl Default for Reporter {
    fn default() -> Self {
        Reporter(Arc::new(|error| tracing::error!("leader election: {error}")))
    }
}

/// Return what was said by a panic.
pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Error {
    let said = payload.downcast_ref::<&str>().copied();
    let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    Error::new(ErrorKind::Job, format!("panicked: {}", said.unwrap_or("?")))
}
