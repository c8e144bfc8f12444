//! Long IN lists as WGSL: a binary search over parameters in the argument block, unrolled, since some drivers bound the
//! loops of an invocation.

use std::sync::Arc;

use crate::error::{GpuError, GpuResult};

use super::compare::{boolean, comparison};
use super::ir::{CompareOp, Expr, ValueType};
use super::wgsl::{Emitter, Node, PARAM_WORDS, widened};
use super::widths::Class;

impl Emitter<'_> {
    pub(super) fn in_sorted(
        &mut self,
        expr: &Arc<Expr>,
        list: &[Arc<Expr>],
        negated: bool,
    ) -> GpuResult<Node> {
        let needle = self.emit(expr)?;
        let first = self.first_of(&needle, list)?;
        // The width of a decimal parameter depends on its value, which must not shape the kernel.
        let wide = matches!(needle.ty, ValueType::Decimal { .. });
        let class = if wide { Class::Wide } else { needle.class };
        let value = if wide { self.name(&widened(&needle)) } else { needle.value.clone() };
        let base = self.params_at + first * PARAM_WORDS;

        // The number of candidates that are known to be less; NULLs lie at the end and are not.
        let mut below = "0u".to_owned();
        let mut step = list.len() / 2;
        while step > 0 {
            let word = self.name(&format!("{base}u + ({below} + {}u) * {PARAM_WORDS}u", step - 1));
            let candidate = self.name(&loaded(class, &word));
            let less = comparison(CompareOp::Lt, class, &candidate, &value);
            let less = self.name(&format!("(args[{word} + 4u] != 0u) & ({less})"));
            below = self.name(&format!("{below} + select(0u, {step}u, {less})"));
            step /= 2;
        }
        let word = self.name(&format!("{base}u + {below} * {PARAM_WORDS}u"));
        let candidate = self.name(&loaded(class, &word));
        let equal = comparison(CompareOp::Eq, class, &candidate, &value);
        let found = self.name(&format!("(args[{word} + 4u] != 0u) & ({equal})"));
        let last = base + (list.len() - 1) * PARAM_WORDS + 4;
        let decided = self.name(&format!("{found} | (args[{last}] != 0u)"));
        let valid = self.all(&[needle.valid.as_deref(), Some(&decided)]);
        let value = if negated { self.name(&format!("!{found}")) } else { found };
        Ok(boolean(value, valid, &[&needle]))
    }

    /// The slot of a list's first parameter.
    fn first_of(&self, needle: &Node, list: &[Arc<Expr>]) -> GpuResult<usize> {
        let first = match list.first().map(|e| e.as_ref()) {
            Some(Expr::Param { slot, .. }) if list.len().is_power_of_two() => *slot,
            _ => return Err(GpuError::Internal(format!("a search in a list of {}", list.len()))),
        };
        let fits = list.iter().zip(first..).all(|(e, at)| {
            matches!(e.as_ref(), Expr::Param { slot, ty } if *slot == at && *ty == needle.ty)
                && self.params.get(at).is_some_and(|(ty, _)| *ty == needle.ty)
        });
        if fits {
            Ok(first)
        } else {
            Err(GpuError::Internal("a list that is searched is not in order".to_owned()))
        }
    }
}

/// The parameter whose first word has the index `word`.
fn loaded(class: Class, word: &str) -> String {
    let two = |at: u32| format!("((u64(args[{word} + {}u]) << 32u) | u64(args[{word} + {at}u]))", at + 1);
    match class {
        Class::Bool => format!("args[{word}] != 0u"),
        Class::I32 => format!("bitcast<i32>(args[{word}])"),
        Class::U32 => format!("args[{word}]"),
        Class::I64 => format!("bitcast<i64>({})", two(0)),
        Class::U64 => two(0),
        Class::Wide => format!("vec2<u64>({}, {})", two(0), two(2)),
    }
}
