//! Functions of the shader that find a row's group in a table.

use std::fmt::Write;

use crate::kernels::expr::widths::Class;

use super::keys::{KeyField, Keys};
use super::plan::status;

/// What a row without a place gets.
pub(super) const NONE: &str = "0xffffffffu";

/// What every row uses of the arguments, which invocations keep in registers: memory is read once instead of once a row. Argument 2
/// is the number of the table's slots - 1; 3 has the slots to try in the table below, in a workgroup's table above; 4 is what hashes
/// begin with, 5 how often a row fights for a best value, 6 the copies of a workgroup's computed slot.
pub(super) const HELD: [(&str, &str); 6] = [
    ("mask", "args[2]"),
    ("tries", "args[3] & 0xffffu"),
    ("local_tries", "args[3] >> 16u"),
    ("seed", "args[4]"),
    ("fights", "args[5]"),
    ("copies", "args[6]"),
];

/// The statements that say that the attempt has failed because of `bit` of the status: at once, and once an invocation.
fn fail(bit: u32) -> String {
    format!(
        "if ((state & {bit}u) == 0u) {{
        state |= {bit}u;
        atomicOr(&status[0], {bit}u);
    }}"
    )
}

/// The function that gives the record of a row's group in `table`, searched, a new one if need be. The keys' words lie behind the owner, each with 1 added so that 0 says that it was not written yet. Of ordered rows, the top bits of
/// a hash are the slot, behind those that all rows have alike.
pub(super) fn find(keys: &Keys, stride: u32, ordered: bool) -> String {
    let slot = if ordered { "(h << alike) >> countLeadingZeros(mask)" } else { "h & mask" };
    let stored = keys.stored_words();
    let mut claim = String::new();
    let mut known = vec![];
    let mut equal = vec![];
    let mut loads = String::new();
    for (at, word) in stored.iter().enumerate() {
        let _ = writeln!(claim, "                atomicStore(&table[at + {}u], {word} + 1u);", at + 1);
        let _ = writeln!(loads, "        let w{at} = atomicLoad(&table[at + {}u]);", at + 1);
        known.push(format!("(w{at} != 0u)"));
        equal.push(format!("(w{at} == {word} + 1u)"));
    }
    let compare = match stored.is_empty() {
        true => "let equal = same(keys(owner - 1u), key);".to_owned(),
        false => format!(
            "var equal = {};
            if (!({})) {{
                equal = same(keys(owner - 1u), key);
            }}",
            equal.join(" & "),
            known.join(" & ")
        ),
    };
    format!(
        "
fn place(i: u32, key: Key, h: u32) -> u32 {{
    var slot = {slot};
    for (var n = 0u; n < tries; n++) {{
        let at = slot * {stride}u;
        var owner = atomicLoad(&table[at]);
{loads}        if (owner == 0u) {{
            let swap = atomicCompareExchangeWeak(&table[at], 0u, i + 1u);
            if (swap.exchanged) {{
{claim}                return at;
            }}
            owner = swap.old_value;
        }}
        // 0 is an exchange that failed for no reason: once more.
        if (owner != 0u) {{
            {compare}
            if (equal) {{
                return at;
            }}
            slot = (slot + 1u) & mask;
        }}
    }}
    {}
    return {NONE};
}}
",
        fail(status::FULL)
    )
}

/// The function that gives the slot of a row's group in `local`, or none. A slot is claimed by the first word that it holds of its key (all words
/// where they are few, else a hash); what else it holds is written after, and whoever comes in between looks further: groups that lie
/// here twice meet in `table`. The slot goes by `g`, the key's hash before it is settled, since all rows are looked for here.
pub(super) fn find_local(keys: &Keys, slots: u32) -> String {
    let words = keys.local_words();
    let (mut marks, mut claim) = (String::new(), String::new());
    let (mut zero, mut equal) = (vec![], vec!["(found == m0)".to_owned()]);
    let plane = |at: usize| format!("local[at + {}u]", (at as u32 + 1) * slots);
    // 0 is an empty slot, so a word gets another value by which that is rare; rows of such go to `table`.
    let mark = |word: &str| format!("({word} ^ 0x5bd1e995u) + 1u");
    for (at, word) in words.iter().enumerate() {
        let _ = writeln!(marks, "    let m{at} = {};", mark(word));
        zero.push(format!("(m{at} == 0u)"));
        if at > 0 {
            let _ = writeln!(claim, "                atomicStore(&{}, m{at});", plane(at));
            equal.push(format!("(atomicLoad(&{}) == m{at})", plane(at)));
        }
    }
    let mut matched = "return at;".to_owned();
    if words.is_empty() {
        let _ = writeln!(marks, "    let m0 = {};", mark("g"));
        zero.push("(m0 == 0u)".to_owned());
        matched = "let owner = atomicLoad(&local[at]);
            if (owner != 0u) {
                if (same(keys(owner - 1u), key)) {
                    return at;
                }
            }"
        .to_owned();
    }
    format!(
        "
fn find_local(i: u32, key: Key, g: u32) -> u32 {{
{marks}    if ({}) {{
        return {NONE};
    }}
    var slot = ((g & 0xffffu) * {slots}u) >> 16u;
    for (var n = 0u; n < local_tries; n++) {{
        let at = slot;
        var found = atomicLoad(&local[at + {slots}u]);
        if (found == 0u) {{
            let swap = atomicCompareExchangeWeak(&local[at + {slots}u], 0u, m0);
            if (swap.exchanged) {{
{claim}                atomicStore(&local[at], i + 1u);
                return at;
            }}
            found = swap.old_value;
        }}
        if ({}) {{
            {matched}
        }}
        // In steps that grow, so that slots in use don't cluster.
        slot += n + 1u;
        slot -= select(0u, {slots}u, slot >= {slots}u);
    }}
    return {NONE};
}}
",
        zero.join(" | "),
        equal.join(" & "),
    )
}

/// The function that gives the record of a row's group in `table`, at its computed slot.
pub(super) fn place_directly(stride: u32) -> String {
    format!(
        "
fn place(i: u32, key: Key, h: u32) -> u32 {{
    let slot = direct(key);
    if (slot == {NONE}) {{
        return {NONE};
    }}
    let at = slot * {stride}u;
    if (atomicLoad(&table[at]) == 0u) {{
        atomicStore(&table[at], i + 1u);
    }}
    return at;
}}
"
    )
}

/// Whether a key's distance from the range's begin fits 32 bits. Other keys than those of the range may get its slots then, but never two
/// keys one slot.
fn is_narrow(field: &KeyField) -> bool {
    match field.class {
        Class::I64 => field.bits <= 31,
        class => matches!(class, Class::I32 | Class::U32),
    }
}

/// Variables of the digits of computed slots, and the statements that fill them from word `args[7]` of the arguments on.
pub(super) fn digits(keys: &Keys) -> (String, String) {
    let (mut variables, mut loads) = (String::new(), String::new());
    for (at, field) in keys.fields.iter().enumerate() {
        let word = |word: usize| format!("args[args[7] + {}u]", 4 * at + word);
        let (ty, least) = match is_narrow(field) {
            true => ("u32", word(0)),
            false => ("u64", format!("(u64({}) << 32u) | u64({})", word(1), word(0))),
        };
        let _ = writeln!(
            variables,
            "var<private> least{at}: {ty};\nvar<private> extent{at}: u32;\nvar<private> step{at}: u32;"
        );
        let _ = writeln!(
            loads,
            "    least{at} = {least};\n    extent{at} = {};\n    step{at} = {};",
            word(2),
            word(3)
        );
    }
    (variables, loads)
}

/// The function that computes a row's slot from its keys.
pub(super) fn direct(keys: &Keys) -> String {
    let mut text =
        String::from("\nfn direct(key: Key) -> u32 {\n    var slot = 0u;\n    var outside = false;\n");
    for (at, field) in keys.fields.iter().enumerate() {
        let narrow = is_narrow(field);
        let value = match field.class {
            Class::I32 => format!("bitcast<u32>(key.k{at})"),
            Class::I64 if narrow => format!("u32(bitcast<u64>(key.k{at}) & 0xfffffffflu)"),
            Class::I64 => format!("bitcast<u64>(key.k{at})"),
            _ => format!("key.k{at}"),
        };
        let _ = writeln!(text, "    let delta{at} = {value} - least{at};");
        let (digit, extent) = match narrow {
            true => (format!("delta{at}"), format!("extent{at}")),
            false => (format!("u32(delta{at} & 0xfffffffflu)"), format!("u64(extent{at})")),
        };
        let far = format!("delta{at} >= {extent}");
        let _ = match field.flag {
            None => {
                writeln!(text, "    outside = outside | ({far});\n    slot += {digit} * step{at};")
            }
            Some(flag) => writeln!(
                text,
                "    let null{at} = ((key.z{} >> {}u) & 1u) != 0u;
    outside = outside | (!null{at} & ({far}));
    slot += select({digit}, extent{at}, null{at}) * step{at};",
                flag / 32,
                flag % 32
            ),
        };
    }
    let _ = writeln!(
        text,
        "    if (outside) {{\n    {}\n        return {NONE};\n    }}\n    return slot;\n}}",
        fail(status::OUTSIDE)
    );
    text
}
