//! What becomes of groups that stayed on the device: they are merged there, and go to the host when there is no room for more, or at
//! the end.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::config::FallbackScope;
use crate::error::{GpuError, GpuResult};
use crate::kernels::group_by::{FetchedGroups, KeepRule, KeptGroups, merge_bytes, merge_groups, pile_groups};
use crate::memory::batch::GpuBatch;
use crate::memory::launch::LaunchScope;

use super::super::super::island::Stop;
use super::super::super::replay::RowLocalChain;
use super::super::super::retry::{Part, WorkInput, with_retry};
use super::super::super::run::FallbackReason;
use super::GroupOp;
use super::finished::{Finished, HostGroups};
use super::job::{Job, send};
use super::keys::FixedKeys;
use super::pile::Entry;

/// Rows a group, on the average, up to which merging on the host is work worth saving: selections leave out many of the rows.
const ROWS_A_GROUP: u64 = 32;
/// Groups that are read back at a time.
const GROUPS_AT_A_TIME: usize = 256 << 10;
/// Read-backs under way at a time.
const READS: usize = 4;
/// Batches that are grouped again at a time.
const REGROUPED: usize = 2;
/// Rows of states that are sent at a time.
const STATES_AT_A_TIME: usize = 64 << 10;

impl Job {
    /// Which groups of the next batch, of so many rows, stay on the device. Once some have, all do: so that none has to be merged on the
    /// host. For the same reason it is enough of a batch that is shorter than others, and may be the first to end, that its groups are as
    /// dense as theirs have to be.
    pub(super) fn rule(&self, rows: usize) -> Option<KeepRule> {
        let groups = self.run.merge_groups()?;
        let full = self.largest.fetch_max(rows, Ordering::AcqRel).max(rows) as u64;
        match self.pile.is_open() {
            (true, true) => Some(KeepRule { groups: 1, full, rows_each: u64::MAX }),
            (true, false) => Some(KeepRule { groups, full, rows_each: ROWS_A_GROUP }),
            _ => None,
        }
    }

    /// Sends the groups on the device to be merged on the host, where a work with this need has no room beside them.
    pub(super) async fn yield_to(&self, need: u64, sender: &mpsc::Sender<RecordBatch>) -> Result<(), Stop> {
        let (bytes, _) = self.pile.weight();
        if bytes > 0 && need.saturating_mul(2).saturating_add(bytes) > self.run.memory_limit() {
            let _turn = self.pile.turn.lock().await;
            self.pile.close();
            let entries = self.pile.take();
            self.unload(entries, sender).await?;
        }
        Ok(())
    }

    /// Adds groups to those on the device, or sends their states, where there is no room for them there. Where neither can be, the
    /// batch is grouped again, and the answer is `false`.
    pub(super) async fn keep(
        &self,
        (kept, keys): (KeptGroups, FixedKeys),
        (batch, chain): (&GpuBatch, &RowLocalChain),
        sender: &mpsc::Sender<RecordBatch>,
    ) -> Result<bool, Stop> {
        let groups = kept.groups();
        let refused = match self.pile.push(&self.run, (kept, keys), batch, chain) {
            Ok(()) => {
                self.run.metrics.add("kept_groups", groups);
                return self.relieve(sender).await.map(|()| true);
            }
            Err(refused) => refused,
        };
        // The rows that are held for the groups leave no room for more: nor do they have to be, once the groups are on the host.
        let turn = self.pile.turn.lock().await;
        let entries = self.pile.take();
        self.unload(entries, sender).await?;
        drop(turn);
        let Err((kept, keys)) = self.pile.push(&self.run, refused, batch, chain) else {
            self.run.metrics.add("kept_groups", groups);
            return Ok(true);
        };
        self.pile.close();
        let read = self.states_on_host(&kept, &keys).await?;
        drop(kept);
        match read {
            Some((states, _memory)) => self.send(states, sender).await.map(|()| true),
            None => self.group_again(batch.clone(), chain, sender).await.map(|()| false),
        }
    }

    /// Groups a batch whose groups did not come to the host.
    fn group_again<'a>(
        &'a self,
        batch: GpuBatch,
        chain: &'a RowLocalChain,
        sender: &'a mpsc::Sender<RecordBatch>,
    ) -> BoxFuture<'a, Result<(), Stop>> {
        async move {
            self.run.metrics.add("batches_regrouped", 1);
            self.run.metrics.batch_retry();
            let states = self.group(batch, chain, sender).await?;
            self.send(states, sender).await
        }
        .boxed()
    }

    /// Merges the groups on the device where they are so many that they could not be merged later; sends them to the host where that
    /// does not help.
    async fn relieve(&self, sender: &mpsc::Sender<RecordBatch>) -> Result<(), Stop> {
        if !self.is_heavy() {
            return Ok(());
        }
        let _turn = self.pile.turn.lock().await;
        if !self.is_heavy() {
            return Ok(());
        }
        let entries = self.pile.take();
        let before: usize = entries.iter().map(|entry| entry.kept.groups()).sum();
        let merged = self.merge_all(entries).await?;
        let after: usize = merged.iter().map(|entry| entry.kept.groups()).sum();
        if after <= before / 2 {
            self.pile.put_back(merged);
            return Ok(());
        }
        self.pile.close();
        self.unload(merged, sender).await
    }

    /// Whether the groups on the device take half of what merging them would have, or a column of them half of a binding.
    fn is_heavy(&self) -> bool {
        let (bytes, groups) = self.pile.weight();
        let merging = self.pile.of_first(|kept| (merge_bytes(kept, groups), kept.widest()));
        let Some((need, widest)) = merging else { return false };
        let column = widest.saturating_mul(groups as u64);
        need.saturating_add(bytes) > self.run.memory_limit() / 2 || column > self.run.max_binding_bytes() / 2
    }

    /// Merges the groups and sends the states of all of them to the host.
    async fn unload(&self, entries: Vec<Entry>, sender: &mpsc::Sender<RecordBatch>) -> Result<(), Stop> {
        let several = entries.len() > 1;
        let before: usize = entries.iter().map(|entry| entry.kept.groups()).sum();
        let merged = if several { self.merge_all(entries).await? } else { entries };
        let after: usize = merged.iter().map(|entry| entry.kept.groups()).sum();
        if several && after > before / 2 {
            self.pile.close();
        }
        for entry in merged {
            match self.states_on_host(&entry.kept, &entry.keys).await? {
                Some((states, _memory)) => {
                    // Neither groups nor rows are needed while whoever merges takes its time.
                    drop(entry);
                    self.run.metrics.add("piles_sent", 1);
                    self.send(states, sender).await?;
                }
                None => self.pile.give_up(entry),
            }
        }
        Ok(())
    }

    /// The states of groups, and what they take of the query's memory pool; `None` where the groups have to be found again.
    async fn states_on_host(
        &self,
        kept: &KeptGroups,
        keys: &FixedKeys,
    ) -> Result<Option<(Vec<RecordBatch>, MemoryReservation)>, Stop> {
        // Both are there until the states are made.
        let Some(HostGroups { parts, memory }) = self.read(kept, 2).await? else { return Ok(None) };
        let states = self.states_of(keys, parts).await;
        match states {
            Ok(states) => {
                memory.shrink(memory.size() / 2);
                Ok(Some((states, memory)))
            }
            Err(error) => self.note(&error.into()).map(|()| None),
        }
    }

    /// What is left to do when all batches were grouped: the groups on the device are merged and, where there are no others, made
    /// ready to be given; else they are sent to the host, as are the states of rows whose groups were dropped.
    pub(super) async fn finish(self: Arc<Self>, sender: mpsc::Sender<RecordBatch>) -> Result<(), Stop> {
        self.pile.close();
        let entries = self.merge_all(self.pile.take()).await?;
        let dropped = self.pile.take_dropped();
        let op = GroupOp::of(&self.node)?;
        match <[Entry; 1]>::try_from(entries) {
            Ok([entry])
                if dropped.is_empty()
                    && entry.distinct
                    && !self.sent.load(Ordering::Acquire)
                    && Finished::can_be_of(op) =>
            {
                let groups = self.read(&entry.kept, 1).await?;
                match groups.and_then(|groups| Finished::new(op, groups, &entry.keys)) {
                    Some(finished) => {
                        *self.finished.lock() = Some(finished);
                        return Ok(());
                    }
                    None => self.pile.give_up(entry),
                }
            }
            Ok([entry]) => self.unload(vec![entry], &sender).await?,
            Err(entries) => {
                for entry in entries {
                    self.unload(vec![entry], &sender).await?;
                }
            }
        }
        let again = dropped.into_iter().chain(self.pile.take_dropped()).map(|input| {
            let (job, sender) = (Arc::clone(&self), sender.clone());
            async move { job.group_again(input.batch.clone(), &input.chain, &sender).await }
        });
        let mut again = stream::iter(again).buffer_unordered(REGROUPED);
        while let Some(done) = again.next().await {
            done?;
        }
        Ok(())
    }

    /// Sends states to be merged on the host.
    pub(super) async fn send(
        &self,
        states: Vec<RecordBatch>,
        sender: &mpsc::Sender<RecordBatch>,
    ) -> Result<(), Stop> {
        if states.iter().any(|batch| batch.num_rows() > 0) {
            self.sent.store(true, Ordering::Release);
        }
        Ok(send(sender, states).await?)
    }

    /// Merges all groups that lie alike; those that cannot be merged are given as they are.
    async fn merge_all(&self, entries: Vec<Entry>) -> Result<Vec<Entry>, Stop> {
        let mut alike: Vec<Entry> = vec![];
        for entry in entries {
            match alike.iter_mut().find(|known| known.keys == entry.keys && known.kept.fits(&entry.kept)) {
                Some(known) => known.add(entry),
                None => alike.push(entry),
            }
        }
        let mut merged = vec![];
        for entry in alike {
            merged.push(if entry.distinct { entry } else { self.merge(entry).await? });
        }
        Ok(merged)
    }

    /// Merges the groups of an entry, unless that fails: where the device was lost or memory is short, they stay as they are.
    async fn merge(&self, entry: Entry) -> Result<Entry, Stop> {
        let Entry { kept, keys, inputs, .. } = entry;
        let groups = kept.groups();
        let need = merge_bytes(&kept, groups);
        if need > self.run.memory_limit() {
            self.run.metrics.add("piles_unmerged", 1);
            return Ok(Entry::new(kept, keys, inputs, false));
        }
        // The pieces are given back as soon as they are in one.
        let kept = Arc::new(Mutex::new(kept));
        let shared = Arc::clone(&kept);
        let merged = self.work(need, move |scope| {
            let kept = Arc::clone(&shared);
            async move {
                if kept.lock().generation() != scope.context.generation() {
                    return Ok(None);
                }
                let piled = pile_groups(&scope, &kept.lock())?;
                *kept.lock() = piled.clone();
                merge_groups(&scope, &piled).await.map(Some)
            }
        });
        let merged = merged.await?;
        let kept = kept.lock().clone();
        match merged {
            Ok(Some(merged)) => {
                self.run.metrics.add("device_merges", 1);
                self.run.metrics.add("merged_groups", merged.groups());
                return Ok(Entry::new(merged, keys, inputs, true));
            }
            Ok(None)
            | Err(
                GpuError::DeviceLost(_)
                | GpuError::OutOfDeviceMemory { .. }
                | GpuError::AllocationRefused { .. }
                | GpuError::Limit { .. },
            ) => self.run.metrics.add("piles_unmerged", 1),
            // The host merges in its place; the next merge would fail as well.
            Err(error) => {
                self.note(&error.into())?;
                self.run.metrics.add("piles_unmerged", 1);
                self.pile.close();
            }
        }
        Ok(Entry::new(kept, keys, inputs, false))
    }

    /// Reports that the device could not do what was asked of it.
    fn note(&self, reason: &FallbackReason) -> Result<(), Stop> {
        if self.run.begin_replay() {
            return Err(Stop::FallBack(reason.clone()));
        }
        self.run.fall_back(reason, FallbackScope::Batch)?;
        self.run.metrics.cpu_batch();
        Ok(())
    }

    /// All groups on the host, with memory for so many copies; `None` where they have to be found again.
    async fn read(&self, kept: &KeptGroups, copies: u64) -> Result<Option<HostGroups>, Stop> {
        let memory = self.run.host_memory("groups");
        let bytes = (copies * kept.group_bytes()).saturating_mul(kept.groups() as u64);
        if memory.try_grow(usize::try_from(bytes).unwrap_or(usize::MAX)).is_err() {
            return Ok(None);
        }
        let reads = kept.parts(GROUPS_AT_A_TIME).into_iter().map(|part| {
            let (kept, need) = (kept.clone(), 2 * kept.group_bytes() * part.groups as u64);
            self.work(need, move |scope| {
                let kept = kept.clone();
                async move {
                    match kept.generation() == scope.context.generation() {
                        true => kept.fetch(&scope, part).await.map(Some),
                        false => Ok(None),
                    }
                }
            })
        });
        let mut reads = stream::iter(reads).buffered(READS);
        let mut parts = vec![];
        while let Some(read) = reads.next().await {
            match read? {
                Ok(Some(part)) => parts.push(part),
                Ok(None)
                | Err(
                    GpuError::DeviceLost(_)
                    | GpuError::OutOfDeviceMemory { .. }
                    | GpuError::AllocationRefused { .. },
                ) => return Ok(None),
                Err(error) => return self.note(&error.into()).map(|()| None),
            }
        }
        Ok(Some(HostGroups { parts, memory }))
    }

    /// The states of groups on the host.
    async fn states_of(&self, keys: &FixedKeys, parts: Vec<FetchedGroups>) -> GpuResult<Vec<RecordBatch>> {
        let op = GroupOp::of(&self.node).map_err(|error| GpuError::Internal(error.to_string()))?;
        let mut states = vec![];
        for part in parts {
            for first in (0..part.groups()).step_by(STATES_AT_A_TIME) {
                let result = part.result(first, STATES_AT_A_TIME.min(part.groups() - first))?;
                states.push(op.kept_states(keys, &result)?);
                // Others get their turn.
                tokio::task::yield_now().await;
            }
        }
        Ok(states)
    }

    /// Does a work on groups that are on the device, once more where the driver refused memory for it; it gives `None` where the device
    /// is another one.
    async fn work<T, F>(
        &self,
        need: u64,
        work: impl Fn(LaunchScope) -> F + Send + Sync + 'static,
    ) -> Result<GpuResult<Option<T>>>
    where
        T: Send + 'static,
        F: Future<Output = GpuResult<Option<T>>> + Send + 'static,
    {
        let work = Arc::new(work);
        let mut again = false;
        loop {
            let work = Arc::clone(&work);
            let mut parts = with_retry(&self.run, Whole, move |_| need, move |scope, _| work(scope));
            let part = parts.next().await?;
            // A task that has not ended yet holds the run, whose metrics are shown when it is dropped.
            while parts.next().await?.is_some() {}
            match part {
                Some(Part { outcome: Err(GpuError::AllocationRefused { .. }), .. }) if !again => {
                    self.run.metrics.batch_retry();
                    again = true;
                }
                Some(Part { outcome, .. }) => return Ok(outcome),
                None => return internal_err!("a work on groups gave nothing"),
            }
        }
    }
}

/// The input of a work that cannot be done in halves.
#[derive(Clone)]
struct Whole;

impl WorkInput for Whole {
    fn split(&self) -> Option<(Self, Self)> {
        None
    }

    fn join(self, _: Self) -> Self {
        self
    }

    fn release(&self) {}
}
