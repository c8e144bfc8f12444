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

// One more bit of a root of 16 bits (x), and what is left of the square (y).
fn fa_root_bit(s: vec2<u32>, bit: u32) -> vec2<u32> {
    let square = ((s.x << 1u) | (1u << bit)) << bit;
    let fits = square <= s.y;
    return vec2<u32>(s.x | select(0u, 1u << bit, fits), s.y - select(0u, square, fits));
}

fn fa_root_bits(s: vec2<u32>, bit: u32) -> vec2<u32> {
    return fa_root_bit(fa_root_bit(fa_root_bit(fa_root_bit(s, bit + 3u), bit + 2u), bit + 1u), bit);
}

// The root of n * 2^64, rounded down, for n of 2^62 and more: of the upper half bit by bit, then twice as many bits by a
// division (Zimmermann, Karatsuba Square Root, 1999). The lowest bit is set too where something is left.
fn fa_root(n: u64) -> u64 {
    let top = fa_root_bits(fa_root_bits(fa_root_bits(fa_root_bits(vec2<u32>(0u, u32(n >> 32u)), 12u), 8u), 4u), 0u);
    let d = max(u64(top.x), 1lu) << 1u;
    let t = (u64(top.y) << 16u) | ((n >> 16u) & 0xfffflu);
    let q = t / d;
    let left = ((t - q * d) << 16u) | (n & 0xfffflu);
    let less = left < q * q;
    let half = (u64(top.x) << 16u) + q - select(0lu, 1lu, less);
    let rest = left - q * q + select(0lu, (half << 1u) + 1lu, less);
    // 2^31 <= half < 2^32, rest <= 2 * half
    let divisor = max(half, 1lu);
    let quotient = (rest << 31u) / divisor;
    // What is left is remainder * 2^33 - quotient^2, of more than 64 bits.
    let remainder = (rest << 31u) - quotient * divisor;
    let square = quotient * quotient;
    let whole = (quotient >> 32u) != 0lu;
    let part = (square & 0x1fffffffflu) != 0lu;
    let below = remainder < (square >> 33u);
    let level = remainder == (square >> 33u);
    let negative = whole | below | (level & part);
    let exact = !whole & level & !part;
    return ((half << 32u) + quotient - select(0lu, 1lu, negative)) | select(1lu, 0lu, exact);
}

fn fa_sqrt64(a: u64) -> u64 {
    let x = fb_open(a);
    let e = x.e - 1023;
    let m = fa_root(select(x.m >> 1u, x.m, (e & 1) != 0));
    let same = fa_zero(a) | (a == 0x7ff0000000000000lu);
    let root = select(fb_pack64(0lu, 1023 + (e >> 1u), m), a, same);
    return fa_result(a, a, root, ((a >> 63u) != 0lu) & !fa_zero(a));
}

// The root of a double, rounded once more, is what rounding once would give.
fn fa_sqrt32(a: u32) -> u32 {
    return fb_narrow(fa_sqrt64(fb_widen(a)));
}
