//! Time limits that a paused machine does not use up, and an end for a process that is stuck altogether.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use tokio::task::JoinError;

/// How often time is looked at. A machine that was paused for minutes loses one tick.
const TICK: Duration = Duration::from_secs(1);

/// Counts the ticks of waits, so that a thread beside the runtime sees when there are none.
#[derive(Debug)]
pub struct Watchdog(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    waits: AtomicU64,
    ticks: AtomicU64,
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

    /// The task's result; `None`, and the task is dropped and with that aborted, after `limit` without it.
    pub async fn wait<T: 'static>(
        &self,
        mut task: SpawnedTask<T>,
        limit: Duration,
    ) -> Option<Result<T, JoinError>> {
        self.0.waits.fetch_add(1, Ordering::SeqCst);
        let mut outcome = None;
        for _ in 0..limit.as_secs() {
            let waited = tokio::time::timeout(TICK, &mut task).await;
            self.0.ticks.fetch_add(1, Ordering::SeqCst);
            outcome = waited.ok();
            if outcome.is_some() {
                break;
            }
        }
        self.0.waits.fetch_sub(1, Ordering::SeqCst);
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
        let waiting = counts.waits.load(Ordering::SeqCst) > 0;
        quiet = if waiting && now == seen { quiet + 1 } else { 0 };
        seen = now;
        if quiet > limit.as_secs() {
            eprintln!("queries run, but no thread of the runtime has for {} s: a deadlock", limit.as_secs());
            std::process::exit(1);
        }
    }
}
