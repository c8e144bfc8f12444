//! The tables of TPC-H and their rows, by the tpchgen crates.

#[cfg(feature = "harness")]
use std::fmt::Display;
#[cfg(feature = "harness")]
use std::io::{self, Write};

use clap::ValueEnum;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatchReader;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Table {
    Customer,
    Lineitem,
    Nation,
    Orders,
    Part,
    Partsupp,
    Region,
    Supplier,
}

impl Table {
    /// Its name in SQL, and its folder's.
    pub fn name(self) -> &'static str {
        match self {
            Table::Customer => "customer",
            Table::Lineitem => "lineitem",
            Table::Nation => "nation",
            Table::Orders => "orders",
            Table::Part => "part",
            Table::Partsupp => "partsupp",
            Table::Region => "region",
            Table::Supplier => "supplier",
        }
    }

    /// What the generator counts in and splits a table by: orders for lineitem, parts for partsupp, rows for the rest.
    pub fn units(self, scale: f64) -> u64 {
        let units = match self {
            Table::Customer => CustomerGenerator::calculate_row_count(scale, 1, 1),
            Table::Lineitem | Table::Orders => OrderGenerator::calculate_row_count(scale, 1, 1),
            Table::Part | Table::Partsupp => PartGenerator::calculate_row_count(scale, 1, 1),
            Table::Supplier => SupplierGenerator::calculate_row_count(scale, 1, 1),
            Table::Nation => 25,
            Table::Region => 5,
        };
        u64::try_from(units).unwrap_or(0)
    }

    /// Rows, exactly but for lineitem: an order has 1 to 7 lines.
    pub fn expected_rows(self, scale: f64) -> u64 {
        let rows_of_a_unit = if matches!(self, Table::Lineitem | Table::Partsupp) { 4 } else { 1 };
        self.units(scale) * rows_of_a_unit
    }

    /// Whether the table can be made in pieces; nation and region come whole, whatever the scale.
    pub fn is_divisible(self) -> bool {
        !matches!(self, Table::Nation | Table::Region)
    }

    /// Columns.
    pub fn schema(self) -> SchemaRef {
        match self {
            Table::Customer => CustomerArrow::schema_ref(),
            Table::Lineitem => LineItemArrow::schema_ref(),
            Table::Nation => NationArrow::schema_ref(),
            Table::Orders => OrderArrow::schema_ref(),
            Table::Part => PartArrow::schema_ref(),
            Table::Partsupp => PartSuppArrow::schema_ref(),
            Table::Region => RegionArrow::schema_ref(),
            Table::Supplier => SupplierArrow::schema_ref(),
        }
    }

    /// Rows of a piece, counted from 1; all pieces in turn are the table.
    pub fn piece(self, scale: f64, piece: i32, pieces: i32) -> Box<dyn RecordBatchReader> {
        match self {
            Table::Customer => Box::new(CustomerArrow::new(CustomerGenerator::new(scale, piece, pieces))),
            Table::Lineitem => Box::new(LineItemArrow::new(LineItemGenerator::new(scale, piece, pieces))),
            Table::Nation => Box::new(NationArrow::new(NationGenerator::new(scale, piece, pieces))),
            Table::Orders => Box::new(OrderArrow::new(OrderGenerator::new(scale, piece, pieces))),
            Table::Part => Box::new(PartArrow::new(PartGenerator::new(scale, piece, pieces))),
            Table::Partsupp => Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, piece, pieces))),
            Table::Region => Box::new(RegionArrow::new(RegionGenerator::new(scale, piece, pieces))),
            Table::Supplier => Box::new(SupplierArrow::new(SupplierGenerator::new(scale, piece, pieces))),
        }
    }

    /// Writes all rows in TPC-H's own text format.
    ///
    /// # Errors
    /// Those of writing.
    #[cfg(feature = "harness")]
    pub fn write_text(self, scale: f64, out: &mut impl Write) -> io::Result<()> {
        match self {
            Table::Customer => lines(CustomerGenerator::new(scale, 1, 1).iter(), out),
            Table::Lineitem => lines(LineItemGenerator::new(scale, 1, 1).iter(), out),
            Table::Nation => lines(NationGenerator::new(scale, 1, 1).iter(), out),
            Table::Orders => lines(OrderGenerator::new(scale, 1, 1).iter(), out),
            Table::Part => lines(PartGenerator::new(scale, 1, 1).iter(), out),
            Table::Partsupp => lines(PartSuppGenerator::new(scale, 1, 1).iter(), out),
            Table::Region => lines(RegionGenerator::new(scale, 1, 1).iter(), out),
            Table::Supplier => lines(SupplierGenerator::new(scale, 1, 1).iter(), out),
        }
    }
}

#[cfg(feature = "harness")]
fn lines(rows: impl Iterator<Item = impl Display>, out: &mut impl Write) -> io::Result<()> {
    for row in rows {
        writeln!(out, "{row}")?;
    }
    Ok(())
}
