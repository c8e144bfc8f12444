//! CPU twins of the kernels: row by row, in 128-bit integers. Tests compare the kernels with them, and
//! [`update_from_array`] serves run-time fallback.

pub mod decimal;
pub mod expr;
pub mod float;
pub mod group_by;
pub mod integer;
pub mod partition;
pub mod reduce;
pub mod select;
pub mod temporal;
#[cfg(test)]
mod tests;

pub use expr::{Fault, eval};
pub use group_by::group_by;
pub use reduce::{reduce, update_from_array};
pub use select::select;
