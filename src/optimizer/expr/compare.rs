//! Comparisons, IS [NOT] DISTINCT FROM and IN.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, InListExpr, Literal};

use crate::kernels::expr::{CompareOp, Expr, ValueType};

use super::{Declined, Lowered, Lowering};

/// Candidates of an IN list; when all are constants, a kernel searches them.
const MAX_IN_LIST: usize = 65_536;
/// Candidates of an IN list that are compared one after another in a kernel.
const MAX_COMPARED: usize = 256;
/// Constants up to which comparing them one after another is as good as a search.
const FEW: usize = 16;

impl Lowering {
    pub(super) fn comparison(&mut self, expr: &Arc<dyn PhysicalExpr>, binary: &BinaryExpr) -> Lowered {
        let compare = match binary.op() {
            Operator::Eq => Some(CompareOp::Eq),
            Operator::NotEq => Some(CompareOp::NotEq),
            Operator::Lt => Some(CompareOp::Lt),
            Operator::LtEq => Some(CompareOp::LtEq),
            Operator::Gt => Some(CompareOp::Gt),
            Operator::GtEq => Some(CompareOp::GtEq),
            Operator::IsDistinctFrom | Operator::IsNotDistinctFrom => None,
            op => return Err(self.unsupported(expr, &format!("the operator {op} has no GPU counterpart"))),
        };
        if let Some(op) = compare
            && let Some(folded) = self.single_against_double(op, binary)
        {
            return folded;
        }
        let (left, right) = self.sides(binary)?;
        if left.value_type() != right.value_type() {
            let why = format!("the sides have the types {} and {}", left.value_type(), right.value_type());
            return Err(self.unsupported(expr, &why));
        }
        Ok(Arc::new(match compare {
            Some(op) => Expr::Compare { op, left, right },
            None => Expr::Distinct { negated: *binary.op() == Operator::IsNotDistinctFrom, left, right },
        }))
    }

    pub(super) fn in_list(&mut self, expr: &Arc<dyn PhysicalExpr>, in_list: &InListExpr) -> Lowered {
        if in_list.list().len() > MAX_IN_LIST {
            return Err(self.too_large(in_list.expr(), format!("{MAX_IN_LIST} candidates in IN")));
        }
        if in_list.list().is_empty() {
            return Err(self.unsupported(expr, "the list is empty"));
        }
        let tested = self.lower(in_list.expr())?;
        let ty = tested.value_type();
        let all = in_list.list();
        if all.len() > FEW
            && ty != ValueType::Null
            && all.iter().all(|candidate| super::constant::is_constant(candidate, &self.schema))
        {
            return self.searched(expr, in_list, tested);
        }
        if all.len() > MAX_COMPARED {
            return Err(self.too_large(
                in_list.expr(),
                format!("{MAX_COMPARED} candidates in IN that are not all constants"),
            ));
        }
        let mut list = Vec::with_capacity(in_list.list().len());
        for candidate in in_list.list() {
            list.push(self.candidate(expr, candidate, in_list.expr(), ty)?);
        }
        Ok(Arc::new(Expr::InList { expr: tested, list, negated: in_list.negated() }))
    }

    fn searched(&mut self, expr: &Arc<dyn PhysicalExpr>, in_list: &InListExpr, tested: Arc<Expr>) -> Lowered {
        let data_type = self.arrow_type(in_list.expr())?;
        let mut list = Vec::with_capacity(in_list.list().len());
        for candidate in in_list.list() {
            let found = self.arrow_type(candidate)?;
            let null = ScalarValue::try_from(&data_type).ok().filter(|_| found == DataType::Null);
            list.push(match null {
                Some(null) => Arc::new(Literal::new(null)) as Arc<dyn PhysicalExpr>,
                None if found == data_type => Arc::clone(candidate),
                None => {
                    return Err(self.unsupported(
                        expr,
                        &format!("the candidate {candidate} is not of type {data_type}"),
                    ));
                }
            });
        }
        let ty = tested.value_type();
        Ok(self.params.push_list(tested, list, ty, in_list.negated()))
    }

    fn candidate(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        candidate: &Arc<dyn PhysicalExpr>,
        tested: &Arc<dyn PhysicalExpr>,
        ty: ValueType,
    ) -> Lowered {
        let data_type = self.arrow_type(candidate)?;
        if data_type == DataType::Null {
            let tested = self.arrow_type(tested)?;
            let null = ScalarValue::try_from(&tested);
            return match null {
                Ok(null) => Ok(self.literal(null, ty)),
                Err(_) => Err(self.unsupported(expr, "an untyped NULL")),
            };
        }
        let lowered = self.lower(candidate)?;
        if lowered.value_type() != ty {
            return Err(self.unsupported(expr, &format!("the candidate {candidate} is not of type {ty}")));
        }
        Ok(lowered)
    }

    /// `CAST(single AS DOUBLE) < literal`, which is how DataFusion compares a FLOAT column with a literal, as a
    /// comparison of singles with the equivalent bound. `None` when the comparison has another form.
    fn single_against_double(&mut self, op: CompareOp, binary: &BinaryExpr) -> Option<Lowered> {
        let (single, bound, op) = match (self.single(binary.left()), double(binary.right())) {
            (Some(single), Some(bound)) => (single, bound, op),
            _ => (self.single(binary.right())?, double(binary.left())?, mirrored(op)),
        };
        let (op, bound) = match single_bound(op, bound) {
            Some(comparison) => comparison,
            None => return Some(self.never_or_always_equal(op, &single)),
        };
        Some(self.compare_single(op, &single, bound))
    }

    fn compare_single(&mut self, op: CompareOp, single: &Arc<dyn PhysicalExpr>, bound: f32) -> Lowered {
        let left = self.lower(single)?;
        let right = self.literal(ScalarValue::Float32(Some(bound)), ValueType::Float32);
        Ok(Arc::new(Expr::Compare { op, left, right }))
    }

    /// `=` or `<>` with a double that no single equals: false or true, but NULL where the single is NULL.
    fn never_or_always_equal(&mut self, op: CompareOp, single: &Arc<dyn PhysicalExpr>) -> Lowered {
        let value = self.lower(single)?;
        let op = if op == CompareOp::Eq { CompareOp::NotEq } else { CompareOp::Eq };
        Ok(Arc::new(Expr::Compare { op, left: Arc::clone(&value), right: value }))
    }

    /// The FLOAT operand of a cast to DOUBLE.
    fn single(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<Arc<dyn PhysicalExpr>> {
        let cast = expr.downcast_ref::<CastExpr>()?;
        let from: Result<DataType, Declined> = cast.expr().data_type(&self.schema).map_err(|_| Declined);
        (*cast.cast_type() == DataType::Float64 && from == Ok(DataType::Float32))
            .then(|| Arc::clone(cast.expr()))
    }
}

/// The value of a DOUBLE literal that is not NaN, whose bits a cast from FLOAT would change.
fn double(expr: &Arc<dyn PhysicalExpr>) -> Option<f64> {
    match expr.downcast_ref::<Literal>()?.value() {
        ScalarValue::Float64(Some(value)) if !value.is_nan() => Some(*value),
        _ => None,
    }
}

/// The operator for swapped sides.
fn mirrored(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Lt => CompareOp::Gt,
        CompareOp::LtEq => CompareOp::GtEq,
        CompareOp::Gt => CompareOp::Lt,
        CompareOp::GtEq => CompareOp::LtEq,
        CompareOp::Eq | CompareOp::NotEq => op,
    }
}

/// The comparison of singles that is equivalent to `f64::from(x) op bound`; `None` for `=` and `<>` with a double
/// between two singles.
pub(super) fn single_bound(op: CompareOp, bound: f64) -> Option<(CompareOp, f32)> {
    #[expect(clippy::cast_possible_truncation, reason = "the rounded neighbour is what is wanted")]
    let near = bound as f32;
    if f64::from(near) == bound {
        return Some((op, near));
    }
    // The largest single below the bound and the smallest above it; infinities count as singles.
    let (below, above) =
        if f64::from(near) < bound { (near, near.next_up()) } else { (near.next_down(), near) };
    match op {
        CompareOp::Lt | CompareOp::LtEq => Some((CompareOp::LtEq, below)),
        CompareOp::Gt | CompareOp::GtEq => Some((CompareOp::GtEq, above)),
        CompareOp::Eq | CompareOp::NotEq => None,
    }
}
