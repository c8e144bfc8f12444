//! Expressions with holes.

use arrow::datatypes::DataType;

use super::{literal, subjects};

/// An expression over `{a}` and `{b}` of one type, constants `{l}` and `{m}` of it, a boolean `{p}` and an integer `{n}`.
#[derive(Debug, Clone)]
pub(super) struct Template {
    /// Heading in the documentation.
    pub group: &'static str,
    text: String,
    shown: Option<String>,
}

impl Template {
    fn new(group: &'static str, text: &str) -> Self {
        Template { group, text: text.to_owned(), shown: None }
    }

    /// The expression over columns `a`, `b`, `p` and `n`. `None` where SQL lacks a constant of the type.
    pub fn sql(&self, ty: &DataType) -> Option<String> {
        let mut constants = vec![];
        for (hole, which) in [("{l}", 0), ("{m}", 1)] {
            if self.text.contains(hole) {
                constants.push((hole, literal(ty, which)?));
            }
        }
        Some(self.filled(&mut |hole| {
            let constant = constants.iter().find(|(name, _)| *name == hole);
            constant.map_or_else(|| hole.trim_matches(['{', '}']).to_owned(), |(_, sql)| sql.clone())
        }))
    }

    /// The expression with something in each hole; a hole that occurs twice is filled once.
    pub fn filled(&self, with: &mut dyn FnMut(&str) -> String) -> String {
        let mut sql = self.text.clone();
        for hole in self.holes() {
            sql = sql.replace(hole, &with(hole));
        }
        sql
    }

    /// The holes that it has.
    pub fn holes(&self) -> Vec<&'static str> {
        ["{a}", "{b}", "{l}", "{m}", "{p}", "{n}"]
            .into_iter()
            .filter(|hole| self.text.contains(hole))
            .collect()
    }

    /// As the documentation has it.
    pub fn shown(&self) -> String {
        let text =
            self.shown.as_ref().unwrap_or(&self.text).replace("{l}", "constant").replace("{m}", "constant");
        text.replace(['{', '}'], "")
    }
}

const COMPARISON: [&str; 14] = [
    "{a} = {b}",
    "{a} <> {b}",
    "{a} < {b}",
    "{a} <= {b}",
    "{a} > {b}",
    "{a} >= {b}",
    "{a} = {l}",
    "{a} < {l}",
    "{l} >= {a}",
    "{a} IS DISTINCT FROM {b}",
    "{a} IS NOT DISTINCT FROM {b}",
    "{a} BETWEEN {l} AND {b}",
    "{a} IN ({l}, {m}, NULL)",
    "{a} NOT IN ({l}, {m})",
];

const LOGIC: [&str; 16] = [
    "{a} IS NULL",
    "{a} IS NOT NULL",
    "{a} AND {b}",
    "{a} OR {b}",
    "NOT {a}",
    "{a} IS TRUE",
    "{a} IS NOT TRUE",
    "{a} IS FALSE",
    "{a} IS NOT FALSE",
    "{a} IS UNKNOWN",
    "{a} IS NOT UNKNOWN",
    "CASE WHEN {p} THEN {a} ELSE {b} END",
    "CASE WHEN {p} THEN {a} END",
    "CASE {a} WHEN {b} THEN {l} WHEN {l} THEN {b} ELSE {a} END",
    "COALESCE({a}, {b}, {l})",
    "NULLIF({a}, {b})",
];

const ARITHMETIC: [&str; 31] = [
    "{a} + {b}",
    "{a} - {b}",
    "{a} * {b}",
    "{a} / {b}",
    "{a} % {b}",
    "{a} + {l}",
    "{l} - {a}",
    "{a} * {l}",
    "{a} / {l}",
    "{l} / {a}",
    "{a} % {l}",
    "- {a}",
    "{a} & {b}",
    "{a} | {b}",
    "{a} ^ {b}",
    "{a} << {b}",
    "{a} >> {b}",
    "abs({a})",
    "signum({a})",
    "greatest({a}, {b}, {l})",
    "least({a}, {b}, {l})",
    "round({a})",
    "round({a}, 1)",
    "round({a}, -1)",
    "floor({a})",
    "ceil({a})",
    "trunc({a})",
    "trunc({a}, 1)",
    "isnan({a})",
    "iszero({a})",
    "nanvl({a}, {b})",
];

const TRANSCENDENTAL: [&str; 14] = [
    "sqrt({a})",
    "cbrt({a})",
    "exp({a})",
    "ln({a})",
    "log10({a})",
    "log2({a})",
    "power({a}, {b})",
    "sin({a})",
    "cos({a})",
    "tan({a})",
    "atan({a})",
    "gcd({a}, {b})",
    "lcm({a}, {b})",
    "factorial({a})",
];

const TEMPORAL: [&str; 42] = [
    "{a} + INTERVAL '1 month'",
    "{a} - INTERVAL '13 months'",
    "{a} + INTERVAL '3 days'",
    "{a} - INTERVAL '90 minutes'",
    "{a} + INTERVAL '1 month 3 days 1 second'",
    "date_trunc('year', {a})",
    "date_trunc('quarter', {a})",
    "date_trunc('month', {a})",
    "date_trunc('week', {a})",
    "date_trunc('day', {a})",
    "date_trunc('hour', {a})",
    "date_trunc('minute', {a})",
    "date_trunc('second', {a})",
    "date_trunc('millisecond', {a})",
    "date_trunc('microsecond', {a})",
    "date_part('year', {a})",
    "date_part('isoyear', {a})",
    "date_part('quarter', {a})",
    "date_part('month', {a})",
    "date_part('week', {a})",
    "date_part('day', {a})",
    "date_part('doy', {a})",
    "date_part('dow', {a})",
    "date_part('isodow', {a})",
    "date_part('hour', {a})",
    "date_part('minute', {a})",
    "date_part('second', {a})",
    "date_part('millisecond', {a})",
    "date_part('microsecond', {a})",
    "date_part('nanosecond', {a})",
    "date_part('epoch', {a})",
    "date_bin(INTERVAL '15 minutes', {a})",
    "date_bin(INTERVAL '1 month', {a})",
    "date_bin(INTERVAL '7 days', {a}, TIMESTAMP '2001-01-03T00:00:00')",
    "to_timestamp({a})",
    "to_timestamp_seconds({a})",
    "to_timestamp_millis({a})",
    "to_timestamp_micros({a})",
    "to_timestamp_nanos({a})",
    "to_date({a})",
    "to_unixtime({a})",
    "from_unixtime({a})",
];

const STRINGS: [&str; 30] = [
    "{a} LIKE 'a%'",
    "{a} NOT LIKE '%b_'",
    "{a} ILIKE '%B%'",
    "{a} ~ '^a.*c$'",
    "{a} ~* 'B'",
    "{a} !~ 'b'",
    "{a} SIMILAR TO '%(b|c)%'",
    "upper({a})",
    "lower({a})",
    "substr({a}, 2)",
    "substr({a}, 1, 2)",
    "left({a}, 2)",
    "length({a})",
    "octet_length({a})",
    "strpos({a}, 'b')",
    "starts_with({a}, 'a')",
    "ends_with({a}, 'c')",
    "contains({a}, 'b')",
    "concat({a}, '!')",
    "{a} || '!'",
    "{a} || {b}",
    "trim({a})",
    "replace({a}, 'a', 'bc')",
    "reverse({a})",
    "regexp_like({a}, 'a|b')",
    "regexp_replace({a}, 'a', 'x')",
    "md5({a})",
    "arrow_field({a})['nullable']",
    "trunc(CASE WHEN {a} = {l} THEN -0.0 END)",
    "CASE WHEN {a} = {l} THEN 'one' WHEN {a} LIKE 'a%' THEN 'two' END",
];

/// Types that are cast to.
fn targets() -> Vec<DataType> {
    subjects().into_iter().filter(|ty| !matches!(ty, DataType::Null | DataType::List(_))).collect()
}

/// All of them.
pub(super) fn templates() -> Vec<Template> {
    let mut all = vec![];
    for (group, texts) in [
        ("Comparisons", &COMPARISON[..]),
        ("Logic and conditions", &LOGIC[..]),
        ("Arithmetic", &ARITHMETIC[..]),
        ("Other numeric functions", &TRANSCENDENTAL[..]),
        ("Dates and times", &TEMPORAL[..]),
        ("Strings and bytes", &STRINGS[..]),
    ] {
        all.extend(texts.iter().map(|text| Template::new(group, text)));
    }
    all.push(Template {
        group: "Comparisons",
        text: format!("{{a}} IN ({})", (0..300).map(|v| v.to_string()).collect::<Vec<_>>().join(", ")),
        shown: Some("{a} IN (300 integers)".to_owned()),
    });
    for (group, function, name) in
        [("CAST", "arrow_cast", "CAST"), ("TRY_CAST", "arrow_try_cast", "TRY_CAST")]
    {
        all.extend(targets().into_iter().map(|ty| Template {
            group,
            text: format!("{function}({{a}}, '{ty}')"),
            shown: Some(format!("{name}({{a}} AS {ty})")),
        }));
    }
    all
}
