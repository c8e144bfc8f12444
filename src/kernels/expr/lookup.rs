//! Functions of a string column, looked up by the row's code, and columns of which only NULL or the code is seen.
//!
//! A table has one entry a distinct value of the batch, entry 0 for NULL. Its flags come first, four bits an entry: the
//! value of a boolean, whether the result is not NULL, whether the function raised. Values of other types follow, each in
//! as many words as its register class has.

use std::collections::BTreeSet;

use crate::error::{GpuError, GpuResult};
use crate::kernels::program::ColumnShape;
use crate::memory::column::ColumnRepr;

use super::ir::{Expr, ValueType};
use super::wgsl::{Emitter, Node};
use super::widths::{ANY, Class, pow10_bits, type_bits};

/// Flag of a boolean's value.
pub const TRUE: u32 = 1;
/// Flag of a result that is not NULL.
pub const VALID: u32 = 2;
/// Flag of a value for which the function raised.
pub const POISON: u32 = 4;

/// Bound on the magnitude of a table's values.
fn bits(ty: ValueType) -> u8 {
    match ty {
        // Narrow decimals are checked when the table is packed.
        ValueType::Decimal { precision, .. } if precision <= 18 => pow10_bits(18),
        ValueType::Decimal { .. } => ANY,
        _ => type_bits(ty),
    }
}

/// Words that a table has for each entry's value.
pub fn value_words(ty: ValueType) -> usize {
    match ty {
        ValueType::Boolean | ValueType::Opaque | ValueType::Null => 0,
        _ => Class::of(ty, bits(ty)).words(),
    }
}

impl Emitter<'_> {
    /// A column of which a kernel sees its codes, or only which rows are NULL.
    pub(super) fn opaque(&mut self, at: usize, shape: &ColumnShape) -> Node {
        let (value, valid) = match shape.repr {
            ColumnRepr::Codes => (format!("r{at}"), format!("r{at} != 0u")),
            _ => ("0u".to_owned(), format!("((r{at} >> (i & 31u)) & 1u) != 0u")),
        };
        let valid = Some(self.name(&valid));
        let (ty, class, bits) = (ValueType::Opaque, Class::U32, type_bits(ValueType::Opaque));
        Node { value, valid, ty, class, bits, constant: false, faults: BTreeSet::new() }
    }

    /// The entry of table `table` for the row's code.
    pub(super) fn lookup(
        &mut self,
        codes: &std::sync::Arc<Expr>,
        table: usize,
        ty: ValueType,
        fallible: bool,
    ) -> GpuResult<Node> {
        let coded = match codes.as_ref() {
            Expr::Column { index, .. } => {
                self.columns.get(index).is_some_and(|(_, shape)| shape.repr == ColumnRepr::Codes)
            }
            _ => false,
        };
        if !coded {
            return Err(GpuError::Internal(format!("look-up table {table} is not indexed by codes")));
        }
        let code = self.emit(codes)?.value;
        self.tables.insert(table);
        let flags = self.name(&format!("args[tf{table} + ({code} >> 3u)] >> (({code} & 7u) << 2u)"));
        let valid = Some(self.name(&format!("({flags} & {VALID}u) != 0u")));
        let class = Class::of(ty, bits(ty));
        let word = |at: usize| match class.words() {
            1 => format!("args[tv{table} + {code}]"),
            words => format!("args[tv{table} + {code} * {words}u + {at}u]"),
        };
        let wide = |at: usize| format!("((u64({}) << 32u) | u64({}))", word(at + 1), word(at));
        let value = match (ty, class) {
            (ValueType::Opaque | ValueType::Null, _) => "0u".to_owned(),
            (_, Class::Bool) => self.name(&format!("({flags} & {TRUE}u) != 0u")),
            (_, Class::U32) => self.name(&word(0)),
            (_, Class::I32) => self.name(&format!("bitcast<i32>({})", word(0))),
            (_, Class::U64) => self.name(&wide(0)),
            (_, Class::I64) => self.name(&format!("bitcast<i64>({})", wide(0))),
            (_, Class::Wide) => self.name(&format!("vec2<u64>({}, {})", wide(0), wide(2))),
        };
        let mut faults = BTreeSet::new();
        if fallible {
            faults.insert(self.name(&format!("({flags} & {POISON}u) != 0u")));
        }
        // As Expr::may_be_scalar has it: the function may hold a CASE.
        Ok(Node { value, valid, ty, class, bits: bits(ty), constant: true, faults })
    }
}
