// The metrics that README.md shows, of a term whose job fails, and of one that is resigned.

use leader_election::{BoxError, Elector, Handle, Health, Options, Server};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntGauge, Opts, Registry};
use std::sync::{Arc, Mutex};
use std::time::Instant;

struct Metrics(String, Handle, HistogramVec);

impl Collector for Metrics {
    fn desc(&self) -> Vec<&Desc> {
        self.2.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Metrics(election, handle, lengths) = self;
        let of = |name: &str, help| Opts::new(name, help).const_label("election", election);
        let leading = of("leader_election_leading", "1 while this process leads");
        let leading = IntGauge::with_opts(leading).unwrap();
        leading.set((handle.health() == Health::Leading).into());
        let mut families = [lengths.collect(), leading.collect()].concat();
        let counts = handle.counters();
        let counts = [counts.terms, counts.confirmations, counts.errors];
        for (what, count) in ["terms", "confirmations", "errors"].into_iter().zip(counts) {
            let counter = of(&format!("leader_election_{what}_total"), what);
            let counter = IntCounter::with_opts(counter).unwrap();
            counter.inc_by(count);
            families.extend(counter.collect());
        }
        families
    }
}

fn measured<S: Server>(server: S, election: &str, to: &Registry) -> Result<Elector<S>, BoxError> {
    let opts = HistogramOpts::new("leader_election_term_seconds", "Lengths of terms")
        .const_label("election", election)
        .buckets(vec![1.0, 10.0, 60.0, 600.0, 3600.0, 86400.0]);
    let lengths = HistogramVec::new(opts, &["reason"])?;
    let (began, observed) = (Arc::new(Mutex::new(Instant::now())), lengths.clone());
    let begin = began.clone();
    let options = Options::new(election)
        .on_elected(move |_| *begin.lock().unwrap() = Instant::now())
        .on_ousted(move |_, reason| {
            let length = began.lock().unwrap().elapsed().as_secs_f64();
            observed.with_label_values(&[reason.to_string()]).observe(length);
        });
    let elector = Elector::new(server, options)?;
    to.register(Box::new(Metrics(election.into(), elector.handle(), lengths)))?;
    Ok(elector)
}

fn show(registry: &Registry) -> String {
    prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
}

#[tokio::test]
async fn metrics() {
    let Ok(url) = std::env::var("DATABASE_URL") else {
        return println!("not run, needs DATABASE_URL");
    };
    let (registry, election) = (Registry::new(), format!("metrics {}", std::process::id()));
    let pool = sqlx::PgPool::connect_lazy(&url).unwrap();
    let elector = measured(pool, &election, &registry).unwrap();
    let (handle, shown) = (elector.handle(), Arc::new(Mutex::new(Vec::new())));
    let (log, metrics) = (shown.clone(), registry.clone());
    let job = move |term: leader_election::Term| {
        let (handle, log, text) = (handle.clone(), log.clone(), show(&metrics));
        async move {
            log.lock().unwrap().push(text);
            if log.lock().unwrap().len() == 1 {
                return Err("is reported".into());
            }
            handle.stop();
            term.cancellation().cancelled().await;
            Ok::<_, BoxError>(())
        }
    };
    elector.run(job).await.unwrap();
    shown.lock().unwrap().push(show(&registry));
    for (name, values) in [
        ("leading{E}", ["1", "1", "0"]),
        ("terms_total{E}", ["1", "2", "2"]),
        ("errors_total{E}", ["0", "1", "1"]),
        ("term_seconds_bucket{E,reason=\"job failed\",le=\"10\"}", ["", "1", "1"]),
        ("term_seconds_count{E,reason=\"resigned\"}", ["", "", "1"]),
    ] {
        let line = format!("leader_election_{name} ");
        let line = line.replace('E', &format!("election=\"{election}\""));
        for (text, value) in shown.lock().unwrap().iter().zip(values) {
            let found = text.lines().find_map(|other| other.strip_prefix(&line));
            assert_eq!(found.unwrap_or_default(), value, "{line}: {text}");
        }
    }
    assert!(shown.lock().unwrap()[2].contains("\nleader_election_confirmations_total{"));
}
