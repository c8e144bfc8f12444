//! Accumulators of a group: words of its record that zero leaves empty, updated by 32-bit atomics alone.

use std::fmt::Write;

use crate::kernels::expr::widths::Class;
use crate::kernels::expr::{ValueType, sign_extended};

use crate::kernels::reduce::RowOrder;

use super::float::FloatFold;

/// A function of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Bits {
    /// AND, as OR of the complements.
    And,
    Or,
    Xor,
}

/// A bit of [`Fold::Seen`] that other words of the record tell: it is set where one of them is not 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Told {
    pub bit: u32,
    /// Among the record's accumulators.
    pub words: Vec<u32>,
}

/// How rows come together in an accumulator's words.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Fold {
    /// Number of rows, one word.
    Count,
    /// Whether a row contributed, a bit for each of up to 32 conditions: one word, or none where other words tell all.
    Seen { stored: bool, told: Vec<Told> },
    /// Sum modulo 2^(32 `words`); `signed` tells whether the top bit is a sign.
    Sum { words: u32, signed: bool },
    /// Largest 32-bit order key of the rows, of MIN the complements; one word.
    Extreme { min: bool },
    /// Row number + 1 of the row with the best value, which argument function `function` computes again; one word.
    Best { min: bool, function: usize },
    /// Row number + 1 of the row that comes first in an order of argument function `function`, or, of NULLs, the complement of the
    /// least row number in a second word.
    First { order: RowOrder, function: usize, nullable: bool },
    /// A function of bits in so many words.
    Bits { words: u32, bits: Bits },
    /// Sum of floats.
    Float(FloatFold),
}

impl Fold {
    /// Words in the record.
    pub fn words(&self) -> u32 {
        match self {
            Fold::Sum { words, .. } | Fold::Bits { words, .. } => *words,
            Fold::Float(float) => float.words(),
            Fold::First { nullable: true, .. } => 2,
            Fold::Seen { stored: false, .. } => 0,
            _ => 1,
        }
    }

    /// Whether one of its words is not 0 where a row contributed, and only there.
    pub fn shows_rows(&self) -> bool {
        matches!(self, Fold::Best { .. } | Fold::First { .. })
    }

    /// The search for a best row that it needs.
    pub fn best(&self) -> Option<Best> {
        match *self {
            Fold::Best { min, function } => Some(Best { function, min, ties: false }),
            Fold::First { order, function, .. } => {
                Some(Best { function, min: !order.descending, ties: true })
            }
            Fold::Float(float) => Some(Best { function: float.nan?, min: false, ties: false }),
            _ => None,
        }
    }

    /// Loop iterations that an addition takes at most, where there is a loop.
    pub fn iterations(&self) -> u32 {
        match self {
            Fold::Float(float) => float.limbs,
            _ => 0,
        }
    }
}

/// A search for the best row by an argument function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Best {
    pub function: usize,
    /// Whether the least value is the best.
    pub min: bool,
    /// Whether of rows with equal values that with the least number is the best; without it, any.
    pub ties: bool,
}

impl Best {
    fn name(self, memory: &str) -> String {
        let kind = if self.min { "min" } else { "max" };
        format!("{memory}_{}{kind}{}", if self.ties { "first_" } else { "" }, self.function)
    }

    /// The update by a row; values of the argument function have class `class`.
    pub fn text(self, memory: &str, class: Class) -> String {
        let (small, large) = if self.min { ("x", "y") } else { ("y", "x") };
        let (less, equal) = match class {
            Class::Wide => (format!("w_lt({small}, {large})"), "w_eq(x, y)"),
            _ => (format!("{small} < {large}"), "x == y"),
        };
        let better = match self.ties {
            true => format!("{less} || ({equal} && i + 1u < best)"),
            false => less,
        };
        let (name, ty, function) = (self.name(memory), class.wgsl(), self.function);
        format!(
            "
fn {name}(at: u32, i: u32, x: {ty}) {{
    var best = atomicLoad(&{memory}[at]);
    for (var n = 0u; n < fights; n++) {{
        if (best != 0u) {{
            let y = arg{function}(best - 1u);
            if (!({better})) {{
                return;
            }}
        }}
        let swap = atomicCompareExchangeWeak(&{memory}[at], best, i + 1u);
        if (swap.exchanged) {{
            return;
        }}
        best = swap.old_value;
    }}
    state |= CONTENDED;
}}
"
        )
    }
}

/// One accumulator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Accumulator {
    pub fold: Fold,
    /// First word among the record's accumulators.
    pub at: u32,
    /// Type of the argument; of sums, that of the state.
    pub ty: ValueType,
    /// Class of the result.
    pub class: Class,
}

/// Where records lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// In device memory, one record after the other; accumulators begin after `head` words.
    Table { head: u32 },
    /// In a workgroup's memory, a plane of `slots` words for each word of a record; accumulators begin after `head` planes.
    Local { head: u32, slots: u32 },
}

impl Memory {
    /// Name of the array.
    pub fn name(self) -> &'static str {
        match self {
            Memory::Table { .. } => "table",
            Memory::Local { .. } => "local",
        }
    }

    /// Words from one word of a record to the next.
    pub fn step(self) -> u32 {
        match self {
            Memory::Table { .. } => 1,
            Memory::Local { slots, .. } => slots,
        }
    }

    /// Index of word `word` among the accumulators of the record `record`.
    pub fn index(self, record: &str, word: u32) -> String {
        match self {
            Memory::Table { head } => format!("{record} + {}u", head + word),
            Memory::Local { head, slots } => format!("{record} + {}u", (head + word) * slots),
        }
    }
}

/// A sum's input as 32-bit words, lowest first.
pub(super) fn sum_words(class: Class, value: &str) -> Vec<String> {
    let halves = |text: &str| [format!("u32(({text}) & 0xfffffffflu)"), format!("u32(({text}) >> 32u)")];
    match class {
        Class::Bool => vec![format!("select(0u, 1u, {value})")],
        Class::I32 => vec![format!("bitcast<u32>({value})")],
        Class::U32 => vec![value.to_owned()],
        Class::I64 => halves(&format!("bitcast<u64>({value})")).to_vec(),
        Class::U64 => halves(value).to_vec(),
        Class::Wide => [halves(&format!("({value}).x")), halves(&format!("({value}).y"))].concat(),
    }
}

/// The statement that raises a word to `key`.
fn maximum(memory: &str, at: &str, key: &str) -> String {
    format!("if (atomicLoad(&{memory}[{at}]) < {key}) {{ atomicMax(&{memory}[{at}], {key}); }}")
}

/// Functions that updates use: addition of a word and a carry to a word of `memory`, which gives the carry out, and of a word alone. Where
/// nothing is to be added, which is usual of upper words, the first leaves memory alone.
pub(super) fn library(memory: &str) -> String {
    format!(
        "
fn {memory}_add(at: u32, x: u32, carry: u32) -> u32 {{
    let s = x + carry;
    if (s == 0u) {{
        return carry;
    }}
    return select(0u, 1u, atomicAdd(&{memory}[at], s) > ~s);
}}

fn {memory}_begin(at: u32, x: u32) -> u32 {{
    return select(0u, 1u, atomicAdd(&{memory}[at], x) > ~x);
}}
"
    )
}

impl Accumulator {
    /// Statements that add `words` to the record `record`: a row's, or those of a record of fewer rows. Of a best row, `value` is
    /// the order key, of a sum of floats the value's bits, and `i` in scope the row. Where a row's value may be NULL and the row count
    /// all the same, the one word is whether it is not.
    pub fn update(&self, memory: Memory, record: &str, words: &[String], value: &str) -> String {
        let name = memory.name();
        let at = |word: u32| memory.index(record, self.at + word);
        let mut text = String::new();
        match &self.fold {
            Fold::Count => {
                let rows = words.first().map_or("1u", String::as_str);
                let _ = writeln!(text, "atomicAdd(&{name}[{}], {rows});", at(0));
            }
            Fold::Seen { .. } => {
                // All but the first rows find that nothing is new.
                for bits in words {
                    let at = at(0);
                    let new = format!("(atomicLoad(&{name}[{at}]) & bits) != bits");
                    let _ =
                        writeln!(text, "let bits = {bits}; if ({new}) {{ atomicOr(&{name}[{at}], bits); }}");
                }
            }
            Fold::Sum { words: width, .. } => {
                let mut carry = "0u".to_owned();
                for word in 0..*width {
                    let x = words.get(word as usize).map_or("0u", String::as_str);
                    let call = match (memory, word) {
                        // To look whether there is something to add costs more than to add.
                        (Memory::Local { .. }, 0) => format!("{name}_begin({}, {x})", at(word)),
                        _ => format!("{name}_add({}, {x}, {carry})", at(word)),
                    };
                    carry = format!("y{}_{word}", self.at);
                    let _ = match word + 1 == *width {
                        true => writeln!(text, "{call};"),
                        false => writeln!(text, "let {carry} = {call};"),
                    };
                }
            }
            Fold::Extreme { .. } => {
                let key = words.first().map_or("0u", String::as_str);
                let _ = writeln!(text, "{}", maximum(name, &at(0), key));
            }
            Fold::Bits { bits, .. } => {
                let function = if *bits == Bits::Xor { "atomicXor" } else { "atomicOr" };
                for (word, x) in (0..).zip(words) {
                    let _ = writeln!(text, "{function}(&{name}[{}], {x});", at(word));
                }
            }
            Fold::Best { .. } | Fold::First { .. } => {
                let search = self.fold.best().map_or_else(String::new, |best| best.name(name));
                let search = format!("{search}({}, i, {value});", at(0));
                let _ = match words.first() {
                    Some(valid) => writeln!(
                        text,
                        "if ({valid}) {{ {search} }} else {{ {} }}",
                        maximum(name, &at(1), "~i")
                    ),
                    None => writeln!(text, "{search}"),
                };
            }
            Fold::Float(float) => {
                let _ = writeln!(text, "{name}_sum{}({}, {value}, i);", float.number, at(0));
            }
        }
        text
    }

    /// Statements that add the record `from` of `source` to the record `record` of `memory`.
    pub fn merge(&self, memory: Memory, record: &str, source: Memory, from: &str) -> String {
        let load = |word| format!("atomicLoad(&{}[{}])", source.name(), source.index(from, self.at + word));
        match &self.fold {
            Fold::Best { function, .. } | Fold::First { function, .. } => {
                let update = self.update(memory, record, &[], &format!("arg{function}(i)"));
                let best = format!(
                    "{{ let best = {}; if (best != 0u) {{ let i = best - 1u; {update} }} }}\n",
                    load(0)
                );
                match &self.fold {
                    Fold::First { nullable: true, .. } => {
                        let at = memory.index(record, self.at + 1);
                        let null = maximum(memory.name(), &at, "last");
                        format!("{best}{{ let last = {}; {null} }}\n", load(1))
                    }
                    _ => best,
                }
            }
            Fold::Float(float) => {
                float.merge(memory, &memory.index(record, self.at), source, &source.index(from, self.at))
            }
            fold => {
                let words: Vec<String> = (0..fold.words()).map(load).collect();
                format!("{{ {} }}\n", self.update(memory, record, &words, ""))
            }
        }
    }

    /// Words of the result that go to the host.
    pub fn result_words(&self) -> u32 {
        match &self.fold {
            Fold::Float(float) => float.result_words(),
            _ => self.class.words() as u32,
        }
    }

    /// The statement that declares the result of record `record` in `table` as `value`. A sum of floats has none: its words are
    /// written one by one.
    pub fn result(&self, memory: Memory) -> String {
        let load = |word: u32| format!("table[{}]", memory.index("record", word));
        let at = |word: u32| load(self.at + word);
        match &self.fold {
            Fold::Count => format!("let value = {};", at(0)),
            Fold::Seen { stored, told } => {
                let mut parts: Vec<String> = stored.then(|| at(0)).into_iter().collect();
                parts.extend(told.iter().map(|Told { bit, words }| {
                    let set: Vec<String> =
                        words.iter().map(|word| format!("{} != 0u", load(*word))).collect();
                    format!("select(0u, {}u, {})", 1u32 << bit, set.join(" || "))
                }));
                format!("let value = {};", parts.join(" | "))
            }
            Fold::Sum { words, signed } => {
                let mut parts: Vec<String> = (0..*words).map(|word| format!("u64({})", at(word))).collect();
                let fill = match *signed && *words < 4 {
                    true => format!("select(0lu, 0xfffffffflu, ({} >> 31u) != 0u)", at(words - 1)),
                    false => "0lu".to_owned(),
                };
                parts.resize(4, fill);
                let low = format!("({}) | ({} << 32u)", parts[0], parts[1]);
                match self.class {
                    Class::Wide => {
                        format!("let value = vec2<u64>({low}, ({}) | ({} << 32u));", parts[2], parts[3])
                    }
                    _ => format!("let value = {low};"),
                }
            }
            Fold::Extreme { min } => {
                let key = if *min { format!("~{}", at(0)) } else { at(0) };
                let signed = format!("bitcast<i32>({key} ^ 0x80000000u)");
                let value = match (self.ty, self.class) {
                    (ValueType::Float16, _) => {
                        format!("bitcast<u32>(f_key16({key} ^ 0x80000000u)) & 0xffffu")
                    }
                    (ValueType::Float32, _) => format!("bitcast<u32>(f_key32({key} ^ 0x80000000u))"),
                    (_, Class::I32) => signed,
                    (_, Class::I64) => sign_extended(&signed),
                    _ => key,
                };
                format!("let value = {value};")
            }
            Fold::Bits { bits, .. } => {
                let word = |word| if *bits == Bits::And { format!("(~{})", at(word)) } else { at(word) };
                let wide = || format!("((u64({}) << 32u) | u64({}))", word(1), word(0));
                let value = match self.class {
                    Class::Bool => format!("{} & 1u", word(0)),
                    Class::I32 => format!("bitcast<i32>({})", word(0)),
                    Class::I64 => format!("bitcast<i64>({})", wide()),
                    Class::U64 => wide(),
                    _ => word(0),
                };
                format!("let value = {value};")
            }
            Fold::Best { function, .. } => {
                // Void where no row contributed; any row will do then.
                let row = format!("max({}, 1u) - 1u", at(0));
                match self.ty {
                    ValueType::Float64 => {
                        format!("let value = bitcast<u64>(f_key64(bitcast<u64>(arg{function}({row}))));")
                    }
                    _ => format!("let value = arg{function}({row});"),
                }
            }
            Fold::First { order, nullable, .. } => {
                let (row, null) = (format!("max({}, 1u) - 1u", at(0)), format!("~{}", at(1)));
                match (*nullable, order.nulls_first) {
                    (false, _) => format!("let value = {row};"),
                    (true, false) => format!("let value = select({null}, {row}, {} != 0u);", at(0)),
                    (true, true) => format!("let value = select({row}, {null}, {} != 0u);", at(1)),
                }
            }
            Fold::Float(_) => String::new(),
        }
    }

    /// Class of `value` as [`Self::result`] declares it.
    pub fn result_class(&self) -> Class {
        match (&self.fold, self.class) {
            (Fold::Count | Fold::Seen { .. }, _)
            | (Fold::Extreme { .. } | Fold::Bits { .. }, Class::Bool) => Class::U32,
            (Fold::Sum { .. }, Class::I64) => Class::U64,
            (_, class) => class,
        }
    }
}
