//! The state machine on a simulated clock and server: U01 to U24 of ../README.md.

use crate::env::Env;
use crate::error::{BoxError, Error};
use crate::port::{BoxFuture, Port, Row, Session};
use crate::{Builder, Elector, ErrorKind, Reason, State, Term};
use std::collections::HashMap;
use std::future::{pending, Future};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{mpsc, Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{sleep, Instant};
use tokio_util::sync::CancellationToken;

const ELECTION: &str = "it's";

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// What the simulated server does with a statement.
enum Answer {
    Row(Vec<Option<&'static str>>),
    /// Answer, with the process ID of the connection as the second column.
    Pid(&'static str),
    After(f64, Box<Answer>),
    Fails(&'static str, &'static str),
    Silence,
}
use Answer::*;

fn null() -> Answer {
    Row(vec![None])
}

/// Given how often a statement of that kind was sent before, what to do with this one.
type Script = Box<dyn Fn(usize) -> Answer + Send + Sync>;

/// A server and the world around it, with a log of what happened when.
#[derive(Clone)]
struct Sim(Arc<World>);

struct World {
    start: Instant,
    skew: AtomicU64,
    random: f64,
    scripts: Mutex<HashMap<&'static str, Script>>,
    counts: Mutex<HashMap<String, usize>>,
    log: Mutex<Vec<(f64, String)>>,
    /// Cancelled when all connections are cut.
    cut: CancellationToken,
    jobs: Option<tokio::runtime::Runtime>,
}

struct Connection {
    sim: Sim,
    id: usize,
}

impl Sim {
    fn new() -> Self {
        Sim::with(0.0, None)
    }

    fn with(random: f64, jobs: Option<tokio::runtime::Runtime>) -> Self {
        Sim(Arc::new(World {
            start: Instant::now(),
            skew: AtomicU64::new(0),
            random,
            scripts: Mutex::default(),
            counts: Mutex::default(),
            log: Mutex::default(),
            cut: CancellationToken::new(),
            jobs,
        }))
    }

    /// Script the answers to statements that contain this word.
    fn on(&self, word: &'static str, script: impl Fn(usize) -> Answer + Send + Sync + 'static) {
        self.0.scripts.lock().unwrap().insert(word, Box::new(script));
    }

    fn now(&self) -> Duration {
        self.0.start.elapsed() + Duration::from_millis(self.0.skew.load(SeqCst))
    }

    fn say(&self, what: impl Into<String>) {
        let now = (self.now().as_secs_f64() * 100.0).round() / 100.0;
        self.0.log.lock().unwrap().push((now, what.into()));
    }

    /// Return when that was said, in seconds.
    fn times(&self, what: &str) -> Vec<f64> {
        let log = self.0.log.lock().unwrap();
        log.iter().filter(|(_, said)| said.contains(what)).map(|(time, _)| *time).collect()
    }

    fn count(&self, what: &str) -> usize {
        self.times(what).len()
    }

    /// Return those of the words that were said, in the order in which they were.
    fn order<'a>(&self, words: &[&'a str]) -> Vec<&'a str> {
        let log = self.0.log.lock().unwrap();
        let word = |(_, said): &(f64, String)| words.iter().find(|w| said.contains(**w)).copied();
        log.iter().filter_map(word).collect()
    }

    fn builder(&self) -> Builder<Sim> {
        let (clock, random) = (self.clone(), self.0.random);
        let (elected, ousted, error) = (self.clone(), self.clone(), self.clone());
        let env = Env {
            now: Arc::new(move || clock.now()),
            random: Arc::new(move || random),
            jobs: self.0.jobs.as_ref().map(|jobs| jobs.handle().clone()),
        };
        Elector::builder(self.clone(), ELECTION)
            .identity("me")
            .on_elected(move |term| elected.say(format!("elected {}", term.token())))
            .on_ousted(move |_, reason| ousted.say(format!("ousted {reason:?}")))
            .on_error(move |e| error.say(format!("error {:?}: {e}", e.kind())))
            .env(env)
    }

    /// Return a job that works until it is told to stop, and then takes some more time.
    fn job(
        &self,
        beat: Option<f64>,
        stopping: f64,
    ) -> impl Fn(Term) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync {
        let sim = self.clone();
        move |term: Term| {
            let sim = sim.clone();
            Box::pin(async move {
                sim.say(format!("job begins {} {}", term.election(), term.token()));
                let _end = Says(sim.clone(), "job ends");
                let told = term.cancellation().clone();
                while !told.is_cancelled() {
                    let pause = beat.map(secs);
                    told.run_until_cancelled(sleep(pause.unwrap_or(secs(1e6)))).await;
                    if pause.is_some() && !told.is_cancelled() {
                        term.heartbeat();
                    }
                }
                sim.say("job is told to stop");
                sleep(secs(stopping)).await;
                Ok(())
            })
        }
    }
}

struct Says(Sim, &'static str);

impl Drop for Says {
    fn drop(&mut self) {
        self.0.say(self.1);
    }
}

impl Sim {
    async fn answer(&self, id: usize, sql: &str) -> Result<Vec<Row>, Error> {
        self.say(format!("ask {id} {sql}"));
        let words = [
            "le_lease",
            "le_campaign",
            "le_am_leader",
            "le_heartbeat",
            "le_renew",
            "le_depose",
            "le_resign",
            "pg_backend_pid",
        ];
        let word = *words.iter().find(|word| sql.contains(**word)).unwrap();
        let count = {
            let mut counts = self.0.counts.lock().unwrap();
            let count = counts.entry(word.into()).or_default();
            *count += 1;
            *count - 1
        };
        let scripted = self.0.scripts.lock().unwrap().get(word).map(|script| script(count));
        let mut answer = scripted.unwrap_or_else(|| match word {
            "pg_backend_pid" => Row(vec![]),
            "le_campaign" if sql.contains("le_seats") => Row(vec![Some("7"), Some("it's/2")]),
            "le_campaign" | "le_lease" => Row(vec![Some("7")]),
            _ => Pid("t"),
        });
        let pid = Some(format!("{}", 100 + id));
        loop {
            let row = match answer {
                After(seconds, then) => {
                    sleep(secs(seconds)).await;
                    answer = *then;
                    continue;
                }
                Silence => pending().await,
                Fails(sqlstate, message) => {
                    return Err(Error::driver(Some(sqlstate.into()), message));
                }
                Row(columns) if columns.is_empty() => vec![pid],
                Row(columns) => columns.iter().map(|c| c.map(String::from)).collect(),
                Pid(leads) => vec![Some(leads.into()), pid],
            };
            return Ok(vec![row]);
        }
    }
}

impl Port for Sim {
    type Session = Connection;

    async fn open(&self) -> Result<Connection, Error> {
        let count = self.count("open") + self.count("refused");
        let scripted = self.0.scripts.lock().unwrap().get("open").map(|script| script(count));
        match scripted {
            Some(Fails(sqlstate, message)) => {
                self.say("refused");
                Err(Error::driver(Some(sqlstate.into()), message))
            }
            Some(Silence) => pending().await,
            _ => {
                self.say(format!("open {count}"));
                Ok(Connection { sim: self.clone(), id: count })
            }
        }
    }

    async fn ask(&self, sql: &str) -> Result<Vec<Row>, Error> {
        self.answer(0, sql).await
    }
}

impl Session for Connection {
    type Client = ();

    async fn ask(&mut self, sql: &str) -> Result<Vec<Row>, Error> {
        self.sim.answer(self.id, sql).await
    }

    async fn ended(&mut self) -> Error {
        self.sim.0.cut.cancelled().await;
        Error::driver(None, "cut")
    }

    async fn work<'a, T>(&'a mut self, _: T) -> Result<(), BoxError>
    where
        T: FnOnce(&'a mut ()) -> BoxFuture<'a, Result<(), BoxError>> + Send,
    {
        unreachable!()
    }

    async fn close(self) {}
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.sim.say(format!("close {}", self.id));
    }
}

fn start<J, F>(builder: Builder<Sim>, job: J) -> (crate::Handle, JoinHandle<Result<(), Error>>)
where
    J: Fn(Term) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let elector = builder.build().unwrap();
    (elector.handle(), tokio::spawn(elector.run(job)))
}

/// Stop an elector, and look for what it has left behind.
async fn stop(sim: &Sim, (handle, run): (crate::Handle, JoinHandle<Result<(), Error>>)) {
    handle.stop();
    run.await.unwrap().unwrap();
    assert_eq!(handle.state(), State::Stopped);
    assert_eq!(sim.count("job begins"), sim.count("job ends"));
    assert_eq!(sim.count("open"), sim.count("close"));
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

/// Return the error with which an elector ends by itself.
async fn failed(run: JoinHandle<Result<(), Error>>) -> Error {
    tokio::time::timeout(secs(100.0), run).await.expect("it ends").unwrap().unwrap_err()
}

/// Let virtual time pass.
async fn pass(seconds: f64) {
    sleep(secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn test_u01_job_starts_after_the_first_confirmation() {
    let sim = Sim::new();
    sim.on("le_campaign", |_| After(3.0, Box::new(Row(vec![Some("7")]))));
    sim.on("le_am_leader", |n| if n == 0 { After(2.0, Box::new(Pid("t"))) } else { Pid("t") });
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(2.9).await;
    assert_eq!(run.0.state(), State::Waiting);
    pass(2.0).await;
    assert_eq!(sim.count("job begins"), 0);
    pass(0.2).await;
    assert_eq!(sim.times("job begins"), [5.0]);
    let words = ["le_campaign", "elected", "job begins"];
    assert_eq!(sim.order(&words), words);
    assert_eq!(run.0.state(), State::Leading);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u01_no_job_without_confirmation() {
    let sim = Sim::new();
    sim.on("le_am_leader", |n| {
        [Pid("f"), Silence, Fails("XX000", "no")].into_iter().nth(n % 3).unwrap()
    });
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(60.0).await;
    assert!(sim.count("le_am_leader") > 3);
    assert_eq!(sim.count("job begins"), 0);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u02_silence_cancels_after_the_validity_by_a_lease() {
    let sim = Sim::new();
    // bid sent at 0; renewals sent at 3 (answered at 4.5) and 6 (never)
    sim.on("le_renew", |n| if n == 0 { After(1.5, Box::new(Pid("t"))) } else { Silence });
    let run = start(sim.builder().ttl(secs(9.0)), sim.job(None, 0.0));
    pass(8.9).await;
    assert_eq!(sim.count("job ends"), 0);
    pass(0.5).await;
    // 3 + 2/3 * 9, since the answered question was sent at 3
    assert_eq!(sim.times("job ends"), [9.0]);
    pass(5.0).await;
    assert_eq!(sim.count("error InDoubt"), 1);
    assert_eq!(sim.count("ousted InDoubt"), 1);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u02_a_slow_bid_counts_from_when_it_was_sent() {
    let sim = Sim::new();
    sim.on("le_lease", |_| After(2.5, Box::new(Row(vec![Some("7")]))));
    sim.on("le_renew", |_| Silence);
    let run = start(sim.builder().ttl(secs(9.0)), sim.job(None, 0.0));
    pass(7.0).await;
    assert_eq!(sim.times("job begins"), [2.5]);
    assert_eq!(sim.times("job ends"), [6.0]);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u02_silence_cancels_after_the_validity_in_session_scope() {
    let sim = Sim::new();
    // questions sent at 0, 1 (answered at 1.5) and 2 (never): deadline 7, validity 1 + 6
    sim.on("le_am_leader", |n| match n {
        0 => Pid("t"),
        1 => After(0.5, Box::new(Pid("t"))),
        _ => Silence,
    });
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(6.9).await;
    assert_eq!(sim.count("job ends"), 0);
    pass(0.2).await;
    assert_eq!(sim.times("job ends"), [7.0]);
    assert_eq!(sim.count("error"), 1);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u02_slow_answers_count_from_when_they_were_asked_for() {
    let sim = Sim::new();
    // sent at 1 and answered at 5; sent at 5, and not answered by 1 + 6
    sim.on("le_am_leader", |n| match n {
        0 => Pid("t"),
        1 => After(4.0, Box::new(Pid("t"))),
        _ => Silence,
    });
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(12.0).await;
    assert_eq!(sim.times("job ends")[0], 7.0);
    assert_eq!(sim.times("error InDoubt")[0], 7.0);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u02_the_clock_can_pass_a_time_while_it_is_looked_at() {
    for step in 1..50 {
        let sim = Sim::new();
        let clock = sim.clone();
        let now = move || {
            clock.0.skew.fetch_add(step * 10, SeqCst);
            clock.now()
        };
        let env = Env { now: Arc::new(now), random: Arc::new(|| 0.0), jobs: None };
        let run = start(sim.builder().env(env), sim.job(None, 0.0));
        pass(10.0).await;
        stop(&sim, run).await;
    }
}

#[tokio::test(start_paused = true)]
async fn test_u02_no_job_after_elected_took_too_long() {
    let sim = Sim::new();
    let slow = sim.clone();
    let elected = move |_: &Term| {
        slow.0.skew.fetch_add(6100, SeqCst);
    };
    let run = start(sim.builder().on_elected(elected), sim.job(None, 0.0));
    pass(0.1).await;
    assert_eq!(sim.count("job begins"), 0);
    assert_eq!(sim.count("error InDoubt"), 1);
    assert_eq!(sim.count("ousted InDoubt"), 1);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u03_false_cancels_at_once() {
    for ttl in [None, Some(secs(9.0))] {
        let sim = Sim::new();
        sim.on("le_am_leader", |n| if n < 2 { Pid("t") } else { Pid("f") });
        sim.on("le_renew", |n| if n < 1 { Pid("t") } else { Pid("f") });
        let builder = ttl.map_or(sim.builder(), |ttl| sim.builder().ttl(ttl));
        // a job that does not look at its cancellation is dropped
        let began = sim.clone();
        let job = move |term: Term| {
            let sim = began.clone();
            async move {
                sim.say("job begins");
                let _end = Says(sim.clone(), "job ends");
                loop {
                    sleep(secs(0.1)).await;
                    if !term.is_leading() {
                        sim.say("job saw it");
                    }
                }
            }
        };
        let began = sim.now().as_secs_f64();
        let run = start(builder, job);
        pass(7.0).await;
        let at = began + if ttl.is_some() { 6.0 } else { 2.0 };
        assert_eq!(sim.times("job ends")[0], at);
        assert_eq!(sim.times("ousted Lost")[0], at);
        assert_eq!(sim.times("error Lost")[0], at);
        // what the server says is over is not resigned
        assert_eq!(sim.order(&["le_resign", "ousted"])[0], "ousted");
        stop(&sim, run).await;
    }
}

#[tokio::test(start_paused = true)]
async fn test_u04_end_of_the_connection_cancels_at_once() {
    let sim = Sim::new();
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(3.25).await;
    sim.0.cut.cancel();
    pass(0.05).await;
    assert_eq!(sim.times("job ends"), [3.25]);
    assert_eq!(sim.times("ousted Lost"), [3.25]);
    assert_eq!(sim.count("error Lost"), 1);
    assert_eq!(sim.count("le_resign"), 0);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u04_a_failed_confirmation_cancels_at_once() {
    let sim = Sim::new();
    sim.on("le_am_leader", |n| if n < 3 { Pid("t") } else { Fails("57P01", "terminated") });
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(3.1).await;
    assert_eq!(sim.times("job ends"), [3.0]);
    assert_eq!(sim.times("error Lost"), [3.0]);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u05_failed_renewals_are_tried_again() {
    let sim = Sim::new();
    // sent at 3, 3.9 and 4.8; the fourth at 5.7 is answered, and 8.7 is the next
    sim.on("le_renew", |n| if n < 3 { Fails("57P03", "restarts") } else { Pid("t") });
    let run = start(sim.builder().ttl(secs(9.0)), sim.job(None, 0.0));
    pass(10.0).await;
    assert_eq!(sim.times("le_renew"), [3.0, 3.9, 4.8, 5.7, 8.7]);
    assert_eq!(sim.times("error Database"), [3.0, 3.9, 4.8]);
    assert_eq!(sim.count("job ends"), 0);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u05_failed_renewals_end_with_the_validity() {
    let sim = Sim::new();
    sim.on("le_renew", |_| Fails("57P03", "restarts"));
    let run = start(sim.builder().ttl(secs(30.0)), sim.job(None, 0.0));
    pass(25.0).await;
    assert_eq!(sim.times("job ends")[0], 20.0);
    assert_eq!(sim.times("le_renew")[..3], [10.0, 11.0, 12.0]);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u06_no_heartbeat_cancels_though_the_server_answers() {
    let sim = Sim::new();
    let run = start(sim.builder().heartbeat(secs(6.0)), sim.job(None, 0.0));
    pass(3.9).await;
    assert_eq!(sim.count("job ends"), 0);
    pass(0.2).await;
    assert_eq!(sim.times("job ends"), [4.0]);
    assert_eq!(sim.times("le_am_leader")[..3], [1.0, 2.0, 3.0]);
    assert_eq!(sim.times("le_heartbeat"), [0.0]);
    assert_eq!(sim.count("ousted InDoubt"), 1);
    // the server answers, so the term is resigned
    assert_eq!(sim.count("le_resign"), 1);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u06_heartbeats_that_are_not_confirmed_do_not_count() {
    let sim = Sim::new();
    sim.on("le_heartbeat", |n| if n == 0 { Pid("t") } else { Silence });
    let run = start(sim.builder().heartbeat(secs(30.0)), sim.job(Some(0.3), 0.0));
    pass(7.0).await;
    assert_eq!(sim.times("job ends"), [6.0]);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u06_late_heartbeats_must_be_confirmed_in_time() {
    let sim = Sim::new();
    sim.on("le_heartbeat", |n| if n == 0 { Pid("t") } else { After(1.0, Box::new(Pid("t"))) });
    let run = start(sim.builder().heartbeat(secs(6.0)), sim.job(Some(3.5), 0.0));
    pass(4.1).await;
    assert_eq!(sim.times("job ends"), [4.0]);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u06_the_time_counts_from_the_last_call() {
    let sim = Sim::new();
    let run = start(sim.builder().heartbeat(secs(6.0)), |term: Term| async move {
        sleep(secs(0.5)).await;
        term.heartbeat();
        pending().await
    });
    pass(5.1).await;
    assert_eq!(sim.times("le_heartbeat")[..2], [0.0, 1.0]);
    assert_eq!(sim.times("ousted InDoubt"), [4.5]);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u07_le_heartbeat_only_after_a_call() {
    let sim = Sim::new();
    let run = start(sim.builder().heartbeat(secs(9.0)), sim.job(Some(2.5), 0.0));
    pass(6.1).await;
    // the first confirmation, and after the calls at 2.5 and 5
    assert_eq!(sim.times("le_heartbeat"), [0.0, 3.0, 5.0]);
    assert_eq!(sim.times("le_am_leader"), [1.0, 2.0, 4.0, 6.0]);
    assert_eq!(sim.count("job ends"), 0);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u07_short_heartbeats_are_sent_each_third() {
    let sim = Sim::new();
    let run = start(sim.builder().heartbeat(secs(1.5)), sim.job(Some(0.1), 0.0));
    pass(1.6).await;
    assert_eq!(sim.times("le_heartbeat"), [0.0, 0.5, 1.0, 1.5]);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u08_renew_on_heartbeat() {
    let sim = Sim::new();
    let builder = sim.builder().ttl(secs(9.0)).renew_on_heartbeat();
    let run = start(builder, sim.job(None, 0.0));
    pass(6.1).await;
    assert_eq!(sim.times("job ends"), [6.0]);
    assert_eq!(sim.count("le_renew"), 0);
    assert_eq!(sim.count("ousted InDoubt"), 1);
    stop(&sim, run).await;

    let sim = Sim::new();
    let builder = sim.builder().ttl(secs(9.0)).renew_on_heartbeat();
    let run = start(builder, sim.job(Some(4.0), 0.0));
    pass(30.0).await;
    assert_eq!(sim.count("job ends"), 0);
    // at 3 there was no call yet; it is looked again, and the call at 4 is found
    assert_eq!(sim.times("le_renew")[0], 4.8);
    stop(&sim, run).await;
}

/// A job that blocks its thread cannot be stopped. It blocks one of another runtime here.
fn blocking(
    sim: &Sim,
) -> (mpsc::Sender<()>, impl Fn(Term) -> BoxFuture<'static, Result<(), BoxError>>) {
    let (release, blocked) = mpsc::channel::<()>();
    let (sim, blocked) = (sim.clone(), Arc::new(Mutex::new(blocked)));
    let job = move |_| -> BoxFuture<'static, Result<(), BoxError>> {
        let (sim, blocked) = (sim.clone(), blocked.clone());
        Box::pin(async move {
            sim.say("job begins");
            let _ = blocked.lock().unwrap().recv();
            sim.say("job ends");
            Ok(())
        })
    };
    (release, job)
}

fn with_jobs_elsewhere() -> Sim {
    let jobs = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    Sim::with(0.0, Some(jobs))
}

/// Answer false as soon as the first job has begun.
fn end_first_term(sim: &Sim) {
    let world = Arc::downgrade(&sim.0);
    sim.on("le_am_leader", move |_| {
        let sim = Sim(world.upgrade().unwrap());
        let first = sim.count("le_campaign") == 1 && sim.count("job begins") == 1;
        Pid(if first { "f" } else { "t" })
    });
}

/// Wait for another thread, while virtual time passes.
async fn await_that(done: impl Fn() -> bool) {
    while !done() {
        sleep(secs(0.01)).await;
        std::thread::yield_now();
    }
}

/// Drop the runtime of the jobs, which must not happen within a runtime.
fn end(sim: Sim) {
    std::thread::spawn(move || drop(sim)).join().unwrap();
}

#[tokio::test(start_paused = true)]
async fn test_u09_no_campaign_before_the_job_has_stopped() {
    let sim = with_jobs_elsewhere();
    end_first_term(&sim);
    let (release, job) = blocking(&sim);
    let run = start(sim.builder(), job);
    await_that(|| sim.count("job begins") == 1).await;
    pass(1000.0).await;
    assert_eq!(run.0.state(), State::Stopping);
    assert_eq!(sim.count("le_campaign"), 1);
    assert_eq!(sim.count("job ends"), 0);
    assert_eq!(sim.count("ousted"), 0);
    release.send(()).unwrap();
    await_that(|| sim.count("job begins") == 2).await;
    let words = ["job ends", "ousted", "le_campaign"];
    assert_eq!(sim.order(&words), ["le_campaign", "job ends", "ousted", "le_campaign"]);
    release.send(()).unwrap();
    stop(&sim, run).await;
    end(sim);
}

#[tokio::test(start_paused = true)]
async fn test_u10_a_job_that_does_not_stop_is_reported_once() {
    let sim = with_jobs_elsewhere();
    end_first_term(&sim);
    let (release, job) = blocking(&sim);
    let run = start(sim.builder().stop_timeout(secs(20.0)), job);
    await_that(|| sim.count("error Lost") == 1).await;
    pass(500.0).await;
    let lost = sim.times("error Lost")[0];
    assert_eq!(sim.times("error JobNotStopped"), [lost + 20.0]);
    run.0.stop();
    pass(500.0).await;
    assert_eq!(sim.count("error JobNotStopped"), 1);
    assert!(!run.1.is_finished());
    release.send(()).unwrap();
    stop(&sim, run).await;
    end(sim);
}

#[tokio::test(start_paused = true)]
async fn test_u10_after_the_stop_timeout_a_job_is_dropped() {
    let sim = Sim::new();
    let run = start(sim.builder(), sim.job(None, 100.0));
    pass(3.5).await;
    stop(&sim, run).await;
    assert_eq!(sim.times("job is told to stop"), [3.5]);
    assert_eq!(sim.times("error JobNotStopped"), [13.5]);
    assert_eq!(sim.times("job ends"), [13.5]);
    // leadership was kept and confirmed meanwhile
    assert_eq!(sim.times("le_am_leader").last(), Some(&13.0));
    assert_eq!(sim.times("le_resign"), [13.5]);
}

#[tokio::test(start_paused = true)]
async fn test_u10_a_job_that_stops_in_time_is_not_reported() {
    let sim = Sim::new();
    let run = start(sim.builder(), sim.job(None, 9.9));
    pass(3.5).await;
    stop(&sim, run).await;
    assert_eq!(sim.count("error"), 0);
}

#[tokio::test(start_paused = true)]
async fn test_u11_stop_while_leading() {
    for ttl in [None, Some(secs(3.0))] {
        let sim = Sim::new();
        let builder = ttl.map_or(sim.builder(), |ttl| sim.builder().ttl(ttl));
        let run = start(builder, sim.job(None, 4.0));
        pass(2.5).await;
        run.0.stop();
        pass(2.0).await;
        assert_eq!(run.0.state(), State::Stopping);
        assert_eq!(sim.count("le_resign"), 0);
        stop(&sim, run).await;
        assert_eq!(sim.times("job is told to stop"), [2.5]);
        assert_eq!(sim.times("job ends"), [6.5]);
        assert_eq!(sim.times("le_resign"), [6.5]);
        let question = if ttl.is_some() { "le_renew" } else { "le_am_leader" };
        assert_eq!(sim.times(question).last(), Some(&6.0));
        let words = ["job is told", "job ends", "le_resign", "ousted Resigned"];
        assert_eq!(sim.order(&words), words);
        assert_eq!(sim.count("error"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn test_u11_leadership_lost_while_stopping_drops_the_job() {
    let sim = Sim::new();
    sim.on("le_am_leader", |n| if n < 4 { Pid("t") } else { Pid("f") });
    let run = start(sim.builder(), sim.job(None, 8.0));
    pass(2.5).await;
    stop(&sim, run).await;
    assert_eq!(sim.times("job ends"), [4.0]);
    assert_eq!(sim.count("ousted Lost"), 1);
    assert_eq!(sim.count("le_resign"), 0);
}

#[tokio::test(start_paused = true)]
async fn test_u12_stop_while_waiting() {
    let sim = Sim::new();
    sim.on("le_campaign", |_| Silence);
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(100.0).await;
    assert_eq!(run.0.state(), State::Waiting);
    stop(&sim, run).await;
    assert_eq!(sim.times("close 0"), [100.0]);
    assert_eq!(sim.count("le_resign") + sim.count("elected") + sim.count("error"), 0);
}

#[tokio::test(start_paused = true)]
async fn test_u12_stop_while_connecting() {
    let sim = Sim::new();
    sim.on("open", |_| Silence);
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(2.0).await;
    run.0.stop();
    run.1.await.unwrap().unwrap();
    assert_eq!(sim.now(), secs(2.0));
}

#[tokio::test(start_paused = true)]
async fn test_u12_stop_while_bidding_for_a_lease_resigns_what_is_granted() {
    let sim = Sim::new();
    sim.on("le_lease", |n| match n {
        0 => null(),
        _ => After(2.0, Box::new(Row(vec![Some("7")]))),
    });
    let run = start(sim.builder().ttl(secs(9.0)), sim.job(None, 0.0));
    pass(4.0).await;
    assert_eq!(sim.times("le_lease"), [0.0, 3.0]);
    stop(&sim, run).await;
    assert_eq!(sim.times("le_resign"), [5.0]);
    assert_eq!(sim.count("elected") + sim.count("job begins"), 0);
}

#[tokio::test(start_paused = true)]
async fn test_u12_stop_between_bids_returns_at_once() {
    let sim = Sim::new();
    sim.on("le_lease", |_| null());
    let run = start(sim.builder().ttl(secs(9.0)), sim.job(None, 0.0));
    pass(4.0).await;
    stop(&sim, run).await;
    assert_eq!(sim.now(), secs(4.0));
}

#[tokio::test(start_paused = true)]
async fn test_u13_stop_while_paused_returns_at_once() {
    let sim = Sim::new();
    sim.on("open", |_| Fails("57P03", "no"));
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(100.0).await;
    assert_eq!(run.0.state(), State::Paused);
    run.0.stop();
    run.1.await.unwrap().unwrap();
    assert_eq!(sim.now(), secs(100.0));
}

#[tokio::test(start_paused = true)]
async fn test_u14_a_job_that_returns() {
    for (random, pause) in [(0.0, 0.5), (1.0, 1.0)] {
        let sim = Sim::with(random, None);
        let run = start(sim.builder(), |_| async {
            sleep(secs(2.0)).await;
            Ok(())
        });
        pass(2.4).await;
        assert_eq!(run.0.state(), State::Paused);
        pass(1.0).await;
        assert_eq!(sim.times("le_resign"), [2.0]);
        assert_eq!(sim.times("le_campaign"), [0.0, 2.0 + pause]);
        assert_eq!(sim.count("ousted JobReturned"), 1);
        assert_eq!(sim.count("error"), 0);
        stop(&sim, run).await;
    }
}

#[tokio::test(start_paused = true)]
async fn test_u15_a_job_that_fails() {
    for panics in [false, true] {
        let sim = Sim::new();
        let run = start(sim.builder(), move |_| async move {
            sleep(secs(2.0)).await;
            assert!(!panics, "oops");
            Err("oops".into())
        });
        pass(3.0).await;
        assert_eq!(sim.count("error Job: the job has failed"), 1);
        assert_eq!(sim.count("oops"), 1);
        let words = ["error Job", "le_resign", "ousted JobFailed", "le_campaign"];
        assert_eq!(
            sim.order(&words)[1..],
            ["error Job", "le_resign", "ousted JobFailed", "le_campaign"]
        );
        assert_eq!(sim.times("le_campaign"), [0.0, 2.25]);
        stop(&sim, run).await;
    }
}

#[tokio::test(start_paused = true)]
async fn test_u16_pauses_grow() {
    for (random, factor) in [(0.0, 0.5), (1.0, 1.0)] {
        let sim = Sim::with(random, None);
        sim.on("open", |n| if n < 8 { Fails("57P03", "no") } else { Row(vec![]) });
        sim.on("le_campaign", |n| if n == 0 { null() } else { Fails("57P03", "no") });
        let run = start(sim.builder(), sim.job(None, 0.0));
        pass(75.0).await;
        let times = sim.times("error Database");
        let pauses: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]) / factor).collect();
        let expected = [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0, 0.5, 1.0];
        for (pause, expected) in pauses.iter().zip(expected) {
            assert!((pause - expected).abs() < 0.05, "{pauses:?}");
        }
        assert!(pauses.len() >= expected.len());
        stop(&sim, run).await;
    }
}

#[tokio::test(start_paused = true)]
async fn test_u17_a_lease_that_could_not_be_resigned_is_bid_for() {
    let sim = Sim::new();
    sim.on("le_resign", |n| if n == 0 { Fails("57P03", "no") } else { Pid("t") });
    let run = start(sim.builder().ttl(secs(9.0)), |_| async {
        sleep(secs(2.0)).await;
        Ok(())
    });
    pass(5.5).await;
    let bids: Vec<_> = {
        let log = sim.0.log.lock().unwrap();
        log.iter().filter(|(_, said)| said.contains("le_lease")).map(|(_, s)| s.clone()).collect()
    };
    assert!(bids[0].ends_with("E'me'::text, token => NULL)"), "{bids:?}");
    assert!(bids[1].ends_with("E'me'::text, token => 7)"), "{bids:?}");
    assert!(bids[2].ends_with("E'me'::text, token => NULL)"), "{bids:?}");
    assert_eq!(sim.count("error Database"), 1);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u18_two_connections_with_one_process_id() {
    let sim = Sim::new();
    sim.on("pg_backend_pid", |_| Row(vec![Some("4711")]));
    let (_, run) = start(sim.builder(), sim.job(None, 0.0));
    assert_eq!(failed(run).await.kind(), ErrorKind::Pooler);
    assert_eq!(sim.count("le_campaign"), 0);
    assert_eq!(sim.count("open"), 2);
    assert_eq!(sim.count("close"), 2);
}

#[tokio::test(start_paused = true)]
async fn test_u18_a_changed_process_id() {
    for first in [true, false] {
        let sim = Sim::new();
        sim.on("le_am_leader", move |n| {
            if n == 0 && !first {
                Pid("t")
            } else {
                Row(vec![Some("t"), Some("4711")])
            }
        });
        let (_, run) = start(sim.builder(), sim.job(None, 0.0));
        assert_eq!(failed(run).await.kind(), ErrorKind::Pooler);
        assert_eq!(sim.count("job begins"), usize::from(!first));
        assert_eq!(sim.count("job begins"), sim.count("job ends"));
        assert_eq!(sim.count("le_depose"), 1);
        assert_eq!(sim.count("close"), 2);
        assert_eq!(sim.count("error"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn test_u18_another_identity_in_the_session() {
    let sim = Sim::new();
    sim.on("le_campaign", |_| {
        Fails("LE005", "cannot wait to lead election \"x\", which this session leads already")
    });
    let (_, run) = start(sim.builder(), sim.job(None, 0.0));
    let error = failed(run).await;
    assert_eq!((error.kind(), error.sqlstate()), (ErrorKind::Pooler, Some("LE005")));

    // other errors do not end it
    let sim = Sim::new();
    sim.on("le_campaign", |_| Fails("55000", "the registry was made by another version"));
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(1.0).await;
    assert!(sim.count("error Database") > 0);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u19_is_leading_looks_at_the_clock() {
    let sim = Sim::new();
    let seen = Arc::new(Mutex::new(None));
    let (keep, job) = (seen.clone(), sim.job(None, 0.0));
    let run = start(sim.builder(), move |term: Term| {
        *keep.lock().unwrap() = Some(term.clone());
        job(term)
    });
    pass(0.5).await;
    let term = seen.lock().unwrap().clone().unwrap();
    assert!(term.is_leading());
    sim.0.skew.store(5_499, SeqCst); // the machine was suspended; no timer has run
    assert!(term.is_leading());
    sim.0.skew.store(5_500, SeqCst);
    assert!(!term.is_leading());
    assert!(!term.cancellation().is_cancelled());
    sim.on("le_am_leader", |_| Silence);
    pass(1.0).await; // a timer notices soon, by the clock
    assert!(term.cancellation().is_cancelled());
    sim.0.skew.store(0, SeqCst);
    assert!(!term.is_leading());
    stop(&sim, run).await;
    assert!(!term.is_leading());
}

#[tokio::test(start_paused = true)]
async fn test_u19_is_leading_is_false_after_a_resignation() {
    let sim = Sim::new();
    let seen = Arc::new(Mutex::new(None));
    let keep = seen.clone();
    let run = start(sim.builder(), move |term: Term| {
        *keep.lock().unwrap() = Some(term);
        async { Ok(()) }
    });
    pass(0.1).await;
    assert_eq!(sim.times("ousted JobReturned"), [0.0]);
    assert!(!seen.lock().unwrap().as_ref().unwrap().is_leading());
    run.0.stop();
    run.1.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn test_u19_is_leading_is_false_after_a_stop() {
    let sim = Sim::new();
    let seen = Arc::new(Mutex::new(None));
    let keep = seen.clone();
    let run = start(sim.builder(), move |term: Term| {
        *keep.lock().unwrap() = Some(term);
        async {
            tokio::time::sleep(secs(4.0)).await;
            Ok(())
        }
    });
    pass(1.5).await;
    assert!(seen.lock().unwrap().as_ref().unwrap().is_leading());
    run.0.stop();
    pass(0.1).await;
    assert_eq!(run.0.state(), State::Stopping);
    assert!(!seen.lock().unwrap().as_ref().unwrap().is_leading());
    run.1.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn test_u20_callbacks() {
    let sim = Sim::new();
    sim.on("le_am_leader", |n| if n == 3 { Pid("f") } else { Pid("t") });
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(4.0).await;
    stop(&sim, run).await;
    let words =
        ["elected 7", "job begins", "error Lost", "job ends", "ousted Lost", "ousted Resigned"];
    let expected = [
        "elected 7",
        "job begins",
        "error Lost",
        "job ends",
        "ousted Lost",
        "elected 7",
        "job begins",
        "job ends",
        "ousted Resigned",
    ];
    assert_eq!(sim.order(&words), expected);
}

#[tokio::test(start_paused = true)]
async fn test_u20_callbacks_that_fail() {
    let sim = Sim::new();
    let builder = sim.builder();
    let errors = sim.clone();
    let builder = builder
        .on_elected(|_| panic!("elected is broken"))
        .on_ousted(|_, reason| panic!("ousted is broken {reason:?}"))
        .on_error(move |error| {
            errors.say(format!("error {:?}: {error}", error.kind()));
            panic!("error is broken")
        });
    let run = start(builder, |_| async {
        sleep(secs(2.0)).await;
        Ok(())
    });
    pass(3.0).await;
    assert_eq!(sim.times("le_campaign"), [0.0, 2.5]);
    stop(&sim, run).await;
    let words = ["elected is broken", "ousted is broken JobReturned", "ousted is broken Resigned"];
    assert_eq!(sim.order(&words), [words[0], words[1], words[0], words[2]]);
    assert_eq!(sim.count("error Callback"), 4);
}

#[tokio::test(start_paused = true)]
async fn test_u21_seats() {
    for ttl in [None, Some(secs(3.0))] {
        let sim = Sim::new();
        let builder = sim.builder().seats(3);
        let builder = ttl.map_or(sim.builder().seats(3), |ttl| builder.ttl(ttl));
        let run = start(builder, sim.job(None, 0.0));
        pass(1.5).await;
        assert_eq!(sim.count("job begins it's/2 7"), 1);
        stop(&sim, run).await;
        assert_eq!(sim.count("CALL le_campaign(le_seats(E'it''s'::text, 3), "), 1);
        let (question, resign) = match ttl {
            Some(_) => ("le_renew(E'it''s/2'::text, 7)", "le_resign(E'it''s/2'::text, 7)"),
            None => {
                ("le_am_leader(E'it''s/2'::text,", "le_resign(E'it''s/2'::text, identity => E'me'")
            }
        };
        assert!(sim.count(question) > 0);
        assert_eq!(sim.count(resign), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn test_u22_bad_arguments() {
    let sim = Sim::new();
    let named = |name: &str| Elector::builder(sim.clone(), name);
    let long = "x".repeat(256);
    let bad = [
        named(""),
        named(&long),
        named("a\0b"),
        named(&long[..254]).seats(1),
        sim.builder().identity(""),
        sim.builder().identity(&long),
        sim.builder().seats(0),
        sim.builder().seats(10_001),
        sim.builder().heartbeat(secs(0.999)),
        sim.builder().ttl(secs(0.999)),
        sim.builder().ttl(secs(2.0)).heartbeat(secs(2.0)),
        sim.builder().renew_on_heartbeat(),
        sim.builder().heartbeat(secs(2.0)).renew_on_heartbeat(),
    ];
    for (i, builder) in bad.into_iter().enumerate() {
        let error = builder.build().err().unwrap_or_else(|| panic!("{i} is taken"));
        assert_eq!(error.kind(), ErrorKind::Argument);
    }
    assert!(crate::every(sim.clone(), secs(0.5), |_, _| unreachable!()).is_err());
    let good = [
        named(&long[..255]),
        named(&long[..253]).seats(1),
        sim.builder().seats(10_000),
        sim.builder().heartbeat(secs(1.0)),
        sim.builder().ttl(secs(1.0)).renew_on_heartbeat(),
        sim.builder().stop_timeout(Duration::MAX),
    ];
    assert!(good.into_iter().all(|builder| builder.build().is_ok()));
}

#[tokio::test(start_paused = true)]
async fn test_u23_null_is_bid_again_at_once() {
    let sim = Sim::new();
    sim.on("le_campaign", |n| match n {
        0 | 1 => After(300.0, Box::new(null())),
        _ => Row(vec![Some("7")]),
    });
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(700.0).await;
    assert_eq!(sim.times("le_campaign"), [0.0, 300.0, 600.0]);
    assert_eq!(sim.times("job begins"), [600.0]);
    assert_eq!(sim.count("error"), 0);
    assert_eq!(sim.count("open"), 2);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u23_a_round_that_is_not_answered_is_an_error() {
    let sim = Sim::new();
    sim.on("le_campaign", |_| Silence);
    let run = start(sim.builder(), sim.job(None, 0.0));
    pass(306.0).await;
    assert_eq!(sim.times("error Timeout"), [305.0]);
    stop(&sim, run).await;
}

#[tokio::test(start_paused = true)]
async fn test_u24_default_identities_differ() {
    let identity = || {
        let elector = Elector::builder(Sim::new(), "x").build().unwrap();
        elector.identity().to_owned()
    };
    let (one, other) = (identity(), identity());
    assert_ne!(one, other);
    let parts: Vec<_> = one.rsplitn(3, ':').collect();
    assert_eq!(parts[1], std::process::id().to_string());
    assert_eq!(parts[0].len(), 4);
    assert!(parts[0].bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
    assert!(!parts[2].is_empty());
}

#[tokio::test(start_paused = true)]
async fn deadlines_of_short_ways_are_a_third() {
    for heartbeat in [true, false] {
        let sim = Sim::new();
        sim.on("le_lease", |_| Silence);
        sim.on("open", |_| Silence);
        let builder = sim.builder();
        let way = if heartbeat { builder.heartbeat(secs(3.0)) } else { builder.ttl(secs(3.0)) };
        let run = start(way, sim.job(None, 0.0));
        pass(1.1).await;
        assert_eq!(sim.times("error Timeout"), [1.0]);
        run.0.stop();
        run.1.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_leaves_nothing_behind() {
    let sim = Sim::new();
    let (handle, run) = start(sim.builder(), sim.job(None, 0.0));
    pass(1.5).await;
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    pass(0.1).await;
    assert_eq!(sim.times("job ends"), [1.5]);
    assert_eq!(sim.count("open"), sim.count("close"));
    assert_eq!(handle.state(), State::Stopped);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[test]
fn quoting() {
    assert_eq!(crate::port::quote(r"a'b\c"), r"E'a''b\\c'::text");
    assert_eq!(crate::port::interval(secs(1.5)), "'1500000 us'::interval");
}

#[test]
fn the_clock_advances() {
    let env = Env::default();
    let (began, start) = (std::time::Instant::now(), (env.now)());
    std::thread::sleep(secs(0.02));
    let (passed, really) = ((env.now)() - start, began.elapsed());
    assert!(passed >= secs(0.02) && passed <= really + secs(1.0));
    assert!((0.0..=1.0).contains(&(env.random)()));
}

#[test]
fn the_future_of_run_can_be_spawned() {
    fn send<T: Send>(_: T) {}
    let check = |sim: Sim| {
        send(Elector::builder(sim, "x").build().unwrap().run(|_| async { Ok::<_, String>(()) }))
    };
    let _ = (check, Reason::Lost);
}
