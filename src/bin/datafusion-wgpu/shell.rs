//! The shell: that of datafusion-cli, with its flags, on a session that has the GPU behind it.

mod flags;
mod script;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::ExplainFormat;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_cli::catalog::DynamicObjectStoreCatalog;
use datafusion_cli::exec;
use datafusion_cli::functions::{
    ListFilesCacheFunc, MetadataCacheFunc, ParquetMetadataFunc, StatisticsCacheFunc,
};
use datafusion_cli::object_storage::instrumented::InstrumentedObjectStoreRegistry;
use datafusion_cli::object_storage::{StdinCarriesCommands, is_stdin_location};
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::{MaxRows, PrintOptions};
use datafusion_wgpu::register_gpu;

use crate::error::problem;
use crate::signals;

pub use flags::Args;
use script::Script;

/// Where the statements come from.
enum Input {
    /// `-f` and then `-c`.
    Given { files: Vec<Script>, commands: Vec<String> },
    /// Lines of standard input that is no terminal, after the start-up files.
    Piped { rc: Vec<Script> },
    /// A person, after the start-up files.
    Interactive { rc: Vec<Script> },
}

/// Runs the shell.
///
/// # Errors
/// What keeps it from starting, and the first statement of `-c` that fails. Statements of files and of piped input that
/// fail are reported and make the exit code 1, but the next ones run, as in datafusion-cli.
pub async fn run(args: Args) -> Result<ExitCode> {
    // Before the working directory changes: these paths are relative to where the program was called.
    let input = Input::read(&args).await?;
    if let Some(path) = &args.data_path {
        std::env::set_current_dir(path)
            .map_err(|e| problem(format!("cannot use '{}' as data path: {e}", path.display())))?;
    }
    let stores = Arc::new(
        InstrumentedObjectStoreRegistry::new().with_profile_mode(args.object_store_profiling.into()),
    );
    let config = session_config(&args, &input)?;
    args.gpu.check(&config).await?;
    let ctx = session(config, args.runtime(Arc::clone(&stores) as _)?).await?;
    let mut options = PrintOptions {
        format: args.format,
        quiet: args.quiet,
        maxrows: most_rows(&args.format, args.maxrows),
        color: args.color,
        instrumented_registry: stores,
    };
    if !args.quiet {
        writeln!(io::stdout(), "datafusion-wgpu {}", crate::VERSION.as_str())?;
    }
    match input {
        Input::Given { files, commands } => {
            interruptible(async {
                let failed = script::run_all(&ctx, files, &mut options).await?;
                exec::exec_from_commands(&ctx, commands, &options).await?;
                Ok(exit_code(failed))
            })
            .await
        }
        Input::Piped { rc } => {
            interruptible(async {
                let mut failed = script::run_all(&ctx, rc, &mut options).await?;
                let lines = script::standard_input();
                failed |= script::run(&ctx, lines, script::MetaCommands::Obeyed, &mut options).await?;
                Ok(exit_code(failed))
            })
            .await
        }
        // The prompt has its own way with Ctrl-C.
        Input::Interactive { rc } => {
            script::run_all(&ctx, rc, &mut options).await?;
            // What can fail here is the terminal, and the file that keeps the history.
            exec::exec_from_repl(&ctx, &mut options).await.map_err(|e| {
                problem(format!("the history could not be kept in .history, or the terminal failed: {e}"))
            })?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Rows that are printed: datafusion-cli stops collecting at its limit for every format, but only a table says so.
fn most_rows(format: &PrintFormat, of_a_table: MaxRows) -> MaxRows {
    match format {
        PrintFormat::Table | PrintFormat::Automatic => of_a_table,
        _ => MaxRows::Unlimited,
    }
}

/// Runs `work` until a signal asks the program to end. The query is dropped then, and a trace is ended as usual.
async fn interruptible(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    let interruption = signals::interruption()?;
    tokio::select! {
        done = work => done,
        code = interruption => Ok(ExitCode::from(code)),
    }
}

fn exit_code(failed: bool) -> ExitCode {
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Input {
    /// Reads every file that will run, so that one that can't be read is an error before anything has run.
    async fn read(args: &Args) -> Result<Input> {
        if !args.file.is_empty() || !args.command.is_empty() {
            let files = script::read_all(&args.file).await?;
            return Ok(Input::Given { files, commands: args.command.clone() });
        }
        let rc = match &args.rc {
            Some(files) => files.clone(),
            None => home_rc().into_iter().collect(),
        };
        let rc = script::read_all(&rc).await?;
        match io::stdin().is_terminal() {
            true => Ok(Input::Interactive { rc }),
            false => Ok(Input::Piped { rc }),
        }
    }
}

fn home_rc() -> Option<PathBuf> {
    dirs::home_dir().map(|home| home.join(".datafusionrc")).filter(|path| path.exists())
}

/// DataFusion's options from the environment, then those that a shell wants, then the flags.
fn session_config(args: &Args, input: &Input) -> Result<SessionConfig> {
    let mut options = datafusion::config::ConfigOptions::from_env()
        .map_err(|e| e.context("an environment variable DATAFUSION_*"))?;
    if std::env::var_os("DATAFUSION_EXPLAIN_FORMAT").is_none() {
        options.explain.format = ExplainFormat::Tree;
    }
    if std::env::var_os("DATAFUSION_FORMAT_NULL").is_none() {
        options.format.null = "NULL".to_owned();
    }
    let mut config = SessionConfig::from(options).with_information_schema(true);
    if let Some(rows) = args.batch_size {
        config = config.with_batch_size(rows.get());
    }
    let reads_stdin = match input {
        Input::Given { .. } => args.file.iter().any(|file| is_stdin_location(&file.to_string_lossy())),
        Input::Piped { .. } | Input::Interactive { .. } => true,
    };
    if reads_stdin {
        // A table over standard input would swallow the statements.
        config = config.with_extension(Arc::new(StdinCarriesCommands));
    }
    args.gpu.apply(config)
}

/// A session with the GPU, tables by path, object stores by URL and the shell's table functions.
async fn session(config: SessionConfig, runtime: Arc<RuntimeEnv>) -> Result<SessionContext> {
    let ctx = SessionContext::new_with_config_rt(config, runtime).enable_url_table();
    register_gpu(&ctx)?;
    ctx.refresh_catalogs().await?;
    let catalogs = Arc::clone(ctx.state().catalog_list());
    ctx.register_catalog_list(Arc::new(DynamicObjectStoreCatalog::new(catalogs, ctx.state_weak_ref())));
    let caches = &ctx.runtime_env().cache_manager;
    ctx.register_udtf("parquet_metadata", Arc::new(ParquetMetadataFunc {}));
    ctx.register_udtf("metadata_cache", Arc::new(MetadataCacheFunc::new(Arc::clone(caches))));
    ctx.register_udtf("statistics_cache", Arc::new(StatisticsCacheFunc::new(Arc::clone(caches))));
    ctx.register_udtf("list_files_cache", Arc::new(ListFilesCacheFunc::new(Arc::clone(caches))));
    Ok(ctx)
}
