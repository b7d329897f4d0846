//! S01 to S10 of ../README.md, against a real server: DATABASE_URL is a direct connection,
//! POOLER_URL one through PgBouncer in transaction mode.

use leader_election::{
    every, follow, leader, BoxError, Builder, Connector, Elector, Error, ErrorKind, Handle, Leader,
    Server, State, Term,
};
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

const PATIENCE: Duration = Duration::from_secs(20);
/// Seconds: a lease whose validity is 4 s, and which is renewed each 2 s, outlives a pause of the
/// machine of 2 s. A heartbeat likewise.
const TTL: f64 = 6.0;

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Return the URLs, or say why the test is skipped.
fn urls() -> Option<(String, String)> {
    match (std::env::var("DATABASE_URL"), std::env::var("POOLER_URL")) {
        (Ok(direct), Ok(pooler)) => Some((direct, pooler)),
        _ => {
            eprintln!("SKIPPED: DATABASE_URL and POOLER_URL are not set");
            None
        }
    }
}

fn name(test: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    format!("rust {test} {since} {} {}", std::process::id(), NEXT.fetch_add(1, SeqCst))
}

/// Makes a server to campaign on of a URL.
trait Connect: Clone + Send + Sync + 'static {
    type Server: Server;
    fn to(&self, url: &str) -> Self::Server;
    /// How soon the end of a session is noticed.
    const NOTICE: Duration;
}

#[derive(Clone)]
struct Sqlx;

impl Connect for Sqlx {
    type Server = PgPool;
    fn to(&self, url: &str) -> PgPool {
        PgPoolOptions::new().max_connections(2).connect_lazy(url).unwrap()
    }
    // by a question, each second; the session is in doubt after 6 s
    const NOTICE: Duration = Duration::from_secs(4);
}

#[derive(Clone)]
struct TokioPostgres;

impl Connect for TokioPostgres {
    type Server = Connector<NoTls>;
    fn to(&self, url: &str) -> Connector<NoTls> {
        Connector::new(url.parse().unwrap(), NoTls)
    }
    const NOTICE: Duration = Duration::from_millis(700);
}

/// What has happened.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn say(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn count(&self, what: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|said| said.starts_with(what)).count()
    }

    async fn until(&self, what: &str, count: usize) {
        until(&format!("{count} {what}"), || async { self.count(what) >= count }).await;
    }

    fn builder<S: Server>(&self, server: S, election: &str) -> Builder<S> {
        let (elected, ousted, error) = (self.clone(), self.clone(), self.clone());
        Elector::builder(server, election)
            .on_elected(move |term| elected.say(format!("elected {}", term.election())))
            .on_ousted(move |_, reason| ousted.say(format!("ousted {reason:?}")))
            .on_error(move |e| error.say(format!("error {:?} {e}", e.kind())))
    }

    /// Return a job that works until it is told to stop.
    fn job(
        &self,
        heartbeat: bool,
    ) -> impl Fn(Term) -> leader_election::BoxFuture<'static, Result<(), BoxError>> {
        let log = self.clone();
        move |term: Term| {
            let log = log.clone();
            Box::pin(async move {
                log.say(format!("job begins {}", term.token()));
                let _end = End(log);
                while !term.cancellation().is_cancelled() {
                    if heartbeat {
                        term.heartbeat();
                    }
                    term.cancellation().run_until_cancelled(sleep(secs(0.1))).await;
                }
                Ok(())
            })
        }
    }
}

struct End(Log);

impl Drop for End {
    fn drop(&mut self) {
        self.0.say("job ends");
    }
}

async fn until<F: std::future::Future<Output = bool>>(what: &str, done: impl Fn() -> F) {
    let start = Instant::now();
    while !done().await {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        sleep(secs(0.02)).await;
    }
}

struct Run(Handle, JoinHandle<Result<(), Error>>);

impl Run {
    fn start<S: Server>(
        builder: Builder<S>,
        job: impl Fn(Term) -> leader_election::BoxFuture<'static, Result<(), BoxError>>
            + Send
            + Sync
            + 'static,
    ) -> Run {
        let elector = builder.build().unwrap();
        Run(elector.handle(), tokio::spawn(elector.run(job)))
    }

    async fn stop(self) {
        self.0.stop();
        self.end().await.unwrap();
    }

    async fn end(self) -> Result<(), Error> {
        let ended = timeout(PATIENCE, self.1).await.expect("run returns").unwrap();
        assert_eq!(self.0.state(), State::Stopped);
        ended
    }
}

/// A session to look on from.
async fn admin(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Return the first column of the first row.
async fn ask(admin: &Client, sql: &str) -> Option<String> {
    let messages = admin.simple_query(sql).await.unwrap();
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

async fn s01<C: Connect>(connect: C) {
    let Some((direct, _)) = urls() else { return };
    let (election, log, admin) = (name("s01"), Log::default(), admin(&direct).await);
    let builder = log.builder(connect.to(&direct), &election).identity("it's \\ me");
    let run = Run::start(builder, log.job(false));
    log.until("job begins", 1).await;
    let row =
        format!("SELECT identity || scope || token FROM le_leaders WHERE name = '{election}'");
    let token = log.0.lock().unwrap().last().unwrap().replace("job begins ", "");
    assert_eq!(ask(&admin, &row).await, Some(format!("it's \\ mesession{token}")));
    sleep(secs(2.5)).await;
    assert_eq!(log.count("job ends"), 0);
    run.stop().await;
    assert_eq!(ask(&admin, &row).await, None);
    assert_eq!(log.count("ousted Resigned"), 1);
    assert_eq!(log.count("error"), 0);
}

async fn s02<C: Connect>(connect: C) {
    let Some((direct, _)) = urls() else { return };
    let (election, log, admin) = (name("s02"), Log::default(), admin(&direct).await);
    let builder = log.builder(connect.to(&direct), &election).ttl(secs(TTL)).identity("me");
    let run = Run::start(builder, log.job(false));
    log.until("job begins", 1).await;
    let began = Instant::now();
    let row = |column| format!("SELECT {column} FROM le_leaders WHERE name = '{election}'");
    let renewals = row("scope || renewals");
    until("renewals", || async { ask(&admin, &renewals).await.unwrap() == "lease3" }).await;
    assert!(began.elapsed() > secs(TTL - 1.0), "{:?}", began.elapsed());
    assert_eq!(log.count("job ends"), 0);
    run.stop().await;
    assert_eq!(ask(&admin, &row("identity")).await, None);
    assert_eq!(log.count("error"), 0);
}

async fn s03<C: Connect>(connect: C) {
    let Some((direct, _)) = urls() else { return };
    let (election, log, other) = (name("s03"), Log::default(), Log::default());
    let way = |log: &Log| log.builder(connect.to(&direct), &election).heartbeat(secs(TTL));
    let run = Run::start(way(&log), log.job(false));
    log.until("job begins", 1).await;
    let began = Instant::now();
    let (seen, first) = (Arc::new(AtomicBool::new(true)), log.clone());
    let (overlap, job) = (seen.clone(), other.job(true));
    let second = Run::start(way(&other), move |term| {
        overlap.store(first.count("job ends") == 0, SeqCst);
        job(term)
    });
    other.until("job begins", 1).await;
    assert!(!seen.load(SeqCst), "the job that hangs has not been stopped");
    assert!(began.elapsed() < secs(TTL + 3.0));
    assert_eq!(log.count("ousted InDoubt"), 1);
    sleep(secs(5.0)).await;
    assert_eq!(other.count("job ends"), 0);
    run.stop().await;
    second.stop().await;
    assert_eq!(other.count("error"), 0);
}

async fn s04<C: Connect>(connect: C) {
    let Some((direct, _)) = urls() else { return };
    let admin = admin(&direct).await;
    for (end, ttl) in [
        ("SELECT pg_terminate_backend(pid) FROM le_leader('x')", None),
        ("SELECT le_depose('x')", None),
        ("SELECT le_depose('x')", Some(secs(TTL))),
    ] {
        let (election, log) = (name("s04"), Log::default());
        let builder = log.builder(connect.to(&direct), &election);
        let builder = match ttl {
            Some(ttl) => builder.ttl(ttl),
            None => builder,
        };
        let run = Run::start(builder, log.job(false));
        let end = end.replace("'x'", &format!("'{election}'"));
        let notice = if ttl.is_some() { PATIENCE } else { C::NOTICE };
        let (mut took, mut terms) = (Duration::MAX, 0);
        // a busy machine may be late, but not each time
        while took >= notice && terms < 5 {
            terms += 1;
            log.until("job begins", terms).await;
            sleep(secs(0.1)).await;
            let began = Instant::now();
            assert_eq!(ask(&admin, &end).await.unwrap(), "t");
            log.until("job ends", terms).await;
            took = began.elapsed();
            log.until("ousted Lost", terms).await;
        }
        assert!(took < notice, "{took:?} {end}");
        assert_eq!(log.count("error Lost"), terms);
        log.until("job begins", terms + 1).await;
        run.stop().await;
    }
}

async fn s05<C: Connect>(connect: C) {
    let Some((direct, pooler)) = urls() else { return };
    let (election, log, admin) = (name("s05"), Log::default(), admin(&direct).await);
    let leaders = format!("SELECT count(*) FROM le_leaders WHERE name = '{election}'");
    for builder in [
        log.builder(connect.to(&pooler), &election),
        log.builder(connect.to(&pooler), &election).heartbeat(secs(3.0)),
    ] {
        let error = Run::start(builder, log.job(false)).end().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Pooler);
        assert_eq!(ask(&admin, &leaders).await.unwrap(), "0");
    }
    assert_eq!(log.0.lock().unwrap().len(), 0);
    // several electors at a time, so that their statements share server connections
    let mut runs = Vec::new();
    for i in 0..8 {
        let builder = log.builder(connect.to(&pooler), &format!("{election} {i}"));
        runs.push(Run::start(builder.ttl(secs(TTL)), log.job(false)));
        let builder = log.builder(connect.to(&pooler), &format!("{election} {i}"));
        runs.push(Run::start(builder.ttl(secs(TTL)), log.job(false)));
    }
    log.until("job begins", 8).await;
    sleep(secs(5.0)).await; // two renewals
    assert_eq!(log.count("job ends"), 0);
    for run in runs {
        run.stop().await;
    }
    assert_eq!(log.count("error"), 0, "{:?}", log.0);
    let leaders = format!("SELECT count(*) FROM le_leaders WHERE name LIKE '{election} %'");
    assert_eq!(ask(&admin, &leaders).await.unwrap(), "0");
}

async fn s06<C: Connect>(connect: C) {
    let Some((direct, pooler)) = urls() else { return };
    let (election, admin) = (name("s06"), admin(&direct).await);
    let mut follower = follow(connect.to(&direct), &election);
    async fn next<S: Server>(follower: &mut leader_election::Follower<S>) -> Option<Leader> {
        timeout(PATIENCE, follower.next()).await.expect("a change")
    }
    let server = connect.to(&direct);
    assert_eq!(leader(&server, &election).await.unwrap(), None);
    assert_eq!(leader(&connect.to(&pooler), &election).await.unwrap(), None);
    assert_eq!(next(&mut follower).await, None);

    let elect = format!("SELECT le_try_become_leader('{election}', identity => 'one')");
    ask(&admin, &elect).await;
    let one = next(&mut follower).await.unwrap();
    assert_eq!(leader(&server, &election).await.unwrap().as_ref(), Some(&one));
    assert_eq!(leader(&connect.to(&pooler), &election).await.unwrap().as_ref(), Some(&one));
    assert_eq!((one.election.as_str(), one.identity.as_str()), (election.as_str(), "one"));
    assert_eq!((one.scope.as_str(), &one.value), ("session", &None));
    assert!(one.since.elapsed().unwrap() < secs(10.0));

    // a call that is cancelled loses nothing
    assert!(timeout(secs(0.3), follower.next()).await.is_err());
    ask(&admin, &format!("SELECT le_proclaim('{election}', 'it''s')")).await;
    let value = next(&mut follower).await.unwrap();
    assert_eq!(value.value.as_deref(), Some("it's"));
    assert_eq!(value.token, one.token);

    ask(&admin, &format!("SELECT le_resign('{election}')")).await;
    assert_eq!(next(&mut follower).await, None);
    ask(&admin, &format!("SELECT le_lease('{election}', '30 s', identity => 'two')")).await;
    let two = next(&mut follower).await.unwrap();
    assert_eq!((two.identity.as_str(), two.scope.as_str()), ("two", "lease"));
    assert!(two.token > one.token);
    ask(&admin, &format!("SELECT le_resign('{election}', {})", two.token)).await;
    assert_eq!(next(&mut follower).await, None);

    // it reconnects
    let errors = Log::default();
    let report = errors.clone();
    let mut follower = follower.on_error(move |error| report.say(error.to_string()));
    let follow = tokio::spawn(async move { follower.next().await });
    let observers = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CALL le_observe(E''{election}%'"
    );
    until("it observes", || async { ask(&admin, &observers).await.is_some() }).await;
    errors.until("", 1).await;
    ask(&admin, &elect).await;
    assert_eq!(timeout(PATIENCE, follow).await.unwrap().unwrap().unwrap().identity, "one");
    assert_eq!(errors.count(""), 1);
}

async fn s07<C: Connect>(connect: C, task: fn(C::Server, String, Arc<AtomicU32>) -> EveryJob) {
    let Some((direct, _)) = urls() else { return };
    let (election, admin, tries) = (name("s07"), admin(&direct).await, Arc::new(AtomicU32::new(0)));
    let table = "CREATE TABLE IF NOT EXISTS rust_s07 (election text, due bigint)";
    ask(&admin, &format!("DO $$ BEGIN PERFORM pg_advisory_xact_lock(7); {table}; END $$")).await;
    let (first, second) = (Log::default(), Log::default());
    let job = |log: &Log| {
        let builder = log.builder(connect.to(&direct), &election).ttl(secs(TTL));
        let builder = builder.renew_on_heartbeat();
        Run::start(builder, task(connect.to(&direct), election.clone(), tries.clone()))
    };
    let one = job(&first);
    first.until("elected", 1).await;
    let two = job(&second);
    let done = format!("SELECT count(*) FROM rust_s07 WHERE election = '{election}'");
    let rows = |n: u32| {
        let (admin, done) = (&admin, &done);
        move || async move { ask(admin, done).await.unwrap().parse::<u32>().unwrap() >= n }
    };
    until("three points in time", rows(3)).await;
    one.stop().await;
    second.until("elected", 1).await;
    until("six points in time", rows(6)).await;
    two.stop().await;
    let twice = format!(
        "SELECT count(*) - count(DISTINCT due) FROM rust_s07 WHERE election = '{election}'"
    );
    assert_eq!(ask(&admin, &twice).await.unwrap(), "0");
    let odd =
        format!("SELECT count(*) FROM rust_s07 WHERE election = '{election}' AND due % 2 = 1");
    assert_eq!(ask(&admin, &odd).await.unwrap(), "0");
    // the first try has failed after it had written, and was rolled back
    assert_eq!(first.count("error Job"), 1, "{:?}", first.0);
    assert_eq!(first.count("error") + second.count("error"), 1);
    ask(&admin, &format!("DELETE FROM rust_s07 WHERE election = '{election}'")).await;
}

type EveryJob =
    Box<dyn Fn(Term) -> leader_election::BoxFuture<'static, Result<(), BoxError>> + Send + Sync>;

fn insert(election: &str, due: SystemTime) -> String {
    let due = due.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    format!("INSERT INTO rust_s07 VALUES ('{election}', {due})")
}

fn every_by_sqlx(pool: PgPool, election: String, tries: Arc<AtomicU32>) -> EveryJob {
    let job = every(pool, secs(2.0), move |connection: &mut PgConnection, due| {
        let (sql, first) = (insert(&election, due), tries.fetch_add(1, SeqCst) == 0);
        Box::pin(async move {
            sqlx::query(&sql).execute(&mut *connection).await?;
            if first {
                return Err("the first try".into());
            }
            Ok(())
        })
    });
    Box::new(job.unwrap())
}

fn every_by_tokio_postgres(
    connector: Connector<NoTls>,
    election: String,
    tries: Arc<AtomicU32>,
) -> EveryJob {
    let job = every(connector, secs(2.0), move |client: &mut Client, due| {
        let (sql, first) = (insert(&election, due), tries.fetch_add(1, SeqCst) == 0);
        Box::pin(async move {
            client.execute(&sql, &[]).await?;
            if first {
                // a task that hides that a statement has failed is not taken for done
                let _ = client.execute("SELECT 1 / 0", &[]).await;
            }
            Ok(())
        })
    });
    Box::new(job.unwrap())
}

async fn s08<C: Connect>(connect: C) {
    let Some((direct, _)) = urls() else { return };
    for ttl in [None, Some(secs(TTL))] {
        let (election, log) = (name("s08"), Log::default());
        let elector = || {
            let builder = log.builder(connect.to(&direct), &election).seats(2);
            let builder = match ttl {
                Some(ttl) => builder.ttl(ttl),
                None => builder,
            };
            Run::start(builder, log.job(false))
        };
        let mut runs = vec![elector(), elector(), elector()];
        log.until("job begins", 2).await;
        sleep(secs(1.5)).await;
        assert_eq!(log.count("job begins"), 2);
        assert_eq!(log.count(&format!("elected {election}/1")), 1);
        assert_eq!(log.count(&format!("elected {election}/2")), 1);
        let leads = runs.iter().position(|run| run.0.state() == State::Leading).unwrap();
        runs.remove(leads).stop().await;
        log.until("job begins", 3).await;
        assert_eq!(log.count("error"), 0, "{:?}", log.0);
        for run in runs {
            run.stop().await;
        }
    }
}

async fn s09<C: Connect>(connect: C) {
    let Some((direct, _)) = urls() else { return };
    let (election, log, admin) = (name("s09"), Log::default(), admin(&direct).await);
    ask(&admin, &format!("SELECT le_try_become_leader('{election}')")).await;
    let run = Run::start(log.builder(connect.to(&direct), &election), log.job(false));
    let candidates = format!("SELECT count(*) FROM le_candidates WHERE name = '{election}'");
    until("a candidate", || async { ask(&admin, &candidates).await.unwrap() == "1" }).await;
    let began = Instant::now();
    run.stop().await;
    assert!(began.elapsed() < secs(4.0)); // the deadline of an answer is 5 s
    until("its end", || async { ask(&admin, &candidates).await.unwrap() == "0" }).await;
    assert_eq!(log.count("job begins") + log.count("error"), 0);
}

/// Forwards connections, until it is told to stand still.
async fn proxy(url: &str) -> (String, Arc<AtomicBool>) {
    let target: tokio_postgres::Config = url.parse().unwrap();
    let tokio_postgres::config::Host::Tcp(host) = &target.get_hosts()[0] else { unreachable!() };
    let to = format!("{host}:{}", target.get_ports()[0]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let from = listener.local_addr().unwrap().to_string();
    let url = url.replace(&to, &from);
    assert!(url.contains(&from));
    let stalled = Arc::new(AtomicBool::new(false));
    let stands = stalled.clone();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let (to, stands) = (to.clone(), stands.clone());
            tokio::spawn(async move {
                if stands.load(SeqCst) {
                    sleep(secs(1e6)).await;
                }
                let far = TcpStream::connect(to).await.unwrap();
                let pump = |from: Arc<TcpStream>, to: Arc<TcpStream>| {
                    let stands = stands.clone();
                    async move {
                        loop {
                            from.readable().await.unwrap();
                            if stands.load(SeqCst) {
                                sleep(secs(1e6)).await;
                            }
                            let mut buffer = [0; 4096];
                            match from.try_read(&mut buffer) {
                                Ok(0) => return,
                                Ok(n) => {
                                    to.writable().await.unwrap();
                                    assert_eq!(to.try_write(&buffer[..n]).unwrap(), n);
                                }
                                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                                Err(_) => return,
                            }
                        }
                    }
                };
                let (near, far) = (Arc::new(near), Arc::new(far));
                tokio::select! {
                    () = pump(near.clone(), far.clone()) => {}
                    () = pump(far, near) => {}
                }
            });
        }
    });
    (url, stalled)
}

/// Direct and through the pooler, in each way, also behind a proxy that stands still.
async fn s10<C: Connect>(connect: C) {
    let Some((direct, pooler)) = urls() else { return };
    type Way<S> = fn(Builder<S>) -> Builder<S>;
    let session: Way<C::Server> = |builder| builder;
    let heartbeat: Way<C::Server> = |builder| builder.heartbeat(secs(TTL));
    let lease: Way<C::Server> = |builder| builder.ttl(secs(TTL));
    for (url, way, validity) in [
        (&direct, session, 6.0),
        (&direct, heartbeat, 4.0),
        (&direct, lease, 4.0),
        (&pooler, lease, 4.0),
    ] {
        let (election, log) = (name("s10"), Log::default());
        let (url, stalled) = proxy(url).await;
        let run = Run::start(way(log.builder(connect.to(&url), &election)), log.job(true));
        log.until("job begins", 1).await;
        sleep(secs(1.2)).await;
        stalled.store(true, SeqCst);
        let began = Instant::now();
        log.until("job ends", 1).await;
        // so before another is elected
        assert!(began.elapsed() < secs(validity + TTL / 3.0), "{:?}", began.elapsed());
        log.until("ousted", 1).await;
        assert!(began.elapsed() < secs(validity + TTL), "{:?}", began.elapsed());
        let began = Instant::now();
        run.stop().await;
        assert!(began.elapsed() < secs(9.0), "{:?}", began.elapsed()); // 5 s to connect
    }
}

/// When run has returned, no task and no connection is left.
async fn nothing_left<C: Connect>(connect: C) {
    let Some((direct, _)) = urls() else { return };
    let admin = admin(&direct).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let mine = name("left").replace(' ', "-");
    let url = format!("{direct}?application_name={mine}");
    for ttl in [None, Some(secs(1.5))] {
        let (election, log) = (name("left"), Log::default());
        let builder = log.builder(connect.to(&url), &election);
        let builder = match ttl {
            Some(ttl) => builder.ttl(ttl),
            None => builder,
        };
        let run = Run::start(builder, log.job(false));
        log.until("job begins", 1).await;
        let count =
            format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{mine}'");
        assert_ne!(ask(&admin, &count).await.unwrap(), "0");
        run.stop().await;
        until("no connection", || async { ask(&admin, &count).await.unwrap() == "0" }).await;
        until("no task", || async { tasks() == before }).await;
    }
}

macro_rules! tests {
    ($driver:ident, $connect:expr, $every:expr) => {
        mod $driver {
            use super::*;

            #[tokio::test]
            async fn test_s01_session() {
                s01($connect).await;
            }
            #[tokio::test]
            async fn test_s02_lease() {
                s02($connect).await;
            }
            #[tokio::test]
            async fn test_s03_heartbeat() {
                s03($connect).await;
            }
            #[tokio::test]
            async fn test_s04_terminate_and_depose() {
                s04($connect).await;
            }
            #[tokio::test]
            async fn test_s05_pooler() {
                s05($connect).await;
            }
            #[tokio::test]
            async fn test_s06_leader_and_follow() {
                s06($connect).await;
            }
            #[tokio::test]
            async fn test_s07_every() {
                s07($connect, $every).await;
            }
            #[tokio::test]
            async fn test_s08_seats() {
                s08($connect).await;
            }
            #[tokio::test]
            async fn test_s09_stop_while_waiting() {
                s09($connect).await;
            }
            #[tokio::test]
            async fn test_s10_each_way_to_connect() {
                s10($connect).await;
            }
            #[tokio::test]
            async fn nothing_is_left_behind() {
                nothing_left($connect).await;
            }
        }
    };
}

tests!(sqlx_, Sqlx, every_by_sqlx);
tests!(tokio_postgres_, TokioPostgres, every_by_tokio_postgres);
