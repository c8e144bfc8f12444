//! Scalar functions, by family. A function is known by its implementation and never by its name: a user may have
//! registered another one under the same name.

use std::sync::Arc;

use datafusion::functions::datetime::date_trunc::DateTruncFunc;
use datafusion::functions::math::trunc::TruncFunc;
use datafusion::logical_expr::ScalarUDFImpl;
use datafusion::physical_expr::expressions::NegativeExpr;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::kernels::expr::{Expr, Function, ValueType};

use super::{Lowered, Lowering, temporal};

/// A family's function: `None` when the function, or these types of it, belong to another one.
type Family = fn(&mut Lowering, &Arc<dyn PhysicalExpr>, &ScalarFunctionExpr) -> Option<Lowered>;

/// Asked in turn.
const FAMILIES: &[Family] = &[
    Lowering::choice_function,
    Lowering::integer_function,
    Lowering::float_function,
    temporal::function,
    Lowering::decimal_function,
];

impl Lowering {
    pub(super) fn function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
    ) -> Lowered {
        for family in FAMILIES {
            if let Some(lowered) = family(self, expr, function) {
                return lowered;
            }
        }
        let mut types = vec![];
        for arg in function.args() {
            types.push(self.arrow_type(arg)?.to_string());
        }
        let why = format!("{}({}) has no GPU counterpart", function.name(), types.join(", "));
        Err(self.unsupported(expr, &why))
    }

    /// A call of a function, if the kernels have it for these types.
    pub(super) fn call(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: Function,
        args: Vec<Arc<Expr>>,
        ty: ValueType,
    ) -> Lowered {
        let types: Vec<ValueType> = args.iter().map(|arg| arg.value_type()).collect();
        match function.check(&types, ty) {
            Ok(()) => Ok(Arc::new(Expr::Call { function, args, ty })),
            Err(why) => Err(self.unsupported(expr, &why)),
        }
    }
}

/// Whether DataFusion computes the expression otherwise where it has its operand as one value for all rows, which CASE may give.
pub(super) fn tells_scalars_apart(expr: &Arc<dyn PhysicalExpr>) -> bool {
    // It negates arrays wrapping and scalars checked, and makes +0 of -0 in arrays only; dates are truncated in other units.
    let function = |function: &ScalarFunctionExpr| is::<TruncFunc>(function) || is::<DateTruncFunc>(function);
    expr.is::<NegativeExpr>() || expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(function)
}

/// Whether the function is DataFusion's own of this type.
pub(super) fn is<T: ScalarUDFImpl>(function: &ScalarFunctionExpr) -> bool {
    function.fun().inner().is::<T>()
}
