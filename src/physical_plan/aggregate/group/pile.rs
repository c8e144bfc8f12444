//! Groups of batches that stay on the device until they are merged, and the rows that they came from.
//!
//! Where there are nearly as many groups as rows, merging on the host would do all the work again. So groups of batches pile up on the
//! device, and are grouped again there. A pile is a cache in that whatever becomes of the device's memory, the rows are still there:
//! they are grouped again, batch by batch, and merged on the host.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::execution::memory_pool::MemoryReservation;
use parking_lot::Mutex;

use crate::kernels::group_by::KeptGroups;
use crate::memory::DeviceCache;
use crate::memory::batch::GpuBatch;

use super::super::super::replay::RowLocalChain;
use super::super::super::run::RunContext;
use super::keys::FixedKeys;

/// Rows that groups came from.
pub(super) struct Input {
    pub batch: GpuBatch,
    pub chain: Arc<RowLocalChain>,
    /// What they take of the query's memory pool.
    memory: MemoryReservation,
}

/// Groups on the device.
pub(super) struct Entry {
    pub kept: KeptGroups,
    pub keys: FixedKeys,
    pub inputs: Vec<Input>,
    /// No key is there twice.
    pub distinct: bool,
    /// Device bytes that they hold.
    bytes: u64,
}

impl Entry {
    pub(super) fn new(kept: KeptGroups, keys: FixedKeys, inputs: Vec<Input>, distinct: bool) -> Self {
        let bytes = kept.device_bytes();
        Entry { kept, keys, inputs, distinct, bytes }
    }

    /// Adds groups that lie alike.
    pub(super) fn add(&mut self, other: Entry) {
        self.kept.extend([other.kept]);
        self.inputs.extend(other.inputs);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.distinct = false;
    }
}

/// A run's groups on the device.
pub(super) struct Pile {
    state: Mutex<State>,
    /// Held by who merges, or sends what is there.
    pub turn: tokio::sync::Mutex<()>,
}

struct State {
    /// Groups may be added.
    open: bool,
    entries: Vec<Entry>,
    /// Rows whose groups were dropped.
    dropped: Vec<Input>,
    /// Host bytes of all rows, what batches share counted once.
    held: usize,
    counter: RecordBatchMemoryCounter,
}

impl fmt::Debug for Pile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pile").finish_non_exhaustive()
    }
}

impl Pile {
    pub(super) fn new(open: bool) -> Self {
        let counter = RecordBatchMemoryCounter::new();
        let state = State { open, entries: vec![], dropped: vec![], held: 0, counter };
        Pile { state: Mutex::new(state), turn: tokio::sync::Mutex::default() }
    }

    /// Whether groups may be added, and whether there are some.
    pub(super) fn is_open(&self) -> (bool, bool) {
        let state = self.state.lock();
        (state.open, !state.entries.is_empty())
    }

    /// No more groups are added.
    pub(super) fn close(&self) {
        self.state.lock().open = false;
    }

    /// Adds the groups of `batch`; gives them back where there is no room to keep its rows for as long.
    pub(super) fn push(
        &self,
        run: &RunContext,
        (kept, keys): (KeptGroups, FixedKeys),
        batch: &GpuBatch,
        chain: &RowLocalChain,
    ) -> Result<(), (KeptGroups, FixedKeys)> {
        let mut state = self.state.lock();
        if !state.open {
            return Err((kept, keys));
        }
        let host: &[RecordBatch] = batch.source().host();
        let bytes = host.iter().map(|batch| state.counter.count_batch(batch)).sum();
        let memory = run.host_memory("rows of kept groups");
        if !run.may_hold(state.held, bytes) || memory.try_grow(bytes).is_err() {
            // What was counted may be all that there is.
            state.counter = RecordBatchMemoryCounter::new();
            return Err((kept, keys));
        }
        // Those of a device that was lost are gone.
        let generation = kept.generation();
        let lost: Vec<Entry> =
            state.entries.extract_if(.., |entry| entry.kept.generation() != generation).collect();
        let mut gone = vec![];
        for Entry { kept, inputs, .. } in lost {
            state.dropped.extend(inputs);
            gone.push(kept);
        }
        state.held += bytes;
        let input = Input { batch: batch.clone(), chain: Arc::new(chain.clone()), memory };
        state.entries.push(Entry::new(kept, keys, vec![input], true));
        // Outside of the lock: buffers go back to their pool.
        drop(state);
        drop(gone);
        Ok(())
    }

    /// Puts entries back that were taken.
    pub(super) fn put_back(&self, entries: Vec<Entry>) {
        let mut state = self.state.lock();
        state.held += held(&entries);
        state.entries.extend(entries);
    }

    /// Takes all entries.
    pub(super) fn take(&self) -> Vec<Entry> {
        let mut state = self.state.lock();
        let entries = std::mem::take(&mut state.entries);
        state.held = state.held.saturating_sub(held(&entries));
        if state.entries.is_empty() && state.dropped.is_empty() {
            state.counter = RecordBatchMemoryCounter::new();
        }
        entries
    }

    /// Takes the rows whose groups were dropped.
    pub(super) fn take_dropped(&self) -> Vec<Input> {
        std::mem::take(&mut self.state.lock().dropped)
    }

    /// Gives up groups; their rows are among those that were dropped.
    pub(super) fn give_up(&self, entry: Entry) {
        let mut state = self.state.lock();
        state.open = false;
        state.dropped.extend(entry.inputs);
    }

    /// Device bytes of all groups, and their number.
    pub(super) fn weight(&self) -> (u64, usize) {
        let state = self.state.lock();
        let entries = || state.entries.iter();
        (entries().map(|entry| entry.bytes).sum(), entries().map(|entry| entry.kept.groups()).sum())
    }

    /// What `of` tells of the first entry, whose columns are those of the others as a rule.
    pub(super) fn of_first<T>(&self, of: impl FnOnce(&KeptGroups) -> T) -> Option<T> {
        self.state.lock().entries.first().map(|entry| of(&entry.kept))
    }
}

/// Host bytes of the entries' rows.
fn held(entries: &[Entry]) -> usize {
    let inputs = entries.iter().flat_map(|entry| &entry.inputs);
    inputs.map(|input| input.memory.size()).sum()
}

impl DeviceCache for Pile {
    /// Drops groups; their rows are grouped again at the end.
    fn evict(&self, bytes: u64) -> u64 {
        let (mut freed, mut gone) = (0u64, vec![]);
        {
            let mut state = self.state.lock();
            while freed < bytes
                && let Some(Entry { kept, inputs, bytes, .. }) = state.entries.pop()
            {
                freed = freed.saturating_add(bytes);
                state.open = false;
                state.dropped.extend(inputs);
                gone.push(kept);
            }
        }
        // Outside of the lock: buffers go back to their pool.
        drop(gone);
        freed
    }
}
