//! Tests of flags, of the files that are written and read, and of how a run ends.

use clap::Parser;

use crate::{Cli, Command};

use super::*;

fn parsed(flags: &[&str]) -> std::result::Result<Args, String> {
    let cli = Cli::try_parse_from(["datafusion-wgpu", "fuzz"].iter().chain(flags));
    match cli.map_err(|error| error.to_string())?.command {
        Some(Command::Fuzz(args)) => Ok(args),
        _ => Err("another command".to_string()),
    }
}

#[test]
fn flags_that_never_end_or_do_nothing_are_refused() {
    for flags in [
        ["--minutes", "nan"],
        ["--minutes", "inf"],
        ["--minutes", "0"],
        ["--queries", "0"],
        ["--timeout", "0"],
        ["--failures", "0"],
        ["--runs", "0"],
        ["--jobs", "0"],
        ["--from", "18446744073709551615"],
        ["--timeout", "18446744073709551615"],
        ["--shrink", "18446744073709551615"],
    ] {
        let error = parsed(&flags).unwrap_err();
        assert!(error.contains(flags[0]) && error.contains(flags[1]), "{error}");
    }
    let args = parsed(&["--minutes", "0.5", "--queries", "7", "--from", "3", "--shrink", "0"]).unwrap();
    assert_eq!(args.range().unwrap(), (3, 10));
    let last = QUERIES - 1;
    let args = parsed(&["--from", &last.to_string(), "--queries", "1"]).unwrap();
    assert_eq!(args.range().unwrap(), (last, QUERIES));
    for queries in [Some(2), Some(u64::MAX)] {
        let error = Args { queries, ..args.clone() }.range().unwrap_err().to_string();
        assert!(error.contains(&format!("--from {last}")), "{error}");
    }
    assert_eq!(Args { queries: None, minutes: Some(1.0), ..args }.range().unwrap(), (last, QUERIES));
}

#[test]
fn outputs_are_checked_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (out, json) = (folder.path().join("out"), folder.path().join("report.json"));
    let good = Args { json: Some(json.clone()), ..args(&out) };
    good.check_outputs().unwrap();
    assert!(!out.exists() && json.exists());
    let inside = file.join("inside");
    for bad in [
        Args { out: inside.clone(), ..good.clone() },
        Args { out: file.clone(), ..good.clone() },
        Args { json: Some(inside.clone()), ..good.clone() },
        Args { json: Some(folder.path().to_path_buf()), ..good.clone() },
    ] {
        let path = if bad.out == out { bad.json.clone().unwrap() } else { bad.out.clone() };
        let error = bad.check_outputs().unwrap_err().to_string();
        assert!(error.contains(&format!("'{}'", path.display())), "{error}");
    }
}

fn case() -> Case {
    let world = World::new(1, 0).unwrap();
    Case { query: world.query(0), dataset: world.datasets[0].clone(), options: RunOptions::default() }
}

#[test]
fn scripts_of_earlier_runs_stay() {
    let folder = tempfile::tempdir().unwrap();
    let write = |seed| {
        let shrunk = Shrunk { case: case(), detail: String::new(), tries: 0 };
        script::write(&folder.path().join("out"), seed, 0, Wrong::Rows, &shrunk).unwrap()
    };
    let first = write(1);
    let text = std::fs::read_to_string(&first).unwrap();
    let second = write(2);
    assert_eq!(
        (first.file_name().unwrap(), second.file_name().unwrap()),
        ("0001.sql".as_ref(), "0002.sql".as_ref())
    );
    assert_eq!(std::fs::read_to_string(&first).unwrap(), text);
    assert!(std::fs::read_to_string(&second).unwrap().contains("--seed 2"));
}

#[tokio::test]
async fn scripts_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        ("missing.sql", None),
        ("binary.sql", Some(&[0xff, 0xfe, 0x00][..])),
        ("plain.sql", Some(b"SELECT 1;")),
        ("broken.sql", Some(b"-- fuzz: {}")),
    ] {
        let path = folder.path().join(name);
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        let error = script::read(&path).await.err().unwrap().to_string();
        assert!(error.contains(&format!("cannot read '{}'", path.display())), "{error}");
    }
}

/// What was found is written down however far it was made smaller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_run_keeps_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::new("", Duration::from_secs(60)).unwrap();
    let args = Args { failures: 20, queries: Some(10_000), ..args(folder.path()) };
    let fuzzer = Fuzzer::new(engine, args);
    fuzzer.open.lock().insert(3, (case(), Wrong::Rows, "other rows".to_string()));
    let soon = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        130
    };
    let (summary, code) = fuzzer.run(soon).await.unwrap();
    assert_eq!((code, summary.interrupted), (Some(130), true));
    let failure = &summary.failures[0];
    assert_eq!((failure.query, failure.detail.as_str()), (3, "other rows"));
    assert!(script::read(failure.script.as_ref().unwrap()).await.is_ok());
}

/// A query that never reached the device is no failure of the GPU where the CPU needs as long.
#[tokio::test]
async fn slow_plans_of_the_cpu_are_counted_apart() {
    let stored = numbers().await;
    let options = RunOptions::default();
    let hang =
        || runner::Run { verdict: Verdict::Hang, gpu: runner::GpuWork::default(), plan: String::new() };
    for (limit, is_slow) in [(Duration::ZERO, true), (Duration::from_secs(60), false)] {
        let engine = Engine::new("", limit).unwrap();
        let sql = "SELECT count(*) FROM t0".to_string();
        let question = Question::of_sql(&engine, &stored, sql, None, Spec::default()).await;
        let judgement = question.judge(&engine, &options, &hang(), Care::Quick).await;
        assert_eq!(matches!(judgement, Judgement::SlowOnCpu), is_slow, "{judgement:?}");
        let mut on_device = hang();
        on_device.gpu.nodes.insert("GpuFilterExec".to_string(), 1);
        let judgement = question.judge(&engine, &options, &on_device, Care::Quick).await;
        assert!(matches!(judgement, Judgement::Wrong(Wrong::Hang, _)), "{judgement:?}");
        // Asked once more, with more time, of which there is none here first.
        let judgement = question.judge(&engine, &options, &on_device, Care::Thorough).await;
        assert_eq!(matches!(judgement, Judgement::Slow), !is_slow, "{judgement:?}");
        assert_eq!(matches!(judgement, Judgement::Wrong(Wrong::Hang, _)), is_slow, "{judgement:?}");
    }
}

/// The answer of a slow run, once it has one, is compared: here with that of a CPU which gives another one when asked again.
#[tokio::test]
async fn slow_runs_are_judged_by_their_answers() {
    let stored = numbers().await;
    let engine = Engine::new("", Duration::from_secs(60)).unwrap();
    let sql = "SELECT count(*) FROM t0".to_string();
    let mut question = Question::of_sql(&engine, &stored, sql, None, Spec::default()).await;
    let Verdict::Rows(answer) = &mut question.oracle.verdict else { panic!("rows") };
    answer.batches.clear();
    let hang = runner::Run { verdict: Verdict::Hang, gpu: runner::GpuWork::default(), plan: String::new() };
    let judgement = question.judge(&engine, &RunOptions::default(), &hang, Care::Thorough).await;
    assert!(matches!(judgement, Judgement::OtherCpu), "{judgement:?}");
}

/// Found by the fuzzer: of the four rows, the first three make a batch in which the decimal raises, of which the fourth keeps
/// it on the CPU: there the division does.
const SLICES: &str = r#"
-- fuzz: {"seed":6000,"query":10648,"wrong":"error","options":{"settings":{"gpu.batch_rows":"3"},"withheld":[],"fault":null,"pool":null},"spec":{"order":[],"limited":false,"offset":0,"folds":[false,false],"tiers":["Exact","Exact"]},"reference":null,"tables":[{"name":"t0","layout":{"Memory":{"partitions":1,"pattern":[18446744073709551615],"before":0}},"not_null":[],"file":null},{"name":"t2","layout":{"Parquet":{"files":1,"row_group":4,"dictionary":true,"statistics":true}},"not_null":[],"file":null}]}
CREATE TABLE t0 AS SELECT
  arrow_cast(column1, 'Dictionary(Int32, Utf8)') AS k,
  arrow_cast(column2, 'Float32') AS c1,
  arrow_cast(column3, 'Decimal128(38, 0)') AS c3,
  arrow_cast(column4, 'Int32') AS c5,
  arrow_cast(column5, 'Decimal128(9, 2)') AS c6
FROM (VALUES
  (NULL, '-323.05957', '99999999999999999999999999999999999999', '2147483647', NULL),
  (NULL, '-228.15332', '-5', '2147483647', '-8234.46'),
  (NULL, '484.30762', '-5888334502547446713', '56', '-6687.12'),
  (NULL, 'inf', NULL, '0', '-9324.94')
);
CREATE TABLE t2 AS SELECT
  arrow_cast(column1, 'Utf8') AS k
FROM (VALUES
  ('ä')
);
SELECT (COALESCE(NULLIF(a1.c5, 0), 1) <> 1 AND a1.c5 / a1.c5 <> 0) AS x7, NULLIF(a1.c3, a1.c6) AS x8 FROM t0 AS a1 WHERE ((CAST('394.58594' AS DOUBLE) <> a1.c1) AND (NOT EXISTS (SELECT 1 AS x3 FROM t2 AS a2 WHERE (a2.k = a1.k))));
"#;

#[tokio::test]
async fn errors_of_slices_are_open_if_whole_batches_agree() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slices.sql");
    std::fs::write(&path, SLICES).unwrap();
    let script = script::read(&path).await.unwrap();
    let stored = script.dataset.store().await.unwrap();
    let engine = Engine::new("", Duration::from_secs(60)).unwrap();
    let header = script.header;
    let question = Question::of_sql(&engine, &stored, script.sql, header.reference, header.spec).await;
    let (mut run, judgement) =
        question.run(&engine, &header.options, &Plant::default(), Care::Thorough).await;
    let (Verdict::Error(off), Verdict::Error(forced)) = (&question.oracle.verdict, &run.verdict) else {
        panic!("{:?} {:?}", question.oracle.verdict, run.verdict)
    };
    assert!(off.contains("Divide by zero") && forced.contains("Overflowing on"), "{off}\n{forced}");
    assert!(matches!(judgement, Judgement::Undetermined), "{judgement:?}");
    // Whole batches of one partition leave nothing open.
    run.gpu.partitions = 1;
    let judgement = question.judge(&engine, &RunOptions::default(), &run, Care::Thorough).await;
    assert!(matches!(judgement, Judgement::Wrong(Wrong::Error, _)), "{judgement:?}");
}

/// Which of several partitions fails first is open, if some row of the tables raises what was reported.
#[tokio::test]
async fn errors_of_partitions_are_open_if_a_row_raises_them() {
    let stored = numbers().await;
    let engine = Engine::new("", Duration::from_secs(60)).unwrap();
    let sql = "SELECT arrow_cast(k % 16 + 113, 'Int8'), 10 / (k - 17) FROM t0".to_string();
    let question = Question::of_sql(&engine, &stored, sql, None, Spec::default()).await;
    let Verdict::Error(off) = &question.oracle.verdict else { panic!("{:?}", question.oracle.verdict) };
    assert!(off.contains("Cast error"), "{off}");
    for (text, partitions, is_open) in [
        ("Arrow error: Divide by zero error", 4, true),
        ("Arrow error: Divide by zero error", 1, false),
        ("Arrow error: Arithmetic overflow: Overflow happened on: 1 + 2", 4, false),
    ] {
        let gpu = runner::GpuWork { partitions, ..runner::GpuWork::default() };
        let run = runner::Run { verdict: Verdict::Error(text.to_string()), gpu, plan: String::new() };
        let judgement = question.judge(&engine, &RunOptions::default(), &run, Care::Thorough).await;
        assert_eq!(matches!(judgement, Judgement::Undetermined), is_open, "{text}: {judgement:?}");
        assert_eq!(matches!(judgement, Judgement::Wrong(Wrong::Error, _)), !is_open, "{text}: {judgement:?}");
    }
}
