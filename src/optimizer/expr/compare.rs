//! Comparisons, IS [NOT] DISTINCT FROM and IN.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::datatypes::{ArrowPrimitiveType, DataType, Float16Type};
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
            && let Some(folded) = self.narrow_against_literal(op, binary)
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

    /// `CAST(narrow AS DOUBLE) < literal`, which is how DataFusion compares a FLOAT column with a literal, as a comparison of
    /// narrow floats with the equivalent bound. `None` when the comparison has another form.
    fn narrow_against_literal(&mut self, op: CompareOp, binary: &BinaryExpr) -> Option<Lowered> {
        let sides = |narrow, literal| {
            let (operand, ty, to) = self.narrow(narrow)?;
            Some((operand, ty, number(literal, &to)?))
        };
        let (operand, ty, bound, op) = match sides(binary.left(), binary.right()) {
            Some((operand, ty, bound)) => (operand, ty, bound, op),
            None => {
                let (operand, ty, bound) = sides(binary.right(), binary.left())?;
                (operand, ty, bound, mirrored(op))
            }
        };
        Some(self.compare_narrow(op, &operand, ty, bound))
    }

    /// The operator alone decides about the expression's form, so that other literals find the same kernel.
    fn compare_narrow(
        &mut self,
        op: CompareOp,
        operand: &Arc<dyn PhysicalExpr>,
        ty: Narrow,
        bound: f64,
    ) -> Lowered {
        let left = self.lower(operand)?;
        let mut side = |(op, rank)| {
            let (bound, bound_type) = ty.literal(rank);
            let right = self.literal(bound, bound_type);
            Arc::new(Expr::Compare { op, left: Arc::clone(&left), right })
        };
        let sides = narrow_bounds(op, ty, bound).map(|bound| bound.map(&mut side));
        Ok(match sides {
            [Some(least), Some(most)] if op == CompareOp::NotEq => {
                Arc::new(Expr::Not(Arc::new(Expr::And(least, most))))
            }
            [Some(least), Some(most)] => Arc::new(Expr::And(least, most)),
            [Some(side), None] | [None, Some(side)] => side,
            [None, None] => return Err(Declined),
        })
    }

    /// The operand of a cast that widens floats, and the types before and after.
    fn narrow(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<(Arc<dyn PhysicalExpr>, Narrow, DataType)> {
        let cast = expr.downcast_ref::<CastExpr>()?;
        let ty = match (cast.expr().data_type(&self.schema).ok()?, cast.cast_type()) {
            (DataType::Float16, DataType::Float32 | DataType::Float64) => Narrow::Half,
            (DataType::Float32, DataType::Float64) => Narrow::Single,
            _ => return None,
        };
        Some((Arc::clone(cast.expr()), ty, cast.cast_type().clone()))
    }
}

/// The value of a literal of the float type `ty` that is not NaN, whose bits a cast would change.
fn number(expr: &Arc<dyn PhysicalExpr>, ty: &DataType) -> Option<f64> {
    let value = match (expr.downcast_ref::<Literal>()?.value(), ty) {
        (ScalarValue::Float64(Some(value)), DataType::Float64) => *value,
        (ScalarValue::Float32(Some(value)), DataType::Float32) => f64::from(*value),
        _ => return None,
    };
    (!value.is_nan()).then_some(value)
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

/// Floats of fewer bits than a double, by their ranks in the order in which DataFusion compares: -0 and +0 have one, and NaNs are the
/// ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Narrow {
    Half,
    Single,
}

type Half = <Float16Type as ArrowPrimitiveType>::Native;

impl Narrow {
    /// The rank of a number next to `number`, or of the number itself.
    fn near(self, number: f64) -> i32 {
        let (bits, top) = match self {
            Narrow::Half => (u32::from(Half::from_f64(number).to_bits()), 1 << 15),
            #[expect(clippy::cast_possible_truncation, reason = "the rounded neighbour is what is wanted")]
            Narrow::Single => ((number as f32).to_bits(), 1 << 31),
        };
        let magnitude = (bits & (top - 1)).cast_signed();
        if bits & top == 0 { magnitude } else { -magnitude }
    }

    fn bits(self, rank: i32) -> u32 {
        let top = match self {
            Narrow::Half => 1 << 15,
            Narrow::Single => 1 << 31,
        };
        if rank < 0 { top | rank.unsigned_abs() } else { rank.unsigned_abs() }
    }

    /// The float of this rank.
    pub(super) fn literal(self, rank: i32) -> (ScalarValue, ValueType) {
        match self {
            // A rank has no more bits than its type.
            Narrow::Half => {
                let half = Half::from_bits(self.bits(rank) as u16);
                (ScalarValue::Float16(Some(half)), ValueType::Float16)
            }
            Narrow::Single => {
                (ScalarValue::Float32(Some(f32::from_bits(self.bits(rank)))), ValueType::Float32)
            }
        }
    }

    fn double(self, rank: i32) -> f64 {
        match self {
            Narrow::Half => Half::from_bits(self.bits(rank) as u16).to_f64(),
            Narrow::Single => f32::from_bits(self.bits(rank)).into(),
        }
    }
}

/// The ranks between which `f64::from(x) op bound` holds; for `<>`, between which it does not.
pub(super) fn narrow_bounds(op: CompareOp, ty: Narrow, bound: f64) -> [Option<(CompareOp, i32)>; 2] {
    let near = ty.near(bound);
    // The smallest that is not below the bound, and the largest that is not above.
    // A sum with +0 is never -0.
    let (from, to) = match ty.double(near).total_cmp(&(bound + 0.0)) {
        Ordering::Less => (near + 1, near),
        Ordering::Equal => (near, near),
        Ordering::Greater => (near, near - 1),
    };
    let least = |rank| Some((CompareOp::GtEq, rank));
    let most = |rank| Some((CompareOp::LtEq, rank));
    match op {
        CompareOp::Lt => [None, most(from - 1)],
        CompareOp::LtEq => [None, most(to)],
        CompareOp::Gt => [least(to + 1), None],
        CompareOp::GtEq => [least(from), None],
        CompareOp::Eq | CompareOp::NotEq => [least(from), most(to)],
    }
}
