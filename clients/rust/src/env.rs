//! What the state machine takes from its surroundings, so that tests can simulate it.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The clock, the source of jitter, and where jobs run.
#[derive(Clone)]
pub(crate) struct Env {
    /// The time since some fixed point, which goes on while the machine is suspended.
    pub now: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// A number from 0 to 1.
    pub random: Arc<dyn Fn() -> f64 + Send + Sync>,
    /// The runtime of the jobs, if it is another one.
    pub jobs: Option<tokio::runtime::Handle>,
}

impl Default for Env {
    fn default() -> Self {
        Env { now: Arc::new(now), random: Arc::new(random), jobs: None }
    }
}

impl Env {
    /// Return a random half to the whole of a pause.
    pub fn jittered(&self, pause: Duration) -> Duration {
        pause.mul_f64(0.5 + 0.5 * (self.random)())
    }
}

/// How many errors there were in a row.
#[derive(Default)]
pub(crate) struct Errors(u32);

impl Errors {
    pub fn reset(&mut self) {
        self.0 = 0;
    }

    /// Count an error, and return the pause after it.
    pub fn pause(&mut self, env: &Env) -> Duration {
        let pause = Duration::from_millis(500) * (1 << self.0);
        self.0 = (self.0 + 1).min(5);
        env.jittered(pause.min(Duration::from_secs(15)))
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn now() -> Duration {
    static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

/// Return 64 random bits: the keys of the standard library's hashes are random.
fn random_bits() -> u64 {
    RandomState::new().hash_one(0)
}

fn random() -> f64 {
    random_bits() as f64 / u64::MAX as f64
}

/// Return host name, process ID, and four digits that differ within this process.
pub(crate) fn identity() -> String {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(random_bits() as u16));
    #[cfg(unix)]
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let host = std::env::var("COMPUTERNAME").unwrap_or_else(|_| "localhost".into());
    let digits = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{host}:{}:{digits:04x}", std::process::id())
}
