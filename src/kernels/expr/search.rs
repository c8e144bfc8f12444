//! Long IN lists as WGSL: a binary search over a table of constants, unrolled, since some drivers bound the loops of an
//! invocation.

use std::sync::Arc;

use crate::error::{GpuError, GpuResult};

use super::compare::{boolean, comparison};
use super::ir::{CompareOp, Expr, ValueType};
use super::wgsl::{Emitter, Node, widened};
use super::widths::{ANY, Class};

/// Words before the values of a list: how many of them are candidates, and whether NULL is one.
pub const LIST_HEAD: usize = 2;

/// How the values of a list lie in its table.
pub fn list_class(ty: ValueType) -> Class {
    // How wide a decimal is depends on its value, which must not shape the kernel.
    Class::of(ty, ANY)
}

/// Whether values of the type are searched in a list of this length; otherwise why not.
pub(super) fn check_search(ty: ValueType, len: usize) -> Result<(), String> {
    let searched = !matches!(ty, ValueType::Null | ValueType::Opaque) && len.is_power_of_two();
    if searched { Ok(()) } else { Err(format!("a search of {ty:?} in a list of {len}")) }
}

impl Emitter<'_> {
    pub(super) fn in_sorted(
        &mut self,
        expr: &Arc<Expr>,
        table: usize,
        len: usize,
        negated: bool,
    ) -> GpuResult<Node> {
        let needle = self.emit(expr)?;
        check_search(needle.ty, len).map_err(GpuError::Internal)?;
        let class = list_class(needle.ty);
        let value = if class == Class::Wide { self.name(&widened(&needle)) } else { needle.value.clone() };
        self.tables.insert(table);

        // The number of candidates that are known to be less.
        let mut below = "0u".to_owned();
        let mut step = len / 2;
        while step > 0 {
            let candidate = self.candidate(table, class, &format!("{below} + {}u", step - 1));
            let less = self.name(&comparison(CompareOp::Lt, class, &candidate, &value));
            below = self.name(&format!("{below} + select(0u, {step}u, {less})"));
            step /= 2;
        }
        let candidate = self.candidate(table, class, &below);
        let equal = comparison(CompareOp::Eq, class, &candidate, &value);
        let found = self.name(&format!("(args[tf{table}] != 0u) & ({equal})"));
        let decided = self.name(&format!("{found} | (args[tf{table} + 1u] == 0u)"));
        let valid = self.all(&[needle.valid.as_deref(), Some(&decided)]);
        let value = if negated { self.name(&format!("!{found}")) } else { found };
        Ok(boolean(value, valid, &[&needle]))
    }

    /// Value number `index` of a list.
    fn candidate(&mut self, table: usize, class: Class, index: &str) -> String {
        let at = self.name(&format!("tv{table} + ({index}) * {}u", class.words()));
        let two =
            |word: u32| format!("((u64(args[{at} + {}u]) << 32u) | u64(args[{at} + {word}u]))", word + 1);
        let text = match class {
            Class::Bool => format!("args[{at}] != 0u"),
            Class::I32 => format!("bitcast<i32>(args[{at}])"),
            Class::U32 => format!("args[{at}]"),
            Class::I64 => format!("bitcast<i64>({})", two(0)),
            Class::U64 => two(0),
            Class::Wide => format!("vec2<u64>({}, {})", two(0), two(2)),
        };
        self.name(&text)
    }
}
