//! A worker that leads in session scope, with sqlx: `DATABASE_URL=... leader ELECTION IDENTITY`.
//!
//! For services that can keep one connection for leadership: one of its own, with the options of the pool. A
//! `PoolConnection` would go back to the pool when its future is cancelled, still waiting to be elected, or leading with
//! nobody to do the job. This one is closed when it is dropped, and that ends its term. (So does a `PoolConnection`
//! after `detach()`; but while no server is there, `acquire()` tells no more than "pool timed out".)
//! The job uses the pool as ever. Not through PgBouncer in transaction mode: lead by a lease there.

use sqlx::postgres::{PgConnection, PgPool};
use sqlx::Connection;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{signal, Signal, SignalKind};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

type Error = Box<dyn std::error::Error + Send + Sync>;

struct Worker {
    pool: PgPool,
    election: String,
    identity: String,
}

impl Worker {
    /// Campaigns, and leads for one term. Whenever this future is dropped, so are the job and the connection.
    async fn campaign_and_lead(&self, sigterm: &mut Signal) -> Result<(), Error> {
        let mut conn = timeout(Duration::from_secs(5), PgConnection::connect_with(&self.pool.connect_options())).await??;
        let token = loop {
            tokio::select! {
                _ = sigterm.recv() => return Ok(()),
                token = self.campaign(&mut conn) => if let Some(token) = token? { break token },
            }
        };

        let mut job = JoinSet::new(); // aborts the job when it is dropped
        job.spawn(do_the_job(self.pool.clone(), token));
        self.say("elected", token);
        let led = self.lead(&mut conn, &mut job, sigterm).await;
        job.shutdown().await; // returns when the job has stopped
        let resigned = match led {
            Ok(()) => self.resign(&mut conn).await,
            Err(_) => Ok(()),
        };
        drop(conn); // the server ends the term now, if it has not ended
        self.say("ousted", token);
        led.and(resigned)
    }

    /// Waits to be elected: in rounds of half a minute, as sqlx has no keepalives to tell that the server's host is gone.
    async fn campaign(&self, conn: &mut PgConnection) -> Result<Option<i64>, Error> {
        let call = sqlx::query_scalar("CALL le_campaign($1, timeout => '30 s', identity => $2)")
            .bind(&self.election)
            .bind(&self.identity)
            .fetch_one(conn);
        Ok(timeout(Duration::from_secs(35), call).await??)
    }

    /// Returns when we are to stop (Ok), or do not lead any more (Err).
    async fn lead(&self, conn: &mut PgConnection, job: &mut JoinSet<()>, sigterm: &mut Signal) -> Result<(), Error> {
        loop {
            tokio::select! {
                _ = sigterm.recv() => return Ok(()),
                ended = job.join_next() => return Err(format!("the job has ended: {ended:?}").into()),
                _ = sleep(Duration::from_secs(1)) => {}
            }
            let ask = sqlx::query_scalar("SELECT le_am_leader($1, identity => $2)")
                .bind(&self.election)
                .bind(&self.identity)
                .fetch_one(&mut *conn);
            if !timeout(Duration::from_secs(2), ask).await?? {
                return Err("the session leads no more".into());
            }
        }
    }

    async fn resign(&self, conn: &mut PgConnection) -> Result<(), Error> {
        let ask = sqlx::query("SELECT le_resign($1, identity => $2)").bind(&self.election).bind(&self.identity).execute(conn);
        timeout(Duration::from_secs(2), ask).await??;
        Ok(())
    }

    fn say(&self, event: &str, what: impl std::fmt::Display) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        println!("{}.{:03} {} {event} {what}", now.as_secs(), now.subsec_millis(), self.identity);
    }
}

/// What only the leader does. Passes the token along with what it writes elsewhere.
async fn do_the_job(_pool: PgPool, _token: i64) {
    loop {
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().collect();
    let [_, election, identity] = args.as_slice() else { return Err("usage: leader ELECTION IDENTITY".into()) };
    let pool = PgPool::connect_lazy(&std::env::var("DATABASE_URL")?)?;
    let worker = Worker { pool, election: election.clone(), identity: identity.clone() };

    let mut sigterm = signal(SignalKind::terminate())?;
    let mut stop = signal(SignalKind::terminate())?;
    loop {
        if let Err(error) = worker.campaign_and_lead(&mut sigterm).await {
            worker.say("error", error.to_string().replace('\n', " "));
        }
        if timeout(Duration::from_millis(500), stop.recv()).await.is_ok() {
            break;
        }
    }
    worker.pool.close().await;
    Ok(())
}
