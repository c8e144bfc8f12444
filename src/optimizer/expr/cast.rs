//! Casts, by family.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::PhysicalExpr;

use crate::kernels::expr::{Expr, ValueType};
use crate::optimizer::types::holds_all_values;

use super::{Lowered, Lowering, temporal};

/// A cast whose operand lives on the device.
pub(super) struct Conversion<'a> {
    /// The cast as DataFusion has it.
    pub expr: &'a Arc<dyn PhysicalExpr>,
    /// The lowered operand.
    pub operand: Arc<Expr>,
    /// Device type of the operand.
    pub from: ValueType,
    /// Device type of the result.
    pub to: ValueType,
    /// NULL where others raise: TRY_CAST.
    pub safe: bool,
}

/// A family's casts: `None` when they belong to another one.
type Family = fn(&mut Lowering, &Conversion<'_>) -> Option<Lowered>;

/// Asked in turn, after the casts of integers that keep every value.
const FAMILIES: &[Family] =
    &[Lowering::integer_cast, Lowering::float_cast, temporal::cast, Lowering::decimal_cast];

impl Lowering {
    /// A cast of `operand` to `to`. `safe` casts give NULL where others raise.
    pub(super) fn cast(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        operand: &Arc<dyn PhysicalExpr>,
        to_type: &DataType,
        safe: bool,
    ) -> Lowered {
        let from_type = self.arrow_type(operand)?;
        if from_type == *to_type {
            return self.lower(operand);
        }
        // The reason of an operand that cannot live on the device says more than that of the cast.
        let operand = self.lower(operand)?;
        let to = self.device_type(expr, to_type)?;
        let from = operand.value_type();
        if from == ValueType::Null {
            let null = ScalarValue::try_from(to_type);
            return null
                .map(|null| self.literal(null, to))
                .map_err(|_| self.unsupported(expr, "an untyped NULL"));
        }
        self.convert(&Conversion { expr, operand, from, to, safe })
    }

    pub(super) fn convert(&mut self, conversion: &Conversion<'_>) -> Lowered {
        let &Conversion { from, to, .. } = conversion;
        if holds_all_values(from, to) {
            return Ok(Arc::new(Expr::Cast { expr: Arc::clone(&conversion.operand), to }));
        }
        for family in FAMILIES {
            if let Some(lowered) = family(self, conversion) {
                return lowered;
            }
        }
        let why = format!("the cast of {from} to {to} has no GPU counterpart");
        Err(self.unsupported(conversion.expr, &why))
    }
}
