//! Whether two answers are the same, by the contract's tiers.
//!
//! Rows are compared as multisets in arrow's row format, which keeps every bit of a value. An answer must be in the order of its own keys of ORDER BY. Where
//! that does not say all (LIMIT, keys that are not in the result, values that DataFusion rounds at each step) the CPU is asked for a *reference*: the
//! query without LIMIT, with the hidden keys and the summands as further columns. Each row of an answer must be one of those that the reference has at its place.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Float16Type, Float32Type, Float64Type, SchemaRef};
use datafusion::error::Result;

use super::ast::{Query, Target, Tier};
use super::rounded::Rounding;
use super::rows::Rows;

/// What is compared, and how.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Spec {
    /// Keys of ORDER BY.
    pub order: Vec<Key>,
    /// Whether the query has LIMIT or OFFSET.
    pub limited: bool,
    /// OFFSET.
    pub offset: usize,
    /// Columns in which -0 and +0 may stand for each other.
    pub folds: Vec<bool>,
    /// One a column; what is missing is exact.
    pub tiers: Vec<Tier>,
}

/// A key of ORDER BY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Key {
    /// Number of the column; one after the last of the result is the first hidden key of the reference.
    pub column: usize,
    /// DESC.
    pub descending: bool,
    /// NULLS FIRST.
    pub nulls_first: bool,
}

impl Spec {
    /// What holds for the answers of a query.
    pub fn of(query: &Query) -> Self {
        let tiers = query.tiers();
        let mut hidden = tiers.len()..;
        let keys = query.order.iter().filter_map(|key| {
            let column = match key.target {
                Target::Column(column) => Some(column),
                Target::Hidden(_) => hidden.next(),
            };
            let nulls_first = key.nulls_first.unwrap_or(key.descending);
            column.map(|column| Key { column, descending: key.descending, nulls_first })
        });
        Spec {
            order: keys.collect(),
            limited: query.limit.is_some() || query.offset.is_some(),
            offset: query.offset.unwrap_or_default() as usize,
            folds: query.folds(),
            tiers,
        }
    }

    /// The tier of a column.
    pub fn tier(&self, column: usize) -> Tier {
        self.tiers.get(column).copied().unwrap_or(Tier::Exact)
    }

    /// Whether either zero may come out of a column.
    pub fn folds(&self, column: usize) -> bool {
        self.folds.get(column).copied().unwrap_or(false)
    }

    /// How many keys of ORDER BY are not in a result of `columns`.
    pub fn hidden(&self, columns: usize) -> usize {
        self.order.iter().filter(|key| key.column >= columns).count()
    }

    /// Whether answers of `columns` can only be compared with a reference.
    pub fn needs_reference(&self, columns: usize) -> bool {
        self.limited
            || self.hidden(columns) > 0
            || self.tiers.iter().any(|tier| matches!(tier, Tier::Rounded(_)))
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
    /// Some of the columns.
    fn project(&self, columns: &[usize]) -> Result<Self> {
        let batches = self.batches.iter().map(|batch| batch.project(columns)).collect::<Result<_, _>>()?;
        Ok(Answer { schema: Arc::new(self.schema.project(columns)?), batches })
    }

    /// Whether a float among them is NaN.
    pub fn has_nan(&self) -> bool {
        self.batches.iter().any(has_nan)
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }
}

/// Whether some float of a batch is NaN.
pub fn has_nan(batch: &RecordBatch) -> bool {
    batch.columns().iter().any(|column| match column.data_type() {
        DataType::Float16 => column.as_primitive::<Float16Type>().iter().flatten().any(|v| v.is_nan()),
        DataType::Float32 => column.as_primitive::<Float32Type>().iter().flatten().any(f32::is_nan),
        DataType::Float64 => column.as_primitive::<Float64Type>().iter().flatten().any(f64::is_nan),
        _ => false,
    })
}

/// The CPU's answer, and its reference where one is needed and could be had.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The answer.
    pub answer: &'a Answer,
    /// The reference.
    pub reference: Option<&'a Answer>,
}

/// The outcome of comparing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The same, as far as SQL and the contract determine it.
    Same,
    /// Nothing is wrong as far as can be seen without a reference, which there is not.
    Unchecked,
    /// How they differ.
    Differs(String),
}

/// Compares `got` with what is wanted. Where `strict`, sums and averages must be the exact ones.
///
/// # Errors
/// Arrow's, where an answer's batches do not fit its schema.
pub fn compare(spec: &Spec, wanted: Wanted<'_>, got: &Answer, strict: bool) -> Result<Outcome> {
    if let Some(difference) = schemas(wanted.answer, got) {
        return Ok(Outcome::Differs(difference));
    }
    let columns = got.schema.fields().len();
    let (want, got) = (Rows::new(spec, wanted.answer, columns)?, Rows::new(spec, got, columns)?);
    if got.len() != want.len() {
        let message = format!("{} rows instead of {}", got.len(), want.len());
        return Ok(Outcome::Differs(format!("{message}\n{}", describe(&want, &got))));
    }
    // DataFusion itself may leave the order: it takes a column that a filter holds to zero for a constant, whichever zero, and
    // dynamic filters compare floats without their NaNs.
    let ordered = want.disorder().is_none();
    if let Some(row) = got.disorder().filter(|_| ordered) {
        return Ok(Outcome::Differs(format!("row {row} is not in the order of ORDER BY")));
    }
    if want.is_exact() && spec.hidden(columns) == 0 && same_rows(&want, &got) {
        return Ok(Outcome::Same);
    }
    if !spec.needs_reference(columns) {
        let other = || Outcome::Differs(format!("other rows\n{}", describe(&want, &got)));
        return Ok(if same_rows(&want, &got) { Outcome::Same } else { other() });
    }
    match wanted.reference {
        Some(reference) => Ok(placed(spec, &Rows::new(spec, reference, columns)?, &got, strict)),
        None => Ok(Outcome::Unchecked),
    }
}

/// For answers of the same length.
fn same_rows(want: &Rows, got: &Rows) -> bool {
    unmatched(want, got, false).is_empty()
}

fn unmatched(want: &Rows, got: &Rows, strict: bool) -> Vec<usize> {
    got.unmatched(want, 0..got.len(), &(0..want.len()).collect::<Vec<_>>(), strict)
}

/// Whether each row of `got` is one of those that the reference has at its place.
fn placed(spec: &Spec, reference: &Rows, got: &Rows, strict: bool) -> Outcome {
    let lacking = reference.len().saturating_sub(spec.offset) < got.len();
    if lacking || (!spec.limited && reference.len() != got.len()) {
        let (have, count) = (reference.len(), got.len());
        return Outcome::Differs(format!("{count} rows, where the query without LIMIT has {have}"));
    }
    if !reference.has_summands() {
        return Outcome::Unchecked;
    }
    let (order, ends) = reference.ties();
    let mut start = 0;
    for end in ends {
        let place = |at: usize| at.saturating_sub(spec.offset).min(got.len());
        let here: Range<usize> = place(start)..place(end);
        let tie = &order[start..end];
        let other = if here.is_empty() { vec![] } else { got.unmatched(reference, here, tie, strict) };
        if let Some(row) = other.first() {
            let (first, shown) = (start + 1, got.show(*row));
            let text =
                format!("a row that is not among rows {first} to {end} of the query without LIMIT: {shown}");
            let near = reference.near(&got.exact[*row]).map(|near| format!("\n  off:    {near}"));
            return Outcome::Differs(text + &near.unwrap_or_default());
        }
        start = end;
    }
    match reference.misranked(spec, got) {
        Some(row) => Outcome::Differs(format!("a row of another rank: {}", got.show(row))),
        None => Outcome::Same,
    }
}

/// Whether `got` is in order, as long as one of the answers, and the rows of each content come from one of them.
///
/// # Errors
/// As [`compare`].
pub fn pieced_together(spec: &Spec, answers: &[Wanted<'_>], got: &Answer, strict: bool) -> Result<bool> {
    let columns = got.schema.fields().len();
    let got = Rows::new(spec, got, columns)?;
    if spec.limited || spec.hidden(columns) > 0 || got.disorder().is_some() {
        return Ok(false);
    }
    let mut all = vec![];
    for wanted in answers {
        let answer = if spec.needs_reference(columns) { wanted.reference } else { Some(wanted.answer) };
        if let Some(answer) = answer {
            all.push(Rows::new(spec, answer, columns)?);
        }
    }
    all.retain(Rows::has_summands);
    let mut open: HashSet<&[u8]> = got.exact.iter().map(Vec::as_slice).collect();
    for rows in &all {
        let other: HashSet<&[u8]> =
            unmatched(rows, &got, strict).into_iter().map(|row| got.exact[row].as_slice()).collect();
        open.retain(|content| other.contains(content));
    }
    Ok(open.is_empty() && all.iter().any(|rows| rows.len() == got.len()))
}

/// Whether `got` has each row no less often than some answer, and no more often than another.
///
/// # Errors
/// As [`compare`].
pub fn within(spec: &Spec, answers: &[&Answer], got: &Answer) -> Result<bool> {
    let columns = got.schema.fields().len();
    if spec.limited || spec.hidden(columns) > 0 || spec.needs_reference(columns) {
        return Ok(false);
    }
    let got = Rows::new(spec, got, columns)?;
    let answers = answers.iter().map(|answer| Rows::new(spec, answer, columns));
    let answers = answers.collect::<Result<Vec<_>>>()?;
    let times = |rows: &Rows| {
        let mut times: HashMap<Vec<u8>, usize> = HashMap::new();
        rows.exact.iter().for_each(|row| *times.entry(row.clone()).or_default() += 1);
        times
    };
    let (of_got, of_answers) = (times(&got), answers.iter().map(times).collect::<Vec<_>>());
    let contents = of_answers.iter().flat_map(HashMap::keys).chain(of_got.keys());
    let of = |times: &HashMap<Vec<u8>, usize>, row: &Vec<u8>| times.get(row).copied().unwrap_or(0);
    Ok(got.disorder().is_none()
        && contents.into_iter().all(|row| {
            let often = of(&of_got, row);
            let all = || of_answers.iter().map(|times| of(times, row));
            all().min().is_some_and(|least| least <= often) && all().max().is_some_and(|most| often <= most)
        }))
}

/// How two answers of the GPU differ in rounded columns, which must have the same bits; `None` if they don't, or if LIMIT leaves
/// the rows open. Other columns are left out: windows number rows that tie as they come.
///
/// # Errors
/// As [`compare`].
pub fn repeated(spec: &Spec, first: &Answer, again: &Answer) -> Result<Option<String>> {
    if spec.limited {
        return Ok(None);
    }
    // Rounded values count with all their bits.
    let bits = |tier: &Tier| match tier {
        Tier::Rounded(Rounding::Extreme { any_nan: true, .. }) => Tier::AnyNan,
        Tier::Rounded(_) => Tier::Exact,
        tier => *tier,
    };
    let columns = first.schema.fields().len();
    let rounded: Vec<usize> = (0..columns).filter(|at| matches!(spec.tier(*at), Tier::Rounded(_))).collect();
    if rounded.is_empty() {
        return Ok(None);
    }
    let tiers = rounded.iter().map(|at| bits(&spec.tier(*at))).collect();
    let folds = rounded.iter().map(|at| spec.folds(*at)).collect();
    let spec = Spec { order: vec![], tiers, folds, ..spec.clone() };
    let (first, again) = (first.project(&rounded)?, again.project(&rounded)?);
    let columns = rounded.len();
    let (first, again) = (Rows::new(&spec, &first, columns)?, Rows::new(&spec, &again, columns)?);
    if first.len() == again.len() && same_rows(&first, &again) {
        return Ok(None);
    }
    Ok(Some(format!("other bits than in an earlier run\n{}", describe(&first, &again))))
}

fn schemas(want: &Answer, got: &Answer) -> Option<String> {
    let text = |answer: &Answer| {
        let field = |field: &Arc<Field>| {
            let null = if field.is_nullable() { "" } else { " not null" };
            format!("{} {}{null}", field.name(), field.data_type())
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

/// The first rows that only one side has.
fn describe(want: &Rows, got: &Rows) -> String {
    const SHOWN: usize = 6;
    let mut lines = vec![];
    for (name, here, there) in [("off:   ", want, got), ("forced:", got, want)] {
        let only = here.only(there);
        lines.extend(only.iter().take(SHOWN).map(|row| format!("  {name} {}", here.show(*row))));
        if only.len() > SHOWN {
            lines.push(format!("  {name} and {} more", only.len() - SHOWN));
        }
    }
    lines.join("\n")
}
