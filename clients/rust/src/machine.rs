//! What the state machines of electors and followers share.
//!
//! They are pure: [`Machine::step`] gets the time and what has happened, and returns what is to be
//! done. The cases of clients/conformance run on them.

use crate::error::{Error, ErrorKind, Result};
use crate::follow::{self, Leader};
use crate::options::Options;
use crate::run::{settings, Counters, Reason, Row};
use crate::term::Term;
use crate::{lease, session};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

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
pub(crate) struct Ask {
    pub serial: u64,
    pub statement: Statement,
    pub asked: f64,
    pub limit: f64,
    pub begun: bool,
}

/// Up to Confirming, a statement that fails ends the attempt.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(crate) enum Phase {
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
pub(crate) struct Tenure {
    pub term: Option<Term>,
    /// Leadership is lost or in doubt.
    pub over: Option<ErrorKind>,
    pub reason: Option<Reason>,
    /// When elected was called, when to confirm leadership, and when to report that the job has not
    /// stopped.
    pub began: Option<f64>,
    pub due: Option<f64>,
    pub report_at: Option<f64>,
    /// A statement has failed for want of a privilege.
    pub refused: bool,
    /// Of how many heartbeats the server was told.
    pub carried: u64,
}

pub(crate) struct Machine {
    pub options: Options,
    pub events: mpsc::UnboundedSender<Event>,
    pub clock: fn() -> f64,
    pub draw: fn() -> f64,
    pub way: Way,
    /// Is cancelled when nothing drives the machine any more.
    pub gone: CancellationToken,
    pub counters: Counters,
    pub phase: Phase,
    pub now: f64,
    pub out: Vec<Action>,
    pub ask: Option<Ask>,
    pub serial: u64,
    /// The errors in a row, and the failures of the job in a row.
    pub failures: i32,
    pub crashes: i32,
    /// When the last bid begins: never, unless the job is to run once.
    pub last_bid: f64,
    /// What the end is unless an error ends the machine.
    pub result: Result<bool>,
    pub stopping: bool,
    pub told_not_yet: bool,
    /// What the next bid gives back to the server.
    pub kept: Option<String>,
    /// The process ID of the server connection.
    pub pid: Option<String>,
    /// When the pause ends.
    pub until: Option<f64>,
    pub tenure: Tenure,
    /// What a follower has told.
    pub told: Option<Option<Leader>>,
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
        std::mem::take(&mut self.out)
    }

    /// Return when `step` is to be called although nothing has happened.
    pub fn wakeup(&self) -> f64 {
        let held = self.held().map(Term::valid_until);
        let deadline = self.ask.as_ref().map(|ask| ask.asked + ask.limit);
        let due = self.tenure.due.filter(|_| held.is_some() && self.ask.is_none());
        let times = [self.until, self.tenure.report_at, deadline, held, due];
        times.into_iter().flatten().fold(f64::INFINITY, f64::min)
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
    pub fn held(&self) -> Option<&Term> {
        let held = matches!(self.phase, Phase::Elected | Phase::Job | Phase::Ousted);
        self.tenure.term.as_ref().filter(|_| held && self.tenure.over.is_none())
    }

    pub fn report(&mut self, error: Error) {
        self.counters.errors += 1;
        self.out.push(Action::Error(error));
    }

    pub fn close(&mut self) {
        self.ask = None;
        self.out.push(Action::Close);
    }

    pub fn send(&mut self, statement: Statement) {
        self.serial += 1;
        let limit = match statement {
            Statement::Bid(_, wait) => self.way.limit + wait,
            Statement::Confirm | Statement::Beat(_) => self.way.renewal,
            Statement::Open | Statement::Resign => self.way.limit,
        };
        self.out.push(Action::Ask(self.serial, statement.clone()));
        self.ask =
            Some(Ask { serial: self.serial, statement, asked: self.now, limit, begun: false });
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
}
