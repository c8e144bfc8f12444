//! `bench`, as it is run: on small data, with the rule forced, on the adapter that is there.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::TestResult;

fn program(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_datafusion-wgpu"));
    command.current_dir(dir).env("HOME", dir).env_remove("RUST_LOG").arg("bench");
    command
}

/// Runs a suite and gives its report; the program has to find every answer right.
fn report(dir: &Path, args: &[&str]) -> TestResult<(Value, String)> {
    let mut command = program(dir);
    command.args(args).args(["--runs", "1", "--json", "report.json", "--peak", "100"]);
    let output = command.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8(output.stdout)?;
    assert!(output.status.success(), "{errors}{text}");
    assert_eq!(errors, "");
    Ok((serde_json::from_slice(&std::fs::read(dir.join("report.json"))?)?, text))
}

/// The queries of a report, with each source that was measured.
fn measured(report: &Value) -> TestResult<Vec<(u64, &Value)>> {
    let mut all = vec![];
    for query in report["queries"].as_array().ok_or("no queries")? {
        let number = query["query"].as_u64().ok_or("no number")?;
        for source in ["parquet", "memory"] {
            let measured = &query[source];
            if measured.is_null() {
                continue;
            }
            let status = measured["status"].as_str().ok_or("no status")?;
            let on_gpu = measured["gpu_nodes"].as_u64().ok_or("no nodes")? > 0;
            // One measured run: the warm one.
            let from_device = measured["gpu"]["warm"]["gpu_batches"].as_u64().is_some_and(|count| count > 0);
            let expected = match (on_gpu, from_device) {
                (false, _) => "cpu",
                (true, true) => "equal",
                (true, false) => "unused",
            };
            assert_eq!(status, expected, "{number}: {measured}");
            assert_eq!(measured["gpu"].is_object(), on_gpu, "{number}: {measured}");
            assert!(measured["cpu"]["median_s"].as_f64().is_some_and(|time| time > 0.0), "{measured}");
            if !on_gpu {
                assert!(!measured["reasons"].as_array().ok_or("no reasons")?.is_empty(), "{measured}");
            }
            all.push((number, measured));
        }
    }
    Ok(all)
}

fn on_gpu(measured: &[(u64, &Value)]) -> Vec<u64> {
    let mut numbers: Vec<u64> = measured
        .iter()
        .filter(|(_, measured)| measured["status"] == "equal")
        .map(|(number, _)| *number)
        .collect();
    numbers.dedup();
    numbers
}

#[test]
fn a_report_has_every_figure() -> TestResult {
    let dir = tempfile::tempdir()?;
    let args = ["tpch", "--scale", "0.001", "--queries", "1,6", "--gpu", "force", "--plot", "plot.svg"];
    let (report, text) = report(dir.path(), &args)?;
    let measured = measured(&report)?;
    assert_eq!(measured.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 1, 6, 6]);
    for (_, six) in measured.iter().filter(|(number, _)| *number == 6) {
        assert!(six["nodes"].as_array().is_some_and(|nodes| nodes.iter().any(|n| n == "GpuAggregateExec")));
        assert_eq!(six["result"]["rows"], 1);
        let gpu = &six["gpu"];
        assert!(gpu["cold_s"].as_f64().is_some_and(|time| time > 0.0), "{gpu}");
        assert!(gpu["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{gpu}");
        assert!(gpu["cold"]["pipelines_compiled"].as_u64().is_some_and(|count| count > 0), "{gpu}");
        assert_eq!(gpu["warm"]["pipelines_compiled"], 0, "{gpu}");
        // Four columns of 6,005 rows: 4 + 8 + 8 + 8 bytes a row.
        assert!(gpu["warm"]["uploaded_bytes"].as_u64().is_some_and(|bytes| bytes >= 6_005 * 28), "{gpu}");
        assert!(gpu["warm"]["downloaded_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{gpu}");
        assert_eq!(gpu["fallbacks"], serde_json::json!({}), "{gpu}");
    }
    assert_eq!(report["bandwidth"], serde_json::json!({ "gb_s": 100.0, "how": "given" }));
    assert_eq!((&report["scale"], &report["placement"]), (&serde_json::json!(0.001), &"force".into()));
    assert!(report["machine"]["adapter"]["name"].is_string() && report["machine"]["date"].is_string());
    assert_eq!(report["totals"]["memory"]["queries"], 2);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines.iter().filter(|line| line.starts_with("6      ") && line.ends_with("equal")).count() == 2,
        "{text}"
    );
    assert!(text.contains("geometric mean of the ratios") && text.contains("DataFusion 55"), "{text}");

    let svg = std::fs::read_to_string(dir.path().join("plot.svg"))?;
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    let bars = |color: &str| svg.lines().filter(|l| l.starts_with("<rect") && l.contains(color)).count();
    let cpu_only = measured.iter().filter(|(_, measured)| measured["status"] == "cpu").count();
    assert_eq!(bars("#4C72B0") + bars("#DD8452"), 4 - cpu_only);
    assert_eq!(bars("#B0B0B0"), cpu_only);
    Ok(())
}

#[test]
fn all_of_tpch_is_right() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (report, _) =
        report(dir.path(), &["tpch", "--scale", "0.001", "--gpu", "force", "--sources", "parquet"])?;
    let measured = measured(&report)?;
    assert_eq!(measured.len(), 22);
    assert!(on_gpu(&measured).contains(&6));
    // Numbers of rows by the generator's data at this scale; those of the queries without a filter that leaves nothing.
    for (number, rows) in [(1, 4), (4, 5), (6, 1), (12, 2), (13, 27), (14, 1), (17, 1), (19, 1), (22, 7)] {
        let found = measured.iter().find(|(n, _)| *n == number).ok_or("a query is missing")?;
        assert_eq!(found.1["result"]["rows"], rows, "query {number}");
    }
    assert!(report["queries"].as_array().is_some_and(|all| all.iter().all(|query| query["tier"] == "exact")));
    Ok(())
}

#[test]
fn the_other_suites_are_right() -> TestResult {
    let dir = tempfile::tempdir()?;
    for (suite, queries) in [("groupby", 10), ("joins", 5), ("clickbench-like", 31)] {
        let (report, _) =
            report(dir.path(), &[suite, "--rows", "2000", "--gpu", "force", "--sources", "memory"])?;
        let measured = measured(&report)?;
        assert_eq!(measured.len(), queries, "{suite}");
        let rows = |number: u64| {
            measured.iter().find(|(n, _)| *n == number).and_then(|(_, m)| m["result"]["rows"].as_u64())
        };
        match suite {
            // 100 values of id1; of 20 values of id6 two rows each.
            "groupby" => assert_eq!((rows(1), rows(8)), (Some(100), Some(40))),
            // A left join keeps every row; nine tenths of the keys of an inner one match.
            "joins" => {
                assert_eq!(rows(3), Some(2000));
                assert!(rows(5).is_some_and(|rows| (1_700..1_900).contains(&rows)), "{:?}", rows(5));
            }
            _ => assert!([1, 3, 7].iter().all(|number| on_gpu(&measured).contains(number)), "{measured:?}"),
        }
    }
    Ok(())
}

#[test]
fn data_is_made_once_and_sources_can_be_chosen() -> TestResult {
    let dir = tempfile::tempdir()?;
    let args = ["groupby", "--rows", "1e3", "--gpu", "off", "--queries", "1-2,10", "--sources", "memory"];
    let (first, _) = report(dir.path(), &args)?;
    let file = dir.path().join("data/bench/groupby-1000/x/part-1.parquet");
    let made = std::fs::metadata(&file)?.modified()?;
    let (second, text) = report(dir.path(), &args)?;
    assert_eq!(std::fs::metadata(&file)?.modified()?, made);
    for report in [&first, &second] {
        let queries = report["queries"].as_array().ok_or("no queries")?;
        assert_eq!(queries.iter().map(|q| q["query"].as_u64().unwrap_or(0)).collect::<Vec<_>>(), [1, 2, 10]);
        for query in queries {
            assert!(query["parquet"].is_null());
            assert_eq!(query["memory"]["reasons"][0]["code"], "Disabled", "{query}");
        }
        assert_eq!(report["bandwidth"], serde_json::json!({ "gb_s": 100.0, "how": "given" }));
    }
    assert_eq!(first["queries"][2]["memory"]["result"], second["queries"][2]["memory"]["result"]);
    assert!(text.contains("none on the GPU") && text.contains("- Disabled"), "{text}");
    Ok(())
}

fn refused(dir: &Path, args: &[&str]) -> TestResult<(Option<i32>, String)> {
    let Output { status, stderr, .. } = program(dir).args(args).output()?;
    Ok((status.code(), String::from_utf8(stderr)?))
}

#[test]
fn wrong_flags_are_refused_in_a_line() -> TestResult {
    let dir = tempfile::tempdir()?;
    let cases: [(&[&str], &str); 5] = [
        (
            &["tpch", "--scale", "0.001", "--data", "own"],
            "own/tpch-sf0.001/nation/mine.parquet' was not made by tpch-data; choose another --data",
        ),
        (
            &["joins", "--rows", "100", "--json", "no/such/report.json"],
            "cannot write 'no/such/report.json': ",
        ),
        (&["joins", "--rows", "100", "--plot", "no/such/plot.svg"], "cannot write 'no/such/plot.svg': "),
        (&["groupby", "--rows", "100", "--adapter", "no such adapter"], "no such adapter"),
        (&["groupby", "--rows", "100", "--data", "file"], "file/groupby-100"),
    ];
    std::fs::write(dir.path().join("file"), "")?;
    std::fs::create_dir_all(dir.path().join("own/tpch-sf0.001/nation"))?;
    std::fs::write(dir.path().join("own/tpch-sf0.001/nation/mine.parquet"), "")?;
    for (args, expected) in cases {
        let (code, text) = refused(dir.path(), args)?;
        assert_eq!(code, Some(1), "{text}");
        assert!(text.starts_with("Error: ") && text.contains(expected), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let usage: [(&[&str], &str); 10] = [
        (&[], "Usage: datafusion-wgpu bench"),
        (&["tpch", "--scale", "0"], "expected a number from 0.001 to 1000"),
        (&["tpch", "--queries", "5-2"], "expected numbers and ranges such as 1,6 or 1-5"),
        (&["joins", "--rows", "1"], "expected a whole number from 100 to 1e9"),
        (&["joins", "--rows", "5e9"], "expected a whole number from 100 to 1e9"),
        (&["tpch", "--queries", "23"], "there is no query 23 in tpch: it has 1 to 22"),
        (&["tpch", "--queries", "0"], "there is no query 0 in tpch: it has 1 to 22"),
        (&["tpch", "--plot", "plot.png"], "expected a file whose name ends with .svg"),
        (&["tpch", "--runs", "0"], "0 is not in 1..=1000"),
        (&["tpch", "--peak", "0"], "expected a number above 0"),
    ];
    for (args, expected) in usage {
        let (code, text) = refused(dir.path(), args)?;
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(expected), "{text}");
    }
    Ok(())
}
