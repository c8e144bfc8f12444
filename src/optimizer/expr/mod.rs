//! DataFusion's physical expressions to the kernels' typed IR: the one place that knows both.
//!
//! The IR evaluates AND and OR eagerly, and CASE as DataFusion does: each branch for the rows that take it. That is right
//! because every expression taken here either cannot raise, or raises a fault on the device (overflow, division by zero),
//! after which the CPU decides on the original rows.

mod arithmetic;
mod case;
mod cast;
mod compare;
mod constant;
mod decimal;
mod float;
mod function;
mod integer;
mod strings;
mod temporal;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, DynamicFilterPhysicalExpr, InListExpr, IsNotNullExpr, IsNullExpr,
    Literal, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::kernels::expr::{Expr, ValueType};
use crate::memory::caps::DeviceCaps;
use crate::physical_plan::aggregate::group::{Key, Text};
use crate::physical_plan::params::ParamTable;

use super::reason::{Reason, shorten};
use super::types::device_type;

/// Nodes that the expressions of one operator may have in all: shader text grows with them.
const MAX_NODES: usize = 2_000;
/// Depth of one expression after chains of AND and OR were balanced; later passes over expressions are recursive.
const MAX_DEPTH: usize = 100;
/// Depth of one expression as DataFusion gives it.
const MAX_RAW_DEPTH: usize = 1_000;
/// Nodes of an expression whose text is made for a reason.
const MAX_SHOWN_NODES: usize = 100_000;
/// Storage buffers of a kernel besides its columns and outputs: arguments, mask, offsets, blocks, bits and status.
pub(super) const OTHER_BINDINGS: usize = 6;

/// A family's operators: `None` when the operator, or these types of it, belong to another one.
type OperatorFamily = fn(&mut Lowering, &Arc<dyn PhysicalExpr>, &BinaryExpr) -> Option<Lowered>;

/// Asked in turn.
const OPERATORS: &[OperatorFamily] =
    &[Lowering::integer_operator, temporal::operator, Lowering::decimal_operator];

/// An expression could not be lowered; the reasons are with the [`Lowering`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Declined;

/// The outcome of lowering one expression.
pub(crate) type Lowered = Result<Arc<Expr>, Declined>;

/// Lowers the expressions of one operator and collects their parameters, or all reasons why it cannot.
pub(crate) struct Lowering {
    schema: SchemaRef,
    /// What is lowered, for reasons about expressions without a text.
    name: String,
    params: ParamTable,
    reasons: Vec<Reason>,
    /// Equal subexpressions become one, with the same parameters, so that kernels compute them once.
    seen: HashMap<Arc<dyn PhysicalExpr>, Arc<Expr>>,
    /// Look-ups of results that only the host holds, which have no value in a kernel.
    hosted: HashMap<Arc<dyn PhysicalExpr>, Arc<Expr>>,
    columns: BTreeSet<usize>,
    outputs: usize,
    nodes: usize,
    depth: usize,
}

impl Lowering {
    /// For expressions over rows of `schema`.
    pub(crate) fn new(schema: SchemaRef) -> Self {
        Self {
            schema,
            name: "an expression".to_owned(),
            params: ParamTable::default(),
            reasons: vec![],
            seen: HashMap::new(),
            hosted: HashMap::new(),
            columns: BTreeSet::new(),
            outputs: 0,
            nodes: 0,
            depth: 0,
        }
    }

    /// Names what is lowered from here on.
    pub(crate) fn name(&mut self, name: String) {
        self.name = name;
    }

    /// What was lowered with the parameters of all its expressions, or every reason that was met.
    pub(crate) fn finish<T>(
        mut self,
        caps: &DeviceCaps,
        outcome: Result<T, Declined>,
    ) -> Result<(T, ParamTable), Vec<Reason>> {
        // Where the adapter binds fewer buffers than there are columns and outputs, the columns are copied into one, and each
        // output gets a kernel of its own.
        let need = usize::from(!self.columns.is_empty()) + usize::from(self.outputs > 0) + OTHER_BINDINGS;
        let limit = usize::try_from(caps.max_storage_buffers).unwrap_or(usize::MAX);
        if need > limit {
            self.decline(Reason::BindingLimit { need, limit });
        }
        match outcome {
            Ok(lowered) if self.reasons.is_empty() => Ok((lowered, self.params)),
            _ => Err(self.reasons),
        }
    }

    /// Notes a reason.
    pub(crate) fn decline(&mut self, reason: Reason) -> Declined {
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
        Declined
    }

    /// Lowers an expression that must be boolean, such as a predicate.
    pub(crate) fn boolean(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Lowered {
        let lowered = self.lower(expr)?;
        if lowered.value_type() == ValueType::Boolean {
            Ok(lowered)
        } else {
            Err(self.unsupported(expr, "it is not boolean"))
        }
    }

    /// Lowers an expression whose values are written out, to a buffer of their own.
    pub(crate) fn output(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Lowered {
        // The host takes results of functions of strings itself.
        if self.depth == 0
            && fits(expr, MAX_RAW_DEPTH, MAX_NODES)
            && let Some(lookup) = self.host_lookup(expr)
        {
            return Ok(lookup);
        }
        self.outputs += 1;
        self.lower(expr)
    }

    /// The same for values that DataFusion takes to be never NULL: those that are nevertheless are faults.
    pub(crate) fn required(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Lowered {
        let lowered = self.output(expr)?;
        let may_be_null = lowered.may_be_null(&|leaf| match leaf {
            Expr::Column { index, .. } => {
                self.schema.fields().get(*index).is_none_or(|field| field.is_nullable())
            }
            Expr::Param { slot, .. } => {
                let source = self.params.sources.get(*slot);
                source.is_none_or(|source| source.expr.nullable(&self.schema).unwrap_or(true))
            }
            _ => true,
        });
        Ok(if may_be_null { Arc::new(Expr::Required(lowered)) } else { lowered })
    }

    /// Lowers a key of GROUP BY.
    pub(crate) fn key(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Key, Declined> {
        if !fits(expr, MAX_RAW_DEPTH, MAX_NODES) {
            // Which is refused.
            return self.lower(expr).map(Key::Value);
        }
        if constant::is_constant(expr, &self.schema) {
            return Ok(Key::Constant(Arc::clone(expr)));
        }
        let data_type = self.arrow_type(expr)?;
        if data_type == DataType::Null {
            let null: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(ScalarValue::Null));
            return self.lower(expr).map(|_| Key::Constant(null));
        }
        if ValueType::from_arrow(&data_type).is_some() {
            return self.lower(expr).map(Key::Value);
        }
        match self.text(expr, false) {
            Some(text) => Ok(Key::Text(text)),
            None => Err(self.decline(Reason::unsupported_type(expr, &data_type))),
        }
    }

    /// Lowers text of which the least or the greatest is asked for; `None` where the expression is none.
    pub(crate) fn ordered_text(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<Text> {
        let data_type = expr.data_type(&self.schema).ok()?;
        let own = fits(expr, MAX_RAW_DEPTH, MAX_NODES)
            && ValueType::from_arrow(&data_type).is_none()
            && !constant::is_constant(expr, &self.schema);
        if own { self.text(expr, true) } else { None }
    }

    /// Lowers an expression of any type of which only is asked whether it is NULL.
    pub(crate) fn presence(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Lowered {
        match self.opaque(expr) {
            Some(opaque) => Ok(opaque),
            None => self.lower(expr),
        }
    }

    /// Lowers any expression of a type that can live on the device.
    pub(crate) fn lower(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Lowered {
        // Hashing, below, recurses: bound the depth first.
        if self.depth == 0 && !fits(expr, MAX_RAW_DEPTH, MAX_NODES) {
            return Err(self.oversized(expr));
        }
        if let Some(known) = self.seen.get(expr) {
            return Ok(Arc::clone(known));
        }
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(self.too_large(expr, format!("{MAX_NODES} nodes in the operator's expressions")));
        }
        if self.depth >= MAX_DEPTH {
            return Err(self.too_large(expr, format!("{MAX_DEPTH} levels")));
        }
        self.depth += 1;
        let lowered = self.dispatch(expr);
        self.depth -= 1;
        let lowered = lowered?;
        // Literals stay apart even when equal: a changed literal must not change the kernel's shape.
        if !expr.is::<Literal>() {
            self.seen.insert(Arc::clone(expr), Arc::clone(&lowered));
        }
        Ok(lowered)
    }

    fn dispatch(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Lowered {
        if constant::is_constant(expr, &self.schema) {
            return self.parameter(expr);
        }
        if constant::always_raises(expr, &self.schema) {
            return Err(self.unsupported(expr, "a constant that raises does so for every batch"));
        }
        if let Some(lookup) = self.lookup(expr) {
            return lookup;
        }
        if let Some(why) = self.mixed_strings(expr) {
            return Err(self.unsupported(expr, why));
        }
        if let Some(column) = expr.downcast_ref::<Column>() {
            self.column(column)
        } else if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
            self.binary(expr, binary)
        } else if let Some(not) = expr.downcast_ref::<NotExpr>() {
            Ok(Arc::new(Expr::Not(self.boolean(not.arg())?)))
        } else if let Some(is_null) = expr.downcast_ref::<IsNullExpr>() {
            Ok(Arc::new(Expr::IsNull(self.presence(is_null.arg())?)))
        } else if let Some(is_not_null) = expr.downcast_ref::<IsNotNullExpr>() {
            Ok(Arc::new(Expr::IsNotNull(self.presence(is_not_null.arg())?)))
        } else if let Some(in_list) = expr.downcast_ref::<InListExpr>() {
            self.in_list(expr, in_list)
        } else if let Some(negative) = expr.downcast_ref::<NegativeExpr>() {
            self.negative(expr, negative)
        } else if let Some(cast) = expr.downcast_ref::<CastExpr>() {
            self.cast(expr, cast.expr(), cast.cast_type(), cast.cast_options().safe)
        } else if let Some(cast) = expr.downcast_ref::<TryCastExpr>() {
            self.cast(expr, cast.expr(), cast.cast_type(), true)
        } else if expr.is::<DynamicFilterPhysicalExpr>() {
            Err(self.decline(Reason::DynamicFilter { expression: shorten(expr) }))
        } else if let Some(case) = expr.downcast_ref::<CaseExpr>() {
            self.case(expr, case)
        } else if let Some(function) = expr.downcast_ref::<ScalarFunctionExpr>() {
            self.function(expr, function)
        } else {
            Err(self.unsupported(expr, "this kind of expression has no GPU counterpart"))
        }
    }

    fn column(&mut self, column: &Column) -> Lowered {
        let index = column.index();
        let Some(field) = self.schema.fields().get(index).cloned() else {
            return Err(self.unsupported(column, "there is no such column"));
        };
        let ty = self.device_type(column, field.data_type())?;
        if ty == ValueType::Null {
            // Nothing to upload.
            return Ok(self.literal(ScalarValue::Null, ty));
        }
        self.columns.insert(index);
        Ok(Arc::new(Expr::Column { index, ty }))
    }

    /// An expression without columns: its value is computed by DataFusion when the plan is executed.
    fn parameter(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Lowered {
        let data_type = self.arrow_type(expr)?;
        let ty = self.device_type(expr, &data_type)?;
        Ok(self.params.push(Arc::clone(expr), ty))
    }

    /// A chain of AND or of OR, as a balanced tree: both are associative, and the IR's passes are recursive.
    fn chain(&mut self, op: Operator, expr: &Arc<dyn PhysicalExpr>) -> Lowered {
        // Every operand is lowered, so that all reasons are found.
        let operands: Vec<Lowered> =
            operands(op, expr).into_iter().map(|operand| self.boolean(operand)).collect();
        let operands = operands.into_iter().collect::<Result<Vec<_>, _>>()?;
        let join = if op == Operator::And { Expr::And } else { Expr::Or };
        Expr::balanced(operands, join).ok_or_else(|| self.unsupported(expr, "it has no operands"))
    }

    fn binary(&mut self, expr: &Arc<dyn PhysicalExpr>, binary: &BinaryExpr) -> Lowered {
        match binary.op() {
            op @ (Operator::And | Operator::Or) => self.chain(*op, expr),
            _ => {
                for family in OPERATORS {
                    if let Some(lowered) = family(self, expr, binary) {
                        return lowered;
                    }
                }
                self.general(expr, binary)
            }
        }
    }

    /// Operators that no family claims.
    fn general(&mut self, expr: &Arc<dyn PhysicalExpr>, binary: &BinaryExpr) -> Lowered {
        match binary.op() {
            Operator::Plus | Operator::Minus | Operator::Multiply | Operator::Divide | Operator::Modulo => {
                self.arithmetic(expr, binary)
            }
            _ => self.comparison(expr, binary),
        }
    }

    /// Both sides of an operator, so that the reasons of both are found. A constant beside a side that was declined is
    /// not looked at: its type says nothing new.
    fn sides(&mut self, binary: &BinaryExpr) -> Result<(Arc<Expr>, Arc<Expr>), Declined> {
        let (left, right) = (binary.left(), binary.right());
        if constant::is_constant(left, &self.schema) {
            let right = self.lower(right)?;
            return Ok((self.lower(left)?, right));
        }
        let left = self.lower(left);
        if left.is_err() && constant::is_constant(right, &self.schema) {
            return Err(Declined);
        }
        let right = self.lower(right);
        Ok((left?, right?))
    }

    /// Pushes a parameter whose source is made here rather than found in the plan.
    fn literal(&mut self, value: ScalarValue, ty: ValueType) -> Arc<Expr> {
        self.params.push(Arc::new(Literal::new(value)), ty)
    }

    fn arrow_type(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<DataType, Declined> {
        expr.data_type(&self.schema)
            .map_err(|error| self.unsupported(expr, &format!("its type is not known ({error})")))
    }

    fn device_type(&mut self, expr: &dyn std::fmt::Display, ty: &DataType) -> Result<ValueType, Declined> {
        device_type(expr, ty).map_err(|reason| self.decline(reason))
    }

    fn unsupported(&mut self, expr: &dyn std::fmt::Display, why: &str) -> Declined {
        self.decline(Reason::unsupported_expression(expr, why))
    }

    /// The reason for an expression that does not fit: named by its text, unless that cannot be had without recursing too deeply.
    fn oversized(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Declined {
        let (expression, limit) = if fits(expr, MAX_RAW_DEPTH, MAX_SHOWN_NODES) {
            (shorten(expr), format!("{MAX_NODES} nodes"))
        } else {
            (shorten(&self.name), format!("{MAX_NODES} nodes or {MAX_RAW_DEPTH} levels"))
        };
        self.decline(Reason::ExpressionTooLarge { expression, limit })
    }

    fn too_large(&mut self, expr: &dyn std::fmt::Display, limit: String) -> Declined {
        self.decline(Reason::ExpressionTooLarge { expression: shorten(expr), limit })
    }
}

/// The operands of a chain of one logical operator, left to right.
fn operands(op: Operator, expr: &Arc<dyn PhysicalExpr>) -> Vec<&Arc<dyn PhysicalExpr>> {
    let mut out = vec![];
    let mut open = vec![expr];
    while let Some(next) = open.pop() {
        match next.downcast_ref::<BinaryExpr>() {
            Some(binary) if *binary.op() == op => open.extend([binary.right(), binary.left()]),
            _ => out.push(next),
        }
    }
    out
}

/// True when the expression has at most `depth` levels and `nodes` nodes, literals apart: long lists are bounded elsewhere.
fn fits(expr: &Arc<dyn PhysicalExpr>, depth: usize, nodes: usize) -> bool {
    fn within(expr: &Arc<dyn PhysicalExpr>, depth: usize, nodes: &mut usize) -> bool {
        if depth == 0 || *nodes == 0 {
            return false;
        }
        *nodes -= usize::from(!expr.is::<Literal>());
        expr.children().into_iter().all(|child| within(child, depth - 1, nodes))
    }
    let mut left = nodes;
    within(expr, depth, &mut left)
}
