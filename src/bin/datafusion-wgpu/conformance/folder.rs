//! Where the test files and their data come from, and the scratch folder in which they run.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{CargoOpt, MetadataCommand};
use clap::ValueEnum;
use datafusion::error::Result;
use datafusion_sqllogictest::read_dir_recursive;
use tempfile::TempDir;

use crate::error::problem;
use crate::tpch_data::Table;

use super::{Args, SKIPS, SUBSET};

/// The crate whose source holds the test files.
const SUITE: &str = "datafusion-sqllogictest";
/// Variable that names the folder with the data files.
const DATA_VARIABLE: &str = "DATAFUSION_TESTING_DATA";
/// Scale of the TPC-H answers in the suite.
const TPCH_SCALE: f64 = 0.1;
/// Begins the names of scratch folders.
pub const SCRATCH: &str = "conformance-";
/// Folders of a checkout that the files read from.
const DATA_FOLDERS: [&str; 5] = [
    "testing/data",
    "parquet-testing/data",
    "datafusion/core/tests/data",
    "datafusion/core/tests/tpch-csv",
    "datafusion/datasource-arrow/tests/data",
];

/// The folders that a run reads.
#[derive(Debug)]
pub struct Sources {
    /// Version of the suite; `None` for a folder that was given.
    pub version: Option<String>,
    /// The list of known failures; `None` where there is none.
    pub skips: Option<PathBuf>,
    test_files: PathBuf,
    data: Option<PathBuf>,
    subset: PathBuf,
}

/// Whether a file belongs to those that need TPC-H data.
pub fn is_tpch(file: &str) -> bool {
    file.starts_with("tpch/")
}

impl Sources {
    /// Looks the folders up.
    ///
    /// # Errors
    /// When cargo does not know the suite, and when the whole suite is asked for without data.
    pub fn find(args: &Args) -> Result<Self> {
        let data = args.testing_data.clone().or_else(|| std::env::var_os(DATA_VARIABLE).map(PathBuf::from));
        if let Some(missing) = data.iter().find(|folder| !folder.join("datafusion/core/tests/data").is_dir())
        {
            return Err(problem(format!(
                "{} has no datafusion/core/tests/data: it has to be laid out as a checkout of DataFusion",
                missing.display()
            )));
        }
        if data.is_none() && !args.subset && !args.list && args.files.is_empty() {
            return Err(problem(format!(
                "the whole suite reads data files: give a checkout of DataFusion, with its submodules, by \
                 --testing-data or {DATA_VARIABLE}; --subset needs none"
            )));
        }
        // Whose files these are the repository's list does not know, and the subset is named in the repository.
        if let (Some(test_files), false) = (&args.test_files, args.subset) {
            return Ok(Self {
                version: None,
                skips: args.skips.clone(),
                test_files: test_files.clone(),
                data,
                subset: PathBuf::new(),
            });
        }
        let metadata = MetadataCommand::new()
            .features(CargoOpt::AllFeatures)
            .other_options(["--locked".to_owned(), "--filter-platform".to_owned(), host()?])
            .exec()
            .map_err(|error| {
                problem(format!(
                    "not in a clone of the datafusion-wgpu repository, which is needed without --test-files and for \
                     --subset: {error}"
                ))
            })?;
        let repository = metadata.workspace_root.as_std_path();
        let (version, test_files) = match &args.test_files {
            Some(folder) => (None, folder.clone()),
            None => {
                let suite = metadata.packages.iter().find(|package| package.name.as_str() == SUITE);
                let Some(suite) = suite else {
                    return Err(problem(format!(
                        "this repository does not depend on {SUITE}: give --test-files"
                    )));
                };
                let folder = suite.manifest_path.as_std_path().with_file_name("test_files");
                (Some(suite.version.to_string()), folder)
            }
        };
        Ok(Self {
            version,
            skips: Some(args.skips.clone().unwrap_or_else(|| repository.join(SKIPS))),
            test_files,
            data,
            subset: repository.join(SUBSET),
        })
    }

    /// The chosen test files, as paths below `test_files`.
    ///
    /// # Errors
    /// Those of reading folders, a file of the subset that is not there, and a part of `--files` that matches nothing.
    pub fn files(&self, args: &Args) -> Result<Vec<String>> {
        let mut files = vec![];
        for path in read_dir_recursive(&self.test_files)? {
            let Ok(path) = path.strip_prefix(&self.test_files) else { continue };
            if path.extension().is_some_and(|extension| extension == "slt") {
                files.push(path.to_string_lossy().replace('\\', "/"));
            }
        }
        files.sort_unstable();
        if args.subset {
            let subset = lines(&fs::read_to_string(&self.subset)?);
            if let Some(missing) = subset.iter().find(|file| !files.contains(file)) {
                return Err(problem(format!(
                    "{} names {missing}, which is not there",
                    self.subset.display()
                )));
            }
            files = subset;
        }
        let runs = |file: &str| args.tpch || !is_tpch(file);
        for part in &args.files {
            let mut found = files.iter().filter(|file| file.contains(part.as_str())).peekable();
            if found.peek().is_none() {
                return Err(problem(format!("--files: '{part}' matches no test file; --list names them")));
            }
            if !found.any(|file| runs(file)) {
                return Err(problem(format!(
                    "--files: '{part}' matches only TPC-H files, which need --tpch"
                )));
            }
        }
        let wanted =
            |file: &String| args.files.is_empty() || args.files.iter().any(|part| file.contains(part));
        files.retain(|file| wanted(file) && runs(file));
        Ok(files)
    }
}

/// Lines that are neither empty nor comments.
fn lines(text: &str) -> Vec<String> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

/// The platform as cargo names it, so that only its packages are looked at.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find_map(|line| line.strip_prefix("host: ")) {
        Some(host) => Ok(host.to_owned()),
        None => Err(problem("rustc -vV does not name its host")),
    }
}

/// A folder laid out as a checkout, with copies of the test files and of their data. It goes when it is dropped.
pub struct Scratch {
    root: PathBuf,
    _folder: TempDir,
}

impl Scratch {
    /// Copies the files; makes the TPC-H tables where they are asked for.
    ///
    /// # Errors
    /// Those of reading and writing files.
    pub fn create(sources: &Sources, tpch: bool) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix(SCRATCH).tempdir()?;
        // Plans show the physical path.
        let root = folder.path().canonicalize()?;
        let scratch = Self { root, _folder: folder };
        let working = scratch.working_folder();
        copy(&sources.test_files, &working.join("test_files"))?;
        // Beside the test files lies data of the suite's own.
        let own = sources.test_files.with_file_name("data");
        if own.is_dir() {
            copy(&own, &working.join("data"))?;
        }
        for part in DATA_FOLDERS {
            if let Some(from) = sources.data.as_ref().map(|data| data.join(part)).filter(|from| from.is_dir())
            {
                copy(&from, &scratch.root.join(part))?;
            }
        }
        if tpch {
            make_tpch(&working.join("test_files/tpch/data"))?;
        }
        Ok(scratch)
    }

    /// Where a checkout's root would be.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the suite runs.
    pub fn working_folder(&self) -> PathBuf {
        self.root.join("datafusion/sqllogictest")
    }
}

/// Copies the files of a folder and of those below it; they are writable afterwards.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for file in read_dir_recursive(from)? {
        let Ok(path) = file.strip_prefix(from) else { continue };
        let target = to.join(path);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        // Not fs::copy: it would copy a missing permission to write.
        fs::write(&target, fs::read(&file)?)?;
    }
    Ok(())
}

fn make_tpch(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for table in Table::value_variants() {
        let mut file = BufWriter::new(fs::File::create(folder.join(format!("{}.tbl", table.name())))?);
        table.write_text(TPCH_SCALE, &mut file)?;
        file.flush()?;
    }
    Ok(())
}
