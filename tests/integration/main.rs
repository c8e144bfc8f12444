//! Integration tests in one binary: a test binary that links DataFusion is large, and linking it takes a while.

mod layering;
mod slt;
mod tpch_data;

#[path = "../support/tpch.rs"]
mod tpch;
