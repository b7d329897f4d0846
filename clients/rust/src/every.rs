//! Jobs of a point in time.

use crate::elector::{DEADLINE, SECOND};
use crate::error::{BoxError, Error, ErrorKind};
use crate::follow::time;
use crate::port::{interval, quote, within, BoxFuture, Port, Server, Session};
use crate::term::Term;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::sleep;

/// What a task gets: the driver's connection.
type Client<S> = <<S as Port>::Session as Session>::Client;

/// Make a job of a task that is to be done once for each point in time.
///
/// Each second, the job asks the server which time is due, and for each new one runs the
/// task in the transaction of `le_once`, on a connection of its own. The task gets that
/// connection, which is a `sqlx::PgConnection` or a `tokio_postgres::Client`, and the time.
/// It must neither begin nor end a transaction. A task that fails is rolled back, is
/// reported, and is tried again a second later. If the job is told to stop, it stops
/// after the task that runs.
///
/// # Errors
///
/// Fails with [`ErrorKind::Argument`] if the interval is shorter than a second.
pub fn every<S, T>(
    server: S,
    interval: Duration,
    task: T,
) -> Result<impl Fn(Term) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync + 'static, Error>
where
    S: Server,
    T: for<'a> Fn(&'a mut Client<S>, SystemTime) -> BoxFuture<'a, Result<(), BoxError>>
        + Send
        + Sync
        + 'static,
{
    if interval < SECOND {
        return Err(Error::new(ErrorKind::Argument, "the interval must be 1 s or longer"));
    }
    let every = Arc::new(Every { server, interval, task });
    Ok(move |term: Term| -> BoxFuture<'static, Result<(), BoxError>> {
        let every = Arc::clone(&every);
        Box::pin(async move { every.run(term).await })
    })
}

struct Every<S, T> {
    server: S,
    interval: Duration,
    task: T,
}

impl<S, T> Every<S, T>
where
    S: Server,
    T: for<'a> Fn(&'a mut Client<S>, SystemTime) -> BoxFuture<'a, Result<(), BoxError>>
        + Send
        + Sync,
{
    async fn run(&self, term: Term) -> Result<(), BoxError> {
        let (mut session, mut done) = (None, None);
        while !term.cancellation().is_cancelled() {
            term.heartbeat();
            if let Err(error) = self.step(&mut session, &mut done, &term).await {
                session = None; // closing the connection rolls back
                let failed = Error::new(ErrorKind::Job, "a task of a point in time has failed");
                term.report(&failed.caused(error));
            }
            term.cancellation().run_until_cancelled(sleep(SECOND)).await;
        }
        if let Some(session) = session {
            let _ = tokio::time::timeout(SECOND, Session::close(session)).await;
        }
        Ok(())
    }

    /// Do what is due, if it is not done.
    async fn step(
        &self,
        session: &mut Option<S::Session>,
        done: &mut Option<i64>,
        term: &Term,
    ) -> Result<(), BoxError> {
        let session = match session {
            Some(session) => session,
            None => session.insert(within(DEADLINE, self.server.open()).await?),
        };
        let stride = interval(self.interval);
        let ask = format!(
            "SELECT due, (extract(epoch FROM due) * 1000000)::bigint \
             FROM date_bin({stride}, clock_timestamp(), '2000-01-01 00:00+00') AS due"
        );
        let rows = within(DEADLINE, session.ask(&ask)).await?;
        let Some([Some(due), Some(micros)]) = rows.first().map(Vec::as_slice) else {
            return Err("the server has returned a bad row".into());
        };
        let micros = micros.parse()?;
        if *done == Some(micros) {
            return Ok(());
        }
        let name = quote(term.election());
        let once = format!("SELECT le_once({name}, {}::timestamptz, {})", quote(due), term.token());
        within(DEADLINE, session.ask("BEGIN")).await?;
        let rows = within(DEADLINE, session.ask(&once)).await?;
        if rows.iter().flatten().any(|column| column.as_deref() == Some("t")) {
            session.work(|client| (self.task)(client, time(micros))).await?;
            term.heartbeat();
        }
        // fails if the task has hidden that a statement failed; COMMIT alone would not
        within(DEADLINE, session.ask("SELECT 1")).await?;
        within(DEADLINE, session.ask("COMMIT")).await?;
        *done = Some(micros);
        Ok(())
    }
}
