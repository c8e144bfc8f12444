//! What an attempt's status word tells, before its groups are read.

use crate::error::{GpuError, GpuResult};

use super::super::accumulate::Fold;
use super::super::attempt::{Attempt, Surprise};
use super::super::float::read_limbs;
use super::super::kept::Grouped;
use super::super::plan::status;
use super::super::{GroupResult, LimbRange, SummedFloats};
use super::Launch;

/// What a wait tells.
pub(super) struct Status {
    pub word: u32,
    pub groups: usize,
    /// Limbs that sums of floats met, by number.
    pub limbs: Vec<Option<LimbRange>>,
}

impl Launch<'_> {
    /// What a status settles without a result.
    pub(super) fn early(&self, status: &Status) -> GpuResult<Option<Attempt>> {
        if status.word & status::CONTENDED != 0 {
            let limit = u64::from(self.bounds(true).1);
            let what = "attempts to better a group's extreme value";
            return Err(GpuError::Limit { what, need: limit + 1, limit, by_rows: true });
        }
        if status.word & status::FAULT != 0 {
            return Ok(Some(Attempt::Done(Grouped::Host(GroupResult::empty(self.by, true)?))));
        }
        if status.word & status::OUTSIDE != 0 {
            return Ok(Some(Attempt::Again(Surprise::Keys)));
        }
        if status.word & status::FULL != 0 {
            return Ok(Some(Attempt::Full));
        }
        let words_for_special = self.plan.sums.is_empty() || self.has_special();
        let held = self.plan.sums.iter().zip(&status.limbs).all(|(window, met)| window.holds_all(*met));
        if held && (words_for_special || status.word & status::SPECIAL == 0) {
            return Ok(None);
        }
        Ok(Some(Attempt::Again(Surprise::Floats { groups: status.groups, met: self.summed(status) })))
    }

    /// Whether records have words for NaN and infinities.
    fn has_special(&self) -> bool {
        let special = |fold: &Fold| matches!(fold, Fold::Float(float) if float.nan.is_some());
        self.plan.accumulators.iter().any(|acc| special(&acc.fold))
    }

    /// What the floats were like that were summed.
    pub(super) fn summed(&self, status: &Status) -> SummedFloats {
        let limbs =
            self.plan.places.iter().map(|place| match self.plan.accumulators.get(place.value?)?.fold {
                Fold::Float(float) => status.limbs.get(float.number).copied().flatten(),
                _ => None,
            });
        SummedFloats { limbs: limbs.collect(), special: status.word & status::SPECIAL != 0 }
    }
}

pub(super) fn read_status(bytes: Option<&Vec<u8>>) -> GpuResult<Status> {
    let words: Vec<u32> = bytes.map(|bytes| bytemuck::pod_collect_to_vec(bytes)).unwrap_or_default();
    match words.as_slice() {
        [word, groups, ..] => Ok(Status { word: *word, groups: *groups as usize, limbs: read_limbs(&words) }),
        _ => Err(GpuError::Internal("the status was not read".to_owned())),
    }
}
