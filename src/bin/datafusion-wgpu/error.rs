//! Errors as the program's users read them: one line, without the names of error types.

use std::error::Error;
use std::io;

use datafusion::error::DataFusionError;

/// An error of the program's own, with its whole text.
pub fn problem(text: impl Into<String>) -> DataFusionError {
    DataFusionError::External(text.into().into())
}

/// The text of an error: that of the cause alone where DataFusion only carries an error of others.
pub fn message(error: &DataFusionError) -> String {
    match error {
        DataFusionError::External(cause) => match cause.downcast_ref::<DataFusionError>() {
            Some(inner) => message(inner),
            None => cause.to_string(),
        },
        DataFusionError::IoError(cause) => cause.to_string(),
        DataFusionError::Context(what, inner) => format!("{what}: {}", message(inner)),
        DataFusionError::Shared(inner) => message(inner),
        other => other.to_string(),
    }
}

/// Whether nobody reads the output any more, as behind `| head`: no failure, and nobody to tell.
pub fn is_closed_output(error: &DataFusionError) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.kind() == io::ErrorKind::BrokenPipe;
        }
        cause = error.source();
    }
    // Arrow's CSV writer keeps the text only.
    error.to_string().contains("Broken pipe (os error")
}
