//! Functions over dates, times, timestamps and durations, with the semantics of Arrow's kernels and DataFusion's
//! functions. A zone is UTC or none, so that the clock never shifts.

mod clock;
mod emit;

pub(crate) use clock::{
    CALENDAR, NANOS_PER_DAY, Over, Step, calendar_bounds, cast_steps, per_day, scale_to_nanos,
};

use crate::error::GpuResult;

use super::function::unknown_types;
use super::ir::{ValueType, Zone};
use super::wgsl::{Emitter, Node};

/// Functions over dates, times, timestamps and durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TemporalFn {
    /// A cast among temporal types, or between one and an integer. Where it overflows or leaves the calendar it faults, or
    /// is NULL with `safe` where TRY_CAST is.
    Cast {
        /// TRY_CAST.
        safe: bool,
    },
    /// `date_trunc` of a timestamp or a time. Where DataFusion truncates in nanoseconds, faults beyond their range.
    Trunc {
        /// What is truncated to.
        to: Granularity,
        /// Whether DataFusion may have the operand as one value for all rows. It truncates such a timestamp always in nanoseconds,
        /// and to parts of a second toward zero: where that makes a difference, the CPU decides.
        single: bool,
    },
    /// `date_part`: `Int32`, or `Int64` for nanoseconds; NULL outside the calendar and outside the day.
    Part(Part),
    /// `date_bin`: a timestamp or time, the stride in nanoseconds (positive), the origin in nanoseconds since the epoch or
    /// midnight. NULL on overflow.
    Bin,
    /// `date_bin` of a timestamp by months: the stride in months (`Int32`, 1 to a million), the origin in nanoseconds
    /// since the epoch. NULL beyond nanoseconds.
    BinMonths,
    /// A date or timestamp plus or minus an interval: months (`Int32`), days (`Int32`), nanoseconds (`Int64`). Faults
    /// close to the ends of the calendar and of the type.
    AddInterval {
        /// Minus.
        negated: bool,
    },
    /// A time of day plus or minus nanoseconds (`Int64`), around the clock.
    ShiftTime {
        /// Minus.
        negated: bool,
    },
    /// Sum or difference of 64-bit values in the same unit: timestamps and durations. Faults on overflow.
    AddSpan {
        /// Minus.
        negated: bool,
    },
    /// Days between two dates of one type, as `Int64`.
    DaysBetween,
}

/// Months of the largest stride.
pub(crate) const MOST_STRIDE: i32 = 1_000_000;

/// What `date_trunc` truncates to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Granularity {
    Microsecond,
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

/// What `date_part` takes out of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// Year.
    Year,
    /// Year of the ISO week.
    IsoYear,
    /// 1 to 4.
    Quarter,
    /// 1 to 12.
    Month,
    /// ISO week.
    Week,
    /// Day of the month.
    Day,
    /// 0 (Sunday) to 6.
    DayOfWeek,
    /// 1 (Monday) to 7.
    IsoDayOfWeek,
    /// 1 to 366.
    DayOfYear,
    /// 0 to 23.
    Hour,
    /// 0 to 59.
    Minute,
    /// 0 to 59.
    Second,
    /// Milliseconds of the minute, seconds included.
    Millisecond,
    /// Microseconds of the minute, seconds included.
    Microsecond,
    /// Nanoseconds of the minute, seconds included.
    Nanosecond,
}

impl Part {
    /// Whether the part is of the time of day rather than of the date.
    pub(crate) fn of_time(self) -> bool {
        self.unit_nanos().is_some()
    }

    /// Nanoseconds of the unit of a part of the time of day.
    pub(crate) fn unit_nanos(self) -> Option<i64> {
        match self {
            Part::Hour => Some(3_600_000_000_000),
            Part::Minute => Some(60_000_000_000),
            Part::Second => Some(1_000_000_000),
            Part::Millisecond => Some(1_000_000),
            Part::Microsecond => Some(1_000),
            Part::Nanosecond => Some(1),
            _ => None,
        }
    }

    /// Type of the part.
    pub(crate) fn result(self) -> ValueType {
        if self == Part::Nanosecond { ValueType::Int64 } else { ValueType::Int32 }
    }
}

impl Granularity {
    /// Nanoseconds of a granularity that is not of the calendar.
    pub(crate) fn nanos(self) -> Option<i64> {
        match self {
            Granularity::Microsecond => Some(1_000),
            Granularity::Millisecond => Some(1_000_000),
            Granularity::Second => Some(1_000_000_000),
            Granularity::Minute => Some(60_000_000_000),
            Granularity::Hour => Some(3_600_000_000_000),
            Granularity::Day => Some(NANOS_PER_DAY),
            _ => None,
        }
    }

    /// Whether it is a part of a second.
    pub(crate) fn of_second(self) -> bool {
        matches!(self, Granularity::Microsecond | Granularity::Millisecond)
    }

    /// Whether DataFusion truncates columns of timestamps of this zone in nanoseconds, and raises where they don't reach.
    pub(crate) fn in_nanos(self, zone: Zone) -> bool {
        match self {
            Granularity::Hour | Granularity::Day => zone != Zone::None,
            granularity => granularity.nanos().is_none(),
        }
    }
}

impl TemporalFn {
    /// Whether a value may meet a fault, for all that is known before the data is.
    pub fn may_fault(self, args: &[ValueType], ty: ValueType) -> bool {
        match (self, args) {
            (TemporalFn::Cast { safe }, [from]) => {
                cast_steps(*from, ty, safe).is_none_or(|steps| steps.iter().any(Step::may_fault))
            }
            (TemporalFn::Trunc { to, single }, [ValueType::Timestamp { zone, .. }]) => {
                single || to.in_nanos(*zone)
            }
            (TemporalFn::AddInterval { .. } | TemporalFn::AddSpan { .. }, _) => true,
            _ => false,
        }
    }

    /// Whether the kernels have the function for these types.
    ///
    /// # Errors
    /// A phrase that names the function and the types.
    pub fn check(self, args: &[ValueType], ty: ValueType) -> Result<(), String> {
        use ValueType::*;
        let ok = match (self, args) {
            (TemporalFn::Cast { safe }, [from]) => cast_steps(*from, ty, safe).is_some(),
            (TemporalFn::Trunc { .. }, [from @ Timestamp { .. }]) => *from == ty,
            (TemporalFn::Trunc { to, .. }, [from @ (Time32(_) | Time64(_))]) => {
                *from == ty && to.nanos().is_some() && to != Granularity::Day
            }
            (TemporalFn::Part(part), [Date32 | Date64 | Timestamp { .. }]) => ty == part.result(),
            (TemporalFn::Part(part), [Time32(_) | Time64(_)]) => ty == part.result() && part.of_time(),
            (TemporalFn::Part(part), [Duration(_)]) => {
                let kept = matches!(part, Part::Week | Part::Day | Part::Hour | Part::Minute | Part::Second);
                kept && ty == Int32
            }
            (TemporalFn::Bin, [from @ (Timestamp { .. } | Time32(_) | Time64(_)), Int64, Int64]) => {
                *from == ty
            }
            (TemporalFn::BinMonths, [from @ Timestamp { .. }, Int32, Int64]) => *from == ty,
            (
                TemporalFn::AddInterval { .. },
                [from @ (Date32 | Date64 | Timestamp { .. }), Int32, Int32, Int64],
            ) => *from == ty,
            (TemporalFn::ShiftTime { .. }, [from @ (Time32(_) | Time64(_)), Int64]) => *from == ty,
            (TemporalFn::AddSpan { negated }, [left, right]) => match (left, right, ty) {
                (Timestamp { unit, .. }, Duration(span), _) => *left == ty && unit == span,
                (Timestamp { unit: a, .. }, Timestamp { unit: b, .. }, Duration(span)) => {
                    negated && a == b && *a == span
                }
                (Duration(_), Duration(_), _) => left == right && *left == ty,
                _ => false,
            },
            (TemporalFn::DaysBetween, [Date32, Date32] | [Date64, Date64]) => ty == Int64,
            _ => false,
        };
        if ok { Ok(()) } else { Err(unknown_types(args, ty)) }
    }
}

impl Emitter<'_> {
    pub(super) fn temporal_fn(
        &mut self,
        function: TemporalFn,
        args: &[Node],
        ty: ValueType,
    ) -> GpuResult<Node> {
        let mut node = self.temporal_node(args, ty);
        match (function, args) {
            (TemporalFn::Cast { safe }, [e]) => {
                let steps = cast_steps(e.ty, ty, safe).unwrap_or_default();
                self.temporal_cast(e, &steps, &mut node);
            }
            (TemporalFn::Trunc { to, single }, [e]) => self.temporal_trunc(e, to, single, &mut node),
            (TemporalFn::Part(part), [e]) => self.temporal_part(e, part, &mut node),
            (TemporalFn::Bin, [e, stride, origin]) => self.temporal_bin(e, stride, origin, &mut node),
            (TemporalFn::BinMonths, [e, stride, origin]) => {
                self.temporal_months(e, stride, origin, &mut node)
            }
            (TemporalFn::AddInterval { negated }, [e, months, days, nanos]) => {
                self.temporal_interval(e, [months, days, nanos], negated, &mut node);
            }
            (TemporalFn::ShiftTime { negated }, [e, nanos]) => {
                self.temporal_shift(e, nanos, negated, &mut node);
            }
            (TemporalFn::AddSpan { negated }, [l, r]) => self.temporal_span(l, r, negated, &mut node),
            (TemporalFn::DaysBetween, [l, r]) => self.temporal_days(l, r, &mut node),
            _ => {
                return Err(crate::error::GpuError::Internal(format!(
                    "{function:?} of {} operands",
                    args.len()
                )));
            }
        }
        self.unbounded(&mut node);
        Ok(node)
    }
}
