//! first_value and last_value with ORDER BY: which row of a group comes first, or last. Values of any type are taken from that row.

use std::sync::Arc;

use datafusion::functions_aggregate::first_last::{FirstValue, LastValue};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{Column, Literal};

use crate::kernels::expr::{Expr, ValueType};
use crate::kernels::reduce::{AggregateKind, RowOrder};
use crate::optimizer::expr::{Declined, Lowered, Lowering};
use crate::optimizer::reason::{Reason, shorten};
use crate::physical_plan::aggregate::group::always;

use super::call::{Call, Spec};

/// Whether this is DataFusion's own first_value or last_value.
pub(super) fn is_first_or_last(aggregate: &AggregateFunctionExpr) -> bool {
    let function = aggregate.fun().inner();
    function.is::<FirstValue>() || function.is::<LastValue>()
}

impl Call<'_> {
    /// The first or last row by ORDER BY. Where the plan has one turned into the other, the order is turned too.
    pub(super) fn first(&self, lowering: &mut Lowering) -> Result<Spec, Declined> {
        let aggregate = self.aggregate;
        if aggregate.ignore_nulls() {
            return Err(self.unsupported(lowering, "IGNORE NULLS"));
        }
        let order = match aggregate.order_bys() {
            [order] => order,
            [] => return Err(lowering.decline(Reason::OrderSensitive { aggregate: shorten(&self.name) })),
            _ => return Err(self.unsupported(lowering, "an ORDER BY of more than one expression")),
        };
        let args = aggregate.expressions();
        let [value] = args.as_slice() else {
            return Err(self.unsupported(lowering, "it does not have one argument"));
        };
        let last: Option<&LastValue> = aggregate.fun().inner().downcast_ref();
        // Rows that are equal in the value itself have one value.
        let told = value == &order.expr;
        if let Some(why) = last.and_then(|last| self.takes_the_last_of_equals(last, told)) {
            return Err(self.unsupported(lowering, why));
        }
        // Both parts, so that every reason is found.
        let guard = self.guard(lowering, value);
        let key = self.order_key(lowering, &order.expr)?;
        let arg = match guard? {
            None => key,
            Some(value) => {
                let ty = key.value_type();
                Arc::new(Expr::Case { branches: vec![(always(&value), key)], otherwise: None, ty })
            }
        };
        let turned = last.is_some();
        let order = RowOrder {
            descending: order.options.descending != turned,
            nulls_first: order.options.nulls_first != turned,
        };
        Ok(Spec::of(AggregateKind::FirstRow(order), arg))
    }

    /// Why last_value would not take the row that the kernel finds: of equal ones the first. `told` if equal rows have one value.
    fn takes_the_last_of_equals(&self, last: &LastValue, told: bool) -> Option<&'static str> {
        if *last != LastValue::new() {
            return Some("it takes the last row of an input that is in order");
        }
        if !self.grouped {
            return (!told)
                .then_some("without GROUP BY, which of equal rows it takes depends on the batches");
        }
        let by_batches = !self.aggregate.groups_accumulator_supported();
        by_batches.then_some("for this type, which of equal rows it takes depends on the batches")
    }

    /// What is to be evaluated of the value's expression, because it may raise for rows that are not taken.
    fn guard(
        &self,
        lowering: &mut Lowering,
        value: &Arc<dyn PhysicalExpr>,
    ) -> Result<Option<Arc<Expr>>, Declined> {
        if value.is::<Column>() || value.is::<Literal>() {
            return Ok(None);
        }
        Ok(Some(lowering.lower(value)?).filter(|value| value.may_fault()))
    }

    /// What rows are ordered by; of strings, their ranks.
    fn order_key(&self, lowering: &mut Lowering, expr: &Arc<dyn PhysicalExpr>) -> Lowered {
        if let Some(ranks) = lowering.ordered_text(expr).and_then(|text| text.kernel) {
            return Ok(ranks);
        }
        let key = lowering.lower(expr)?;
        match key.value_type() {
            ValueType::Null => Err(self.unsupported(lowering, "an ORDER BY of nothing but NULL")),
            ty if ty.to_arrow().is_floating() => Err(self.unsupported(lowering, "an ORDER BY of floats")),
            _ => Ok(key),
        }
    }
}
