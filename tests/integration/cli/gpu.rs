//! The GPU's flags.

use super::*;

const INDENT: (&str, &str) = ("DATAFUSION_EXPLAIN_FORMAT", "indent");
const SUM: &str = "SELECT sum(x * 2) AS s FROM 't' WHERE x > 1";

#[test]
fn flags_place_the_operators() -> TestResult {
    let place = Place::new()?;
    six_numbers(&place)?;
    for (flags, on_gpu) in [
        (vec![], false),
        (vec!["--gpu", "off"], false),
        (vec!["--gpu", "auto"], false),
        (vec!["--gpu", "force"], true),
    ] {
        let plan =
            place.run_with(&[INDENT], &[&flags[..], &["-q", "-c", &format!("EXPLAIN {SUM}")]].concat())?;
        let plan = plan.succeeded()?.stdout;
        assert_eq!(plan.contains("GpuAggregateExec"), on_gpu, "{flags:?}\n{plan}");
        let ran = place.run(&[&flags[..], &["-q", "--format", "csv", "-c", SUM]].concat())?.succeeded()?;
        assert_eq!(ran.stdout, "s\n40\n", "{flags:?}");
    }
    let forced = [
        "-q",
        "-c",
        "SET gpu.placement = 'force'",
        "SET gpu.allow_software_adapter = true",
        &format!("EXPLAIN {SUM}"),
    ];
    let plan = place.run_with(&[INDENT], &forced)?.succeeded()?.stdout;
    assert!(plan.contains("GpuAggregateExec"), "{plan}");
    Ok(())
}

#[test]
fn a_named_adapter_has_to_be_there() -> TestResult {
    let place = Place::new()?;
    let ran = place.run(&["-q", "--gpu", "force", "--adapter", "0", "-c", "SELECT 1"])?;
    ran.succeeded()?;
    for adapter in ["no such adapter", "99"] {
        let ran = place.run(&["-q", "--adapter", adapter, "-c", "SELECT 1"])?;
        let line = ran.failed()?;
        assert!(line.contains(adapter) && line.contains("datafusion-wgpu doctor"), "{line}");
        assert_eq!(ran.stdout, "");
    }
    // Who turned the GPU off needs none.
    place.run(&["-q", "--gpu", "off", "--adapter", "99", "-c", "SELECT 1"])?.succeeded()?;
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn without_a_driver_force_fails_and_auto_works() -> TestResult {
    let place = Place::new()?;
    six_numbers(&place)?;
    let no_driver = [("VK_DRIVER_FILES", "/nonexistent.json"), ("VK_ICD_FILENAMES", "/nonexistent.json")];
    let ran = place.run_with(&no_driver, &["-q", "--gpu", "force", "-c", SUM])?;
    let line = ran.failed()?;
    assert!(line.contains("no usable GPU adapter") && line.contains("datafusion-wgpu doctor"), "{line}");
    let ran =
        place.run_with(&no_driver, &["-q", "--gpu", "auto", "--format", "csv", "-c", SUM])?.succeeded()?;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("s\n40\n", ""));
    Ok(())
}

#[test]
fn fallbacks_warn_keep_silent_or_fail() -> TestResult {
    let place = Place::new()?;
    six_numbers(&place)?;
    let run = |policy: &str| {
        let flags = ["-q", "--format", "csv", "--gpu", "force", "--gpu-fallback", policy];
        place.run(&[&flags[..], &["-c", "SET gpu.memory_limit = '1KiB'", SUM]].concat())
    };
    let warn = run("warn")?.succeeded()?;
    assert_eq!(warn.stdout, "s\n40\n");
    assert_eq!(warn.stderr.lines().count(), 1, "{}", warn.stderr);
    for text in ["WARN", "fell back to the CPU", "GpuAggregateExec", "gpu.memory_limit"] {
        assert!(warn.stderr.contains(text), "no {text} in {}", warn.stderr);
    }
    assert!(!warn.stderr.contains('\x1b'), "colours are for terminals: {:?}", warn.stderr);
    let silent = run("silent")?.succeeded()?;
    assert_eq!((silent.stdout.as_str(), silent.stderr.as_str()), ("s\n40\n", ""));
    let error = run("error")?;
    assert!(error.failed()?.contains("gpu.memory_limit"), "{}", error.stderr);
    assert_eq!(error.stdout, "");
    Ok(())
}
