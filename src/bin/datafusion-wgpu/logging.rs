//! Where log records and spans go.

use std::io;

use datafusion::error::Result;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::error::problem;

/// What has to live until the program ends for nothing to be lost.
#[derive(Debug)]
#[must_use]
pub struct Guard;

/// Prints warnings to stderr, or what RUST_LOG asks for; records of the `log` crate, DataFusion's, too.
pub fn init() -> Result<Guard> {
    let wanted = std::env::var("RUST_LOG").unwrap_or_default();
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::WARN.into())
        .parse(&wanted)
        .map_err(|e| problem(format!("RUST_LOG is '{wanted}': {e}")))?;
    // Who did not ask for logs wants to read a warning, not to find out when and where it came from.
    let plain = wanted.is_empty();
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_target(!plain);
    let registry = tracing_subscriber::registry().with(filter);
    let installed = match plain {
        true => registry.with(lines.without_time()).try_init(),
        false => registry.with(lines).try_init(),
    };
    installed.map_err(|e| problem(format!("cannot start logging: {e}")))?;
    Ok(Guard)
}
