//! `guard_sql` and `once_sql` in a transaction of diesel.

use diesel::{sql_query, sql_types::Bool, Connection, PgConnection, QueryableByName, RunQueryDsl};
use leader_election::{BoxError, Connector, Elector, Options, Term};
use std::time::{Duration, SystemTime};
use tokio_postgres::NoTls;

#[derive(QueryableByName)]
struct Once {
    #[diesel(sql_type = Bool)]
    le_once: bool,
}

/// Return whether the job of a time is to be done in a transaction, and commit this.
fn once(url: &str, term: &Term, due: SystemTime) -> Result<bool, BoxError> {
    PgConnection::establish(url)?.transaction(|connection| {
        sql_query(term.guard_sql()).execute(connection)?;
        Ok(sql_query(term.once_sql(due)).get_result::<Once>(connection)?.le_once)
    })
}

#[tokio::test]
async fn s11_diesel() {
    let Ok(url) = std::env::var("DATABASE_URL") else { return eprintln!("SKIPPED") };
    let server = Connector::new(url.parse().unwrap(), NoTls);
    let due = SystemTime::now();
    let name = format!("diesel {due:?} $1 ?1 :x 'q' ü");
    let options = Options::new(name).ttl(Duration::from_secs(6));
    let elector = Elector::new(server, options).unwrap();
    let job = move |term: Term| async move {
        let (at, led) = (url.clone(), term.clone());
        let twice = move || Ok::<_, BoxError>((once(&at, &led, due)?, once(&at, &led, due)?));
        Ok::<_, BoxError>((tokio::task::spawn_blocking(twice).await??, term, url))
    };
    let (twice, term, url) = elector.try_run(Duration::ZERO, job).await.unwrap().unwrap();
    assert_eq!(twice, (true, false));
    let over = tokio::task::spawn_blocking(move || once(&url, &term, due).unwrap_err());
    assert!(over.await.unwrap().to_string().contains("does not lead"));
}
