//! The driver tokio-postgres.

use crate::error::{Error, ErrorKind, Result};
use crate::run::{self, Begun, Link, Query, Row, Server};
use std::sync::{Arc, Mutex};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, SimpleQueryMessage, SimpleQueryRow, Socket, Transaction};
use tokio_util::task::AbortOnDropHandle;

/// How to connect with tokio-postgres: a [`Config`], and what makes TLS connections, or
/// [`NoTls`](tokio_postgres::NoTls). By a lease, all statements use one connection, which is
/// opened again after an error.
#[derive(Clone)]
pub struct Connector<T> {
    config: Config,
    tls: T,
    idle: Arc<Mutex<Option<Connection>>>,
}

debug!(Connector<T>, self: "config" &self.config);

impl<T> Connector<T> {
    /// Make a connector. It does not connect before it is used.
    pub fn new(config: Config, tls: T) -> Self {
        Connector { config, tls, idle: Arc::default() }
    }
}

/// A [`Client`], with the task that reads from and writes to its socket. Dropping it closes the
/// socket.
#[derive(Debug)]
pub struct Connection {
    /// The client.
    pub client: Client,
    task: AbortOnDropHandle<Result<(), tokio_postgres::Error>>,
}

impl<T> Server for Connector<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    type Link = Connection;

    async fn open(&self) -> Result<Connection> {
        let (client, driver) = self.config.connect(self.tls.clone()).await.map_err(error)?;
        Ok(Connection { client, task: AbortOnDropHandle::new(tokio::spawn(driver)) })
    }

    async fn ask(&self, sql: &str, begun: Begun<'_>) -> Result<Row> {
        let idle = self.idle.lock().unwrap().take().filter(|idle| !idle.client.is_closed());
        let mut link = match idle {
            Some(link) => link,
            None => self.open().await?,
        };
        begun();
        let row = link.ask(sql).await?;
        *self.idle.lock().unwrap() = Some(link);
        Ok(row)
    }
}

impl Query for Connection {
    async fn ask(&mut self, sql: &str) -> Result<Row> {
        self.client.ask(sql).await
    }
}

impl Query for Client {
    async fn ask(&mut self, sql: &str) -> Result<Row> {
        self.simple_query(sql).await.map(first).map_err(error)
    }
}

impl Query for Transaction<'_> {
    async fn ask(&mut self, sql: &str) -> Result<Row> {
        self.simple_query(sql).await.map(first).map_err(error)
    }
}

impl run::Transaction for Transaction<'_> {}

impl Link for Connection {
    async fn ended(&mut self) -> Error {
        match (&mut self.task).await {
            Ok(Err(cause)) => error(cause),
            _ => Error::new(ErrorKind::Broken, "the connection has ended"),
        }
    }

    async fn close(self) {
        drop(self.client);
        let _ = self.task.await;
    }
}

/// Return the first row.
fn first(messages: Vec<SimpleQueryMessage>) -> Row {
    let row = messages.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let text = |r: SimpleQueryRow| (0..r.len()).map(|i| r.get(i).map(str::to_owned)).collect();
    row.map(text).unwrap_or_default()
}

fn error(error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(e) => Error::server(e.code().code(), e.message(), e.detail(), e.hint()),
        None => Error::caused(ErrorKind::Broken, error),
    }
}
