//! Jobs of a point in time.

use crate::error::{BoxError, Error, ErrorKind};
use crate::options::quote;
use crate::run::{within, BoxFuture, Query, Server};
use crate::term::Term;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::sleep;

/// 2000-01-01 00:00 UTC, in seconds.
pub(crate) const ORIGIN: u64 = 946_684_800;

/// When a task is due: an interval from 1 s, whose multiples since 2000-01-01 00:00 UTC are due,
/// or a function from the last due time to the next, such as that of a cron library.
pub trait Schedule: Send + Sync + 'static {
    /// Fail if this is no schedule.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Argument`] if it is an interval below 1 s.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
    /// Return the last time up to `now` that was looked at, and whether it is due.
    fn due(&self, last: SystemTime, now: SystemTime) -> (SystemTime, bool);
}

impl Schedule for Duration {
    fn check(&self) -> Result<(), Error> {
        let short = || Error::new(ErrorKind::Argument, "an interval must be at least 1 s");
        (*self >= Duration::from_secs(1)).then_some(()).ok_or_else(short)
    }

    fn due(&self, last: SystemTime, now: SystemTime) -> (SystemTime, bool) {
        let origin = UNIX_EPOCH + Duration::from_secs(ORIGIN);
        let past = now.duration_since(origin).unwrap_or_default().as_nanos();
        let length = self.as_nanos();
        let time = last.max(origin + Duration::from_nanos((past / length * length) as u64));
        (time, time > last)
    }
}

impl<F: Fn(SystemTime) -> Option<SystemTime> + Send + Sync + 'static> Schedule for F {
    fn due(&self, last: SystemTime, now: SystemTime) -> (SystemTime, bool) {
        let (mut time, mut passed) = (last, 0);
        while let Some(next) = self(time).filter(|next| *next <= now) {
            if passed == 10_000 {
                return (time, false);
            }
            assert!(next > time, "a schedule must return a later time");
            (time, passed) = (next, passed + 1);
        }
        (time, time > last)
    }
}

/// Make a job of a task that is to be done once for each due time.
///
/// The task gets a connection on which the transaction of `le_once` has begun: a
/// `sqlx::PgConnection`, or a [`Connection`](crate::Connection). It must neither begin nor end a
/// transaction. A task that fails is rolled back, is reported, and is tried again a second later.
///
/// # Errors
///
/// Fails with [`ErrorKind::Argument`] if the interval is below 1 s.
pub fn every<S: Server, T>(
    server: S, schedule: impl Schedule, task: T,
) -> Result<impl Fn(Term) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync + 'static, Error>
where
    T: for<'a> Fn(&'a mut S::Link, SystemTime) -> BoxFuture<'a, Result<(), BoxError>>,
    T: Send + Sync + 'static,
{
    schedule.check()?;
    let every = Arc::new((server, schedule, task));
    Ok(move |term: Term| {
        let every = Arc::clone(&every);
        Box::pin(async move {
            let (server, schedule, task) = &*every;
            let (le, name, token) = (&term.0.prefix, quote(term.election()), term.token());
            let (mut open, mut last) = (None, None);
            while !term.cancellation().is_cancelled() {
                term.heartbeat();
                let looked = async {
                    let link = match &mut open {
                        Some(link) => link,
                        open => open.insert(within(5.0, server.open()).await?),
                    };
                    let (now, done) = times(link, le, &name).await?;
                    let (at, due) = schedule.due(*last.get_or_insert(done.unwrap_or(now)), now);
                    if due {
                        let micros = at.duration_since(UNIX_EPOCH)?.as_micros();
                        let due = format!("timestamptz 'epoch' + interval '{micros} us'");
                        let once = format!("SELECT {le}le_once({name}, {due}, {token})");
                        within(5.0, link.ask("BEGIN")).await?;
                        if within(5.0, link.ask(&once)).await? == [Some("t".into())] {
                            task(link, at).await?;
                        }
                        // fails if the task has hidden that a statement failed; COMMIT would not
                        within(5.0, link.ask("SELECT 1")).await?;
                        within(5.0, link.ask("COMMIT")).await?;
                    }
                    last = Some(at);
                    Ok::<_, BoxError>(())
                };
                if let Err(error) = looked.await {
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

/// Return the server's time, and the last due time that is recorded.
async fn times(
    link: &mut impl Query, le: &str, name: &str,
) -> Result<(SystemTime, Option<SystemTime>), BoxError> {
    let micros = |time| format!("(extract(epoch FROM {time}) * 1000000)::bigint");
    let due = format!("SELECT {} FROM {le}le_once_done WHERE name = {name}", micros("due"));
    let sql = format!("SELECT {}, ({due})", micros("clock_timestamp()"));
    let row = within(5.0, link.ask(&sql)).await?;
    let time = |i: usize| {
        let micros = row.get(i)?.as_ref()?.parse().ok()?;
        Some(UNIX_EPOCH + Duration::from_micros(micros))
    };
    Ok((time(0).ok_or("the server has returned no time")?, time(1)))
}
