//! The `datafusion-wgpu` program, run as its users run it.

mod flags;
mod gpu;
mod shell;
#[cfg(unix)]
mod terminal;
mod tpch_data;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::harness::TestResult;

/// A home and a working directory of a test's own, without options from the environment.
struct Place {
    dir: TempDir,
}

/// What the program did.
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Place {
    fn new() -> TestResult<Place> {
        let place = Place { dir: tempfile::tempdir()? };
        fs::create_dir(place.home())?;
        fs::create_dir(place.work())?;
        Ok(place)
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.work().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> TestResult {
        Ok(fs::write(self.path(name), text)?)
    }

    fn command<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_datafusion-wgpu"));
        command.args(arguments).current_dir(self.work()).env("HOME", self.home());
        let options = std::env::vars_os().map(|(name, _)| name);
        for name in options.filter(|name| name.to_string_lossy().starts_with("DATAFUSION_")) {
            command.env_remove(name);
        }
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> TestResult<Ran> {
        Ok(Ran::new(&self.command(arguments).output()?))
    }

    /// Runs with variables of the environment.
    fn run_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> TestResult<Ran> {
        Ok(Ran::new(&self.command(arguments).envs(variables.iter().copied()).output()?))
    }

    /// Runs with standard input.
    fn pipe(&self, input: impl AsRef<[u8]>, arguments: &[&str]) -> TestResult<Ran> {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn()?;
        let mut stdin = child.stdin.take().ok_or("no standard input")?;
        stdin.write_all(input.as_ref())?;
        drop(stdin);
        Ok(Ran::new(&child.wait_with_output()?))
    }
}

impl Ran {
    fn new(output: &Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    fn succeeded(self) -> TestResult<Ran> {
        match self.code {
            Some(0) => Ok(self),
            code => Err(format!("exit code {code:?}\n{}{}", self.stdout, self.stderr).into()),
        }
    }

    /// The one line on stderr, which says what is wrong; the exit code is 1.
    fn failed(&self) -> TestResult<&str> {
        let lines: Vec<_> = self.stderr.lines().collect();
        match (self.code, lines.as_slice()) {
            (Some(1), [line]) if line.starts_with("Error: ") => Ok(line),
            (code, _) => Err(format!("exit code {code:?}\n{}{}", self.stdout, self.stderr).into()),
        }
    }
}

/// A folder `t` with the numbers 1 to 6 in two Parquet files.
fn six_numbers(place: &Place) -> TestResult {
    for (file, rows) in [("a", "1), (2), (3"), ("b", "4), (5), (6")] {
        let copy = format!("COPY (SELECT * FROM (VALUES ({rows})) AS t(x)) TO 't/{file}.parquet'");
        place.run(&["-q", "-c", &copy])?.succeeded()?;
    }
    Ok(())
}

/// Files below `dir`, sorted.
fn files(dir: &Path) -> TestResult<Vec<PathBuf>> {
    let mut found = vec![];
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match path.is_dir() {
            true => found.extend(files(&path)?),
            false => found.push(path),
        }
    }
    found.sort();
    Ok(found)
}
