//! What the state machine asks of a driver, and the statements.

use crate::error::{BoxError, Error, ErrorKind};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::timeout;

/// A boxed future, as a task of [`every`](crate::every) returns it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The columns of a row, as text.
pub type Row = Vec<Option<String>>;

/// A connection of its own. It is closed when it is dropped, at once, and whatever it does.
pub trait Session: Send + 'static {
    /// The driver's type of a connection.
    type Client: Send;

    /// Run a statement by the simple protocol, which needs no prepared statement, and one
    /// round trip only: a pooler cannot tear it apart.
    fn ask(&mut self, sql: &str) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// Wait for the end of the connection, forever if the driver cannot tell.
    fn ended(&mut self) -> impl Future<Output = Error> + Send;

    /// Run a task on the connection.
    fn work<'a, T>(&'a mut self, task: T) -> impl Future<Output = Result<(), BoxError>> + Send
    where
        T: FnOnce(&'a mut Self::Client) -> BoxFuture<'a, Result<(), BoxError>> + Send;

    /// Say goodbye to the server, and close the connection.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// How to reach the server.
pub trait Port: Send + Sync + 'static {
    /// A connection of its own.
    type Session: Session;

    /// Open a connection.
    fn open(&self) -> impl Future<Output = Result<Self::Session, Error>> + Send;

    /// Run a statement on any connection.
    fn ask(&self, sql: &str) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;
}

/// A server to campaign on: a [`sqlx::PgPool`](https://docs.rs/sqlx), or a
/// `Connector` for tokio-postgres. This trait is sealed.
pub trait Server: Port {}

impl<P: Port> Server for P {}

/// Wait for an answer, or a connection, until its deadline.
pub(crate) async fn within<T>(
    deadline: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let silent = |_| Error::new(ErrorKind::Timeout, format!("no answer within {deadline:?}"));
    timeout(deadline, answer).await.map_err(silent)?
}

/// Return text as a literal, whatever the setting of standard_conforming_strings.
pub(crate) fn quote(text: &str) -> String {
    format!("E'{}'::text", text.replace('\\', r"\\").replace('\'', "''"))
}

/// Return a duration as a literal.
pub(crate) fn interval(duration: Duration) -> String {
    format!("'{} us'::interval", duration.as_micros())
}
