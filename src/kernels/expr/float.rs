//! Functions over floats, and casts from and to them.
//!
//! Values are bit patterns and all work on them is done in integers (`shaders/common/float_*.wgsl`): the results are
//! correctly rounded on every adapter, whatever its float units do to denormals, products followed by sums, or quotients.
//!
//! NaN: which bits come out of an operation is the processor's choice, and DataFusion has no other rule. An operand that
//! is NaN comes out quiet, with its sign and payload; of two, x86 takes the first as the compiler placed them, so that
//! two different ones are a fault and the CPU decides. An invalid operation (`inf - inf`, `0 * inf`, `0 / 0`) makes the
//! processor's own NaN, `INVALID_NAN`. On processors not known here every NaN that comes out is a fault.

#[cfg(test)]
mod tests;

use crate::error::{GpuError, GpuResult};

use super::arith::sign_extended;
use super::function::unknown_types;
use super::ir::ValueType;
use super::wgsl::{Emitter, Node, faults_of};
use super::widths::{Class, is_float, is_integer, is_signed, type_bits};

/// What the host's processor makes of an invalid operation on doubles; of singles, the same rounded.
pub(crate) const INVALID_NAN: u64 =
    if cfg!(target_arch = "x86_64") { 0xfff8_0000_0000_0000 } else { 0x7ff8_0000_0000_0000 };

/// Whether the host's processor is known to treat NaN as described above.
pub(crate) const NAN_BITS_KNOWN: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Functions over floats, and casts from and to them. Except for casts, operands and result have one type, Float32 or
/// Float64; results are NULL where an operand is, unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FloatFn {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`; by zero gives infinity.
    Div,
    /// `%`, exact; a fault where NaN would come out, and for quotients of about 2^66 and more.
    Rem,
    /// Clears the sign, of NaN too.
    Abs,
    /// -1, +0 or 1; NaN for NaN.
    Signum,
    /// Down to a whole number. A signaling NaN is a fault, here and below.
    Floor,
    /// Up to a whole number.
    Ceil,
    /// Towards zero; -0 becomes +0, but a small negative number -0, as DataFusion has it.
    Trunc,
    /// To the nearest whole number, halves away from zero. Quiets NaN.
    Round,
    /// Square root; a fault for negative numbers, for which DataFusion raises. That of -0 is -0. Quiets NaN.
    Sqrt,
    /// `trunc(x * factor) / factor`; operands are the value and a finite factor that is not 0.
    TruncBy,
    /// `round(x * factor) / factor`, likewise.
    RoundBy,
    /// Whether it is NaN; Boolean.
    IsNan,
    /// Whether it is +0 or -0; Boolean.
    IsZero,
    /// The second operand where the first is NaN, else the first.
    Nanvl,
    /// Between floats, from Float16 to them, and between floats and integers or Boolean. Out of an integer type's range (and NaN) it is NULL
    /// with `safe`, else a fault. To Boolean: whether it is not zero.
    Cast {
        /// TRY_CAST.
        safe: bool,
    },
}

impl FloatFn {
    /// Whether DataFusion may raise. Where the bits of a NaN are left to it, nothing is lost if nobody asks for the value.
    pub fn may_fault(self, args: &[ValueType], ty: ValueType) -> bool {
        match self {
            FloatFn::Sqrt => true,
            FloatFn::Cast { safe } => !safe && is_integer(ty) && args.iter().copied().any(is_float),
            _ => false,
        }
    }

    /// Whether the kernels have the function for these types.
    ///
    /// # Errors
    /// A phrase that names the function and the types.
    pub fn check(self, args: &[ValueType], ty: ValueType) -> Result<(), String> {
        let ok = match (self, args) {
            (FloatFn::IsNan | FloatFn::IsZero, [arg]) => is_float(*arg) && ty == ValueType::Boolean,
            (FloatFn::Cast { .. }, [from]) => is_castable(*from, ty),
            (
                FloatFn::Abs
                | FloatFn::Signum
                | FloatFn::Floor
                | FloatFn::Ceil
                | FloatFn::Trunc
                | FloatFn::Round
                | FloatFn::Sqrt,
                [arg],
            ) => is_float(ty) && *arg == ty,
            (
                FloatFn::Add
                | FloatFn::Sub
                | FloatFn::Mul
                | FloatFn::Div
                | FloatFn::Rem
                | FloatFn::TruncBy
                | FloatFn::RoundBy
                | FloatFn::Nanvl,
                [left, right],
            ) => is_float(ty) && *left == ty && *right == ty,
            _ => false,
        };
        if ok { Ok(()) } else { Err(unknown_types(args, ty)) }
    }
}

/// Whether [`FloatFn::Cast`] goes from one type to the other.
pub(crate) fn is_castable(from: ValueType, to: ValueType) -> bool {
    let plain = |ty| is_integer(ty) || ty == ValueType::Boolean;
    if from == ValueType::Float16 {
        return is_float(to);
    }
    match (is_float(from), is_float(to)) {
        (true, true) => from != to,
        (true, false) => plain(to),
        (false, true) => plain(from),
        (false, false) => false,
    }
}

/// A fault flag's condition, where there is one.
type Condition = Option<String>;

impl Emitter<'_> {
    pub(super) fn float_fn(&mut self, function: FloatFn, args: &[Node], ty: ValueType) -> GpuResult<Node> {
        match (function, args) {
            (FloatFn::Cast { safe }, [arg]) => Ok(self.float_cast(arg, ty, safe)),
            (FloatFn::Nanvl, [x, y]) => Ok(self.nanvl(x, y)),
            (_, [arg]) => {
                let (value, condition) = unary(function, arg);
                Ok(self.finished(&value, condition, args, ty))
            }
            (_, [x, y]) => {
                let (value, condition) = self.binary(function, x, y);
                Ok(self.finished(&value, condition, args, ty))
            }
            _ => Err(GpuError::Internal(format!("{function:?} of {} operands", args.len()))),
        }
    }

    /// A node that is valid where its operands are.
    fn finished(&mut self, value: &str, condition: Condition, args: &[Node], ty: ValueType) -> Node {
        let valid: Vec<Option<&str>> = args.iter().map(|arg| arg.valid.as_deref()).collect();
        let valid = self.all(&valid);
        let value = self.name(value);
        let bits = type_bits(ty);
        let mut node = Node {
            value,
            valid,
            ty,
            class: Class::of(ty, bits),
            bits,
            constant: args.iter().all(|arg| arg.constant),
            faults: faults_of(&args.iter().collect::<Vec<_>>()),
        };
        if let Some(condition) = condition {
            self.fault(&mut node, &condition);
        }
        node
    }

    fn binary(&mut self, function: FloatFn, x: &Node, y: &Node) -> (String, Condition) {
        let (a, b) = (&x.value, &y.value);
        let width = width(x);
        let simple = |name: &str| format!("fa_{name}{width}({a}, {b})");
        let scaled = |name: &str| {
            let product = as_double(x, &format!("fa_mul{width}({a}, {b})"));
            let whole = as_single(x, &format!("fr_{name}({product})"));
            format!("fa_div{width}({whole}, {b})")
        };
        let value = match function {
            FloatFn::Add => simple("add"),
            FloatFn::Sub => simple("sub"),
            FloatFn::Mul => simple("mul"),
            FloatFn::Div => simple("div"),
            FloatFn::TruncBy => scaled("trunc"),
            FloatFn::RoundBy => scaled("round"),
            _ => {
                let rest = self.name(&format!("fr_rem({}, {})", as_double(x, a), as_double(y, b)));
                return (as_single(x, &format!("{rest}.v")), Some(format!("{rest}.unknown")));
            }
        };
        if !NAN_BITS_KNOWN {
            let value = self.name(&value);
            let condition = format!("fb_nan{width}({value})");
            return (value, Some(condition));
        }
        let factor = matches!(function, FloatFn::TruncBy | FloatFn::RoundBy);
        (value, (!factor).then(|| format!("fa_clash{width}({a}, {b})")))
    }

    fn nanvl(&mut self, x: &Node, y: &Node) -> Node {
        let nan = self.name(&format!("fb_nan{}({})", width(x), x.value));
        let value = self.name(&format!("select({}, {}, {nan})", x.value, y.value));
        let chosen = y.valid.as_ref().map(|valid| self.name(&format!("{valid} | !{nan}")));
        let valid = self.all(&[x.valid.as_deref(), chosen.as_deref()]);
        let mut node = x.clone();
        (node.value, node.valid) = (value, valid);
        // As Expr::may_be_scalar has it.
        node.constant = x.constant;
        node.faults = faults_of(&[x, y]);
        node
    }

    fn float_cast(&mut self, e: &Node, to: ValueType, safe: bool) -> Node {
        let args = std::slice::from_ref(e);
        if e.ty == ValueType::Float16 {
            let single = format!("fb_widen16({})", e.value);
            let value = if to == ValueType::Float32 { single } else { format!("fb_widen({single})") };
            let condition = (!NAN_BITS_KNOWN).then(|| format!("({} & 0x7fffu) > 0x7c00u", e.value));
            return self.finished(&value, condition, args, to);
        }
        if !is_float(e.ty) {
            return self.finished(&from_integer(e, to), None, args, to);
        }
        match to {
            ValueType::Boolean => self.finished(&format!("!({})", is_zero(e)), None, args, to),
            ValueType::Float64 => {
                let condition = (!NAN_BITS_KNOWN).then(|| format!("fb_nan32({})", e.value));
                self.finished(&format!("fb_widen({})", e.value), condition, args, to)
            }
            ValueType::Float32 => {
                let condition = (!NAN_BITS_KNOWN).then(|| format!("fb_nan64({})", e.value));
                self.finished(&format!("fb_narrow({})", e.value), condition, args, to)
            }
            _ => {
                let (most, least) = limits(to);
                let double = as_double(e, &e.value);
                let whole = self.name(&format!("fb_whole({double}, {most}lu, {least}lu)"));
                let text = match Class::of(to, type_bits(to)) {
                    Class::I32 => format!("bitcast<i32>(u32(bitcast<u64>({whole}.v) & 0xfffffffflu))"),
                    Class::U32 => format!("u32(bitcast<u64>({whole}.v) & 0xfffffffflu)"),
                    Class::I64 => format!("{whole}.v"),
                    _ => format!("bitcast<u64>({whole}.v)"),
                };
                let outside = format!("{whole}.outside");
                let mut node = self.finished(&text, (!safe).then(|| outside.clone()), args, to);
                if safe {
                    let inside = self.name(&format!("!{outside}"));
                    node.valid = self.all(&[node.valid.as_deref(), Some(&inside)]);
                }
                node
            }
        }
    }
}

fn width(e: &Node) -> u8 {
    if e.ty == ValueType::Float32 { 32 } else { 64 }
}

/// `text`, of the type of `e`, as a double.
fn as_double(e: &Node, text: &str) -> String {
    if e.ty == ValueType::Float32 { format!("fb_widen({text})") } else { text.to_owned() }
}

/// The double `text` in the type of `e`.
fn as_single(e: &Node, text: &str) -> String {
    if e.ty == ValueType::Float32 { format!("fb_narrow({text})") } else { text.to_owned() }
}

fn is_zero(e: &Node) -> String {
    match e.ty {
        ValueType::Float32 => format!("({} & 0x7fffffffu) == 0u", e.value),
        _ => format!("({} & 0x7ffffffffffffffflu) == 0lu", e.value),
    }
}

fn unary(function: FloatFn, e: &Node) -> (String, Condition) {
    let value = &e.value;
    let width = width(e);
    let single = e.ty == ValueType::Float32;
    let whole = |name: &str| as_single(e, &format!("fr_{name}({})", as_double(e, value)));
    let signaling = Some(format!("fb_signaling{width}({value})"));
    let zero = is_zero(e);
    match function {
        FloatFn::Abs if single => (format!("{value} & 0x7fffffffu"), None),
        FloatFn::Abs => (format!("{value} & 0x7ffffffffffffffflu"), None),
        FloatFn::Signum => {
            let (zero_bits, nan, one) = if single {
                ("0u", "0x7fc00000u", format!("({value} & 0x80000000u) | 0x3f800000u"))
            } else {
                (
                    "0lu",
                    "0x7ff8000000000000lu",
                    format!("({value} & 0x8000000000000000lu) | 0x3ff0000000000000lu"),
                )
            };
            let number = format!("select({one}, {zero_bits}, {zero})");
            (format!("select({number}, {nan}, fb_nan{width}({value}))"), None)
        }
        FloatFn::Floor => (whole("floor"), signaling),
        FloatFn::Ceil => (whole("ceil"), signaling),
        FloatFn::Trunc => {
            let zero_bits = if single { "0u" } else { "0lu" };
            (format!("select({}, {zero_bits}, {zero})", whole("trunc")), signaling)
        }
        FloatFn::Round => {
            let double = as_double(e, value);
            let unknown = (!NAN_BITS_KNOWN).then(|| format!("fb_nan{width}({value})"));
            (as_single(e, &format!("fr_quiet(fr_round({double}))")), unknown)
        }
        FloatFn::Sqrt => {
            let (zero, infinity) = match single {
                true => ("0x80000000u", "0xff800000u"),
                false => ("0x8000000000000000lu", "0xfff0000000000000lu"),
            };
            let negative = format!("({value} > {zero}) & ({value} <= {infinity})");
            let unknown =
                if NAN_BITS_KNOWN { negative } else { format!("({negative}) | fb_nan{width}({value})") };
            (format!("fa_sqrt{width}({value})"), Some(unknown))
        }
        FloatFn::IsNan => (format!("fb_nan{width}({value})"), None),
        _ => (zero, None),
    }
}

/// An integer or Boolean as the nearest float.
fn from_integer(e: &Node, to: ValueType) -> String {
    let name = if to == ValueType::Float32 { "fb_single" } else { "fb_double" };
    match e.class {
        Class::Bool if to == ValueType::Float32 => format!("select(0u, 0x3f800000u, {})", e.value),
        Class::Bool => format!("select(0lu, 0x3ff0000000000000lu, {})", e.value),
        Class::I32 => format!("{name}_signed({})", sign_extended(&e.value)),
        Class::I64 => format!("{name}_signed({})", e.value),
        Class::U32 => format!("{name}_unsigned(u64({}))", e.value),
        _ => format!("{name}_unsigned({})", e.value),
    }
}

/// Largest magnitudes of an integer type, above and below zero.
pub(crate) fn limits(ty: ValueType) -> (u64, u64) {
    let bits = u32::from(type_bits(ty));
    let all = u64::MAX >> (64 - bits);
    if is_signed(ty) { (all >> 1, (all >> 1) + 1) } else { (all, 0) }
}
