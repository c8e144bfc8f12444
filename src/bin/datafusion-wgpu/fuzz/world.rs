//! Worlds: tables, several datasets for them, and the queries over them.

use datafusion::error::Result;

use super::ast::Query;
use super::data::{Dataset, Size, Stored};
use super::rng::Rng;
use super::types::{Table, tables};
use super::{QUERIES, WORLDS, generate};

/// Tables, and datasets for them.
pub struct World {
    seed: u64,
    tables: Vec<Table>,
    /// Datasets of different sizes and layouts.
    pub datasets: Vec<Dataset>,
}

impl World {
    /// World `number` of a seed.
    pub fn new(seed: u64, number: u64) -> Result<Self> {
        let mut rng = Rng::new(seed, WORLDS + number);
        let mut tables = tables(&mut rng);
        let sizes = [Size::Tiny, Size::Tiny, Size::Medium, Size::Large];
        let datasets = sizes.map(|size| Dataset::random(&mut rng, &tables, size));
        let datasets = datasets.into_iter().collect::<Result<Vec<_>>>()?;
        for (number, table) in tables.iter_mut().enumerate() {
            for (index, column) in table.columns.iter_mut().enumerate() {
                let samples = datasets.iter().flat_map(|dataset| dataset.samples(&mut rng, number, index));
                column.samples = samples.collect();
            }
        }
        Ok(World { seed, tables, datasets })
    }

    /// Query `number` of the seed, which must belong to this world.
    pub fn query(&self, number: u64) -> Query {
        generate::query(&mut Rng::new(self.seed, QUERIES + number), &self.tables)
    }

    /// Datasets that the query can be run over in reasonable time, the one that tells most first.
    pub fn suitable(&self, query: &Query) -> &'static [usize] {
        match query.joins() {
            0 => &[2, 3, 0],
            1 => &[2, 1, 0],
            _ => &[1, 0],
        }
    }

    /// The datasets as sessions can read them.
    pub async fn store(&self) -> Result<Vec<Stored>> {
        let mut stored = vec![];
        for dataset in &self.datasets {
            stored.push(dataset.store().await?);
        }
        Ok(stored)
    }
}
