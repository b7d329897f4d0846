//! The state machine of electors and followers.
//!
//! It is pure: [`Machine::step`] gets the time and what has happened, and returns what is to be
//! done. The cases of clients/conformance run on it.

use crate::error::{Error, ErrorKind, Result};
use crate::follow::{self, Leader};
use crate::options::Options;
use crate::run::{settings, Row};
use crate::term::Term;
use crate::{lease, session};
use std::mem::{replace, take};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

words! {
    /// What an elector does.
    State {
        /// It does not run yet, or not any more.
        Stopped "stopped",
        /// It campaigns.
        Waiting "waiting",
        /// Its job may go on.
        Leading "leading",
        /// Its job was told to stop, or leadership is being resigned.
        Stopping "stopping",
        /// It waits until it campaigns again.
        Paused "paused"
    }

    /// Whether an elector is well. Waiting and leading are healthy.
    Health {
        /// It waits for its election.
        Waiting "waiting",
        /// It leads.
        Leading "leading",
        /// The last attempt has failed, or the job of a lost term has not stopped.
        InDoubt "in doubt",
        /// It does not run.
        Stopped "stopped"
    }

    /// Why a term has ended.
    Reason {
        /// The elector was stopped.
        Resigned "resigned",
        /// The job has returned.
        JobReturned "job returned",
        /// The job has failed.
        JobFailed "job failed",
        /// The server has said that this elector does not lead, or the connection has ended.
        Lost "lost",
        /// The server has not confirmed leadership in time, or the job has not called heartbeat.
        InDoubt "in doubt"
    }
}

/// What an elector has counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// The terms that have begun.
    pub terms: u64,
    /// The confirmations of leadership.
    pub confirmations: u64,
    /// The errors that were reported.
    pub errors: u64,
}

/// What has happened: a call of the machine.
pub(crate) type Event = Box<dyn FnOnce(&mut Machine) + Send>;

/// What is to be done.
pub(crate) enum Action {
    Ask(u64, Statement),
    Close,
    Elected(Term),
    Job(Term),
    Cancel,
    /// Drop the job's future.
    Abort,
    Ousted(Term, Reason),
    Error(Error),
    Told(Option<Leader>),
    /// With whether the job has run, if it was to run once.
    End(Result<bool>),
}

#[derive(Clone)]
pub(crate) enum Statement {
    Open,
    /// A bid, with the token of a lease that could not be resigned, and how long it waits in the
    /// server. That of a follower is `le_observe`, with the version that it has seen.
    Bid(Option<String>, f64),
    Confirm,
    /// With the number of heartbeats of which it tells the server.
    Beat(u64),
    Resign,
}

/// What a way to lead, or to follow, does differently.
#[derive(Default)]
pub(crate) struct Way {
    /// Does each campaign open a connection?
    pub opens: bool,
    pub follows: bool,
    /// How long the server lets a bid wait.
    pub round: f64,
    /// How long an answer may take; that to a renewal; the pause after a failed renewal.
    pub limit: f64,
    pub renewal: f64,
    pub retry: f64,
    /// From a bid that is denied to the next one, and from one confirmation to the next.
    pub between: f64,
    pub interval: f64,
    pub validity: f64,
}

/// A statement on its way.
struct Ask {
    serial: u64,
    statement: Statement,
    asked: f64,
    limit: f64,
    begun: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Campaign,
    Confirming,
    Elected,
    Job,
    Ousted,
    Leaving,
    Paused,
    Stopped,
}

/// What is forgotten at the end of a term.
#[derive(Default)]
struct Tenure {
    term: Option<Term>,
    /// Leadership is lost or in doubt.
    over: Option<ErrorKind>,
    reason: Option<Reason>,
    /// When elected was called, when to confirm leadership, and when to report that the job has not
    /// stopped.
    began: Option<f64>,
    due: Option<f64>,
    report_at: Option<f64>,
    /// A statement has failed for want of a privilege.
    refused: bool,
    /// Of how many heartbeats the server was told.
    carried: u64,
}

/// A term of so many seconds shows that the job works.
const LASTING: f64 = 60.0;

pub(crate) struct Machine {
    pub options: Options,
    pub events: mpsc::UnboundedSender<Event>,
    pub clock: fn() -> f64,
    draw: fn() -> f64,
    way: Way,
    /// Is cancelled when nothing drives the machine any more.
    pub gone: CancellationToken,
    pub counters: Counters,
    phase: Phase,
    now: f64,
    out: Vec<Action>,
    ask: Option<Ask>,
    serial: u64,
    /// The errors in a row, and the failures of the job in a row.
    failures: i32,
    crashes: i32,
    /// When the last bid begins: never, unless the job is to run once.
    last_bid: f64,
    /// What the end is unless an error ends the machine.
    result: Result<bool>,
    pub stopping: bool,
    told_not_yet: bool,
    /// What the next bid gives back to the server.
    kept: Option<String>,
    /// The process ID of the server connection.
    pid: Option<String>,
    /// When the pause ends.
    until: Option<f64>,
    tenure: Tenure,
    /// What a follower has told.
    told: Option<Option<Leader>>,
}

impl Machine {
    /// Make a machine with a clock, and with a function that draws random numbers from 0 to 1.
    pub fn new(
        options: Options, way: Way, events: mpsc::UnboundedSender<Event>, clock: fn() -> f64,
        draw: fn() -> f64,
    ) -> Self {
        Machine {
            options,
            events,
            clock,
            draw,
            way,
            gone: CancellationToken::new(),
            counters: Counters::default(),
            phase: Phase::Stopped,
            now: 0.0,
            out: Vec::new(),
            ask: None,
            serial: 0,
            failures: 0,
            crashes: 0,
            last_bid: f64::INFINITY,
            result: Ok(true),
            stopping: false,
            told_not_yet: false,
            kept: None,
            pid: None,
            until: None,
            tenure: Tenure::default(),
            told: None,
        }
    }

    /// Let time pass, and note what has happened. Return what is to be done.
    pub fn step(&mut self, now: f64, event: Event) -> Vec<Action> {
        self.now = now;
        self.pass_time();
        event(self);
        self.pass_time();
        take(&mut self.out)
    }

    /// Return when `step` is to be called although nothing has happened.
    pub fn wakeup(&self) -> f64 {
        let held = self.held().map(Term::valid_until);
        let deadline = self.ask.as_ref().map(|ask| ask.asked + ask.limit);
        let due = self.tenure.due.filter(|_| held.is_some() && self.ask.is_none());
        let times = [self.until, self.tenure.report_at, deadline, held, due];
        times.into_iter().flatten().fold(f64::INFINITY, f64::min)
    }

    pub fn state(&self) -> State {
        match self.phase {
            phase if phase == Phase::Stopped || self.events.is_closed() => State::Stopped,
            Phase::Paused => State::Paused,
            Phase::Campaign | Phase::Confirming => State::Waiting,
            Phase::Elected | Phase::Job if self.tenure.reason.is_none() => State::Leading,
            _ => State::Stopping,
        }
    }

    pub fn health(&self) -> Health {
        let doubt = self.failures > 0 || self.tenure.over.is_some();
        match (self.state(), &self.tenure.term) {
            (State::Stopped, _) => Health::Stopped,
            _ if doubt => Health::InDoubt,
            (State::Waiting, _) | (_, None) => Health::Waiting,
            (_, Some(term)) if term.is_confirmed() => Health::Leading,
            _ => Health::InDoubt,
        }
    }

    pub fn sql(&self, statement: &Statement) -> String {
        let (options, term) = (&self.options, self.tenure.term.as_ref());
        match statement {
            Statement::Open => settings(&options.election),
            _ if self.way.follows => follow::sql(options, self.kept.as_deref()),
            _ if self.way.opens => session::sql(options, statement, term),
            _ => lease::sql(options, statement, term),
        }
    }

    /// Return the term while its loss must be noticed.
    fn held(&self) -> Option<&Term> {
        let held = matches!(self.phase, Phase::Elected | Phase::Job | Phase::Ousted);
        self.tenure.term.as_ref().filter(|_| held && self.tenure.over.is_none())
    }

    pub fn report(&mut self, error: Error) {
        self.counters.errors += 1;
        self.out.push(Action::Error(error));
    }

    fn close(&mut self) {
        self.ask = None;
        self.out.push(Action::Close);
    }

    fn send(&mut self, statement: Statement) {
        self.serial += 1;
        let (serial, asked) = (self.serial, self.now);
        let limit = match statement {
            Statement::Bid(_, wait) => self.way.limit + wait,
            Statement::Confirm | Statement::Beat(_) => self.way.renewal,
            Statement::Open | Statement::Resign => self.way.limit,
        };
        self.out.push(Action::Ask(serial, statement.clone()));
        self.ask = Some(Ask { serial, statement, asked, limit, begun: false });
    }

    fn pass_time(&mut self) {
        let now = self.now;
        if self.held().is_some_and(|term| now >= term.valid_until()) {
            self.doubt();
        }
        if let Some(ask) = self.ask.as_ref().filter(|ask| now >= ask.asked + ask.limit) {
            let (kind, what) = match ask.begun {
                true => (ErrorKind::Timeout, "answer"),
                false => (ErrorKind::NoConnection, "connection from the server or the pool"),
            };
            let error = Error::new(kind, format!("no {what} for {:.1} s", ask.limit));
            self.answer(ask.serial, Err(error));
        }
        if self.tenure.report_at.take_if(|time| now >= *time).is_some() {
            if self.phase == Phase::Job {
                self.report(Error::new(ErrorKind::SlowJob, "the job has not stopped in time"));
                self.out.push(Action::Abort);
            } else {
                self.report(Error::new(ErrorKind::Callback, "it has not returned in time"));
            }
        }
        if self.until.take_if(|time| now >= *time).is_some() {
            self.campaign();
        }
        let due = self.tenure.due.is_some_and(|due| now >= due);
        if due && self.ask.is_none() && self.held().is_some() {
            self.confirm();
        }
    }

    // What happens

    /// Begin to campaign for one term, at most for so long.
    pub fn campaign_once(&mut self, wait: f64) {
        (self.last_bid, self.result) = (self.now + wait, Ok(false));
        self.campaign();
    }

    /// Begin a campaign.
    pub fn campaign(&mut self) {
        self.phase = Phase::Campaign;
        match self.way.opens {
            _ if self.stopping => self.end(None),
            true => self.send(Statement::Open),
            false => self.bid(),
        }
    }

    /// Note that a statement has got its connection.
    pub fn begun(&mut self, serial: u64) {
        self.ask.iter_mut().for_each(|ask| ask.begun |= ask.serial == serial);
    }

    /// Take the answer to a statement, unless that was given up.
    pub fn answer(&mut self, serial: u64, answer: Result<Row>) {
        let Some(ask) = self.ask.take_if(|ask| ask.serial == serial) else { return };
        match answer {
            Ok(row) => self.answered(&ask, row),
            Err(error) => self.failed(&ask, error),
        }
        if self.phase == Phase::Leaving && self.ask.is_none() {
            self.leave();
        }
    }

    /// Note that the connection has ended.
    pub fn broken(&mut self, error: Error) {
        match &self.ask {
            Some(ask) => self.answer(ask.serial, Err(error)),
            None => self.connection_lost(error),
        }
    }

    /// Note that a callback or the job has ended.
    pub fn done(&mut self, result: Result<()>) {
        let job = self.phase == Phase::Job;
        let reason = if result.is_ok() { Reason::JobReturned } else { Reason::JobFailed };
        if let Err(error) = result {
            let kind = if job { ErrorKind::Job } else { ErrorKind::Callback };
            let error = Error { kind, ..error };
            match self.tenure.over {
                None if job && self.last_bid.is_finite() => self.result = Err(error),
                _ => self.report(error),
            }
        }
        let Some(term) = self.tenure.term.clone() else { return };
        self.tenure.report_at = None;
        match self.phase {
            Phase::Ousted => return self.leave(),
            Phase::Elected if self.tenure.reason.is_none() => {
                (self.phase, self.result) = (Phase::Job, Ok(true));
                return self.out.push(Action::Job(term));
            }
            _ => self.phase = Phase::Ousted,
        }
        self.cancel(reason);
        self.report_later();
        self.out.push(Action::Ousted(term, self.tenure.reason.unwrap_or(reason)));
    }

    pub fn stop(&mut self) {
        let bidding = matches!(&self.ask, Some(Ask { statement: Statement::Bid(..), .. }));
        match self.phase {
            _ if replace(&mut self.stopping, true) => {}
            Phase::Elected | Phase::Job | Phase::Ousted => self.cancel(Reason::Resigned),
            Phase::Leaving | Phase::Stopped => {}
            _ if bidding && !self.way.opens => {}
            _ => self.finish(),
        }
    }

    // The campaign

    fn bid(&mut self) {
        let longest = if self.failures > 0 { 1.0 } else { self.way.round };
        let wait = (self.last_bid - self.now).clamp(0.0, self.way.round.min(longest));
        self.send(Statement::Bid(self.kept.clone(), wait));
    }

    fn answered(&mut self, ask: &Ask, row: Row) {
        let column = |i: usize| row.get(i).cloned().flatten();
        let yes = column(0).as_deref() == Some("t");
        match ask.statement {
            Statement::Open => {
                (self.pid, self.kept) = (column(0), None);
                self.bid();
            }
            Statement::Bid(..) if self.way.follows => {
                let leader = Leader::of(&row);
                (self.failures, self.kept) = (0, column(0));
                if self.told.replace(leader.clone()).as_ref() != Some(&leader) {
                    self.out.push(Action::Told(leader));
                }
                self.bid();
            }
            Statement::Bid(..) => self.bid_answered(ask, column(0), column(1)),
            Statement::Confirm | Statement::Beat(_) => self.question_answered(ask, yes, column(1)),
            Statement::Resign => {
                let yields = self.tenure.over.map_or(0.0, |_| self.way.between);
                self.finish();
                // those that bid at this interval bid first
                self.until = self.until.map(|until| until + yields);
            }
        }
    }

    fn bid_answered(&mut self, ask: &Ask, token: Option<String>, seat: Option<String>) {
        (self.failures, self.told_not_yet, self.kept) = (0, false, None);
        let Some(token) = token.and_then(|token| token.parse().ok()) else {
            return match self.way.opens {
                _ if self.stopping || self.now >= self.last_bid => self.finish(),
                true => self.bid(),
                false => self.until = Some((ask.asked + self.way.between).min(self.last_bid)),
            };
        };
        let name = seat.unwrap_or_else(|| self.options.election.clone());
        self.tenure.term = Some(Term::new(name, token, self));
        if self.way.opens {
            self.phase = Phase::Confirming;
            self.confirm();
        } else {
            self.confirmed(ask);
            self.lead();
        }
    }

    fn attempt_failed(&mut self, ask: &Ask, error: Error) {
        self.close();
        self.tenure = Tenure::default();
        let judged = matches!(ask.statement, Statement::Bid(..)) && ask.begun;
        let replaced = judged && error.is("42501") && self.kept.take().is_some();
        if let Some(kind) = error.permanent().filter(|_| judged && !self.stopping && !replaced) {
            let error = if kind == ErrorKind::Pooler { Error::pooler() } else { error };
            return self.end(Some(Error { kind, ..error }));
        }
        if self.now >= self.last_bid && !self.stopping {
            return self.end(Some(error));
        }
        let (named, not_yet) = (error.named_pause(), error.is("LE003"));
        if !(replace(&mut self.told_not_yet, not_yet) && not_yet) {
            self.report(error);
        }
        match named {
            _ if self.stopping => self.end(None),
            Some(pause) => self.pause(pause),
            None => self.back_off(15.0, self.failures),
        }
    }

    fn pause(&mut self, length: f64) {
        (self.phase, self.until) = (Phase::Paused, Some((self.now + length).min(self.last_bid)));
    }

    /// Pause for longer with each failure before.
    fn back_off(&mut self, most: f64, before: i32) {
        let longest = (0.5 * 2f64.powi(before.min(10))).min(most);
        self.failures += 1;
        self.pause(longest * (0.5 + (self.draw)() / 2.0));
    }

    // The term

    fn confirm(&mut self) {
        let beats = self.tenure.term.as_ref().map_or(0, |term| term.times().beats);
        let beat = self.way.opens && self.options.heartbeat.is_some();
        let beat = beat && (self.phase == Phase::Confirming || beats != self.tenure.carried);
        self.send(if beat { Statement::Beat(beats) } else { Statement::Confirm });
    }

    fn confirmed(&mut self, ask: &Ask) {
        self.counters.confirmations += 1;
        self.tenure.due = Some(ask.asked + self.way.interval);
        let Some(mut times) = self.tenure.term.as_ref().map(Term::times) else { return };
        times.confirmed = ask.asked + self.way.validity;
        let length = self.options.heartbeat.map(|heartbeat| heartbeat * 2.0 / 3.0);
        match ask.statement {
            Statement::Beat(beats) => self.tenure.carried = beats,
            Statement::Bid(..) => times.length = length,
            _ => return,
        }
        times.beaten = length.map(|length| ask.asked + length);
    }

    fn question_answered(&mut self, ask: &Ask, yes: bool, pid: Option<String>) {
        match self.tenure.over {
            Some(_) => return,
            None if self.way.opens && pid != self.pid => self.lose(Reason::Lost, Error::pooler()),
            None if yes => self.confirmed(ask),
            None => self.lose(Reason::Lost, Error::lost()),
        }
        if self.phase == Phase::Confirming {
            self.lead();
        }
    }

    fn lead(&mut self) {
        let Some(term) = self.tenure.term.clone() else { return };
        if self.tenure.over.is_none() && self.now >= term.valid_until() {
            self.doubt();
        }
        if self.tenure.over.is_some() || self.stopping {
            return self.leave();
        }
        (self.phase, self.tenure.began) = (Phase::Elected, Some(self.now));
        self.report_later();
        self.counters.terms += 1;
        self.out.push(Action::Elected(term));
    }

    /// Report the job that is to stop, or a callback, if it takes long.
    fn report_later(&mut self) {
        self.tenure.report_at = Some(self.now + self.options.stop_timeout);
    }

    /// Tell the job to stop.
    fn cancel(&mut self, reason: Reason) {
        if self.tenure.reason.is_some() {
            return;
        }
        self.tenure.reason = Some(reason);
        self.tenure.term.iter().for_each(|term| term.cancellation().cancel());
        let lasted = self.tenure.began.is_some_and(|began| self.now >= began + LASTING);
        if reason == Reason::JobReturned || lasted {
            self.crashes = 0;
        }
        if self.phase == Phase::Job {
            self.report_later();
            self.out.push(Action::Cancel);
        }
    }

    fn lose(&mut self, reason: Reason, error: Error) {
        self.tenure.over = Some(error.kind);
        if self.last_bid.is_finite() && (self.phase == Phase::Job || self.tenure.reason.is_none()) {
            self.result = Err(error);
        } else if error.kind != ErrorKind::Pooler {
            self.report(error);
        }
        if !self.way.opens && self.ask.is_some() {
            self.close();
        }
        self.cancel(reason);
        if self.phase == Phase::Job {
            self.out.push(Action::Abort);
        }
    }

    fn doubt(&mut self) {
        let error = Error::new(ErrorKind::InDoubt, "leadership is in doubt: it was not confirmed");
        self.lose(Reason::InDoubt, error);
    }

    /// Resign, if there is something to resign, and a connection for that.
    fn leave(&mut self) {
        self.phase = Phase::Leaving;
        match (self.tenure.over, &self.ask) {
            (None | Some(ErrorKind::InDoubt), None) => self.send(Statement::Resign),
            (None, Some(_)) => {}
            (Some(_), _) => self.finish(),
        }
    }

    fn finish(&mut self) {
        let Tenure { over, reason, .. } = take(&mut self.tenure);
        self.close();
        match reason {
            _ if over == Some(ErrorKind::Pooler) => self.end(Some(Error::pooler())),
            _ if self.stopping || self.last_bid.is_finite() => self.end(None),
            Some(Reason::JobReturned) => self.pause(0.5 + (self.draw)() / 2.0),
            Some(Reason::JobFailed) => {
                self.crashes += 1;
                self.back_off(60.0, self.crashes - 1);
            }
            _ => self.back_off(15.0, self.failures),
        }
    }

    fn end(&mut self, error: Option<Error>) {
        (self.phase, self.until) = (Phase::Stopped, None);
        let result = replace(&mut self.result, Ok(true));
        self.out.push(Action::End(error.map_or(result, Err)));
    }

    // Errors

    fn failed(&mut self, ask: &Ask, error: Error) {
        self.tenure.refused |= ask.begun && error.is("42501");
        match ask.statement {
            Statement::Open | Statement::Bid(..) => self.attempt_failed(ask, error),
            _ if self.phase == Phase::Confirming => self.attempt_failed(ask, error),
            Statement::Confirm | Statement::Beat(_) if !self.way.opens => {
                self.report(error);
                self.close();
                self.tenure.due = Some(self.now + self.way.retry);
            }
            Statement::Confirm | Statement::Beat(_) if self.phase != Phase::Leaving => {
                self.connection_lost(error);
            }
            _ => {
                self.report(error);
                let term = self.tenure.term.as_ref().filter(|_| !self.tenure.refused);
                let token = term.map(|term| term.token().to_string());
                self.finish();
                self.kept = token;
            }
        }
    }

    /// Note the end of the connection in session scope.
    fn connection_lost(&mut self, error: Error) {
        if self.tenure.over == Some(ErrorKind::InDoubt) {
            self.tenure.over = Some(ErrorKind::Lost);
        } else if self.held().is_some() {
            self.lose(Reason::Lost, Error { kind: ErrorKind::Lost, ..error });
        }
    }
}
