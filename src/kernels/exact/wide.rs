//! A sum in as many limbs as it takes.

use super::{Magnitude, Special};

const LIMB: u32 = 64;

/// An integer in two's complement over limbs of 64 bits, and what was met besides.
#[derive(Debug, Clone, Default)]
pub(super) struct Wide {
    pub special: Special,
    /// Limbs below the first one kept.
    base: u32,
    /// Lowest first; the highest is signed, and so far from overflow that one more summand fits. Empty for 0.
    limbs: Vec<u64>,
}

impl Wide {
    /// Adds `value` * 2^(at - 1074).
    pub fn add(&mut self, value: i128, at: u32) {
        if value == 0 {
            return;
        }
        let (first, shift) = (at / LIMB, at % LIMB);
        self.cover(first, first + 3);
        // 128 bits and the shift take three limbs.
        let low = (value as u128) << shift;
        let high = value >> 64 >> (LIMB - 1 - shift) >> 1;
        self.add_limbs(&[low as u64, (low >> 64) as u64, high as u64], first);
    }

    /// Adds the finite part of another sum.
    pub fn merge(&mut self, other: &Wide) {
        if !other.limbs.is_empty() {
            // The other's highest limb may be full.
            self.cover(other.base, other.base + other.limbs.len() as u32 + 1);
            self.add_limbs(&other.limbs, other.base);
        }
    }

    /// Makes room for limbs `from..to`, and for the carry of one addition.
    fn cover(&mut self, from: u32, to: u32) {
        if self.limbs.is_empty() {
            self.base = from;
        }
        if from < self.base {
            self.limbs.splice(0..0, std::iter::repeat_n(0, (self.base - from) as usize));
            self.base = from;
        }
        let sign = self.sign();
        let len = (to - self.base) as usize;
        if self.limbs.len() < len {
            self.limbs.resize(len, sign);
        }
        // A summand's highest limb uses half of its range at most; so must ours.
        if self.limbs.last().is_some_and(|top| (top << 1 ^ top) >> 63 != 0) {
            self.limbs.push(sign);
        }
    }

    /// All bits above the limbs.
    fn sign(&self) -> u64 {
        self.limbs.last().map_or(0, |top| (*top as i64 >> 63) as u64)
    }

    /// Adds limbs in two's complement, which the window covers.
    fn add_limbs(&mut self, limbs: &[u64], first: u32) {
        let above = limbs.last().map_or(0, |top| (*top as i64 >> 63) as u64);
        let mut carry = false;
        for (at, limb) in self.limbs.iter_mut().skip((first - self.base) as usize).enumerate() {
            let addend = match limbs.get(at) {
                Some(addend) => *addend,
                // The rest stays as it is.
                None if (above == 0) != carry => break,
                None => above,
            };
            let (sum, over) = limb.overflowing_add(addend);
            let (sum, carried) = sum.overflowing_add(u64::from(carry));
            *limb = sum;
            carry = over || carried;
        }
    }

    pub fn magnitude(&self) -> Magnitude {
        let negative = self.sign() != 0;
        let mut limbs = self.limbs.clone();
        if negative {
            let mut carry = true;
            for limb in &mut limbs {
                (*limb, carry) = (!*limb).overflowing_add(u64::from(carry));
            }
        }
        Magnitude { negative, limbs, at: LIMB * self.base }
    }

    pub fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.limbs.capacity() * size_of::<u64>()
    }
}
