//! Grouping on the device over resident rows, each case with its floor: the bytes that it cannot do without reading. Criterion divides rows
//! and bytes by the time; compare the rate of bytes with the adapter's bandwidth.
//!
//! `cargo bench --bench group_by`; `ROWS` (default 2^20, which software adapters bear; 134217728 for a large GPU) sets the rows of a case, of which TPC-H's has a quarter, `ADAPTER` the adapter,
//! `GROUPS` asks for the cases of so many groups instead (as `env GROUPS=`: bash has an array of this name), and an argument says which
//! cases run. Times are the device's own where it has timestamps (`kernel` in the name), else wall times of a launch
//! and its waits. Before it is timed, each case groups its first rows, and the answer is compared with that of the CPU twin.
//!
//! | case | floor, bytes a row |
//! |---|---|
//! | TPC-H Q1: two dictionary-coded keys, 6 groups, a predicate, 8 aggregates over four decimals | 44 |
//! | sum of i64 by an i32 key of 4, 64, 1,000 values: searched, and computed from the known range | 12 |
//! | the same of an i64 that may be NULL, by 1,000 values, searched | 12 and a bit |
//! | sum of f64 (prices) by an i32 key of 4, 1,000, 1 million values: searched, and from the known range; of any exponent | 12 |
//! | sum and average of f64 (prices) by an i32 key of 1,000 values, searched | 12 |
//! | sum of i64 by an i64 key of as many values as a tenth of the rows, 10 million at most: as is thought best, partitioned, and not | 16 |
//! | the same with 90 % of the rows in one group | 16 |

#[allow(dead_code, reason = "each benchmark uses a part of it")]
mod device;

use std::error::Error;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, UInt32Array,
};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use criterion::BenchmarkGroup;
use criterion::measurement::WallTime;
use datafusion_wgpu::error::GpuError;
use datafusion_wgpu::kernels::expr::{ArithOp, CompareOp, DecimalFn, Expr, Function, ValueType};
use datafusion_wgpu::kernels::group_by::{
    GroupBy, GroupHint, GroupKey, GroupResult, KeyRange, LimbRange, SummedFloats, group_by,
};
use datafusion_wgpu::kernels::program::{Program, Segment};
use datafusion_wgpu::kernels::reduce::{AggregateKind, AggregateSpec};
use datafusion_wgpu::kernels::reference;
use datafusion_wgpu::memory::column::{ColumnRepr, DeviceColumn};

use device::{Device, rows_asked_for, run_cases, scramble};

const MONEY: ValueType = ValueType::Decimal { precision: 15, scale: 2 };
/// Rows whose answer is compared with the twin's.
const CHECKED: usize = 1 << 14;

fn below(row: usize, salt: u64, span: u64) -> u64 {
    ((u128::from(scramble(row, salt)) * u128::from(span)) >> 64) as u64
}

fn column(index: usize, ty: ValueType) -> Arc<Expr> {
    Arc::new(Expr::Column { index, ty })
}

fn arith(op: ArithOp, left: Arc<Expr>, right: Arc<Expr>, ty: (u8, i8)) -> Arc<Expr> {
    let ty = ValueType::Decimal { precision: ty.0, scale: ty.1 };
    let function = Function::Decimal(DecimalFn::Arith(op));
    Arc::new(Expr::Call { function, args: vec![left, right], ty })
}

fn aggregate(kind: AggregateKind, arg: Arc<Expr>) -> AggregateSpec {
    AggregateSpec { kind, arg: Some(arg), filter: None }
}

/// One case: rows by column, and what is done with them.
struct Case {
    name: String,
    rows: usize,
    /// Bytes a row.
    floor: u64,
    /// Array of some rows of a column.
    columns: Vec<Column>,
    program: Program,
    by: GroupBy,
    hint: GroupHint,
}

fn integers(make: impl Fn(usize) -> i32 + Send + Sync + 'static) -> Column {
    Box::new(move |from, to| Ok(Arc::new(Int32Array::from_iter_values((from..to).map(&make)))))
}

fn longs(make: impl Fn(usize) -> i64 + Send + Sync + 'static) -> Column {
    Box::new(move |from, to| Ok(Arc::new(Int64Array::from_iter_values((from..to).map(&make)))))
}

fn codes(make: impl Fn(usize) -> u32 + Send + Sync + 'static) -> Column {
    Box::new(move |from, to| Ok(Arc::new(UInt32Array::from_iter_values((from..to).map(&make)))))
}

fn money(salt: u64, span: u64) -> Column {
    Box::new(move |from, to| {
        let values = (from..to).map(|row| i128::from(below(row, salt, span)));
        Ok(Arc::new(Decimal128Array::from_iter_values(values).with_precision_and_scale(15, 2)?))
    })
}

type Column = Box<dyn Fn(usize, usize) -> Result<ArrayRef, ArrowError> + Send + Sync>;

/// TPC-H's pricing summary.
fn q1(rows: usize) -> Case {
    let [quantity, price, discount, tax] = [2, 3, 4, 5].map(|at| column(at, MONEY));
    let one = Arc::new(Expr::Param { slot: 0, ty: ValueType::Decimal { precision: 1, scale: 0 } });
    let less = arith(ArithOp::Sub, Arc::clone(&one) as Arc<Expr>, Arc::clone(&discount), (16, 2));
    let more = arith(ArithOp::Add, one, tax, (16, 2));
    let discounted = arith(ArithOp::Mul, Arc::clone(&price), less, (32, 4));
    let charged = arith(ArithOp::Mul, Arc::clone(&discounted), more, (38, 6));
    let sums = [&quantity, &price, &discounted, &charged, &quantity, &price, &discount];
    let sums = sums.map(|arg| aggregate(AggregateKind::SumDecimal, Arc::clone(arg)));
    let count = AggregateSpec { kind: AggregateKind::CountRows, arg: None, filter: None };
    let day = column(6, ValueType::Date32);
    let last = Arc::new(Expr::Param { slot: 1, ty: ValueType::Date32 });
    let selection = Some(Arc::new(Expr::Compare { op: CompareOp::LtEq, left: day, right: last }));
    let params =
        vec![(ValueType::Decimal { precision: 1, scale: 0 }, Some(1)), (ValueType::Date32, Some(2466))];
    let days: Column = Box::new(|from, to| {
        Ok(Arc::new(Date32Array::from_iter_values((from..to).map(|row| below(row, 7, 2526) as i32))))
    });
    let range = |max| Some(KeyRange { min: 0, max });
    Case {
        name: "TPC-H Q1".to_owned(),
        rows,
        floor: 44,
        columns: vec![
            codes(|row| 1 + below(row, 1, 3) as u32),
            codes(|row| 1 + below(row, 2, 2) as u32),
            money(3, 5000),
            money(4, 10_500_000),
            money(5, 11),
            money(6, 9),
            days,
        ],
        program: Program { selection, params },
        by: GroupBy {
            keys: vec![GroupKey::Codes(0), GroupKey::Codes(1)],
            aggregates: sums.into_iter().chain([count]).collect(),
            // The last three are averages.
            uncounted: (0..4).collect(),
            ..GroupBy::default()
        },
        hint: GroupHint { ranges: vec![range(3), range(2)], ..GroupHint::default() },
    }
}

/// Sum of an integer by a key of few values.
fn few(rows: usize, groups: u64, ranged: bool) -> Case {
    let range = KeyRange { min: 0, max: i128::from(groups) - 1 };
    let how = if ranged { "range" } else { "searched" };
    Case {
        name: format!("sum by {groups} groups, {how}"),
        rows,
        floor: 12,
        columns: vec![
            integers(move |row| below(row, 11, groups) as i32),
            longs(|row| scramble(row, 12) as i64 % 1_000_000),
        ],
        program: Program::default(),
        by: GroupBy {
            keys: vec![GroupKey::Value(column(0, ValueType::Int32))],
            aggregates: vec![aggregate(AggregateKind::SumInt, column(1, ValueType::Int64))],
            ..GroupBy::default()
        },
        hint: match ranged {
            true => GroupHint { ranges: vec![Some(range)], ..GroupHint::default() },
            false => GroupHint { groups: Some(groups as usize), ..GroupHint::default() },
        },
    }
}

/// The same of an integer of which a tenth is NULL.
fn nullable(rows: usize, groups: u64) -> Case {
    let mut case = few(rows, groups, false);
    case.name = format!("sum of 10 % NULL by {groups} groups, searched");
    let value = |row: usize| (below(row, 19, 10) > 0).then(|| scramble(row, 12) as i64 % 1_000_000);
    let values = move |from, to| Ok(Arc::new(Int64Array::from_iter((from..to).map(value))) as ArrayRef);
    case.columns.truncate(1);
    case.columns.push(Box::new(values));
    case
}

/// Sum of doubles by a key of so many values, and the average, too.
fn averages(rows: usize, groups: u64) -> Case {
    let mut case = floats(rows, groups, false, false);
    case.name = format!("sum and average of f64 by {groups} groups, searched");
    case.by.aggregates.extend_from_within(..);
    case.hint.sums.limbs.extend_from_within(..);
    case
}

/// Sum of doubles by a key of so many values.
fn floats(rows: usize, groups: u64, ranged: bool, wide: bool) -> Case {
    let range = KeyRange { min: 0, max: i128::from(groups) - 1 };
    let how = if ranged { "range" } else { "searched" };
    let what = if wide { "f64 of any exponent" } else { "f64" };
    let price = |row: usize| below(row, 17, 10_000_000) as f64 / 100.0;
    let any = |row: usize| f64::from_bits(scramble(row, 18) & !(1 << 62));
    let double = move |row: usize| if wide { any(row) } else { price(row) };
    let sum = aggregate(AggregateKind::SumFloat, column(1, ValueType::Float64));
    // What an earlier batch would have taught.
    let limbs = wide.then_some(LimbRange { low: 0, high: 31 });
    Case {
        name: format!("sum of {what} by {groups} groups, {how}"),
        rows,
        floor: 12,
        columns: vec![
            integers(move |row| below(row, 11, groups) as i32),
            Box::new(move |from, to| Ok(Arc::new(Float64Array::from_iter_values((from..to).map(double))))),
        ],
        program: Program::default(),
        by: GroupBy {
            keys: vec![GroupKey::Value(column(0, ValueType::Int32))],
            aggregates: vec![sum],
            uncounted: [0].into(),
            ..GroupBy::default()
        },
        hint: GroupHint {
            groups: Some(groups as usize),
            ranges: if ranged { vec![Some(range)] } else { vec![] },
            sums: SummedFloats { limbs: vec![limbs], special: false },
            partitioned: None,
        },
    }
}

/// Sum of an integer by a sparse key of many values, of which one may be hot.
fn many(rows: usize, hot: u64, partitioned: Option<bool>) -> Case {
    let groups = (rows as u64 / 10).clamp(1, 10_000_000);
    let key = move |row: usize| {
        if below(row, 13, 100) < hot { 0 } else { scramble(below(row, 14, groups) as usize, 15) as i64 }
    };
    let mut how = if hot > 0 { format!(", {hot} % in one") } else { String::new() };
    how.push_str(match partitioned {
        None => "",
        Some(true) => ", partitioned",
        Some(false) => ", not partitioned",
    });
    Case {
        name: format!("sum by {groups} groups{how}"),
        rows,
        floor: 16,
        columns: vec![longs(key), longs(|row| scramble(row, 12) as i64 % 1_000_000)],
        program: Program::default(),
        by: GroupBy {
            keys: vec![GroupKey::Value(column(0, ValueType::Int64))],
            aggregates: vec![aggregate(AggregateKind::SumInt, column(1, ValueType::Int64))],
            ..GroupBy::default()
        },
        hint: GroupHint { groups: Some(groups as usize), partitioned, ..GroupHint::default() },
    }
}

/// One column of a case on the device.
fn uploaded(device: &Device, case: &Case, index: usize) -> Result<DeviceColumn, Box<dyn Error>> {
    let column = device.upload(case.rows, &case.columns[index])?;
    Ok(match case.by.keys.contains(&GroupKey::Codes(index)) {
        true => DeviceColumn { ty: ValueType::Opaque, repr: ColumnRepr::Codes, ..column },
        false => column,
    })
}

/// Times a case whose answer is right.
fn run(device: &Device, group: &mut BenchmarkGroup<'_, WallTime>, case: &Case) -> Result<(), Box<dyn Error>> {
    let columns = (0..case.columns.len()).map(|index| uploaded(device, case, index).map(Some));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let segment = Segment { columns, rows: case.rows, tables: Default::default() };
    compare(device, case, &segment)?;
    let work =
        || device.tokio.block_on(group_by(&device.scope, &case.program, &case.by, &segment, &case.hint));
    let result = work()?;
    let (strategy, reruns) = (result.strategy.name(), result.reruns);
    eprintln!("{}: {} groups, {strategy} after {reruns} reruns", case.name, result.groups);
    device.time(group, &case.name, (case.rows, case.floor), || work().map(drop))
}

/// Holds the first rows' groups against the twin's.
fn compare(device: &Device, case: &Case, segment: &Segment) -> Result<(), Box<dyn Error>> {
    let rows = CHECKED.min(case.rows);
    let columns = case.columns.iter().map(|column| column(0, rows)).collect::<Result<Vec<_>, _>>()?;
    let want = reference::group_by(&case.program, &case.by, &columns, rows)?;
    let head = Segment { rows, ..segment.clone() };
    let work = group_by(&device.scope, &case.program, &case.by, &head, &case.hint);
    if sorted(&device.tokio.block_on(work)?)? != sorted(&want)? {
        return Err(GpuError::Internal(format!("'{}' gives a wrong answer", case.name)).into());
    }
    Ok(())
}

/// Groups in the order of their keys, as text.
fn sorted(result: &GroupResult) -> Result<Vec<String>, Box<dyn Error>> {
    use datafusion_wgpu::kernels::group_by::StateValues;
    let text = |array: &ArrayRef, row: usize| match array.data_type() {
        DataType::Int32 => array.as_primitive::<arrow::datatypes::Int32Type>().value(row).to_string(),
        DataType::Int64 => array.as_primitive::<arrow::datatypes::Int64Type>().value(row).to_string(),
        DataType::UInt32 => array.as_primitive::<arrow::datatypes::UInt32Type>().value(row).to_string(),
        _ => array.as_primitive::<arrow::datatypes::Decimal128Type>().value(row).to_string(),
    };
    let mut rows = vec![];
    for group in 0..result.groups {
        let mut row: Vec<String> = result.keys.iter().map(|key| text(key, group)).collect();
        for state in &result.states {
            row.push(state.counts.get(group).ok_or("a count is missing")?.to_string());
            match &state.values {
                StateValues::Array(values) => row.push(text(values, group)),
                StateValues::Exact(sums) => row.push(format!("{:?}", sums.get(group))),
                StateValues::None => {}
            }
        }
        rows.push(row.join(" "));
    }
    rows.sort();
    Ok(rows)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (device, rows) = (Device::open()?, rows_asked_for()?);
    let mut cases = vec![q1(rows / 4)];
    for ranged in [false, true] {
        cases.extend([4, 64, 1000].map(|groups| few(rows, groups, ranged)));
    }
    for groups in [4, 1000, 1_000_000] {
        cases.extend([false, true].map(|ranged| floats(rows, groups, ranged, false)));
        cases.push(floats(rows, groups, true, true));
    }
    cases.extend([nullable(rows, 1000), averages(rows, 1000)]);
    cases.extend([None, Some(true), Some(false)].map(|partitioned| many(rows, 0, partitioned)));
    cases.push(many(rows, 90, None));
    if let Ok(groups) = std::env::var("GROUPS") {
        let groups = groups.parse()?;
        cases = [false, true].map(|ranged| few(rows, groups, ranged)).into();
        cases.extend([floats(rows, groups, false, false), averages(rows, groups)]);
    }
    run_cases(&device, &cases, |case| &case.name, |group, case| run(&device, group, case))
}
