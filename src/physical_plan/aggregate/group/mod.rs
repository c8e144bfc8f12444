//! GpuAggregateExec with GROUP BY.
//!
//! Every batch is grouped by one kernel a grouping set (selection, keys, and all aggregates fused) to one row a group: keys, and the
//! states of DataFusion's partial aggregate. DataFusion's own aggregate merges those rows and makes the final values. So a
//! batch can fall back alone: DataFusion's partial aggregate gives the same kind of rows. Where there are many groups, they stay on the
//! device and are merged there first (`pile`, `keep`).

mod finished;
mod first;
mod hints;
mod job;
mod keep;
mod keys;
mod merge;
mod partial;
mod pile;
mod plan;
mod states;
mod text;

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{
    AggregateExec, AggregateInputMode, AggregateMode, AggregateOutputMode, PhysicalGroupBy,
};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::TryFutureExt;

use crate::kernels::reduce::{AggregateKind, AggregateSpec};

use super::super::exec::GpuExec;
use super::super::op::{BreakerOp, DeviceOp, OpKind};
use super::super::params::ParamTable;
use super::super::run::RunContext;
use super::exact::{Finish, exact_in_place_of};
use super::value_type;

pub use keys::Key;
pub(crate) use plan::always;
pub use text::Text;

use keys::GroupingSet;

/// An aggregation with GROUP BY; without aggregates, the distinct keys.
#[derive(Debug)]
pub struct GroupOp {
    /// What kernels group by, in the order of the group expressions.
    keys: Vec<Key>,
    sets: Vec<GroupingSet>,
    /// What the kernel computes, in the order of the functions.
    aggregates: Vec<AggregateSpec>,
    /// Those of which nobody needs the number of contributing rows, though kernels would count them.
    uncounted: BTreeSet<usize>,
    /// Those without a filter whose argument cannot be NULL.
    required: BTreeSet<usize>,
    /// Of MIN and MAX over strings, whose kernels see ranks, where the strings are.
    texts: Vec<Option<Text>>,
    params: ParamTable,
    /// DataFusion's grouping of raw rows, and that of states.
    group: PhysicalGroupBy,
    merged_group: PhysicalGroupBy,
    /// DataFusion's functions, or such of our own in their place as carry exact sums.
    functions: Vec<Arc<AggregateFunctionExpr>>,
    filters: Vec<Option<Arc<dyn PhysicalExpr>>>,
    output: AggregateOutputMode,
    /// One output partition over all input partitions, because the exchange between partial and final was dropped.
    collapsed: bool,
    /// Rows are partial states of the functions, each column of which has an aggregate of its own.
    of_states: bool,
    /// Schema that the functions were planned on, and that of the operator's input.
    input_schema: SchemaRef,
    rows_schema: SchemaRef,
    state_schema: SchemaRef,
    schema: SchemaRef,
    dynamic_filters: Vec<Arc<dyn PhysicalExpr>>,
}

impl GroupOp {
    /// The operator for `raw`, an aggregate node over raw input, and, where the pair is collapsed, `last`, the final node
    /// above it. `keys` are the lowered group expressions of `raw`, `aggregates` its lowered functions, in order, with where strings
    /// are.
    ///
    /// # Errors
    /// An internal error when the parts do not fit the node.
    pub fn try_new(
        raw: &AggregateExec,
        last: Option<&AggregateExec>,
        keys: Vec<Key>,
        aggregates: Vec<(AggregateSpec, Option<Text>)>,
        params: ParamTable,
    ) -> Result<Self> {
        let group = raw.group_expr().clone();
        if raw.mode().input_mode() != AggregateInputMode::Raw
            || aggregates.len() != raw.aggr_expr().len()
            || keys.len() != group.expr().len()
        {
            return internal_err!("GpuAggregateExec: the lowered parts do not fit {}", raw.name());
        }
        let (aggregates, texts): (Vec<_>, Vec<_>) = aggregates.into_iter().unzip();
        let no_set = [vec![]];
        let groups = if group.is_true_no_grouping() { &no_set[..] } else { group.groups() };
        let sets = GroupingSet::all(groups, group.has_grouping_set())
            .ok_or_else(|| internal_datafusion_err!("GpuAggregateExec: too many grouping columns"))?;
        let rows_schema = raw.input().schema();
        let uncounted = uncounted(&aggregates, raw.aggr_expr())?;
        let required = required(raw)?;
        let functions = aggregates.iter().zip(raw.aggr_expr());
        let functions = functions.map(|(spec, function)| merging(spec, function, &raw.input_schema()));
        let functions = functions.collect::<Result<Vec<_>>>()?;
        let filters = raw.filter_expr().to_vec();
        let empty = Arc::new(EmptyExec::new(Arc::clone(&rows_schema)));
        let partial = AggregateExec::try_new(
            AggregateMode::Partial,
            group.clone(),
            functions.clone(),
            filters.clone(),
            empty,
            raw.input_schema(),
        )?;
        let top = last.unwrap_or(raw);
        Ok(Self {
            keys,
            sets,
            aggregates,
            uncounted,
            required,
            texts,
            params,
            merged_group: last.map_or_else(|| group.as_final(), |last| last.group_expr().clone()),
            group,
            functions,
            filters,
            output: top.mode().output_mode(),
            collapsed: last.is_some(),
            of_states: false,
            input_schema: raw.input_schema(),
            rows_schema,
            state_schema: partial.schema(),
            schema: top.schema(),
            dynamic_filters: raw.dynamic_expressions_produced(),
        })
    }

    /// The operator for `exec`, an aggregate node over partial states. `keys` are its lowered group expressions, `aggregates` merge
    /// the states, one a column of them, in order, with where strings are.
    ///
    /// # Errors
    /// An internal error when the parts do not fit the node.
    pub fn try_over_states(
        exec: &AggregateExec,
        keys: Vec<Key>,
        aggregates: Vec<(AggregateSpec, Option<Text>)>,
        params: ParamTable,
    ) -> Result<Self> {
        let group = exec.group_expr().clone();
        let functions = exec.aggr_expr().to_vec();
        let rows_schema = exec.input().schema();
        let filters = vec![None; functions.len()];
        let merged = AggregateExec::try_new(
            AggregateMode::PartialReduce,
            group.clone(),
            functions.clone(),
            filters.clone(),
            Arc::new(EmptyExec::new(Arc::clone(&rows_schema))),
            exec.input_schema(),
        )?;
        let state_schema = merged.schema();
        let columns = keys.len() + aggregates.len();
        if exec.mode().input_mode() != AggregateInputMode::Partial
            || group.has_grouping_set()
            || keys.len() != group.expr().len()
            || state_schema.fields().len() != columns
            || rows_schema.fields().len() != columns
        {
            return internal_err!("GpuAggregateExec: the lowered parts do not fit {}", exec.name());
        }
        let (aggregates, texts): (Vec<_>, Vec<_>) = aggregates.into_iter().unzip();
        let nulls = vec![false; keys.len()];
        Ok(Self {
            keys,
            sets: vec![GroupingSet { nulls, id: None }],
            // States that are counts are summed, too.
            uncounted: (0..aggregates.len()).collect(),
            required: BTreeSet::new(),
            aggregates,
            texts,
            params,
            merged_group: group.as_final(),
            group,
            functions,
            filters,
            output: exec.mode().output_mode(),
            collapsed: false,
            of_states: true,
            input_schema: exec.input_schema(),
            rows_schema,
            state_schema,
            schema: exec.schema(),
            dynamic_filters: vec![],
        })
    }

    /// Whether the CPU's answer depends on the order of rows where floats are peculiar: MIN and MAX over floats.
    fn orders_floats(&self) -> bool {
        self.has_groups()
            && self.aggregates.iter().any(|spec| {
                matches!(spec.kind, AggregateKind::Min | AggregateKind::Max)
                    && value_type(spec).to_arrow().is_floating()
            })
    }

    /// Whether a kernel tells rows, of which the host has the values.
    fn finds_rows(&self) -> bool {
        self.aggregates.iter().any(|spec| matches!(spec.kind, AggregateKind::FirstRow(_)))
    }

    /// Whether it makes values of the states.
    fn is_final(&self) -> bool {
        matches!(self.output, AggregateOutputMode::Final)
    }

    /// False without GROUP BY, when all rows are one group.
    fn has_groups(&self) -> bool {
        !self.group.is_true_no_grouping()
    }

    /// Whether there is a group even without rows.
    fn has_grand_total(&self) -> bool {
        self.group.has_grouping_set() && self.sets.iter().any(|set| set.nulls.iter().all(|null| *null))
    }

    fn of(node: &GpuExec) -> Result<&GroupOp> {
        let op: &dyn Any = node.op().as_ref();
        op.downcast_ref().ok_or_else(|| internal_datafusion_err!("{} has no groups", node.name()))
    }

    /// The group expressions as DataFusion shows them, one list a grouping set.
    fn shown_keys(&self) -> String {
        let sets = self.group.groups().iter().map(|nulls| {
            let keys = self.group.expr().iter().zip(nulls);
            let keys = keys.map(|((expr, _), null)| if *null { "NULL".to_owned() } else { expr.to_string() });
            keys.collect::<Vec<_>>().join(", ")
        });
        if self.group.is_single() {
            return sets.collect::<Vec<_>>().join(", ");
        }
        sets.map(|set| format!("({set})")).collect::<Vec<_>>().join(", ")
    }
}

/// Sums, by number, whose value is all that their states need: other than averages'.
fn uncounted(
    aggregates: &[AggregateSpec],
    functions: &[Arc<AggregateFunctionExpr>],
) -> Result<BTreeSet<usize>> {
    let mut uncounted = BTreeSet::new();
    for (at, (spec, function)) in aggregates.iter().zip(functions).enumerate() {
        let alone = match spec.kind {
            AggregateKind::SumDecimal => function.state_fields()?.len() == 1,
            AggregateKind::SumAsFloat64 | AggregateKind::SumFloat => Finish::of(function) == Finish::Sum,
            _ => false,
        };
        if alone {
            uncounted.insert(at);
        }
    }
    Ok(uncounted)
}

/// Aggregates, by number, without a filter whose argument the schema does not let be NULL.
fn required(exec: &AggregateExec) -> Result<BTreeSet<usize>> {
    let mut required = BTreeSet::new();
    for (at, (function, filter)) in exec.aggr_expr().iter().zip(exec.filter_expr()).enumerate() {
        if let ([arg], None) = (function.expressions().as_slice(), filter)
            && !arg.nullable(&exec.input_schema())?
        {
            required.insert(at);
        }
    }
    Ok(required)
}

/// The function that merges the states of `spec`, which was lowered from `function` over `schema`.
fn merging(
    spec: &AggregateSpec,
    function: &Arc<AggregateFunctionExpr>,
    schema: &SchemaRef,
) -> Result<Arc<AggregateFunctionExpr>> {
    match spec.kind {
        AggregateKind::SumAsFloat64 | AggregateKind::SumFloat => {
            exact_in_place_of(function, Finish::of(function), schema)
        }
        _ => Ok(Arc::clone(function)),
    }
}

impl DeviceOp for GroupOp {
    fn name(&self) -> &'static str {
        "GpuAggregateExec"
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let mode = match (self.output, self.collapsed, self.of_states) {
            (AggregateOutputMode::Partial, _, true) => "PartialReduce",
            (AggregateOutputMode::Partial, _, false) => "Partial",
            (AggregateOutputMode::Final, true, _) => "Collapsed",
            (AggregateOutputMode::Final, false, true) => "Final",
            (AggregateOutputMode::Final, false, false) => "Single",
        };
        let names: Vec<&str> = self.functions.iter().map(|function| function.name()).collect();
        let mut details = vec![("mode", mode.to_owned())];
        details.extend(self.has_groups().then(|| ("gby", format!("[{}]", self.shown_keys()))));
        details.push(("aggr", format!("[{}]", names.join(", "))));
        let exact =
            |spec: &AggregateSpec| matches!(spec.kind, AggregateKind::SumAsFloat64 | AggregateKind::SumFloat);
        details.extend(self.aggregates.iter().any(exact).then(|| ("float_sum", "exact".to_owned())));
        details
    }

    fn params(&self) -> &ParamTable {
        &self.params
    }

    fn kind(&self) -> OpKind<'_> {
        OpKind::Breaker(self)
    }

    fn merges_partitions(&self) -> bool {
        self.collapsed
    }

    fn dynamic_expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.dynamic_filters.clone()
    }
}

impl BreakerOp for GroupOp {
    fn run(
        &self,
        node: Arc<GpuExec>,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let run = RunContext::open(&node, partition, &context);
        let [child] = node.children()[..] else {
            return internal_err!("GpuAggregateExec must have one child");
        };
        let inputs = if self.collapsed {
            0..child.properties().partitioning.partition_count()
        } else {
            partition..partition + 1
        };
        let schema = Arc::clone(&self.schema);
        let stream = job::collect(node, partition, inputs, run).try_flatten_stream();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream)))
    }
}
