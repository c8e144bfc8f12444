//! Who holds how much device memory, and under which limit.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::error::{GpuError, GpuResult};

/// Holders named in an error message.
const REPORTED_HOLDERS: usize = 5;

/// A cache of unused device memory that can be told to give some back.
pub(crate) trait Reclaim: Send + Sync + fmt::Debug {
    /// Bytes held on the device for nobody.
    fn idle_bytes(&self) -> u64;
    /// Frees about `bytes` of them, or as many as there are.
    fn reclaim(&self, bytes: u64);
}

/// The pools of an adapter's device generations, shared by the ledgers over that adapter.
#[derive(Debug, Default)]
pub(crate) struct PoolRegistry {
    pools: Mutex<Vec<Weak<dyn Reclaim>>>,
}

impl PoolRegistry {
    pub(crate) fn add(&self, pool: Weak<dyn Reclaim>) {
        let mut pools = self.pools.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(pool);
    }

    fn live(&self) -> Vec<Arc<dyn Reclaim>> {
        self.pools.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Frees idle buffers until live and idle bytes together fit `limit`.
    fn make_room(&self, live_bytes: u64, limit: u64) {
        for pool in self.live() {
            let idle: u64 = self.live().iter().map(|pool| pool.idle_bytes()).sum();
            let held = live_bytes.saturating_add(idle);
            if held <= limit {
                return;
            }
            pool.reclaim(held - limit);
        }
    }
}

/// Bytes of device memory in live buffers, by holder. Idle buffers of the pool are not in `reserved`, but they are
/// given up before live and idle bytes together exceed a limit.
#[derive(Debug)]
pub struct DeviceLedger {
    capacity: u64,
    pools: Arc<PoolRegistry>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reserved: u64,
    peak: u64,
    holders: HashMap<Arc<str>, u64>,
}

impl DeviceLedger {
    pub(crate) fn new(capacity: u64, pools: Arc<PoolRegistry>) -> Arc<Self> {
        Arc::new(DeviceLedger { capacity, pools, state: Mutex::new(State::default()) })
    }

    /// A ledger without a device, for tests of those who reserve.
    #[doc(hidden)]
    pub fn detached(capacity: u64) -> Arc<Self> {
        DeviceLedger::new(capacity, Arc::new(PoolRegistry::default()))
    }

    /// Bytes reserved now.
    pub fn reserved(&self) -> u64 {
        self.state.lock().reserved
    }

    /// The most that was ever reserved.
    pub fn peak(&self) -> u64 {
        self.state.lock().peak
    }

    /// Bytes that the device has, or `u64::MAX` when its backend does not tell.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes in buffers that wait for reuse.
    pub fn idle(&self) -> u64 {
        self.pools.live().iter().map(|pool| pool.idle_bytes()).sum()
    }

    /// Holders and their bytes, the largest first.
    pub fn holders(&self) -> Vec<(String, u64)> {
        sorted(&self.state.lock())
    }

    /// The largest holders in words, e.g. `GpuAggregateExec[0] 64.0 MiB, gpu_cache 1.5 MiB`.
    pub fn report(&self) -> String {
        describe(&self.state.lock())
    }

    fn reserve(self: &Arc<Self>, consumer: &Arc<str>, bytes: u64, limit: u64) -> GpuResult<Reservation> {
        let limit = limit.min(self.capacity);
        let reserved = {
            let mut state = self.state.lock();
            let wanted = state.reserved.saturating_add(bytes);
            if wanted > limit {
                return Err(GpuError::OutOfDeviceMemory {
                    consumer: consumer.to_string(),
                    need: bytes,
                    used: state.reserved,
                    limit,
                    holders: describe(&state),
                });
            }
            state.reserved = wanted;
            state.peak = state.peak.max(wanted);
            *state.holders.entry(Arc::clone(consumer)).or_default() += bytes;
            wanted
        };
        self.pools.make_room(reserved, limit);
        let (ledger, consumer) = (Arc::clone(self), Arc::clone(consumer));
        Ok(Reservation { ledger, consumer, bytes, meters: Arc::new([]) })
    }

    fn release(&self, consumer: &Arc<str>, bytes: u64) {
        let mut state = self.state.lock();
        state.reserved = state.reserved.saturating_sub(bytes);
        let left = state.holders.get_mut(consumer).map(|held| {
            *held = held.saturating_sub(bytes);
            *held
        });
        if left == Some(0) {
            state.holders.remove(consumer);
        }
    }
}

fn sorted(state: &State) -> Vec<(String, u64)> {
    let mut holders: Vec<_> = state.holders.iter().map(|(name, bytes)| (name.to_string(), *bytes)).collect();
    holders.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    holders
}

fn describe(state: &State) -> String {
    let holders = sorted(state);
    if holders.is_empty() {
        return "nobody holds any".to_string();
    }
    let mut words: Vec<String> = holders
        .iter()
        .take(REPORTED_HOLDERS)
        .map(|(name, bytes)| format!("{name} {}", display_bytes(*bytes)))
        .collect();
    if holders.len() > REPORTED_HOLDERS {
        words.push(format!("{} more", holders.len() - REPORTED_HOLDERS));
    }
    words.join(", ")
}

/// Bytes with a binary unit and one digit after the point.
fn display_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Bytes held at present, and the most that were held at a time.
#[derive(Debug, Default)]
pub struct PeakMeter {
    held: AtomicU64,
    peak: AtomicU64,
}

impl PeakMeter {
    /// The most bytes that were held at a time.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn grow(&self, bytes: u64) {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(held, Ordering::Relaxed);
    }

    fn shrink(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Who reserves device memory, under which limit. The limit bounds everything that is reserved on the ledger, not
/// only this scope's part.
#[derive(Debug, Clone)]
pub struct MemoryScope {
    ledger: Arc<DeviceLedger>,
    consumer: Arc<str>,
    limit: u64,
    meters: Arc<[Arc<PeakMeter>]>,
}

impl MemoryScope {
    /// Reservations on `ledger` in the name of `consumer`, refused where the ledger would exceed `limit` bytes or
    /// the device's memory.
    pub fn new(ledger: &Arc<DeviceLedger>, consumer: impl Into<String>, limit: u64) -> Self {
        let consumer = consumer.into().into();
        MemoryScope { ledger: Arc::clone(ledger), consumer, limit, meters: Arc::new([]) }
    }

    /// The same scope; what it reserves is measured by `meters` too.
    pub fn with_meters(mut self, meters: Vec<Arc<PeakMeter>>) -> Self {
        self.meters = meters.into();
        self
    }

    /// The same limit on the same ledger for another consumer.
    pub fn for_consumer(&self, consumer: impl Into<String>) -> Self {
        MemoryScope { consumer: consumer.into().into(), ..self.clone() }
    }

    /// Reserves bytes until the reservation is dropped; `OutOfDeviceMemory` when they would exceed the limit.
    pub fn reserve(&self, bytes: u64) -> GpuResult<Reservation> {
        let mut reservation = self.ledger.reserve(&self.consumer, bytes, self.limit)?;
        self.meters.iter().for_each(|meter| meter.grow(bytes));
        reservation.meters = Arc::clone(&self.meters);
        Ok(reservation)
    }

    /// Bytes that could be reserved now.
    pub fn available(&self) -> u64 {
        self.limit.min(self.ledger.capacity).saturating_sub(self.ledger.reserved())
    }

    /// The ledger.
    pub fn ledger(&self) -> &Arc<DeviceLedger> {
        &self.ledger
    }

    /// Name of the consumer.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// Reserved bytes, given back on drop.
#[derive(Debug)]
pub struct Reservation {
    ledger: Arc<DeviceLedger>,
    consumer: Arc<str>,
    bytes: u64,
    meters: Arc<[Arc<PeakMeter>]>,
}

impl Reservation {
    /// Bytes reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.release(&self.consumer, self.bytes);
        self.meters.iter().for_each(|meter| meter.shrink(self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_live_bytes_and_forgets_them() {
        let ledger = DeviceLedger::detached(u64::MAX);
        let a = MemoryScope::new(&ledger, "a", u64::MAX);
        let first = a.reserve(100).unwrap();
        let second = a.for_consumer("b").reserve(2048).unwrap();
        assert_eq!(ledger.reserved(), 2148);
        assert_eq!(ledger.holders(), vec![("b".to_string(), 2048), ("a".to_string(), 100)]);
        assert_eq!(ledger.report(), "b 2.0 KiB, a 100 B");
        drop(second);
        assert_eq!(ledger.holders(), vec![("a".to_string(), 100)]);
        drop(first);
        assert_eq!((ledger.reserved(), ledger.peak()), (0, 2148));
        assert_eq!(ledger.report(), "nobody holds any");
    }

    #[test]
    fn refuses_beyond_the_smaller_limit() {
        let ledger = DeviceLedger::detached(1000);
        let _held = MemoryScope::new(&ledger, "sort", u64::MAX).reserve(600).unwrap();
        let error = MemoryScope::new(&ledger, "join", 900).reserve(301).unwrap_err().to_string();
        assert_eq!(
            error,
            "out of device memory: join needs 301 bytes, 600 of 900 bytes are in use (sort 600 B); raise gpu.memory_limit"
        );
        let error = MemoryScope::new(&ledger, "join", u64::MAX).reserve(401).unwrap_err().to_string();
        assert!(error.contains("600 of 1000 bytes"), "{error}");
        assert_eq!(MemoryScope::new(&ledger, "join", 900).available(), 300);
        assert!(MemoryScope::new(&ledger, "join", 900).reserve(300).is_ok());
        assert!(MemoryScope::new(&ledger, "join", u64::MAX).reserve(u64::MAX).is_err());
    }

    #[derive(Debug)]
    struct Idle(Mutex<u64>);
    impl Reclaim for Idle {
        fn idle_bytes(&self) -> u64 {
            *self.0.lock()
        }
        fn reclaim(&self, bytes: u64) {
            let mut idle = self.0.lock();
            *idle = idle.saturating_sub(bytes);
        }
    }

    #[test]
    fn evicts_idle_bytes_before_they_exceed_the_limit() {
        let pools = Arc::new(PoolRegistry::default());
        let idle = Arc::new(Idle(Mutex::new(800)));
        let pool: Arc<dyn Reclaim> = Arc::clone(&idle) as _;
        pools.add(Arc::downgrade(&pool));
        let ledger = DeviceLedger::new(1000, pools);
        let scope = MemoryScope::new(&ledger, "x", u64::MAX);
        let _first = scope.reserve(200).unwrap();
        assert_eq!(ledger.idle(), 800);
        let _second = scope.reserve(300).unwrap();
        assert_eq!(ledger.idle(), 500);
        let _third = scope.reserve(500).unwrap();
        assert_eq!(ledger.idle(), 0);
        assert!(scope.reserve(1).is_err());
    }
}
