//! The tables in the documentation say what the code does.

use datafusion::common::config::ExtensionOptions;
use datafusion_wgpu::GpuOptions;

const README: &str = include_str!("../../README.md");

/// Cells of the rows of a Markdown table whose first cell is code.
fn rows(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect())
        .collect()
}

#[test]
fn every_option_is_in_the_readme_with_its_default() {
    let table: Vec<_> = rows(README).into_iter().filter(|row| row[0].starts_with("gpu.")).collect();
    let entries = GpuOptions::default().entries();
    for row in &table {
        assert!(entries.iter().any(|entry| full_name(&entry.key) == row[0]), "{} is no option", row[0]);
    }
    for entry in entries {
        let name = full_name(&entry.key);
        let Some(row) = table.iter().find(|row| row[0] == name) else { panic!("{name} is not in README.md") };
        // Where the default is the empty text, the table says in words what that means.
        let default = entry.value.unwrap_or_default();
        assert!(
            default.is_empty() || row[1] == default,
            "{name} is {default} by default, README.md says {}",
            row[1]
        );
    }
}

fn full_name(key: &str) -> String {
    format!("gpu.{}", key.strip_prefix("gpu.").unwrap_or(key))
}

/// A conformance report of another version's files says little.
#[test]
fn the_conformance_report_is_that_of_the_locked_suite() {
    let lock = include_str!("../../Cargo.lock");
    let (_, package) = lock.split_once("name = \"datafusion-sqllogictest\"\nversion = \"").unwrap();
    let (version, _) = package.split_once('"').unwrap();
    let report = include_str!("../../docs/conformance.md");
    assert!(report.contains(&format!("datafusion-sqllogictest {version} ")), "run `make conformance`");
    assert!(
        !report.contains("## Failed"),
        "the report lists failures that tests/conformance/skips.txt does not explain"
    );
}
