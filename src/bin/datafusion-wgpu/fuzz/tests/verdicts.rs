//! Tests of what is taken for the same.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float32Array, Float64Array, Int64Array, ListArray, RecordBatch};
use datafusion::arrow::datatypes::Float64Type;

use super::super::ast::Tier;
use super::super::compare::{self, Answer, Key, Outcome, Spec, Wanted};
use super::super::errors::{same_error, same_kind};
use super::super::rng::Rng;
use super::super::rounded::{Near, Rounding, exact_sum, extremes};

fn answer(columns: Vec<(&str, ArrayRef)>) -> Answer {
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap();
    Answer { schema: batch.schema(), batches: vec![batch] }
}

fn floats(values: Vec<f64>) -> Answer {
    answer(vec![("x", Arc::new(Float64Array::from(values)))])
}

fn spec(tier: Tier) -> Spec {
    Spec { tiers: vec![tier], ..Spec::default() }
}

pub fn is_same(spec: &Spec, want: &Answer, reference: Option<&Answer>, got: &Answer) -> bool {
    compare::compare(spec, Wanted { answer: want, reference }, got, false).unwrap() == Outcome::Same
}

#[test]
fn every_bit_counts() {
    let payload = f64::from_bits(0x7ff8_0000_0000_0001);
    let differ =
        |spec: &Spec, a: &[f64], b: &[f64]| !is_same(spec, &floats(a.to_vec()), None, &floats(b.to_vec()));
    let exact = spec(Tier::Exact);
    assert!(!differ(&exact, &[1.0, f64::NAN, -0.0], &[-0.0, 1.0, f64::NAN]));
    assert!(differ(&exact, &[0.0], &[-0.0]));
    assert!(differ(&exact, &[f64::NAN], &[payload]));
    assert!(differ(&exact, &[1.0, 1.0, 2.0], &[1.0, 2.0, 2.0]));
    assert!(differ(&exact, &[1.0], &[1.0, 1.0]));
    assert!(!differ(&Spec { folds: vec![true], ..exact.clone() }, &[0.0], &[-0.0]));
    assert!(differ(&Spec { folds: vec![false], ..exact.clone() }, &[0.0], &[-0.0]));
    assert!(!differ(&spec(Tier::AnyNan), &[f64::NAN], &[payload]));
    let one = answer(vec![("x", Arc::new(Int64Array::from(vec![1])))]);
    assert!(!is_same(&exact, &one, None, &floats(vec![1.0])), "other types");
}

/// A reference: a column of the answer, and the values of each row.
fn reference(column: ArrayRef, summands: Vec<Vec<f64>>) -> Answer {
    let lists = summands.into_iter().map(|values| Some(values.into_iter().map(Some).collect::<Vec<_>>()));
    let lists = ListArray::from_iter_primitive::<Float64Type, _, _>(lists);
    answer(vec![("x", column), ("check0", Arc::new(lists))])
}

/// An answer with a rounded column, and the reference with the summands of each row.
fn averages(summands: Vec<Vec<f64>>) -> (Answer, Answer) {
    let averages: Vec<f64> =
        summands.iter().map(|values| values.iter().sum::<f64>() / values.len() as f64).collect();
    let reference = reference(Arc::new(Float64Array::from(averages.clone())), summands);
    (floats(averages), reference)
}

#[test]
fn values_that_do_not_compare_leave_extremes_open() {
    let (inf, nan, most) = (f64::INFINITY, f64::NAN, f64::MAX);
    let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    for (is_max, values, choices) in [
        (true, vec![1.0, 2.0, -inf], vec![2.0]),
        (false, vec![1.0, 2.0, inf], vec![1.0]),
        (true, vec![2.0, nan, 1.0, 2.0], vec![1.0, 2.0, nan]),
        (true, vec![nan, -inf], vec![-inf, -most, nan]),
        (true, vec![nan, inf], vec![inf, nan]),
        (true, vec![0.0, -0.0, -1.0], vec![-0.0, 0.0]),
        (true, vec![0.0, -0.0, 1.0], vec![1.0]),
        (false, vec![0.0, -0.0, 1.0], vec![-0.0, 0.0]),
        (true, vec![-0.0, -1.0], vec![-0.0]),
        (true, vec![-inf, -inf], vec![-inf, -most]),
        (false, vec![-inf, inf], vec![-inf]),
        (false, vec![inf], vec![most, inf]),
        (true, vec![], vec![]),
    ] {
        let got = extremes(&values, is_max, most);
        assert_eq!(bits(&got), bits(&choices), "{is_max} {values:?}: {got:?}");
    }
}

fn extreme(is_max: bool, any_nan: bool) -> Spec {
    spec(Tier::Rounded(Rounding::Extreme { is_max, any_nan }))
}

#[test]
fn grouped_extremes_are_values_of_their_group() {
    let (inf, nan, payload) = (f64::INFINITY, f64::NAN, f64::from_bits(0x7ff8_0000_0000_0001));
    let groups = || vec![vec![1.0, nan, 3.0], vec![5.0, 6.0]];
    let want = floats(vec![3.0, 6.0]);
    let all = reference(Arc::clone(want.batches[0].column(0)), groups());
    let allows = |spec: &Spec, got: &[f64]| is_same(spec, &want, Some(&all), &floats(got.to_vec()));
    let plain = extreme(true, false);
    for odd in [1.0, 3.0, nan] {
        assert!(allows(&plain, &[6.0, odd]), "{odd}");
    }
    for odd in [2.0, 5.0, 6.0, inf, payload] {
        assert!(!allows(&plain, &[6.0, odd]), "{odd}");
    }
    assert!(!allows(&plain, &[5.0, 3.0]), "not the largest of a group that compares");
    assert!(allows(&extreme(true, true), &[payload, 6.0]));
    // A value that both groups hold goes to the one that can't do without it.
    let shared = reference(Arc::clone(want.batches[0].column(0)), vec![vec![6.0, nan], vec![6.0]]);
    assert!(is_same(&plain, &want, Some(&shared), &floats(vec![nan, 6.0])));
    assert!(!is_same(&plain, &want, Some(&shared), &floats(vec![nan, nan])));
    let unchecked = Wanted { answer: &want, reference: None };
    assert_eq!(compare::compare(&plain, unchecked, &want, false).unwrap(), Outcome::Unchecked);
}

#[test]
fn single_floats_have_a_start_value_of_their_own() {
    let single = |value: f32| answer(vec![("x", Arc::new(Float32Array::from(vec![value])) as ArrayRef)]);
    let want = single(-f32::MAX);
    let all = reference(Arc::clone(want.batches[0].column(0)), vec![vec![f64::NEG_INFINITY]]);
    let same = |got: f32| is_same(&extreme(true, false), &want, Some(&all), &single(got));
    assert!(same(-f32::MAX) && same(f32::NEG_INFINITY));
    assert!(!same(f32::MAX) && !same(0.0));
}

/// ORDER BY a MAX that may come out otherwise, with LIMIT: only where each group has one is the place of rows known.
#[test]
fn open_extremes_determine_no_place() {
    let key = Key { column: 0, descending: false, nulls_first: false };
    let spec = Spec { order: vec![key], limited: true, ..extreme(true, false) };
    let values: ArrayRef = Arc::new(Float64Array::from(vec![3.0, 6.0]));
    let same = |all: &Answer, got: f64| is_same(&spec, &floats(vec![3.0]), Some(all), &floats(vec![got]));
    let open = reference(Arc::clone(&values), vec![vec![3.0, f64::NAN], vec![6.0]]);
    // The other row's 3 may have been a NaN, which comes last.
    assert!(same(&open, 6.0) && same(&open, 3.0));
    assert!(!same(&open, 5.0));
    let settled = reference(values, vec![vec![3.0, 1.0], vec![6.0]]);
    assert!(same(&settled, 3.0));
    assert!(!same(&settled, 6.0));
}

#[test]
fn averages_are_as_near_as_their_values_allow() {
    let spec = spec(Tier::Rounded(Rounding::Average));
    let (want, reference) = averages(vec![(0..=10).map(f64::from).collect(), vec![3.0]]);
    assert!(is_same(&spec, &want, Some(&reference), &floats(vec![3.0, 5.0])));
    assert!(is_same(&spec, &want, Some(&reference), &floats(vec![3.0, 5.0f64.next_up()])));
    assert!(!is_same(&spec, &want, Some(&reference), &floats(vec![3.0, 5.000_001])));
    assert!(!is_same(&spec, &want, Some(&reference), &floats(vec![5.0, 5.0])));
    // Under LIMIT too, even where nothing but the rounded column is there.
    let limited = Spec { limited: true, ..spec.clone() };
    let first = floats(vec![5.0]);
    assert!(is_same(&limited, &first, Some(&reference), &floats(vec![3.0])));
    assert!(!is_same(&limited, &first, Some(&reference), &floats(vec![4.0])));
    let unchecked = Wanted { answer: &first, reference: None };
    assert_eq!(compare::compare(&limited, unchecked, &first, false).unwrap(), Outcome::Unchecked);
    // The GPU's own are exact.
    let wanted = Wanted { answer: &want, reference: Some(&reference) };
    let strict = |got| compare::compare(&spec, wanted, &floats(got), true).unwrap() == Outcome::Same;
    assert!(strict(vec![3.0, 5.0]));
    assert!(!strict(vec![3.0, 5.0f64.next_up()]));
}

#[test]
fn infinities_have_no_distance() {
    let allows = |values: &[f64], got: f64| {
        Near::of(Rounding::Sum, values).is_some_and(|expected| expected.allows(got, false))
    };
    let (inf, most) = (f64::INFINITY, f64::MAX);
    assert!(allows(&[inf, 1.0], inf));
    for wrong in [-inf, f64::NAN, 0.0, 1.0, most] {
        assert!(!allows(&[inf, 1.0], wrong), "{wrong}");
    }
    assert!(!allows(&[1.0, 2.0], inf));
    assert!(allows(&[inf, -inf], f64::NAN));
    assert!(!allows(&[inf, -inf], 0.0));
    // A sum may leave the range on its way.
    assert!(allows(&[most, most, -most], most));
    assert!(allows(&[most, most, -most], inf));
    assert!(!allows(&[most, most, -most], 1.0));
    assert_eq!(Near::of(Rounding::Sum, &[]), None);
    assert_eq!(Near::of(Rounding::SampleVariance, &[1.0]), None);
}

#[test]
fn exact_sums_are_rounded_once() {
    let half = f64::EPSILON / 2.0;
    for (values, sum) in [
        (vec![1e16, 1.0, -1e16], 1.0),
        (vec![1.0, half], 1.0),
        (vec![1.0, half, f64::from_bits(1)], 1.0 + f64::EPSILON),
        (vec![1.0 + f64::EPSILON, half], 1.0 + 2.0 * f64::EPSILON),
        (vec![f64::MAX, f64::MAX], f64::INFINITY),
        (vec![f64::MAX, f64::MAX, -f64::MAX], f64::MAX),
        (vec![-f64::MAX, -f64::MAX], f64::NEG_INFINITY),
        (vec![f64::from_bits(1), f64::from_bits(2)], f64::from_bits(3)),
        (vec![-f64::MIN_POSITIVE, f64::from_bits(1)], -f64::from_bits(0x000f_ffff_ffff_ffff)),
        (vec![], 0.0),
        (vec![-1.5], -1.5),
    ] {
        assert_eq!(exact_sum(&values).to_bits(), sum.to_bits(), "{values:?}");
    }
    // Integers of 60 bits, whose sums i128 holds.
    let mut rng = Rng::new(1, 1);
    for _ in 0..1_000 {
        let values: Vec<i64> = (0..rng.below(20)).map(|_| (rng.bits() as i64) >> 8 << rng.below(5)).collect();
        let doubles: Vec<f64> = values.iter().map(|value| *value as f64).collect();
        let sum: i128 = doubles.iter().map(|value| *value as i128).sum();
        assert_eq!(exact_sum(&doubles), sum as f64, "{values:?}");
    }
}

fn rows_of(keys: &[i64], values: &[i64]) -> Answer {
    answer(vec![
        ("k", Arc::new(Int64Array::from(keys.to_vec()))),
        ("v", Arc::new(Int64Array::from(values.to_vec()))),
    ])
}

#[test]
fn order_and_limit_are_checked_by_key() {
    let key = Key { column: 0, descending: false, nulls_first: false };
    let mut spec = Spec { order: vec![key], ..Spec::default() };
    let all = rows_of(&[1, 1, 2, 3], &[10, 11, 20, 30]);
    let same = |spec: &Spec, want: &Answer, got: &Answer| is_same(spec, want, Some(&all), got);
    assert!(same(&spec, &all, &rows_of(&[1, 1, 2, 3], &[11, 10, 20, 30])), "ties are free");
    assert!(!same(&spec, &all, &rows_of(&[1, 2, 1, 3], &[10, 20, 11, 30])), "a key out of order");
    spec.limited = true;
    let first = rows_of(&[1], &[10]);
    assert!(same(&spec, &first, &rows_of(&[1], &[11])), "another row of the tie");
    assert!(!same(&spec, &first, &rows_of(&[2], &[20])), "another key");
    assert!(!same(&spec, &first, &rows_of(&[1], &[12])), "a row that is not there");
    assert!(!same(&spec, &first, &rows_of(&[1, 1], &[10, 11])), "too many rows");
    spec.offset = 2;
    let second = rows_of(&[2], &[20]);
    assert!(same(&spec, &second, &second));
    assert!(!same(&spec, &second, &rows_of(&[1], &[10])), "a row before the offset");
}

#[test]
fn hidden_keys_decide_about_rows_and_their_order() {
    let values = |values: &[i64]| answer(vec![("v", Arc::new(Int64Array::from(values.to_vec())))]);
    let key = Key { column: 1, descending: true, nulls_first: true };
    let mut spec = Spec { order: vec![key], tiers: vec![Tier::Exact], ..Spec::default() };
    // The hidden key comes after the column of the result.
    let all = rows_of(&[10, 11, 20, 30], &[1, 1, 2, 3]);
    let same = |spec: &Spec, got: &[i64]| is_same(spec, &values(got), Some(&all), &values(got));
    assert!(same(&spec, &[30, 20, 10, 11]));
    assert!(same(&spec, &[30, 20, 11, 10]));
    assert!(!same(&spec, &[20, 30, 10, 11]));
    spec.limited = true;
    assert!(same(&spec, &[30, 20, 11]));
    assert!(!same(&spec, &[10, 11]), "the smallest instead of the largest");
}

/// Averages of -NaN and NaN, or of what an order turned by rounding gives, must not be taken for disorder.
#[test]
fn keys_that_may_come_out_otherwise_do_not_determine_places() {
    let minus = f64::from_bits(0xfff8_0000_0000_0000);
    let key = Key { column: 0, descending: false, nulls_first: false };
    let limited = Spec { order: vec![key], limited: true, ..spec(Tier::AnyNan) };
    let whole = Spec { limited: false, ..limited.clone() };
    let (negative, positive) = (floats(vec![minus, 1.0, 2.0]), floats(vec![1.0, 2.0, f64::NAN]));
    assert!(is_same(&whole, &negative, None, &positive));
    assert!(is_same(&whole, &positive, None, &negative));
    assert!(!is_same(&whole, &positive, None, &floats(vec![1.0, f64::NAN, 2.0])));
    assert!(is_same(&limited, &floats(vec![minus]), Some(&negative), &floats(vec![1.0])));
    assert!(!is_same(&limited, &floats(vec![minus]), Some(&negative), &floats(vec![3.0])));
    // A rank is checked within the distance.
    let (_, reference) = averages(vec![vec![1.0, 2.0], vec![5.0], vec![9.0]]);
    let ranked = Spec { tiers: vec![Tier::Rounded(Rounding::Average)], ..limited };
    assert!(is_same(&ranked, &floats(vec![1.5]), Some(&reference), &floats(vec![1.5f64.next_down()])));
    assert!(!is_same(&ranked, &floats(vec![1.5]), Some(&reference), &floats(vec![9.0])));
}

#[test]
fn pieces_of_answers_keep_their_number_and_order() {
    let spec =
        Spec { order: vec![Key { column: 0, descending: false, nulls_first: false }], ..Spec::default() };
    let (one, other) = (rows_of(&[1, 1, 2], &[7, 7, 8]), rows_of(&[1, 1, 2], &[7, 9, 6]));
    let answers = [&one, &other].map(|answer| Wanted { answer, reference: None });
    let pieced = |got: &Answer| compare::pieced_together(&spec, &answers, got, false).unwrap();
    assert!(pieced(&rows_of(&[1, 1, 2], &[7, 9, 8])));
    assert!(pieced(&rows_of(&[1, 1, 2], &[7, 7, 6])));
    assert!(!pieced(&rows_of(&[1, 1, 2], &[9, 9, 8])), "more often than in any answer");
    assert!(!pieced(&rows_of(&[2, 1, 1], &[8, 7, 9])), "not in order");
    let (want, reference) = averages(vec![vec![3.0]]);
    let rounded = Spec { tiers: vec![Tier::Rounded(Rounding::Average)], ..Spec::default() };
    let answers = [Wanted { answer: &want, reference: Some(&reference) }];
    assert!(!compare::pieced_together(&rounded, &answers, &floats(vec![4.0]), false).unwrap());
}

#[test]
fn rows_between_those_of_other_answers() {
    let spec = Spec::default();
    let (few, many) = (rows_of(&[1, 2], &[7, 8]), rows_of(&[1, 1, 1, 2], &[7, 7, 7, 8]));
    let within = |got: &Answer| compare::within(&spec, &[&few, &many], got).unwrap();
    assert!(within(&rows_of(&[1, 2, 1], &[7, 8, 7])) && within(&few) && within(&many));
    assert!(!within(&rows_of(&[1, 1, 1, 1, 2], &[7, 7, 7, 7, 8])), "more often than in any answer");
    assert!(!within(&rows_of(&[1], &[7])) && !within(&rows_of(&[1, 2, 3], &[7, 8, 9])));
    let limited = Spec { limited: true, ..Spec::default() };
    assert!(!compare::within(&limited, &[&few, &many], &few).unwrap());
}

#[test]
fn later_runs_have_the_same_bits() {
    let spec = spec(Tier::Rounded(Rounding::Sum));
    let repeated = |a: &[f64], b: &[f64]| {
        compare::repeated(&spec, &floats(a.to_vec()), &floats(b.to_vec())).unwrap().is_none()
    };
    assert!(repeated(&[1.0, 2.0], &[2.0, 1.0]));
    assert!(!repeated(&[1.0], &[1.0f64.next_up()]));
    assert!(!repeated(&[0.0], &[-0.0]));
}

#[test]
fn errors_are_the_same_whoever_passed_them_on() {
    let division = "Arrow error: Divide by zero error";
    assert!(same_error(division, "External error: Arrow error: Divide by zero error"));
    assert!(!same_error(division, "Arithmetic overflow: Overflow happened on: 1 + 2"));
    assert!(!same_error(division, "Arrow error: Divide by zero error in column x"));
    let cast =
        |value: &str, to: &str| format!("Arrow error: Cast error: Can't cast value {value} to type {to}");
    assert!(!same_error(&cast("300", "Int8"), &cast("-7", "Int8")));
    for value in ["-7", "1.5e-300", "NaN", "inf"] {
        assert!(same_kind(&cast("300", "Int8"), &cast(value, "Int8")), "{value}");
    }
    assert!(!same_kind(&cast("300", "Int8"), &cast("300", "Int64")));
    assert!(!same_kind(&cast("300", "Decimal128(5, 2)"), &cast("300", "Decimal128(38, 10)")));
    let text = |value: &str| format!("Cannot cast string '{value}' to value of Int32 type");
    assert!(same_kind(&text("abc"), &text("")));
    assert!(!same_kind(&text("abc"), "Cannot cast string 'abc' to value of Int64 type"));
}
