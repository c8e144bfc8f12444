//! Sums of floats in groups, exact and without a float instruction.
//!
//! A finite float is an integer times a power of two. A group's sum is such an integer too, in two's complement, in *limbs* of 32
//! bits on a fixed grid: those of the window that the segment's values need, the highest kept free for carries and the sign. A value
//! is added to two or three of them, with carries. The kernel notes which limbs values have; where some lie outside of the window, the
//! segment is grouped again with a wider one. NaN and infinities have words of their own, which records lack until some are met.

use arrow::array::ArrayRef;

use crate::kernels::exact::{ExactSum, Special};
use crate::kernels::expr::ValueType;
use crate::kernels::program::Program;
use crate::kernels::reduce::{AggregateKind, AggregateSpec, MOST_SAMPLED, Width};
use crate::kernels::reference::eval;

use super::SummedFloats;
use super::accumulate::Memory;
use super::plan::status;

/// Rows of a sample.
const SAMPLE: usize = 64;

/// Limbs, of 32 bits each, that hold the lowest bits of values; limb 0 begins at the lowest bit of the type's denormals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimbRange {
    /// The lowest.
    pub low: u32,
    /// The highest.
    pub high: u32,
}

impl LimbRange {
    /// The smallest range that holds both.
    #[must_use]
    pub fn union(self, other: LimbRange) -> LimbRange {
        LimbRange { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    /// The range of limbs whose bits are set.
    fn of_bits(bits: u64) -> Option<LimbRange> {
        (bits != 0).then(|| LimbRange { low: bits.trailing_zeros(), high: 63 - bits.leading_zeros() })
    }
}

impl SummedFloats {
    /// What both say together.
    pub(crate) fn union(&mut self, other: &SummedFloats) {
        self.limbs.resize(self.limbs.len().max(other.limbs.len()), None);
        for (limbs, met) in self.limbs.iter_mut().zip(&other.limbs) {
            *limbs = match (*limbs, *met) {
                (Some(known), Some(met)) => Some(known.union(met)),
                (known, met) => known.or(met),
            };
        }
        self.special |= other.special;
    }

    /// Looks at some of the `rows` of `columns`, whatever the selection. Rows whose value the CPU twin does not compute tell nothing,
    /// nor do sums of very large expressions.
    pub(crate) fn sample(
        program: &Program,
        aggregates: &[AggregateSpec],
        columns: &[ArrayRef],
        rows: usize,
    ) -> SummedFloats {
        let mut sums = SummedFloats::default();
        for (number, spec) in aggregates.iter().enumerate() {
            let Some(arg) = spec.arg.as_ref().filter(|_| spec.kind == AggregateKind::SumFloat) else {
                continue;
            };
            if arg.unshared() > MOST_SAMPLED {
                continue;
            }
            for row in (0..rows).step_by(rows.div_ceil(SAMPLE).max(1)) {
                if let Ok(Some(bits)) = eval(arg, &program.params, columns, row) {
                    sums.note(number, arg.value_type(), bits as u64);
                }
            }
        }
        sums
    }

    /// Notes one value of an aggregate's argument, of type `ty`, by its bits.
    pub(crate) fn note(&mut self, aggregate: usize, ty: ValueType, bits: u64) {
        let Some(width) = Width::of(ty) else { return };
        let (fraction_bits, sign) = match width {
            Width::Single => (23, 31),
            Width::Double => (52, 63),
        };
        let field = (bits >> fraction_bits) as u32 & width.special_field();
        if field == width.special_field() {
            self.special = true;
        } else if bits & !(1 << sign) != 0 {
            let limb = (field.max(1) - 1) >> 5;
            self.limbs.resize(self.limbs.len().max(aggregate + 1), None);
            if let Some(limbs) = self.limbs.get_mut(aggregate) {
                let met = LimbRange { low: limb, high: limb };
                *limbs = Some(limbs.map_or(met, |known| known.union(met)));
            }
        }
    }
}

/// Limbs that a value's mantissa may lie across.
const fn span(width: Width) -> u32 {
    match width {
        Width::Single => 2,
        Width::Double => 3,
    }
}

/// Limbs of windows, which shape the shader; the last holds every value.
const fn sizes(width: Width) -> &'static [u32] {
    match width {
        Width::Single => &[4, 10],
        Width::Double => &[5, 7, 20, 67],
    }
}

/// Limbs of values from 2^-30 to 2^34, where nothing is known.
const fn usual(width: Width) -> LimbRange {
    match width {
        Width::Single => LimbRange { low: 3, high: 4 },
        Width::Double => LimbRange { low: 31, high: 32 },
    }
}

/// The limbs of a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub width: Width,
    /// First limb: data, no part of a shader.
    pub base: u32,
    /// Number of limbs: 2^40 values within do not overflow them.
    pub limbs: u32,
}

impl Window {
    /// The smallest window around these limbs, or around usual ones.
    pub fn around(width: Width, range: Option<LimbRange>) -> Window {
        let LimbRange { low, high } = range.unwrap_or(usual(width));
        let window = |base, limbs| Window { width, base, limbs };
        let fitting = sizes(width).iter().map(|limbs| window(low, *limbs)).find(|window| window.holds(high));
        match fitting {
            // As much room above as below.
            Some(fit) => window(low.saturating_sub((fit.room() - (high - low)).div_ceil(2)), fit.limbs),
            None => window(0, sizes(width).last().copied().unwrap_or(0)),
        }
    }

    /// That of an aggregate, by what is known; `None` unless it sums floats.
    pub fn of(spec: &AggregateSpec, known: Option<LimbRange>) -> Option<Window> {
        let arg = spec.arg.as_ref().filter(|_| spec.kind == AggregateKind::SumFloat)?;
        Some(Window::around(Width::of(arg.value_type())?, known))
    }

    /// Limbs above the first in which a value's lowest bit may lie.
    fn room(self) -> u32 {
        self.limbs - 1 - span(self.width)
    }

    fn holds(self, limb: u32) -> bool {
        limb >= self.base && limb - self.base <= self.room()
    }

    /// Whether all values are inside, of which the kernel met such limbs.
    pub fn holds_all(self, met: Option<LimbRange>) -> bool {
        met.is_none_or(|met| self.holds(met.low) && self.holds(met.high))
    }

    /// The sum of a group: its limbs and, where they are kept, the infinities that it met (1 for +, 2 for -) and its largest NaN.
    pub fn read(self, words: &[u32]) -> ExactSum {
        let (limbs, special) = words.split_at_checked(self.limbs as usize).unwrap_or((words, &[]));
        let mut sum = ExactSum::from_words(limbs, self.width.lowest_at() + 32 * self.base);
        if let [infinities, low, high] = *special {
            let nan = u64::from(low) | u64::from(high) << 32;
            sum.note(Special { nan, plus: infinities & 1 != 0, minus: infinities & 2 != 0 });
        }
        sum
    }
}

/// A sum in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FloatFold {
    /// Whose window it has.
    pub number: usize,
    pub width: Width,
    pub limbs: u32,
    /// Argument function of a NaN's bits, where records have words for what is not finite.
    pub nan: Option<usize>,
}

impl FloatFold {
    /// Words in the record: limbs, then infinities, then row number + 1 of the row with the largest NaN.
    pub fn words(self) -> u32 {
        self.limbs + if self.nan.is_some() { 2 } else { 0 }
    }

    /// Words of the result, in which the NaN has two.
    pub fn result_words(self) -> u32 {
        self.limbs + if self.nan.is_some() { 3 } else { 0 }
    }

    /// The function that adds a value of row `i` by its bits to the record's words at `at`.
    ///
    /// What is taken away is added as its complement, whose upper limbs are all ones: with a carry they change nothing, nor do zeros
    /// without.
    pub fn function(self, memory: Memory) -> String {
        let (name, step, number) = (memory.name(), memory.step(), self.number);
        let (ty, split) = match self.width {
            Width::Single => ("u32", SINGLE),
            Width::Double => ("u64", DOUBLE),
        };
        let span = span(self.width);
        let mut adds = String::new();
        for (at, word) in ["x", "y", "z"].iter().enumerate().take(span as usize) {
            let (target, carry) = if at == 0 { ("var carry", "still") } else { ("carry", "carry") };
            let at = at as u32 * step;
            adds.push_str(&format!("    {target} = {name}_add(a + {at}u, {word} ^ fill, {carry});\n"));
        }
        let special = match self.nan {
            None => String::new(),
            Some(function) => format!(
                "        if ({} == 0u) {{
            atomicOr(&{name}[at + {}u], 1u << (hi >> 31u));
        }} else {{
            {name}_max{function}(at + {}u, i, {});
        }}\n",
                if self.width == Width::Single { "fraction" } else { "(fraction | lo)" },
                self.limbs * step,
                (self.limbs + 1) * step,
                nan_bits(self.width, "bits"),
            ),
        };
        format!(
            "
fn {name}_sum{number}(at: u32, bits: {ty}, i: u32) {{
{split}    if (field == {field:#x}u) {{
        state |= {flag}u;
{special}        return;
    }}
    if (zero) {{
        return;
    }}
    let lowest = max(field, 1u) - 1u;
    let limb = lowest >> 5u;
    met{number} |= 1lu << limb;
    let skip = limb - base{number};
    if (skip > {room}u) {{
        return;
    }}
    let up = lowest & 31u;
    let down = 31u - up;
{shifted}    let still = hi >> 31u;
    let fill = 0u - still;
    let a = at + skip * {step}u;
{adds}    for (var k = skip + {span}u; (carry != still) & (k < {limbs}u); k++) {{
        carry = {name}_add(at + k * {step}u, fill, carry);
    }}
}}
",
            field = self.width.special_field(),
            flag = status::SPECIAL,
            room = self.limbs - 1 - span,
            shifted = if self.width == Width::Single { SINGLE_SHIFTED } else { DOUBLE_SHIFTED },
            limbs = self.limbs,
        )
    }

    /// Statements that add the words from index `from` of `source` on to those from index `to` of `memory` on.
    pub fn merge(self, memory: Memory, to: &str, source: Memory, from: &str) -> String {
        let (name, step) = (memory.name(), memory.step());
        let (source_name, source_step) = (source.name(), source.step());
        let limbs = self.limbs;
        let mut text = format!(
            "{{
    var carry = 0u;
    for (var k = 0u; k < {limbs}u; k++) {{
        carry = {name}_add({to} + k * {step}u, atomicLoad(&{source_name}[{from} + k * {source_step}u]), carry);
    }}\n"
        );
        if let Some(function) = self.nan {
            let load = |word: u32| format!("atomicLoad(&{source_name}[{from} + {}u])", word * source_step);
            text.push_str(&format!(
                "    let infinities = {};
    if (infinities != 0u) {{
        atomicOr(&{name}[{to} + {}u], infinities);
    }}
    let best = {};
    if (best != 0u) {{
        {name}_max{function}({to} + {}u, best - 1u, arg{function}(best - 1u));
    }}\n",
                load(limbs),
                limbs * step,
                load(limbs + 1),
                (limbs + 1) * step,
            ));
        }
        text.push_str("}\n");
        text
    }

    /// Statements that write the result words to `out`, of which index `to` is the first; the record's begin at index `from` of
    /// `table`.
    pub fn emit(self, to: &str, from: &str) -> String {
        let limbs = self.limbs;
        let mut text =
            format!("        for (var k = 0u; k < {limbs}u; k++) {{ out[{to} + k] = table[{from} + k]; }}\n");
        if let Some(function) = self.nan {
            let nan = limbs + 1;
            text.push_str(&format!(
                "        out[{to} + {limbs}u] = table[{from} + {limbs}u];
        let row = table[{from} + {nan}u];
        let bits = select(0lu, arg{function}(max(row, 1u) - 1u), row != 0u);
        out[{to} + {nan}u] = u32(bits & 0xfffffffflu);
        out[{to} + {}u] = u32(bits >> 32u);\n",
                nan + 1
            ));
        }
        text
    }
}

/// A NaN's bits as a double's, with the quiet bit set.
pub(super) fn nan_bits(width: Width, bits: &str) -> String {
    match width {
        Width::Double => format!("({bits} | 0x8000000000000lu)"),
        Width::Single => {
            format!("((u64({bits} >> 31u) << 63u) | 0x7ff8000000000000lu | (u64({bits} & 0x7fffffu) << 29u))")
        }
    }
}

const DOUBLE: &str = "    let hi = u32(bits >> 32u);
    let lo = u32(bits & 0xfffffffflu);
    let field = (hi >> 20u) & 0x7ffu;
    let fraction = hi & 0xfffffu;
    let zero = ((hi << 1u) | lo) == 0u;
";

const DOUBLE_SHIFTED: &str = "    let high = select(fraction | 0x100000u, fraction, field == 0u);
    let x = lo << up;
    let y = (high << up) | ((lo >> 1u) >> down);
    let z = (high >> 1u) >> down;
";

const SINGLE: &str = "    let hi = bits;
    let field = (hi >> 23u) & 0xffu;
    let fraction = hi & 0x7fffffu;
    let zero = (hi << 1u) == 0u;
";

const SINGLE_SHIFTED: &str = "    let mantissa = select(fraction | 0x800000u, fraction, field == 0u);
    let x = mantissa << up;
    let y = (mantissa >> 1u) >> down;
";

/// The function that notes limbs that a kernel met.
pub(super) const MEET: &str = "
fn meet(at: u32, limbs: u32) {
    if ((atomicLoad(&status[at]) & limbs) != limbs) {
        atomicOr(&status[at], limbs);
    }
}
";

/// Statements at an invocation's end that note the limbs which sum `number` met.
pub(super) fn note_limbs(number: usize) -> String {
    let at = status::LIMBS_AT + 2 * number;
    format!(
        "    if (met{number} != 0lu) {{
        meet({at}u, u32(met{number} & 0xfffffffflu));
        meet({}u, u32(met{number} >> 32u));
    }}\n",
        at + 1
    )
}

/// The limbs that sums met, by number, from the status words.
pub(super) fn read_limbs(words: &[u32]) -> Vec<Option<LimbRange>> {
    let limbs = words.get(status::LIMBS_AT..).unwrap_or_default();
    let bits = |pair: &[u32]| pair.iter().rev().fold(0, |bits, word| bits << 32 | u64::from(*word));
    limbs.chunks_exact(2).map(|pair| LimbRange::of_bits(bits(pair))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_their_ranges() {
        for width in [Width::Single, Width::Double] {
            let last = (width.special_field() - 2) >> 5;
            for low in 0..=last {
                for high in low..=last {
                    let met = Some(LimbRange { low, high });
                    let window = Window::around(width, met);
                    assert!(window.holds_all(met), "{window:?} around {met:?}");
                    let smaller = sizes(width).iter().rev().find(|size| **size < window.limbs);
                    let smaller = smaller.map(|limbs| Window { limbs: *limbs, base: low, ..window });
                    assert!(
                        smaller.is_none_or(|smaller| !smaller.holds_all(met)),
                        "{window:?} around {met:?}"
                    );
                }
            }
            assert!(Window::around(width, None).holds_all(Some(usual(width))));
        }
    }

    #[test]
    fn values_are_noted() {
        let mut met = SummedFloats::default();
        let mut note = |x: f64| {
            met.note(1, ValueType::Float64, x.to_bits());
            met.clone()
        };
        assert_eq!(note(-0.0), SummedFloats::default());
        assert_eq!(note(-5e-324).limbs, [None, Some(LimbRange { low: 0, high: 0 })]);
        assert_eq!(note(1.0).limbs, [None, Some(LimbRange { low: 0, high: 31 })]);
        assert_eq!(note(f64::MAX).limbs, [None, Some(LimbRange { low: 0, high: 63 })]);
        assert!(!note(2.0).special && note(f64::NAN).special);
        let mut single = SummedFloats::default();
        single.note(0, ValueType::Float32, f32::MAX.to_bits().into());
        assert_eq!(single.limbs, [Some(LimbRange { low: 7, high: 7 })]);
        single.union(&met);
        let wanted = [Some(LimbRange { low: 7, high: 7 }), Some(LimbRange { low: 0, high: 63 })];
        assert_eq!((single.limbs.as_slice(), single.special), (wanted.as_slice(), true));
    }
}
