//! Values of each class.

use datafusion::arrow::datatypes::DataType;

use super::super::ast::{Arg, Expr, Tier};
use super::super::types::{Class, Flavour, class, random_type};
use super::{Generator, Scope};

impl Generator<'_> {
    /// A value of a class: a column, a literal, or something computed.
    pub fn value(&mut self, scope: &Scope, of: Class, depth: usize) -> Expr {
        if depth == 0 || self.rng.chance(35) {
            return self.leaf(scope, of);
        }
        // Which column such a text came from, the device does not know.
        let text = matches!(of, Class::Text | Class::Binary);
        if !(self.device && text) && self.rng.chance(30) {
            return self.conditional(scope, of, depth - 1);
        }
        match of {
            Class::Int => self.integer(scope, depth - 1),
            Class::Decimal => self.decimal(scope, depth - 1),
            Class::Bool => self.predicate(scope, depth - 1),
            Class::Float => self.float(scope, depth - 1),
            Class::Date => self.date(scope, depth - 1),
            Class::Timestamp => self.timestamp(scope, depth - 1),
            Class::Duration => self.duration(scope),
            Class::Text if self.device || self.rng.chance(50) => self.text_of_one(scope, depth),
            Class::Text => self.text(scope, depth - 1),
            _ => self.leaf(scope, of),
        }
    }

    pub fn leaf(&mut self, scope: &Scope, of: Class) -> Expr {
        match self.column(scope, of) {
            Some(column) if !self.rng.chance(8) => column,
            Some(column) => self.literal(&column),
            None => {
                let data_type = random_type(self.rng, of);
                let flavour = if of == Class::Float { Flavour::Dyadic } else { Flavour::Small };
                self.literal_of(&data_type, flavour)
            }
        }
    }

    fn integer(&mut self, scope: &Scope, depth: usize) -> Expr {
        let left = self.value(scope, Class::Int, depth);
        match self.rng.below(14) {
            0..=3 => self.integer_arithmetic(scope, left, depth),
            4 => {
                let (ty, bound) = (left.data_type.clone(), left.bound);
                // The negation of an unsigned value is refused by the planner.
                if ty.is_unsigned_integer() {
                    return left;
                }
                Expr::new("negation", ty, "(- {})", vec![left.into()]).known(Flavour::Edge, bound)
            }
            5 => {
                let bound = left.bound;
                let to = if left.data_type == DataType::UInt64 { "DECIMAL(20, 0)" } else { "BIGINT" };
                let ty = if left.data_type == DataType::UInt64 {
                    DataType::Decimal128(20, 0)
                } else {
                    DataType::Int64
                };
                let template =
                    if to == "BIGINT" { "CAST({} AS BIGINT)" } else { "CAST({} AS DECIMAL(20, 0))" };
                Expr::new("CAST", ty, template, vec![left.into()]).known(Flavour::Edge, bound)
            }
            6 | 7 => {
                let template = self.rng.choose(&["({} / NULLIF({}, 0))", "({} % NULLIF({}, 0))"]);
                let right = self.value(scope, Class::Int, depth);
                let bound = left.bound;
                Expr::new("division", DataType::Int64, template, vec![left.into(), right.into()])
                    .known(Flavour::Edge, bound)
            }
            8 => {
                let divisor = self.rng.choose(&["({} / 7)", "({} % 10)", "({} / -3)"]);
                let bound = left.bound;
                Expr::new("division", DataType::Int64, divisor, vec![left.into()]).known(Flavour::Edge, bound)
            }
            9 => {
                let template =
                    self.rng.choose(&["({} & {})", "({} | {})", "({} # {})", "({} << {})", "({} >> {})"]);
                let right = self.literal(&left);
                Expr::new("bitwise", left.data_type.clone(), template, vec![left.into(), right.into()])
            }
            10 => self.text_to_integer(scope, depth),
            11 => self.part(scope),
            12 => {
                let right = self.value(scope, Class::Int, depth);
                let name = self.rng.choose(&["greatest({}, {})", "least({}, {})"]);
                Expr::new("greatest/least", DataType::Int64, name, vec![left.into(), right.into()])
            }
            _ => {
                let from = self.class(scope);
                let number =
                    matches!(from, Class::Bool | Class::Int | Class::Float | Class::Decimal | Class::Text);
                let value = self.value(scope, if number { from } else { Class::Int }, depth);
                let template = self.rng.choose(&[
                    "TRY_CAST({} AS INT)",
                    "TRY_CAST({} AS BIGINT)",
                    "TRY_CAST({} AS SMALLINT)",
                ]);
                Expr::new("TRY_CAST", DataType::Int64, template, vec![value.into()])
            }
        }
    }

    fn integer_arithmetic(&mut self, scope: &Scope, left: Expr, depth: usize) -> Expr {
        // Mixed with a signed operand, UInt64 becomes a decimal.
        let right = match self.rng.below(3) {
            0 => self.literal(&left),
            1 => Expr::leaf("literal", DataType::Int64, self.rng.below(1_000).to_string())
                .known(Flavour::Small, 1_000.0),
            _ => self.value(scope, Class::Int, depth),
        };
        let unsigned = |expr: &Expr| expr.data_type.is_unsigned_integer();
        let decimal = [&left, &right].iter().any(|e| e.data_type == DataType::UInt64)
            && unsigned(&left) != unsigned(&right);
        let data_type = if decimal { DataType::Decimal128(21, 0) } else { DataType::Int64 };
        let (template, bound) = self.rng.choose(&[
            ("({} + {})", left.bound + right.bound),
            ("({} - {})", left.bound + right.bound),
            ("({} * {})", left.bound * right.bound),
        ]);
        let args = vec![left.into(), right.into()];
        Expr::new("integer arithmetic", data_type, template, args)
            .known(Flavour::Edge, bound.min(2f64.powi(64)))
    }

    fn decimal(&mut self, scope: &Scope, depth: usize) -> Expr {
        let left = self.value(scope, Class::Decimal, depth);
        let ty = left.data_type.clone();
        let right = match self.rng.below(3) {
            0 => self.value(scope, Class::Decimal, depth),
            1 => self.literal(&left),
            _ => Expr::leaf("literal", DataType::Int64, self.rng.below(100).to_string()),
        };
        let template = match self.rng.below(if self.device { 9 } else { 11 }) {
            0 | 1 => "({} + {})",
            2 => "({} - {})",
            3 => {
                return Expr::new("negation", ty, "(- {})", vec![left.into()]);
            }
            6 => {
                // Without a cast these literals are doubles, and so is the quotient.
                let template = self.rng.choose(&[
                    "({} / 3)",
                    "({} / arrow_cast('-0.07', 'Decimal128(3, 2)'))",
                    "({} % 10)",
                    "({} % arrow_cast('0.3', 'Decimal128(2, 1)'))",
                ]);
                return Expr::new("decimal division", ty, template, vec![left.into()]);
            }
            7 => {
                let template = self.rng.choose(&[
                    "abs({})",
                    "floor({})",
                    "ceil({})",
                    "round({})",
                    "round({}, 1)",
                    "round({}, -2)",
                    "trunc({}, 1)",
                    "trunc({}, -2)",
                ]);
                return Expr::new("decimal function", ty, template, vec![left.into()]);
            }
            8 => {
                let (precision, scale) = self.rng.choose(&[(38, 0), (12, 1), (5, 2)]);
                let ty = DataType::Decimal128(precision, scale);
                let text = vec!["TRY_CAST(".into(), format!(" AS DECIMAL({precision}, {scale}))").into()];
                return Expr::of_parts("TRY_CAST", ty, text, vec![left.into()]);
            }
            // Products of wide ones need more digits than there are, and raise.
            4 if self.rng.chance(30) => "({} * {})",
            4 | 5 => {
                return Expr::new("decimal arithmetic", ty, "({} * 3)", vec![left.into()]);
            }
            9 => "({} / NULLIF({}, 0))",
            _ => "({} - {})",
        };
        Expr::new("decimal arithmetic", ty, template, vec![left.into(), right.into()])
    }

    fn float(&mut self, scope: &Scope, depth: usize) -> Expr {
        let left = self.value(scope, Class::Float, depth);
        let (ty, tier) =
            (left.data_type.clone(), if left.tier > Tier::AnyNan { left.tier } else { Tier::AnyNan });
        let expr = match self.rng.below(5) {
            0 => {
                let integer = self.value(scope, Class::Int, 0);
                Expr::new("CAST", DataType::Float64, "CAST({} AS DOUBLE)", vec![integer.into()])
            }
            1 => {
                let templates = [
                    "abs({})",
                    "(- {})",
                    "floor({})",
                    "ceil({})",
                    "round({})",
                    "round({}, 2)",
                    "trunc({})",
                    "trunc({}, 1)",
                    "signum({})",
                    "sqrt({})",
                    "sqrt(abs({}))",
                ];
                let template = self.rng.choose(&templates);
                Expr::new("float function", ty, template, vec![left.into()])
            }
            _ => {
                let right = if self.rng.chance(50) {
                    self.value(scope, Class::Float, depth)
                } else {
                    self.literal(&left)
                };
                let template = self.rng.choose(&[
                    "({} + {})",
                    "({} - {})",
                    "({} * {})",
                    "({} / {})",
                    "({} % {})",
                    "nanvl({}, {})",
                ]);
                Expr::new("float arithmetic", DataType::Float64, template, vec![left.into(), right.into()])
            }
        };
        expr.with_tier(tier)
    }

    /// CASE, COALESCE or NULLIF over values of one class.
    fn conditional(&mut self, scope: &Scope, of: Class, depth: usize) -> Expr {
        let first = self.value(scope, of, depth);
        let second = if self.rng.chance(60) { self.value(scope, of, depth) } else { self.literal(&first) };
        let ty = first.data_type.clone();
        let bound = first.bound.max(second.bound);
        let exact = class(&ty) != Class::Float || first.data_type == second.data_type;
        let (first, second): (Arg, Arg) = (first.into(), second.into());
        let expr = match self.rng.below(4) {
            0 => Expr::new("COALESCE", ty, "COALESCE({}, {})", vec![first, second]),
            1 => Expr::new("NULLIF", ty, "NULLIF({}, {})", vec![first, second]),
            2 => {
                let condition = self.predicate(scope, depth);
                let template = "CASE WHEN {} THEN {} ELSE {} END";
                Expr::new("CASE", ty, template, vec![condition.into(), first, second])
            }
            _ => {
                let subject = self.class(scope);
                let subject = self.value(scope, subject, 0);
                let (one, two) = (self.literal(&subject), self.literal(&subject));
                let template = "CASE {} WHEN {} THEN {} WHEN {} THEN {} END";
                let args = vec![subject.into(), one.into(), first, two.into(), second];
                Expr::new("CASE with operand", ty, template, args)
            }
        };
        let tier = if exact { expr.tier } else { Tier::AnyNan };
        expr.known(Flavour::Edge, bound).with_tier(tier)
    }
}
