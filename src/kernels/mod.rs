//! Typed launch functions over device columns; one file a kernel. Knows Arrow and wgpu, never DataFusion's plans.

pub mod expr;
