//! The cases of clients/conformance on the state machine, and T1 to T5 of clients/README.md.

use crate::error::{Error, ErrorKind};
use crate::every::{every, Schedule};
use crate::machine::{Action, Event, Machine, Statement};
use crate::run::{Begun, Link, Query, Row, Server};
use crate::term::Term;
use crate::{follow, leader, lease, run, session, BoxError, Elector, Handle, Options, State};
use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc as queue;

thread_local! {
    static TIME: Cell<f64> = const { Cell::new(0.0) };
    static DRAW: Cell<f64> = const { Cell::new(1.0) };
}

const SHOWN: &str = "job cancel ousted error end told refused";

/// Return a word of a case as text; None if it is `none`.
fn text(word: &str) -> Option<String> {
    if word == "none" {
        return None;
    }
    if let Some((letter, times)) = word.split_once('*') {
        return Some(letter.repeat(times.parse().unwrap()));
    }
    Some(match word {
        "empty" => String::new(),
        "true" => "t".into(),
        "false" => "f".into(),
        _ => word.trim_matches('"').replace("\\0", "\0"),
    })
}

fn number(word: &str) -> f64 {
    word.parse().unwrap()
}

fn instant(seconds: f64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs_f64(946_684_800.0 + seconds)
}

fn word(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or("none")
}

/// The clock, the server and the program of one case.
#[derive(Default)]
struct World {
    words: HashMap<&'static str, HashSet<String>>,
    machine: Option<Machine>,
    queue: Option<queue::UnboundedReceiver<Event>>,
    schedule: Option<(Box<dyn Schedule>, SystemTime)>,
    follows: bool,
    seats: bool,
    ended: bool,
    token: i64,
    /// The statement that waits for the case's answer, and the one that was given up.
    asked: Option<u64>,
    given_up: Option<u64>,
    term: Option<Term>,
    out: VecDeque<(f64, String)>,
}

impl World {
    fn has(&self, setting: &str, what: &str) -> bool {
        self.words.get(setting).is_some_and(|words| words.contains(what))
    }

    fn given(&mut self, words: &[&str]) {
        match words {
            ["every", length, "last", last] => {
                let length = Duration::from_secs_f64(number(length));
                self.schedule = Some((Box::new(length), instant(number(last))));
            }
            ["schedule", pattern, "last", last] => {
                let (period, shift) = pattern.split_once('+').unwrap();
                let (period, shift) = (number(period), number(shift));
                let next = move |last: SystemTime| {
                    let last = last.duration_since(instant(0.0)).unwrap().as_secs_f64();
                    Some(instant((((last - shift) / period).floor() + 1.0) * period + shift))
                };
                self.schedule = Some((Box::new(next), instant(number(last))));
            }
            [kind, rest @ ..] => {
                let (mut options, mut once) = (Options::new("e"), None);
                for pair in rest.chunks(2) {
                    let seconds = || Duration::from_secs_f64(number(pair[1]));
                    let text = text(pair[1]).unwrap();
                    options = match pair[0] {
                        "election" => Options { election: text, ..options },
                        "identity" => options.identity(text),
                        "schema" => options.schema(text),
                        "seats" => options.seats(text.parse().unwrap()),
                        "ttl" => options.ttl(seconds()),
                        "heartbeat" => options.heartbeat(seconds()),
                        "once" => {
                            once = Some(number(pair[1]));
                            options
                        }
                        "stop_timeout" => options.stop_timeout(seconds()),
                        other => panic!("there is no option {other}"),
                    };
                }
                if let Err(error) = options.check() {
                    let option = error.to_string();
                    self.ended = true;
                    return self.show("refused", option.split(' ').next().unwrap());
                }
                (self.follows, self.seats) = (*kind == "follow", options.seats.is_some());
                let way = match (*kind, options.ttl) {
                    ("follow", _) => follow::way(),
                    (_, Some(ttl)) => lease::way(ttl),
                    _ => session::way(options.heartbeat),
                };
                let (events, queue) = queue::unbounded_channel();
                self.queue = Some(queue);
                self.machine =
                    Some(Machine::new(options, way, events, || TIME.get(), || DRAW.get()));
                self.step(match once {
                    Some(wait) => Box::new(move |machine| machine.campaign_once(wait)),
                    None => Box::new(Machine::campaign),
                });
            }
            [] => unreachable!(),
        }
    }

    /// Let the machine take a step, and then all that follows from it at once.
    fn step(&mut self, event: Event) {
        let mut inbox = VecDeque::from([event]);
        while let Some(event) = inbox.pop_front() {
            let actions = self.machine.as_mut().unwrap().step(TIME.get(), event);
            actions.into_iter().for_each(|action| self.act(action, &mut inbox));
        }
    }

    fn act(&mut self, action: Action, inbox: &mut VecDeque<Event>) {
        match action {
            Action::Ask(serial, statement) => self.ask(serial, statement, inbox),
            Action::Close => {
                self.given_up = self.asked.take().or(self.given_up);
                self.show("close", "");
            }
            Action::Elected(term) => {
                self.show("elected", &term.token().to_string());
                self.term = Some(term);
                if !self.has("hold", "elected") {
                    inbox.push_back(Box::new(|machine| machine.done(Ok(()))));
                }
            }
            Action::Job(term) => {
                let name = if self.seats { format!(" {}", term.election()) } else { String::new() };
                self.show("job", &format!("{}{name}", term.token()));
            }
            Action::Cancel => {
                self.show("cancel", "");
                if !self.has("hold", "job") {
                    inbox.push_back(Box::new(|machine| machine.done(Ok(()))));
                }
            }
            Action::Abort => {}
            Action::Ousted(_, reason) => {
                self.show("ousted", &reason.to_string());
                if !self.has("hold", "ousted") {
                    inbox.push_back(Box::new(|machine| machine.done(Ok(()))));
                }
            }
            Action::Error(error) => self.show("error", &kind(&error)),
            Action::Told(None) => self.show("told", "none none none"),
            Action::Told(Some(leader)) => {
                let told = format!("{} {} {}", leader.token, leader.identity, word(&leader.value));
                self.show("told", &told);
            }
            Action::End(result) => {
                self.ended = true;
                let denied = |ran| if ran { "" } else { "denied" }.to_owned();
                self.show("end", &result.map_or_else(|error| kind(&error), denied));
            }
        }
    }

    fn ask(&mut self, serial: u64, statement: Statement, inbox: &mut VecDeque<Event>) {
        let some = |text: String| Some(text);
        let (what, shown, usual) = match statement {
            Statement::Open => ("open", "open".into(), vec![some("11".into())]),
            Statement::Bid(version, _) if self.follows => {
                ("observe", format!("observe {}", version.unwrap_or_default()), vec![])
            }
            Statement::Bid(kept, _) => {
                let seat = self.seats.then(|| "e/2".into());
                let token = some((self.token + 1).to_string());
                ("bid", format!("bid {}", kept.unwrap_or_default()), vec![token, seat])
            }
            Statement::Confirm => ("confirm", "confirm".into(), vec![text("true"), text("11")]),
            Statement::Beat(_) => ("confirm", "beat".into(), vec![text("true"), text("11")]),
            Statement::Resign => ("resign", "resign".into(), vec![text("true")]),
        };
        let starved = self.has("starve", what);
        if !starved {
            inbox.push_back(Box::new(move |machine| machine.begun(serial)));
        }
        if starved || self.has("hold", what) {
            self.asked = Some(serial);
        } else {
            self.token += i64::from(what == "bid");
            inbox.push_back(Box::new(move |machine| machine.answer(serial, Ok(usual))));
        }
        let shown: &str = shown.trim();
        self.show_as(what, shown);
    }

    fn show(&mut self, what: &str, more: &str) {
        self.show_as(what, format!("{what} {more}").trim());
    }

    fn show_as(&mut self, what: &str, line: &str) {
        let settings = ["hold", "starve", "show"];
        if SHOWN.split(' ').any(|word| word == what) || settings.iter().any(|s| self.has(s, what)) {
            self.out.push_back((TIME.get(), line.to_owned()));
        }
    }

    /// Let time pass.
    fn advance(&mut self, until: f64, inclusive: bool) {
        while !self.ended && self.machine.is_some() {
            let wakeup = self.machine.as_ref().unwrap().wakeup().max(TIME.get());
            if wakeup > until + 1e-6 || (wakeup > until - 1e-6 && !inclusive) {
                break;
            }
            TIME.set(wakeup);
            self.step(Box::new(|_| ()));
        }
        TIME.set(until.max(TIME.get()));
    }

    fn arrive(&mut self, words: &[&str]) {
        let row = |words: &[&str]| words.iter().map(|word| text(word)).collect::<Vec<_>>();
        match words {
            ["answer", values @ ..] => {
                let (serial, row) = (self.asked.take().expect("a statement"), row(values));
                self.step(Box::new(move |machine| machine.answer(serial, Ok(row))));
            }
            ["late", "answer", values @ ..] => {
                let (serial, row) = (self.given_up.expect("a statement"), row(values));
                self.step(Box::new(move |machine| machine.answer(serial, Ok(row))));
            }
            ["fails", state, hint @ ..] => {
                let hint = hint.join(" ").replace("hint: ", "");
                let error = Error::server(state, "fails", None, Some(&hint));
                let serial = self.asked.take().expect("a statement");
                self.step(Box::new(move |machine| machine.answer(serial, Err(error))));
            }
            ["broken"] => {
                self.asked = None;
                self.step(Box::new(|machine| {
                    machine.broken(Error::new(ErrorKind::Broken, "broken"))
                }));
            }
            ["asleep", "until", time] => TIME.set(number(time)),
            ["heartbeat"] => {
                self.term.as_ref().unwrap().heartbeat();
                self.step(Box::new(|_| ()));
            }
            ["stop"] => self.step(Box::new(Machine::stop)),
            [_, "returns"] => self.step(Box::new(|machine| machine.done(Ok(())))),
            [_, "fails"] => self
                .step(Box::new(|machine| machine.done(Err(Error::new(ErrorKind::Job, "fails"))))),
            _ => panic!("nothing arrives so"),
        }
    }

    fn check(&mut self, words: &[&str]) {
        if let ["due", time] = words {
            let (schedule, last) = self.schedule.as_mut().unwrap();
            let (time_due, due) = schedule.due(*last, instant(TIME.get())).unwrap();
            *last = time_due;
            return assert_eq!(
                due.then_some(time_due),
                text(time).map(|time| instant(number(&time)))
            );
        }
        let machine = self.machine.as_ref().unwrap();
        let leading = self.term.as_ref().is_some_and(Term::is_leading);
        let (what, rest) = (words[0], words[1..].join(" "));
        let found = match what {
            "leading" | "not" => return assert_eq!(leading, what == "leading"),
            "state" => machine.state().to_string(),
            "health" => machine.health().to_string(),
            "terms" => machine.counters.terms.to_string(),
            "confirmations" => machine.counters.confirmations.to_string(),
            "errors" => machine.counters.errors.to_string(),
            _ => panic!("nothing can be compared with that"),
        };
        assert_eq!(found, rest);
    }
}

fn kind(error: &Error) -> String {
    match error.kind {
        ErrorKind::Server => error.sqlstate.clone().unwrap(),
        kind => kind.to_string(),
    }
}

fn run_case(lines: &[&str]) {
    let mut world = World { token: 6, ..World::default() };
    let mut given = None;
    TIME.set(0.0);
    DRAW.set(1.0);
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        match words[0] {
            "given" => given = Some(words[1..].to_vec()),
            "random" => DRAW.set(number(words[1])),
            setting @ ("hold" | "starve" | "show") => {
                let setting =
                    ["hold", "starve", "show"].into_iter().find(|s| *s == setting).unwrap();
                let words = words[1..].iter().map(|word| word.to_string());
                world.words.entry(setting).or_default().extend(words);
            }
            time => {
                println!("{line}");
                if let Some(given) = given.take() {
                    world.given(&given);
                }
                world.advance(number(time), words[1] == ">");
                if words[1] == ">" {
                    let (at, what) = world.out.pop_front().expect("this follows");
                    assert_eq!(what, words[2..].join(" "));
                    assert!((at - number(time)).abs() < 1e-6, "at {at}");
                    continue;
                }
                assert!(world.out.is_empty(), "this has followed, too: {:?}", world.out);
                match words[1] {
                    "<" => world.arrive(&words[2..]),
                    _ => world.check(&words[2..]),
                }
            }
        }
    }
    assert!(world.out.is_empty(), "this has followed at the end: {:?}", world.out);
}

#[test]
fn cases() {
    let table = std::fs::read_to_string("cases.txt").unwrap();
    let mut failed = Vec::new();
    for case in table.split("\n== ").skip(1) {
        let case = case.split("\n\n").next().unwrap();
        let (name, rest) = case.split_once('\n').unwrap();
        let lines: Vec<_> = rest.lines().skip_while(|line| !line.starts_with("given ")).collect();
        println!("== {name}");
        if std::panic::catch_unwind(|| run_case(&lines)).is_err() {
            failed.push(name);
        } else if let Ok(report) = std::env::var("CONFORMANCE_REPORT") {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(report);
            writeln!(file.unwrap(), "case {name}: passed").unwrap();
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}

#[tokio::test]
async fn t1_wrong_option() {
    let error = Options::new("{a}").check().unwrap_err();
    assert_eq!(error.to_string(), "election must not be in braces");
    let error = Elector::new(Fake::default(), Options::new("e").ttl(Duration::ZERO)).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Argument);
    let error = leader(&Fake::default(), &Options::new("{a}")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Argument);
    let job = |length| {
        let length = Duration::from_millis(length);
        every(Fake::default(), length, |_: &mut Fake, _| Box::pin(async { Ok(()) })).map(drop)
    };
    assert_eq!(job(999).unwrap_err().kind, ErrorKind::Argument);
    job(1000).unwrap();
}

#[test]
fn t2_default_identity() {
    let (one, two) = (Options::new("e").identity, Options::new("e").identity);
    assert_ne!(one, two);
    let parts: Vec<_> = one.rsplit(':').collect();
    assert_eq!((parts[0].len(), parts[1]), (4, std::process::id().to_string().as_str()));
}

#[test]
fn t3_clock() {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap(); // counts a suspension, too
    assert!((run::now() - number(uptime.split(' ').next().unwrap())).abs() < 0.1);
}

/// A server on which each connection ends half a second after it was opened, and on which, by
/// default, a statement by a lease is never answered.
#[derive(Clone, Default)]
struct Fake(Arc<Seen>);

#[derive(Default)]
struct Seen {
    calls: AtomicUsize,
    term: Mutex<Option<Term>>,
    closed_while_leading: AtomicBool,
    answers: AtomicBool,
    /// The SQLSTATE with which a bid fails before it has to wait.
    refuses: Mutex<Option<&'static str>>,
    /// A task is recorded as done.
    done: AtomicBool,
    /// What panics once.
    panics: Mutex<&'static str>,
}

impl Fake {
    fn may_panic(&self, what: &str) {
        let mut panics = self.0.panics.lock().unwrap();
        if *panics == what {
            *panics = "";
            drop(panics);
            std::panic::panic_any(Bomb);
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if self.0.term.lock().unwrap().as_ref().is_some_and(Term::is_leading) {
            self.0.closed_while_leading.store(true, SeqCst);
        }
    }
}

impl Query for Fake {
    async fn ask(&mut self, sql: &str) -> Result<Row, Error> {
        let bid = ["le_campaign", "le_lease", "le_observe"].iter().any(|name| sql.contains(name));
        let refused = *self.0.refuses.lock().unwrap();
        if let Some(sqlstate) = refused.filter(|_| bid) {
            return Err(Error::server(sqlstate, "refused", None, None));
        }
        self.may_panic(if bid { "bid" } else { "ask" });
        if sql.contains("pg_proc") {
            self.may_panic("explain");
        }
        if sql.starts_with("SELECT extract") {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            return Ok(vec![Some(time.as_secs_f64().to_string()), None]);
        }
        if sql == "BEGIN" || sql.contains("le_once(") {
            let first = !self.0.done.swap(sql != "BEGIN", SeqCst);
            return Ok(vec![text(if first { "t" } else { "f" }), text("11")]);
        }
        Ok(vec![text(if bid { "7" } else { "true" }), text("t")])
    }
}

impl Link for Fake {
    async fn ended(&mut self) -> Error {
        tokio::time::sleep(Duration::from_millis(500)).await;
        Error::new(ErrorKind::Broken, "the connection has ended")
    }

    async fn close(self) {}
}

impl Server for Fake {
    type Link = Fake;

    async fn open(&self) -> Result<Fake, Error> {
        self.0.calls.fetch_add(1, SeqCst);
        self.may_panic("open");
        Ok(self.clone())
    }

    async fn ask(&self, sql: &str, begun: Begun<'_>) -> Result<Row, Error> {
        self.0.calls.fetch_add(1, SeqCst);
        if !self.0.answers.load(SeqCst) {
            std::future::pending::<()>().await;
        }
        begun();
        Query::ask(&mut self.clone(), sql).await
    }
}

/// Run an elector for two terms, and return how many errors its callback was called with.
async fn two_terms(callback: impl Fn(&Error) + Send + Sync + 'static) -> usize {
    let (calls, count) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let called = calls.clone();
    let options = Options::new("e").on_error(move |error| {
        called.fetch_add(1, SeqCst);
        callback(error);
    });
    let elector =
        Elector::new(Fake::default(), options.on_elected(|_| panic!("elected fails"))).unwrap();
    let handle = elector.handle();
    let job = move |term: Term| {
        assert!(term.is_leading());
        if count.fetch_add(1, SeqCst) == 1 {
            handle.stop();
        }
        std::future::pending::<Result<(), BoxError>>()
    };
    tokio::time::timeout(Duration::from_secs(20), elector.run(job)).await.unwrap().unwrap();
    calls.load(SeqCst)
}

/// The runtime has no thread left for it, either, and need not wait for it.
#[test]
fn t4_error_callback_that_hangs() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.max_blocking_threads(1).enable_all().build().unwrap();
        let count = runtime.block_on(two_terms(|_| loop {
            std::thread::park();
        }));
        drop(runtime);
        tell.send(count)
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(1));
}

#[tokio::test]
async fn t4_error_callback_that_fails() {
    let log = Log::default();
    let _log = tracing::subscriber::set_default(log.clone());
    // elected has failed twice, and one term was lost
    assert!(two_terms(|_| panic!("it fails")).await >= 3);
    let log = log.0.lock().unwrap();
    assert!(
        log.contains("on_error failed: panicked: it fails; its error: panicked: elected fails"),
        "{log}"
    );
}

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }
    fn event(&self, event: &tracing::Event<'_>) {
        let mut log = self.0.lock().unwrap();
        event.record(&mut |_: &tracing::field::Field, text: &dyn std::fmt::Debug| {
            *log += &format!("{text:?}\n");
        });
    }
    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
    fn enter(&self, _: &tracing::Id) {}
    fn exit(&self, _: &tracing::Id) {}
}

#[tokio::test]
async fn t5_stop_before_run() {
    for options in [Options::new("e"), Options::new("e").ttl(Duration::from_secs(6))] {
        let fake = Fake::default();
        let elector = Elector::new(fake.clone(), options).unwrap();
        elector.handle().stop();
        let run = elector.run(|_| std::future::pending::<Result<(), BoxError>>());
        tokio::time::timeout(Duration::from_secs(1), run).await.unwrap().unwrap();
        assert_eq!(fake.0.calls.load(SeqCst), 0);
    }
    let elector = Elector::new(Fake::default(), Options::new("e")).unwrap();
    elector.handle().stop();
    let job = |_| async { Ok::<_, BoxError>(()) };
    assert_eq!(elector.try_run(Duration::MAX, job).await.unwrap(), None);
}

/// What a job returns after a stop is the result of `try_run`, and so is its error.
#[tokio::test]
async fn try_run_stopped() {
    let stopped = async |result: Option<Result<u8, BoxError>>| {
        let reported = Arc::new(AtomicUsize::new(0));
        let count = reported.clone();
        let options = Options::new("e").stop_timeout(Duration::from_millis(50));
        let options = options.on_error(move |_| _ = count.fetch_add(1, SeqCst));
        let elector = Elector::new(Fake::default(), options).unwrap();
        let handle = elector.handle();
        let job = |term: Term| async move {
            handle.stop();
            term.cancellation().cancelled().await;
            match result {
                Some(result) => result,
                None => std::future::pending().await,
            }
        };
        (elector.try_run(Duration::ZERO, job).await, reported.load(SeqCst))
    };
    let (ran, reported) = stopped(Some(Ok(3))).await;
    assert_eq!((ran.unwrap(), reported), (Some(3), 0));
    let (failed, reported) = stopped(Some(Err("fails".into()))).await;
    assert_eq!((failed.unwrap_err().kind, reported), (ErrorKind::Job, 0));
    let (dropped, reported) = stopped(None).await;
    assert_eq!((dropped.unwrap_err().kind, reported), (ErrorKind::SlowJob, 1));
}

/// A callback that stops the elector keeps the job from starting.
#[tokio::test(flavor = "multi_thread")]
async fn stop_in_elected() {
    for count in 0..500 {
        let stop: Arc<OnceLock<Handle>> = Arc::default();
        let called = stop.clone();
        let options = Options::new("e").on_elected(move |_| called.get().unwrap().stop());
        let elector = Elector::new(Fake::default(), options).unwrap();
        stop.set(elector.handle()).unwrap();
        let tried = elector.try_run(Duration::ZERO, async |_| Ok::<_, BoxError>(())).await;
        assert_eq!(tried.unwrap(), None, "the job has run, at {count}");
    }
}

/// The job is stopped in time also if the future of `run` is not polled, as in a loop of `select!`.
#[tokio::test]
async fn unpolled_run() {
    let (told, mut terms) = queue::unbounded_channel();
    let options = Options::new("e").on_elected(move |term| drop(told.send(term.clone())));
    let elector = Elector::new(Fake::default(), options).unwrap();
    let run = elector.run(|_| std::future::pending::<Result<(), BoxError>>());
    let mut run = std::pin::pin!(run);
    let term = tokio::select! {
        _ = &mut run => unreachable!(),
        term = terms.recv() => term.unwrap(),
    };
    let stopped = term.cancellation().cancelled();
    tokio::time::timeout(Duration::from_secs(5), stopped).await.unwrap();
}

/// A job makes no step when the validity has passed, though the runtime was late.
#[tokio::test]
async fn late_runtime() {
    let (fake, stepped) = (Fake::default(), Arc::new(AtomicBool::new(false)));
    fake.0.answers.store(true, SeqCst);
    let elector = Elector::new(fake, Options::new("e").ttl(Duration::from_secs(1))).unwrap();
    let step = stepped.clone();
    let job = |_| async move {
        tokio::spawn(async { std::thread::sleep(Duration::from_secs(1)) });
        tokio::time::sleep(Duration::from_millis(50)).await;
        step.store(true, SeqCst);
        Ok::<_, BoxError>(())
    };
    let tried = elector.try_run(Duration::ZERO, job).await;
    assert_eq!((tried.unwrap_err().kind, stepped.load(SeqCst)), (ErrorKind::InDoubt, false));
}

/// A heartbeat that comes too late does not bring back a job that was not polled any more.
#[test]
fn late_heartbeat() {
    let ((events, _queue), way) = (queue::unbounded_channel(), lease::way(6.0));
    let machine = Machine::new(Options::new("e"), way, events, || TIME.get(), || 0.0);
    let term = Term::new("e".into(), 7, &machine);
    term.times().confirmed = 9.0;
    term.times().length = Some(1.0);
    for (time, leading) in [(0.0, true), (0.9, true), (2.0, false)] {
        TIME.set(time);
        let before = term.is_leading();
        term.heartbeat();
        assert_eq!((before, term.is_leading()), (leading, leading), "at {time}");
    }
}

/// Calls of `stop` that never end keep nothing else from being done.
#[tokio::test]
async fn stop_again_and_again() {
    let fake = Fake::default();
    fake.0.answers.store(true, SeqCst);
    let elector = Elector::new(fake, Options::new("e").ttl(Duration::from_secs(6))).unwrap();
    let (handle, ended) = (elector.handle(), Arc::new(AtomicBool::new(false)));
    let end = ended.clone();
    let run = elector.run(move |term: Term| {
        let (handle, end) = (handle.clone(), end.clone());
        std::thread::spawn(move || {
            while !end.load(SeqCst) {
                handle.stop();
            }
        });
        async move {
            term.cancellation().cancelled().await;
            Ok::<_, BoxError>(())
        }
    });
    let run = tokio::time::timeout(Duration::from_secs(5), run).await;
    ended.store(true, SeqCst);
    run.unwrap().unwrap();
}

/// A future of `run` that is dropped ends the term before it closes the connection.
#[tokio::test]
async fn dropped_run() {
    let (fake, (told, mut terms)) = (Fake::default(), queue::unbounded_channel());
    let options = Options::new("e").on_elected(move |term| drop(told.send(term.clone())));
    let elector = Elector::new(fake.clone(), options).unwrap();
    let handle = elector.handle();
    let run = tokio::spawn(elector.run(|_| std::future::pending::<Result<(), BoxError>>()));
    let term = terms.recv().await.unwrap();
    *fake.0.term.lock().unwrap() = Some(term.clone());
    assert!(term.is_leading());
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled() && !term.is_leading());
    while handle.state() != State::Stopped {
        tokio::task::yield_now().await;
    }
    assert!(!fake.0.closed_while_leading.load(SeqCst));
}

/// Panics when it is dropped.
#[derive(Debug)]
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a panic in Drop");
    }
}

type Fails = fn() -> Result<(), BoxError>;

/// The ways in which a job, or a callback, can fail.
const FAILURES: [(&str, Fails); 5] = [
    ("the job has failed", || Err("error".into())),
    ("panicked: text", || panic!("text")),
    ("panicked: String", || std::panic::panic_any(String::from("String"))),
    ("panicked: with a value", || std::panic::panic_any(42)),
    ("panicked: with a value", || std::panic::panic_any(Bomb)),
];

/// Run an elector that is asked to stop in its second term. Return what it has reported.
async fn second_term<F>(
    fake: Fake, options: Options, job: impl Fn(bool) -> F + Send + Sync + 'static,
) -> Vec<String>
where
    F: std::future::Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let log = Arc::new(Mutex::new(Vec::new()));
    let (told, count) = (log.clone(), AtomicUsize::new(0));
    let options = options.on_error(move |error| {
        told.lock().unwrap().push(format!("{}: {error}", error.kind));
        std::panic::panic_any(Bomb)
    });
    let elector = Elector::new(fake, options).unwrap();
    let handle = elector.handle();
    let run = elector.run(move |_| {
        let second = count.fetch_add(1, SeqCst) == 1;
        if second {
            handle.stop();
        }
        job(second)
    });
    tokio::time::timeout(Duration::from_secs(20), run).await.unwrap().unwrap();
    let log = log.lock().unwrap().clone();
    log
}

#[test]
fn text_of_sources() {
    let error = Error::caused(ErrorKind::Job, Error::caused(ErrorKind::Broken, "it"));
    assert_eq!(error.to_string(), "the job has failed");
    assert_eq!(format!("{error:#}"), "the job has failed: the connection has failed: it");
}

#[tokio::test]
async fn ends_of_a_job() {
    for (words, fails) in FAILURES {
        let job = move |second: bool| async move {
            if second {
                Ok(())
            } else {
                fails()
            }
        };
        let log = second_term(Fake::default(), Options::new("e"), job).await;
        assert!(log.len() == 1 && log[0].starts_with(&format!("job: {words}")), "{words} {log:?}");
        let elector = Elector::new(Fake::default(), Options::new("e")).unwrap();
        let tried = elector.try_run(Duration::ZERO, move |_| async move { fails() }).await;
        let error = tried.unwrap_err();
        assert!(error.kind == ErrorKind::Job && error.to_string().starts_with(words), "{error:?}");
        // the function fails before there is a future
        let now = move |second| std::future::ready(if second { Ok(()) } else { fails() });
        let log = second_term(Fake::default(), Options::new("e"), now).await;
        assert!(log.len() == 1 && log[0].starts_with("job: "), "{words} {log:?}");
    }
    // a future that is dropped because its term is lost
    let job = |second: bool| async move {
        let bomb = (!second).then(|| Bomb);
        if second {
            return Ok(());
        }
        std::future::pending::<()>().await;
        drop(bomb);
        Ok(())
    };
    let log = second_term(Fake::default(), Options::new("e"), job).await;
    assert_eq!(log, ["lost: the connection has ended", "job: panicked: a panic in Drop"]);
}

#[tokio::test]
async fn ends_of_callbacks() {
    for (words, fails) in FAILURES {
        let options = Options::new("e")
            .on_elected(move |_| fails().unwrap_or_else(|error| std::panic::panic_any(error)))
            .on_ousted(move |_, _| fails().unwrap_or_else(|error| std::panic::panic_any(error)));
        let log = second_term(Fake::default(), options, |_| std::future::ready(Ok(()))).await;
        let failed = log.iter().filter(|said| said.starts_with("callback: panicked")).count();
        assert_eq!((log.len(), failed), (4, 4), "{words} {log:?}");
    }
}

#[tokio::test]
async fn ends_of_a_connection() {
    for what in ["open", "bid", "ask", "bid by a lease", "ask by a lease"] {
        let (fake, options) = (Fake::default(), Options::new("e"));
        *fake.0.panics.lock().unwrap() = what.split(' ').next().unwrap();
        fake.0.answers.store(true, SeqCst);
        let lease = what.ends_with("lease");
        let options = if lease { options.ttl(Duration::from_secs(1)) } else { options };
        let job = move |second: bool| async move {
            if lease && !second {
                tokio::time::sleep(Duration::from_millis(500)).await; // for a renewal
            }
            Ok(())
        };
        let log = second_term(fake.clone(), options, job).await;
        assert_eq!(*fake.0.panics.lock().unwrap(), "", "{what}");
        let words = ": panicked: with a value that is no text";
        let told = log.iter().filter(|said| said.ends_with(words)).count();
        assert_eq!((log.len(), told), (1, 1), "{log:?}");
    }
    let fake = Fake::default();
    *fake.0.panics.lock().unwrap() = "ask";
    let mut leaders = crate::follow(fake, Options::new("e")).unwrap();
    assert_eq!(leaders.recv().await.unwrap().unwrap(), None);
}

/// A task that fails is reported, in the same term, and what its error does harms nothing.
#[tokio::test]
async fn ends_of_a_task() {
    for (words, fails) in FAILURES {
        let fake = Fake::default();
        fake.0.answers.store(true, SeqCst);
        let (log, count) = (Arc::new(Mutex::new(Vec::new())), AtomicUsize::new(0));
        let told = log.clone();
        let options = Options::new("e").ttl(Duration::from_secs(6));
        let options = options.on_error(move |error| {
            told.lock().unwrap().push(error.to_string());
        });
        let elector = Elector::new(fake.clone(), options).unwrap();
        let (handle, stop) = (elector.handle(), elector.handle());
        let always = |last: SystemTime| Some(last + Duration::from_secs(1));
        let job = every(fake, always, move |_: &mut Fake, _| {
            let second = count.fetch_add(1, SeqCst) == 1;
            if second {
                stop.stop();
            }
            Box::pin(async move {
                if second {
                    Ok(())
                } else {
                    fails()
                }
            })
        });
        let run = elector.run(job.unwrap());
        tokio::time::timeout(Duration::from_secs(20), run).await.unwrap().unwrap();
        let log = log.lock().unwrap().clone();
        assert_eq!(log[0], "the job has failed", "{words}");
        assert_eq!(handle.counters().terms, 1, "{words}");
    }
}

/// An error that comes at once is one of the bid nevertheless, and not of its connection.
#[tokio::test]
async fn refused_at_once() {
    for _ in 0..20 {
        let fake = Fake::default();
        fake.0.answers.store(true, SeqCst);
        *fake.0.refuses.lock().unwrap() = Some("42501");
        let elector = Elector::new(fake, Options::new("e").ttl(Duration::from_secs(6))).unwrap();
        let job = |_| async { Ok::<_, BoxError>(()) };
        let refused = elector.try_run(Duration::ZERO, job).await;
        assert_eq!(refused.unwrap_err().kind, ErrorKind::Privilege);
    }
}

/// A panic of what opens a connection does not keep a permanent error from being returned.
#[tokio::test]
async fn ends_of_an_explanation() {
    for follows in [false, true] {
        let fake = Fake::default();
        fake.0.answers.store(true, SeqCst);
        *fake.0.refuses.lock().unwrap() = Some("42883");
        *fake.0.panics.lock().unwrap() = "explain";
        let error = if follows {
            crate::follow(fake, Options::new("e")).unwrap().recv().await.unwrap().unwrap_err()
        } else {
            let elector = Elector::new(fake, Options::new("e")).unwrap();
            elector.run(|_| std::future::ready(Ok::<_, BoxError>(()))).await.unwrap_err()
        };
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Extension, "refused"));
    }
}

/// A schedule may go back, as some do when the clocks are put back, but must get on.
#[test]
fn schedule_that_goes_back() {
    fn due(schedule: fn(f64) -> f64, last: f64, now: f64) -> Result<(f64, bool), Error> {
        let seconds =
            |time: SystemTime| time.duration_since(instant(0.0)).unwrap().as_secs_f64().round();
        let next = move |last: SystemTime| Some(instant(schedule(seconds(last))));
        next.due(instant(last), instant(now)).map(|(at, due)| (seconds(at), due))
    }
    let back = |last| if last == 3600.0 { 1800.0 } else { last + 3600.0 };
    assert_eq!(due(back, 3600.0, 5399.0).unwrap(), (3600.0, false));
    assert_eq!(due(back, 3600.0, 5400.0).unwrap(), (5400.0, true));
    for stands in [|last| last, |last| last - 60.0] {
        let error = due(stands, 1e6, 2e6).unwrap_err();
        assert_eq!(error.to_string(), "a schedule must return a later time");
    }
    // the server's clock was set back; so it is while the job is made, which asks no schedule
    assert_eq!(due(|last| panic!("asked for {last}"), 3e6, 2e6).unwrap(), (3e6, false));
}

/// Names are written so that no library sees a parameter in them.
#[test]
fn whole_statements() {
    let (events, _queue) = queue::unbounded_channel();
    let options = Options::new("e").schema("le");
    let machine = Machine::new(options, session::way(None), events, || 0.0, || 0.0);
    let term = |name: &str| Term::new(name.into(), 42, &machine);
    assert_eq!(term("a/1 ü.-_").guard_sql(), "SELECT \"le\".le_assert_leader('a/1 ü.-_', 42)");
    let once = term("it's").once_sql(UNIX_EPOCH + Duration::from_micros(1_000_001));
    let hex = "convert_from(decode('69742773', 'hex'), 'UTF8')";
    assert_eq!(once, format!("SELECT \"le\".le_once({hex}, to_timestamp(1.000001), 42)"));
    assert_eq!(format!("{:?}", term("e")), "Term { election: \"e\", token: 42, .. }");
}
