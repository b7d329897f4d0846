//! A program of which one copy works at a time: `DATABASE_URL=postgres://... cargo run`

use leader_election::{BoxError, Connector, Elector, Options, Term};
use std::time::Duration;
use tokio::signal::unix::{signal, SignalKind};
use tokio_postgres::NoTls;

async fn job(term: Term) -> Result<(), BoxError> {
    while !term.cancellation().is_cancelled() {
        println!("leading, token {}", term.token());
        tokio::time::sleep(Duration::from_secs(1)).await; // the step of the job
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("DATABASE_URL")?;
    let server = Connector::new(url.parse()?, NoTls);
    let elector = Elector::new(server, Options::new("scheduler"))?;
    let handle = elector.handle();
    let mut sigterm = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        sigterm.recv().await;
        handle.stop();
    });
    Ok(elector.run(job).await?)
}
