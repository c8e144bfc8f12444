//! A fixed minute of the differential fuzzer, as a user runs it.

use std::process::Command;

use crate::harness::TestResult;

#[test]
fn a_fixed_seed_shows_no_difference() -> TestResult {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("fuzz.json");
    let output = Command::new(env!("CARGO_BIN_EXE_datafusion-wgpu"))
        .args(["fuzz", "--seed", "20", "--queries", "40", "--jobs", "2"])
        .arg("--out")
        .arg(folder.path())
        .arg("--json")
        .arg(&report)
        .output()?;
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
    let count = |name: &str| report[name].as_u64().unwrap_or_default();
    assert_eq!(count("queries"), 40, "{text}");
    let useless = count("queries_with_errors") + count("queries_too_large");
    assert!(useless * 5 < count("queries"), "too many queries of no use: {text}");
    assert!(count("runs") > 150, "{text}");
    let same = count("same") + count("same_error");
    assert!(same * 100 >= count("runs") * 95, "too few runs were found to be the same: {text}");
    assert!(count("same") * 2 > count("runs"), "too few runs with rows: {text}");
    assert!(count("runs_with_gpu_nodes") * 2 > count("runs"), "too few GPU nodes: {text}");
    assert!(count("runs_answered_alone") * 5 > count("runs"), "too few exact answers: {text}");
    assert!(count("runs_with_gpu_batches") * 3 > count("runs"), "too little reaches the device: {text}");
    assert!(
        !report["fallbacks"].as_object().is_none_or(serde_json::Map::is_empty),
        "nothing fell back: {text}"
    );
    Ok(())
}
