//! The leader, as others see it.

use crate::error::Result;
use crate::machine::{Action, Machine, Way};
use crate::options::{quote, Options};
use crate::run::{drive, explain, within, Handle, Row, Server};
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};

/// The leader of an election.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Leader {
    /// The identity under which it leads.
    pub identity: String,
    /// The fencing token of its term.
    pub token: i64,
    /// What it has published.
    pub value: Option<String>,
}

impl Leader {
    /// Read the answer of `le_observe`: version, token, identity and value.
    pub(crate) fn of(row: &Row) -> Option<Leader> {
        let column = |i: usize| row.get(i).cloned().flatten();
        let (token, identity) = (column(1)?.parse().ok()?, column(2).unwrap_or_default());
        Some(Leader { token, identity, value: column(3) })
    }
}

pub(crate) fn way() -> Way {
    Way { opens: true, follows: true, round: 30.0, limit: 5.0, ..Way::default() }
}

pub(crate) fn sql(options: &Options, version: Option<&str>) -> String {
    let version = version.unwrap_or("NULL");
    let (le, name) = (options.prefix(), quote(&options.election));
    format!("CALL {le}le_observe({name}, version => {version}, timeout => '30 s')")
}

/// Return the present leader of an election, if it has one.
///
/// # Errors
///
/// Fails with a permanent error if an option is wrong, the extension is missing, or the role may
/// not ask, with [`Timeout`](crate::ErrorKind::Timeout) if there is no answer within 5 s, and else
/// with the error of the connection or the server.
///
/// # Panics
///
/// The future panics outside of a tokio runtime with timers.
pub async fn leader<S: Server>(server: &S, options: &Options) -> Result<Option<Leader>> {
    options.check()?;
    match within(5.0, server.ask(&sql(options, None), &|| ())).await {
        Ok(row) => Ok(Leader::of(&row)),
        Err(error) => Err(explain(server, options, error.judged()).await),
    }
}

/// Follow the leader of an election, in a task that is spawned for that, until what this returns is
/// dropped. That receives the present leader, or `None`, then each change, and at last an error if
/// that is permanent. All other errors are reported, and it connects again.
///
/// # Errors
///
/// Fails with [`ErrorKind::Argument`](crate::ErrorKind::Argument) if an option is wrong.
///
/// # Panics
///
/// Panics outside of a tokio runtime.
pub fn follow<S: Server>(
    server: S, options: Options,
) -> Result<UnboundedReceiver<Result<Option<Leader>>>> {
    let (handle, queue) = Handle::new(options, way())?;
    let (tell, told) = unbounded_channel();
    tokio::spawn(async move {
        let end = drive(server, handle, queue, Box::new(Machine::campaign), |action, _| {
            if let Action::Told(leader) = action {
                let _ = tell.send(Ok(leader));
            }
        });
        tokio::select! {
            Err(error) = end => drop(tell.send(Err(error))),
            () = tell.closed() => {}
        }
    });
    Ok(told)
}
