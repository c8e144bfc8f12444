//! Compute pipelines and their cache.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{GpuError, GpuResult};

use super::caps::ShaderChecks;
use super::faults::INJECTED;
use super::generation::ErrorScopes;
use super::poll::panic_text;

/// How a buffer is bound; all in `@group(0)`, `@binding(0..n)` in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BindingKind {
    /// `var<storage, read>`
    ReadOnlyStorage,
    /// `var<storage, read_write>`
    Storage,
    /// `var<uniform>`
    Uniform,
}

/// A shader before compilation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ShaderSource {
    /// Kernel, for labels and errors; not part of the cache key.
    pub name: String,
    /// WGSL text with one entry point, `main`.
    pub wgsl: String,
    /// Bindings in order.
    pub bindings: Vec<BindingKind>,
}

/// A compiled kernel.
#[derive(Debug)]
pub struct Pipeline {
    /// The pipeline.
    pub pipeline: wgpu::ComputePipeline,
    /// Layout of bind group 0.
    pub layout: wgpu::BindGroupLayout,
    /// Kernel.
    pub name: String,
}

/// Pipelines of one device generation by shader text and bindings. A shader that two tasks want at the same time is
/// compiled once.
#[derive(Debug, Default)]
pub(crate) struct PipelineCache {
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
}

/// Shader text, bindings, and what is checked.
type Key = (String, Vec<BindingKind>, ShaderChecks);

/// How a compilation is to go wrong: an injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The compiler panics.
    Panics,
    /// The last line is no WGSL.
    Misspelled,
}

#[derive(Debug, Default)]
struct Slot {
    compiling: Mutex<()>,
    pipeline: Mutex<Option<Arc<Pipeline>>>,
}

impl PipelineCache {
    fn slot(&self, source: &ShaderSource, checks: ShaderChecks) -> Arc<Slot> {
        let key = (source.wgsl.clone(), source.bindings.clone(), checks);
        Arc::clone(self.slots.lock().entry(key).or_default())
    }

    /// The pipeline if it was compiled; never blocks on a compilation.
    pub(crate) fn get(&self, source: &ShaderSource, checks: ShaderChecks) -> Option<Arc<Pipeline>> {
        self.slot(source, checks).pipeline.lock().clone()
    }

    /// The pipeline and whether this call compiled it. Failures are not remembered. With an injected fault the compiler is
    /// called in any case.
    pub(crate) fn get_or_compile(
        &self,
        device: &wgpu::Device,
        source: &ShaderSource,
        checks: ShaderChecks,
        broken: Option<Broken>,
    ) -> GpuResult<(Arc<Pipeline>, bool)> {
        let slot = self.slot(source, checks);
        let _compiling = slot.compiling.lock();
        let found = slot.pipeline.lock().clone();
        if let Some(pipeline) = found.filter(|_| broken.is_none()) {
            return Ok((pipeline, false));
        }
        let pipeline = Arc::new(compile(device, source, checks, broken)?);
        *slot.pipeline.lock() = Some(Arc::clone(&pipeline));
        Ok((pipeline, true))
    }
}

/// Compiles; naga's panics (some 64-bit built-ins pass its validator and not its SPIR-V writer) become errors.
fn compile(
    device: &wgpu::Device,
    source: &ShaderSource,
    checks: ShaderChecks,
    broken: Option<Broken>,
) -> GpuResult<Pipeline> {
    if broken == Some(Broken::Misspelled) {
        let wgsl = format!("{}\n{INJECTED}", source.wgsl.trim_end());
        return compile(device, &ShaderSource { wgsl, ..source.clone() }, checks, None);
    }
    let rejected = |message: String| GpuError::ShaderRejected { kernel: source.name.clone(), message };
    let compiled = catch_unwind(AssertUnwindSafe(|| {
        let scopes = ErrorScopes::push(device);
        if broken.is_some() {
            resume_unwind(Box::new(INJECTED));
        }
        let pipeline = create(device, source, checks);
        (pipeline, scopes.pop())
    }));
    match compiled {
        Ok((pipeline, None)) => Ok(pipeline),
        Ok((_, Some(error))) => Err(rejected(error.to_string())),
        Err(panic) => Err(rejected(format!("panic in the shader compiler: {}", panic_text(panic.as_ref())))),
    }
}

fn create(device: &wgpu::Device, source: &ShaderSource, checks: ShaderChecks) -> Pipeline {
    let label = Some(source.name.as_str());
    let descriptor =
        wgpu::ShaderModuleDescriptor { label, source: wgpu::ShaderSource::Wgsl(source.wgsl.as_str().into()) };
    let checks = wgpu::ShaderRuntimeChecks {
        bounds_checks: checks != ShaderChecks::None,
        force_loop_bounding: checks == ShaderChecks::All,
        ..Default::default()
    };
    // SAFETY: the other checks stay on. Without the counter a loop that never ends would hang the device; every loop
    // of this crate's shaders ends after a number of steps that the launch knows (a grid's share of rows or tiles, or a
    // constant), whatever the data, and no text of a query reaches a shader. Bounds are left unchecked by tests only, of
    // kernels whose indices are inside of their buffers and arrays.
    let module = unsafe { device.create_shader_module_trusted(descriptor, checks) };
    let entries: Vec<_> =
        (0..).zip(&source.bindings).map(|(binding, kind)| layout_entry(binding, *kind)).collect();
    let layout =
        device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    Pipeline { pipeline, layout, name: source.name.clone() }
}

fn layout_entry(binding: u32, kind: BindingKind) -> wgpu::BindGroupLayoutEntry {
    let ty = match kind {
        BindingKind::ReadOnlyStorage => wgpu::BufferBindingType::Storage { read_only: true },
        BindingKind::Storage => wgpu::BufferBindingType::Storage { read_only: false },
        BindingKind::Uniform => wgpu::BufferBindingType::Uniform,
    };
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    }
}
