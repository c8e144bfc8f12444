//! Steps of decimal arithmetic as WGSL, in 64 bits where the bounds on the values show that these suffice, else in 128. Every
//! checked 128-bit step that may overflow gives a fault flag.

use crate::kernels::expr::arith::{converted, sign_extended};
use crate::kernels::expr::ir::ArithOp;
use crate::kernels::expr::wgsl::{Emitter, Node, widened};
use crate::kernels::expr::widths::{
    ANY, Class, add_bits, digits_bits, mul_bits, pow10, pow10_bits, value_bits,
};

use super::DecimalType;

/// A decimal on its way: value in a class, and its bound.
#[derive(Debug, Clone)]
pub(super) struct Scaled {
    pub value: String,
    pub class: Class,
    pub bits: u8,
}

impl Scaled {
    /// The value as 128 bits.
    pub fn wide(&self) -> String {
        match self.class {
            Class::Wide => self.value.clone(),
            _ => format!("w_from({})", self.value),
        }
    }
}

impl Emitter<'_> {
    /// An operand in 64 bits, or in 128 when its bound allows more than 63.
    pub(super) fn scaled(&mut self, e: &Node) -> Scaled {
        let bits = e.bits;
        match (DecimalType::of(e.ty).map(|ty| ty.width), e.class) {
            (None, _) => self.integer(e),
            (Some(_), Class::I32) => {
                Scaled { value: self.name(&sign_extended(&e.value)), class: Class::I64, bits: bits.min(32) }
            }
            (Some(_), Class::I64) if bits > 63 => {
                Scaled { value: self.name(&format!("w_from({})", e.value)), class: Class::Wide, bits: 64 }
            }
            (Some(_), class) => Scaled { value: e.value.clone(), class, bits },
        }
    }

    /// Fails where Arrow's native type of the width does not hold the value.
    pub(super) fn within(&mut self, s: Scaled, width: u8, node: &mut Node) -> Scaled {
        if s.bits < width || width == 128 {
            return s;
        }
        let max = (1i128 << (width - 1)) - 1;
        self.fault(node, &outside(&s, -max - 1, max));
        self.narrowed(Scaled { bits: s.bits.min(width), ..s })
    }

    /// Fails where the value has more digits than the type.
    pub(super) fn limited(&mut self, s: Scaled, ty: DecimalType, node: &mut Node) -> Scaled {
        let digits = u32::from(ty.precision);
        if s.bits <= digits_bits(digits) {
            return s;
        }
        let limit = pow10(digits).map_or(i128::MAX, |p| p - 1);
        self.fault(node, &outside(&s, -limit, limit));
        self.narrowed(Scaled { bits: s.bits.min(pow10_bits(digits)), ..s })
    }

    /// An integer as a decimal of scale 0.
    pub(super) fn integer(&mut self, e: &Node) -> Scaled {
        let class = Class::of_bits(e.bits);
        let text = match (e.class, class) {
            (Class::U64, Class::Wide) => format!("vec2<u64>({}, 0lu)", e.value),
            (_, Class::Wide) => widened(e),
            _ => converted(&e.value, e.class, Class::I64),
        };
        Scaled { value: self.name(&text), class, bits: e.bits }
    }

    pub(super) fn rescaled_wrapping(&mut self, value: &Scaled, steps: u32) -> Scaled {
        let bits = mul_bits(value.bits, pow10_bits(steps));
        let factor = pow10(steps).unwrap_or(0);
        if bits <= 63 {
            let value = self.name(&format!("{} * {factor}li", value.value));
            return Scaled { value, class: Class::I64, bits };
        }
        let value = self.name(&format!("w_mul({}, {})", value.wide(), wide_literal(factor)));
        Scaled { value, class: Class::Wide, bits }
    }

    /// Sum, difference or product of unscaled values.
    pub(super) fn combined(&mut self, op: ArithOp, a: &Scaled, b: &Scaled, node: &mut Node) -> Scaled {
        let (symbol, function, bits) = match op {
            ArithOp::Add => ("+", "add", add_bits(a.bits, b.bits)),
            ArithOp::Sub => ("-", "sub", add_bits(a.bits, b.bits)),
            ArithOp::Mul => ("*", "mul", mul_bits(a.bits, b.bits)),
        };
        if bits <= 63 {
            let value = self.name(&format!("{} {symbol} {}", a.value, b.value));
            return Scaled { value, class: Class::I64, bits };
        }
        self.wide_op(function, a, b, bits, node)
    }

    /// A 128-bit operation, checked where its bound allows overflow.
    pub(super) fn wide_op(
        &mut self,
        function: &str,
        a: &Scaled,
        b: &Scaled,
        bits: u8,
        node: &mut Node,
    ) -> Scaled {
        let (x, y) = (a.wide(), b.wide());
        let value = if bits <= 127 {
            self.name(&format!("w_{function}({x}, {y})"))
        } else {
            let checked = self.name(&format!("w_{function}_checked({x}, {y})"));
            self.fault(node, &format!("{checked}.over"));
            self.name(&format!("{checked}.v"))
        };
        Scaled { value, class: Class::Wide, bits }
    }

    /// Multiplies by a power of ten, checked.
    pub(super) fn rescaled(&mut self, value: Scaled, steps: u32, node: &mut Node) -> Scaled {
        if steps == 0 {
            return value;
        }
        let Some(factor) = pow10(steps) else {
            // Arrow raises before it looks at any row.
            self.fault(node, "true");
            return Scaled { value: Class::Wide.zero().to_owned(), class: Class::Wide, bits: ANY };
        };
        let bits = mul_bits(value.bits, pow10_bits(steps));
        if bits <= 63 {
            let value = self.name(&format!("{} * {factor}li", value.value));
            return Scaled { value, class: Class::I64, bits };
        }
        let factor = Scaled { value: wide_literal(factor), class: Class::Wide, bits: pow10_bits(steps) };
        self.wide_op("mul", &value, &factor, bits, node)
    }

    /// In 64 bits where the bound says that they suffice.
    pub(super) fn narrowed(&mut self, s: Scaled) -> Scaled {
        if s.class == Class::Wide && s.bits <= 63 {
            let value = self.name(&format!("w_narrow({})", s.value));
            return Scaled { value, class: Class::I64, bits: s.bits };
        }
        s
    }

    /// Divides by 10^digits, half away from zero.
    pub(super) fn rounded(&mut self, a: Scaled, digits: u32) -> Scaled {
        let Some(unit) = pow10(digits) else { return zero() };
        if digits == 0 {
            return a;
        }
        // Below half a unit everything becomes 0.
        if a.bits <= 126 && (1i128 << a.bits) <= unit / 2 {
            return zero();
        }
        let bits = quotient_bits(a.bits, unit, 1);
        match small_power(digits) {
            Some(unit) if a.class == Class::I64 => {
                let q = self.name(&format!("{} / {unit}li", a.value));
                let r = self.name(&format!("{} - {q} * {unit}li", a.value));
                let half = unit / 2;
                let text = format!("{q} + select(select(0li, -1li, {r} <= -{half}li), 1li, {r} >= {half}li)");
                Scaled { value: self.name(&text), class: Class::I64, bits }
            }
            _ => {
                let value = self.name(&format!("dec_round({}, {})", a.wide(), wide_literal(unit)));
                self.narrowed(Scaled { value, class: Class::Wide, bits })
            }
        }
    }

    /// Divides by 10^digits, towards zero.
    pub(super) fn truncated(&mut self, a: Scaled, digits: u32) -> Scaled {
        let Some(unit) = pow10(digits) else { return zero() };
        if digits == 0 {
            return a;
        }
        if a.bits <= 126 && (1i128 << a.bits) <= unit {
            return zero();
        }
        let bits = quotient_bits(a.bits, unit, 0);
        match small_power(digits) {
            Some(unit) if a.class == Class::I64 => {
                let value = self.name(&format!("{} / {unit}li", a.value));
                Scaled { value, class: Class::I64, bits }
            }
            _ => {
                let value = self.name(&format!("dec_div({}, {})", a.wide(), wide_literal(unit)));
                self.narrowed(Scaled { value, class: Class::Wide, bits })
            }
        }
    }
}

/// A 128-bit constant.
pub(super) fn wide_literal(v: i128) -> String {
    let bits = v as u128;
    format!("vec2<u64>(0x{:x}lu, 0x{:x}lu)", bits as u64, (bits >> 64) as u64)
}

/// The number 0.
pub(super) fn zero() -> Scaled {
    Scaled { value: Class::I64.zero().to_owned(), class: Class::I64, bits: 1 }
}

/// 10^digits where 63 bits hold it.
pub(super) fn small_power(digits: u32) -> Option<i128> {
    pow10(digits).filter(|_| digits <= 18)
}

/// Bound of a quotient, `more` for a carry.
fn quotient_bits(bits: u8, unit: i128, more: i128) -> u8 {
    let most = if bits <= 126 { (1i128 << bits) - 1 } else { i128::MAX };
    // The minimum of 128 bits has the magnitude 2^127, one more.
    value_bits(most / unit + more + i128::from(bits > 126)).max(1)
}

/// Whether a value lies outside of bounds.
pub(super) fn outside(s: &Scaled, min: i128, max: i128) -> String {
    if s.class == Class::Wide {
        return format!("w_lt({1}, {0}) | w_lt({0}, {2})", s.value, wide_literal(max), wide_literal(min));
    }
    let above = i64::try_from(max).ok().map(|max| format!("({} > {max}li)", s.value));
    // Where 63 bits hold the value it is above the minimum of 64 bits.
    let below = i64::try_from(min).ok().filter(|min| *min != i64::MIN);
    let below = below.map(|min| format!("({} < {min}li)", s.value));
    match (above, below) {
        (Some(above), Some(below)) => format!("{above} | {below}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "false".to_owned(),
    }
}

/// Whether a value is a certain number.
pub(super) fn equals(s: &Scaled, value: i128) -> String {
    match (s.class, i64::try_from(value)) {
        (Class::Wide, _) => format!("w_eq({}, {})", s.value, wide_literal(value)),
        (_, Ok(value)) if value != i64::MIN => format!("{} == {value}li", s.value),
        _ => "false".to_owned(),
    }
}

/// The low 32 bits as a signed integer.
pub(super) fn low_half(s: &Scaled) -> String {
    let low = match s.class {
        Class::Wide => format!("{}.x", s.value),
        _ => format!("bitcast<u64>({})", s.value),
    };
    format!("bitcast<i32>(u32({low} & 0xfffffffflu))")
}

/// The value in the register class of an integer type that holds it.
pub(super) fn as_integer(s: &Scaled, class: Class) -> String {
    let low = match s.class {
        Class::Wide => format!("{}.x", s.value),
        _ => format!("bitcast<u64>({})", s.value),
    };
    match class {
        Class::I32 => low_half(s),
        Class::U32 => format!("u32({low} & 0xfffffffflu)"),
        Class::U64 => low,
        _ => format!("bitcast<i64>({low})"),
    }
}
