//! Flags, right and wrong.

use super::*;

#[test]
fn the_version_names_datafusion_too() -> TestResult {
    let ran = Place::new()?.run(&["--version"])?.succeeded()?;
    let expected = format!(
        "datafusion-wgpu {} (DataFusion {})\n",
        env!("CARGO_PKG_VERSION"),
        datafusion::DATAFUSION_VERSION
    );
    assert_eq!(ran.stdout, expected);
    Ok(())
}

#[test]
fn the_help_lists_every_flag_and_command() -> TestResult {
    let help = Place::new()?.run(&["--help"])?.succeeded()?.stdout;
    let flags = [
        "-c, --command",
        "-f, --file",
        "-r, --rc",
        "-q, --quiet",
        "-p, --data-path",
        "-m, --memory-limit",
        "-b, --batch-size",
        "-d, --disk-limit",
        "--format",
        "--maxrows",
        "--color",
        "--mem-pool-type",
        "--top-memory-consumers",
        "--object-store-profiling",
        "--gpu ",
        "--adapter",
        "--gpu-fallback",
        "tpch-data",
    ];
    for flag in flags {
        assert!(help.contains(flag), "{flag} is not in\n{help}");
    }
    Ok(())
}

#[test]
fn wrong_flags_are_refused() -> TestResult {
    let place = Place::new()?;
    let cases: [&[&str]; 21] = [
        &["--nope"],
        &["nope"],
        &["-c"],
        &["-c", ""],
        &["-f"],
        &["-f", "a.sql", "-r", "b.sql"],
        &["-b", "0"],
        &["-b", "many"],
        &["-m", "lots"],
        &["-m", "-1"],
        &["-d", "10q"],
        &["--format", "xml"],
        &["--maxrows", "all"],
        &["--mem-pool-type", "unfair"],
        &["--top-memory-consumers", "-1"],
        &["--object-store-profiling", "full"],
        &["--gpu", "on"],
        &["--gpu-fallback", "never"],
        &["--adapter"],
        &["-p"],
        &["--gpu", "off", "tpch-data"],
    ];
    for arguments in cases {
        let ran = place.run(arguments)?;
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("error: "), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{arguments:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
    Ok(())
}

#[test]
fn files_that_cannot_be_read_are_named() -> TestResult {
    let place = Place::new()?;
    place.write("good.sql", "SELECT 1;")?;
    fs::create_dir(place.path("folder"))?;
    let cases: [(&[&str], &str); 6] = [
        (&["-f", "missing.sql"], "'missing.sql'"),
        (&["-f", "good.sql", "missing.sql"], "'missing.sql'"),
        (&["-f", "folder"], "'folder'"),
        (&["-r", "missing.sql"], "'missing.sql'"),
        (&["-r", "folder"], "'folder'"),
        (&["-p", "missing", "-c", "SELECT 1"], "'missing'"),
    ];
    for (arguments, name) in cases {
        let ran = place.run(arguments)?;
        let line = ran.failed()?;
        assert!(line.contains(name), "{arguments:?}: {line}");
        assert_eq!(ran.stdout, "", "{arguments:?}: nothing runs before all files are read");
    }
    Ok(())
}

#[test]
fn a_start_up_file_of_the_home_that_cannot_be_read_is_named() -> TestResult {
    let place = Place::new()?;
    fs::create_dir(place.home().join(".datafusionrc"))?;
    let ran = place.run(&[])?;
    assert!(ran.failed()?.contains(".datafusionrc"), "{}", ran.stderr);
    Ok(())
}

#[test]
fn text_that_is_not_utf8_is_an_error_with_its_line() -> TestResult {
    let place = Place::new()?;
    let text = b"SELECT 1 AS a;\nSELECT '\xff';\nSELECT 3 AS c;\n";
    place.write("latin.sql", text)?;
    let from_file = place.run(&["-q", "--format", "csv", "-f", "latin.sql"])?;
    assert_eq!(from_file.failed()?, "Error: line 2 of 'latin.sql' is not UTF-8 text");
    let piped = place.pipe(text, &["-q", "--format", "csv"])?;
    assert_eq!(piped.failed()?, "Error: line 2 of standard input is not UTF-8 text");
    assert_eq!((from_file.stdout, piped.stdout), ("a\n1\n".into(), "a\n1\n".into()));
    Ok(())
}

#[test]
fn wrong_variables_of_the_environment_are_named() -> TestResult {
    let place = Place::new()?;
    let cases = [
        ("DATAFUSION_GPU_PLACEMENT", "sometimes", "DATAFUSION_GPU_PLACEMENT"),
        ("DATAFUSION_GPU_MERGE_GROUP", "17", "no option gpu.merge_group"),
        ("DATAFUSION_EXECUTION_BATCH_SIZE", "many", "datafusion.execution.batch_size"),
        ("RUST_LOG", "a=b=c", "RUST_LOG"),
    ];
    for (variable, value, named) in cases {
        let ran = place.run_with(&[(variable, value)], &["-c", "SELECT 1"])?;
        let line = ran.failed()?;
        assert!(line.contains(named) && line.contains(value), "{variable}: {line}");
    }
    Ok(())
}

#[test]
fn options_come_from_the_environment_and_flags_go_before_it() -> TestResult {
    let place = Place::new()?;
    let show = |variables: &[(&str, &str)], flags: &[&str], option: &str| -> TestResult<String> {
        let statement = format!("SELECT value FROM information_schema.df_settings WHERE name = '{option}'");
        let arguments = [flags, &["-q", "--format", "csv", "-c", &statement]].concat();
        let ran = place.run_with(variables, &arguments)?.succeeded()?;
        Ok(ran.stdout.lines().nth(1).unwrap_or_default().to_owned())
    };
    let environment = [("DATAFUSION_GPU_PLACEMENT", "force"), ("DATAFUSION_EXECUTION_BATCH_SIZE", "77")];
    assert_eq!(show(&environment, &[], "gpu.placement")?, "force");
    assert_eq!(show(&environment, &["--gpu", "off"], "gpu.placement")?, "off");
    assert_eq!(show(&environment, &[], "datafusion.execution.batch_size")?, "77");
    assert_eq!(show(&environment, &["-b", "99"], "datafusion.execution.batch_size")?, "99");
    assert_eq!(show(&[], &["--gpu-fallback", "error"], "gpu.fallback")?, "error");
    assert_eq!(show(&[], &[], "gpu.placement")?, "auto");
    Ok(())
}

#[test]
fn memory_limits_hold_and_say_who_used_the_memory() -> TestResult {
    let place = Place::new()?;
    let sort = "SELECT value FROM generate_series(1, 1000000) ORDER BY value % 1000, value";
    for pool in ["greedy", "FAIR"] {
        let ran = place.run(&["-q", "-m", "10k", "-d", "0", "--mem-pool-type", pool, "-c", sort])?;
        assert_eq!(ran.code, Some(1), "{pool}");
        assert!(ran.stderr.starts_with("Error: "), "{pool}: {}", ran.stderr);
        assert!(ran.stderr.contains("Resources exhausted"), "{pool}: {}", ran.stderr);
        assert!(ran.stderr.contains("top memory consumers"), "{pool}: {}", ran.stderr);
    }
    let ran = place.run(&["-q", "-m", "10k", "-d", "0", "--top-memory-consumers", "0", "-c", sort])?;
    assert!(!ran.stderr.contains("top memory consumers"), "{}", ran.stderr);
    let ran =
        place.run(&["-q", "-m", "1g", "-d", "1g", "--format", "csv", "-c", "SELECT 1 AS a"])?.succeeded()?;
    assert_eq!(ran.stdout, "a\n1\n");
    Ok(())
}

#[test]
fn requests_to_object_stores_are_profiled() -> TestResult {
    let place = Place::new()?;
    six_numbers(&place)?;
    let query = "SELECT sum(x) FROM 't'";
    let ran = place.run(&["--object-store-profiling", "summary", "-c", query])?.succeeded()?;
    assert!(ran.stdout.contains("Object Store Profiling"), "{}", ran.stdout);
    let ran = place.run(&["-c", query])?.succeeded()?;
    assert!(!ran.stdout.contains("Object Store Profiling"), "{}", ran.stdout);
    Ok(())
}
