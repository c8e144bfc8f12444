//! Relations, and SELECTs of every shape over them.

use datafusion::arrow::datatypes::DataType;

use std::sync::Arc;

use super::super::ast::{Arg, Body, Expr, Item, OrderKey, Query, Relation, Select, Target, Tier};
use super::super::types::{Class, Flavour, class};
use super::aggregate::Place;
use super::{Generator, Scope, Source};

const JOINS: [(u32, &str); 9] = [
    (6, "JOIN"),
    (4, "LEFT JOIN"),
    (3, "RIGHT JOIN"),
    (3, "FULL JOIN"),
    (3, "LEFT SEMI JOIN"),
    (3, "LEFT ANTI JOIN"),
    (2, "RIGHT SEMI JOIN"),
    (2, "RIGHT ANTI JOIN"),
    (1, "CROSS JOIN"),
];

impl Generator<'_> {
    /// A relation with columns: a table mostly.
    pub fn source(&mut self, depth: usize) -> Source {
        let joins = if self.device { 6 } else { 25 };
        if depth == 0 {
            return self.table(0);
        }
        match self.rng.below(100) as u32 {
            at if at < joins => self.join(depth - 1),
            at if at < joins + 20 => {
                let query = self.inner_query(depth - 1);
                self.derived(query)
            }
            _ => self.table(0),
        }
    }

    /// A query whose every row is determined, for use within another.
    pub fn inner_query(&mut self, depth: usize) -> Query {
        let source = self.source(depth);
        match self.rng.below(if self.device { 6 } else { 12 }) {
            0..=4 => self.plain(source, true),
            5 => self.union_all(true),
            6..=8 => self.grouped(source, true),
            9 => self.distinct(source, true),
            10 => {
                let mut query = self.plain(source, true);
                self.order_totally(&mut query);
                query.limit = Some(self.rng.below(40) as u64);
                query
            }
            _ => self.union_all(true),
        }
    }

    /// A query as an entry of FROM.
    pub fn derived(&mut self, query: Query) -> Source {
        let alias = self.name('d');
        let columns = columns_of(&query, &alias);
        Source { relation: Relation::Derived { query: Box::new(query), alias }, columns }
    }

    pub fn join(&mut self, depth: usize) -> Source {
        let kind = self.rng.weighted(&JOINS);
        // Without an equality the result is as large as the product.
        let equality = kind != "CROSS JOIN" && self.rng.chance(88);
        let left = if equality { self.source(depth) } else { self.table(1) };
        let right = match (equality, depth) {
            (false, _) => self.table(2),
            (true, 0) => self.table(1),
            _ if self.rng.chance(30) => {
                let query = self.inner_query(0);
                self.derived(query)
            }
            _ => self.table(0),
        };
        let both: Scope = left.columns.iter().chain(&right.columns).cloned().collect();
        let mut on = None;
        if equality {
            let (l, r) = self.join_pair(&left.columns, &right.columns);
            on = Some(Expr::new("join key", DataType::Boolean, "({} = {})", vec![l.into(), r.into()]));
            if self.rng.chance(20) {
                let (l, r) = self.join_pair(&left.columns, &right.columns);
                let template = self.rng.choose(&["({} = {})", "({} IS NOT DISTINCT FROM {})"]);
                let second = Expr::new("join key", DataType::Boolean, template, vec![l.into(), r.into()]);
                on = on.map(|on| and(on, second));
            }
        }
        if kind != "CROSS JOIN" && (!equality || self.rng.chance(40)) {
            let depth = self.rng.below(2);
            let residual = self.predicate(&both, depth);
            on = Some(match on {
                Some(on) => {
                    and(on, Expr::new("join residual", DataType::Boolean, "{}", vec![residual.into()]))
                }
                None => residual,
            });
        }
        let columns = match kind {
            "LEFT SEMI JOIN" | "LEFT ANTI JOIN" => left.columns,
            "RIGHT SEMI JOIN" | "RIGHT ANTI JOIN" => right.columns,
            _ => both,
        };
        let (left, right) = (Box::new(left.relation), Box::new(right.relation));
        Source { relation: Relation::Join { kind, left, right, on }, columns }
    }

    /// Columns of both sides that can be equal; the keys `k` mostly.
    pub fn join_pair(&mut self, left: &Scope, right: &Scope) -> (Expr, Expr) {
        let key = |scope: &Scope| scope.iter().find(|c| c.text[0].ends_with(".k")).cloned();
        if let (Some(l), Some(r)) = (key(left), key(right))
            && self.rng.chance(60)
        {
            return (l, r);
        }
        let joinable = |c: &Expr| !matches!(class(&c.data_type), Class::Null | Class::Bool);
        let has = |scope: &Scope, of: Class| scope.iter().any(|c| class(&c.data_type) == of);
        let candidates: Vec<&Expr> =
            left.iter().filter(|c| joinable(c) && has(right, class(&c.data_type))).collect();
        if !candidates.is_empty() {
            let l = candidates[self.rng.below(candidates.len())].clone();
            if let Some(r) = self.column(right, class(&l.data_type)) {
                return (l, r);
            }
        }
        (self.value(left, Class::Int, 0), self.value(right, Class::Int, 0))
    }

    /// WHERE, more often than not.
    fn filter(&mut self, scope: &Scope) -> Option<Expr> {
        let depth = self.rng.weighted(&[(2, 0), (4, 1), (3, 2), (1, 3)]);
        self.rng.chance(70).then(|| self.predicate(scope, depth))
    }

    /// Columns and computed values of any class; in a query within another only exact ones.
    fn items(&mut self, scope: &Scope, nested: bool) -> Vec<Item> {
        let count = self.rng.between(1, 6);
        let item = |generator: &mut Self| {
            let of = generator.class(scope);
            let depth = generator.rng.between(1, 2);
            let computed = generator.rng.chance(55);
            let expr = match scope.len() {
                // In a filter NULL and FALSE are the same; here they are not.
                _ if generator.rng.chance(12) => generator.predicate(scope, 2),
                0 => generator.value(scope, of, 1),
                n if !computed => scope[generator.rng.below(n)].clone(),
                _ => generator.value(scope, of, depth),
            };
            if nested && expr.tier != Tier::Exact { generator.value(scope, Class::Int, 0) } else { expr }
        };
        (0..count).map(|_| item(self)).collect::<Vec<_>>().into_iter().map(|expr| self.item(expr)).collect()
    }

    pub fn item(&mut self, expr: Expr) -> Item {
        Item { expr, alias: self.name('x'), hidden: false }
    }

    /// SELECT values FROM source WHERE condition.
    pub fn plain(&mut self, source: Source, nested: bool) -> Query {
        let items = self.items(&source.columns, nested);
        let filter = self.filter(&source.columns);
        Query::select(select(items, source.relation, filter))
    }

    /// The same without duplicates.
    pub fn distinct(&mut self, source: Source, nested: bool) -> Query {
        let mut query = self.plain(source, nested);
        if let Body::Select(select) = &mut query.body {
            let floats = select.items.iter().any(|item| item.expr.data_type.is_floating());
            // Which of -0 and +0 is kept is not determined.
            select.distinct = !(floats && nested);
        }
        query
    }

    /// Aggregates without GROUP BY.
    pub fn aggregates(&mut self, source: Source, nested: bool) -> Query {
        let place = Place { grouped: false, nested };
        let items: Vec<Item> = (0..self.rng.between(1, 6))
            .map(|_| {
                let expr = self.aggregate(&source.columns, place);
                self.item(expr)
            })
            .collect();
        let filter = self.filter(&source.columns);
        Query::select(select(items, source.relation, filter))
    }

    /// GROUP BY, with HAVING at times.
    pub fn grouped(&mut self, source: Source, nested: bool) -> Query {
        let scope = &source.columns;
        let place = Place { grouped: true, nested };
        let keys: Vec<Expr> = (0..self.rng.weighted(&[(5, 1), (3, 2), (1, 3)]))
            .filter_map(|_| self.key(scope, nested))
            .collect();
        let mut items: Vec<Item> = keys.into_iter().map(|key| self.item(key)).collect();
        let keys = items.len();
        for _ in 0..self.rng.between(usize::from(keys == 0), 4) {
            let expr = self.aggregate(scope, place);
            items.push(self.item(expr));
        }
        let mut positions: Vec<usize> = (0..keys).collect();
        if keys > 0 && items.len() > keys && self.rng.chance(15) {
            // A key that only groups.
            let mut hidden = items.remove(0);
            hidden.hidden = true;
            items.push(hidden);
            positions = (0..keys - 1).chain([items.len() - 1]).collect();
        }
        let mut select = select(items, source.relation, None);
        select.filter = self.filter(scope);
        select.keys = positions;
        if !self.device && !select.keys.is_empty() && self.rng.chance(12) {
            select.grouping = self.rng.choose(&["ROLLUP", "CUBE"]);
        }
        if self.rng.chance(25) {
            select.having = Some(self.having(scope));
        }
        Query::select(select)
    }

    /// A key of GROUP BY: not a literal, which would be the number of a column.
    fn key(&mut self, scope: &Scope, nested: bool) -> Option<Expr> {
        let allowed = |expr: &Expr| {
            !(expr.text.len() == 1 && expr.kind == "literal")
                && expr.tier == Tier::Exact
                && !(nested && expr.data_type.is_floating())
        };
        let mut key = None;
        if self.rng.chance(25) {
            let of = self.class(scope);
            key = Some(self.value(scope, of, 1)).filter(|expr| has_column(expr) && allowed(expr));
        }
        key.or_else(|| {
            let columns: Vec<&Expr> = scope.iter().filter(|column| allowed(column)).collect();
            (!columns.is_empty()).then(|| columns[self.rng.below(columns.len())].clone())
        })
    }

    fn having(&mut self, scope: &Scope) -> Expr {
        let aggregate = self.aggregate(scope, Place { grouped: true, nested: true });
        let template = match class(&aggregate.data_type) {
            Class::Int => self.rng.choose(&["({} > 1)", "({} <= 10)", "({} <> 0)", "({} IS NOT NULL)"]),
            // Sums that are exact in any order may decide about rows.
            Class::Float if aggregate.tier == Tier::Exact => self.rng.choose(&[
                "({} > 0)",
                "({} <= 10.5)",
                "({} BETWEEN -512.25 AND 700)",
                "({} <> 0)",
                "({} IS NOT NULL)",
            ]),
            _ => self.rng.choose(&["({} IS NOT NULL)", "({} IS NULL)"]),
        };
        Expr::new("comparison", DataType::Boolean, template, vec![aggregate.into()])
    }

    /// `SELECT ... UNION ALL SELECT ...`
    pub fn union_all(&mut self, nested: bool) -> Query {
        self.set_operation("UNION ALL", nested)
    }

    /// `left op right`.
    pub fn set_operation(&mut self, op: &'static str, nested: bool) -> Query {
        let (left, right) = (self.table(0), self.table(1));
        let classes: Vec<Class> = (0..self.rng.between(1, 4)).map(|_| self.class(&left.columns)).collect();
        let floats = classes.iter().any(|class| matches!(class, Class::Float | Class::Half));
        let folds = op != "UNION ALL" && floats;
        let op = if folds && nested { "UNION ALL" } else { op };
        let side = |generator: &mut Self, source: Source| {
            let mut items = vec![];
            for of in &classes {
                let depth = generator.rng.below(2);
                let mut expr = generator.value(&source.columns, *of, depth);
                if nested && expr.tier != Tier::Exact {
                    expr = generator.value(&source.columns, *of, 0);
                }
                items.push(generator.item(expr));
            }
            let filter = generator.filter(&source.columns);
            Query::select(select(items, source.relation, filter))
        };
        let (left, right) = (side(self, left), side(self, right));
        let mut query = Query::select(Select::default());
        query.body = Body::Set { op, left: Box::new(left), right: Box::new(right) };
        query
    }

    /// A SELECT of one value.
    pub fn one_column(&mut self, source: Source, value: Expr, filter: Expr) -> Query {
        let item = self.item(value);
        Query::select(select(vec![item], source.relation, Some(filter)))
    }

    /// A query of one row and one column.
    pub fn scalar_subquery(&mut self, of: Class) -> Option<Query> {
        let source = self.table(0);
        let arg = self.column(&source.columns, of)?;
        let template = match of {
            Class::Int => self.rng.choose(&["min({})", "max({})", "sum({})", "count({})"]),
            _ => self.rng.choose(&["min({})", "max({})"]),
        };
        let value = Expr::new("aggregate", arg.data_type.clone(), template, vec![arg.into()]);
        let filter = self.predicate(&source.columns, 1);
        Some(self.one_column(source, value, filter))
    }

    /// ORDER BY over all columns of the result, in random order.
    pub fn order_totally(&mut self, query: &mut Query) {
        let mut open: Vec<usize> = (0..query.tiers().len()).collect();
        while !open.is_empty() {
            let column = open.swap_remove(self.rng.below(open.len()));
            query.order.push(self.order_key(Target::Column(column)));
        }
    }

    pub fn order_key(&mut self, target: Target) -> OrderKey {
        let nulls_first = if self.rng.chance(40) { Some(self.rng.chance(50)) } else { None };
        OrderKey { target, descending: self.rng.chance(40), nulls_first }
    }
}

/// SELECT without the other clauses.
pub fn select(items: Vec<Item>, from: Relation, filter: Option<Expr>) -> Select {
    Select { items, from: Some(from), filter, ..Select::default() }
}

fn and(left: Expr, right: Expr) -> Expr {
    Expr::new("AND", DataType::Boolean, "({} AND {})", vec![left.into(), right.into()])
}

fn has_column(expr: &Expr) -> bool {
    expr.kind == "column" || expr.args.iter().any(|arg| matches!(arg, Arg::Expr(arg) if has_column(arg)))
}

/// The columns of a query under an alias.
pub fn columns_of(query: &Query, alias: &str) -> Scope {
    match &query.body {
        Body::Select(select) => {
            let column = |item: &Item| {
                let expr = &item.expr;
                Expr::leaf("column", expr.data_type.clone(), format!("{alias}.{}", item.alias))
                    .known(expr.flavour, expr.bound)
                    .with_tier(expr.tier)
                    .with_samples(&expr.samples)
            };
            select.visible().map(column).collect()
        }
        Body::Set { left, right, .. } => {
            let mut columns = columns_of(left, alias);
            for (column, other) in columns.iter_mut().zip(columns_of(right, alias)) {
                column.bound = column.bound.max(other.bound);
                if column.flavour != other.flavour {
                    column.flavour = Flavour::Edge;
                }
                column.samples = Arc::default();
            }
            columns
        }
    }
}
