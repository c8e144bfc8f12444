//! Time limits that a paused machine does not use up, and an end for a process that is stuck altogether.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use parking_lot::Mutex;
use tokio::task::JoinError;

use super::options::RunOptions;
use super::say;

/// How often time is looked at. A machine that was paused for minutes loses one tick.
const TICK: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// Seed and number of the query that the task is at.
    pub static NUMBER: (u64, u64);
}

/// A query that is waited for.
#[derive(Debug, Clone)]
pub struct Running {
    /// The seed.
    pub seed: u64,
    /// The query's number.
    pub number: u64,
    /// What runs.
    pub sql: String,
    /// How it runs.
    pub options: RunOptions,
}

type LastWords = Box<dyn Fn(&[Running]) + Send>;

/// Counts the ticks of waits, so that a thread beside the runtime sees when there are none.
pub struct Watchdog(Arc<Counts>);

impl std::fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watchdog").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Counts {
    next: AtomicU64,
    ticks: AtomicU64,
    running: Mutex<BTreeMap<u64, Running>>,
    last_words: Mutex<Option<LastWords>>,
}

impl Counts {
    fn running(&self) -> Vec<Running> {
        self.running.lock().values().cloned().collect()
    }
}

/// Takes a query from the list however its wait ends.
struct Entry<'a>(&'a Counts, u64);

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.0.running.lock().remove(&self.1);
    }
}

impl Watchdog {
    /// Ends the process when queries are waited for and `limit` passes without a tick: every worker of the runtime is
    /// blocked then, and no time limit within it can fire.
    pub fn guard(limit: Duration) -> Self {
        let counts = Arc::<Counts>::default();
        let watched = Arc::downgrade(&counts);
        std::thread::spawn(move || watch(&watched, limit));
        Watchdog(counts)
    }

    /// What is to be done before the process is ended.
    pub fn on_deadlock(&self, act: impl Fn(&[Running]) + Send + 'static) {
        *self.0.last_words.lock() = Some(Box::new(act));
    }

    /// The queries that are waited for.
    #[cfg(test)]
    pub fn running(&self) -> Vec<Running> {
        self.0.running()
    }

    /// The task's result; `None`, and the task is dropped and with that aborted, after `limit` without it.
    pub async fn wait<T: 'static>(
        &self,
        running: Running,
        mut task: SpawnedTask<T>,
        limit: Duration,
    ) -> Option<Result<T, JoinError>> {
        let number = self.0.next.fetch_add(1, Ordering::SeqCst);
        self.0.running.lock().insert(number, running);
        let _entry = Entry(&self.0, number);
        let mut outcome = None;
        for _ in 0..limit.as_secs() {
            let waited = tokio::time::timeout(TICK, &mut task).await;
            self.0.ticks.fetch_add(1, Ordering::SeqCst);
            outcome = waited.ok();
            if outcome.is_some() {
                break;
            }
        }
        outcome
    }
}

fn watch(counts: &Weak<Counts>, limit: Duration) {
    let (mut seen, mut quiet) = (0, 0);
    loop {
        std::thread::sleep(TICK);
        // Nobody waits any more.
        let Some(counts) = counts.upgrade() else { return };
        let now = counts.ticks.load(Ordering::SeqCst);
        let running = counts.running();
        quiet = if !running.is_empty() && now == seen { quiet + 1 } else { 0 };
        seen = now;
        if quiet > limit.as_secs() {
            let quiet = limit.as_secs();
            say(&format!("queries run, but no thread of the runtime has for {quiet} s: a deadlock"));
            running.iter().for_each(|running| say(&running.to_string()));
            if let Some(act) = counts.last_words.lock().take() {
                act(&running);
            }
            std::process::exit(1);
        }
    }
}

impl std::fmt::Display for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let options = serde_json::to_string(&self.options).unwrap_or_default();
        let Running { seed, number, sql, .. } = self;
        write!(
            f,
            "query {number} of seed {seed} (fuzz --seed {seed} --from {number} --queries 1)\n  {sql}\n  {options}"
        )
    }
}
