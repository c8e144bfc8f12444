//! From occupied slots to dense keys and states: the kernels' texts, and the host's reading of what they write.

use std::fmt::Write;

use arrow::array::{ArrayRef, BooleanArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};

use crate::error::{GpuError, GpuResult};
use crate::kernels::exact::ExactSum;
use crate::kernels::expr::ValueType;
use crate::kernels::expr::widths::Class;
use crate::kernels::select::from_device;
use crate::memory::{BindingKind, ShaderSource};

use super::accumulate::{Accumulator, Fold, Memory, sum_words};
use super::columns::{Column, seen};
use super::float::Window;
use super::keys::Keys;
use super::plan::{Place, Rows};
use super::{GroupStates, StateValues};

/// Slots that a workgroup gathers at a time.
pub(super) const TILE: u32 = 1024;
/// Loop iterations a tile costs an invocation.
pub(super) const TILE_COST: u32 = 34;

/// The hand-written count of occupied slots.
pub(super) fn count_shader() -> ShaderSource {
    ShaderSource {
        name: "group_count".to_owned(),
        wgsl: include_str!("../../../shaders/group_by/count.wgsl").to_owned(),
        bindings: vec![BindingKind::ReadOnlyStorage, BindingKind::ReadOnlyStorage, BindingKind::Storage],
    }
}

/// Words of a group in the result.
pub(super) fn result_words(keys: &Keys, columns: &[Column]) -> u32 {
    keys.result_words() + columns.iter().map(Column::words).sum::<u32>()
}

/// The function that writes the group of slot record `record` as number `g`. Each value has a region of its own, in which groups
/// lie one after the other.
pub(super) fn emit_function(
    keys: &Keys,
    columns: &[Column],
    accumulators: &[Accumulator],
    table: Memory,
) -> String {
    let mut text =
        String::from("\nfn emit(record: u32, g: u32, cap: u32) {\n    let key = keys(table[record] - 1u);\n");
    let mut region = 0u32;
    let put = |text: &mut String, region: &mut u32, words: &[String]| {
        let count = words.len();
        for (at, word) in words.iter().enumerate() {
            let _ = writeln!(text, "        out[{region}u * cap + g * {count}u + {at}u] = {word};");
        }
        *region += count as u32;
    };
    for (at, field) in keys.fields.iter().enumerate() {
        text.push_str("    {\n");
        put(&mut text, &mut region, &sum_words(field.class, &format!("key.k{at}")));
        text.push_str("    }\n");
    }
    for word in 0..keys.flag_words {
        put(&mut text, &mut region, &[format!("key.z{word}")]);
    }
    for column in columns {
        text.push_str("    {\n");
        match column {
            Column::Of(Accumulator { fold: Fold::Float(float), at, .. }) => {
                let count = column.words();
                let to = format!("{region}u * cap + g * {count}u");
                text.push_str(&float.emit(&to, &table.index("record", *at)));
                region += count;
            }
            Column::Of(acc) => {
                let _ = writeln!(text, "        {}", acc.result(table));
                put(&mut text, &mut region, &sum_words(acc.result_class(), "value"));
            }
            Column::Seen(bits) => {
                text.push_str(&seen(bits, accumulators, table));
                put(&mut text, &mut region, &["seen".to_owned()]);
            }
        }
        text.push_str("    }\n");
    }
    text.push_str("}\n");
    text
}

/// The entry point's loop over tiles of slots.
pub(super) fn gather_loop(stride: u32) -> String {
    let mut text = String::from(GATHER_HEAD);
    for k in 0..TILE / 256 {
        let _ = writeln!(
            text,
            "        let slot{k} = t * 1024u + {0}u + l;
        let taken{k} = slot{k} < slots && table[min(slot{k}, slots - 1u) * {stride}u] != 0u;
        if (taken{k}) {{
            atomicOr(&words[{1}u + (l >> 5u)], 1u << (l & 31u));
        }}",
            k * 256,
            k * 8
        );
    }
    text.push_str(GATHER_RANKS);
    for k in 0..TILE / 256 {
        let _ = writeln!(
            text,
            "        if (taken{k}) {{
            let w = {}u + (l >> 5u);
            let g = first + ranks[w] + countOneBits(atomicLoad(&words[w]) & ((1u << (l & 31u)) - 1u));
            if (g < cap) {{
                emit(slot{k} * {stride}u, g, cap);
            }}
        }}",
            k * 8
        );
    }
    text.push_str("        workgroupBarrier();\n    }\n}\n");
    text
}

const GATHER_HEAD: &str = "    let slots = args[2];
    let tiles = args[3];
    let cap = args[4];
    for (var t = group; t < tiles; t += groups) {
        if (l < 32u) {
            atomicStore(&words[l], 0u);
        }
        workgroupBarrier();
";

const GATHER_RANKS: &str = "        workgroupBarrier();
        if (l < 32u) {
            var rank = 0u;
            for (var w = 0u; w < l; w++) {
                rank += countOneBits(atomicLoad(&words[w]));
            }
            ranks[l] = rank;
        }
        workgroupBarrier();
        let first = offsets[t] + block_offsets[t >> 11u];
";

/// The result's regions on the host.
pub(super) struct Regions<'a> {
    bytes: &'a [u8],
    /// Groups that the regions have room for, and that there are.
    cap: usize,
    groups: usize,
    /// Words a group of the regions so far.
    at: usize,
}

impl<'a> Regions<'a> {
    pub fn new(bytes: &'a [u8], cap: usize, groups: usize) -> Self {
        Regions { bytes, cap, groups, at: 0 }
    }

    /// The next region, of `words` words a group.
    fn next(&mut self, words: usize) -> GpuResult<&'a [u8]> {
        let first = self.at * self.cap * 4;
        self.at += words;
        self.bytes
            .get(first..first + self.groups * words * 4)
            .ok_or_else(|| GpuError::Internal(format!("{} bytes of groups end early", self.bytes.len())))
    }

    /// The keys, which come first.
    pub fn keys(&mut self, keys: &Keys) -> GpuResult<Vec<ArrayRef>> {
        let values = keys.fields.iter().map(|field| self.next(field.class.words()));
        let values = values.collect::<GpuResult<Vec<_>>>()?;
        let flags = (0..keys.flag_words).map(|_| Ok(words(self.next(1)?)));
        let flags = flags.collect::<GpuResult<Vec<Vec<u32>>>>()?;
        let fields = keys.fields.iter().zip(values);
        let arrays = fields.map(|(field, bytes)| {
            let nulls = field.flag.and_then(|flag| {
                let word = flags.get(flag as usize / 32)?;
                let valid = word.iter().map(|word| (word >> (flag % 32)) & 1 == 0);
                Some(NullBuffer::new(valid.collect::<BooleanBuffer>()))
            });
            let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
            array(field.ty, field.class, bytes, self.groups, nulls)
        });
        arrays.collect()
    }

    /// The columns of results, which come then: counts, arrays of values, and sums of floats in such windows.
    pub fn results(&mut self, columns: &[Column], windows: &[Window]) -> GpuResult<Vec<Accumulated>> {
        let results = columns.iter().map(|column| {
            let bytes = self.next(column.words() as usize)?;
            let Column::Of(acc) = column else { return Ok(Accumulated::Seen(words(bytes))) };
            Ok(match acc.fold {
                Fold::Float(float) => {
                    let window = windows.get(float.number);
                    let window = window.ok_or_else(|| missing("a sum of floats has no window"))?;
                    let words = words(bytes);
                    let groups = words.chunks_exact(float.result_words() as usize);
                    Accumulated::Sums(groups.map(|words| window.read(words)).collect())
                }
                Fold::Count => Accumulated::Counts(words(bytes).into_iter().map(u64::from).collect()),
                Fold::Seen { .. } => Accumulated::Seen(words(bytes)),
                _ => Accumulated::Values(array(acc.ty, acc.class, bytes, self.groups, None)?),
            })
        });
        results.collect()
    }
}

/// One column of results, one a group.
pub(super) enum Accumulated {
    Counts(Vec<u64>),
    Seen(Vec<u32>),
    Values(ArrayRef),
    Sums(Vec<ExactSum>),
}

fn missing(what: &str) -> GpuError {
    GpuError::Internal(what.to_owned())
}

impl Accumulated {
    /// States of an aggregate of `groups` groups out of its columns.
    pub fn states(results: &[Accumulated], place: Place, groups: usize) -> GpuResult<GroupStates> {
        let missing = || missing("an aggregate has no column");
        let counts = match place.rows {
            Rows::Group => vec![1; groups],
            Rows::Number(at) => match results.get(at) {
                Some(Accumulated::Counts(counts)) => counts.clone(),
                _ => return Err(missing()),
            },
            Rows::SomeOf(at) => match results.get(at) {
                Some(Accumulated::Counts(counts)) => counts.iter().map(|count| (*count).min(1)).collect(),
                _ => return Err(missing()),
            },
            Rows::Bit(at, bit) => match results.get(at) {
                Some(Accumulated::Seen(words)) => {
                    words.iter().map(|word| u64::from((word >> bit) & 1)).collect()
                }
                _ => return Err(missing()),
            },
        };
        let values = match place.value.map(|at| results.get(at)) {
            None => StateValues::None,
            Some(Some(Accumulated::Values(array))) => StateValues::Array(std::sync::Arc::clone(array)),
            Some(Some(Accumulated::Sums(sums))) => StateValues::Exact(sums.clone()),
            Some(_) => return Err(missing()),
        };
        Ok(GroupStates { counts, values })
    }
}

pub(super) fn words(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// An array of `groups` values that lie in a register class.
pub(super) fn array(
    ty: ValueType,
    class: Class,
    bytes: &[u8],
    groups: usize,
    nulls: Option<NullBuffer>,
) -> GpuResult<ArrayRef> {
    match ty {
        ValueType::Boolean => {
            let values = words(bytes).into_iter().map(|word| word != 0).collect::<BooleanBuffer>();
            Ok(std::sync::Arc::new(BooleanArray::new(values, nulls)))
        }
        _ => from_device(ty, class, bytes, groups, nulls),
    }
}
