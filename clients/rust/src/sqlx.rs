//! The driver sqlx, in each of its versions.

macro_rules! implement {
    ($version:ident, $sqlx:ident, $sql:ident => $raw:expr) => {
        mod $version {
            use crate::error::{Error, ErrorKind, Result};
            use crate::run::{self, Begun, Link, Query, Row, Server};
            use ::$sqlx::pool::PoolConnection;
            use ::$sqlx::postgres::{PgConnection, PgDatabaseError, PgPool, PgRow};
            use ::$sqlx::{ConnectOptions, Connection, Executor, Postgres, Row as _, Transaction};

            /// Has a row outside of a transaction. A lease would only begin at the commit of one.
            const ALONE: &str = "SELECT 1 WHERE now() = statement_timestamp()";

            /// A connection out of the pool. It is closed unless it is handed back, lest one that
            /// has failed, or still waits for an answer, gets into other hands.
            struct Lent(Option<PoolConnection<Postgres>>);

            impl Drop for Lent {
                fn drop(&mut self) {
                    drop(self.0.take().map(PoolConnection::detach));
                }
            }

            impl Server for PgPool {
                type Link = PgConnection;

                async fn open(&self) -> Result<PgConnection> {
                    // a statement that waits for minutes is not slow
                    let options = (*self.connect_options()).clone().disable_statement_logging();
                    options.connect().await.map_err(error)
                }

                async fn ask(&self, sql: &str, begun: Begun<'_>) -> Result<Row> {
                    let mut lent = Lent(Some(self.acquire().await.map_err(error)?));
                    begun();
                    let link = lent.0.as_mut().unwrap();
                    if link.ask(ALONE).await?.is_empty() {
                        let what = "the pool has given a connection that is in a transaction";
                        return Err(Error::new(ErrorKind::Broken, what));
                    }
                    let row = link.ask(sql).await?;
                    drop(lent.0.take());
                    Ok(row)
                }
            }

            impl Query for PgConnection {
                async fn ask(&mut self, $sql: &str) -> Result<Row> {
                    let row = self.fetch_optional(::$sqlx::raw_sql($raw)).await.map_err(error)?;
                    let text = |row: &PgRow, i| row.try_get_unchecked(i).ok().flatten();
                    let texts = |row: PgRow| (0..row.len()).map(|i| text(&row, i)).collect();
                    Ok(row.map(texts).unwrap_or_default())
                }
            }

            impl Query for Transaction<'_, Postgres> {
                async fn ask(&mut self, sql: &str) -> Result<Row> {
                    Query::ask(&mut **self, sql).await
                }
            }

            impl run::Transaction for Transaction<'_, Postgres> {}

            // cannot tell its end: sqlx reads from a connection only while a statement runs
            impl Link for PgConnection {
                async fn close(self) {
                    let _ = Connection::close(self).await;
                }
            }

            fn error(error: ::$sqlx::Error) -> Error {
                match &error {
                    ::$sqlx::Error::Database(cause) => {
                        let cause = cause.downcast_ref::<PgDatabaseError>();
                        Error::server(cause.code(), cause.message(), cause.detail(), cause.hint())
                    }
                    ::$sqlx::Error::PoolTimedOut => Error::caused(ErrorKind::NoConnection, error),
                    _ => Error::caused(ErrorKind::Broken, error),
                }
            }
        }
    };
}

#[cfg(feature = "sqlx")]
implement!(v0_9, sqlx, sql => ::sqlx::AssertSqlSafe(sql));

#[cfg(feature = "sqlx-0_8")]
implement!(v0_8, sqlx_0_8, sql => sql);
