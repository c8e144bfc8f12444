//! The typed expression IR that kernels evaluate: small, closed, and independent of DataFusion's plans.
//!
//! Values are encoded on the host as `Option<i128>` ([`Scalar`]): integers, dates, times, timestamps and durations by
//! value, booleans as 0/1, floats as their raw bits zero-extended, decimals by unscaled value.

use std::sync::Arc;

use super::function::Function;
pub use super::types::{Scalar, ValueType, Zone};

/// Comparison operators, in DataFusion's meaning (floats: total order after folding -0 to +0).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompareOp {
    /// `=`
    Eq,
    /// `<>`
    NotEq,
    /// `<`
    Lt,
    /// `<=`
    LtEq,
    /// `>`
    Gt,
    /// `>=`
    GtEq,
}

/// Arithmetic operators. Integers wrap; decimals raise a fault where Arrow's type is too narrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArithOp {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
}

/// An expression over the columns of one source batch. Structural equality drives common-subexpression elimination.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expr {
    /// Column of the source batch.
    Column {
        /// Index in the source schema.
        index: usize,
        /// Type.
        ty: ValueType,
    },
    /// Value that is known when the kernel is launched: a literal, a query parameter, a scalar subquery. May be NULL.
    Param {
        /// Index in the program's parameter list.
        slot: usize,
        /// Type.
        ty: ValueType,
    },
    /// Comparison of two expressions of the same type (decimals: same scale). NULL if either side is NULL.
    Compare {
        /// Operator.
        op: CompareOp,
        /// Left side.
        left: Arc<Expr>,
        /// Right side.
        right: Arc<Expr>,
    },
    /// `IS [NOT] DISTINCT FROM`, never NULL.
    Distinct {
        /// True for `IS NOT DISTINCT FROM`.
        negated: bool,
        /// Left side.
        left: Arc<Expr>,
        /// Right side.
        right: Arc<Expr>,
    },
    /// Kleene AND.
    And(Arc<Expr>, Arc<Expr>),
    /// Kleene OR.
    Or(Arc<Expr>, Arc<Expr>),
    /// NOT; NULL stays NULL.
    Not(Arc<Expr>),
    /// IS NULL, never NULL.
    IsNull(Arc<Expr>),
    /// IS NOT NULL, never NULL.
    IsNotNull(Arc<Expr>),
    /// `expr [NOT] IN (list)`; NULL when there is no match and either side holds a NULL. Floats compare by their bits, as
    /// DataFusion's list does: unlike `=`, -0 is not +0.
    InList {
        /// Tested expression.
        expr: Arc<Expr>,
        /// Candidates, all of the tested expression's type.
        list: Vec<Arc<Expr>>,
        /// NOT IN.
        negated: bool,
    },
    /// As [`Expr::InList`], for a long list of constants. They lie in a table as [`crate::kernels::table::pack_list`] has them, and
    /// are found by binary search.
    InSorted {
        /// Tested expression.
        expr: Arc<Expr>,
        /// Index of the list in the batch's list of tables.
        table: usize,
        /// Values in the table, a power of two: it shapes the kernel.
        len: usize,
        /// NOT IN.
        negated: bool,
    },
    /// Arithmetic of integers: both sides and `ty` are the same type. That of decimals is [`super::DecimalFn`]'s.
    Arith {
        /// Operator.
        op: ArithOp,
        /// Left side.
        left: Arc<Expr>,
        /// Right side.
        right: Arc<Expr>,
        /// Result type.
        ty: ValueType,
    },
    /// Unary minus of floats and of integers, which wrap. Of what DataFusion may hold as a scalar ([`Expr::may_be_scalar`]), signed
    /// minima fault and unsigned types are refused, since it negates scalars checked.
    Negate(Arc<Expr>),
    /// The value, which whoever planned it takes to be never NULL: a fault where it is.
    Required(Arc<Expr>),
    /// Exact widening cast of an integer to an integer type that holds all its values. Other casts are functions.
    Cast {
        /// Operand.
        expr: Arc<Expr>,
        /// Target type.
        to: ValueType,
    },
    /// `CASE WHEN .. THEN .. ELSE .. END`: the value of the first branch whose condition is true. A branch counts for the
    /// rows that take it, and a condition for those that reach it: faults elsewhere are none.
    Case {
        /// Conditions with their values, in order; at least one. Values are of type `ty`.
        branches: Vec<(Arc<Expr>, Arc<Expr>)>,
        /// Value where no condition is true; `None` is NULL.
        otherwise: Option<Arc<Expr>>,
        /// Result type.
        ty: ValueType,
    },
    /// A function of one string or binary column, looked up in a table that was computed for the distinct values of the
    /// batch.
    Lookup {
        /// The column, of type [`ValueType::Opaque`].
        codes: Arc<Expr>,
        /// Index in the batch's list of tables.
        table: usize,
        /// Result type; [`ValueType::Opaque`] for results that only the host holds.
        ty: ValueType,
        /// Whether the function may raise for some value; then such entries of the table fault.
        fallible: bool,
    },
    /// A function of one of the families, applied to operands; each says what types it takes, and when it is NULL or
    /// faults.
    Call {
        /// Function; constants that shape the kernel are part of it, others are operands.
        function: Function,
        /// Operands, left to right.
        args: Vec<Arc<Expr>>,
        /// Result type.
        ty: ValueType,
    },
}

impl Expr {
    /// Type of the expression's value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Expr::Column { ty, .. }
            | Expr::Param { ty, .. }
            | Expr::Arith { ty, .. }
            | Expr::Case { ty, .. }
            | Expr::Lookup { ty, .. }
            | Expr::Call { ty, .. } => *ty,
            Expr::Cast { to, .. } => *to,
            Expr::Negate(e) | Expr::Required(e) => e.value_type(),
            Expr::Compare { .. }
            | Expr::Distinct { .. }
            | Expr::And(..)
            | Expr::Or(..)
            | Expr::Not(_)
            | Expr::IsNull(_)
            | Expr::IsNotNull(_)
            | Expr::InList { .. }
            | Expr::InSorted { .. } => ValueType::Boolean,
        }
    }

    /// Direct operands, left to right.
    pub fn children(&self) -> Vec<&Arc<Expr>> {
        match self {
            Expr::Column { .. } | Expr::Param { .. } => vec![],
            Expr::Compare { left, right, .. }
            | Expr::Distinct { left, right, .. }
            | Expr::Arith { left, right, .. }
            | Expr::And(left, right)
            | Expr::Or(left, right) => vec![left, right],
            Expr::Not(e)
            | Expr::IsNull(e)
            | Expr::IsNotNull(e)
            | Expr::Negate(e)
            | Expr::Required(e)
            | Expr::Lookup { codes: e, .. }
            | Expr::InSorted { expr: e, .. }
            | Expr::Cast { expr: e, .. } => {
                vec![e]
            }
            Expr::InList { expr, list, .. } => std::iter::once(expr).chain(list).collect(),
            Expr::Case { branches, otherwise, .. } => {
                branches.iter().flat_map(|(when, then)| [when, then]).chain(otherwise).collect()
            }
            Expr::Call { args, .. } => args.iter().collect(),
        }
    }
}
