// Doubles as bit patterns to whole numbers, and remainders. Exact; of a NaN the bits stay.

fn fr_exponent(b: u64) -> i32 {
    return i32(u32(b >> 52u) & 0x7ffu) - 1023;
}

// Bits of the fraction of a number of at least one.
fn fr_spare(e: i32) -> u32 {
    return bitcast<u32>(clamp(52 - e, 0, 63));
}

fn fr_trunc(b: u64) -> u64 {
    let e = fr_exponent(b);
    let n = fr_spare(e);
    return select((b >> n) << n, b & 0x8000000000000000lu, e < 0);
}

// Of a number that is not whole, the next whole one away from zero.
fn fr_away(b: u64) -> u64 {
    let e = fr_exponent(b);
    let one = (b & 0x8000000000000000lu) | 0x3ff0000000000000lu;
    return select(fr_trunc(b) + (1lu << fr_spare(e)), one, e < 0);
}

fn fr_floor(b: u64) -> u64 {
    let t = fr_trunc(b);
    return select(t, fr_away(b), (t != b) & ((b >> 63u) != 0lu));
}

fn fr_ceil(b: u64) -> u64 {
    let t = fr_trunc(b);
    return select(t, fr_away(b), (t != b) & ((b >> 63u) == 0lu));
}

// To the nearest, halves away from zero.
fn fr_round(b: u64) -> u64 {
    let e = fr_exponent(b);
    let n = fr_spare(e);
    let half = 1lu << (max(n, 1u) - 1u);
    let sign = b & 0x8000000000000000lu;
    let large = select(((b + half) >> n) << n, b, e > 51);
    let small = select(sign, sign | 0x3ff0000000000000lu, e == -1);
    return select(large, small, e < 0);
}

fn fr_quiet(b: u64) -> u64 {
    return select(b, b | 0x0008000000000000lu, fb_nan64(b));
}

// A remainder with the sign of the dividend, and whether it is not known: NaN comes out, or the quotient is large.
struct FrRest {
    v: u64,
    unknown: bool,
}

// The remainder so far (x) brought down by up to eleven of the bits still to go (y).
fn fr_step(s: vec2<u64>, d: u64) -> vec2<u64> {
    let n = min(s.y, 11lu);
    return vec2<u64>((s.x << u32(n)) % d, s.y - n);
}

fn fr_significand(b: u64) -> u64 {
    return (b & 0x000ffffffffffffflu) | select(0lu, 0x0010000000000000lu, (b & 0x7ff0000000000000lu) != 0lu);
}

fn fr_rem(a: u64, b: u64) -> FrRest {
    let x = a & 0x7ffffffffffffffflu;
    let y = b & 0x7ffffffffffffffflu;
    let ex = max(i32(u32(x >> 52u)), 1);
    let ey = max(i32(u32(y >> 52u)), 1);
    let d = max(fr_significand(y), 1lu);
    let first = vec2<u64>(fr_significand(x) % d, u64(bitcast<u32>(max(ex - ey, 0))));
    let half = fr_step(fr_step(fr_step(first, d), d), d);
    let s = fr_step(fr_step(fr_step(half, d), d), d);
    let zeros = fb_clz(s.x);
    let rest = fb_pack64(a & 0x8000000000000000lu, ey + 11 - bitcast<i32>(zeros), s.x << (zeros & 63u));
    let less = x < y;
    let nan = (x >= 0x7ff0000000000000lu) | (y > 0x7ff0000000000000lu) | (y == 0lu);
    return FrRest(select(rest, a, less), nan | (!less & (s.y != 0lu)));
}
