//! Merging groups on the device: they are the rows of a segment, grouped again by their keys.

use std::sync::Arc;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::widths::{Class, type_bits};
use crate::kernels::expr::{CompareOp, Expr, Function, IntegerFn, ValueType};
use crate::kernels::launch::allocate;
use crate::kernels::program::{Program, Segment};
use crate::kernels::reduce::{AggregateKind, AggregateSpec};
use crate::memory::pool::size_class;
use crate::memory::{BufferSlice, ColumnRepr, DeviceColumn, LaunchScope, MagnitudeBits};

use super::accumulate::Bits;
use super::kept::{Keep, KeptGroups, Layout, Merging, Piece, SeenIn};
use super::{GroupBy, GroupHint, GroupKey, Grouped, group_by_bytes, grouped};

/// Puts all pieces into one, which takes as much memory again until `kept` is dropped.
///
/// # Errors
/// [`GpuError::Limit`] when a column is larger than a binding; those of allocation and submission; [`GpuError::DeviceLost`] when the
/// groups are on another device than that of `scope`.
pub fn pile_groups(scope: &LaunchScope, kept: &KeptGroups) -> GpuResult<KeptGroups> {
    kept.check(scope)?;
    if kept.pieces.len() < 2 {
        return Ok(kept.clone());
    }
    let context = &scope.context;
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let all = kept.groups();
    let mut append = |words: usize, column: &dyn Fn(&Piece) -> Option<&BufferSlice>| {
        let target = allocate(scope, "piled groups", (all * words * 4) as u64)?;
        let mut at = target.offset;
        for piece in &kept.pieces {
            let bytes = (piece.groups * words * 4) as u64;
            match column(piece) {
                Some(from) => encoder.copy_buffer_to_buffer(
                    from.buffer.raw(),
                    from.offset,
                    target.buffer.raw(),
                    at,
                    bytes,
                ),
                // No key of this piece is NULL.
                None => encoder.clear_buffer(target.buffer.raw(), at, Some(bytes)),
            }
            at += bytes;
        }
        GpuResult::Ok(target)
    };
    let layout = &kept.layout;
    let mut keys = vec![];
    for (number, (_, class)) in layout.keys.iter().enumerate() {
        keys.push(append(class.words(), &|piece| piece.keys.get(number))?);
    }
    let mut flags = vec![];
    if kept.pieces.iter().any(|piece| !piece.flags.is_empty()) {
        for word in 0..layout.flag_words() {
            flags.push(append(1, &|piece| piece.flags.get(word))?);
        }
    }
    let mut states = vec![];
    for (number, state) in layout.states.iter().enumerate() {
        states.push(append(state.stored.words(), &|piece| piece.states.get(number))?);
    }
    context.submit_ahead(encoder)?;
    Ok(kept.with_pieces(vec![Piece { groups: all, keys, flags, states }]))
}

/// Groups `piled`, which is one piece, by its keys: each key is there once then.
///
/// # Errors
/// [`GpuError::Limit`] when counts may be 2^32 or more, or groups are too many for a table; those of compilation, allocation
/// and submission; [`GpuError::DeviceLost`] when the groups are on another device than that of `scope`.
pub async fn merge_groups(scope: &LaunchScope, piled: &KeptGroups) -> GpuResult<KeptGroups> {
    piled.check(scope)?;
    let [piece] = piled.pieces.as_slice() else {
        return match piled.pieces.is_empty() {
            true => Ok(piled.clone()),
            false => Err(GpuError::Internal("groups to be merged are in several pieces".to_owned())),
        };
    };
    // Counts have 32 bits.
    let limit = u64::from(u32::MAX);
    let counts = piled.layout.states.iter().any(|state| state.merging == Merging::Count);
    if counts && piled.rows() > limit {
        let (what, need) = ("rows of groups that are merged", piled.rows());
        return Err(GpuError::Limit { what, need, limit, by_rows: true });
    }
    let merging = MergingGroups::new(&piled.layout, piece.flags.len());
    let segment = merging.segment(piece);
    let hint = hint(piece.groups);
    let keep = (Some(Keep::All), true);
    let found = grouped(scope, &merging.program, &merging.by, &segment, &hint, keep).await?;
    let Grouped::Kept(found) = found else {
        return Err(GpuError::Internal("groups that were merged have left the device".to_owned()));
    };
    merging.relaid(piled, &found)
}

fn hint(groups: usize) -> GroupHint {
    GroupHint { groups: Some(groups), ..GroupHint::default() }
}

/// Device bytes that [`pile_groups`] and [`merge_groups`] hold for so many groups like `kept`, beside the groups themselves.
pub fn merge_bytes(kept: &KeptGroups, groups: usize) -> u64 {
    let merging = MergingGroups::new(&kept.layout, kept.layout.flag_words());
    let columns = kept.layout.keys.iter().map(|(_, class)| class.words());
    let columns = columns.chain(std::iter::repeat_n(1, kept.layout.flag_words()));
    let columns = columns.chain(kept.layout.states.iter().map(|state| state.stored.words()));
    let piled = columns.map(|words| size_class((groups as u64).saturating_mul(4 * words as u64)));
    let piled = piled.fold(0, u64::saturating_add);
    piled.saturating_add(group_by_bytes(&merging.program, &merging.by, groups, &hint(groups)))
}

/// The grouping that merges groups of a layout.
struct MergingGroups {
    program: Program,
    by: GroupBy,
    /// Types of the columns, in the order of a piece.
    types: Vec<ValueType>,
}

/// The type of a column of integers in a register class.
fn stored_type(class: Class) -> ValueType {
    match class {
        Class::I32 => ValueType::Int32,
        Class::Bool | Class::U32 => ValueType::UInt32,
        Class::I64 => ValueType::Int64,
        Class::U64 => ValueType::UInt64,
        Class::Wide => ValueType::Decimal { precision: 38, scale: 0 },
    }
}

/// Whether `seen` is not 0, of the columns of states that `column` gives.
fn not_zero(seen: SeenIn, column: &dyn Fn(usize) -> Arc<Expr>) -> Arc<Expr> {
    let ty = ValueType::UInt32;
    let param = |slot| Arc::new(Expr::Param { slot, ty });
    let left = match seen {
        SeenIn::Count(at) => column(at),
        SeenIn::Bit(at, bit) => Arc::new(Expr::Call {
            function: Function::Integer(IntegerFn::BitAnd),
            args: vec![column(at), param(1 + bit as usize)],
            ty,
        }),
    };
    Arc::new(Expr::Compare { op: CompareOp::NotEq, left, right: param(0) })
}

impl MergingGroups {
    fn new(layout: &Layout, flag_words: usize) -> Self {
        let keys = layout.keys.iter().map(|(_, class)| stored_type(*class));
        let mut types: Vec<ValueType> = keys.chain((0..flag_words).map(|_| ValueType::UInt32)).collect();
        let keys = types.len();
        types.extend(layout.states.iter().map(|state| stored_type(state.stored)));
        let column = |index: usize| {
            let ty = types.get(index).copied().unwrap_or(ValueType::Null);
            Arc::new(Expr::Column { index, ty })
        };
        let aggregates = layout.states.iter().enumerate().map(|(at, state)| {
            let arg = column(keys + at);
            let kind = match &state.merging {
                Merging::Count => AggregateKind::Count,
                Merging::Seen => AggregateKind::BitOr,
                Merging::Sum if state.stored == Class::Wide => AggregateKind::SumDecimal,
                Merging::Sum => AggregateKind::SumInt,
                Merging::Extreme { min: true, .. } => AggregateKind::Min,
                Merging::Extreme { min: false, .. } => AggregateKind::Max,
                Merging::Bits(Bits::And) => AggregateKind::BitAnd,
                Merging::Bits(Bits::Or) => AggregateKind::BitOr,
                Merging::Bits(Bits::Xor) => AggregateKind::BitXor,
            };
            // What lies where no row contributed is no value.
            let filter = match &state.merging {
                Merging::Extreme { seen: Some(seen), .. } => Some(not_zero(*seen, &|at| column(keys + at))),
                _ => None,
            };
            AggregateSpec { kind, arg: Some(arg), filter }
        });
        let aggregates = aggregates.collect();
        let keys = (0..keys).map(|index| GroupKey::Value(column(index))).collect();
        // 0, and each bit.
        let params = std::iter::once(0).chain((0..32).map(|bit| 1i128 << bit));
        let params = params.map(|word| (ValueType::UInt32, Some(word))).collect();
        let program = Program { selection: None, params };
        MergingGroups { program, by: GroupBy { keys, aggregates, ..GroupBy::default() }, types }
    }

    /// The groups as rows.
    fn segment(&self, piece: &Piece) -> Segment {
        let columns = piece.columns().zip(&self.types).map(|(values, &ty)| {
            let wide = matches!(ty, ValueType::Decimal { .. });
            let repr = if wide { ColumnRepr::DecimalWide } else { ColumnRepr::Arrow };
            Some(DeviceColumn {
                ty,
                repr,
                values: values.clone(),
                validity: None,
                rows: piece.groups,
                magnitude: MagnitudeBits(type_bits(ty)),
            })
        });
        Segment { columns: columns.collect(), rows: piece.groups, tables: Default::default() }
    }

    /// What was found, as columns of the layout that `piled` has.
    fn relaid(&self, piled: &KeptGroups, found: &KeptGroups) -> GpuResult<KeptGroups> {
        let lost = || GpuError::Internal("a column of groups was lost when they were merged".to_owned());
        let layout = &piled.layout;
        let places = layout.states.iter().zip(&found.layout.places).map(|(state, place)| {
            let value = place.value.filter(|value| {
                found.layout.states.get(*value).is_some_and(|merged| merged.stored == state.stored)
            });
            value.ok_or_else(lost)
        });
        let places = places.collect::<GpuResult<Vec<usize>>>()?;
        if places.len() != layout.states.len() {
            return Err(lost());
        }
        let pieces = found.pieces.iter().map(|piece| {
            let mut keys = piece.keys.clone();
            let flags = keys.split_off(layout.keys.len().min(keys.len()));
            let states = places.iter().map(|at| piece.states.get(*at).cloned().ok_or_else(lost));
            let states = states.collect::<GpuResult<Vec<_>>>()?;
            Ok(Piece { groups: piece.groups, keys, flags, states })
        });
        Ok(piled.with_pieces(pieces.collect::<GpuResult<_>>()?))
    }
}
