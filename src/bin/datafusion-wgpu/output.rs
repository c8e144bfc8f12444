//! Writing to standard output.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use datafusion::error::{DataFusionError, Result};

use crate::error::problem;

/// Prints a text that ends with a line break. A reader that has seen enough, such as `head`, is no error.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Says that a file can't be written before the work, not after it. Where there is none, none is left.
///
/// # Errors
/// Those of opening it, with its path.
pub fn writable(path: &Path) -> Result<()> {
    let tried = match File::create_new(path) {
        Ok(_) => fs::remove_file(path),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            OpenOptions::new().append(true).open(path).map(drop)
        }
        Err(e) => Err(e),
    };
    tried.map_err(|e| unwritable(path, &e))
}

/// The error of a path that can't be written.
pub fn unwritable(path: &Path, error: &dyn std::fmt::Display) -> DataFusionError {
    problem(format!("cannot write '{}': {error}", path.display()))
}

/// Bytes for reading, e.g. `1.5 GiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) if bytes.is_multiple_of(*size) => format!("{} {unit}", bytes / size),
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / *size as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_tried_and_not_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        writable(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "kept").unwrap();
        writable(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        for path in [dir.path().to_owned(), dir.path().join("no/such/file")] {
            let error = writable(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("cannot write '{}': ", path.display())), "{error}");
        }
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(bytes(0), "0 bytes");
        assert_eq!(bytes(32 << 10), "32 KiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(bytes((1 << 40) + 1), "1.0 TiB");
    }
}
