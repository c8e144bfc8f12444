//! GpuAggregateExec: here aggregates without GROUP BY, in [`group`] those with it, and those that compare strings.
//!
//! Every batch is reduced by one kernel (selection, expressions and all aggregates fused) to one small state; states are
//! merged on the host, and DataFusion's own accumulators turn the merged state into the final value. So a batch can fall
//! back alone: the CPU reduces it to a state of the same kind.

mod cpu;
mod dynamic_filter;
pub(crate) mod exact;
mod finish;
pub mod group;
mod resident;

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateOutputMode};
use datafusion::physical_plan::metrics::RecordOutput;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::TryFutureExt;
use parking_lot::Mutex;

use crate::config::{FallbackScope, FloatSum};
use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::{Expr, ValueType};
use crate::kernels::program::{Program, Segment, tables_of};
use crate::kernels::reduce::{AggregateSpec, AggregateState, FloatWindows, ReduceResult, reduce_in};
use crate::kernels::table_copy_bytes;
use crate::memory::batch::GpuBatch;
use crate::memory::launch::LaunchScope;
use crate::memory::upload::staging_bytes;

use super::exec::GpuExec;
use super::island::{IslandEnd, IslandRun, Stop};
use super::lookup;
use super::op::{BreakerOp, DeviceOp, OpKind};
use super::params::{Bound, ParamTable, ParamValues, rebase};
use super::replay::RowLocalChain;
use super::retry::{Part, with_retry};
use super::run::{FallbackReason, RunContext};

pub use self::resident::{ResidentAggregate, ResidentRun};

use self::cpu::CpuAggregate;
use self::dynamic_filter::DynamicBounds;

/// An aggregation without groups.
#[derive(Debug)]
pub struct AggregateOp {
    /// What the kernel computes, in the order of the functions.
    aggregates: Vec<AggregateSpec>,
    params: ParamTable,
    /// DataFusion's functions: they finish the states.
    functions: Vec<Arc<AggregateFunctionExpr>>,
    /// The same aggregates for batches that fall back.
    cpu: Vec<CpuAggregate>,
    output: AggregateOutputMode,
    /// One output partition over all input partitions, because the exchange between partial and final was dropped.
    collapsed: bool,
    schema: SchemaRef,
    dynamic_filter: Option<Arc<dyn PhysicalExpr>>,
}

impl AggregateOp {
    /// The operator for `raw`, an aggregate node over raw input, and, where the pair is collapsed, `last`, the final node
    /// above it. `aggregates` are the lowered functions of `raw`, in order.
    ///
    /// # Errors
    /// An internal error when `aggregates` do not fit the node.
    pub fn try_new(
        raw: &AggregateExec,
        last: Option<&AggregateExec>,
        aggregates: Vec<AggregateSpec>,
        params: ParamTable,
    ) -> Result<Self> {
        if aggregates.len() != raw.aggr_expr().len() {
            return Err(internal_datafusion_err!(
                "GpuAggregateExec: {} lowered aggregates for {} functions",
                aggregates.len(),
                raw.aggr_expr().len()
            ));
        }
        let cpu = aggregates
            .iter()
            .zip(raw.aggr_expr())
            .zip(raw.filter_expr())
            .map(|((spec, function), filter)| CpuAggregate::try_new(spec, function, filter.clone()))
            .collect::<Result<Vec<_>>>()?;
        let top = last.unwrap_or(raw);
        Ok(Self {
            aggregates,
            params,
            functions: top.aggr_expr().to_vec(),
            cpu,
            output: top.mode().output_mode(),
            collapsed: last.is_some(),
            schema: top.schema(),
            dynamic_filter: raw.dynamic_expressions_produced().into_iter().next(),
        })
    }

    /// The batch's selection and expressions fused with the aggregates, whose parameter values are `own`; and the source
    /// columns that the kernel reads. The batch gets the operator's parameters.
    pub(super) fn fused(
        &self,
        batch: &mut GpuBatch,
        own: &ParamValues,
    ) -> Result<(Program, Vec<AggregateSpec>, BTreeSet<usize>)> {
        let bound = self.params.bind(batch, own)?;
        let aggregates = rebased(&self.aggregates, batch, &bound)?;
        let unfiltered = aggregates.iter().filter(|spec| spec.filter.is_none());
        let evaluated: Vec<_> = unfiltered.filter_map(|spec| spec.arg.as_ref()).collect();
        let program =
            Program { selection: batch.guarded_selection(&evaluated), params: batch.params().to_vec() };
        let mut needed = BTreeSet::new();
        let inputs = aggregates.iter().flat_map(|spec| spec.arg.iter().chain(&spec.filter));
        for expr in inputs.chain(&program.selection) {
            expr.collect_columns(&mut needed);
        }
        Ok((program, aggregates, needed))
    }
}

impl DeviceOp for AggregateOp {
    fn name(&self) -> &'static str {
        "GpuAggregateExec"
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let mode = match (self.output, self.collapsed) {
            (AggregateOutputMode::Partial, _) => "Partial",
            (AggregateOutputMode::Final, true) => "Collapsed",
            (AggregateOutputMode::Final, false) => "Single",
        };
        let names: Vec<&str> = self.functions.iter().map(|function| function.name()).collect();
        let mut details = vec![("mode", mode.to_owned()), ("aggr", format!("[{}]", names.join(", ")))];
        if self.aggregates.iter().any(|spec| spec.kind.is_rounded()) {
            details.push(("float_sum", FloatSum::Exact.to_string()));
        }
        details
    }

    fn params(&self) -> &ParamTable {
        &self.params
    }

    fn kind(&self) -> OpKind<'_> {
        OpKind::Breaker(self)
    }

    fn dynamic_expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.dynamic_filter.iter().cloned().collect()
    }
}

impl BreakerOp for AggregateOp {
    fn run(
        &self,
        node: Arc<GpuExec>,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let run = RunContext::open(&node, partition, &context);
        let [child] = node.children()[..] else {
            return Err(internal_datafusion_err!("GpuAggregateExec must have one child"));
        };
        let inputs = if self.collapsed {
            0..child.properties().partitioning.partition_count()
        } else {
            partition..partition + 1
        };
        let schema = Arc::clone(&self.schema);
        let stream = collect(node, partition, inputs, run).try_flatten_stream();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream)))
    }
}

/// Reads the whole input and gives the one row.
async fn collect(
    node: Arc<GpuExec>,
    partition: usize,
    inputs: std::ops::Range<usize>,
    run: Arc<RunContext>,
) -> Result<SendableRecordBatchStream> {
    let op = AggregateOp::of(&node)?;
    let job = Arc::new(Job {
        params: op.params.resolve().ok(),
        bounds: DynamicBounds::new(op.dynamic_filter.as_ref(), &op.aggregates, &op.functions, run.task()),
        states: Mutex::new(op.init()),
        windows: Arc::new(FloatWindows::new(&op.aggregates)),
        node: Arc::clone(&node),
        run: Arc::clone(&run),
    });
    let island = IslandRun::new(&node, Arc::clone(&run), inputs);
    let work = {
        let job = Arc::clone(&job);
        move |batch, chain| {
            let job = Arc::clone(&job);
            async move { job.add(batch, chain).await }
        }
    };
    match island.drive(&node, partition, work).await? {
        IslandEnd::Cpu(stream) => Ok(stream),
        IslandEnd::Complete => {
            let states = job.states.lock().clone();
            let row = finish::finish(&op.aggregates, &op.functions, op.output, &states, &op.schema)?;
            let row = row.record_output(&run.metrics.baseline);
            let rows = futures::stream::iter([Ok(row)]);
            Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&op.schema), rows)))
        }
    }
}

impl AggregateOp {
    /// States of no rows.
    fn init(&self) -> Vec<AggregateState> {
        self.aggregates.iter().map(|spec| spec.kind.init()).collect()
    }

    /// Adds the rows of `from` to `into`.
    fn merge(&self, into: &mut [AggregateState], from: &[AggregateState]) {
        for ((spec, into), from) in self.aggregates.iter().zip(into).zip(from) {
            spec.kind.merge(value_type(spec), into, from);
        }
    }

    fn of(node: &GpuExec) -> Result<&AggregateOp> {
        let op: &dyn Any = node.op().as_ref();
        op.downcast_ref().ok_or_else(|| internal_datafusion_err!("{} is no aggregate", node.name()))
    }
}

/// Type of the aggregate's argument; that of a count where there is none.
fn value_type(spec: &AggregateSpec) -> ValueType {
    spec.arg.as_ref().map_or(ValueType::Int64, |arg| arg.value_type())
}

/// The aggregates over a batch's source columns, with parameters and tables as the batch has them.
fn rebased(aggregates: &[AggregateSpec], batch: &GpuBatch, bound: &Bound) -> Result<Vec<AggregateSpec>> {
    let over = |expr: &Arc<Expr>| {
        rebase(expr, &|index| batch.column_expr(index), bound).ok_or_else(|| {
            internal_datafusion_err!(
                "GpuAggregateExec: an aggregate reads a column that is not on the device"
            )
        })
    };
    let specs = aggregates.iter().map(|spec| {
        let (arg, filter) = (spec.arg.as_ref().map(over), spec.filter.as_ref().map(over));
        Ok(AggregateSpec { kind: spec.kind, arg: arg.transpose()?, filter: filter.transpose()? })
    });
    specs.collect()
}

/// One run of the operator, shared by the tasks of its input partitions.
struct Job {
    node: Arc<GpuExec>,
    run: Arc<RunContext>,
    /// Values of the operator's parameters; `None` where they could not be computed.
    params: Option<ParamValues>,
    bounds: Option<DynamicBounds>,
    states: Mutex<Vec<AggregateState>>,
    /// Where the sums of floats have their windows.
    windows: Arc<FloatWindows>,
}

impl Job {
    /// Aggregates one batch into the running states.
    async fn add(self: Arc<Self>, batch: GpuBatch, chain: Arc<RowLocalChain>) -> Result<(), Stop> {
        let states = self.reduce_batch(batch, &chain).await?;
        let op = AggregateOp::of(&self.node)?;
        let merged = {
            let mut running = self.states.lock();
            op.merge(&mut running, &states);
            self.bounds.is_some().then(|| running.clone())
        };
        if let (Some(bounds), Some(merged)) = (&self.bounds, merged) {
            bounds.publish(&merged)?;
        }
        Ok(())
    }

    /// The states of one batch: from the device or, for parts where that cannot be, from the CPU.
    async fn reduce_batch(
        &self,
        mut batch: GpuBatch,
        chain: &RowLocalChain,
    ) -> Result<Vec<AggregateState>, Stop> {
        let op = AggregateOp::of(&self.node)?;
        let Some(params) = self.params.as_ref().filter(|_| !batch.is_undecided()) else {
            return self.fall_back(&batch, chain, FallbackReason::NoParameter).await;
        };
        let plan = Arc::new(ReducePlan::new(op, &mut batch, params, &self.windows)?);
        if let Err(reason) = lookup::prepare(&self.run, &mut batch, &plan.tables).await {
            return self.fall_back(&batch, chain, reason).await;
        }
        let needs = Arc::clone(&plan);
        let mut parts = with_retry(
            &self.run,
            batch,
            move |batch| needs.need(batch),
            move |scope, batch| {
                let plan = Arc::clone(&plan);
                async move { plan.reduce(&scope, &batch).await }
            },
        );
        let mut states: Option<Vec<AggregateState>> = None;
        while let Some(Part { input, outcome }) = parts.next().await? {
            let part = match outcome {
                Ok(result) if !result.fault => {
                    self.run.metrics.gpu_batch();
                    result.states
                }
                Ok(_) => self.fall_back(&input, chain, FallbackReason::ArithmeticFault).await?,
                Err(error) => self.fall_back(&input, chain, error.into()).await?,
            };
            states = Some(match states {
                None => part,
                Some(mut states) => {
                    op.merge(&mut states, &part);
                    states
                }
            });
        }
        Ok(states.unwrap_or_else(|| op.init()))
    }

    /// The CPU's answer for a batch, unless its whole island is to be run there.
    async fn fall_back(
        &self,
        batch: &GpuBatch,
        chain: &RowLocalChain,
        reason: FallbackReason,
    ) -> Result<Vec<AggregateState>, Stop> {
        if self.run.begin_replay() {
            return Err(Stop::FallBack(reason));
        }
        self.run.fall_back(&reason, FallbackScope::Batch)?;
        self.run.metrics.cpu_batch();
        let rows = chain.replay(batch.source().host(), self.run.task()).await?.complete()?;
        Ok(cpu::reduce(&AggregateOp::of(&self.node)?.cpu, &rows)?)
    }
}

/// The kernel over a batch, and over each of its parts.
struct ReducePlan {
    program: Program,
    aggregates: Vec<AggregateSpec>,
    needed: BTreeSet<usize>,
    tables: BTreeSet<usize>,
    windows: Arc<FloatWindows>,
}

impl ReducePlan {
    fn new(
        op: &AggregateOp,
        batch: &mut GpuBatch,
        params: &ParamValues,
        windows: &Arc<FloatWindows>,
    ) -> Result<Self> {
        let (program, aggregates, needed) = op.fused(batch, params)?;
        if let Some(rows) = batch.source().host().first() {
            windows.sample(&program, &aggregates, rows.columns(), rows.num_rows());
        }
        let inputs = aggregates.iter().flat_map(|spec| spec.arg.iter().chain(&spec.filter));
        let tables = tables_of(inputs.chain(&program.selection)).into_keys().collect();
        Ok(Self { program, aggregates, needed, tables, windows: Arc::clone(windows) })
    }

    /// Device bytes held at a time: columns, look-up tables and staging memory. The states are a few KiB, which nobody has to wait for.
    fn need(&self, batch: &GpuBatch) -> u64 {
        let columns = batch.source().column_bytes(&self.needed);
        let tables = batch.table_bytes(&self.tables);
        let uploaded = |bytes: u64| bytes.saturating_add(staging_bytes(bytes));
        // The kernel has a copy of the tables.
        let copy =
            table_copy_bytes(&self.program, self.needed.len(), &self.tables, batch.table_len(&self.tables));
        uploaded(columns).saturating_add(uploaded(tables)).saturating_add(copy)
    }

    async fn reduce(&self, scope: &LaunchScope, batch: &GpuBatch) -> GpuResult<ReduceResult> {
        let columns = batch.source().device_columns(scope, &self.needed).await?;
        let tables = batch.device_tables(scope, &self.tables).await?;
        let segment = Segment { columns, rows: batch.source().rows(), tables };
        let mut results =
            reduce_in(scope, &self.program, &self.aggregates, &[segment], &self.windows).await?;
        results.pop().ok_or_else(|| GpuError::Internal("reduce gave no result for its segment".to_owned()))
    }
}
