//! docs/supported.md, written from what the lowering answers.
//!
//! `make supported` writes it anew; the test fails when it is stale.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use arrow::datatypes::DataType;

use super::*;

const HEAD: &str = "# Supported expressions

Which expressions run on the GPU, by the type of `a` and `b`; `p` is a boolean, `n` an integer. It is the same on every adapter that
is used at all. The lists are of examples: every function that DataFusion calls immutable runs over one string column, looked up by the
column's distinct values. What does not run on the GPU stays on DataFusion's CPU operators, with its reason in `EXPLAIN VERBOSE`. A type
that is missing in a row is one for which DataFusion itself has no such expression. Types that are only carried from input to output may
be any.

This file is generated: `make supported` writes it, and a test compares it with what the code answers.
";

/// Types by what was answered for them.
pub(super) type Row = Vec<(DataType, Answer)>;

#[tokio::test]
async fn supported_md_is_current() {
    let text = document(aggregates::tables().await);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/supported.md");
    // Types are named as Arrow names them, and not as Rust does.
    assert!(!text.contains("{ "), "{text}");
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
    let caps = DeviceCaps::for_tests();
    let row = |template: &Template| -> Row {
        let answers = types.iter().zip(&planners);
        let answers = answers.map(|(ty, planner)| (ty.clone(), answer(template, ty, planner, &caps)));
        answers.filter(|(_, answer)| *answer != Answer::Unknown).collect()
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
        let _ = writeln!(text, "\n## {group}\n\n| Expression | GPU | CPU |\n|---|---|---|");
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

fn cells(row: &Row) -> [String; 2] {
    let mut gpu = vec![];
    let mut own: BTreeMap<&str, Vec<DataType>> = BTreeMap::new();
    for (ty, answer) in row {
        match answer {
            Answer::Unknown => {}
            Answer::Gpu => gpu.push(ty.clone()),
            Answer::Cpu(reason) if *reason == format!("{ty} is not on the device") => {
                own.entry("not on the device").or_default().push(ty.clone());
            }
            Answer::Cpu(reason) => own.entry(reason).or_default().push(ty.clone()),
        }
    }
    // Reasons that differ in the type's name only are one.
    let mut shared: BTreeMap<String, Vec<(&str, Vec<DataType>)>> = BTreeMap::new();
    for (reason, types) in own {
        let name = match types.as_slice() {
            [ty] => impersonal(reason, ty),
            _ => reason.to_owned(),
        };
        shared.entry(name).or_default().push((reason, types));
    }
    let cpu = shared.into_iter().map(|(name, all)| {
        let reason = match all.as_slice() {
            [(reason, _)] => (*reason).to_owned(),
            _ => name,
        };
        let declined = |ty: &&DataType| all.iter().any(|(_, types)| types.contains(ty));
        let types: Vec<DataType> = row.iter().map(|(ty, _)| ty).filter(declined).cloned().collect();
        format!("{}: {}", names(&types), reason.replace('|', "\\|"))
    });
    let cpu: Vec<String> = cpu.collect();
    [names(&gpu), cpu.join("; ")]
}

/// The reason without the name of the row's own type, so that types of the same reason share it.
fn impersonal(reason: &str, ty: &DataType) -> String {
    let name = ty.to_string();
    let part_of_name = |c: char| c.is_alphanumeric() || c == '(';
    let (mut out, mut rest) = (String::new(), reason);
    while let Some(at) = rest.find(&name) {
        let (before, after) = (&rest[..at], &rest[at + name.len()..]);
        let whole = !before.ends_with(char::is_alphanumeric) && !after.starts_with(part_of_name);
        out.push_str(before);
        out.push_str(if whole { "this type" } else { &name });
        rest = after;
    }
    out + rest
}

/// Whatever is asked of a timestamp whose zone shifts the clock stays on the CPU, and the reason names the type; functions of its text
/// have reasons of their own.
#[test]
fn other_zones_are_named() {
    let caps = DeviceCaps::for_tests();
    for zone in ["Europe/Paris", "+02:00", "Etc/UTC"] {
        let ty = DataType::Timestamp(TimeUnit::Millisecond, Some(zone.into()));
        let planner = Planner::new(schema_of(&ty, true));
        let mut declined = 0;
        for template in templates() {
            match answer(&template, &ty, &planner, &caps) {
                Answer::Unknown => {}
                Answer::Gpu => assert!(["a IS NULL", "a IS NOT NULL"].contains(&template.shown().as_str())),
                Answer::Cpu(reason) => {
                    declined += 1;
                    let of_text = template.group == "Strings and bytes";
                    assert!(of_text || reason.contains(&ty.to_string()), "{}: {reason}", template.shown());
                }
            }
        }
        assert!(declined > 50, "{declined} of {ty}");
    }
}

/// Lists of functions that do not depend on floats in shaders.
#[test]
fn adapters_without_floats_in_shaders_take_the_same() {
    let with = DeviceCaps::for_tests();
    let without = DeviceCaps { float64: false, ..with.clone() };
    assert!(with.float64);
    for ty in [DataType::Int32, DataType::Float32, DataType::Float64, DataType::Decimal128(15, 2)] {
        let planner = Planner::new(schema_of(&ty, true));
        for template in templates() {
            let answers = [&with, &without].map(|caps| answer(&template, &ty, &planner, caps));
            assert_eq!(answers[0], answers[1], "{ty}: {}", template.shown());
        }
    }
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
