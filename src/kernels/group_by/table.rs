//! Functions of the shader that find a row's group in a table.

use std::fmt::Write;

use crate::kernels::expr::sign_extended;
use crate::kernels::expr::widths::Class;

use super::keys::Keys;
use super::plan::status;

/// What a row without a place gets.
pub(super) const NONE: &str = "0xffffffffu";
/// Slots that a row tries in its workgroup's table.
pub(super) const LOCAL_TRIES: u32 = 4;

/// The function that gives the record of a row's group in `table`, searched, a new one if need be. Arguments: 2 = slots - 1, 3 = slots to
/// try. The keys' words lie behind the owner, each with 1 added so that 0 says that it was not written yet.
pub(super) fn find(keys: &Keys, stride: u32) -> String {
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
    let mask = args[2];
    var slot = h & mask;
    for (var n = 0u; n < args[3]; n++) {{
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
    atomicOr(&status[0], {}u);
    return {NONE};
}}
",
        status::FULL
    )
}

/// The function that gives the slot of a row's group in `local`, or none. Argument 6: slots of a copy - 1 in the upper half,
/// copies in the lower. A slot is claimed by its tag; its owner is written after, and whoever comes in between looks further: groups that
/// lie here twice meet in `table`.
pub(super) fn find_local(slots: u32) -> String {
    format!(
        "
fn find_local(i: u32, key: Key, h: u32) -> u32 {{
    let mask = args[6] >> 16u;
    let copies = args[6] & 0xffffu;
    let tag = h | 1u;
    var slot = h >> 16u;
    for (var n = 0u; n < {LOCAL_TRIES}u; n++) {{
        let at = (slot & mask) * copies + (lane & (copies - 1u));
        var found = atomicLoad(&local[at + {slots}u]);
        if (found == 0u) {{
            let swap = atomicCompareExchangeWeak(&local[at + {slots}u], 0u, tag);
            if (swap.exchanged) {{
                atomicStore(&local[at], i + 1u);
                return at;
            }}
            found = swap.old_value;
        }}
        if (found == tag) {{
            let owner = atomicLoad(&local[at]);
            if (owner != 0u) {{
                if (same(keys(owner - 1u), key)) {{
                    return at;
                }}
            }}
        }}
        slot += 1u;
    }}
    return {NONE};
}}
"
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

/// The function that computes a row's slot from its keys. Argument 7: where the keys' digits lie in the arguments.
pub(super) fn direct(keys: &Keys) -> String {
    let mut text = String::from(
        "\nfn direct(key: Key) -> u32 {\n    let digits = args[7];\n    var slot = 0u;\n    var outside = false;\n",
    );
    for (at, field) in keys.fields.iter().enumerate() {
        let value = match field.class {
            Class::I32 => format!("bitcast<u64>({})", sign_extended(&format!("key.k{at}"))),
            Class::I64 => format!("bitcast<u64>(key.k{at})"),
            Class::U64 => format!("key.k{at}"),
            _ => format!("u64(key.k{at})"),
        };
        let word = |word: usize| format!("args[digits + {}u]", 4 * at + word);
        let _ = writeln!(
            text,
            "    let extent{at} = {};
    let delta{at} = {value} - ((u64({}) << 32u) | u64({}));",
            word(2),
            word(1),
            word(0)
        );
        let digit = format!("u32(delta{at} & 0xfffffffflu)");
        let far = format!("delta{at} >= u64(extent{at})");
        match field.flag {
            None => {
                let _ =
                    writeln!(text, "    outside = outside | ({far});\n    slot += {digit} * {};", word(3));
            }
            Some(flag) => {
                let null = format!("((key.z{} >> {}u) & 1u) != 0u", flag / 32, flag % 32);
                let _ = writeln!(
                    text,
                    "    let null{at} = {null};
    outside = outside | (!null{at} & ({far}));
    slot += select({digit}, extent{at}, null{at}) * {};",
                    word(3)
                );
            }
        }
    }
    let _ = writeln!(
        text,
        "    if (outside) {{\n        atomicOr(&status[0], {}u);\n        return {NONE};\n    }}\n    return slot;\n}}",
        status::OUTSIDE
    );
    text
}
