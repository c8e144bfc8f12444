//! Predicate, expressions and all aggregates of a query in one pass over the rows.

mod accumulate;
mod float;
mod plan;
#[cfg(test)]
mod tests;
mod windows;

use std::fmt;
use std::sync::Arc;

use tracing::Instrument;

use crate::error::{GpuError, GpuResult};
use crate::memory::{BufferSlice, DeviceCaps, LaunchScope, ShaderSource, download_timed};

use super::exact::{ExactSum, Special};
use super::expr::widths::{is_integer, is_unsigned};
use super::expr::{Expr, ValueType};
use super::launch::{Grid, allocate, argument_slices, bind, check_bindings, dispatch, pack, plan_grid};
use super::program::{ColumnShape, Program, Segment, check_tables, column_shapes, columns_of};
use super::shader::{WORKGROUP, argument_block, column_bindings, fitted};
use float::{FloatSum, base_words};
use plan::Plan;

pub(crate) use float::Width;
pub use windows::FloatWindows;
pub(crate) use windows::MOST_SAMPLED;

/// Aggregate functions, all of them exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AggregateKind {
    /// `count(*)`: rows that pass selection and filter.
    CountRows,
    /// `count(x)`: those whose argument is not NULL.
    Count,
    /// Sum of integers of any type and of durations, wrapping at 64 bits.
    SumInt,
    /// Sum of decimals of any width, wrapping at 128 bits.
    SumDecimal,
    /// Exact sum of the integers after each was rounded to a double: the numerator of `avg(CAST(x AS DOUBLE))`.
    SumAsFloat64,
    /// Exact sum of Float32 or Float64, of any magnitude, NaN and infinities included.
    SumFloat,
    /// Minimum (integers, dates, booleans, decimals; floats in total order).
    Min,
    /// Maximum, likewise.
    Max,
    /// Bits that all values have (integers); of booleans, whether all are true.
    BitAnd,
    /// Bits that some value has; of booleans, whether some is true.
    BitOr,
    /// Bits that an odd number of values have.
    BitXor,
    /// With groups: the number, in the segment, of the row that comes first in an order of the argument; of equal ones that with the
    /// least number. Rows whose argument is NULL count. Not of floats.
    FirstRow(RowOrder),
}

/// An order of rows by one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowOrder {
    /// The greatest value comes first.
    pub descending: bool,
    /// NULL comes before all values.
    pub nulls_first: bool,
}

/// One aggregate. A row contributes when selection and filter are true and, but for [`AggregateKind::FirstRow`], the argument is not
/// NULL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregateSpec {
    /// Function.
    pub kind: AggregateKind,
    /// Argument; none for [`AggregateKind::CountRows`].
    pub arg: Option<Arc<Expr>>,
    /// FILTER clause.
    pub filter: Option<Arc<Expr>>,
}

/// Mergeable state of one aggregate.
#[derive(Debug, Clone, PartialEq)]
pub struct AggregateState {
    /// Contributing rows.
    pub count: u64,
    /// Sum, or minimum/maximum in the canonical encoding of a scalar; meaningful when `count > 0`.
    pub value: i128,
    /// Sum of floats.
    pub exact: ExactSum,
}

impl AggregateState {
    /// A state without a sum of floats.
    pub fn new(count: u64, value: i128) -> Self {
        AggregateState { count, value, exact: ExactSum::new() }
    }
}

impl fmt::Display for AggregateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AggregateKind::CountRows => "a count of rows",
            AggregateKind::Count => "a count of values",
            AggregateKind::SumInt => "a sum of integers",
            AggregateKind::SumDecimal => "a sum of decimals",
            AggregateKind::SumAsFloat64 => "a sum of integers as doubles",
            AggregateKind::SumFloat => "a sum of floats",
            AggregateKind::Min => "a minimum",
            AggregateKind::Max => "a maximum",
            AggregateKind::BitAnd => "the bits that all values have",
            AggregateKind::BitOr => "the bits that some value has",
            AggregateKind::BitXor => "the exclusive or of all values",
            AggregateKind::FirstRow(_) => "the row that comes first",
        })
    }
}

impl AggregateKind {
    /// State of no rows.
    pub fn init(&self) -> AggregateState {
        AggregateState::new(0, 0)
    }

    /// Whether a state of groups tells how many rows contributed; else it tells whether there are any.
    pub fn tells_rows(&self) -> bool {
        match self {
            AggregateKind::CountRows
            | AggregateKind::Count
            | AggregateKind::SumDecimal
            | AggregateKind::SumFloat
            | AggregateKind::SumAsFloat64 => true,
            AggregateKind::SumInt
            | AggregateKind::Min
            | AggregateKind::Max
            | AggregateKind::BitAnd
            | AggregateKind::BitOr
            | AggregateKind::BitXor
            | AggregateKind::FirstRow(_) => false,
        }
    }

    /// Whether DataFusion rounds its own state to a double.
    pub fn is_rounded(&self) -> bool {
        matches!(self, AggregateKind::SumFloat | AggregateKind::SumAsFloat64)
    }

    /// Adds the rows of `from` to `into`; `ty` is the argument's type.
    pub fn merge(&self, ty: ValueType, into: &mut AggregateState, from: &AggregateState) {
        if from.count == 0 {
            return;
        }
        into.value = if into.count == 0 { from.value } else { self.join(ty, into.value, from.value) };
        into.count += from.count;
        if *self == AggregateKind::SumFloat {
            into.exact.merge(&from.exact);
        }
    }

    /// The value of two non-empty states together.
    fn join(&self, ty: ValueType, a: i128, b: i128) -> i128 {
        match self {
            AggregateKind::CountRows | AggregateKind::Count | AggregateKind::SumFloat => 0,
            // Which of them comes first, their numbers don't tell.
            AggregateKind::FirstRow(_) => a,
            AggregateKind::SumInt => wrap64(ty, a.wrapping_add(b)),
            AggregateKind::SumDecimal | AggregateKind::SumAsFloat64 => a.wrapping_add(b),
            AggregateKind::Min if order_key(ty, b) < order_key(ty, a) => b,
            AggregateKind::Max if order_key(ty, b) > order_key(ty, a) => b,
            AggregateKind::Min | AggregateKind::Max => a,
            AggregateKind::BitAnd => a & b,
            AggregateKind::BitOr => a | b,
            AggregateKind::BitXor => a ^ b,
        }
    }
}

/// Whether sums of `ty` are those of 64-bit integers.
pub(crate) fn sums_as_integer(ty: ValueType) -> bool {
    is_integer(ty) || matches!(ty, ValueType::Duration(_))
}

/// A sum as the 64-bit integer type that DataFusion sums `ty` in.
pub(crate) fn wrap64(ty: ValueType, sum: i128) -> i128 {
    if is_unsigned(ty) { i128::from(sum as u64) } else { i128::from(sum as i64) }
}

/// An integer that orders canonical values of the type; floats in total order. Its own inverse for floats, up to the
/// representation as signed integer.
pub(crate) fn order_key(ty: ValueType, value: i128) -> i128 {
    match ty {
        ValueType::Float16 => {
            let bits = value as u16 as i16;
            i128::from(bits ^ (((bits >> 15) as u16) >> 1) as i16)
        }
        ValueType::Float32 => {
            let bits = value as u32 as i32;
            i128::from(bits ^ (((bits >> 31) as u32) >> 1) as i32)
        }
        ValueType::Float64 => {
            let bits = value as u64 as i64;
            i128::from(bits ^ (((bits >> 63) as u64) >> 1) as i64)
        }
        _ => value,
    }
}

/// The canonical value of a key made by [`order_key`].
fn from_order_key(ty: ValueType, key: i128) -> i128 {
    match ty {
        ValueType::Float16 => i128::from(order_key(ty, i128::from(key as u16)) as u16),
        ValueType::Float32 => i128::from(order_key(ty, i128::from(key as u32)) as u32),
        ValueType::Float64 => i128::from(order_key(ty, i128::from(key as u64)) as u64),
        _ => key,
    }
}

/// Answer for one segment.
#[derive(Debug, Clone, PartialEq)]
pub struct ReduceResult {
    /// One state an aggregate.
    pub states: Vec<AggregateState>,
    /// A live row met an arithmetic fault: the states are void and the CPU decides.
    pub fault: bool,
}

/// Reduces every segment; one result each, in order. All dispatches go in one submission with one wait.
///
/// # Errors
/// [`GpuError::Limit`] when the kernel binds more buffers, or a segment has more rows, than the adapter allows; those of
/// compilation, allocation and submission; [`GpuError::Internal`] for expressions that [`super::expr::check`] rejects.
pub async fn reduce(
    scope: &LaunchScope,
    program: &Program,
    aggregates: &[AggregateSpec],
    segments: &[Segment],
) -> GpuResult<Vec<ReduceResult>> {
    reduce_in(scope, program, aggregates, segments, &FloatWindows::new(aggregates)).await
}

/// The same with the windows of sums of floats, which learn from the segments.
///
/// # Errors
/// Those of [`reduce`].
pub async fn reduce_in(
    scope: &LaunchScope,
    program: &Program,
    aggregates: &[AggregateSpec],
    segments: &[Segment],
    windows: &FloatWindows,
) -> GpuResult<Vec<ReduceResult>> {
    let empty = ReduceResult { states: aggregates.iter().map(|a| a.kind.init()).collect(), fault: false };
    let mut results = vec![empty; segments.len()];
    let work: Vec<usize> = (0..segments.len()).filter(|&at| segments[at].rows > 0).collect();
    if work.is_empty() {
        return Ok(results);
    }
    let columns = column_shapes(&columns_of(exprs(program, aggregates)), segments)?;
    check_tables(exprs(program, aggregates), segments)?;
    let caps = Arc::clone(scope.context.caps());
    let columns = fitted(columns, own_buffers(aggregates), caps.max_storage_buffers);
    let plan = Plan::build(&caps, program, aggregates, &columns)?;
    if plan.accumulators.is_empty() {
        return Ok(results);
    }
    check_bindings(plan.slots.len() as u32, &caps)?;
    let pipeline = scope.context.compile(plan.shader.clone(), &scope.stats).await?;

    let bases: Vec<u32> =
        plan.floats.iter().map(|float| windows.base(float.aggregate, float.width)).collect();
    let mut launches = Vec::with_capacity(work.len());
    let mut blocks = Vec::with_capacity(work.len());
    for &at in &work {
        let segment = &segments[at];
        launches.push(Launch::new(scope, segment.rows, &plan, &caps)?);
        let mut own = vec![segment.rows as u32];
        own.extend(base_words(bases.iter().copied()));
        blocks.push(argument_block(&own, &columns, plan.tables, segment, &program.params)?);
    }
    let args = argument_slices(scope, &blocks)?;

    let mut timer = scope.timer();
    let mut encoder = scope.context.device().create_command_encoder(&Default::default());
    let packs = work.iter().map(|&at| pack(scope, &mut encoder, &columns, &segments[at]));
    let packs = packs.collect::<GpuResult<Vec<_>>>()?;
    for limbs in launches.iter().filter_map(|launch| launch.limbs.as_ref()) {
        encoder.clear_buffer(limbs.buffer.raw(), limbs.offset, Some(limbs.len));
    }
    {
        let mut pass = timer.pass(&mut encoder, "reduce");
        for (((&at, args), launch), pack) in work.iter().zip(&args).zip(&launches).zip(&packs) {
            let own: Vec<&BufferSlice> = pack.iter().chain([&launch.partials]).chain(&launch.limbs).collect();
            let group = bind(scope, &pipeline, &plan.slots, &segments[at], args, &own)?;
            dispatch(scope, &mut pass, &pipeline, &group, launch.grid);
        }
    }
    let ranges: Vec<(&BufferSlice, u64)> = launches.iter().flat_map(Launch::ranges).collect();
    let span = scope.kernel_span("reduce", work.iter().map(|&at| segments[at].rows).sum());
    let bytes = download_timed(scope, encoder, &ranges, timer).instrument(span).await?;
    if bytes.len() != ranges.len() {
        return Err(GpuError::Internal(format!("{} of {} read-backs", bytes.len(), ranges.len())));
    }
    let each = bytes.len() / work.len();
    for (&at, bytes) in work.iter().zip(bytes.chunks(each)) {
        let answer = Answer::new(&plan, bytes);
        results[at] = answer.result(aggregates, &bases);
        answer.teach(windows);
    }
    Ok(results)
}

/// Buffers that one segment's dispatch writes.
struct Launch {
    grid: Grid,
    partials: BufferSlice,
    partials_bytes: u64,
    limbs: Option<BufferSlice>,
    limbs_bytes: u64,
}

impl Launch {
    fn new(scope: &LaunchScope, rows: usize, plan: &Plan, caps: &DeviceCaps) -> GpuResult<Self> {
        let grid = grid(rows, plan, caps)?;
        let partials_bytes = u64::from(grid.groups()) * plan.record as u64 * 4;
        let partials = allocate(scope, "partials", partials_bytes)?;
        let limbs_bytes = u64::from(plan.limbs()) * 4;
        let limbs = (limbs_bytes > 0).then(|| allocate(scope, "limbs", limbs_bytes)).transpose()?;
        Ok(Launch { grid, partials, partials_bytes, limbs, limbs_bytes })
    }

    /// What is read back.
    fn ranges(&self) -> impl Iterator<Item = (&BufferSlice, u64)> {
        [(&self.partials, self.partials_bytes)]
            .into_iter()
            .chain(self.limbs.iter().map(|l| (l, self.limbs_bytes)))
    }
}

/// Buffers that the kernel binds beside arguments and columns: the partial results, and limbs.
fn own_buffers(aggregates: &[AggregateSpec]) -> u32 {
    1 + u32::from(aggregates.iter().any(|spec| spec.kind == AggregateKind::SumFloat))
}

fn exprs<'a>(program: &'a Program, aggregates: &'a [AggregateSpec]) -> impl Iterator<Item = &'a Arc<Expr>> {
    program.selection.iter().chain(aggregates.iter().flat_map(|a| a.arg.iter().chain(&a.filter)))
}

fn grid(rows: usize, plan: &Plan, caps: &DeviceCaps) -> GpuResult<Grid> {
    let tiles = (rows as u32).div_ceil(WORKGROUP * plan.unroll);
    let most = (1u32 << plan::THREAD_ROWS_LOG2) / plan.unroll;
    plan_grid(tiles, caps.reduce_workgroups, 1, plan.tail, most, caps)
}

/// What a segment's dispatch wrote.
struct Answer<'a> {
    plan: &'a Plan,
    /// The accumulators' values over all workgroups.
    totals: Vec<i128>,
    limbs: Vec<u32>,
}

impl<'a> Answer<'a> {
    /// Joins the workgroups' records of one segment.
    fn new(plan: &'a Plan, bytes: &[Vec<u8>]) -> Self {
        let words = |at: usize| -> Vec<u32> {
            let bytes = bytes.get(at).map_or(&[][..], Vec::as_slice);
            bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
        };
        let mut totals: Option<Vec<i128>> = None;
        for record in words(0).chunks_exact(plan.record.max(1)) {
            let values = plan.accumulators.iter().map(|acc| acc.read(record));
            totals = Some(match totals {
                None => values.collect(),
                Some(before) => {
                    let pairs = plan.accumulators.iter().zip(before.into_iter().zip(values));
                    pairs.map(|(acc, (a, b))| acc.join(a, b)).collect()
                }
            });
        }
        Answer { plan, totals: totals.unwrap_or_default(), limbs: words(1) }
    }

    fn total(&self, at: usize) -> i128 {
        self.totals.get(at).copied().unwrap_or(0)
    }

    fn result(&self, aggregates: &[AggregateSpec], bases: &[u32]) -> ReduceResult {
        let states = aggregates.iter().zip(&self.plan.places).map(|(spec, place)| {
            let count = self.total(place.count) as u64;
            if let Some(number) = place.float {
                return AggregateState { exact: self.float(number, bases), ..AggregateState::new(count, 0) };
            }
            let ty = spec.arg.as_ref().map_or(ValueType::Int64, |arg| arg.value_type());
            let value = match (place.value, spec.kind) {
                (Some(at), _) if count > 0 => match spec.kind {
                    AggregateKind::SumInt => wrap64(ty, self.total(at)),
                    AggregateKind::Min | AggregateKind::Max => from_order_key(ty, self.total(at)),
                    _ => self.total(at),
                },
                _ => 0,
            };
            AggregateState::new(count, value)
        });
        ReduceResult {
            states: states.collect(),
            fault: self.plan.fault.is_some_and(|at| self.total(at) != 0),
        }
    }

    fn float(&self, number: usize, bases: &[u32]) -> ExactSum {
        let Some(float) = self.plan.floats.get(number) else { return ExactSum::new() };
        let base = bases.get(float.base).copied().unwrap_or(1);
        let infinities = self.total(float.infinities);
        let special = Special {
            nan: self.total(float.nan) as u64,
            plus: infinities & 1 != 0,
            minus: infinities & 2 != 0,
        };
        float.read(self.total(float.window), base, special, &self.limbs)
    }

    /// Tells the windows how many values they did not hold.
    fn teach(&self, windows: &FloatWindows) {
        for place in &self.plan.places {
            let float: Option<&FloatSum> = place.float.and_then(|number| self.plan.floats.get(number));
            if let Some(float) = float {
                let (outside, field) = float.outside(&self.limbs);
                windows.learn(float.aggregate, float.width, self.total(place.count) as u64, outside, field);
            }
        }
    }
}

/// Storage buffers that [`reduce`] cannot do without, its columns packed into one; compare with `DeviceCaps::max_storage_buffers`.
pub fn reduce_bindings(program: &Program, aggregates: &[AggregateSpec], columns: &[ColumnShape]) -> u32 {
    let used = columns_of(exprs(program, aggregates));
    let columns: Vec<ColumnShape> = columns.iter().filter(|c| used.contains(&c.index)).copied().collect();
    column_bindings(&fitted(columns, 0, 0)) + own_buffers(aggregates)
}

/// The shader that [`reduce`] runs. Pure: needs no device.
///
/// # Errors
/// [`GpuError::Internal`] for expressions that [`super::expr::check`] rejects.
pub fn reduce_shader(
    caps: &DeviceCaps,
    program: &Program,
    aggregates: &[AggregateSpec],
    columns: &[ColumnShape],
) -> GpuResult<ShaderSource> {
    Ok(Plan::build(caps, program, aggregates, columns)?.shader)
}
