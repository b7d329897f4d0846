//! S01 to S14 of ../README.md, against a real server: DATABASE_URL is a direct connection,
//! POOLER_URL one through PgBouncer in transaction mode.

use leader_election::{
    every, follow, leader, BoxError, BoxFuture, Connection, Connector, Elector, Error, ErrorKind,
    Handle, Health, Leader, Options, Schedule, Server, State, Term,
};
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use std::future::Future;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

const PATIENCE: Duration = Duration::from_secs(20);
/// A lease that is renewed each 2 s and valid for 4 s outlives a pause of the machine.
const TTL: Duration = Duration::from_secs(6);

type Job = Box<dyn Fn(Term) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync>;

/// Return an environment variable, or say that the test is skipped.
fn url(variable: &str) -> Option<String> {
    std::env::var(variable).inspect_err(|_| eprintln!("SKIPPED: {variable} is not set")).ok()
}

fn name(test: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    format!("rust_{test}_{since}_{}_{}", std::process::id(), NEXT.fetch_add(1, SeqCst))
}

/// Makes a server to campaign on of a URL.
trait Connect: Copy + Send + Sync + 'static {
    type Server: Server;
    fn to(self, url: &str) -> Self::Server;
    /// How soon the end of a session is noticed.
    const NOTICE: Duration;
    fn every(self, url: &str, schedule: impl Schedule, election: &str) -> Job;
    /// Return whether the job of a time is to be done in a transaction, and end this.
    fn once(
        self, url: &str, term: Term, due: SystemTime, commit: bool,
    ) -> impl Future<Output = Result<bool, BoxError>> + Send;
    /// Return the errors of guard and once in a transaction that a statement has ended.
    fn ended(self, url: &str, term: Term) -> impl Future<Output = [Error; 2]> + Send;
    /// Publish a value, on a connection or in a transaction, and commit.
    fn proclaim(
        self, url: &str, term: &Term, value: &str, begin: bool,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS rust_s07 (election text, due bigint)";

fn insert(election: &str, due: SystemTime) -> String {
    let due = due.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    format!("INSERT INTO rust_s07 VALUES ('{election}', {due})")
}

#[derive(Clone, Copy)]
struct Sqlx;

impl Connect for Sqlx {
    type Server = PgPool;
    const NOTICE: Duration = Duration::from_secs(4); // by a question, each second

    fn to(self, url: &str) -> PgPool {
        PgPoolOptions::new().max_connections(2).connect_lazy(url).unwrap()
    }

    fn every(self, url: &str, schedule: impl Schedule, election: &str) -> Job {
        let (election, tries) = (election.to_owned(), Arc::new(AtomicU32::new(0)));
        Box::new(
            every(self.to(url), schedule, move |connection: &mut PgConnection, due| {
                let (sql, first) = (insert(&election, due), tries.fetch_add(1, SeqCst) == 0);
                Box::pin(async move {
                    sqlx::query(sqlx::AssertSqlSafe(sql))
                        .persistent(false)
                        .execute(&mut *connection)
                        .await?;
                    if first {
                        Err("the first try".into())
                    } else {
                        Ok(())
                    }
                })
            })
            .unwrap(),
        )
    }

    async fn once(
        self, url: &str, term: Term, due: SystemTime, commit: bool,
    ) -> Result<bool, BoxError> {
        let mut transaction = self.to(url).begin().await?;
        term.guard(&mut transaction).await?;
        let first = term.once(&mut transaction, due).await?;
        let guard = sqlx::query(sqlx::AssertSqlSafe(term.guard_sql()));
        guard.execute(&mut *transaction).await?;
        let again = sqlx::query_scalar(sqlx::AssertSqlSafe(term.once_sql(due)));
        assert!(!again.fetch_one(&mut *transaction).await?);
        if commit {
            transaction.commit().await?;
        }
        Ok(first)
    }

    async fn ended(self, url: &str, term: Term) -> [Error; 2] {
        let mut transaction = self.to(url).begin().await.unwrap();
        sqlx::raw_sql("COMMIT").execute(&mut *transaction).await.unwrap();
        let guarded = term.guard(&mut transaction).await;
        let first = term.once(&mut transaction, SystemTime::now()).await;
        [guarded.unwrap_err(), first.unwrap_err()]
    }

    async fn proclaim(self, url: &str, term: &Term, value: &str, begin: bool) -> Result<(), Error> {
        let pool = self.to(url);
        if !begin {
            return term.proclaim(&mut *pool.acquire().await.unwrap(), value).await;
        }
        let mut transaction = pool.begin().await.unwrap();
        term.proclaim(&mut transaction, value).await?;
        transaction.commit().await.unwrap();
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct TokioPostgres;

impl Connect for TokioPostgres {
    type Server = Connector<NoTls>;
    const NOTICE: Duration = Duration::from_millis(700);

    fn to(self, url: &str) -> Connector<NoTls> {
        Connector::new(url.parse().unwrap(), NoTls)
    }

    fn every(self, url: &str, schedule: impl Schedule, election: &str) -> Job {
        let (election, tries) = (election.to_owned(), Arc::new(AtomicU32::new(0)));
        Box::new(
            every(self.to(url), schedule, move |connection: &mut Connection, due| {
                let (sql, first) = (insert(&election, due), tries.fetch_add(1, SeqCst) == 0);
                Box::pin(async move {
                    connection.client.batch_execute(&sql).await?;
                    if first {
                        // a task that hides what it has done wrong is not taken for done
                        let _ = connection.client.batch_execute("SELECT 1 / 0").await;
                        let _ = connection.client.batch_execute("ROLLBACK AND CHAIN").await;
                    }
                    // a role that may not ask whether the task is done
                    connection.client.batch_execute("SET LOCAL ROLE pg_monitor").await?;
                    Ok(())
                })
            })
            .unwrap(),
        )
    }

    async fn once(
        self, url: &str, term: Term, due: SystemTime, commit: bool,
    ) -> Result<bool, BoxError> {
        let mut client = admin(url).await;
        let mut transaction = client.transaction().await?;
        term.guard(&mut transaction).await?;
        let first = term.once(&mut transaction, due).await?;
        transaction.execute(&term.guard_sql(), &[]).await?;
        let again: bool = transaction.query_one(&term.once_sql(due), &[]).await?.get(0);
        assert!(!again);
        if commit {
            transaction.commit().await?;
        }
        Ok(first)
    }

    async fn ended(self, url: &str, term: Term) -> [Error; 2] {
        let mut client = admin(url).await;
        let mut transaction = client.transaction().await.unwrap();
        transaction.batch_execute("COMMIT").await.unwrap();
        let guarded = term.guard(&mut transaction).await;
        let first = term.once(&mut transaction, SystemTime::now()).await;
        [guarded.unwrap_err(), first.unwrap_err()]
    }

    async fn proclaim(self, url: &str, term: &Term, value: &str, begin: bool) -> Result<(), Error> {
        let mut client = admin(url).await;
        if !begin {
            return term.proclaim(&mut client, value).await;
        }
        let mut transaction = client.transaction().await.unwrap();
        term.proclaim(&mut transaction, value).await?;
        transaction.commit().await.unwrap();
        Ok(())
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
    let messages = admin.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

/// Creates the extension in a schema, or the SQL edition, if that is tested.
async fn install(admin: &Client, schema: Option<&str>) {
    if let Some(schema) = schema {
        ask(admin, &format!("CREATE SCHEMA {schema}")).await;
    }
    let file = std::env::var("LE_SQL_EDITION").unwrap_or_default();
    let sql = match (file.as_str(), schema) {
        ("", None) => "CREATE EXTENSION leader_election".to_owned(),
        ("", Some(schema)) => format!("CREATE EXTENSION leader_election SCHEMA {schema}"),
        (file, None) => std::fs::read_to_string(file).unwrap(),
        (file, Some(schema)) => {
            let script = std::fs::read_to_string(file).unwrap();
            // the word le becomes the schema
            let word = |c: char| c.is_alphanumeric() || c == '_';
            let pieces = script.split_inclusive(|c: char| !word(c)).map(|piece| {
                let end = piece.trim_end_matches(|c: char| !word(c));
                if end == "le" {
                    piece.replacen("le", schema, 1)
                } else {
                    piece.to_owned()
                }
            });
            pieces.collect()
        }
    };
    ask(admin, &sql).await;
}

async fn until<F: Future<Output = bool>>(what: &str, done: impl Fn() -> F) {
    let start = Instant::now();
    while !done().await {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// An elector that runs, and what has happened to it.
struct Run {
    handle: Handle,
    task: JoinHandle<Result<(), Error>>,
    log: Log,
    terms: Arc<Mutex<Vec<Term>>>,
}

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
        until(&format!("{count} {what}: {self:?}"), || async { self.count(what) >= count }).await;
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.lock().unwrap())
    }
}

/// Tells when the job has stopped, be it that it has returned or was dropped.
struct End(Log);

impl Drop for End {
    fn drop(&mut self) {
        self.0.say("job ends");
    }
}

impl Run {
    /// Run a job that works until it is told to stop.
    fn idle<S: Server>(server: S, options: Options) -> Run {
        Run::start(server, options, |term| async move {
            term.cancellation().cancelled().await;
            Ok(())
        })
    }

    fn start<S: Server, F>(
        server: S, options: Options, job: impl Fn(Term) -> F + Send + Sync + 'static,
    ) -> Run
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        let (log, terms) = (Log::default(), Arc::new(Mutex::new(Vec::new())));
        let (ousted, error, begun, kept) = (log.clone(), log.clone(), log.clone(), terms.clone());
        let options = options
            .on_elected(move |term| kept.lock().unwrap().push(term.clone()))
            .on_ousted(move |_, reason| ousted.say(format!("ousted {reason}")))
            .on_error(move |e| error.say(format!("error {} {e:#}", e.kind)));
        let elector = Elector::new(server, options).unwrap();
        let handle = elector.handle();
        let task = tokio::spawn(elector.run(move |term| {
            begun.say(format!("job begins {}", term.election()));
            let (end, job) = (End(begun.clone()), job(term));
            async move {
                let _end = end;
                job.await
            }
        }));
        Run { handle, task, log, terms }
    }

    async fn leads(&self) -> Term {
        self.log.until("job begins", 1).await;
        self.terms.lock().unwrap()[0].clone()
    }

    async fn stop(self) {
        self.handle.stop();
        self.end().await.unwrap();
    }

    async fn end(self) -> Result<(), Error> {
        let ended = timeout(PATIENCE, self.task).await.expect("run returns").unwrap();
        assert_eq!(self.handle.state(), State::Stopped);
        ended
    }
}

async fn s01<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    let (election, admin) = (name("s01"), admin(&direct).await);
    for (scope, ttl) in [("session", None), ("lease", Some(TTL))] {
        let options = Options::new(&election).identity("it's \\ me");
        let run =
            Run::idle(connect.to(&direct), ttl.map_or(options.clone(), |ttl| options.ttl(ttl)));
        let token = run.leads().await.token();
        let row =
            format!("SELECT identity || scope || token FROM le_leaders WHERE name = '{election}'");
        assert_eq!(ask(&admin, &row).await, Some(format!("it's \\ me{scope}{token}")));
        until("three confirmations", || async { run.handle.counters().confirmations > 3 }).await;
        assert_eq!((run.handle.health(), run.log.count("job ends")), (Health::Leading, 0));
        let log = run.log.clone();
        run.stop().await;
        assert_eq!(ask(&admin, &row).await, None);
        assert_eq!((log.count("ousted resigned"), log.count("error")), (1, 0), "{log:?}");
    }
}

async fn s03<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    let options = Options::new(name("s03")).heartbeat(TTL);
    let hangs = Run::start(connect.to(&direct), options.clone().identity("hangs"), |_| {
        std::future::pending()
    });
    hangs.leads().await;
    let (began, log) = (Instant::now(), hangs.log.clone());
    let other = Run::start(connect.to(&direct), options.identity("beats"), move |term| {
        assert_eq!(log.count("job ends"), 1, "the job that hangs has not been stopped");
        async move {
            while !term.cancellation().is_cancelled() {
                term.heartbeat();
                sleep(Duration::from_millis(100)).await;
            }
            Ok(())
        }
    });
    other.leads().await;
    assert!(began.elapsed() < TTL + Duration::from_secs(3));
    assert_eq!(hangs.log.count("ousted in doubt"), 1);
    sleep(TTL).await;
    assert_eq!((other.log.count("job ends"), other.log.count("error")), (0, 0));
    hangs.stop().await;
    other.stop().await;
}

async fn s04<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    let admin = admin(&direct).await;
    for (end, ttl) in [
        ("SELECT pg_terminate_backend(pid) FROM le_leader('x')", None),
        ("SELECT le_depose('x')", None),
        ("SELECT le_depose('x')", Some(TTL)),
    ] {
        let (election, options) = (name("s04"), Options::new);
        let options = options(&election);
        let run =
            Run::idle(connect.to(&direct), ttl.map_or(options.clone(), |ttl| options.ttl(ttl)));
        let notice = if ttl.is_some() { PATIENCE } else { C::NOTICE };
        let (mut took, mut terms) = (Duration::MAX, 0);
        // a busy machine may be late, but not each time
        while took >= notice && terms < 5 {
            terms += 1;
            run.log.until("job begins", terms).await;
            sleep(Duration::from_millis(100)).await;
            let began = Instant::now();
            let end = end.replace("'x'", &format!("'{election}'"));
            assert_eq!(ask(&admin, &end).await.unwrap(), "t");
            run.log.until("job ends", terms).await;
            took = began.elapsed();
            run.log.until("ousted lost", terms).await;
        }
        assert!(took < notice, "{took:?} {end}");
        run.log.until("error lost", terms).await;
        assert_eq!(run.log.count("error lost"), terms);
        run.log.until("job begins", terms + 1).await;
        run.stop().await;
    }
}

async fn s05<C: Connect>(connect: C) {
    let (Some(direct), Some(pooler)) = (url("DATABASE_URL"), url("POOLER_URL")) else { return };
    let admin = admin(&direct).await;
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..15 {
        let pooler = pooler.clone();
        others.spawn(async move {
            let client = self::admin(&pooler).await;
            loop {
                ask(&client, "SELECT pg_sleep(0.01)").await;
            }
        });
    }
    for seats in [None, Some(2)] {
        let mut tries = 1;
        while !ends_by_pooler(connect.to(&pooler), connect.to(&pooler), seats, &admin).await {
            assert!(tries < 3, "run has not returned");
            tries += 1;
        }
    }
    let run = Run::idle(connect.to(&pooler), Options::new(name("s05")).ttl(TTL));
    until("renewals", || async { run.handle.counters().confirmations > 2 }).await;
    assert_eq!(run.log.count("error"), 0, "{:?}", run.log);
    run.stop().await;
}

/// Say whether two electors notice that they share connections. By chance, one does not: if its
/// bid alone used another connection, then that one leads, and the elector waits for it.
async fn ends_by_pooler<S: Server>(one: S, two: S, seats: Option<u32>, admin: &Client) -> bool {
    let election = name("s05");
    let options = Options::new(&election).identity("me");
    let options = seats.map_or(options.clone(), |seats| options.seats(seats));
    let mut runs = [one, two].map(|server| Run::idle(server, options.clone()));
    let led = format!("FROM le_leaders WHERE starts_with(name || '/', '{election}/')");
    for run in &mut runs {
        let Ok(ended) = timeout(PATIENCE / 2, &mut run.task).await else {
            for run in runs {
                run.handle.stop();
            }
            ask(admin, &format!("SELECT pg_terminate_backend(pid) {led}")).await;
            return false;
        };
        let error = ended.unwrap().unwrap_err();
        assert_eq!(
            (error.kind, run.handle.state()),
            (ErrorKind::Pooler, State::Stopped),
            "{error}"
        );
        assert!(error.to_string().contains("set a ttl"), "{error}");
    }
    let leaders = format!("SELECT count(*) {led}");
    until("no leader", || async { ask(admin, &leaders).await.unwrap() == "0" }).await;
    true
}

async fn s06<C: Connect>(connect: C) {
    let (Some(direct), Some(pooler)) = (url("DATABASE_URL"), url("POOLER_URL")) else { return };
    let options = Options::new(name("s06"));
    let mut changes = follow(connect.to(&direct), options.clone()).unwrap();
    let mut next = async || -> Option<Leader> {
        timeout(PATIENCE, changes.recv()).await.expect("a change").unwrap().unwrap()
    };
    assert_eq!(leader(&connect.to(&direct), &options).await.unwrap(), None);
    assert_eq!(next().await, None);
    for ttl in [None, Some(TTL)] {
        let who = if ttl.is_some() { "two" } else { "one" };
        let candidate = options.clone().identity(who);
        let candidate = ttl.map_or(candidate.clone(), |ttl| candidate.ttl(ttl));
        let run = Run::idle(connect.to(&direct), candidate);
        let term = run.leads().await;
        let elected = next().await.unwrap();
        assert_eq!((elected.token, elected.identity.as_str()), (term.token(), who));
        assert_eq!(elected.value, None);
        let proclaim =
            async |value: &str, begin| connect.proclaim(&direct, &term, value, begin).await;
        for (value, begin) in [("it's \\ me", false), ("", true)] {
            proclaim(value, begin).await.unwrap();
            let told = next().await.unwrap();
            assert_eq!((told.token, told.value.as_deref()), (term.token(), Some(value)));
            assert_eq!(leader(&connect.to(&pooler), &options).await.unwrap(), Some(told));
            let refused = proclaim(&"x".repeat(8193), begin).await.unwrap_err();
            assert_eq!(refused.sqlstate.as_deref(), Some("22001"), "{refused}");
            assert_ne!(proclaim("a\0b", begin).await.unwrap_err().kind, ErrorKind::Lost);
        }
        assert_eq!((run.log.count("error"), run.log.count("job ends")), (0, 0), "{:?}", run.log);
        run.stop().await;
        assert_eq!(next().await, None);
        for begin in [false, true] {
            assert_eq!(proclaim("late", begin).await.unwrap_err().kind, ErrorKind::Lost);
        }
    }
}

async fn s07<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    let admin = admin(&direct).await;
    ask(&admin, &format!("SELECT pg_advisory_xact_lock(7); {TABLE}")).await;
    for cron in [false, true] {
        let election = name("s07");
        let start = || {
            let options = Options::new(&election).ttl(TTL).heartbeat(TTL);
            let job = match cron {
                // each even second of an hour of a time zone
                true => {
                    let zone = chrono_tz::Europe::Berlin;
                    let schedule = cron::Schedule::from_str("*/2 * * * * *").unwrap();
                    let next = move |last: SystemTime| {
                        let last = chrono::DateTime::<chrono::Utc>::from(last).with_timezone(&zone);
                        schedule.after(&last).next().map(SystemTime::from)
                    };
                    connect.every(&direct, next, &election)
                }
                false => connect.every(&direct, Duration::from_secs(2), &election),
            };
            Run::start(connect.to(&direct), options, job)
        };
        let one = start();
        one.leads().await;
        let two = start();
        let count =
            |what: &str| format!("SELECT {what} FROM rust_s07 WHERE election = '{election}'");
        let rows = async |n: u32| {
            let done = count("count(*)");
            let (admin, done) = (&admin, &done);
            let enough =
                || async move { ask(admin, done).await.unwrap().parse::<u32>().unwrap() >= n };
            until("due times", enough).await;
        };
        rows(2).await;
        let first = one.log.clone();
        one.stop().await;
        two.leads().await;
        rows(4).await;
        let second = two.log.clone();
        two.stop().await;
        assert_eq!(ask(&admin, &count("count(*) - count(DISTINCT due)")).await.unwrap(), "0");
        assert_eq!(ask(&admin, &count("count(*) FILTER (WHERE due % 2 = 1)")).await.unwrap(), "0");
        // the first try of each has failed after it had written, and was rolled back
        for log in [first, second] {
            assert_eq!((log.count("error job"), log.count("error")), (1, 1), "{log:?}");
        }
    }
}

async fn s08<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    for ttl in [None, Some(TTL)] {
        let election = name("s08");
        let options = Options::new(&election).seats(2);
        let options = ttl.map_or(options.clone(), |ttl| options.ttl(ttl));
        let mut runs = [(); 3].map(|()| Run::idle(connect.to(&direct), options.clone()));
        let leads = |run: &Run| run.handle.state() == State::Leading;
        until("two leaders", || async { runs.iter().filter(|run| leads(run)).count() == 2 }).await;
        sleep(Duration::from_millis(1500)).await;
        runs.sort_by_key(|run| !leads(run));
        let [one, two, three] = runs;
        assert_eq!(three.log.count("job begins"), 0);
        let mut seats =
            [one.leads().await.election().to_owned(), two.leads().await.election().to_owned()];
        let left = seats[0].clone();
        seats.sort();
        assert_eq!(seats, [format!("{election}/1"), format!("{election}/2")]);
        one.stop().await;
        assert_eq!(three.leads().await.election(), left);
        two.stop().await;
        three.stop().await;
    }
}

async fn s09<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    let (election, admin) = (name("s09"), admin(&direct).await);
    ask(&admin, &format!("SELECT le_try_become_leader('{election}')")).await;
    let run = Run::idle(connect.to(&direct), Options::new(&election));
    let candidates = format!("SELECT count(*) FROM le_candidates WHERE name = '{election}'");
    until("a candidate", || async { ask(&admin, &candidates).await.unwrap() == "1" }).await;
    let (began, log) = (Instant::now(), run.log.clone());
    run.stop().await;
    assert!(began.elapsed() < Duration::from_secs(4)); // the deadline of an answer is 5 s
    until("its end", || async { ask(&admin, &candidates).await.unwrap() == "0" }).await;
    assert_eq!(log.count(""), 0);
}

/// When run has returned or was dropped, no task and no connection is left.
async fn s10_nothing_left<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    let admin = admin(&direct).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let ways = [(None, false), (None, true), (Some(TTL), false), (Some(TTL), true)];
    for (ttl, aborted) in ways {
        let mine = name("left");
        let options = Options::new(&mine);
        let options = ttl.map_or(options.clone(), |ttl| options.ttl(ttl));
        let run = Run::idle(connect.to(&format!("{direct}?application_name={mine}")), options);
        let term = run.leads().await;
        if aborted {
            run.task.abort();
            until("the end", || async { run.task.is_finished() }).await;
            assert!(!term.is_leading() && run.handle.health() == Health::Stopped);
        } else {
            run.stop().await;
        }
        let count =
            format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{mine}'");
        until("no connection", || async { ask(&admin, &count).await.unwrap() == "0" }).await;
        until("no task", || async { tasks() == before }).await;
    }
}

async fn s11<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    let admin = admin(&direct).await;
    for odd in ["", "/ü", "'$1 ?1 :x %s \\ \"{}"] {
        let election = format!("{}{odd}", name("s11"));
        let run = Run::idle(connect.to(&direct), Options::new(&election).ttl(TTL));
        let term = run.leads().await;
        // the last is before 1970, as what is due can be
        let times = [1_764_201_600_123_456, 7_200_000_000, -1_500_000];
        for (count, micros) in times.into_iter().rev().enumerate() {
            let length = Duration::from_micros(i64::unsigned_abs(micros));
            let epoch = SystemTime::UNIX_EPOCH;
            let due = if micros < 0 { epoch - length } else { epoch + length };
            let once = |commit| connect.once(&direct, term.clone(), due, commit);
            assert!(once(false).await.unwrap() && once(true).await.unwrap(), "{count} {odd}");
            assert!(!once(true).await.unwrap(), "{count} {odd}");
            let done = format!(
                "SELECT (extract(epoch FROM due) * 1000000)::bigint FROM le_once_done \
                 WHERE token = {}",
                term.token()
            );
            assert_eq!(ask(&admin, &done).await.unwrap(), micros.to_string());
        }
        let recorded = format!("SELECT due FROM le_once_done WHERE token = {}", term.token());
        let before = ask(&admin, &recorded).await;
        for error in connect.ended(&direct, term.clone()).await {
            assert_eq!(error.message, "no transaction is open there");
        }
        assert_eq!(ask(&admin, &recorded).await, before);
        run.stop().await;
        let error = connect.once(&direct, term.clone(), SystemTime::now(), true).await.unwrap_err();
        let error = error.downcast::<Error>().unwrap();
        assert_eq!(error.sqlstate.as_deref(), Some("LE001"));
        assert!(error.hint.as_ref().is_some_and(|hint| error.message.ends_with(hint)), "{error:?}");
    }
}

/// The older sqlx leads, too, and its transactions are guarded.
#[tokio::test]
async fn s10_sqlx_0_8() {
    let Some(direct) = url("DATABASE_URL") else { return };
    let pool = sqlx_0_8::PgPool::connect_lazy(&direct).unwrap();
    for ttl in [None, Some(TTL)] {
        let options = Options::new(name("s10"));
        let options = ttl.map_or(options.clone(), |ttl| options.ttl(ttl));
        let run = Run::idle(pool.clone(), options);
        let term = run.leads().await;
        let mut transaction = pool.begin().await.unwrap();
        term.guard(&mut transaction).await.unwrap();
        assert!(term.once(&mut transaction, SystemTime::now()).await.unwrap());
        transaction.commit().await.unwrap();
        assert_eq!(run.log.count("error"), 0, "{:?}", run.log);
        run.stop().await;
    }
}

/// A lease that is granted in a transaction only begins at its commit.
#[tokio::test]
async fn s10_pool_in_a_transaction() {
    let Some(direct) = url("DATABASE_URL") else { return };
    let one = sqlx::postgres::PgPoolOptions::new().max_connections(1);
    for seats in [None, Some(2)] {
        let pool = one.clone().connect_lazy(&direct).unwrap();
        sqlx::raw_sql("BEGIN").execute(&pool).await.unwrap();
        let mine = name("s10");
        let options = Options::new(&mine).ttl(TTL);
        let run = Run::idle(pool, seats.map_or(options.clone(), |seats| options.seats(seats)));
        run.leads().await;
        let leaders = format!("SELECT count(*) FROM le_leaders WHERE name LIKE '{mine}%'");
        assert_eq!(ask(&admin(&direct).await, &leaders).await.unwrap(), "1");
        assert_eq!(run.log.count("error"), 1, "{:?}", run.log);
        run.stop().await;
    }
}

/// A task or a schedule that panics is reported, and a schedule may go back for a while.
async fn s07_panics<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    let admin = admin(&direct).await;
    ask(&admin, &format!("SELECT pg_advisory_xact_lock(7); {TABLE}")).await;
    let (here, calls) = (name("panics"), AtomicU32::new(0));
    let schedule = move |last: SystemTime| {
        assert!(calls.fetch_add(1, SeqCst) > 0, "the first look");
        Some(last + Duration::from_secs(1))
    };
    let job = connect.every(&direct, schedule, &here);
    let run = Run::start(connect.to(&direct), Options::new(&here).ttl(TTL), job);
    let done = format!("SELECT count(*) > 1 FROM rust_s07 WHERE election = '{here}'");
    until("due times", || async { ask(&admin, &done).await.unwrap() == "t" }).await;
    assert_eq!(
        run.log.count("error job the job has failed: panicked: the first look"),
        1,
        "{:?}",
        run.log
    );
    assert_eq!((run.log.count("job begins"), run.log.count("error")), (1, 2), "{:?}", run.log);
    run.stop().await;
}

async fn s12<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    let (here, base) = (name("s12"), admin(&direct).await);
    ask(&base, &format!("CREATE ROLE {here} LOGIN")).await;
    ask(&base, &format!("CREATE DATABASE {here}")).await;
    let direct = format!("{}/{here}", direct.rsplit_once('/').unwrap().0);
    let role = direct.replace("postgres@", &format!("{here}@"));
    let wants = async |url: &str, options: Options, kind: ErrorKind, words: &str| {
        let error = Run::idle(connect.to(url), options).end().await.unwrap_err();
        assert!(error.kind == kind && error.to_string().contains(words), "{error:?}");
    };
    let missing =
        format!("not installed in database \"{here}\": run CREATE EXTENSION leader_election");
    wants(&direct, Options::new("e"), ErrorKind::Extension, &missing).await;
    let asked = leader(&connect.to(&direct), &Options::new("e")).await.unwrap_err();
    assert!(asked.is_permanent() && asked.to_string().contains(&missing), "{asked:?}");
    let admin = admin(&direct).await;
    install(&admin, Some("\"L e\"")).await;
    let elsewhere = "in schema \"L e\": set the option schema";
    wants(&direct, Options::new("e"), ErrorKind::Extension, elsewhere).await;
    wants(&direct, Options::new("e").ttl(TTL), ErrorKind::Extension, elsewhere).await;
    let mut changes = follow(connect.to(&direct), Options::new("e")).unwrap();
    assert_eq!(changes.recv().await.unwrap().unwrap_err().kind, ErrorKind::Extension);
    let there = Options::new("e").schema("L e");
    ask(&admin, "GRANT USAGE ON SCHEMA \"L e\" TO PUBLIC").await;
    ask(&admin, "REVOKE ALL ON ALL ROUTINES IN SCHEMA \"L e\" FROM PUBLIC").await;
    wants(&role, there.clone(), ErrorKind::Privilege, "permission denied").await;
    let day = Duration::from_secs(86_400);
    wants(&direct, there.clone().ttl(day), ErrorKind::Argument, "max_ttl").await;
    for options in [there.clone(), there.ttl(TTL)] {
        let run = Run::idle(connect.to(&direct), options);
        run.leads().await;
        run.stop().await;
    }
    ask(&base, &format!("DROP DATABASE {here} WITH (FORCE)")).await;
    ask(&base, &format!("DROP ROLE {here}")).await;
}

async fn s13<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    let (here, admin) = (name("s13"), admin(&direct).await);
    ask(&admin, &format!("CREATE ROLE {here} LOGIN")).await;
    for timeout in ["statement_timeout", "lock_timeout", "idle_session_timeout"] {
        ask(&admin, &format!("ALTER ROLE {here} SET {timeout} = '1s'")).await;
    }
    let role = direct.replace("postgres@", &format!("{here}@"));
    let options = Options::new(&here).heartbeat(Duration::from_secs(20));
    let one = Run::idle(connect.to(&role), options);
    one.leads().await;
    let two = Run::idle(connect.to(&format!("{role}?application_name=mine")), Options::new(&here));
    let mut changes = follow(connect.to(&role), Options::new(&here)).unwrap();
    assert!(changes.recv().await.unwrap().unwrap().is_some());
    assert!(timeout(Duration::from_secs(3), changes.recv()).await.is_err());
    let names = format!(
        "SELECT string_agg(DISTINCT application_name, ' ' ORDER BY application_name) \
         FROM pg_stat_activity WHERE usename = '{here}'"
    );
    let mine = format!("leader_election: {here} mine");
    assert_eq!(ask(&admin, &names).await.unwrap(), mine);
    one.stop().await;
    two.leads().await;
    assert_eq!(two.log.count("error"), 0, "{:?}", two.log);
    two.stop().await;
    drop(changes);
    let gone = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{here}'");
    until("the end", || async { ask(&admin, &gone).await.unwrap() == "0" }).await;
    ask(&admin, &format!("DROP ROLE {here}")).await;
}

/// A lease, and the connection of `every`, set nothing that a pooler would keep.
async fn s13_pooled<C: Connect>(connect: C) {
    let (Some(direct), Some(pooler)) = (url("DATABASE_URL"), url("POOLER_URL")) else { return };
    let (here, base) = (name("pooled"), admin(&direct).await);
    let there = |url: &str| format!("{}/{here}", url.rsplit_once('/').unwrap().0);
    ask(&base, &format!("CREATE DATABASE {here}")).await;
    ask(&base, &format!("ALTER DATABASE {here} SET statement_timeout = '77s'")).await;
    let (pooler, admin) = (there(&pooler), admin(&there(&direct)).await);
    install(&admin, None).await;
    ask(&admin, TABLE).await;
    let job = connect.every(&pooler, Duration::from_secs(1), &here);
    let run = Run::start(connect.to(&pooler), Options::new(&here).ttl(TTL), job);
    let done = || ask(&admin, "SELECT count(*) > 0 FROM rust_s07");
    until("a due time", || async { done().await.unwrap() == "t" }).await;
    run.stop().await;
    let mut clients = Vec::new(); // each keeps a connection of the pooler's
    for _ in 0..5 {
        clients.push(self::admin(&pooler).await);
        ask(&clients[clients.len() - 1], "BEGIN").await;
        let timeout = ask(&clients[clients.len() - 1], "SHOW statement_timeout").await;
        assert_eq!(timeout.unwrap(), "77s");
    }
    ask(&base, &format!("DROP DATABASE {here} WITH (FORCE)")).await;
}

async fn s14<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    let admin = admin(&direct).await;
    for ttl in [None, Some(TTL)] {
        let (election, log) = (name("s14"), Log::default());
        let options = ttl.map_or(Options::new(&election), |ttl| Options::new(&election).ttl(ttl));
        let try_run = async |wait: u64, result: Result<u8, BoxError>| {
            let (began, log) = (Instant::now(), log.clone());
            let options = options.clone().on_error(move |e| log.say(format!("error {e:#}")));
            let elector = Elector::new(connect.to(&direct), options).unwrap();
            let job = |_| async { result };
            (elector.try_run(Duration::from_secs(wait), job).await, began.elapsed())
        };
        let other = Run::idle(connect.to(&direct), options.clone());
        other.leads().await;
        assert_eq!(try_run(0, Ok(1)).await.0.unwrap(), None);
        let (denied, took) = try_run(1, Ok(1)).await;
        assert!(denied.unwrap().is_none() && took >= Duration::from_secs(1) && took < PATIENCE);
        let stop = async {
            sleep(Duration::from_millis(500)).await;
            other.stop().await;
        };
        let ((ran, _), ()) = tokio::join!(try_run(9, Ok(2)), stop);
        assert_eq!(ran.unwrap(), Some(2));
        let failed = try_run(0, Err("its own error".into())).await.0.unwrap_err();
        assert_eq!(
            (failed.kind, format!("{failed:#}")),
            (ErrorKind::Job, "the job has failed: its own error".into())
        );
        assert_eq!(log.count(""), 0, "{log:?}");
        let leaders = format!("SELECT count(*) FROM le_leaders WHERE name = '{election}'");
        assert_eq!(ask(&admin, &leaders).await.unwrap(), "0");
    }
    let long = Options::new(name("s14")).ttl(Duration::from_secs(80_000));
    let elector = Elector::new(connect.to(&direct), long).unwrap();
    let never = |_| async { Err::<(), BoxError>("it runs".into()) };
    assert_eq!(elector.try_run(TTL, never).await.unwrap_err().kind, ErrorKind::Argument);
}

/// A role that is replaced loses its lease, unless both work as one.
async fn role_replaced<C: Connect>(connect: C) {
    let Some(direct) = url("DATABASE_URL") else { return };
    let (here, admin) = (name("role"), admin(&direct).await);
    let role = |n: u8| format!("{here}_{n}");
    ask(&admin, &format!("CREATE ROLE {here}")).await;
    for n in [1, 2] {
        ask(&admin, &format!("CREATE ROLE {} LOGIN IN ROLE {here}", role(n))).await;
    }
    // a name that the server resolves to one role and then to the other
    ask(&admin, &format!("ALTER ROLE {} RENAME TO {here}_now", role(1))).await;
    let url = direct.replace("postgres@", &format!("{here}_now@"));
    let run = Run::idle(connect.to(&url), Options::new(&here).ttl(TTL));
    run.leads().await;
    ask(&admin, &format!("ALTER ROLE {here}_now RENAME TO {}", role(1))).await;
    ask(&admin, &format!("ALTER ROLE {} RENAME TO {here}_now", role(2))).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = ";
    ask(&admin, &format!("{end}'{}'", role(1))).await;
    run.log.until("job begins", 2).await;
    assert!(run.log.count("error server permission denied") > 0, "{:?}", run.log);
    run.stop().await;
    ask(&admin, &format!("DROP ROLE {here}_now, {}, {here}", role(1))).await;
}

/// The example answers /health, resigns on SIGTERM, and ends well.
#[tokio::test]
async fn example_axum() {
    let Some(direct) = url("DATABASE_URL") else { return };
    let program = std::env::current_exe().unwrap().parent().unwrap().join("../examples/axum");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let variables = [("DATABASE_URL", direct.clone()), ("LISTEN", port.to_string())];
    let mut child = tokio::process::Command::new(program).envs(variables).spawn().unwrap();
    let health = async || {
        let Ok(mut stream) = TcpStream::connect(port).await else { return String::new() };
        let request = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let leads = || async { health().await.ends_with("leading") };
    until("the example leads", leads).await;
    assert!(health().await.starts_with("HTTP/1.1 200"));
    let pid = child.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").arg(pid).status().unwrap().success());
    assert!(timeout(PATIENCE, child.wait()).await.unwrap().unwrap().success());
    let left = "SELECT count(*) FROM le_leaders WHERE name = 'axum'";
    assert_eq!(ask(&admin(&direct).await, left).await.unwrap(), "0");
}

macro_rules! tests {
    ($($name:ident: $test:ident,)*) => {
        mod with_sqlx {
            $(#[tokio::test] async fn $name() { super::$test(super::Sqlx).await; })*
        }
        mod with_tokio_postgres {
            $(#[tokio::test] async fn $name() { super::$test(super::TokioPostgres).await; })*
        }
    };
}

tests! {
    s01_s02_session_and_lease: s01,
    s03_heartbeat: s03,
    s04_terminate_and_depose: s04,
    s05_pooler: s05,
    s06_leader_and_follow: s06,
    s07_every: s07,
    s08_seats: s08,
    s09_stop_while_waiting: s09,
    s10_nothing_left: s10_nothing_left,
    s07_panics: s07_panics,
    s11_guard_and_once: s11,
    s12_permanent_errors: s12,
    s13_timeouts: s13,
    s13_pooled: s13_pooled,
    s14_try_run: s14,
    role_that_is_replaced: role_replaced,
}
