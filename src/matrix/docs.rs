//! docs/supported.md, written from what the lowering answers.
//!
//! `make supported` writes it anew; the test fails when it is stale.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use arrow::datatypes::DataType;

use super::aggregates::Row;
use super::*;

const HEAD: &str = "# Supported expressions

Which expressions run on the GPU, by the type of `a` and `b`; `p` is a boolean, `n` an integer. Everything else in a query stays
on DataFusion's CPU operators, with its reason in `EXPLAIN`. A type that is missing in a row is one for which DataFusion
itself has no such expression. Types that are only carried from input to output may be any.

The second column is for adapters with 64-bit floats in shaders (`SHADER_F64`; Vulkan only), the third lists what of it is lost
without them.

This file is generated: `make supported` writes it, and a test compares it with what the code answers.
";

#[tokio::test]
async fn supported_md_is_current() {
    let text = document(aggregates::tables().await);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/supported.md");
    if std::env::var_os("WRITE_SUPPORTED").is_some() {
        std::fs::write(&path, &text).expect("docs/supported.md");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    if let Some(line) = there.lines().zip(text.lines()).position(|(there, now)| there != now) {
        let of = |text: &str| text.lines().nth(line).unwrap_or_default().to_owned();
        panic!(
            "docs/supported.md is stale, run `make supported`; line {}:\n{}\nis now\n{}",
            line + 1,
            of(&there),
            of(&text)
        );
    }
    assert_eq!(there.len(), text.len(), "docs/supported.md is stale, run `make supported`");
}

fn document(aggregates: Vec<(&'static str, Vec<(String, Row)>)>) -> String {
    let types = subjects();
    let planners: Vec<_> = types.iter().map(|ty| Planner::new(schema_of(ty, true))).collect();
    let adapters = adapters();
    let row = |template: &Template| -> Row {
        let answers = types.iter().zip(&planners).map(|(ty, planner)| {
            (ty.clone(), [0, 1].map(|adapter| answer(template, ty, planner, &adapters[adapter])))
        });
        answers.filter(|(_, answers)| answers[0] != Answer::Unknown).collect()
    };
    let mut groups: Vec<(&str, Vec<(String, Row)>)> = vec![];
    for template in templates() {
        let row = row(&template);
        if row.is_empty() {
            continue;
        }
        let at = groups.iter().position(|(group, _)| *group == template.group).unwrap_or_else(|| {
            groups.push((template.group, vec![]));
            groups.len() - 1
        });
        add(&mut groups[at].1, &template.shown(), row);
    }
    for (group, all) in aggregates {
        let mut rows = vec![];
        all.into_iter().for_each(|(shown, row)| add(&mut rows, &shown, row));
        groups.push((group, rows));
    }
    let mut text = HEAD.to_owned();
    for (group, rows) in groups {
        let _ = writeln!(
            text,
            "\n## {group}\n\n| Expression | GPU | Not without `SHADER_F64` | CPU |\n|---|---|---|---|"
        );
        for (names, row) in rows {
            let _ = writeln!(text, "| {names} | {} |", cells(&row).join(" | "));
        }
    }
    text
}

/// Adds a row; what has the same answers shares one.
fn add(rows: &mut Vec<(String, Row)>, shown: &str, row: Row) {
    let shown = format!("`{}`", shown.replace('|', "\\|"));
    match rows.iter_mut().find(|(_, other)| *other == row) {
        Some((names, _)) => *names = format!("{names}, {shown}"),
        None => rows.push((shown, row)),
    }
}

fn cells(row: &Row) -> [String; 3] {
    let of = |wanted: &dyn Fn(&[Answer; 2]) -> bool| -> Vec<DataType> {
        row.iter().filter(|(_, answers)| wanted(answers)).map(|(ty, _)| ty.clone()).collect()
    };
    let gpu = of(&|answers| answers[0] == Answer::Gpu);
    let lost = of(&|answers| answers[0] == Answer::Gpu && answers[1] != Answer::Gpu);
    let mut reasons: BTreeMap<String, Vec<DataType>> = BTreeMap::new();
    for (ty, answers) in row {
        if let Answer::Cpu(reason) = &answers[0] {
            let own = format!("{ty} is not on the device");
            let reason = if *reason == own { "not on the device".to_owned() } else { reason.clone() };
            reasons.entry(reason).or_default().push(ty.clone());
        }
    }
    let cpu: Vec<String> = reasons
        .iter()
        .map(|(reason, types)| format!("{}: {}", names(types), reason.replace('|', "\\|")))
        .collect();
    [names(&gpu), names(&lost), cpu.join("; ")]
}

/// Families of types, so that rows stay short.
fn families() -> Vec<(&'static str, Vec<DataType>)> {
    let of = |wanted: &dyn Fn(&DataType) -> bool| subjects().into_iter().filter(wanted).collect::<Vec<_>>();
    vec![
        ("integers", of(&DataType::is_integer)),
        ("Float32, Float64", vec![DataType::Float32, DataType::Float64]),
        ("times", of(&|ty| matches!(ty, DataType::Time32(_) | DataType::Time64(_)))),
        ("timestamps", of(&|ty| matches!(ty, DataType::Timestamp(_, None)))),
        (
            "timestamps in UTC",
            of(&|ty| matches!(ty, DataType::Timestamp(_, Some(zone)) if zone.as_ref() == "UTC")),
        ),
        ("durations", of(&|ty| matches!(ty, DataType::Duration(_)))),
        ("Decimal32 to Decimal128", of(&|ty| ty.is_decimal() && !matches!(ty, DataType::Decimal256(..)))),
        ("strings", of(&|ty| ty.is_string())),
        ("bytes", of(&|ty| matches!(ty, DataType::Binary | DataType::LargeBinary | DataType::BinaryView))),
    ]
}

fn names(types: &[DataType]) -> String {
    let mut left = types.to_vec();
    let mut out: Vec<(usize, String)> = vec![];
    for (name, family) in families() {
        if family.iter().all(|ty| left.contains(ty)) {
            let first = types.iter().position(|ty| family.contains(ty)).unwrap_or(0);
            left.retain(|ty| !family.contains(ty));
            out.push((first, name.to_owned()));
        }
    }
    for ty in left {
        let at = types.iter().position(|other| *other == ty).unwrap_or(0);
        out.push((at, ty.to_string()));
    }
    out.sort();
    out.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(", ")
}
