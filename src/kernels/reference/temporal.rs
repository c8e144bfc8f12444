//! Twin of the temporal functions.

use crate::kernels::expr::temporal::{CALENDAR, Granularity, NANOS_PER_DAY, Part, per_day, scale_to_nanos};
use crate::kernels::expr::{Scalar, TemporalFn, ValueType, Zone};

use super::expr::Fault;

/// Value of a function over operands and their types.
///
/// # Errors
/// [`Fault`] where the device has one.
pub fn temporal(function: TemporalFn, args: &[(Scalar, ValueType)], ty: ValueType) -> Result<Scalar, Fault> {
    let values: Option<Vec<i128>> = args.iter().map(|(value, _)| *value).collect();
    let (Some(values), Some((_, from))) = (values, args.first()) else {
        return Ok(None);
    };
    match (function, values.as_slice()) {
        (TemporalFn::Cast { safe }, [v]) => cast(*v, *from, ty, safe),
        (TemporalFn::Trunc { to, single }, [v]) => trunc(*v, *from, to, single).map(Some),
        (TemporalFn::Part(part), [v]) => Ok(part_of(*v, *from, part)),
        (TemporalFn::Bin, [v, stride, origin]) => Ok(bin(*v, *from, *stride, *origin)),
        (TemporalFn::BinMonths, [v, stride, origin]) => Ok(bin_months(*v, *from, *stride, *origin)),
        (TemporalFn::AddInterval { negated }, [v, months, days, nanos]) => {
            let sign = if negated { -1 } else { 1 };
            add_interval(*v, *from, sign * months, sign * days, (*nanos, sign)).map(Some)
        }
        (TemporalFn::ShiftTime { negated }, [v, nanos]) => {
            let nanos = nanos % i128::from(NANOS_PER_DAY) * if negated { -1 } else { 1 };
            let moved = v + nanos.div_euclid(scale_to_nanos(*from).into());
            Ok(Some(i128::from(moved as i64).rem_euclid(per_day(*from).into())))
        }
        (TemporalFn::AddSpan { negated }, [a, b]) => in_64(if negated { a - b } else { a + b }).map(Some),
        (TemporalFn::DaysBetween, [a, b]) => {
            let difference = i128::from((a - b) as i64);
            Ok(Some(difference / i128::from(per_day(*from))))
        }
        _ => Err(Fault),
    }
}

fn in_64(v: i128) -> Result<i128, Fault> {
    i64::try_from(v).map(i128::from).map_err(|_| Fault)
}

/// A count of units of one type in units of another, toward zero; `None` beyond 64 bits.
fn rescaled(v: i128, from: ValueType, to: ValueType) -> Option<i128> {
    let (a, b) = (i128::from(scale_to_nanos(from)), i128::from(scale_to_nanos(to)));
    i64::try_from(if a >= b { v * (a / b) } else { v / (b / a) }).ok().map(i128::from)
}

/// Whether Arrow's calendar has the day of an instant.
fn in_calendar(v: i128, ty: ValueType) -> bool {
    let days = v.div_euclid(per_day(ty).into());
    (i128::from(*CALENDAR.start())..=i128::from(*CALENDAR.end())).contains(&days)
}

fn cast(v: i128, from: ValueType, to: ValueType, safe: bool) -> Result<Scalar, Fault> {
    use ValueType::*;
    let or_fails = |v: Option<i128>| if v.is_some() || safe { Ok(v) } else { Err(Fault) };
    let narrow = |v: i128| i32::try_from(v).ok().map(i128::from);
    // Arrow looks for the offset of a clock that gets a zone.
    let zoned = |v: i128| {
        let gets =
            |zone| matches!(to, Timestamp { zone: own, .. } if zone == Zone::None && own != Zone::None);
        let gets = match from {
            Timestamp { zone, .. } => gets(zone),
            _ => gets(Zone::None),
        };
        Some(v).filter(|v| !gets || in_calendar(*v, to))
    };
    match (from, to) {
        (Timestamp { .. }, Date32 | Time32(_) | Time64(_)) if !in_calendar(v, from) => Err(Fault),
        (Timestamp { .. }, Date32) => Ok(Some(v.div_euclid(per_day(from).into()))),
        (Timestamp { .. }, Time32(_) | Time64(_)) => {
            Ok(rescaled(v.rem_euclid(per_day(from).into()), from, to))
        }
        (Timestamp { .. }, Timestamp { .. }) => or_fails(rescaled(v, from, to).and_then(zoned)),
        (Timestamp { .. }, Date64) | (Duration(_), Duration(_)) => or_fails(rescaled(v, from, to)),
        (Date64, Timestamp { .. }) => or_fails(zoned(rescaled(v, from, to).ok_or(Fault)?)),
        (Date32, Timestamp { .. }) => or_fails(rescaled(v, from, to).and_then(zoned)),
        (Date32, Date64) => Ok(rescaled(v, from, to)),
        (Int32, Date64) => Ok(rescaled(v, Date32, to)),
        (Date64, Date32) | (Time32(_), Time32(_)) => or_fails(rescaled(v, from, to).and_then(narrow)),
        (Time32(_) | Time64(_), Time64(_)) => rescaled(v, from, to).map(Some).ok_or(Fault),
        (Time64(_), Time32(_)) => Ok(rescaled(v, from, to).map(|v| i128::from(v as i32))),
        (Int64, Date32) | (Date64 | Timestamp { .. } | Duration(_), Int32) => or_fails(narrow(v)),
        (Int32, Date32 | Time32(_))
        | (Int64, Date64 | Time64(_) | Timestamp { .. } | Duration(_))
        | (Date32 | Time32(_), Int32 | Int64)
        | (Date64 | Time64(_) | Timestamp { .. } | Duration(_), Int64) => Ok(Some(v)),
        _ => Err(Fault),
    }
}

/// Whether a year has a February 29.
fn leap(year: i128) -> bool {
    year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0)
}

fn month_days(year: i128, month: i128) -> i128 {
    match month {
        2 if leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Day of January 1 since the epoch.
fn new_year(year: i128) -> i128 {
    let before = year - 1;
    let leaps = before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400);
    // 1969 years were before 1970, with 477 leap days.
    365 * (year - 1970) + leaps - 477
}

/// Year, month and day.
fn civil(days: i128) -> (i128, i128, i128) {
    // The average year is a little longer than 365 days.
    let mut year = 1970 + (days * 400).div_euclid(146_097) - 1;
    while new_year(year + 1) <= days {
        year += 1;
    }
    let (mut month, mut day) = (1, days - new_year(year));
    while day >= month_days(year, month) {
        day -= month_days(year, month);
        month += 1;
    }
    (year, month, day + 1)
}

fn days_of(year: i128, month: i128, day: i128) -> i128 {
    new_year(year) + (1..month).map(|month| month_days(year, month)).sum::<i128>() + day - 1
}

/// Whether DataFusion goes by nanoseconds: with the calendar, and with a clock that other zones would shift.
fn by_nanos(to: Granularity, zone: Zone) -> bool {
    use Granularity::*;
    match to {
        Microsecond | Millisecond | Second | Minute => false,
        Hour | Day => zone != Zone::None,
        Week | Month | Quarter | Year => true,
    }
}

fn trunc(v: i128, ty: ValueType, to: Granularity, single: bool) -> Result<i128, Fault> {
    let (scale, a_day) = (i128::from(scale_to_nanos(ty)), i128::from(per_day(ty)));
    let ValueType::Timestamp { zone, .. } = ty else {
        let units = i128::from(to.nanos().ok_or(Fault)?) / scale;
        return Ok(if units > 1 { v - v % units } else { v });
    };
    let nanos = single || by_nanos(to, zone);
    if nanos {
        in_64(v * scale)?;
    }
    let days = v.div_euclid(a_day);
    let first = match (to, to.nanos()) {
        (_, Some(nanos)) if i128::from(nanos) <= scale => v,
        (_, Some(nanos)) => v - v.rem_euclid(i128::from(nanos) / scale),
        (Granularity::Week, _) => (days - (days + 3).rem_euclid(7)) * a_day,
        (to, _) => {
            let (year, month, _) = civil(days);
            let month = match to {
                Granularity::Year => 1,
                Granularity::Quarter => (month - 1) / 3 * 3 + 1,
                _ => month,
            };
            days_of(year, month, 1) * a_day
        }
    };
    if nanos {
        in_64(first * scale)?;
    }
    let of_second = matches!(to, Granularity::Microsecond | Granularity::Millisecond);
    if single && of_second && v < 0 && first != v {
        return Err(Fault);
    }
    Ok(i128::from(first as i64))
}

fn part_of(v: i128, ty: ValueType, part: Part) -> Scalar {
    let (scale, a_day) = (i128::from(scale_to_nanos(ty)), i128::from(per_day(ty)));
    if let ValueType::Duration(_) = ty {
        let nanos = match part {
            Part::Week => 7 * i128::from(NANOS_PER_DAY),
            Part::Day => NANOS_PER_DAY.into(),
            part => part.unit_nanos()?.into(),
        };
        return i32::try_from(v * scale / nanos).ok().map(i128::from);
    }
    let fine = matches!(part, Part::Millisecond | Part::Microsecond | Part::Nanosecond);
    if (ty == ValueType::Date32 && part.of_time()) || (ty == ValueType::Date64 && fine) {
        return Some(0);
    }
    let days = v.div_euclid(a_day);
    let time = matches!(ty, ValueType::Time32(_) | ValueType::Time64(_));
    if if time { days != 0 } else { !CALENDAR.contains(&i64::try_from(days).ok()?) } {
        return None;
    }
    let nanos = v.rem_euclid(a_day) * scale;
    let (year, month, day) = civil(days);
    let thursday = days - (days + 3).rem_euclid(7) + 3;
    let iso_year = civil(thursday).0;
    Some(match part {
        Part::Year => year,
        Part::IsoYear => iso_year,
        Part::Quarter => (month + 2) / 3,
        Part::Month => month,
        Part::Week => (thursday - new_year(iso_year)) / 7 + 1,
        Part::Day => day,
        Part::DayOfWeek => (days + 4).rem_euclid(7),
        Part::IsoDayOfWeek => (days + 3).rem_euclid(7) + 1,
        Part::DayOfYear => days - new_year(year) + 1,
        Part::Hour => nanos / 3_600_000_000_000,
        Part::Minute => nanos / 60_000_000_000 % 60,
        part => nanos % 60_000_000_000 / i128::from(part.unit_nanos()?),
    })
}

fn bin(v: i128, ty: ValueType, stride: i128, origin: i128) -> Scalar {
    let fits = |v: i128| i64::try_from(v).ok().map(i128::from);
    let scale = i128::from(scale_to_nanos(ty));
    let difference = fits(fits(v * scale)? - origin)?;
    let whole = difference / stride * stride;
    let down = difference < 0 && stride > 1 && whole != difference;
    let start = fits(origin + fits(if down { whole - stride } else { whole })?)?;
    Some(match ty {
        ValueType::Timestamp { .. } => start / scale,
        _ => start % i128::from(NANOS_PER_DAY) / scale,
    })
}

fn bin_months(v: i128, ty: ValueType, stride: i128, origin: i128) -> Scalar {
    let (scale, long_day) = (i128::from(scale_to_nanos(ty)), i128::from(NANOS_PER_DAY));
    let nanos = i128::from(i64::try_from(v * scale).ok()?);
    let (to, from) = (civil(nanos.div_euclid(long_day)), civil(origin.div_euclid(long_day)));
    let months = (to.0 - from.0) * 12 + to.1 - from.1;
    let start = |months: i128| {
        let total = from.0 * 12 + from.1 - 1 + months;
        let (year, month) = (total.div_euclid(12), total.rem_euclid(12) + 1);
        days_of(year, month, from.2.min(month_days(year, month))) * long_day + origin.rem_euclid(long_day)
    };
    // Down to a whole number of strides, and one more where that is still later.
    let whole = months.div_euclid(stride) * stride;
    let bin = Some(start(whole)).filter(|bin| *bin <= nanos).unwrap_or_else(|| start(whole - stride));
    i64::try_from(bin).ok().map(|bin| i128::from(bin) / scale)
}

fn add_interval(
    v: i128,
    ty: ValueType,
    months: i128,
    days: i128,
    (nanos, sign): (i128, i128),
) -> Result<i128, Fault> {
    let (scale, a_day, long_day) =
        (i128::from(scale_to_nanos(ty)), i128::from(per_day(ty)), i128::from(NANOS_PER_DAY));
    let date = matches!(ty, ValueType::Date32 | ValueType::Date64);
    if months.abs() > 7_000_000 || days.abs() > 300_000_000 {
        return Err(Fault);
    }
    let (first, last) = (i128::from(*CALENDAR.start()) + 2, i128::from(*CALENDAR.end()) - 2);
    let inside = |day: i128| if (first..=last).contains(&day) { Ok(day) } else { Err(Fault) };
    let day = inside(if date { v / a_day } else { v.div_euclid(a_day) })?;
    let (year, month, of_month) = civil(day);
    let total = year * 12 + month - 1 + months;
    let (year, month) = (total.div_euclid(12), total.rem_euclid(12) + 1);
    let moved = inside(days_of(year, month, of_month.min(month_days(year, month))))?;
    let moved = inside(moved + days)?;
    if date {
        return Ok(inside(moved + sign * (nanos / long_day))? * a_day);
    }
    let clock = v.rem_euclid(a_day) * scale + sign * nanos;
    let day = inside(moved + clock.div_euclid(long_day))?;
    if scale == 1 && !(-106_751..=106_750).contains(&day) {
        return Err(Fault);
    }
    Ok(day * a_day + clock.rem_euclid(long_day) / scale)
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::TimeUnit;

    use crate::kernels::expr::temporal::calendar_bounds;

    use super::*;

    /// By the bounds, where [`in_calendar`] goes by days.
    fn bounded(v: i64, per_day: i64) -> bool {
        calendar_bounds(per_day).is_none_or(|(first, last)| (first..=last).contains(&v))
    }

    #[test]
    fn days_and_dates_are_inverse() {
        for days in [-719_528, -1, 0, 58, 59, 60, 365, 11_015, 11_016, 11_017, 95_026_236, -96_465_292] {
            let (year, month, day) = civil(days);
            assert_eq!(days_of(year, month, day), days, "{days}");
        }
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(-1), (1969, 12, 31));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil((*CALENDAR.start()).into()), (-262_143, 1, 1));
        assert_eq!(civil((*CALENDAR.end()).into()), (262_142, 12, 31));
    }

    #[test]
    fn bounds_of_the_calendar() {
        for ty in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond]
            .map(ValueType::Duration)
        {
            let per_day = per_day(ty);
            let Some((first, last)) = calendar_bounds(per_day) else {
                assert_eq!(per_day, NANOS_PER_DAY);
                assert!(bounded(i64::MIN, per_day));
                continue;
            };
            for v in [first - 1, first, last, last + 1, 0, i64::MIN, i64::MAX] {
                assert_eq!(in_calendar(v.into(), ty), bounded(v, per_day), "{v} of {per_day}");
            }
        }
    }
}
