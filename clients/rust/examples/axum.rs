//! A web service of which one copy does a job beside its requests. It says at /health whether it
//! waits, leads, or is in doubt, and stops in good order on SIGTERM:
//! `DATABASE_URL=postgres://... cargo run --features sqlx --example axum`

use axum::{extract::State, http::StatusCode, routing::get, Router};
use leader_election::{BoxError, Elector, Handle, Health, Options, Term};
use std::time::Duration;
use tokio::signal::unix::{signal, SignalKind};

/// What only the leader does.
async fn job(term: Term) -> Result<(), BoxError> {
    while !term.cancellation().is_cancelled() {
        println!("leading, token {}", term.token());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

async fn health(State(elector): State<Handle>) -> (StatusCode, String) {
    let status = match elector.health() {
        Health::Waiting | Health::Leading => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, elector.health().to_string())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let pool = sqlx::PgPool::connect_lazy(&std::env::var("DATABASE_URL")?)?;
    let options = Options::new("axum").ttl(Duration::from_secs(15));
    let elector = Elector::new(pool, options)?;
    let handle = elector.handle();
    let service = Router::new().route("/health", get(health)).with_state(handle.clone());
    let listener = tokio::net::TcpListener::bind(std::env::var("LISTEN")?).await?;

    let mut sigterm = signal(SignalKind::terminate())?;
    let stopped = handle.clone();
    let leading = tokio::spawn(elector.run(job));
    let serving = axum::serve(listener, service).with_graceful_shutdown(async move {
        sigterm.recv().await; // requests are answered to the end, while the job stops
        stopped.stop();
    });
    serving.await?;
    Ok(leading.await??)
}
