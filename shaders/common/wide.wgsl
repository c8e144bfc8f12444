// 128-bit two's complement integers as vec2<u64>: x = low half, y = high half.

fn w_from(x: i64) -> vec2<u64> {
    return vec2<u64>(bitcast<u64>(x), bitcast<u64>(x >> 63u));
}

fn w_narrow(a: vec2<u64>) -> i64 {
    return bitcast<i64>(a.x);
}

fn w_eq(a: vec2<u64>, b: vec2<u64>) -> bool {
    return (a.x == b.x) & (a.y == b.y);
}

fn w_lt(a: vec2<u64>, b: vec2<u64>) -> bool {
    return select(bitcast<i64>(a.y) < bitcast<i64>(b.y), a.x < b.x, a.y == b.y);
}

fn w_add(a: vec2<u64>, b: vec2<u64>) -> vec2<u64> {
    let lo = a.x + b.x;
    return vec2<u64>(lo, a.y + b.y + select(0lu, 1lu, lo < a.x));
}

fn w_sub(a: vec2<u64>, b: vec2<u64>) -> vec2<u64> {
    return vec2<u64>(a.x - b.x, a.y - b.y - select(0lu, 1lu, a.x < b.x));
}

fn w_neg(a: vec2<u64>) -> vec2<u64> {
    return vec2<u64>(~a.x + 1lu, ~a.y + select(0lu, 1lu, a.x == 0lu));
}

// The value times 2^n modulo 2^128, for n of 1 to 63.
fn w_shl(a: vec2<u64>, n: u32) -> vec2<u64> {
    return vec2<u64>(a.x << n, (a.y << n) | (a.x >> (64u - n)));
}

// Full product of two unsigned halves, by four 32 x 32 bit products.
fn w_umul(a: u64, b: u64) -> vec2<u64> {
    let m = 0xfffffffflu;
    let p00 = (a & m) * (b & m);
    let p01 = (a & m) * (b >> 32u);
    let p10 = (a >> 32u) * (b & m);
    let p11 = (a >> 32u) * (b >> 32u);
    let mid = (p00 >> 32u) + (p01 & m) + (p10 & m);
    return vec2<u64>((p00 & m) | (mid << 32u), p11 + (p01 >> 32u) + (p10 >> 32u) + (mid >> 32u));
}

// Product modulo 2^128.
fn w_mul(a: vec2<u64>, b: vec2<u64>) -> vec2<u64> {
    let p = w_umul(a.x, b.x);
    return vec2<u64>(p.x, p.y + a.x * b.y + a.y * b.x);
}

// A result modulo 2^128, and whether it left the range.
struct Checked {
    v: vec2<u64>,
    over: bool,
}

fn w_add_checked(a: vec2<u64>, b: vec2<u64>) -> Checked {
    let r = w_add(a, b);
    return Checked(r, (((a.y ^ r.y) & (b.y ^ r.y)) >> 63u) != 0lu);
}

fn w_sub_checked(a: vec2<u64>, b: vec2<u64>) -> Checked {
    let r = w_sub(a, b);
    return Checked(r, (((a.y ^ b.y) & (a.y ^ r.y)) >> 63u) != 0lu);
}

fn w_mul_checked(a: vec2<u64>, b: vec2<u64>) -> Checked {
    let na = (a.y >> 63u) != 0lu;
    let nb = (b.y >> 63u) != 0lu;
    let ua = select(a, w_neg(a), na);
    let ub = select(b, w_neg(b), nb);
    let p = w_umul(ua.x, ub.x);
    let c = w_umul(ua.y, ub.x);
    let d = w_umul(ua.x, ub.y);
    let h1 = p.y + c.x;
    let h = h1 + d.x;
    let negative = na != nb;
    // At most one high half may be non-zero, and the magnitude must stay below 2^127, or reach it as the minimum.
    let lost = ((ua.y != 0lu) & (ub.y != 0lu)) | (c.y != 0lu) | (d.y != 0lu) | (h1 < p.y) | (h < h1);
    let minimum = negative & (h == 0x8000000000000000lu) & (p.x == 0lu);
    let r = vec2<u64>(p.x, h);
    return Checked(select(r, w_neg(r), negative), lost | (((h >> 63u) != 0lu) & !minimum));
}
