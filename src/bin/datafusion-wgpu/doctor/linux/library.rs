//! Loading the Vulkan loader and drivers' libraries, and what the system says when one does not load.

use std::ffi::{CStr, OsStr, OsString, c_char, c_void};
use std::path::Path;
use std::time::Duration;

use datafusion::error::Result;
use libloading::{Library, Symbol};

use super::super::child::{self, Ended, Message, Outcome, tell};
use super::super::finding::{Check, Finding};
use super::hardware::Hardware;
use super::manifest::{Driver, Version};
use super::packages;

/// The name that programs, and wgpu, load.
const LOADER: &str = "libvulkan.so.1";
/// The longest that loading a library may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// What the loader calls in a driver: one of these, by the driver's age.
const DRIVER_ENTRY: [&[u8]; 3] = [
    b"vk_icdGetInstanceProcAddr\0",
    b"vk_icdNegotiateLoaderICDInterfaceVersion\0",
    b"vkGetInstanceProcAddr\0",
];

/// The step that loads the Vulkan loader.
pub fn load_loader() -> Result<()> {
    load(OsStr::new(LOADER), &[b"vkGetInstanceProcAddr\0"], |library| (true, loader_version(library)))
}

/// The step that loads a driver.
pub fn load_driver(library: &OsStr) -> Result<()> {
    load(library, &DRIVER_ENTRY, |library| (starts(library), None))
}

fn load(name: &OsStr, entries: &[&[u8]], try_out: fn(&Library) -> (bool, Option<Version>)) -> Result<()> {
    // SAFETY: the library's initialisers run, as they do when wgpu loads it. This process does nothing else.
    let library = match unsafe { Library::new(name) } {
        Ok(library) => library,
        Err(error) => {
            tell(&Message::NotLoaded(error.to_string()))?;
            return Ok(());
        }
    };
    // SAFETY: the symbols are only looked up, as untyped addresses, and not used.
    let has = |entry: &&[u8]| unsafe { library.get::<*const ()>(entry) }.is_ok();
    let (starts, version) = try_out(&library);
    let complete = entries.iter().any(has);
    let loaded = child::Library { path: mapped_path(name), complete, starts, lost: vec![], version };
    tell(&Message::Loaded(loaded))?;
    // Unloading a driver may crash, and says nothing about using it.
    std::mem::forget(library);
    Ok(())
}

/// Whether a driver offers vkCreateInstance. The loader asks for it in this way, and leaves a driver alone that does not.
fn starts(library: &Library) -> bool {
    type Negotiate = unsafe extern "C" fn(*mut u32) -> i32;
    type GetInstanceProcAddr =
        unsafe extern "C" fn(*mut c_void, *const c_char) -> Option<unsafe extern "C" fn()>;
    const CREATE: &CStr = c"vkCreateInstance";
    // SAFETY: names and signatures are those of the interface between loader and drivers, versions 0 to 5: the driver may
    // lower the version, and no instance is needed to ask for vkCreateInstance, which is not called.
    unsafe {
        if let Ok(negotiate) = library.get::<Negotiate>(b"vk_icdNegotiateLoaderICDInterfaceVersion\0") {
            let mut version = 5u32;
            if negotiate(&raw mut version) != 0 {
                return false;
            }
        }
        let entry = library.get::<GetInstanceProcAddr>(b"vk_icdGetInstanceProcAddr\0");
        let entry = entry.or_else(|_| library.get(b"vkGetInstanceProcAddr\0"));
        entry.is_ok_and(|entry| entry(std::ptr::null_mut(), CREATE.as_ptr()).is_some())
    }
}

/// The version that a loader offers; 1.0 has no function to ask.
fn loader_version(library: &Library) -> Option<Version> {
    type EnumerateInstanceVersion = unsafe extern "C" fn(*mut u32) -> i32;
    // SAFETY: the name and the signature are Vulkan's (VK_VERSION_1_1); it writes one u32, and needs no instance.
    let (result, packed) = unsafe {
        let function: Symbol<EnumerateInstanceVersion> = library.get(b"vkEnumerateInstanceVersion\0").ok()?;
        let mut packed = 0u32;
        (function(&raw mut packed), packed)
    };
    (result == 0).then(|| unpack(packed))
}

/// Major, minor and patch of a version as Vulkan packs it.
pub fn unpack(packed: u32) -> Version {
    [(packed >> 22) & 0x7f, (packed >> 12) & 0x3ff, packed & 0xfff]
}

/// Where the system found a library that this process has loaded.
fn mapped_path(name: &OsStr) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let name = Path::new(name).file_name()?.to_string_lossy().into_owned();
    in_maps(&maps, &name)
}

/// The path in `/proc/self/maps` of a library whose name is `name`, versions apart.
pub fn in_maps(maps: &str, name: &str) -> Option<String> {
    let (stem, _) = name.split_once(".so")?;
    let stem = format!("{stem}.so");
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].trim_end()));
    let mut named = paths.filter(|path| path.rsplit('/').next().is_some_and(|file| file.starts_with(&stem)));
    named.next().map(str::to_owned)
}

/// Why a library was not loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The system refused, in its words.
    Refused(String),
    /// The attempt crashed or hung.
    Broke(String),
}

/// What came of loading a library.
pub type Attempt = std::result::Result<child::Library, Failure>;

/// Loads the Vulkan loader in a process of its own.
pub fn try_loader() -> Attempt {
    attempt(child::run(&["loader"], PATIENCE))
}

/// Loads a driver's library in a process of its own, and tries to start it.
pub fn try_driver(library: &Path) -> Attempt {
    let mut loaded = attempt(child::run(&driver_step(library), PATIENCE))?;
    if loaded.complete && !loaded.starts {
        loaded.lost = lost(library);
    }
    Ok(loaded)
}

fn driver_step(library: &Path) -> [OsString; 2] {
    [OsString::from("driver"), library.as_os_str().to_owned()]
}

/// The libraries that a driver looks for in vain while it starts; drivers don't say. NVIDIA's wants libEGL where there is no
/// display.
fn lost(library: &Path) -> Vec<String> {
    // The system's linker tells each search; only glibc's does.
    let outcome = child::run_with(&driver_step(library), &[("LD_DEBUG", "libs")], PATIENCE);
    let mut lost = vec![];
    for name in searched_in_vain(&outcome.errors) {
        if let Err(Failure::Refused(why)) = attempt(child::run(&driver_step(Path::new(&name)), PATIENCE)) {
            let name = missing(&why).map_or(name, str::to_owned);
            if !lost.contains(&name) {
                lost.push(name);
            }
        }
    }
    lost
}

/// The libraries that were searched and never initialised, from the lines of `LD_DEBUG=libs`.
pub fn searched_in_vain(lines: &[String]) -> Vec<String> {
    let initialised: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split_once("calling init: "))
        .map(|(_, path)| path.trim())
        .collect();
    let mut vain: Vec<String> = vec![];
    for line in lines {
        let Some((_, rest)) = line.split_once("find library=") else { continue };
        let name = rest.split_whitespace().next().unwrap_or_default();
        let found = initialised.iter().any(|path| path.rsplit('/').next() == Some(name));
        if !found && !name.is_empty() && !vain.iter().any(|known| known == name) {
            vain.push(name.to_owned());
        }
    }
    vain
}

/// What a step that loads a library came to.
pub fn attempt(outcome: Outcome) -> Attempt {
    for message in outcome.messages {
        match message {
            Message::Loaded(library) => return Ok(library),
            Message::NotLoaded(why) => return Err(Failure::Refused(why)),
            Message::Begin(_) | Message::Found(_) | Message::Chosen(_) => {}
        }
    }
    Err(Failure::Broke(match outcome.ended {
        Ended::Broke(why) => why,
        Ended::Done => "said nothing".to_owned(),
    }))
}

/// What is to be said of the loader, and its version.
pub fn loader_finding(attempt: Attempt) -> (Vec<Finding>, Option<Version>) {
    const CHECK: Check = Check::VulkanLoader;
    let library = match attempt {
        Ok(library) => library,
        Err(Failure::Refused(why)) if missing(&why).is_some_and(|name| name == LOADER) => {
            let finding = Finding::problem(CHECK, format!("there is no Vulkan loader ({why})"))
                .advise(packages::loader());
            return (vec![finding], None);
        }
        Err(Failure::Refused(why)) => {
            let advice = advice(&why, Path::new(LOADER), &Hardware::default());
            let finding = Finding::problem(CHECK, format!("{LOADER} does not load: {why}")).advise(advice);
            return (vec![finding], None);
        }
        Err(Failure::Broke(why)) => {
            let finding = Finding::problem(CHECK, format!("loading {LOADER} {why}"))
                .advise(format!("reinstall it ({})", packages::loader()));
            return (vec![finding], None);
        }
    };
    let path = library.path.as_deref().unwrap_or(LOADER);
    if !library.complete {
        let finding =
            Finding::problem(CHECK, format!("{path} is no Vulkan loader: vkGetInstanceProcAddr is missing"))
                .advise(format!("remove it, or install the loader ({})", packages::loader()));
        return (vec![finding], None);
    }
    let version = library.version.unwrap_or([1, 0, 0]);
    (
        vec![Finding::ok(
            CHECK,
            format!("{path}, Vulkan {}", version.map(|part| part.to_string()).join(".")),
        )],
        Some(version),
    )
}

/// What is to be said of a driver's library.
pub fn driver_finding(driver: &Driver, attempt: Attempt, hardware: &Hardware) -> Finding {
    const CHECK: Check = Check::DriverLibrary;
    let library = driver.library.display();
    let manifest = driver.manifest.display();
    let loaded = match attempt {
        Ok(loaded) => loaded,
        Err(Failure::Refused(why)) if why.contains("wrong ELF class: ELFCLASS32") => {
            return Finding::ok(CHECK, format!("{library} is for 32-bit programs"));
        }
        Err(Failure::Refused(why)) => {
            return Finding::problem(CHECK, format!("{library} does not load: {why}")).advise(advice(
                &why,
                &driver.library,
                hardware,
            ));
        }
        Err(Failure::Broke(why)) => {
            return Finding::problem(CHECK, format!("loading {library} {why}")).advise(format!(
                "update or reinstall this driver, or hide it: VK_LOADER_DRIVERS_DISABLE={}",
                driver.manifest.file_name().unwrap_or_default().to_string_lossy()
            ));
        }
    };
    let path = loaded.path.unwrap_or_else(|| library.to_string());
    if !loaded.complete {
        return Finding::problem(
            CHECK,
            format!("{path} is no Vulkan driver: vk_icdGetInstanceProcAddr is missing"),
        )
        .advise(format!("correct or remove {manifest}, or reinstall its package"));
    }
    let mismatch = nvidia_mismatch(&path, hardware.nvidia_module.as_deref());
    if !loaded.starts && mismatch.is_none() {
        return does_not_start(&path, &loaded.lost, driver, hardware);
    }
    match mismatch {
        Some((user, kernel)) => Finding::problem(
            CHECK,
            format!("{path} is of version {user}, but the loaded kernel module is of {kernel}"),
        )
        .advise("reboot, or install the same version of both"),
        None => Finding::ok(CHECK, format!("{path} loads")),
    }
}

/// A driver that loads and then offers nothing: the loader leaves it alone without a word.
fn does_not_start(path: &str, lost: &[String], driver: &Driver, hardware: &Hardware) -> Finding {
    const CHECK: Check = Check::DriverLibrary;
    if lost.is_empty() {
        return Finding::problem(CHECK, format!("{path} loads, but does not start: it offers no vkCreateInstance"))
            .advise("it finds no GPU of its kind, or lacks a part of itself: reinstall all of the driver; in a container, let its \
                     devices and all its libraries through");
    }
    let mut advice: Vec<String> =
        lost.iter().map(|name| packages::bringing(name, &driver.library, hardware)).collect();
    advice.dedup();
    let detail =
        format!("{path} loads, but does not start: it looks for {}, which is not there", lost.join(", "));
    Finding::problem(CHECK, detail).advise(advice.join("; "))
}

/// The versions of NVIDIA's library and kernel module where they differ: then the driver finds no GPU.
fn nvidia_mismatch<'a>(path: &'a str, module: Option<&'a str>) -> Option<(&'a str, &'a str)> {
    let (_, version) = path.rsplit('/').next()?.split_once("nvidia.so.")?;
    let module = module?;
    (version.contains('.') && version != module).then_some((version, module))
}

/// The library that the system says it did not find.
pub fn missing(why: &str) -> Option<&str> {
    let name = match why.split_once(": cannot open shared object file: No such file") {
        Some((name, _)) => name,
        // musl's words.
        None => why.strip_prefix("Error loading shared library ")?.split_once(": No such file")?.0,
    };
    Some(name.rsplit('/').next().unwrap_or(name).trim())
}

/// What to do when a library does not load.
fn advice(why: &str, library: &Path, hardware: &Hardware) -> String {
    if let Some(name) = missing(why) {
        return packages::bringing(name, library, hardware);
    }
    let reinstall = "reinstall the package that it belongs to (dpkg -S or rpm -qf tell which)";
    let known = [
        (
            "version `GLIBC",
            "this driver was built for a newer system: install the one that this system's packages bring",
        ),
        (
            "version `GLIBCXX",
            "this driver was built for a newer system: install the one that this system's packages bring",
        ),
        ("wrong ELF class", "this driver is for another kind of processor: install the one for this system"),
        ("undefined symbol", "parts of the driver are of different versions: reinstall all of it"),
        ("invalid ELF header", "the file is damaged, or for another system: reinstall its package"),
        ("file too short", "the file is damaged: reinstall its package"),
        ("Permission denied", "let this user read the file and its folders"),
        ("failed to map segment", "the file lies where programs may not be run from (noexec, SELinux)"),
    ];
    known.iter().find(|(part, _)| why.contains(part)).map_or(reinstall, |(_, advice)| advice).to_owned()
}
