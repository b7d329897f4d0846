//! Run a job while this process leads an election in PostgreSQL.
//!
#![cfg_attr(
    all(feature = "sqlx", feature = "tokio-postgres"),
    doc = include_str!("../README.md")
)]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(not(any(feature = "sqlx", feature = "tokio-postgres")))]
compile_error!("enable the feature `sqlx` or `tokio-postgres`");

mod elector;
mod env;
mod error;
mod every;
mod follow;
mod port;
#[cfg(feature = "sqlx")]
mod sqlx;
mod term;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

#[cfg(test)]
mod tests;

pub use elector::{Builder, Elector, Handle, Reason, State};
pub use error::{BoxError, Error, ErrorKind};
pub use every::every;
pub use follow::{follow, leader, Follower, Leader};
pub use port::{BoxFuture, Server};
pub use term::Term;
#[cfg(feature = "tokio-postgres")]
pub use tokio_postgres::Connector;
