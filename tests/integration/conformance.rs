//! The conformance runner, on test files of the tests' own.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::TestResult;

/// Statements that pass, each of another kind.
const GOOD: &str = "\
statement ok
CREATE TABLE t AS VALUES (1, 10), (2, 20), (3, 30), (4, 40)

# In any order, as there is no ORDER BY.
query I
SELECT column2 FROM t WHERE column1 > 2
----
40
30

# Some row of the table, whichever the file shows.
query I
SELECT column1 FROM t LIMIT 1
----
4

query II
SELECT count(*), sum(column2) FROM t WHERE column1 <> 4
----
3 60

statement error already exists
CREATE TABLE t AS VALUES (1)

statement ok
CREATE TABLE d AS SELECT arrow_cast(column1, 'Decimal128(38, 0)') AS d FROM (VALUES (99999999999999999999999999999999999999))

query error Overflow
SELECT d + d FROM d WHERE d > 0

# Any error is right for the file, but it has to be that of DataFusion.
query error
SELECT d * d FROM d

onlyif postgres
statement ok
CREATE TABLE other (a INT)

# A plan without the rule.
query TT
EXPLAIN SELECT column1 + 1 FROM t WHERE column1 > 2
----
logical_plan
01)Projection: t.column1 + Int64(1)
02)--Filter: t.column1 > Int64(2)
03)----TableScan: t projection=[column1]
physical_plan
01)ProjectionExec: expr=[column1@0 + 1 as t.column1 + Int64(1)]
02)--RepartitionExec: partitioning=RoundRobinBatch(4), input_partitions=1
03)----FilterExec: column1@0 > 2
04)------DataSourceExec: partitions=1, partition_sizes=[1]

statement ok
SET datafusion.catalog.information_schema = true

query I
SELECT count(*) FROM information_schema.df_settings WHERE name LIKE 'gpu%'
----
0

statement ok
PREPARE p AS SELECT column2 FROM t WHERE column1 = $1

query I
EXECUTE p(2)
----
20
";

/// What fails with the rule and without it.
const WRONG: &str = "\
query I
SELECT 1
----
2

query I
SELECT column1 FROM (VALUES (1), (2)) ORDER BY column1
----
2
1

query I
SELECT column1 FROM (VALUES (1), (2)) LIMIT 1
----
1
2
";

/// What fails only where the GPU is registered.
const OURS: &str = "\
statement error
SET gpu.enabled = true
";

/// A folder with test files.
struct Suite {
    dir: TempDir,
}

/// What a run did.
struct Ran {
    code: Option<i32>,
    stdout: String,
    json: Value,
}

impl Suite {
    fn new(files: &[(&str, &str)]) -> TestResult<Self> {
        let dir = tempfile::tempdir()?;
        fs::create_dir(dir.path().join("test_files"))?;
        for (name, text) in files {
            fs::write(dir.path().join("test_files").join(name), text)?;
        }
        Ok(Self { dir })
    }

    /// Runs all files against a list of known failures.
    fn run(&self, skips: &str, arguments: &[&str]) -> TestResult<Ran> {
        let path = |name: &str| self.dir.path().join(name);
        fs::write(path("skips.txt"), skips)?;
        let output = Command::new(env!("CARGO_BIN_EXE_datafusion-wgpu"))
            .arg("conformance")
            .args(["--files", ".slt"])
            .arg("--test-files")
            .arg(path("test_files"))
            .arg("--skips")
            .arg(path("skips.txt"))
            .arg("--json")
            .arg(path("report.json"))
            .arg("--report")
            .arg(path("report.md"))
            .args(arguments)
            .env("RUST_BACKTRACE", "0")
            .output()?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let json = fs::read(path("report.json"))
            .map_err(|_| format!("no report: {}", String::from_utf8_lossy(&output.stderr)))?;
        Ok(Ran { code: output.status.code(), stdout, json: serde_json::from_slice(&json)? })
    }
}

impl Ran {
    fn totals(&self, names: &[&str]) -> Vec<u64> {
        names.iter().map(|name| self.json["passes"][0]["totals"][name].as_u64().unwrap_or(u64::MAX)).collect()
    }
}

#[test]
fn statements_of_every_kind_pass() -> TestResult {
    let suite = Suite::new(&[("good.slt", GOOD)])?;
    let ran = suite.run("", &["--pass", "exchanges=keep", "--pass", "memory_limit=1KiB"])?;
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    assert_eq!(ran.totals(&["statements", "passed", "failed", "skipped_by_file"]), [13, 13, 0, 1]);
    // The plan and the settings ran without the rule; the filters, the aggregates and the overflows with it. Of one overflow
    // everything fell back, of the other there is a filter.
    assert_eq!(ran.totals(&["without_rule", "gpu", "launched"]), [2, 6, 5], "{}", ran.json);
    assert_eq!(ran.json["passes"][0]["totals"]["fallbacks"]["ArithmeticFault"], 2);
    // So little memory is enough for nothing.
    let small = &ran.json["passes"][2]["totals"];
    assert_eq!((small["passed"].as_u64(), small["launched"].as_u64()), (Some(13), Some(0)), "{small}");
    let report = fs::read_to_string(suite.dir.path().join("report.md"))?;
    for text in [
        "1. batch_rows 64, exchanges collapse\n2. batch_rows 64, exchanges keep\n",
        "3. batch_rows 64, exchanges collapse, memory_limit 1KiB\n",
        "| statements | 13 | 13 | 13 |",
        "| good.slt | 13 | 13 | 0 | 0 | 1 | 2 | 6 | 5 | ArithmeticFault 2 |",
        "## Files with other figures in pass 3: batch_rows 64",
    ] {
        assert!(report.contains(text), "{report}");
    }
    Ok(())
}

#[test]
fn planted_faults_are_found() -> TestResult {
    let suite = Suite::new(&[("good.slt", GOOD)])?;
    // A row less, a sum less, another error where any is right; a plan is none of the rule's.
    for text in ["WHERE column1 > 2", "column1 <> 4", "d * d"] {
        let ran = suite.run("", &["--plant", text])?;
        assert_eq!(ran.code, Some(1), "{text}: {}", ran.stdout);
        assert_eq!(
            ran.totals(&["passed", "failed", "failed_everywhere"]),
            [12, 1, 0],
            "{text}: {}",
            ran.stdout
        );
    }
    assert!(suite.run("", &["--plant", "no such text"])?.code == Some(0));
    Ok(())
}

#[test]
fn failures_are_told_apart() -> TestResult {
    let suite = Suite::new(&[("good.slt", GOOD), ("wrong.slt", WRONG), ("ours.slt", OURS)])?;
    let ran = suite.run("", &[])?;
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.totals(&["passed", "failed", "failed_everywhere", "skipped"]), [13, 1, 3, 0]);
    for text in [
        "FAILED: ours.slt:1\n",
        "fails without the rule too: wrong.slt:1\n",
        "fails without the rule too: wrong.slt:6\n",
    ] {
        assert!(ran.stdout.contains(text), "{}", ran.stdout);
    }

    let known = "\
        # A comment.\nfile: ours.slt\nline: 1\nfails: with the rule\nreason: the option is ours\n\n\
        file: wrong.slt\nsql: SELECT\nfails: everywhere\nreason: wrong on purpose\n";
    let ran = suite.run(known, &[])?;
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    assert_eq!(ran.totals(&["passed", "failed", "failed_everywhere", "skipped"]), [13, 0, 0, 4]);

    let stale = format!("{known}\nfile: good.slt\nsql: EXECUTE p\nfails: with the rule\nreason: none\n");
    let ran = suite.run(&stale, &[])?;
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stdout.contains("STALE entry in the list of known failures: good.slt: EXECUTE p"),
        "{}",
        ran.stdout
    );
    Ok(())
}

#[test]
fn hangs_and_panics_are_failures() -> TestResult {
    // A table of this schema that DataFusion's context for cte.slt does not know panics. The first sum can be cancelled; the
    // second holds its thread.
    let text = "\
        statement error\nSELECT * FROM strict_schema.unknown\n\n\
        statement error\nSELECT max(ln(value)) FROM generate_series(1, 1000000000)\n\n\
        query I\nSELECT 1\n----\n1\n";
    let stuck = "\
        statement error\nSELECT max(ln(a.value) + b.value) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b\n\n\
        query I\nSELECT 1\n----\n1\n";
    let suite = Suite::new(&[("cte.slt", text), ("stuck.slt", stuck), ("good.slt", GOOD)])?;
    let ran = suite.run("", &["--timeout", "2"])?;
    assert_eq!(ran.code, Some(1));
    let counts = ran.totals(&["files", "statements", "passed", "failed", "failed_everywhere"]);
    // The one that hangs counts, the one behind it did not run.
    assert_eq!(counts, [3, 17, 14, 1, 2], "{}", ran.stdout);
    assert_eq!(ran.totals(&["statements_not_run"]), [1]);
    for text in [
        "panicked: ",
        "took longer than 2 s\n",
        "stuck.slt:1\ntook longer than 2 s and could not be cancelled",
    ] {
        assert!(ran.stdout.contains(text), "{}", ran.stdout);
    }
    Ok(())
}

#[test]
fn the_subset_is_listed_without_data() -> TestResult {
    let output = Command::new(env!("CARGO_BIN_EXE_datafusion-wgpu"))
        .args(["conformance", "--subset", "--list"])
        .env_remove("DATAFUSION_TESTING_DATA")
        .output()?;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).lines().any(|line| line == "case.slt"));
    let whole = Command::new(env!("CARGO_BIN_EXE_datafusion-wgpu"))
        .arg("conformance")
        .env_remove("DATAFUSION_TESTING_DATA")
        .output()?;
    assert_eq!(whole.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&whole.stderr).contains("DATAFUSION_TESTING_DATA"));
    Ok(())
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_datafusion-wgpu"));
    command.arg("conformance").env_remove("DATAFUSION_TESTING_DATA");
    command
}

#[test]
fn a_folder_of_test_files_needs_no_repository() -> TestResult {
    let suite = Suite::new(&[("good.slt", GOOD), ("cte.slt", GOOD)])?;
    let run = |arguments: &[&str]| program().args(arguments).current_dir(suite.dir.path()).output();
    let listed = run(&["--test-files", "test_files", "--list"])?;
    assert_eq!(listed.status.code(), Some(0), "{}", String::from_utf8_lossy(&listed.stderr));
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "cte.slt\ngood.slt\n");
    let ran = run(&["--test-files", "test_files", "--files", "good"])?;
    assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
    let other = run(&["--list"])?;
    assert_eq!(other.status.code(), Some(1));
    let text = String::from_utf8_lossy(&other.stderr);
    assert!(text.starts_with("Error: not in a clone of the datafusion-wgpu repository"), "{text}");
    Ok(())
}

#[test]
fn what_cannot_run_is_refused_at_once() -> TestResult {
    let suite = Suite::new(&[("good.slt", GOOD)])?;
    fs::create_dir(suite.dir.path().join("test_files/tpch"))?;
    fs::write(suite.dir.path().join("test_files/tpch/q1.slt"), GOOD)?;
    let cases: [(&[&str], i32, &str); 8] = [
        (&["--files", "good", "--adapter", "no such adapter"], 1, "none matches 'no such adapter'"),
        (&["--files", "good", "--pass", "adapter=nosuch"], 1, "none matches 'nosuch'"),
        (&["--files", "unary_minus,good"], 1, "'unary_minus' matches no test file"),
        (&["--files", "tpch/"], 1, "'tpch/' matches only TPC-H files, which need --tpch"),
        (&["--files", "good", "--json", "no/such/report.json"], 1, "cannot write 'no/such/report.json': "),
        (&["--jobs", "0"], 2, "0 is not in 1..=1024"),
        (&["--batch-rows", "0"], 2, "0 is not in 1.."),
        (&["--timeout", "0"], 2, "0 is not in 1..=86400"),
    ];
    for (arguments, code, expected) in cases {
        let mut command = program();
        command.args(["--test-files", "test_files"]).args(arguments).current_dir(suite.dir.path());
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    }
    Ok(())
}

/// A signal to the waiting process alone ends the other one and removes the scratch folder; so does its sudden end.
#[cfg(unix)]
#[test]
fn signals_leave_nothing_behind() -> TestResult {
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    let endless = "statement ok\nSELECT max(ln(a.value) + b.value) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b\n";
    let suite = Suite::new(&[("endless.slt", endless)])?;
    for (signal, code) in [("-INT", Some(130)), ("-TERM", Some(143)), ("-KILL", None)] {
        let temporary = suite.dir.path().join(format!("tmp{signal}"));
        fs::create_dir(&temporary)?;
        let scratch = || -> TestResult<Option<std::path::PathBuf>> {
            Ok(fs::read_dir(&temporary)?.next().transpose()?.map(|entry| entry.path()))
        };
        let mut command = program();
        command.args(["--files", "endless", "--test-files"]).arg(suite.dir.path().join("test_files"));
        command.env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let stderr = child.stderr.take().ok_or("no stderr")?;
        let start = Instant::now();
        let begun = || -> TestResult<bool> {
            let Some(folder) = scratch()? else { return Ok(false) };
            Ok(fs::read_to_string(folder.join("results.jsonl")).is_ok_and(|text| text.contains("Begun")))
        };
        while !begun()? {
            assert!(
                start.elapsed() < Duration::from_secs(60) && child.try_wait()?.is_none(),
                "it never began"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Command::new("kill").args([signal, &child.id().to_string()]).status()?;
        assert_eq!(child.wait()?.code(), code, "{signal}");
        // The other process holds it open too: this waits for both.
        std::io::read_to_string(stderr)?;
        let left = scratch()?;
        assert!(left.is_none(), "{signal}: {left:?}");
    }
    Ok(())
}
