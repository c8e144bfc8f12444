//! The `datafusion-wgpu` program: DataFusion's shell with the GPU behind it, and the tools around it.

mod gpu;
mod shell;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use datafusion::error::Result;

/// The allocator of datafusion-cli, so that figures compare.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// SQL on the GPU: DataFusion's command line with datafusion-wgpu registered.
#[derive(Debug, Parser)]
#[command(name = "datafusion-wgpu", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    shell: shell::Args,
}

#[derive(Debug, Subcommand)]
enum Command {}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match cli.command {
        None => runtime.block_on(shell::run(cli.shell)),
        Some(command) => match command {},
    }
}
