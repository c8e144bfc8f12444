//! Running CPU plans in place of GPU work: over the original host batches, or from the sources again.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::catalog::memory::{DataSourceExec, MemorySourceConfig};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, lit};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::memory::LazyMemoryExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::work_table::WorkTableExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::StreamExt;
use parking_lot::Mutex;

use super::template::Template;

/// What one partition of a [`ReplayExec`] gives: batches that were read already, then what the input still has.
#[derive(Default)]
pub(crate) struct ReplaySlot {
    /// Batches read from the input before the fallback, with their original boundaries.
    pub batches: Vec<RecordBatch>,
    /// The live rest of the input.
    pub tail: Option<SendableRecordBatchStream>,
    /// What the batches take of the query's memory pool; given back with the stream over them.
    pub memory: Option<MemoryReservation>,
}

/// A leaf that replays host batches in the place of the child they came from, with that child's own properties.
pub struct ReplayExec {
    properties: Arc<PlanProperties>,
    slots: Mutex<Vec<Option<ReplaySlot>>>,
}

impl ReplayExec {
    /// Replays `slots`, one for each partition of `child`.
    pub(crate) fn new(child: &Arc<dyn ExecutionPlan>, slots: Vec<ReplaySlot>) -> Self {
        Self::over(Arc::clone(child.properties()), slots)
    }

    /// Gives `slots`, one for each partition of `properties`.
    pub(crate) fn over(properties: Arc<PlanProperties>, slots: Vec<ReplaySlot>) -> Self {
        Self { properties, slots: Mutex::new(slots.into_iter().map(Some).collect()) }
    }

    /// Replays `batches` as partition `partition` of `child`; the other partitions are empty.
    pub fn partition(child: &Arc<dyn ExecutionPlan>, partition: usize, batches: Vec<RecordBatch>) -> Self {
        let partitions = child.properties().output_partitioning().partition_count();
        let mut slots: Vec<ReplaySlot> = (0..partitions).map(|_| ReplaySlot::default()).collect();
        if let Some(slot) = slots.get_mut(partition) {
            slot.batches = batches;
        }
        Self::new(child, slots)
    }
}

impl fmt::Debug for ReplayExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayExec").finish_non_exhaustive()
    }
}

impl DisplayAs for ReplayExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplayExec")
    }
}

impl ExecutionPlan for ReplayExec {
    fn name(&self) -> &'static str {
        "ReplayExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let Some(slot) = self.slots.lock().get_mut(partition).and_then(Option::take) else {
            return internal_err!("ReplayExec: partition {partition} does not exist or was read before");
        };
        let memory = slot.memory;
        let prefix = futures::stream::iter(slot.batches).map(move |batch| {
            let _held = &memory;
            Ok(batch)
        });
        let schema = self.schema();
        Ok(match slot.tail {
            None => Box::pin(RecordBatchStreamAdapter::new(schema, prefix)),
            Some(tail) => Box::pin(RecordBatchStreamAdapter::new(schema, prefix.chain(tail))),
        })
    }
}

/// The CPU's answer for one lazy batch.
#[derive(Default)]
pub(crate) struct Replayed {
    /// Rows in order, with the boundaries that the CPU nodes gave them.
    pub rows: Vec<RecordBatch>,
    /// The error that came after those rows. A parent that needs no more rows never asks for it.
    pub error: Option<DataFusionError>,
}

impl Replayed {
    /// All rows, or the error: for a parent that needs every row.
    pub(crate) fn complete(self) -> Result<Vec<RecordBatch>> {
        self.error.map_or(Ok(self.rows), Err)
    }
}

/// The row-local CPU nodes between a host border and the consumer of its batches.
#[derive(Debug, Clone)]
pub(crate) struct RowLocalChain {
    border: Arc<dyn ExecutionPlan>,
    partition: usize,
    /// From the border upwards.
    templates: Vec<Template>,
}

impl RowLocalChain {
    pub(crate) fn new(border: Arc<dyn ExecutionPlan>, partition: usize) -> Self {
        Self { border, partition, templates: vec![] }
    }

    pub(crate) fn push(&mut self, template: Template) {
        self.templates.push(template);
    }

    /// The host plan under the chain.
    pub(crate) fn border(&self) -> &Arc<dyn ExecutionPlan> {
        &self.border
    }

    /// The chain's CPU nodes over `leaf`, which stands in the border's place.
    pub(crate) fn plan_over(&self, leaf: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        self.templates.iter().try_fold(leaf, |plan, template| template.instantiate(&[plan]))
    }

    /// The chain's CPU nodes over `batches`, and the partition to execute.
    pub(crate) fn plan(&self, batches: &[RecordBatch]) -> Result<(Arc<dyn ExecutionPlan>, usize)> {
        let leaf = Arc::new(ReplayExec::partition(&self.border, self.partition, batches.to_vec()));
        Ok((self.plan_over(leaf)?, self.partition))
    }

    /// What DataFusion's own nodes make of `batches`: rows, and the error after which there are no more.
    pub(crate) async fn replay(
        &self,
        batches: &[RecordBatch],
        context: &Arc<TaskContext>,
    ) -> Result<Replayed> {
        let (plan, partition) = self.plan(batches)?;
        let mut stream = plan.execute(partition, Arc::clone(context))?;
        let mut replayed = Replayed::default();
        while let Some(next) = stream.next().await {
            match next {
                Ok(batch) => replayed.rows.push(batch),
                Err(error) => {
                    replayed.error = Some(error);
                    break;
                }
            }
        }
        Ok(replayed)
    }
}

/// Whether every leaf under `plan` gives the same rows when it is executed again after a reset.
///
/// Only DataFusion's own file and memory sources are known to.
pub fn is_repeatable(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.is::<RecursiveQueryExec>() || plan.is::<WorkTableExec>() {
        return false;
    }
    let children = plan.children();
    if !children.is_empty() {
        return children.into_iter().all(is_repeatable);
    }
    if let Some(source) = plan.downcast_ref::<DataSourceExec>() {
        let source = source.data_source();
        return source.downcast_ref::<FileScanConfig>().is_some()
            || source.downcast_ref::<MemorySourceConfig>().is_some();
    }
    plan.is::<LazyMemoryExec>() || plan.is::<EmptyExec>() || plan.is::<PlaceholderRowExec>()
}

/// A copy of `plan` that can be executed although `plan` was: dynamic filters are opened, aggregates that produce one are
/// built anew (they keep a private bound through a reset), and every node's state is reset.
///
/// The streams of the earlier run must be gone: a task of it that still ran could narrow a filter again.
///
/// # Errors
/// Those of the nodes' own `reset_state`.
pub fn fresh(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    open_dynamic_filters(&plan)?;
    let rebuilt = plan
        .transform_up(|node| match node.downcast_ref::<AggregateExec>() {
            Some(aggregate) if !aggregate.dynamic_expressions_produced().is_empty() => {
                let rebuilt = AggregateExec::try_new(
                    *aggregate.mode(),
                    Arc::new(aggregate.group_expr().clone()),
                    aggregate.aggr_expr().to_vec(),
                    aggregate.filter_expr().to_vec(),
                    Arc::clone(aggregate.input()),
                    aggregate.input_schema(),
                )?
                .with_limit_options(aggregate.limit_options());
                Ok(Transformed::yes(Arc::new(rebuilt)))
            }
            _ => Ok(Transformed::no(node)),
        })
        .data()?;
    reset_plan_states(rebuilt)
}

/// Sets every dynamic filter under `plan` to `true`.
fn open_dynamic_filters(plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    plan.apply(|node| {
        node.apply_expressions(&mut |expr| {
            expr.apply(|inner| {
                if let Some(filter) = inner.downcast_ref::<DynamicFilterPhysicalExpr>() {
                    filter.update(lit(true))?;
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        for produced in node.dynamic_expressions_produced() {
            if let Some(filter) = produced.downcast_ref::<DynamicFilterPhysicalExpr>() {
                filter.update(lit(true))?;
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}
