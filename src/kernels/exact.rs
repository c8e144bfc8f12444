//! Exact sums of floats: integers of any width, rounded once at the end.
//!
//! A finite double is a multiple of 2^-1074, so a sum of doubles is one as well: an integer that counts such units. It is
//! kept in two's complement, over the window of bits that its summands need. Nothing is rounded before
//! [`ExactSum::to_f64`], so order, batches and partitions do not matter.

mod bytes;
#[cfg(test)]
pub(crate) mod plain;
#[cfg(test)]
mod tests;
mod wide;

use std::fmt;

use super::expr::INVALID_NAN;
use wide::Wide;

/// Bit of the integer 1: the position of 2^0 above 2^-1074.
pub(crate) const ONE_AT: u32 = 1074;
/// Bits of a window's limb; windows begin at a multiple of them.
const LIMB: u32 = 32;
/// Bits that a new window keeps free below its first summand.
const ROOM_BELOW: u32 = 24;

/// The exact sum of any number of floats and integers, below 2^1278 in magnitude, with NaN and the infinities that were among
/// them.
///
/// Memory: 24 bytes; sums that span more than 128 bits, or met NaN or an infinity, have a vector of 64-bit limbs beside it,
/// no longer than the bits that are in use.
#[derive(Clone)]
pub struct ExactSum(Repr);

#[derive(Clone)]
enum Repr {
    /// A finite sum within 128 bits: the integer, low half first, counts multiples of 2^(32 base - 1074).
    Small { base: u8, halves: [u64; 2] },
    /// Everything else.
    Wide(Box<Wide>),
}

/// What was met that has no place in an integer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Special {
    /// The largest NaN by bits, with the quiet bit set; 0 where there was none.
    pub nan: u64,
    /// +infinity was met.
    pub plus: bool,
    /// -infinity was met.
    pub minus: bool,
}

/// A finite sum as sign and magnitude.
pub(super) struct Magnitude {
    pub negative: bool,
    /// Limbs of 64 bits, lowest first.
    pub limbs: Vec<u64>,
    /// Position of the lowest bit.
    pub at: u32,
}

impl Default for ExactSum {
    fn default() -> Self {
        ExactSum(Repr::small(0, 0))
    }
}

impl Repr {
    fn small(base: u8, value: i128) -> Self {
        Repr::Small { base, halves: [value as u64, (value >> 64) as u64] }
    }
}

fn joined(halves: [u64; 2]) -> i128 {
    (u128::from(halves[0]) | u128::from(halves[1]) << 64) as i128
}

impl ExactSum {
    /// The sum of no numbers: 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The sum of one integer.
    pub fn from_i128(value: i128) -> Self {
        let mut sum = Self::new();
        sum.add_i128(value);
        sum
    }

    /// Adds a double of any kind.
    pub fn add_f64(&mut self, x: f64) {
        let bits = x.to_bits();
        let exponent = ((bits >> 52) & 0x7ff) as u32;
        let fraction = (bits & ((1 << 52) - 1)) as i64;
        match exponent {
            0x7ff => self.add_special(bits),
            0 => self.add_at(signed(fraction, x.is_sign_negative()), 0),
            _ => self.add_at(signed(fraction | 1 << 52, x.is_sign_negative()), exponent - 1),
        }
    }

    /// Adds a single of any kind.
    pub fn add_f32(&mut self, x: f32) {
        let bits = x.to_bits();
        if (bits >> 23) & 0xff == 0xff {
            // As a cast to a double keeps the bits.
            let bits = u64::from(bits);
            self.add_special((bits & (1 << 31)) << 32 | 0x7ff << 52 | (bits & 0x7f_ffff) << 29);
        } else {
            self.add_f64(x.into());
        }
    }

    /// Adds an integer.
    pub fn add_i128(&mut self, value: i128) {
        self.add_at(value, ONE_AT);
    }

    /// Adds the bits of a double that is an infinity or NaN.
    pub(crate) fn add_special(&mut self, bits: u64) {
        let mut met = Special::default();
        match (bits & ((1 << 52) - 1), bits >> 63) {
            (0, 0) => met.plus = true,
            (0, _) => met.minus = true,
            _ => met.nan = bits | 1 << 51,
        }
        self.note(met);
    }

    /// Adds what others met.
    pub(crate) fn note(&mut self, met: Special) {
        if met == Special::default() {
            return;
        }
        self.widely(|wide| {
            let special = &mut wide.special;
            special.nan = special.nan.max(met.nan);
            special.plus |= met.plus;
            special.minus |= met.minus;
        });
    }

    /// Adds, or takes away where `negative`, an integer of 32-bit words, lowest first, whose lowest bit stands at `at`: bit 0 is
    /// 2^-1074.
    pub(crate) fn add_words(&mut self, words: &[u32], at: u32, negative: bool) {
        for (number, chunk) in words.chunks(3).enumerate() {
            let bits = chunk.iter().rev().fold(0i128, |bits, word| bits << 32 | i128::from(*word));
            self.add_at(if negative { -bits } else { bits }, at + 96 * number as u32);
        }
    }

    /// The integer of 32-bit words in two's complement, lowest first, whose lowest bit stands at `at`: bit 0 is 2^-1074.
    pub(crate) fn from_words(words: &[u32], at: u32) -> Self {
        let mut sum = ExactSum::new();
        let Some(low) = words.iter().position(|word| *word != 0) else { return sum };
        let negative = words.last().is_some_and(|word| word >> 31 != 0);
        let fill = if negative { u32::MAX } else { 0 };
        // What lies above is the sign.
        let high = words.iter().rposition(|word| *word != fill).map_or(low, |last| last + 1);
        let digits = words.get(low..high).unwrap_or_default();
        let (place, above) = (at + LIMB * low as u32, LIMB * digits.len() as u32);
        if digits.len() <= 3 {
            let bits = digits.iter().rev().fold(0i128, |bits, word| bits << LIMB | i128::from(*word));
            sum.add_at(bits - (i128::from(negative) << above), place);
        } else {
            sum.add_words(digits, place, false);
            sum.add_at(-i128::from(negative), place + above);
        }
        sum
    }

    /// Adds `value` * 2^(at - 1074).
    pub(crate) fn add_at(&mut self, value: i128, at: u32) {
        if value == 0 {
            return;
        }
        if let Repr::Small { base, halves } = &mut self.0 {
            let sum = joined(*halves);
            let shift = at as i32 - (LIMB * u32::from(*base)) as i32;
            if sum != 0
                && let Some(sum) = shifted(value, shift).and_then(|value| sum.checked_add(value))
            {
                *halves = [sum as u64, (sum >> 64) as u64];
                return;
            }
            if let Some(other) = refitted(sum, *base, value, at) {
                self.0 = other;
                return;
            }
        }
        self.widely(|wide| wide.add(value, at));
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &ExactSum) {
        match &other.0 {
            Repr::Small { base, halves } => self.add_at(joined(*halves), LIMB * u32::from(*base)),
            Repr::Wide(wide) => {
                self.note(wide.special);
                self.widely(|into| into.merge(wide));
            }
        }
    }

    /// Does what a window of 128 bits cannot.
    fn widely(&mut self, work: impl FnOnce(&mut Wide)) {
        match &mut self.0 {
            Repr::Wide(wide) => work(wide),
            Repr::Small { base, halves } => {
                let mut wide = Wide::default();
                wide.add(joined(*halves), LIMB * u32::from(*base));
                work(&mut wide);
                self.0 = Repr::Wide(Box::new(wide));
            }
        }
    }

    pub(super) fn special(&self) -> Special {
        match &self.0 {
            Repr::Small { .. } => Special::default(),
            Repr::Wide(wide) => wide.special,
        }
    }

    /// The finite part.
    pub(super) fn magnitude(&self) -> Magnitude {
        match &self.0 {
            Repr::Small { base, halves } => {
                let value = joined(*halves);
                let bits = value.unsigned_abs();
                let limbs = vec![bits as u64, (bits >> 64) as u64];
                Magnitude { negative: value < 0, limbs, at: LIMB * u32::from(*base) }
            }
            Repr::Wide(wide) => wide.magnitude(),
        }
    }

    /// The sum, rounded to nearest, ties to even; beyond the largest double, infinity.
    ///
    /// A NaN among the summands is the result (of several, the largest by bits), with the quiet bit set, as addition keeps it.
    /// Infinities of both signs give the NaN that the host's processor makes of an invalid operation. A sum of zeros of any sign, and of
    /// nothing, is +0.
    pub fn to_f64(&self) -> f64 {
        match self.special() {
            Special { nan, .. } if nan != 0 => f64::from_bits(nan),
            Special { plus: true, minus: true, .. } => f64::from_bits(INVALID_NAN),
            Special { plus: true, .. } => f64::INFINITY,
            Special { minus: true, .. } => f64::NEG_INFINITY,
            _ => self.small_to_f64().unwrap_or_else(|| self.magnitude().round()),
        }
    }

    /// The rounded sum, where it is a normal double and the window small.
    #[expect(clippy::cast_precision_loss, reason = "it rounds to nearest, ties to even")]
    fn small_to_f64(&self) -> Option<f64> {
        let Repr::Small { base, halves } = &self.0 else { return None };
        let rounded = joined(*halves) as f64;
        let field = (rounded.to_bits() >> 52) & 0x7ff;
        // Counts of 2^(32 base - 1074).
        let scaled = (field + u64::from(LIMB) * u64::from(*base)).checked_sub(ONE_AT.into())?;
        let normal = field != 0 && (1..0x7ff).contains(&scaled);
        normal.then(|| f64::from_bits(rounded.to_bits() & !(0x7ff << 52) | scaled << 52))
    }

    /// The average of `count` summands: the rounded sum, divided.
    #[expect(clippy::cast_precision_loss, reason = "counts of rows stay below 2^53")]
    pub fn average(&self, count: u64) -> f64 {
        self.to_f64() / count as f64
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Repr::Small { .. } => 0,
            Repr::Wide(wide) => wide.heap_bytes(),
        }
    }
}

fn signed(magnitude: i64, negative: bool) -> i128 {
    i128::from(if negative { -magnitude } else { magnitude })
}

/// `value` * 2^`shift`, where that is an integer of 128 bits.
fn shifted(value: i128, shift: i32) -> Option<i128> {
    let bits = shift.unsigned_abs();
    if bits > 127 {
        return None;
    }
    let result = if shift < 0 { value >> bits } else { value << bits };
    let back = if shift < 0 { result << bits } else { result >> bits };
    (back == value).then_some(result)
}

/// The sum of both in another window that holds them.
fn refitted(sum: i128, base: u8, value: i128, at: u32) -> Option<Repr> {
    let window = |base: u32| -> Option<Repr> {
        let base = u8::try_from(base).ok()?;
        let start = (LIMB * u32::from(base)) as i32;
        shifted(value, at as i32 - start).map(|value| Repr::small(base, value))
    };
    if sum == 0 {
        return window(at.saturating_sub(ROOM_BELOW) / LIMB).or_else(|| window(at / LIMB));
    }
    let from = LIMB * u32::from(base);
    let low = (from + sum.trailing_zeros()).min(at + value.trailing_zeros()) / LIMB;
    let start = (LIMB * low) as i32;
    let sum = shifted(sum, from as i32 - start)?.checked_add(shifted(value, at as i32 - start)?)?;
    Some(Repr::small(u8::try_from(low).ok()?, sum))
}

impl Magnitude {
    /// Bits from the lowest one on: `from..from + 64`.
    fn bits(&self, from: u32) -> u64 {
        let (limb, shift) = ((from / 64) as usize, from % 64);
        let limb_at = |at: usize| self.limbs.get(at).copied().unwrap_or(0);
        match shift {
            0 => limb_at(limb),
            _ => limb_at(limb) >> shift | limb_at(limb + 1) << (64 - shift),
        }
    }

    /// Number of bits up to the highest that is set.
    fn len(&self) -> u32 {
        let used = self.limbs.iter().rposition(|limb| *limb != 0);
        used.map_or(0, |top| 64 * top as u32 + 64 - self.limbs[top].leading_zeros())
    }

    /// The nearest double, of two the even one.
    fn round(&self) -> f64 {
        let len = self.len();
        if len == 0 {
            return 0.0;
        }
        // The double's lowest bit: that of its 53 bits, or 2^-1074.
        let lowest = (self.at + len).saturating_sub(53);
        let mut bits = if lowest <= self.at {
            self.bits(0) << (self.at - lowest)
        } else {
            let drop = lowest - self.at;
            let kept = self.bits(drop);
            let half = self.bits(drop - 1) & 1;
            let below = drop - 1;
            let sticky = (0..below.div_ceil(64)).any(|limb| {
                let rest = (below - 64 * limb).min(64);
                self.bits(64 * limb) << (64 - rest) != 0
            });
            kept + (half & (u64::from(sticky) | kept & 1))
        };
        // The implicit bit of a normal double counts one exponent up.
        bits += u64::from(lowest) << 52;
        let bits = bits.min(f64::INFINITY.to_bits());
        let value = f64::from_bits(bits);
        if self.negative { -value } else { value }
    }
}

impl PartialEq for ExactSum {
    fn eq(&self, other: &Self) -> bool {
        self.to_bytes() == other.to_bytes()
    }
}

impl fmt::Debug for ExactSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExactSum({}, {:02x?})", self.to_f64(), self.to_bytes())
    }
}
