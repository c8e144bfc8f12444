//! Values that are taken to be never NULL, and which expressions may be NULL after all.

use super::dag::{Values, bottom_up};
use super::decimal::DecimalFn;
use super::float::FloatFn;
use super::function::Function;
use super::integer::IntegerFn;
use super::ir::Expr;
use super::temporal::TemporalFn;
use super::wgsl::{Emitter, Node};

impl Expr {
    /// Whether the value may be NULL, given which columns and parameters may; `leaf` is asked about those. Look-ups are taken to
    /// be as their function says.
    pub fn may_be_null(&self, leaf: &dyn Fn(&Expr) -> bool) -> bool {
        let nullable = |node: &Expr, known: &Values<bool>| {
            let any = || node.children().into_iter().any(|child| known.of(child));
            match node {
                Expr::Column { .. } | Expr::Param { .. } => leaf(node),
                Expr::Distinct { .. }
                | Expr::IsNull(_)
                | Expr::IsNotNull(_)
                | Expr::Lookup { .. }
                | Expr::Required(_) => false,
                Expr::Case { branches, otherwise, .. } => {
                    let mut values = branches.iter().map(|(_, then)| then).chain(otherwise);
                    otherwise.is_none() || values.any(|value| known.of(value))
                }
                Expr::Call { function, .. } => function.gives_null() || any(),
                _ => any(),
            }
        };
        bottom_up([self], nullable).of(self)
    }
}

impl Function {
    /// Whether it is NULL for some operands none of which is.
    fn gives_null(self) -> bool {
        match self {
            Function::Integer(IntegerFn::Convert { safe })
            | Function::Float(FloatFn::Cast { safe })
            | Function::Decimal(DecimalFn::Cast { safe } | DecimalFn::ToInteger { safe })
            | Function::Temporal(TemporalFn::Cast { safe }) => safe,
            Function::Temporal(TemporalFn::Part(_) | TemporalFn::Bin | TemporalFn::BinMonths) => true,
            _ => false,
        }
    }
}

impl Emitter<'_> {
    pub(super) fn required(&mut self, mut node: Node) -> Node {
        if let Some(valid) = node.valid.take() {
            node.faults.insert(self.name(&format!("!{valid}")));
        }
        node
    }
}
