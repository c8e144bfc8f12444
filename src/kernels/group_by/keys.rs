//! Keys in the shader: a struct of values and NULL flags, its hash, and the function that reads it again for another row.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::widths::Class;
use crate::kernels::expr::{Emitter, Expr, Node, ValueType};
use crate::kernels::program::{ColumnShape, columns_of};
use crate::kernels::shader::Loads;
use crate::memory::ColumnRepr;

use super::GroupKey;
use super::accumulate::sum_words;

/// One key's field.
#[derive(Debug, Clone)]
pub(in crate::kernels) struct KeyField {
    pub ty: ValueType,
    /// Class of the field; booleans are 0 or 1.
    pub class: Class,
    /// Number of the NULL flag, that of the key, where the key may be NULL.
    pub flag: Option<u32>,
    /// Bound on the magnitude.
    pub bits: u8,
}

/// The keys of a grouping.
#[derive(Debug, Clone)]
pub(in crate::kernels) struct Keys {
    pub fields: Vec<KeyField>,
    /// Words of NULL flags.
    pub flag_words: u32,
}

/// Fields, and the expression that builds the struct.
pub(in crate::kernels) fn emit(
    emitter: &mut Emitter<'_>,
    keys: &[GroupKey],
    columns: &[ColumnShape],
) -> GpuResult<(Keys, String, BTreeSet<String>)> {
    let mut fields = vec![];
    let (mut values, mut flags): (Vec<String>, Vec<Option<String>>) = (vec![], vec![]);
    let mut faults = BTreeSet::new();
    for key in keys {
        let node = match key {
            GroupKey::Value(expr) => emitter.emit(expr)?,
            GroupKey::Codes(index) => codes(columns, *index)?,
        };
        faults.extend(node.faults.iter().cloned());
        let (value, class) = plain(emitter, &node)?;
        let flag = node.valid.as_ref().map(|_| flags.len() as u32);
        let value = match &node.valid {
            Some(valid) => emitter.name(&format!("select({}, {value}, {valid})", class.zero())),
            None => value,
        };
        flags.push(node.valid.clone());
        values.push(value);
        fields.push(KeyField { ty: node.ty, class, flag, bits: node.bits });
    }
    // By key, so that the groups of segments lie alike whichever of their keys may be NULL.
    let nullable = flags.iter().any(Option::is_some);
    let words = flags.chunks(32).filter(|_| nullable).map(|chunk| {
        let bit = |(at, valid): (usize, &Option<String>)| {
            valid.as_ref().map(|valid| format!("select({}u, 0u, {valid})", 1u32 << at))
        };
        let bits: Vec<String> = chunk.iter().enumerate().filter_map(bit).collect();
        if bits.is_empty() { "0u".to_owned() } else { bits.join(" | ") }
    });
    let mut words: Vec<String> = words.collect();
    if fields.is_empty() {
        words.push("0u".to_owned());
    }
    let flag_words = words.len() as u32;
    values.extend(words);
    Ok((Keys { fields, flag_words }, format!("Key({})", values.join(", ")), faults))
}

/// The codes of a column, 0 for NULL.
fn codes(columns: &[ColumnShape], index: usize) -> GpuResult<Node> {
    let coded = |shape: &&ColumnShape| shape.index == index && shape.repr == ColumnRepr::Codes;
    let Some(at) = columns.iter().position(|shape| coded(&shape)) else {
        return Err(GpuError::Internal(format!("column {index} has no codes to group by")));
    };
    Ok(Node {
        value: format!("r{at}"),
        valid: None,
        ty: ValueType::UInt32,
        class: Class::U32,
        bits: 32,
        constant: false,
        faults: BTreeSet::new(),
    })
}

/// A key's value such that equal keys have equal bits.
fn plain(emitter: &mut Emitter<'_>, node: &Node) -> GpuResult<(String, Class)> {
    Ok(match node.ty {
        ValueType::Opaque | ValueType::Null => {
            return Err(GpuError::Internal(format!("a grouping key of {:?}", node.ty)));
        }
        ValueType::Boolean => (format!("select(0u, 1u, {})", node.value), Class::U32),
        ValueType::Float16 => (zero_folded(emitter, node, "0x8000u"), Class::U32),
        ValueType::Float32 => (zero_folded(emitter, node, "0x80000000u"), Class::U32),
        ValueType::Float64 => (zero_folded(emitter, node, "0x8000000000000000lu"), Class::U64),
        _ => (node.value.clone(), node.class),
    })
}

fn zero_folded(emitter: &mut Emitter<'_>, node: &Node, zero: &str) -> String {
    let text = format!("select({0}, {1}, {0} == {zero})", node.value, node.class.zero());
    emitter.name(&text)
}

impl Keys {
    /// The struct, its hash and its comparison.
    pub fn text(&self) -> String {
        let mut text = String::from("struct Key {\n");
        for (at, field) in self.fields.iter().enumerate() {
            let _ = writeln!(text, "    k{at}: {},", field.class.wgsl());
        }
        for word in 0..self.flag_words {
            let _ = writeln!(text, "    z{word}: u32,");
        }
        text.push_str(HASH);
        for word in self.words() {
            let _ = writeln!(text, "    h = stir(h, {word});");
        }
        text.push_str("    return h;\n}\n");
        text.push_str(SETTLE);
        text.push_str("\nfn same(a: Key, b: Key) -> bool {\n    return ");
        let mut terms: Vec<String> = (0..self.flag_words).map(|at| format!("(a.z{at} == b.z{at})")).collect();
        terms.extend(self.fields.iter().enumerate().map(|(at, field)| match field.class {
            Class::Wide => format!("w_eq(a.k{at}, b.k{at})"),
            _ => format!("(a.k{at} == b.k{at})"),
        }));
        let _ = writeln!(text, "{};\n}}", terms.join(" & "));
        text
    }

    /// Words of `key` that tell it from every other.
    fn words(&self) -> Vec<String> {
        let values = self.fields.iter().enumerate().flat_map(|(at, field)| {
            let mut words = sum_words(field.class, &format!("key.k{at}"));
            if field.class == Class::I64 && field.bits <= 31 {
                words.truncate(1);
            }
            words
        });
        values.chain((0..self.flag_words).map(|word| format!("key.z{word}"))).collect()
    }

    /// Those that lie in a slot's record beside the owner; none where they are many.
    pub fn stored_words(&self) -> Vec<String> {
        let words = self.words();
        if words.len() <= MOST_STORED { words } else { vec![] }
    }

    /// Those that lie in a slot of a workgroup's table; none where they are many, and a hash lies there.
    pub fn local_words(&self) -> Vec<String> {
        let words = self.words();
        if words.len() <= MOST_LOCAL { words } else { vec![] }
    }

    /// 32-bit words of a key that go to the host.
    pub fn result_words(&self) -> u32 {
        self.fields.iter().map(|field| field.class.words() as u32).sum::<u32>() + self.flag_words
    }
}

/// Words of a key that a record holds at most: in device memory, and in that of a workgroup.
const MOST_STORED: usize = 8;
const MOST_LOCAL: usize = 4;

const HASH: &str = "}

fn stir(h: u32, word: u32) -> u32 {
    let x = (h ^ word) * 0x9e3779b1u;
    return ((x << 13u) | (x >> 19u)) ^ (x >> 16u);
}

fn stirred(key: Key, seed: u32) -> u32 {
    var h = seed;
";

/// What makes every bit of a hash depend on all bits of the keys' last words, too.
const SETTLE: &str = "
fn settled(stirred: u32) -> u32 {
    var h = (stirred ^ (stirred >> 15u)) * 0x2c1b3c6du;
    h = (h ^ (h >> 12u)) * 0x297a2d39u;
    return h ^ (h >> 15u);
}

fn hash(key: Key, seed: u32) -> u32 {
    return settled(stirred(key, seed));
}
";

/// A function `name` that computes something of row `i` from the columns that `exprs` read.
pub(super) fn row_function(
    name: &str,
    result: &str,
    emitter: &Emitter<'_>,
    columns: &[ColumnShape],
    used: &BTreeSet<usize>,
    value: &str,
) -> String {
    let loads = Loads::of(columns, used);
    format!(
        "\nfn {name}(i: u32) -> {result} {{\n{}{}{}    return {value};\n}}\n",
        loads.masks(),
        loads.statements("i", "", "    "),
        emitter.body
    )
}

/// Source columns that the keys read.
pub(in crate::kernels) fn key_columns(keys: &[GroupKey]) -> BTreeSet<usize> {
    let exprs: Vec<&Arc<Expr>> = keys.iter().filter_map(GroupKey::expr).collect();
    let mut columns = columns_of(exprs);
    columns.extend(keys.iter().filter_map(|key| match key {
        GroupKey::Codes(index) => Some(*index),
        GroupKey::Value(_) => None,
    }));
    columns
}
