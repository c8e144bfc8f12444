//! What chooses among values of any type: CASE in both forms, NULLIF, GREATEST and LEAST. COALESCE, NVL and NVL2 are planned as CASE
//! by DataFusion.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::functions::core::greatest::GreatestFunc;
use datafusion::functions::core::least::LeastFunc;
use datafusion::functions::core::nullif::NullIfFunc;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CaseExpr};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::kernels::expr::{CompareOp, Expr, ExtremeFn, Function, ValueType};

use super::function::is;
use super::{Lowered, Lowering};

impl Lowering {
    /// DataFusion evaluates a condition for the rows that reach it and a value for the rows that take it, in all of its
    /// special forms, as [`Expr::Case`] does.
    pub(super) fn case(&mut self, expr: &Arc<dyn PhysicalExpr>, case: &CaseExpr) -> Lowered {
        let data_type = self.arrow_type(expr)?;
        let ty = self.device_type(expr, &data_type)?;
        // Everything is lowered, so that all reasons are found.
        // Strings are compared by look-ups, whose NULLs and equality are those of the special form.
        let text = case
            .expr()
            .filter(|base| base.data_type(&self.schema).is_ok_and(|ty| ValueType::from_arrow(&ty).is_none()));
        let base = case.expr().filter(|_| text.is_none()).map(|base| self.lower(base));
        let mut branches = vec![];
        for (when, then) in case.when_then_expr() {
            let condition = match (case.expr(), &base) {
                (Some(base), _) if text.is_some() => {
                    let equal = BinaryExpr::new(Arc::clone(base), Operator::Eq, Arc::clone(when));
                    let equal: Arc<dyn PhysicalExpr> = Arc::new(equal);
                    self.boolean(&equal)
                }
                (Some(base), Some(Ok(lowered))) => self.matches(expr, (base, lowered), when),
                (None, _) => self.boolean(when),
                _ => self.lower(when),
            };
            branches.push((condition, self.branch(expr, then, &data_type, ty)));
        }
        let otherwise = case.else_expr().map(|e| self.branch(expr, e, &data_type, ty)).transpose();
        let base = base.transpose()?;
        let branches = branches.into_iter().map(|(when, then)| Ok((when?, then?)));
        let mut branches = branches.collect::<Result<Vec<_>, _>>()?;
        let otherwise = otherwise?;
        if let Some(base) = base
            && branches.iter().any(|(when, _)| when.may_fault())
        {
            // Rows without a base value go straight to ELSE and evaluate no candidate.
            let value = otherwise.clone().unwrap_or_else(|| self.null(&data_type, ty));
            branches.insert(0, (Arc::new(Expr::IsNull(base)), value));
        }
        Ok(Arc::new(Expr::Case { branches, otherwise, ty }))
    }

    /// Whether the base value equals a candidate. Arrow's equality, unlike the operator `=`, tells -0 from +0.
    fn matches(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        (base, lowered): (&Arc<dyn PhysicalExpr>, &Arc<Expr>),
        candidate: &Arc<dyn PhysicalExpr>,
    ) -> Lowered {
        let base_type = self.arrow_type(base)?;
        let candidate = self.branch(expr, candidate, &base_type, lowered.value_type())?;
        Ok(same_bits(Arc::clone(lowered), candidate))
    }

    /// An operand that must be of a type, or an untyped NULL.
    pub(super) fn branch(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        operand: &Arc<dyn PhysicalExpr>,
        data_type: &DataType,
        ty: ValueType,
    ) -> Lowered {
        let found = self.arrow_type(operand)?;
        if found == DataType::Null {
            return Ok(self.null(data_type, ty));
        }
        if found != *data_type {
            return Err(self.unsupported(expr, &format!("{operand} is of type {found}, not {data_type}")));
        }
        self.lower(operand)
    }

    /// NULLIF, GREATEST and LEAST; `None` for other functions.
    pub(super) fn choice_function(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
    ) -> Option<Lowered> {
        if is::<GreatestFunc>(function) {
            Some(self.extreme(expr, function, ExtremeFn::Greatest))
        } else if is::<LeastFunc>(function) {
            Some(self.extreme(expr, function, ExtremeFn::Least))
        } else if is::<NullIfFunc>(function) {
            Some(self.null_if(expr, function))
        } else {
            None
        }
    }

    fn extreme(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        function: &ScalarFunctionExpr,
        which: ExtremeFn,
    ) -> Lowered {
        let data_type = self.arrow_type(expr)?;
        let ty = self.device_type(expr, &data_type)?;
        if ty == ValueType::Null {
            return Ok(self.null(&data_type, ty));
        }
        let args: Vec<Lowered> =
            function.args().iter().map(|arg| self.branch(expr, arg, &data_type, ty)).collect();
        let mut args = args.into_iter().collect::<Result<Vec<_>, _>>()?;
        match args.len() {
            1 => args.pop().ok_or(super::Declined),
            _ => self.call(expr, Function::Extreme(which), args, ty),
        }
    }

    /// NULLIF compares with Arrow's equality, as the form of CASE with an operand does. It evaluates both sides for all
    /// rows, and so does the condition here.
    fn null_if(&mut self, expr: &Arc<dyn PhysicalExpr>, function: &ScalarFunctionExpr) -> Lowered {
        let data_type = self.arrow_type(expr)?;
        let ty = self.device_type(expr, &data_type)?;
        let [left, right] = function.args() else {
            return Err(self.unsupported(expr, "NULLIF takes two operands"));
        };
        let (left, right) =
            (self.branch(expr, left, &data_type, ty), self.branch(expr, right, &data_type, ty));
        let (left, right) = (left?, right?);
        let null = self.null(&data_type, ty);
        let branches = vec![(same_bits(Arc::clone(&left), right), null)];
        Ok(Arc::new(Expr::Case { branches, otherwise: Some(left), ty }))
    }

    pub(super) fn null(&mut self, data_type: &DataType, ty: ValueType) -> Arc<Expr> {
        self.literal(ScalarValue::try_from(data_type).unwrap_or(ScalarValue::Null), ty)
    }
}

/// Equality of two values of one type as Arrow has it: floats by their bits. NULL where either is.
pub(super) fn same_bits(left: Arc<Expr>, right: Arc<Expr>) -> Arc<Expr> {
    let float = matches!(left.value_type(), ValueType::Float16 | ValueType::Float32 | ValueType::Float64);
    Arc::new(if float {
        Expr::InList { expr: left, list: vec![right], negated: false }
    } else {
        Expr::Compare { op: CompareOp::Eq, left, right }
    })
}
