//! Exact sums as bytes: the state that crosses between operators.
//!
//! Byte 0 holds flags: 1 negative, 2 NaN, 4 +infinity, 8 -infinity. With NaN, its 8 bytes follow. Unless the finite part is 0, there
//! follow its place (u16: byte n has the weight 2^(8n - 1074)) and its magnitude, without zero bytes at either end. All are little-endian. Equal sums have equal
//! bytes.

use crate::error::{GpuError, GpuResult};

use super::{ExactSum, Repr, Special, joined};

const NEGATIVE: u8 = 1;
const NAN: u8 = 2;
const PLUS: u8 = 4;
const MINUS: u8 = 8;

/// Bytes that a magnitude ends before: 2^1278.
const END: usize = 294;

impl ExactSum {
    /// The sum as bytes, as few as it takes: equal for equal sums.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32);
        self.write(&mut bytes);
        bytes
    }

    /// Appends [`ExactSum::to_bytes`].
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        if let Repr::Small { base, halves } = &self.0 {
            let value = joined(*halves);
            out.push(if value < 0 { NEGATIVE } else { 0 });
            write_digits(&value.unsigned_abs().to_le_bytes(), 4 * usize::from(*base), out);
            return;
        }
        let Special { nan, plus, minus } = self.special();
        let magnitude = self.magnitude();
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.push(
            flag(magnitude.negative, NEGATIVE) | flag(nan != 0, NAN) | flag(plus, PLUS) | flag(minus, MINUS),
        );
        if nan != 0 {
            out.extend(nan.to_le_bytes());
        }
        let digits: Vec<u8> = magnitude.limbs.iter().flat_map(|limb| limb.to_le_bytes()).collect();
        write_digits(&digits, magnitude.at as usize / 8, out);
    }

    /// The sum that [`ExactSum::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`GpuError::Internal`] for bytes that it does not write.
    pub fn from_bytes(bytes: &[u8]) -> GpuResult<Self> {
        let mut sum = ExactSum::new();
        sum.merge_bytes(bytes)?;
        Ok(sum)
    }

    /// Adds the sum that [`ExactSum::to_bytes`] wrote.
    ///
    /// # Errors
    /// Those of [`ExactSum::from_bytes`]; the sum is void then.
    pub fn merge_bytes(&mut self, bytes: &[u8]) -> GpuResult<()> {
        let wrong = || GpuError::Internal(format!("{bytes:02x?} is no exact sum"));
        let (flags, mut rest) = bytes.split_first().ok_or_else(wrong)?;
        if *flags >= 16 {
            return Err(wrong());
        }
        let has = |flag: u8| flags & flag != 0;
        let mut special = Special { nan: 0, plus: has(PLUS), minus: has(MINUS) };
        if has(NAN) {
            let (nan, after) = rest.split_first_chunk().ok_or_else(wrong)?;
            (special.nan, rest) = (u64::from_le_bytes(*nan), after);
            if !f64::from_bits(special.nan).is_nan() {
                return Err(wrong());
            }
        }
        self.note(special);
        if rest.is_empty() {
            return Ok(());
        }
        let (place, digits) = rest.split_first_chunk().ok_or_else(wrong)?;
        let place = usize::from(u16::from_le_bytes(*place));
        if place + digits.len() > END {
            return Err(wrong());
        }
        for (number, digits) in digits.chunks(15).enumerate() {
            let value = digits.iter().rev().fold(0, |value, digit| value << 8 | i128::from(*digit));
            let value = if has(NEGATIVE) { -value } else { value };
            self.add_at(value, 8 * (place + 15 * number) as u32);
        }
        Ok(())
    }
}

/// Appends place and digits of a magnitude whose first byte has the weight 2^(8 `at` - 1074).
fn write_digits(digits: &[u8], at: usize, out: &mut Vec<u8>) {
    let used = |byte: &u8| *byte != 0;
    if let (Some(first), Some(last)) = (digits.iter().position(used), digits.iter().rposition(used)) {
        out.extend(((at + first) as u16).to_le_bytes());
        out.extend(&digits[first..=last]);
    }
}
