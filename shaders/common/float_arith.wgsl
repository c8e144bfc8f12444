// Arithmetic of doubles and singles on bit patterns, in integers: correctly rounded on every adapter, whatever its own
// float units do to denormals, products and sums. FA_INVALID is the NaN that the host's processor makes of an invalid
// operation; an operand that is NaN is handed on as a quiet one. Of two different NaNs the host may take either: see
// fa_clash64.

fn fa_clash64(a: u64, b: u64) -> bool {
    return fb_nan64(a) & fb_nan64(b) & (((a ^ b) & 0xfff7fffffffffffflu) != 0lu);
}

fn fa_clash32(a: u32, b: u32) -> bool {
    return fb_nan32(a) & fb_nan32(b) & (((a ^ b) & 0xffbfffffu) != 0u);
}

fn fa_result(a: u64, b: u64, value: u64, invalid: bool) -> u64 {
    let made = select(value, FA_INVALID, invalid);
    let second = select(made, b | 0x0008000000000000lu, fb_nan64(b));
    return select(second, a | 0x0008000000000000lu, fb_nan64(a));
}

fn fa_infinite(a: u64) -> bool {
    return (a & 0x7ffffffffffffffflu) == 0x7ff0000000000000lu;
}

fn fa_zero(a: u64) -> bool {
    return (a & 0x7ffffffffffffffflu) == 0lu;
}

// Significand with ten spare bits below.
fn fa_significand(b: u64) -> u64 {
    let fraction = (b & 0x000ffffffffffffflu) << 10u;
    return fraction | select(0lu, 0x4000000000000000lu, (b & 0x7ff0000000000000lu) != 0lu);
}

fn fa_exponent(b: u64) -> i32 {
    return max(i32(u32(b >> 52u) & 0x7ffu), 1);
}

fn fa_sum(a: u64, b: u64) -> u64 {
    let swap = (a & 0x7ffffffffffffffflu) < (b & 0x7ffffffffffffffflu);
    let x = select(a, b, swap);
    let y = select(b, a, swap);
    let e = fa_exponent(x);
    let large = fa_significand(x);
    let small = fb_jam(fa_significand(y), bitcast<u32>(e - fa_exponent(y)));
    let differ = ((x ^ y) >> 63u) != 0lu;
    let m = select(large + small, large - small, differ);
    let zeros = fb_clz(m);
    let sign = x & 0x8000000000000000lu;
    let r = fb_pack64(sign, e + 1 - bitcast<i32>(zeros), m << (zeros & 63u));
    let exact = select(r, 0lu, (m == 0lu) & differ);
    return select(exact, x, fa_infinite(x));
}

fn fa_product(a: u64, b: u64) -> u64 {
    let sign = (a ^ b) & 0x8000000000000000lu;
    let x = fb_open(a);
    let y = fb_open(b);
    let p = w_umul(x.m, y.m);
    let m = p.y | select(0lu, 1lu, p.x != 0lu);
    let shift = 1u - u32(m >> 63u);
    let r = fb_pack64(sign, x.e + y.e - 1022 - bitcast<i32>(shift), m << shift);
    return select(r, sign | 0x7ff0000000000000lu, (x.e == 2047) | (y.e == 2047));
}

// Eleven more bits of a quotient (x) and the remainder (y).
fn fa_divide(s: vec2<u64>, d: u64) -> vec2<u64> {
    let t = s.y << 11u;
    let k = t / d;
    return vec2<u64>((s.x << 11u) | k, t - k * d);
}

fn fa_quotient(a: u64, b: u64) -> u64 {
    let sign = (a ^ b) & 0x8000000000000000lu;
    let x = fb_open(a);
    let y = fb_open(b);
    let n = x.m >> 11u;
    let d = max(y.m >> 11u, 1lu);
    let first = select(vec2<u64>(0lu, n), vec2<u64>(1lu, n - d), n >= d);
    let s = fa_divide(fa_divide(fa_divide(fa_divide(fa_divide(first, d), d), d), d), d);
    // 2^54 < s.x < 2^56
    let shift = 9u - u32((s.x >> 55u) & 1lu);
    let m = (s.x << shift) | select(0lu, 1lu, s.y != 0lu);
    let r = fb_pack64(sign, x.e - y.e + 1031 - bitcast<i32>(shift), m);
    let large = select(r, sign | 0x7ff0000000000000lu, (x.e == 2047) | (y.m == 0lu));
    return select(large, sign, (y.e == 2047) | (x.m == 0lu));
}

fn fa_add64(a: u64, b: u64) -> u64 {
    return fa_result(a, b, fa_sum(a, b), fa_infinite(a) & ((a ^ b) == 0x8000000000000000lu));
}

fn fa_sub64(a: u64, b: u64) -> u64 {
    return fa_result(a, b, fa_sum(a, b ^ 0x8000000000000000lu), fa_infinite(a) & (a == b));
}

fn fa_mul64(a: u64, b: u64) -> u64 {
    let invalid = (fa_infinite(a) & fa_zero(b)) | (fa_zero(a) & fa_infinite(b));
    return fa_result(a, b, fa_product(a, b), invalid);
}

fn fa_div64(a: u64, b: u64) -> u64 {
    let invalid = (fa_infinite(a) & fa_infinite(b)) | (fa_zero(a) & fa_zero(b));
    return fa_result(a, b, fa_quotient(a, b), invalid);
}

// Rounding a double's sum, difference, product or quotient of singles once more gives what rounding once would.
fn fa_add32(a: u32, b: u32) -> u32 {
    return fb_narrow(fa_add64(fb_widen(a), fb_widen(b)));
}

fn fa_sub32(a: u32, b: u32) -> u32 {
    return fb_narrow(fa_sub64(fb_widen(a), fb_widen(b)));
}

fn fa_mul32(a: u32, b: u32) -> u32 {
    return fb_narrow(fa_mul64(fb_widen(a), fb_widen(b)));
}

fn fa_div32(a: u32, b: u32) -> u32 {
    return fb_narrow(fa_div64(fb_widen(a), fb_widen(b)));
}
