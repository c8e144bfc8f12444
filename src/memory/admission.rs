//! Which work may use the device's memory next.
//!
//! A work (the upload, kernels and read-back of one batch) tells how many bytes it expects to hold. It is let in when they fit
//! beside what is held and what others were promised, first come, first served: so queries that run at once take turns
//! instead of failing each other. Only who waits because of a limit of its own, lower than that of others, is passed by some
//! of them. No work waits for admission while it holds one, and a work that would be alone is always
//! let in; so the queue never stands still.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::budget::DeviceLedger;

/// Works on one device at a time: enough to fill staging memory on every core while others compute and are read back. More
/// would only hold memory.
static MOST: LazyLock<usize> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (2 * cores).clamp(4, 32)
});

/// How long nobody is let in alone for the driver's sake after that was in vain.
const VAIN: Duration = Duration::from_secs(5);

/// Works that may be let in before one that came earlier and that only its own, lower limit keeps waiting.
const MOST_PASSING: u32 = 8;

/// What a work needs to be let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// About so many bytes.
    Bytes(u64),
    /// To be alone on the device, with all the memory that nobody holds.
    Alone,
}

/// Works that were let in, and those that wait. Guarded by the ledger's lock.
#[derive(Debug, Default)]
pub(super) struct Admission {
    next: u64,
    running: HashMap<u64, Running>,
    promised: u64,
    /// The work that runs wants no other beside it.
    alone: bool,
    waiting: VecDeque<Waiter>,
    /// When the driver last refused memory to a work that was alone.
    refused_alone: Option<Instant>,
}

/// A work that was let in.
#[derive(Debug)]
struct Running {
    /// Bytes that it was promised and does not hold yet.
    promise: u64,
    consumer: Arc<str>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    need: Need,
    limit: u64,
    consumer: Arc<str>,
    /// Works that came later and were let in before.
    passed: u32,
    sender: oneshot::Sender<Grant>,
}

impl Waiter {
    /// Bytes that it wants to be promised; all there are to be alone.
    fn wanted(&self) -> u64 {
        match self.need {
            Need::Bytes(bytes) => bytes.min(self.limit),
            Need::Alone => u64::MAX,
        }
    }
}

/// Somebody who can be told that he was let in.
pub(super) struct Admitted {
    id: u64,
    sender: oneshot::Sender<Grant>,
}

impl Admission {
    /// Bytes promised to all works but `own`, which nobody holds yet.
    pub(super) fn promised_to_others(&self, own: Option<u64>) -> u64 {
        self.promised - own.map_or(0, |id| self.promise(id))
    }

    fn promise(&self, id: u64) -> u64 {
        self.running.get(&id).map_or(0, |work| work.promise)
    }

    /// What each work was promised and does not hold yet.
    pub(super) fn promises(&self) -> impl Iterator<Item = (Arc<str>, u64)> {
        self.running.values().map(|work| (Arc::clone(&work.consumer), work.promise))
    }

    /// What each work that waits needs; its limit where it wants all there is.
    pub(super) fn needs(&self) -> impl Iterator<Item = (Arc<str>, u64)> {
        self.waiting.iter().map(|waiter| (Arc::clone(&waiter.consumer), waiter.wanted().min(waiter.limit)))
    }

    /// Works that were let in and have not ended.
    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    /// Works that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes up to `bytes` out of the promise of `id`, because they are held now.
    pub(super) fn draw(&mut self, id: Option<u64>, bytes: u64) -> u64 {
        let Some(work) = id.and_then(|id| self.running.get_mut(&id)) else { return 0 };
        let drawn = bytes.min(work.promise);
        work.promise -= drawn;
        self.promised -= drawn;
        drawn
    }

    /// Gives drawn bytes back to a work that goes on.
    pub(super) fn refund(&mut self, id: Option<u64>, bytes: u64) {
        if let Some(work) = id.and_then(|id| self.running.get_mut(&id)) {
            work.promise += bytes;
            self.promised += bytes;
        }
    }

    /// Queues a work; the receiver gets its grant.
    fn enqueue(&mut self, need: Need, limit: u64, consumer: &Arc<str>) -> (u64, oneshot::Receiver<Grant>) {
        let (sender, receiver) = oneshot::channel();
        let id = self.next;
        self.next += 1;
        let consumer = Arc::clone(consumer);
        self.waiting.push_back(Waiter { id, need, limit, consumer, passed: 0, sender });
        (id, receiver)
    }

    /// Lets in those who wait, in their order, as many as fit beside `reserved` bytes; `returning` tells that some of those
    /// will soon be there again.
    pub(super) fn let_in(&mut self, reserved: u64, returning: bool) -> Vec<Admitted> {
        let mut admitted = vec![];
        while let Some(at) = self.next(reserved, returning) {
            let Some(waiter) = self.waiting.remove(at) else { break };
            self.waiting.iter_mut().take(at).for_each(|earlier| earlier.passed += 1);
            let promise = waiter.wanted().min(self.room(&waiter, reserved));
            let Waiter { id, sender, need, consumer, .. } = waiter;
            self.running.insert(id, Running { promise, consumer });
            self.alone = need == Need::Alone;
            self.promised += promise;
            admitted.push(Admitted { id, sender });
        }
        admitted
    }

    fn room(&self, waiter: &Waiter, reserved: u64) -> u64 {
        waiter.limit.saturating_sub(reserved.saturating_add(self.promised))
    }

    /// Who is to be let in next. The first, unless it is its own limit that keeps it waiting: then some of those who came
    /// later and have a higher one go first.
    fn next(&self, reserved: u64, returning: bool) -> Option<usize> {
        let full = self.alone || self.running.len() >= *MOST;
        let mut blocked = None;
        for (at, waiter) in self.waiting.iter().enumerate() {
            if blocked.is_some_and(|limit| waiter.limit <= limit) {
                continue;
            }
            let fits = waiter.wanted() <= self.room(waiter, reserved) && !full;
            if fits || (self.running.is_empty() && !returning) {
                return Some(at);
            }
            if full || waiter.need == Need::Alone || waiter.passed >= MOST_PASSING {
                return None;
            }
            blocked = Some(waiter.limit);
        }
        None
    }

    fn end(&mut self, id: u64) {
        self.promised -= self.running.remove(&id).map_or(0, |work| work.promise);
        if self.running.is_empty() {
            self.alone = false;
        }
    }

    fn give_up(&mut self, id: u64) {
        self.waiting.retain(|waiter| waiter.id != id);
    }
}

/// The admission of one work; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Grant {
    ledger: Arc<DeviceLedger>,
    id: u64,
}

impl Grant {
    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.ledger.with_admission(|admission| admission.end(self.id));
    }
}

/// A place in the queue, given up when the work that waits is cancelled.
struct Place<'a> {
    ledger: &'a Arc<DeviceLedger>,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.ledger.with_admission(|admission| admission.give_up(self.id));
    }
}

impl DeviceLedger {
    /// Waits until a work may begin. Cancel safe.
    pub(super) async fn admit(
        self: &Arc<Self>,
        need: Need,
        limit: u64,
        consumer: &Arc<str>,
    ) -> Option<Grant> {
        let limit = limit.min(self.capacity());
        let (id, receiver) = self.with_admission(|admission| admission.enqueue(need, limit, consumer));
        let place = Place { ledger: self, id };
        // The sender lives in the queue until it is used.
        let grant = receiver.await.ok();
        drop(place);
        grant
    }

    /// Notes that the driver refused memory to a work that was alone.
    pub(crate) fn refused_alone(self: &Arc<Self>) {
        self.with_admission(|admission| admission.refused_alone = Some(Instant::now()));
    }

    /// Whether a work was refused although it was alone, not long ago: who holds the memory is not one of us.
    pub(crate) fn alone_is_vain(self: &Arc<Self>) -> bool {
        let refused = self.with_admission(|admission| admission.refused_alone);
        refused.is_some_and(|at| at.elapsed() < VAIN)
    }

    /// Tells those who were let in; the lock is not held.
    pub(super) fn announce(self: &Arc<Self>, admitted: Vec<Admitted>) {
        for Admitted { id, sender } in admitted {
            // Where nobody listens any more, the grant ends at once.
            drop(sender.send(Grant { ledger: Arc::clone(self), id }));
        }
    }
}

#[cfg(test)]
mod tests;
