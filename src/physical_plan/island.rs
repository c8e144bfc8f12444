//! Driving all inputs of a breaker, and its island-wide fallback behind a commit gate.
//!
//! A breaker gives no row before it has read its input, so until its first row goes out (the commit) its island can still
//! be run on the CPU instead: from its sources where they are repeatable, else from the host batches that were read plus
//! the live rest of each input. After the commit a loss is an error of the query.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::runtime::JoinSet;
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use tokio::sync::watch;
use tracing::Instrument;

use crate::config::FallbackScope;
use crate::memory::batch::GpuBatch;

use super::border::DeviceStream;
use super::exec::GpuExec;
use super::replay::{ReplayExec, ReplaySlot, RowLocalChain, fresh, is_repeatable};
use super::run::{FallbackReason, RunContext};

/// Batches of one partition whose device work is under way at a time.
const IN_FLIGHT: usize = 2;

/// Why a batch's work stopped its island.
pub(crate) enum Stop {
    /// The island is to be run on the CPU.
    FallBack(FallbackReason),
    /// The query fails.
    Error(DataFusionError),
}

impl From<DataFusionError> for Stop {
    fn from(error: DataFusionError) -> Self {
        Stop::Error(error)
    }
}

/// How an island ended.
pub(crate) enum IslandEnd {
    /// Every batch was worked on; nothing has been given out yet.
    Complete,
    /// The island's rows come from this CPU plan's stream instead.
    Cpu(SendableRecordBatchStream),
}

/// One run of a breaker's island: its input partitions, each driven by a task of its own.
pub(crate) struct IslandRun {
    run: Arc<RunContext>,
    template_inputs: Range<usize>,
    /// The sources can be read again.
    repeatable: bool,
    /// Host batches are kept for a replay, because the sources cannot be read again; for as long as the query's memory pool
    /// has room to spare.
    retain: bool,
    /// True when no partition needs to go on.
    stop: watch::Sender<bool>,
}

/// What a partition's task leaves behind.
struct PartitionEnd {
    partition: usize,
    chain: Arc<RowLocalChain>,
    rest: ReplaySlot,
    stop: Option<Stop>,
}

impl IslandRun {
    /// A run over the input partitions `inputs` of `node`'s child.
    pub(crate) fn new(node: &GpuExec, run: Arc<RunContext>, inputs: Range<usize>) -> Self {
        let children = node.children();
        // Another output partition of the same plan instance may be live: a second copy of the sources beside it would
        // read rows twice.
        let alone = node.properties().partitioning.partition_count() == 1;
        // A producer of dynamic filters below may narrow one until its tasks have ended, which nobody here can await.
        let repeatable =
            alone && children.iter().all(|child| is_repeatable(child) && !produces_dynamic_filters(child));
        let retain = run.island_scope() && !repeatable;
        Self { run, template_inputs: inputs, repeatable, retain, stop: watch::Sender::new(false) }
    }

    /// The same run, with its input kept for another one on the CPU whatever `gpu.fallback_scope` says: for answers that one batch
    /// does not tell.
    pub(crate) fn always_again(self) -> Self {
        Self { retain: !self.repeatable, ..self }
    }

    /// Gives every batch of every input partition to `work`. The tasks are aborted when the returned future is dropped.
    ///
    /// # Errors
    /// The inputs' own errors and those of `work`, unless the island falls back.
    pub(crate) async fn drive<W, F>(self, node: &GpuExec, output: usize, work: W) -> Result<IslandEnd>
    where
        W: Fn(GpuBatch, Arc<RowLocalChain>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<(), Stop>> + Send + 'static,
    {
        self.drive_then(node, output, work, async || Ok(())).await
    }

    /// The same; when all batches were worked on, `finish` does the rest, in whose place the island may be run on the CPU as well.
    ///
    /// # Errors
    /// Those of [`Self::drive`] and of `finish`.
    pub(crate) async fn drive_then<W, F, G>(
        self,
        node: &GpuExec,
        output: usize,
        work: W,
        finish: impl FnOnce() -> G,
    ) -> Result<IslandEnd>
    where
        W: Fn(GpuBatch, Arc<RowLocalChain>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<(), Stop>> + Send + 'static,
        G: Future<Output = Result<(), Stop>>,
    {
        let children = node.children();
        let [child] = children.as_slice() else {
            return internal_err!("{} must have one child", node.name());
        };
        let mut tasks = JoinSet::new();
        for partition in self.template_inputs.clone() {
            let input = DeviceStream::open(child, partition, &self.run)?;
            let retained = self.retain.then(|| Retained::new(&self.run));
            let driven = drive_partition(partition, input, retained, self.stop.clone(), work.clone());
            tasks.spawn(driven.instrument(self.run.span().clone()));
        }
        let mut ends = Vec::with_capacity(tasks.len());
        let mut reason = None;
        while let Some(joined) = tasks.join_next().await {
            let mut end = match joined {
                Ok(end) => end,
                // An exchange makes an error of it.
                Err(error) if error.is_panic() && stands_for_exchange(node) => {
                    let error = DataFusionError::External(Box::new(error));
                    return Err(error.context("Join Error"));
                }
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(error) => return Err(DataFusionError::ExecutionJoin(Box::new(error))),
            };
            match end.stop.take() {
                None => {}
                Some(Stop::Error(error)) => return Err(error),
                Some(Stop::FallBack(why)) => reason = reason.or(Some(why)),
            }
            ends.push(end);
        }
        if reason.is_none() {
            match finish().instrument(self.run.span().clone()).await {
                Ok(()) => {}
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::FallBack(why)) => reason = Some(why),
            }
        }
        match reason {
            None => Ok(IslandEnd::Complete),
            Some(reason) => self.run_on_cpu(node, output, ends, &reason).map(IslandEnd::Cpu),
        }
    }

    /// The CPU plan in this island's place. All tasks have ended.
    fn run_on_cpu(
        &self,
        node: &GpuExec,
        output: usize,
        ends: Vec<PartitionEnd>,
        reason: &FallbackReason,
    ) -> Result<SendableRecordBatchStream> {
        if !self.retain && !self.repeatable {
            return internal_err!("{}: nothing was kept to run it again", node.name());
        }
        self.run.fall_back(reason, FallbackScope::Island)?;
        self.run.metrics.cpu_batch();
        let mut plan = if self.retain { Self::replayed(node, ends)? } else { fresh_cpu_plan(node, ends)? };
        let count = |properties: &PlanProperties| properties.partitioning.partition_count();
        if count(node.properties()) == 1 && count(plan.properties()) > 1 {
            plan = Arc::new(CoalescePartitionsExec::new(plan));
        }
        plan.execute(output, Arc::clone(self.run.task()))
    }

    /// The CPU plan over retained batches and live rests.
    fn replayed(node: &GpuExec, ends: Vec<PartitionEnd>) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(first) = ends.first() else {
            return internal_err!("{}: an island without partitions cannot be replayed", node.name());
        };
        let chain = Arc::clone(&first.chain);
        let partitions = chain.border().properties().partitioning.partition_count();
        let mut slots: Vec<ReplaySlot> = (0..partitions).map(|_| ReplaySlot::default()).collect();
        for end in ends {
            if let Some(slot) = slots.get_mut(end.partition) {
                *slot = end.rest;
            }
        }
        let leaf: Arc<dyn ExecutionPlan> = Arc::new(ReplayExec::new(chain.border(), slots));
        node.template().instantiate(&[chain.plan_over(leaf)?])
    }
}

/// The CPU plan over sources that are read again.
fn fresh_cpu_plan(node: &GpuExec, ends: Vec<PartitionEnd>) -> Result<Arc<dyn ExecutionPlan>> {
    // The old streams must be gone before filters are opened.
    drop(ends);
    fresh(cpu_island(node)?)
}

/// The CPU plan of `node` and of the row-local GPU nodes below it that gave it lazy batches.
fn cpu_island(node: &GpuExec) -> Result<Arc<dyn ExecutionPlan>> {
    let children = node
        .children()
        .into_iter()
        .map(|child| match GpuExec::find(child).filter(|_| node.has_device_input()) {
            Some(child) => cpu_island(child),
            None => Ok(Arc::clone(child)),
        })
        .collect::<Result<Vec<_>>>()?;
    node.template().instantiate(&children)
}

fn stands_for_exchange(node: &GpuExec) -> bool {
    node.template().nodes().any(|node| node.is::<RepartitionExec>())
}

fn produces_dynamic_filters(plan: &Arc<dyn ExecutionPlan>) -> bool {
    !plan.dynamic_expressions_produced().is_empty()
        || plan.children().into_iter().any(produces_dynamic_filters)
}

/// Host batches that a partition keeps for a replay, reserved in the query's memory pool.
struct Retained {
    batches: Vec<RecordBatch>,
    memory: MemoryReservation,
    /// Counts what batches share once.
    counter: RecordBatchMemoryCounter,
    run: Arc<RunContext>,
}

impl Retained {
    fn new(run: &Arc<RunContext>) -> Self {
        let (memory, counter) = (run.host_memory("replay"), RecordBatchMemoryCounter::new());
        Self { batches: vec![], memory, counter, run: Arc::clone(run) }
    }

    /// Keeps `batches`. Where the pool has no room to spare, failures are answered batch by batch from then on, and each
    /// partition drops what it kept when it comes here next.
    fn keep(&mut self, batches: &[RecordBatch]) {
        if !self.run.may_replay() {
            self.give_back();
            return;
        }
        let bytes = batches.iter().map(|batch| self.counter.count_batch(batch)).sum();
        if !self.run.may_keep(bytes) || self.memory.try_grow(bytes).is_err() {
            if self.run.give_up_replay() {
                tracing::debug!(bytes, "no memory to keep the input for a replay");
            } else {
                // The replay has begun, and these are the last rows that were read.
                self.memory.grow(bytes);
            }
        }
        if self.run.may_replay() {
            self.batches.extend_from_slice(batches);
        } else {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        self.batches = vec![];
        self.memory.free();
        self.counter = RecordBatchMemoryCounter::new();
    }
}

/// One input partition: keeps [`IN_FLIGHT`] batches under way until the input ends or the island stops.
async fn drive_partition<W, F>(
    partition: usize,
    mut input: DeviceStream,
    mut retained: Option<Retained>,
    stop_all: watch::Sender<bool>,
    work: W,
) -> PartitionEnd
where
    W: Fn(GpuBatch, Arc<RowLocalChain>) -> F + Send + 'static,
    F: Future<Output = Result<(), Stop>> + Send + 'static,
{
    let chain = Arc::clone(input.chain());
    let mut stopped = stop_all.subscribe();
    // In order: of two batches that fail, the CPU meets the first.
    let mut in_flight = FuturesOrdered::new();
    let (mut stop, mut failed) = (None, None);
    let mut ended = false;
    loop {
        tokio::select! {
            biased;
            Some(done) = in_flight.next(), if !in_flight.is_empty() => {
                if let Err(why) = done {
                    stop_all.send_replace(true);
                    stop = stop.or(Some(why));
                }
            }
            _ = stopped.wait_for(|stopped| *stopped), if !ended => ended = true,
            next = input.next(), if !ended && in_flight.len() < IN_FLIGHT => match next {
                None => ended = true,
                Some(Err(error)) => {
                    // The batches before it come first.
                    failed = Some(error);
                    ended = true;
                }
                Some(Ok(batch)) => {
                    if let Some(retained) = &mut retained {
                        retained.keep(batch.source().host());
                    }
                    in_flight.push_back(work(batch, Arc::clone(&chain)));
                }
            },
            else => break,
        }
    }
    drop(in_flight);
    if let Some(error) = failed {
        stop_all.send_replace(true);
        match stop {
            None => stop = Some(Stop::Error(error)),
            // The CPU meets it in its turn.
            Some(Stop::FallBack(_)) => input.fail(error),
            Some(Stop::Error(_)) => {}
        }
    }
    let mut rest = input.into_rest();
    if let Some(Retained { mut batches, memory, .. }) = retained {
        batches.append(&mut rest.batches);
        rest.batches = batches;
        rest.memory = Some(memory);
    }
    PartitionEnd { partition, chain, rest, stop }
}
