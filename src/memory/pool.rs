//! Size-class pool of device buffers.
//!
//! Buffers are created once and reused: creating one costs the driver's allocation and wgpu's zero-fill of what is
//! first used. A storage or read-back buffer is free as soon as it is dropped, since there is one queue and
//! wgpu orders its work; a staging buffer is free again when it is mapped again.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::futures::Notified;

use super::budget::{PeakMeter, Reclaim, Reservation};
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

/// A wgpu buffer that is counted for as long as it exists.
#[derive(Debug)]
pub(crate) struct RawBuffer {
    raw: wgpu::Buffer,
    /// `None` in what [`RawBuffer::take`] leaves behind.
    counted: Option<Counted>,
}

#[derive(Debug)]
struct Counted {
    bytes: u64,
    alive: Arc<PeakMeter>,
}

impl RawBuffer {
    /// Counts a fresh buffer in `alive`.
    pub(crate) fn new(raw: wgpu::Buffer, alive: &Arc<PeakMeter>) -> Self {
        let bytes = raw.size();
        alive.grow(bytes);
        RawBuffer { raw, counted: Some(Counted { bytes, alive: Arc::clone(alive) }) }
    }

    /// Moves the buffer out; what stays is not counted, and must be dropped at once.
    fn take(&mut self) -> Self {
        RawBuffer { raw: self.raw.clone(), counted: self.counted.take() }
    }
}

impl Deref for RawBuffer {
    type Target = wgpu::Buffer;

    fn deref(&self) -> &wgpu::Buffer {
        &self.raw
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.shrink(self.bytes);
    }
}

/// A pooled device buffer; it goes back to its pool, and its bytes to the ledger, when dropped; those of staging memory when
/// its copies are done. Keep it until the commands that use it were submitted; after that it may be dropped at once.
#[derive(Debug)]
pub struct DeviceBuffer {
    raw: RawBuffer,
    kind: BufferKind,
    pool: Arc<BufferPool>,
    /// Staging: mapped for writing. Read-back: being mapped or mapped.
    mapped: AtomicBool,
    /// Present between guard bands.
    guard: Option<Box<Guard>>,
    /// Released after `drop` has given the buffer back.
    reservation: Option<Reservation>,
}

impl DeviceBuffer {
    pub(crate) fn new(
        raw: RawBuffer,
        kind: BufferKind,
        pool: Arc<BufferPool>,
        reservation: Reservation,
    ) -> Arc<Self> {
        let mapped = AtomicBool::new(kind == BufferKind::Staging);
        Arc::new(DeviceBuffer { raw, kind, pool, mapped, guard: None, reservation: Some(reservation) })
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
            return guard.dropped(self.raw.take());
        }
        let mapped = self.mapped.load(Ordering::Acquire);
        match self.kind {
            BufferKind::Staging if !mapped => {
                if let Some(reservation) = self.reservation.take() {
                    self.pool.retire(self.raw.take(), reservation);
                }
            }
            // A reader went away before the mapping ended: wgpu aborts it with the buffer.
            BufferKind::ReadBack if mapped => {}
            kind => self.pool.put(kind, self.raw.take()),
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
    /// Bytes of buffers that were free and are being destroyed.
    leaving_bytes: u64,
    /// Staging buffers whose copies are in flight, until they are mapped again, and are reserved for so long.
    retiring: HashMap<u64, (RawBuffer, Reservation)>,
    clock: u64,
}

#[derive(Debug)]
struct Idle {
    buffer: RawBuffer,
    since: u64,
}

impl BufferPool {
    /// A pool that keeps at most `idle_cap` bytes of free buffers.
    pub(crate) fn new(progress: Arc<Progress>, idle_cap: u64) -> Arc<Self> {
        let pool = Arc::new(BufferPool { progress, idle_cap, state: Mutex::new(PoolState::default()) });
        pool.progress.set_pool(&pool);
        pool
    }

    /// A free buffer of exactly this size, the one used last.
    pub(crate) fn take(&self, kind: BufferKind, size: u64) -> Option<RawBuffer> {
        let mut state = self.state.lock();
        let idle = state.free.get_mut(&(kind, size))?.pop_back()?;
        state.idle_bytes -= size;
        Some(idle.buffer)
    }

    /// Takes a free buffer back; the oldest free ones are dropped beyond the cap.
    pub(crate) fn put(&self, kind: BufferKind, buffer: RawBuffer) {
        if self.progress.is_lost() {
            return;
        }
        let (evicted, bytes) = {
            let mut state = self.state.lock();
            state.add(kind, buffer);
            let before = state.idle_bytes;
            let evicted = state.evict(before.saturating_sub(self.idle_cap));
            let bytes = before - state.idle_bytes;
            state.leaving_bytes += bytes;
            (evicted, bytes)
        };
        if bytes > 0 {
            // Freed outside the lock: the driver may take its time.
            drop(evicted);
            self.state.lock().leaving_bytes -= bytes;
        }
    }

    /// Takes an unmapped staging buffer back: free once its copies are done and it is mapped again.
    fn retire(self: &Arc<Self>, buffer: RawBuffer, mut reservation: Reservation) {
        let Ok((ticket, _)) = self.progress.announce_map(false) else { return };
        reservation.returns();
        let raw = buffer.raw.clone();
        let id = {
            let mut state = self.state.lock();
            state.clock += 1;
            let id = state.clock;
            state.retiring.insert(id, (buffer, reservation));
            id
        };
        let retiring = Retiring { pool: Arc::downgrade(self), id, usable: false };
        raw.map_async(wgpu::MapMode::Write, .., move |result| {
            ticket.finish(result, move |mapped| retiring.end(mapped));
        });
        self.progress.notify();
        if self.progress.is_lost() {
            // It may have been too late for `lost`.
            self.lost();
        }
    }

    fn retired(&self, id: u64, usable: bool) {
        let retired = self.state.lock().retiring.remove(&id);
        if let Some((buffer, reservation)) = retired {
            if usable {
                self.put(BufferKind::Staging, buffer);
            }
            drop(reservation);
        }
        self.progress.returned.notify_waiters();
    }

    /// Gives back what staging buffers of a lost device were reserved for: nobody may ever hear of their copies. Calls no
    /// wgpu; the buffers are idle until they make room, or the pool is dropped.
    pub(super) fn lost(&self) {
        let reservations: Vec<_> = {
            let mut state = self.state.lock();
            let retiring = std::mem::take(&mut state.retiring);
            let idle = |(buffer, reservation)| {
                state.add(BufferKind::Staging, buffer);
                reservation
            };
            retiring.into_values().map(idle).collect()
        };
        drop(reservations);
    }

    /// Ends when the next staging buffer comes back, and when the device is lost.
    pub(crate) fn returned(&self) -> Notified<'_> {
        self.progress.returned.notified()
    }
}

/// A staging buffer on its way back. It arrives when this is dropped, so none is waited for in vain when wgpu drops a
/// callback.
#[derive(Debug)]
struct Retiring {
    pool: Weak<BufferPool>,
    id: u64,
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
            pool.retired(self.id, self.usable);
        }
    }
}

impl PoolState {
    /// Adds a free buffer.
    fn add(&mut self, kind: BufferKind, buffer: RawBuffer) {
        self.clock += 1;
        let (since, size) = (self.clock, buffer.size());
        self.free.entry((kind, size)).or_default().push_back(Idle { buffer, since });
        self.idle_bytes += size;
    }

    /// Takes out the oldest free buffers, `bytes` of them or all.
    fn evict(&mut self, bytes: u64) -> Vec<RawBuffer> {
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
        state.idle_bytes + state.leaving_bytes
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
