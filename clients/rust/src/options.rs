//! The options of an elector, checked as the server would check them.

use crate::error::{Error, ErrorKind, Result};
use crate::run::Reason;
use crate::term::Term;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

type OnOusted = Arc<dyn Fn(&Term, Reason) + Send + Sync>;

/// The options of an [`Elector`](crate::Elector), and of [`follow`](crate::follow()).
#[derive(Clone)]
pub struct Options {
    pub(crate) election: String,
    pub(crate) identity: String,
    pub(crate) schema: Option<String>,
    pub(crate) seats: Option<u32>,
    pub(crate) ttl: Option<f64>,
    pub(crate) heartbeat: Option<f64>,
    pub(crate) stop_timeout: f64,
    pub(crate) on_elected: Arc<dyn Fn(&Term) + Send + Sync>,
    pub(crate) on_ousted: OnOusted,
    pub(crate) on_error: Arc<dyn Fn(&Error) + Send + Sync>,
}

debug!(Options, self: "election" &self.election, "identity" &self.identity,
    "schema" &self.schema, "seats" &self.seats, "ttl" &self.ttl, "heartbeat" &self.heartbeat);

/// Define functions that set an option.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty => $value:expr;)*) => {
        $($(#[$doc])* #[must_use] pub fn $name(mut self, $name: $type) -> Self {
            self.$name = $value;
            self
        })*
    };
}

impl Options {
    /// Begin with the defaults: session scope, without a heartbeat.
    pub fn new(election: impl Into<String>) -> Self {
        Options {
            election: election.into(),
            identity: default_identity(),
            schema: None,
            seats: None,
            ttl: None,
            heartbeat: None,
            stop_timeout: 10.0,
            on_elected: Arc::new(|_| ()),
            on_ousted: Arc::new(|_, _| ()),
            on_error: Arc::new(|error| tracing::error!("leader election: {error:#}")),
        }
    }

    setters! {
        /// Set what tells this elector apart. The default consists of host name, process ID and
        /// four hexadecimal digits, as in `web-1:4711:9f3c`.
        identity: impl Into<String> => identity.into();
        /// Set the schema of the extension. By default, `search_path` finds it.
        schema: impl Into<String> => Some(schema.into());
        /// Campaign for one of so many seats.
        seats: u32 => Some(seats);
        /// Lead by a lease with this ttl, and not in session scope.
        ttl: Duration => Some(ttl.as_secs_f64());
        /// Let the term end if the job does not call [`Term::heartbeat`] for so long.
        heartbeat: Duration => Some(heartbeat.as_secs_f64());
        /// Set how long the job may take to stop, or a callback, which is 10 s by default.
        stop_timeout: Duration => stop_timeout.as_secs_f64();
        /// Set what is called before the job starts. It may block, as all callbacks may.
        on_elected: impl Fn(&Term) + Send + Sync + 'static => Arc::new(on_elected);
        /// Set what is called after the job has stopped, and before the resignation.
        on_ousted: impl Fn(&Term, Reason) + Send + Sync + 'static => Arc::new(on_ousted);
        /// Set what is called with each error, in order. By default, errors are logged by the
        /// crate `tracing`.
        on_error: impl Fn(&Error) + Send + Sync + 'static => Arc::new(on_error);
    }

    /// Fail if an option is wrong. The message begins with its name.
    pub(crate) fn check(&self) -> Result<()> {
        let fits = |text: &str, most| (1..=most).contains(&text.len()) && !text.contains('\0');
        let long = |time| (1.0..=86_400.0).contains(&time);
        let (name, stop) = (self.election.as_str(), self.stop_timeout);
        let seat = self.seats.map_or(String::new(), |n| format!("/{n}"));
        let checks = [
            (fits(name, 255 - seat.len()), "election or seat must have 1 to 255 bytes, none zero"),
            (!(name.starts_with('{') && name.ends_with('}')), "election must not be in braces"),
            (fits(&self.identity, 255), "identity must have 1 to 255 bytes, none of them zero"),
            (self.schema.as_ref().is_none_or(|s| fits(s, 63)), "schema must have 1 to 63 bytes"),
            (self.seats.is_none_or(|n| (1..=10_000).contains(&n)), "seats must be 1 to 10,000"),
            (self.ttl.is_none_or(long), "ttl must be from 1 s to one day"),
            (self.heartbeat.is_none_or(long), "heartbeat must be from 1 s to one day"),
            (0.0 < stop && stop <= 86_400.0, "stop_timeout must be positive, and at most one day"),
        ];
        let wrong = checks.into_iter().find(|(good, _)| !good);
        wrong.map_or(Ok(()), |(_, message)| Err(Error::new(ErrorKind::Argument, message)))
    }

    /// Return what stands before the name of a function.
    pub(crate) fn prefix(&self) -> String {
        let quoted = |name: &String| format!("\"{}\".", name.replace('"', "\"\""));
        self.schema.as_ref().map_or(String::new(), quoted)
    }

    /// Return the elections to bid for, and the identity, as SQL.
    pub(crate) fn names(&self) -> (String, String) {
        let name = quote(&self.election);
        let seats = |n| format!("{}le_seats({name}, {n})", self.prefix());
        (self.seats.map_or(name.clone(), seats), quote(&self.identity))
    }
}

/// Return text as a literal, whatever the setting of standard_conforming_strings.
pub(crate) fn quote(text: &str) -> String {
    format!("E'{}'::text", text.replace('\\', r"\\").replace('\'', "''"))
}

/// Return a name as a literal in which no library sees a parameter.
pub(crate) fn literal(name: &str) -> String {
    if name.chars().all(|c| c.is_alphanumeric() || "_ ./-".contains(c)) {
        return format!("'{name}'");
    }
    let hex: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("convert_from(decode('{hex}', 'hex'), 'UTF8')")
}

/// Return seconds as a literal.
pub(crate) fn interval(seconds: f64) -> String {
    format!("'{seconds:.6} s'::interval")
}

/// Return a random number from 0 to 1: the keys of the standard library's hashes are random.
pub(crate) fn random() -> f64 {
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}

/// Return host name, process ID, and four digits that differ within this process.
fn default_identity() -> String {
    static NEXT: LazyLock<AtomicU16> =
        LazyLock::new(|| AtomicU16::new((random() * 65535.0) as u16));
    #[cfg(unix)]
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let host = std::env::var("COMPUTERNAME").unwrap_or_else(|_| "localhost".into());
    let digits = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{host}:{}:{digits:04x}", std::process::id())
}
