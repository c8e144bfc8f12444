//! One run of an aggregation with GROUP BY.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_datafusion_err, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::metrics::RecordOutput;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::FutureExt;
use futures::future::{BoxFuture, Either, join, select};
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::config::FallbackScope;
use crate::kernels::group_by::{FloatFlags, GroupHint, GroupResult, Grouped, KeptGroups};
use crate::memory::batch::GpuBatch;

use super::super::super::exec::GpuExec;
use super::super::super::island::{IslandEnd, IslandRun, Stop};
use super::super::super::lookup;
use super::super::super::params::{ParamValues, constant};
use super::super::super::replay::RowLocalChain;
use super::super::super::retry::{Part, with_retry};
use super::super::super::run::{FallbackReason, RunContext};
use super::super::dynamic_filter::DynamicBounds;
use super::GroupOp;
use super::finished::Finished;
use super::first::Rows;
use super::hints::Learned;
use super::keys::Key;
use super::merge::merge;
use super::pile::Pile;
use super::plan::GroupPlan;

/// Batches of states that wait to be merged.
const WAITING: usize = 2;

/// Reads the whole input and gives the groups.
pub(super) async fn collect(
    node: Arc<GpuExec>,
    partition: usize,
    inputs: Range<usize>,
    run: Arc<RunContext>,
) -> Result<SendableRecordBatchStream> {
    let op = GroupOp::of(&node)?;
    let (sender, states) = mpsc::channel(WAITING);
    let one_input = inputs.len() == 1;
    let island = IslandRun::new(&node, Arc::clone(&run), inputs);
    let island = if op.orders_floats() { island.always_again() } else { island };
    let job = Arc::new(Job::new(&node, &run));
    // Of rows that are equal in ORDER BY, that of the first state is taken.
    let turns = (op.finds_rows() && one_input).then(Arc::<Turns>::default);
    let work = {
        let (job, sender) = (Arc::clone(&job), sender.clone());
        move |batch, chain| {
            let (job, sender) = (Arc::clone(&job), sender.clone());
            let turn = turns.as_ref().map(|turns| turns.next());
            async move { job.add(batch, chain, sender, turn).await }
        }
    };
    let drive = {
        let (node, run, job) = (Arc::clone(&node), Arc::clone(&run), Arc::clone(&job));
        async move {
            let op = GroupOp::of(&node)?;
            let finish = {
                let (job, sender) = (Arc::clone(&job), sender.clone());
                move || job.finish(sender)
            };
            let end = island.drive_then(&node, partition, work, finish).await?;
            if matches!(end, IslandEnd::Complete) && op.has_grand_total() && !job.has_groups() {
                send(&sender, op.states_of_nothing(run.task()).await?).await?;
            }
            drop(sender);
            Ok::<_, DataFusionError>(end)
        }
        .boxed()
    };
    let merged = merge(op, &run, states);
    tokio::pin!(merged);
    let groups = match select(drive, merged.as_mut()).await {
        Either::Left((end, _)) => match end? {
            IslandEnd::Cpu(rows) => return Ok(rows),
            IslandEnd::Complete => {
                let finished = job.finished.lock().take();
                match finished {
                    Some(finished) => return finished.stream(Arc::clone(&node), Arc::clone(&run)),
                    None => merged.await?,
                }
            }
        },
        Either::Right((groups, drive)) => early(groups?, drive, &run).await?,
    };
    let (schema, rows) = (Arc::clone(&op.schema), Arc::clone(&run));
    let groups = groups.map(move |batch| {
        let batch = RecordBatch::try_new(Arc::clone(&schema), batch?.columns().to_vec())?;
        Ok(batch.record_output(&rows.metrics.baseline))
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&op.schema), groups)))
}

/// What is given when the first `groups` came before the input's end: DataFusion's partial aggregates do that where the
/// memory pool is full. From then on the island cannot be run again.
async fn early(
    groups: SendableRecordBatchStream,
    drive: BoxFuture<'static, Result<IslandEnd>>,
    run: &RunContext,
) -> Result<SendableRecordBatchStream> {
    let schema = groups.schema();
    if run.give_up_replay() {
        run.metrics.add("early_groups", 1);
        let driven = stream::once(drive).filter_map(|end| {
            std::future::ready(match end {
                Ok(IslandEnd::Complete) => None,
                Ok(IslandEnd::Cpu(_)) => {
                    Some(internal_err!("an island was run again after its first groups"))
                }
                Err(error) => Some(Err(error)),
            })
        });
        return Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream::select(driven, groups))));
    }
    // It is being run again already: these groups are of no use, but nothing may wait for room in the channel.
    let unused = groups.for_each(|_| std::future::ready(()));
    match join(drive, unused).await.0? {
        IslandEnd::Cpu(rows) => Ok(rows),
        IslandEnd::Complete => internal_err!("an island was to be run again, and was not"),
    }
}

pub(super) async fn send(sender: &mpsc::Sender<RecordBatch>, states: Vec<RecordBatch>) -> Result<()> {
    for batch in states.into_iter().filter(|batch| batch.num_rows() > 0) {
        // It has ended only by an error, which is the query's.
        let ended = |_| internal_datafusion_err!("the groups are not merged any more");
        sender.send(batch).await.map_err(ended)?;
    }
    Ok(())
}

/// Lets batches send their states in the order in which they were read.
#[derive(Default)]
struct Turns(Mutex<Option<oneshot::Receiver<()>>>);

/// A batch's turn, which begins when that before it has ended, and ends when it is dropped.
struct Turn {
    before: Option<oneshot::Receiver<()>>,
    _end: oneshot::Sender<()>,
}

impl Turns {
    fn next(&self) -> Turn {
        let (end, next) = oneshot::channel();
        Turn { before: self.0.lock().replace(next), _end: end }
    }
}

/// The run, shared by the tasks of its input partitions.
pub(super) struct Job {
    pub node: Arc<GpuExec>,
    pub run: Arc<RunContext>,
    /// Values of the operator's parameters and of its constant keys; `None` where they could not be computed.
    values: Option<(ParamValues, Vec<Option<ScalarValue>>)>,
    /// Without groups: what MIN and MAX tell scans.
    bounds: Option<DynamicBounds>,
    seen: Mutex<Seen>,
    has_groups: AtomicBool,
    /// Rows of the largest batch so far.
    pub largest: AtomicUsize,
    /// Groups that stayed on the device.
    pub pile: Arc<Pile>,
    /// Some states were sent to be merged on the host.
    pub sent: AtomicBool,
    /// The groups, where all were merged on the device.
    pub finished: Mutex<Option<Finished>>,
}

/// What the batches so far have taught.
struct Seen {
    /// By grouping set.
    sets: Vec<Learned>,
    floats: FloatFlags,
}

impl Job {
    fn new(node: &Arc<GpuExec>, run: &Arc<RunContext>) -> Self {
        let op = GroupOp::of(node).ok();
        let constants = |op: &GroupOp| {
            let keys = op.keys.iter().map(|key| match key {
                Key::Constant(expr) => constant(expr).map(Some),
                Key::Value(_) | Key::Text(_) => Ok(None),
            });
            keys.collect::<Result<Vec<_>>>()
        };
        let values = op.and_then(|op| Some((op.params.resolve().ok()?, constants(op).ok()?)));
        let sets = vec![Learned::default(); op.map_or(0, |op| op.sets.len())];
        let seen = Mutex::new(Seen { sets, floats: FloatFlags::default() });
        let bounds = op.and_then(|op| {
            let filter = op.dynamic_filters.first().filter(|_| !op.has_groups());
            DynamicBounds::new(filter, &op.aggregates, &op.functions, run.task())
        });
        let (node, run) = (Arc::clone(node), Arc::clone(run));
        let pile = Arc::new(Pile::new(run.merge_groups().is_some()));
        run.register_cache(Arc::downgrade(&pile) as _);
        Self {
            node,
            run,
            values,
            bounds,
            seen,
            has_groups: AtomicBool::new(false),
            largest: AtomicUsize::new(0),
            pile,
            sent: AtomicBool::new(false),
            finished: Mutex::new(None),
        }
    }

    fn has_groups(&self) -> bool {
        self.has_groups.load(Ordering::Acquire)
    }

    /// Groups one batch, and sends the states to be merged.
    async fn add(
        self: Arc<Self>,
        batch: GpuBatch,
        chain: Arc<RowLocalChain>,
        sender: mpsc::Sender<RecordBatch>,
        mut turn: Option<Turn>,
    ) -> Result<(), Stop> {
        let states = self.group(batch, &chain, &sender).await?;
        if states.iter().any(|batch| batch.num_rows() > 0) {
            self.has_groups.store(true, Ordering::Release);
        }
        if let Some(bounds) = &self.bounds {
            for batch in states.iter().filter(|batch| batch.num_rows() == 1) {
                let values = batch.columns().iter().map(|column| ScalarValue::try_from_array(column, 0));
                bounds.publish_some(&values.collect::<Result<Vec<_>>>()?)?;
            }
        }
        if let Some(before) = turn.as_mut().and_then(|turn| turn.before.take()) {
            // An error says that it was dropped, which ends its turn as well.
            let _ = before.await;
        }
        self.send(states, &sender).await
    }

    /// The states of one batch: from the device or, for parts where that cannot be, from the CPU. Those of groups that stay on the device
    /// are not among them.
    pub(super) async fn group(
        &self,
        mut batch: GpuBatch,
        chain: &RowLocalChain,
        sender: &mpsc::Sender<RecordBatch>,
    ) -> Result<Vec<RecordBatch>, Stop> {
        let op = GroupOp::of(&self.node)?;
        let Some((params, constants)) = self.values.as_ref().filter(|_| !batch.is_undecided()) else {
            return self.fall_back(&batch, chain, FallbackReason::NoParameter).await;
        };
        // Without the look-up tables of the groups, which nobody needs while they are on the device.
        let plain = batch.clone();
        let plan = Arc::new(GroupPlan::new(op, &mut batch, params, constants)?);
        if let Err(reason) =
            lookup::prepare_keys(&self.run, &mut batch, &plan.all_tables(), &plan.coded).await
        {
            return self.fall_back(&batch, chain, reason).await;
        }
        let learned = self.seen.lock().sets.clone();
        let hints: Arc<[GroupHint]> = plan.hints(&batch, &learned).into();
        let keys = plan.mergeable();
        self.yield_to(plan.need(&batch, &hints), sender).await?;
        let rule = keys.as_ref().and_then(|_| self.rule(batch.source().rows()));
        let (needs, all) = (Arc::clone(&plan), Arc::clone(&hints));
        let work = Arc::clone(&plan);
        let mut parts = with_retry(
            &self.run,
            batch,
            move |batch| needs.need(batch, &all),
            move |scope, batch| {
                let (plan, hints) = (Arc::clone(&work), Arc::clone(&hints));
                async move { plan.group(&scope, &batch, &hints, rule).await }
            },
        );
        let mut states = vec![];
        while let Some(Part { input, outcome }) = parts.next().await? {
            let part = match outcome.map(parted) {
                Ok((results, kept)) => {
                    let mut again = false;
                    for (kept, keys) in kept.into_iter().zip(keys.clone()) {
                        self.learn_kept(&kept);
                        let whole = input.source().rows() == plain.source().rows();
                        let rows = if whole { &plain } else { &input };
                        again |= !self.keep((kept, keys), (rows, chain), sender).await?;
                    }
                    if again {
                        continue;
                    }
                    self.states(op, &plan, &input, chain, &results).await
                }
                Err(error) => Err(error.into()),
            };
            states.extend(match part {
                Ok(part) => {
                    self.run.metrics.gpu_batch();
                    part
                }
                Err(reason) => self.fall_back(&input, chain, reason).await?,
            });
        }
        Ok(states)
    }

    /// The states of a part out of what kernels gave, or why the CPU has to answer for it.
    async fn states(
        &self,
        op: &GroupOp,
        plan: &GroupPlan,
        part: &GpuBatch,
        chain: &RowLocalChain,
        results: &[GroupResult],
    ) -> Result<Vec<RecordBatch>, FallbackReason> {
        if plan.faulted(part, results) {
            return Err(FallbackReason::ArithmeticFault);
        }
        self.learn(op, results)?;
        let mut rows = vec![];
        if op.finds_rows() {
            let host = Rows { op, chain, host: part.source().host(), task: self.run.task() };
            for result in results {
                let states = host.states(result).await;
                rows.push(
                    states.map_err(|error| FallbackReason::NotAssembled { message: error.to_string() })?,
                );
            }
        }
        Ok(plan.states(op, part, results, &rows)?)
    }

    /// Notes what a kernel found and left on the device.
    fn learn_kept(&self, kept: &KeptGroups) {
        self.run.metrics.add("groups", kept.groups());
        self.run.metrics.add("table_reruns", kept.reruns() as usize);
        self.run.metrics.add(kept.strategy().name(), 1);
        if let Some(set) = self.seen.lock().sets.first_mut() {
            set.note_kept(kept.groups());
        }
    }

    /// Notes what a kernel found.
    ///
    /// # Errors
    /// [`FallbackReason::FloatOrder`] when the answer depends on the order of rows.
    fn learn(&self, op: &GroupOp, results: &[GroupResult]) -> Result<(), FallbackReason> {
        let mut seen = self.seen.lock();
        let odd = |floats: &FloatFlags| floats.nan || (floats.negative_zero && floats.positive_zero);
        let (mut now, before) = (false, odd(&seen.floats));
        for (at, result) in results.iter().enumerate() {
            self.run.metrics.add("groups", result.groups);
            self.run.metrics.add("table_reruns", result.reruns as usize);
            self.run.metrics.add(result.strategy.name(), 1);
            if let Some(set) = seen.sets.get_mut(at) {
                set.note(result);
            }
            now |= odd(&result.floats);
            seen.floats.nan |= result.floats.nan;
            seen.floats.negative_zero |= result.floats.negative_zero;
            seen.floats.positive_zero |= result.floats.positive_zero;
        }
        // Where the island is not run again, later batches count for themselves.
        let differs = now || odd(&seen.floats) != before;
        if differs && op.orders_floats() { Err(FallbackReason::FloatOrder) } else { Ok(()) }
    }

    /// The CPU's states for a batch, unless its whole island is to be run there.
    pub(super) async fn fall_back(
        &self,
        batch: &GpuBatch,
        chain: &RowLocalChain,
        reason: FallbackReason,
    ) -> Result<Vec<RecordBatch>, Stop> {
        let whole = match reason {
            FallbackReason::FloatOrder => self.run.begin_again(),
            _ => self.run.begin_replay(),
        };
        if whole {
            return Err(Stop::FallBack(reason));
        }
        self.run.fall_back(&reason, FallbackScope::Batch)?;
        self.run.metrics.cpu_batch();
        let op = GroupOp::of(&self.node)?;
        Ok(op.partial_states(chain, batch.source().host(), self.run.task()).await?)
    }
}

/// What is on the host, and what stayed on the device.
fn parted(groups: Vec<Grouped>) -> (Vec<GroupResult>, Vec<KeptGroups>) {
    let (mut host, mut kept) = (vec![], vec![]);
    for groups in groups {
        match groups {
            Grouped::Host(result) => host.push(result),
            Grouped::Kept(groups) => kept.push(groups),
        }
    }
    (host, kept)
}
