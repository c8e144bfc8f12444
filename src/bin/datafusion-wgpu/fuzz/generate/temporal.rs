//! Dates, times, timestamps and spans of time.

use datafusion::arrow::datatypes::{DataType, TimeUnit};

use super::super::ast::Expr;
use super::super::types::{Class, Flavour, class};
use super::{Generator, Scope};

impl Generator<'_> {
    pub fn date(&mut self, scope: &Scope, depth: usize) -> Expr {
        let left = self.value(scope, Class::Date, depth);
        // Days that are far away have no calendar.
        if left.kind == "column" && left.flavour == Flavour::Small && self.rng.chance(50) {
            return self.shifted(left);
        }
        let templates = [
            "TRY_CAST({} AS DATE)",
            "arrow_cast(arrow_cast({}, 'Int32'), 'Date32')",
            "greatest({}, DATE '1970-01-01')",
            "least({}, DATE '2024-02-29')",
        ];
        let template = self.rng.choose(&templates);
        Expr::new("date function", DataType::Date32, template, vec![left.into()])
    }

    pub fn timestamp(&mut self, scope: &Scope, depth: usize) -> Expr {
        let left = self.value(scope, Class::Timestamp, depth);
        let ty = left.data_type.clone();
        if left.kind == "column" && left.flavour == Flavour::Small && self.rng.chance(40) {
            return self.shifted(left);
        }
        if self.device || self.rng.chance(30) {
            let template = self.rng.choose(&[
                "date_trunc('hour', {})",
                "date_trunc('minute', {})",
                "date_trunc('day', {})",
                "date_trunc('month', {})",
                "date_bin(INTERVAL '15 minutes', {})",
            ]);
            return Expr::new("timestamp function", ty, template, vec![left.into()]);
        }
        let template = self.rng.choose(&["coalesce({}, {})", "nullif({}, {})", "greatest({}, {})"]);
        let right = self.literal(&left);
        match ty {
            DataType::Timestamp(TimeUnit::Nanosecond, None) => {
                Expr::new("timestamp function", ty, template, vec![left.into(), right.into()])
            }
            _ => left,
        }
    }

    /// A date or timestamp and an interval.
    fn shifted(&mut self, left: Expr) -> Expr {
        let template = self.rng.choose(&[
            "({} + INTERVAL '1 month')",
            "({} - INTERVAL '13 months')",
            "({} + INTERVAL '3 days')",
            "({} - INTERVAL '90 minutes')",
        ]);
        let ty = left.data_type.clone();
        Expr::new("interval arithmetic", ty, template, vec![left.into()])
    }

    pub fn duration(&mut self, scope: &Scope) -> Expr {
        if let Some(column) = self.column(scope, Class::Timestamp)
            && self.rng.chance(40)
            && let DataType::Timestamp(unit, _) = column.data_type
        {
            let right = self.literal(&column);
            let args = vec![column.into(), right.into()];
            return Expr::new("duration arithmetic", DataType::Duration(unit), "({} - {})", args);
        }
        let left = self.leaf(scope, Class::Duration);
        let right = self.literal(&left);
        let template = self.rng.choose(&["({} + {})", "({} - {})"]);
        Expr::new("duration arithmetic", left.data_type.clone(), template, vec![left.into(), right.into()])
    }

    /// A part of a date, a time or a timestamp, as an integer.
    pub fn part(&mut self, scope: &Scope) -> Expr {
        let days = ["YEAR", "MONTH", "DAY", "DOW", "WEEK", "QUARTER", "DOY"];
        let hours = ["HOUR", "MINUTE", "SECOND", "MILLISECOND"];
        let of = self.rng.choose(&[Class::Date, Class::Date, Class::Time, Class::Timestamp]);
        let column = if of == Class::Date { None } else { self.column(scope, of) };
        if let Some(column) = column {
            let part = match class(&column.data_type) {
                Class::Timestamp if self.rng.chance(60) => self.rng.choose(&days),
                _ => self.rng.choose(&hours),
            };
            let text = vec![format!("EXTRACT({part} FROM ").into(), ")".into()];
            let part = Expr::of_parts("EXTRACT", DataType::Int32, text, vec![column.into()]);
            return part.known(Flavour::Edge, 1e7);
        }
        let date = self.value(scope, Class::Date, 0);
        let part = self.rng.choose(&days);
        // The part of a NULL without a type raises for every batch, also for one without rows, which not every plan has.
        let text = vec![format!("EXTRACT({part} FROM CAST(").into(), " AS DATE))".into()];
        Expr::of_parts("EXTRACT", DataType::Int32, text, vec![date.into()]).known(Flavour::Edge, 1e7)
    }
}
