//! GPUs as the kernel shows them, device nodes, and what containers leave out.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::finding::{Check, Finding};
use super::{Environment, packages};

/// PCI class of display controllers; the third byte differs.
const DISPLAY: &str = "0x03";
const NVIDIA: &str = "0x10de";
/// Vendors of GPUs with a Vulkan driver; the display controllers of others only show a screen.
const VENDORS: [(&str, &str); 4] =
    [(NVIDIA, "NVIDIA"), ("0x1002", "AMD"), ("0x8086", "Intel"), ("0x1af4", "virtio")];

/// What the kernel shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hardware {
    /// Display controllers on the PCI bus.
    pub controllers: Vec<Controller>,
    /// Device nodes of GPUs.
    pub nodes: Vec<Node>,
    /// Version of NVIDIA's kernel module, where it is loaded.
    pub nvidia_module: Option<String>,
}

/// A display controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// Vendor, as the kernel writes it.
    pub vendor: String,
    /// Device, as the kernel writes it.
    pub device: String,
    /// The kernel driver that is bound to it.
    pub driver: Option<String>,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The path.
    pub path: PathBuf,
    /// Why this user can't open it; `None` when it opens.
    pub closed: Option<Closed>,
}

/// Why a device node does not open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    /// This user may not. The group that may.
    Forbidden(String),
    /// Something else, in the system's words.
    Failed(String),
}

impl Hardware {
    /// Looks below `root`, which is `/` but in tests.
    pub fn look(root: &Path) -> Self {
        let module = fs::read_to_string(root.join("sys/module/nvidia/version")).ok();
        Self {
            controllers: controllers(&root.join("sys/bus/pci/devices")),
            nodes: nodes(root),
            nvidia_module: module.map(|version| version.trim().to_owned()),
        }
    }

    /// Whether there is an NVIDIA GPU.
    pub fn has_nvidia(&self) -> bool {
        let node = |node: &Node| {
            node.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nvidia"))
        };
        self.nvidia_module.is_some()
            || self.controllers.iter().any(|controller| controller.vendor == NVIDIA)
            || self.nodes.iter().any(node)
    }

    /// Whether there is a GPU of AMD, Intel or a virtual machine.
    pub fn has_other_gpu(&self) -> bool {
        self.controllers.iter().any(|controller| controller.vendor != NVIDIA && controller.is_gpu())
    }

    /// What is to be said of it.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.controller_finding()];
        findings.extend(
            self.controllers.iter().filter(|controller| controller.driver.is_none()).filter_map(unbound),
        );
        findings.extend(self.node_findings());
        findings
    }

    fn controller_finding(&self) -> Finding {
        let gpus: Vec<String> = self
            .controllers
            .iter()
            .filter(|controller| controller.is_gpu())
            .map(Controller::describe)
            .collect();
        if gpus.is_empty() {
            return Finding::warning(
                Check::Hardware,
                "there is no GPU on the PCI bus, or it is hidden from this system",
            );
        }
        Finding::ok(Check::Hardware, gpus.join(", "))
    }

    fn node_findings(&self) -> Vec<Finding> {
        const CHECK: Check = Check::DeviceNodes;
        if self.nodes.is_empty() {
            let detail = "there is no device node of a GPU (/dev/nvidia*, /dev/dri/renderD*)";
            let advice =
                "load the GPU's kernel driver; in a container: --device /dev/dri, or --gpus all for NVIDIA";
            return vec![Finding::warning(CHECK, detail).advise(advice)];
        }
        let list = |nodes: &[&Node]| {
            nodes.iter().map(|node| node.path.display().to_string()).collect::<Vec<_>>().join(", ")
        };
        let open: Vec<&Node> = self.nodes.iter().filter(|node| node.closed.is_none()).collect();
        let mut findings = vec![];
        if !open.is_empty() {
            findings.push(Finding::ok(CHECK, format!("{} open", list(&open))));
        }
        for node in &self.nodes {
            let path = node.path.display();
            findings.extend(match &node.closed {
                None => None,
                Some(Closed::Forbidden(group)) => Some(
                    Finding::problem(CHECK, format!("this user may not open {path}; its group is {group}"))
                        .advise(format!("sudo usermod -aG {group} $USER, then log in again")),
                ),
                Some(Closed::Failed(why)) => Some(
                    Finding::problem(CHECK, format!("{path} does not open: {why}"))
                        .advise("load the GPU's kernel driver anew, or reboot; in a container, let the device through"),
                ),
            });
        }
        findings
    }
}

impl Controller {
    fn is_gpu(&self) -> bool {
        VENDORS.iter().any(|(vendor, _)| *vendor == self.vendor)
    }

    fn describe(&self) -> String {
        let name = VENDORS.iter().find(|(vendor, _)| *vendor == self.vendor).map_or("", |(_, name)| name);
        let driver = self.driver.as_ref().map_or("none".to_owned(), String::clone);
        let id = |text: &str| text.trim_start_matches("0x").to_owned();
        format!("{name} {}:{} (kernel driver {driver})", id(&self.vendor), id(&self.device))
    }
}

/// A GPU without a kernel driver.
fn unbound(controller: &Controller) -> Option<Finding> {
    if !controller.is_gpu() {
        return None;
    }
    let advice = if controller.vendor == NVIDIA {
        "install NVIDIA's driver (Debian: apt install nvidia-driver; Ubuntu: ubuntu-drivers install; Fedora with RPM Fusion: \
         dnf install akmod-nvidia) and reboot"
    } else {
        "update the kernel and its firmware (Debian/Ubuntu: apt install linux-firmware or firmware-misc-nonfree; Fedora: dnf \
         install linux-firmware) and reboot"
    };
    let detail = format!("no kernel driver is bound to the GPU {}", controller.describe());
    Some(Finding::problem(Check::Hardware, detail).advise(advice))
}

fn controllers(bus: &Path) -> Vec<Controller> {
    let Ok(devices) = fs::read_dir(bus) else { return vec![] };
    let mut paths: Vec<PathBuf> =
        devices.filter_map(|device| device.ok().map(|device| device.path())).collect();
    paths.sort();
    let read =
        |path: &Path, name: &str| fs::read_to_string(path.join(name)).unwrap_or_default().trim().to_owned();
    let displays = paths.iter().filter(|path| read(path, "class").starts_with(DISPLAY));
    displays
        .map(|path| Controller {
            vendor: read(path, "vendor"),
            device: read(path, "device"),
            driver: fs::read_link(path.join("driver"))
                .ok()
                .and_then(|link| link.file_name().map(|name| name.to_string_lossy().into_owned())),
        })
        .collect()
}

/// Nodes that Vulkan drivers open.
fn nodes(root: &Path) -> Vec<Node> {
    let listed = |folder: &str| {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
        entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect::<Vec<_>>()
    };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let counted = |name: &str, prefix: &str| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let nvidia = listed("dev").into_iter().filter(|path| {
        let name = name(path);
        counted(&name, "nvidia") || name == "nvidiactl" || name == "dxg"
    });
    let render = listed("dev/dri").into_iter().filter(|path| counted(&name(path), "renderD"));
    let mut paths: Vec<PathBuf> = nvidia.chain(render).collect();
    paths.sort();
    paths.into_iter().map(|path| Node { closed: closed(root, &path), path }).collect()
}

fn closed(root: &Path, path: &Path) -> Option<Closed> {
    let error = OpenOptions::new().read(true).write(true).open(path).err()?;
    if error.kind() != io::ErrorKind::PermissionDenied {
        return Some(Closed::Failed(error.to_string()));
    }
    let group =
        fs::metadata(path).map(|data| group_name(root, data.gid())).unwrap_or_else(|_| "video".to_owned());
    Some(Closed::Forbidden(group))
}

/// The group's name, or its number where it has none.
fn group_name(root: &Path, id: u32) -> String {
    let groups = fs::read_to_string(root.join("etc/group")).unwrap_or_default();
    let named = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| id.to_string())
}

/// In a container: whether NVIDIA's Vulkan driver is let through. `None` where there is nothing to say.
pub fn container_finding(
    environment: Environment,
    root: &Path,
    hardware: &Hardware,
    has_manifest: bool,
) -> Option<Finding> {
    const CHECK: Check = Check::Container;
    let marked = [".dockerenv", "run/.containerenv"].iter().any(|file| root.join(file).exists());
    let asked = environment("NVIDIA_VISIBLE_DEVICES").is_some();
    let capabilities =
        environment("NVIDIA_DRIVER_CAPABILITIES").map(|value: OsString| value.to_string_lossy().into_owned());
    let container = marked || asked || capabilities.is_some() || environment("container").is_some();
    if !container || !(hardware.has_nvidia() || asked) {
        return None;
    }
    let graphics = capabilities
        .as_deref()
        .is_some_and(|list| list.split(',').any(|part| ["graphics", "all"].contains(&part.trim())));
    if has_manifest {
        return Some(Finding::ok(CHECK, "NVIDIA's Vulkan driver is in the container"));
    }
    if graphics {
        return Some(Finding::ok(CHECK, "NVIDIA_DRIVER_CAPABILITIES lets graphics into the container"));
    }
    let detail = match capabilities {
        Some(list) => format!(
            "NVIDIA_DRIVER_CAPABILITIES is {list}: without graphics the container gets no Vulkan driver"
        ),
        None => {
            "NVIDIA_DRIVER_CAPABILITIES is not set: the container gets CUDA, but no Vulkan driver".to_owned()
        }
    };
    let advice = format!(
        "start it with -e NVIDIA_DRIVER_CAPABILITIES=all (compute,utility,graphics), on a host that has the driver's Vulkan \
         parts ({})",
        packages::nvidia(hardware)
    );
    Some(Finding::problem(CHECK, detail).advise(advice))
}
