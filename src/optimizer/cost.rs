//! What an island costs on the CPU's cores and on the device, for placement 'auto'.
//!
//! The figures are rough on purpose: nanoseconds that one core takes for a row, and bytes that have to reach the device, as they
//! were measured with TPC-H and h2o.ai's grouping questions on sixteen cores beside an H200. There, transfers decide: kernels take
//! a hundredth of the time. What is resident on the device, or has cheaper transfers, is told by `gpu.upload_rate`.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::common::JoinType;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

/// Nanoseconds of one core for an operator or a function of a row; for decimals of 128 bits; for strings.
const EXPRESSION: (f64, f64, f64) = (3.0, 6.0, 20.0);
/// For finding a row's group, for each key; and for each that is a string.
const KEY: (f64, f64) = (10.0, 20.0);
/// For adding a row to the state of an aggregate; for decimals of 128 bits.
const AGGREGATE: (f64, f64) = (6.0, 10.0);
/// For giving a string its code in the batch's dictionary, before the upload.
const ENCODE: f64 = 20.0;
/// Values that a column of strings is taken to have.
const FEW: f64 = 100.0;
/// Nanoseconds of launches and waits of an island, whatever its size.
const LAUNCHES: f64 = 1e6;

/// Estimated times of an island, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cost {
    /// Of its nodes on the CPU.
    pub cpu: f64,
    /// On the device, with the transfers.
    pub gpu: f64,
}

/// What the machine is taken for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    /// Cores that a plan's partitions keep busy.
    pub cores: f64,
    /// Bytes that reach the device in a nanosecond.
    pub upload: f64,
}

impl Cost {
    /// Adds a node of the island that `rows` rows enter.
    pub(crate) fn add_node(&mut self, plan: &dyn ExecutionPlan, rows: f64, machine: Machine) {
        self.cpu += rows * work(plan) / machine.cores;
    }

    /// What an island costs before it has a row.
    pub(crate) fn of_launches() -> Self {
        Self { cpu: 0.0, gpu: LAUNCHES }
    }

    /// Adds the groups of an aggregate of the island: DataFusion merges on the host what the device found.
    pub(crate) fn add_groups(&mut self, aggregate: &AggregateExec, groups: f64, machine: Machine) {
        let bytes: f64 =
            aggregate.schema().fields().iter().map(|field| uploaded_bytes(field.data_type())).sum();
        self.gpu += groups * (work(aggregate) / machine.cores + bytes / machine.upload);
    }

    /// Adds an input on the island's border.
    pub(crate) fn add_input(&mut self, schema: &Schema, rows: f64, machine: Machine) {
        let encoded = schema.fields().iter().filter(|field| is_text(field.data_type())).count();
        let bytes: f64 = schema.fields().iter().map(|field| uploaded_bytes(field.data_type())).sum();
        self.gpu += rows * (bytes / machine.upload + encoded as f64 * ENCODE / machine.cores);
    }
}

/// Nanoseconds of one core that a node takes for a row of its input.
fn work(plan: &dyn ExecutionPlan) -> f64 {
    let [input] = plan.children()[..] else { return 0.0 };
    let schema = input.schema();
    let of = |expr: &Arc<dyn PhysicalExpr>| expression(expr, &schema);
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        return of(filter.predicate());
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        return projection.expr().iter().map(|projected| of(&projected.expr)).sum();
    }
    let Some(aggregate) = plan.downcast_ref::<AggregateExec>() else { return 0.0 };
    let keys = aggregate.group_expr().expr().iter().map(|(key, _)| {
        let text = key.data_type(&schema).is_ok_and(|ty| is_text(&ty));
        of(key) + if text { KEY.1 } else { KEY.0 }
    });
    let keys: f64 = keys.sum();
    let functions = aggregate.aggr_expr().iter().zip(aggregate.filter_expr()).map(|(function, filter)| {
        let args = function.expressions();
        let wide = args.iter().any(|arg| arg.data_type(&schema).is_ok_and(|ty| is_wide(&ty)));
        let args: f64 = args.iter().chain(filter).map(of).sum();
        args + if wide { AGGREGATE.1 } else { AGGREGATE.0 }
    });
    keys * aggregate.group_expr().groups().len() as f64 + functions.sum::<f64>()
}

/// The same of an expression: every operator and function in it counts, by the widest type that it reads or gives.
fn expression(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> f64 {
    let mut sum = 0.0;
    // It visits what there is, and has no error of its own.
    let _ = expr.apply(|node| {
        if !node.is::<Column>() && !node.is::<Literal>() {
            let types =
                node.children().into_iter().chain([node]).filter_map(|part| part.data_type(schema).ok());
            let cost = |ty: DataType| match () {
                () if is_text(&ty) => EXPRESSION.2,
                () if is_wide(&ty) => EXPRESSION.1,
                () => EXPRESSION.0,
            };
            sum += types.map(cost).fold(0.0, f64::max);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    sum
}

fn is_wide(ty: &DataType) -> bool {
    matches!(ty, DataType::Decimal128(..) | DataType::Decimal256(..))
}

fn is_text(ty: &DataType) -> bool {
    match ty {
        DataType::Dictionary(_, values) => is_text(values),
        ty => ty.is_string() || ty.is_binary(),
    }
}

/// Bytes of a value on the device; of strings, that of the code.
fn uploaded_bytes(ty: &DataType) -> f64 {
    match ty {
        DataType::Boolean => 0.125,
        DataType::Decimal128(precision, _) if *precision <= 18 => 8.0,
        ty => ty.primitive_width().map_or(4.0, |width| width as f64),
    }
}

/// Rows that `plan` is expected to give, from its statistics: the row count, or else bytes over the width of a row.
pub(crate) fn estimated_rows(plan: &dyn ExecutionPlan, context: &StatisticsContext) -> Option<u64> {
    let statistics = context.compute(plan, &StatisticsArgs::new()).ok()?;
    if let Precision::Exact(rows) | Precision::Inexact(rows) = statistics.num_rows {
        return u64::try_from(rows).ok();
    }
    let (Precision::Exact(bytes) | Precision::Inexact(bytes)) = statistics.total_byte_size else {
        return None;
    };
    let schema = plan.schema();
    // 16 bytes stand for a value of variable width.
    let width: usize = schema.fields().iter().map(|f| f.data_type().primitive_width().unwrap_or(16)).sum();
    u64::try_from(bytes / width.max(1)).ok()
}

/// Rows that joins are expected to give, as a number of rows without filters and the share that filters keep of them. DataFusion multiplies
/// the sides where it knows little of their keys. Here one side is taken to have the other's keys once, so that there are as many rows
/// as the larger side has, and of these what the filters of both sides keep. `None` where there is no join.
pub(crate) fn joined(plan: &Arc<dyn ExecutionPlan>, context: &StatisticsContext) -> Option<(f64, f64)> {
    let leaf = |plan: &Arc<dyn ExecutionPlan>| Some((estimated_rows(plan.as_ref(), context)? as f64, 1.0));
    let side = |plan: &Arc<dyn ExecutionPlan>| joined(plan, context).or_else(|| unjoined(plan, context));
    match plan.children()[..] {
        [input] if plan.is::<AggregateExec>() => {
            joined(input, context)?;
            leaf(plan)
        }
        [input] => {
            let (rows, share) = joined(input, context)?;
            Some((rows, share * selectivity(plan, rows, context)))
        }
        [left, right] => {
            let (left, right) = (side(left)?, side(right)?);
            let hash = plan.downcast_ref::<HashJoinExec>().map(|join| *join.join_type());
            let kind = hash.or_else(|| Some(plan.downcast_ref::<SortMergeJoinExec>()?.join_type()));
            Some(match kind? {
                JoinType::Inner => (left.0.max(right.0), left.1 * right.1),
                JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => left,
                JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => right,
                JoinType::Left | JoinType::Right | JoinType::Full => {
                    ((left.0 * left.1).max(right.0 * right.1), 1.0)
                }
            })
        }
        _ => None,
    }
}

/// The same below which there is no join.
fn unjoined(plan: &Arc<dyn ExecutionPlan>, context: &StatisticsContext) -> Option<(f64, f64)> {
    match plan.children()[..] {
        [input] if !plan.is::<AggregateExec>() => {
            let (rows, share) = unjoined(input, context)?;
            Some((rows, share * selectivity(plan, rows, context)))
        }
        _ => Some((estimated_rows(plan.as_ref(), context)? as f64, 1.0)),
    }
}

/// The share of rows that a node keeps: of a filter whose columns' bounds are not known, DataFusion's default.
fn selectivity(plan: &Arc<dyn ExecutionPlan>, rows: f64, context: &StatisticsContext) -> f64 {
    let Some(filter) = plan.downcast_ref::<FilterExec>() else { return 1.0 };
    let kept = kept(filter, rows, context) / rows.max(1.0);
    if kept < 1.0 { kept } else { f64::from(filter.default_selectivity()) / 100.0 }
}

/// Rows that a filter is expected to keep of `rows`: what DataFusion says where it knows the bounds of the predicate's columns; else
/// all of them, since its guess then says nothing about the data.
pub(crate) fn kept(filter: &FilterExec, rows: f64, context: &StatisticsContext) -> f64 {
    let args = StatisticsArgs::new();
    let known = context.compute(filter.input().as_ref(), &args).is_ok_and(|statistics| {
        let bounded = |column: &Column| {
            let known = |value: &Precision<_>| !matches!(value, Precision::Absent);
            let statistics = statistics.column_statistics.get(column.index());
            statistics.is_some_and(|column| known(&column.min_value) && known(&column.max_value))
        };
        collect_columns(filter.predicate()).iter().all(bounded)
    });
    match context.compute(filter, &args).ok().map(|statistics| statistics.num_rows) {
        Some(Precision::Exact(kept) | Precision::Inexact(kept)) if known => rows.min(kept as f64),
        _ => rows,
    }
}

/// Groups that an aggregate is expected to find in `rows` rows: by the numbers of distinct values where they are known. Where they are
/// not, strings and Booleans are taken for the few values that they mostly are, and other keys for as many as there are rows.
pub(crate) fn groups(aggregate: &AggregateExec, rows: f64, context: &StatisticsContext) -> f64 {
    let input = aggregate.input();
    let schema = input.schema();
    let statistics = context.compute(input.as_ref(), &StatisticsArgs::new()).ok();
    let distinct = |key: &Arc<dyn PhysicalExpr>| {
        let column = key.downcast_ref::<Column>().map(Column::index);
        let known = column.zip(statistics.as_ref()).and_then(|(at, known)| known.column_statistics.get(at));
        match known.map(|column| column.distinct_count) {
            Some(Precision::Exact(values) | Precision::Inexact(values)) => values as f64,
            _ => match key.data_type(&schema) {
                Ok(DataType::Boolean) => 3.0,
                Ok(ty) if is_text(&ty) => FEW,
                _ => rows,
            },
        }
    };
    let keys = aggregate.group_expr().expr().iter().map(|(key, _)| distinct(key));
    rows.min(keys.product())
}

#[cfg(test)]
mod tests;
