//! Conditions.

use datafusion::arrow::datatypes::DataType;

use super::super::ast::{Arg, Expr};
use super::super::types::{Class, Flavour, class};
use super::{Generator, Scope};

const BOOL: DataType = DataType::Boolean;
const COMPARISONS: [&str; 6] =
    ["({} = {})", "({} <> {})", "({} < {})", "({} <= {})", "({} > {})", "({} >= {})"];

impl Generator<'_> {
    /// A condition.
    pub fn predicate(&mut self, scope: &Scope, depth: usize) -> Expr {
        if depth == 0 || self.rng.chance(30) {
            return self.simple(scope, depth.min(2));
        }
        match self.rng.below(7) {
            0..=2 => {
                let (left, right) = (self.predicate(scope, depth - 1), self.predicate(scope, depth - 1));
                Expr::new("AND", BOOL, "({} AND {})", vec![left.into(), right.into()])
            }
            3 | 4 => {
                let (left, right) = (self.predicate(scope, depth - 1), self.predicate(scope, depth - 1));
                Expr::new("OR", BOOL, "({} OR {})", vec![left.into(), right.into()])
            }
            5 => {
                let operand = self.predicate(scope, depth - 1);
                Expr::new("NOT", BOOL, "(NOT {})", vec![operand.into()])
            }
            _ if self.device => self.simple(scope, depth),
            _ => {
                let operand = self.predicate(scope, depth - 1);
                let template = self.rng.choose(&[
                    "({} IS TRUE)",
                    "({} IS NOT TRUE)",
                    "({} IS FALSE)",
                    "({} IS NOT FALSE)",
                    "({} IS UNKNOWN)",
                    "({} IS NOT UNKNOWN)",
                ]);
                Expr::new("IS TRUE", BOOL, template, vec![operand.into()])
            }
        }
    }

    /// A condition without AND, OR and NOT above it.
    fn simple(&mut self, scope: &Scope, depth: usize) -> Expr {
        let of = self.class(scope);
        if of == Class::Bool
            && self.rng.chance(60)
            && let Some(column) = self.column(scope, Class::Bool)
        {
            return column;
        }
        // Computed Booleans would be conditions again.
        let depth = if of == Class::Bool { 0 } else { depth };
        match self.rng.below(20) {
            0..=1 => self.null_test(scope),
            2..=4 => self.between(scope, of, depth),
            5..=7 => self.in_list(scope, of, depth),
            8..=9 => {
                let left = self.value(scope, of, depth);
                let right = self.operand(scope, &left, depth);
                let template = self.rng.choose(&["({} IS DISTINCT FROM {})", "({} IS NOT DISTINCT FROM {})"]);
                Expr::new("IS DISTINCT FROM", BOOL, template, vec![left.into(), right.into()])
            }
            10..=15 if of == Class::Text => self.text_test(scope, depth),
            10 if self.rng.chance(40) => self.guarded(scope),
            12 if !self.device => self.scalar_comparison(scope, of),
            12 if self.rng.chance(30) => self.scalar_comparison(scope, of),
            _ => {
                let left = self.value(scope, of, depth);
                let right = self.operand(scope, &left, depth);
                let template = self.rng.choose(&COMPARISONS);
                Expr::new("comparison", BOOL, template, vec![left.into(), right.into()])
            }
        }
    }

    /// A division that raises, or does not, as another condition guards it.
    fn guarded(&mut self, scope: &Scope) -> Expr {
        let divisor = self.value(scope, Class::Int, 0);
        let dividend = self.value(scope, Class::Int, 0);
        let template = self.rng.choose(&[
            "({} <> 0 AND {} / {} > 2)",
            "({} = 0 OR {} % {} = 1)",
            "(CASE WHEN {} <> 0 THEN {} / {} END < 3)",
            "(COALESCE(NULLIF({}, 0), 1) <> 1 AND {} / {} <> 0)",
        ]);
        let args = vec![divisor.clone().into(), dividend.into(), divisor.into()];
        Expr::new("guarded division", BOOL, template, args)
    }

    fn null_test(&mut self, scope: &Scope) -> Expr {
        let operand = if scope.is_empty() || self.rng.chance(20) {
            let of = self.class(scope);
            self.value(scope, of, 1)
        } else {
            let any = self.rng.below(scope.len());
            scope[any].clone()
        };
        let template = self.rng.choose(&["({} IS NULL)", "({} IS NOT NULL)"]);
        Expr::new("IS NULL", BOOL, template, vec![operand.into()])
    }

    /// The other side of a comparison: a literal mostly, another value, or a number of another class.
    fn operand(&mut self, scope: &Scope, left: &Expr, depth: usize) -> Expr {
        let of = class(&left.data_type);
        match self.rng.below(10) {
            0..=5 => self.literal(left),
            // The device compares a text with literals only.
            6..=8 if self.device && of == Class::Text => self.literal(left),
            6 if of == Class::Int => {
                let other = self.rng.choose(&[Class::Decimal, Class::Int, Class::Float]);
                self.value(scope, other, 0)
            }
            6 if of == Class::Decimal => self.value(scope, Class::Int, 0),
            6 if of == Class::Float => {
                let text = self.rng.choose(&[
                    "0.1",
                    "0",
                    "1",
                    "-0.0",
                    "CAST('NaN' AS DOUBLE)",
                    "CAST('-inf' AS DOUBLE)",
                ]);
                Expr::leaf("literal", DataType::Float64, text.to_string())
            }
            6 if of == Class::Date => {
                let text = self.rng.choose(&["DATE '1969-12-31'", "DATE '2020-02-29'", "DATE '2019-12-31'"]);
                Expr::leaf("literal", DataType::Date32, text.to_string())
            }
            _ => self.value(scope, of, depth),
        }
    }

    fn between(&mut self, scope: &Scope, of: Class, depth: usize) -> Expr {
        let operand = self.value(scope, of, depth);
        let (low, high) = (self.operand(scope, &operand, 0), self.operand(scope, &operand, 0));
        let template = self.rng.choose(&[
            "({} BETWEEN {} AND {})",
            "({} BETWEEN {} AND {})",
            "({} NOT BETWEEN {} AND {})",
        ]);
        Expr::new("BETWEEN", BOOL, template, vec![operand.into(), low.into(), high.into()])
    }

    fn in_list(&mut self, scope: &Scope, of: Class, depth: usize) -> Expr {
        let operand = self.value(scope, of, depth);
        // Each of them is a text of its own in the query.
        if operand.kind == "column" && matches!(of, Class::Int | Class::Text) && self.rng.chance(12) {
            return self.long_list(operand);
        }
        let entries = self.rng.weighted(&[(3, 1), (4, 3), (3, 7), (1, 25)]);
        let mut args: Vec<Arg> = vec![operand.clone().into()];
        args.extend((0..entries).map(|_| Arg::from(self.literal(&operand))));
        if self.rng.chance(15) {
            args.push(Expr::leaf("literal", DataType::Null, "NULL".to_string()).into());
        }
        let mut text = vec!["(".into(), if self.rng.chance(70) { " IN (" } else { " NOT IN (" }.into()];
        text.extend((2..args.len()).map(|_| ", ".into()));
        text.push("))".into());
        Expr::of_parts("IN", BOOL, text, args)
    }

    /// A comparison with a scalar subquery, which has a value only when the query runs.
    fn scalar_comparison(&mut self, scope: &Scope, of: Class) -> Expr {
        let left = self.value(scope, of, 0);
        let Some(subquery) = self.scalar_subquery(of) else {
            return self.null_test(scope);
        };
        let template = self.rng.choose(&COMPARISONS);
        let right = Expr::new("subquery (scalar)", left.data_type.clone(), "({})", vec![subquery.into()]);
        Expr::new("comparison", BOOL, template, vec![left.into(), right.into()])
    }

    /// A condition of WHERE with a subquery: IN, EXISTS, or a comparison with a correlated scalar.
    pub fn subquery_condition(&mut self, scope: &Scope) -> Expr {
        let inner = self.table(1);
        let of = self.class(scope);
        let condition = self.predicate(&inner.columns, 1);
        let (outer_key, inner_key) = self.join_pair(scope, &inner.columns);
        let equal = Expr::new("comparison", BOOL, "({} = {})", vec![inner_key.into(), outer_key.into()]);
        let correlated = Expr::new("AND", BOOL, "({} AND {})", vec![equal.into(), condition.clone().into()]);
        match self.rng.below(3) {
            0 => {
                let left = self.value(scope, of, 0);
                let right = match self.column(&inner.columns, of) {
                    Some(column) => column,
                    None => self.value(&inner.columns, of, 0),
                };
                let query = self.one_column(inner, right, condition);
                let template = self.rng.choose(&["({} IN ({}))", "({} NOT IN ({}))"]);
                Expr::new("subquery (IN)", BOOL, template, vec![left.into(), query.into()])
            }
            1 => {
                let one = Expr::leaf("literal", DataType::Int64, "1".to_string());
                let query = self.one_column(inner, one, correlated);
                let template = self.rng.choose(&["(EXISTS ({}))", "(NOT EXISTS ({}))"]);
                Expr::new("subquery (EXISTS)", BOOL, template, vec![query.into()])
            }
            _ => {
                let call = self.rng.choose(&["min({})", "max({})", "count({})", "sum({})"]);
                let arg = self.column(&inner.columns, Class::Int).unwrap_or_else(|| {
                    Expr::leaf("literal", DataType::Int64, "3".to_string()).known(Flavour::Small, 3.0)
                });
                let aggregate = Expr::new("aggregate", DataType::Int64, call, vec![arg.into()]);
                let query = self.one_column(inner, aggregate, correlated);
                let left = self.value(scope, Class::Int, 1);
                let template =
                    self.rng.choose(&["({} < ({}))", "({} >= ({}))", "({} = ({}))", "({} <> ({}))"]);
                Expr::new("subquery (correlated)", BOOL, template, vec![left.into(), query.into()])
            }
        }
    }
}
