//! Measuring a fused aggregate over columns that are already on the device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use datafusion::common::{Result, plan_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;

use crate::kernels::program::{Program, Segment};
use crate::kernels::reduce::{AggregateSpec, FloatWindows, reduce_in};

use super::super::border::DeviceStream;
use super::super::exec::GpuExec;
use super::super::run::RunContext;
use super::{AggregateOp, ReducePlan, finish};

/// A GpuAggregateExec whose input columns have been uploaded, to be launched again and again.
///
/// This leaves scan and transfer out of a measurement; it is no cache.
pub struct ResidentAggregate {
    node: Arc<GpuExec>,
    run: Arc<RunContext>,
    program: Program,
    aggregates: Vec<AggregateSpec>,
    segments: Vec<Segment>,
    windows: Arc<FloatWindows>,
    /// Time to read the input from its source, and to upload it.
    pub load: Duration,
}

/// One launch of a [`ResidentAggregate`].
#[derive(Debug, Clone)]
pub struct ResidentRun {
    /// The aggregate's output row.
    pub row: RecordBatch,
    /// From encoding to merged result, waiting included.
    pub wall: Duration,
    /// Time on the device by timestamp queries; zero where the adapter has none.
    pub kernel: Duration,
}

impl ResidentAggregate {
    /// Finds the GpuAggregateExec in `plan`, reads all of its input and uploads what its kernel reads.
    ///
    /// # Errors
    /// A plan error when there is no such node or its input is empty; the input's and the device's own errors.
    pub async fn load(plan: &Arc<dyn ExecutionPlan>, task: &Arc<TaskContext>) -> Result<Self> {
        let Some(node) = find_aggregate(plan) else {
            return plan_err!("the plan has no GpuAggregateExec");
        };
        let op = AggregateOp::of(&node)?;
        let run = RunContext::open(&node, 0, task);
        let [child] = node.children()[..] else {
            return plan_err!("{} must have one child", node.name());
        };
        let own = op.params.resolve()?;
        let windows = Arc::new(FloatWindows::new(&op.aggregates));
        let start = Instant::now();
        let mut kernel: Option<(Program, Vec<AggregateSpec>)> = None;
        let mut segments = vec![];
        for partition in 0..child.properties().partitioning.partition_count() {
            let mut input = DeviceStream::open(child, partition, &run)?;
            while let Some(batch) = input.next().await {
                let mut batch = batch?;
                let plan = ReducePlan::new(op, &mut batch, &own, &windows)?;
                batch.prepare(&plan.tables).await?;
                let scope = run.launch().await?;
                let columns = batch.source().device_columns(&scope, &plan.needed).await?;
                let tables = batch.device_tables(&scope, &plan.tables).await?;
                segments.push(Segment { columns, rows: batch.source().rows(), tables });
                kernel = Some((plan.program, plan.aggregates));
            }
        }
        let load = start.elapsed();
        let Some((program, aggregates)) = kernel else {
            return plan_err!("the input of {} is empty", node.name());
        };
        Ok(Self { node, run, program, aggregates, segments, windows, load })
    }

    /// Rows of the input.
    pub fn rows(&self) -> usize {
        self.segments.iter().map(|segment| segment.rows).sum()
    }

    /// Batches on the device.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Bytes that one launch has to read: values and validity of every column it uses.
    pub fn bytes(&self) -> u64 {
        let columns = self.segments.iter().flat_map(|segment| segment.columns.iter().flatten());
        columns.map(|column| column.values.len + column.validity.as_ref().map_or(0, |bits| bits.len)).sum()
    }

    /// Launches the kernel over all batches `repeats` times in one submission, and finishes the row of the first. The times
    /// are those of one repeat: many of them keep the device busy, so that its clocks are those of work, not of idling.
    ///
    /// # Errors
    /// The device's own; a plan error when a value met an arithmetic fault, since there is no CPU to decide here, and when
    /// the repeats disagree.
    pub async fn launch(&self, repeats: u32) -> Result<ResidentRun> {
        let repeats = repeats.max(1);
        let op = AggregateOp::of(&self.node)?;
        let scope = self.run.launch().await?;
        let before = scope.stats.snapshot().kernel_ns;
        let start = Instant::now();
        let all: Vec<Segment> = (0..repeats).flat_map(|_| self.segments.iter().cloned()).collect();
        let results = reduce_in(&scope, &self.program, &self.aggregates, &all, &self.windows).await?;
        let (first, rest) = results.split_at(self.segments.len());
        if rest.chunks(self.segments.len()).any(|again| again != first) {
            return plan_err!("launches of the same kernel over the same rows disagree");
        }
        let mut states = op.init();
        for result in first {
            if result.fault {
                return plan_err!("a value met an arithmetic fault");
            }
            op.merge(&mut states, &result.states);
        }
        let row = finish::finish(&op.aggregates, &op.functions, op.output, &states, &op.schema)?;
        let wall = start.elapsed() / repeats;
        let kernel = Duration::from_nanos(scope.stats.snapshot().kernel_ns - before) / repeats;
        Ok(ResidentRun { row, wall, kernel })
    }
}

fn find_aggregate(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<GpuExec>> {
    if let Some(exec) = plan.downcast_ref::<GpuExec>()
        && AggregateOp::of(exec).is_ok()
    {
        return Some(Arc::new(exec.clone()));
    }
    plan.children().into_iter().find_map(find_aggregate)
}
