//! The shell.

use std::process::ExitCode;

use datafusion::error::Result;

/// Flags of the shell.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub gpu: crate::gpu::Args,
}

/// Runs the shell.
pub async fn run(_args: Args) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
