//! Arithmetic, negation and exact casts of integers as WGSL, with the semantics of Arrow's kernels: they wrap. Negation of floats
//! is here, too; decimals are functions.

use crate::error::{GpuError, GpuResult};

use super::ir::{ArithOp, ValueType};
use super::wgsl::{Emitter, Node, faults_of};
use super::widths::{ANY, Class, is_integer, is_signed, is_unsigned, type_bits};

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
        let symbol = match op {
            ArithOp::Add => "+",
            ArithOp::Sub => "-",
            ArithOp::Mul => "*",
        };
        node.value = self.name(&wrapped(ty, &format!("{} {symbol} {}", l.value, r.value)));
        Ok(node)
    }

    pub(super) fn negate(&mut self, e: &Node) -> GpuResult<Node> {
        check_negate(e.ty, e.constant).map_err(GpuError::Internal)?;
        let mut node = e.clone();
        let text = match e.ty {
            ValueType::Float32 => format!("{} ^ 0x80000000u", e.value),
            ValueType::Float64 => format!("{} ^ 0x8000000000000000lu", e.value),
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
        if e.ty != to {
            node.class = Class::of(to, ANY);
            let text = converted(&e.value, e.class, node.class);
            node.value = self.name(&text);
        }
        Ok(node)
    }
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
pub(super) fn converted(value: &str, from: Class, to: Class) -> String {
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
        ValueType::Float32 | ValueType::Float64 => Ok(()),
        ty if is_integer(ty) => Ok(()),
        _ => Err(format!("negation of {ty:?}")),
    }
}

/// Whether the cast is exact and done; otherwise why not.
pub(super) fn check_cast(from: ValueType, to: ValueType) -> Result<(), String> {
    let ok = match (from, to) {
        (from, to) if from == to => true,
        (from, to) if is_signed(from) => is_signed(to) && type_bits(from) < type_bits(to),
        (from, to) if is_unsigned(from) => is_integer(to) && type_bits(from) < type_bits(to),
        _ => false,
    };
    if ok { Ok(()) } else { Err(format!("cast of {from:?} to {to:?}")) }
}
