//! Comparisons, three-valued logic and IN lists as WGSL.

use std::sync::Arc;

use crate::error::{GpuError, GpuResult};

use super::ir::{CompareOp, Expr, ValueType};
use super::wgsl::{Emitter, Node, faults_of, widened};
use super::widths::{Class, type_bits};

/// Lists longer than this read their parameters from the argument block at each use instead of holding them in
/// registers.
const REGISTER_LIST: usize = 8;

impl Emitter<'_> {
    /// Both values in one class that compares with integer operators; `fold` takes -0 as +0.
    pub(super) fn pair(&mut self, l: &Node, r: &Node, fold: bool) -> GpuResult<(String, String, Class)> {
        let same = match (l.ty, r.ty) {
            (ValueType::Decimal { scale: a, .. }, ValueType::Decimal { scale: b, .. }) => a == b,
            (a, b) => a == b,
        };
        if !same || l.ty == ValueType::Opaque {
            return Err(GpuError::Internal(format!("comparison of {:?} with {:?}", l.ty, r.ty)));
        }
        Ok(match l.ty {
            ValueType::Float16 | ValueType::Float32 => (self.key(l, fold), self.key(r, fold), Class::I32),
            ValueType::Float64 => (self.key(l, fold), self.key(r, fold), Class::I64),
            _ if l.class == r.class => (l.value.clone(), r.value.clone(), l.class),
            _ => (widened(l), widened(r), Class::Wide),
        })
    }

    /// Order-preserving integer key of a float; with `fold`, -0 is +0.
    pub fn key(&mut self, node: &Node, fold: bool) -> String {
        let memo = (node.value.clone(), fold);
        if let Some(key) = self.keys.get(&memo) {
            return key.clone();
        }
        let bits = type_bits(node.ty);
        let kind = if fold { "fold" } else { "key" };
        let key = self.name(&format!("f_{kind}{bits}({})", node.value));
        self.keys.insert(memo, key.clone());
        key
    }

    pub(super) fn distinct(&mut self, negated: bool, l: &Node, r: &Node) -> GpuResult<Node> {
        let (a, b, class) = self.pair(l, r, true)?;
        let equal = comparison(CompareOp::Eq, class, &a, &b);
        let (lv, rv) = (l.validity(), r.validity());
        let same = if l.valid.is_none() && r.valid.is_none() {
            equal
        } else {
            format!("select({lv} == {rv}, {equal}, {lv} & {rv})")
        };
        let value = self.name(&if negated { same } else { format!("!({same})") });
        Ok(boolean(value, None, &[l, r]))
    }

    /// Three-valued AND (`decides` = "!") or OR (`decides` = ""): one valid operand that decides makes the result valid.
    /// The value needs no care: where the result is valid it is right, whatever lies under a NULL.
    pub(super) fn kleene(&mut self, l: &Node, r: &Node, op: &str, decides: &str) -> GpuResult<Node> {
        expect_bool(&[l, r])?;
        let value = self.name(&format!("{} {op} {}", l.value, r.value));
        let valid = match (&l.valid, &r.valid) {
            (None, None) => None,
            (Some(lv), None) => Some(self.name(&format!("{lv} | {decides}{}", r.value))),
            (None, Some(rv)) => Some(self.name(&format!("{rv} | {decides}{}", l.value))),
            (Some(lv), Some(rv)) => Some(self.name(&format!(
                "({lv} & {rv}) | ({lv} & {decides}{}) | ({rv} & {decides}{})",
                l.value, r.value
            ))),
        };
        Ok(boolean(value, valid, &[l, r]))
    }

    /// IN compares bits: unlike `=`, DataFusion does not take -0 for +0 here.
    pub(super) fn in_list(&mut self, expr: &Arc<Expr>, list: &[Arc<Expr>], negated: bool) -> GpuResult<Node> {
        let needle = self.emit(expr)?;
        let held = list.len() <= REGISTER_LIST;
        let mut found = vec![];
        let mut known = vec![];
        let mut children = vec![needle.clone()];
        for item in list {
            let candidate = match item.as_ref() {
                Expr::Param { slot, ty } if !held => self.param(*slot, *ty, false)?,
                _ => self.emit(item)?,
            };
            let (a, b, class) = match needle.ty {
                ValueType::Float16 | ValueType::Float32 | ValueType::Float64 if candidate.ty == needle.ty => {
                    (needle.value.clone(), candidate.value.clone(), needle.class)
                }
                _ => self.pair(&needle, &candidate, false)?,
            };
            let equal = comparison(CompareOp::Eq, class, &a, &b);
            found.push(match &candidate.valid {
                Some(valid) => format!("({valid} & ({equal}))"),
                None => format!("({equal})"),
            });
            known.extend(candidate.valid.clone());
            children.push(candidate);
        }
        let found = if found.is_empty() { "false".to_owned() } else { self.fold_flags(&found, "|") };
        let sure = if known.is_empty() { None } else { Some(self.fold_flags(&known, "&")) };
        let decided = sure.map(|sure| self.name(&format!("{found} | {sure}")));
        let valid = self.all(&[needle.valid.as_deref(), decided.as_deref()]);
        let value = if negated { self.name(&format!("!{found}")) } else { found };
        Ok(boolean(value, valid, &children.iter().collect::<Vec<_>>()))
    }

    /// Joins flags by an operator in statements of bounded length.
    pub(super) fn fold_flags(&mut self, flags: &[String], op: &str) -> String {
        let mut joined = String::new();
        for part in flags.chunks(16) {
            let text = part.join(&format!(" {op} "));
            joined = if joined.is_empty() {
                self.name(&text)
            } else {
                self.name(&format!("{joined} {op} {text}"))
            };
        }
        joined
    }
}

/// A boolean node over these children.
pub(super) fn boolean(value: String, valid: Option<String>, children: &[&Node]) -> Node {
    Node {
        value,
        valid,
        ty: ValueType::Boolean,
        class: Class::Bool,
        bits: 1,
        constant: children.iter().all(|child| child.constant),
        faults: faults_of(children),
    }
}

/// # Errors
/// [`GpuError::Internal`] for a node that is not boolean.
pub(super) fn expect_bool(nodes: &[&Node]) -> GpuResult<()> {
    match nodes.iter().find(|node| node.ty != ValueType::Boolean) {
        Some(node) => Err(GpuError::Internal(format!("a predicate has type {:?}", node.ty))),
        None => Ok(()),
    }
}

/// A comparison of two values of one class.
pub(super) fn comparison(op: CompareOp, class: Class, a: &str, b: &str) -> String {
    use CompareOp::*;
    match class {
        Class::Bool => match op {
            Eq => format!("{a} == {b}"),
            NotEq => format!("{a} != {b}"),
            Lt => format!("(!{a}) & {b}"),
            LtEq => format!("(!{a}) | {b}"),
            Gt => format!("{a} & (!{b})"),
            GtEq => format!("{a} | (!{b})"),
        },
        Class::Wide => match op {
            Eq => format!("w_eq({a}, {b})"),
            NotEq => format!("!w_eq({a}, {b})"),
            Lt => format!("w_lt({a}, {b})"),
            LtEq => format!("!w_lt({b}, {a})"),
            Gt => format!("w_lt({b}, {a})"),
            GtEq => format!("!w_lt({a}, {b})"),
        },
        _ => {
            let symbol = match op {
                Eq => "==",
                NotEq => "!=",
                Lt => "<",
                LtEq => "<=",
                Gt => ">",
                GtEq => ">=",
            };
            format!("{a} {symbol} {b}")
        }
    }
}
