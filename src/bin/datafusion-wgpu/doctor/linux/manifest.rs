//! Driver manifests: the JSON files that name a Vulkan driver's library, found where the Vulkan loader looks for them.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::finding::{Check, Finding};
use super::hardware::Hardware;
use super::{Environment, packages};

/// A version of the loader: major, minor, patch.
pub type Version = [u32; 3];

/// The first loader that knows VK_DRIVER_FILES and VK_ADD_DRIVER_FILES.
const KNOWS_DRIVER_FILES: Version = [1, 3, 207];
/// The first loader that knows VK_LOADER_DRIVERS_SELECT and VK_LOADER_DRIVERS_DISABLE.
const KNOWS_FILTERS: Version = [1, 3, 234];

/// Where the loader looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// The variable that names all drivers, in place of the usual folders.
    pub named_by: Option<&'static str>,
    /// Files and folders that a variable names.
    pub named: Vec<PathBuf>,
    /// The usual folders.
    pub folders: Vec<PathBuf>,
    /// Variables that are set and that this loader is too old for.
    pub ignored: Vec<&'static str>,
    select: Vec<String>,
    disable: Vec<String>,
}

/// A manifest that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The file.
    pub path: PathBuf,
    /// Its driver, or why it gives none.
    pub driver: Result<Driver, Flaw>,
}

/// A driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// The manifest that names it.
    pub manifest: PathBuf,
    /// The library: a path, or a name that the system looks up.
    pub library: PathBuf,
}

/// Why a manifest gives no driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// The file, or folder, is named by a variable and does not exist.
    Missing,
    /// It can't be read.
    Unreadable(String),
    /// It is a folder that can't be searched.
    Closed(String),
    /// It is no manifest.
    Invalid(String),
    /// It is for programs of another word size.
    OtherArchitecture(String),
    /// This variable hides it.
    Filtered(&'static str),
}

impl Search {
    /// As a loader of this version would search. Of a loader that is not there it is not known what it knows: all is taken
    /// to be known.
    pub fn new(environment: Environment, version: Option<Version>) -> Self {
        let knows = |since: Version| version.is_none_or(|version| version >= since);
        let mut ignored = vec![];
        let mut read = |name: &'static str, since: Option<Version>| {
            let value = environment(name)?;
            if since.is_some_and(|since| !knows(since)) {
                ignored.push(name);
                return None;
            }
            Some(value)
        };
        let driver_files =
            read("VK_DRIVER_FILES", Some(KNOWS_DRIVER_FILES)).map(|value| ("VK_DRIVER_FILES", value));
        let icd_filenames = read("VK_ICD_FILENAMES", None).map(|value| ("VK_ICD_FILENAMES", value));
        let add = read("VK_ADD_DRIVER_FILES", Some(KNOWS_DRIVER_FILES));
        let select = read("VK_LOADER_DRIVERS_SELECT", Some(KNOWS_FILTERS));
        let disable = read("VK_LOADER_DRIVERS_DISABLE", Some(KNOWS_FILTERS));
        let globs = |value: Option<std::ffi::OsString>| {
            let text = value.unwrap_or_default().to_string_lossy().to_lowercase();
            text.split(',').filter(|glob| !glob.is_empty()).map(str::to_owned).collect()
        };
        let (named_by, named, folders) = match driver_files.or(icd_filenames) {
            Some((name, value)) => (Some(name), split(&value), vec![]),
            None => (None, add.map_or(vec![], |value| split(&value)), usual_folders(environment)),
        };
        Self { named_by, named, folders, ignored, select: globs(select), disable: globs(disable) }
    }

    /// All manifests, good and bad, in the loader's order; files of a folder by name.
    pub fn find(&self) -> Vec<Manifest> {
        let mut found = vec![];
        for named in &self.named {
            if named.is_dir() {
                found.extend(in_folder(named));
            } else {
                found.push(read_manifest(named));
            }
        }
        found.extend(self.folders.iter().flat_map(|folder| in_folder(folder)));
        for manifest in &mut found {
            if let (Ok(_), Some(variable)) = (&manifest.driver, self.filter(&manifest.path)) {
                manifest.driver = Err(Flaw::Filtered(variable));
            }
        }
        found
    }

    /// The variable that hides a manifest.
    fn filter(&self, path: &Path) -> Option<&'static str> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let selected = self.select.iter().any(|glob| matches(glob, &name));
        if !self.select.is_empty() {
            return (!selected).then_some("VK_LOADER_DRIVERS_SELECT");
        }
        self.disable.iter().any(|glob| matches(glob, &name)).then_some("VK_LOADER_DRIVERS_DISABLE")
    }

    /// Where it was looked, in words.
    fn places(&self) -> String {
        let list =
            |paths: &[PathBuf]| paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
        match self.named_by {
            Some(variable) => format!("in {variable} ({})", list(&self.named)),
            None => format!("in {}", list(&self.folders)),
        }
    }
}

fn split(value: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(value).filter(|path| !path.as_os_str().is_empty()).collect()
}

/// The folders that the loader goes through when no variable names the drivers.
fn usual_folders(environment: Environment) -> Vec<PathBuf> {
    let home = environment("HOME").map(PathBuf::from);
    let own = |variable: &str, below: &str| {
        let set = environment(variable).map(|value| split(&value));
        set.unwrap_or_else(|| home.iter().map(|home| home.join(below)).collect())
    };
    let shared = |variable: &str, otherwise: &[&str]| {
        let set = environment(variable).map(|value| split(&value));
        set.unwrap_or_else(|| otherwise.iter().map(PathBuf::from).collect())
    };
    let mut folders = own("XDG_CONFIG_HOME", ".config");
    folders.extend(shared("XDG_CONFIG_DIRS", &["/etc/xdg"]));
    folders.push(PathBuf::from("/etc"));
    folders.extend(own("XDG_DATA_HOME", ".local/share"));
    folders.extend(shared("XDG_DATA_DIRS", &["/usr/local/share", "/usr/share"]));
    let mut unique: Vec<PathBuf> = vec![];
    for folder in folders.into_iter().map(|folder| folder.join("vulkan/icd.d")) {
        if !unique.contains(&folder) {
            unique.push(folder);
        }
    }
    unique
}

/// The manifests of a folder; none where there is no such folder.
fn in_folder(folder: &Path) -> Vec<Manifest> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return vec![],
        Err(error) => {
            let driver = Err(Flaw::Closed(error.to_string()));
            return vec![Manifest { path: folder.to_owned(), driver }];
        }
    };
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    paths.sort();
    paths.iter().map(|path| read_manifest(path)).collect()
}

fn read_manifest(path: &Path) -> Manifest {
    let driver = match std::fs::read_to_string(path) {
        Ok(text) => parse(path, &text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Flaw::Missing),
        Err(error) => Err(Flaw::Unreadable(error.to_string())),
    };
    Manifest { path: path.to_owned(), driver }
}

fn parse(path: &Path, text: &str) -> Result<Driver, Flaw> {
    let json: Value = serde_json::from_str(text).map_err(|error| Flaw::Invalid(error.to_string()))?;
    let field = |name: &str| {
        let value = json.get("ICD").and_then(|icd| icd.get(name));
        value.and_then(Value::as_str).ok_or_else(|| Flaw::Invalid(format!("ICD.{name} is missing")))
    };
    if json.get("file_format_version").is_none() {
        return Err(Flaw::Invalid("file_format_version is missing".to_owned()));
    }
    let library = field("library_path")?;
    field("api_version")?;
    let bits = usize::BITS.to_string();
    if let Ok(other) = field("library_arch").map(str::to_owned)
        && other != bits
    {
        return Err(Flaw::OtherArchitecture(other));
    }
    // A name without a folder is looked up by the system; a relative path starts at the manifest.
    let library = match path.parent() {
        Some(folder) if library.contains('/') => folder.join(library).components().collect(),
        _ => PathBuf::from(library),
    };
    Ok(Driver { manifest: path.to_owned(), library })
}

/// A glob of the loader: `*` stands at its ends only.
fn matches(glob: &str, name: &str) -> bool {
    if glob == "~all~" {
        return true;
    }
    let inner = glob.trim_matches('*');
    match (glob.starts_with('*'), glob.ends_with('*')) {
        (true, true) => name.contains(inner),
        (true, false) => name.ends_with(inner),
        (false, true) => name.starts_with(inner),
        (false, false) => name == inner,
    }
}

/// What the search found.
pub fn findings(search: &Search, found: &[Manifest], hardware: &Hardware) -> Vec<Finding> {
    const CHECK: Check = Check::DriverManifests;
    let mut findings = vec![];
    let drivers: Vec<_> = found.iter().filter(|manifest| manifest.driver.is_ok()).collect();
    let flaws: Vec<Finding> = found.iter().filter_map(|manifest| flaw_finding(search, manifest)).collect();
    if !drivers.is_empty() {
        let by = search.named_by.map_or(String::new(), |variable| format!(" (named by {variable})"));
        findings.push(Finding::ok(CHECK, format!("{}{by}", by_folder(&drivers))));
    } else if search.named_by.is_none() || flaws.is_empty() {
        // Else what is wrong with those that were named says it all.
        let advice = match search.named_by {
            Some(variable) => format!("unset {variable}, or let it name a driver's manifest"),
            None => none_installed(hardware),
        };
        let detail = format!("there is no driver manifest {}", search.places());
        findings.push(Finding::problem(CHECK, detail).advise(advice));
    }
    findings.extend(flaws);
    for variable in &search.ignored {
        let detail = format!("{variable} is set, but this Vulkan loader is too old to know it");
        let advice = if *variable == "VK_DRIVER_FILES" {
            "use VK_ICD_FILENAMES, or update the loader"
        } else {
            "update the loader"
        };
        findings.push(Finding::warning(CHECK, detail).advise(advice));
    }
    findings
}

/// Manifests in words: each folder, and the names in it.
fn by_folder(manifests: &[&Manifest]) -> String {
    let folder = |manifest: &&Manifest| manifest.path.parent().unwrap_or(Path::new("")).to_owned();
    let groups = manifests.chunk_by(|a, b| folder(a) == folder(b)).filter_map(|group| {
        let names = group.iter().map(|m| m.path.file_name().unwrap_or_default().to_string_lossy());
        group.first().map(|first| (folder(first), names.collect::<Vec<_>>().join(", ")))
    });
    groups.map(|(folder, names)| format!("{}: {names}", folder.display())).collect::<Vec<_>>().join("; ")
}

/// What to install; in a container NVIDIA's driver comes from the host.
fn none_installed(hardware: &Hardware) -> String {
    let nvidia = format!(
        "{}; in a container: start it with NVIDIA_DRIVER_CAPABILITIES=all",
        packages::nvidia(hardware)
    );
    match (hardware.has_nvidia(), hardware.has_other_gpu()) {
        (true, false) => nvidia,
        (false, true) => packages::mesa(),
        _ => format!("{}; for NVIDIA's GPUs: {nvidia}", packages::mesa()),
    }
}

fn flaw_finding(search: &Search, manifest: &Manifest) -> Option<Finding> {
    const CHECK: Check = Check::DriverManifests;
    let path = manifest.path.display();
    Some(match manifest.driver.as_ref().err()? {
        Flaw::Missing => {
            let variable = search.named_by.unwrap_or("VK_ADD_DRIVER_FILES");
            Finding::problem(CHECK, format!("{path} does not exist, though {variable} names it"))
                .advise(format!("unset {variable}, or correct the path"))
        }
        Flaw::Unreadable(why) => Finding::problem(CHECK, format!("{path} can't be read: {why}"))
            .advise(format!("let this user read it: chmod a+r {path}")),
        Flaw::Closed(why) => Finding::warning(CHECK, format!("the folder {path} can't be searched: {why}"))
            .advise(format!("if drivers lie there, let this user read it: chmod a+rx {path}")),
        Flaw::Invalid(why) => Finding::problem(CHECK, format!("{path} is no valid driver manifest: {why}"))
            .advise("reinstall the package that it belongs to (dpkg -S or rpm -qf tell which)"),
        Flaw::OtherArchitecture(bits) => Finding::ok(CHECK, format!("{path} is for {bits}-bit programs")),
        Flaw::Filtered(variable) => Finding::warning(CHECK, format!("{path} is hidden by {variable}"))
            .advise(format!("unset {variable} to use it")),
    })
}
