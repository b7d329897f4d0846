//! Run a job while this process leads an election in PostgreSQL.
//!
#![cfg_attr(all(feature = "sqlx", feature = "tokio-postgres"), doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations)]

#[cfg(not(any(feature = "sqlx", feature = "sqlx-0_8", feature = "tokio-postgres")))]
compile_error!("enable the feature `sqlx`, `sqlx-0_8` or `tokio-postgres`");

#[macro_use]
mod error;
mod elector;
mod every;
mod follow;
mod lease;
mod machine;
mod options;
mod run;
mod session;
#[cfg(any(feature = "sqlx", feature = "sqlx-0_8"))]
mod sqlx;
mod term;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

#[cfg(test)]
mod tests;

pub use error::{BoxError, Error, ErrorKind};
pub use every::{every, Schedule};
pub use follow::{follow, leader, Leader};
pub use futures_util::future::BoxFuture;
pub use options::Options;
pub use run::{Counters, Elector, Handle, Health, Query, Reason, Server, State, Transaction};
pub use term::Term;
#[cfg(feature = "tokio-postgres")]
pub use tokio_postgres::{Connection, Connector};
pub use tokio_util::sync::CancellationToken;
