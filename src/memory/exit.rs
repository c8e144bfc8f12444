//! The end of the process.
//!
//! Drivers may free what is theirs in exit handlers, without waiting for threads that are inside them: a device that was
//! closed just before is still being destroyed by its poll thread then. So a handler of our own, which runs before those that
//! were registered earlier, waits until no poll thread is inside a driver and lets none in again.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Longest wait of the handler: a hanging driver must not keep the process.
const PATIENCE: Duration = Duration::from_secs(1);

static PROCESS: Exit = Exit::new();

/// Threads inside drivers, and whether they may still enter.
struct Exit {
    ending: AtomicBool,
    inside: Mutex<usize>,
    left: Condvar,
}

impl Exit {
    const fn new() -> Self {
        Exit { ending: AtomicBool::new(false), inside: Mutex::new(0), left: Condvar::new() }
    }

    fn enter(&self) {
        *self.inside.lock() += 1;
    }

    fn leave(&self) {
        *self.inside.lock() -= 1;
        self.left.notify_all();
    }

    /// Lets nobody in any more, and waits until all are out; false when that takes too long.
    fn end(&self, patience: Duration) -> bool {
        self.ending.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + patience;
        let mut inside = self.inside.lock();
        while *inside > 0 {
            if self.left.wait_until(&mut inside, deadline).timed_out() {
                return *inside == 0;
            }
        }
        true
    }
}

/// A thread that is inside a driver until this is dropped.
#[derive(Debug)]
pub(super) struct Inside(());

impl Inside {
    pub(super) fn enter() -> Self {
        PROCESS.enter();
        Inside(())
    }

    /// Runs `wait`, in which the thread is outside. It does not come back when the process ends.
    pub(super) fn outside<T>(wait: impl FnOnce() -> T) -> T {
        PROCESS.leave();
        let result = wait();
        PROCESS.enter();
        result
    }

    /// Stays outside for good.
    pub(super) fn rest() -> ! {
        PROCESS.leave();
        loop {
            std::thread::park();
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        PROCESS.leave();
    }
}

/// Whether the process ends: no driver may be entered any more.
pub(super) fn is_ending() -> bool {
    PROCESS.ending.load(Ordering::Relaxed)
}

/// Registers the handler, once, after the driver was loaded: handlers run in the opposite order.
pub(super) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // On Windows, threads have ended before libraries are told.
        #[cfg(unix)]
        {
            // SAFETY: the handler is a plain function that does not unwind and uses statics without destructors.
            let refused = unsafe { libc::atexit(at_exit) };
            if refused != 0 {
                tracing::debug!("no exit handler could be registered");
            }
        }
    });
}

#[cfg(unix)]
extern "C" fn at_exit() {
    PROCESS.end(PATIENCE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_waits_for_those_inside() {
        let exit = Exit::new();
        assert!(exit.end(Duration::ZERO) && exit.ending.load(Ordering::SeqCst));
        exit.enter();
        assert!(!exit.end(Duration::from_millis(5)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                exit.leave();
            });
            assert!(exit.end(Duration::from_secs(30)));
        });
    }
}
