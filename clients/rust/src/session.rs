//! Leading in session scope, with a connection that is opened for each campaign.

use crate::machine::{Statement, Way};
use crate::options::{interval, quote, Options};
use crate::term::Term;

pub(crate) fn way(heartbeat: Option<f64>) -> Way {
    let heartbeat = heartbeat.unwrap_or(f64::INFINITY);
    let (interval, limit) = ((heartbeat / 4.0).min(1.0), (heartbeat / 3.0).min(5.0));
    let (opens, round, renewal, validity) = (true, 300.0, limit, 6.0);
    Way { opens, round, limit, renewal, interval, validity, ..Way::default() }
}

pub(crate) fn sql(options: &Options, statement: &Statement, term: Option<&Term>) -> String {
    let (le, (names, identity)) = (options.prefix(), options.names());
    let name = quote(term.map_or("", Term::election));
    match statement {
        Statement::Bid(_, wait) => {
            let heartbeat = options.heartbeat.map_or("NULL".into(), interval);
            let times = format!("timeout => '{wait:.3} s', heartbeat => {heartbeat}");
            format!("CALL {le}le_campaign({names}, {times}, identity => {identity})")
        }
        Statement::Beat(_) => format!("SELECT {le}le_heartbeat({name}), pg_backend_pid()"),
        Statement::Resign => format!("SELECT {le}le_resign({name}, identity => {identity})"),
        _ => format!("SELECT {le}le_am_leader({name}, identity => {identity}), pg_backend_pid()"),
    }
}
