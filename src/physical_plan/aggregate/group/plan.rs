//! What is computed of one batch, and of each of its parts.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::dag::id;
use crate::kernels::expr::{Expr, Interner, ValueType};
use crate::kernels::group_by::{
    GroupBy, GroupHint, GroupResult, Grouped, KeepRule, SummedFloats, can_keep, group_and_keep, group_by,
    group_by_bytes,
};
use crate::kernels::program::{Program, Segment, columns_of, tables_of};
use crate::kernels::table_copy_bytes;
use crate::memory::batch::GpuBatch;
use crate::memory::launch::LaunchScope;
use crate::memory::upload::staging_bytes;

use super::super::super::params::{ParamValues, rebase};
use super::super::rebased;
use super::GroupOp;
use super::first::RowStates;
use super::hints::Learned;
use super::keys::{BatchKeys, FixedKeys};
use super::states;
use super::text::BatchText;

/// The kernels over a batch, one a grouping set.
pub(super) struct GroupPlan {
    program: Program,
    sets: Vec<(BatchKeys, GroupBy)>,
    /// Where the arguments of MIN and MAX over strings are, by aggregate.
    texts: Vec<Option<BatchText>>,
    needed: BTreeSet<usize>,
    /// Tables that the device looks up, and those that the host does.
    tables: BTreeSet<usize>,
    host_tables: BTreeSet<usize>,
    /// Columns whose codes are keys.
    pub coded: BTreeSet<usize>,
}

impl GroupPlan {
    /// The kernels for `batch`, which gets the operator's parameters; `params` are their values, `constants` those of the constant
    /// keys.
    ///
    /// # Errors
    /// An internal error when the batch does not have the columns that the operator was planned on.
    pub(super) fn new(
        op: &GroupOp,
        batch: &mut GpuBatch,
        params: &ParamValues,
        constants: &[Option<ScalarValue>],
    ) -> Result<Self> {
        let bound = op.params.bind(batch, params)?;
        let aggregates = rebased(&op.aggregates, batch, &bound)?;
        let keys = op.sets.iter().map(|set| BatchKeys::new(&op.keys, constants, set, batch, &bound));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let over = |expr: &Arc<Expr>| rebase(expr, &|index| batch.column_expr(index), &bound);
        let texts = op.texts.iter().map(|text| match text {
            None => Ok(None),
            Some(text) => text.over(&over).map(Some).ok_or_else(|| {
                internal_datafusion_err!("GpuAggregateExec: an aggregate reads a column that is not there")
            }),
        });
        let texts: Vec<Option<BatchText>> = texts.collect::<Result<_>>()?;
        // Each kernel evaluates its own keys; what any of them leaves out is guarded in all.
        let mut exprs = Interner::default();
        let mut set_of = |keys: &BatchKeys| keys.exprs().map(|key| id(&exprs.intern(key))).collect();
        let in_sets: Vec<HashSet<usize>> = keys.iter().map(&mut set_of).collect();
        let (in_all, left_out): (Vec<_>, Vec<_>) = keys.iter().flat_map(BatchKeys::exprs).partition(|key| {
            let key = id(&exprs.intern(key));
            in_sets.iter().all(|set| set.contains(&key))
        });
        let unfiltered = aggregates.iter().filter(|spec| spec.filter.is_none());
        let arguments = unfiltered.filter_map(|spec| spec.arg.as_ref());
        let evaluated: Vec<_> = in_all.into_iter().chain(arguments).collect();
        // DataFusion evaluates keys for every grouping set, and arguments with GROUP BY before it filters.
        let filtered = aggregates.iter().filter(|spec| spec.filter.is_some());
        let filtered = filtered.filter_map(|spec| spec.arg.as_ref()).filter(|_| op.has_groups());
        let guarded: Vec<_> = left_out.into_iter().chain(filtered).filter(|expr| expr.may_fault()).collect();
        let guards = Expr::balanced(guarded.into_iter().map(always).collect(), Expr::And);
        let selection = match (batch.guarded_selection(&evaluated), guards) {
            // A CASE, so that rows count that are selected.
            (Some(selection), Some(guards)) => {
                let branches = vec![(selection, guards)];
                Some(Arc::new(Expr::Case { branches, otherwise: None, ty: ValueType::Boolean }))
            }
            (selection, guards) => selection.or(guards),
        };
        let program = Program { selection, params: batch.params().to_vec() };
        let inputs = || aggregates.iter().flat_map(|spec| spec.arg.iter().chain(&spec.filter));
        let exprs = || inputs().chain(&program.selection).chain(keys.iter().flat_map(BatchKeys::exprs));
        let coded: BTreeSet<usize> = keys.iter().flat_map(BatchKeys::coded).collect();
        let mut needed = columns_of(exprs());
        needed.extend(&coded);
        let tables = tables_of(exprs()).into_keys().collect();
        let all_texts = keys.iter().flat_map(BatchKeys::texts).chain(texts.iter().flatten());
        let host_tables = all_texts.filter_map(|text| text.table).collect();
        let sets = keys.into_iter().map(|keys| {
            let (uncounted, required) = (op.uncounted.clone(), op.required.clone());
            let by =
                GroupBy { keys: keys.kernel.clone(), aggregates: aggregates.clone(), uncounted, required };
            (keys, by)
        });
        let sets = sets.collect();
        Ok(Self { program, sets, texts, needed, tables, host_tables, coded })
    }

    /// Tables of the device and of the host.
    pub(super) fn all_tables(&self) -> BTreeSet<usize> {
        self.tables.union(&self.host_tables).copied().collect()
    }

    /// Device bytes held at a time: columns, look-up tables, staging memory, and the tables of one grouping set.
    pub(super) fn need(&self, batch: &GpuBatch, hints: &[GroupHint]) -> u64 {
        let source = batch.source();
        let columns = source.column_bytes(&self.needed);
        let tables = batch.table_bytes(&self.tables);
        let uploaded = |bytes: u64| bytes.saturating_add(staging_bytes(bytes));
        let sets = self.sets.iter().zip(hints);
        let groups = sets.map(|((_, by), hint)| group_by_bytes(&self.program, by, source.rows(), hint)).max();
        // Two kernels have a copy of the tables each, at most.
        let copy =
            table_copy_bytes(&self.program, self.needed.len(), &self.tables, batch.table_len(&self.tables));
        let tables = uploaded(tables).saturating_add(copy.saturating_mul(2));
        uploaded(columns).saturating_add(tables).saturating_add(groups.unwrap_or(0))
    }

    /// What the kernels are told of the rows.
    pub(super) fn hints(&self, batch: &GpuBatch, learned: &[Learned]) -> Vec<GroupHint> {
        let sums = match (self.sets.first(), batch.source().host().first()) {
            (Some((_, by)), Some(rows)) if learned.iter().any(Learned::is_nothing) => {
                SummedFloats::sample(&self.program, &by.aggregates, rows.columns(), rows.num_rows())
            }
            _ => SummedFloats::default(),
        };
        let sets = self.sets.iter().zip(learned);
        sets.map(|((keys, _), learned)| learned.hint(&keys.kernel, batch, &sums)).collect()
    }

    /// Where the keys come from, if the groups can be merged with those of other batches on the device.
    pub(super) fn mergeable(&self) -> Option<FixedKeys> {
        match self.sets.as_slice() {
            [(keys, by)] if can_keep(by) && self.texts.iter().all(Option::is_none) => keys.fixed(),
            _ => None,
        }
    }

    /// The groups of each grouping set; of a single one, those that `rule` names stay on the device.
    ///
    /// # Errors
    /// Those of uploading and of the kernel.
    pub(super) async fn group(
        &self,
        scope: &LaunchScope,
        batch: &GpuBatch,
        hints: &[GroupHint],
        rule: Option<KeepRule>,
    ) -> GpuResult<Vec<Grouped>> {
        let columns = batch.source().device_columns(scope, &self.needed).await?;
        let tables = batch.device_tables(scope, &self.tables).await?;
        let segment = Segment { columns, rows: batch.source().rows(), tables };
        if let ([(_, by)], [hint], Some(rule)) = (self.sets.as_slice(), hints, rule) {
            return Ok(vec![group_and_keep(scope, &self.program, by, &segment, hint, rule).await?]);
        }
        let mut results = Vec::with_capacity(self.sets.len());
        // All sets sum the same floats.
        let mut met = SummedFloats::default();
        for ((_, by), hint) in self.sets.iter().zip(hints) {
            let mut hint = hint.clone();
            hint.sums.union(&met);
            let result = group_by(scope, &self.program, by, &segment, &hint).await?;
            met.union(&result.sums);
            let fault = result.fault;
            results.push(Grouped::Host(result));
            if fault {
                break;
            }
        }
        Ok(results)
    }

    /// Whether a row met a fault, so that the CPU decides.
    pub(super) fn faulted(&self, batch: &GpuBatch, results: &[GroupResult]) -> bool {
        results.iter().any(|result| result.fault)
            || self.sets.iter().zip(results).any(|((keys, _), result)| keys.meet_poison(batch, &result.keys))
    }

    /// Rows of DataFusion's partial aggregate, one batch a grouping set; `rows` are the states that are made of rows, by grouping set.
    ///
    /// # Errors
    /// [`GpuError::Internal`] where kernel and schema do not fit.
    pub(super) fn states(
        &self,
        op: &GroupOp,
        batch: &GpuBatch,
        results: &[GroupResult],
        rows: &[RowStates],
    ) -> GpuResult<Vec<RecordBatch>> {
        let internal = |error: datafusion::common::DataFusionError| GpuError::Internal(error.to_string());
        let fields = op.state_schema.fields();
        let keys = op.merged_group.expr().len().min(fields.len());
        let mut batches = Vec::with_capacity(results.len());
        let sets = self.sets.iter().zip(results).enumerate();
        for (number, ((set, _), result)) in sets.filter(|(_, (_, result))| result.groups > 0) {
            let mut columns = set.columns(batch, &result.keys, result.groups, &fields[..keys])?;
            if op.of_states {
                let merged = result.states.iter().zip(&self.texts).zip(fields.iter().skip(keys));
                for ((state, text), field) in merged {
                    let text = text.as_ref().map(|text| (text, batch));
                    columns.push(states::merged(state, text, field).map_err(internal)?);
                }
                batches.push(states::batch(&op.state_schema, columns).map_err(internal)?);
                continue;
            }
            let functions = op.aggregates.iter().zip(&op.functions).zip(&self.texts);
            for (at, (((spec, function), text), state)) in functions.zip(&result.states).enumerate() {
                if let Some(Some(states)) = rows.get(number).and_then(|rows| rows.get(at)) {
                    columns.extend(states.iter().cloned());
                    continue;
                }
                let text = text.as_ref().map(|text| (text, batch));
                columns.extend(states::columns(spec, function, state, text).map_err(internal)?);
            }
            batches.push(states::batch(&op.state_schema, columns).map_err(internal)?);
        }
        Ok(batches)
    }
}

/// True for every row, after the expression was evaluated.
pub(crate) fn always(expr: &Arc<Expr>) -> Arc<Expr> {
    let null = Arc::new(Expr::IsNull(Arc::clone(expr)));
    Arc::new(Expr::Or(null, Arc::new(Expr::IsNotNull(Arc::clone(expr)))))
}
