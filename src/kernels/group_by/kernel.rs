//! The text of the kernel that finds each row's group and adds the row, in the modes of [`super::strategy`].

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::error::GpuResult;
use crate::kernels::expr::widths::Class;
use crate::kernels::shader::{ENTRY, Loads};

use super::accumulate::{Accumulator, Fold, Memory, library};
use super::builder::Function;
use super::float::{MEET, Window, note_limbs};
use super::keys::Keys;
use super::plan::status;
use super::strategy::{Local, Mode};
use super::table::{HELD, NONE, digits, direct, find, find_local, place_directly};

/// An aggregate's contribution to a record, and the condition under which a row makes it.
#[derive(Debug, Clone)]
pub(super) struct Update {
    /// The accumulator.
    pub accumulator: usize,
    /// Names of its words and its value.
    pub words: Vec<String>,
    pub value: String,
    pub condition: String,
}

/// What the kernel's text is made of.
pub(super) struct Body<'a> {
    pub mode: Mode,
    pub keys: &'a Keys,
    /// Expression of a row's key.
    pub key: &'a str,
    /// Statements that every row runs first, and the condition of a row that has a group.
    pub statements: String,
    pub selected: &'a str,
    pub accumulators: &'a [Accumulator],
    pub updates: &'a [Update],
    /// Arguments that are computed again for other rows.
    pub functions: &'a [Function],
    /// Windows of sums of floats.
    pub sums: &'a [Window],
    /// Words of a record in the table.
    pub stride: u32,
    /// Slots of a workgroup's table.
    pub local_slots: u32,
    /// Invocations of a workgroup.
    pub threads: u32,
    pub unroll: u32,
}

impl Body<'_> {
    /// Where records of the table lie.
    fn table(&self) -> Memory {
        Memory::Table { head: head(self.mode, self.keys) }
    }

    /// Where those of a workgroup lie: behind owner and, where slots are searched, tag.
    fn local(&self) -> Memory {
        Memory::Local { head: local_head(self.mode.local, self.keys), slots: self.local_slots }
    }

    /// Everything between the functions of rows and the entry point.
    pub fn functions(&self, loads: &Loads<'_>) -> GpuResult<String> {
        let mut text = String::new();
        for (name, _) in HELD {
            let _ = writeln!(text, "var<private> {name}: u32;");
        }
        if self.mode.direct {
            text.push_str(&digits(self.keys).0);
        }
        for number in 0..self.sums.len() {
            let _ = writeln!(text, "var<private> base{number}: u32;\nvar<private> met{number}: u64;");
        }
        if !self.sums.is_empty() {
            text.push_str(MEET);
        }
        if self.mode.ordered {
            text.push_str("var<private> alike: u32;\n");
        }
        text.push_str(&match self.mode.direct {
            true => direct(self.keys) + &place_directly(self.stride),
            false => find(self.keys, self.stride, self.mode.ordered),
        });
        self.memory_functions(&mut text, self.table());
        if self.mode.local != Local::None {
            let words = (local_head(self.mode.local, self.keys)
                + self.accumulators.iter().map(|acc| acc.fold.words()).sum::<u32>())
                * self.local_slots;
            let _ =
                writeln!(text, "var<workgroup> local: array<atomic<u32>, {words}>;\nvar<private> lane: u32;");
            self.memory_functions(&mut text, self.local());
            if self.mode.local == Local::Cache {
                text.push_str("var<private> credit: u32;\n");
                text.push_str(&find_local(self.keys, self.local_slots));
            }
        }
        let _ = writeln!(text, "fn row(i: u32, live: bool{}) {{\n{}", loads.parameters()?, self.statements);
        let _ = writeln!(
            text,
            "    if (!{}) {{\n        return;\n    }}\n    let key = {};",
            self.selected, self.key
        );
        text.push_str(&self.placing());
        text.push_str("}\n");
        Ok(text)
    }

    /// Functions that updates in a memory use.
    fn memory_functions(&self, text: &mut String, memory: Memory) {
        text.push_str(&library(memory.name()));
        let mut known = BTreeSet::new();
        for acc in self.accumulators {
            if let Some(best) = acc.fold.best()
                && known.insert(best)
            {
                let class = self.functions.get(best.function).map_or(Class::I64, |function| function.class);
                text.push_str(&best.text(memory.name(), class));
            }
            if let Fold::Float(float) = acc.fold {
                text.push_str(&float.function(memory));
            }
        }
    }

    /// Statements that find the row's group and add the row.
    fn placing(&self) -> String {
        let mut text = String::new();
        if self.mode.local == Local::Direct {
            let _ = writeln!(
                text,
                "    let slot = direct(key);
    if (slot == {NONE}) {{
        return;
    }}
    let at = slot * copies + (lane & (copies - 1u));
    if (atomicLoad(&local[at]) == 0u) {{
        atomicStore(&local[at], i + 1u);
    }}
{}",
                self.updates_in(self.local())
            );
            return text;
        }
        if self.mode.local == Local::Cache {
            text.push_str("    let g = stirred(key, seed);\n");
            // Rows that find their group here earn more tries for others; where groups are many, few try.
            let _ = writeln!(
                text,
                "    if (credit > 0u) {{
        let at = find_local(i, key, g);
        if (at != {NONE}) {{
            credit = min(credit + 2u, 32u);
{}            return;
        }}
        credit -= 1u;
    }}",
                self.updates_in(self.local())
            );
        }
        let _ = writeln!(
            text,
            "    let at = place(i, key, {});
    if (at == {NONE}) {{
        return;
    }}
{}",
            match self.mode {
                Mode { direct: false, local: Local::Cache, .. } => "settled(g)",
                _ => self.hash(),
            },
            self.updates_in(self.table())
        );
        text
    }

    /// The hash of `key`, where slots are searched.
    fn hash(&self) -> &'static str {
        match self.mode {
            Mode { direct: true, .. } => "0u",
            _ => "hash(key, seed)",
        }
    }

    /// Statements that add the row to record `at`.
    fn updates_in(&self, memory: Memory) -> String {
        let mut text = String::new();
        for update in self.updates {
            let Some(acc) = self.accumulators.get(update.accumulator) else { continue };
            let statements = acc.update(memory, "at", &update.words, &update.value);
            let _ = match update.condition == self.selected {
                true => writeln!(text, "    {{\n{statements}    }}"),
                false => writeln!(text, "    if ({}) {{\n{statements}    }}", update.condition),
            };
        }
        text
    }

    /// The entry point. Loads of an iteration come first, so that they are in flight together; the loop ends early where the
    /// attempt has failed. All invocations look for that in one word, which gives few answers at a time, so they look rarely.
    pub fn entry(&self, loads: &Loads<'_>, param_loads: &str) -> String {
        let mut text = ENTRY.replace("(256)", &format!("({})", self.threads));
        text.push_str(&loads.masks());
        text.push_str(param_loads);
        text.push_str("    state = 0u;\n");
        for (name, value) in HELD {
            let _ = writeln!(text, "    {name} = {value};");
        }
        if self.mode.direct {
            text.push_str(&digits(self.keys).1);
        }
        // The windows' bases lie behind the keys' digits.
        let digits = if self.mode.direct { 4 * self.keys.fields.len() } else { 0 };
        for number in 0..self.sums.len() {
            let _ = writeln!(
                text,
                "    base{number} = args[args[7] + {}u];\n    met{number} = 0lu;",
                digits + number
            );
        }
        if self.mode.local != Local::None {
            if self.mode.local == Local::Direct {
                text.push_str("    lane = l;\n");
            }
            if self.mode.local == Local::Cache {
                text.push_str("    credit = 16u;\n");
            }
        }
        let failed = status::FAILED;
        let vain = format!("(state & {failed}u) != 0u");
        let flush = if self.mode.local == Local::None { String::new() } else { self.flush(&vain) };
        let tile = self.threads * self.unroll;
        if self.mode.ordered {
            // A window of the order at a time.
            let behind = digits + self.sums.len();
            let credit = if self.mode.local == Local::Cache { "        credit = 32u;\n" } else { "" };
            let _ = writeln!(
                text,
                "    let first = args[args[7] + {behind}u];
    let window = args[args[7] + {}u];
    alike = args[args[7] + {}u];
    for (var start = first + group * window; start < rows; start += groups * window) {{
{credit}        let end = min(start + window, rows);
        let last = end - 1u;
        state |= atomicLoad(&status[0]) & {failed}u;
        for (var base = start; base < end; base += {tile}u) {{",
                behind + 1,
                behind + 2,
            );
            text.push_str(&self.rows(loads, "end", "ids[min(i, last)]"));
            let _ = writeln!(text, "        if ({vain}) {{\n            break;\n        }}\n        }}");
            text.push_str(&flush);
            text.push_str("    }\n");
        } else {
            let _ = writeln!(
                text,
                "    let last = rows - 1u;
    var turn = 0u;
    for (var base = group * {tile}u; base < rows; base += groups * {tile}u) {{"
            );
            text.push_str(&self.rows(loads, "rows", "min(i, last)"));
            let _ = writeln!(
                text,
                "        turn += 1u;
        if ((turn & 15u) == 0u) {{
            state |= atomicLoad(&status[0]) & {failed}u;
        }}
        if ({vain}) {{
            break;
        }}
    }}
    state |= atomicLoad(&status[0]) & {failed}u;"
            );
            text.push_str(&flush);
        }
        text.push_str("    if (state != 0u) {\n        atomicOr(&status[0], state);\n    }\n");
        (0..self.sums.len()).for_each(|number| text.push_str(&note_limbs(number)));
        text.push_str("}\n");
        text
    }

    /// Statements that load and add the rows of an iteration, of which there are some up to `end`; `row` is the row of place `i`.
    fn rows(&self, loads: &Loads<'_>, end: &str, row: &str) -> String {
        let mut text = String::new();
        for u in 0..self.unroll {
            let row = row.replace("(i,", &format!("(i{u},"));
            let _ = writeln!(
                text,
                "        let i{u} = base + l + {}u;\n        let j{u} = {row};",
                u * self.threads
            );
            text.push_str(&loads.statements(&format!("j{u}"), &format!("_{u}"), "        "));
        }
        for u in 0..self.unroll {
            let _ = writeln!(text, "        row(j{u}, i{u} < {end}{});", loads.arguments(&format!("_{u}")));
        }
        text
    }

    /// Statements that move the workgroup's table into the table; of ordered rows, it is empty then.
    fn flush(&self, vain: &str) -> String {
        let (slots, threads) = (self.local_slots, self.threads);
        let mut text = String::from("    workgroupBarrier();\n");
        let computed = self.mode.local == Local::Direct;
        if computed {
            // Copies of a slot meet in the first.
            let _ = writeln!(
                text,
                "    for (var d = copies >> 1u; d > 0u; d >>= 1u) {{
        for (var to = l; to < {slots}u; to += {threads}u) {{
            let other = to + d;
            if ((to & (copies - 1u)) < d && atomicLoad(&local[other]) != 0u) {{
                atomicStore(&local[to], atomicLoad(&local[other]));
{}            }}
        }}
        workgroupBarrier();
    }}",
                self.merged(self.local(), "to", "other")
            );
        }
        let condition = if computed { " && (other & (copies - 1u)) == 0u" } else { "" };
        let _ = writeln!(
            text,
            "    for (var other = l; other < {slots}u; other += {threads}u) {{
        if ({vain}) {{
            break;
        }}
        let owner = atomicLoad(&local[other]);
        if (owner != 0u{condition}) {{
            let key = keys(owner - 1u);
            let at = place(owner - 1u, key, {});
            if (at != {NONE}) {{
{}            }}
{}        }}
    }}",
            self.hash(),
            self.merged(self.table(), "at", "other"),
            if self.mode.ordered { self.emptied() } else { String::new() },
        );
        if self.mode.ordered {
            text.push_str("    workgroupBarrier();\n");
        }
        text
    }

    /// Statements that empty the slot `other` of the workgroup's table.
    fn emptied(&self) -> String {
        let words = self.accumulators.iter().map(|acc| acc.fold.words()).sum::<u32>();
        let planes = local_head(self.mode.local, self.keys) + words;
        format!(
            "            for (var w = 0u; w < {planes}u; w++) {{
                atomicStore(&local[other + w * {}u], 0u);
            }}
",
            self.local_slots
        )
    }

    fn merged(&self, memory: Memory, to: &str, from: &str) -> String {
        self.accumulators.iter().map(|acc| acc.merge(memory, to, self.local(), from)).collect()
    }
}

/// Words of a record in the table before its accumulators: the owner, and where slots are searched the key.
pub(super) fn head(mode: Mode, keys: &Keys) -> u32 {
    match mode.direct {
        true => 1,
        false => 1 + keys.stored_words().len() as u32,
    }
}

/// Planes of a workgroup's table before its accumulators: owner, and where slots are searched key or hash.
pub(super) fn local_head(local: Local, keys: &Keys) -> u32 {
    match local {
        Local::Cache => 1 + (keys.local_words().len() as u32).max(1),
        _ => 1,
    }
}
