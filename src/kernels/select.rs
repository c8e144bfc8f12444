//! Filter and computed projections with the result on the host, rows in order.
//!
//! Reduce, then scan: a mask kernel evaluates the predicate into bits and counts them a tile, a scan turns counts into
//! offsets, and a gathering kernel evaluates the outputs at the selected rows and writes each at its rank. Row counts
//! stay on the device until outputs must be allocated: one wait where reading capacity-sized outputs is cheap, else two.

mod arrays;
mod buffers;
mod need;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::{BooleanBuffer, NullBuffer};
use tracing::Instrument;

use crate::error::{GpuError, GpuResult};
use crate::memory::{BufferSlice, DeviceCaps, LaunchScope, Pipeline, download_timed};

use super::expr::Expr;
use super::launch::{Grid, argument_slices, bind, bind_slices, check_bindings, dispatch, pack, plan_grid};
use super::program::{ColumnShape, Program, Segment, check_tables, column_shapes, columns_of};
use super::shader::argument_block;
use buffers::{Known, Placed, Work, region_words};
use plan::{GATHER_COST, GatherPlan, MaskPlan, TILE_WORDS, gather_plans};
pub(crate) use plan::{SCAN_BLOCK, SCAN_COST, scan_shader};

pub(crate) use arrays::{array_of, from_device};
pub use need::{select_bindings, select_bytes, select_shaders};

/// Output bytes up to which capacity-sized outputs are read back at once instead of waiting for the row counts.
const ONE_WAIT_BYTES: u64 = 4 << 20;

/// Answer for one segment.
#[derive(Debug, Clone)]
pub struct SelectResult {
    /// Selected rows; `None` when the program has no selection (every row).
    pub mask: Option<BooleanBuffer>,
    /// Number of selected rows.
    pub selected: usize,
    /// Output expressions at the selected rows, in row order, in the expressions' Arrow types.
    pub outputs: Vec<ArrayRef>,
    /// A live row met an arithmetic fault: the rest is void and the CPU decides.
    pub fault: bool,
}

/// Filters every segment and evaluates `outputs` at the rows that remain; one result a segment, in order.
///
/// # Errors
/// [`GpuError::Limit`] when a kernel binds more buffers, an output is larger than a binding, or a segment has more rows
/// than the adapter allows; those of compilation, allocation and submission; [`GpuError::Internal`] for expressions that
/// [`super::expr::check`] rejects.
pub async fn select(
    scope: &LaunchScope,
    program: &Program,
    outputs: &[Arc<Expr>],
    segments: &[Segment],
) -> GpuResult<Vec<SelectResult>> {
    let busy: Vec<&Segment> = segments.iter().filter(|segment| segment.rows > 0).collect();
    let mut done = if busy.is_empty() {
        vec![]
    } else {
        Select::prepare(scope, program, outputs, &busy).await?.run().await?
    }
    .into_iter();
    let mut results = Vec::with_capacity(segments.len());
    for segment in segments {
        results.push(if segment.rows > 0 {
            done.next().ok_or_else(|| GpuError::Internal("a segment has no result".to_owned()))?
        } else {
            SelectResult {
                mask: program.selection.as_ref().map(|_| BooleanBuffer::new_unset(0)),
                selected: 0,
                outputs: empty_outputs(outputs)?,
                fault: false,
            }
        });
    }
    Ok(results)
}

fn empty_outputs(outputs: &[Arc<Expr>]) -> GpuResult<Vec<ArrayRef>> {
    outputs.iter().map(|expr| array_of(expr.value_type(), &[])).collect()
}

/// A selection whose kernels are compiled.
struct Select<'a> {
    scope: &'a LaunchScope,
    caps: Arc<DeviceCaps>,
    program: &'a Program,
    outputs: &'a [Arc<Expr>],
    mask: Option<(MaskPlan, Arc<Pipeline>, Arc<Pipeline>)>,
    gathers: Vec<(GatherPlan, Arc<Pipeline>)>,
    work: Vec<Work<'a>>,
}

impl<'a> Select<'a> {
    async fn prepare(
        scope: &'a LaunchScope,
        program: &'a Program,
        outputs: &'a [Arc<Expr>],
        segments: &[&'a Segment],
    ) -> GpuResult<Select<'a>> {
        let caps = Arc::clone(scope.context.caps());
        let columns =
            column_shapes(&columns_of(program.selection.iter().chain(outputs)), segments.iter().copied())?;
        check_tables(program.selection.iter().chain(outputs), segments.iter().copied())?;
        let mask = match &program.selection {
            None => None,
            Some(selection) => {
                let plan = MaskPlan::build(&caps, program, selection, &columns)?;
                check_bindings(plan.slots.len() as u32, &caps)?;
                let pipeline = scope.context.compile(plan.shader.clone(), &scope.stats).await?;
                Some((plan, pipeline, scope.context.compile(scan_shader(), &scope.stats).await?))
            }
        };
        let mut gathers = vec![];
        for plan in gather_plans(&caps, program, outputs, &columns)? {
            check_bindings(plan.slots.len() as u32, &caps)?;
            let pipeline = scope.context.compile(plan.shader.clone(), &scope.stats).await?;
            gathers.push((plan, pipeline));
        }
        let work = segments
            .iter()
            .map(|&segment| Work::new(scope, segment, mask.is_some()))
            .collect::<GpuResult<Vec<_>>>()?;
        Ok(Select { scope, caps, program, outputs, mask, gathers, work })
    }

    fn segment_rows(&self) -> usize {
        self.work.iter().map(|work| work.segment.rows).sum()
    }

    async fn run(self) -> GpuResult<Vec<SelectResult>> {
        let mut encoder = self.scope.context.device().create_command_encoder(&Default::default());
        let mut timer = self.scope.timer();
        for work in &self.work {
            work.clear(&mut encoder);
        }
        // Argument buffers that go back to the pool before the submission would be written over.
        let mut keep = vec![];
        if self.mask.is_some() {
            let packs =
                self.packs(&mut encoder, self.mask.as_ref().map_or(&[], |(plan, ..)| &plan.columns))?;
            self.encode_selection(&mut timer.pass(&mut encoder, "select"), &packs, &mut keep)?;
            keep.extend(packs.into_iter().flatten());
        }
        let rows: Vec<usize> = self.work.iter().map(|work| work.segment.rows).collect();
        let one_wait = self.mask.is_none() || self.output_bytes(&rows) <= ONE_WAIT_BYTES;
        let known = if one_wait {
            None
        } else {
            let ranges = self.state_ranges(true);
            let span = self.scope.kernel_span("mask", self.segment_rows());
            let bytes = download_timed(self.scope, encoder, &ranges, timer).instrument(span).await?;
            timer = self.scope.timer();
            encoder = self.scope.context.device().create_command_encoder(&Default::default());
            Some(self.known(&mut bytes.into_iter(), true)?)
        };
        let capacity: Vec<usize> = match &known {
            Some(known) => known.iter().map(|k| k.selected).collect(),
            None => rows,
        };
        if known.is_some() && (self.gathers.is_empty() || capacity.iter().all(|&rows| rows == 0)) {
            return known.unwrap_or_default().into_iter().map(|k| self.empty_result(k)).collect();
        }
        let placed = self.allocate_outputs(&capacity)?;
        self.encode_outputs(&mut encoder, &mut timer, &placed, &capacity, &mut keep)?;
        let mut ranges = self.state_ranges(known.is_none());
        for outputs in placed.iter().flatten() {
            ranges.extend(outputs.ranges());
        }
        let span = self.scope.kernel_span("select", self.segment_rows());
        let bytes = download_timed(self.scope, encoder, &ranges, timer).instrument(span).await?;
        drop(keep);
        let mut bytes = bytes.into_iter();
        let again = self.known(&mut bytes, known.is_none())?;
        let known = match known {
            None => again,
            Some(before) => before
                .into_iter()
                .zip(again)
                .map(|(before, now)| Known { fault: before.fault || now.fault, ..before })
                .collect(),
        };
        let results = known.into_iter().zip(&placed).zip(&capacity);
        results.map(|((known, placed), &rows)| self.result(known, placed, rows, &mut bytes)).collect()
    }

    /// Mask, counts and offsets of every segment. Dispatches of the same kind stand together, so that barriers are few.
    fn encode_selection(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        packs: &[Option<BufferSlice>],
        keep: &mut Vec<BufferSlice>,
    ) -> GpuResult<()> {
        let Some((plan, mask, scan)) = &self.mask else {
            return Ok(());
        };
        let args = self.arguments(&plan.columns, plan.tables, |work| vec![work.rows, work.tiles])?;
        let first =
            self.arguments(&[], false, |work| vec![work.tiles, work.blocks, u32::from(work.blocks == 1)])?;
        let second = self.arguments(&[], false, |work| vec![work.blocks, 1, 1])?;
        let fill = self.caps.reduce_workgroups.saturating_mul(4);
        let scans = || self.work.iter().filter_map(|work| work.scan.as_ref().map(|scan| (work, scan)));
        for (((work, buffers), args), pack) in scans().zip(&args).zip(packs) {
            let own: Vec<_> = pack.iter().chain([&buffers.mask, &buffers.counts, &work.status]).collect();
            let group = bind(self.scope, mask, &plan.slots, work.segment, args, &own)?;
            let grid = plan_grid(work.tiles, fill, 1, 8, u32::MAX, &self.caps)?;
            dispatch(self.scope, pass, mask, &group, grid);
        }
        for ((work, buffers), args) in scans().zip(&first) {
            // One block's total is the number of selected rows.
            let totals = if work.blocks == 1 { &work.status } else { &buffers.block_totals };
            let slices = [args, &buffers.counts, &buffers.offsets, totals];
            let group = bind_slices(self.scope, scan, &slices);
            let grid = plan_grid(work.blocks, fill, SCAN_COST, 8, u32::MAX, &self.caps)?;
            dispatch(self.scope, pass, scan, &group, grid);
        }
        for ((work, buffers), args) in scans().zip(&second).filter(|((work, _), _)| work.blocks > 1) {
            let slices = [args, &buffers.block_totals, &buffers.block_offsets, &work.status];
            let group = bind_slices(self.scope, scan, &slices);
            dispatch(self.scope, pass, scan, &group, Grid { size: [1, 1, 1] });
        }
        keep.extend(args.into_iter().chain(first).chain(second));
        Ok(())
    }

    fn encode_outputs(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        timer: &mut crate::memory::PassTimer,
        placed: &[Vec<Placed>],
        capacity: &[usize],
        keep: &mut Vec<BufferSlice>,
    ) -> GpuResult<()> {
        for bits in placed.iter().flatten().filter_map(|placed| placed.bits.as_ref()) {
            encoder.clear_buffer(bits.buffer.raw(), bits.offset, Some(bits.len));
        }
        let packs = self.gathers.iter().map(|(plan, _)| self.packs(encoder, &plan.columns));
        let packs = packs.collect::<GpuResult<Vec<_>>>()?;
        let mut pass = timer.pass(encoder, "select_gather");
        let fill = self.caps.reduce_workgroups.saturating_mul(4);
        for (number, (plan, pipeline)) in self.gathers.iter().enumerate() {
            let mut capacities = capacity.iter();
            let args = self.arguments(&plan.columns, plan.tables, |work| {
                let rows = capacities.next().copied().unwrap_or(0);
                vec![work.rows, work.tiles, region_words(rows)]
            })?;
            let works = self.work.iter().zip(&packs[number]);
            for ((((work, pack), placed), args), &rows) in works.zip(placed).zip(&args).zip(capacity) {
                let Some(placed) = placed.get(number).filter(|_| rows > 0) else { continue };
                let mut own: Vec<&BufferSlice> = pack.iter().collect();
                if let Some(scan) = &work.scan {
                    own.extend([&scan.mask, &scan.offsets, &scan.block_offsets]);
                }
                own.extend(&placed.bits);
                if plan.can_fault {
                    own.push(&work.status);
                }
                own.extend(placed.values.iter().flatten());
                let group = bind(self.scope, pipeline, &plan.slots, work.segment, args, &own)?;
                let grid = plan_grid(work.tiles, fill, GATHER_COST, 8, u32::MAX, &self.caps)?;
                dispatch(self.scope, &mut pass, pipeline, &group, grid);
            }
            keep.extend(args);
        }
        keep.extend(packs.into_iter().flatten().flatten());
        Ok(())
    }

    /// The packed columns of each segment, where the kernel over `columns` has them so.
    fn packs(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        columns: &[ColumnShape],
    ) -> GpuResult<Vec<Option<BufferSlice>>> {
        self.work.iter().map(|work| pack(self.scope, encoder, columns, work.segment)).collect()
    }

    /// One argument block a segment for a kernel over `columns`, with these own words; `tables` says whether it reads some.
    fn arguments(
        &self,
        columns: &[ColumnShape],
        tables: bool,
        mut own: impl FnMut(&Work<'_>) -> Vec<u32>,
    ) -> GpuResult<Vec<BufferSlice>> {
        let blocks = self
            .work
            .iter()
            .map(|work| argument_block(&own(work), columns, tables, work.segment, &self.program.params))
            .collect::<GpuResult<Vec<_>>>()?;
        argument_slices(self.scope, &blocks)
    }

    fn output_bytes(&self, capacity: &[usize]) -> u64 {
        let row: u64 = self
            .gathers
            .iter()
            .flat_map(|(plan, _)| &plan.outputs)
            .map(|output| 4 * output.class.words() as u64)
            .sum();
        capacity.iter().map(|&rows| rows as u64 * row).sum()
    }

    /// Output buffers of each segment and kernel.
    fn allocate_outputs(&self, capacity: &[usize]) -> GpuResult<Vec<Vec<Placed>>> {
        capacity
            .iter()
            .map(|&rows| {
                self.gathers.iter().map(|(plan, _)| Placed::allocate(self.scope, plan, rows)).collect()
            })
            .collect()
    }

    /// Status of each segment, and its mask when asked for.
    fn state_ranges(&self, masks: bool) -> Vec<(&BufferSlice, u64)> {
        let mut ranges = vec![];
        for work in &self.work {
            ranges.push((&work.status, 16));
            if let Some(scan) = work.scan.as_ref().filter(|_| masks) {
                ranges.push((&scan.mask, u64::from(work.tiles) * u64::from(TILE_WORDS) * 4));
            }
        }
        ranges
    }

    /// Takes what [`Self::state_ranges`] asked for.
    fn known(&self, bytes: &mut impl Iterator<Item = Vec<u8>>, masks: bool) -> GpuResult<Vec<Known>> {
        let mut next = || bytes.next().ok_or_else(|| GpuError::Internal("a read-back is missing".to_owned()));
        self.work
            .iter()
            .map(|work| {
                let status: Vec<u32> = bytemuck::pod_collect_to_vec(&next()?);
                let word = |at: usize| status.get(at).copied().unwrap_or(0);
                let rows = work.segment.rows;
                let mask = match &work.scan {
                    Some(_) if masks => Some(arrays::bits(next()?, rows)?),
                    _ => None,
                };
                let selected = if work.scan.is_some() { (word(1) as usize).min(rows) } else { rows };
                Ok(Known { fault: word(0) != 0, selected, mask })
            })
            .collect()
    }

    fn empty_result(&self, known: Known) -> GpuResult<SelectResult> {
        let outputs = empty_outputs(self.outputs)?;
        Ok(SelectResult { mask: known.mask, selected: known.selected, outputs, fault: known.fault })
    }

    /// Takes a segment's outputs out of the read-backs, which come in the order of [`Placed::ranges`].
    fn result(
        &self,
        known: Known,
        placed: &[Placed],
        capacity: usize,
        bytes: &mut impl Iterator<Item = Vec<u8>>,
    ) -> GpuResult<SelectResult> {
        let mut arrays: Vec<Option<ArrayRef>> = vec![None; self.outputs.len()];
        let selected = known.selected;
        for ((plan, _), placed) in self.gathers.iter().zip(placed) {
            let mut next =
                || bytes.next().ok_or_else(|| GpuError::Internal("an output is missing".to_owned()));
            let region_bytes = region_words(capacity) as usize * 4;
            let regions = if placed.bits.is_some() { next()? } else { vec![] };
            let region = |at: usize| {
                let bytes = regions.get(at * region_bytes..(at + 1) * region_bytes).unwrap_or_default();
                arrays::bits(bytes.to_vec(), selected)
            };
            for output in &plan.outputs {
                let valid = output.valid_region.map(&region).transpose()?;
                let nulls = valid.map(NullBuffer::new).filter(|nulls| nulls.null_count() > 0);
                let array = match output.value_region {
                    Some(at) => arrays::booleans(region(at)?, nulls),
                    None => from_device(output.ty, output.class, &next()?, selected, nulls)?,
                };
                if let Some(slot) = arrays.get_mut(output.index) {
                    *slot = Some(array);
                }
            }
        }
        let outputs = arrays
            .into_iter()
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| GpuError::Internal("an output was not computed".to_owned()))?;
        Ok(SelectResult { mask: known.mask, selected, outputs, fault: known.fault })
    }
}
