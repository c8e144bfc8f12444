//! One file an operator: whether a CPU node has a GPU counterpart, and which.

pub(crate) mod aggregate;
pub(crate) mod filter;
pub(crate) mod projection;
