//! Whether two error texts say the same.

/// What nodes put before an error that they pass on.
const WRAPPERS: [&str; 2] = ["Arrow error: ", "External error: "];

/// Whether the texts are the same, whichever nodes passed the error on.
pub fn same_error(a: &str, b: &str) -> bool {
    bare(a) == bare(b)
}

/// Whether the texts are the same apart from the values in them, which depend on the row that was met first.
pub fn same_kind(a: &str, b: &str) -> bool {
    let (a, b) = (bare(a), bare(b));
    match (of_a_scan(a), of_a_scan(b)) {
        (Some(inner), None) => skeleton(b).ends_with(&skeleton(inner)),
        (None, Some(inner)) => skeleton(a).ends_with(&skeleton(inner)),
        _ => skeleton(a) == skeleton(b),
    }
}

/// Whether the error says that DataFusion's memory pool had no more to give.
pub fn is_exhausted(text: &str) -> bool {
    text.contains("Resources exhausted")
}

/// Whether a value of a row raised the error, which rows before it or beside it may keep from being computed.
pub fn is_of_a_value(text: &str) -> bool {
    const PARTS: [&str; 8] = [
        "Divide by zero",
        "Overflow happened",
        "Cast error",
        "Overflowing on",
        "Cannot cast ",
        "is out of range",
        "square root of a negative number",
        "Overflow while rounding",
    ];
    PARTS.iter().any(|part| text.contains(part))
}

/// Whether DataFusion's joins fail in this way when its memory pool is full: they execute their input a second time, which exchanges don't
/// allow, and for which scans, whose files went to the first, have no rows.
pub fn is_second_execution(text: &str) -> bool {
    text.contains("partition not used yet") || text.contains("Left side produced no data to spill")
}

/// What a filter inside of the Parquet reader raised, without what the reader puts around it.
fn of_a_scan(text: &str) -> Option<&str> {
    let (_, inner) = text.split_once("Error evaluating filter predicate: ArrowError(")?;
    let (_, inner) = inner.split_once("(\"")?;
    inner.split_once("\")").map(|(inner, _)| inner)
}

fn bare(mut text: &str) -> &str {
    while let Some(rest) = WRAPPERS.iter().find_map(|wrapper| text.strip_prefix(wrapper)) {
        text = rest;
    }
    text
}

/// The text with `#` for quoted text and numbers. Digits that belong to a name or a type (`Int8`, `Decimal128(5, 2)`) stay.
fn skeleton(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::new();
    let mut at = 0;
    while at < chars.len() {
        let c = chars[at];
        let in_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
        let starts_number = c.is_ascii_digit()
            || (matches!(c, '-' | '+' | '.') && chars.get(at + 1).is_some_and(char::is_ascii_digit));
        let length = if matches!(c, '\'' | '"') && !in_word {
            quoted(&chars[at..])
        } else if c.is_ascii_digit() && in_word {
            // A name with digits keeps its parameters too.
            let word = chars[at..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
            let parameters = parenthesis(&chars[at + word..]);
            out.extend(&chars[at..at + word + parameters]);
            at += word + parameters;
            continue;
        } else if starts_number && !in_word {
            number(&chars[at..])
        } else if !in_word {
            odd_float(&chars[at..])
        } else {
            0
        };
        if length == 0 {
            out.push(c);
            at += 1;
        } else {
            out.push('#');
            at += length;
        }
    }
    out
}

/// Length of a quoted text with its quotes; 0 where it does not end.
fn quoted(chars: &[char]) -> usize {
    chars.iter().skip(1).position(|c| *c == chars[0]).map_or(0, |end| end + 2)
}

/// Length of a number, its sign and its exponent among it.
fn number(chars: &[char]) -> usize {
    let belongs = |at: &usize| match chars[*at] {
        '+' | '-' => *at == 0 || matches!(chars[at - 1], 'e' | 'E'),
        c => c.is_ascii_alphanumeric() || c == '.',
    };
    (0..chars.len()).take_while(belongs).count()
}

/// Length of what stands in parentheses at the beginning.
fn parenthesis(chars: &[char]) -> usize {
    if chars.first() != Some(&'(') {
        return 0;
    }
    chars.iter().position(|c| *c == ')').map_or(0, |end| end + 1)
}

/// Length of an infinity or a NaN at the beginning.
fn odd_float(chars: &[char]) -> usize {
    ["-inf", "inf", "NaN"]
        .iter()
        .find(|text| {
            let ends = chars.get(text.len()).is_none_or(|c| !c.is_alphanumeric());
            ends && text.chars().eq(chars.iter().take(text.len()).copied())
        })
        .map_or(0, |text| text.len())
}
