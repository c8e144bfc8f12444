//! Keeping the dynamic filter of an ungrouped MIN/MAX fed, so that scans go on pruning.

use std::cmp::Ordering;
use std::sync::Arc;

use datafusion::common::{Result, ScalarValue};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, DynamicFilterPhysicalExpr, lit};
use parking_lot::Mutex;

use crate::kernels::reduce::{AggregateKind, AggregateSpec, AggregateState};

use super::super::scalar::from_scalar;
use super::value_type;

/// The bounds that MIN and MAX over plain columns put on rows still worth reading.
///
/// A row can change `min(a)` only if `a` is below the minimum so far; rows that can change no aggregate are not needed.
pub(super) struct DynamicBounds {
    filter: Arc<dyn PhysicalExpr>,
    bounds: Vec<Bound>,
    last: Mutex<Vec<ScalarValue>>,
}

struct Bound {
    aggregate: usize,
    column: Arc<dyn PhysicalExpr>,
    op: Operator,
    spec: AggregateSpec,
}

impl DynamicBounds {
    /// The bounds for `filter`, or `None` when there is nothing to feed: no filter, switched off, an aggregate that needs
    /// every row, or one over floats. MIN and MAX order -0 below +0 and see NaN, while the filter's comparison takes the
    /// zeros for equal and statistics of files leave NaN out: a filter on floats would lose rows that change the answer.
    pub(super) fn new(
        filter: Option<&Arc<dyn PhysicalExpr>>,
        aggregates: &[AggregateSpec],
        functions: &[Arc<AggregateFunctionExpr>],
        task: &TaskContext,
    ) -> Option<Self> {
        let filter = filter?;
        if !task.session_config().options().optimizer.enable_aggregate_dynamic_filter_pushdown {
            return None;
        }
        let bounds = aggregates
            .iter()
            .zip(functions)
            .enumerate()
            .map(|(aggregate, (spec, function))| {
                let op = match spec.kind {
                    AggregateKind::Min => Operator::Lt,
                    AggregateKind::Max => Operator::Gt,
                    _ => return None,
                };
                if value_type(spec).to_arrow().is_floating() {
                    return None;
                }
                let column = function.expressions().into_iter().next()?;
                column.is::<Column>().then(|| Bound { aggregate, column, op, spec: spec.clone() })
            })
            .collect::<Option<Vec<_>>>()?;
        let last = Mutex::new(vec![ScalarValue::Null; bounds.len()]);
        Some(Self { filter: Arc::clone(filter), bounds, last })
    }

    /// Updates the filter when a bound got tighter.
    ///
    /// # Errors
    /// Those of the filter's update.
    pub(super) fn publish(&self, states: &[AggregateState]) -> Result<()> {
        let now = self.bounds.iter().map(|bound| {
            let state = states.get(bound.aggregate).filter(|state| state.count > 0);
            from_scalar(state.map(|state| state.value), value_type(&bound.spec))
        });
        self.tighten(&mut self.last.lock(), now.collect())
    }

    /// The same from `values`, one an aggregate of some of the rows; NULL where there was none.
    ///
    /// # Errors
    /// Those of the filter's update.
    pub(super) fn publish_some(&self, values: &[ScalarValue]) -> Result<()> {
        let mut last = self.last.lock();
        let now = self.bounds.iter().zip(&*last).map(|(bound, before)| {
            let Some(value) = values.get(bound.aggregate).filter(|value| !value.is_null()) else {
                return before.clone();
            };
            let better = match value.partial_cmp(before) {
                _ if before.is_null() => true,
                Some(Ordering::Less) => bound.op == Operator::Lt,
                Some(Ordering::Greater) => bound.op == Operator::Gt,
                _ => false,
            };
            if better { value.clone() } else { before.clone() }
        });
        let now = now.collect();
        self.tighten(&mut last, now)
    }

    fn tighten(&self, last: &mut Vec<ScalarValue>, now: Vec<ScalarValue>) -> Result<()> {
        let Some(filter) = self.filter.downcast_ref::<DynamicFilterPhysicalExpr>() else {
            return Ok(());
        };
        let same = *last == now;
        last.clone_from(&now);
        // Until every aggregate has a value, any row may still matter to the one that has none.
        if same || now.iter().any(ScalarValue::is_null) {
            return Ok(());
        }
        let predicate = self
            .bounds
            .iter()
            .zip(now)
            .map(|(bound, value)| -> Arc<dyn PhysicalExpr> {
                Arc::new(BinaryExpr::new(Arc::clone(&bound.column), bound.op, lit(value)))
            })
            .reduce(|all, next| Arc::new(BinaryExpr::new(all, Operator::Or, next)));
        match predicate {
            Some(predicate) => filter.update(predicate),
            None => Ok(()),
        }
    }
}
