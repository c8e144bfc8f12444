//! Whether two answers are the same, by the contract's tiers.
//!
//! Rows are compared as multisets in arrow's row format, which keeps every bit of a value. ORDER BY is checked on the keys
//! themselves, ties free. A limited answer must have the right number of rows, the right keys in the right order, and
//! only rows that the unlimited query has.

use std::cmp::Ordering;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float32Array, Float64Array, RecordBatch};
use datafusion::arrow::compute::{SortOptions, cast, concat_batches};
use datafusion::arrow::datatypes::{DataType, Field, Float32Type, Float64Type, SchemaRef};
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::error::{DataFusionError, Result};

use super::ast::{Query, Target, Tier};
use super::cells;

/// What is compared, and how.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Spec {
    /// Keys of ORDER BY that are in the result, up to the first that is not.
    pub order: Vec<Key>,
    /// Whether the query has LIMIT or OFFSET.
    pub limited: bool,
    /// Whether -0 and +0 may stand for each other in float columns.
    pub folds_zero: bool,
    /// One a column.
    pub tiers: Vec<Tier>,
}

/// A key of ORDER BY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Key {
    /// Number of the column.
    pub column: usize,
    /// DESC.
    pub descending: bool,
    /// NULLS FIRST.
    pub nulls_first: bool,
}

impl Spec {
    /// What holds for the answers of a query.
    pub fn of(query: &Query) -> Self {
        let keys = query.order.iter().map_while(|key| match key.target {
            Target::Column(column) => Some(Key {
                column,
                descending: key.descending,
                nulls_first: key.nulls_first.unwrap_or(key.descending),
            }),
            Target::Hidden(_) => None,
        });
        Spec {
            order: keys.collect(),
            limited: query.limit.is_some() || query.offset.is_some(),
            folds_zero: query.folds_zero,
            tiers: query.tiers(),
        }
    }
}

/// The rows of an answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Their schema.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: Vec<RecordBatch>,
}

impl Answer {
    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }
}

/// Compares `got` with `want`; `unlimited` is the answer without LIMIT, for limited queries. The inner error says how they differ.
///
/// # Errors
/// Arrow's, where an answer's batches do not fit its schema.
pub fn compare(
    spec: &Spec,
    want: &Answer,
    unlimited: Option<&Answer>,
    got: &Answer,
) -> Result<std::result::Result<(), String>> {
    if let Some(difference) = schemas(want, got) {
        return Ok(Err(difference));
    }
    let (want, got) = (Rows::new(spec, want)?, Rows::new(spec, got)?);
    if got.len() != want.len() {
        let message = format!("{} rows instead of {}", got.len(), want.len());
        return Ok(Err(format!("{message}\n{}", describe(&want, &got))));
    }
    if let Some(row) = got.disorder() {
        return Ok(Err(format!("row {row} is not in the order of ORDER BY")));
    }
    if !spec.limited {
        return Ok(multisets(&want, &got));
    }
    if want.keys != got.keys {
        return Ok(Err(format!("other keys of ORDER BY\n{}", describe(&want, &got))));
    }
    match unlimited {
        Some(all) => Ok(contained(&Rows::new(spec, all)?, &got)),
        None => Ok(Ok(())),
    }
}

/// Whether each row of `got` is in one of the answers, and one of them has as many rows.
///
/// # Errors
/// As [`compare`].
pub fn pieced_together(spec: &Spec, answers: &[&Answer], got: &Answer) -> Result<bool> {
    let got = Rows::new(spec, got)?;
    let answers = answers.iter().map(|answer| Rows::new(spec, answer)).collect::<Result<Vec<_>>>()?;
    let known: std::collections::HashSet<&[u8]> =
        answers.iter().flat_map(|answer| answer.exact.iter().map(Vec::as_slice)).collect();
    Ok(answers.iter().any(|answer| answer.len() == got.len())
        && got.exact.iter().all(|row| known.contains(row.as_slice())))
}

fn schemas(want: &Answer, got: &Answer) -> Option<String> {
    let text = |answer: &Answer| {
        let field = |field: &Arc<Field>| {
            format!(
                "{} {}{}",
                field.name(),
                field.data_type(),
                if field.is_nullable() { "" } else { " not null" }
            )
        };
        answer.schema.fields().iter().map(field).collect::<Vec<_>>().join(", ")
    };
    let (want_text, got_text) = (text(want), text(got));
    if want_text != got_text {
        return Some(format!("the schema is ({got_text}) instead of ({want_text})"));
    }
    let types =
        |schema: &SchemaRef| schema.fields().iter().map(|f| f.data_type().clone()).collect::<Vec<_>>();
    let declared = types(&got.schema);
    let odd = got.batches.iter().map(|batch| types(&batch.schema())).find(|found| *found != declared)?;
    Some(format!("a batch has the types {odd:?} instead of {declared:?}"))
}

/// An answer, ready to be compared.
struct Rows {
    batch: RecordBatch,
    /// The exact columns of each row.
    exact: Vec<Vec<u8>>,
    /// The columns within a distance, with it.
    loose: Vec<(f64, ArrayRef)>,
    /// The keys of ORDER BY of each row.
    keys: Vec<Vec<u8>>,
}

impl Rows {
    fn new(spec: &Spec, answer: &Answer) -> Result<Self> {
        let batch = concat_batches(&answer.schema, &answer.batches)?;
        let mut exact = vec![];
        let mut loose = vec![];
        let tier = |index: usize| spec.tiers.get(index).copied().unwrap_or(Tier::Exact);
        let columns: Vec<ArrayRef> = batch
            .columns()
            .iter()
            .enumerate()
            .map(|(index, column)| normal(column, spec.folds_zero, tier(index) != Tier::Exact))
            .collect();
        for (index, column) in columns.iter().enumerate() {
            match tier(index) {
                Tier::Within(distance) if column.data_type().is_floating() => {
                    let doubles = cast(column, &DataType::Float64)?;
                    loose.push((distance, doubles));
                }
                _ => exact.push(Arc::clone(column)),
            }
        }
        let fields = exact.iter().map(|column| SortField::new(column.data_type().clone())).collect();
        let exact = encode(fields, &exact, batch.num_rows())?;
        let mut fields = vec![];
        let mut sorted = vec![];
        for key in &spec.order {
            let Some(column) = columns.get(key.column) else {
                return Err(DataFusionError::Internal(format!("there is no column {}", key.column)));
            };
            // A rounded key may differ; what it orders cannot be checked by its bits.
            if matches!(tier(key.column), Tier::Within(_)) {
                break;
            }
            let options = SortOptions { descending: key.descending, nulls_first: key.nulls_first };
            fields.push(SortField::new_with_options(column.data_type().clone(), options));
            sorted.push(Arc::clone(column));
        }
        let keys = encode(fields, &sorted, batch.num_rows())?;
        Ok(Rows { batch, exact, loose, keys })
    }

    fn len(&self) -> usize {
        self.batch.num_rows()
    }

    /// The first row whose key is less than the key before.
    fn disorder(&self) -> Option<usize> {
        (1..self.keys.len()).find(|row| self.keys[row - 1] > self.keys[*row])
    }

    /// Row numbers by content.
    fn sorted(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by(|a, b| {
            let loose = || self.loose.iter().map(|(_, column)| compare_floats(column, *a, *b));
            self.exact[*a]
                .cmp(&self.exact[*b])
                .then_with(|| loose().find(|order| *order != Ordering::Equal).unwrap_or(Ordering::Equal))
        });
        order
    }

    fn show(&self, row: usize) -> String {
        let cells = self.batch.columns().iter().map(|column| cells::show(column.as_ref(), row));
        format!("({})", cells.collect::<Vec<_>>().join(", "))
    }
}

/// Each row's bytes; empty ones where there are no columns.
fn encode(fields: Vec<SortField>, columns: &[ArrayRef], rows: usize) -> Result<Vec<Vec<u8>>> {
    if columns.is_empty() {
        return Ok(vec![vec![]; rows]);
    }
    let encoded = RowConverter::new(fields)?.convert_columns(columns)?;
    Ok(encoded.iter().map(|row| row.as_ref().to_vec()).collect())
}

/// The column with one zero, or one NaN, where either may stand for the other.
fn normal(column: &ArrayRef, one_zero: bool, one_nan: bool) -> ArrayRef {
    macro_rules! normal {
        ($type:ty, $array:ty, $native:ty) => {{
            let value = |value: $native| {
                if one_zero && value == 0.0 {
                    0.0
                } else if one_nan && value.is_nan() {
                    <$native>::NAN
                } else {
                    value
                }
            };
            let floats = column.as_primitive::<$type>();
            Arc::new(floats.iter().map(|v| v.map(value)).collect::<$array>()) as ArrayRef
        }};
    }
    match column.data_type() {
        DataType::Float32 => normal!(Float32Type, Float32Array, f32),
        DataType::Float64 => normal!(Float64Type, Float64Array, f64),
        _ => Arc::clone(column),
    }
}

fn compare_floats(column: &ArrayRef, a: usize, b: usize) -> Ordering {
    let floats = column.as_primitive::<Float64Type>();
    let value = |row: usize| floats.is_valid(row).then(|| floats.value(row));
    match (value(a), value(b)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

fn close(want: Option<f64>, got: Option<f64>, distance: f64) -> bool {
    match (want, got) {
        (None, None) => true,
        (Some(want), Some(got)) => {
            let relative = want.abs() * 2f64.powi(-40);
            want.to_bits() == got.to_bits()
                || (want.is_nan() && got.is_nan())
                || (want - got).abs() <= distance.max(relative)
        }
        _ => false,
    }
}

fn multisets(want: &Rows, got: &Rows) -> std::result::Result<(), String> {
    let pairs: Vec<(usize, usize)> = want.sorted().into_iter().zip(got.sorted()).collect();
    if pairs.iter().any(|(w, g)| want.exact[*w] != got.exact[*g]) {
        return Err(format!("other rows\n{}", describe(want, got)));
    }
    for ((distance, wanted), (_, found)) in want.loose.iter().zip(&got.loose) {
        let value = |column: &ArrayRef, row: usize| {
            let floats = column.as_primitive::<Float64Type>();
            floats.is_valid(row).then(|| floats.value(row))
        };
        for (w, g) in &pairs {
            if !close(value(wanted, *w), value(found, *g), *distance) {
                let rows = format!("  off:    {}\n  forced: {}", want.show(*w), got.show(*g));
                return Err(format!("a float is off by more than {distance:e}\n{rows}"));
            }
        }
    }
    Ok(())
}

fn contained(all: &Rows, got: &Rows) -> std::result::Result<(), String> {
    let extra = difference(&got.exact, &all.exact);
    match extra.first() {
        None => Ok(()),
        Some(row) => Err(format!("a row that the query without LIMIT does not have: {}", got.show(*row))),
    }
}

/// Indexes of rows of `a` that are more often in `a` than in `b`.
fn difference(a: &[Vec<u8>], b: &[Vec<u8>]) -> Vec<usize> {
    let mut counts: std::collections::HashMap<&[u8], i64> = std::collections::HashMap::new();
    for row in b {
        *counts.entry(row.as_slice()).or_default() += 1;
    }
    let spare = |row: &Vec<u8>, counts: &mut std::collections::HashMap<&[u8], i64>| match counts
        .get_mut(row.as_slice())
    {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    (0..a.len()).filter(|index| spare(&a[*index], &mut counts)).collect()
}

/// The first rows that only one side has.
fn describe(want: &Rows, got: &Rows) -> String {
    const SHOWN: usize = 6;
    let mut lines = vec![];
    for (name, here, there) in [("off:   ", want, got), ("forced:", got, want)] {
        let only = difference(&here.exact, &there.exact);
        lines.extend(only.iter().take(SHOWN).map(|row| format!("  {name} {}", here.show(*row))));
        if only.len() > SHOWN {
            lines.push(format!("  {name} and {} more", only.len() - SHOWN));
        }
    }
    lines.join("\n")
}

/// Whether two error texts say the same: numbers and quoted values, which depend on the row that was met first, are left out.
pub fn same_error(a: &str, b: &str) -> bool {
    let (a, b) = (skeleton(a), skeleton(b));
    a == b || (a.len() > 20 && b.contains(&a)) || (b.len() > 20 && a.contains(&b))
}

fn skeleton(text: &str) -> String {
    let mut out = String::new();
    let mut quoted = false;
    let mut before = ' ';
    for c in text.chars() {
        // The apostrophe of "can't" opens nothing.
        if matches!(c, '\'' | '"') && (quoted || !before.is_alphanumeric()) {
            quoted = !quoted;
        }
        before = c;
        let part_of_number = c.is_ascii_digit() || matches!(c, '.' | '-' | '+');
        if quoted || part_of_number {
            if !out.ends_with('#') {
                out.push('#');
            }
        } else if !c.is_whitespace() {
            out.push(c);
        }
    }
    // Which node wraps an error, and how often it was shared, is not its meaning.
    ["ArrowError:", "Arrowerror:", "Executionerror:", "Externalerror:", "Sharederror:", "DataFusionerror:"]
        .iter()
        .fold(out, |text, prefix| text.replace(prefix, ""))
}
