//! The driver sqlx.

use crate::error::{BoxError, Error};
use crate::port::{BoxFuture, Port, Row, Session};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, PgRow};
use sqlx::{ConnectOptions, Connection, Executor, Postgres, Row as _, ValueRef};
use std::future;

/// A connection out of the pool. It is closed unless it is handed back, lest one that has
/// failed, or still waits for an answer, gets into other hands.
struct Lent(Option<PoolConnection<Postgres>>);

impl Drop for Lent {
    fn drop(&mut self) {
        drop(self.0.take().map(PoolConnection::detach));
    }
}

impl Port for PgPool {
    type Session = PgConnection;

    async fn open(&self) -> Result<PgConnection, Error> {
        // a statement that waits for minutes is not slow
        let options = (*self.connect_options()).clone().disable_statement_logging();
        options.connect().await.map_err(error)
    }

    async fn ask(&self, sql: &str) -> Result<Vec<Row>, Error> {
        let mut lent = Lent(Some(self.acquire().await.map_err(error)?));
        let Some(connection) = lent.0.as_deref_mut() else { unreachable!("it has just been lent") };
        let rows = Session::ask(connection, sql).await?;
        drop(lent.0.take());
        Ok(rows)
    }
}

impl Session for PgConnection {
    type Client = PgConnection;

    async fn ask(&mut self, sql: &str) -> Result<Vec<Row>, Error> {
        let rows = self.fetch_all(sqlx::raw_sql(sql)).await.map_err(error)?;
        rows.iter().map(row).collect::<Result<_, _>>().map_err(error)
    }

    /// sqlx reads from a connection only while a statement runs.
    async fn ended(&mut self) -> Error {
        future::pending().await
    }

    async fn work<'a, T>(&'a mut self, task: T) -> Result<(), BoxError>
    where
        T: FnOnce(&'a mut PgConnection) -> BoxFuture<'a, Result<(), BoxError>> + Send,
    {
        task(self).await
    }

    async fn close(self) {
        let _ = Connection::close(self).await;
    }
}

fn row(row: &PgRow) -> Result<Row, sqlx::Error> {
    let column = |i| {
        let value = row.try_get_raw(i)?;
        let text = (!value.is_null()).then(|| value.as_str()).transpose();
        text.map(|text| text.map(str::to_owned)).map_err(sqlx::Error::Decode)
    };
    (0..row.len()).map(column).collect()
}

fn error(error: sqlx::Error) -> Error {
    let sqlstate = error.as_database_error().and_then(|e| e.code()).map(String::from);
    Error::driver(sqlstate, error)
}
