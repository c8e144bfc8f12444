//! Statements from files and from piped input.
//!
//! datafusion-cli's own readers panic on a file that can't be opened, pass over the rest of one that is not UTF-8, and
//! exit with 0 whatever failed. The rules for what a statement is are theirs: it ends with a line that ends with `;`, lines
//! that begin with `--` or `#!` are comments, and the last statement needs no `;`.

use std::io::{self, BufRead, Cursor, Write};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use datafusion::error::Result;
use datafusion::prelude::SessionContext;
use datafusion_cli::command::{Command, OutputFormat};
use datafusion_cli::exec::exec_from_commands;
use datafusion_cli::print_options::PrintOptions;
use futures::FutureExt;
use futures::stream::{self, Stream, StreamExt};

use crate::error::{is_closed_output, message, problem};

/// The text of a file.
pub struct Script {
    path: PathBuf,
    text: Vec<u8>,
}

/// Whether lines such as `\d` are commands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MetaCommands {
    Obeyed,
    Unknown,
}

/// Reads the files.
///
/// # Errors
/// The first one that can't be read, by name.
pub async fn read_all(paths: &[PathBuf]) -> Result<Vec<Script>> {
    let mut scripts = vec![];
    for path in paths {
        let text = tokio::fs::read(path).await.map_err(|e| unreadable(path, &e))?;
        scripts.push(Script { path: path.clone(), text });
    }
    Ok(scripts)
}

fn unreadable(path: &Path, error: &io::Error) -> datafusion::error::DataFusionError {
    problem(format!("cannot read '{}': {error}", path.display()))
}

/// Runs the statements of files, one file after the other; true if any failed.
pub async fn run_all(ctx: &SessionContext, scripts: Vec<Script>, options: &mut PrintOptions) -> Result<bool> {
    let mut failed = false;
    for Script { path, text } in scripts {
        let lines = lines(format!("'{}'", path.display()), Cursor::new(text));
        failed |= run(ctx, stream::iter(lines), MetaCommands::Unknown, options).await?;
    }
    Ok(failed)
}

/// Lines of standard input, read by a thread of its own: a read that waits for a line can't be interrupted.
pub fn standard_input() -> impl Stream<Item = Result<String>> + Unpin {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    std::thread::spawn(move || {
        for line in lines("standard input".to_owned(), io::stdin().lock()) {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    Box::pin(stream::unfold(receiver, async |mut receiver| {
        let line = receiver.recv().await?;
        Some((line, receiver))
    }))
}

/// Lines of `input` without their ends. One that is not UTF-8 is an error that says where it is.
pub fn lines(name: String, mut input: impl BufRead) -> impl Iterator<Item = Result<String>> {
    let mut number = 0;
    std::iter::from_fn(move || {
        number += 1;
        let mut line = vec![];
        match input.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => Some(
                String::from_utf8(line)
                    .map(|line| line.trim_end().to_owned())
                    .map_err(|_| problem(format!("line {number} of {name} is not UTF-8 text"))),
            ),
            Err(e) => Some(Err(problem(format!("cannot read {name}: {e}")))),
        }
    })
}

/// Runs statements as their lines come; true if any failed. Those that fail are reported, and the next ones run.
///
/// # Errors
/// Lines that can't be read, and output that nobody reads any more.
pub async fn run(
    ctx: &SessionContext,
    mut lines: impl Stream<Item = Result<String>> + Unpin,
    meta_commands: MetaCommands,
    options: &mut PrintOptions,
) -> Result<bool> {
    let mut failed = false;
    let mut statement = String::new();
    while let Some(line) = lines.next().await {
        let line = line?;
        if line.starts_with("--") || line.starts_with("#!") {
            continue;
        }
        let outcome = match line.strip_prefix('\\') {
            Some(command) if meta_commands == MetaCommands::Obeyed && statement.trim().is_empty() => {
                match meta(ctx, command, options).await {
                    Ok(Next::Stop) => return Ok(failed),
                    Ok(Next::GoOn) => Ok(()),
                    Err(error) => Err(error),
                }
            }
            _ => {
                statement.push_str(&line);
                if !line.ends_with(';') {
                    statement.push('\n');
                    continue;
                }
                execute(ctx, std::mem::take(&mut statement), options).await
            }
        };
        failed |= report(outcome)?;
    }
    if !statement.trim().is_empty() {
        failed |= report(execute(ctx, statement, options).await)?;
    }
    Ok(failed)
}

/// Runs a statement. A panic is an error of the statement: the session's tables and options are as they were.
async fn execute(ctx: &SessionContext, statement: String, options: &mut PrintOptions) -> Result<()> {
    let done = AssertUnwindSafe(exec_from_commands(ctx, vec![statement], options)).catch_unwind().await;
    done.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text");
        Err(problem(format!("the statement panicked: {text}")))
    })
}

/// Prints an error, and whether there was one.
fn report(outcome: Result<()>) -> Result<bool> {
    match outcome {
        Ok(()) => Ok(false),
        Err(error) if is_closed_output(&error) => Err(error),
        Err(error) => {
            // Where stderr can't be written either, the exit code tells.
            drop(writeln!(io::stderr(), "Error: {}", message(&error)));
            Ok(true)
        }
    }
}

enum Next {
    GoOn,
    Stop,
}

/// Obeys the command behind a backslash.
async fn meta(ctx: &SessionContext, text: &str, options: &mut PrintOptions) -> Result<Next> {
    let unknown = || problem(format!("'\\{text}' is no command; \\? lists them"));
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match Command::from_str(&words).map_err(|()| unknown())? {
        Command::Quit => return Ok(Next::Stop),
        Command::OutputFormat(None) => {
            writeln!(io::stdout(), "Output format is {:?}.", options.format)?;
        }
        Command::OutputFormat(Some(setting)) => {
            OutputFormat::from_str(&setting).map_err(|()| unknown())?.execute(options)?;
        }
        Command::Include(Some(path)) => {
            let scripts = read_all(&[PathBuf::from(path)]).await?;
            // What failed in there has been reported; this makes it count.
            if Box::pin(run_all(ctx, scripts, options)).await? {
                return Err(problem(format!("statements of '\\{text}' failed")));
            }
        }
        command => command.execute(ctx, options).await?,
    }
    Ok(Next::GoOn)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::datatypes::DataType;
    use datafusion::logical_expr::{Volatility, create_udf};
    use datafusion_cli::print_format::PrintFormat;
    use datafusion_cli::print_options::MaxRows;

    use super::*;

    /// The statement after one that panics runs.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_panic_is_an_error_of_its_statement() {
        let ctx = SessionContext::new();
        let boom = create_udf(
            "boom",
            vec![DataType::Int64],
            DataType::Int64,
            Volatility::Volatile,
            Arc::new(|_| panic!("boom")),
        );
        ctx.register_udf(boom);
        let mut options = PrintOptions {
            format: PrintFormat::Csv,
            quiet: true,
            maxrows: MaxRows::Unlimited,
            color: false,
            instrumented_registry: Arc::default(),
        };
        for (text, failed, made) in [
            ("SELECT boom(1);\nCREATE TABLE a AS SELECT 1;", true, "a"),
            ("CREATE TABLE b AS SELECT 1", false, "b"),
        ] {
            let lines = stream::iter(text.lines().map(|line| Ok(line.to_owned())));
            assert_eq!(
                run(&ctx, lines, MetaCommands::Unknown, &mut options).await.unwrap(),
                failed,
                "{text}"
            );
            assert!(ctx.table_exist(made).unwrap(), "{text}");
        }
    }
}
