//! GPU operators for [Apache DataFusion](datafusion): the same SQL, the same answers, on any GPU that wgpu can drive.
//!
//! ```no_run
//! use datafusion::error::Result;
//! use datafusion::prelude::{ParquetReadOptions, SessionContext};
//!
//! # async fn example() -> Result<()> {
//! let ctx = SessionContext::new();
//! datafusion_wgpu::register_gpu(&ctx)?;
//! ctx.register_parquet("lineitem", "data/tpch/sf0.1/lineitem", ParquetReadOptions::default()).await?;
//! ctx.sql("SELECT sum(l_extendedprice * l_discount) FROM lineitem WHERE l_quantity < 24").await?.show().await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`register_gpu`] extends an existing session in place; [`GpuSessionStateBuilderExt`] extends one that is being built.
//! The `gpu.*` options are those of [`GpuOptions`]. [`placement_report`] tells which nodes of a query run on the GPU, and
//! why the others do not; [`functions`] tell that and more in SQL.

pub mod config;
pub mod error;
pub mod functions;
pub mod kernels;
#[cfg(test)]
mod matrix;
pub mod memory;
pub mod observe;
pub mod optimizer;
pub mod physical_plan;
pub mod session;

pub use config::{
    ByteSize, Exchanges, FallbackPolicy, FallbackScope, FloatSum, GpuOptions, MemoryLimit, Placement,
};
pub use error::{GpuError, GpuResult};
pub use memory::GpuRuntime;
pub use observe::{FallbackEvent, QueryStats, Subscription};
pub use optimizer::{PlacementReport, Reason};
pub use session::{
    GpuSessionStateBuilderExt, placement_report, register_gpu, register_gpu_runtime, shared_runtime,
};

/// The README's examples, compiled by `cargo test --doc`.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
