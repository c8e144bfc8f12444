//! Aggregates of doubles that depend on the order of rows: what they must give, and what else DataFusion may give.
//!
//! DataFusion rounds at each addition, in an order that is not fixed; the GPU's sums and averages are the exact sum, rounded once. Both are judged by the
//! values themselves, which the CPU collects with `array_agg`, never by what the types could hold. With GROUP BY, DataFusion's MIN and MAX begin
//! with the largest and the least finite value and take whatever does not compare with what they have (see [`extremes`]).

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use datafusion::arrow::datatypes::{DataType, Float64Type};

/// An aggregate whose value DataFusion rounds at each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, serde::Serialize, serde::Deserialize)]
pub enum Rounding {
    /// SUM.
    Sum,
    /// AVG.
    Average,
    /// VAR_POP.
    Variance,
    /// VAR_SAMP.
    SampleVariance,
    /// STDDEV_POP.
    Deviation,
    /// MIN or MAX with GROUP BY.
    Extreme {
        /// MAX.
        is_max: bool,
        /// Whether a NaN has whatever payload the processor's arithmetic gives it.
        any_nan: bool,
    },
}

/// What an aggregate must give.
#[derive(Debug, Clone, PartialEq)]
pub enum Expected {
    /// A value, and how far DataFusion's may be from it.
    Near(Near),
    /// One of these values.
    OneOf {
        /// The values.
        choices: Vec<f64>,
        /// Whether any NaN stands for another.
        any_nan: bool,
    },
}

/// A sum, or what comes from one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Near {
    /// The exact result, rounded once; a float's rounding of it for variances.
    pub exact: f64,
    /// How far a result may be that was rounded at each step.
    distance: f64,
    /// Whether an intermediate sum may leave the range of doubles.
    overflows: bool,
    /// Whether the GPU promises the exact result.
    promised: bool,
}

impl Expected {
    /// For the `row`-th list of a column of lists, of an aggregate over values of `data_type`; the inner `None` stands for NULL, the outer one
    /// for a column of another type.
    pub fn of_row(
        rounding: Rounding,
        data_type: &DataType,
        lists: &ArrayRef,
        row: usize,
    ) -> Option<Option<Self>> {
        let lists = lists.as_list_opt::<i32>()?;
        if lists.is_null(row) {
            return Some(None);
        }
        let values = lists.value(row);
        let values: &Float64Array = values.as_primitive_opt::<Float64Type>()?;
        let values: Vec<f64> = values.iter().flatten().collect();
        Some(match rounding {
            Rounding::Extreme { is_max, any_nan } => {
                let most = if *data_type == DataType::Float32 { f32::MAX.into() } else { f64::MAX };
                let choices = extremes(&values, is_max, most);
                (!choices.is_empty()).then_some(Expected::OneOf { choices, any_nan })
            }
            _ => Near::of(rounding, &values).map(Expected::Near),
        })
    }

    /// Whether `got` is right. Where it is promised and `strict`, only the exact result is.
    pub fn allows(&self, got: f64, strict: bool) -> bool {
        match self {
            Expected::Near(near) => near.allows(got, strict),
            Expected::OneOf { choices, any_nan } => choices.iter().any(|choice| {
                choice.to_bits() == got.to_bits() || (*any_nan && choice.is_nan() && got.is_nan())
            }),
        }
    }

    /// The value that it stands at among others, and how far it may be from it; `None` where that is open.
    pub fn place(&self) -> Option<(f64, f64)> {
        match self {
            Expected::Near(near) => near.distance().map(|distance| (near.exact, distance)),
            Expected::OneOf { choices, .. } => match choices.as_slice() {
                [only] if only.is_finite() => Some((*only, 0.0)),
                _ => None,
            },
        }
    }

    /// Whether there is only one right result, with all its bits.
    pub fn is_settled(&self) -> bool {
        match self {
            Expected::Near(_) => false,
            Expected::OneOf { choices, any_nan } => choices.len() == 1 && !(*any_nan && choices[0].is_nan()),
        }
    }

    /// How many results are right; one where it is a matter of distance.
    pub fn choices(&self) -> usize {
        match self {
            Expected::Near(_) => 1,
            Expected::OneOf { choices, .. } => choices.len(),
        }
    }
}

/// What DataFusion's MIN or MAX of a group may be; nothing for no values. `most` is the largest finite value of the type.
///
/// A NaN does not compare, so it replaces what was there and is itself replaced; the zeros are equal, so that the first one stays; and where
/// there is nothing but the infinity at the other end, the start value stays.
pub fn extremes(values: &[f64], is_max: bool, most: f64) -> Vec<f64> {
    let beyond = |a: &&f64, b: &&f64| if is_max { a.total_cmp(b) } else { b.total_cmp(a) };
    let (worst, start) = if is_max { (f64::NEG_INFINITY, -most) } else { (f64::INFINITY, most) };
    let is_worst = |value: &f64| *value == worst;
    let Some(extreme) = values.iter().max_by(beyond) else { return vec![] };
    let mut choices = if values.iter().any(|value| value.is_nan()) {
        values.to_vec()
    } else if *extreme == 0.0 {
        values.iter().copied().filter(|value| *value == 0.0).collect()
    } else {
        vec![*extreme]
    };
    if choices.iter().any(is_worst) {
        choices.push(start);
    }
    choices.sort_by(f64::total_cmp);
    choices.dedup_by_key(|value| value.to_bits());
    choices
}

impl Near {
    /// For these values; `None` stands for NULL.
    pub fn of(rounding: Rounding, values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        let least = if rounding == Rounding::SampleVariance { 2 } else { 1 };
        if values.len() < least {
            return None;
        }
        let promised = matches!(rounding, Rounding::Sum | Rounding::Average);
        let sum = exact_sum(values);
        // Scaled down, so that the sum of the magnitudes does not overflow itself.
        let finite = values.iter().filter(|value| value.is_finite());
        let scaled: f64 = finite.map(|value| value.abs() * 2f64.powi(-64)).sum();
        let overflows = scaled >= f64::MAX * 2f64.powi(-65);
        if values.iter().any(|value| !value.is_finite()) {
            let exact = if promised { sum } else { f64::NAN };
            return Some(Near { exact, distance: 0.0, overflows, promised });
        }
        if !promised {
            return Some(Near::of_squares(rounding, values, sum / count));
        }
        // What was scaled down may have vanished.
        let whole: f64 = values.iter().map(|value| value.abs()).sum();
        let one = if whole.is_finite() { whole * 2f64.powi(-52) } else { scaled * 2f64.powi(12) };
        let one = one + f64::from_bits(1);
        let (exact, distance) = match rounding {
            Rounding::Average => {
                let average = sum / count;
                (average, one + average.abs() * 2f64.powi(-52))
            }
            _ => (sum, one * count),
        };
        Some(Near { exact, distance, overflows, promised })
    }

    fn of_squares(rounding: Rounding, values: &[f64], mean: f64) -> Self {
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let most = values.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
        let divisor = values.len() as f64 - f64::from(u8::from(rounding == Rounding::SampleVariance));
        let (variance, distance) = (squares / divisor, most * most * 2f64.powi(-40));
        let (exact, distance) = match rounding {
            Rounding::Deviation if variance > distance => (variance.sqrt(), distance / variance.sqrt()),
            Rounding::Deviation => (variance.sqrt(), distance.sqrt()),
            _ => (variance, distance),
        };
        Near { exact, distance, overflows: false, promised: false }
    }

    /// Whether `got` is the exact result where that is promised and `strict`, else one that DataFusion's roundings can give.
    pub fn allows(&self, got: f64, strict: bool) -> bool {
        let same = got.to_bits() == self.exact.to_bits()
            || (got.is_nan() && self.exact.is_nan())
            // The sign of a zero depends on what the sum began with.
            || (got == 0.0 && self.exact == 0.0);
        if same || (strict && self.promised) {
            return same;
        }
        if !got.is_finite() || !self.exact.is_finite() {
            return self.overflows;
        }
        (got - self.exact).abs() <= self.distance
    }

    /// The distance, where results can be compared by it.
    pub fn distance(&self) -> Option<f64> {
        (self.exact.is_finite() && !self.overflows).then_some(self.distance)
    }
}

/// Limbs of 32 bits from 2^-1074 on; the last ones are for carries.
const LIMBS: usize = 70;

/// The sum, rounded once to nearest, ties to even; as IEEE 754 says where there are NaNs or infinities.
pub fn exact_sum(values: &[f64]) -> f64 {
    if values.iter().any(|value| !value.is_finite()) {
        return values.iter().filter(|value| !value.is_finite()).sum();
    }
    let mut limbs = [0i64; LIMBS];
    for value in values {
        let bits = value.to_bits();
        let (exponent, fraction) = ((bits >> 52 & 0x7ff) as usize, bits & ((1 << 52) - 1));
        let (mantissa, shift) =
            if exponent == 0 { (fraction, 0) } else { (fraction | 1 << 52, exponent - 1) };
        let wide = u128::from(mantissa) << (shift % 32);
        for part in 0..3 {
            let chunk = (wide >> (32 * part) & 0xffff_ffff) as i64;
            limbs[shift / 32 + part] += if value.is_sign_negative() { -chunk } else { chunk };
        }
    }
    let (digits, negative) = carried(limbs);
    if !negative {
        return nearest(&digits);
    }
    -nearest(&carried(limbs.map(|limb| -limb)).0)
}

/// Limbs as digits from 0 to 2^32 - 1, and whether the number is negative.
fn carried(limbs: [i64; LIMBS]) -> ([u32; LIMBS], bool) {
    let mut carry = 0;
    let digits = limbs.map(|limb| {
        let total = limb + carry;
        carry = total >> 32;
        total as u32
    });
    (digits, carry < 0)
}

fn nearest(digits: &[u32; LIMBS]) -> f64 {
    let bit = |at: usize| u64::from(digits[at / 32] >> (at % 32) & 1);
    let Some(limb) = digits.iter().rposition(|digit| *digit != 0) else { return 0.0 };
    let top = limb * 32 + 31 - digits[limb].leading_zeros() as usize;
    if top < 53 {
        return f64::from_bits((0..=top).fold(0, |bits, at| bits | bit(at) << at));
    }
    let low = top - 52;
    if low > 2_045 {
        return f64::INFINITY;
    }
    let mantissa = (0..53).fold(0, |bits, at| bits | bit(low + at) << at);
    let more_than_half = (0..low - 1).any(|at| bit(at) == 1);
    let up = bit(low - 1) == 1 && (more_than_half || mantissa & 1 == 1);
    // A carry out of the mantissa raises the exponent, up to infinity.
    f64::from_bits(((low as u64) << 52) + mantissa + u64::from(up))
}
