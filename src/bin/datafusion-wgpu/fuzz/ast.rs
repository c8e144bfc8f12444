//! Queries as a small tree: the generator builds it, the shrinker cuts it, and it prints itself as SQL.
//!
//! An expression is a template with arguments, so that one rule prints all of them and one rule shrinks all of them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;

use super::rounded::Rounding;
use super::types::Flavour;

/// How exactly a column of the result is determined.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, serde::Serialize, serde::Deserialize)]
pub enum Tier {
    /// Bit for bit.
    Exact,
    /// Bit for bit, but a NaN has whatever payload the processor's arithmetic gives it.
    AnyNan,
    /// As near as the values allow: DataFusion rounds at each addition, or compares, in an order that is not fixed.
    Rounded(Rounding),
}

/// An expression: `text` around `args`, one text more than there are arguments.
#[derive(Debug, Clone)]
pub struct Expr {
    /// What it is, for the statistics of what was produced.
    pub kind: &'static str,
    /// The result's type as far as the generator knows; of the right class at least.
    pub data_type: DataType,
    /// What is known of the values.
    pub flavour: Flavour,
    /// The largest magnitude of an integer result.
    pub bound: f64,
    /// How exactly the value is determined.
    pub tier: Tier,
    /// Values that a column holds, as literals.
    pub samples: Arc<[String]>,
    /// The template's text.
    pub text: Vec<Cow<'static, str>>,
    /// The template's arguments.
    pub args: Vec<Arg>,
}

/// What MIN and MAX over floats are called.
pub const FLOAT_EXTREME: &str = "min/max of floats";

/// An argument of an expression.
#[derive(Debug, Clone)]
pub enum Arg {
    /// An expression.
    Expr(Expr),
    /// A subquery; the template holds the parentheses.
    Query(Box<Query>),
}

impl From<Expr> for Arg {
    fn from(expr: Expr) -> Self {
        Arg::Expr(expr)
    }
}

impl From<Query> for Arg {
    fn from(query: Query) -> Self {
        Arg::Query(Box::new(query))
    }
}

impl Expr {
    /// Text without arguments.
    pub fn leaf(kind: &'static str, data_type: DataType, text: String) -> Self {
        Expr {
            kind,
            data_type,
            flavour: Flavour::Edge,
            bound: f64::INFINITY,
            tier: Tier::Exact,
            samples: Arc::default(),
            text: vec![text.into()],
            args: vec![],
        }
    }

    /// `template` with an argument for each `{}`.
    pub fn new(kind: &'static str, data_type: DataType, template: &'static str, args: Vec<Arg>) -> Self {
        let text = template.split("{}").map(Cow::Borrowed).collect();
        Expr::of_parts(kind, data_type, text, args)
    }

    /// An expression of any number of arguments; `text` has one entry more than `args`.
    pub fn of_parts(
        kind: &'static str,
        data_type: DataType,
        text: Vec<Cow<'static, str>>,
        args: Vec<Arg>,
    ) -> Self {
        debug_assert_eq!(text.len(), args.len() + 1);
        let mut expr = Expr::leaf(kind, data_type, String::new());
        // A float is as loosely determined as the floats it comes from.
        if expr.data_type.is_floating() {
            let tiers = args.iter().filter_map(|arg| match arg {
                Arg::Expr(arg) if arg.data_type.is_floating() => Some(arg.tier),
                _ => None,
            });
            expr.tier = tiers.fold(Tier::Exact, |most, tier| if tier > most { tier } else { most });
        }
        expr.text = text;
        expr.args = args;
        expr
    }

    /// The same with what is known of its values.
    pub fn known(mut self, flavour: Flavour, bound: f64) -> Self {
        self.flavour = flavour;
        self.bound = bound;
        self
    }

    /// The same with values that it holds.
    pub fn with_samples(mut self, samples: &Arc<[String]>) -> Self {
        self.samples = Arc::clone(samples);
        self
    }

    /// The same with another tier.
    pub fn with_tier(mut self, tier: Tier) -> Self {
        self.tier = tier;
        self
    }

    /// For a call of an aggregate function, with FILTER or without: all values that it is over, as a list; NULL for anything else.
    fn summands(&self) -> Expr {
        let arg = |expr: &Expr| expr.args.first().cloned();
        let (value, condition) = match (self.args.first(), self.args.get(1)) {
            (Some(Arg::Expr(call)), Some(condition)) if self.kind == "FILTER" => (arg(call), Some(condition)),
            _ => (arg(self), None),
        };
        match (value, condition) {
            (None, _) => Expr::leaf("literal", DataType::Null, "NULL".to_string()),
            (Some(value), None) => {
                Expr::new("summands", DataType::Null, "array_agg(CAST({} AS DOUBLE))", vec![value])
            }
            (Some(value), Some(condition)) => {
                let template = "array_agg(CAST({} AS DOUBLE)) FILTER (WHERE {})";
                Expr::new("summands", DataType::Null, template, vec![value, condition.clone()])
            }
        }
    }

    /// For a call of MIN or MAX over floats, with FILTER or without: which of them, and what NaNs may stand for each other.
    fn float_extreme(&self) -> Option<Rounding> {
        let call = match (self.kind, self.args.first()) {
            ("FILTER", Some(Arg::Expr(call))) => call,
            _ => self,
        };
        let is_max = call.text.first().is_some_and(|text| text.starts_with("max("));
        let any_nan = call.tier == Tier::AnyNan;
        (call.kind == FLOAT_EXTREME).then_some(Rounding::Extreme { is_max, any_nan })
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str)) {
        f(self.kind);
        for arg in &self.args {
            match arg {
                Arg::Expr(expr) => expr.visit(f),
                Arg::Query(query) => query.visit(f),
            }
        }
    }
}

/// A query.
#[derive(Debug, Clone)]
pub struct Query {
    /// Common table expressions.
    pub with: Vec<(String, Query)>,
    /// The rows.
    pub body: Body,
    /// Keys of ORDER BY.
    pub order: Vec<OrderKey>,
    /// LIMIT.
    pub limit: Option<u64>,
    /// OFFSET.
    pub offset: Option<u64>,
}

/// Where the rows of a query come from.
#[derive(Debug, Clone)]
pub enum Body {
    /// SELECT.
    Select(Box<Select>),
    /// `left op right`.
    Set {
        /// UNION ALL, INTERSECT, ...
        op: &'static str,
        /// Left side.
        left: Box<Query>,
        /// Right side.
        right: Box<Query>,
    },
}

/// One SELECT.
#[derive(Debug, Clone, Default)]
pub struct Select {
    /// SELECT DISTINCT.
    pub distinct: bool,
    /// The list; hidden ones last.
    pub items: Vec<Item>,
    /// FROM.
    pub from: Option<Relation>,
    /// WHERE.
    pub filter: Option<Expr>,
    /// GROUP BY: indexes into `items`.
    pub keys: Vec<usize>,
    /// `GROUP BY ROLLUP` and the like; '' is the plain one.
    pub grouping: &'static str,
    /// HAVING.
    pub having: Option<Expr>,
}

/// An item of the SELECT list.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its value.
    pub expr: Expr,
    /// Its name.
    pub alias: String,
    /// Not in the list, only in GROUP BY.
    pub hidden: bool,
}

/// A key of ORDER BY.
#[derive(Debug, Clone)]
pub struct OrderKey {
    /// What is sorted by.
    pub target: Target,
    /// DESC.
    pub descending: bool,
    /// NULLS FIRST or LAST, if written.
    pub nulls_first: Option<bool>,
}

/// What ORDER BY sorts by.
#[derive(Debug, Clone)]
pub enum Target {
    /// A column of the result, by its number from 0.
    Column(usize),
    /// An expression that is not in the result.
    Hidden(Expr),
}

/// An entry of FROM.
#[derive(Debug, Clone)]
pub enum Relation {
    /// A table or common table expression.
    Table {
        /// Its name.
        name: String,
        /// Its alias.
        alias: String,
    },
    /// A subquery.
    Derived {
        /// The query.
        query: Box<Query>,
        /// Its alias.
        alias: String,
    },
    /// A join.
    Join {
        /// INNER JOIN, LEFT ANTI JOIN, ...
        kind: &'static str,
        /// Left side.
        left: Box<Relation>,
        /// Right side.
        right: Box<Relation>,
        /// ON.
        on: Option<Expr>,
    },
}

impl Query {
    /// A query that is one SELECT.
    pub fn select(select: Select) -> Self {
        let body = Body::Select(Box::new(select));
        Query { with: vec![], body, order: vec![], limit: None, offset: None }
    }

    /// Tiers of the columns of the result.
    pub fn tiers(&self) -> Vec<Tier> {
        match &self.body {
            Body::Select(select) => select.visible().map(|item| select.tier(item)).collect(),
            Body::Set { left, right, .. } => {
                let (left, right) = (left.inner_tiers(), right.inner_tiers());
                left.into_iter().zip(right).map(|(l, r)| if l < r { r } else { l }).collect()
            }
        }
    }

    /// The same for a side of a set operation, whose summands nobody is asked for.
    fn inner_tiers(&self) -> Vec<Tier> {
        match &self.body {
            Body::Select(select) => select.visible().map(|item| item.expr.tier).collect(),
            Body::Set { .. } => self.tiers(),
        }
    }

    /// Columns of the result in which -0 and +0 fall together (DISTINCT, GROUP BY), so that either may come out.
    pub fn folds(&self) -> Vec<bool> {
        match &self.body {
            Body::Select(select) => {
                let items = select.items.iter().enumerate().filter(|(_, item)| !item.hidden);
                items.map(|(index, _)| select.distinct || select.keys.contains(&index)).collect()
            }
            Body::Set { op, left, right } => {
                let sides = left.folds().into_iter().zip(right.folds());
                sides.map(|(left, right)| *op != "UNION ALL" || left || right).collect()
            }
        }
    }

    /// What the CPU is asked for where the answer alone does not tell which rows are right: the query without ORDER BY and
    /// LIMIT, with the keys that are not in the result and the summands of rounded aggregates as further columns.
    pub fn reference(&self) -> Option<Query> {
        let hidden = self.order.iter().filter_map(|key| match &key.target {
            Target::Hidden(expr) => Some(expr.clone()),
            Target::Column(_) => None,
        });
        let mut checks: Vec<Expr> = hidden.collect();
        let mut query = Query { order: vec![], ..self.unlimited() };
        if let Body::Select(select) = &mut query.body {
            let rounded = select.visible().filter(|item| matches!(select.tier(item), Tier::Rounded(_)));
            checks.extend(rounded.map(|item| item.expr.summands()));
            if checks.is_empty() && self.limit.is_none() && self.offset.is_none() {
                return None;
            }
            let items = checks.into_iter().enumerate();
            let items =
                items.map(|(index, expr)| Item { expr, alias: format!("check{index}"), hidden: false });
            select.items.extend(items);
        } else if self.limit.is_none() && self.offset.is_none() {
            return None;
        }
        Some(query)
    }

    /// The same without LIMIT and OFFSET.
    pub fn unlimited(&self) -> Query {
        Query { limit: None, offset: None, ..self.clone() }
    }

    /// Counts what the query is made of.
    pub fn count_kinds(&self, kinds: &mut BTreeMap<&'static str, u64>) {
        self.visit(&mut |kind| *kinds.entry(kind).or_default() += 1);
    }

    /// Joins in it, those of subqueries included.
    pub fn joins(&self) -> usize {
        let mut joins = 0;
        self.visit(&mut |kind| joins += usize::from(kind.ends_with("JOIN") || kind.starts_with("subquery")));
        joins
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str)) {
        for (_, query) in &self.with {
            f("WITH");
            query.visit(f);
        }
        match &self.body {
            Body::Select(select) => select.visit(f),
            Body::Set { op, left, right } => {
                f(op);
                left.visit(f);
                right.visit(f);
            }
        }
        for key in &self.order {
            f("ORDER BY");
            if let Target::Hidden(expr) = &key.target {
                f("ORDER BY expression");
                expr.visit(f);
            }
        }
        if self.limit.is_some() {
            f("LIMIT");
        }
        if self.offset.is_some() {
            f("OFFSET");
        }
    }
}

impl Select {
    /// The tier of an item. With GROUP BY, DataFusion's MIN and MAX over floats depend on the order of rows where values do not compare.
    fn tier(&self, item: &Item) -> Tier {
        match item.expr.float_extreme() {
            Some(extreme) if !self.keys.is_empty() => Tier::Rounded(extreme),
            _ => item.expr.tier,
        }
    }

    /// The items of the list.
    pub fn visible(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| !item.hidden)
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str)) {
        self.items.iter().for_each(|item| item.expr.visit(f));
        if self.distinct {
            f("DISTINCT");
        }
        if let Some(from) = &self.from {
            from.visit(f);
        }
        if let Some(filter) = &self.filter {
            f("WHERE");
            filter.visit(f);
        }
        if !self.keys.is_empty() {
            f(if self.grouping.is_empty() { "GROUP BY" } else { self.grouping });
        }
        if let Some(having) = &self.having {
            f("HAVING");
            having.visit(f);
        }
    }
}

impl Relation {
    fn visit(&self, f: &mut dyn FnMut(&'static str)) {
        match self {
            Relation::Table { .. } => {}
            Relation::Derived { query, .. } => {
                f("derived table");
                query.visit(f);
            }
            Relation::Join { kind, left, right, on } => {
                f(kind);
                left.visit(f);
                right.visit(f);
                if let Some(on) = on {
                    on.visit(f);
                }
            }
        }
    }
}
