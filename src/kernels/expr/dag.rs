//! Expressions as graphs. Operators that share a kernel put their expressions into one another, and an operand that is read twice is
//! the same node twice: written as a tree, 40 projections of `a + a` are 2^40 nodes. So whatever goes through an expression
//! goes through its nodes once each, told apart by where they are in memory; and an [`Interner`] makes equal ones the same.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use super::float::FloatFn;
use super::function::Function;
use super::ir::{Expr, ValueType};

/// Tells nodes apart as long as they are there.
pub(crate) fn id(expr: &Expr) -> usize {
    std::ptr::from_ref(expr).addr()
}

/// The nodes of `roots`, each once, operands before what they are operands of.
pub fn nodes<'a>(roots: impl IntoIterator<Item = &'a Expr>) -> Vec<&'a Expr> {
    let (mut known, mut nodes, mut open) = (HashSet::new(), vec![], vec![]);
    for root in roots {
        open.push((root, false));
        while let Some((node, operands_done)) = open.pop() {
            if operands_done {
                nodes.push(node);
            } else if known.insert(id(node)) {
                open.push((node, true));
                open.extend(node.children().into_iter().rev().map(|child| (child.as_ref(), false)));
            }
        }
    }
    nodes
}

/// The values of nodes, by what [`bottom_up`] gave for them.
pub struct Values<T>(HashMap<usize, T>);

impl<T: Copy + Default> Values<T> {
    /// The value of a node, which comes before those that ask for it.
    pub fn of(&self, expr: &Expr) -> T {
        self.0.get(&id(expr)).copied().unwrap_or_default()
    }
}

/// Computes a value for each node of `roots` from those of its operands.
pub fn bottom_up<'a, T: Copy + Default>(
    roots: impl IntoIterator<Item = &'a Expr>,
    value: impl Fn(&Expr, &Values<T>) -> T,
) -> Values<T> {
    let mut values = Values(HashMap::new());
    for node in nodes(roots) {
        let own = value(node, &values);
        values.0.insert(id(node), own);
    }
    values
}

/// Nodes of `roots` together, and the longest way from one of them to a leaf in nodes.
pub fn extent<'a>(roots: impl IntoIterator<Item = &'a Expr>) -> (usize, usize) {
    let depth = |node: &Expr, depths: &Values<usize>| {
        1 + node.children().into_iter().map(|child| depths.of(child)).max().unwrap_or(0)
    };
    let depths = bottom_up(roots, depth);
    (depths.0.len(), depths.0.values().copied().max().unwrap_or(0))
}

impl Expr {
    /// Nodes of the expression written as a tree, with a node that is read twice counted twice.
    pub fn unshared(&self) -> u64 {
        let count = |node: &Expr, counts: &Values<u64>| {
            node.children().into_iter().fold(1u64, |sum, child| sum.saturating_add(counts.of(child)))
        };
        bottom_up([self], count).of(self)
    }

    /// Whether a value may meet an arithmetic fault, for all that is known before the data is; functions say so themselves.
    pub fn may_fault(&self) -> bool {
        /// What is known of a node.
        #[derive(Clone, Copy, Default)]
        struct Known {
            scalar: bool,
            faults: bool,
        }
        let known = bottom_up([self], |node, known: &Values<Known>| Known {
            scalar: node.may_be_scalar_by(&|operand| known.of(operand).scalar),
            faults: node.faults_itself(&|operand| known.of(operand).scalar)
                || node.children().into_iter().any(|child| known.of(child).faults),
        });
        known.of(self).faults
    }

    /// Whether the node itself may meet a fault.
    fn faults_itself(&self, scalar: &dyn Fn(&Expr) -> bool) -> bool {
        match self {
            Expr::Negate(e) => scalar(e),
            Expr::Required(_) => true,
            Expr::Lookup { fallible, .. } => *fallible,
            Expr::Call { function, args, ty } => {
                let types: Vec<_> = args.iter().map(|arg| arg.value_type()).collect();
                function.may_fault(&types, *ty)
            }
            _ => false,
        }
    }

    /// Whether DataFusion may compute one value for a whole batch instead of an array: for constants, and for CASE when all
    /// rows of the batch take a branch that is constant, or none.
    pub fn may_be_scalar(&self) -> bool {
        let scalar = |node: &Expr, scalars: &Values<bool>| node.may_be_scalar_by(&|e| scalars.of(e));
        bottom_up([self], scalar).of(self)
    }

    fn may_be_scalar_by(&self, scalar: &dyn Fn(&Expr) -> bool) -> bool {
        match self {
            Expr::Column { .. } => false,
            // It may hold a CASE.
            Expr::Lookup { .. } => true,
            Expr::Case { branches, otherwise, .. } => {
                let mut values = branches.iter().map(|(_, then)| then).chain(otherwise);
                otherwise.is_none() || values.any(|value| scalar(value))
            }
            // A single first operand that is not NaN is the result for all rows.
            Expr::Call { function: Function::Float(FloatFn::Nanvl), args, .. } => {
                args.first().is_some_and(|first| scalar(first))
            }
            _ => self.children().into_iter().all(|child| scalar(child)),
        }
    }

    /// `operands` joined two by two, AND or OR of them all: both are associative, and what is deep costs stack. `None` without any.
    pub fn balanced(
        mut operands: Vec<Arc<Expr>>,
        join: fn(Arc<Expr>, Arc<Expr>) -> Expr,
    ) -> Option<Arc<Expr>> {
        while operands.len() > 1 {
            let pairs = operands.chunks(2).map(|pair| match pair {
                [left, right] => Arc::new(join(Arc::clone(left), Arc::clone(right))),
                _ => Arc::clone(&pair[0]),
            });
            operands = pairs.collect();
        }
        operands.pop()
    }

    /// Adds the tables that the expression reads to `out`, each with the source column whose codes index it; lists have none.
    pub fn collect_tables(&self, out: &mut BTreeMap<usize, Option<usize>>) {
        for node in nodes([self]) {
            match node {
                Expr::Lookup { codes, table, .. } => {
                    if let Expr::Column { index, .. } = codes.as_ref() {
                        out.insert(*table, Some(*index));
                    }
                }
                Expr::InSorted { table, .. } => _ = out.insert(*table, None),
                _ => {}
            }
        }
    }

    /// Adds the source columns that the expression reads to `out`.
    pub fn collect_columns(&self, out: &mut BTreeSet<usize>) {
        for node in nodes([self]) {
            if let Expr::Column { index, .. } = node {
                out.insert(*index);
            }
        }
    }

    /// Rebuilds the expression bottom-up; `leaf` gives the replacement of each column, parameter and look-up, and of each search
    /// in a list, after that of its operand. What is shared stays shared.
    pub fn map_leaves(self: &Arc<Expr>, leaf: &dyn Fn(&Arc<Expr>) -> Arc<Expr>) -> Arc<Expr> {
        fn mapped(
            expr: &Arc<Expr>,
            leaf: &dyn Fn(&Arc<Expr>) -> Arc<Expr>,
            known: &mut HashMap<usize, Arc<Expr>>,
        ) -> Arc<Expr> {
            if let Some(known) = known.get(&id(expr)) {
                return Arc::clone(known);
            }
            let new = match expr.as_ref() {
                Expr::Column { .. } | Expr::Param { .. } | Expr::Lookup { .. } => leaf(expr),
                other => {
                    let rebuilt = Arc::new(other.with_operands(|operand| mapped(operand, leaf, known)));
                    if matches!(other, Expr::InSorted { .. }) { leaf(&rebuilt) } else { rebuilt }
                }
            };
            known.insert(id(expr), Arc::clone(&new));
            new
        }
        mapped(self, leaf, &mut HashMap::new())
    }

    /// The same node over other operands, which `operand` gives in the order of [`Expr::children`].
    pub(super) fn with_operands(&self, mut operand: impl FnMut(&Arc<Expr>) -> Arc<Expr>) -> Expr {
        let mut go = |e: &Arc<Expr>| operand(e);
        match self {
            Expr::Column { .. } | Expr::Param { .. } => self.clone(),
            Expr::Compare { op, left, right } => Expr::Compare { op: *op, left: go(left), right: go(right) },
            Expr::Distinct { negated, left, right } => {
                Expr::Distinct { negated: *negated, left: go(left), right: go(right) }
            }
            Expr::Arith { op, left, right, ty } => {
                Expr::Arith { op: *op, left: go(left), right: go(right), ty: *ty }
            }
            Expr::And(l, r) => Expr::And(go(l), go(r)),
            Expr::Or(l, r) => Expr::Or(go(l), go(r)),
            Expr::Not(e) => Expr::Not(go(e)),
            Expr::IsNull(e) => Expr::IsNull(go(e)),
            Expr::IsNotNull(e) => Expr::IsNotNull(go(e)),
            Expr::Negate(e) => Expr::Negate(go(e)),
            Expr::Required(e) => Expr::Required(go(e)),
            Expr::Cast { expr, to } => Expr::Cast { expr: go(expr), to: *to },
            Expr::Lookup { codes, table, ty, fallible } => {
                Expr::Lookup { codes: go(codes), table: *table, ty: *ty, fallible: *fallible }
            }
            Expr::InList { expr, list, negated } => {
                Expr::InList { expr: go(expr), list: list.iter().map(go).collect(), negated: *negated }
            }
            Expr::InSorted { expr, table, len, negated } => {
                Expr::InSorted { expr: go(expr), table: *table, len: *len, negated: *negated }
            }
            Expr::Case { branches, otherwise, ty } => Expr::Case {
                branches: branches.iter().map(|(when, then)| (go(when), go(then))).collect(),
                otherwise: otherwise.as_ref().map(go),
                ty: *ty,
            },
            Expr::Call { function, args, ty } => {
                Expr::Call { function: *function, args: args.iter().map(go).collect(), ty: *ty }
            }
        }
    }
}

/// Makes equal expressions the same in memory, however they came about.
#[derive(Debug, Default)]
pub struct Interner {
    /// By the node without its operands, and by those.
    by_shape: HashMap<(Expr, Vec<usize>), Arc<Expr>>,
    by_id: HashMap<usize, Arc<Expr>>,
}

/// Stands for an operand.
static BLANK: LazyLock<Arc<Expr>> = LazyLock::new(|| Arc::new(Expr::Param { slot: 0, ty: ValueType::Null }));

impl Interner {
    /// The one expression of all that are equal to `expr`, and so for all its operands.
    pub fn intern(&mut self, expr: &Arc<Expr>) -> Arc<Expr> {
        if let Some(known) = self.by_id.get(&id(expr)) {
            return Arc::clone(known);
        }
        let mut made: HashMap<usize, Arc<Expr>> = HashMap::new();
        let mut last = Arc::clone(expr);
        for node in nodes([expr.as_ref()]) {
            last = match self.by_id.get(&id(node)) {
                Some(known) => Arc::clone(known),
                None => self.shallow(node, &made),
            };
            made.insert(id(node), Arc::clone(&last));
        }
        last
    }

    /// As [`Self::intern`], with operands that are `made`.
    fn shallow(&mut self, node: &Expr, made: &HashMap<usize, Arc<Expr>>) -> Arc<Expr> {
        let operand = |e: &Arc<Expr>| made.get(&id(e)).map_or_else(|| Arc::clone(e), Arc::clone);
        let own = node.with_operands(|_| Arc::clone(&BLANK));
        let operands = node.children().into_iter().map(|child| id(&operand(child))).collect();
        let known =
            self.by_shape.entry((own, operands)).or_insert_with(|| Arc::new(node.with_operands(operand)));
        self.by_id.insert(id(known), Arc::clone(known));
        Arc::clone(known)
    }

    /// Whether the expressions are equal.
    pub fn same(&mut self, one: &Arc<Expr>, other: &Arc<Expr>) -> bool {
        Arc::ptr_eq(&self.intern(one), &self.intern(other))
    }
}

#[cfg(test)]
mod tests;
