//! The step that examines an adapter: finding, opening, probing and using it.

use std::sync::Arc;

use datafusion::error::Result;
use datafusion_wgpu::memory::{AdapterInfo, AdapterKind, AdapterSelector, DeviceCaps};
use datafusion_wgpu::optimizer::{declined_by, unusable};
use datafusion_wgpu::physical_plan::default_memory_limit;
use datafusion_wgpu::{GpuRuntime, shared_runtime};

use crate::error::problem;
use crate::output::bytes;

use super::child::{Message, tell};
use super::finding::{Check, Chosen, Finding, Status};
use super::query;

/// What to do where nothing else is known.
pub const NO_ADAPTER: &str = if cfg!(target_os = "linux") {
    "a GPU needs its driver with the Vulkan parts; for trying out, a software adapter comes with mesa-vulkan-drivers \
     (Debian/Ubuntu: apt install mesa-vulkan-drivers; Fedora: dnf install mesa-vulkan-drivers)"
} else {
    "install or update the GPU's driver"
};

/// Looks for adapters, opens the one that is meant, and runs a query on it.
pub async fn examine(adapter: String) -> Result<()> {
    let runtime = shared_runtime();
    let opened = {
        let runtime = Arc::clone(&runtime);
        let lost = |error| problem(format!("the examination failed: {error}"));
        tokio::task::spawn_blocking(move || open(&runtime, &adapter)).await.map_err(lost)??
    };
    if let Some(index) = opened {
        tell(&Message::Begin(Check::Query))?;
        tell(&Message::Found(query::compare(runtime, index).await))?;
    }
    Ok(())
}

/// Opens the adapter; `None` when there is none that can be used.
fn open(runtime: &GpuRuntime, adapter: &str) -> Result<Option<usize>> {
    tell(&Message::Begin(Check::Adapters))?;
    let infos = runtime.adapters();
    let Some(index) = choose(runtime, adapter)? else { return Ok(None) };
    let Some(info) = infos.get(index) else { return Ok(None) };
    let software = info.kind == AdapterKind::Software;
    tell(&Message::Chosen(Chosen { index, name: info.name.clone(), software }))?;
    for other in infos.iter().filter(|other| !other.int64 && other.index != index) {
        tell(&Message::Found(Finding { status: Status::Warning, ..no_int64(&other.name) }))?;
    }
    if !info.int64 {
        tell(&Message::Found(no_int64(&info.name)))?;
        return Ok(None);
    }
    tell(&Message::Begin(Check::Device))?;
    let selector = AdapterSelector { adapter: index.to_string(), allow_software: true };
    let device = match runtime.select(&selector) {
        Ok(device) => device,
        Err(error) => {
            tell(&Message::Found(Finding::problem(Check::Device, error.to_string()).advise(
                "another program may hold all of the GPU, or the driver is broken: restart or update it",
            )))?;
            return Ok(None);
        }
    };
    for finding in findings(device.caps()) {
        tell(&Message::Found(finding))?;
    }
    Ok(unusable(device.caps()).is_none().then_some(index))
}

/// The adapter that is meant: without a name a real one, or else a software adapter.
fn choose(runtime: &GpuRuntime, adapter: &str) -> Result<Option<usize>> {
    let infos = runtime.adapters();
    if infos.is_empty() {
        tell(&Message::Found(Finding::problem(Check::Adapters, "wgpu finds no adapter")))?;
        return Ok(None);
    }
    let selector = AdapterSelector { adapter: adapter.to_owned(), allow_software: true };
    match runtime.find(&selector) {
        Ok(index) => {
            tell(&Message::Found(list(infos)))?;
            Ok(Some(index))
        }
        Err(error) => {
            let advice = "`datafusion-wgpu devices` lists them; --adapter takes a number or a part of a name";
            tell(&Message::Found(Finding::problem(Check::Adapters, error.to_string()).advise(advice)))?;
            Ok(None)
        }
    }
}

/// All adapters.
fn list(infos: &[AdapterInfo]) -> Finding {
    let line = |info: &AdapterInfo| {
        let driver = format!("{} {}", info.driver, info.driver_info);
        format!("{}: {} ({}, {}, {})", info.index, info.name, info.kind.name(), info.backend, driver.trim())
    };
    let all = infos.iter().map(line).collect::<Vec<_>>().join("; ");
    if infos.iter().all(|info| info.kind == AdapterKind::Software) {
        return Finding::warning(Check::Adapters, format!("only software adapters: {all}")).advise(
            "queries use them only with --gpu force, --adapter, or SET gpu.allow_software_adapter = true",
        );
    }
    Finding::ok(Check::Adapters, all)
}

fn no_int64(name: &str) -> Finding {
    Finding::problem(
        Check::Int64,
        format!("{name} has no 64-bit integers in shaders, without which nothing runs"),
    )
    .advise("update the driver, or use an adapter that has them (`datafusion-wgpu devices`)")
}

/// What is known of an adapter that was opened.
fn findings(caps: &DeviceCaps) -> Vec<Finding> {
    vec![
        Finding::ok(Check::Device, format!("{} was opened", caps.name)),
        int64(caps),
        float64(caps),
        Finding::ok(Check::Numerics, numerics(caps)),
        declined(caps),
        timestamps(caps),
        memory(caps),
    ]
}

fn int64(caps: &DeviceCaps) -> Finding {
    match (caps.int64, caps.numerics.int64_exact) {
        (false, _) => no_int64(&caps.name),
        (true, false) => {
            Finding::problem(Check::Int64, format!("{} computes 64-bit integers wrongly", caps.name))
                .advise("update the driver; until then queries stay on the CPU")
        }
        (true, true) => Finding::ok(Check::Int64, "there, and exact"),
    }
}

fn float64(caps: &DeviceCaps) -> Finding {
    let detail = match (caps.float64, caps.numerics.float64_exact) {
        (false, _) => "none in shaders",
        (true, true) => "there, and exact",
        (true, false) => "there, but not exact",
    };
    Finding::ok(
        Check::Float64,
        format!("{detail}; not needed: kernels compute with floats in integer arithmetic"),
    )
}

/// The probe's results in words.
fn numerics(caps: &DeviceCaps) -> String {
    let numerics = &caps.numerics;
    let exact = |exact: bool| if exact { "exact" } else { "not exact" };
    let double = if caps.float64 { exact(numerics.float64_exact) } else { "not offered" };
    [
        format!("64-bit integers {}", exact(numerics.int64_exact)),
        format!("f64 + - * / {double}"),
        format!("f32 / {}", exact(numerics.float32_division_exact)),
        format!("f32 denormals {}", if numerics.float32_denormals { "kept" } else { "flushed to 0" }),
        format!("a * b + c rounded {}", if numerics.float_contraction { "once" } else { "twice" }),
    ]
    .join(", ")
}

fn declined(caps: &DeviceCaps) -> Finding {
    let declined = declined_by(caps);
    if declined.is_empty() {
        return Finding::ok(
            Check::Declined,
            "nothing that the GPU could do elsewhere is declined on this adapter",
        );
    }
    let status = if unusable(caps).is_some() { Status::Problem } else { Status::Ok };
    let detail = format!("stays on the CPU because of this adapter: {}", declined.join("; "));
    Finding { status, ..Finding::ok(Check::Declined, detail) }
}

fn timestamps(caps: &DeviceCaps) -> Finding {
    Finding::ok(
        Check::Timestamps,
        if caps.timestamps {
            "there: EXPLAIN ANALYZE shows the kernels' time"
        } else {
            "none: kernel times are not shown"
        },
    )
}

fn memory(caps: &DeviceCaps) -> Finding {
    let limit = bytes(default_memory_limit(caps));
    let detail = match caps.memory_bytes {
        Some(memory) => format!("{}, of which queries use {limit} at most", bytes(memory)),
        None => format!("the driver does not tell how much; queries use {limit} at most"),
    };
    Finding::ok(Check::Memory, format!("{detail} (gpu.memory_limit)"))
}

#[cfg(test)]
mod tests {
    use datafusion_wgpu::memory::Numerics;

    use super::*;

    fn of(check: Check, caps: &DeviceCaps) -> Finding {
        findings(caps).into_iter().find(|finding| finding.check == check).unwrap()
    }

    #[test]
    fn a_good_adapter_has_no_problem() {
        let caps = DeviceCaps::for_tests();
        assert!(findings(&caps).iter().all(|finding| finding.status == Status::Ok));
        assert_eq!(
            of(Check::Numerics, &caps).detail,
            "64-bit integers exact, f64 + - * / exact, f32 / not exact, f32 denormals flushed to 0, a * b + c rounded once"
        );
        assert!(of(Check::Memory, &caps).detail.starts_with("140 GiB, of which queries use 105 GiB"));
    }

    #[test]
    fn wrong_integers_are_a_problem() {
        let caps =
            DeviceCaps { numerics: Numerics::default(), memory_bytes: None, ..DeviceCaps::for_tests() };
        assert_eq!(of(Check::Int64, &caps).status, Status::Problem);
        assert_eq!(of(Check::Declined, &caps).status, Status::Problem);
        assert!(of(Check::Declined, &caps).detail.contains("NumericsProbe"));
        assert!(of(Check::Memory, &caps).detail.contains("2 GiB at most"));
        let caps = DeviceCaps { int64: false, ..DeviceCaps::for_tests() };
        assert!(of(Check::Int64, &caps).detail.contains("no 64-bit integers"));
    }

    #[test]
    fn few_bindings_are_told() {
        for (buffers, told) in [(8, false), (7, true)] {
            let caps = DeviceCaps { max_storage_buffers: buffers, ..DeviceCaps::for_tests() };
            let declined = of(Check::Declined, &caps);
            assert_eq!(declined.status, Status::Ok);
            assert_eq!(declined.detail.contains("BindingLimit"), told, "{}", declined.detail);
        }
    }

    #[test]
    fn software_alone_is_a_warning() {
        let info = |kind| AdapterInfo {
            index: 0,
            name: "Test".to_owned(),
            kind,
            backend: "vulkan".to_owned(),
            driver: "driver".to_owned(),
            driver_info: String::new(),
            int64: true,
            float64: true,
        };
        assert_eq!(list(&[info(AdapterKind::Software)]).status, Status::Warning);
        let both = list(&[info(AdapterKind::Discrete), info(AdapterKind::Software)]);
        assert_eq!(both.status, Status::Ok);
        assert!(
            both.detail.starts_with("0: Test (discrete, vulkan, driver); 0: Test (software"),
            "{}",
            both.detail
        );
    }
}
