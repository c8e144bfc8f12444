//! Random queries over random tables with edge values, rule off against rule forced. Fixed seeds; few query shapes a table
//! and much data, since each new kernel shape costs a compilation.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int8Array, Int16Array,
    Int32Array, Int64Array, RecordBatch, StringArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use datafusion::catalog::MemTable;

use crate::harness::{Gpu, TestResult, cpu, run};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len() as u64) as usize]
    }

    /// An integer in which edges are frequent.
    fn integer(&mut self) -> i64 {
        match self.below(8) {
            0 => [0, 1, -1, i64::MAX, i64::MIN, (1 << 53) + 1, -(1 << 53) - 1, 0xffff_ffff]
                [self.below(8) as usize],
            1 => self.next() as i64,
            2 => self.next() as i32 as i64,
            _ => self.below(200) as i64 - 100,
        }
    }

    fn float(&mut self) -> f64 {
        match self.below(6) {
            0 => {
                let edges = [
                    0.0,
                    -0.0,
                    f64::NAN,
                    -f64::NAN,
                    f64::INFINITY,
                    f64::NEG_INFINITY,
                    f64::MIN_POSITIVE / 4.0,
                    f64::MAX,
                ];
                edges[self.below(8) as usize]
            }
            1 => f64::from_bits(self.next()),
            _ => self.below(64) as f64 / 4.0 - 8.0,
        }
    }
}

/// Columns of all types; `nulls` of 100 values are NULL.
fn batch(random: &mut Random, rows: usize, nulls: u64) -> TestResult<RecordBatch> {
    macro_rules! column {
        ($array:ident, $value:expr) => {{
            let values: Vec<_> = (0..rows)
                .map(|_| {
                    let null = random.below(100) < nulls;
                    let value = $value(&mut *random);
                    (!null).then_some(value)
                })
                .collect();
            Arc::new($array::from(values)) as ArrayRef
        }};
    }
    let small = |r: &mut Random| i128::from(r.below(2_000_000)) - 1_000_000;
    let wide = |r: &mut Random| match r.below(5) {
        0 => 10i128.pow(30) * (i128::from(r.below(9)) - 4),
        _ => i128::from(r.integer()),
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("b", column!(BooleanArray, |r: &mut Random| r.below(2) == 0)),
        ("i8", column!(Int8Array, |r: &mut Random| r.integer() as i8)),
        ("i16", column!(Int16Array, |r: &mut Random| r.integer() as i16)),
        ("i32", column!(Int32Array, |r: &mut Random| r.integer() as i32)),
        ("i64", column!(Int64Array, |r: &mut Random| r.integer())),
        ("u8", column!(UInt8Array, |r: &mut Random| r.integer() as u8)),
        ("u16", column!(UInt16Array, |r: &mut Random| r.integer() as u16)),
        ("u32", column!(UInt32Array, |r: &mut Random| r.integer() as u32)),
        ("u64", column!(UInt64Array, |r: &mut Random| r.integer() as u64)),
        ("f32", column!(Float32Array, |r: &mut Random| r.float() as f32)),
        ("f64", column!(Float64Array, |r: &mut Random| r.float())),
        ("d", column!(Date32Array, |r: &mut Random| r.integer() as i32 / 100_000)),
        ("dec", Arc::new(decimals(random, rows, nulls, 12, 2, small)?)),
        ("wide", Arc::new(decimals(random, rows, nulls, 33, 4, wide)?)),
        (
            "s",
            Arc::new(StringArray::from_iter((0..rows).map(|i| (i % 3 != 0).then(|| format!("s{}", i % 11))))),
        ),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, true)),
    )?)
}

fn decimals(
    random: &mut Random,
    rows: usize,
    nulls: u64,
    precision: u8,
    scale: i8,
    value: impl Fn(&mut Random) -> i128,
) -> TestResult<Decimal128Array> {
    let values = (0..rows).map(|_| {
        let null = random.below(100) < nulls;
        let value = value(random);
        (!null).then_some(value)
    });
    Ok(Decimal128Array::from_iter(values.collect::<Vec<_>>()).with_precision_and_scale(precision, scale)?)
}

const INTEGERS: [&str; 8] = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"];

fn predicate(random: &mut Random, depth: u32) -> String {
    if depth > 0 {
        let (l, r) = (predicate(random, depth - 1), predicate(random, depth - 1));
        return match random.below(4) {
            0 => format!("({l} AND {r})"),
            1 => format!("({l} OR {r})"),
            2 => format!("(NOT {l})"),
            _ => format!("({l} AND NOT {r})"),
        };
    }
    let op = random.pick(&["=", "<>", "<", "<=", ">", ">="]);
    let integer = random.pick(&INTEGERS);
    match random.below(13) {
        0 => "b".to_string(),
        1 => format!("{integer} IS NULL"),
        2 => "f64 IS NOT NULL".to_string(),
        3 => format!("f64 {op} {}", random.pick(&["0.0", "-0.0", "1.25", "'NaN'::double", "'-inf'::double"])),
        4 => format!("f32 {op} {}", random.pick(&["0.0", "0.1", "2.5", "'inf'::float"])),
        5 => format!("dec {op} {}", random.pick(&["0", "100.25", "-5000.5", "1000000000"])),
        6 => format!("d {op} DATE '{}'", random.pick(&["1970-01-01", "1969-02-28", "2020-02-29"])),
        7 => format!("{integer} BETWEEN {} AND {}", random.below(50), 50 + random.below(60)),
        8 => format!("i64 IN ({}, {}, 5, NULL)", random.below(20), random.below(20)),
        9 => format!("i32 NOT IN (1, 2, {})", random.below(20)),
        10 => format!("i64 + i32 {op} {}", random.below(20)),
        11 => format!("{integer} {op} {}", random.pick(&["u64", "i64", "i8", "dec", "wide"])),
        _ => format!("{integer} {op} {}", random.below(100)),
    }
}

fn aggregate(random: &mut Random) -> String {
    let filter = match random.below(4) {
        0 => format!(" FILTER (WHERE {})", predicate(random, 0)),
        _ => String::new(),
    };
    let any = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "dec", "wide", "d", "f32", "f64", "b"];
    let call = match random.below(9) {
        0 => random.pick(&["count(*)", "count(f64)", "count(s)"]).to_string(),
        1 => format!("count({}, {})", random.pick(&any), random.pick(&any)),
        2 => format!("sum({})", random.pick(&INTEGERS)),
        3 => format!("avg({})", random.pick(&INTEGERS)),
        4 => format!("{}(dec)", random.pick(&["sum", "avg"])),
        5 => "sum(dec * dec)".to_string(),
        6 => format!("sum({} * 3 - {})", random.pick(&INTEGERS), random.below(10)),
        _ => format!("{}({})", random.pick(&["min", "max"]), random.pick(&any)),
    };
    call + &filter
}

/// A query, and which of its columns are averages of 64-bit integers.
fn query(random: &mut Random) -> (String, Vec<bool>) {
    let depth = random.below(3) as u32;
    let filter = predicate(random, depth);
    if random.below(3) == 0 {
        let column = random.pick(&INTEGERS);
        let sql = format!(
            "SELECT s, {column}, i64 * i64 - i32 AS x, dec + dec AS y, -i16 AS z, wide, f64 FROM t WHERE {filter}"
        );
        return (sql, vec![]);
    }
    let calls: Vec<String> = (0..1 + random.below(5)).map(|_| aggregate(random)).collect();
    let rounded =
        calls.iter().map(|call| call.starts_with("avg(i64)") || call.starts_with("avg(u64)")).collect();
    (format!("SELECT {} FROM t WHERE {filter}", calls.join(", ")), rounded)
}

/// Whether two rows are the same, cell by cell. Averages of 64-bit integers are correctly rounded here and rounded at every step
/// on the CPU, so in those columns, and only there, the CPU's may be off by what its roundings can add up to.
fn same(want: &str, got: &str, rounded: &[bool]) -> bool {
    want.split('|')
        .zip(got.split('|'))
        .enumerate()
        .all(|(column, (want, got))| want == got || (rounded.get(column) == Some(&true) && close(want, got)))
}

fn close(want: &str, got: &str) -> bool {
    match (want.parse::<f64>(), got.parse::<f64>()) {
        // Sums of 5,100 values below 2^64 stay below 2^77, so each addition errs by 2^23 at most, and so does the average.
        (Ok(want), Ok(got)) => (want - got).abs() <= 8_388_608.0,
        _ => false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_queries() -> TestResult {
    let gpu = Gpu::new(3).await?;
    gpu.set("batch_rows", "700").await?;
    let off = cpu(3);
    let mut nodes = 0;
    let mut on_device = 0;
    for (seed, nulls) in [(1, 0), (2, 1), (3, 50), (4, 100)] {
        let mut random = Random(seed);
        let mut parts = vec![];
        for _ in 0..3 {
            let whole = batch(&mut random, 1700, nulls)?;
            // Slices start at odd rows, so that bitmaps have bit offsets.
            parts.push(vec![whole.slice(3, 997), whole.slice(0, 0), whole.slice(1001, 699)]);
        }
        let table = Arc::new(MemTable::try_new(parts[0][0].schema(), parts)?);
        for ctx in [&gpu.ctx, &off] {
            ctx.deregister_table("t")?;
            ctx.register_table("t", Arc::clone(&table) as _)?;
        }
        for round in 0..12 {
            let (sql, rounded) = query(&mut random);
            let exchanges = random.pick(&["'collapse'", "'keep'"]);
            gpu.set("exchanges", exchanges).await?;
            let (want, got) = (run(&off, &sql).await, gpu.run(&sql).await);
            let context = format!("seed {seed} round {round} exchanges {exchanges}: {sql}");
            match (want, got) {
                (Err(want), Err(got)) => assert_eq!(want.to_string(), got.to_string(), "{context}"),
                (Ok(want), Ok(got)) => {
                    nodes += got.nodes.len();
                    on_device += got.gpu_batches;
                    let equal = want.rows.len() == got.rows.len()
                        && want.rows.iter().zip(&got.rows).all(|(want, got)| same(want, got, &rounded));
                    assert!(equal, "{context}\nwant {:?}\ngot  {:?}\n{}", want.rows, got.rows, got.plan);
                }
                (want, got) => return Err(format!("{context}: {want:?} and {got:?}").into()),
            }
            gpu.settled().await.map_err(|error| format!("{context}: {error}"))?;
        }
    }
    assert!(nodes > 48 && on_device > 100, "{nodes} Gpu nodes, {on_device} batches on the device");
    Ok(())
}
