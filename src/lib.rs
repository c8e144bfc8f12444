//! GPU operators for [Apache DataFusion](datafusion): the same SQL, the same answers, on any GPU that wgpu can drive.

pub mod config;
pub mod error;
pub mod kernels;
pub mod memory;
pub mod physical_plan;
