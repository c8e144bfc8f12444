//! Decimal functions as WGSL.

use std::collections::BTreeSet;

use crate::error::{GpuError, GpuResult};
use crate::kernels::expr::ir::{ArithOp, ValueType};
use crate::kernels::expr::wgsl::{Emitter, Node, faults_of};
use crate::kernels::expr::widths::{ANY, Class, add_bits, pow10, pow10_bits, type_bits};

use super::scaled::{Scaled, equals, low_half, small_power, wide_literal};
use super::{DecimalFn, DecimalType, division_steps, steps};

/// A node on its way. What fails raises, or is NULL in a safe cast; a fault of the node itself is always the CPU's
/// to decide.
pub(super) struct Work {
    pub node: Node,
    /// Its fault flags say where the function has no value; of a safe cast, also where an operand is NULL.
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
        let safe = matches!(function, DecimalFn::Cast { safe: true } | DecimalFn::ToInteger { safe: true });
        let valid = node.valid.clone().filter(|_| !safe);
        let trial = Node { valid, faults: BTreeSet::new(), ..node.clone() };
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
        self.conclude(&mut work, safe);
        Ok(work.node)
    }

    /// Failures as NULLs or as faults.
    fn conclude(&mut self, work: &mut Work, safe: bool) {
        let failures = std::mem::take(&mut work.trial.faults);
        if !safe {
            work.node.faults.extend(failures);
        } else if !failures.is_empty() {
            let failures = failures.into_iter().collect::<Vec<_>>();
            let fits = self.name(&format!("!({})", failures.join(" | ")));
            work.node.valid = self.all(&[work.node.valid.as_deref(), Some(&fits)]);
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
}
