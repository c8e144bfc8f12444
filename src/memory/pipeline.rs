//! Compute pipelines and their cache.
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
/// A shader before compilation. Entry point `main`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ShaderSource {
    /// Kernel, for labels and errors.
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
