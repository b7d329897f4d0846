//! The errors of this crate.

use std::{any::Any, iter::successors, sync::Arc};

/// Any error, as a job or a task may return it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Define Debug for a type, which shows some values only.
macro_rules! debug {
    ($name:ident $(<$t:ident>)?, $self:ident: $($field:literal $value:expr),*) => {
        impl$(<$t>)? std::fmt::Debug for $name$(<$t>)? {
            fn fmt(&$self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))$(.field($field, $value))*.finish_non_exhaustive()
            }
        }
    };
}

/// Define enumerations of words, which are displayed as such.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident $word:literal),* })*) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name { $($(#[$about])* $variant),* }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self { $($name::$variant => $word),* })
            }
        })*
    };
}

words! {
    /// The kinds of [`Error`].
    ErrorKind {
        /// The server does not find the extension.
        Extension "extension",
        /// The role lacks a privilege.
        Privilege "privilege",
        /// An option is wrong, or the server refuses it.
        Argument "argument",
        /// A pooler shares the connection.
        Pooler "pooler",
        /// The server has refused a statement: see [`Error::sqlstate`].
        Server "server",
        /// A statement was not answered in time.
        Timeout "timeout",
        /// The server or the pool has given no connection in time.
        NoConnection "no-connection",
        /// A connection could not be opened, or has ended, or a statement has ended a transaction.
        Broken "broken",
        /// Leadership is lost.
        Lost "lost",
        /// Leadership is in doubt.
        InDoubt "in doubt",
        /// The job has failed.
        Job "job",
        /// The job has not stopped in time.
        SlowJob "slow job",
        /// A callback has failed.
        Callback "callback"
    }
}

/// What has failed.
#[derive(Debug, Clone)]
pub struct Error {
    /// The kind of what has failed.
    pub kind: ErrorKind,
    /// The SQLSTATE, if this is an error of the server.
    pub sqlstate: Option<String>,
    /// What has failed, in words. An error of the server has its message, detail and hint here.
    pub message: String,
    /// The server's hint, if there is one.
    pub hint: Option<String>,
    pub(crate) cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl ToString) -> Self {
        Error { kind, sqlstate: None, message: message.to_string(), hint: None, cause: None }
    }

    /// Make an error of another one, which is its source.
    pub(crate) fn caused(kind: ErrorKind, cause: impl Into<BoxError>) -> Self {
        let what = if kind == ErrorKind::Job { "job" } else { "connection" };
        let error = Error::new(kind, format!("the {what} has failed"));
        Error { cause: Some(cause.into().into()), ..error }
    }

    /// Make an error of a panic.
    pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> Self {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "with a value that is no text".into());
        std::mem::forget(payload); // it can panic when it is dropped
        Error::new(ErrorKind::Broken, format!("panicked: {text}"))
    }

    /// Return whether this is a permanent error, which ends [`Elector::run`](crate::Elector::run):
    /// something must be configured differently.
    pub fn is_permanent(&self) -> bool {
        use ErrorKind::{Argument, Extension, Pooler, Privilege};
        matches!(self.kind, Extension | Privilege | Argument | Pooler)
    }

    pub(crate) fn lost() -> Self {
        Error::new(ErrorKind::Lost, "leadership is lost: the term is over")
    }

    pub(crate) fn pooler() -> Self {
        let cause = "session scope needs a connection of its own, and a pooler shares this one";
        Error::new(ErrorKind::Pooler, format!("{cause}: set a ttl, to lead by a lease"))
    }

    /// Make an error of the server.
    pub(crate) fn server(
        state: &str, message: &str, detail: Option<&str>, hint: Option<&str>,
    ) -> Self {
        let parts: Vec<_> = [Some(message), detail, hint].into_iter().flatten().collect();
        let (sqlstate, hint) = (Some(state.into()), hint.map(str::to_owned));
        Error { sqlstate, hint, ..Error::new(ErrorKind::Server, parts.join("\n")) }
    }

    /// Return the pause, in seconds, that the hint of LE003 names.
    pub(crate) fn named_pause(&self) -> Option<f64> {
        let (text, _) = self.hint.as_ref()?.split_once(" ms").filter(|_| self.is("LE003"))?;
        Some(text.rsplit(' ').next()?.parse::<f64>().ok()? / 1000.0)
    }

    pub(crate) fn is(&self, sqlstate: &str) -> bool {
        self.sqlstate.as_deref() == Some(sqlstate)
    }

    /// Return the error of a bid, or of `leader`, as the permanent one that it is, or else as it is.
    pub(crate) fn judged(self) -> Self {
        let kind = match self.sqlstate.as_deref().unwrap_or_default() {
            "42883" | "42P01" | "3F000" => ErrorKind::Extension,
            "42501" => ErrorKind::Privilege,
            "LE005" => return Error::pooler(),
            state if state.starts_with("22") || state.starts_with("42") => ErrorKind::Argument,
            _ => self.kind,
        };
        Error { kind, ..self }
    }
}

/// Shows the message, and by `{:#}` those of all sources, too.
impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        let sources = successors(std::error::Error::source(self), |source| source.source());
        sources.take(if f.alternate() { 20 } else { 0 }).try_for_each(|e| write!(f, ": {e}"))
    }
}

impl std::error::Error for Error {
    /// Return the error of the job or the driver. The error itself has what the server has said.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}
