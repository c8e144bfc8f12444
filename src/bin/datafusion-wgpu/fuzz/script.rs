//! Failures as SQL scripts with their data inline, and running such a script again.
//!
//! A script can be run as it is. What SQL cannot say (how the tables are stored, what the adapter does without, how answers
//! are compared) stands in a comment, which `fuzz --replay` reads. Tables of many rows, or with NaNs other than `CAST('NaN' AS
//! DOUBLE)`, lie in Parquet files beside the script.

use std::fmt::Write as _;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::{Array, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::error::{DataFusionError, Result};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::prelude::SessionContext;

use crate::error::{message, problem};

use super::args::unwritable;
use super::compare::Spec;
use super::data::{Dataset, Layout, TableData};
use super::judge::Wrong;
use super::options::RunOptions;
use super::shrink::Shrunk;
use super::types::Class;
use super::{cells, types};

/// Rows that a script holds itself, at most.
const INLINE_ROWS: usize = 200;
/// How the comment begins that `--replay` reads.
const HEADER: &str = "-- fuzz: ";

/// What a script's comment says.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Header {
    /// Seed of the run that found it.
    pub seed: u64,
    /// Number of the query.
    pub query: u64,
    /// What was wrong.
    pub wrong: Wrong,
    /// Options of the forced run.
    pub options: RunOptions,
    /// How answers are compared.
    pub spec: Spec,
    /// What the CPU is asked for beside the query, where its answer alone does not tell which rows are right.
    pub reference: Option<String>,
    /// How the tables are stored.
    pub tables: Vec<TableHeader>,
}

/// How one table is stored.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct TableHeader {
    name: String,
    layout: Layout,
    /// Columns that are declared NOT NULL.
    not_null: Vec<String>,
    /// The file beside the script that holds the rows, if they are not inline.
    file: Option<String>,
}

/// A script, read back.
pub struct Script {
    /// Its comment.
    pub header: Header,
    /// Its query.
    pub sql: String,
    /// Its tables.
    pub dataset: Dataset,
}

/// Takes the next free `NUMBER.sql` of a folder, which may hold scripts of other runs.
fn claim(folder: &Path) -> Result<(usize, PathBuf)> {
    std::fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
    let mut number = 1;
    loop {
        let path = folder.join(format!("{number:04}.sql"));
        match File::create_new(&path) {
            Ok(_) => return Ok((number, path)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(unwritable(&path, &error)),
        }
    }
}

/// Writes `NUMBER.sql` to a folder, with a number that is free, and Parquet files where they are needed; gives its path.
///
/// # Errors
/// Those of the file system.
pub fn write(folder: &Path, seed: u64, query: u64, wrong: Wrong, shrunk: &Shrunk) -> Result<PathBuf> {
    let (number, path) = claim(folder)?;
    let case = &shrunk.case;
    let mut tables = vec![];
    let mut creates = String::new();
    for table in &case.dataset.tables {
        let file = needs_file(&table.rows).then(|| format!("{number:04}-{}.parquet", table.name));
        match &file {
            Some(file) => {
                let path = folder.join(file);
                write_parquet(&path, &table.rows).map_err(|error| unwritable(&path, &message(&error)))?;
                let _ = writeln!(
                    creates,
                    "CREATE EXTERNAL TABLE {} STORED AS PARQUET LOCATION '{file}';",
                    table.name
                );
            }
            None => creates.push_str(&create_table(table)),
        }
        let fields = table.rows.schema();
        let not_null =
            fields.fields().iter().filter(|field| !field.is_nullable()).map(|field| field.name().clone());
        let not_null = not_null.collect();
        tables.push(TableHeader { name: table.name.clone(), layout: table.layout.clone(), not_null, file });
    }
    let spec = Spec::of(&case.query);
    let reference = case.query.reference().map(|reference| reference.to_string());
    let header = Header { seed, query, wrong, options: case.options.clone(), spec, reference, tables };
    let json = serde_json::to_string(&header).map_err(|error| DataFusionError::External(Box::new(error)))?;
    let mut text =
        format!("-- Found by datafusion-wgpu fuzz --seed {seed} in query {query}, then made smaller.\n");
    let _ = writeln!(text, "-- datafusion-wgpu fuzz --replay {number:04}.sql shows both answers.");
    let _ = writeln!(text, "{HEADER}{json}");
    for line in shrunk.detail.lines() {
        let _ = writeln!(text, "-- {line}");
    }
    text.push_str("SET gpu.allow_software_adapter = 'true';\nSET gpu.placement = 'force';\n");
    for statement in case.options.statements() {
        let _ = writeln!(text, "{statement};");
    }
    text.push_str(&creates);
    let _ = writeln!(text, "{};", case.query);
    std::fs::write(&path, text).map_err(|error| unwritable(&path, &error))?;
    Ok(path)
}

fn needs_file(rows: &RecordBatch) -> bool {
    let odd =
        |column: &Arc<dyn Array>| (0..column.len()).any(|row| cells::odd_nan(column.as_ref(), row).is_some());
    rows.num_rows() > INLINE_ROWS || rows.columns().iter().any(odd)
}

fn write_parquet(path: &Path, rows: &RecordBatch) -> Result<()> {
    let mut writer = ArrowWriter::try_new(File::create(path)?, rows.schema(), None)?;
    writer.write(rows)?;
    writer.close()?;
    Ok(())
}

/// `CREATE TABLE` from strings that are cast to the columns' types.
fn create_table(table: &TableData) -> String {
    let rows = &table.rows;
    let mut out = format!("CREATE TABLE {} AS SELECT\n", table.name);
    let schema = rows.schema();
    let columns = schema.fields().iter().enumerate().map(|(index, field)| {
        let column = format!("column{}", index + 1);
        let name = cells::type_name(field.data_type());
        // Days and instants are written as numbers, which hold every value.
        let value = match types::class(field.data_type()) {
            Class::Date | Class::Time | Class::Timestamp | Class::Duration => {
                format!("arrow_cast({column}, '{}')", cells::inside(field.data_type()))
            }
            Class::Binary => format!("decode({column}, 'hex')"),
            _ => column,
        };
        format!("  arrow_cast({value}, '{name}') AS {}", field.name())
    });
    out.push_str(&columns.collect::<Vec<_>>().join(",\n"));
    out.push_str("\nFROM (VALUES\n");
    let row_text = |row: Option<usize>| {
        let cells = rows.columns().iter().map(|column| {
            let text = row.and_then(|row| cells::cell_text(column.as_ref(), row));
            text.map_or_else(|| "NULL".to_string(), |text| cells::quoted(&text))
        });
        format!("  ({})", cells.collect::<Vec<_>>().join(", "))
    };
    let lines: Vec<String> = match rows.num_rows() {
        // VALUES needs a row.
        0 => vec![row_text(None)],
        count => (0..count).map(|row| row_text(Some(row))).collect(),
    };
    out.push_str(&lines.join(",\n"));
    out.push_str(if rows.num_rows() == 0 { "\n) WHERE false;\n" } else { "\n);\n" });
    out
}

/// Reads a script and makes its tables.
///
/// # Errors
/// A script without the comment, or whose statements fail.
pub async fn read(path: &Path) -> Result<Script> {
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    let missing = |what: &str| unreadable(path, &format!("it has no {what}"));
    let json = text.lines().find_map(|line| line.strip_prefix(HEADER));
    let json = json.ok_or_else(|| missing("line that begins with '-- fuzz: '"))?;
    let header: Header = serde_json::from_str(json)
        .map_err(|error| unreadable(path, &format!("the line that begins with '{HEADER}': {error}")))?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("--")).collect();
    let text = lines.join("\n");
    let statements = text.split(";\n").map(|statement| statement.trim().trim_end_matches(';'));
    let statements: Vec<&str> = statements.filter(|statement| !statement.is_empty()).collect();
    let sql = statements.last().ok_or_else(|| missing("query"))?.to_string();
    let context = SessionContext::new();
    for create in statements.iter().filter(|statement| statement.starts_with("CREATE TABLE")) {
        context.sql(create).await?.collect().await?;
    }
    let mut tables = vec![];
    for table in &header.tables {
        let rows = match &table.file {
            Some(file) => {
                let file = path.with_file_name(file);
                read_parquet(&file).map_err(|error| unreadable(&file, &message(&error)))?
            }
            None => {
                let frame = context.table(table.name.as_str()).await?;
                let schema = Arc::new(frame.schema().as_arrow().clone());
                concat_batches(&schema, &frame.collect().await?)?
            }
        };
        let rows = declared(&rows, &table.not_null)?;
        tables.push(TableData { name: table.name.clone(), rows, layout: table.layout.clone() });
    }
    Ok(Script { header, sql, dataset: Dataset { tables } })
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> DataFusionError {
    problem(format!("cannot read '{}': {error}", path.display()))
}

fn read_parquet(path: &Path) -> Result<RecordBatch> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
    let schema = Arc::clone(builder.schema());
    let batches = builder.build()?.collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(concat_batches(&schema, &batches)?)
}

/// The rows under a schema in which exactly the named columns are NOT NULL.
fn declared(rows: &RecordBatch, not_null: &[String]) -> Result<RecordBatch> {
    let schema = rows.schema();
    let field = |field: &Arc<Field>| field.as_ref().clone().with_nullable(!not_null.contains(field.name()));
    let schema = Arc::new(Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>()));
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    Ok(RecordBatch::try_new_with_options(schema, rows.columns().to_vec(), &options)?)
}
