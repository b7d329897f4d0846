//! Jobs of a point in time.

use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::options::literal;
use crate::run::{caught, within, Query, Server};
use crate::term::Term;
use futures_util::future::BoxFuture;
use std::iter::successors;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::sleep;

const XID: &str = "pg_catalog.txid_current()";

/// When a task is due: an interval from 1 s, whose multiples since 2000-01-01 00:00 UTC are due,
/// or a function from the last due time to the next, such as that of a cron library. It is
/// not for other crates to implement.
pub trait Schedule: Send + Sync + 'static {
    /// Return the last time up to `now` that was looked at, and whether it is due.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Argument`] if this is an interval below 1 s, or if a function does
    /// not get on.
    #[doc(hidden)]
    fn due(&self, last: SystemTime, now: SystemTime) -> Result<(SystemTime, bool)>;
}

impl Schedule for Duration {
    fn due(&self, last: SystemTime, now: SystemTime) -> Result<(SystemTime, bool)> {
        if *self < Duration::from_secs(1) {
            return Err(Error::new(ErrorKind::Argument, "an interval must be at least 1 s"));
        }
        let origin = UNIX_EPOCH + Duration::from_secs(946_684_800); // 2000-01-01 00:00 UTC
        let past = now.duration_since(origin).unwrap_or_default().as_nanos();
        let length = self.as_nanos();
        let time = last.max(origin + Duration::from_nanos((past / length * length) as u64));
        Ok((time, time > last))
    }
}

impl<F: Fn(SystemTime) -> Option<SystemTime> + Send + Sync + 'static> Schedule for F {
    fn due(&self, last: SystemTime, now: SystemTime) -> Result<(SystemTime, bool)> {
        let next = |asked: &SystemTime| self(*asked).filter(|next| *next <= now);
        let mut times = successors(Some(last).filter(|last| *last <= now), next).skip(1);
        // what is not later is passed over
        let time = times.by_ref().take(10_000).fold(last, SystemTime::max);
        let behind = times.next().is_some();
        if behind && time == last {
            return Err(Error::new(ErrorKind::Argument, "a schedule must return a later time"));
        }
        Ok((time, time > last && !behind))
    }
}

/// Make a job of a task that is to be done once for each due time.
///
/// The task gets a connection on which the transaction of `le_once` has begun: the
/// [`Server::Link`], which is a `sqlx::PgConnection`, or a `Connection` for tokio-postgres. It must
/// neither begin nor end a transaction. A task that fails is rolled back, is reported, and is tried
/// again a second later.
///
/// # Errors
///
/// Fails with [`ErrorKind::Argument`] if the interval is below 1 s.
pub fn every<S: Server, T>(
    server: S, schedule: impl Schedule, task: T,
) -> Result<impl Fn(Term) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync + 'static>
where
    T: for<'a> Fn(&'a mut S::Link, SystemTime) -> BoxFuture<'a, Result<(), BoxError>>,
    T: Send + Sync + 'static,
{
    schedule.due(SystemTime::now(), UNIX_EPOCH)?; // refuses a short interval
    let every = Arc::new((server, schedule, task));
    Ok(move |term: Term| {
        let every = Arc::clone(&every);
        Box::pin(async move {
            let (server, schedule, task) = &*every;
            let (le, name) = (&term.0.prefix, literal(term.election()));
            let done = format!("extract(epoch FROM due) FROM {le}le_once_done WHERE name = {name}");
            let times = format!("SELECT extract(epoch FROM clock_timestamp()), (SELECT {done})");
            let (mut open, mut last) = (None, None);
            while !term.cancellation().is_cancelled() {
                term.heartbeat();
                let looked = async {
                    let link = match &mut open {
                        Some(link) => link,
                        open => open.insert(within(5.0, server.open()).await?),
                    };
                    let row = within(5.0, link.ask(&times)).await?;
                    let time = |i: usize| {
                        let seconds = row.get(i)?.as_ref()?.parse().ok()?;
                        Some(UNIX_EPOCH + Duration::try_from_secs_f64(seconds).ok()?)
                    };
                    let now = time(0).ok_or("the server has returned no time")?;
                    let begin = *last.get_or_insert(time(1).unwrap_or(now));
                    let (at, due) = schedule.due(begin, now)?;
                    if due {
                        within(5.0, link.ask("BEGIN")).await?;
                        let once = format!("{}, {XID}", term.once_sql(at));
                        let row = within(5.0, link.ask(&once)).await?;
                        if row.first() == Some(&Some("t".into())) {
                            task(link, at).await?;
                            // fails if the task has hidden that a statement failed, as COMMIT would
                            // not; the task can also have begun another transaction
                            let now = within(5.0, link.ask(&format!("SELECT {XID}"))).await?;
                            if now.first() != row.get(1) {
                                return Err("the task has ended its transaction".into());
                            }
                        }
                        within(5.0, link.ask("COMMIT")).await?;
                    }
                    last = Some(at);
                    Ok::<_, BoxError>(())
                };
                if let Err(error) = caught(looked).await {
                    open = None; // closing the connection rolls back
                    let error = Error::caused(ErrorKind::Job, error);
                    let _ = term.0.events.send(Box::new(move |machine| machine.report(error)));
                }
                term.cancellation().run_until_cancelled(sleep(Duration::from_secs(1))).await;
            }
            Ok(())
        }) as BoxFuture<'static, _>
    })
}
