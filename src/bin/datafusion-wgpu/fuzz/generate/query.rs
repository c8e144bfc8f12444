//! Whole queries.

use datafusion::arrow::datatypes::DataType;

use super::super::ast::{Arg, Body, Expr, Query, Relation, Select, Target};
use super::super::types::{Class, class};
use super::shapes::columns_of;
use super::{Generator, Source};

impl Generator<'_> {
    /// A query of which much runs on the device today: filters, projections and aggregates without groups.
    pub fn device_query(&mut self) -> Query {
        let query = match self.rng.below(20) {
            0..=5 => {
                let source = self.table(0);
                self.plain(source, false)
            }
            6..=12 => {
                let source = self.table(0);
                self.aggregates(source, false)
            }
            13..=15 => {
                let source = self.source(2);
                self.aggregates(source, false)
            }
            16 => {
                let query = self.union_all(true);
                let source = self.derived(query);
                self.aggregates(source, false)
            }
            17 => {
                let source = self.join(1);
                self.aggregates(source, false)
            }
            18 => {
                let source = self.table(0);
                self.grouped(source, false)
            }
            _ => {
                let source = self.source(1);
                self.plain(source, false)
            }
        };
        self.finish(query)
    }

    /// Any query.
    pub fn any_query(&mut self) -> Query {
        let query = match self.rng.below(20) {
            0..=1 => {
                let source = self.source(2);
                self.plain(source, false)
            }
            2..=3 => {
                let source = self.source(2);
                self.aggregates(source, false)
            }
            4..=7 => {
                let source = self.source(2);
                self.grouped(source, false)
            }
            8 => {
                let source = self.source(1);
                self.distinct(source, false)
            }
            9..=11 => {
                let source = self.join(1);
                if self.rng.chance(50) { self.plain(source, false) } else { self.grouped(source, false) }
            }
            12..=13 => self.windows(1),
            14..=15 => {
                let operations = ["UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL"];
                let op = self.rng.choose(&operations);
                self.set_operation(op, false)
            }
            16..=17 => self.with_subqueries(),
            _ => self.with_cte(),
        };
        self.finish(query)
    }

    /// IN, EXISTS and scalar subqueries in WHERE, or a scalar one in the list.
    fn with_subqueries(&mut self) -> Query {
        let source = self.source(0);
        let scope = source.columns.clone();
        let condition = self.subquery_condition(&scope);
        let mut query =
            if self.rng.chance(50) { self.plain(source, false) } else { self.aggregates(source, false) };
        if let Body::Select(select) = &mut query.body {
            select.filter = Some(match select.filter.take() {
                Some(filter) => {
                    Expr::new("AND", DataType::Boolean, "({} AND {})", vec![filter.into(), condition.into()])
                }
                None => condition,
            });
        }
        query
    }

    /// WITH, its name used once or twice.
    fn with_cte(&mut self) -> Query {
        let inner = self.inner_query(1);
        let name = self.name('w');
        let entry = |generator: &mut Self| {
            let alias = generator.name('a');
            let columns = columns_of(&inner, &alias);
            Source { relation: Relation::Table { name: name.clone(), alias }, columns }
        };
        let mut source = entry(self);
        if self.rng.chance(40) {
            let second = entry(self);
            let joinable =
                |source: &Source| source.columns.iter().any(|c| class(&c.data_type) != Class::Null);
            if joinable(&source) && joinable(&second) {
                source = self.join_of(source, second);
            }
        }
        let mut query = match self.rng.below(3) {
            0 => self.plain(source, false),
            1 => self.aggregates(source, false),
            _ => self.grouped(source, false),
        };
        query.with.push((name, inner));
        query
    }

    fn join_of(&mut self, left: Source, right: Source) -> Source {
        let (l, r) = self.join_pair(&left.columns, &right.columns);
        let on = Expr::new("join key", DataType::Boolean, "({} = {})", vec![l.into(), r.into()]);
        let kind = self.rng.choose(&["JOIN", "LEFT JOIN", "FULL JOIN"]);
        let columns = left.columns.iter().chain(&right.columns).cloned().collect();
        let (left, right) = (Box::new(left.relation), Box::new(right.relation));
        Source { relation: Relation::Join { kind, left, right, on: Some(on) }, columns }
    }

    /// ORDER BY, LIMIT and OFFSET at the top.
    fn finish(&mut self, mut query: Query) -> Query {
        let columns = query.tiers().len();
        match self.rng.below(10) {
            0 | 1 => self.order_totally(&mut query),
            2 | 3 => {
                for _ in 0..self.rng.between(1, 2.min(columns)) {
                    let column = self.rng.below(columns);
                    let key = self.order_key(Target::Column(column));
                    query.order.push(key);
                }
            }
            4 if self.rng.chance(30) => self.order_by_hidden(&mut query),
            _ => {}
        }
        if self.rng.chance(if query.order.is_empty() { 10 } else { 50 }) {
            query.limit = Some(self.rng.choose(&[0, 1, 2, 5, 10, 100, 1_000]));
            if self.rng.chance(30) {
                query.offset = Some(self.rng.choose(&[0, 1, 3, 50]));
            }
        }
        query
    }

    /// ORDER BY an expression over a column of the table that is not in the result.
    fn order_by_hidden(&mut self, query: &mut Query) {
        let Body::Select(select) = &query.body else { return };
        let plain = !select.distinct
            && select.keys.is_empty()
            && !select.items.iter().any(|item| is_aggregate(&item.expr));
        let Some(column) = plain.then(|| first_column(select)).flatten() else { return };
        query.order.push(self.order_key(Target::Hidden(column)));
    }
}

fn is_aggregate(expr: &Expr) -> bool {
    let calls =
        ["count", "sum", "avg", "min", "FILTER", "bit", "bool", "median", "variance", "ordered", "window"];
    calls.iter().any(|call| expr.kind.starts_with(call))
}

/// A column that the list uses.
fn first_column(select: &Select) -> Option<Expr> {
    fn find(expr: &Expr) -> Option<&Expr> {
        if expr.kind == "column" {
            return Some(expr);
        }
        expr.args.iter().find_map(|arg| match arg {
            Arg::Expr(arg) => find(arg),
            Arg::Query(_) => None,
        })
    }
    select.items.iter().find_map(|item| find(&item.expr)).cloned()
}
