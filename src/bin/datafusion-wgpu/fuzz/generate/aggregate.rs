//! Aggregate functions.

use datafusion::arrow::datatypes::DataType;

use super::super::ast::{Arg, Expr, FLOAT_EXTREME, Tier};
use super::super::rounded::Rounding;
use super::super::types::{Class, Flavour, class};
use super::{Generator, Scope};

/// Where an aggregate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// With GROUP BY.
    pub grouped: bool,
    /// Within another query, where a rounded value could decide about rows.
    pub nested: bool,
}

/// Averages of integers are exact while their sums stay below 2^53; up to 2^20 rows are allowed for.
const EXACT_AVERAGE: f64 = (1u64 << 33) as f64;

impl Generator<'_> {
    /// A call of an aggregate function, with FILTER at times.
    pub fn aggregate(&mut self, scope: &Scope, place: Place) -> Expr {
        let call = if !self.device && self.rng.chance(35) {
            self.rare_aggregate(scope, place)
        } else {
            self.common_aggregate(scope, place)
        };
        if !self.rng.chance(25) {
            return call;
        }
        let condition = self.predicate(scope, 1);
        let (data_type, tier) = (call.data_type.clone(), call.tier);
        Expr::new("FILTER", data_type, "{} FILTER (WHERE {})", vec![call.into(), condition.into()])
            .with_tier(tier)
    }

    fn common_aggregate(&mut self, scope: &Scope, place: Place) -> Expr {
        match self.rng.below(12) {
            0 => Expr::leaf("count", DataType::Int64, "count(*)".to_string()),
            1 | 2 => self.count(scope),
            3..=5 => self.sum(scope, place),
            6 | 7 => self.average(scope, place),
            8 => self.first_or_last(scope),
            _ => self.extreme(scope, place),
        }
    }

    fn count(&mut self, scope: &Scope) -> Expr {
        let any = |generator: &mut Self| -> Arg {
            if generator.rng.chance(15) {
                return generator.predicate(scope, 2).into();
            }
            if scope.is_empty() || generator.rng.chance(20) {
                let of = generator.class(scope);
                return generator.value(scope, of, 1).into();
            }
            let index = generator.rng.below(scope.len());
            scope[index].clone().into()
        };
        if self.rng.chance(20) {
            let args = vec![any(self), any(self)];
            return Expr::new("count of several", DataType::Int64, "count({}, {})", args);
        }
        let args = vec![any(self)];
        Expr::new("count", DataType::Int64, "count({})", args)
    }

    fn sum(&mut self, scope: &Scope, place: Place) -> Expr {
        match self.rng.below(8) {
            0..=2 => {
                let arg = self.value(scope, Class::Int, 1);
                let data_type =
                    if arg.data_type.is_unsigned_integer() { DataType::UInt64 } else { DataType::Int64 };
                Expr::new("sum of integers", data_type, "sum({})", vec![arg.into()])
            }
            3 | 4 => {
                let arg = self.value(scope, Class::Decimal, 1);
                Expr::new("sum of decimals", DataType::Decimal128(38, 2), "sum({})", vec![arg.into()])
            }
            _ if !place.nested && self.rng.chance(50) => self.of_doubles(scope, Rounding::Sum),
            _ => self.of_floats(scope, place, "sum of floats", "sum({})"),
        }
    }

    fn average(&mut self, scope: &Scope, place: Place) -> Expr {
        match self.rng.below(7) {
            0..=2 => {
                let arg = self.value(scope, Class::Int, 1);
                // A decimal's average is truncated, not rounded.
                let exact = arg.bound <= EXACT_AVERAGE || class(&arg.data_type) == Class::Decimal;
                let tier = if exact { Tier::Exact } else { Tier::Rounded(Rounding::Average) };
                if place.nested && tier != Tier::Exact {
                    return Expr::new("min/max", arg.data_type.clone(), "max({})", vec![arg.into()]);
                }
                Expr::new("avg of integers", DataType::Float64, "avg({})", vec![arg.into()]).with_tier(tier)
            }
            3 => {
                // Decimals of 32 and 64 bits become integers beside one, whose averages round.
                let narrow = |column: &Expr| {
                    matches!(column.data_type, DataType::Decimal32(..) | DataType::Decimal64(..))
                };
                let depth = usize::from(!scope.iter().any(narrow));
                let arg = self.value(scope, Class::Decimal, depth);
                Expr::new("avg of decimals", DataType::Decimal128(38, 6), "avg({})", vec![arg.into()])
            }
            _ if !place.nested && self.rng.chance(50) => self.of_doubles(scope, Rounding::Average),
            _ => self.of_floats(scope, place, "avg of floats", "avg({})"),
        }
    }

    /// A sum or average of any floats, which rounds.
    fn of_doubles(&mut self, scope: &Scope, rounding: Rounding) -> Expr {
        let (kind, template) = match rounding {
            Rounding::Average => ("avg of any floats", "avg({})"),
            _ => ("sum of any floats", "sum({})"),
        };
        let depth = self.rng.below(2);
        let arg = self.value(scope, Class::Float, depth);
        Expr::new(kind, DataType::Float64, template, vec![arg.into()]).with_tier(Tier::Rounded(rounding))
    }

    /// A sum or average of floats whose sums are exact; MIN or MAX where there are none.
    fn of_floats(&mut self, scope: &Scope, place: Place, kind: &'static str, template: &'static str) -> Expr {
        let exact =
            |column: &&Expr| class(&column.data_type) == Class::Float && column.flavour == Flavour::Dyadic;
        let special =
            |column: &&Expr| class(&column.data_type) == Class::Float && column.flavour == Flavour::Special;
        let exacts: Vec<&Expr> = scope.iter().filter(exact).collect();
        let specials: Vec<&Expr> = scope.iter().filter(special).collect();
        if !place.nested && !specials.is_empty() && self.rng.chance(40) {
            let arg = specials[self.rng.below(specials.len())].clone();
            return Expr::new(kind, DataType::Float64, template, vec![arg.into()]).with_tier(Tier::AnyNan);
        }
        if exacts.is_empty() {
            return self.extreme(scope, place);
        }
        let arg = exacts[self.rng.below(exacts.len())].clone();
        Expr::new(kind, DataType::Float64, template, vec![arg.into()])
    }

    fn extreme(&mut self, scope: &Scope, place: Place) -> Expr {
        let of = if self.rng.chance(8) { Class::Bool } else { self.class(scope) };
        let mut arg = self.value(scope, of, 2);
        // DataFusion's grouped MIN and MAX over floats depend on the order of rows where NaNs or both zeros are.
        let odd = of == Class::Float && arg.flavour != Flavour::Dyadic;
        let half = of == Class::Half;
        if half && place.grouped || odd && place.grouped && (place.nested || self.rng.chance(85)) {
            arg = self.value(scope, Class::Int, 1);
        }
        let template = self.rng.choose(&["min({})", "max({})"]);
        let (data_type, flavour, bound) = (arg.data_type.clone(), arg.flavour, arg.bound);
        let kind = if class(&data_type) == Class::Float { FLOAT_EXTREME } else { "min/max" };
        Expr::new(kind, data_type, template, vec![arg.into()]).known(flavour, bound)
    }

    /// Ordered by the value itself, so that rows that tie have the same value.
    fn first_or_last(&mut self, scope: &Scope) -> Expr {
        let of = match self.class(scope) {
            Class::Float | Class::Half => Class::Int,
            of => of,
        };
        let arg = self.value(scope, of, 1);
        let template = self.rng.choose(&[
            "first_value({} ORDER BY {})",
            "first_value({} ORDER BY {} DESC NULLS LAST)",
            "last_value({} ORDER BY {})",
            "last_value({} ORDER BY {} NULLS FIRST)",
        ]);
        let (data_type, flavour, bound) = (arg.data_type.clone(), arg.flavour, arg.bound);
        Expr::new("first/last", data_type, template, vec![arg.clone().into(), arg.into()])
            .known(flavour, bound)
    }

    fn rare_aggregate(&mut self, scope: &Scope, place: Place) -> Expr {
        match self.rng.below(8) {
            0 | 1 => {
                let of = match self.class(scope) {
                    Class::Float | Class::Half => Class::Int,
                    of => of,
                };
                let arg = self.value(scope, of, 0);
                Expr::new("count DISTINCT", DataType::Int64, "count(DISTINCT {})", vec![arg.into()])
            }
            2 => {
                let arg = self.value(scope, Class::Int, 0);
                Expr::new("sum DISTINCT", DataType::Int64, "sum(DISTINCT {})", vec![arg.into()])
            }
            3 => {
                let arg = self.value(scope, Class::Int, 0);
                let template = self.rng.choose(&["bit_and({})", "bit_or({})", "bit_xor({})"]);
                Expr::new("bit aggregate", arg.data_type.clone(), template, vec![arg.into()])
            }
            4 => {
                let arg = self.predicate(scope, 0);
                let template = self.rng.choose(&["bool_and({})", "bool_or({})"]);
                Expr::new("bool aggregate", DataType::Boolean, template, vec![arg.into()])
            }
            5 => {
                let arg = self.value(scope, Class::Int, 0);
                Expr::new("median", arg.data_type.clone(), "median({})", vec![arg.into()])
            }
            6 if !place.nested => {
                let dyadic = |column: &&Expr| {
                    class(&column.data_type) == Class::Float && column.flavour == Flavour::Dyadic
                };
                let columns: Vec<&Expr> = scope.iter().filter(dyadic).collect();
                if columns.is_empty() {
                    return self.extreme(scope, place);
                }
                let arg = columns[self.rng.below(columns.len())].clone();
                let (template, rounding) = self.rng.choose(&[
                    ("stddev_pop({})", Rounding::Deviation),
                    ("var_pop({})", Rounding::Variance),
                    ("var_samp({})", Rounding::SampleVariance),
                ]);
                Expr::new("variance", DataType::Float64, template, vec![arg.into()])
                    .with_tier(Tier::Rounded(rounding))
            }
            _ => {
                let arg = self.value(scope, Class::Text, 0);
                let template = self.rng.choose(&[
                    "string_agg({}, ',' ORDER BY {})",
                    "first_value({} ORDER BY {})",
                    "last_value({} ORDER BY {})",
                ]);
                Expr::new("ordered aggregate", DataType::Utf8, template, vec![arg.clone().into(), arg.into()])
            }
        }
    }
}
