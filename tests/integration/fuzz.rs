//! A fixed minute of the differential fuzzer, as a user runs it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

/// A program whose temporary files go to `folder`.
fn fuzz(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_datafusion-wgpu"));
    command.arg("fuzz").arg("--out").arg(folder.join("out")).env("TMPDIR", folder);
    command
}

#[cfg(target_os = "linux")]
#[test]
fn an_output_that_is_full_is_an_error() -> TestResult {
    let folder = tempfile::tempdir()?;
    let full = std::fs::File::options().write(true).open("/dev/full")?;
    let output = fuzz(folder.path()).args(["--queries", "1", "--runs", "1"]).stdout(full).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("Error: ") && !text.contains("panicked"), "{text}");
    Ok(())
}

/// Ctrl-C ends a run with the numbers so far, and leaves no temporary folders.
#[cfg(unix)]
#[test]
fn an_interrupted_run_reports() -> TestResult {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("fuzz.json");
    let temporary = folder.path().join("tmp");
    std::fs::create_dir(&temporary)?;
    let child = fuzz(folder.path())
        .args(["--minutes", "10", "--json"])
        .arg(&report)
        .env("TMPDIR", &temporary)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let is_empty = || std::fs::read_dir(&temporary).is_ok_and(|mut entries| entries.next().is_none());
    let start = Instant::now();
    while is_empty() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!is_empty(), "nothing was begun");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status()?.success());
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("forced runs"), "{text}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
    assert_eq!(report["interrupted"].as_bool(), Some(true));
    assert!(is_empty(), "temporary folders are left: {text}");
    Ok(())
}
