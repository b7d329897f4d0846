//! The program of the acceptance test: `worker WAY ELECTION IDENTITY`, with the connection
//! string in `DATABASE_URL`, and `LE_DRIVER=sqlx` for sqlx instead of tokio-postgres.

use leader_election::{BoxError, Connector, Elector, Options, Server, Term};
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{signal, SignalKind};
use tokio::time::sleep;
use tokio_postgres::NoTls;

fn say(identity: &str, event: &str, what: impl std::fmt::Display) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, millis) = (now.as_secs(), now.subsec_millis());
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{seconds}.{millis:03} {identity} {event} {what}");
    let _ = out.flush();
}

/// Tells when the job has stopped working, be it that it has returned or was dropped.
struct Working(String, Term);

impl Drop for Working {
    fn drop(&mut self) {
        say(&self.0, "ousted", self.1.token());
    }
}

/// What only the leader does.
async fn job(term: Term, identity: String, beats: bool) -> Result<(), BoxError> {
    say(&identity, "elected", term.token());
    let _working = Working(identity, term.clone());
    while !term.cancellation().is_cancelled() {
        sleep(Duration::from_millis(100)).await;
        if beats {
            term.heartbeat();
        }
    }
    Ok(())
}

async fn work<S: Server>(server: S, way: &str, election: &str, who: &str) -> Result<(), BoxError> {
    let (identity, error) = (who.to_owned(), who.to_owned());
    let options = Options::new(election)
        .identity(who)
        .on_error(move |e| say(&error, "error", format!("{e:#}").replace('\n', " ")));
    let options = match way {
        "session" => options,
        "heartbeat" => options.heartbeat(Duration::from_secs(5)),
        "lease" => options.ttl(Duration::from_secs(3)),
        _ => return Err("WAY is session, heartbeat or lease".into()),
    };
    let elector = Elector::new(server, options)?;
    let (handle, beats) = (elector.handle(), way == "heartbeat");
    let mut sigterm = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        sigterm.recv().await;
        handle.stop();
    });
    elector.run(move |term| job(term, identity.clone(), beats)).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [way, election, identity] = args.as_slice() else {
        return Err("usage: worker WAY ELECTION IDENTITY".into());
    };
    let url = std::env::var("DATABASE_URL")?;
    if std::env::var("LE_DRIVER").is_ok_and(|driver| driver == "sqlx") {
        let pool = sqlx::PgPool::connect_lazy(&url)?;
        work(pool, way, election, identity).await
    } else {
        work(Connector::new(url.parse()?, NoTls), way, election, identity).await
    }
}
