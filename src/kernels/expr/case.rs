//! CASE as WGSL: all branches are computed, one is selected, and faults are kept to the rows that meet them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{GpuError, GpuResult};

use super::ir::{Expr, ValueType};
use super::wgsl::{Emitter, Node, widened};
use super::widths::{Class, type_bits};

type Branch = (Arc<Expr>, Arc<Expr>);

impl Emitter<'_> {
    pub(super) fn case(
        &mut self,
        branches: &[Branch],
        otherwise: Option<&Arc<Expr>>,
        ty: ValueType,
    ) -> GpuResult<Node> {
        check_case(branches, otherwise, ty).map_err(GpuError::Internal)?;
        let mut faults = BTreeSet::new();
        // Rows that no condition took so far; `None` is all of them.
        let mut rest: Option<String> = None;
        let mut taken = Vec::with_capacity(branches.len());
        for (when, then) in branches {
            let when = self.truth(when)?;
            let then = self.emit(then)?;
            faults.extend(self.kept_to(&when.faults, &[rest.as_deref()]));
            faults.extend(self.kept_to(&then.faults, &[rest.as_deref(), Some(&when.value)]));
            let passed = format!("!{}", when.value);
            rest = self.all(&[rest.as_deref(), Some(&passed)]);
            taken.push((when.value, then));
        }
        let otherwise = otherwise.map(|e| self.emit(e)).transpose()?;
        if let Some(node) = &otherwise {
            faults.extend(self.kept_to(&node.faults, &[rest.as_deref()]));
        }
        let nodes: Vec<&Node> = taken.iter().map(|(_, node)| node).chain(&otherwise).collect();
        let constant = otherwise.is_none() || nodes.iter().any(|node| node.constant);
        let bits = nodes.iter().map(|node| node.bits).max().unwrap_or(type_bits(ty));
        let class = match nodes.iter().any(|node| node.class == Class::Wide) {
            true => Class::Wide,
            false => Class::of(ty, bits),
        };
        let never_null = otherwise.is_some() && nodes.iter().all(|node| node.valid.is_none());
        let mut node = otherwise.unwrap_or_else(|| missing(ty, class));
        node.value = in_class(&node, class);
        for (when, then) in taken.iter().rev() {
            node.value = self.name(&format!("select({}, {}, {when})", node.value, in_class(then, class)));
            if !never_null {
                let valid = format!("select({}, {}, {when})", node.validity(), then.validity());
                node.valid = Some(self.name(&valid));
            }
        }
        Ok(Node { ty, class, bits, constant, faults, ..node })
    }

    /// The flags where all conditions hold.
    fn kept_to(&mut self, faults: &BTreeSet<String>, conditions: &[Option<&str>]) -> BTreeSet<String> {
        let conditions: Vec<&str> = conditions.iter().copied().flatten().collect();
        if faults.is_empty() || conditions.is_empty() {
            return faults.clone();
        }
        let flags: Vec<String> = faults.iter().cloned().collect();
        let any = self.fold_flags(&flags, "|");
        BTreeSet::from([self.name(&format!("{any} & {}", conditions.join(" & ")))])
    }
}

/// NULL of a type.
fn missing(ty: ValueType, class: Class) -> Node {
    Node {
        value: class.zero().to_owned(),
        valid: Some("false".to_owned()),
        ty,
        class,
        bits: 0,
        constant: true,
        faults: BTreeSet::new(),
    }
}

/// A decimal beside wider ones.
fn in_class(node: &Node, class: Class) -> String {
    if class == Class::Wide { widened(node) } else { node.value.clone() }
}

/// Whether conditions and values have the types of a CASE; otherwise what does not fit.
pub(super) fn check_case(
    branches: &[Branch],
    otherwise: Option<&Arc<Expr>>,
    ty: ValueType,
) -> Result<(), String> {
    if branches.is_empty() || ty == ValueType::Opaque {
        return Err(format!("CASE of {ty:?} with {} WHEN", branches.len()));
    }
    if let Some((when, _)) = branches.iter().find(|(when, _)| when.value_type() != ValueType::Boolean) {
        return Err(format!("WHEN of type {:?}", when.value_type()));
    }
    let mut values = branches.iter().map(|(_, then)| then).chain(otherwise);
    match values.find(|value| value.value_type() != ty) {
        Some(value) => Err(format!("a branch of type {:?} in CASE of {ty:?}", value.value_type())),
        None => Ok(()),
    }
}
