//! Size-class pool of device buffers.
//!
//! Buffers are created once and reused: creating one costs the driver's allocation and wgpu's zero-fill of what is
//! first used. A storage or read-back buffer is free as soon as it is dropped, since there is one queue and
//! wgpu orders its work; a staging buffer is free again when it is mapped again.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::budget::{Reclaim, Reservation};
use super::guards::Guard;
use super::poll::Progress;

/// Smallest size class, in bytes.
const MIN_CLASS: u64 = 256;

/// What a buffer is for; it decides the usage flags and the memory that the driver takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferKind {
    /// Device memory that shaders bind as storage or uniform; source and target of copies.
    Storage,
    /// Host memory that copies write and the host reads.
    ReadBack,
    /// Memory that the host writes and copies read. Comes mapped.
    Staging,
    /// Device memory that query results are resolved into.
    Queries,
}

impl BufferKind {
    pub(crate) fn usage(self) -> wgpu::BufferUsages {
        use wgpu::BufferUsages as Usage;
        match self {
            BufferKind::Storage => Usage::STORAGE | Usage::UNIFORM | Usage::COPY_SRC | Usage::COPY_DST,
            BufferKind::ReadBack => Usage::MAP_READ | Usage::COPY_DST,
            BufferKind::Staging => Usage::MAP_WRITE | Usage::COPY_SRC,
            BufferKind::Queries => Usage::QUERY_RESOLVE | Usage::COPY_SRC,
        }
    }
}

/// Rounds bytes up to a size class: a power of two or one of the three steps between two, from 256 bytes. At most
/// a quarter more than asked.
pub(crate) fn size_class(bytes: u64) -> u64 {
    if bytes <= MIN_CLASS {
        return MIN_CLASS;
    }
    let power = 1u64 << (63 - bytes.leading_zeros());
    bytes.checked_next_multiple_of(power / 4).unwrap_or(bytes)
}

/// A pooled device buffer; it goes back to its pool, and its bytes to the ledger, when dropped. Keep it until the
/// commands that use it were submitted; after that it may be dropped at once.
#[derive(Debug)]
pub struct DeviceBuffer {
    raw: wgpu::Buffer,
    kind: BufferKind,
    pool: Arc<BufferPool>,
    /// Staging: mapped for writing. Read-back: being mapped or mapped.
    mapped: AtomicBool,
    /// Present between guard bands.
    guard: Option<Box<Guard>>,
    /// Released after `drop` has given the buffer back.
    _reservation: Reservation,
}

impl DeviceBuffer {
    pub(crate) fn new(
        raw: wgpu::Buffer,
        kind: BufferKind,
        pool: Arc<BufferPool>,
        reservation: Reservation,
    ) -> Arc<Self> {
        let mapped = AtomicBool::new(kind == BufferKind::Staging);
        Arc::new(DeviceBuffer { raw, kind, pool, mapped, guard: None, _reservation: reservation })
    }

    /// The wgpu buffer, for bind groups and copies.
    pub fn raw(&self) -> &wgpu::Buffer {
        &self.raw
    }

    /// Bytes, the size class included.
    pub fn size(&self) -> u64 {
        self.raw.size()
    }

    /// What it is for.
    pub fn kind(&self) -> BufferKind {
        self.kind
    }

    /// Notes that it lies between guard bands.
    pub(crate) fn set_guard(&mut self, guard: Guard) {
        self.guard = Some(Box::new(guard));
    }

    /// Its guard bands, if it has some.
    pub(crate) fn guard(&self) -> Option<&Guard> {
        self.guard.as_deref()
    }

    /// Notes that a mapping was asked for.
    pub(crate) fn set_mapping(&self) {
        self.mapped.store(true, Ordering::Release);
    }

    /// Unmaps; no view of it may be alive.
    pub(crate) fn unmap(&self) {
        self.raw.unmap();
        self.mapped.store(false, Ordering::Release);
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            return guard.dropped(self.raw.clone());
        }
        let mapped = self.mapped.load(Ordering::Acquire);
        match self.kind {
            BufferKind::Staging if !mapped => self.pool.retire(&self.raw),
            // A reader went away before the mapping ended: wgpu aborts it with the buffer.
            BufferKind::ReadBack if mapped => {}
            kind => self.pool.put(kind, self.raw.clone()),
        }
    }
}

/// Free buffers of one device generation.
#[derive(Debug)]
pub(crate) struct BufferPool {
    progress: Arc<Progress>,
    idle_cap: u64,
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    free: HashMap<(BufferKind, u64), VecDeque<Idle>>,
    idle_bytes: u64,
    /// Staging buffers whose copies are in flight, until they are mapped again.
    retiring: HashMap<u64, wgpu::Buffer>,
    retiring_bytes: u64,
    clock: u64,
}

#[derive(Debug)]
struct Idle {
    buffer: wgpu::Buffer,
    since: u64,
}

impl BufferPool {
    /// A pool that keeps at most `idle_cap` bytes of free buffers.
    pub(crate) fn new(progress: Arc<Progress>, idle_cap: u64) -> Arc<Self> {
        Arc::new(BufferPool { progress, idle_cap, state: Mutex::new(PoolState::default()) })
    }

    /// A free buffer of exactly this size, the one used last.
    pub(crate) fn take(&self, kind: BufferKind, size: u64) -> Option<wgpu::Buffer> {
        let mut state = self.state.lock();
        let idle = state.free.get_mut(&(kind, size))?.pop_back()?;
        state.idle_bytes -= size;
        Some(idle.buffer)
    }

    /// Takes a free buffer back; the oldest free ones are dropped beyond the cap.
    pub(crate) fn put(&self, kind: BufferKind, buffer: wgpu::Buffer) {
        if self.progress.is_lost() {
            return;
        }
        let size = buffer.size();
        let evicted = {
            let mut state = self.state.lock();
            state.clock += 1;
            let since = state.clock;
            state.free.entry((kind, size)).or_default().push_back(Idle { buffer, since });
            state.idle_bytes += size;
            let excess = state.idle_bytes.saturating_sub(self.idle_cap);
            state.evict(excess)
        };
        // Freed outside the lock: the driver may take its time.
        drop(evicted);
    }

    /// Takes an unmapped staging buffer back: free once its copies are done and it is mapped again.
    fn retire(self: &Arc<Self>, buffer: &wgpu::Buffer) {
        let Ok((ticket, _)) = self.progress.announce_map(false) else { return };
        let (id, size) = {
            let mut state = self.state.lock();
            state.clock += 1;
            let id = state.clock;
            state.retiring.insert(id, buffer.clone());
            state.retiring_bytes += buffer.size();
            (id, buffer.size())
        };
        let retiring = Retiring { pool: Arc::downgrade(self), id, size, usable: false };
        buffer.map_async(wgpu::MapMode::Write, .., move |result| {
            ticket.finish(result, move |mapped| retiring.end(mapped));
        });
        self.progress.notify();
    }

    fn retired(&self, id: u64, size: u64, usable: bool) {
        let buffer = {
            let mut state = self.state.lock();
            let buffer = state.retiring.remove(&id);
            if buffer.is_some() {
                state.retiring_bytes -= size;
            }
            buffer
        };
        if let (Some(buffer), true) = (buffer, usable) {
            self.put(BufferKind::Staging, buffer);
        }
        self.progress.returned.notify_waiters();
    }

    /// Bytes of staging buffers whose copies are in flight.
    pub(crate) fn retiring_bytes(&self) -> u64 {
        self.state.lock().retiring_bytes
    }

    /// Waits until at most `bytes` of staging buffers are in flight, or the device is lost.
    pub(crate) async fn staging_below(&self, bytes: u64) {
        loop {
            let returned = self.progress.returned.notified();
            tokio::pin!(returned);
            returned.as_mut().enable();
            if self.retiring_bytes() <= bytes || self.progress.is_lost() {
                return;
            }
            returned.await;
        }
    }
}

/// A staging buffer on its way back. It arrives when this is dropped, so none is waited for in vain when wgpu drops a
/// callback.
#[derive(Debug)]
struct Retiring {
    pool: Weak<BufferPool>,
    id: u64,
    size: u64,
    usable: bool,
}

impl Retiring {
    fn end(mut self, mapped: bool) {
        self.usable = mapped;
    }
}

impl Drop for Retiring {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.retired(self.id, self.size, self.usable);
        }
    }
}

impl PoolState {
    /// Takes out the oldest free buffers, `bytes` of them or all.
    fn evict(&mut self, bytes: u64) -> Vec<wgpu::Buffer> {
        let mut evicted = Vec::new();
        let mut freed = 0;
        while freed < bytes {
            let oldest = self
                .free
                .iter()
                .filter_map(|(key, list)| Some((list.front()?.since, *key)))
                .min_by_key(|o| o.0);
            let Some((_, key)) = oldest else { break };
            let Some(idle) = self.free.get_mut(&key).and_then(VecDeque::pop_front) else { break };
            freed += key.1;
            self.idle_bytes -= key.1;
            evicted.push(idle.buffer);
        }
        self.free.retain(|_, list| !list.is_empty());
        evicted
    }
}

impl Reclaim for BufferPool {
    fn idle_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.idle_bytes + state.retiring_bytes
    }

    fn reclaim(&self, bytes: u64) {
        let evicted = self.state.lock().evict(bytes);
        drop(evicted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_step_by_quarters() {
        let cases =
            [(0, 256), (1, 256), (256, 256), (257, 320), (320, 320), (321, 384), (449, 512), (513, 640)];
        for (bytes, class) in cases {
            assert_eq!(size_class(bytes), class, "{bytes}");
        }
        for bytes in [1000u64, 4097, 65_537, 8_000_000, (1 << 30) + 1] {
            let class = size_class(bytes);
            assert!(
                class >= bytes && class as f64 <= bytes as f64 * 1.26 && class.is_multiple_of(16),
                "{bytes} -> {class}"
            );
            assert_eq!(size_class(class), class);
        }
    }
}
