//! TPC-H tables as Parquet files, for the tests and the examples.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use datafusion::arrow::record_batch::RecordBatchReader;
use datafusion::common::{exec_datafusion_err, plan_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

/// Rows of a Parquet row group; large ones keep device uploads large.
const ROW_GROUP_ROWS: usize = 1 << 20;

/// Makes the named tables at `scale` (1 is about a gigabyte of text) under `dir`, `parts` files a table, and returns the
/// folder that holds one folder a table. Files that are there already are kept: a file gets its name only when it is
/// complete, and scale and parts are in the folder's name.
pub fn write_tpch(dir: &Path, scale: f64, parts: usize, tables: &[&str]) -> Result<PathBuf> {
    let root = dir.join(format!("sf{scale}-{parts}"));
    let mut missing = vec![];
    for table in tables {
        // These two have a fixed handful of rows, which every part of the generator would repeat.
        let parts = if ["nation", "region"].contains(table) { 1 } else { parts };
        for part in 1..=parts {
            let path = root.join(table).join(format!("part-{part}.parquet"));
            if !path.exists() {
                missing.push(Job { table, scale, part, parts, path });
            }
        }
    }
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(job) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
            job.write().map_err(|e| e.context(format!("cannot write {}", job.path.display())))?;
        }
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(missing.len());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| {
                worker.join().map_err(|_| exec_datafusion_err!("a TPC-H generator thread panicked"))?
            })
            .collect::<Result<Vec<()>>>()
    })?;
    Ok(root)
}

/// One file to make.
struct Job<'a> {
    table: &'a str,
    scale: f64,
    /// From 1.
    part: usize,
    parts: usize,
    path: PathBuf,
}

impl Job<'_> {
    fn write(&self) -> Result<()> {
        static WRITERS: AtomicUsize = AtomicUsize::new(0);
        let reader = self.reader()?;
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Unique among the threads and processes that make the same file at once; the last rename wins.
        let unfinished = self.path.with_extension(format!(
            "{}-{}.unfinished",
            std::process::id(),
            WRITERS.fetch_add(1, Ordering::Relaxed)
        ));
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .build();
        let mut writer = ArrowWriter::try_new(File::create(&unfinished)?, reader.schema(), Some(properties))?;
        for batch in reader {
            writer.write(&batch?)?;
        }
        writer.close()?;
        fs::rename(&unfinished, &self.path)?;
        Ok(())
    }

    fn reader(&self) -> Result<Box<dyn RecordBatchReader>> {
        let number = |n: usize| i32::try_from(n).map_err(|e| DataFusionError::External(Box::new(e)));
        let (scale, part, parts) = (self.scale, number(self.part)?, number(self.parts)?);
        Ok(match self.table {
            "customer" => Box::new(CustomerArrow::new(CustomerGenerator::new(scale, part, parts))),
            "lineitem" => Box::new(LineItemArrow::new(LineItemGenerator::new(scale, part, parts))),
            "nation" => Box::new(NationArrow::new(NationGenerator::new(scale, part, parts))),
            "orders" => Box::new(OrderArrow::new(OrderGenerator::new(scale, part, parts))),
            "part" => Box::new(PartArrow::new(PartGenerator::new(scale, part, parts))),
            "partsupp" => Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, part, parts))),
            "region" => Box::new(RegionArrow::new(RegionGenerator::new(scale, part, parts))),
            "supplier" => Box::new(SupplierArrow::new(SupplierGenerator::new(scale, part, parts))),
            other => return plan_err!("there is no TPC-H table {other}"),
        })
    }
}
