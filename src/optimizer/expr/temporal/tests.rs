//! Temporal expressions three ways, row by row: DataFusion's own expression, the lowered one in the CPU twin, and the
//! lowered one on the device.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{CastExpr, TryCastExpr, col, lit};
use datafusion::prelude::SessionContext;

use crate::kernels::expr::temporal::{CALENDAR, calendar_bounds, cast_steps, per_day, scale_to_nanos};
use crate::kernels::expr::widths::Class;
use crate::kernels::expr::{Expr, Scalar, ValueType, Zone};
use crate::kernels::program::{Program, Segment};
use crate::kernels::reference;
use crate::kernels::select::{array_of, select};
use crate::kernels::testkit::{CHECKS, device, scope, with_checks};
use crate::memory::caps::DeviceCaps;
use crate::memory::{LaunchScope, upload};
use crate::optimizer::expr::Lowering;
use crate::optimizer::reason::Reason;

use ValueType::*;

mod single;

const UNITS: [(TimeUnit, &str); 4] = [
    (TimeUnit::Second, "s"),
    (TimeUnit::Millisecond, "ms"),
    (TimeUnit::Microsecond, "us"),
    (TimeUnit::Nanosecond, "ns"),
];

/// Columns by name; each has a twin with the values in another order, named with an `r`.
fn columns() -> Vec<(String, ValueType)> {
    let mut columns = vec![
        ("d".to_owned(), Date32),
        ("d64".to_owned(), Date64),
        ("i32".to_owned(), Int32),
        ("i64".to_owned(), Int64),
        ("u32".to_owned(), UInt32),
        ("u64".to_owned(), UInt64),
        ("i8".to_owned(), Int8),
    ];
    for (unit, name) in UNITS {
        columns.push((format!("ts_{name}"), Timestamp { unit, zone: Zone::None }));
        let zone = if unit == TimeUnit::Microsecond { Zone::Zero } else { Zone::Utc };
        columns.push((format!("tz_{name}"), Timestamp { unit, zone }));
        columns.push((format!("du_{name}"), Duration(unit)));
        let time = if scale_to_nanos(Duration(unit)) >= 1_000_000 { Time32(unit) } else { Time64(unit) };
        columns.push((format!("t_{name}"), time));
    }
    let twins: Vec<_> = columns.iter().map(|(name, ty)| (format!("{name}r"), *ty)).collect();
    columns.extend(twins);
    columns
}

/// Ordinary days, the ends of months and years, leap days, and the edges of the calendar and of the type.
fn values(ty: ValueType) -> Vec<i128> {
    let (day, scale) = (i128::from(per_day(ty)), i128::from(scale_to_nanos(ty)));
    let mut values =
        vec![0, 1, -1, 59, 60, 3_599, 3_600, 86_399, 86_400, -86_400, i32::MIN.into(), i32::MAX.into()];
    let days = [
        -719_528, -719_469, -135_081, -25_509, -1, 0, 30, 31, 58, 59, 60, 364, 365, 789, 8_765, 10_956,
        11_016, 11_017, 11_382, 16_435, 18_261, 18_262, 18_321, 18_322, 19_722, 19_723, 20_088, 20_453,
        24_855, 47_540, 106_750, -106_751,
    ];
    for (at, d) in days.into_iter().enumerate() {
        let clock = [0, day - 1, day / 2 + 1, day / 3][at % 4];
        values.push(d * day + clock);
    }
    if let Some((first, last)) = calendar_bounds(per_day(ty)) {
        values.extend([first - 1, first, first + 3, last, last + 1].map(i128::from));
        values.extend([CALENDAR.start() + 400, CALENDAR.end() - 400].map(|d| i128::from(d) * day));
    }
    for edge in [i128::from(i64::MIN), i128::from(i64::MAX), i128::from(u64::MAX)] {
        values.extend([edge / scale, edge / scale - 1, edge / scale + 1, edge]);
    }
    values.extend([day, day - 1, day / 2, -day, 12 * day / 24 + 34 * day / 1_440]);
    values.extend([
        i128::from(i32::MAX) + 1,
        i128::from(i64::MAX) / 1_000,
        1_700_000_000_123_456_789 / scale,
    ]);
    let (min, max) = match ty {
        Date32 | Time32(_) | Int32 => (i32::MIN.into(), i32::MAX.into()),
        Int8 => (i8::MIN.into(), i8::MAX.into()),
        UInt32 => (0, u32::MAX.into()),
        UInt64 => (0, u64::MAX.into()),
        _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
    };
    let kept: BTreeSet<i128> = values.into_iter().filter(|v| (min..=max).contains(v)).collect();
    kept.into_iter().collect()
}

struct Table {
    schema: SchemaRef,
    arrays: Vec<ArrayRef>,
    rows: usize,
    /// The columns cut into single rows.
    single: Vec<Vec<ArrayRef>>,
}

fn table() -> Table {
    let columns = columns();
    let lists: Vec<Vec<i128>> = columns.iter().map(|(_, ty)| values(*ty)).collect();
    let rows = lists.iter().map(Vec::len).max().unwrap() + 2;
    let arrays: Vec<ArrayRef> = columns
        .iter()
        .zip(&lists)
        .map(|((name, ty), values)| {
            let scalars: Vec<Scalar> = (0..rows)
                .map(|row| match row {
                    // Twins go through the values by another step, and are NULL elsewhere.
                    row if name.ends_with('r') => (row != 5).then(|| values[(row * 7 + 3) % values.len()]),
                    row => (row != 1).then(|| values[row % values.len()]),
                })
                .collect();
            array_of(*ty, &scalars).unwrap()
        })
        .collect();
    let fields: Vec<Field> = columns.iter().map(|(name, ty)| Field::new(name, ty.to_arrow(), true)).collect();
    let single = (0..rows).map(|row| arrays.iter().map(|array| array.slice(row, 1)).collect()).collect();
    Table { schema: Arc::new(Schema::new(fields)), arrays, rows, single }
}

impl Table {
    fn rows(&self, rows: &[usize]) -> Vec<ArrayRef> {
        let rows: UInt32Array = rows.iter().map(|&row| Some(row as u32)).collect();
        self.arrays.iter().map(|array| take(array, &rows, None).unwrap()).collect()
    }

    fn plan(&self, sql: &str) -> Arc<dyn PhysicalExpr> {
        let schema = DFSchema::try_from(self.schema.as_ref().clone()).unwrap();
        let ctx = SessionContext::new();
        let expr = ctx.parse_sql_expr(sql, &schema).unwrap_or_else(|error| panic!("{sql}: {error}"));
        ctx.create_physical_expr(expr, &schema).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn lower(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<(Arc<Expr>, Program), Vec<Reason>> {
        let mut lowering = Lowering::new(Arc::clone(&self.schema));
        let lowered = lowering.lower(expr);
        let (lowered, params) = lowering.finish(&DeviceCaps::for_tests(), lowered)?;
        Ok((lowered, Program { selection: None, params: params.resolve().unwrap().values }))
    }
}

/// An expression with what the twin says of each row.
struct Case {
    name: String,
    lowered: Arc<Expr>,
    program: Program,
    /// Rows in which the twin has a fault.
    faults: BTreeSet<usize>,
}

/// DataFusion's value of one row, its error, or nothing where a debug build of Arrow stops at an overflow that wraps.
fn oracle(table: &Table, expr: &Arc<dyn PhysicalExpr>, row: usize) -> Option<Result<ArrayRef, String>> {
    let batch = RecordBatch::try_new(Arc::clone(&table.schema), table.single[row].clone()).unwrap();
    catch_unwind(AssertUnwindSafe(|| {
        expr.evaluate(&batch).and_then(|value| value.into_array(1)).map_err(|error| error.to_string())
    }))
    .ok()
}

/// The twin against DataFusion. `early` are expressions that may fault where DataFusion has a value.
fn compare(table: &Table, name: &str, expr: &Arc<dyn PhysicalExpr>, early: bool) -> Case {
    let (lowered, program) =
        table.lower(expr).unwrap_or_else(|reasons| panic!("{name} was declined: {reasons:?}"));
    let mut faults = BTreeSet::new();
    let mut given = 0;
    for row in 0..table.rows {
        let columns = &table.single[row];
        let twin = reference::select(&program, &[Arc::clone(&lowered)], columns, 1).unwrap();
        if twin.fault {
            faults.insert(row);
        }
        let Some(oracle) = oracle(table, expr, row) else { continue };
        match oracle {
            Ok(_) if twin.fault && early => {}
            Ok(array) => {
                assert!(!twin.fault, "{name}, row {row}: a fault for {array:?}");
                assert_eq!(&array, &twin.outputs[0], "{name}, row {row}");
                given += 1;
            }
            Err(error) => assert!(twin.fault, "{name}, row {row}: {:?} for {error}", twin.outputs[0]),
        }
    }
    assert!(given > 4, "{name} has a value in {given} rows only");
    assert!(faults.is_empty() || lowered.may_fault(), "{name} faults and says that it cannot");
    Case { name: name.to_owned(), lowered, program, faults }
}

/// Uploads what the expressions read of some rows.
async fn segment(scope: &LaunchScope, table: &Table, exprs: &[Arc<Expr>], rows: &[usize]) -> Segment {
    let mut needed = BTreeSet::new();
    exprs.iter().for_each(|expr| expr.collect_columns(&mut needed));
    let indices: Vec<usize> = needed.iter().copied().collect();
    let batch = RecordBatch::try_new(Arc::clone(&table.schema), table.rows(rows)).unwrap();
    let mut columns = vec![None; table.arrays.len()];
    for (index, column) in indices.iter().zip(upload(scope, &[batch], &indices).await.unwrap()) {
        columns[*index] = Some(column);
    }
    Segment { columns, rows: rows.len(), tables: Default::default() }
}

/// The device against the twin: values of the rows in which no expression of a group faults, and the faults of others.
async fn on_device(table: &Table, cases: &[Case]) {
    let device = device();
    let plain = scope(&device);
    for group in cases.chunks(6) {
        let exprs: Vec<_> = group.iter().map(|case| Arc::clone(&case.lowered)).collect();
        // Each case has parameters of its own: they are put in a row.
        let mut params = vec![];
        let exprs: Vec<Arc<Expr>> = group
            .iter()
            .zip(exprs)
            .map(|(case, expr)| {
                let base = params.len();
                params.extend(case.program.params.iter().copied());
                expr.map_leaves(&|leaf| match leaf.as_ref() {
                    Expr::Param { slot, ty } => Arc::new(Expr::Param { slot: slot + base, ty: *ty }),
                    _ => Arc::clone(leaf),
                })
            })
            .collect();
        let program = Program { selection: None, params };
        let rows: Vec<usize> =
            (0..table.rows).filter(|row| group.iter().all(|case| !case.faults.contains(row))).collect();
        let twin = reference::select(&program, &exprs, &table.rows(&rows), rows.len()).unwrap();
        for checks in CHECKS {
            let scope = scope(&with_checks(checks));
            let segment = segment(&scope, table, &exprs, &rows).await;
            let answer = select(&scope, &program, &exprs, &[segment]).await.unwrap().pop().unwrap();
            assert!(!answer.fault);
            for ((case, device), twin) in group.iter().zip(&answer.outputs).zip(&twin.outputs) {
                assert_eq!(device, twin, "{} on the device", case.name);
            }
        }
    }
    for case in cases.iter().filter(|case| !case.faults.is_empty()) {
        let exprs = [Arc::clone(&case.lowered)];
        let good: Vec<usize> = (0..table.rows).filter(|row| !case.faults.contains(row)).collect();
        let one = |row: usize| vec![good[0], row, good[good.len() - 1]];
        let mut lists: Vec<(Vec<usize>, bool)> =
            case.faults.iter().take(6).map(|&row| (one(row), true)).collect();
        lists.push((good.clone(), false));
        let mut segments = vec![];
        for (rows, _) in &lists {
            segments.push(segment(&plain, table, &exprs, rows).await);
        }
        let answers = select(&plain, &case.program, &exprs, &segments).await.unwrap();
        for (answer, (rows, fault)) in answers.iter().zip(&lists) {
            assert_eq!(answer.fault, *fault, "{}, rows {rows:?} on the device", case.name);
            if !fault {
                let twin = reference::select(&case.program, &exprs, &table.rows(rows), rows.len()).unwrap();
                assert_eq!(&answer.outputs[0], &twin.outputs[0], "{} on the device", case.name);
            }
        }
    }
}

async fn all_ways(sqls: &[String], early: bool) {
    let table = table();
    let cases: Vec<Case> = sqls.iter().map(|sql| compare(&table, sql, &table.plan(sql), early)).collect();
    on_device(&table, &cases).await;
}

#[tokio::test]
async fn parts() {
    let dates = [
        "year",
        "isoyear",
        "quarter",
        "month",
        "week",
        "day",
        "dow",
        "isodow",
        "doy",
        "hour",
        "minute",
        "second",
        "millisecond",
        "microsecond",
        "nanosecond",
    ];
    let mut sqls = vec![];
    for column in ["d", "d64", "ts_s", "ts_ms", "tz_us", "ts_ns", "tz_s"] {
        sqls.extend(dates.iter().map(|part| format!("date_part('{part}', {column})")));
    }
    for column in ["t_s", "t_ms", "t_us", "t_ns"] {
        sqls.extend(dates[9..].iter().map(|part| format!("date_part('{part}', {column})")));
    }
    for column in ["du_s", "du_ms", "du_us", "du_ns"] {
        let parts = ["week", "day", "hour", "minute", "second"];
        sqls.extend(parts.iter().map(|part| format!("date_part('{part}', {column})")));
    }
    all_ways(&sqls, false).await;
}

#[tokio::test]
async fn truncation() {
    let all =
        ["microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year"];
    let mut sqls = vec![];
    for column in ["ts_s", "ts_ms", "tz_us", "ts_ns", "tz_ns"] {
        sqls.extend(all.iter().map(|to| format!("date_trunc('{to}', {column})")));
    }
    for column in ["t_s", "t_ms", "t_us", "t_ns"] {
        sqls.extend(all[..5].iter().map(|to| format!("date_trunc('{to}', {column})")));
    }
    sqls.push("date_trunc('month', d)".to_owned());
    all_ways(&sqls, false).await;
}

#[tokio::test]
async fn bins() {
    let mut sqls = vec![];
    for interval in ["15 minutes", "3 days", "1 month", "7 months", "400 years"] {
        for column in ["ts_s", "ts_ms", "tz_us", "ts_ns"] {
            sqls.push(format!("date_bin(interval '{interval}', {column})"));
        }
    }
    for column in ["t_s", "t_ms", "t_us", "t_ns"] {
        sqls.push(format!("date_bin(interval '17 minutes', {column})"));
    }
    sqls.push("date_bin(interval '1 nanosecond', ts_ns)".to_owned());
    all_ways(&sqls, false).await;
}

#[tokio::test]
async fn intervals() {
    let mut sqls = vec![];
    for column in ["d", "d64", "ts_s", "ts_ms", "tz_us", "ts_ns"] {
        for interval in
            ["1 month", "25 hours", "-13 months -40 days 1 nanosecond", "1 year 1 day 90000 seconds"]
        {
            sqls.push(format!("{column} + interval '{interval}'"));
            sqls.push(format!("{column} - interval '{interval}'"));
        }
    }
    sqls.push("interval '3 months' + d".to_owned());
    all_ways(&sqls, true).await;
    let mut sqls = vec![];
    for column in ["t_s", "t_ms", "t_us", "t_ns"] {
        sqls.push(format!("{column} + interval '5 hours 1 nanosecond'"));
        sqls.push(format!("{column} - interval '2 days 1 month 1 nanosecond'"));
    }
    all_ways(&sqls, false).await;
}

#[tokio::test]
async fn spans() {
    let mut sqls = vec!["d - dr".to_owned(), "d64 - d64r".to_owned()];
    for (_, unit) in UNITS {
        sqls.push(format!("ts_{unit} - ts_{unit}r"));
        sqls.push(format!("ts_{unit} + du_{unit}"));
        sqls.push(format!("du_{unit}r + tz_{unit}"));
        sqls.push(format!("tz_{unit} - du_{unit}r"));
        sqls.push(format!("du_{unit} - du_{unit}r"));
        sqls.push(format!("du_{unit} + du_{unit}r"));
    }
    all_ways(&sqls, false).await;
}

#[tokio::test]
async fn conversions_by_function() {
    let mut sqls = vec![];
    for column in ["i64", "i32", "u32", "i8", "ts_s", "ts_ns", "ts_ms"] {
        for function in ["", "_seconds", "_millis", "_micros", "_nanos"] {
            sqls.push(format!("to_timestamp{function}({column})"));
        }
    }
    for column in ["d", "d64", "ts_s", "tz_us", "ts_ns", "i32"] {
        sqls.push(format!("to_unixtime({column})"));
    }
    for column in ["d64", "ts_s", "tz_us", "i32", "i64", "i8"] {
        sqls.push(format!("to_date({column})"));
    }
    for column in ["d", "d64", "ts_s", "tz_ms", "ts_us", "ts_ns", "t_s", "t_ns"] {
        sqls.push(format!("date_part('epoch', {column})"));
    }
    for cast in ["CAST(ts_ns AS DOUBLE)", "CAST(ts_s AS FLOAT)", "CAST(CAST(i64 AS DOUBLE) AS TIMESTAMP)"] {
        sqls.push(cast.to_owned());
    }
    sqls.push("from_unixtime(i64)".to_owned());
    all_ways(&sqls, false).await;
}

/// Numbers of other types are counts through Int64, on the way in and out.
#[tokio::test]
async fn conversions_of_numbers() {
    let mut sqls = vec![];
    for cast in ["CAST", "TRY_CAST"] {
        for to in ["SMALLINT", "TINYINT UNSIGNED", "DECIMAL(12, 2)", "DECIMAL(38, 9)", "REAL"] {
            sqls.push(format!("{cast}(ts_s AS {to})"));
            sqls.push(format!("{cast}(tz_us AS {to})"));
            sqls.push(format!("{cast}(du_ms AS {to})"));
        }
        for from in ["DOUBLE", "DECIMAL(30, 3)", "DECIMAL(22, -3)"] {
            sqls.push(format!("{cast}(CAST(u64 AS {from}) AS TIMESTAMP)"));
            sqls.push(format!("{cast}(CAST(i64 AS {from}) AS TIMESTAMP(0))"));
        }
        sqls.push(format!("{cast}(u64 AS TIMESTAMP)"));
    }
    all_ways(&sqls, false).await;
}

/// Every pair of types that the family casts between, and the same with TRY_CAST.
#[tokio::test]
async fn casts() {
    let table = table();
    let columns = columns();
    let (mut cases, mut seen) = (vec![], BTreeSet::new());
    let mut count = 0;
    let mut declined = BTreeSet::new();
    for (name, from) in columns.iter().filter(|(name, _)| !name.ends_with('r')) {
        let targets: BTreeSet<String> = columns.iter().map(|(_, to)| to.to_arrow().to_string()).collect();
        for target in targets {
            let (_, to) = columns.iter().find(|(_, to)| to.to_arrow().to_string() == target).unwrap();
            let temporal = |ty: ValueType| ty.to_arrow().is_temporal();
            if from == to || !(temporal(*from) || temporal(*to)) {
                continue;
            }
            let operand = || col(name, &table.schema).unwrap();
            let cast: Arc<dyn PhysicalExpr> = Arc::new(CastExpr::new(operand(), to.to_arrow(), None));
            let safe: Arc<dyn PhysicalExpr> = Arc::new(TryCastExpr::new(operand(), to.to_arrow()));
            if table.lower(&cast).is_err() {
                assert!(table.lower(&safe).is_err(), "{name} to {target}");
                declined.insert((from.to_arrow().to_string(), target));
                continue;
            }
            for (text, expr, try_cast) in [("CAST", cast, false), ("TRY_CAST", safe, true)] {
                let case = compare(&table, &format!("{text}({name} AS {target})"), &expr, try_cast);
                count += 1;
                // The same steps on the same width are the same shader; those through Int64 are by the type of the number.
                let steps = cast_steps(*from, *to, try_cast);
                let number = if temporal(*from) { *to } else { *from };
                let shape = (Class::of(*from, 64), Class::of(*to, 64), steps.is_none().then_some(number));
                if seen.insert(format!("{shape:?} {steps:?} {try_cast}")) {
                    cases.push(case);
                }
            }
        }
    }
    assert!(count > 150 && cases.len() > 40, "{count}, {}", cases.len());
    // All that Arrow casts.
    let known = declined.iter().filter(|(from, to)| {
        let type_of =
            |name: &str| columns.iter().find(|(_, ty)| ty.to_arrow().to_string() == name).unwrap().1;
        arrow::compute::can_cast_types(&type_of(from).to_arrow(), &type_of(to).to_arrow())
    });
    assert_eq!(known.collect::<Vec<_>>(), Vec::<&(String, String)>::new());
    on_device(&table, &cases).await;
}

#[test]
fn what_is_declined_says_why() {
    let table = table();
    let code = |sql: &str| {
        let reasons = table.lower(&table.plan(sql)).map(|(expr, _)| expr).unwrap_err();
        (reasons[0].code(), reasons[0].to_string())
    };
    for sql in [
        "date_part('epoch', du_s)",
        "date_part('millisecond', du_s)",
        "date_bin(interval '1 month 1 day', ts_ns)",
        "date_bin(interval '1 month', t_ns)",
        "date_bin(interval '-1 day', ts_ns)",
        "make_date(i32, i32, i32)",
    ] {
        let (code, text) = code(sql);
        assert!(["UnsupportedExpression", "UnsupportedType"].contains(&code), "{sql}: {text}");
    }
    // For a text of this type DataFusion raises.
    for part in ["year", "epoch"] {
        let planned = table.plan(&format!("date_part('{part}', ts_ns)"));
        let name = lit(ScalarValue::LargeUtf8(Some(part.to_owned())));
        let named = Arc::clone(&planned).with_new_children(vec![name, Arc::clone(planned.children()[1])]);
        let named = named.unwrap();
        assert!(table.lower(&planned).is_ok() && table.lower(&named).is_err(), "{part}");
        assert!(oracle(&table, &named, 0).unwrap().is_err());
    }
    let zone = DataType::Timestamp(TimeUnit::Second, Some("+02:00".into()));
    let schema = Arc::new(Schema::new(vec![Field::new("x", zone, true)]));
    let mut lowering = Lowering::new(Arc::clone(&schema));
    let lowered = lowering.lower(&col("x", &schema).unwrap());
    let reasons = lowering.finish(&DeviceCaps::for_tests(), lowered).unwrap_err();
    assert_eq!(reasons[0].code(), "UnsupportedType");
}
