//! Temporal functions as WGSL. All arithmetic is on 64-bit counts of units and 32-bit counts of days.

use std::fmt::Write;

use crate::kernels::expr::arith::sign_extended;
use crate::kernels::expr::ir::{ValueType, Zone};
use crate::kernels::expr::wgsl::{Emitter, Node, faults_of};
use crate::kernels::expr::widths::{ANY, Class, type_bits};

use super::{
    CALENDAR, Granularity, NANOS_PER_DAY, Over, Part, Step, calendar_bounds, per_day, scale_to_nanos,
};

/// Months beyond which no date stays in the calendar.
const MOST_MONTHS: i32 = 7_000_000;
/// Days likewise.
const MOST_DAYS: i32 = 300_000_000;
/// Distance from the calendar's ends at which interval arithmetic leaves the decision to the CPU.
const MARGIN: i64 = 2;

/// An i64 literal.
fn long(value: i64) -> String {
    match value {
        i64::MIN => "(-9223372036854775807li - 1li)".to_owned(),
        0.. => format!("{value}li"),
        _ => format!("({value}li)"),
    }
}

/// The low half of an i64.
fn low(value: &str) -> String {
    format!("bitcast<i32>(u32(bitcast<u64>({value}) & 0xfffffffflu))")
}

/// An instant taken apart.
struct Instant {
    /// Days since the epoch, `i32`.
    days: String,
    /// Units since midnight, `i64`.
    clock: String,
    /// Whether the days are in the calendar, where they may not be.
    inside: Option<String>,
}

impl Emitter<'_> {
    /// The result before its value is known: NULL where an operand is.
    pub(super) fn temporal_node(&mut self, args: &[Node], ty: ValueType) -> Node {
        let flags: Vec<_> = args.iter().map(|arg| arg.valid.as_deref()).collect();
        let valid = self.all(&flags);
        let children: Vec<&Node> = args.iter().collect();
        Node {
            value: String::new(),
            valid,
            ty,
            class: Class::of(ty, ANY),
            bits: type_bits(ty),
            constant: args.iter().all(|arg| arg.constant),
            faults: faults_of(&children),
        }
    }

    /// The value in 64 bits.
    fn long(&mut self, e: &Node) -> String {
        match e.class {
            Class::I32 => self.name(&sign_extended(&e.value)),
            _ => e.value.clone(),
        }
    }

    /// Where `condition`, the result is NULL.
    fn null_where(&mut self, node: &mut Node, condition: &str) {
        let valid = format!("{} & !({condition})", node.validity());
        node.valid = Some(self.name(&valid));
    }

    fn over(&mut self, node: &mut Node, over: Over, condition: &str) {
        match over {
            Over::Fault => self.fault(node, condition),
            Over::Null => self.null_where(node, condition),
            Over::Wrap => {}
        }
    }

    /// Gives the node a 64-bit value, or its low half.
    fn set_long(&mut self, node: &mut Node, value: &str) {
        node.value = match node.class {
            Class::I32 => self.name(&low(value)),
            _ => value.to_owned(),
        };
    }

    pub(super) fn temporal_cast(&mut self, e: &Node, steps: &[Step], node: &mut Node) {
        let mut v = self.long(e);
        for step in steps {
            v = match *step {
                Step::Multiply(by, over) => {
                    let (min, max) = (long(i64::MIN / by), long(i64::MAX / by));
                    self.over(node, over, &format!("({v} < {min}) | ({v} > {max})"));
                    self.name(&format!("{v} * {by}li"))
                }
                Step::Divide(by) => self.name(&format!("{v} / {by}li")),
                Step::Narrow(over) => {
                    let (min, max) = (long(i32::MIN.into()), long(i32::MAX.into()));
                    self.over(node, over, &format!("({v} < {min}) | ({v} > {max})"));
                    v
                }
                Step::Instant(per_day, over) => {
                    if let Some((first, last)) = calendar_bounds(per_day) {
                        self.over(node, over, &format!("({v} < {}) | ({v} > {})", long(first), long(last)));
                    }
                    v
                }
                Step::Day(per_day) => self.name(&format!("tm_floor({v}, {per_day}li)")),
                Step::TimeOfDay(per_day) => self.name(&format!("tm_mod({v}, {per_day}li)")),
            };
        }
        self.set_long(node, &v);
    }

    /// Days and time of day.
    fn instant(&mut self, e: &Node) -> Instant {
        let (first_day, last_day) = (*CALENDAR.start(), *CALENDAR.end());
        if e.ty == ValueType::Date32 {
            let inside = self.name(&format!("({0} >= ({first_day}i)) & ({0} <= {last_day}i)", e.value));
            return Instant { days: e.value.clone(), clock: "0li".to_owned(), inside: Some(inside) };
        }
        let day = per_day(e.ty);
        let whole = self.name(&format!("tm_floor({}, {day}li)", e.value));
        let inside = calendar_bounds(day).is_some().then(|| {
            self.name(&format!("({whole} >= {}) & ({whole} <= {})", long(first_day), long(last_day)))
        });
        let days = self.name(&low(&whole));
        let clock = self.name(&format!("{} - {whole} * {day}li", e.value));
        Instant { days, clock, inside }
    }

    pub(super) fn temporal_trunc(&mut self, e: &Node, to: Granularity, single: bool, node: &mut Node) {
        let scale = scale_to_nanos(e.ty);
        let zone = match e.ty {
            ValueType::Timestamp { zone, .. } => Some(zone),
            _ => None,
        };
        let units = to.nanos().map(|nanos| nanos / scale);
        let v = &e.value;
        node.value = match (units, zone) {
            // Nothing is finer.
            (Some(0 | 1), _) => v.clone(),
            // Times of day are truncated toward zero.
            (Some(units), None) if e.class == Class::I32 => self.name(&format!("{v} - {v} % {units}i")),
            (Some(units), None) => self.name(&format!("{v} - {v} % {units}li")),
            (Some(units), Some(_)) => self.name(&format!("{v} - tm_mod({v}, {units}li)")),
            (None, _) => self.first_day(e, to),
        };
        let single = single && zone.is_some();
        if single || to.in_nanos(zone.unwrap_or(Zone::None)) {
            let (min, max) = (long(i64::MIN / scale), long(i64::MAX / scale));
            let outside = format!("({v} < {min}) | ({v} > {max}) | ({0} < {min}) | ({0} > {v})", node.value);
            self.fault(node, &outside);
        }
        if single && to.of_second() && node.value != *v {
            let other = format!("({v} < 0li) & ({} != {v})", node.value);
            self.fault(node, &other);
        }
    }

    /// Midnight of the first day of the week, month, quarter or year.
    fn first_day(&mut self, e: &Node, to: Granularity) -> String {
        let instant = self.instant(e);
        let days = instant.days;
        let first = if to == Granularity::Week {
            let whole = self.name(&sign_extended(&days));
            return self.name(&format!("({whole} - tm_mod({whole} + 3li, 7li)) * {}li", per_day(e.ty)));
        } else {
            let civil = self.name(&format!("tm_civil({days})"));
            let month = match to {
                Granularity::Year => "1".to_owned(),
                Granularity::Quarter => format!("({civil}.y - 1) / 3 * 3 + 1"),
                _ => format!("{civil}.y"),
            };
            self.name(&format!("tm_days({civil}.x, {month}, 1)"))
        };
        self.name(&format!("{} * {}li", sign_extended(&first), per_day(e.ty)))
    }

    /// Hides from the driver's compiler how small a value is, or what divides it: NVIDIA's (580.159) gave the minute itself as the second
    /// of the day `minute * 86400000 ms`, and half an hour as the hour of what was cut to quarters of an hour; of values that it knows
    /// nothing about it gives both right. The first word of the arguments is all ones.
    pub(super) fn unbounded(&mut self, node: &mut Node) {
        let text = match node.class {
            Class::I32 => format!("{} ^ bitcast<i32>(~args[0])", node.value),
            Class::I64 => format!("{} ^ bitcast<i64>(u64(~args[0]))", node.value),
            _ => return,
        };
        node.value = self.name(&text);
    }

    pub(super) fn temporal_part(&mut self, e: &Node, part: Part, node: &mut Node) {
        match e.ty {
            ValueType::Duration(_) => self.duration_part(e, part, node),
            ValueType::Time32(_) | ValueType::Time64(_) => {
                let v = self.long(e);
                self.null_where(node, &format!("({v} < 0li) | ({v} >= {}li)", per_day(e.ty)));
                self.clock_part(&v, e.ty, part, node);
            }
            // Dates have no time of day, and Arrow does not look at them for one.
            ValueType::Date32 if part.of_time() => node.value = node.class.zero().to_owned(),
            ValueType::Date64 if matches!(part, Part::Millisecond | Part::Microsecond | Part::Nanosecond) => {
                node.value = node.class.zero().to_owned();
            }
            _ => {
                let instant = self.instant(e);
                if let Some(inside) = &instant.inside {
                    self.null_where(node, &format!("!{inside}"));
                }
                if part.of_time() {
                    self.clock_part(&instant.clock, e.ty, part, node);
                } else {
                    let text = self.date_part(&instant.days, part);
                    node.value = self.name(&text);
                }
            }
        }
    }

    /// A part of the time of day `clock`, in units of `ty`.
    fn clock_part(&mut self, clock: &str, ty: ValueType, part: Part, node: &mut Node) {
        let scale = scale_to_nanos(ty);
        let unit = part.unit_nanos().unwrap_or(1);
        let counted = if unit >= scale {
            format!("{clock} / {}li", unit / scale)
        } else {
            format!("{clock} * {}li", scale / unit)
        };
        let around = match part {
            Part::Hour => None,
            Part::Minute => Some(60),
            // Of the minute.
            _ => Some(60_000_000_000 / unit),
        };
        let text = match around {
            Some(around) => format!("({counted}) % {around}li"),
            None => counted,
        };
        let v = self.name(&text);
        self.set_long(node, &v);
    }

    /// A part of a date, as an `i32`.
    fn date_part(&mut self, days: &str, part: Part) -> String {
        // January 1, 1970 was a Thursday; the sum stays positive.
        let weekday = |offset: i32| format!("({days} + {}) % 7", 700_000_000 + offset);
        match part {
            Part::DayOfWeek => return weekday(4),
            Part::IsoDayOfWeek => return format!("{} + 1", weekday(3)),
            Part::Week | Part::IsoYear => {
                // The year of a week is that of its Thursday.
                let thursday = self.name(&format!("{days} - {} + 3", weekday(3)));
                let civil = self.name(&format!("tm_civil({thursday})"));
                return match part {
                    Part::IsoYear => format!("{civil}.x"),
                    _ => format!("({thursday} - tm_days({civil}.x, 1, 1)) / 7 + 1"),
                };
            }
            _ => {}
        }
        let civil = self.name(&format!("tm_civil({days})"));
        match part {
            Part::Year => format!("{civil}.x"),
            Part::Quarter => format!("({civil}.y + 2) / 3"),
            Part::Month => format!("{civil}.y"),
            Part::DayOfYear => format!("{days} - tm_days({civil}.x, 1, 1) + 1"),
            _ => format!("{civil}.z"),
        }
    }

    /// The whole span in a unit, not what exceeds the next larger one.
    fn duration_part(&mut self, e: &Node, part: Part, node: &mut Node) {
        let nanos = match part {
            Part::Week => 7 * NANOS_PER_DAY,
            Part::Day => NANOS_PER_DAY,
            part => part.unit_nanos().unwrap_or(1),
        };
        let v = self.name(&format!("{} / {}li", e.value, nanos / scale_to_nanos(e.ty)));
        self.over(
            node,
            Over::Null,
            &format!("({v} < {}) | ({v} > {})", long(i32::MIN.into()), long(i32::MAX.into())),
        );
        self.set_long(node, &v);
    }

    pub(super) fn temporal_bin(&mut self, e: &Node, stride: &Node, origin: &Node, node: &mut Node) {
        let scale = scale_to_nanos(e.ty);
        let (stride, origin) = (&stride.value, &origin.value);
        let mut v = self.long(e);
        if scale > 1 {
            if e.class == Class::I64 {
                let (min, max) = (long(i64::MIN / scale), long(i64::MAX / scale));
                self.null_where(node, &format!("({v} < {min}) | ({v} > {max})"));
            }
            v = self.name(&format!("{v} * {scale}li"));
        }
        let diff = self.name(&format!("{v} - {origin}"));
        self.null_where(node, &format!("(({v} ^ {origin}) & ({v} ^ {diff})) < 0li"));
        let rest = self.name(&format!("{diff} % {stride}"));
        let whole = self.name(&format!("{diff} - {rest}"));
        let down = self.name(&format!("({diff} < 0li) & ({stride} > 1li) & ({rest} != 0li)"));
        let delta = self.name(&format!("select({whole}, {whole} - {stride}, {down})"));
        self.null_where(node, &format!("{delta} > {whole}"));
        let bin = self.name(&format!("{origin} + {delta}"));
        self.null_where(node, &format!("(({origin} ^ {bin}) & ({delta} ^ {bin})) < 0li"));
        let text = match e.ty {
            ValueType::Timestamp { .. } => format!("{bin} / {scale}li"),
            _ => format!("({bin} % {NANOS_PER_DAY}li) / {scale}li"),
        };
        let v = self.name(&text);
        self.set_long(node, &v);
    }

    pub(super) fn temporal_months(&mut self, e: &Node, stride: &Node, origin: &Node, node: &mut Node) {
        let scale = scale_to_nanos(e.ty);
        let (stride, origin) = (&stride.value, &origin.value);
        let (min, max) = (long(i64::MIN / scale), long(i64::MAX / scale));
        self.null_where(node, &format!("({0} < {min}) | ({0} > {max})", e.value));
        let v = self.name(&format!("{} * {scale}li", e.value));
        let [(day, clock), (first, midnight)] = [&v, origin].map(|nanos| {
            let whole = self.name(&format!("tm_floor({nanos}, {NANOS_PER_DAY}li)"));
            let clock = self.name(&format!("{nanos} - {whole} * {NANOS_PER_DAY}li"));
            (self.name(&low(&whole)), clock)
        });
        let to = self.name(&format!("tm_civil({day})"));
        let from = self.name(&format!("tm_civil({first})"));
        let months = self.name(&format!("({to}.x - {from}.x) * 12 + {to}.y - {from}.y"));
        let rest = self.name(&format!("{months} % {stride}"));
        let down = self.name(&format!("({months} < 0) & ({stride} > 1) & ({rest} != 0)"));
        let delta = self.name(&format!("{months} - {rest} - select(0, {stride}, {down})"));
        let bin = self.name(&format!("tm_add_months({from}, {delta})"));
        let later = self.name(&format!("({bin} > {day}) | (({bin} == {day}) & ({midnight} > {clock}))"));
        let bin = self.name(&format!("select({bin}, tm_add_months({from}, {delta} - {stride}), {later})"));
        // The first and the last nanosecond lie within a day.
        let (first, last) = (i64::MIN.rem_euclid(NANOS_PER_DAY), i64::MAX.rem_euclid(NANOS_PER_DAY));
        self.null_where(
            node,
            &format!(
                "({bin} < -106752) | (({bin} == -106752) & ({midnight} < {first}li)) | ({bin} > 106751) | \
                 (({bin} == 106751) & ({midnight} > {last}li))"
            ),
        );
        let nanos = self.name(&format!("{} * {NANOS_PER_DAY}li + {midnight}", sign_extended(&bin)));
        node.value = self.name(&format!("{nanos} / {scale}li"));
    }

    pub(super) fn temporal_interval(
        &mut self,
        e: &Node,
        interval: [&Node; 3],
        negated: bool,
        node: &mut Node,
    ) {
        let [months, days, nanos] = interval.map(|part| part.value.clone());
        let sign = if negated { '-' } else { '+' };
        let date = matches!(e.ty, ValueType::Date32 | ValueType::Date64);
        let (first, last) = (CALENDAR.start() + MARGIN, CALENDAR.end() - MARGIN);
        let mut bad = format!(
            "({months} > {MOST_MONTHS}) | ({months} < -{MOST_MONTHS}) | ({days} > {MOST_DAYS}) | ({days} < -{MOST_DAYS})"
        );
        let mut outside = |days: &str| {
            let _ = write!(bad, " | ({days} < ({first}i)) | ({days} > {last}i)");
        };
        let mut instant = self.instant(e);
        if e.ty == ValueType::Date64 {
            // Whole days are counted toward zero.
            let whole = self.name(&format!("{} / {}li", e.value, per_day(e.ty)));
            instant.days = self.name(&low(&whole));
        }
        outside(&instant.days);
        let civil = self.name(&format!("tm_civil({})", instant.days));
        let total = self.name(&format!("{civil}.x * 12 + {civil}.y - 1 {sign} {months} + 24000000"));
        let year = self.name(&format!("{total} / 12 - 2000000"));
        let month = self.name(&format!("{total} % 12 + 1"));
        let moved =
            self.name(&format!("tm_days({year}, {month}, min({civil}.z, tm_month_days({year}, {month})))"));
        outside(&moved);
        let moved = self.name(&format!("{moved} {sign} {days}"));
        outside(&moved);
        let clock = if date { "0li".to_owned() } else { instant.clock };
        let scale = scale_to_nanos(e.ty);
        let (span, rest) = if date {
            (self.name(&format!("{nanos} / {NANOS_PER_DAY}li")), "0li".to_owned())
        } else {
            let span = self.name(&format!("tm_floor({nanos}, {NANOS_PER_DAY}li)"));
            (span.clone(), self.name(&format!("{nanos} - {span} * {NANOS_PER_DAY}li")))
        };
        let sum =
            if date { "0li".to_owned() } else { self.name(&format!("{clock} * {scale}li {sign} {rest}")) };
        let carry = self.name(&format!("{} {sign} {}", sign_extended(&moved), span));
        let day =
            if date { carry } else { self.name(&format!("{carry} + tm_floor({sum}, {NANOS_PER_DAY}li)")) };
        let days = self.name(&low(&day));
        outside(&days);
        if scale == 1 {
            let _ = write!(bad, " | ({days} < -106751) | ({days} > 106750)");
        }
        if let Some(inside) = &instant.inside {
            let _ = write!(bad, " | !{inside}");
        }
        self.fault(node, &bad);
        let text = match e.ty {
            ValueType::Date32 | ValueType::Date64 => format!("{day} * {}li", per_day(e.ty)),
            _ => format!("{day} * {}li + tm_mod({sum}, {NANOS_PER_DAY}li) / {scale}li", per_day(e.ty)),
        };
        let v = self.name(&text);
        self.set_long(node, &v);
    }

    pub(super) fn temporal_shift(&mut self, e: &Node, nanos: &Node, negated: bool, node: &mut Node) {
        let v = self.long(e);
        let part = self.name(&format!("{} % {NANOS_PER_DAY}li", nanos.value));
        let signed = if negated { format!("-{part}") } else { part };
        let delta = self.name(&format!("tm_floor({signed}, {}li)", scale_to_nanos(e.ty)));
        let v = self.name(&format!("tm_mod({v} + {delta}, {}li)", per_day(e.ty)));
        self.set_long(node, &v);
    }

    pub(super) fn temporal_span(&mut self, l: &Node, r: &Node, negated: bool, node: &mut Node) {
        let (a, b) = (&l.value, &r.value);
        let sign = if negated { '-' } else { '+' };
        let sum = self.name(&format!("{a} {sign} {b}"));
        // Overflow: the operands agree in sign (differ, of a difference), and the result has another one than the left.
        let other = if negated { a } else { &sum };
        self.fault(node, &format!("(({a} ^ {sum}) & ({b} ^ {other})) < 0li"));
        node.value = sum;
    }

    pub(super) fn temporal_days(&mut self, l: &Node, r: &Node, node: &mut Node) {
        let (a, b) = (self.long(l), self.long(r));
        let difference = self.name(&format!("{a} - {b}"));
        node.value = match l.ty {
            ValueType::Date64 => self.name(&format!("{difference} / {}li", per_day(l.ty))),
            _ => difference,
        };
    }
}
