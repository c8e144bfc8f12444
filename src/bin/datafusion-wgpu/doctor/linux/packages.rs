//! Which package brings a library, on Debian and Ubuntu and on Fedora.

use std::path::Path;

use super::hardware::Hardware;

/// Libraries that Vulkan drivers are linked to, without their version, and the packages that bring them.
const LIBRARIES: &[(&str, &str, &str)] = &[
    ("libvulkan", "libvulkan1", "vulkan-loader"),
    ("libX11", "libx11-6", "libX11"),
    ("libX11-xcb", "libx11-xcb1", "libX11-xcb"),
    ("libXext", "libxext6", "libXext"),
    ("libXau", "libxau6", "libXau"),
    ("libXdmcp", "libxdmcp6", "libXdmcp"),
    ("libxcb", "libxcb1", "libxcb"),
    ("libxcb-dri3", "libxcb-dri3-0", "libxcb"),
    ("libxcb-present", "libxcb-present0", "libxcb"),
    ("libxcb-randr", "libxcb-randr0", "libxcb"),
    ("libxcb-shm", "libxcb-shm0", "libxcb"),
    ("libxcb-sync", "libxcb-sync1", "libxcb"),
    ("libxcb-xfixes", "libxcb-xfixes0", "libxcb"),
    ("libxcb-keysyms", "libxcb-keysyms1", "xcb-util-keysyms"),
    ("libxshmfence", "libxshmfence1", "libxshmfence"),
    ("libwayland-client", "libwayland-client0", "libwayland-client"),
    ("libdrm", "libdrm2", "libdrm"),
    ("libdrm_amdgpu", "libdrm-amdgpu1", "libdrm"),
    ("libdrm_intel", "libdrm-intel1", "libdrm"),
    ("libelf", "libelf1", "elfutils-libelf"),
    ("libexpat", "libexpat1", "expat"),
    ("libz", "zlib1g", "zlib"),
    ("libzstd", "libzstd1", "libzstd"),
    ("libudev", "libudev1", "systemd-libs"),
    ("libEGL", "libegl1", "libglvnd-egl"),
    ("libGL", "libgl1", "libglvnd-glx"),
    ("libGLX", "libglx0", "libglvnd-glx"),
    ("libGLdispatch", "libglvnd0", "libglvnd"),
    ("libstdc++", "libstdc++6", "libstdc++"),
    ("libgcc_s", "libgcc-s1", "libgcc"),
    ("libxml2", "libxml2", "libxml2"),
    ("libedit", "libedit2", "libedit"),
    ("libtinfo", "libtinfo6", "ncurses-libs"),
    ("libffi", "libffi8", "libffi"),
    ("libz3", "libz3-4", "z3-libs"),
    ("libsensors", "libsensors5", "lm_sensors-libs"),
    ("libdisplay-info", "libdisplay-info1", "libdisplay-info"),
    ("libSPIRV-Tools", "spirv-tools", "spirv-tools-libs"),
    ("libvulkan_lvp", MESA, MESA),
    ("libvulkan_radeon", MESA, MESA),
    ("libvulkan_intel", MESA, MESA),
    ("libvulkan_intel_hasvk", MESA, MESA),
    ("libvulkan_nouveau", MESA, MESA),
    ("libvulkan_virtio", MESA, MESA),
    ("libvulkan_dzn", MESA, MESA),
];

/// Mesa's drivers, by the same name everywhere.
const MESA: &str = "mesa-vulkan-drivers";

/// How to install packages by name.
fn install(debian: &str, fedora: &str) -> String {
    format!("Debian/Ubuntu: apt install {debian}; Fedora: dnf install {fedora}")
}

/// The Vulkan loader.
pub fn loader() -> String {
    install("libvulkan1", "vulkan-loader")
}

/// Mesa's drivers, the software adapter among them.
pub fn mesa() -> String {
    install(MESA, MESA)
}

/// NVIDIA's driver with its Vulkan parts.
pub fn nvidia(hardware: &Hardware) -> String {
    let branch =
        hardware.nvidia_module.as_deref().and_then(|version| version.split('.').next()).unwrap_or("NNN");
    format!(
        "Debian: apt install nvidia-vulkan-icd; Ubuntu: apt install libnvidia-gl-{branch} (the number of the installed \
         driver; on servers libnvidia-gl-{branch}-server); Fedora with RPM Fusion: dnf install xorg-x11-drv-nvidia"
    )
}

/// What brings the library `missing`, which `needed_by` wants (itself, when it is the driver).
pub fn bringing(missing: &str, needed_by: &Path, hardware: &Hardware) -> String {
    let name = file_name(missing);
    let stem = name.split(".so").next().unwrap_or(name);
    if is_nvidia(Path::new(name)) {
        return nvidia(hardware);
    }
    // The system names one missing library at a time, and NVIDIA's driver wants these two even on a headless server.
    if is_nvidia(needed_by) && ["libX11", "libXext"].contains(&stem) {
        return install("libx11-6 libxext6", "libX11 libXext");
    }
    if let Some(version) = llvm_version(name) {
        return install(&format!("libllvm{version}"), "llvm-libs");
    }
    match LIBRARIES.iter().find(|(known, _, _)| *known == stem) {
        Some((_, debian, fedora)) => install(debian, fedora),
        None => format!(
            "install the package that brings {name}; Debian/Ubuntu: apt-file search {name}; Fedora: dnf provides '*/{name}'"
        ),
    }
}

/// Whether a library is NVIDIA's.
pub fn is_nvidia(library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    name.contains("nvidia")
}

/// The major version in `libLLVM-15.so.1` or `libLLVM.so.19.1`.
fn llvm_version(name: &str) -> Option<u32> {
    let rest = name.strip_prefix("libLLVM")?;
    let rest = rest.strip_prefix(".so.").or_else(|| rest.strip_prefix('-'))?;
    rest.split('.').next()?.parse().ok()
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
