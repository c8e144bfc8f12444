// Dates and times.

// Division and remainder toward minus infinity by a positive divisor.
fn tm_floor(a: i64, b: i64) -> i64 {
    return a / b - select(0li, 1li, a % b < 0li);
}

fn tm_mod(a: i64, b: i64) -> i64 {
    let r = a % b;
    return r + select(0li, b, r < 0li);
}

// Year, month and day of a day since the epoch, within the calendar. Years begin in March, so that the leap day is the
// last one, and are counted from March 1 of -280000, so that all is positive: 700 eras of 400 years.
fn tm_civil(days: i32) -> vec3<i32> {
    let d = days + 719468 + 102267900;
    let era = d / 146097;
    let in_era = d - era * 146097;
    let century = (4 * in_era + 3) / 146097;
    let in_century = in_era - (146097 * century) / 4;
    let year = (4 * in_century + 3) / 1461;
    let in_year = in_century - (1461 * year) / 4;
    let march = (5 * in_year + 2) / 153;
    let day = in_year - (153 * march + 2) / 5 + 1;
    let after = select(0, 1, march >= 10);
    return vec3<i32>(era * 400 + century * 100 + year - 280000 + after, march + 3 - 12 * after, day);
}

// The inverse.
fn tm_days(year: i32, month: i32, day: i32) -> i32 {
    let before = select(0, 1, month <= 2);
    let y = year - before + 280000;
    let march = month - 3 + 12 * before;
    return 365 * y + y / 4 - y / 100 + y / 400 + (153 * march + 2) / 5 + day - 1 - 719468 - 102267900;
}

fn tm_month_days(year: i32, month: i32) -> i32 {
    let next = select(0, 1, month == 12);
    return tm_days(year + next, month + 1 - 12 * next, 1) - tm_days(year, month, 1);
}

// The day so many months later, or the last day of that month.
fn tm_add_months(start: vec3<i32>, months: i32) -> i32 {
    let total = start.x * 12 + start.y - 1 + months + 2400000;
    let year = total / 12 - 200000;
    let month = total % 12 + 1;
    return tm_days(year, month, min(start.z, tm_month_days(year, month)));
}
