use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::{TempDir, tempdir};

use super::super::super::finding::Status;
use super::super::hardware::{Closed, Hardware, Node, container_finding};
use super::{controller, environment};

/// A system with an NVIDIA GPU, another display controller, and device nodes, one of which this user may not open.
fn system() -> TempDir {
    let dir = tempdir().unwrap();
    let root = dir.path();
    for (slot, class, vendor, driver) in [
        ("0000:00:02.0", "0x030000", "0x1a03", Some("ast")),
        ("0000:01:00.0", "0x030200", "0x10de", Some("nvidia")),
        ("0000:02:00.0", "0x030000", "0x1002", None),
        ("0000:03:00.0", "0x020000", "0x8086", Some("e1000")),
    ] {
        let device = root.join("sys/bus/pci/devices").join(slot);
        fs::create_dir_all(&device).unwrap();
        for (name, text) in [("class", class), ("vendor", vendor), ("device", "0x2335")] {
            fs::write(device.join(name), format!("{text}\n")).unwrap();
        }
        if let Some(driver) = driver {
            symlink(format!("../../drivers/{driver}"), device.join("driver")).unwrap();
        }
    }
    fs::create_dir_all(root.join("sys/module/nvidia")).unwrap();
    fs::write(root.join("sys/module/nvidia/version"), "580.65.06\n").unwrap();
    fs::create_dir_all(root.join("dev/dri")).unwrap();
    for name in ["nvidia0", "nvidiactl", "nvidia-modeset", "null", "dri/renderD128", "dri/card0"] {
        fs::write(root.join("dev").join(name), "").unwrap();
    }
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(root.join("etc/group"), "root:x:0:\nvideo:x:44:me\nrender:x:104:\n").unwrap();
    dir
}

#[test]
fn hardware_and_nodes() {
    let dir = system();
    let hardware = Hardware::look(dir.path());
    assert!(hardware.has_nvidia() && hardware.has_other_gpu());
    assert_eq!(hardware.nvidia_module.as_deref(), Some("580.65.06"));
    let names: Vec<_> =
        hardware.nodes.iter().map(|node| node.path.strip_prefix(dir.path()).unwrap()).collect();
    assert_eq!(
        names,
        [Path::new("dev/dri/renderD128"), Path::new("dev/nvidia0"), Path::new("dev/nvidiactl")]
    );
    let told = hardware.findings();
    assert_eq!(told[0].detail, "NVIDIA 10de:2335 (kernel driver nvidia), AMD 1002:2335 (kernel driver none)");
    assert_eq!(told[1].detail, "no kernel driver is bound to the GPU AMD 1002:2335 (kernel driver none)");
    assert!(told[1].advice.as_ref().unwrap().contains("linux-firmware"));
    assert_eq!(told.last().unwrap().status, Status::Ok);

    let empty = tempdir().unwrap();
    let told = Hardware::look(empty.path()).findings();
    assert_eq!(
        told.iter().map(|finding| finding.status).collect::<Vec<_>>(),
        [Status::Warning, Status::Warning]
    );
}

#[test]
fn closed_nodes_name_the_group() {
    let node = |closed| Node { path: PathBuf::from("/dev/dri/renderD128"), closed };
    let told =
        |closed| Hardware { nodes: vec![node(closed)], ..Hardware::default() }.findings().pop().unwrap();
    let forbidden = told(Some(Closed::Forbidden("render".to_owned())));
    assert_eq!(forbidden.status, Status::Problem);
    assert!(forbidden.advice.unwrap().starts_with("sudo usermod -aG render $USER"));
    assert!(told(Some(Closed::Failed("No such device".to_owned()))).detail.ends_with("No such device"));
    assert_eq!(told(None).detail, "/dev/dri/renderD128 open");

    // Root may open everything, so the file system's answer can only be seen as another user.
    let dir = system();
    let render = dir.path().join("dev/dri/renderD128");
    fs::set_permissions(&render, fs::Permissions::from_mode(0o000)).unwrap();
    let closed = Hardware::look(dir.path()).nodes.remove(0).closed;
    let root = fs::File::open(&render).is_ok();
    assert_eq!(closed.is_none(), root, "{closed:?}");
    assert!(root || matches!(closed, Some(Closed::Forbidden(_))));
}

#[test]
fn containers_without_graphics() {
    let empty = tempdir().unwrap();
    let nvidia = Hardware { controllers: vec![controller("0x10de", Some("nvidia"))], ..Hardware::default() };
    let told = |variables: &[(&str, &str)], manifest| {
        container_finding(&environment(variables), empty.path(), &nvidia, manifest)
    };
    assert_eq!(told(&[], false), None, "no container");
    let status =
        |variables: &[(&str, &str)], manifest| told(variables, manifest).map(|finding| finding.status);
    let capabilities = "NVIDIA_DRIVER_CAPABILITIES";
    assert_eq!(status(&[(capabilities, "compute,utility")], false), Some(Status::Problem));
    assert_eq!(status(&[(capabilities, "compute, graphics")], false), Some(Status::Ok));
    assert_eq!(status(&[(capabilities, "all")], false), Some(Status::Ok));
    assert_eq!(status(&[(capabilities, "compute")], true), Some(Status::Ok));
    let unset = told(&[("container", "podman")], false).unwrap();
    assert!(unset.detail.contains("is not set"), "{unset:?}");
    assert!(unset.advice.unwrap().contains("NVIDIA_DRIVER_CAPABILITIES=all"));
    fs::write(empty.path().join(".dockerenv"), "").unwrap();
    assert_eq!(status(&[], false), Some(Status::Problem));
    assert_eq!(container_finding(&environment(&[]), empty.path(), &Hardware::default(), false), None);
}
