//! What a machine does in a campaign, in a term, and at the end of it.

use crate::error::{Error, ErrorKind, Result};
use crate::follow::Leader;
use crate::machine::{Action, Ask, Machine, Phase, Statement, Tenure};
use crate::run::{Health, Reason, Row, State};
use crate::term::Term;
use std::mem::{replace, take};

impl Machine {
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

    pub fn answered(&mut self, ask: &Ask, row: Row) {
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
        let error = if judged && !self.stopping && !replaced { error.judged() } else { error };
        if error.is_permanent() || self.now >= self.last_bid && !self.stopping {
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

    pub fn confirm(&mut self) {
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
        // a term of a minute shows that the job works
        let lasted = self.tenure.began.is_some_and(|began| self.now >= began + 60.0);
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

    pub fn doubt(&mut self) {
        let error = Error::new(ErrorKind::InDoubt, "leadership is in doubt: it was not confirmed");
        self.lose(Reason::InDoubt, error);
    }

    /// Resign, if there is something to resign, and a connection for that.
    pub fn leave(&mut self) {
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
        self.crashes += i32::from(reason == Some(Reason::JobFailed));
        match reason {
            _ if over == Some(ErrorKind::Pooler) => self.end(Some(Error::pooler())),
            _ if self.stopping || self.last_bid.is_finite() => self.end(None),
            Some(Reason::JobReturned) => self.pause(0.5 + (self.draw)() / 2.0),
            Some(Reason::JobFailed) => self.back_off(60.0, self.crashes - 1),
            _ => self.back_off(15.0, self.failures),
        }
    }

    fn end(&mut self, error: Option<Error>) {
        (self.phase, self.until) = (Phase::Stopped, None);
        let result = replace(&mut self.result, Ok(true));
        self.out.push(Action::End(error.map_or(result, Err)));
    }

    // Errors

    pub fn failed(&mut self, ask: &Ask, error: Error) {
        self.tenure.refused |= ask.begun && error.is("42501");
        match ask.statement {
            _ if self.phase <= Phase::Confirming => self.attempt_failed(ask, error),
            Statement::Confirm | Statement::Beat(_) if !self.way.opens => {
                self.report(error);
                self.close();
                self.tenure.due = Some(self.now + self.way.retry);
            }
            _ if self.phase != Phase::Leaving => self.connection_lost(error),
            _ => {
                self.report(error);
                let term = self.tenure.term.as_ref().filter(|_| !self.tenure.refused);
                self.kept = term.map(|term| term.token().to_string());
                self.finish();
            }
        }
    }

    /// Note the end of the connection in session scope.
    pub fn connection_lost(&mut self, error: Error) {
        if self.tenure.over == Some(ErrorKind::InDoubt) {
            self.tenure.over = Some(ErrorKind::Lost);
        } else if self.held().is_some() {
            self.lose(Reason::Lost, Error { kind: ErrorKind::Lost, ..error });
        }
    }
}
