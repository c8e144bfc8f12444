//! What lies below the adapters on Linux: the Vulkan loader, drivers, device nodes, containers.

mod hardware;
pub mod library;
mod manifest;
mod packages;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::Path;

use super::finding::Finding;
use hardware::Hardware;
use manifest::{Driver, Search};

/// The environment, or what a test has in its place. Empty variables count as not set.
type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Everything that can be said without opening an adapter.
pub fn examine() -> Vec<Finding> {
    let environment = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let hardware = Hardware::look(Path::new("/"));
    let (mut findings, version) = library::loader_finding(library::try_loader());
    let search = Search::new(&environment, version);
    let found = search.find();
    findings.extend(manifest::findings(&search, &found, &hardware));
    let drivers: Vec<&Driver> = found.iter().filter_map(|manifest| manifest.driver.as_ref().ok()).collect();
    for driver in &drivers {
        findings.push(library::driver_finding(driver, library::try_driver(&driver.library), &hardware));
    }
    findings.extend(hardware.findings());
    let has_nvidia = drivers.iter().any(|driver| packages::is_nvidia(&driver.library));
    findings.extend(hardware::container_finding(&environment, Path::new("/"), &hardware, has_nvidia));
    findings
}
