//! Integration tests in one binary: a test binary that links DataFusion is large, and linking it takes a while.

#[cfg(feature = "cli")]
mod bench;
mod both;
#[cfg(feature = "cli")]
mod cli;
#[cfg(feature = "harness")]
mod conformance;
mod docs;
#[cfg(feature = "cli")]
mod doctor;
mod errors;
mod fallback;
mod faults;
mod first_last;
mod float_sums;
mod functions;
#[cfg(feature = "harness")]
mod fuzz;
mod group_by;
mod guards;
mod harness;
mod in_lists;
mod kept_groups;
mod layering;
mod laziness;
mod many_groups;
mod memory;
mod narrow_sums;
mod nullability;
mod observe;
mod placement;
mod random;
mod reasons;
mod slt;
mod sources;
mod stacked;
mod strings;
mod tpch_data;
#[cfg(feature = "cli")]
mod trace;
mod types;

#[path = "../../src/bin/datafusion-wgpu/soak/operators.rs"]
mod operators;
#[path = "../support/tpch.rs"]
mod tpch;
