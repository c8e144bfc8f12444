//! The guard against statements that never end.
//!
//! A statement that takes too long is cancelled by its runner. One that does not yield cannot be, and may hold the very thread
//! that would cancel it; so a thread outside the runtime keeps the time. It counts its own ticks, which a machine that is
//! paused does not use up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

const TICKS_PER_SECOND: u64 = 4;
/// Seconds between the moment at which a statement is cancelled and the one at which it counts as hung.
const GRACE: u64 = 10;

/// Statements whose tasks live.
#[derive(Debug, Default)]
pub struct Watch {
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    next: u64,
    statements: HashMap<u64, Statement>,
}

/// A statement that runs.
#[derive(Debug, Clone)]
pub struct Statement {
    /// Test file.
    pub file: String,
    /// Its text.
    pub sql: String,
    ticks: u64,
    late: Arc<Notify>,
}

/// Lives as long as the statement's task.
#[derive(Debug)]
pub struct Entry {
    watch: Arc<Watch>,
    id: u64,
}

impl Watch {
    /// Notes that a statement starts; the second value is notified when it has taken too long.
    pub fn start(self: &Arc<Self>, file: &str, sql: &str) -> (Entry, Arc<Notify>) {
        let late = Arc::new(Notify::new());
        let statement =
            Statement { file: file.to_owned(), sql: sql.to_owned(), ticks: 0, late: Arc::clone(&late) };
        let mut running = self.running.lock();
        running.next += 1;
        let id = running.next;
        running.statements.insert(id, statement);
        (Entry { watch: Arc::clone(self), id }, late)
    }

    /// Counts a tick; statements that are there although they were cancelled long ago.
    fn tick(&self, limit_seconds: u64) -> Vec<Statement> {
        let mut running = self.running.lock();
        for statement in running.statements.values_mut() {
            statement.ticks += 1;
            if statement.ticks == limit_seconds * TICKS_PER_SECOND {
                statement.late.notify_one();
            }
        }
        let last = (limit_seconds + GRACE) * TICKS_PER_SECOND;
        running.statements.values().filter(|statement| statement.ticks > last).cloned().collect()
    }

    /// Starts the thread, which calls `report` once, with the statements that hang.
    ///
    /// # Errors
    /// That the thread cannot be started.
    pub fn spawn(
        self: &Arc<Self>,
        limit_seconds: u64,
        report: impl FnOnce(Vec<Statement>) + Send + 'static,
    ) -> std::io::Result<()> {
        let watch = Arc::downgrade(self);
        let body = move || {
            loop {
                std::thread::sleep(Duration::from_millis(1000 / TICKS_PER_SECOND));
                let Some(watch) = watch.upgrade() else { return };
                let hung = watch.tick(limit_seconds);
                if !hung.is_empty() {
                    return report(hung);
                }
            }
        };
        std::thread::Builder::new().name("watch".to_owned()).spawn(body).map(drop)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.watch.running.lock().statements.remove(&self.id);
    }
}
