//! Sums of floats, exact and without a float instruction.
//!
//! A float is a mantissa times a power of two. Where the exponent lies within the segment's *window*, an invocation multiplies
//! the mantissa, in parts of at most 27 bits, by a power of two below 2^25 and adds the product to one of its 64-bit
//! registers: these do not overflow within the rows that an invocation takes. Windows of a workgroup are joined as 128-bit
//! integers. What lies outside is added to *limbs*: words of 32 bits over the whole range, those of positive and of
//! negative values apart so that no carry goes back and forth; in workgroup memory first. NaN and infinities are noted beside.

use std::fmt::Write;

use crate::kernels::exact::{ExactSum, Special};
use crate::kernels::expr::ValueType;

/// What is summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Width {
    /// Float32, 24 bits of mantissa.
    Single,
    /// Float64, 53 bits of mantissa.
    Double,
}

impl Width {
    pub fn of(ty: ValueType) -> Option<Self> {
        match ty {
            ValueType::Float32 => Some(Width::Single),
            ValueType::Float64 => Some(Width::Double),
            _ => None,
        }
    }

    /// Exponents that a register spans, so that 2^14 products stay below 2^63.
    const fn span(self) -> u32 {
        match self {
            Width::Single => 25,
            Width::Double => 23,
        }
    }

    /// Exponents of the window: those of two sets of registers.
    pub const fn window(self) -> u32 {
        2 * self.span()
    }

    /// Registers, each with the position of its lowest bit in the window.
    fn registers(self) -> &'static [u32] {
        match self {
            Width::Single => &[0, 25],
            Width::Double => &[0, 26, 23, 49],
        }
    }

    /// Exponent field of infinity and NaN.
    pub const fn special_field(self) -> u32 {
        match self {
            Width::Single => 0xff,
            Width::Double => 0x7ff,
        }
    }

    /// Exponent field of 1.
    const fn bias(self) -> u32 {
        self.special_field() / 2
    }

    /// The window's first exponent field for values around `field`: more room below, where smaller values are, than above.
    pub fn base_around(self, field: u32) -> u32 {
        let last = self.special_field() - self.window();
        field.saturating_sub(self.window() / 2 + 3).clamp(1, last)
    }

    /// The base where nothing is known: values around 1,000.
    pub fn default_base(self) -> u32 {
        self.base_around(self.bias() + 10)
    }

    /// Exponent field of a value's bits; `None` for zeros, denormals, and what is not finite.
    pub fn field(self, bits: u64) -> Option<u32> {
        let field = match self {
            Width::Single => bits >> 23,
            Width::Double => bits >> 52,
        } as u32
            & self.special_field();
        (1..self.special_field()).contains(&field).then_some(field)
    }

    /// Limbs of one sign: the whole range, and room for 2^32 rows.
    const fn limbs(self) -> u32 {
        match self {
            Width::Single => 10,
            Width::Double => 68,
        }
    }

    /// Position of the lowest bit, of denormals: bit 0 is 2^-1074.
    pub const fn lowest_at(self) -> u32 {
        match self {
            Width::Single => 925,
            Width::Double => 0,
        }
    }

    /// Words of a sum's limbs: of either sign, then the number of values outside the window and the exponent field of one of
    /// them.
    pub const fn words(self) -> u32 {
        2 * self.limbs() + 2
    }

    /// Declaration of the registers of accumulator `number`, and their first values.
    pub fn declaration(self, number: usize) -> (String, String) {
        let names = (0..self.registers().len()).map(|part| format!("a{number}_{part}"));
        names.fold(Default::default(), |(mut all, mut first), name| {
            let _ = write!(all, "var<private> {name}: i64;");
            let _ = write!(first, "{name} = 0li;");
            (all, first)
        })
    }

    /// The window's value of accumulator `number`.
    pub fn total(self, number: usize) -> String {
        let parts = self.registers().iter().enumerate().map(|(part, at)| match at {
            0 => format!("w_from(a{number}_{part})"),
            _ => format!("w_shl(w_from(a{number}_{part}), {at}u)"),
        });
        parts.reduce(|all, next| format!("w_add({all}, {next})")).unwrap_or_default()
    }
}

/// A sum of floats in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FloatSum {
    pub width: Width,
    /// The aggregate whose window it has.
    pub aggregate: usize,
    /// Accumulator of the window.
    pub window: usize,
    /// Accumulator of the largest NaN.
    pub nan: usize,
    /// Accumulator of the infinities: 1 for +, 2 for -.
    pub infinities: usize,
    /// First word of its limbs.
    pub limbs: u32,
    /// Which of the windows' bases is its own.
    pub base: usize,
}

/// Words of the argument block that hold bases, two each, and the first of them.
pub(super) const BASE_WORDS: usize = 6;
const BASES_AT: usize = 2;

/// The words of the argument block for these bases.
pub(super) fn base_words(bases: impl IntoIterator<Item = u32>) -> [u32; BASE_WORDS] {
    let mut words = [0; BASE_WORDS];
    for (at, base) in bases.into_iter().enumerate().take(2 * BASE_WORDS) {
        words[at / 2] |= base << (16 * (at % 2));
    }
    words
}

impl FloatSum {
    /// Statement that adds `value` where `counted`.
    pub fn update(&self, value: &str, counted: &str) -> String {
        format!("sum{}({value}, {counted});", self.window)
    }

    /// The variable of the window's base, and its value.
    pub fn base(&self) -> (String, String) {
        let (word, shift) = (BASES_AT + self.base / 2, 16 * (self.base % 2));
        let name = format!("b{}", self.window);
        (format!("var<private> {name}: u32;"), format!("{name} = (args[{word}] >> {shift}u) & 0xffffu;"))
    }

    /// The functions `sum<window>`, and `out<window>` for values outside the window.
    pub fn functions(&self) -> String {
        let text = match self.width {
            Width::Single => SINGLE,
            Width::Double => DOUBLE,
        };
        let numbers = [
            ("NAN", self.nan as u32),
            ("INF", self.infinities as u32),
            ("LIMBS", self.width.limbs()),
            ("STATS", self.limbs + 2 * self.width.limbs()),
            ("AT", self.limbs),
            ("SPAN", self.width.span()),
            ("N", self.window as u32),
        ];
        numbers.iter().fold(text.to_owned(), |text, (name, number)| {
            text.replace(&format!("${name}"), &number.to_string())
        })
    }

    /// Statements that add the workgroup's limbs to those of the segment.
    pub fn flush(&self) -> String {
        let (at, words, limbs) = (self.limbs, self.width.words(), 2 * self.width.limbs());
        format!(
            "    if (l < {words}u) {{
        let v = atomicLoad(&near[{at}u + l]);
        if (v != 0u) {{
            if (l < {limbs}u) {{
                x_far({at}u + l, v);
            }} else if (l == {limbs}u) {{
                atomicAdd(&far[{at}u + l], v);
            }} else {{
                atomicStore(&far[{at}u + l], v);
            }}
        }}
    }}
"
        )
    }

    /// The sum: what the window held over base field `base`, what was met besides, and the limbs of all floats.
    pub fn read(&self, window: i128, base: u32, special: Special, limbs: &[u32]) -> ExactSum {
        let mut sum = ExactSum::new();
        let lowest = self.width.lowest_at();
        sum.add_at(window, lowest + base - 1);
        sum.note(special);
        let (start, len) = (self.limbs as usize, self.width.limbs() as usize);
        for (first, negative) in [(start, false), (start + len, true)] {
            sum.add_words(limbs.get(first..first + len).unwrap_or_default(), lowest, negative);
        }
        sum
    }

    /// Values outside the window, zeros left out, and the exponent field of one of them.
    pub fn outside(&self, limbs: &[u32]) -> (u32, u32) {
        let at = (self.limbs + 2 * self.width.limbs()) as usize;
        let word = |at: usize| limbs.get(at).copied().unwrap_or(0);
        (word(at), word(at + 1))
    }
}

/// Limbs in workgroup memory and in the buffer `far`: additions of up to three words, and of one, with their carries.
pub(super) fn library(words: u32) -> String {
    format!(
        "var<workgroup> near: array<atomic<u32>, {words}>;
fn x_near(at: u32, low: u32, middle: u32, high: u32) {{
    let low_sum = atomicAdd(&near[at], low) + low;
    let carry = select(0u, 1u, low_sum < low);
    // Of two carries into the third word at most one is set.
    let second = middle + carry;
    let second_sum = atomicAdd(&near[at + 1u], second) + second;
    let third = high + select(0u, 1u, (second < carry) | (second_sum < second));
    if (third != 0u) {{
        var over = atomicAdd(&near[at + 2u], third) + third < third;
        for (var k = at + 3u; over & (k < {words}u); k++) {{
            over = atomicAdd(&near[k], 1u) == 0xffffffffu;
        }}
    }}
}}
fn x_far(at: u32, word: u32) {{
    var over = atomicAdd(&far[at], word) + word < word;
    for (var k = at + 1u; over & (k < {words}u); k++) {{
        over = atomicAdd(&far[k], 1u) == 0xffffffffu;
    }}
}}
"
    )
}

const DOUBLE: &str = "
fn sum$N(bits: u64, counted: bool) {
    let hi = u32(bits >> 32u);
    let lo = u32(bits & 0xfffffffflu);
    let s = ((hi >> 20u) & 0x7ffu) - b$N;
    let t = s - $SPANu;
    let sign = (bitcast<i32>(hi) >> 31u) | 1i;
    let f = i64(select(0i, sign << (s & 31u), counted & (s < $SPANu)));
    let g = i64(select(0i, sign << (t & 31u), counted & (t < $SPANu)));
    let low = i64(bitcast<i32>(lo & 0x3ffffffu));
    let high = i64(bitcast<i32>((((hi & 0xfffffu) | 0x100000u) << 6u) | (lo >> 26u)));
    a$N_0 += low * f;
    a$N_1 += high * f;
    a$N_2 += low * g;
    a$N_3 += high * g;
    if (counted & (s >= 2u * $SPANu) & (((hi << 1u) | lo) != 0u)) {
        out$N(hi, lo);
    }
}
fn out$N(hi: u32, lo: u32) {
    let field = (hi >> 20u) & 0x7ffu;
    let fraction = hi & 0xfffffu;
    if (field == 0x7ffu) {
        if ((fraction | lo) == 0u) {
            a$INF |= 1u << (hi >> 31u);
        } else {
            a$NAN = max(a$NAN, (u64(hi | 0x80000u) << 32u) | u64(lo));
        }
        return;
    }
    let high = select(fraction | 0x100000u, fraction, field == 0u);
    let at = max(field, 1u) - 1u;
    let up = at & 31u;
    let down = 31u - up;
    x_near($ATu + (hi >> 31u) * $LIMBSu + (at >> 5u), lo << up, (high << up) | ((lo >> 1u) >> down), (high >> 1u) >> down);
    atomicAdd(&near[$STATSu], 1u);
    atomicStore(&near[$STATSu + 1u], field);
}
";

const SINGLE: &str = "
fn sum$N(bits: u32, counted: bool) {
    let s = ((bits >> 23u) & 0xffu) - b$N;
    let t = s - $SPANu;
    let sign = (bitcast<i32>(bits) >> 31u) | 1i;
    let f = i64(select(0i, sign << (s & 31u), counted & (s < $SPANu)));
    let g = i64(select(0i, sign << (t & 31u), counted & (t < $SPANu)));
    let mantissa = i64(bitcast<i32>((bits & 0x7fffffu) | 0x800000u));
    a$N_0 += mantissa * f;
    a$N_1 += mantissa * g;
    if (counted & (s >= 2u * $SPANu) & ((bits << 1u) != 0u)) {
        out$N(bits);
    }
}
fn out$N(bits: u32) {
    let field = (bits >> 23u) & 0xffu;
    let fraction = bits & 0x7fffffu;
    if (field == 0xffu) {
        if (fraction == 0u) {
            a$INF |= 1u << (bits >> 31u);
        } else {
            let sign = u64(bits >> 31u) << 63u;
            a$NAN = max(a$NAN, sign | 0x7ff8000000000000lu | (u64(fraction) << 29u));
        }
        return;
    }
    let mantissa = select(fraction | 0x800000u, fraction, field == 0u);
    let at = max(field, 1u) - 1u;
    let up = at & 31u;
    x_near($ATu + (bits >> 31u) * $LIMBSu + (at >> 5u), mantissa << up, (mantissa >> 1u) >> (31u - up), 0u);
    atomicAdd(&near[$STATSu], 1u);
    atomicStore(&near[$STATSu + 1u], field);
}
";
