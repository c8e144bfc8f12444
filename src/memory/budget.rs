//! Who holds how much device memory, and under which limit.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::error::{GpuError, GpuResult};

use super::admission::{Admission, Admitted, Grant, Need};

/// Holders named in an error message.
const REPORTED_HOLDERS: usize = 5;

/// A cache of unused device memory that can be told to give some back.
pub(crate) trait Reclaim: Send + Sync + fmt::Debug {
    /// Bytes held on the device for nobody.
    fn idle_bytes(&self) -> u64;
    /// Frees about `bytes` of them, or as many as there are.
    fn reclaim(&self, bytes: u64);
}

/// A cache whose entries are reserved in a ledger, and can be made again: the first to go when memory is short.
pub trait DeviceCache: Send + Sync + fmt::Debug {
    /// Drops entries of about `bytes` that nobody uses, or as many as there are, and gives their bytes. Called without any
    /// lock of the ledger.
    fn evict(&self, bytes: u64) -> u64;
}

/// The pools of an adapter's device generations, shared by the ledgers over that adapter.
#[derive(Debug, Default)]
pub(crate) struct PoolRegistry {
    pools: Mutex<Vec<Weak<dyn Reclaim>>>,
    /// Buffers of all pools that were created and not destroyed yet, in use or not.
    alive: Arc<PeakMeter>,
    /// Held while an idle buffer is taken and others make room: so none is missed on its way from idle to held, and whoever
    /// creates one next waits for the end of those that had to go.
    room: Mutex<()>,
}

impl PoolRegistry {
    pub(crate) fn alive(&self) -> &Arc<PeakMeter> {
        &self.alive
    }

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
    caches: Mutex<Vec<Weak<dyn DeviceCache>>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reserved: u64,
    peak: u64,
    /// What of it comes back without anybody's doing: staging memory whose copies are under way.
    returning: u64,
    holders: HashMap<Arc<str>, u64>,
    admission: Admission,
}

impl DeviceLedger {
    pub(crate) fn new(capacity: u64, pools: Arc<PoolRegistry>) -> Arc<Self> {
        Arc::new(DeviceLedger { capacity, pools, caches: Mutex::default(), state: Mutex::default() })
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

    /// Bytes of the adapter's buffers that exist, whether somebody holds them or they wait for reuse.
    pub fn alive(&self) -> u64 {
        self.pools.alive.held()
    }

    /// The most that [`Self::alive`] ever was. It is counted where buffers are created and destroyed, not where memory is
    /// reserved, so it can tell whether reservations do their work.
    pub fn alive_peak(&self) -> u64 {
        self.pools.alive.peak()
    }

    /// Frees idle buffers and counts [`Self::alive_peak`] from now on, so that it leaves out what opening the device took, which no
    /// limit of a query bounds.
    pub fn restart_alive_peak(&self) {
        self.pools.make_room(0, 0);
        self.pools.alive.restart();
    }

    /// Holders and their bytes, the largest first.
    pub fn holders(&self) -> Vec<(String, u64)> {
        sorted(self.state.lock().holders.iter().map(|(name, bytes)| (Arc::clone(name), *bytes)))
    }

    /// What works were promised and do not hold yet, by holder, the largest first.
    pub fn promised(&self) -> Vec<(String, u64)> {
        sorted(self.state.lock().admission.promises())
    }

    /// What works that wait to be let in need, by holder, the largest first.
    pub fn waiting(&self) -> Vec<(String, u64)> {
        sorted(self.state.lock().admission.needs())
    }

    /// The largest holders in words, e.g. `GpuAggregateExec[0] 64.0 MiB, gpu_cache 1.5 MiB`.
    pub fn report(&self) -> String {
        describe(&self.state.lock())
    }

    /// Works on the device: those that run, and those that wait to be let in.
    pub fn works(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.admission.running(), state.admission.waiting())
    }

    /// Lets `cache` be asked to give memory back; for as long as it lives.
    pub fn register_cache(&self, cache: Weak<dyn DeviceCache>) {
        let mut caches = self.caches.lock();
        caches.retain(|cache| cache.strong_count() > 0);
        caches.push(cache);
    }

    /// Asks one cache after the other for `bytes`, until they have freed as much; gives what they did free.
    pub(crate) fn evict(&self, bytes: u64) -> u64 {
        let caches: Vec<_> = self.caches.lock().iter().filter_map(Weak::upgrade).collect();
        let mut freed = 0u64;
        for cache in caches {
            if freed >= bytes {
                break;
            }
            freed = freed.saturating_add(cache.evict(bytes - freed));
        }
        freed
    }

    /// Lets `take` take idle buffers that were reserved for; then frees others until they fit `limit` beside what is reserved.
    fn make_room<T>(&self, limit: u64, take: impl FnOnce() -> T) -> T {
        let _room = self.pools.room.lock();
        let taken = take();
        // In this order: buffers that are given back are idle before they are not reserved any more.
        self.pools.make_room(self.reserved(), limit);
        taken
    }

    /// Reserves for the work `grant`, whose promise is used up first.
    fn reserve(
        self: &Arc<Self>,
        consumer: &Arc<str>,
        bytes: u64,
        own_limit: u64,
        grant: Option<&Arc<Grant>>,
    ) -> GpuResult<Reservation> {
        let limit = own_limit.min(self.capacity);
        let advice = if self.capacity < own_limit {
            "that is all the device has: run fewer queries at once, or lower gpu.batch_rows"
        } else {
            "raise gpu.memory_limit"
        };
        let id = grant.map(|grant| grant.id());
        let attempt = || {
            let mut state = self.state.lock();
            let taken = state.reserved.saturating_add(state.admission.promised_to_others(id));
            if taken.saturating_add(bytes) > limit {
                let excess = taken.saturating_add(bytes) - limit;
                return Err((excess, state.refusal(consumer, bytes, limit, id, advice)));
            }
            state.reserved += bytes;
            state.peak = state.peak.max(state.reserved);
            *state.holders.entry(Arc::clone(consumer)).or_default() += bytes;
            Ok(state.admission.draw(id, bytes))
        };
        let drawn = match attempt() {
            Err((excess, _)) if self.evict(excess) > 0 => attempt(),
            result => result,
        }
        .map_err(|(_, error)| error)?;
        let (ledger, consumer) = (Arc::clone(self), Arc::clone(consumer));
        Ok(Reservation { ledger, consumer, bytes, meters: Arc::new([]), grant: id, drawn, returning: false })
    }

    fn release(self: &Arc<Self>, reservation: &Reservation) {
        let Reservation { consumer, bytes, grant, drawn, returning, .. } = reservation;
        let admitted = {
            let mut state = self.state.lock();
            state.reserved = state.reserved.saturating_sub(*bytes);
            if *returning {
                state.returning = state.returning.saturating_sub(*bytes);
            }
            let left = state.holders.get_mut(consumer).map(|held| {
                *held = held.saturating_sub(*bytes);
                *held
            });
            if left == Some(0) {
                state.holders.remove(consumer);
            }
            state.admission.refund(*grant, *drawn);
            state.let_in()
        };
        self.announce(admitted);
    }

    /// Changes the queue of works, and lets in who fits then.
    pub(super) fn with_admission<T>(self: &Arc<Self>, change: impl FnOnce(&mut Admission) -> T) -> T {
        let (result, admitted) = {
            let mut state = self.state.lock();
            (change(&mut state.admission), state.let_in())
        };
        self.announce(admitted);
        result
    }

    /// Bytes that the work `grant` could reserve now.
    fn available(&self, limit: u64, grant: Option<&Arc<Grant>>) -> u64 {
        let state = self.state.lock();
        let others = state.admission.promised_to_others(grant.map(|grant| grant.id()));
        limit.min(self.capacity).saturating_sub(state.reserved.saturating_add(others))
    }
}

impl State {
    fn let_in(&mut self) -> Vec<Admitted> {
        self.admission.let_in(self.reserved, self.returning > 0)
    }

    fn refusal(
        &self,
        consumer: &Arc<str>,
        need: u64,
        limit: u64,
        grant: Option<u64>,
        advice: &'static str,
    ) -> GpuError {
        let promised = self.admission.promised_to_others(grant);
        let mut holders = describe(self);
        if promised > 0 {
            holders.push_str(&format!(", promised to other work {}", display_bytes(promised)));
        }
        let (consumer, used) = (consumer.to_string(), self.reserved.saturating_add(promised));
        GpuError::OutOfDeviceMemory { consumer, need, used, limit, holders, advice }
    }
}

/// Bytes by holder, the largest first.
fn sorted(bytes: impl Iterator<Item = (Arc<str>, u64)>) -> Vec<(String, u64)> {
    let mut sums: HashMap<Arc<str>, u64> = HashMap::new();
    for (name, bytes) in bytes {
        let sum = sums.entry(name).or_default();
        *sum = sum.saturating_add(bytes);
    }
    let mut holders: Vec<_> = sums.into_iter().map(|(name, bytes)| (name.to_string(), bytes)).collect();
    holders.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    holders
}

fn describe(state: &State) -> String {
    let holders = sorted(state.holders.iter().map(|(name, bytes)| (Arc::clone(name), *bytes)));
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

    /// Bytes held now.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Forgets what was held before.
    fn restart(&self) {
        self.peak.store(self.held(), Ordering::Relaxed);
    }

    pub(crate) fn grow(&self, bytes: u64) {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(held, Ordering::Relaxed);
    }

    pub(crate) fn shrink(&self, bytes: u64) {
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
    grant: Option<Arc<Grant>>,
}

impl MemoryScope {
    /// Reservations on `ledger` in the name of `consumer`, refused where the ledger would exceed `limit` bytes or
    /// the device's memory.
    pub fn new(ledger: &Arc<DeviceLedger>, consumer: impl Into<String>, limit: u64) -> Self {
        let consumer = consumer.into().into();
        MemoryScope { ledger: Arc::clone(ledger), consumer, limit, meters: Arc::new([]), grant: None }
    }

    /// Waits until a work with this need may begin, and gives the scope for it: what the work was promised is kept for it
    /// until the last copy of that scope is gone. A need beyond the limit is let in as if it were the limit. Cancel safe.
    ///
    /// The caller must not hold another admission.
    pub async fn admit(&self, need: Need) -> MemoryScope {
        debug_assert!(self.grant.is_none(), "a work waits for another admission");
        let grant = self.ledger.admit(need, self.limit, &self.consumer).await;
        MemoryScope { grant: grant.map(Arc::new), ..self.clone() }
    }

    /// The same scope; what it reserves is measured by `meters` too.
    pub fn with_meters(mut self, meters: Vec<Arc<PeakMeter>>) -> Self {
        self.meters = meters.into();
        self
    }

    /// The same scope; what it reserves is measured by `meter` too.
    pub(crate) fn and_meter(mut self, meter: &Arc<PeakMeter>) -> Self {
        self.meters = self.meters.iter().chain([meter]).cloned().collect();
        self
    }

    /// The same limit on the same ledger for another consumer.
    pub fn for_consumer(&self, consumer: impl Into<String>) -> Self {
        MemoryScope { consumer: consumer.into().into(), ..self.clone() }
    }

    /// Reserves bytes until the reservation is dropped; `OutOfDeviceMemory` when they would exceed the limit.
    pub fn reserve(&self, bytes: u64) -> GpuResult<Reservation> {
        let reservation = self.claim(bytes)?;
        self.make_room(|| ());
        Ok(reservation)
    }

    /// [`Self::reserve`] without making room for it: [`Self::make_room`] has to come next.
    pub(crate) fn claim(&self, bytes: u64) -> GpuResult<Reservation> {
        let mut reservation = self.ledger.reserve(&self.consumer, bytes, self.limit, self.grant.as_ref())?;
        self.meters.iter().for_each(|meter| meter.grow(bytes));
        reservation.meters = Arc::clone(&self.meters);
        Ok(reservation)
    }

    /// Lets `take` take idle buffers that were claimed; then frees others until they fit the limit beside what is reserved.
    pub(crate) fn make_room<T>(&self, take: impl FnOnce() -> T) -> T {
        self.ledger.make_room(self.limit.min(self.ledger.capacity), take)
    }

    /// Bytes that could be reserved now, without what other works were promised.
    pub fn available(&self) -> u64 {
        self.ledger.available(self.limit, self.grant.as_ref())
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
    /// The work it was made for, and how much of its promise it took.
    grant: Option<u64>,
    drawn: u64,
    /// Counted in `State::returning`.
    returning: bool,
}

impl Reservation {
    /// Bytes reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes that it will be dropped soon without anybody's doing: works wait for that instead of being refused.
    pub(crate) fn returns(&mut self) {
        self.returning = true;
        self.ledger.state.lock().returning += self.bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.release(self);
        self.meters.iter().for_each(|meter| meter.shrink(self.bytes));
    }
}

#[cfg(test)]
mod tests;
