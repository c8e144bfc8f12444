//! The IR as WGSL statements: each distinct node becomes one value and, where it may be NULL, one validity flag.
//!
//! Text depends on the shape only (types, layouts, which columns have validity, rounded bounds): columns are bindings,
//! parameters are words of the argument block. Everything is evaluated eagerly and without branches; a node that can
//! overflow gives a fault flag, which the kernel looks at where the node's value is used. CASE keeps the flags of a branch
//! to the rows that take it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::Arc;

use crate::error::{GpuError, GpuResult};
use crate::kernels::program::ColumnShape;

use super::compare::{boolean, comparison, expect_bool};
use super::dag::{Interner, id, nodes};
use super::ir::{Expr, Scalar, ValueType};
use super::load::decode;
use super::widths::{Class, round_bits, type_bits, value_bits};

/// A computed node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// WGSL expression without side effects; mostly a name.
    pub value: String,
    /// WGSL name of the validity flag; `None` when never NULL.
    pub valid: Option<String>,
    /// Type.
    pub ty: ValueType,
    /// Register class of the value.
    pub class: Class,
    /// Bound on the magnitude.
    pub bits: u8,
    /// As [`Expr::may_be_scalar`].
    pub constant: bool,
    /// Names of the fault flags of the node and all below it.
    pub faults: BTreeSet<String>,
}

/// Whether a predicate is true.
#[derive(Debug, Clone)]
pub(crate) struct Truth {
    /// WGSL expression without side effects.
    pub value: String,
    /// As in [`Node`].
    pub faults: BTreeSet<String>,
}

impl Node {
    /// Validity as a WGSL expression.
    pub fn validity(&self) -> &str {
        self.valid.as_deref().unwrap_or("true")
    }
}

/// What is to be emitted of an interned expression.
#[derive(Debug)]
enum Step {
    Value(Arc<Expr>),
    Truth(Arc<Expr>),
}

impl Step {
    /// What is to be emitted before.
    fn needs(&self) -> Vec<Step> {
        let value = |expr: &Arc<Expr>| Step::Value(Arc::clone(expr));
        let truth = |expr: &Arc<Expr>| Step::Truth(Arc::clone(expr));
        match self {
            Step::Truth(expr) => match expr.as_ref() {
                Expr::And(left, right) | Expr::Or(left, right) => vec![truth(left), truth(right)],
                _ => vec![value(expr)],
            },
            Step::Value(expr) => match expr.as_ref() {
                Expr::Case { branches, otherwise, .. } => {
                    let branches = branches.iter().flat_map(|(when, then)| [truth(when), value(then)]);
                    branches.chain(otherwise.iter().map(value)).collect()
                }
                // Parameters of a list are read where they are used.
                Expr::InList { expr, list, .. } => {
                    let computed = list.iter().filter(|item| !matches!(item.as_ref(), Expr::Param { .. }));
                    std::iter::once(expr).chain(computed).map(value).collect()
                }
                Expr::Lookup { .. } => vec![],
                _ => expr.children().into_iter().map(value).collect(),
            },
        }
    }
}

/// Emits expressions into the body of a function that has `i` (row), `r<k>` and `v<k>` (elements of value and validity
/// of column number k) in scope.
#[derive(Debug)]
pub(crate) struct Emitter<'a> {
    pub(super) columns: BTreeMap<usize, (usize, &'a ColumnShape)>,
    pub(super) params: &'a [(ValueType, Scalar)],
    pub(super) params_at: usize,
    exprs: Interner,
    /// By interned expression.
    memo: HashMap<usize, Node>,
    pub(super) keys: HashMap<(String, bool), String>,
    truths: HashMap<usize, Truth>,
    names: usize,
    /// Statements so far.
    pub body: String,
    /// Parameters to be held in `p<slot>` and `p<slot>v`, with their class.
    pub held: BTreeMap<usize, Class>,
    /// Tables behind the arguments, whose flags and values start at `tf<table>` and `tv<table>`.
    pub tables: BTreeSet<usize>,
    /// First word of the tables' places in the argument block.
    pub tables_at: usize,
}

impl<'a> Emitter<'a> {
    /// An emitter over these columns and parameters; `params_at` is the first parameter's word in the argument block.
    pub fn new(columns: &'a [ColumnShape], params: &'a [(ValueType, Scalar)], params_at: usize) -> Self {
        Emitter {
            columns: columns.iter().enumerate().map(|(at, shape)| (shape.index, (at, shape))).collect(),
            params,
            params_at,
            exprs: Interner::default(),
            memo: HashMap::new(),
            keys: HashMap::new(),
            truths: HashMap::new(),
            names: 0,
            body: String::new(),
            held: BTreeMap::new(),
            tables: BTreeSet::new(),
            tables_at: params_at + PARAM_WORDS * params.len(),
        }
    }

    /// Number of distinct nodes so far.
    pub fn size(&self) -> usize {
        self.memo.len()
    }

    /// Names an expression.
    pub fn name(&mut self, value: &str) -> String {
        let name = format!("n{}", self.names);
        self.names += 1;
        // Writing to a String cannot fail.
        let _ = writeln!(self.body, "    let {name} = {value};");
        name
    }

    /// Conjunction of flags, `None` for an empty one.
    pub fn all(&mut self, flags: &[Option<&str>]) -> Option<String> {
        let mut some: Vec<&str> = flags.iter().copied().flatten().collect();
        some.dedup();
        match some.as_slice() {
            [] => None,
            [one] => Some((*one).to_owned()),
            many => Some(self.name(&many.join(" & "))),
        }
    }

    /// Records a fault flag: `condition` where the operands are valid.
    pub(super) fn fault(&mut self, node: &mut Node, condition: &str) {
        let flag = self.name(&format!("{} & ({condition})", node.validity()));
        node.faults.insert(flag);
    }

    /// Emits an expression once; equal ones share their node.
    ///
    /// # Errors
    /// [`GpuError::Internal`] for what [`check`] rejects and for columns or parameters that do not exist.
    pub fn emit(&mut self, expr: &Arc<Expr>) -> GpuResult<Node> {
        let expr = self.exprs.intern(expr);
        if !self.memo.contains_key(&id(&expr)) {
            self.run(Step::Value(Arc::clone(&expr)))?;
        }
        let missing = || GpuError::Internal("an expression was not emitted".to_owned());
        self.memo.get(&id(&expr)).cloned().ok_or_else(missing)
    }

    /// Whether a predicate is true, which is all that a selection or a filter asks. AND and OR of truths need no care
    /// for NULL.
    ///
    /// # Errors
    /// Those of [`Self::emit`], and [`GpuError::Internal`] when it is not boolean.
    pub fn truth(&mut self, expr: &Arc<Expr>) -> GpuResult<Truth> {
        let expr = self.exprs.intern(expr);
        if !self.truths.contains_key(&id(&expr)) {
            self.run(Step::Truth(Arc::clone(&expr)))?;
        }
        let missing = || GpuError::Internal("an expression was not emitted".to_owned());
        self.truths.get(&id(&expr)).cloned().ok_or_else(missing)
    }

    /// Does a step after those that it needs, so that [`Self::emit`] and [`Self::truth`] find their operands done: fused
    /// expressions are deep, and stacks are short.
    fn run(&mut self, step: Step) -> GpuResult<()> {
        let mut open = vec![(step, false)];
        while let Some((step, ready)) = open.pop() {
            let done = match &step {
                Step::Value(expr) => self.memo.contains_key(&id(expr)),
                Step::Truth(expr) => self.truths.contains_key(&id(expr)),
            };
            match (done, ready, step) {
                (true, ..) => {}
                (_, true, Step::Value(expr)) => {
                    let node = self.node(&expr)?;
                    self.memo.insert(id(&expr), node);
                }
                (_, true, Step::Truth(expr)) => {
                    let truth = self.truth_of(&expr)?;
                    self.truths.insert(id(&expr), truth);
                }
                (_, false, step) => {
                    let needed = step.needs();
                    open.push((step, true));
                    open.extend(needed.into_iter().rev().map(|step| (step, false)));
                }
            }
        }
        Ok(())
    }

    /// Emits a node whose operands are emitted.
    fn node(&mut self, expr: &Expr) -> GpuResult<Node> {
        Ok(match expr {
            Expr::Column { index, ty } => self.column(*index, *ty)?,
            Expr::Param { slot, ty } => self.param(*slot, *ty, true)?,
            Expr::Compare { op, left, right } => {
                let (l, r) = (self.emit(left)?, self.emit(right)?);
                let (a, b, class) = self.pair(&l, &r, true)?;
                let valid = self.all(&[l.valid.as_deref(), r.valid.as_deref()]);
                let value = self.name(&comparison(*op, class, &a, &b));
                boolean(value, valid, &[&l, &r])
            }
            Expr::Distinct { negated, left, right } => {
                let (l, r) = (self.emit(left)?, self.emit(right)?);
                self.distinct(*negated, &l, &r)?
            }
            Expr::And(left, right) => {
                let (l, r) = (self.emit(left)?, self.emit(right)?);
                self.kleene(&l, &r, "&", "!")?
            }
            Expr::Or(left, right) => {
                let (l, r) = (self.emit(left)?, self.emit(right)?);
                self.kleene(&l, &r, "|", "")?
            }
            Expr::Not(operand) => {
                let e = self.emit(operand)?;
                expect_bool(&[&e])?;
                let value = self.name(&format!("!{}", e.value));
                boolean(value, e.valid.clone(), &[&e])
            }
            Expr::IsNull(operand) => {
                let e = self.emit(operand)?;
                let value = self.name(&format!("!{}", e.validity()));
                boolean(value, None, &[&e])
            }
            Expr::IsNotNull(operand) => {
                let e = self.emit(operand)?;
                boolean(e.validity().to_owned(), None, &[&e])
            }
            Expr::InList { expr, list, negated } => self.in_list(expr, list, *negated)?,
            Expr::InSorted { expr, table, len, negated } => self.in_sorted(expr, *table, *len, *negated)?,
            Expr::Arith { op, left, right, ty } => {
                let (l, r) = (self.emit(left)?, self.emit(right)?);
                self.arith(*op, &l, &r, *ty)?
            }
            Expr::Negate(operand) => {
                let e = self.emit(operand)?;
                self.negate(&e)?
            }
            Expr::Required(operand) => {
                let e = self.emit(operand)?;
                self.required(e)
            }
            Expr::Cast { expr: operand, to } => {
                let e = self.emit(operand)?;
                self.cast(&e, *to)?
            }
            Expr::Case { branches, otherwise, ty } => self.case(branches, otherwise.as_ref(), *ty)?,
            Expr::Lookup { codes, table, ty, fallible } => self.lookup(codes, *table, *ty, *fallible)?,
            Expr::Call { function, args, ty } => {
                let args = args.iter().map(|arg| self.emit(arg)).collect::<GpuResult<Vec<_>>>()?;
                let types: Vec<_> = args.iter().map(|arg| arg.ty).collect();
                function
                    .check(&types, *ty)
                    .map_err(|why| GpuError::Internal(format!("{function:?}: {why}")))?;
                self.call(*function, &args, *ty)?
            }
        })
    }

    fn truth_of(&mut self, expr: &Arc<Expr>) -> GpuResult<Truth> {
        Ok(match expr.as_ref() {
            Expr::And(left, right) => self.joined_truth(left, right, "&")?,
            Expr::Or(left, right) => self.joined_truth(left, right, "|")?,
            _ => {
                let node = self.emit(expr)?;
                expect_bool(&[&node])?;
                let value = self.all(&[Some(&node.value), node.valid.as_deref()]).unwrap_or_default();
                Truth { value, faults: node.faults }
            }
        })
    }

    fn joined_truth(&mut self, left: &Arc<Expr>, right: &Arc<Expr>, op: &str) -> GpuResult<Truth> {
        let (l, r) = (self.truth(left)?, self.truth(right)?);
        let value = self.name(&format!("{} {op} {}", l.value, r.value));
        Ok(Truth { value, faults: l.faults.union(&r.faults).cloned().collect() })
    }

    fn column(&mut self, index: usize, ty: ValueType) -> GpuResult<Node> {
        let Some(&(at, shape)) = self.columns.get(&index) else {
            return Err(GpuError::Internal(format!("column {index} has no shape")));
        };
        if shape.ty != ty {
            return Err(GpuError::Internal(format!("column {index} is {:?}, not {ty:?}", shape.ty)));
        }
        if ty == ValueType::Opaque {
            return Ok(self.opaque(at, shape));
        }
        let value = self.name(&decode(shape, &format!("r{at}")));
        let valid = shape.nullable.then(|| self.name(&format!("((v{at} >> (i & 31u)) & 1u) != 0u")));
        let bits = shape.bits();
        Ok(Node {
            value,
            valid,
            ty,
            class: Class::of(ty, bits),
            bits,
            constant: false,
            faults: BTreeSet::new(),
        })
    }

    pub(super) fn param(&mut self, slot: usize, ty: ValueType, held: bool) -> GpuResult<Node> {
        let value = match self.params.get(slot) {
            Some((actual, value)) if *actual == ty => *value,
            other => {
                return Err(GpuError::Internal(format!("parameter {slot} of {ty:?} is {other:?}")));
            }
        };
        let bits = match ty {
            ValueType::Decimal { .. } => round_bits(value.map_or(0, value_bits), 16),
            _ => type_bits(ty),
        };
        let class = Class::of(ty, bits);
        let (value, valid) = if held {
            self.held.insert(slot, class);
            (format!("p{slot}"), format!("p{slot}v"))
        } else {
            let (value, valid) = arg_load(class, self.params_at + slot * PARAM_WORDS);
            (self.name(&value), self.name(&valid))
        };
        Ok(Node { value, valid: Some(valid), ty, class, bits, constant: true, faults: BTreeSet::new() })
    }
}

/// Words of a parameter in the argument block: four of value, one of validity.
pub(crate) const PARAM_WORDS: usize = 5;

/// WGSL that reads value and validity of the parameter at word `at` of the argument block.
pub(crate) fn arg_load(class: Class, at: usize) -> (String, String) {
    let wide = |at: usize| format!("((u64(args[{}]) << 32u) | u64(args[{at}]))", at + 1);
    let value = match class {
        Class::Bool => format!("args[{at}] != 0u"),
        Class::I32 => format!("bitcast<i32>(args[{at}])"),
        Class::U32 => format!("args[{at}]"),
        Class::I64 => format!("bitcast<i64>({})", wide(at)),
        Class::U64 => wide(at),
        Class::Wide => format!("vec2<u64>({}, {})", wide(at), wide(at + 2)),
    };
    (value, format!("args[{}] != 0u", at + 4))
}

/// A decimal's value as 128 bits.
pub(crate) fn widened(node: &Node) -> String {
    match node.class {
        Class::Wide => node.value.clone(),
        _ => format!("w_from({})", node.value),
    }
}

/// Union of the operands' fault flags.
pub(super) fn faults_of(children: &[&Node]) -> BTreeSet<String> {
    children.iter().flat_map(|child| child.faults.iter().cloned()).collect()
}

/// Whether the kernels can evaluate the expression; otherwise what they cannot.
///
/// # Errors
/// A phrase that names the operation and the types.
pub fn check(expr: &Expr) -> Result<(), String> {
    nodes([expr]).into_iter().try_for_each(check_node)
}

fn check_node(expr: &Expr) -> Result<(), String> {
    let opaque = |child: &&Arc<Expr>| child.value_type() == ValueType::Opaque;
    let takes_opaque = matches!(expr, Expr::IsNull(_) | Expr::IsNotNull(_) | Expr::Lookup { .. });
    if let Some(child) = expr.children().into_iter().find(opaque).filter(|_| !takes_opaque) {
        return Err(format!("{child:?}, of which only is known whether it is NULL, as an operand"));
    }
    match expr {
        Expr::Arith { op, left, right, ty } => {
            super::arith::check_arith(*op, left.value_type(), right.value_type(), *ty)
        }
        Expr::Negate(operand) => super::arith::check_negate(operand.value_type(), operand.may_be_scalar()),
        Expr::Cast { expr, to } => super::arith::check_cast(expr.value_type(), *to),
        Expr::Case { branches, otherwise, ty } => super::case::check_case(branches, otherwise.as_ref(), *ty),
        Expr::Call { function, args, ty } => {
            let types: Vec<_> = args.iter().map(|arg| arg.value_type()).collect();
            function.check(&types, *ty)
        }
        Expr::InSorted { expr, len, .. } => super::search::check_search(expr.value_type(), *len),
        _ => Ok(()),
    }
}
