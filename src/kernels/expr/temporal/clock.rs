//! Units of time, the calendar's bounds, and casts as steps.

use std::ops::RangeInclusive;

use arrow::datatypes::TimeUnit;

use crate::kernels::expr::ir::{ValueType, Zone};

/// Nanoseconds of a day.
pub(crate) const NANOS_PER_DAY: i64 = 86_400_000_000_000;

/// Days since the epoch that Arrow's calendar (chrono's) has: January 1 of -262143 to December 31 of 262142.
pub(crate) const CALENDAR: RangeInclusive<i64> = -96_465_292..=95_026_236;

/// Units of a second.
pub(crate) fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Unit of a temporal type but for days.
fn unit(ty: ValueType) -> Option<TimeUnit> {
    match ty {
        ValueType::Date64 => Some(TimeUnit::Millisecond),
        ValueType::Time32(unit)
        | ValueType::Time64(unit)
        | ValueType::Timestamp { unit, .. }
        | ValueType::Duration(unit) => Some(unit),
        _ => None,
    }
}

/// Units of a day; 1 for days.
pub(crate) fn per_day(ty: ValueType) -> i64 {
    unit(ty).map_or(1, |unit| 86_400 * per_second(unit))
}

/// Nanoseconds of a unit; of a day for days.
pub(crate) fn scale_to_nanos(ty: ValueType) -> i64 {
    NANOS_PER_DAY / per_day(ty)
}

/// The first and last 64-bit value within the calendar, of so many units a day; `None` when all values are.
pub(crate) fn calendar_bounds(per_day: i64) -> Option<(i64, i64)> {
    let first = CALENDAR.start().checked_mul(per_day)?;
    let last = CALENDAR.end().checked_mul(per_day)?.checked_add(per_day - 1)?;
    Some((first, last))
}

/// What happens where a step has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// The CPU decides.
    Fault,
    /// NULL.
    Null,
    /// The low bits are taken.
    Wrap,
}

/// A step of a cast over 64-bit values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Times a positive constant.
    Multiply(i64, Over),
    /// By a positive constant, toward zero.
    Divide(i64),
    /// Must fit 32 bits.
    Narrow(Over),
    /// The instant, of so many units a day, must be in the calendar.
    Instant(i64, Over),
    /// The date of such an instant.
    Day(i64),
    /// The time of day of such an instant.
    TimeOfDay(i64),
}

impl Step {
    /// Whether a value may meet a fault.
    pub(crate) fn may_fault(&self) -> bool {
        matches!(
            self,
            Step::Multiply(_, Over::Fault) | Step::Narrow(Over::Fault) | Step::Instant(_, Over::Fault)
        )
    }
}

/// The steps of a cast, none for one of the same bits; `None` when the cast is not among those of this family.
///
/// Where Arrow's own code would overflow unchecked ([`Over::Fault`] whatever `safe` says), the CPU decides.
pub(crate) fn cast_steps(from: ValueType, to: ValueType, safe: bool) -> Option<Vec<Step>> {
    use ValueType::*;
    let over = if safe { Over::Null } else { Over::Fault };
    Some(match (from, to) {
        (from, to) if from == to => return None,
        (Timestamp { unit: a, zone: from_zone }, Timestamp { unit: b, zone: to_zone }) => {
            let mut steps = scaled(a, b, over);
            steps.extend(into_zone(from_zone, to_zone, per_day(to), over));
            steps
        }
        (Duration(a), Duration(b)) => scaled(a, b, over),
        (Timestamp { .. }, Date32) => {
            let mut steps: Vec<Step> = in_calendar(per_day(from), Over::Fault).into_iter().collect();
            steps.push(Step::Day(per_day(from)));
            steps
        }
        (Timestamp { unit, .. }, Date64) => scaled(unit, TimeUnit::Millisecond, over),
        (Timestamp { unit: a, .. }, Time32(b) | Time64(b)) => {
            let mut steps: Vec<Step> = in_calendar(per_day(from), Over::Fault).into_iter().collect();
            steps.push(Step::TimeOfDay(per_day(from)));
            steps.extend(scaled(a, b, Over::Wrap));
            steps
        }
        (Date32, Timestamp { unit, zone }) => {
            let over_days = if per_second(unit) <= 1_000 { Over::Wrap } else { over };
            let mut steps = vec![Step::Multiply(per_day(to), over_days)];
            steps.extend(into_zone(Zone::None, zone, per_day(to), over));
            steps
        }
        (Date64, Timestamp { unit, zone }) => {
            let mut steps = scaled(TimeUnit::Millisecond, unit, Over::Fault);
            steps.extend(into_zone(Zone::None, zone, per_day(to), over));
            steps
        }
        (Date32 | Int32, Date64) => vec![Step::Multiply(per_day(Date64), Over::Wrap)],
        (Date64, Date32) => vec![Step::Divide(per_day(Date64)), Step::Narrow(over)],
        (Time32(a), Time32(b)) => {
            let mut steps = scaled(a, b, Over::Wrap);
            steps.push(Step::Narrow(over));
            steps
        }
        (Time32(a), Time64(b)) => scaled(a, b, Over::Wrap),
        (Time64(a), Time64(b)) => scaled(a, b, Over::Fault),
        (Time64(a), Time32(b)) => scaled(a, b, Over::Wrap),
        (Int32, Date32 | Time32(_))
        | (Int64, Date64 | Time64(_) | Timestamp { .. } | Duration(_))
        | (Date32 | Time32(_), Int32 | Int64)
        | (Date64 | Time64(_) | Timestamp { .. } | Duration(_), Int64) => vec![],
        (Int64, Date32) | (Date64 | Timestamp { .. } | Duration(_), Int32) => vec![Step::Narrow(over)],
        _ => return None,
    })
}

/// From one unit to another.
fn scaled(from: TimeUnit, to: TimeUnit, over: Over) -> Vec<Step> {
    let (a, b) = (per_second(from), per_second(to));
    match a.cmp(&b) {
        std::cmp::Ordering::Less => vec![Step::Multiply(b / a, over)],
        std::cmp::Ordering::Equal => vec![],
        std::cmp::Ordering::Greater => vec![Step::Divide(a / b)],
    }
}

/// Arrow looks for the offset of a clock that gets a zone, and finds none outside the calendar.
fn into_zone(from: Zone, to: Zone, per_day: i64, over: Over) -> Option<Step> {
    if from == Zone::None && to != Zone::None { in_calendar(per_day, over) } else { None }
}

/// A check, unless all 64-bit values pass.
fn in_calendar(per_day: i64, over: Over) -> Option<Step> {
    calendar_bounds(per_day).map(|_| Step::Instant(per_day, over))
}
