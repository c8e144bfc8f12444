//! Functions over integers and booleans: checked division, bits, absolute values, casts that may not fit.

use crate::error::{GpuError, GpuResult};

use super::arith::{minimum, sign_extended, wrapped};
use super::function::unknown_types;
use super::ir::ValueType;
use super::wgsl::{Emitter, Node, faults_of};
use super::widths::{Class, is_integer, is_signed, is_unsigned, type_bits};

/// Functions over integers and booleans. Unless said otherwise all operands and the result are of one integer type, and
/// the result is NULL where an operand is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IntegerFn {
    /// `/`, towards zero; faults for a divisor of 0 and for MIN / -1.
    Divide,
    /// `%`, with the sign of the dividend; faults for a divisor of 0. MIN % -1 is 0.
    Remainder,
    /// `&`
    BitAnd,
    /// `|`
    BitOr,
    /// `#`, exclusive or.
    BitXor,
    /// `<<`; the count is taken modulo the width of the type.
    ShiftLeft,
    /// `>>`, of the sign for signed types; the count is taken modulo the width of the type.
    ShiftRight,
    /// Absolute value of a signed integer; faults for MIN.
    Abs,
    /// DataFusion's `round` before the point: the nearest multiple of the second operand, half away from zero. That is a power
    /// of ten, 1 for places after the point, or 0 where every value becomes 0. Faults where the result is no value of the type.
    Round,
    /// Between integers and booleans; 0 is false, all else true.
    Convert {
        /// NULL for what does not fit the result's type, instead of a fault.
        safe: bool,
    },
}

impl IntegerFn {
    /// Whether a value may meet a fault, for all that is known before the data is.
    pub fn may_fault(self, args: &[ValueType], ty: ValueType) -> bool {
        match self {
            IntegerFn::Divide | IntegerFn::Remainder | IntegerFn::Abs | IntegerFn::Round => true,
            IntegerFn::Convert { safe } => !safe && args.iter().any(|from| outside(*from, ty, "").is_some()),
            _ => false,
        }
    }

    /// Whether the kernels have the function for these types.
    ///
    /// # Errors
    /// A phrase that names the function and the types.
    pub fn check(self, args: &[ValueType], ty: ValueType) -> Result<(), String> {
        let known = match (self, args) {
            (IntegerFn::Convert { .. }, [from]) => {
                let either = |ty| is_integer(ty) || ty == ValueType::Boolean;
                either(*from) && either(ty)
            }
            (IntegerFn::Abs, [arg]) => is_signed(ty) && *arg == ty,
            (IntegerFn::Abs | IntegerFn::Convert { .. }, _) => false,
            (_, [left, right]) => is_integer(ty) && *left == ty && *right == ty,
            _ => false,
        };
        if known { Ok(()) } else { Err(unknown_types(args, ty)) }
    }
}

impl Emitter<'_> {
    pub(super) fn integer_fn(
        &mut self,
        function: IntegerFn,
        args: &[Node],
        ty: ValueType,
    ) -> GpuResult<Node> {
        use IntegerFn::*;
        match (function, args) {
            (Convert { safe }, [e]) => Ok(self.convert(e, ty, safe)),
            (Abs, [e]) => Ok(self.absolute(e)),
            (Divide | Remainder, [l, r]) => Ok(self.division(function, l, r)),
            (Round, [l, r]) => Ok(self.cut_to_multiples(l, r)),
            (BitAnd, [l, r]) => Ok(self.operator(l, r, &format!("{} & {}", l.value, r.value))),
            (BitOr, [l, r]) => Ok(self.operator(l, r, &format!("{} | {}", l.value, r.value))),
            (BitXor, [l, r]) => Ok(self.operator(l, r, &format!("{} ^ {}", l.value, r.value))),
            (ShiftLeft, [l, r]) => Ok(self.operator(l, r, &format!("{} << {}", l.value, shift_count(r)))),
            (ShiftRight, [l, r]) => Ok(self.operator(l, r, &format!("{} >> {}", l.value, shift_count(r)))),
            _ => Err(GpuError::Internal(format!("{function:?} of {} operands", args.len()))),
        }
    }

    /// A node of the operands' type over both.
    fn operator(&mut self, l: &Node, r: &Node, text: &str) -> Node {
        let valid = self.all(&[l.valid.as_deref(), r.valid.as_deref()]);
        let value = self.name(&wrapped(l.ty, text));
        Node {
            value,
            valid,
            ty: l.ty,
            class: l.class,
            bits: type_bits(l.ty),
            constant: l.constant && r.constant,
            faults: faults_of(&[l, r]),
        }
    }

    /// A divisor that has no quotient is replaced by 1: MIN % -1 is then right as it is, the rest are faults.
    fn division(&mut self, function: IntegerFn, l: &Node, r: &Node) -> Node {
        let (zero, one) = literals(l.class);
        let none = self.name(&format!("{} == {zero}", r.value));
        let mut replaced = none.clone();
        let mut faulty = none;
        if is_signed(l.ty) {
            let beyond = self.name(&format!("({} == {}) & ({} == -{one})", l.value, minimum(l.ty), r.value));
            replaced = self.name(&format!("{replaced} | {beyond}"));
            if function == IntegerFn::Divide {
                faulty.clone_from(&replaced);
            }
        }
        let divisor = self.name(&format!("select({}, {one}, {replaced})", r.value));
        let symbol = if function == IntegerFn::Divide { "/" } else { "%" };
        let mut node = self.operator(l, r, &format!("{} {symbol} {divisor}", l.value));
        self.fault(&mut node, &faulty);
        node
    }

    /// The nearest multiple lies less than a factor away, so that one out of range wraps to the other side of the value.
    fn cut_to_multiples(&mut self, value: &Node, factor: &Node) -> Node {
        let (zero, one) = literals(value.class);
        let (v, f) = (&value.value, &factor.value);
        let divisor = self.name(&format!("max({f}, {one})"));
        let rest = self.name(&format!("{v} % {divisor}"));
        let half = self.name(&format!("{divisor} / ({one} + {one})"));
        let up = self.name(&format!("({divisor} > {one}) & ({rest} >= {half})"));
        let mut text = format!("{v} - {rest} + select({zero}, {divisor}, {up})");
        let mut down = None;
        if is_signed(value.ty) {
            let flag = self.name(&format!("({divisor} > {one}) & ({rest} <= -{half})"));
            text = format!("{text} - select({zero}, {divisor}, {flag})");
            down = Some(flag);
        }
        let mut node = self.operator(value, factor, &text);
        let mut over = format!("({up} & ({} < {v}))", node.value);
        if let Some(down) = down {
            over = format!("{over} | ({down} & ({} > {v}))", node.value);
        }
        self.fault(&mut node, &over);
        node.value = self.name(&format!("select({}, {zero}, {f} == {zero})", node.value));
        node
    }

    fn absolute(&mut self, e: &Node) -> Node {
        let zero = e.class.zero();
        let negated = self.name(&wrapped(e.ty, &format!("{zero} - {}", e.value)));
        let value = self.name(&format!("select({0}, {negated}, {0} < {zero})", e.value));
        // DataFusion computes it on arrays always.
        let mut node = Node { value, bits: type_bits(e.ty), constant: false, ..e.clone() };
        self.fault(&mut node, &format!("{} == {}", e.value, minimum(e.ty)));
        node
    }

    fn convert(&mut self, e: &Node, ty: ValueType, safe: bool) -> Node {
        let class = Class::of(ty, type_bits(ty));
        let text = match (e.ty, ty) {
            (from, to) if from == to => e.value.clone(),
            (ValueType::Boolean, _) => {
                let one = class.zero().replacen('0', "1", 1);
                format!("select({}, {one}, {})", class.zero(), e.value)
            }
            (_, ValueType::Boolean) => format!("{} != {}", e.value, e.class.zero()),
            _ => wrapped(ty, &moved(&e.value, e.class, class)),
        };
        let value = self.name(&text);
        let mut node = Node { value, ty, class, bits: type_bits(ty), ..e.clone() };
        if let Some(outside) = outside(e.ty, ty, &e.value) {
            if safe {
                let fits = self.name(&format!("!({outside})"));
                node.valid = self.all(&[e.valid.as_deref(), Some(&fits)]);
            } else {
                self.fault(&mut node, &outside);
            }
        }
        node
    }
}

/// 0 and 1 of an integer class.
fn literals(class: Class) -> (&'static str, &'static str) {
    match class {
        Class::I32 => ("0i", "1i"),
        Class::U32 => ("0u", "1u"),
        Class::I64 => ("0li", "1li"),
        _ => ("0lu", "1lu"),
    }
}

/// The count of a shift, below the width of the shifted type.
fn shift_count(count: &Node) -> String {
    let mask = type_bits(count.ty) - 1;
    match count.class {
        Class::I32 => format!("(bitcast<u32>({}) & {mask}u)", count.value),
        Class::U32 => format!("({} & {mask}u)", count.value),
        Class::I64 => format!("u32(bitcast<u64>({}) & {mask}lu)", count.value),
        _ => format!("u32({} & {mask}lu)", count.value),
    }
}

/// Least and greatest value of an integer type; of others 0 and 1.
fn limits(ty: ValueType) -> (i128, i128) {
    let bits = u32::from(type_bits(ty));
    if is_signed(ty) {
        (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
    } else if is_unsigned(ty) {
        (0, (1i128 << bits) - 1)
    } else {
        (0, 1)
    }
}

/// The condition that an integer `value` of type `from` is none of `to`; `None` where all are.
fn outside(from: ValueType, to: ValueType, value: &str) -> Option<String> {
    if to == ValueType::Boolean {
        return None;
    }
    let ((least, greatest), (low, high)) = (limits(from), limits(to));
    let suffix = match (type_bits(from), is_signed(from)) {
        (64, true) => "li",
        (64, false) => "lu",
        (_, true) => "i",
        _ => "u",
    };
    let below = (least < low).then(|| format!("({value} < {low}{suffix})"));
    let above = (greatest > high).then(|| format!("({value} > {high}{suffix})"));
    let conditions: Vec<String> = below.into_iter().chain(above).collect();
    (!conditions.is_empty()).then(|| conditions.join(" | "))
}

/// An integer in another class, modulo its width.
fn moved(value: &str, from: Class, to: Class) -> String {
    let low = |wide: &str| format!("u32({wide} & 0xfffffffflu)");
    let unsigned = match (from, to) {
        (from, to) if from == to => return value.to_owned(),
        (Class::I32, Class::I64) => return sign_extended(value),
        (Class::I32, Class::U64) => return format!("bitcast<u64>({})", sign_extended(value)),
        (Class::I32, _) => format!("bitcast<u32>({value})"),
        (Class::U32, Class::I64 | Class::U64) => format!("u64({value})"),
        (Class::U32, _) => value.to_owned(),
        (Class::I64, Class::U64) => format!("bitcast<u64>({value})"),
        (Class::I64, _) => low(&format!("bitcast<u64>({value})")),
        (_, Class::I64) => value.to_owned(),
        _ => low(value),
    };
    match to {
        Class::I32 => format!("bitcast<i32>({unsigned})"),
        Class::I64 => format!("bitcast<i64>({unsigned})"),
        _ => unsigned,
    }
}
