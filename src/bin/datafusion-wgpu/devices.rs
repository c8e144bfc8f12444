//! `devices`: the adapters of this machine, as `--adapter` takes them.

use std::fmt::Write;
use std::process::ExitCode;

use datafusion::error::Result;
use datafusion_wgpu::memory::{AdapterKind, DeviceCaps};
use datafusion_wgpu::shared_runtime;
use serde::Serialize;

use crate::error::problem;
use crate::output::{bytes, print};

/// Flags of `devices`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Exit code: 0 when an adapter with 64-bit integers exists, else 1.")]
#[group(id = "devices_flags")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists the adapters.
pub async fn run(args: Args) -> Result<ExitCode> {
    // The drivers are loaded now.
    let devices = tokio::task::spawn_blocking(devices)
        .await
        .map_err(|error| problem(format!("listing the adapters failed: {error}")))?;
    if args.json {
        let text = serde_json::to_string_pretty(&Listing { adapters: &devices });
        print(&format!("{}\n", text.map_err(|error| problem(error.to_string()))?))?;
    } else {
        print(&text(&devices))?;
    }
    if devices.iter().any(|device| device.features.int64) {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("No usable adapter: `datafusion-wgpu doctor` says why.");
    Ok(ExitCode::FAILURE)
}

#[derive(Serialize)]
struct Listing<'a> {
    adapters: &'a [Device],
}

/// One adapter.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Device {
    index: usize,
    name: String,
    kind: &'static str,
    /// It runs on the CPU.
    software: bool,
    backend: String,
    driver: String,
    driver_info: String,
    features: Features,
    limits: Limits,
    /// Where the backend tells.
    memory_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Features {
    int64: bool,
    float64: bool,
    int64_atomics: bool,
    subgroups: bool,
    timestamps: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Limits {
    buffer_bytes: u64,
    binding_bytes: u64,
    storage_buffers: u32,
    workgroup_bytes: u32,
    workgroup_invocations: u32,
}

fn devices() -> Vec<Device> {
    let runtime = shared_runtime();
    let infos = runtime.adapters().iter();
    infos.filter_map(|info| runtime.capabilities(info.index).map(|caps| device(info.index, caps))).collect()
}

fn device(index: usize, caps: DeviceCaps) -> Device {
    Device {
        index,
        name: caps.name,
        kind: caps.device_type.name(),
        software: caps.device_type == AdapterKind::Software,
        backend: caps.backend,
        driver: caps.driver,
        driver_info: caps.driver_info,
        features: Features {
            int64: caps.int64,
            float64: caps.float64,
            int64_atomics: caps.int64_atomics,
            subgroups: caps.subgroup,
            timestamps: caps.timestamps,
        },
        limits: Limits {
            buffer_bytes: caps.max_buffer_bytes,
            binding_bytes: caps.max_binding_bytes,
            storage_buffers: caps.max_storage_buffers,
            workgroup_bytes: caps.workgroup_bytes,
            workgroup_invocations: caps.max_workgroup_invocations,
        },
        memory_bytes: caps.memory_bytes,
    }
}

fn text(devices: &[Device]) -> String {
    let mut out = String::new();
    for device in devices {
        // Writing to a String cannot fail.
        let _ = write_device(&mut out, device);
    }
    out
}

fn write_device(out: &mut String, device: &Device) -> std::fmt::Result {
    let Device { index, name, kind, backend, driver, driver_info, features, limits, .. } = device;
    writeln!(out, "{index}  {name} ({kind}, {backend})")?;
    if device.software {
        writeln!(out, "   note      a software adapter: it runs on the CPU, for trying out")?;
    }
    if !features.int64 {
        writeln!(out, "   note      not usable: no 64-bit integers")?;
    }
    writeln!(out, "   driver    {}", format!("{driver} {driver_info}").trim())?;
    let named = [
        ("64-bit integers", features.int64),
        ("64-bit floats", features.float64),
        ("64-bit atomics", features.int64_atomics),
        ("subgroups", features.subgroups),
        ("timestamps", features.timestamps),
    ];
    let list = |has: bool| named.iter().filter(|(_, x)| *x == has).map(|(n, _)| *n).collect::<Vec<_>>();
    let (has, lacks) = (list(true), list(false));
    writeln!(out, "   features  {}", if has.is_empty() { "none".to_owned() } else { has.join(", ") })?;
    if !lacks.is_empty() {
        writeln!(out, "   lacks     {}", lacks.join(", "))?;
    }
    writeln!(
        out,
        "   limits    buffer {}, binding {}, {} storage buffers a stage, workgroup memory {}, {} invocations a workgroup",
        bytes(limits.buffer_bytes),
        bytes(limits.binding_bytes),
        limits.storage_buffers,
        bytes(u64::from(limits.workgroup_bytes)),
        limits.workgroup_invocations
    )?;
    writeln!(out, "   memory    {}", device.memory_bytes.map_or("not known".to_owned(), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let caps = DeviceCaps {
            int64: false,
            timestamps: false,
            device_type: AdapterKind::Software,
            memory_bytes: None,
            ..DeviceCaps::for_tests()
        };
        let shown = text(&[device(1, caps)]);
        for line in [
            "1  Test GPU (software, vulkan)\n",
            "   note      a software adapter: it runs on the CPU, for trying out\n",
            "   note      not usable: no 64-bit integers\n",
            "   driver    test 1.0\n",
            "   features  64-bit floats, 64-bit atomics, subgroups\n",
            "   lacks     64-bit integers, timestamps\n",
            "   memory    not known\n",
        ] {
            assert!(shown.contains(line), "{line} in {shown}");
        }
        let good = text(&[device(0, DeviceCaps::for_tests())]);
        assert!(!good.contains("note") && !good.contains("lacks"), "{good}");
        assert!(
            good.contains("binding 1 GiB, 524288 storage buffers a stage, workgroup memory 48 KiB"),
            "{good}"
        );
        assert!(good.contains("memory    140 GiB"), "{good}");
    }
}
