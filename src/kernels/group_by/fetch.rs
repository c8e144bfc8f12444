//! Groups that stayed on the device, read in parts.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::{BooleanBuffer, NullBuffer};
use tracing::Instrument;

use crate::error::{GpuError, GpuResult};
use crate::memory::{BufferSlice, LaunchScope, download};

use super::finish::{Accumulated, array, words};
use super::kept::{KeptGroups, Layout, Merging, Piece};
use super::{FloatFlags, GroupResult, Strategy, SummedFloats};

/// Groups next to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptPart {
    piece: usize,
    first: usize,
    /// Their number.
    pub groups: usize,
}

/// Groups on the host as they lay on the device.
#[derive(Debug)]
pub struct FetchedGroups {
    layout: Arc<Layout>,
    groups: usize,
    /// By column: keys, flags if there are some, states.
    columns: Vec<Vec<u8>>,
    flag_words: usize,
}

impl KeptGroups {
    /// All groups, in parts of so many at most.
    pub fn parts(&self, most: usize) -> Vec<KeptPart> {
        let pieces = self.pieces.iter().enumerate();
        let parts = pieces.flat_map(|(piece, Piece { groups, .. })| {
            let firsts = (0..*groups).step_by(most.max(1));
            firsts.map(move |first| KeptPart { piece, first, groups: most.max(1).min(groups - first) })
        });
        parts.collect()
    }

    /// Reads one part.
    ///
    /// # Errors
    /// Those of the read-back; [`GpuError::DeviceLost`] when the groups are on another device than that of `scope`.
    pub async fn fetch(&self, scope: &LaunchScope, part: KeptPart) -> GpuResult<FetchedGroups> {
        self.check(scope)?;
        let Some(piece) = self.pieces.get(part.piece) else {
            return Err(GpuError::Internal("groups of a piece that does not exist".to_owned()));
        };
        let classes = self.layout.keys.iter().map(|(_, class)| class.words());
        let flags = piece.flags.iter().map(|_| 1);
        let widths = classes.chain(flags).chain(self.layout.states.iter().map(|state| state.stored.words()));
        let slices = piece.columns().zip(widths).map(|(column, words)| {
            let (from, bytes) = ((part.first * words * 4) as u64, (part.groups * words * 4) as u64);
            let BufferSlice { buffer, offset, len } = column;
            let slice = BufferSlice { buffer: Arc::clone(buffer), offset: offset + from, len: len - from };
            (slice, bytes)
        });
        let slices: Vec<(BufferSlice, u64)> = slices.collect();
        let ranges: Vec<(&BufferSlice, u64)> = slices.iter().map(|(slice, bytes)| (slice, *bytes)).collect();
        let encoder = scope.context.device().create_command_encoder(&Default::default());
        let span = scope.kernel_span("kept_groups", part.groups);
        let columns = download(scope, encoder, &ranges).instrument(span).await?;
        let (layout, flag_words) = (Arc::clone(&self.layout), piece.flags.len());
        Ok(FetchedGroups { layout, groups: part.groups, columns, flag_words })
    }

    /// Holds that the groups are on the scope's device.
    pub(super) fn check(&self, scope: &LaunchScope) -> GpuResult<()> {
        match scope.context.generation() == self.generation() {
            true => Ok(()),
            false => Err(GpuError::DeviceLost("groups that were kept were on it".to_owned())),
        }
    }
}

impl FetchedGroups {
    /// Their number.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Whether key `key` is NULL in one of them.
    pub fn has_null(&self, key: usize) -> bool {
        let flags = self.columns.get(self.layout.keys.len() + key / 32);
        let flags = flags.filter(|_| key / 32 < self.flag_words);
        flags.is_some_and(|flags| words(flags).iter().any(|word| (word >> (key % 32)) & 1 != 0))
    }

    /// `groups` of them, from number `first` on.
    ///
    /// # Errors
    /// [`GpuError::Internal`] beyond the last.
    pub fn result(&self, first: usize, groups: usize) -> GpuResult<GroupResult> {
        let column = |at: usize, words: usize| {
            let (from, to) = (first * words * 4, (first + groups) * words * 4);
            let bytes = self.columns.get(at).and_then(|bytes| bytes.get(from..to));
            bytes.ok_or_else(|| GpuError::Internal(format!("column {at} of groups that were kept is short")))
        };
        let keys = self.layout.keys.len();
        let flags = (0..self.flag_words).map(|word| Ok(words(column(keys + word, 1)?)));
        let flags = flags.collect::<GpuResult<Vec<Vec<u32>>>>()?;
        let arrays = self.layout.keys.iter().enumerate().map(|(at, (ty, class))| {
            let valid = |word: &u32| (word >> (at % 32)) & 1 == 0;
            let nulls = flags.get(at / 32).map(|word| word.iter().map(valid).collect::<BooleanBuffer>());
            let nulls = nulls.map(NullBuffer::new).filter(|nulls| nulls.null_count() > 0);
            array(*ty, *class, column(at, class.words())?, groups, nulls)
        });
        let arrays = arrays.collect::<GpuResult<Vec<ArrayRef>>>()?;
        let states = self.layout.states.iter().enumerate().map(|(at, state)| {
            let bytes = column(keys + self.flag_words + at, state.stored.words())?;
            Ok(match state.merging {
                Merging::Count => Accumulated::Counts(words(bytes).into_iter().map(u64::from).collect()),
                Merging::Seen => Accumulated::Seen(words(bytes)),
                _ => Accumulated::Values(array(state.ty, state.class, bytes, groups, None)?),
            })
        });
        let states = states.collect::<GpuResult<Vec<_>>>()?;
        let places = self.layout.places.iter().map(|place| Accumulated::states(&states, *place, groups));
        Ok(GroupResult {
            groups,
            keys: arrays,
            states: places.collect::<GpuResult<_>>()?,
            fault: false,
            floats: FloatFlags::default(),
            sums: SummedFloats { limbs: vec![None; self.layout.places.len()], special: false },
            strategy: Strategy::Global,
            reruns: 0,
        })
    }
}
