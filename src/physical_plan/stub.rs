//! Temporary: the launch functions until the kernels module has them.
#![allow(missing_docs, clippy::unused_async)]
use crate::error::{GpuError, GpuResult};
use crate::kernels::{
    expr::Expr,
    program::{Program, Segment},
    reduce::{AggregateSpec, ReduceResult},
    select::SelectResult,
};
use crate::memory::LaunchScope;
use std::sync::Arc;
pub async fn reduce(
    _: &LaunchScope,
    _: &Program,
    _: &[AggregateSpec],
    _: &[Segment],
) -> GpuResult<Vec<ReduceResult>> {
    Err(GpuError::Internal("kernels are not linked yet".into()))
}
pub async fn select(
    _: &LaunchScope,
    _: &Program,
    _: &[Arc<Expr>],
    _: &[Segment],
) -> GpuResult<Vec<SelectResult>> {
    Err(GpuError::Internal("kernels are not linked yet".into()))
}
