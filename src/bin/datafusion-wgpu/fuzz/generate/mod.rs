//! Random queries, well-typed for the most part, whose answers SQL determines.
//!
//! What would not be determined is not generated or is marked: LIMIT inside a query comes with an order over all columns,
//! window functions that depend on the order of rows are ordered by all columns of their input, floats are grouped only at the top, and
//! sums that round are marked with a distance. So a new operator on the GPU is exercised as soon as it is there.

mod aggregate;
mod expression;
mod predicate;
mod query;
mod shapes;
mod temporal;
mod text;
mod windows;

use datafusion::arrow::datatypes::DataType;

use super::ast::{Expr, Query, Relation};
use super::cells;
use super::rng::Rng;
use super::types::{Class, Flavour, Table, bound, class};
use super::values::{self, Fill};

/// Columns that an expression may name.
type Scope = Vec<Expr>;

/// A random query over `tables`.
pub fn query(rng: &mut Rng, tables: &[Table]) -> Query {
    let device = rng.chance(55);
    let mut generator = Generator { rng, tables, device, names: 0 };
    if device { generator.device_query() } else { generator.any_query() }
}

/// What the parts of the generator share.
struct Generator<'a> {
    rng: &'a mut Rng,
    tables: &'a [Table],
    /// Whether what runs on the device today is preferred.
    device: bool,
    names: usize,
}

/// A relation with its columns.
struct Source {
    relation: Relation,
    columns: Scope,
}

impl Generator<'_> {
    /// A new name.
    fn name(&mut self, prefix: char) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    /// A table under an alias; `most` is the number of tables to choose from, the smallest last.
    fn table(&mut self, from: usize) -> Source {
        let table = &self.tables[from + self.rng.below(self.tables.len() - from)];
        let alias = self.name('a');
        let columns = table.columns.iter().map(|column| {
            Expr::leaf("column", column.data_type.clone(), format!("{alias}.{}", column.name))
                .known(column.flavour, bound(&column.data_type, column.flavour))
                .with_samples(&column.samples)
        });
        let columns = columns.collect();
        Source { relation: Relation::Table { name: table.name.clone(), alias }, columns }
    }

    /// A random column of a class.
    fn column(&mut self, scope: &Scope, of: Class) -> Option<Expr> {
        let fitting: Vec<&Expr> = scope.iter().filter(|column| class(&column.data_type) == of).collect();
        (!fitting.is_empty()).then(|| fitting[self.rng.below(fitting.len())].clone())
    }

    /// The class of a random column that predicates and expressions may use.
    fn class(&mut self, scope: &Scope) -> Class {
        let classes = scope.iter().map(|column| class(&column.data_type));
        let classes: Vec<Class> = classes.filter(|class| *class != Class::Null).collect();
        if classes.is_empty() { Class::Int } else { self.rng.choose(&classes) }
    }

    /// A literal of the type and kind of values of `like`.
    fn literal(&mut self, like: &Expr) -> Expr {
        let has_zeros = matches!(like.flavour, Flavour::Edge | Flavour::Special);
        if class(&like.data_type) == Class::Float && has_zeros && self.rng.chance(25) {
            let text = self.rng.choose(&["0.0", "CAST('-0.0' AS DOUBLE)", "0"]);
            return Expr::leaf("literal", like.data_type.clone(), text.to_string());
        }
        if !like.samples.is_empty() && self.rng.chance(50) {
            let text = like.samples[self.rng.below(like.samples.len())].clone();
            return Expr::leaf("literal", like.data_type.clone(), text)
                .known(like.flavour, bound(&like.data_type, like.flavour));
        }
        self.literal_of(&like.data_type, like.flavour)
    }

    fn literal_of(&mut self, data_type: &DataType, flavour: Flavour) -> Expr {
        let nulls = if self.rng.chance(2) { 100 } else { 0 };
        let value = values::array(self.rng, data_type, flavour, Fill { nulls, hot: 0 }, 1);
        let text = value.map_or_else(|_| "NULL".to_string(), |array| cells::literal(array.as_ref(), 0));
        Expr::leaf("literal", data_type.clone(), text).known(flavour, bound(data_type, flavour))
    }
}
