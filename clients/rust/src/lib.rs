//! Run a job while this process leads an election in PostgreSQL.
//!
#![cfg_attr(all(feature = "sqlx", feature = "tokio-postgres"), doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(not(any(feature = "sqlx", feature = "tokio-postgres")))]
compile_error!("enable the feature `sqlx` or `tokio-postgres`");

#[macro_use]
mod error;
mod elector;
mod every;
mod follow;
mod lease;
mod options;
mod run;
mod session;
#[cfg(feature = "sqlx")]
mod sqlx;
mod term;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

#[cfg(test)]
mod tests;

pub use elector::{Counters, Health, Reason, State};
pub use error::{BoxError, Error, ErrorKind};
pub use every::{every, Schedule};
pub use follow::{follow, leader, Leader};
pub use options::Options;
pub use run::{Begun, BoxFuture, Elector, Handle, Link, Query, Row, Server};
pub use term::Term;
#[cfg(feature = "tokio-postgres")]
pub use tokio_postgres::{Connection, Connector};
