//! The commands `devices` and `doctor`, run as a user would, with drivers that are hidden, broken, or good.

use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::TestResult;

/// Runs the program with a clean set of the variables that choose Vulkan drivers.
fn program(arguments: &[&str], variables: &[(&str, &str)]) -> TestResult<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_datafusion-wgpu"));
    command.args(arguments);
    // A test of hidden drivers decides itself; the others use what the tests use.
    if variables.iter().any(|(name, _)| name.starts_with("VK_")) {
        for name in
            ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES", "VK_LOADER_DRIVERS_DISABLE"]
        {
            command.env_remove(name);
        }
    }
    Ok(command.envs(variables.iter().copied()).output()?)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn json(output: &Output) -> TestResult<Value> {
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The statuses and details of a check.
fn found<'a>(report: &'a Value, check: &str) -> Vec<(&'a str, &'a str)> {
    let findings = report["findings"].as_array().map_or(&[][..], Vec::as_slice);
    let of = findings.iter().filter(|finding| finding["check"] == check);
    of.map(|f| (f["status"].as_str().unwrap_or_default(), f["detail"].as_str().unwrap_or_default())).collect()
}

#[test]
fn devices_are_listed() -> TestResult {
    let listed = program(&["devices"], &[])?;
    assert_eq!(code(&listed), 0, "{listed:?}");
    let shown = text(&listed);
    for words in ["0  ", "driver", "features  64-bit integers", "storage buffers a stage", "memory"] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
    let listed = json(&program(&["devices", "--json"], &[])?)?;
    let first = &listed["adapters"][0];
    assert_eq!(first["index"], 0);
    assert!(shown.starts_with(&format!("0  {}", first["name"].as_str().unwrap_or("no name"))), "{shown}");
    assert_eq!(first["software"].as_bool(), Some(first["kind"] == "software"));
    assert!(first["features"]["int64"].is_boolean() && first["limits"]["binding_bytes"].is_u64(), "{listed}");
    Ok(())
}

#[test]
fn a_healthy_machine() -> TestResult {
    let output = program(&["doctor", "--json"], &[])?;
    let report = json(&output)?;
    let software = report["adapter"]["software"].as_bool().ok_or("an adapter was examined")?;
    assert_eq!(code(&output), if software { 3 } else { 0 }, "{report}");
    assert_eq!(report["verdict"], if software { "software-only" } else { "ok" });
    for check in ["device", "int64", "float64", "numerics", "declined", "timestamps", "memory", "query"] {
        let lines = found(&report, check);
        assert!(lines.len() == 1 && lines[0].0 == "ok", "{check}: {lines:?}");
    }
    assert!(found(&report, "query")[0].1.contains("GpuAggregateExec"), "{report}");
    assert!(found(&report, "numerics")[0].1.contains("64-bit integers exact"), "{report}");
    #[cfg(target_os = "linux")]
    {
        assert_eq!(found(&report, "vulkan-loader")[0].0, "ok");
        assert!(found(&report, "driver-library").iter().any(|(status, _)| *status == "ok"), "{report}");
    }

    // The text has the same lines.
    let shown = text(&program(&["doctor"], &[])?);
    let first = found(&report, "numerics")[0].1;
    assert!(shown.contains(&format!("ok       numerics          {first}\n")), "{shown}");
    let name = report["adapter"]["name"].as_str().unwrap_or_default();
    assert!(
        shown.lines().last().is_some_and(|line| line.starts_with(&format!("Result: {name} works"))),
        "{shown}"
    );
    // One adapter, by a part of its name.
    let part = name.split(' ').next().unwrap_or_default().to_uppercase();
    let named = json(&program(&["doctor", "--json", "--adapter", &part], &[])?)?;
    assert_eq!(named["adapter"]["name"], name);
    Ok(())
}

#[test]
fn wrong_flags() -> TestResult {
    for arguments in [&["doctor", "--bogus"][..], &["doctor", "--adapter"], &["devices", "extra"]] {
        let output = program(arguments, &[])?;
        assert_eq!(code(&output), 2, "{arguments:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: "), "{output:?}");
    }
    let output = program(&["doctor", "--adapter", "no such adapter"], &[])?;
    assert_eq!(code(&output), 1);
    let shown = text(&output);
    assert!(shown.contains("none matches 'no such adapter'"), "{shown}");
    assert!(shown.contains("-> `datafusion-wgpu devices` lists them"), "{shown}");
    let help = text(&program(&["doctor", "--help"], &[])?);
    assert!(help.contains("Exit codes:") && help.contains("3  an adapter works"), "{help}");
    assert!(!text(&program(&["--help"], &[])?).contains("doctor-step"));
    Ok(())
}

/// Drivers that are hidden, broken or faked: only on Linux are they found by files.
#[cfg(target_os = "linux")]
mod drivers {
    use std::fs;
    use std::path::Path;

    use tempfile::{TempDir, tempdir};

    use super::*;

    fn manifest(dir: &Path, name: &str, library: &str) -> TestResult {
        let text = format!(
            r#"{{"file_format_version": "1.0.0", "ICD": {{"library_path": "{library}", "api_version": "1.3.0"}}}}"#
        );
        Ok(fs::write(dir.join(name), text)?)
    }

    /// Compiles a library `output` in `dir`.
    fn compile(dir: &Path, output: &str, source: &str, more: &[&str]) -> TestResult {
        let file = dir.join(format!("{output}.c"));
        fs::write(&file, source)?;
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-w", "-o", output])
            .arg(&file)
            .args(more)
            .current_dir(dir)
            .output()?;
        if !compiled.status.success() {
            return Err(format!("cc: {compiled:?}").into());
        }
        Ok(())
    }

    /// A report with only the drivers whose manifests are in `dir`.
    fn examine(dir: &TempDir) -> TestResult<(i32, Value)> {
        let folder = dir.path().to_string_lossy();
        let output = program(&["doctor", "--json"], &[("VK_DRIVER_FILES", &folder)])?;
        Ok((code(&output), json(&output)?))
    }

    #[test]
    fn hidden_drivers() -> TestResult {
        let empty = tempdir()?;
        for (files, words) in [
            ("/nonexistent", "/nonexistent does not exist, though VK_DRIVER_FILES names it"),
            (&*empty.path().to_string_lossy(), "there is no driver manifest in VK_DRIVER_FILES"),
        ] {
            let variables = [("VK_DRIVER_FILES", files)];
            let output = program(&["doctor"], &variables)?;
            assert_eq!(code(&output), 1, "{output:?}");
            let shown = text(&output);
            assert!(shown.contains(words), "{shown}");
            assert!(shown.contains("-> unset VK_DRIVER_FILES"), "{shown}");
            assert!(shown.contains("wgpu finds no adapter, since "), "{shown}");
            assert!(shown.ends_with("Result: no usable adapter; queries stay on the CPU.\n"), "{shown}");

            let listed = program(&["devices"], &variables)?;
            assert_eq!((code(&listed), text(&listed).as_str()), (1, ""));
            let pointer = "No usable adapter: `datafusion-wgpu doctor` says why.\n";
            assert_eq!(String::from_utf8_lossy(&listed.stderr), pointer);
            let listed = program(&["devices", "--json"], &variables)?;
            assert_eq!(code(&listed), 1);
            assert_eq!(json(&listed)?["adapters"].as_array().map(Vec::len), Some(0));
        }
        Ok(())
    }

    #[test]
    fn a_missing_library_names_its_package() -> TestResult {
        let dir = tempdir()?;
        // A driver linked to a library that is gone; no system has one of this name and version.
        compile(dir.path(), "libX11.so.999", "int gone(void) { return 1; }", &["-Wl,-soname,libX11.so.999"])?;
        let source = "int gone(void); void *vk_icdGetInstanceProcAddr(void *i, const char *n) { return gone() ? 0 : i; }";
        compile(dir.path(), "libdriver.so", source, &["libX11.so.999"])?;
        fs::remove_file(dir.path().join("libX11.so.999"))?;
        manifest(dir.path(), "driver_icd.json", "./libdriver.so")?;
        manifest(dir.path(), "gone_icd.json", "libvulkan_gone.so")?;
        let (exit, report) = examine(&dir)?;
        assert_eq!(exit, 1);
        let libraries = found(&report, "driver-library");
        assert_eq!(libraries.len(), 2, "{libraries:?}");
        assert!(libraries.iter().all(|(status, _)| *status == "problem"), "{libraries:?}");
        assert!(
            libraries[0].1.contains("does not load: libX11.so.999: cannot open shared object file"),
            "{libraries:?}"
        );
        let advice = |n: usize| {
            let mut all = report["findings"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|f| f["check"] == "driver-library");
            all.nth(n).and_then(|finding| finding["advice"].as_str()).unwrap_or_default()
        };
        assert_eq!(advice(0), "Debian/Ubuntu: apt install libx11-6; Fedora: dnf install libX11");
        assert!(advice(1).contains("apt-file search libvulkan_gone.so"), "{}", advice(1));
        assert!(found(&report, "adapters")[0].1.contains("libX11.so.999"), "{report}");
        Ok(())
    }

    #[test]
    fn broken_manifests_and_libraries() -> TestResult {
        let dir = tempdir()?;
        fs::write(dir.path().join("a_broken.json"), "{ \"ICD\": ")?;
        compile(dir.path(), "libplain.so", "int plain;", &[])?;
        manifest(dir.path(), "b_plain.json", "./libplain.so")?;
        fs::write(dir.path().join("libtext.so"), "no library")?;
        manifest(dir.path(), "c_text.json", "./libtext.so")?;
        let (exit, report) = examine(&dir)?;
        assert_eq!(exit, 1);
        let manifests = found(&report, "driver-manifests");
        assert!(
            manifests.iter().any(|(s, d)| *s == "problem" && d.contains("a_broken.json is no valid")),
            "{report}"
        );
        let libraries = found(&report, "driver-library");
        assert!(libraries[0].1.contains("libplain.so is no Vulkan driver"), "{libraries:?}");
        assert!(
            libraries[1].1.contains("does not load: ") && libraries[1].1.contains("too short"),
            "{libraries:?}"
        );
        Ok(())
    }

    /// As NVIDIA's driver does without a display: it looks for a library when it starts, and says nothing.
    #[test]
    fn a_driver_that_does_not_start() -> TestResult {
        let dir = tempdir()?;
        let source = "#include <dlfcn.h>\n void *vk_icdGetInstanceProcAddr(void *i, const char *n) { return dlopen(\"libEGL.so.999\", RTLD_NOW); }";
        compile(dir.path(), "libsilent.so", source, &["-ldl"])?;
        manifest(dir.path(), "silent_icd.json", "./libsilent.so")?;
        let (exit, report) = examine(&dir)?;
        assert_eq!(exit, 1);
        let (status, detail) = found(&report, "driver-library")[0];
        assert_eq!(status, "problem");
        let words = if cfg!(target_env = "gnu") {
            "it looks for libEGL.so.999, which is not there"
        } else {
            "does not start"
        };
        assert!(detail.contains(words), "{detail}");
        assert!(found(&report, "adapters")[0].1.contains("does not start"), "{report}");
        Ok(())
    }

    /// A driver that crashes while it is loaded is told, not suffered.
    #[test]
    fn a_driver_that_crashes() -> TestResult {
        let dir = tempdir()?;
        let source = "__attribute__((constructor)) static void start(void) { *(volatile int *)0 = 1; } \
                      void *vk_icdGetInstanceProcAddr(void *i, const char *n) { return 0; }";
        compile(dir.path(), "libcrash.so", source, &[])?;
        manifest(dir.path(), "crash_icd.json", "./libcrash.so")?;
        let (exit, report) = examine(&dir)?;
        assert_eq!(exit, 1);
        let (status, detail) = found(&report, "driver-library")[0];
        assert_eq!(status, "problem");
        assert!(detail.contains("libcrash.so crashed with signal 11 SIGSEGV"), "{detail}");
        let (status, detail) = found(&report, "adapters")[0];
        assert!(
            status == "problem" && detail.contains("looking for adapters crashed with signal 11"),
            "{detail}"
        );
        Ok(())
    }

    #[test]
    fn no_vulkan_loader() -> TestResult {
        let dir = tempdir()?;
        fs::write(dir.path().join("libvulkan.so.1"), "no library")?;
        let folder = dir.path().to_string_lossy();
        let output = program(&["doctor", "--json"], &[("LD_LIBRARY_PATH", &folder)])?;
        let report = json(&output)?;
        assert_eq!(code(&output), 1, "{report}");
        let (status, detail) = found(&report, "vulkan-loader")[0];
        assert!(status == "problem" && detail.contains("libvulkan.so.1 does not load: "), "{detail}");
        assert!(found(&report, "adapters")[0].1.contains("libvulkan.so.1 does not load"), "{report}");
        Ok(())
    }

    /// One broken driver beside those that the tests use: they work.
    #[test]
    fn a_broken_driver_beside_good_ones() -> TestResult {
        let dir = tempdir()?;
        manifest(dir.path(), "gone_icd.json", "/nonexistent/libgone.so")?;
        let folder = dir.path().to_string_lossy();
        // Added drivers count only where none are named.
        let named = std::env::var("VK_DRIVER_FILES").or_else(|_| std::env::var("VK_ICD_FILENAMES"));
        let (variable, files) = match named.ok().filter(|named| !named.is_empty()) {
            Some(named) => ("VK_DRIVER_FILES", format!("{named}:{folder}")),
            None => ("VK_ADD_DRIVER_FILES", folder.into_owned()),
        };
        let output = program(&["doctor", "--json"], &[(variable, &files)])?;
        let report = json(&output)?;
        let gone =
            found(&report, "driver-library").into_iter().find(|(_, detail)| detail.contains("libgone.so"));
        let status = gone.ok_or("the driver is told")?.0;
        // A GPU that works does not need it.
        let expected = if report["adapter"]["software"] == true { (3, "problem") } else { (0, "warning") };
        assert_eq!((code(&output), status), expected, "{report}");
        Ok(())
    }
}
