//! Lazy batches: host rows, the columns of them that are on the device, and what is to be computed.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array};

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::dag::{self, id};
use crate::kernels::expr::search::LIST_HEAD;
use crate::kernels::expr::{Expr, Interner, Scalar, ValueType};

use super::column::DeviceTables;
use super::dictionary;
use super::launch::LaunchScope;
use super::lookup::{self, Table, TableSpec};
use super::pool::size_class;
use super::upload::{Upload, column_arrays, upload_arrays, value_type, word_bytes};

mod source;

pub use source::SourceBatch;

/// A column of a lazy batch.
#[derive(Debug, Clone)]
pub enum LazyColumn {
    /// Column of the source batch, of any Arrow type. It is uploaded when a kernel needs it, and otherwise rides along on
    /// the host.
    Source(usize),
    /// An expression over source columns, computed when a consumer needs it.
    Computed(Arc<Expr>),
}

/// A batch whose selection and columns are descriptions over a [`SourceBatch`]. Filters and projections only rewrite
/// them; the consumer (aggregate, download) compiles selection, expressions and its own work into one kernel.
#[derive(Debug, Clone)]
pub struct GpuBatch {
    source: Arc<SourceBatch>,
    columns: Vec<LazyColumn>,
    selection: Option<Arc<Expr>>,
    params: Vec<(ValueType, Scalar)>,
    /// Columns that may fault, each with the selection under which it was computed.
    fallible: Vec<(Arc<Expr>, Option<Arc<Expr>>)>,
    undecided: bool,
    tables: Vec<TableSpec>,
    /// Tables that were computed, by number.
    ready: BTreeMap<usize, Arc<Table>>,
    held: Vec<Arc<dyn Any + Send + Sync>>,
}

impl GpuBatch {
    /// All columns and rows of `source`.
    pub fn new(source: Arc<SourceBatch>) -> Self {
        let columns = (0..source.schema().fields().len()).map(LazyColumn::Source).collect();
        Self {
            source,
            columns,
            selection: None,
            params: vec![],
            fallible: vec![],
            undecided: false,
            tables: vec![],
            ready: BTreeMap::new(),
            held: vec![],
        }
    }

    /// The rows behind the batch.
    pub fn source(&self) -> &Arc<SourceBatch> {
        &self.source
    }

    /// The same selection and columns over the two halves of the source's rows; `None` for a single row.
    pub fn split(&self) -> Option<(GpuBatch, GpuBatch)> {
        let (first, second) = self.source.split()?;
        let over = |source| Self { source: Arc::new(source), ..self.clone() };
        Some((over(first), over(second)))
    }

    /// The same selection and columns over the rows of this batch and then those of `next`, the other part of a split. Tables stay
    /// where the rows keep their codes.
    pub fn join(mut self, next: &GpuBatch) -> GpuBatch {
        let source = self.source.join(&next.source);
        let tables = std::mem::take(&mut self.ready).into_iter();
        let keeps = |number: &usize| {
            self.table_column(*number).is_some_and(|column| source.dictionary(column).is_some())
        };
        let ready = tables.filter(|(number, _)| keeps(number)).collect();
        let held = self.held.iter().chain(&next.held).cloned().collect();
        Self { source: Arc::new(source), ready, held, ..self }
    }

    /// The columns, in order.
    pub fn columns(&self) -> &[LazyColumn] {
        &self.columns
    }

    /// Column `index`.
    pub fn column(&self, index: usize) -> Option<&LazyColumn> {
        self.columns.get(index)
    }

    /// Rows are kept where this is true; `None` keeps all.
    pub fn selection(&self) -> Option<&Arc<Expr>> {
        self.selection.as_ref()
    }

    /// Parameter values of the selection and the computed columns, by slot.
    pub fn params(&self) -> &[(ValueType, Scalar)] {
        &self.params
    }

    /// Column `index` as a device expression, of [`ValueType::Opaque`] where its type cannot live on the device; `None`
    /// where there is no such column.
    pub fn column_expr(&self, index: usize) -> Option<Arc<Expr>> {
        match self.columns.get(index)? {
            LazyColumn::Computed(expr) => Some(Arc::clone(expr)),
            LazyColumn::Source(source) => {
                let ty = value_type(self.source.schema().fields().get(*source)?.data_type());
                let ty = ty.unwrap_or(ValueType::Opaque);
                Some(Arc::new(Expr::Column { index: *source, ty }))
            }
        }
    }

    /// Appends parameter values and returns the slot of the first.
    pub fn add_params(&mut self, params: &[(ValueType, Scalar)]) -> usize {
        let base = self.params.len();
        self.params.extend_from_slice(params);
        base
    }

    /// Adds the table of a function of column `index` and returns its number, that of an equal one where there is one.
    /// `None` where the column's values are not on the host: it is neither a source column nor a function of one.
    pub fn add_table(&mut self, index: usize, function: &Arc<dyn lookup::ValueFunction>) -> Option<usize> {
        let (column, input) = match self.columns.get(index)? {
            LazyColumn::Source(column) => (*column, None),
            LazyColumn::Computed(expr) => match expr.as_ref() {
                Expr::Lookup { table, .. } => (self.tables.get(*table)?.column()?, Some(*table)),
                _ => return None,
            },
        };
        let same = |known: &TableSpec| match known {
            TableSpec::Function { function: known, .. } => known.same(function.as_ref()),
            TableSpec::List(_) => false,
        };
        let place = |known: &TableSpec| (known.column(), known.input()) == (Some(column), input);
        if let Some(known) = self.tables.iter().position(|known| place(known) && same(known)) {
            return Some(known);
        }
        self.tables.push(TableSpec::Function { column, input, function: Arc::clone(function) });
        Some(self.tables.len() - 1)
    }

    /// Adds a list of constants as kernels search it, and returns the number of its table.
    pub fn add_list(&mut self, words: UInt32Array) -> usize {
        self.tables.push(TableSpec::List(words));
        self.tables.len() - 1
    }

    /// Gives the columns that `tables` are indexed by codes, and computes those tables. Nothing goes to the device. Parts
    /// of the batch have the same tables.
    ///
    /// # Errors
    /// Those of encoding, and of the tables' functions.
    pub async fn prepare(&mut self, tables: &BTreeSet<usize>) -> GpuResult<()> {
        for &wanted in tables {
            // Innermost first.
            let mut chain = vec![wanted];
            while let Some(input) = chain.last().and_then(|table| self.tables.get(*table)?.input()) {
                chain.push(input);
            }
            for table in chain.into_iter().rev() {
                if self.ready.contains_key(&table) {
                    continue;
                }
                let (column, input, function) = match self.tables.get(table) {
                    Some(TableSpec::Function { column, input, function }) => (*column, *input, function),
                    Some(TableSpec::List(_)) => continue,
                    None => {
                        return Err(GpuError::Internal(format!("look-up table {table} does not exist")));
                    }
                };
                let dictionary = self.source.encode(column).await?;
                let input = input.and_then(|input| self.ready.get(&input)).map(Arc::as_ref);
                let mut made = lookup::table(function, dictionary.values(), input).await?;
                if input.is_none() && function.may_raise() {
                    let held = dictionary::held_values(&column_arrays(self.source.host(), column)?)?;
                    made.raised |= lookup::raises(function, held).await?;
                }
                self.ready.insert(table, Arc::new(made));
            }
        }
        Ok(())
    }

    /// Table `number`, if it was computed, and the source column whose codes index it.
    pub fn table(&self, number: usize) -> Option<(&Arc<Table>, usize)> {
        Some((self.ready.get(&number)?, self.table_column(number)?))
    }

    /// The source column whose codes index table `number`; lists have none.
    pub fn table_column(&self, number: usize) -> Option<usize> {
        self.tables.get(number)?.column()
    }

    /// The words of table `number`, and where among them its values begin.
    fn table_words(&self, number: usize) -> Option<(&UInt32Array, usize)> {
        match self.tables.get(number)? {
            TableSpec::Function { .. } => {
                self.ready.get(&number).map(|table| (&table.words, table.values_at))
            }
            TableSpec::List(words) => Some((words, LIST_HEAD)),
        }
    }

    /// Bytes of `tables`, 0 without any. Each kernel that reads some has a copy of them behind its arguments.
    pub fn table_len(&self, tables: &BTreeSet<usize>) -> u64 {
        let words = tables.iter().filter_map(|table| self.table_words(*table)).map(|(words, _)| words.len());
        match words.sum() {
            0 => 0,
            words => word_bytes(words),
        }
    }

    /// Device bytes of `tables` as they are uploaded.
    pub fn table_bytes(&self, tables: &BTreeSet<usize>) -> u64 {
        match self.table_len(tables) {
            0 => 0,
            bytes => size_class(bytes),
        }
    }

    /// Host bytes of `tables`, and of the codes and values of the columns that they are of and of `coded`.
    pub fn host_bytes(&self, tables: &BTreeSet<usize>, coded: &BTreeSet<usize>) -> usize {
        let made = tables.iter().filter_map(|table| self.ready.get(table)).map(|table| table.host_bytes());
        let columns = tables.iter().filter_map(|table| self.table_column(*table));
        let columns: BTreeSet<usize> = columns.chain(coded.iter().copied()).collect();
        let dictionaries = columns.into_iter().filter_map(|column| self.source.dictionary(column));
        made.sum::<usize>() + dictionaries.map(|dictionary| dictionary.host_bytes()).sum::<usize>()
    }

    /// Keeps something as long as the batch or a part of it is there, such as a reservation of the memory that it takes.
    pub fn hold(&mut self, held: Arc<dyn Any + Send + Sync>) {
        self.held.push(held);
    }

    /// Uploads `tables`, which were computed before.
    ///
    /// # Errors
    /// [`GpuError::Internal`] for a table that was not, and those of [`super::upload()`].
    pub async fn device_tables(
        &self,
        scope: &LaunchScope,
        tables: &BTreeSet<usize>,
    ) -> GpuResult<DeviceTables> {
        let Some(last) = tables.last() else { return Ok(DeviceTables::default()) };
        let mut places = vec![[0u32; 2]; self.tables.len().max(last + 1)];
        let (mut arrays, mut words): (Vec<ArrayRef>, usize) = (vec![], 0);
        for number in tables {
            let (table, values_at) = self
                .table_words(*number)
                .ok_or_else(|| GpuError::Internal(format!("look-up table {number} was not computed")))?;
            let place = |at: usize| {
                u32::try_from(at).map_err(|_| GpuError::Limit {
                    what: "words of look-up tables",
                    need: at as u64,
                    limit: u32::MAX.into(),
                    by_rows: false,
                })
            };
            places[*number] = [place(words)?, place(words + values_at)?];
            words += table.len();
            arrays.push(Arc::new(table.clone()));
        }
        let (need, limit) = (word_bytes(words), scope.context.caps().max_binding_bytes);
        if need > limit {
            // Parts of the batch keep its dictionaries, and so its tables.
            return Err(GpuError::Limit { what: "bytes of look-up tables", need, limit, by_rows: false });
        }
        let uploaded = upload_arrays(scope, &[Upload::words("look-up tables", arrays)]).await?;
        Ok(DeviceTables { words: uploaded.into_iter().next().map(|column| column.values), places })
    }

    /// Leaves the batch to the CPU: a parameter's value could not be computed, and whether that is an error depends on
    /// whether DataFusion would have evaluated it.
    pub fn leave_undecided(&mut self) {
        self.undecided = true;
    }

    /// True when only the CPU can give the batch's rows.
    pub fn is_undecided(&self) -> bool {
        self.undecided
    }

    /// Keeps only rows for which `predicate` (over source columns) is true as well.
    pub fn select(&mut self, predicate: Arc<Expr>) {
        self.selection = Some(match self.selection.take() {
            Some(before) => Arc::new(Expr::And(before, predicate)),
            None => predicate,
        });
    }

    /// Keeps the columns of `indices`, in that order.
    ///
    /// # Errors
    /// [`GpuError::Internal`] for an index that does not exist.
    pub fn project(&mut self, indices: &[usize]) -> GpuResult<()> {
        self.columns = indices
            .iter()
            .map(|index| self.columns.get(*index).cloned())
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| {
                GpuError::Internal(format!("projection {indices:?} of {} columns", self.columns.len()))
            })?;
        Ok(())
    }

    /// Replaces the columns. Those that are computed here and may fault are remembered with the selection as it is now:
    /// the CPU would compute them for these rows, whatever happens to rows and columns above.
    pub fn set_columns(&mut self, columns: Vec<LazyColumn>) {
        let mut exprs = Interner::default();
        for column in &columns {
            if let LazyColumn::Computed(expr) = column
                && expr.may_fault()
                && !self.fallible.iter().any(|(known, _)| exprs.same(known, expr))
            {
                self.fallible.push((Arc::clone(expr), self.selection.clone()));
            }
        }
        self.columns = columns;
    }

    /// The selection for a kernel that evaluates `evaluated` for every selected row. A fallible column that this kernel
    /// would evaluate for fewer rows than the CPU is evaluated by the selection itself, for all rows: a fault there makes
    /// the CPU decide, so that no error of its is lost.
    pub fn guarded_selection(&self, evaluated: &[&Arc<Expr>]) -> Option<Arc<Expr>> {
        let mut exprs = Interner::default();
        let evaluated: HashSet<_> = evaluated.iter().map(|expr| id(&exprs.intern(expr))).collect();
        let mut selected = |selection: &Option<Arc<Expr>>| selection.as_ref().map(|e| id(&exprs.intern(e)));
        let now = selected(&self.selection);
        let narrowed: Vec<_> = self.fallible.iter().map(|(_, at)| selected(at) != now).collect();
        let guards = self
            .fallible
            .iter()
            .zip(narrowed)
            .filter(|((expr, _), narrowed)| *narrowed || !evaluated.contains(&id(&exprs.intern(expr))));
        let guards = guards.map(|((expr, _), _)| {
            let null = Arc::new(Expr::IsNull(Arc::clone(expr)));
            Arc::new(Expr::Or(null, Arc::new(Expr::IsNotNull(Arc::clone(expr)))))
        });
        Expr::balanced(self.selection.iter().cloned().chain(guards).collect(), Expr::And)
    }

    /// Nodes of all that is to be computed together, and how deep they are.
    pub fn extent(&self) -> (usize, usize) {
        let computed = self.columns.iter().filter_map(|column| match column {
            LazyColumn::Computed(expr) => Some(expr),
            LazyColumn::Source(_) => None,
        });
        let fallible = self.fallible.iter().flat_map(|(expr, at)| std::iter::once(expr).chain(at));
        dag::extent(computed.chain(&self.selection).chain(fallible).map(Arc::as_ref))
    }
}

#[cfg(test)]
mod tests;
