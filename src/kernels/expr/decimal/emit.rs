//! Decimal functions as WGSL.

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::arith::{Scaled, sign_extended, wide_literal};
use crate::kernels::expr::ir::{ArithOp, ValueType};
use crate::kernels::expr::wgsl::{Emitter, Node, faults_of};
use crate::kernels::expr::widths::{
    ANY, Class, add_bits, digits_bits, pow10, pow10_bits, type_bits, value_bits,
};

use super::{DecimalFn, DecimalType, division_steps, steps};

/// A node on its way. What fails raises, or is NULL in a safe cast; a fault of the node itself is always the CPU's
/// to decide.
pub(super) struct Work {
    pub node: Node,
    /// Its fault flags say where the function has no value.
    pub trial: Node,
}

impl Work {
    pub fn decimal(&self) -> GpuResult<DecimalType> {
        decimal_of(self.node.ty)
    }
}

pub(super) fn decimal_of(ty: ValueType) -> GpuResult<DecimalType> {
    DecimalType::of(ty).ok_or_else(|| GpuError::Internal(format!("{ty:?} is not a decimal")))
}

impl Emitter<'_> {
    pub(in crate::kernels::expr) fn decimal_fn(
        &mut self,
        function: DecimalFn,
        args: &[Node],
        ty: ValueType,
    ) -> GpuResult<Node> {
        let types: Vec<ValueType> = args.iter().map(|arg| arg.ty).collect();
        function.check(&types, ty).map_err(GpuError::Internal)?;
        let operands: Vec<&Node> = args.iter().collect();
        let flags: Vec<Option<&str>> = args.iter().map(|arg| arg.valid.as_deref()).collect();
        let node = Node {
            value: String::new(),
            valid: self.all(&flags),
            ty,
            class: Class::of(ty, ANY),
            bits: type_bits(ty),
            constant: args.iter().all(|arg| arg.constant),
            faults: faults_of(&operands),
        };
        let trial = Node { valid: None, faults: std::collections::BTreeSet::new(), ..node.clone() };
        let mut work = Work { node, trial };
        match (function, args) {
            (DecimalFn::ToFloat, [arg]) => self.decimal_to_float(arg, &mut work)?,
            (DecimalFn::ToInteger { .. }, [arg]) => self.decimal_to_integer(arg, &mut work)?,
            (DecimalFn::Cast { .. }, [arg]) => {
                let result = self.cast_to_decimal(arg, &mut work)?;
                self.settle(&result, &mut work);
            }
            (DecimalFn::Round { .. } | DecimalFn::Truncate, [arg, numbers @ ..]) => {
                let result = self.cut_to_units(function, arg, numbers, &mut work)?;
                self.settle(&result, &mut work);
            }
            (_, [arg]) => {
                let result = self.unary_decimal(function, arg, &mut work)?;
                self.settle(&result, &mut work);
            }
            (_, [left, right]) => {
                let result = self.binary_decimal(function, left, right, &mut work)?;
                self.settle(&result, &mut work);
            }
            _ => return Err(GpuError::Internal(format!("{function:?} of {} operands", args.len()))),
        }
        let safe = matches!(function, DecimalFn::Cast { safe: true } | DecimalFn::ToInteger { safe: true });
        self.conclude(&mut work, safe);
        Ok(work.node)
    }

    /// Failures as NULLs or as faults.
    fn conclude(&mut self, work: &mut Work, safe: bool) {
        let failures: Vec<String> = work.trial.faults.iter().cloned().collect();
        if failures.is_empty() {
            return;
        }
        if safe {
            let fits = self.name(&format!("!({})", failures.join(" | ")));
            work.node.valid = self.all(&[work.node.valid.as_deref(), Some(&fits)]);
        } else {
            for failure in failures {
                self.fault(&mut work.node, &failure);
            }
        }
    }

    /// A finished decimal into the register class of its type.
    fn settle(&mut self, result: &Scaled, work: &mut Work) {
        let ty = work.node.ty;
        work.node.bits = result.bits.min(type_bits(ty));
        work.node.class = Class::of(ty, work.node.bits);
        work.node.value = match (result.class, work.node.class) {
            (Class::Wide, Class::I64) => self.name(&format!("w_narrow({})", result.value)),
            (_, Class::I32) => self.name(&low_half(result)),
            _ => result.value.clone(),
        };
    }

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

    fn binary_decimal(
        &mut self,
        function: DecimalFn,
        left: &Node,
        right: &Node,
        work: &mut Work,
    ) -> GpuResult<Scaled> {
        let (l, r, to) = (decimal_of(left.ty)?, decimal_of(right.ty)?, work.decimal()?);
        let (a, b) = (self.scaled(left), self.scaled(right));
        let aligned = |from| u32::from(steps(from, to).max(0).unsigned_abs());
        let (up, down) = match function {
            DecimalFn::Divide => division_steps(l, r, to),
            DecimalFn::Arith(ArithOp::Mul) => (0, 0),
            _ => (aligned(l), aligned(r)),
        };
        let a = self.rescaled(a, up, &mut work.trial);
        let a = self.within(a, to.width, &mut work.trial);
        let b = self.rescaled(b, down, &mut work.trial);
        let b = self.within(b, to.width, &mut work.trial);
        let result = match function {
            DecimalFn::Arith(op) => self.combined(op, &a, &b, &mut work.trial),
            _ => self.divided(function == DecimalFn::Remainder, &a, &b, to, work),
        };
        Ok(self.within(result, to.width, &mut work.trial))
    }

    fn divided(&mut self, rest: bool, a: &Scaled, b: &Scaled, to: DecimalType, work: &mut Work) -> Scaled {
        self.fault(&mut work.trial, &equals(b, 0));
        if a.bits >= to.width {
            let minimum = -1i128 << (to.width - 1);
            self.fault(&mut work.trial, &format!("({}) & ({})", equals(a, minimum), equals(b, -1)));
        }
        let bits = if rest { a.bits.min(b.bits) } else { a.bits };
        let function = if rest { "dec_rem" } else { "dec_div" };
        if a.class == Class::I64 && b.class == Class::I64 {
            let value = self.name(&format!("{function}64({}, {})", a.value, b.value));
            return Scaled { value, class: Class::I64, bits };
        }
        let value = self.name(&format!("{function}({}, {})", a.wide(), b.wide()));
        self.narrowed(Scaled { value, class: Class::Wide, bits })
    }

    /// In 64 bits where the bound says that they suffice.
    fn narrowed(&mut self, s: Scaled) -> Scaled {
        if s.class == Class::Wide && s.bits <= 63 {
            let value = self.name(&format!("w_narrow({})", s.value));
            return Scaled { value, class: Class::I64, bits: s.bits };
        }
        s
    }

    fn unary_decimal(&mut self, function: DecimalFn, arg: &Node, work: &mut Work) -> GpuResult<Scaled> {
        let (from, to) = (decimal_of(arg.ty)?, work.decimal()?);
        let a = self.scaled(arg);
        Ok(match function {
            DecimalFn::Negate => {
                if a.bits >= from.width {
                    self.fault(&mut work.trial, &equals(&a, -1i128 << (from.width - 1)));
                }
                let text = if a.class == Class::Wide {
                    format!("w_neg({})", a.value)
                } else {
                    format!("-{}", a.value)
                };
                Scaled { value: self.name(&text), ..a }
            }
            DecimalFn::Absolute => {
                let text = match a.class {
                    Class::Wide => format!("dec_magnitude({})", a.value),
                    _ => format!("select({0}, -{0}, {0} < 0li)", a.value),
                };
                Scaled { value: self.name(&text), ..a }
            }
            DecimalFn::Floor | DecimalFn::Ceil if from.scale > 0 => {
                let whole =
                    self.whole(function == DecimalFn::Floor, &a, u32::from(from.scale.unsigned_abs()));
                self.limited(whole, to, &mut work.trial)
            }
            _ => a,
        })
    }

    /// `round` and `trunc`. The numbers are data, and no bound on a value depends on them.
    fn cut_to_units(
        &mut self,
        function: DecimalFn,
        arg: &Node,
        numbers: &[Node],
        work: &mut Work,
    ) -> GpuResult<Scaled> {
        let (from, to) = (decimal_of(arg.ty)?, work.decimal()?);
        let a = self.scaled(arg);
        let [low, high, factor @ ..] = numbers else {
            return Err(GpuError::Internal(format!("{function:?} without a unit")));
        };
        let name = if function == DecimalFn::Truncate { "dec_trunc" } else { "dec_round" };
        let unit = format!("{}, {}", low.value, high.value);
        let text = match a.class {
            Class::Wide => format!("{name}({}, vec2<u64>({unit}))", a.value),
            _ => format!("{name}64({}, {unit})", a.value),
        };
        let units = Scaled { value: self.name(&text), ..a };
        let [low, high] = factor else { return Ok(units) };
        // At most the operand and half a unit, which has no more digits than the type.
        let bits = add_bits(units.bits, pow10_bits(from.precision.into()));
        let product = if bits <= 63 {
            let value = self.name(&format!("{} * bitcast<i64>({})", units.value, low.value));
            Scaled { value, class: Class::I64, bits }
        } else {
            let factor = format!("vec2<u64>({}, {})", low.value, high.value);
            let factor = Scaled { value: factor, class: Class::Wide, bits: ANY };
            self.wide_op("mul", &units, &factor, bits, &mut work.trial)
        };
        let product = self.within(product, to.width, &mut work.trial);
        // One digit more may not fit a type that has no more.
        let full = from.scale == 0 && u32::from(to.precision) == to.max_digits();
        Ok(if full { self.limited(product, to, &mut work.trial) } else { product })
    }

    /// Multiples of 10^digits at or below, or at or above.
    fn whole(&mut self, floor: bool, a: &Scaled, digits: u32) -> Scaled {
        let bits = add_bits(a.bits, pow10_bits(digits));
        match small_power(digits) {
            Some(unit) if bits <= 63 => {
                let r = self.name(&format!("{0} - ({0} / {unit}li) * {unit}li", a.value));
                let text = if floor {
                    format!("{} - select({r}, {r} + {unit}li, {r} < 0li)", a.value)
                } else {
                    format!("{} - select({r}, {r} - {unit}li, {r} > 0li)", a.value)
                };
                Scaled { value: self.name(&text), class: Class::I64, bits }
            }
            _ => {
                let function = if floor { "dec_floor" } else { "dec_ceil" };
                let unit = wide_literal(pow10(digits).unwrap_or(1));
                let value = self.name(&format!("{function}({}, {unit})", a.wide()));
                Scaled { value, class: Class::Wide, bits: bits.max(64) }
            }
        }
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

/// The number 0.
pub(super) fn zero() -> Scaled {
    Scaled { value: Class::I64.zero().to_owned(), class: Class::I64, bits: 1 }
}

/// 10^digits where 63 bits hold it.
fn small_power(digits: u32) -> Option<i128> {
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
fn equals(s: &Scaled, value: i128) -> String {
    match (s.class, i64::try_from(value)) {
        (Class::Wide, _) => format!("w_eq({}, {})", s.value, wide_literal(value)),
        (_, Ok(value)) if value != i64::MIN => format!("{} == {value}li", s.value),
        _ => "false".to_owned(),
    }
}

/// The low 32 bits as a signed integer.
fn low_half(s: &Scaled) -> String {
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
