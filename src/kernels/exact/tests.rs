//! Exact sums against integers kept bit by bit.

use super::plain::Plain;
use super::{ExactSum, INVALID_NAN};
use crate::kernels::testkit::Rng;

fn sum(values: &[f64]) -> ExactSum {
    let mut sum = ExactSum::new();
    values.iter().for_each(|x| sum.add_f64(*x));
    sum
}

/// A finite double of an exponent within `spread` of `around`.
fn double(rng: &mut Rng, around: usize, spread: usize) -> f64 {
    let exponent = (around + rng.below(2 * spread + 1)).saturating_sub(spread).min(0x7fe) as u64;
    let fraction = match rng.below(4) {
        0 => 0,
        1 => (1 << 52) - 1,
        _ => rng.next() & ((1 << 52) - 1),
    };
    f64::from_bits(rng.next() << 63 | exponent << 52 | fraction)
}

/// All ways to the same sum: any order, any split, through bytes.
fn check(rng: &mut Rng, values: &[f64], what: &str) {
    let whole = sum(values);
    Plain::sum(values).assert_rounds_to(whole.to_f64(), what);
    let mut shuffled = values.to_vec();
    for at in (1..shuffled.len()).rev() {
        shuffled.swap(at, rng.below(at + 1));
    }
    let mut merged = ExactSum::new();
    for part in shuffled.chunks(1 + rng.below(7)) {
        match rng.below(2) {
            0 => merged.merge(&sum(part)),
            _ => merged.merge_bytes(&sum(part).to_bytes()).expect("bytes"),
        }
    }
    assert_eq!(merged, whole, "{what}");
    assert_eq!(merged.to_f64().to_bits(), whole.to_f64().to_bits(), "{what}");
    let again = ExactSum::from_bytes(&whole.to_bytes()).expect("bytes");
    assert_eq!(again.to_bytes(), whole.to_bytes(), "{what}");
    assert_eq!(again.to_f64().to_bits(), whole.to_f64().to_bits(), "{what}");
    // Without its summands nothing is left.
    shuffled.iter().for_each(|x| merged.add_f64(-x));
    assert_eq!(merged.to_bytes(), [0], "{what}");
    assert_eq!(merged.to_f64().to_bits(), 0, "{what}");
}

#[test]
fn every_exponent() {
    let mut rng = Rng::new(1);
    for exponent in 0..0x7ff {
        let spread = [0, 1, 60][exponent % 3];
        let values: Vec<f64> = (0..6).map(|_| double(&mut rng, exponent, spread)).collect();
        check(&mut rng, &values, &format!("exponent {exponent}, {spread} around: {values:?}"));
    }
}

#[test]
fn many_values_of_all_exponents() {
    let mut rng = Rng::new(2);
    for (around, spread) in [(1023, 5), (1023, 40), (1023, 1023), (10, 10), (0x7fe, 0), (0x7fe, 200), (0, 0)]
    {
        for count in [2, 100, 400] {
            let values: Vec<f64> = (0..count).map(|_| double(&mut rng, around, spread)).collect();
            check(&mut rng, &values, &format!("{count} values, {spread} around {around}"));
        }
    }
}

/// Values half a unit in the last place apart, with and without something far below.
#[test]
fn ties() {
    let mut rng = Rng::new(3);
    for _ in 0..300 {
        let x = double(&mut rng, 1023, 900);
        let half = (x.next_up() - x) / 2.0;
        for below in [0.0, f64::from_bits(1), -f64::from_bits(1)] {
            check(&mut rng, &[x, half, below], &format!("{x:e} + {half:e} + {below:e}"));
            check(&mut rng, &[-x, -half, below], &format!("-{x:e} - {half:e} + {below:e}"));
        }
    }
}

#[test]
fn the_ends_of_the_range() {
    let mut rng = Rng::new(4);
    let (max, tiny, half) = (f64::MAX, f64::from_bits(1), 2f64.powi(970));
    assert_eq!(sum(&[max, max, -max]).to_f64(), max);
    assert_eq!(sum(&[max, max]).to_f64(), f64::INFINITY);
    assert_eq!(sum(&[-max, -max]).to_f64(), f64::NEG_INFINITY);
    assert_eq!(sum(&[max, half]).to_f64(), f64::INFINITY);
    assert_eq!(sum(&[max, half, -tiny]).to_f64(), max);
    assert_eq!(sum(&[max, tiny, -max]).to_f64(), tiny);
    assert_eq!(sum(&[1e308; 10]).average(10), f64::INFINITY);
    assert_eq!(sum(&[1.5, 2.0]).average(2), 1.75);
    assert_eq!(sum(&[-0.0, -0.0]).to_f64().to_bits(), 0);
    assert_eq!(sum(&[f64::MIN_POSITIVE, -tiny]).to_f64(), f64::MIN_POSITIVE.next_down());
    for values in [vec![max; 300], vec![tiny; 300], vec![max, -tiny, tiny, -max, 1.0]] {
        check(&mut rng, &values, &format!("{values:?}"));
    }
}

/// A window begins where the first value is and grows to both sides; sums that fit into 128 bits stay small.
#[test]
fn windows_widen() {
    let mut rng = Rng::new(5);
    let prices: Vec<f64> = (0..1000).map(|_| (rng.below(10_000_000) as f64) / 100.0).collect();
    assert_eq!(sum(&prices).heap_bytes(), 0);
    check(&mut rng, &prices, "prices");
    for values in [[1.0, 1e-30, 1e30, -1e-300], [1e30, 1.0, 1e-30, 1e300], [5e-324, 1e308, 1.0, -1e308]] {
        assert!(sum(&values).heap_bytes() > 0);
        check(&mut rng, &values, &format!("{values:?}"));
    }
    assert!(size_of::<ExactSum>() <= 24);
    assert_eq!(sum(&[1.0, 2.0]).to_bytes().len(), 4);
    // A long sum leaves the window at its top.
    let mut grown = ExactSum::new();
    grown.add_at(i128::MAX, 40);
    grown.add_at(i128::MAX, 40);
    grown.add_at(i128::MIN, 41);
    assert_eq!(grown.to_f64(), -f64::from_bits(1 << 41));
}

#[test]
fn integers_and_words() {
    let mut rng = Rng::new(6);
    for _ in 0..500 {
        let bits = u128::from(rng.next()) << 64 | u128::from(rng.next());
        let value = bits as i128 >> rng.below(128);
        assert_eq!(ExactSum::from_i128(value).to_f64(), value as f64, "{value}");
        let mut sum = ExactSum::new();
        let words: Vec<u32> = (0..4).map(|k| (value.unsigned_abs() >> (32 * k)) as u32).collect();
        sum.add_words(&words, super::ONE_AT, value < 0);
        assert_eq!(sum, ExactSum::from_i128(value), "{value}");
        sum.add_words(&[0, 0, 0, 0, 7], 32, value < 0);
        sum.add_words(&[7], 160, value >= 0);
        assert_eq!(sum, ExactSum::from_i128(value), "{value}");
        sum.add_i128(value);
        assert_eq!(sum.to_f64(), 2.0 * value as f64, "{value}");
        sum.add_i128(value.wrapping_neg());
        sum.add_i128(value.wrapping_neg());
        assert!(sum.to_bytes() == [0] || value == i128::MIN, "{value}");
    }
}

/// Integers of any number of words in two's complement.
#[test]
fn words_with_a_sign() {
    let mut rng = Rng::new(8);
    for round in 0..2000 {
        let len = 1 + rng.below(if round % 10 == 0 { 67 } else { 6 });
        let mut words: Vec<u32> = (0..len)
            .map(|_| match rng.below(4) {
                0 => 0,
                1 => 1,
                2 => u32::MAX,
                _ => rng.next() as u32,
            })
            .collect();
        words.push(rng.pick(&[0, u32::MAX, 0xffff_fff0]));
        let at = rng.below(40) as u32;
        // The highest word has the weight of its sign.
        let mut want = ExactSum::new();
        let (top, below) = words.split_last().expect("words");
        want.add_words(below, at, false);
        want.add_at(i128::from(top.cast_signed()), at + 32 * below.len() as u32);
        assert_eq!(ExactSum::from_words(&words, at), want, "{words:x?} at {at}");
        assert_eq!(ExactSum::from_words(&words, at).to_f64().to_bits(), want.to_f64().to_bits());
    }
    assert_eq!(ExactSum::from_words(&[], 7), ExactSum::new());
    assert_eq!(ExactSum::from_words(&[0, 0, 0], 7).heap_bytes(), 0);
}

#[test]
fn singles_are_doubles() {
    let mut rng = Rng::new(7);
    for _ in 0..2000 {
        let bits = rng.next() as u32 & if rng.below(4) == 0 { 0x80ff_ffff } else { u32::MAX };
        let x = f32::from_bits(bits);
        let mut sum = ExactSum::new();
        sum.add_f32(x);
        let double = std::hint::black_box(f64::from(x));
        assert_eq!(sum.to_f64().to_bits(), (double + 0.0).to_bits(), "{bits:x}");
    }
}

/// NaN passes through; infinities of both signs make one; neither changes what is finite.
#[test]
fn what_is_not_finite() {
    let nan = |bits: u64| f64::from_bits(0x7ff0_0000_0000_0000 | bits);
    let bits = |values: &[f64]| sum(values).to_f64().to_bits();
    let (plus, minus) = (f64::INFINITY, f64::NEG_INFINITY);
    assert_eq!(bits(&[plus, 1.0]), plus.to_bits());
    assert_eq!(bits(&[1.0, minus, f64::MAX]), minus.to_bits());
    assert_eq!(bits(&[plus, minus]), INVALID_NAN);
    // As the processor adds them.
    for x in [nan(1), nan(1 << 51), -nan(5), f64::NAN] {
        let added = std::hint::black_box(x) + 1.0;
        assert_eq!(bits(&[1.0, x]), added.to_bits());
        assert_eq!(bits(&[x, plus, minus, 1e300]), added.to_bits());
    }
    let all = [nan(7), plus, 3.5, minus, nan(9)];
    assert_eq!(bits(&all), nan(9 | 1 << 51).to_bits());
    let mut merged = sum(&all[..2]);
    merged.merge(&ExactSum::from_bytes(&sum(&all[2..]).to_bytes()).expect("bytes"));
    assert_eq!(merged, sum(&all));
    assert_ne!(sum(&[plus]), sum(&[plus, 1.0]));
}

#[test]
fn bytes_of_nothing_known() {
    let wrong: [&[u8]; 6] = [&[], &[16], &[2], &[2, 1, 2, 3, 4, 5, 6, 7, 8], &[0, 1], &[0, 0xff, 0xff, 1]];
    for bytes in wrong {
        assert!(ExactSum::from_bytes(bytes).is_err(), "{bytes:?}");
    }
}
