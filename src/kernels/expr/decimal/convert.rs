//! Casts between decimals and other types as WGSL.

use crate::error::GpuResult;
use crate::kernels::expr::ir::ValueType;
use crate::kernels::expr::wgsl::{Emitter, Node};
use crate::kernels::expr::widths::{Class, is_signed, type_bits};

use super::emit::{Work, decimal_of};
use super::scaled::{Scaled, as_integer, outside, zero};
use super::{DecimalType, power_of_ten, steps};

impl Emitter<'_> {
    pub(super) fn cast_to_decimal(&mut self, arg: &Node, work: &mut Work) -> GpuResult<Scaled> {
        let to = work.decimal()?;
        if matches!(arg.ty, ValueType::Float32 | ValueType::Float64) {
            let value = self.float_as_decimal(arg, to, work);
            let value = self.within(value, to.width, &mut work.trial);
            return Ok(self.limited(value, to, &mut work.trial));
        }
        let value = self.scaled(arg);
        if let Some(from) = DecimalType::of(arg.ty) {
            return Ok(self.decimal_as_decimal(value, from, to, work));
        }
        // Arrow wraps integers into the native type before it looks at them.
        let value = self.within(value, to.width, &mut work.node);
        let digits = u32::from(to.scale.unsigned_abs());
        let scaled = if to.scale < 0 {
            self.truncated(value, digits)
        } else {
            self.rescaled(value, digits, &mut work.trial)
        };
        let scaled = self.within(scaled, to.width, &mut work.trial);
        Ok(self.limited(scaled, to, &mut work.trial))
    }

    fn decimal_as_decimal(
        &mut self,
        value: Scaled,
        from: DecimalType,
        to: DecimalType,
        work: &mut Work,
    ) -> Scaled {
        let steps = steps(from, to);
        let digits = u32::from(steps.unsigned_abs());
        if steps >= 0 && from.fits(to) {
            let scaled = if digits == 0 { value } else { self.rescaled_wrapping(&value, digits) };
            return self.within(scaled, to.width, &mut work.node);
        }
        if steps < 0 {
            // Beyond the native type's digits nothing remains.
            let scaled = if digits > from.max_digits() { zero() } else { self.rounded(value, digits) };
            if from.fits(to) {
                return self.within(scaled, to.width, &mut work.node);
            }
            let scaled = self.within(scaled, to.width, &mut work.trial);
            return self.limited(scaled, to, &mut work.trial);
        }
        let value = self.within(value, to.width, &mut work.trial);
        let scaled = self.rescaled(value, digits, &mut work.trial);
        let scaled = self.within(scaled, to.width, &mut work.trial);
        self.limited(scaled, to, &mut work.trial)
    }

    fn float_as_decimal(&mut self, arg: &Node, to: DecimalType, work: &mut Work) -> Scaled {
        let bits = match arg.ty {
            ValueType::Float32 => self.name(&format!("fb_widen({})", arg.value)),
            _ => arg.value.clone(),
        };
        let checked = self.name(&format!("dec_from_double({bits}, {})", binary(power_of_ten(to.scale))));
        self.fault(&mut work.trial, &format!("{checked}.over"));
        // Beyond 2^127 nothing has 38 digits, and the check of the digits finds the minimum, too.
        Scaled { value: self.name(&format!("{checked}.v")), class: Class::Wide, bits: 128 }
    }

    pub(super) fn decimal_to_integer(&mut self, arg: &Node, work: &mut Work) -> GpuResult<()> {
        let from = decimal_of(arg.ty)?;
        let value = self.scaled(arg);
        let digits = u32::from(from.scale.unsigned_abs());
        let whole = if from.scale < 0 {
            let product = self.rescaled(value, digits, &mut work.trial);
            self.within(product, from.width, &mut work.trial)
        } else {
            self.truncated(value, digits)
        };
        let ty = work.node.ty;
        let width = type_bits(ty);
        let (min, max) = if is_signed(ty) {
            (-1i128 << (width - 1), (1i128 << (width - 1)) - 1)
        } else {
            (0, (1i128 << width) - 1)
        };
        if !is_signed(ty) || whole.bits >= width {
            self.fault(&mut work.trial, &outside(&whole, min, max));
        }
        work.node.value = self.name(&as_integer(&whole, work.node.class));
        work.node.bits = width.min(whole.bits);
        Ok(())
    }

    pub(super) fn decimal_to_float(&mut self, arg: &Node, work: &mut Work) -> GpuResult<()> {
        let from = decimal_of(arg.ty)?;
        let value = self.scaled(arg).wide();
        let double = if from.scale == 0 {
            format!("dec_double({value})")
        } else {
            format!("dec_scaled_double({value}, {})", binary(power_of_ten(from.scale)))
        };
        let double = self.name(&double);
        work.node.value = match work.node.ty {
            ValueType::Float32 => self.name(&format!("fb_narrow({double})")),
            _ => double,
        };
        Ok(())
    }
}

/// A normal double as mantissa and exponent in WGSL.
fn binary(value: f64) -> String {
    let bits = value.to_bits();
    let mantissa = (bits & ((1 << 52) - 1)) | (1 << 52);
    let exponent = i64::from((bits >> 52) as u32 & 0x7ff) - 1075;
    format!("0x{mantissa:x}lu, {exponent}i")
}
