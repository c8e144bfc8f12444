//! The rows of tables and how they are stored: as Parquet files of several row groups, or in memory as odd slices.

use std::fs::File;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use datafusion::arrow::compute::{concat_batches, take_record_batch};
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::error::{DataFusionError, Result};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use tempfile::TempDir;

use super::cells;
use super::rng::Rng;
use super::types::Table;
use super::values::{self, Fill};

/// How a table is stored.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Layout {
    /// In memory.
    Memory {
        /// Partitions; batches are dealt out to them in turn.
        partitions: usize,
        /// Rows of the batches, over and over; 0 is an empty batch.
        pattern: Vec<usize>,
        /// Rows of other content that lie before the first one in the same buffers.
        before: usize,
    },
    /// As Parquet files.
    Parquet {
        /// Files.
        files: usize,
        /// Rows of a row group, at most.
        row_group: usize,
        /// Whether columns are dictionary-encoded.
        dictionary: bool,
        /// Whether files carry statistics of columns and pages.
        statistics: bool,
    },
}

impl Layout {
    /// The simplest one.
    pub fn plain() -> Self {
        Layout::Memory { partitions: 1, pattern: vec![usize::MAX], before: 0 }
    }

    fn random(rng: &mut Rng, rows: usize) -> Self {
        if rng.chance(50) {
            return Layout::Parquet {
                files: rng.choose(&[1, 2, 3, 5]),
                row_group: rng.choose(&[1 + rows / 7, 1 + rows / 3, 100, 1_000, 1 << 20]).max(1 + rows / 50),
                dictionary: rng.chance(70),
                statistics: rng.chance(80),
            };
        }
        let least = 1 + rows / 100;
        let pattern = (0..rng.between(1, 5)).map(|_| match rng.below(4) {
            0 => 0,
            1 => least + rng.below(30),
            _ => least + rng.below(rows + 2),
        });
        let mut pattern: Vec<usize> = pattern.collect();
        pattern.push(least + rng.below(3 + rows / 2));
        let before = rng.choose(&[0, 1, 3, 7, 8, 13, 31, 65]);
        Layout::Memory { partitions: rng.choose(&[1, 2, 3, 4, 7]), pattern, before }
    }
}

/// A table with its rows.
#[derive(Debug, Clone)]
pub struct TableData {
    /// Its name.
    pub name: String,
    /// All its rows.
    pub rows: RecordBatch,
    /// How they are stored.
    pub layout: Layout,
}

/// The tables that a query runs over.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// The tables.
    pub tables: Vec<TableData>,
}

/// How large a dataset's tables are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// From none to some dozen rows.
    Tiny,
    /// Some hundred.
    Medium,
    /// Up to 30,000 in the first table.
    Large,
}

impl Size {
    fn rows(self, rng: &mut Rng, table: usize) -> usize {
        match (self, table) {
            (Size::Tiny, 0) if rng.chance(20) => 0,
            (Size::Tiny, _) => rng.below(40),
            (Size::Medium, 0) => rng.between(50, 1_500),
            (Size::Medium, 1) => rng.below(400),
            (Size::Large, 0) => rng.between(2_000, 30_000),
            (Size::Large, 1) => rng.below(1_000),
            _ => rng.below(30),
        }
    }
}

impl Dataset {
    /// Random rows for `tables`.
    pub fn random(rng: &mut Rng, tables: &[Table], size: Size) -> Result<Self> {
        let data = tables.iter().enumerate().map(|(number, table)| {
            let rows = size.rows(rng, number);
            let schema = Arc::new(table.schema());
            let columns = table.columns.iter().map(|column| {
                let nulls = rng.weighted(&[(3, 0), (4, 10), (3, 40), (1, 95), (1, 100)]);
                let nulls = if column.nullable { nulls } else { 0 };
                let hot = rng.weighted(&[(6, 0), (3, 20), (1, 90)]);
                // A hot key joins with itself: the result grows with its square.
                let hot = if column.name == "k" { hot.min(20) } else { hot };
                values::array(rng, &column.data_type, column.flavour, Fill { nulls, hot }, rows)
            });
            let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let batch = RecordBatch::try_new_with_options(schema, columns, &options)?;
            Ok(TableData { name: table.name.clone(), rows: batch, layout: Layout::random(rng, rows) })
        });
        Ok(Dataset { tables: data.collect::<Result<_>>()? })
    }

    /// Some values of a column, as literals.
    pub fn samples(&self, rng: &mut Rng, table: usize, column: usize) -> Vec<String> {
        let rows = &self.tables[table].rows;
        let array = rows.column(column);
        let count = rows.num_rows().min(4);
        (0..count).map(|_| cells::literal(array.as_ref(), rng.below(rows.num_rows()))).collect()
    }

    /// Rows of all tables.
    pub fn rows(&self) -> usize {
        self.tables.iter().map(|table| table.rows.num_rows()).sum()
    }

    /// Writes files or cuts batches, so that sessions can read the tables.
    pub async fn store(&self) -> Result<Stored> {
        let mut tables = vec![];
        let folder = TempDir::new()?;
        for table in &self.tables {
            tables.push((table.name.clone(), table.store(&folder).await?));
        }
        let contents = self.tables.iter().map(|table| table.rows.clone()).collect();
        Ok(Stored { tables, rows: self.rows(), contents, _folder: Some(folder) })
    }
}

/// A dataset that sessions can read.
pub struct Stored {
    /// Names and tables.
    pub tables: Vec<(String, Arc<dyn TableProvider>)>,
    /// Rows of all tables.
    pub rows: usize,
    /// The tables' rows.
    contents: Vec<RecordBatch>,
    _folder: Option<TempDir>,
}

impl Stored {
    /// For every row of every table: the dataset, in memory, with no other row in that table.
    pub fn single_rows(&self) -> impl Iterator<Item = Result<Stored>> {
        let every = self.contents.iter().enumerate();
        every.flat_map(move |(at, rows)| (0..rows.num_rows()).map(move |row| self.with_one_row(at, row)))
    }

    /// Whether some table has a NaN.
    pub fn has_nan(&self) -> bool {
        self.contents.iter().any(super::compare::has_nan)
    }

    /// The dataset in memory, an empty table without any batch.
    pub fn without_empty_batches(&self) -> Result<Stored> {
        self.in_memory(self.contents.clone())
    }

    fn with_one_row(&self, table: usize, row: usize) -> Result<Stored> {
        let mut contents = self.contents.clone();
        contents[table] = contents[table].slice(row, 1);
        self.in_memory(contents)
    }

    fn in_memory(&self, contents: Vec<RecordBatch>) -> Result<Stored> {
        let tables = self.tables.iter().zip(&contents).map(|((name, _), rows)| {
            let batches = Some(rows.clone()).filter(|rows| rows.num_rows() > 0);
            let table = MemTable::try_new(rows.schema(), vec![Vec::from_iter(batches)])?;
            Ok((name.clone(), Arc::new(table) as Arc<dyn TableProvider>))
        });
        let tables = tables.collect::<Result<_>>()?;
        let rows = contents.iter().map(RecordBatch::num_rows).sum();
        Ok(Stored { tables, rows, contents, _folder: None })
    }
}

impl TableData {
    async fn store(&self, folder: &TempDir) -> Result<Arc<dyn TableProvider>> {
        match &self.layout {
            Layout::Memory { partitions, pattern, before } => {
                let mut parts = vec![vec![]; *partitions];
                for (index, batch) in self.slices(pattern, *before)?.into_iter().enumerate() {
                    parts[index % partitions].push(batch);
                }
                Ok(Arc::new(MemTable::try_new(self.rows.schema(), parts)?))
            }
            Layout::Parquet { files, row_group, dictionary, statistics } => {
                let path = folder.path().join(&self.name);
                std::fs::create_dir_all(&path)?;
                let statistics = if *statistics { EnabledStatistics::Page } else { EnabledStatistics::None };
                let properties = WriterProperties::builder()
                    .set_max_row_group_row_count(Some(*row_group))
                    .set_dictionary_enabled(*dictionary)
                    .set_statistics_enabled(statistics)
                    .set_data_page_row_count_limit(200)
                    .build();
                let share = self.rows.num_rows().div_ceil(*files);
                for file in 0..*files {
                    let start = (file * share).min(self.rows.num_rows());
                    let rows = self.rows.slice(start, share.min(self.rows.num_rows() - start));
                    let file = File::create(path.join(format!("{file}.parquet")))?;
                    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties.clone()))?;
                    writer.write(&rows)?;
                    writer.close()?;
                }
                let context = SessionContext::new();
                let path = path.to_str().ok_or_else(|| {
                    DataFusionError::Execution("the temporary folder's name is not Unicode".to_string())
                })?;
                context.register_parquet(&self.name, path, ParquetReadOptions::default()).await?;
                context.table_provider(self.name.as_str()).await
            }
        }
    }

    /// The rows as slices of one larger batch, so that values and validity bits begin anywhere in their buffers.
    fn slices(&self, pattern: &[usize], before: usize) -> Result<Vec<RecordBatch>> {
        let rows = self.rows.num_rows();
        let before = if rows == 0 { 0 } else { before };
        let padding =
            UInt32Array::from_iter_values((0..before).map(|row| ((row * 7 + 3) % rows.max(1)) as u32));
        let padding = take_record_batch(&self.rows, &padding)?;
        let whole = concat_batches(&self.rows.schema(), [&padding, &self.rows])?;
        let mut slices = vec![];
        let mut start = 0;
        // A pattern of nothing but empty batches would never end.
        let pattern = if pattern.iter().all(|size| *size == 0) { &[rows] } else { pattern };
        let mut sizes = pattern.iter().cycle();
        while start < rows {
            let size = sizes.next().map_or(rows, |size| *size).min(rows - start);
            slices.push(whole.slice(before + start, size));
            start += size;
        }
        if slices.is_empty() && pattern.contains(&0) {
            slices.push(whole.slice(0, 0));
        }
        Ok(slices)
    }
}
