// Division of 128-bit integers, and conversions between decimals and the bits of doubles, in integers alone: no loops,
// so that no budget of iterations is touched, and no floats, so that no adapter rounds differently. With float_bits.wgsl.

fn dec_shl(a: vec2<u64>, n: u32) -> vec2<u64> {
    let s = n & 63u;
    let crossing = (a.x >> 1u) >> (63u - s);
    let near = vec2<u64>(a.x << s, (a.y << s) | crossing);
    return select(near, vec2<u64>(0lu, a.x << s), n >= 64u);
}

fn dec_less(a: vec2<u64>, b: vec2<u64>) -> bool {
    return select(a.y < b.y, a.x < b.x, a.y == b.y);
}

fn dec_magnitude(a: vec2<u64>) -> vec2<u64> {
    return select(a, w_neg(a), (a.y >> 63u) != 0lu);
}

fn dec_signed(a: vec2<u64>, negative: bool) -> vec2<u64> {
    return select(a, w_neg(a), negative);
}

struct DecPart {
    q: u64,
    r: u64,
}

// One quotient digit of 32 bits: `top` by the normalised divisor, with the next 32 bits of the dividend.
fn dec_digit(top: u64, next: u64, divisor: u64) -> u64 {
    let b = 0x100000000lu;
    let v1 = divisor >> 32u;
    let v0 = divisor & 0xfffffffflu;
    let q = top / v1;
    let r = top - q * v1;
    // The estimate is at most 2 too large.
    let over = (q >= b) | (q * v0 > ((r << 32u) | next));
    let q1 = select(q, q - 1lu, over);
    let r1 = select(r, r + v1, over);
    let again = over & (r1 < b) & ((q1 >= b) | (q1 * v0 > ((r1 << 32u) | next)));
    return select(q1, q1 - 1lu, again);
}

// 128 by 64 bits, for hi < d.
fn dec_div21(hi: u64, lo: u64, d: u64) -> DecPart {
    let s = fb_clz(d) & 63u;
    let dn = d << s;
    let top = (hi << s) | ((lo >> 1u) >> (63u - s));
    let low = lo << s;
    let q1 = dec_digit(top, low >> 32u, dn);
    let middle = (top << 32u) + (low >> 32u) - q1 * dn;
    let q0 = dec_digit(middle, low & 0xfffffffflu, dn);
    let rest = (middle << 32u) + (low & 0xfffffffflu) - q0 * dn;
    return DecPart((q1 << 32u) + q0, rest >> s);
}

struct DecQuotient {
    q: vec2<u64>,
    r: vec2<u64>,
}

// Magnitudes up to 2^127; a zero divisor counts as 1.
fn dec_udivmod(u: vec2<u64>, divisor: vec2<u64>) -> DecQuotient {
    let v = select(divisor, vec2<u64>(1lu, 0lu), (divisor.x | divisor.y) == 0lu);
    let small = v.y == 0lu;
    // By 64 bits: two steps. By more: a quotient of 64 bits from the leading bits, at most 1 too large.
    let by = select(1lu, v.x, small);
    let high = u.y / by;
    let n = fb_clz(v.y) & 63u;
    let half = vec2<u64>((u.x >> 1u) | (u.y << 63u), u.y >> 1u);
    let lead = select(dec_shl(v, n).y, v.x, small);
    let part = dec_div21(select(half.y, u.y - high * by, small), select(half.x, u.x, small), lead);
    let estimate = part.q >> (63u - n);
    // Not `select(0lu, estimate - 1lu, estimate != 0lu)`: NVIDIA's compiler (580.159) gives that garbage in the high half.
    let below = estimate - min(estimate, 1lu);
    let rest = w_sub(u, w_mul(vec2<u64>(below, 0lu), v));
    let more = !dec_less(rest, v);
    let q = vec2<u64>(select(below, below + 1lu, more), 0lu);
    let r = select(rest, w_sub(rest, v), more);
    return DecQuotient(select(q, vec2<u64>(part.q, high), small), select(r, vec2<u64>(part.r, 0lu), small));
}

// Towards zero.
fn dec_div(a: vec2<u64>, b: vec2<u64>) -> vec2<u64> {
    let d = dec_udivmod(dec_magnitude(a), dec_magnitude(b));
    return dec_signed(d.q, ((a.y ^ b.y) >> 63u) != 0lu);
}

// With the dividend's sign.
fn dec_rem(a: vec2<u64>, b: vec2<u64>) -> vec2<u64> {
    let d = dec_udivmod(dec_magnitude(a), dec_magnitude(b));
    return dec_signed(d.r, (a.y >> 63u) != 0lu);
}

// To the nearest, ties away from zero, by 1 or a positive even number.
fn dec_round(a: vec2<u64>, b: vec2<u64>) -> vec2<u64> {
    let d = dec_udivmod(dec_magnitude(a), b);
    let up = select(1lu, 0lu, dec_less(d.r, w_sub(b, d.r)));
    return dec_signed(w_add(d.q, vec2<u64>(up, 0lu)), (a.y >> 63u) != 0lu);
}

// The multiple of b, which may have all 128 bits, towards zero.
fn dec_trunc(a: vec2<u64>, b: vec2<u64>) -> vec2<u64> {
    let x = dec_magnitude(a);
    return dec_signed(w_sub(x, dec_udivmod(x, b).r), (a.y >> 63u) != 0lu);
}

// The multiple of b at or below a.
fn dec_floor(a: vec2<u64>, b: vec2<u64>) -> vec2<u64> {
    let r = dec_rem(a, b);
    return w_sub(a, select(r, w_add(r, b), (r.y >> 63u) != 0lu));
}

// The multiple of b at or above a.
fn dec_ceil(a: vec2<u64>, b: vec2<u64>) -> vec2<u64> {
    let r = dec_rem(a, b);
    let positive = ((r.y >> 63u) == 0lu) & ((r.x | r.y) != 0lu);
    return w_sub(a, select(r, w_sub(r, b), positive));
}

// Signed 64-bit operands that are not the minimum; by magnitudes, since signed division has traps on some adapters.
fn dec_div64(a: i64, b: i64) -> i64 {
    let x = bitcast<u64>(select(a, -a, a < 0li));
    let y = bitcast<u64>(select(b, -b, b < 0li));
    let q = bitcast<i64>(x / select(y, 1lu, y == 0lu));
    return select(q, -q, (a < 0li) != (b < 0li));
}

fn dec_rem64(a: i64, b: i64) -> i64 {
    return a - dec_div64(a, b) * b;
}

// dec_round by a divisor given by its halves: one with a high half is 10^20 at least, of which no value is the half.
fn dec_round64(a: i64, low: u64, high: u64) -> i64 {
    let x = bitcast<u64>(select(a, -a, a < 0li));
    let unit = max(low, 1lu);
    let q = x / unit;
    let r = x - q * unit;
    let n = bitcast<i64>(select(q + select(0lu, 1lu, r >= unit - r), 0lu, high != 0lu));
    return select(n, -n, a < 0li);
}

fn dec_trunc64(a: i64, low: u64, high: u64) -> i64 {
    let x = bitcast<u64>(select(a, -a, a < 0li));
    let unit = max(low, 1lu);
    let n = bitcast<i64>(select(x - x % unit, 0lu, high != 0lu));
    return select(n, -n, a < 0li);
}

// mantissa * 2^exponent, the mantissa of 53 bits, or 2^53 after a carry; zero has the mantissa 0.
struct DecFloat {
    mantissa: u64,
    exponent: i32,
}

// A magnitude with its leading one at bit 127, and by how many bits it was moved; zero stays.
struct DecNormal {
    m: vec2<u64>,
    zeros: u32,
}

fn dec_normal(m: vec2<u64>) -> DecNormal {
    let zeros = select(fb_clz(m.y), 64u + fb_clz(m.x), m.y == 0lu) & 127u;
    return DecNormal(dec_shl(m, zeros), zeros);
}

// A magnitude to 53 bits, ties to even.
fn dec_53(m: vec2<u64>) -> DecFloat {
    let x = dec_normal(m);
    let rest = x.m.y & 0x7fflu;
    let kept = x.m.y >> 11u;
    let up = (rest > 0x400lu) | ((rest == 0x400lu) & ((x.m.x != 0lu) | ((kept & 1lu) != 0lu)));
    return DecFloat(kept + select(0lu, 1lu, up), 75i - i32(x.zeros));
}

// An integer as a double.
fn dec_double(a: vec2<u64>) -> u64 {
    let x = dec_normal(dec_magnitude(a));
    let jammed = x.m.y | select(0lu, 1lu, x.m.x != 0lu);
    return fb_pack64(a.y & 0x8000000000000000lu, 1150i - i32(x.zeros), jammed);
}

// An integer, rounded to a double, divided by the double mantissa * 2^exponent.
fn dec_scaled_double(a: vec2<u64>, mantissa: u64, exponent: i32) -> u64 {
    let f = dec_53(dec_magnitude(a));
    // 55 bits or more of quotient, and one that says whether anything was left.
    let part = dec_div21(f.mantissa >> 9u, f.mantissa << 55u, mantissa);
    let jammed = (part.q << 1u) | select(0lu, 1lu, part.r != 0lu);
    let zeros = fb_clz(jammed);
    let e = 1030i - i32(zeros) + f.exponent - exponent;
    return fb_pack64(a.y & 0x8000000000000000lu, e, jammed << (zeros & 63u));
}

// A double times the double mantissa * 2^exponent, rounded to a double and then to an integer, ties away from zero.
fn dec_from_double(bits: u64, mantissa: u64, exponent: i32) -> Checked {
    let biased = u32((bits >> 52u) & 0x7fflu);
    // A denormal stays below a half.
    let sig = select((bits & 0xffffffffffffflu) | 0x10000000000000lu, 0lu, biased == 0u);
    let f = dec_53(w_umul(sig, mantissa));
    let shift = f.exponent + i32(biased) - 1075i + exponent;
    let left = u32(clamp(shift, 0i, 75i));
    let right = u32(clamp(-shift, 0i, 63i));
    let down = (f.mantissa + ((1lu << right) >> 1u)) >> right;
    let small = vec2<u64>(select(down, 0lu, right > 54u), 0lu);
    let value = select(small, dec_shl(vec2<u64>(f.mantissa, 0lu), left), shift > 0i);
    let zero = f.mantissa == 0lu;
    let over = (biased == 0x7ffu) | (!zero & (shift > 74i));
    return Checked(dec_signed(select(value, vec2<u64>(0lu, 0lu), zero), (bits >> 63u) != 0lu), over);
}
