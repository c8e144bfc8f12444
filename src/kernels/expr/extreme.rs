//! The greatest and the least of several values, of any type that compares.

use crate::error::{GpuError, GpuResult};

use super::compare::comparison;
use super::function::unknown_types;
use super::ir::{CompareOp, ValueType};
use super::wgsl::{Emitter, Node, faults_of, widened};
use super::widths::Class;

/// Functions over two and more operands of one type, which is the result's; floats in total order. NULLs are passed over:
/// the result is NULL where all operands are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtremeFn {
    /// `greatest`
    Greatest,
    /// `least`
    Least,
}

impl ExtremeFn {
    /// Whether the kernels have the function for these types.
    ///
    /// # Errors
    /// A phrase that names the types.
    pub fn check(self, args: &[ValueType], ty: ValueType) -> Result<(), String> {
        let valued = !matches!(ty, ValueType::Null | ValueType::Opaque);
        if args.len() > 1 && valued && args.iter().all(|arg| *arg == ty) {
            Ok(())
        } else {
            Err(unknown_types(args, ty))
        }
    }
}

impl Emitter<'_> {
    /// A value beats NULL, and is replaced by one that compares better.
    pub(super) fn extreme(&mut self, function: ExtremeFn, args: &[Node]) -> GpuResult<Node> {
        let keeps = match function {
            ExtremeFn::Greatest => CompareOp::GtEq,
            ExtremeFn::Least => CompareOp::LtEq,
        };
        let (Some(first), all) = (args.first(), args.iter().collect::<Vec<_>>()) else {
            return Err(GpuError::Internal("the greatest or least of nothing".to_owned()));
        };
        let mut best = first.clone();
        for next in &args[1..] {
            let (a, b, class) = self.pair(&best, next, false)?;
            let mut kept = self.name(&comparison(keeps, class, &a, &b));
            if let Some(valid) = &best.valid {
                kept = self.name(&format!("{valid} & {kept}"));
            }
            if let Some(valid) = &next.valid {
                kept = self.name(&format!("{kept} | !{valid}"));
            }
            let wide = best.class == Class::Wide || next.class == Class::Wide;
            let of = |node: &Node| if wide { widened(node) } else { node.value.clone() };
            best.value = self.name(&format!("select({}, {}, {kept})", of(next), of(&best)));
            best.valid = match (&best.valid, &next.valid) {
                (Some(a), Some(b)) => Some(self.name(&format!("{a} | {b}"))),
                _ => None,
            };
            if wide {
                best.class = Class::Wide;
            }
            best.bits = best.bits.max(next.bits);
        }
        Ok(Node { faults: faults_of(&all), constant: all.iter().all(|node| node.constant), ..best })
    }
}
