//! Which work may use the device's memory next.
//!
//! A work (the upload, kernels and read-back of one batch) tells how many bytes it expects to hold. It is let in when they fit
//! beside what is held and what others were promised, first come, first served: so queries that run at once take turns
//! instead of failing each other. No work waits for admission while it holds one, and a work that would be alone is always
//! let in; so the queue never stands still.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock};

use tokio::sync::oneshot;

use super::budget::DeviceLedger;

/// Works on one device at a time: enough to fill staging memory on every core while others compute and are read back. More
/// would only hold memory.
static MOST: LazyLock<usize> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (2 * cores).clamp(4, 32)
});

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
    /// Bytes that each work was promised and does not hold yet.
    running: HashMap<u64, u64>,
    promised: u64,
    /// The work that runs wants no other beside it.
    alone: bool,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    need: Need,
    limit: u64,
    sender: oneshot::Sender<Grant>,
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
        self.running.get(&id).copied().unwrap_or(0)
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
        let Some(promise) = id.and_then(|id| self.running.get_mut(&id)) else { return 0 };
        let drawn = bytes.min(*promise);
        *promise -= drawn;
        self.promised -= drawn;
        drawn
    }

    /// Gives drawn bytes back to a work that goes on.
    pub(super) fn refund(&mut self, id: Option<u64>, bytes: u64) {
        if let Some(promise) = id.and_then(|id| self.running.get_mut(&id)) {
            *promise += bytes;
            self.promised += bytes;
        }
    }

    /// Queues a work; the receiver gets its grant.
    fn enqueue(&mut self, need: Need, limit: u64) -> (u64, oneshot::Receiver<Grant>) {
        let (sender, receiver) = oneshot::channel();
        let id = self.next;
        self.next += 1;
        self.waiting.push_back(Waiter { id, need, limit, sender });
        (id, receiver)
    }

    /// Lets in the first of those who wait, as many as fit beside `reserved` bytes.
    pub(super) fn let_in(&mut self, reserved: u64) -> Vec<Admitted> {
        let mut admitted = vec![];
        while let Some(first) = self.waiting.front() {
            let room = first.limit.saturating_sub(reserved.saturating_add(self.promised));
            let wanted = match first.need {
                Need::Bytes(bytes) => bytes.min(first.limit),
                Need::Alone => u64::MAX,
            };
            let fits = wanted <= room && !self.alone && self.running.len() < *MOST;
            if !fits && !self.running.is_empty() {
                break;
            }
            let promise = wanted.min(room);
            if let Some(Waiter { id, sender, need, .. }) = self.waiting.pop_front() {
                self.running.insert(id, promise);
                self.alone = need == Need::Alone;
                self.promised += promise;
                admitted.push(Admitted { id, sender });
            }
        }
        admitted
    }

    fn end(&mut self, id: u64) {
        self.promised -= self.running.remove(&id).unwrap_or(0);
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
    pub(super) async fn admit(self: &Arc<Self>, need: Need, limit: u64) -> Option<Grant> {
        let limit = limit.min(self.capacity());
        let (id, receiver) = self.with_admission(|admission| admission.enqueue(need, limit));
        let place = Place { ledger: self, id };
        // The sender lives in the queue until it is used.
        let grant = receiver.await.ok();
        drop(place);
        grant
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
