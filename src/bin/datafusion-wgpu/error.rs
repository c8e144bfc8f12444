//! Errors as the program's users read them: one line, without the names of error types.

use std::io;

use datafusion::arrow::error::ArrowError;
use datafusion::error::DataFusionError;

/// An error of the program's own, with its whole text.
pub fn problem(text: impl Into<String>) -> DataFusionError {
    DataFusionError::External(text.into().into())
}

/// What is wrong with the flags, in one line.
pub fn usage(error: &clap::Error) -> String {
    let text = error.render().to_string();
    // Below the message, clap prints the usage and where to find help; what belongs to the message comes before.
    let message =
        text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let parts: Vec<&str> = message.map(str::trim).filter(|line| !line.is_empty()).collect();
    format!("{}; see --help", parts.join(" "))
}

/// The text of an error in one line; see [`text`].
pub fn message(error: &DataFusionError) -> String {
    let text = text(error);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" ")
}

/// The text of an error: that of the cause alone where DataFusion only carries an error of others.
fn text(error: &DataFusionError) -> String {
    match error {
        DataFusionError::External(cause) => match cause.downcast_ref::<DataFusionError>() {
            Some(inner) => text(inner),
            None => cause.to_string(),
        },
        DataFusionError::IoError(cause) => cause.to_string(),
        DataFusionError::Context(what, inner) => format!("{what}: {}", text(inner)),
        DataFusionError::Shared(inner) => text(inner),
        other => other.to_string(),
    }
}

/// Whether nobody reads the output any more, as behind `| head`: no failure, and nobody to tell.
pub fn is_closed_output(error: &DataFusionError) -> bool {
    let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    match error {
        DataFusionError::IoError(error) => broken(error),
        DataFusionError::ArrowError(error, _) => match error.as_ref() {
            ArrowError::IoError(_, error) => broken(error),
            // The CSV writer keeps the text only.
            ArrowError::CsvError(text) => text.contains("Broken pipe (os error"),
            _ => false,
        },
        _ => false,
    }
}
