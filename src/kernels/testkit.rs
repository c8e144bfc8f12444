//! Data, random expressions and shader validation for the kernel tests.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use crate::error::GpuResult;
use crate::kernels::expr::{
    ArithOp, CompareOp, DecimalFn, Expr, ExtremeFn, Function, IntegerFn, Scalar, ValueType, Zone, check,
};
use crate::kernels::program::Segment;
use crate::kernels::select::array_of;
use crate::memory::{LaunchScope, ShaderSource, upload};

mod each;
mod guarded;

pub(crate) use each::{EachPlan, Verdict, each};
pub(crate) use guarded::{CHECKS, GuardedScope, device, scope, with_checks};

use ValueType::*;

/// SplitMix64: reproducible, seeds are printed by the tests that use it.
pub(crate) struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn wide(&mut self) -> i128 {
        (i128::from(self.next() as i64) << 64) | i128::from(self.next())
    }
}

pub(crate) const fn dec(precision: u8, scale: i8) -> ValueType {
    Decimal { precision, scale }
}

/// Every type, with decimals that are narrow and wide on the device.
pub(crate) const TYPES: [ValueType; 17] = [
    Boolean,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float32,
    Float64,
    Date32,
    dec(7, 2),
    dec(15, 2),
    dec(18, 0),
    dec(25, 2),
    dec(38, 4),
];

/// Types that are compared, counted and carried like others of their width.
pub(crate) const OTHERS: [ValueType; 9] = [
    Float16,
    Date64,
    Time32(TimeUnit::Second),
    Time64(TimeUnit::Nanosecond),
    Timestamp { unit: TimeUnit::Microsecond, zone: Zone::Utc },
    Timestamp { unit: TimeUnit::Nanosecond, zone: Zone::None },
    Duration(TimeUnit::Millisecond),
    Decimal32 { precision: 7, scale: 2 },
    Decimal64 { precision: 15, scale: 2 },
];

pub(crate) fn arrow_type(ty: ValueType) -> DataType {
    array_of(ty, &[]).expect("type").data_type().clone()
}

/// Values at the edges of a type.
pub(crate) fn edges(ty: ValueType) -> Vec<i128> {
    let around = |v: i128| vec![v - 1, v, v + 1];
    match ty {
        Boolean => vec![0, 1],
        Int8 => vec![i8::MIN.into(), -1, 0, 1, i8::MAX.into()],
        Int16 => vec![i16::MIN.into(), -1, 0, 1, i16::MAX.into()],
        Int32 | Date32 | Time32(_) => vec![i32::MIN.into(), -1, 0, 1, i32::MAX.into()],
        Int64 | Date64 | Time64(_) | Timestamp { .. } | Duration(_) => {
            [around(1 << 53), around(-(1 << 53)), vec![i64::MIN.into(), -1, 0, 1, i64::MAX.into()]].concat()
        }
        UInt8 => vec![0, 1, u8::MAX.into()],
        UInt16 => vec![0, 1, u16::MAX.into()],
        UInt32 => vec![0, 1, 1 << 31, u32::MAX.into()],
        UInt64 => {
            let high = i128::from(u64::MAX);
            [around(1 << 53), around(1 << 63), vec![0, 1, high - 1024, high - 1023, high]].concat()
        }
        Null | Opaque => vec![0],
        Float16 => [0u16, 0x8000, 0x7c00, 0xfc00, 0x7e00, 0xfe00, 0x7c01, 1, 0x8001, 0x3c00, 0xbc00, 0x7bff]
            .iter()
            .map(|&v| v.into())
            .collect(),
        Float32 => [
            0u32,
            0x8000_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0xffc0_0000,
            0x7f80_0001,
            1,
            0x8000_0001,
        ]
        .iter()
        .map(|&v| v.into())
        .chain([1.0f32, -1.0, f32::MAX, f32::MIN].iter().map(|v| v.to_bits().into()))
        .collect(),
        Float64 => [
            0u64,
            1 << 63,
            0x7ff0_0000_0000_0000,
            0xfff0_0000_0000_0000,
            0x7ff8_0000_0000_0000,
            0xfff8_0000_0000_0000,
            0x7ff0_0000_0000_0001,
            1,
            (1 << 63) | 1,
        ]
        .iter()
        .map(|&v| v.into())
        .chain([1.0f64, -1.0, f64::MAX, f64::MIN].iter().map(|v| v.to_bits().into()))
        .collect(),
        Decimal32 { precision, .. } | Decimal64 { precision, .. } => {
            let max = 10i128.pow(precision.into()) - 1;
            vec![-max, -1, 0, 1, max]
        }
        Decimal { precision, .. } => {
            let max = 10i128.pow(precision.into()) - 1;
            let mut edges = vec![-max, -1, 0, 1, max];
            if precision > 18 {
                // Arrow lets arithmetic go beyond the precision.
                edges.extend([i64::MAX.into(), i64::MIN.into(), 1 << 64, i128::MAX, i128::MIN]);
            }
            edges
        }
    }
}

/// All pairs of edge values, and pairs with NULL, as two columns.
pub(crate) fn edge_pairs(a: ValueType, b: ValueType) -> (Vec<Scalar>, Vec<Scalar>) {
    let with_null = |ty| edges(ty).into_iter().map(Some).chain([None]).collect::<Vec<Scalar>>();
    let right = with_null(b);
    let pairs = with_null(a).into_iter().flat_map(|x| right.iter().map(move |&y| (x, y)));
    pairs.unzip()
}

/// A random value; `edgy` of 10 are edges, others are small half of the time.
pub(crate) fn value(ty: ValueType, rng: &mut Rng, edgy: usize) -> i128 {
    if rng.below(10) < edgy {
        let edges = edges(ty);
        return edges[rng.below(edges.len())];
    }
    let small = rng.one_in(2);
    let v = if small { i128::from(rng.next() as i64 % 100) } else { rng.wide() };
    match ty {
        Boolean => v & 1,
        Int8 => i128::from(v as i8),
        Int16 => i128::from(v as i16),
        Int32 | Date32 | Time32(_) => i128::from(v as i32),
        Int64 | Date64 | Time64(_) | Timestamp { .. } | Duration(_) => i128::from(v as i64),
        UInt8 => i128::from(v as u8),
        UInt16 | Float16 => i128::from(v as u16),
        Null | Opaque => 0,
        UInt32 | Float32 => i128::from(v as u32),
        UInt64 | Float64 => i128::from(v as u64),
        Decimal { precision, .. } | Decimal32 { precision, .. } | Decimal64 { precision, .. } => {
            v % 10i128.pow(precision.into())
        }
    }
}

/// Shape of random data.
#[derive(Clone, Copy)]
pub(crate) struct DataShape {
    /// Out of 100.
    pub nulls: usize,
    /// Out of 10.
    pub edgy: usize,
    /// Rows cut off at the front, for odd bit offsets.
    pub offset: usize,
}

/// A random array of exactly `rows` rows, sliced out of a longer one. There is no validity buffer at 0 % nulls.
pub(crate) fn column(ty: ValueType, rows: usize, shape: DataShape, rng: &mut Rng) -> ArrayRef {
    let values: Vec<Scalar> = (0..rows + shape.offset + 3)
        .map(|_| {
            let v = value(ty, rng, shape.edgy);
            (rng.below(100) >= shape.nulls).then_some(v)
        })
        .collect();
    array_of(ty, &values).expect("array").slice(shape.offset, rows)
}

pub(crate) fn batch(columns: &[ArrayRef], rows: usize) -> RecordBatch {
    let fields: Vec<Field> = columns
        .iter()
        .enumerate()
        .map(|(at, array)| Field::new(format!("c{at}"), array.data_type().clone(), true))
        .collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns.to_vec(), &options)
        .expect("batch")
}

/// Uploads all columns.
pub(crate) async fn segment(scope: &LaunchScope, columns: &[ArrayRef], rows: usize) -> GpuResult<Segment> {
    let indices: Vec<usize> = (0..columns.len()).collect();
    let uploaded = upload(scope, &[batch(columns, rows)], &indices).await?;
    Ok(Segment { columns: uploaded.into_iter().map(Some).collect(), rows, tables: Default::default() })
}

pub(crate) fn col(index: usize, ty: ValueType) -> Arc<Expr> {
    Arc::new(Expr::Column { index, ty })
}

pub(crate) fn param(slot: usize, ty: ValueType) -> Arc<Expr> {
    Arc::new(Expr::Param { slot, ty })
}

pub(crate) fn cmp(op: CompareOp, left: Arc<Expr>, right: Arc<Expr>) -> Arc<Expr> {
    Arc::new(Expr::Compare { op, left, right })
}

/// An exact cast of an integer, or a cast to a decimal.
pub(crate) fn cast(expr: Arc<Expr>, to: ValueType) -> Arc<Expr> {
    match to {
        Decimal { .. } => decimal(DecimalFn::Cast { safe: false }, vec![expr], to),
        _ => Arc::new(Expr::Cast { expr, to }),
    }
}

pub(crate) fn negate(expr: Arc<Expr>) -> Arc<Expr> {
    match expr.value_type() {
        ty @ Decimal { .. } => decimal(DecimalFn::Negate, vec![expr], ty),
        _ => Arc::new(Expr::Negate(expr)),
    }
}

/// A function of the decimal family.
pub(crate) fn decimal(function: DecimalFn, args: Vec<Arc<Expr>>, ty: ValueType) -> Arc<Expr> {
    Arc::new(Expr::Call { function: Function::Decimal(function), args, ty })
}

pub(crate) fn extreme(function: ExtremeFn, args: Vec<Arc<Expr>>) -> Arc<Expr> {
    let ty = args.first().map_or(Null, |arg| arg.value_type());
    Arc::new(Expr::Call { function: Function::Extreme(function), args, ty })
}

/// A function of the integer family.
pub(crate) fn call(function: IntegerFn, args: Vec<Arc<Expr>>, ty: ValueType) -> Arc<Expr> {
    Arc::new(Expr::Call { function: Function::Integer(function), args, ty })
}

/// Arithmetic with the result type that Arrow gives.
pub(crate) fn arith(op: ArithOp, left: Arc<Expr>, right: Arc<Expr>) -> Arc<Expr> {
    let ty = match (left.value_type(), right.value_type()) {
        (Decimal { precision: p, scale: s }, Decimal { precision: q, scale: t }) => match op {
            ArithOp::Mul => dec((p + q + 1).min(38), s + t),
            _ => {
                let scale = s.max(t);
                let whole = (p as i8 - s).max(q as i8 - t);
                dec(((scale + whole) as u8 + 1).min(38), scale)
            }
        },
        (ty, _) => ty,
    };
    match ty {
        Decimal { .. } => decimal(DecimalFn::Arith(op), vec![left, right], ty),
        _ => Arc::new(Expr::Arith { op, left, right, ty }),
    }
}

pub(crate) const OPS: [CompareOp; 6] =
    [CompareOp::Eq, CompareOp::NotEq, CompareOp::Lt, CompareOp::LtEq, CompareOp::Gt, CompareOp::GtEq];

pub(crate) const ARITH: [ArithOp; 3] = [ArithOp::Add, ArithOp::Sub, ArithOp::Mul];

/// Random expressions over one column of each of [`TYPES`], in that order; parameters are added as needed.
pub(crate) struct ExprGen<'a> {
    pub rng: &'a mut Rng,
    pub params: Vec<(ValueType, Scalar)>,
    /// Whether AND and OR may appear (their evaluation order differs between device and DataFusion).
    pub logic: bool,
}

impl ExprGen<'_> {
    pub fn param(&mut self, ty: ValueType) -> Arc<Expr> {
        let v = value(ty, self.rng, 3);
        let null = self.rng.one_in(12);
        self.params.push((ty, (!null).then_some(v)));
        param(self.params.len() - 1, ty)
    }

    fn leaf(&mut self, ty: ValueType) -> Arc<Expr> {
        match TYPES.iter().position(|&t| t == ty) {
            Some(index) if !self.rng.one_in(4) => col(index, ty),
            _ => self.param(ty),
        }
    }

    /// A random expression of the type.
    pub fn expr(&mut self, ty: ValueType, depth: usize) -> Arc<Expr> {
        if depth == 0 {
            return self.leaf(ty);
        }
        if self.rng.one_in(7) {
            return self.case(ty, depth - 1);
        }
        let made = match ty {
            Boolean => self.boolean(depth),
            Float32 | Float64 if self.rng.one_in(2) => Arc::new(Expr::Negate(self.expr(ty, depth - 1))),
            Float32 | Float64 | Date32 => self.leaf(ty),
            Decimal { .. } => self.decimal(ty, depth),
            _ => self.integer(ty, depth),
        };
        // Only negated unsigned constants are refused.
        if check(&made).is_err() { self.leaf(ty) } else { made }
    }

    fn case(&mut self, ty: ValueType, depth: usize) -> Arc<Expr> {
        let count = 1 + self.rng.below(3);
        let branches = (0..count).map(|_| (self.expr(Boolean, depth), self.expr(ty, depth))).collect();
        let otherwise = (!self.rng.one_in(3)).then(|| self.expr(ty, depth));
        Arc::new(Expr::Case { branches, otherwise, ty })
    }

    fn integer(&mut self, ty: ValueType, depth: usize) -> Arc<Expr> {
        let narrower: &[ValueType] = match ty {
            Int16 => &[Int8, UInt8],
            Int32 => &[Int8, Int16, UInt8, UInt16],
            Int64 => &[Int8, Int16, Int32, UInt8, UInt16, UInt32],
            UInt16 => &[UInt8],
            UInt32 => &[UInt8, UInt16],
            UInt64 => &[UInt8, UInt16, UInt32],
            _ => &[],
        };
        match self.rng.below(8) {
            0 => Arc::new(Expr::Negate(self.expr(ty, depth - 1))),
            6 => self.guarded_division(ty, depth - 1),
            7 => self.integer_call(ty, depth - 1),
            1 if !narrower.is_empty() => {
                let from = self.rng.pick(narrower);
                cast(self.expr(from, depth - 1), ty)
            }
            2 => self.leaf(ty),
            _ => {
                let op = self.rng.pick(&ARITH);
                let left = self.expr(ty, depth - 1);
                arith(op, left, self.expr(ty, depth - 1))
            }
        }
    }

    /// Division by what is not zero, mostly; sometimes by anything.
    fn guarded_division(&mut self, ty: ValueType, depth: usize) -> Arc<Expr> {
        let (left, right) = (self.expr(ty, depth), self.expr(ty, depth));
        let function = self.rng.pick(&[IntegerFn::Divide, IntegerFn::Remainder]);
        let division = call(function, vec![left, Arc::clone(&right)], ty);
        if self.rng.one_in(8) {
            return division;
        }
        self.params.push((ty, Some(0)));
        let zero = param(self.params.len() - 1, ty);
        let branches = vec![(cmp(CompareOp::NotEq, right, zero), division)];
        Arc::new(Expr::Case { branches, otherwise: None, ty })
    }

    fn integer_call(&mut self, ty: ValueType, depth: usize) -> Arc<Expr> {
        use IntegerFn::*;
        if self.rng.one_in(3) {
            let from = self.rng.pick(&[Boolean, Int8, Int32, Int64, UInt16, UInt32, UInt64]);
            return call(Convert { safe: true }, vec![self.expr(from, depth)], ty);
        }
        let (left, right) = (self.expr(ty, depth), self.expr(ty, depth));
        if self.rng.one_in(3) {
            return extreme(self.rng.pick(&[ExtremeFn::Greatest, ExtremeFn::Least]), vec![left, right]);
        }
        let function = self.rng.pick(&[BitAnd, BitOr, BitXor, ShiftLeft, ShiftRight]);
        call(function, vec![left, right], ty)
    }

    /// A decimal of exactly the type: a cast of something of no greater scale.
    fn decimal(&mut self, ty: ValueType, depth: usize) -> Arc<Expr> {
        let Decimal { scale, .. } = ty else { return self.leaf(ty) };
        match self.rng.below(5) {
            0 => self.leaf(ty),
            1 => negate(self.expr(ty, depth - 1)),
            2 => {
                let from = self.rng.pick(&[Int8, Int32, Int64, UInt32, UInt64]);
                cast(self.expr(from, depth - 1), ty)
            }
            _ => {
                let any = self.any_decimal(depth - 1);
                match any.value_type() {
                    Decimal { scale: s, .. } if s <= scale => cast(any, ty),
                    _ => self.leaf(ty),
                }
            }
        }
    }

    /// An arithmetic decimal of whatever type comes out.
    pub fn any_decimal(&mut self, depth: usize) -> Arc<Expr> {
        let leaves = [dec(7, 2), dec(15, 2), dec(18, 0), dec(25, 2), dec(38, 4)];
        let ty = self.rng.pick(&leaves);
        if depth == 0 {
            return self.leaf(ty);
        }
        let op = self.rng.pick(&ARITH);
        let (left, right) = (self.any_decimal(depth - 1), self.any_decimal(depth - 1));
        let scale = |e: &Arc<Expr>| match e.value_type() {
            Decimal { scale, .. } => scale,
            _ => 0,
        };
        if op == ArithOp::Mul && scale(&left) + scale(&right) > 12 {
            return left;
        }
        arith(op, left, right)
    }

    fn boolean(&mut self, depth: usize) -> Arc<Expr> {
        let ty = self.rng.pick(&TYPES);
        match self.rng.below(10) {
            0 if self.logic => {
                Arc::new(Expr::And(self.expr(Boolean, depth - 1), self.expr(Boolean, depth - 1)))
            }
            1 if self.logic => {
                Arc::new(Expr::Or(self.expr(Boolean, depth - 1), self.expr(Boolean, depth - 1)))
            }
            2 => Arc::new(Expr::Not(self.expr(Boolean, depth - 1))),
            3 => Arc::new(Expr::IsNull(self.expr(ty, depth - 1))),
            4 => Arc::new(Expr::IsNotNull(self.expr(ty, depth - 1))),
            5 => {
                let (left, right) = (self.expr(ty, depth - 1), self.expr(ty, depth - 1));
                Arc::new(Expr::Distinct { negated: self.rng.one_in(2), left, right })
            }
            6 => {
                let expr = self.expr(ty, depth - 1);
                let len = self.rng.pick(&[1, 2, 5, 11]);
                let list = (0..len).map(|_| self.param(ty)).collect();
                Arc::new(Expr::InList { expr, list, negated: self.rng.one_in(2) })
            }
            _ => {
                let op = self.rng.pick(&OPS);
                let left = self.expr(ty, depth - 1);
                cmp(op, left, self.expr(ty, depth - 1))
            }
        }
    }
}

/// Parses, validates and writes SPIR-V, without a device. Panics with the shader's text when something is wrong.
pub(crate) fn validate(source: &ShaderSource) {
    use wgpu::naga::{back::spv, front::wgsl, valid};
    let text = &source.wgsl;
    let module = wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}\n{text}", e.emit_to_string(text)));
    let mut validator =
        valid::Validator::new(valid::ValidationFlags::all(), valid::Capabilities::SHADER_INT64);
    let info = validator.validate(&module).unwrap_or_else(|e| panic!("{}\n{text}", e.emit_to_string(text)));
    let pipeline = spv::PipelineOptions {
        shader_stage: wgpu::naga::ShaderStage::Compute,
        entry_point: "main".to_owned(),
    };
    spv::write_vec(&module, &info, &spv::Options::default(), Some(&pipeline))
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    let globals = module.global_variables.iter().filter(|(_, v)| v.binding.is_some()).count();
    assert_eq!(globals, source.bindings.len(), "bindings of\n{text}");
}
