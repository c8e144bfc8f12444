//! Calls of aggregate functions.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::bit_and_or_xor::{bit_and_udaf, bit_or_udaf, bit_xor_udaf};
use datafusion::functions_aggregate::bool_and_or::{BoolAnd, BoolOr};
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{CastExpr, Column, Literal};

use crate::config::FloatSum;
use crate::kernels::expr::{Expr, ValueType};
use crate::kernels::reduce::{AggregateKind, AggregateSpec};
use crate::optimizer::expr::{Declined, Lowering};
use crate::optimizer::reason::{Reason, shorten};
use crate::optimizer::types::{is_decimal, is_integer};
use crate::physical_plan::aggregate::group::Text;

use super::first::is_first_or_last;

/// A lowered aggregate, and where the strings are of which kernels see ranks.
pub(super) struct Spec(pub AggregateSpec, pub Option<Text>);

impl Spec {
    pub(super) fn of(kind: AggregateKind, arg: Arc<Expr>) -> Self {
        Spec(AggregateSpec { kind, arg: Some(arg), filter: None }, None)
    }

    fn rows(filter: Option<Arc<Expr>>) -> Self {
        Spec(AggregateSpec { kind: AggregateKind::CountRows, arg: None, filter }, None)
    }

    /// Adds a FILTER clause to the condition that is there.
    pub(super) fn filtered_by(mut self, filter: Option<Arc<Expr>>) -> Self {
        self.0.filter = match (self.0.filter.take(), filter) {
            (Some(own), Some(filter)) => Some(Arc::new(Expr::And(filter, own))),
            (own, filter) => own.or(filter),
        };
        self
    }
}

/// One aggregate function call.
pub(super) struct Call<'a> {
    pub aggregate: &'a AggregateFunctionExpr,
    pub name: &'a str,
    pub schema: &'a SchemaRef,
    pub float_sum: FloatSum,
    /// Whether there is a GROUP BY.
    pub grouped: bool,
}

impl Call<'_> {
    /// The aggregate for a kernel.
    pub(super) fn lower(&self, lowering: &mut Lowering) -> Result<Spec, Declined> {
        let aggregate = self.aggregate;
        if aggregate.is_distinct() {
            return Err(lowering.decline(Reason::Distinct { aggregate: shorten(&self.name) }));
        }
        if is_first_or_last(aggregate) {
            return self.first(lowering);
        }
        if !aggregate.order_bys().is_empty() || aggregate.is_reversed() {
            return Err(lowering.decline(Reason::OrderSensitive { aggregate: shorten(&self.name) }));
        }
        if aggregate.ignore_nulls() {
            return Err(self.unsupported(lowering, "IGNORE NULLS"));
        }
        // By the implementation's type, not by name: a user's own `sum` is another function.
        let function = aggregate.fun().inner();
        let args = aggregate.expressions();
        if function.is::<Count>() {
            return self.count(lowering, &args);
        }
        let unknown = format!("the aggregate function {} has no GPU counterpart", aggregate.fun().name());
        let [arg] = args.as_slice() else {
            return Err(self.unsupported(lowering, &unknown));
        };
        if function.is::<Sum>() {
            self.sum(lowering, arg)
        } else if function.is::<Avg>() {
            self.avg(lowering, arg)
        } else if function.is::<Min>() {
            self.extreme(lowering, AggregateKind::Min, arg)
        } else if function.is::<Max>() {
            self.extreme(lowering, AggregateKind::Max, arg)
        } else if function.is::<BoolAnd>() {
            Ok(Spec::of(AggregateKind::BitAnd, lowering.boolean(arg)?))
        } else if function.is::<BoolOr>() {
            Ok(Spec::of(AggregateKind::BitOr, lowering.boolean(arg)?))
        } else if let Some(kind) = bitwise(aggregate) {
            Ok(Spec::of(kind, self.same_type(lowering, arg)?))
        } else {
            Err(self.unsupported(lowering, &unknown))
        }
    }

    /// Rows in which no argument is NULL.
    fn count(&self, lowering: &mut Lowering, args: &[Arc<dyn PhysicalExpr>]) -> Result<Spec, Declined> {
        let nullable: Vec<_> = args.iter().filter(|arg| !self.never_null(arg)).collect();
        match nullable.as_slice() {
            [] => Ok(Spec::rows(None)),
            [arg] => Ok(Spec::of(AggregateKind::Count, lowering.presence(arg)?)),
            args => {
                let present: Vec<_> = args.iter().map(|arg| lowering.presence(arg)).collect();
                let present = present.into_iter().collect::<Result<Vec<_>, _>>()?;
                let all = present
                    .into_iter()
                    .map(|arg| Arc::new(Expr::IsNotNull(arg)))
                    .reduce(|all, next| Arc::new(Expr::And(all, next)));
                Ok(Spec::rows(all))
            }
        }
    }

    /// True for arguments without NULLs that need no look at any row, and whose evaluation cannot raise.
    fn never_null(&self, arg: &Arc<dyn PhysicalExpr>) -> bool {
        match arg.downcast_ref::<Literal>() {
            Some(literal) => !literal.value().is_null(),
            None => arg.is::<Column>() && arg.nullable(self.schema).is_ok_and(|nullable| !nullable),
        }
    }

    fn sum(&self, lowering: &mut Lowering, arg: &Arc<dyn PhysicalExpr>) -> Result<Spec, Declined> {
        if self.is_double(arg) {
            return self.float(lowering, arg);
        }
        let arg = lowering.lower(arg)?;
        let result = self.aggregate.field().data_type().clone();
        match (arg.value_type(), result) {
            (ValueType::Int64, DataType::Int64)
            | (ValueType::UInt64, DataType::UInt64)
            | (ValueType::Duration(_), DataType::Duration(_)) => Ok(Spec::of(AggregateKind::SumInt, arg)),
            (ValueType::Decimal32 { .. }, DataType::Decimal32(..))
            | (ValueType::Decimal64 { .. }, DataType::Decimal64(..))
            | (ValueType::Decimal { .. }, DataType::Decimal128(..)) => {
                Ok(Spec::of(AggregateKind::SumDecimal, arg))
            }
            (ty, result) => Err(self.unsupported(lowering, &format!("a sum of {ty} as {result}"))),
        }
    }

    fn avg(&self, lowering: &mut Lowering, arg: &Arc<dyn PhysicalExpr>) -> Result<Spec, Declined> {
        if let Some(integer) = self.as_double(arg, DataType::is_integer) {
            self.check_float_sum(lowering)?;
            let arg = lowering.lower(&integer)?;
            if is_integer(arg.value_type()) {
                return Ok(Spec::of(AggregateKind::SumAsFloat64, arg));
            }
            return Err(self.unsupported(lowering, "an average that is not over integers"));
        }
        if self.is_double(arg) {
            return self.float(lowering, arg);
        }
        let arg = lowering.lower(arg)?;
        // From 26 digits on DataFusion sums in 256 bits, which do not wrap where ours do.
        let state = self.aggregate.state_fields().ok().and_then(|fields| fields.get(1).cloned());
        let sum_fits = state.is_some_and(|field| {
            matches!(field.data_type(), DataType::Decimal64(..) | DataType::Decimal128(..))
        });
        match arg.value_type() {
            ty if is_decimal(ty) && sum_fits => Ok(Spec::of(AggregateKind::SumDecimal, arg)),
            ty if is_decimal(ty) => {
                Err(self.unsupported(lowering, &format!("an average of {ty} is summed in 256 bits")))
            }
            ty => Err(self.unsupported(lowering, &format!("an average of {ty}"))),
        }
    }

    /// The exact sum of a Float64: the numerator of an average too.
    fn float(&self, lowering: &mut Lowering, arg: &Arc<dyn PhysicalExpr>) -> Result<Spec, Declined> {
        self.check_float_sum(lowering)?;
        // Singles are summed as doubles, which loses nothing.
        let single = self.as_double(arg, |ty| *ty == DataType::Float32);
        let arg = lowering.lower(single.as_ref().unwrap_or(arg))?;
        match (arg.value_type(), self.aggregate.field().data_type()) {
            (ValueType::Float32 | ValueType::Float64, DataType::Float64) => {
                Ok(Spec::of(AggregateKind::SumFloat, arg))
            }
            (ty, result) => Err(self.unsupported(lowering, &format!("a sum of {ty:?} as {result}"))),
        }
    }

    fn check_float_sum(&self, lowering: &mut Lowering) -> Result<(), Declined> {
        match self.float_sum {
            FloatSum::Exact => Ok(()),
            FloatSum::Cpu => Err(lowering.decline(Reason::FloatSumOnCpu { aggregate: shorten(&self.name) })),
        }
    }

    fn is_double(&self, arg: &Arc<dyn PhysicalExpr>) -> bool {
        arg.data_type(self.schema).is_ok_and(|ty| ty == DataType::Float64)
    }

    /// The argument of `CAST(x AS DOUBLE)`, which is how DataFusion plans averages of integers, and sums of singles.
    fn as_double(
        &self,
        arg: &Arc<dyn PhysicalExpr>,
        from: impl Fn(&DataType) -> bool,
    ) -> Option<Arc<dyn PhysicalExpr>> {
        let cast = arg.downcast_ref::<CastExpr>()?;
        let is_from = from(&cast.expr().data_type(self.schema).ok()?);
        (*cast.cast_type() == DataType::Float64 && is_from).then(|| Arc::clone(cast.expr()))
    }

    /// MIN or MAX; those of strings are found by their ranks.
    pub(super) fn extreme(
        &self,
        lowering: &mut Lowering,
        kind: AggregateKind,
        arg: &Arc<dyn PhysicalExpr>,
    ) -> Result<Spec, Declined> {
        let same = arg.data_type(self.schema).is_ok_and(|ty| ty == *self.aggregate.field().data_type());
        if same
            && let Some(text) = lowering.ordered_text(arg)
            && let Some(ranks) = text.kernel.clone()
        {
            return Ok(Spec(AggregateSpec { kind, arg: Some(ranks), filter: None }, Some(text)));
        }
        Ok(Spec::of(kind, self.same_type(lowering, arg)?))
    }

    /// The argument of MIN and MAX, whose result has the argument's type.
    pub(super) fn same_type(
        &self,
        lowering: &mut Lowering,
        arg: &Arc<dyn PhysicalExpr>,
    ) -> Result<Arc<Expr>, Declined> {
        let lowered = lowering.lower(arg)?;
        if lowered.value_type() == ValueType::Null {
            return Err(self.unsupported(lowering, "nothing but NULL"));
        }
        if arg.data_type(self.schema).is_ok_and(|ty| ty == *self.aggregate.field().data_type()) {
            Ok(lowered)
        } else {
            Err(self.unsupported(lowering, "its result has another type than its argument"))
        }
    }

    pub(super) fn unsupported(&self, lowering: &mut Lowering, why: &str) -> Declined {
        lowering.decline(Reason::unsupported_aggregate(&self.name, why))
    }
}

/// The kind of DataFusion's own functions over bits, whose type is private.
pub(super) fn bitwise(aggregate: &AggregateFunctionExpr) -> Option<AggregateKind> {
    let function = aggregate.fun();
    if *function == *bit_and_udaf() {
        Some(AggregateKind::BitAnd)
    } else if *function == *bit_or_udaf() {
        Some(AggregateKind::BitOr)
    } else if *function == *bit_xor_udaf() {
        Some(AggregateKind::BitXor)
    } else {
        None
    }
}
