//! Errors as the program's users read them: one line, without the names of error types.

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
        DataFusionError::Shared(inner) => message(inner),
        other => other.to_string(),
    }
}
