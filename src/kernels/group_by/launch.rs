//! Launches of a grouping: tables, their growth, and the read-back.

mod status;

use std::sync::Arc;

use tracing::Instrument;

use crate::error::{GpuError, GpuResult};
use crate::kernels::launch::{
    Grid, allocate, argument_slices, bind, bind_slices, check_bindings, dispatch, pack, plan_grid,
};
use crate::kernels::partition::Partitions;
use crate::kernels::program::{Program, Segment};
use crate::kernels::select::{SCAN_BLOCK, SCAN_COST, scan_shader};
use crate::kernels::shader::{ArgumentBlock, WORKGROUP, argument_block};
use crate::memory::{BufferSlice, DeviceCaps, LaunchScope, Pipeline, download_timed};

use super::attempt::{Attempt, Attempted, Surprise};
use super::finish::{Accumulated, Regions, TILE, TILE_COST, count_shader, result_words};
use super::kept::{Grouped, Keep, Layout};
use super::kernel::local_head;
use super::ordered;
use super::plan::{Kernel, Plan, status as bits};
use super::strategy::{Direct, Local, Mode, Shared};
use super::{FloatFlags, GroupBy, GroupHint, GroupResult, Strategy};
use status::{Status, read_status};

/// Groups that a segment is taken to have when nothing is known.
pub(super) const DEFAULT_GROUPS: usize = 1 << 15;
/// Slots of the smallest table.
pub(super) const MIN_SLOTS: u64 = 256;
/// How much a table grows that was too small.
pub(super) const GROWTH: u64 = 16;
/// Result bytes up to which a table-sized result is read back at once instead of waiting for the number of groups.
const ONE_WAIT_BYTES: u64 = 4 << 20;
/// Slots that a row tries before a table that can grow counts as full.
const TRIES: u32 = 64;
/// Slots that a row tries in a table that can not grow.
const MAX_TRIES: u32 = 1024;

/// A grouping whose kernels are compiled.
pub(super) struct Launch<'a> {
    pub scope: &'a LaunchScope,
    pub caps: Arc<DeviceCaps>,
    program: &'a Program,
    pub by: &'a GroupBy,
    pub segment: &'a Segment,
    pub plan: Plan,
    /// The order in which the rows come, if they have one.
    order: Option<&'a Partitions>,
    /// Which groups stay on the device, and how they lie there.
    keep: Option<(Keep, Arc<Layout>)>,
    accumulate: Arc<Pipeline>,
    count: Arc<Pipeline>,
    scan: Arc<Pipeline>,
    gather: Arc<Pipeline>,
}

/// Buffers of one attempt.
pub(super) struct Table {
    slots: u64,
    tiles: u32,
    records: BufferSlice,
    /// Word 0: bits; word 1: groups; from [`bits::LIMBS_AT`] on limbs of sums of floats.
    status: BufferSlice,
    counts: BufferSlice,
    offsets: BufferSlice,
    block_totals: BufferSlice,
    block_offsets: BufferSlice,
}

/// Smallest power of two of slots for so many groups: half of them stay free.
pub(super) fn slots_for(groups: usize) -> u64 {
    (groups as u64).saturating_mul(2).next_power_of_two().max(MIN_SLOTS)
}

impl<'a> Launch<'a> {
    pub async fn prepare(
        scope: &'a LaunchScope,
        program: &'a Program,
        by: &'a GroupBy,
        segment: &'a Segment,
        plan: Plan,
        (order, keep): (Option<&'a Partitions>, Option<Keep>),
    ) -> GpuResult<Launch<'a>> {
        let caps = Arc::clone(scope.context.caps());
        let keep = keep.and_then(|keep| Some((keep, Arc::new(Layout::of(&plan)?))));
        for kernel in [&plan.accumulate, &plan.gather] {
            check_bindings(kernel.slots.len() as u32, &caps)?;
        }
        let compile = async |source| scope.context.compile(source, &scope.stats).await;
        let accumulate = compile(plan.accumulate.shader.clone()).await?;
        let count = compile(count_shader()).await?;
        let scan = compile(scan_shader()).await?;
        let gather = compile(plan.gather.shader.clone()).await?;
        Ok(Launch { scope, caps, program, by, segment, plan, order, keep, accumulate, count, scan, gather })
    }

    /// Groups with growing tables until one is large enough, unless the hint is not so.
    pub async fn run(self, hint: &GroupHint) -> GpuResult<Result<Grouped, Surprise>> {
        if let Some(order) = self.order {
            return self.run_ordered(order, hint).await;
        }
        let rows = self.segment.rows;
        let direct = self.plan.choice.direct.as_ref().map(|direct| u64::from(direct.slots));
        let most = direct.unwrap_or(slots_for(rows).min(self.largest()?));
        let mut slots =
            direct.unwrap_or(slots_for(hint.groups.unwrap_or(DEFAULT_GROUPS).min(rows)).min(most));
        let mut reruns = 0;
        loop {
            let last = slots == most;
            match self.attempt(Attempted { slots, last, seed: reruns, view: None }).await? {
                Attempt::Done(groups) => return Ok(Ok(groups.after(reruns))),
                Attempt::Again(surprise) => return Ok(Err(surprise)),
                // Tables that are made one after the other may hold them all.
                Attempt::Full if last && most < slots_for(rows) && ordered::can(rows, hint, &self.caps) => {
                    return Ok(Err(Surprise::TooManyGroups));
                }
                Attempt::Full if last => return Err(self.too_many(most)),
                Attempt::Full => {}
            }
            slots = slots.saturating_mul(GROWTH).min(most);
            reruns += 1;
        }
    }

    /// Either the largest table that can be bound, of `most` slots, holds too few groups, or keys collide beyond reason.
    pub fn too_many(&self, most: u64) -> GpuError {
        let limit = most.saturating_mul(self.record_bytes());
        let need = slots_for(self.segment.rows).saturating_mul(self.record_bytes()).max(limit + 1);
        GpuError::Limit { what: "bytes of a table of groups", need, limit, by_rows: true }
    }

    fn status_bytes(&self) -> u64 {
        4 * (bits::LIMBS_AT + 2 * self.plan.sums.len()) as u64
    }

    fn record_bytes(&self) -> u64 {
        u64::from(self.plan.stride) * 4
    }

    /// Slots of the largest table that can be bound, as can its result.
    pub fn largest(&self) -> GpuResult<u64> {
        let result = 4 * u64::from(result_words(&self.plan.keys, &self.plan.results.columns));
        let slots = self.caps.max_binding_bytes / self.record_bytes().max(result);
        if slots < MIN_SLOTS {
            let (need, limit) = (MIN_SLOTS * self.record_bytes().max(result), self.caps.max_binding_bytes);
            return Err(GpuError::Limit {
                what: "bytes of one storage binding",
                need,
                limit,
                by_rows: false,
            });
        }
        Ok(1 << slots.ilog2())
    }

    /// One attempt with one table.
    pub async fn attempt(&self, attempted: Attempted) -> GpuResult<Attempt> {
        let table = self.table(attempted.slots)?;
        let words = result_words(&self.plan.keys, &self.plan.results.columns);
        let rows = attempted.view.map_or(self.segment.rows as u64, |view| u64::from(view.end - view.first));
        let most = attempted.slots.min(rows);
        let ordered = attempted.view.is_some();
        let may_keep = self.keep.as_ref().is_some_and(|(keep, _)| keep.may(most, rows, ordered));
        let one_wait = most * u64::from(words) * 4 <= ONE_WAIT_BYTES && !may_keep;
        let context = &self.scope.context;
        let mut timer = self.scope.timer();
        let mut encoder = context.device().create_command_encoder(&Default::default());
        let mut keep = vec![];
        for slice in [&table.records, &table.status, &table.block_offsets] {
            encoder.clear_buffer(slice.buffer.raw(), slice.offset, Some(slice.len));
        }
        self.accumulate(&mut encoder, &mut timer, &table, attempted, &mut keep)?;
        self.count(&mut timer.pass(&mut encoder, "group_count"), &table, &mut keep)?;
        let mut cap = most as u32;
        let mut before = None;
        if !one_wait {
            let span = self.scope.kernel_span("group_by", self.segment.rows);
            let ranges = [(&table.status, self.status_bytes())];
            let bytes = download_timed(self.scope, encoder, &ranges, timer).instrument(span).await?;
            let status = read_status(bytes.first())?;
            if let Some(done) = self.early(&status)? {
                return Ok(done);
            }
            if let Some((rule, layout)) = &self.keep
                && rule.wants(status.groups as u64, rows, ordered)
            {
                return self.kept(&table, status.groups, layout, keep);
            }
            cap = status.groups as u32;
            before = Some(status);
            encoder = context.device().create_command_encoder(&Default::default());
            timer = self.scope.timer();
        }
        let bytes = u64::from(cap) * u64::from(words) * 4;
        let out = allocate(self.scope, "groups", bytes)?;
        self.gather(&mut encoder, &mut timer, &table, &out, cap, &mut keep)?;
        let span = self.scope.kernel_span("group_by", self.segment.rows);
        let ranges = [(&table.status, self.status_bytes()), (&out, bytes)];
        let read = download_timed(self.scope, encoder, &ranges, timer).instrument(span).await?;
        drop(keep);
        let status = match before {
            Some(status) => status,
            None => read_status(read.first())?,
        };
        if let Some(done) = self.early(&status)? {
            return Ok(done);
        }
        let bytes = read.get(1).map_or(&[][..], Vec::as_slice);
        self.result(&status, bytes, cap as usize).map(|result| Attempt::Done(Grouped::Host(result)))
    }

    fn result(&self, status: &Status, bytes: &[u8], cap: usize) -> GpuResult<GroupResult> {
        let mut regions = Regions::new(bytes, cap, status.groups);
        let keys = regions.keys(&self.plan.keys)?;
        let results = regions.results(&self.plan.results.columns, &self.plan.sums)?;
        let states =
            self.plan.results.places.iter().map(|place| Accumulated::states(&results, *place, status.groups));
        Ok(GroupResult {
            groups: status.groups,
            keys,
            states: states.collect::<GpuResult<_>>()?,
            fault: false,
            floats: FloatFlags {
                nan: status.word & bits::NAN != 0,
                negative_zero: status.word & bits::NEGATIVE_ZERO != 0,
                positive_zero: status.word & bits::POSITIVE_ZERO != 0,
            },
            sums: self.summed(status),
            strategy: self.strategy(),
            reruns: 0,
        })
    }

    fn table(&self, slots: u64) -> GpuResult<Table> {
        let tiles = slots.div_ceil(u64::from(TILE));
        let blocks = tiles.div_ceil(u64::from(SCAN_BLOCK));
        let of = |name, bytes: u64| allocate(self.scope, name, bytes);
        Ok(Table {
            slots,
            tiles: tiles as u32,
            records: of("table of groups", slots * self.record_bytes())?,
            status: of("status", self.status_bytes())?,
            counts: of("slot counts", tiles * 4)?,
            offsets: of("slot offsets", tiles * 4)?,
            block_totals: of("block totals", blocks * 4)?,
            block_offsets: of("block offsets", blocks * 4)?,
        })
    }

    pub fn strategy(&self) -> Strategy {
        match self.plan.choice.mode {
            Mode { ordered: true, .. } => Strategy::Partitioned,
            Mode { local: Local::Direct, .. } => Strategy::Direct,
            Mode { direct: true, .. } => Strategy::Dense,
            Mode { local: Local::Cache, .. } => Strategy::Local,
            Mode { local: Local::None, .. } => Strategy::Global,
        }
    }

    /// Rows that a workgroup has in flight.
    fn tile(&self) -> u32 {
        self.plan.choice.threads() * self.plan.unroll
    }

    /// Words of a slot of a workgroup's table.
    fn planes(&self) -> u32 {
        let words = self.plan.accumulators.iter().map(|acc| acc.fold.words()).sum::<u32>();
        local_head(self.plan.choice.mode.local, &self.plan.keys) + words
    }

    /// Rows of a window of the order, where `rows` rows have `groups` groups.
    pub fn window(&self, rows: usize, groups: usize) -> u32 {
        // Where loops are short, what they may cost was planned for this many.
        let most = if self.caps.loop_budget == u32::MAX { 1 << 16 } else { self.tile() };
        match self.plan.choice.shared {
            None => (4 * self.tile()).min(most),
            Some(Shared { slots, threads, .. }) => ordered::window(rows, groups, slots, threads, most),
        }
    }

    /// Slots of a workgroup's table that an invocation writes out.
    fn flushed(&self) -> u32 {
        let choice = &self.plan.choice;
        choice.local_slots().div_ceil(choice.threads())
    }

    /// Slots that a row tries, and times that it fights for a group's best value, such that an invocation's loops keep to the
    /// adapter's budget.
    fn bounds(&self, last: bool) -> (u32, u32) {
        let searches = self.plan.unroll + self.flushed();
        let share = self.caps.loop_budget / (8 * searches * (1 + 2 * self.plan.bests));
        let tries = if last { MAX_TRIES } else { TRIES };
        (tries.min(share).max(4), share.clamp(4, 1 << 16))
    }

    /// Loop iterations that adding so many rows or slots costs at most.
    fn cost(&self, rows: u32, tries: u32, fights: u32) -> u32 {
        let local = self.plan.choice.shared.map_or(0, |shared| shared.tries);
        let fights = self.plan.bests.saturating_mul(2 * fights);
        rows.saturating_mul(1 + local + self.plan.additions + tries.saturating_add(fights))
    }

    fn accumulate(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        timer: &mut crate::memory::PassTimer,
        table: &Table,
        Attempted { last, seed, view, .. }: Attempted,
        keep: &mut Vec<BufferSlice>,
    ) -> GpuResult<()> {
        let (tries, fights) = self.bounds(last);
        let choice = &self.plan.choice;
        let shared = choice.shared.unwrap_or(Shared { slots: 0, copies: 1, threads: WORKGROUP, tries: 0 });
        let local = match choice.mode.local {
            Local::Cache => shared.slots,
            _ => shared.copies,
        };
        let both = tries | (shared.tries << 16);
        let rows = view.map_or(self.segment.rows as u32, |view| view.end);
        let own = [rows, (table.slots - 1) as u32, both, seed, fights, local];
        // Digits of computed slots, then bases of windows, then which rows of the order.
        let mut behind = choice.direct.as_ref().map(Direct::words).unwrap_or_default();
        behind.extend(self.plan.sums.iter().map(|window| window.base));
        behind.extend(view.iter().flat_map(|view| [view.first, view.window, view.bits]));
        let args = self.arguments(&self.plan.accumulate, &own, &behind)?;
        let pack = pack(self.scope, encoder, &self.plan.accumulate.columns, self.segment)?;
        let order = self.order.map(|order| &order.rows);
        let own: Vec<&BufferSlice> =
            pack.iter().chain([&table.records, &table.status]).chain(order).collect();
        let group =
            bind(self.scope, &self.accumulate, &self.plan.accumulate.slots, self.segment, &args, &own)?;
        let (rows, step) = match view {
            None => (self.segment.rows as u32, self.tile()),
            Some(view) => (view.end - view.first, view.window),
        };
        let rounds = step.div_ceil(self.tile());
        // Copies of a slot join in as many phases as the number of copies has bits.
        let phases = shared.copies.ilog2() * (1 + self.flushed() * (1 + self.cost(1, 0, fights)));
        let flush = self.cost(self.flushed(), tries, fights);
        let added = rounds.saturating_mul(1 + self.cost(self.plan.unroll, tries, fights));
        let fill = (self.caps.reduce_workgroups * WORKGROUP / choice.threads()).max(1);
        // A workgroup's table is written out at the end, or after each window.
        let (cost, reserve) = match view {
            None => (added, 8 + phases + flush),
            Some(_) => (added.saturating_add(1 + flush + self.flushed() * self.planes()), 8),
        };
        let grid = plan_grid(rows.div_ceil(step), fill, cost, reserve, u32::MAX, &self.caps)?;
        let mut pass = timer.pass(encoder, "group_by");
        dispatch(self.scope, &mut pass, &self.accumulate, &group, grid);
        drop(pass);
        keep.push(args);
        keep.extend(pack);
        Ok(())
    }

    /// Counts occupied slots a tile and scans the counts.
    fn count(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        table: &Table,
        keep: &mut Vec<BufferSlice>,
    ) -> GpuResult<()> {
        let blocks = table.tiles.div_ceil(SCAN_BLOCK);
        let words = [
            vec![table.slots as u32, table.tiles, self.plan.stride],
            vec![table.tiles, blocks, u32::from(blocks == 1)],
            vec![blocks, 1, 1],
        ];
        let args = argument_slices(self.scope, &words.map(|own| ArgumentBlock::own(&own)))?;
        let [counting, first, second] = args.as_slice() else {
            return Err(GpuError::Internal("an argument block is missing".to_owned()));
        };
        let fill = self.caps.reduce_workgroups.saturating_mul(4);
        let group = bind_slices(self.scope, &self.count, &[counting, &table.records, &table.counts]);
        dispatch(
            self.scope,
            pass,
            &self.count,
            &group,
            plan_grid(table.tiles, fill, 1, 8, u32::MAX, &self.caps)?,
        );
        // One block's total is the number of groups.
        let totals = if blocks == 1 { &table.status } else { &table.block_totals };
        let group = bind_slices(self.scope, &self.scan, &[first, &table.counts, &table.offsets, totals]);
        dispatch(
            self.scope,
            pass,
            &self.scan,
            &group,
            plan_grid(blocks, fill, SCAN_COST, 8, u32::MAX, &self.caps)?,
        );
        if blocks > 1 {
            let slices = [second, &table.block_totals, &table.block_offsets, &table.status];
            let group = bind_slices(self.scope, &self.scan, &slices);
            dispatch(self.scope, pass, &self.scan, &group, Grid { size: [1, 1, 1] });
        }
        keep.extend(args);
        Ok(())
    }

    pub fn gather(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        timer: &mut crate::memory::PassTimer,
        table: &Table,
        out: &BufferSlice,
        cap: u32,
        keep: &mut Vec<BufferSlice>,
    ) -> GpuResult<()> {
        let kernel = &self.plan.gather;
        let own = [self.segment.rows as u32, table.slots as u32, table.tiles, cap];
        let args = self.arguments(kernel, &own, &[])?;
        let pack = pack(self.scope, encoder, &kernel.columns, self.segment)?;
        let own = [&table.records, &table.offsets, &table.block_offsets, out];
        let own: Vec<&BufferSlice> = pack.iter().chain(own).collect();
        let group = bind(self.scope, &self.gather, &kernel.slots, self.segment, &args, &own)?;
        let fill = self.caps.reduce_workgroups.saturating_mul(4);
        let cost = TILE_COST + TILE / WORKGROUP * self.plan.additions;
        let grid = plan_grid(table.tiles, fill, cost, 8, u32::MAX, &self.caps)?;
        let mut pass = timer.pass(encoder, "group_gather");
        dispatch(self.scope, &mut pass, &self.gather, &group, grid);
        drop(pass);
        keep.push(args);
        keep.extend(pack);
        Ok(())
    }

    /// The argument block of a kernel, with `behind` at its end, whose place is the word after `own`.
    fn arguments(&self, kernel: &Kernel, own: &[u32], behind: &[u32]) -> GpuResult<BufferSlice> {
        let mut own = own.to_vec();
        let block = |own: &[u32]| {
            argument_block(own, &kernel.columns, kernel.tables, self.segment, &self.program.params)
        };
        let mut arguments = block(&own)?;
        if !behind.is_empty() {
            own.push(arguments.len() as u32);
            arguments = block(&own)?;
            arguments.extend(behind);
        }
        let slices = argument_slices(self.scope, &[arguments])?;
        slices.into_iter().next().ok_or_else(|| GpuError::Internal("an argument block is missing".to_owned()))
    }
}
