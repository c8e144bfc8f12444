//! TPC-H: its eight tables and 22 queries with the specification's validation parameters.

use std::sync::atomic::AtomicBool;

use clap::ValueEnum;
use indicatif::ProgressBar;

use super::flags::TpchArgs;
use super::suite::{Query, Size, Suite, query};
use crate::tpch_data::{self, Remedy, Table};

/// The texts. Joins are written in the order in which the specification names the tables, so far as they belong together.
const QUERIES: [&str; 22] = [
    include_str!("tpch/01.sql"),
    include_str!("tpch/02.sql"),
    include_str!("tpch/03.sql"),
    include_str!("tpch/04.sql"),
    include_str!("tpch/05.sql"),
    include_str!("tpch/06.sql"),
    include_str!("tpch/07.sql"),
    include_str!("tpch/08.sql"),
    include_str!("tpch/09.sql"),
    include_str!("tpch/10.sql"),
    include_str!("tpch/11.sql"),
    include_str!("tpch/12.sql"),
    include_str!("tpch/13.sql"),
    include_str!("tpch/14.sql"),
    include_str!("tpch/15.sql"),
    include_str!("tpch/16.sql"),
    include_str!("tpch/17.sql"),
    include_str!("tpch/18.sql"),
    include_str!("tpch/19.sql"),
    include_str!("tpch/20.sql"),
    include_str!("tpch/21.sql"),
    include_str!("tpch/22.sql"),
];

/// The suite.
pub fn suite(args: &TpchArgs) -> Suite {
    let scale = args.scale;
    let folder = args.common.data.join(format!("tpch-sf{scale}"));
    let out = folder.clone();
    Suite {
        name: "tpch",
        size: Size::Scale(scale),
        folder,
        tables: Table::value_variants().iter().map(|table| table.name()).collect(),
        queries: queries(scale),
        make: Box::new(move |progress: &ProgressBar| {
            let remedy = Remedy { choose: "choose another --data", replace: "remove it" };
            let args = tpch_data::Args::of(scale, &out);
            tpch_data::make(&args, &AtomicBool::new(false), progress, remedy).map(|_| ())
        }),
    }
}

fn queries(scale: f64) -> Vec<Query> {
    // Only query 11 depends on the scale.
    let fraction = format!("{:.12}", 0.0001 / scale);
    let text = |text: &str| text.replace(":fraction", &fraction);
    (1..)
        .zip(QUERIES)
        .map(|(number, sql)| {
            let mut query = query(number, sql);
            query.sql = text(&query.sql);
            query
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::queries;

    #[test]
    fn every_text_has_a_title_and_no_parameter_left() {
        let queries = queries(10.0);
        assert_eq!(queries.len(), 22);
        for query in &queries {
            assert!(!query.title.is_empty() && !query.sql.contains(':'), "{query:?}");
        }
        assert!(queries[10].sql.contains("* 0.000010000000\n"), "{}", queries[10].sql);
    }
}
