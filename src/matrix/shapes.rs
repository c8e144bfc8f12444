//! The shaders of what the other tests reach, without a device: they pass naga, no text of a query is in them, and equal
//! subexpressions are in them once.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::physical_expr::PhysicalExpr;

use crate::kernels::expr::{Expr, ValueType};
use crate::kernels::program::{ColumnShape, Program, columns_of};
use crate::kernels::reduce::reduce_shader;
use crate::kernels::select::select_shaders;
use crate::kernels::testkit::{EachPlan, Rng, validate};
use crate::kernels::{AggregateKind, AggregateSpec};
use crate::memory::{ColumnRepr, DeviceCaps, MagnitudeBits, ShaderSource, value_type};

use super::trees::samples;
use super::*;

/// Shapes of a schema's columns as uploads would give them; `bits` bounds the decimals.
fn column_shapes(schema: &SchemaRef, exprs: &[Arc<Expr>], nullable: bool, bits: u8) -> Vec<ColumnShape> {
    let shape = |index: usize| {
        let ty = value_type(schema.field(index).data_type()).unwrap_or(ValueType::Opaque);
        let repr = match ty {
            ValueType::Boolean => ColumnRepr::Bits,
            ValueType::Opaque => ColumnRepr::Codes,
            ValueType::Decimal { precision, .. } if precision <= 18 => ColumnRepr::DecimalNarrow,
            ValueType::Decimal { .. } => ColumnRepr::DecimalWide,
            _ => ColumnRepr::Arrow,
        };
        let nullable = nullable && ty != ValueType::Opaque;
        ColumnShape { index, ty, repr, nullable, magnitude: MagnitudeBits(bits), packed: false }
    };
    columns_of(exprs).into_iter().map(shape).collect()
}

/// Every shader that expressions reach: as outputs, booleans as the selection and as filters of an aggregate, others as the
/// aggregate's argument.
fn shaders(
    schema: &SchemaRef,
    exprs: &[Arc<dyn PhysicalExpr>],
    nullable: bool,
    bits: u8,
) -> Vec<ShaderSource> {
    let caps = DeviceCaps::for_tests();
    let (lowered, params) =
        lower(schema, exprs, &caps).unwrap_or_else(|reasons| panic!("{}", short(&reasons)));
    let params = params.resolve().expect("parameters").values;
    let columns = column_shapes(schema, &lowered, nullable, bits);
    // Texts leave the device as codes, which other tests look at.
    let lowered: Vec<_> = lowered.into_iter().filter(|expr| expr.value_type() != ValueType::Opaque).collect();
    let (truths, values): (Vec<_>, Vec<_>) =
        lowered.iter().cloned().partition(|expr| expr.value_type() == ValueType::Boolean);
    let selection = truths.iter().cloned().reduce(|left, right| Arc::new(Expr::Or(left, right)));
    let mut all = vec![];
    for selection in [None, selection] {
        let program = Program { selection, params: params.clone() };
        all.extend(select_shaders(&caps, &program, &lowered, &columns).expect("shaders"));
        let filters = truths.iter().map(|truth| (AggregateKind::CountRows, None, Some(Arc::clone(truth))));
        let arguments = values.iter().map(|value| (AggregateKind::Count, Some(Arc::clone(value)), None));
        let aggregates: Vec<_> =
            filters.chain(arguments).map(|(kind, arg, filter)| AggregateSpec { kind, arg, filter }).collect();
        // A kernel of hundreds of accumulators is no query's.
        for aggregates in aggregates.chunks(12) {
            all.push(reduce_shader(&caps, &program, aggregates, &columns).expect("shader"));
        }
    }
    all
}

/// Checks the shaders, and gives back how many there are.
fn check(sources: &[ShaderSource]) -> usize {
    for source in sources {
        validate(source);
        let odd: String =
            source.wgsl.chars().filter(|c| !(c.is_ascii_graphic() || " \n".contains(*c))).collect();
        assert_eq!(odd, "", "characters in\n{}", source.wgsl);
        let strange: Vec<_> =
            words(&source.wgsl).into_iter().filter(|word| !ALLOWED.contains(word)).collect();
        assert!(strange.is_empty(), "words {strange:?} in\n{}", source.wgsl);
    }
    sources.len()
}

/// Words of which shaders are made: those of this crate's kernels and WGSL files.
static ALLOWED: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let mut all = BTreeSet::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut open = vec![root.join("src/kernels"), root.join("shaders")];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            let inner = std::fs::read_dir(&path).expect("a folder");
            open.extend(inner.map(|entry| entry.expect("an entry").path()));
        } else {
            all.extend(words(&std::fs::read_to_string(&path).expect("a file")));
        }
    }
    all
});

/// Runs of letters, without those that a number may have.
fn words(text: &str) -> BTreeSet<String> {
    let number = |word: &str| word.len() <= 18 && word.chars().all(|c| "abcdefxuli".contains(c));
    let words = text.split(|c: char| !(c.is_ascii_alphabetic() || c == '_'));
    words.map(|word| word.trim_matches('_').to_owned()).filter(|word| !number(word)).collect()
}

#[test]
fn every_template_gives_shaders_that_naga_takes() {
    let (caps, mut checked) = (DeviceCaps::for_tests(), 0);
    for ty in subjects() {
        let planner = Planner::new(schema_of(&ty, true));
        let taken = templates().into_iter().filter(|of| answer(of, &ty, &planner, &caps) == Answer::Gpu);
        let exprs: Vec<_> = taken.filter_map(|of| planner.plan(&of.sql(&ty)?).ok()).collect();
        for (chunk, exprs) in exprs.chunks(40).enumerate() {
            let (nullable, bits) = (chunk % 2 == 0, [128, 40][chunk / 2 % 2]);
            checked += check(&shaders(&planner.schema, exprs, nullable, bits));
        }
    }
    assert!(checked > 200, "{checked} shaders");
}

#[test]
fn random_trees_give_shaders_that_naga_takes() {
    let mut rng = Rng::new(5);
    let mut checked = 0;
    for _ in 0..12 {
        let (schema, exprs) = samples(&mut rng, 32);
        checked += check(&shaders(&schema, &exprs, true, 128));
    }
    assert!(checked > 100, "{checked} shaders");
}

/// Names and texts that would be code if they reached a shader.
pub(super) fn hostile() -> Vec<String> {
    let mut texts: Vec<String> = [
        "a\"; DROP TABLE t; --",
        "'; } @compute @workgroup_size(1) fn main() { loop {} }",
        "x\ny\r\n\tz",
        "/* args[0] */ // \\",
        "var<private> zqzq: u32;",
        "naïve 日本語 \u{202e} \u{0} 💥",
        "{}%s{0}",
        "n0",
    ]
    .map(str::to_owned)
    .to_vec();
    texts.push("zqzq_".repeat(2_000));
    texts
}

/// SQL of an identifier and of a text.
pub(super) fn quoted(text: &str, quote: char) -> String {
    format!("{quote}{}{quote}", text.replace(quote, &format!("{quote}{quote}")))
}

/// Expressions over two integers and a text, whose names and constants are given.
pub(super) fn named(names: [&str; 3], text: &str, number: i64) -> (SchemaRef, Vec<String>) {
    let types = [DataType::Int64, DataType::Int32, DataType::Utf8View];
    let fields: Vec<_> = names.iter().zip(types).map(|(name, ty)| Field::new(*name, ty, true)).collect();
    let [a, b, s] = names.map(|name| quoted(name, '"'));
    let (text, pattern) = (quoted(text, '\''), quoted(&format!("%{text}%_"), '\''));
    let sql = vec![
        format!("{a} + {b} > {number}"),
        format!("{a} * {number} - {b}"),
        format!("CASE WHEN {a} IS NULL THEN {b} ELSE {number} END"),
        format!("{a} IN ({number}, 7, {b})"),
        format!("{s} = {text}"),
        format!("{s} LIKE {pattern}"),
        format!("{s} IN ({text}, 'b')"),
        format!("upper({s}) <> {text}"),
        format!("{s} IS NULL OR {a} = {number}"),
    ];
    (Arc::new(Schema::new(fields)), sql)
}

/// The lowering takes the same of them, and the text of the shaders is the same, whatever the names and constants are.
#[test]
fn no_name_or_constant_reaches_a_shader() {
    let texts = |names: [&str; 3], text: &str, number: i64| -> Vec<String> {
        let (schema, sql) = named(names, text, number);
        let planner = Planner::new(schema);
        let caps = DeviceCaps::for_tests();
        let exprs = sql.iter().map(|sql| planner.plan(sql).unwrap_or_else(|error| panic!("{sql}: {error}")));
        let taken: Vec<_> =
            exprs.filter(|expr| lower(&planner.schema, std::slice::from_ref(expr), &caps).is_ok()).collect();
        assert!(taken.len() >= 4, "{} of {} expressions are taken", taken.len(), sql.len());
        let sources = shaders(&planner.schema, &taken, true, 128);
        check(&sources);
        sources.into_iter().flat_map(|source| [source.wgsl, source.name]).collect()
    };
    let plain = texts(["a", "b", "s"], "text", 12);
    for hostile in hostile() {
        let (second, third) = (format!("{hostile}2"), format!("{hostile}3"));
        let shaders = texts([&hostile, &second, &third], &hostile, 1_234_567_890_123);
        assert_eq!(shaders, plain, "with the name {hostile:.60}");
        assert!(!shaders.iter().any(|text| text.contains("zqzq") || text.contains("1234567890123")));
    }
}

/// Distinct nodes of the expressions as a kernel computes them.
fn nodes(planner: &Planner, sql: &[&str]) -> usize {
    let exprs: Vec<_> = sql.iter().map(|sql| planner.plan(sql).expect("plan")).collect();
    let (lowered, params) = lower(&planner.schema, &exprs, &DeviceCaps::for_tests()).expect("lowered");
    let program = Program { selection: None, params: params.resolve().expect("parameters").values };
    let columns = column_shapes(&planner.schema, &lowered, true, 128);
    EachPlan::build(&program, &lowered, &columns).expect("plan").nodes
}

#[test]
fn common_subexpressions_are_computed_once() {
    let planner = Planner::new(schema_of(&DataType::Int64, true));
    let of = |sql: &[&str]| nodes(&planner, sql);
    // a, b, the product.
    assert_eq!(of(&["a * b"]), 3);
    assert_eq!(of(&["a * b", "a * b"]), 3);
    // The second adds its two sums, a constant and the comparison; the product is there.
    assert_eq!(of(&["a * b", "(a * b) + (a * b) > 3"]), 6);
    // Also below a condition and in another output, within functions as anywhere.
    let (one, two) =
        (of(&["(a + b) * n"]), of(&["(a + b) * n", "CASE WHEN p THEN (a + b) * n ELSE a + b END"]));
    assert_eq!(two, one + 2, "the condition and the CASE");
    // Equal constants stay apart, so that a changed one keeps the shape.
    assert_eq!(of(&["a + 7", "b + 7"]), 6);
}
