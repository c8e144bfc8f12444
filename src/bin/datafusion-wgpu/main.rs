//! The `datafusion-wgpu` program: DataFusion's shell with the GPU behind it, and the tools around it.

mod bench;
#[cfg(feature = "harness")]
mod conformance;
mod devices;
mod doctor;
mod error;
#[cfg(feature = "harness")]
mod fuzz;
mod gpu;
mod logging;
mod output;
mod panics;
mod shell;
mod signals;
#[cfg(feature = "harness")]
mod soak;
mod tpch_data;
mod trace;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Parser, Subcommand};
use datafusion::error::Result;

/// The allocator of datafusion-cli, so that figures compare.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!("{} (DataFusion {})", env!("CARGO_PKG_VERSION"), datafusion::DATAFUSION_VERSION)
});

const MISSING_SUBCOMMAND: clap::error::ErrorKind =
    clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;

const EXAMPLES: &str = "\
Examples:
  datafusion-wgpu                                             a prompt
  datafusion-wgpu -c \"SELECT count(*) FROM 'data/*.parquet'\"  a query over files
  datafusion-wgpu --gpu force -q --format csv -f report.sql   a script, on the GPU
  datafusion-wgpu tpch-data --scale 1 --out data/tpch         data to try it with";

/// SQL on the GPU: DataFusion's command line with datafusion-wgpu registered.
#[derive(Debug, Parser)]
#[command(name = "datafusion-wgpu", version = VERSION.as_str(), args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    shell: shell::Args,
    /// Write what queries do on the GPU to FILE, a trace for Perfetto or Chrome
    #[arg(long, value_name = "FILE", help_heading = "GPU")]
    gpu_trace: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure suites of queries on the CPU and on the GPU, and compare the answers
    Bench(bench::Args),
    /// List the adapters, with their features and limits
    Devices(devices::Args),
    /// Examine drivers and adapters, say what is wrong and what to install
    Doctor(doctor::Args),
    #[command(hide = true)]
    DoctorStep(doctor::StepArgs),
    /// Write TPC-H tables as Parquet files
    TpchData(tpch_data::Args),
    /// Compare answers with the rule off and forced, over random queries and tables
    #[cfg(feature = "harness")]
    Fuzz(fuzz::Args),
    /// Run DataFusion's own test files with the rule forced
    #[cfg(feature = "harness")]
    Conformance(conformance::Args),
    /// Run many queries at once on one device, in little memory, with failures and cancellations
    #[cfg(feature = "harness")]
    Soak(soak::Args),
}

/// Where XDG_RUNTIME_DIR is not set, as in containers, Mesa's drivers look for a Wayland display nevertheless and print an
/// error about it. Any absolute path keeps them silent, and nobody can put a display into this one.
fn quiet_mesa() {
    const VARIABLE: &str = "XDG_RUNTIME_DIR";
    if cfg!(target_os = "linux") && std::env::var_os(VARIABLE).is_none() {
        // SAFETY: the program has no other thread yet.
        unsafe { std::env::set_var(VARIABLE, "/dev/null") };
    }
}

fn main() -> ExitCode {
    quiet_mesa();
    panics::leave_out_known();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // --help and --version, and the help of a command that lacks a subcommand.
        Err(error) if !error.use_stderr() || error.kind() == MISSING_SUBCOMMAND => error.exit(),
        Err(error) => {
            drop(writeln!(io::stderr(), "{}", error::usage(&error)));
            return ExitCode::from(2);
        }
    };
    let ended = start(cli);
    signals::leave();
    match ended {
        Ok(code) => code,
        Err(error) if error::is_closed_output(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Where stderr can't be written either, the exit code tells.
            drop(writeln!(io::stderr(), "Error: {}", error::message(&error)));
            ExitCode::FAILURE
        }
    }
}

fn start(cli: Cli) -> Result<ExitCode> {
    let logging = logging::init(cli.gpu_trace.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let code = runtime.block_on(run(cli));
    // A cancelled query may leave work behind. It ends soon, and must not be inside a driver when the process ends.
    runtime.shutdown_timeout(Duration::from_secs(1));
    let ended = logging.finish();
    let code = code?;
    ended.map(|()| code)
}

async fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        None => shell::run(cli.shell).await,
        Some(Command::Bench(args)) => bench::run(args).await,
        Some(Command::Devices(args)) => devices::run(args).await,
        Some(Command::Doctor(args)) => doctor::run(args).await,
        Some(Command::DoctorStep(args)) => doctor::run_step(args).await,
        Some(Command::TpchData(args)) => tpch_data::run(args).await,
        #[cfg(feature = "harness")]
        Some(Command::Fuzz(args)) => fuzz::run(args).await,
        #[cfg(feature = "harness")]
        Some(Command::Conformance(args)) => conformance::run(args).await,
        #[cfg(feature = "harness")]
        Some(Command::Soak(args)) => soak::run(args).await,
    }
}
