//! Passes and partitions against their twins.

use arrow::array::{ArrayRef, UInt32Array};

use crate::kernels::expr::{CompareOp, Scalar, ValueType};
use crate::kernels::reference::partition as twin;
use crate::kernels::select::array_of;
use crate::kernels::testkit::*;
use crate::memory::{DeviceLedger, MemoryScope, ShaderChecks, download};

use super::*;
use ValueType::*;

/// What a pass makes of keys: rows, keys in their order, and where digits begin.
async fn pass(scope: &LaunchScope, keys: &[u32], rows: bool, shift: u32, needed: u32) -> [Vec<u32>; 3] {
    let count = keys.len() as u32;
    let column = |values: Vec<u32>| -> ArrayRef { Arc::new(UInt32Array::from(values)) };
    let numbers = column((0..count).map(|row| row ^ 0x5000_0000).collect());
    let segment = segment(scope, &[column(keys.to_vec()), numbers], keys.len()).await.expect("upload");
    let values = |index: usize| &segment.column(index).expect("column").values;
    let passes = Passes::prepare(scope).await.expect("compile");
    let bytes = u64::from(count) * 4;
    let [keys_out, rows_out] = ["keys", "rows"].map(|name| allocate(scope, name, bytes).expect("buffer"));
    let mut encoder = scope.context.device().create_command_encoder(&Default::default());
    let (mut timer, mut keep) = (scope.timer(), Keep::default());
    let rows = rows.then(|| values(1));
    let pass =
        Pass { keys: values(0), rows, keys_out: Some(&keys_out), rows_out: &rows_out, count, shift, needed };
    let offsets = passes.record(pass, (&mut encoder, &mut timer), &mut keep).expect("record");
    let ranges = [(&rows_out, bytes), (&keys_out, bytes), (&offsets, OFFSET_BYTES)];
    let read = download(scope, encoder, &ranges).await.expect("download");
    let words = |bytes: &Vec<u8>| bytemuck::pod_collect_to_vec(bytes);
    [words(&read[0]), words(&read[1]), words(&read[2])]
}

async fn check_pass(scope: &LaunchScope, keys: &[u32], rows: bool, shift: u32, needed: u32, what: &str) {
    let [mut got_rows, mut got_keys, offsets] = pass(scope, keys, rows, shift, needed).await;
    let (places, want) = twin::partition(keys, shift, needed);
    assert_eq!(offsets, want, "{what}");
    got_rows.truncate(places.len());
    got_keys.truncate(places.len());
    let row = |place: &u32| if rows { place ^ 0x5000_0000 } else { *place };
    assert!(got_rows == places.iter().map(row).collect::<Vec<_>>(), "{what}: rows");
    assert!(got_keys == places.iter().map(|at| keys[*at as usize]).collect::<Vec<_>>(), "{what}: keys");
}

/// Numbers of keys around rounds, steps and tiles; random digits, few, one, and one that nearly all have; all bits of a digit.
#[tokio::test]
async fn passes_are_stable() {
    for checks in [ShaderChecks::Bounds, ShaderChecks::All, ShaderChecks::None] {
        let scope = scope(&with_checks(checks));
        let mut rng = Rng::new(1);
        let sizes = [1, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 20_001, 70_000];
        for (number, size) in sizes.into_iter().enumerate() {
            let spread: [&dyn Fn(&mut Rng) -> u32; 4] = [
                &|rng| rng.next() as u32,
                &|rng| [0, 0xffff_ffff, 0x8040_2010][rng.below(3)],
                &|_| 0x1234_5679,
                &|rng| if rng.one_in(50) { rng.next() as u32 } else { 0x0101_0101 },
            ];
            for (kind, make) in spread.into_iter().enumerate() {
                let keys: Vec<u32> = (0..size).map(|_| make(&mut rng)).collect();
                let (shift, needed) = [(24, 0), (0, 0), (16, 1), (8, 3)][(kind + number) % 4];
                let what =
                    format!("{size} keys of kind {kind}, bits from {shift}, {needed} needed, {checks:?}");
                check_pass(&scope, &keys, kind % 2 == 0, shift, needed, &what).await;
            }
        }
    }
}

/// A key column, and its words as kernels hash them.
fn keyed(rows: usize, values: usize, nulls: usize, rng: &mut Rng) -> (ArrayRef, Vec<Vec<u32>>) {
    let pool: Vec<i64> = (0..values).map(|_| rng.next() as i64).collect();
    let keys: Vec<Scalar> =
        (0..rows).map(|_| (rng.below(100) >= nulls).then(|| pool[rng.below(values)].into())).collect();
    let nullable = keys.contains(&None);
    let words = |key: &Scalar| {
        let value = key.unwrap_or(0);
        let null = nullable.then_some(u32::from(key.is_none()));
        [value as u32, (value >> 32) as u32].into_iter().chain(null).collect()
    };
    let words = keys.iter().map(words).collect();
    (array_of(Int64, &keys).expect("array"), words)
}

/// The selected rows, all of them, in the order of one and of two bytes of their hashes.
#[tokio::test]
async fn selected_rows_by_their_hashes() {
    let scope = scope(&device());
    let mut rng = Rng::new(2);
    let keys = [GroupKey::Value(col(0, Int64))];
    let cases = [(1, 1, 0, 9), (5000, 5000, 10, 5), (5000, 1, 0, 10), (9000, 40, 50, 0), (70_001, 900, 0, 7)];
    for (rows, values, nulls, limit) in cases {
        let (key, words) = keyed(rows, values, nulls, &mut rng);
        let filter: Vec<Scalar> = (0..rows).map(|_| Some(rng.below(10) as i128)).collect();
        let kept: Vec<bool> = filter.iter().map(|value| value.is_some_and(|value| value < limit)).collect();
        let columns = [key, array_of(Int32, &filter).expect("array")];
        let segment = segment(&scope, &columns, rows).await.expect("upload");
        let selection = Some(cmp(CompareOp::Lt, col(1, Int32), param(0, Int32)));
        let some = Program { selection, params: vec![(Int32, Some(limit))] };
        for (program, all) in [(some, false), (Program::default(), true)] {
            for (bytes, seed) in [(1, 0), (2, 0), (2, 7)] {
                let got = partition(&scope, &program, &keys, &segment, bytes, seed).await.expect("partition");
                let what = format!("{rows} rows of {values} keys, {bytes} bytes, seed {seed}, below {limit}");
                assert!(!got.fault, "{what}");
                let hash = |row: usize| twin::hash(&words[row], seed);
                let mut want: Vec<u32> =
                    (0..rows).filter(|row| all || kept[*row]).map(|row| row as u32).collect();
                want.sort_by_key(|row| hash(*row as usize) >> (32 - 8 * bytes));
                assert_eq!(got.selected(), want.len(), "{what}");
                let begin = |part: usize| want.partition_point(|row| hash(*row as usize) >> 24 < part as u32);
                assert_eq!(
                    got.offsets,
                    (0..257).map(|part| begin(part) as u32).collect::<Vec<_>>(),
                    "{what}"
                );
                let encoder = scope.context.device().create_command_encoder(&Default::default());
                let read = download(&scope, encoder, &[(&got.rows, want.len() as u64 * 4)]).await;
                let read: Vec<u32> = bytemuck::pod_collect_to_vec(&read.expect("download")[0]);
                assert!(read == want, "{what}: rows");
            }
        }
    }
}

/// A fault under the selection is told, one outside of it is not.
#[tokio::test]
async fn faults() {
    let scope = scope(&device());
    let values = |at: usize| Some(if at == 40 { i64::MIN.into() } else { at as i128 });
    let columns = [array_of(Int64, &(0..100).map(values).collect::<Vec<_>>()).expect("array")];
    let segment = segment(&scope, &columns, 100).await.expect("upload");
    let negated = call(crate::kernels::expr::IntegerFn::Abs, vec![col(0, Int64)], Int64);
    for (least, fault) in [(i64::MIN, true), (0, false)] {
        let selection = Some(cmp(CompareOp::GtEq, col(0, Int64), param(0, Int64)));
        let program = Program { selection, params: vec![(Int64, Some(least.into()))] };
        let keys = [GroupKey::Value(Arc::clone(&negated))];
        let got = partition(&scope, &program, &keys, &segment, 1, 0).await.expect("partition");
        assert_eq!(got.fault, fault, "at least {least}");
    }
}

/// Short loops, few workgroups a dimension; too few buffers are an error.
#[tokio::test]
async fn lowered_limits() {
    let full = device();
    let keys = [GroupKey::Value(col(0, Int64))];
    let lower: [fn(&mut DeviceCaps); 3] = [
        |caps| caps.loop_budget = 200,
        |caps| caps.max_workgroups_per_dimension = 3,
        |caps| caps.max_storage_buffers = 7,
    ];
    for (number, lower) in lower.into_iter().enumerate() {
        let mut caps = full.caps().as_ref().clone();
        lower(&mut caps);
        let scope = scope(&full.with_caps(caps));
        let (key, words) = keyed(30_000, 777, 0, &mut Rng::new(3));
        let segment = segment(&scope, &[key], 30_000).await.expect("upload");
        let got = partition(&scope, &Program::default(), &keys, &segment, 2, 1).await;
        let Ok(got) = got else {
            assert!(matches!(got, Err(GpuError::Limit { need: 8, limit: 7, .. })), "{got:?}");
            assert_eq!(number, 2);
            continue;
        };
        let ends = (1..257).map(|part| words.iter().filter(|w| twin::hash(w, 1) >> 24 < part).count() as u32);
        assert_eq!(got.offsets[1..], ends.collect::<Vec<_>>(), "limit {number}");
        assert!(number < 2);
    }
}

/// What is held stays below what is announced.
#[tokio::test]
async fn memory_is_announced() {
    // Without guard bands, which take more.
    let scope = crate::memory::testing::scope(&crate::memory::testing::device());
    for (rows, bytes) in [(1, 1), (1, 2), (5000, 2), (60_000, 1), (60_000, 2)] {
        let (key, _) = keyed(rows, rows, 0, &mut Rng::new(4));
        let segment = segment(&scope, &[key], rows).await.expect("upload");
        let ledger = DeviceLedger::detached(1 << 40);
        let own = LaunchScope { memory: MemoryScope::new(&ledger, "test", u64::MAX), ..scope.clone() };
        let keys = [GroupKey::Value(col(0, Int64))];
        drop(partition(&own, &Program::default(), &keys, &segment, bytes, 0).await.expect("partition"));
        let need = partition_bytes(rows, bytes);
        assert!(ledger.peak() <= need, "{rows} rows, {bytes} bytes: {} of {need}", ledger.peak());
    }
}

#[test]
fn shaders_are_valid() {
    let types: Vec<ValueType> = TYPES.iter().chain(&OTHERS).copied().collect();
    for (index, &ty) in types.iter().enumerate() {
        for (nullable, buffers) in [(false, 8), (true, 4), (true, 500_000)] {
            let caps = DeviceCaps { max_storage_buffers: buffers, ..DeviceCaps::for_tests() };
            let shape = ColumnShape {
                index,
                ty,
                repr: crate::memory::upload::representation(ty),
                nullable,
                magnitude: crate::memory::MagnitudeBits(128),
                packed: false,
            };
            let keys = [GroupKey::Value(col(index, ty)), GroupKey::Value(col(index, ty))];
            let selection = Some(Arc::new(crate::kernels::expr::Expr::IsNotNull(col(index, ty))));
            let program = Program { selection, params: vec![] };
            for shader in partition_shaders(&caps, &program, &keys, &[shape]).expect("shaders") {
                validate(&shader);
            }
        }
    }
}
