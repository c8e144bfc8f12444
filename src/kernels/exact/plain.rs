//! The reference for exact sums: integers kept bit by bit.

use std::cmp::Ordering;

/// Bits of the reference: 2^-1074 to beyond every sum of the tests.
const BITS: usize = 2400;

/// A number as counts of each power of two: slow, and plain to see.
#[derive(Clone)]
pub(crate) struct Plain(Vec<i64>);

impl Plain {
    pub fn sum(values: &[f64]) -> Self {
        let mut bits = vec![0; BITS];
        for x in values {
            let raw = x.to_bits();
            let (field, fraction) = ((raw >> 52 & 0x7ff) as usize, raw & ((1 << 52) - 1));
            let (digits, at) = if field == 0 { (fraction, 0) } else { (fraction | 1 << 52, field - 1) };
            for bit in (0..53).filter(|bit| digits >> bit & 1 == 1) {
                bits[at + bit] += if *x < 0.0 { -1 } else { 1 };
            }
        }
        Plain(bits)
    }

    fn minus(&self, other: &Plain) -> Plain {
        Plain(self.0.iter().zip(&other.0).map(|(a, b)| a - b).collect())
    }

    /// The sign, by carrying to the top.
    fn sign(&self) -> Ordering {
        let mut carry = 0i64;
        let mut any = false;
        for count in &self.0 {
            let total = count + carry;
            any |= total.rem_euclid(2) == 1;
            carry = total.div_euclid(2);
        }
        match carry {
            0 if any => Ordering::Greater,
            0 => Ordering::Equal,
            carry => carry.cmp(&0),
        }
    }

    fn magnitude(self) -> Plain {
        if self.sign() == Ordering::Less { Plain(self.0.iter().map(|count| -count).collect()) } else { self }
    }

    /// Asserts that `got` is the double nearest to the number, of two the even one.
    pub fn assert_rounds_to(&self, got: f64, what: &str) {
        let away = |x: f64| self.minus(&Plain::sum(&[x])).magnitude();
        if got.is_infinite() {
            // At least the middle between the largest double and the next, which there is not.
            let middle = Plain::sum(&[f64::MAX, 2f64.powi(970)]);
            let own = if got > 0.0 { self.clone() } else { Plain(self.0.iter().map(|c| -c).collect()) };
            assert_ne!(own.minus(&middle).sign(), Ordering::Less, "{what}: {got}");
            return;
        }
        for other in [got.next_up(), got.next_down()].into_iter().filter(|other| other.is_finite()) {
            match away(got).minus(&away(other)).sign() {
                Ordering::Less => {}
                Ordering::Equal => assert_eq!(got.to_bits() & 1, 0, "{what}: {got:e} is the odd of two"),
                Ordering::Greater => panic!("{what}: {other:e} is nearer than {got:e}"),
            }
        }
    }
}
