//! GPU plan nodes: what happens to batches. Never names shaders or device handles.

pub mod aggregate;
mod border;
pub mod exec;
pub mod filter;
mod fusion;
mod island;
pub mod lookup;
mod materialize;
pub mod metrics;
pub mod op;
pub mod params;
pub mod projection;
pub mod query;
pub mod rank;
pub mod replay;
mod retry;
mod run;
mod scalar;
pub mod template;

pub use exec::GpuExec;
pub use op::{BreakerOp, DeviceOp, OpKind, RowLocalOp};
pub use query::Query;
pub use run::default_memory_limit;
pub(crate) use run::selector;
pub use template::Template;
