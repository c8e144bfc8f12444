//! `GpuExec`, the one plan node of this crate.

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{OrderingRequirements, Partitioning, PhysicalExpr};
use datafusion::physical_plan::buffer::BufferExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::{
    CardinalityEffect, EmissionType, ReplaceChildrenOptions, reset_plan_states,
};
use datafusion::physical_plan::filter_pushdown::{FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};

use super::fusion::Fusion;
use super::materialize;
use super::op::{DeviceOp, OpKind};
use super::query::Query;
use super::template::Template;

/// A plan node that runs one [`DeviceOp`] on the device.
///
/// It is a description only: the device is looked up in the session when the plan is executed. Schema, partitioning,
/// ordering, statistics and distribution requirements are those of the CPU plan it stands for.
#[derive(Debug, Clone)]
pub struct GpuExec {
    op: Arc<dyn DeviceOp>,
    template: Template,
    children: Vec<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    query: Arc<Query>,
    fusion: Fusion,
    /// Whether the node above, which takes the rows, runs on the GPU.
    below_gpu: bool,
}

impl GpuExec {
    /// A node of `query` that runs `op` over `children` and stands for `template`.
    ///
    /// # Errors
    /// Those of building the template over `children`.
    pub fn try_new(
        op: Arc<dyn DeviceOp>,
        template: Template,
        children: Vec<Arc<dyn ExecutionPlan>>,
        query: Arc<Query>,
    ) -> Result<Self> {
        let properties = Arc::clone(template.instantiate(&children)?.properties());
        let properties = if op.merges_partitions() { merged(&properties) } else { properties };
        let metrics = ExecutionPlanMetricsSet::new();
        let fusion = Fusion::of(op.as_ref(), &children);
        Ok(Self { op, template, children, properties, metrics, query, fusion, below_gpu: false })
    }

    /// Notes, for EXPLAIN, whether the node above takes this one's rows on the GPU; without it, they go to the host.
    pub(crate) fn below_gpu(self, below_gpu: bool) -> Self {
        Self { below_gpu, ..self }
    }

    /// The operator.
    pub fn op(&self) -> &Arc<dyn DeviceOp> {
        &self.op
    }

    /// The CPU plan that this node stands for.
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// The query that the node belongs to.
    pub fn query(&self) -> &Arc<Query> {
        &self.query
    }

    /// The CPU plan over this node's current children: what a fallback runs.
    ///
    /// # Errors
    /// Those of `replace_children`.
    pub fn cpu_plan(&self) -> Result<Arc<dyn ExecutionPlan>> {
        self.template.instantiate(&self.children)
    }

    pub(crate) fn metrics_set(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    /// True when the node takes lazy batches from the GPU node below it; otherwise its input is executed and gives host batches.
    pub fn has_device_input(&self) -> bool {
        self.fusion.device_input
    }

    pub(super) fn fusion(&self) -> &Fusion {
        &self.fusion
    }

    /// True when a GPU parent can take this node's rows as lazy batches.
    pub fn has_device_output(&self) -> bool {
        matches!(self.op.kind(), OpKind::RowLocal(op) if op.fetch().is_none())
    }

    /// The GPU node that `plan` is, looking through nodes that only pass batches on.
    pub fn find(plan: &Arc<dyn ExecutionPlan>) -> Option<&GpuExec> {
        if let Some(exec) = plan.downcast_ref::<GpuExec>() {
            return Some(exec);
        }
        if Self::passes_on(plan) {
            let children = plan.children();
            return Self::find(children.first()?);
        }
        None
    }

    /// Whether `plan` only passes batches on, those of the device too.
    pub(crate) fn passes_on(plan: &Arc<dyn ExecutionPlan>) -> bool {
        plan.is::<CooperativeExec>() || plan.is::<BufferExec>()
    }

    fn replaced(&self, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let (op, template) = (Arc::clone(&self.op), self.template.clone());
        let node = Self::try_new(op, template, children, Arc::clone(&self.query))?;
        Ok(Arc::new(node.below_gpu(self.below_gpu)))
    }
}

/// The properties of a plan whose partitions are merged into one, in no order.
fn merged(properties: &PlanProperties) -> Arc<PlanProperties> {
    let mut equivalences = properties.eq_properties.clone();
    equivalences.clear_orderings();
    equivalences.clear_per_partition_constants();
    let partitioning = Partitioning::UnknownPartitioning(1);
    Arc::new(PlanProperties::new(equivalences, partitioning, EmissionType::Final, properties.boundedness))
}

impl DisplayAs for GpuExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let input = if self.has_device_input() { "device" } else { "host" };
        let output = if self.below_gpu && self.has_device_output() { "device" } else { "host" };
        let mut details = self.op.details();
        details.extend([("input", input.to_owned()), ("output", output.to_owned())]);
        let details: Vec<_> = details.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "{}: {}", self.op.name(), details.join(", "))
            }
            DisplayFormatType::TreeRender => f.write_str(&details.join("\n")),
        }
    }
}

impl ExecutionPlan for GpuExec {
    fn name(&self) -> &str {
        self.op.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.children.iter().collect()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.template.bottom().input_distribution_requirements()
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.template.bottom().required_input_ordering()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        let all = self.template.nodes().all(|node| node.maintains_input_order().iter().all(|kept| *kept));
        vec![all; self.children.len()]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        self.template.bottom().benefits_from_input_partitioning()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for node in self.template.nodes() {
            if node.apply_expressions(f)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.op.dynamic_expressions()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replaced(children)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replaced(children)
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let root = reset_plan_states(Arc::clone(self.template.root()))?;
        let template = self.template.with_root(root);
        let (op, children) = (Arc::clone(&self.op), self.children.clone());
        let node = Self::try_new(op, template, children, Arc::clone(&self.query))?;
        Ok(Arc::new(node.below_gpu(self.below_gpu)))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let partitions = self.properties.output_partitioning().partition_count();
        if partition >= partitions {
            return internal_err!("{} has {partitions} partitions, {partition} was asked for", self.name());
        }
        match self.op.kind() {
            OpKind::RowLocal(op) => materialize::execute(self, op.fetch(), partition, &context),
            OpKind::Breaker(op) => op.run(Arc::new(self.clone()), partition, context),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        // A chain merges its input partitions, so a statistic of its one output covers all of them.
        let partition = if self.template.len() == 1 { partition } else { None };
        self.template.bottom().child_stats_requests(partition)
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let nodes: Vec<_> = self.template.nodes().collect();
        let args = if nodes.len() == 1 {
            StatisticsArgs::new().with_partition(args.partition())
        } else {
            StatisticsArgs::new()
        };
        let mut statistics = inputs.to_vec();
        for node in nodes.into_iter().rev() {
            statistics = vec![node.statistics_from_inputs(&statistics, &args)?];
        }
        match statistics.pop() {
            Some(statistics) => Ok(statistics),
            None => Ok(Arc::new(Statistics::new_unknown(&self.schema()))),
        }
    }

    fn fetch(&self) -> Option<usize> {
        self.template.nodes().filter_map(|node| node.fetch()).min()
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.template.root().cardinality_effect()
    }

    fn gather_filters_for_pushdown(
        &self,
        _: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterDescription> {
        // Filters were pushed down before this node was made; later ones stay above it.
        Ok(FilterDescription::all_unsupported(&parent_filters, &self.children()))
    }
}
