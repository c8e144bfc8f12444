//! The columns of a grouping's result: what the gathering kernel writes, and where each aggregate's state is among it.

use std::fmt::Write;

use crate::kernels::reduce::AggregateSpec;

use super::GroupBy;
use super::accumulate::{Accumulator, Memory};
use super::plan::{Place, Rows};

/// A column, with a value a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Column {
    /// What an accumulator has.
    Of(Accumulator),
    /// A bit for each of these accumulators or bits, set where it says that rows contributed.
    Seen(Vec<Rows>),
}

/// All columns.
#[derive(Debug)]
pub(super) struct Columns {
    pub columns: Vec<Column>,
    /// One an aggregate: its columns.
    pub places: Vec<Place>,
}

impl Column {
    /// 32-bit words of a group.
    pub fn words(&self) -> u32 {
        match self {
            Column::Of(acc) => acc.result_words(),
            Column::Seen(_) => 1,
        }
    }
}

/// The statements that declare `seen`, the bits of a column, of record `record` in `table`.
pub(super) fn seen(bits: &[Rows], accumulators: &[Accumulator], table: Memory) -> String {
    let mut text = String::from("        var seen = 0u;\n");
    for (bit, rows) in bits.iter().enumerate() {
        let bit = 1u32 << (bit % 32);
        let told = |at: usize, condition: &str| {
            let value = accumulators.get(at).map(|acc| acc.result(table)).unwrap_or_default();
            format!("        {{ {value} seen |= select(0u, {bit}u, {condition}); }}")
        };
        let statement = match *rows {
            Rows::Group => format!("        seen |= {bit}u;"),
            Rows::Number(at) | Rows::SomeOf(at) => told(at, "value != 0u"),
            Rows::Bit(at, from) => told(at, &format!("(value & {}u) != 0u", 1u32 << from)),
        };
        let _ = writeln!(text, "{statement}");
    }
    text
}

/// What tells the rows that contribute to an aggregate, whatever a segment's values are.
type Contributing<'a> = (&'a AggregateSpec, bool);

/// Whether the same rows contribute to both, but for NULLs that a segment may have or not.
fn same_rows((a, rows_a): Contributing<'_>, (b, rows_b): Contributing<'_>) -> bool {
    rows_a == rows_b && (rows_a || a.arg == b.arg) && a.filter == b.filter
}

fn contributing(spec: &AggregateSpec) -> Contributing<'_> {
    (spec, spec.arg.is_none())
}

/// Columns, each with the aggregate that it was made for.
#[derive(Default)]
struct Known<'a>(Vec<(Contributing<'a>, usize)>);

impl<'a> Known<'a> {
    fn find(&self, spec: &'a AggregateSpec, same: impl Fn(&AggregateSpec) -> bool) -> Option<usize> {
        let own = contributing(spec);
        let known = self.0.iter().find(|(known, _)| same_rows(*known, own) && same(known.0));
        known.map(|(_, at)| *at)
    }

    fn note(&mut self, spec: &'a AggregateSpec, at: usize) -> usize {
        self.0.push((contributing(spec), at));
        at
    }
}

impl Columns {
    /// A column for each accumulator.
    pub fn of(accumulators: &[Accumulator], places: &[Place]) -> Columns {
        let columns = accumulators.iter().cloned().map(Column::Of).collect();
        Columns { columns, places: places.to_vec() }
    }

    /// Columns that are the same for all segments: which accumulators aggregates share, and what tells whether rows contributed, depends
    /// on whether a segment's values may be NULL, but groups of segments are to lie alike.
    pub fn fixed(by: &GroupBy, accumulators: &[Accumulator], places: &[Place]) -> Option<Columns> {
        let mut columns: Vec<Column> = vec![];
        let mut add = |accumulator: usize| {
            columns.push(Column::Of(accumulators.get(accumulator)?.clone()));
            Some(columns.len() - 1)
        };
        let (mut numbers, mut values) = (Known::default(), Known::default());
        let aggregates = || by.aggregates.iter().zip(places).enumerate();
        let mut found = vec![];
        for (at, (spec, place)) in aggregates() {
            if by.needs_number(at) && numbers.find(spec, |_| true).is_none() {
                let Rows::Number(number) = place.rows else { return None };
                numbers.note(spec, add(number)?);
            }
            let value = match place.value {
                Some(value) => Some(match values.find(spec, |known| known.kind == spec.kind) {
                    Some(column) => column,
                    None => values.note(spec, add(value)?),
                }),
                None => None,
            };
            found.push(value);
        }
        let (mut bits, mut told) = (vec![], Known::default());
        let mut fixed = vec![];
        for ((at, (spec, place)), value) in aggregates().zip(found) {
            let rows = match numbers.find(spec, |_| true) {
                Some(number) if by.needs_number(at) => Rows::Number(number),
                Some(number) => Rows::SomeOf(number),
                None if by.required.contains(&at) && place.rows == Rows::Group => Rows::Group,
                None => {
                    let bit = told.find(spec, |_| true).unwrap_or_else(|| {
                        bits.push(place.rows);
                        told.note(spec, bits.len() - 1)
                    });
                    Rows::Bit(columns.len() + bit / 32, bit as u32 % 32)
                }
            };
            fixed.push(Place { rows, value });
        }
        columns.extend(bits.chunks(32).map(|bits| Column::Seen(bits.to_vec())));
        Some(Columns { columns, places: fixed })
    }
}
