//! Functions over floats, and casts from and to them.

use crate::kernels::expr::float::limits;
use crate::kernels::expr::{FloatFn, NAN_BITS_KNOWN, Scalar, ValueType};

use super::expr::Fault;

/// Bits of two operands of one type as doubles and as singles.
trait Float: Copy {
    const QUIET: u64;
    const NAN: u64;
    const EXPONENT_BITS: u32;
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn double(self) -> f64;
    fn arith(function: FloatFn, a: Self, b: Self) -> Self;
    fn whole(self, function: FloatFn) -> Self;
}

macro_rules! float {
    ($float:ty, $bits:ty, $quiet:expr, $exponent:expr) => {
        impl Float for $float {
            const QUIET: u64 = $quiet;
            const NAN: u64 = <$float>::NAN.to_bits() as u64;
            const EXPONENT_BITS: u32 = $exponent;

            fn of(bits: u64) -> Self {
                <$float>::from_bits(bits as $bits)
            }

            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }

            fn double(self) -> f64 {
                f64::from(self)
            }

            fn arith(function: FloatFn, a: Self, b: Self) -> Self {
                match function {
                    FloatFn::Add => a + b,
                    FloatFn::Sub => a - b,
                    FloatFn::Mul => a * b,
                    FloatFn::Div => a / b,
                    FloatFn::TruncBy => (a * b).trunc() / b,
                    FloatFn::RoundBy => (a * b).round() / b,
                    _ => a % b,
                }
            }

            fn whole(self, function: FloatFn) -> Self {
                match function {
                    FloatFn::Abs => self.abs(),
                    FloatFn::Floor => self.floor(),
                    FloatFn::Ceil => self.ceil(),
                    FloatFn::Trunc if self == 0.0 => 0.0,
                    FloatFn::Trunc => self.trunc(),
                    FloatFn::Signum if self == 0.0 => 0.0,
                    FloatFn::Signum => self.signum(),
                    FloatFn::Sqrt => self.sqrt(),
                    _ => self.round(),
                }
            }
        }
    };
}

float!(f32, u32, 1 << 22, 8);
float!(f64, u64, 1 << 51, 11);

/// The function's value.
///
/// # Errors
/// [`Fault`] where the CPU operator would raise, or might, and where the bits of a NaN are left to it.
pub fn float(function: FloatFn, args: &[(Scalar, ValueType)], ty: ValueType) -> Result<Scalar, Fault> {
    let Some(&(first, from)) = args.first() else { return Err(Fault) };
    match (function, args) {
        (FloatFn::Cast { safe }, _) => match first {
            Some(value) => cast(value, from, ty, safe),
            None => Ok(None),
        },
        (FloatFn::Nanvl, [_, (second, _)]) => {
            Ok(if first.is_some_and(|x| is_nan(x, from)) { *second } else { first })
        }
        (FloatFn::IsNan, _) => Ok(first.map(|x| is_nan(x, from).into())),
        (FloatFn::IsZero, _) => Ok(first.map(|x| (double(x, from) == 0.0).into())),
        (_, [_]) => first.map(|x| dispatch1(function, x as u64, ty)).transpose(),
        (_, [_, (Some(y), _)]) => first.map(|x| dispatch2(function, x as u64, *y as u64, ty)).transpose(),
        _ => Ok(None),
    }
}

fn dispatch1(function: FloatFn, x: u64, ty: ValueType) -> Result<i128, Fault> {
    if ty == ValueType::Float32 { unary::<f32>(function, x) } else { unary::<f64>(function, x) }
}

fn dispatch2(function: FloatFn, x: u64, y: u64, ty: ValueType) -> Result<i128, Fault> {
    if ty == ValueType::Float32 { binary::<f32>(function, x, y) } else { binary::<f64>(function, x, y) }
}

fn double(bits: i128, ty: ValueType) -> f64 {
    if ty == ValueType::Float32 { f32::of(bits as u64).double() } else { f64::of(bits as u64) }
}

fn is_nan(bits: i128, ty: ValueType) -> bool {
    double(bits, ty).is_nan()
}

fn unary<F: Float>(function: FloatFn, bits: u64) -> Result<i128, Fault> {
    let x = F::of(bits);
    if x.double().is_nan() {
        // Spelled out, since the language does not say which bits a NaN has.
        return match function {
            FloatFn::Abs => Ok((bits & !(F::QUIET << (F::EXPONENT_BITS + 1))).into()),
            FloatFn::Signum => Ok(F::NAN.into()),
            FloatFn::Round | FloatFn::Sqrt if NAN_BITS_KNOWN => Ok((bits | F::QUIET).into()),
            FloatFn::Floor | FloatFn::Ceil | FloatFn::Trunc if bits & F::QUIET != 0 => Ok(bits.into()),
            _ => Err(Fault),
        };
    }
    if function == FloatFn::Sqrt && x.double() < 0.0 {
        return Err(Fault);
    }
    Ok(x.whole(function).bits().into())
}

fn binary<F: Float>(function: FloatFn, x: u64, y: u64) -> Result<i128, Fault> {
    let (a, b) = (F::of(x), F::of(y));
    let (nan_a, nan_b) = (a.double().is_nan(), b.double().is_nan());
    if function == FloatFn::Rem {
        let result = F::arith(function, a, b);
        let unknown = result.double().is_nan() || large_quotient(a.double(), b.double());
        return if unknown { Err(Fault) } else { Ok(result.bits().into()) };
    }
    if nan_a && nan_b && (x | F::QUIET) != (y | F::QUIET) {
        return Err(Fault);
    }
    let result = F::arith(function, a, b);
    match result.double().is_nan() {
        true if !NAN_BITS_KNOWN => Err(Fault),
        true if nan_a => Ok((x | F::QUIET).into()),
        true if nan_b => Ok((y | F::QUIET).into()),
        _ => Ok(result.bits().into()),
    }
}

/// Whether the kernel leaves a remainder to the CPU: it shifts at most 66 times.
fn large_quotient(a: f64, b: f64) -> bool {
    let exponent = |x: f64| ((x.to_bits() >> 52) & 0x7ff).max(1);
    a.abs() >= b.abs() && exponent(a) > exponent(b) + 66
}

fn cast(value: i128, from: ValueType, to: ValueType, safe: bool) -> Result<Scalar, Fault> {
    let float = |ty| matches!(ty, ValueType::Float32 | ValueType::Float64);
    if from == ValueType::Float16 {
        let half = value as u64;
        let (sign, fraction) = ((half & 0x8000) << 48, half & 0x3ff);
        let magnitude = match (half >> 10) & 0x1f {
            0x1f if fraction == 0 => f64::INFINITY.bits(),
            0x1f if NAN_BITS_KNOWN => (0x7ff8 << 48) | (fraction << 42),
            0x1f => return Err(Fault),
            0 => (fraction as f64 * 2f64.powi(-24)).bits(),
            exponent => ((exponent + 1008) << 52) | (fraction << 42),
        };
        let wide = i128::from(sign | magnitude);
        return if to == ValueType::Float64 {
            Ok(Some(wide))
        } else {
            cast(wide, ValueType::Float64, to, safe)
        };
    }
    if !float(from) {
        // Rust rounds integers to nearest, ties to even.
        let bits = if to == ValueType::Float32 { (value as f32).bits() } else { (value as f64).bits() };
        return Ok(Some(bits.into()));
    }
    let x = double(value, from);
    match to {
        ValueType::Float32 | ValueType::Float64 if x.is_nan() => {
            let bits = value as u64;
            let kept = match to {
                ValueType::Float32 => ((bits >> 32) & (1 << 31)) | 0x7fc0_0000 | ((bits >> 29) & 0x3f_ffff),
                _ => ((bits & (1 << 31)) << 32) | (0x7ff8 << 48) | ((bits & 0x7f_ffff) << 29),
            };
            if NAN_BITS_KNOWN { Ok(Some(kept.into())) } else { Err(Fault) }
        }
        ValueType::Float32 => Ok(Some((x as f32).bits().into())),
        ValueType::Float64 => Ok(Some(x.bits().into())),
        ValueType::Boolean => Ok(Some((x != 0.0).into())),
        _ => {
            let (most, least) = limits(to);
            // Doubles beyond 128 bits saturate, and NaN must not become 0.
            let whole = x.trunc() as i128;
            let inside = !x.is_nan() && -i128::from(least) <= whole && whole <= i128::from(most);
            match inside {
                true => Ok(Some(whole)),
                false if safe => Ok(None),
                false => Err(Fault),
            }
        }
    }
}
