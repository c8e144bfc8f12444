//! Window functions.

use std::borrow::Cow;

use datafusion::arrow::datatypes::DataType;

use super::super::ast::{Arg, Expr, Item, Query};
use super::super::types::{Class, Flavour, class};
use super::shapes::select;
use super::{Generator, Scope};

impl Generator<'_> {
    /// Window functions over a query's columns.
    pub fn windows(&mut self, depth: usize) -> Query {
        let source = self.source(depth);
        let query = self.plain(source, true);
        let mut source = self.derived(query);
        source.columns.retain(|column| class(&column.data_type) != Class::Null);
        let mut items: Vec<Item> =
            source.columns.clone().into_iter().map(|column| self.item(column)).collect();
        // Which of several equal rows gets which value is open. One such function gives the same rows all the same; which of its
        // values meets which of another's is open again.
        let mut open = true;
        for _ in 0..self.rng.between(1, 3) {
            let (window, numbers) = self.window(&source.columns, open);
            open &= !numbers;
            items.push(self.item(window));
        }
        Query::select(select(items, source.relation, None))
    }

    /// A window function, and whether it tells equal rows apart, which it does only where `may_number`.
    fn window(&mut self, scope: &Scope, may_number: bool) -> (Expr, bool) {
        let of = if self.rng.chance(60) { Class::Int } else { self.class(scope) };
        let arg = self.column(scope, of).unwrap_or_else(|| {
            Expr::leaf("literal", DataType::Int64, "1".to_string()).known(Flavour::Small, 1.0)
        });
        let integer = class(&arg.data_type) == Class::Int;
        let float = arg.data_type.is_floating() && arg.flavour != Flavour::Dyadic;
        let choice = if may_number { self.rng.below(4) } else { 3 * self.rng.below(2) };
        let (kind, template, total, frames): (_, &'static str, _, _) = match choice {
            0 => (
                "window rank",
                self.rng.choose(&["rank()", "dense_rank()", "percent_rank()", "cume_dist()"]),
                false,
                false,
            ),
            1 => ("window row number", self.rng.choose(&["row_number()", "ntile(3)"]), true, false),
            2 => {
                let functions =
                    ["lag({}, 1)", "lead({}, 2)", "first_value({})", "last_value({})", "nth_value({}, 2)"];
                ("window value", self.rng.choose(&functions), true, false)
            }
            _ if integer => (
                "window aggregate",
                self.rng.choose(&["sum({})", "count({})", "min({})", "max({})"]),
                true,
                true,
            ),
            _ if float => ("window aggregate", "count({})", true, true),
            _ => ("window aggregate", self.rng.choose(&["count({})", "min({})", "max({})"]), true, true),
        };
        let mut args: Vec<Arg> = vec![];
        let mut text: Vec<Cow<'static, str>> = vec![];
        let mut open = String::new();
        match template.split_once("{}") {
            Some((before, after)) => {
                text.push(before.into());
                args.push(arg.clone().into());
                open.push_str(after);
            }
            None => open.push_str(template),
        }
        open.push_str(" OVER (");
        let partition =
            if self.rng.chance(50) && !scope.is_empty() { Some(self.rng.below(scope.len())) } else { None };
        if let Some(partition) = partition {
            open.push_str("PARTITION BY ");
            text.push(std::mem::take(&mut open).into());
            args.push(scope[partition].clone().into());
        }
        // Whatever depends on the order of rows is ordered by all columns, so that only equal rows are ties.
        let whole = kind == "window aggregate" && self.rng.chance(30);
        let mut columns: Vec<usize> = (0..scope.len()).collect();
        if !total {
            columns.truncate(1);
        }
        let ordered = !whole && !columns.is_empty();
        for (index, column) in columns.into_iter().enumerate().filter(|_| ordered) {
            open.push_str(if index == 0 { " ORDER BY " } else { ", " });
            text.push(std::mem::take(&mut open).into());
            args.push(scope[column].clone().into());
            open.push_str(self.rng.choose(&["", " DESC", " NULLS FIRST", " DESC NULLS LAST"]));
        }
        let mut numbers = total && !frames;
        if frames && ordered {
            // Those that count rows come last.
            let all = [
                "",
                " GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
                " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
                " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING",
                " ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING",
            ];
            let frame = self.rng.choose(if may_number { &all } else { &all[..2] });
            numbers = frame.starts_with(" ROWS");
            open.push_str(frame);
        }
        open.push(')');
        text.push(open.into());
        let data_type = if template.contains("{}") { arg.data_type } else { DataType::Int64 };
        (Expr::of_parts(kind, data_type, text, args), numbers)
    }
}
