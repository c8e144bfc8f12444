//! `--gpu-trace`: the file is in the Trace Event Format and holds what the query did.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{TestResult, write_files};

fn program(cwd: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_datafusion-wgpu"));
    command.current_dir(cwd).env("HOME", cwd).env_remove("RUST_LOG");
    command
}

fn traced(dir: &Path, file: &str, sql: &str) -> TestResult<Output> {
    let mut command = program(dir);
    command.args(["--gpu", "force", "--gpu-trace", file, "-q", "-c", sql]);
    Ok(command.output()?)
}

/// Events of the file, each with the fields that the format asks of its kind.
fn events(path: &Path) -> TestResult<Vec<Value>> {
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let events = trace.as_array().ok_or("no array of events")?.clone();
    for event in &events {
        assert!(event["name"].is_string() && event["pid"].is_u64(), "{event}");
        match event["ph"].as_str() {
            Some("M") => assert!(event["args"]["name"].is_string(), "{event}"),
            Some("i") => assert!(event["ts"].is_f64() && event["s"].is_string(), "{event}"),
            Some("b" | "e") => {
                assert!(event["ts"].is_f64() && event["id"].is_u64() && event["cat"].is_string(), "{event}");
            }
            _ => return Err(format!("unknown phase: {event}").into()),
        }
    }
    Ok(events)
}

/// Begin and end of each slice by its id; each has one of both.
fn slices(events: &[Value]) -> TestResult<Vec<(Value, f64, f64)>> {
    let end = |event: &&Value| event["ph"] == "e";
    let ends: HashMap<u64, &Value> =
        events.iter().filter(end).map(|event| (event["id"].as_u64().unwrap_or(0), event)).collect();
    let mut slices = vec![];
    for event in events.iter().filter(|event| event["ph"] == "b") {
        let id = event["id"].as_u64().ok_or("no id")?;
        let end = ends.get(&id).ok_or("a slice without an end")?;
        assert_eq!((&end["name"], &end["cat"]), (&event["name"], &event["cat"]));
        let at = |event: &Value| event["ts"].as_f64().ok_or("no ts");
        // Its end has all that became known.
        slices.push(((*end).clone(), at(event)?, at(end)?));
    }
    assert_eq!(slices.len(), ends.len(), "an end without a slice");
    Ok(slices)
}

#[test]
fn a_trace_holds_query_islands_transfers_and_kernels() -> TestResult {
    let dir = tempfile::tempdir()?;
    std::fs::create_dir(dir.path().join("t"))?;
    write_files(&dir.path().join("t"), 2, 4_001)?;
    let sql = "SELECT sum(v) FROM 't/*.parquet' WHERE k > 10";
    let output = traced(dir.path(), "trace.json", sql)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let slices = slices(&events(&dir.path().join("trace.json"))?)?;
    let named = |name: &str| -> Vec<_> { slices.iter().filter(|slice| slice.0["name"] == name).collect() };
    let queries = named("gpu_query");
    assert_eq!(queries.len(), 1, "{slices:?}");
    let (query, began, ended) = queries[0];
    assert!(query["args"]["query"].as_str().is_some_and(|text| text.contains("sum(")), "{query}");
    for name in ["gpu_island", "gpu_upload", "gpu_compile", "gpu_kernel"] {
        let found = named(name);
        assert!(!found.is_empty(), "no {name}");
        for (slice, from, to) in found {
            assert!(began <= from && from <= to && to <= ended, "{slice} is outside of its query");
            assert_eq!(slice["args"]["query_id"], query["args"]["query_id"], "{slice}");
            assert!(
                slice["args"]["node"].as_str().is_some_and(|node| node.starts_with("GpuAggregateExec[")),
                "{slice}"
            );
        }
    }
    let (kernel, ..) = named("gpu_kernel")[0];
    assert!(kernel["args"]["rows"].as_u64().is_some_and(|rows| rows > 0), "{kernel}");
    Ok(())
}

/// Ctrl-C ends a query that would take for ever; its trace is whole, with the query and what it had done.
#[cfg(unix)]
#[test]
fn an_interrupted_query_leaves_a_whole_trace() -> TestResult {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("trace.json");
    let sql = "SELECT count(*) FROM generate_series(1, 1000000000000) WHERE value % 7 = 3 AND value > 5";
    let mut command = program(dir.path());
    command.args(["--gpu", "force", "--gpu-trace", "trace.json", "-q", "-c", sql]);
    let mut child = command.spawn()?;
    let text = || std::fs::read_to_string(&file).unwrap_or_default();
    for _ in 0..3000 {
        if text().contains("gpu_island") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    let status = child.wait()?;
    assert_eq!(status.code(), Some(130));
    let events = events(&file)?;
    for name in ["gpu_query", "gpu_island"] {
        assert!(events.iter().any(|event| event["ph"] == "b" && event["name"] == name), "no {name}");
    }
    Ok(())
}

#[test]
fn a_trace_that_cannot_be_written_is_an_error() -> TestResult {
    let dir = tempfile::tempdir()?;
    let output = traced(dir.path(), "no/such/folder/trace.json", "SELECT 1")?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.starts_with("Error: cannot write the trace no/such/folder/trace.json: "), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    #[cfg(target_os = "linux")]
    {
        let output = traced(dir.path(), "/dev/full", "SELECT 1")?;
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(text.starts_with("Error: the trace /dev/full is not whole: "), "{text}");
    }
    Ok(())
}
