//! Statements from the command line, files and standard input.

use super::*;

/// datafusion-cli stops at the table format's 40 rows for every format.
#[test]
fn formats_for_programs_have_every_row() -> TestResult {
    let place = Place::new()?;
    let sql = "SELECT value FROM generate_series(1, 30000)";
    for (format, lines) in [("csv", 30_001), ("tsv", 30_001), ("nd-json", 30_000)] {
        let ran = place.run(&["-q", "--format", format, "-c", sql])?.succeeded()?;
        assert_eq!(ran.stdout.lines().count(), lines, "{format}");
    }
    Ok(())
}

#[test]
fn an_error_that_speaks_of_pipes_is_an_error() -> TestResult {
    let place = Place::new()?;
    for sql in
        ["SELECT arrow_cast('Broken pipe (os error', 'Int32')", "SELECT * FROM \"Broken pipe (os error 32)\""]
    {
        assert!(place.run(&["-c", sql])?.failed()?.contains("Broken pipe"), "{sql}");
    }
    Ok(())
}

#[test]
fn commands_run_in_order() -> TestResult {
    let ran = Place::new()?
        .run(&[
            "-q",
            "--format",
            "csv",
            "-c",
            "SELECT 1 AS a; SELECT 2 AS b",
            "SELECT 3 AS c",
            "-c",
            "SELECT 4 AS d",
        ])?
        .succeeded()?;
    assert_eq!(ran.stdout, "a\n1\nb\n2\nc\n3\nd\n4\n");
    assert_eq!(ran.stderr, "");
    Ok(())
}

#[test]
fn every_format_prints_its_own_form() -> TestResult {
    let place = Place::new()?;
    let table = "+---+------+\n| a | b    |\n+---+------+\n| 1 | NULL |\n+---+------+\n";
    let cases = [
        ("csv", "a,b\n1,\n"),
        ("tsv", "a\tb\n1\t\n"),
        ("json", "[{\"a\":1}]\n"),
        ("nd-json", "{\"a\":1}\n"),
        ("table", table),
        ("TABLE", table),
        ("automatic", table),
    ];
    for (format, expected) in cases {
        let ran = place.run(&["-q", "--format", format, "-c", "SELECT 1 AS a, NULL AS b"])?.succeeded()?;
        assert_eq!(ran.stdout, expected, "{format}");
    }
    Ok(())
}

#[test]
fn quiet_leaves_out_all_but_the_results() -> TestResult {
    let place = Place::new()?;
    let loud = place.run(&["-c", "SELECT 1"])?.succeeded()?.stdout;
    let quiet = place.run(&["-q", "-c", "SELECT 1"])?.succeeded()?.stdout;
    for text in ["datafusion-wgpu ", "row(s) fetched", "Elapsed"] {
        assert!(loud.contains(text), "{loud}");
        assert!(!quiet.contains(text), "{quiet}");
    }
    Ok(())
}

#[test]
fn tables_are_cut_at_maxrows() -> TestResult {
    let place = Place::new()?;
    let lines = |flags: &[&str]| -> TestResult<usize> {
        let query = ["-q", "-c", "SELECT value FROM generate_series(1, 50)"];
        Ok(place.run(&[flags, &query].concat())?.succeeded()?.stdout.lines().count())
    };
    // Four lines of frame and head; three of dots where rows are left out.
    assert_eq!(lines(&[])?, 40 + 4 + 3);
    assert_eq!(lines(&["--maxrows", "7"])?, 7 + 4 + 3);
    assert_eq!(lines(&["--maxrows", "inf"])?, 50 + 4);
    Ok(())
}

#[test]
fn files_run_before_commands_and_may_be_several() -> TestResult {
    let place = Place::new()?;
    place.write(
        "one.sql",
        "#!/usr/bin/env -S datafusion-wgpu -f\n-- first\nCREATE TABLE t AS\n  SELECT 1 AS a;\n",
    )?;
    place.write("two.sql", "INSERT INTO t VALUES (2);\nSELECT sum(a) AS s FROM t")?;
    let arguments =
        ["-q", "--format", "csv", "-c", "SELECT count(*) AS n FROM t", "-f", "one.sql", "two.sql"];
    let ran = place.run(&arguments)?.succeeded()?;
    assert_eq!(ran.stdout, "count\n1\ns\n3\nn\n2\n");
    Ok(())
}

#[test]
fn statements_that_fail_are_reported_and_make_the_exit_code() -> TestResult {
    let place = Place::new()?;
    place.write("half.sql", "SELECT 1 AS a;\nSELECT nope;\nSELECT 3 AS c;\n")?;
    let ran = place.run(&["-q", "--format", "csv", "-f", "half.sql"])?;
    assert!(ran.failed()?.contains("nope"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "a\n1\nc\n3\n", "the next statements run");
    let ran = place.run(&["-q", "--format", "csv", "-c", "SELECT 1 AS a", "SELECT nope", "SELECT 3 AS c"])?;
    assert!(ran.failed()?.contains("nope"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "a\n1\n", "-c stops at the first");
    for wrong in
        ["SELEC 1", "SELECT", "SELECT 'open", "SELECT * FROM 'missing/*.parquet'", "SET gpu.nope = 1"]
    {
        let ran = place.run(&["-q", "-c", wrong])?;
        assert_eq!(ran.code, Some(1), "{wrong}");
        assert!(
            ran.stderr.starts_with("Error: ") && !ran.stderr.contains("panicked"),
            "{wrong}: {}",
            ran.stderr
        );
    }
    Ok(())
}

#[test]
fn piped_statements_run_one_by_one() -> TestResult {
    let place = Place::new()?;
    let input = "-- a comment\nSELECT 1 AS a; SELECT 2 AS b;\nSELECT\n  ';' AS c\n;\nSELECT 4 AS d";
    let ran = place.pipe(input, &["-q", "--format", "csv"])?.succeeded()?;
    assert_eq!(ran.stdout, "a\n1\nb\n2\nc\n;\nd\n4\n");
    assert_eq!(place.pipe("", &["-q"])?.succeeded()?.stdout, "");
    let ran = place.pipe("SELECT nope;\nSELECT 2 AS b;\n", &["-q", "--format", "csv"])?;
    assert!(ran.failed()?.contains("nope"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "b\n2\n");
    Ok(())
}

#[test]
fn piped_input_obeys_meta_commands() -> TestResult {
    let place = Place::new()?;
    place.write("more.sql", "SELECT 5 AS e;\n")?;
    let input = "\\pset format csv\n\\pset\nCREATE VIEW v AS SELECT 1 AS x;\n\\d\n\\d v\n\\i more.sql\n\\quiet\n\\?\n\\q\nSELECT 9 AS never;\n";
    let ran = place.pipe(input, &["-q"])?.succeeded()?;
    let expected = [
        "Output format is Csv.",
        "datafusion,public,v,VIEW",
        "datafusion,public,v,x,Int64",
        "e\n5\n",
        "Quiet mode is true",
        "\\q,quit",
    ];
    for text in expected {
        assert!(ran.stdout.contains(text), "no {text} in\n{}", ran.stdout);
    }
    assert!(!ran.stdout.contains("never"), "\\q ends it");
    for wrong in ["\\zz\n", "\\pset format xml\n", "\\i missing.sql\n", "\\i\n"] {
        let ran = place.pipe(format!("{wrong}SELECT 2 AS b;\n"), &["-q", "--format", "csv"])?;
        ran.failed().map_err(|e| format!("{wrong}: {e}"))?;
        assert_eq!(ran.stdout, "b\n2\n", "{wrong}");
    }
    Ok(())
}

#[test]
fn start_up_files_run_in_sessions_only() -> TestResult {
    let place = Place::new()?;
    fs::write(place.home().join(".datafusionrc"), "SELECT 'home' AS rc;\n")?;
    place.write("my.rc", "SELECT 'mine' AS rc;\n")?;
    let piped = |flags: &[&str]| -> TestResult<String> {
        Ok(place.pipe("SELECT 1 AS a;\n", &[&["-q", "--format", "csv"], flags].concat())?.succeeded()?.stdout)
    };
    assert_eq!(piped(&[])?, "rc\nhome\na\n1\n");
    assert_eq!(piped(&["-r", "my.rc"])?, "rc\nmine\na\n1\n");
    assert_eq!(piped(&["-r"])?, "a\n1\n");
    assert_eq!(piped(&["-c", "SELECT 2 AS b"])?, "b\n2\n");
    Ok(())
}

#[test]
fn parquet_files_are_tables_by_their_path() -> TestResult {
    let place = Place::new()?;
    six_numbers(&place)?;
    let root = place.path("t");
    let sums = [
        ("t/*.parquet".to_owned(), "21"),
        ("t/a*.parquet".to_owned(), "6"),
        ("t/?.parquet".to_owned(), "21"),
        ("t".to_owned(), "21"),
        ("t/".to_owned(), "21"),
        ("t/b.parquet".to_owned(), "15"),
        (format!("{}/*.parquet", root.display()), "21"),
    ];
    for (path, sum) in sums {
        let ran =
            place.run(&["-q", "--format", "csv", "-c", &format!("SELECT sum(x) AS s FROM '{path}'")])?;
        assert_eq!(ran.succeeded()?.stdout, format!("s\n{sum}\n"), "{path}");
    }
    let ran =
        place.run(&["-q", "--format", "csv", "-p", "t", "-c", "SELECT sum(x) AS s FROM 'a.parquet'"])?;
    assert_eq!(ran.succeeded()?.stdout, "s\n6\n", "--data-path");
    let ran = place.run(&[
        "-q",
        "--format",
        "csv",
        "-c",
        "SELECT count(*) > 0 AS n FROM parquet_metadata('t/a.parquet')",
    ])?;
    assert_eq!(ran.succeeded()?.stdout, "n\ntrue\n");
    Ok(())
}

#[test]
fn standard_input_is_a_table_unless_it_brings_the_statements() -> TestResult {
    let place = Place::new()?;
    let create =
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/dev/stdin' OPTIONS ('format.has_header' 'true')";
    let ran =
        place.pipe("x\n1\n2\n", &["-q", "--format", "csv", "-c", create, "SELECT sum(x) AS s FROM t"])?;
    assert_eq!(ran.succeeded()?.stdout, "s\n3\n");
    let ran = place.pipe(format!("{create};\n"), &["-q"])?;
    assert!(ran.failed()?.contains("SQL commands"), "{}", ran.stderr);
    Ok(())
}

#[test]
fn output_that_nobody_reads_ends_the_program_quietly() -> TestResult {
    let place = Place::new()?;
    let query = "SELECT value FROM generate_series(1, 300000)";
    for format in ["csv", "json", "nd-json", "table"] {
        let mut child = place.command(["--format", format, "--maxrows", "inf", "-c", query]).spawn()?;
        drop(child.stdout.take());
        let ran = Ran::new(&child.wait_with_output()?);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{format}");
    }
    Ok(())
}
