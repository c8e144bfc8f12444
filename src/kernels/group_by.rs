//! GROUP BY over one segment: predicate, key expressions, aggregate inputs and accumulation in one pass over the rows.
//!
//! A slot of the hash table names its group by a *representative row*: whoever claims a free slot by a compare-exchange writes its
//! row number, and others compare their keys with those of that row, read again from the columns. There are no locks,
//! and nobody waits for another. The group's accumulators lie beside, in words for which zero is the value of no rows. A table that
//! is too small raises a flag, and the segment is grouped again with a larger one. Then occupied slots are counted and scanned,
//! and keys and states are gathered densely, in the order of the slots.

mod accumulate;
mod attempt;
mod builder;
mod bytes;
mod columns;
mod fetch;
mod finish;
mod float;
mod kept;
mod kernel;
pub(super) mod keys;
mod launch;
mod merge;
mod ordered;
mod plan;
mod strategy;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::ArrayRef;

use crate::error::{GpuError, GpuResult};
use crate::memory::{DeviceCaps, LaunchScope, ShaderSource};

use super::exact::ExactSum;
use super::expr::widths::{is_integer, is_unsigned};
use super::expr::{Expr, ValueType};
use super::partition::{partition, partition_shaders};
use super::program::{ColumnShape, Program, Segment, check_tables, column_shapes, columns_of};
use super::reduce::{AggregateKind, AggregateSpec, sums_as_integer};
use super::select::array_of;
use super::shader::{column_bindings, fitted};
use attempt::Surprise;
use kept::Keep;
use launch::Launch;
use plan::{Form, Plan};

pub use bytes::group_by_bytes;
pub use fetch::{FetchedGroups, KeptPart};
pub use float::LimbRange;
pub use kept::{Grouped, KeepRule, KeptGroups, can_keep};
pub use merge::{merge_bytes, merge_groups, pile_groups};

/// One grouping key. NULL is a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GroupKey {
    /// Value of an expression of any type that a kernel computes. Floats group as DataFusion has them: -0 is +0, a NaN equals the same
    /// bits only.
    Value(Arc<Expr>),
    /// Codes of a source column that lies as [`crate::memory::ColumnRepr::Codes`]; code 0 is NULL.
    Codes(usize),
}

impl GroupKey {
    /// The expression, where there is one.
    pub(super) fn expr(&self) -> Option<&Arc<Expr>> {
        match self {
            GroupKey::Value(expr) => Some(expr),
            GroupKey::Codes(_) => None,
        }
    }

    /// The column of codes, where it is one.
    pub(super) fn codes(&self) -> Option<usize> {
        match self {
            GroupKey::Value(_) => None,
            GroupKey::Codes(index) => Some(*index),
        }
    }
}

/// Keys and aggregates. Without keys, all selected rows are one group, and there is none where no row is selected.
#[derive(Debug, Clone, Default)]
pub struct GroupBy {
    /// Keys.
    pub keys: Vec<GroupKey>,
    /// Aggregates.
    pub aggregates: Vec<AggregateSpec>,
    /// Sums, by number among the aggregates, of decimals, of floats, and of integers rounded to doubles, of which nobody needs the number of
    /// contributing rows, as an average does.
    pub uncounted: BTreeSet<usize>,
    /// Aggregates, by number, to which every row of a group contributes: their argument is not said to be NULL for any row, and they have no
    /// filter. Where it is all the same, the answer is right nevertheless.
    pub required: BTreeSet<usize>,
}

impl GroupBy {
    /// Whether [`GroupStates::counts`] of aggregate `at` has the number of contributing rows, not only whether there is one. To count
    /// rows takes a word of a group's record and an atomic operation a row.
    pub fn needs_number(&self, at: usize) -> bool {
        self.aggregates.get(at).is_some_and(|spec| match spec.kind {
            AggregateKind::CountRows | AggregateKind::Count => true,
            kind => kind.tells_rows() && !self.uncounted.contains(&at),
        })
    }
}

/// Values that a key has: both ends belong to it, NULL does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRange {
    /// Smallest value, in the canonical encoding of a scalar.
    pub min: i128,
    /// Largest value.
    pub max: i128,
}

/// What is known before the rows are seen. It decides about speed only: whatever it says, the answer is right.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupHint {
    /// Number of groups: what an earlier batch had, or an estimate.
    pub groups: Option<usize>,
    /// By key: the range of its values, where it is an integer, a date, a time, a boolean, a decimal below 2^63, or codes (0 to the number of
    /// distinct values).
    pub ranges: Vec<Option<KeyRange>>,
    /// What the values of sums of floats are like.
    pub sums: SummedFloats,
    /// Whether rows are parted by their keys' hashes first; without it, where that is expected to be faster. For tests and
    /// measurements.
    pub partitioned: Option<bool>,
}

/// What the values of sums of floats were like, NULL left out: it decides how many words a sum has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SummedFloats {
    /// By aggregate: the limbs in which the lowest bits of finite values lie; `None` where none but zeros were met, and of other
    /// aggregates. May be shorter than the list of aggregates.
    pub limbs: Vec<Option<LimbRange>>,
    /// Some aggregate met NaN or an infinity.
    pub special: bool,
}

/// How groups were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// A slot is computed from the keys; workgroups have all slots in memory of their own.
    Direct,
    /// A slot of device memory is computed from the keys.
    Dense,
    /// A hash table in device memory, with one for the first groups that each workgroup meets before it.
    Local,
    /// A hash table in device memory.
    Global,
    /// The same for rows that were parted by their keys' hashes before.
    Partitioned,
}

impl Strategy {
    /// Lower-case name for metrics and EXPLAIN.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Direct => "direct",
            Strategy::Dense => "dense",
            Strategy::Local => "local",
            Strategy::Global => "global",
            Strategy::Partitioned => "partitioned",
        }
    }
}

/// Peculiar values among the contributing arguments of MIN and MAX over floats, for which DataFusion's grouped answer depends on the order
/// of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FloatFlags {
    /// A NaN.
    pub nan: bool,
    /// -0.
    pub negative_zero: bool,
    /// +0.
    pub positive_zero: bool,
}

/// State values of one aggregate, one a group; void where the group's count is 0.
#[derive(Debug, Clone)]
pub enum StateValues {
    /// The count says all.
    None,
    /// Sums of integers: Int64 or UInt64, wrapped; of decimals: Decimal128(38, s), wrapped at 128 bits; of integers rounded to doubles
    /// ([`AggregateKind::SumAsFloat64`]): Decimal128(38, 0). MIN, MAX and those of bits: the argument's type. Rows: UInt32. No validity.
    Array(ArrayRef),
    /// Sums of floats.
    Exact(Vec<ExactSum>),
}

/// States of one aggregate, one a group.
#[derive(Debug, Clone)]
pub struct GroupStates {
    /// Contributing rows; where [`GroupBy::needs_number`] says so, else 1 where there are some.
    pub counts: Vec<u64>,
    /// Values.
    pub values: StateValues,
}

/// Groups of one segment, in no particular order.
#[derive(Debug, Clone)]
pub struct GroupResult {
    /// Number of groups.
    pub groups: usize,
    /// One a key, in its Arrow type, NULL where the key is; of [`GroupKey::Codes`] a UInt32Array of codes without validity.
    pub keys: Vec<ArrayRef>,
    /// One an aggregate.
    pub states: Vec<GroupStates>,
    /// A live row met an arithmetic fault: the rest is void and the CPU decides.
    pub fault: bool,
    /// Of MIN and MAX over floats, all aggregates together.
    pub floats: FloatFlags,
    /// Of sums of floats.
    pub sums: SummedFloats,
    /// How the groups were found.
    pub strategy: Strategy,
    /// Times that the rows were grouped again: because a table was too small, or the hint was not so.
    pub reruns: u32,
}

impl GroupResult {
    /// The answer of a segment without rows.
    ///
    /// # Errors
    /// [`GpuError::Internal`] for types without arrays.
    fn empty(by: &GroupBy, fault: bool) -> GpuResult<GroupResult> {
        let keys = by.keys.iter().map(|key| match key {
            GroupKey::Value(expr) => array_of(expr.value_type(), &[]),
            GroupKey::Codes(_) => array_of(ValueType::UInt32, &[]),
        });
        let states = by.aggregates.iter().map(|spec| {
            let values = match state_type(spec)? {
                _ if spec.kind == AggregateKind::SumFloat => StateValues::Exact(vec![]),
                None => StateValues::None,
                Some(ty) => StateValues::Array(array_of(ty, &[])?),
            };
            Ok(GroupStates { counts: vec![], values })
        });
        Ok(GroupResult {
            groups: 0,
            keys: keys.collect::<GpuResult<_>>()?,
            states: states.collect::<GpuResult<_>>()?,
            fault,
            floats: FloatFlags::default(),
            sums: SummedFloats { limbs: vec![None; by.aggregates.len()], special: false },
            strategy: Strategy::Global,
            reruns: 0,
        })
    }
}

/// Type of an aggregate's state values; `None` where the count says all, and of sums of floats.
///
/// # Errors
/// [`GpuError::Internal`] for an aggregate that lacks its argument, or whose argument has no such sum.
pub fn state_type(spec: &AggregateSpec) -> GpuResult<Option<ValueType>> {
    let arg = match (&spec.arg, spec.kind) {
        (_, AggregateKind::CountRows) => return Ok(None),
        (Some(arg), _) => arg.value_type(),
        (None, kind) => return Err(GpuError::Internal(format!("{kind} without an argument"))),
    };
    let unfit = || GpuError::Internal(format!("{} over {arg}", spec.kind));
    Ok(match spec.kind {
        AggregateKind::CountRows | AggregateKind::Count => None,
        AggregateKind::SumFloat => match arg {
            ValueType::Float32 | ValueType::Float64 => None,
            _ => return Err(unfit()),
        },
        AggregateKind::SumInt if is_unsigned(arg) => Some(ValueType::UInt64),
        AggregateKind::SumInt if sums_as_integer(arg) => Some(ValueType::Int64),
        AggregateKind::SumInt => return Err(unfit()),
        AggregateKind::SumDecimal => match arg {
            ValueType::Decimal32 { scale, .. }
            | ValueType::Decimal64 { scale, .. }
            | ValueType::Decimal { scale, .. } => Some(ValueType::Decimal { precision: 38, scale }),
            _ => return Err(unfit()),
        },
        AggregateKind::SumAsFloat64 => Some(ValueType::Decimal { precision: 38, scale: 0 }),
        AggregateKind::BitAnd | AggregateKind::BitOr | AggregateKind::BitXor => match arg {
            ValueType::Boolean => Some(arg),
            _ if is_integer(arg) => Some(arg),
            _ => return Err(unfit()),
        },
        AggregateKind::FirstRow(_) => match arg {
            ValueType::Opaque | ValueType::Null => return Err(unfit()),
            ty if ty.to_arrow().is_floating() => return Err(unfit()),
            _ => Some(ValueType::UInt32),
        },
        AggregateKind::Min | AggregateKind::Max => match arg {
            ValueType::Opaque | ValueType::Null => return Err(unfit()),
            ty => Some(ty),
        },
    })
}

/// Groups the rows of a segment.
///
/// # Errors
/// [`GpuError::Limit`] when a kernel binds more buffers than the adapter allows, or when table or result are larger than a
/// binding (fewer rows at a time then help); those of compilation, allocation and submission; [`GpuError::Internal`] for
/// expressions that [`super::expr::check`] rejects.
pub async fn group_by(
    scope: &LaunchScope,
    program: &Program,
    by: &GroupBy,
    segment: &Segment,
    hint: &GroupHint,
) -> GpuResult<GroupResult> {
    match grouped(scope, program, by, segment, hint, (None, false)).await? {
        Grouped::Host(result) => Ok(result),
        Grouped::Kept(_) => Err(GpuError::Internal("groups were kept that nobody asked for".to_owned())),
    }
}

/// [`group_by`], whose groups stay on the device where `rule` says so; nothing of a fault stays.
///
/// # Errors
/// Those of [`group_by`].
pub async fn group_and_keep(
    scope: &LaunchScope,
    program: &Program,
    by: &GroupBy,
    segment: &Segment,
    hint: &GroupHint,
    rule: KeepRule,
) -> GpuResult<Grouped> {
    let keep = can_keep(by).then_some(Keep::Rule(rule));
    grouped(scope, program, by, segment, hint, (keep, false)).await
}

/// Groups the rows of a segment; of merging ones, each row is a group.
async fn grouped(
    scope: &LaunchScope,
    program: &Program,
    by: &GroupBy,
    segment: &Segment,
    hint: &GroupHint,
    (keep, merging): (Option<Keep>, bool),
) -> GpuResult<Grouped> {
    if segment.rows == 0 {
        return GroupResult::empty(by, false).map(Grouped::Host);
    }
    let columns = column_shapes(&columns_used(program, by), [segment])?;
    check_tables(exprs(program, by), [segment])?;
    let caps = Arc::clone(scope.context.caps());
    // Of rows that were parted, only those that are selected are visited.
    let unselected = Program { selection: None, params: program.params.clone() };
    let (selecting, selected_columns) = (program, column_shapes(&columns_used(&unselected, by), [segment])?);
    let mut order = None;
    let mut hint = hint.clone();
    let mut reruns = 0;
    loop {
        let kept = keep.is_some() && !merging;
        let form = Form { ordered: false, merging, kept };
        let plan = Plan::build(&caps, program, by, &columns, segment.rows, &hint, form)?;
        let (mut program, mut plan) = (program, plan);
        if plan.wants_order(segment.rows, &hint, &caps) {
            let form = Form { ordered: true, ..form };
            plan = Plan::build(&caps, &unselected, by, &selected_columns, segment.rows, &hint, form)?;
            program = &unselected;
            if order.is_none() {
                let bytes = plan.ordered_bytes();
                order = Some(partition(scope, selecting, &by.keys, segment, bytes, ordered::SEED).await?);
            }
        }
        let order = order.as_ref().filter(|_| plan.choice.mode.ordered);
        let launch = Launch::prepare(scope, program, by, segment, plan, (order, keep)).await?;
        let before = hint.clone();
        match launch.run(&hint).await? {
            Ok(groups) => return Ok(groups.after(reruns)),
            Err(Surprise::Keys) => hint.ranges.clear(),
            Err(Surprise::TooManyGroups) => {
                hint.groups = Some(segment.rows);
                hint.partitioned = Some(true);
            }
            Err(Surprise::Floats { groups, met }) => {
                hint.groups = hint.groups.max(Some(groups));
                hint.sums.union(&met);
            }
        }
        reruns += 1;
        // Each surprise teaches something, so they end.
        if hint == before {
            return Err(GpuError::Internal(format!("a grouping does not learn: {hint:?}")));
        }
    }
}

/// Storage buffers that [`group_by`] cannot do without, its columns packed into one; compare with
/// `DeviceCaps::max_storage_buffers`.
pub fn group_by_bindings(program: &Program, by: &GroupBy, columns: &[ColumnShape]) -> u32 {
    let used = columns_used(program, by);
    let columns: Vec<ColumnShape> = columns.iter().filter(|c| used.contains(&c.index)).copied().collect();
    column_bindings(&fitted(columns, 0, 0)) + plan::OWN_BINDINGS
}

/// The shaders that [`group_by`] runs with such a hint. Pure: needs no device.
///
/// # Errors
/// [`GpuError::Internal`] for expressions that [`super::expr::check`] rejects.
pub fn group_by_shaders(
    caps: &DeviceCaps,
    program: &Program,
    by: &GroupBy,
    columns: &[ColumnShape],
    hint: &GroupHint,
) -> GpuResult<Vec<ShaderSource>> {
    /// Rows of a usual batch.
    const ROWS: usize = 1 << 19;
    let used = columns_used(program, by);
    let columns: Vec<ColumnShape> = columns.iter().filter(|c| used.contains(&c.index)).copied().collect();
    let plan = Plan::build(caps, program, by, &columns, ROWS, hint, Form::PLAIN)?;
    if !plan.wants_order(ROWS, hint, caps) {
        return Ok(plan.shaders());
    }
    let unselected = Program { selection: None, params: program.params.clone() };
    let selected: Vec<ColumnShape> = {
        let used = columns_used(&unselected, by);
        columns.iter().filter(|c| used.contains(&c.index)).copied().collect()
    };
    let keyed: Vec<ColumnShape> = {
        let mut used = columns_of(by.keys.iter().filter_map(GroupKey::expr).chain(&program.selection));
        used.extend(by.keys.iter().filter_map(GroupKey::codes));
        columns.iter().filter(|c| used.contains(&c.index)).copied().collect()
    };
    let ordered = Plan::build(caps, &unselected, by, &selected, ROWS, hint, Form::ORDERED)?.shaders();
    Ok(ordered.into_iter().chain(partition_shaders(caps, program, &by.keys, &keyed)?).collect())
}

fn exprs<'a>(program: &'a Program, by: &'a GroupBy) -> impl Iterator<Item = &'a Arc<Expr>> {
    let keys = by.keys.iter().filter_map(GroupKey::expr);
    let inputs = by.aggregates.iter().flat_map(|spec| spec.arg.iter().chain(&spec.filter));
    program.selection.iter().chain(keys).chain(inputs)
}

fn columns_used(program: &Program, by: &GroupBy) -> BTreeSet<usize> {
    let mut columns = columns_of(exprs(program, by));
    columns.extend(by.keys.iter().filter_map(GroupKey::codes));
    columns
}
