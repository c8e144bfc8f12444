mod hardware;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use tempfile::{TempDir, tempdir};

use super::super::child::{self, Ended, Message, Outcome};
use super::super::finding::Status;
use super::hardware::Controller;
use super::library::{Failure, driver_finding, in_maps, loader_finding, missing, searched_in_vain, unpack};
use super::manifest::{Flaw, Manifest, findings};
use super::*;

const GOOD: &str =
    r#"{"file_format_version": "1.0.0", "ICD": {"library_path": "libgood.so.1", "api_version": "1.3.0"}}"#;

fn environment(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
    let variables: HashMap<String, OsString> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), OsString::from(value))).collect();
    move |name| variables.get(name).cloned()
}

/// A folder with a good manifest and flawed ones.
fn manifests() -> TempDir {
    let dir = tempdir().unwrap();
    let with = |library: &str, more: &str| {
        format!(
            r#"{{"file_format_version": "1.0.1", "ICD": {{"library_path": "{library}", "api_version": "1.3"{more}}}}}"#
        )
    };
    for (name, text) in [
        ("a_good.json", GOOD.to_owned()),
        ("b_relative.json", with("./libown.so", "")),
        ("c_absolute.json", with("/opt/driver/libabsolute.so", r#", "library_arch": "64""#)),
        ("d_broken.json", "{ \"ICD\": ".to_owned()),
        ("e_empty.json", String::new()),
        ("f_fields.json", r#"{"file_format_version": "1.0.0", "ICD": {"api_version": "1.0"}}"#.to_owned()),
        ("g_other.json", with("lib32.so", r#", "library_arch": "32""#)),
        ("h_layer.json", r#"{"layer": {}}"#.to_owned()),
        ("readme.txt", "no manifest".to_owned()),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    fs::create_dir(dir.path().join("i_folder.json")).unwrap();
    dir
}

fn search(variables: &[(&str, &str)]) -> Search {
    Search::new(&environment(variables), Some([1, 3, 290]))
}

fn drivers(found: &[Manifest]) -> Vec<PathBuf> {
    found
        .iter()
        .filter_map(|manifest| manifest.driver.as_ref().ok())
        .map(|driver| driver.library.clone())
        .collect()
}

#[test]
fn manifests_are_read_as_the_loader_does() {
    let dir = manifests();
    let folder = dir.path();
    let found = search(&[("VK_DRIVER_FILES", folder.to_str().unwrap())]).find();
    assert_eq!(found.len(), 9, "{found:?}");
    let libraries = ["libgood.so.1", "libown.so", "/opt/driver/libabsolute.so"];
    let expected = [PathBuf::from(libraries[0]), folder.join(libraries[1]), PathBuf::from(libraries[2])];
    assert_eq!(drivers(&found), expected);
    let flaws: Vec<&Flaw> = found.iter().filter_map(|manifest| manifest.driver.as_ref().err()).collect();
    assert!(matches!(flaws[0], Flaw::Invalid(why) if why.contains("EOF")), "{flaws:?}");
    assert!(matches!(flaws[1], Flaw::Invalid(_)), "{flaws:?}");
    assert!(matches!(flaws[2], Flaw::Invalid(why) if why == "ICD.library_path is missing"), "{flaws:?}");
    assert!(matches!(flaws[3], Flaw::OtherArchitecture(bits) if bits == "32"), "{flaws:?}");
    assert!(matches!(flaws[4], Flaw::Invalid(why) if why == "file_format_version is missing"), "{flaws:?}");
    assert!(matches!(flaws[5], Flaw::Unreadable(_)), "{flaws:?}");
}

#[test]
fn variables_name_drivers() {
    let dir = manifests();
    let good = dir.path().join("a_good.json");
    let good = good.to_str().unwrap();
    // The newer variable wins; a file may be named that does not exist.
    let named =
        search(&[("VK_DRIVER_FILES", &format!("{good}:/nonexistent")), ("VK_ICD_FILENAMES", "/other")]);
    assert_eq!(named.named_by, Some("VK_DRIVER_FILES"));
    assert!(named.folders.is_empty());
    let found = named.find();
    assert_eq!(drivers(&found), [PathBuf::from("libgood.so.1")]);
    assert_eq!(found[1].driver, Err(Flaw::Missing));
    let told = findings(&named, &found, &Hardware::default());
    assert_eq!((told.len(), told[0].status, told[1].status), (2, Status::Ok, Status::Problem));
    assert!(
        told[1].detail.contains("/nonexistent does not exist, though VK_DRIVER_FILES names it"),
        "{told:?}"
    );
    let nothing = search(&[("VK_DRIVER_FILES", "/nonexistent")]);
    assert_eq!(findings(&nothing, &nothing.find(), &Hardware::default()).len(), 1);
    // Added drivers come first, and only where none are named.
    let added = search(&[("VK_ADD_DRIVER_FILES", good), ("HOME", "/home/me")]);
    assert_eq!((added.named_by, added.named.len()), (None, 1));
    assert!(search(&[("VK_ADD_DRIVER_FILES", "/added"), ("VK_ICD_FILENAMES", good)]).named.len() == 1);
}

#[test]
fn old_loaders_do_not_know_all_variables() {
    let variables =
        [("VK_DRIVER_FILES", "/new"), ("VK_ICD_FILENAMES", "/old"), ("VK_LOADER_DRIVERS_DISABLE", "*")];
    let old = Search::new(&environment(&variables), Some([1, 3, 204]));
    assert_eq!(old.named_by, Some("VK_ICD_FILENAMES"));
    assert_eq!(old.ignored, ["VK_DRIVER_FILES", "VK_LOADER_DRIVERS_DISABLE"]);
    let told = findings(&old, &old.find(), &Hardware::default());
    let ignored = told.iter().find(|finding| finding.detail.contains("too old")).unwrap();
    assert_eq!(ignored.status, Status::Warning);
    assert_eq!(ignored.advice.as_deref(), Some("use VK_ICD_FILENAMES, or update the loader"));
    assert!(Search::new(&environment(&variables), None).ignored.is_empty());
}

#[test]
fn the_usual_folders() {
    let plain = search(&[("HOME", "/home/me")]);
    let folders =
        |below: &[&str]| below.iter().map(|f| PathBuf::from(format!("{f}/vulkan/icd.d"))).collect::<Vec<_>>();
    assert_eq!(
        plain.folders,
        folders(&[
            "/home/me/.config",
            "/etc/xdg",
            "/etc",
            "/home/me/.local/share",
            "/usr/local/share",
            "/usr/share",
        ])
    );
    let set = search(&[
        ("XDG_CONFIG_HOME", "/c"),
        ("XDG_CONFIG_DIRS", "/d:/e:/c"),
        ("XDG_DATA_HOME", "/f"),
        ("XDG_DATA_DIRS", "/g"),
    ]);
    assert_eq!(set.folders, folders(&["/c", "/d", "/e", "/etc", "/f", "/g"]));
}

#[test]
fn filters_hide_drivers() {
    let dir = manifests();
    let folder = dir.path().to_str().unwrap();
    let with = |variable: &str, globs: &str| {
        drivers(&search(&[("VK_DRIVER_FILES", folder), (variable, globs)]).find()).len()
    };
    assert_eq!(with("VK_LOADER_DRIVERS_DISABLE", "a_*"), 2);
    assert_eq!(with("VK_LOADER_DRIVERS_DISABLE", "*GOOD.json,c_absolute.json"), 1);
    assert_eq!(with("VK_LOADER_DRIVERS_DISABLE", "~all~"), 0);
    assert_eq!(with("VK_LOADER_DRIVERS_DISABLE", "good"), 3);
    assert_eq!(with("VK_LOADER_DRIVERS_SELECT", "*relative*"), 1);
    let both = [
        ("VK_DRIVER_FILES", folder),
        ("VK_LOADER_DRIVERS_DISABLE", "*"),
        ("VK_LOADER_DRIVERS_SELECT", "*relative*"),
    ];
    let search = search(&both);
    assert_eq!(drivers(&search.find()).len(), 1);
    let told = findings(&search, &search.find(), &Hardware::default());
    let hidden = told.iter().filter(|finding| finding.detail.contains("hidden by VK_LOADER_DRIVERS_SELECT"));
    assert_eq!(hidden.count(), 2, "{told:?}");
}

#[test]
fn no_manifest_names_the_driver_to_install() {
    let dir = tempdir().unwrap();
    let empty = dir.path().to_str().unwrap();
    let places = [
        ("XDG_CONFIG_HOME", empty),
        ("XDG_CONFIG_DIRS", empty),
        ("XDG_DATA_HOME", empty),
        ("XDG_DATA_DIRS", empty),
    ];
    let mut search = search(&places);
    search.folders.retain(|folder| folder.starts_with(empty));
    let advice = |hardware: &Hardware| {
        let told = findings(&search, &search.find(), hardware);
        assert_eq!((told.len(), told[0].status), (1, Status::Problem));
        assert!(told[0].detail.contains("there is no driver manifest in"), "{told:?}");
        told[0].advice.clone().unwrap()
    };
    let nothing = advice(&Hardware::default());
    assert!(nothing.contains("mesa-vulkan-drivers") && nothing.contains("xorg-x11-drv-nvidia"), "{nothing}");
    let nvidia = Hardware { nvidia_module: Some("580.65.06".to_owned()), ..Hardware::default() };
    assert!(advice(&nvidia).contains("libnvidia-gl-580"), "{}", advice(&nvidia));
    assert!(!advice(&nvidia).contains("mesa"), "{}", advice(&nvidia));
    let amd = Hardware { controllers: vec![controller("0x1002", Some("amdgpu"))], ..Hardware::default() };
    assert_eq!(
        advice(&amd),
        "Debian/Ubuntu: apt install mesa-vulkan-drivers; Fedora: dnf install mesa-vulkan-drivers"
    );
}

fn controller(vendor: &str, driver: Option<&str>) -> Controller {
    Controller { vendor: vendor.to_owned(), device: "0x2335".to_owned(), driver: driver.map(str::to_owned) }
}

fn driver(library: &str) -> Driver {
    Driver {
        manifest: PathBuf::from("/usr/share/vulkan/icd.d/test_icd.json"),
        library: PathBuf::from(library),
    }
}

/// What is advised when loading `library` fails with `why`.
fn advised(library: &str, why: &str) -> String {
    let refused = Err(Failure::Refused(why.to_owned()));
    let finding = driver_finding(&driver(library), refused, &Hardware::default());
    assert_eq!(finding.status, Status::Problem);
    assert!(finding.detail.contains(why), "{finding:?}");
    finding.advice.unwrap()
}

#[test]
fn a_missing_library_names_its_package() {
    let gone = |name: &str| format!("{name}: cannot open shared object file: No such file or directory");
    assert_eq!(missing(&gone("libX11.so.6")), Some("libX11.so.6"));
    assert_eq!(missing(&gone("/usr/lib/libvulkan_lvp.so")), Some("libvulkan_lvp.so"));
    assert_eq!(
        missing("Error loading shared library libdrm.so.2: No such file or directory (needed by x)"),
        Some("libdrm.so.2")
    );
    assert_eq!(missing("libX11.so.6: file too short"), None);
    for (library, lost, advice) in [
        (
            "libGLX_nvidia.so.0",
            "libX11.so.6",
            "Debian/Ubuntu: apt install libx11-6 libxext6; Fedora: dnf install libX11 libXext",
        ),
        (
            "libGLX_nvidia.so.0",
            "libXext.so.6",
            "Debian/Ubuntu: apt install libx11-6 libxext6; Fedora: dnf install libX11 libXext",
        ),
        (
            "libvulkan_radeon.so",
            "libX11-xcb.so.1",
            "Debian/Ubuntu: apt install libx11-xcb1; Fedora: dnf install libX11-xcb",
        ),
        (
            "libvulkan_lvp.so",
            "libLLVM-15.so.1",
            "Debian/Ubuntu: apt install libllvm15; Fedora: dnf install llvm-libs",
        ),
        (
            "libvulkan_lvp.so",
            "libLLVM.so.19.1",
            "Debian/Ubuntu: apt install libllvm19; Fedora: dnf install llvm-libs",
        ),
        (
            "/usr/lib/libvulkan_lvp.so",
            "/usr/lib/libvulkan_lvp.so",
            "Debian/Ubuntu: apt install mesa-vulkan-drivers; Fedora: dnf install mesa-vulkan-drivers",
        ),
    ] {
        assert_eq!(advised(library, &gone(lost)), advice);
    }
    assert!(advised("libGLX_nvidia.so.0", &gone("libGLX_nvidia.so.0")).contains("libnvidia-gl-NNN"));
    let unknown = advised("libmine.so", &gone("libodd.so.3"));
    assert!(unknown.contains("apt-file search libodd.so.3") && unknown.contains("dnf provides"), "{unknown}");
}

#[test]
fn other_words_of_the_system() {
    let glibc = "/lib/libc.so.6: version `GLIBC_2.38' not found (required by libmine.so)";
    assert!(advised("libmine.so", glibc).contains("newer system"));
    assert!(advised("libmine.so", "libmine.so: undefined symbol: vkMissing").contains("different versions"));
    assert!(advised("libmine.so", "libmine.so: invalid ELF header").contains("damaged"));
    assert!(advised("libmine.so", "libmine.so: odd words").contains("reinstall the package"));
    let narrow = Err(Failure::Refused("lib32.so: wrong ELF class: ELFCLASS32".to_owned()));
    assert_eq!(driver_finding(&driver("lib32.so"), narrow, &Hardware::default()).status, Status::Ok);
    let crashed = Err(Failure::Broke("crashed with signal 11 SIGSEGV".to_owned()));
    let crashed = driver_finding(&driver("libmine.so"), crashed, &Hardware::default());
    assert_eq!(crashed.detail, "loading libmine.so crashed with signal 11 SIGSEGV");
    assert!(crashed.advice.unwrap().contains("VK_LOADER_DRIVERS_DISABLE=test_icd.json"));
}

#[test]
fn a_library_that_loads_may_still_be_wrong() {
    let loaded = |path: &str, complete| {
        let library =
            child::Library { path: Some(path.to_owned()), complete, starts: true, ..Default::default() };
        let hardware = Hardware { nvidia_module: Some("580.65.06".to_owned()), ..Hardware::default() };
        driver_finding(&driver("libmine.so"), Ok(library), &hardware)
    };
    assert_eq!(loaded("/usr/lib/libmine.so", true).status, Status::Ok);
    assert!(loaded("/usr/lib/libmine.so", false).detail.contains("is no Vulkan driver"));
    assert_eq!(loaded("/usr/lib/libGLX_nvidia.so.580.65.06", true).status, Status::Ok);
    let differs = loaded("/usr/lib/libGLX_nvidia.so.575.1", true);
    assert_eq!(differs.status, Status::Problem);
    assert!(
        differs.detail.contains("of version 575.1, but the loaded kernel module is of 580.65.06"),
        "{differs:?}"
    );
}

/// As on a headless server with NVIDIA's driver and without libEGL.
#[test]
fn a_driver_that_does_not_start() {
    let told = |lost: &[&str]| {
        let lost = lost.iter().map(|name| (*name).to_owned()).collect();
        let path = Some("/usr/lib/libGLX_nvidia.so.580.65.06".to_owned());
        let library = child::Library { path, complete: true, starts: false, lost, version: None };
        driver_finding(&driver("libGLX_nvidia.so.0"), Ok(library), &Hardware::default())
    };
    let egl = told(&["libEGL.so.1"]);
    assert_eq!(egl.status, Status::Problem);
    assert!(egl.detail.ends_with("does not start: it looks for libEGL.so.1, which is not there"), "{egl:?}");
    assert_eq!(
        egl.advice.as_deref(),
        Some("Debian/Ubuntu: apt install libegl1; Fedora: dnf install libglvnd-egl")
    );
    let alone = told(&[]);
    assert!(alone.detail.contains("offers no vkCreateInstance"), "{alone:?}");
    assert!(alone.advice.unwrap().contains("container"));
}

#[test]
fn searches_of_the_linker() {
    let lines: Vec<String> = [
        "      1801:\tfind library=libX11.so.6 [0]; searching",
        "      1801:\t search cache=/etc/ld.so.cache",
        "      1801:\t  trying file=/lib/x86_64-linux-gnu/libX11.so.6",
        "      1801:\tfind library=libxcb.so.1 [0]; searching",
        "      1801:\tcalling init: /lib/x86_64-linux-gnu/libxcb.so.1",
        "      1801:\tcalling init: /lib/x86_64-linux-gnu/libX11.so.6",
        "      1801:\tfind library=libEGL.so.1 [0]; searching",
        "      1801:\t search path=/usr/lib\t\t(system search path)",
        "      1801:\tfind library=libEGL.so.1 [0]; searching",
    ]
    .map(str::to_owned)
    .to_vec();
    assert_eq!(searched_in_vain(&lines), ["libEGL.so.1"]);
    assert_eq!(searched_in_vain(&[]), Vec::<String>::new());
}

#[test]
fn the_loader_and_its_version() {
    assert_eq!(unpack((1 << 22) | (3 << 12) | 239), [1, 3, 239]);
    let there = |complete, version| {
        let path = Some("/usr/lib/libvulkan.so.1.3.239".to_owned());
        let (mut told, version) =
            loader_finding(Ok(child::Library { path, complete, version, ..Default::default() }));
        (told.remove(0), version)
    };
    let (good, version) = there(true, Some([1, 3, 239]));
    assert_eq!((good.status, version), (Status::Ok, Some([1, 3, 239])));
    assert_eq!(good.detail, "/usr/lib/libvulkan.so.1.3.239, Vulkan 1.3.239");
    assert_eq!(there(true, None).1, Some([1, 0, 0]));
    assert_eq!(there(false, None).0.status, Status::Problem);
    let refused = |why: &str| loader_finding(Err(Failure::Refused(why.to_owned()))).0.remove(0);
    let gone = refused("libvulkan.so.1: cannot open shared object file: No such file or directory");
    assert!(gone.detail.starts_with("there is no Vulkan loader"), "{gone:?}");
    assert_eq!(
        gone.advice.as_deref(),
        Some("Debian/Ubuntu: apt install libvulkan1; Fedora: dnf install vulkan-loader")
    );
    assert!(refused("libvulkan.so.1: file too short").detail.contains("does not load"));
}

#[test]
fn paths_of_loaded_libraries() {
    let maps = "7f0-7f1 r-xp 0 08:01 1  /usr/lib/libvulkan_lvp.so\n7f2-7f3 r--p 0 08:01 2  /usr/lib/libvulkan.so.1.3.239\n\
                7f4-7f5 rw-p 0 00:00 0\n7f6-7f7 r-xp 0 08:01 3  /opt/my drivers/libGLX_nvidia.so.580.65.06\n";
    assert_eq!(in_maps(maps, "libvulkan.so.1").as_deref(), Some("/usr/lib/libvulkan.so.1.3.239"));
    assert_eq!(
        in_maps(maps, "libGLX_nvidia.so.0").as_deref(),
        Some("/opt/my drivers/libGLX_nvidia.so.580.65.06")
    );
    assert_eq!(in_maps(maps, "libother.so"), None);
}

#[test]
fn attempts_that_break_are_told() {
    let ended = Ended::Broke("crashed with signal 6 SIGABRT".to_owned());
    let outcome = Outcome { messages: vec![], ended: ended.clone(), errors: vec![] };
    assert_eq!(library::attempt(outcome), Err(Failure::Broke("crashed with signal 6 SIGABRT".to_owned())));
    // A library that loaded and crashed at exit has loaded.
    let loaded = child::Library { complete: true, ..Default::default() };
    let outcome = Outcome { messages: vec![Message::Loaded(loaded.clone())], ended, errors: vec![] };
    assert_eq!(library::attempt(outcome), Ok(loaded));
}
