//! Look-ups on the device against the tables that they are made from.

mod memory;

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{RecordBatch, StringArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema};

use super::*;
use crate::kernels::expr::{CompareOp, Expr, ExtremeFn, check};
use crate::kernels::program::{ColumnShape, Program, Segment, columns_of, tables_of};
use crate::kernels::select::{select, select_shaders};
use crate::kernels::testkit::*;
use crate::kernels::{AggregateKind, AggregateSpec, reduce};
use crate::memory::batch::{GpuBatch, SourceBatch};
use crate::memory::lookup::{Results, ValueFunction};
use crate::memory::{DeviceCaps, LaunchScope};

/// Distinct values of the column, `w0` to `w36`.
const WORDS: usize = 37;

/// A function that is given by its results, by the number in the value; the last is that of NULL.
#[derive(Debug)]
struct Given {
    ty: ValueType,
    results: ArrayRef,
    /// Every so many values raise; 0 for none.
    poison: usize,
}

impl Given {
    fn entry(value: Option<&str>) -> usize {
        value.map_or(WORDS, |value| value[1..].parse().expect("a number"))
    }
}

impl ValueFunction for Given {
    fn evaluate(&self, values: &ArrayRef) -> GpuResult<Results> {
        let entries: Vec<usize> = values.as_string::<i32>().iter().map(Given::entry).collect();
        let at = UInt32Array::from_iter_values(entries.iter().map(|at| *at as u32));
        let poison = (self.poison > 0).then(|| entries.iter().map(|at| at % self.poison == 1).collect());
        Ok(Results { values: take(&self.results, &at, None).expect("take"), poison })
    }

    fn pack(&self, results: &Results) -> GpuResult<(Vec<u32>, usize)> {
        pack(self.ty, &results.values, results.poison.as_ref())
    }

    fn may_raise(&self) -> bool {
        self.poison > 0
    }

    fn same(&self, other: &dyn ValueFunction) -> bool {
        let other: &dyn std::any::Any = other;
        other.downcast_ref::<Given>().is_some_and(|other| Arc::ptr_eq(&self.results, &other.results))
    }
}

/// Host batches of the column, cut at `cuts`, and for each row the entry that its value has in a [`Given`].
fn source(rows: usize, nulls: usize, cuts: &[usize], rng: &mut Rng) -> (SourceBatch, UInt32Array) {
    let entries: Vec<usize> =
        (0..rows).map(|_| if rng.below(100) < nulls { WORDS } else { rng.below(WORDS) }).collect();
    let strings: StringArray =
        entries.iter().map(|at| (*at < WORDS).then(|| format!("w{at}"))).collect::<Vec<_>>().into();
    let schema = Arc::new(Schema::new(vec![Field::new("s", DataType::Utf8, true)]));
    let whole = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(strings)]).expect("batch");
    let bounds: Vec<usize> = [&[0], cuts, &[rows]].concat();
    let host = bounds.windows(2).map(|cut| whole.slice(cut[0], cut[1] - cut[0])).collect();
    let entries = UInt32Array::from_iter_values(entries.iter().map(|at| *at as u32));
    (SourceBatch::new(schema, host), entries)
}

fn lookup(table: usize, ty: ValueType, fallible: bool) -> Arc<Expr> {
    let codes = col(0, ValueType::Opaque);
    Arc::new(Expr::Lookup { codes, table, ty, fallible })
}

async fn on_device(scope: &LaunchScope, batch: &mut GpuBatch, exprs: &[Arc<Expr>]) -> Segment {
    let tables: BTreeSet<usize> = tables_of(exprs).into_keys().collect();
    batch.prepare(&tables).await.expect("tables");
    Segment {
        columns: batch.source().device_columns(scope, &columns_of(exprs)).await.expect("columns"),
        rows: batch.source().rows(),
        tables: batch.device_tables(scope, &tables).await.expect("tables on the device"),
    }
}

fn functions(types: &[ValueType], poison: usize, rng: &mut Rng) -> Vec<Arc<dyn ValueFunction>> {
    let shape = DataShape { nulls: 30, edgy: 5, offset: 1 };
    let function = |&ty: &ValueType| {
        Arc::new(Given { ty, results: column(ty, WORDS + 1, shape, rng), poison }) as Arc<dyn ValueFunction>
    };
    types.iter().map(function).collect()
}

#[tokio::test]
async fn results_of_every_type_are_gathered() {
    let mut rng = Rng::new(71);
    for checks in CHECKS {
        let scope = scope(&with_checks(checks));
        let functions = functions(&TYPES, 0, &mut rng);
        for (rows, nulls, cuts) in
            [(1, 0, vec![]), (255, 0, vec![3]), (257, 30, vec![64, 65]), (3000, 100, vec![])]
        {
            let (source, entries) = source(rows, nulls, &cuts, &mut rng);
            let mut batch = GpuBatch::new(Arc::new(source));
            let numbers: Vec<usize> =
                functions.iter().map(|function| batch.add_table(0, function).expect("table")).collect();
            let outputs: Vec<_> =
                TYPES.iter().zip(&numbers).map(|(ty, at)| lookup(*at, *ty, false)).collect();
            let segment = on_device(&scope, &mut batch, &outputs).await;
            let program = Program::default();
            let results = select(&scope, &program, &outputs, &[segment]).await.expect("select");
            for ((output, function), ty) in results[0].outputs.iter().zip(&functions).zip(TYPES) {
                let given: &dyn std::any::Any = function.as_ref();
                let given = given.downcast_ref::<Given>().expect("given");
                let expected = take(&given.results, &entries, None).expect("take");
                assert_eq!(output, &expected, "{ty:?}, {rows} rows, {checks:?}");
            }
        }
    }
}

#[tokio::test]
async fn poison_counts_for_live_rows() {
    let mut rng = Rng::new(72);
    let scope = scope(&device());
    let types = [ValueType::Int32, ValueType::Boolean];
    let functions = functions(&types, 9, &mut rng);
    let keep = |wanted: &[usize]| {
        let results = (0..=WORDS).map(|at| Some(i128::from(wanted.contains(&at)))).collect::<Vec<_>>();
        let results = crate::kernels::select::array_of(ValueType::Boolean, &results).expect("array");
        Arc::new(Given { ty: ValueType::Boolean, results, poison: 0 }) as Arc<dyn ValueFunction>
    };
    // 1, 10, 19, 28 and 37, which is NULL, are poisoned.
    for (kept, fault) in [(vec![0, 2, 3, 36], false), (vec![0, 10], true), (vec![WORDS], true)] {
        let (source, entries) = source(2000, 10, &[700], &mut rng);
        let mut batch = GpuBatch::new(Arc::new(source));
        let tables: Vec<usize> = [keep(&kept)]
            .iter()
            .chain(&functions)
            .map(|function| batch.add_table(0, function).expect("table"))
            .collect();
        let selection = lookup(tables[0], ValueType::Boolean, false);
        let output = lookup(tables[1], ValueType::Int32, true);
        let program = Program { selection: Some(Arc::clone(&selection)), params: vec![] };
        let outputs = [Arc::clone(&output)];
        let segment = on_device(&scope, &mut batch, &[selection, Arc::clone(&output)]).await;
        let results =
            select(&scope, &program, &outputs, std::slice::from_ref(&segment)).await.expect("select");
        let live = entries.values().iter().filter(|at| kept.contains(&(**at as usize))).count();
        assert_eq!((results[0].fault, results[0].selected), (fault, live), "{kept:?}");
        let count = AggregateSpec { kind: AggregateKind::Count, arg: Some(output), filter: None };
        let reduced = reduce(&scope, &program, &[count], &[segment]).await.expect("reduce");
        assert_eq!(reduced[0].fault, fault, "{kept:?}");
    }
}

/// Only whether a row is NULL: without a dictionary, and by the codes of one.
#[tokio::test]
async fn presence_of_columns_and_results() {
    let mut rng = Rng::new(73);
    let scope = scope(&device());
    for nulls in [0, 40, 100] {
        let (source, entries) = source(1300, nulls, &[1, 256], &mut rng);
        let mut batch = GpuBatch::new(Arc::new(source));
        let count = |expr: &Arc<Expr>| {
            [AggregateSpec { kind: AggregateKind::Count, arg: Some(Arc::clone(expr)), filter: None }]
        };
        let program = Program::default();
        let bare = col(0, ValueType::Opaque);
        let present = entries.values().iter().filter(|at| **at as usize != WORDS).count() as u64;
        let segment = on_device(&scope, &mut batch, std::slice::from_ref(&bare)).await;
        let counted = reduce(&scope, &program, &count(&bare), &[segment]).await.expect("reduce");
        assert_eq!(counted[0].states[0].count, present);
        batch.source().release();

        let results =
            column(ValueType::Int64, WORDS + 1, DataShape { nulls: 50, edgy: 0, offset: 0 }, &mut rng);
        let function = Given { ty: ValueType::Opaque, results, poison: 0 };
        let valid = |at: &u32| function.results.is_valid(*at as usize);
        let expected = entries.values().iter().filter(|at| valid(at)).count() as u64;
        let function: Arc<dyn ValueFunction> = Arc::new(function);
        let table = batch.add_table(0, &function).expect("table");
        let opaque = lookup(table, ValueType::Opaque, false);
        let segment = on_device(&scope, &mut batch, &[Arc::clone(&opaque), Arc::clone(&bare)]).await;
        let both = [count(&opaque), count(&bare)].concat();
        let counted = reduce(&scope, &program, &both, &[segment]).await.expect("reduce");
        let counts: Vec<u64> = counted[0].states.iter().map(|state| state.count).collect();
        assert_eq!(counts, [expected, present]);
    }
}

/// Halves of a batch have the same tables, and codes of their own rows.
#[tokio::test]
async fn halves_keep_their_codes() {
    let mut rng = Rng::new(74);
    let scope = scope(&device());
    let (source, entries) = source(999, 20, &[100, 300, 800], &mut rng);
    let mut batch = GpuBatch::new(Arc::new(source));
    let functions = functions(&[ValueType::Int64], 0, &mut rng);
    let table = batch.add_table(0, &functions[0]).expect("table");
    let outputs = [lookup(table, ValueType::Int64, false)];
    let given: &dyn std::any::Any = functions[0].as_ref();
    let expected =
        take(&given.downcast_ref::<Given>().expect("given").results, &entries, None).expect("take");
    batch.prepare(&BTreeSet::from([table])).await.expect("tables");
    let (first, second) = batch.split().expect("halves");
    let (second, third) = second.split().expect("quarters");
    let mut at = 0;
    for mut part in [first, second, third] {
        let rows = part.source().rows();
        let segment = on_device(&scope, &mut part, &outputs).await;
        let results = select(&scope, &Program::default(), &outputs, &[segment]).await.expect("select");
        assert_eq!(&results[0].outputs[0], &expected.slice(at, rows));
        at += rows;
    }
    assert_eq!(at, 999);
}

/// Parts that are put together again keep tables and codes where these belong together, and nothing else.
#[tokio::test]
async fn joined_parts_keep_what_fits() {
    let mut rng = Rng::new(75);
    let scope = scope(&device());
    let (source, entries) = source(999, 20, &[100, 300, 800], &mut rng);
    let mut batch = GpuBatch::new(Arc::new(source));
    let functions = functions(&[ValueType::Int64], 0, &mut rng);
    let table = batch.add_table(0, &functions[0]).expect("table");
    let outputs = [lookup(table, ValueType::Int64, false)];
    let given: &dyn std::any::Any = functions[0].as_ref();
    let expected =
        take(&given.downcast_ref::<Given>().expect("given").results, &entries, None).expect("take");
    batch.prepare(&BTreeSet::from([table])).await.expect("tables");
    let (first, second) = batch.split().expect("halves");
    let rows = first.source().rows();
    let (second, third) = second.split().expect("quarters");
    let mut joined = second.join(&third);
    assert!(joined.table(table).is_some());
    // Not prepared again: what is there must do.
    let segment = on_device(&scope, &mut joined, &outputs).await;
    let results = select(&scope, &Program::default(), &outputs, &[segment]).await.expect("select");
    assert_eq!(&results[0].outputs[0], &expected.slice(rows, 999 - rows));

    // Each has a dictionary of its own, in which other values come first.
    let apart = |part: &GpuBatch| {
        let source = SourceBatch::new(Arc::clone(part.source().schema()), part.source().host().to_vec());
        let mut batch = GpuBatch::new(Arc::new(source));
        batch.add_table(0, &functions[0]).expect("table");
        batch
    };
    let (mut one, mut other) = (apart(&joined), apart(&first));
    for part in [&mut one, &mut other] {
        part.prepare(&BTreeSet::from([table])).await.expect("tables");
    }
    let mut joined = one.join(&other);
    assert!(joined.table(table).is_none() && joined.source().dictionary(0).is_none());
    let segment = on_device(&scope, &mut joined, &outputs).await;
    let results = select(&scope, &Program::default(), &outputs, &[segment]).await.expect("select");
    let (front, back) = (expected.slice(rows, 999 - rows), expected.slice(0, rows));
    let expected = arrow::compute::concat(&[front.as_ref(), back.as_ref()]).expect("rows");
    assert_eq!(&results[0].outputs[0], &expected);
}

/// A column of which only is on the device which rows are NULL is uploaded again as codes.
#[tokio::test]
async fn codes_take_the_place_of_a_presence() {
    let mut rng = Rng::new(76);
    let scope = scope(&device());
    let (source, entries) = source(500, 30, &[], &mut rng);
    let mut batch = GpuBatch::new(Arc::new(source));
    let bare = [col(0, ValueType::Opaque)];
    let segment = on_device(&scope, &mut batch, &bare).await;
    assert_eq!(segment.column(0).expect("column").repr, crate::memory::ColumnRepr::Presence);
    let functions = functions(&[ValueType::Int32], 0, &mut rng);
    let table = batch.add_table(0, &functions[0]).expect("table");
    let outputs = [lookup(table, ValueType::Int32, false)];
    let segment = on_device(&scope, &mut batch, &outputs).await;
    let results = select(&scope, &Program::default(), &outputs, &[segment]).await.expect("select");
    let given: &dyn std::any::Any = functions[0].as_ref();
    let given = given.downcast_ref::<Given>().expect("given");
    assert_eq!(&results[0].outputs[0], &take(&given.results, &entries, None).expect("take"));
}

/// Results that only the host holds have no value in a kernel that could be compared or chosen.
#[test]
fn results_of_the_host_have_no_value() {
    let opaque = |table| lookup(table, ValueType::Opaque, false);
    let present = || Arc::new(Expr::IsNotNull(opaque(0)));
    let ty = ValueType::Opaque;
    let wrong = [
        cmp(CompareOp::Eq, opaque(0), opaque(1)),
        cmp(CompareOp::Lt, col(0, ty), col(0, ty)),
        Arc::new(Expr::Distinct { negated: true, left: opaque(0), right: opaque(1) }),
        Arc::new(Expr::InList { expr: opaque(0), list: vec![opaque(1)], negated: false }),
        Arc::new(Expr::InSorted { expr: opaque(0), table: 1, len: 32, negated: false }),
        extreme(ExtremeFn::Greatest, vec![opaque(0), opaque(1)]),
        Arc::new(Expr::Case { branches: vec![(present(), opaque(0))], otherwise: None, ty }),
    ];
    let codes = ColumnShape {
        index: 0,
        ty,
        repr: crate::memory::ColumnRepr::Codes,
        nullable: false,
        magnitude: crate::memory::MagnitudeBits(32),
        packed: false,
    };
    let shaders = |expr: &Arc<Expr>| {
        select_shaders(&DeviceCaps::for_tests(), &Program::default(), std::slice::from_ref(expr), &[codes])
    };
    for expr in wrong {
        assert!(check(&expr).is_err() && shaders(&expr).is_err(), "{expr:?}");
    }
    let right: Arc<Expr> = present();
    assert!(check(&right).is_ok() && shaders(&right).is_ok());
}

#[test]
fn shaders_of_lookups_validate_without_a_device() {
    let shape = ColumnShape {
        index: 0,
        ty: ValueType::Opaque,
        repr: crate::memory::ColumnRepr::Codes,
        nullable: false,
        magnitude: crate::memory::MagnitudeBits(32),
        packed: false,
    };
    let presence = ColumnShape { index: 1, repr: crate::memory::ColumnRepr::Presence, ..shape };
    let outputs: Vec<_> =
        TYPES.iter().enumerate().map(|(table, ty)| lookup(table, *ty, table % 2 == 0)).collect();
    let present = Arc::new(Expr::IsNotNull(col(1, ValueType::Opaque)));
    let equal = cmp(CompareOp::Eq, lookup(3, ValueType::Int32, true), param(0, ValueType::Int32));
    let program = Program {
        selection: Some(Arc::new(Expr::And(present, equal))),
        params: vec![(ValueType::Int32, Some(1))],
    };
    let shaders = select_shaders(&DeviceCaps::for_tests(), &program, &outputs, &[shape, presence]);
    let shaders = shaders.expect("shaders");
    assert!(shaders.iter().any(|shader| shader.wgsl.contains("args[tf")));
    shaders.iter().for_each(validate);
    // A column without codes has nothing to be looked up by.
    let wrong = select_shaders(
        &DeviceCaps::for_tests(),
        &Program::default(),
        &outputs,
        &[ColumnShape { index: 0, ..presence }],
    );
    assert!(wrong.is_err());
}

#[test]
fn decimals_beyond_their_precision_are_found() {
    let ty = dec(5, 2);
    let array = crate::kernels::select::array_of(ty, &[Some(99_999), None, Some(-100_000)]).expect("array");
    assert!(matches!(pack(ty, &array, None), Err(GpuError::Representation { .. })));
    assert!(pack(ty, &array.slice(0, 2), None).is_ok());
    assert!(pack(ValueType::Int64, &array, None).is_err());
}
