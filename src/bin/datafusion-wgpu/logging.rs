//! Where log records and spans go.

use std::io;
use std::path::Path;
use std::sync::Arc;

use datafusion::error::Result;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{EnvFilter, LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::error::problem;
use crate::trace::{Trace, TraceLayer};

/// Logging that was started.
#[derive(Debug)]
#[must_use]
pub struct Logging {
    trace: Option<Arc<Trace>>,
}

impl Logging {
    /// Ends the trace, if one is written.
    ///
    /// # Errors
    /// When the trace could not be written whole.
    pub fn finish(self) -> Result<()> {
        self.trace.map_or(Ok(()), |trace| trace.finish())
    }
}

/// Prints warnings to stderr, or what RUST_LOG asks for; records of the `log` crate, DataFusion's, too. The library's spans
/// go to the file `trace`.
pub fn init(trace: Option<&Path>) -> Result<Logging> {
    let wanted = std::env::var("RUST_LOG").unwrap_or_default();
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::WARN.into())
        .parse(&wanted)
        .map_err(|e| problem(format!("RUST_LOG is '{wanted}': {e}")))?;
    let trace = trace.map(Trace::create).transpose()?;
    let traced = trace.as_ref().map(|trace| {
        let library = Targets::new().with_target("datafusion_wgpu", LevelFilter::DEBUG);
        TraceLayer(Arc::clone(trace)).with_filter(library)
    });
    // Who did not ask for logs wants to read a warning, not to find out when and where it came from.
    let plain = wanted.is_empty();
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_target(!plain).with_ansi(false);
    let lines = if plain { lines.without_time().boxed() } else { lines.boxed() };
    let registry = tracing_subscriber::registry().with(lines.with_filter(filter)).with(traced);
    registry.try_init().map_err(|e| problem(format!("cannot start logging: {e}")))?;
    Ok(Logging { trace })
}
