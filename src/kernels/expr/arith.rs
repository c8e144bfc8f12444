//! Arithmetic, negation and casts as WGSL, with the semantics of Arrow's kernels: integers wrap; decimals are brought to
//! the result's scale, and every checked 128-bit step that may overflow gives a fault flag.

use crate::error::{GpuError, GpuResult};

use super::ir::{ArithOp, ValueType};
use super::wgsl::{Emitter, Node, faults_of, widened};
use super::widths::{
    ANY, Class, add_bits, digits_bits, is_integer, is_signed, is_unsigned, mul_bits, pow10, pow10_bits,
    type_bits,
};

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
    pub(super) fn arith(&mut self, op: ArithOp, l: &Node, r: &Node, ty: ValueType) -> GpuResult<Node> {
        check_arith(op, l.ty, r.ty, ty).map_err(GpuError::Internal)?;
        let valid = self.all(&[l.valid.as_deref(), r.valid.as_deref()]);
        let mut node = Node {
            value: String::new(),
            valid,
            ty,
            class: Class::of(ty, ANY),
            bits: type_bits(ty),
            constant: l.constant && r.constant,
            faults: faults_of(&[l, r]),
        };
        if matches!(ty, ValueType::Decimal { .. }) {
            self.decimal(op, l, r, &mut node);
        } else {
            let symbol = match op {
                ArithOp::Add => "+",
                ArithOp::Sub => "-",
                ArithOp::Mul => "*",
            };
            node.value = self.name(&wrapped(ty, &format!("{} {symbol} {}", l.value, r.value)));
        }
        Ok(node)
    }

    fn decimal(&mut self, op: ArithOp, l: &Node, r: &Node, node: &mut Node) {
        let start = |e: &Node| Scaled { value: e.value.clone(), class: e.class, bits: e.bits };
        let (mut a, mut b) = (start(l), start(r));
        if op != ArithOp::Mul {
            a = self.rescaled(a, scale_steps(l.ty, node.ty), node);
            b = self.rescaled(b, scale_steps(r.ty, node.ty), node);
        }
        let result = self.combined(op, &a, &b, node);
        (node.value, node.class, node.bits) = (result.value, result.class, result.bits);
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

    pub(super) fn negate(&mut self, e: &Node) -> GpuResult<Node> {
        check_negate(e.ty, e.constant).map_err(GpuError::Internal)?;
        let mut node = e.clone();
        let text = match e.ty {
            ValueType::Float32 => format!("{} ^ 0x80000000u", e.value),
            ValueType::Float64 => format!("{} ^ 0x8000000000000000lu", e.value),
            ValueType::Decimal { .. } if e.class == Class::Wide => {
                if e.bits > 127 {
                    let minimum = wide_literal(i128::MIN);
                    self.fault(&mut node, &format!("w_eq({}, {minimum})", e.value));
                }
                format!("w_neg({})", e.value)
            }
            ValueType::Decimal { .. } => format!("-{}", e.value),
            ty => {
                // DataFusion negates arrays wrapping, but scalars checked.
                if e.constant {
                    self.fault(&mut node, &format!("{} == {}", e.value, minimum(ty)));
                }
                node.bits = type_bits(ty);
                wrapped(ty, &format!("{} - {}", e.class.zero(), e.value))
            }
        };
        node.value = self.name(&text);
        Ok(node)
    }

    pub(super) fn cast(&mut self, e: &Node, to: ValueType) -> GpuResult<Node> {
        check_cast(e.ty, to).map_err(GpuError::Internal)?;
        let mut node = e.clone();
        node.ty = to;
        match to {
            ValueType::Decimal { precision, scale } => self.cast_decimal(e, precision, scale, &mut node),
            _ if e.ty == to => {}
            _ => {
                node.class = Class::of(to, ANY);
                let text = converted(&e.value, e.class, node.class);
                node.value = self.name(&text);
            }
        }
        Ok(node)
    }

    fn cast_decimal(&mut self, e: &Node, precision: u8, scale: i8, node: &mut Node) {
        let (value, steps, checked) = match e.ty {
            ValueType::Decimal { precision: p, scale: s } => {
                let steps = i16::from(scale) - i16::from(s);
                // Arrow multiplies without a check where the declared precisions leave room.
                let checked = i16::from(p) + steps > i16::from(precision);
                (Scaled { value: e.value.clone(), class: e.class, bits: e.bits }, steps, checked)
            }
            _ => (self.integer(e), i16::from(scale), true),
        };
        let steps = u32::from(steps.unsigned_abs());
        let mut result = if checked || steps == 0 {
            self.rescaled(value, steps, node)
        } else {
            self.rescaled_wrapping(&value, steps)
        };
        let digits = u32::from(precision);
        if checked && result.bits > digits_bits(digits) {
            let limit = pow10(digits).map_or(i128::MAX, |p| p - 1);
            let outside = match result.class {
                Class::Wide => {
                    let (max, min) = (wide_literal(limit), wide_literal(-limit));
                    format!("w_lt({max}, {0}) | w_lt({0}, {min})", result.value)
                }
                // Where 63 bits hold the value, a limit beyond them is never met.
                _ => match i64::try_from(limit) {
                    Ok(max) => format!("({0} > {max}li) | ({0} < -{max}li)", result.value),
                    Err(_) => "false".to_owned(),
                },
            };
            self.fault(node, &outside);
            result.bits = result.bits.min(pow10_bits(digits));
        }
        if result.class == Class::Wide && result.bits <= 63 {
            result.value = self.name(&format!("w_narrow({})", result.value));
            result.class = Class::I64;
        }
        (node.value, node.class, node.bits) = (result.value, result.class, result.bits);
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
}

/// Powers of ten between an operand's scale and the result's.
fn scale_steps(from: ValueType, to: ValueType) -> u32 {
    match (from, to) {
        (ValueType::Decimal { scale: s, .. }, ValueType::Decimal { scale: t, .. }) => {
            u32::from((i16::from(t) - i16::from(s)).unsigned_abs())
        }
        _ => 0,
    }
}

/// A 128-bit constant.
pub(super) fn wide_literal(v: i128) -> String {
    let bits = v as u128;
    format!("vec2<u64>(0x{:x}lu, 0x{:x}lu)", bits as u64, (bits >> 64) as u64)
}

/// The least value of a signed integer type.
pub(super) fn minimum(ty: ValueType) -> String {
    match ty {
        ValueType::Int8 => "-128i".to_owned(),
        ValueType::Int16 => "-32768i".to_owned(),
        ValueType::Int32 => "(-2147483647i - 1i)".to_owned(),
        _ => "(-9223372036854775807li - 1li)".to_owned(),
    }
}

/// Brings a 32-bit result back into a narrower type.
pub(super) fn wrapped(ty: ValueType, text: &str) -> String {
    match ty {
        ValueType::Int8 => format!("(({text}) << 24u) >> 24u"),
        ValueType::Int16 => format!("(({text}) << 16u) >> 16u"),
        ValueType::UInt8 => format!("({text}) & 0xffu"),
        ValueType::UInt16 => format!("({text}) & 0xffffu"),
        _ => text.to_owned(),
    }
}

/// Exact widening of an integer between classes. `i64(u32)` would sign-extend in naga, so it goes through u64.
fn converted(value: &str, from: Class, to: Class) -> String {
    match (from, to) {
        (Class::I32, Class::I64) => sign_extended(value),
        (Class::U32, Class::I64) => format!("bitcast<i64>(u64({value}))"),
        (Class::U64, Class::I64) => format!("bitcast<i64>({value})"),
        (Class::U32, Class::U64) => format!("u64({value})"),
        (Class::U32, Class::I32) => format!("bitcast<i32>({value})"),
        _ => value.to_owned(),
    }
}

/// An i32 as i64, put together from its halves: where WGSL's own conversion is followed by a test of the sign,
/// llvmpipe (Mesa 22.3) takes the high half for 0. Integers of 8, 16 and 32 bits as decimals beside 128-bit ones met it.
pub(crate) fn sign_extended(value: &str) -> String {
    format!("bitcast<i64>((u64(bitcast<u32>(({value}) >> 31u)) << 32u) | u64(bitcast<u32>({value})))")
}

/// Whether arithmetic on these types is done; otherwise why not.
pub(super) fn check_arith(op: ArithOp, l: ValueType, r: ValueType, ty: ValueType) -> Result<(), String> {
    if let (
        ValueType::Decimal { scale: a, .. },
        ValueType::Decimal { scale: b, .. },
        ValueType::Decimal { scale, .. },
    ) = (l, r, ty)
    {
        let expected = match op {
            ArithOp::Mul => a.checked_add(b),
            _ => Some(a.max(b)),
        };
        return match expected {
            Some(expected) if expected == scale => Ok(()),
            _ => Err(format!("{op:?} of {l:?} and {r:?} does not give {ty:?}")),
        };
    }
    if l == ty && r == ty && is_integer(ty) {
        Ok(())
    } else {
        Err(format!("{op:?} of {l:?} and {r:?} as {ty:?}"))
    }
}

/// Whether a value of the type can be negated; otherwise why not. DataFusion negates no unsigned scalars.
pub(super) fn check_negate(ty: ValueType, constant: bool) -> Result<(), String> {
    match ty {
        ty if constant && is_unsigned(ty) => Err(format!("negation of a constant {ty:?}")),
        ValueType::Float32 | ValueType::Float64 | ValueType::Decimal { .. } => Ok(()),
        ty if is_integer(ty) => Ok(()),
        _ => Err(format!("negation of {ty:?}")),
    }
}

/// Whether the cast is exact and done; otherwise why not.
pub(super) fn check_cast(from: ValueType, to: ValueType) -> Result<(), String> {
    let ok = match (from, to) {
        (ValueType::Decimal { scale: s, .. }, ValueType::Decimal { scale: t, .. }) => {
            s <= t && pow10((i16::from(t) - i16::from(s)).unsigned_abs().into()).is_some()
        }
        (from, ValueType::Decimal { scale, .. }) => is_integer(from) && scale >= 0,
        (from, to) if from == to => true,
        (from, to) if is_signed(from) => is_signed(to) && type_bits(from) < type_bits(to),
        (from, to) if is_unsigned(from) => is_integer(to) && type_bits(from) < type_bits(to),
        _ => false,
    };
    if ok { Ok(()) } else { Err(format!("cast of {from:?} to {to:?}")) }
}
