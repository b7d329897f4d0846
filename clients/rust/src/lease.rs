//! Leading by a lease, where each statement may use another connection.

use crate::machine::{Statement, Way};
use crate::options::{interval, quote, Options};
use crate::term::Term;

pub(crate) fn way(ttl: f64) -> Way {
    let (interval, validity, retry) = (ttl / 3.0, ttl * 2.0 / 3.0, (ttl / 10.0).min(1.0));
    let (limit, renewal, between) = (interval.min(5.0), (ttl / 5.0).min(5.0), interval.min(1.0));
    Way { limit, renewal, retry, between, interval, validity, ..Way::default() }
}

pub(crate) fn sql(options: &Options, statement: &Statement, term: Option<&Term>) -> String {
    let (le, (names, identity)) = (options.prefix(), options.names());
    let ttl = interval(options.ttl.unwrap_or_default());
    let (name, token) = (quote(term.map_or("", Term::election)), term.map_or(0, Term::token));
    match statement {
        Statement::Bid(..) if options.seats.is_some() => {
            let times = format!("timeout => '0', ttl => {ttl}");
            format!("CALL {le}le_campaign({names}, {times}, identity => {identity})")
        }
        Statement::Bid(token, _) => {
            let token = token.as_deref().unwrap_or("NULL");
            format!("SELECT {le}le_lease({names}, {ttl}, identity => {identity}, token => {token})")
        }
        Statement::Resign => format!("SELECT {le}le_resign({name}, {token})"),
        _ => format!("SELECT {le}le_renew({name}, {token})"),
    }
}
