//! Comparing rows, as lines of text.

use std::collections::HashMap;

use datafusion_sqllogictest::df_value_validator;
use sqllogictest::Normalizer;

/// Rows in the order of the file.
pub fn in_order(normalizer: Normalizer, actual: &[Vec<String>], expected: &[String]) -> bool {
    df_value_validator(normalizer, actual, expected)
}

/// The same rows in any order.
pub fn in_any_order(normalizer: Normalizer, actual: &[Vec<String>], expected: &[String]) -> bool {
    if in_order(normalizer, actual, expected) {
        return true;
    }
    let mut actual: Vec<String> = actual.iter().map(|row| normalizer(&row.join(" "))).collect();
    let mut expected: Vec<String> = expected.iter().map(normalizer).collect();
    actual.sort_unstable();
    expected.sort_unstable();
    actual == expected
}

/// Whether `some` holds no row more often than `all` does.
pub fn is_part<'a>(some: impl IntoIterator<Item = &'a str>, all: impl IntoIterator<Item = &'a str>) -> bool {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for row in all {
        *counts.entry(row.trim_end()).or_default() += 1;
    }
    some.into_iter().all(|row| match counts.get_mut(row.trim_end()) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use datafusion_sqllogictest::value_normalizer;

    use super::*;

    #[test]
    fn orders() {
        let rows = |rows: &[&str]| rows.iter().map(|row| vec![row.to_string()]).collect::<Vec<_>>();
        let lines = |lines: &[&str]| lines.iter().map(|line| line.to_string()).collect::<Vec<_>>();
        assert!(in_order(value_normalizer, &rows(&["1", "2"]), &lines(&["1", "2"])));
        assert!(!in_order(value_normalizer, &rows(&["2", "1"]), &lines(&["1", "2"])));
        assert!(in_any_order(value_normalizer, &rows(&["2", "1", "1"]), &lines(&["1", "1", "2"])));
        assert!(!in_any_order(value_normalizer, &rows(&["2", "2", "1"]), &lines(&["1", "1", "2"])));
        assert!(!in_any_order(value_normalizer, &rows(&["1"]), &lines(&["1", "1"])));
    }

    #[test]
    fn parts() {
        assert!(is_part(["a", "a"], ["a", "b", "a"]));
        assert!(!is_part(["a", "a"], ["a", "b"]));
        assert!(!is_part(["c"], ["a"]));
        assert!(is_part([], ["a"]));
    }
}
