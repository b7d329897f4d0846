//! The driver tokio-postgres.

use crate::error::{BoxError, Error, ErrorKind};
use crate::port::{BoxFuture, Port, Row, Session};
use std::future;
use std::sync::{Mutex, PoisonError};
use tokio::select;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, SimpleQueryMessage, Socket};

/// How to connect with tokio-postgres: a [`Config`], and what makes TLS connections, or
/// [`NoTls`](tokio_postgres::NoTls).
///
/// By a lease, all statements use one connection, which is opened again after an error. A
/// clone opens connections of its own.
pub struct Connector<T> {
    config: Config,
    tls: T,
    idle: Mutex<Option<Link>>,
}

impl<T> Connector<T> {
    /// Make a connector. It does not connect before it is used.
    pub fn new(config: Config, tls: T) -> Self {
        Connector { config, tls, idle: Mutex::default() }
    }
}

impl<T: Clone> Clone for Connector<T> {
    fn clone(&self) -> Self {
        Connector::new(self.config.clone(), self.tls.clone())
    }
}

/// A client with the future that reads from and writes to its socket. No task is spawned
/// for that future: it is polled here, and dropping it closes the socket.
pub struct Link {
    client: Client,
    connection: Option<BoxFuture<'static, Result<(), tokio_postgres::Error>>>,
}

impl<T> Port for Connector<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    type Session = Link;

    async fn open(&self) -> Result<Link, Error> {
        let (client, connection) = self.config.connect(self.tls.clone()).await.map_err(error)?;
        Ok(Link { client, connection: Some(Box::pin(connection)) })
    }

    async fn ask(&self, sql: &str) -> Result<Vec<Row>, Error> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut link = match Link::if_open(idle).await {
            Some(link) => link,
            None => self.open().await?,
        };
        let rows = link.ask(sql).await?;
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(link);
        Ok(rows)
    }
}

impl Link {
    async fn if_open(link: Option<Link>) -> Option<Link> {
        let mut link = link?;
        select! {
            biased;
            _ = link.ended() => None,
            () = future::ready(()) => Some(link),
        }
    }
}

impl Session for Link {
    type Client = Client;

    async fn ask(&mut self, sql: &str) -> Result<Vec<Row>, Error> {
        let Link { client, connection } = self;
        let messages = select! {
            biased;
            messages = client.simple_query(sql) => messages.map_err(error)?,
            cause = end(connection) => return Err(cause),
        };
        let row = |message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect())
            }
            _ => None,
        };
        Ok(messages.into_iter().filter_map(row).collect())
    }

    async fn ended(&mut self) -> Error {
        end(&mut self.connection).await
    }

    async fn work<'a, T>(&'a mut self, task: T) -> Result<(), BoxError>
    where
        T: FnOnce(&'a mut Client) -> BoxFuture<'a, Result<(), BoxError>> + Send,
    {
        let Link { client, connection } = self;
        select! {
            biased;
            result = task(client) => result,
            cause = end(connection) => Err(cause.into()),
        }
    }

    async fn close(self) {
        drop(self.client);
        if let Some(connection) = self.connection {
            let _ = connection.await;
        }
    }
}

/// Drive the connection to its end.
async fn end(
    connection: &mut Option<BoxFuture<'static, Result<(), tokio_postgres::Error>>>,
) -> Error {
    let result = match connection {
        Some(driver) => driver.await,
        None => Ok(()),
    };
    *connection = None;
    let closed = || Error::new(ErrorKind::Database, "the connection is closed");
    result.map_or_else(error, |()| closed())
}

fn error(error: tokio_postgres::Error) -> Error {
    let sqlstate = error.code().map(|code| code.code().to_owned());
    let cause: BoxError = match error.as_db_error() {
        Some(cause) => Box::new(cause.clone()),
        None => Box::new(error),
    };
    Error::driver(sqlstate, cause)
}
