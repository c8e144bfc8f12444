//! What look-up tables and lists take on the device: a copy for each kernel that reads some, and none for others.

use super::*;
use crate::kernels::group_by::group_by_bytes;
use crate::kernels::program::column_shapes;
use crate::kernels::select::select_bytes;
use crate::kernels::{GroupBy, GroupHint, GroupKey, group_by, table_copy_bytes};
use crate::memory::{DeviceLedger, GpuDevice, MemoryScope, testing};

const LEN: usize = 1 << 15;
const ROWS: usize = 1000;
/// Bytes of a list that fill a size class, and of one that is just above it.
const LISTS: [usize; 2] = [5 << 16, (5 << 16) + 16];

/// `n IN (..)` over column 0, by a list of so many bytes, and `n`.
async fn searched(scope: &LaunchScope, bytes: usize) -> ([Arc<Expr>; 2], Segment, u64) {
    let values: Vec<Scalar> = (0..LEN as i128).map(|at| Some(2 * at)).collect();
    let mut words = pack_list(ValueType::Int64, &values, LEN);
    assert!(words.len() <= bytes / 4);
    words.resize(bytes / 4, 0);
    let numbers: Vec<Scalar> = (0..ROWS as i128).map(Some).collect();
    let numbers = crate::kernels::select::array_of(ValueType::Int64, &numbers).expect("array");
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
    let host = RecordBatch::try_new(Arc::clone(&schema), vec![numbers]).expect("batch");
    let mut batch = GpuBatch::new(Arc::new(SourceBatch::new(schema, vec![host])));
    let table = batch.add_list(words.into());
    let n = col(0, ValueType::Int64);
    let found = Arc::new(Expr::InSorted { expr: Arc::clone(&n), table, len: LEN, negated: false });
    let bytes = batch.table_len(&BTreeSet::from([table]));
    let exprs = [found as Arc<Expr>, n];
    let segment = on_device(scope, &mut batch, &exprs).await;
    (exprs, segment, bytes)
}

/// A scope with a ledger of its own.
fn counted(device: &Arc<GpuDevice>) -> (LaunchScope, Arc<DeviceLedger>) {
    let ledger = DeviceLedger::detached(u64::MAX);
    let memory = MemoryScope::new(&ledger, "tables", u64::MAX);
    (LaunchScope { memory, ..testing::scope(device) }, ledger)
}

/// As many copies as kernels that read the list, each of the class into which it falls with the arguments before it.
#[tokio::test]
async fn kernels_that_read_tables_have_a_copy_of_them() {
    // Without guard bands, which take memory of their own.
    let device = testing::device();
    let tables = BTreeSet::from([0]);
    for list in LISTS {
        let ([found, n], segment, bytes) = searched(&testing::scope(&device), list).await;
        let selecting = Program { selection: Some(Arc::clone(&found)), params: vec![] };
        let all = Program::default();
        let copy = table_copy_bytes(&all, 1, &tables, bytes);
        assert!(copy > list as u64 && bytes == list as u64);
        for (program, outputs, copies) in [
            (&selecting, vec![Arc::clone(&n)], 1),
            (&selecting, vec![], 1),
            (&selecting, vec![Arc::clone(&found)], 2),
            (&all, vec![Arc::clone(&found), Arc::clone(&n)], 1),
            (&all, vec![Arc::clone(&n)], 0),
        ] {
            let (scope, ledger) = counted(&device);
            let selected = select(&scope, program, &outputs, std::slice::from_ref(&segment)).await;
            let want = if program.selection.is_some() { ROWS / 2 } else { ROWS };
            assert_eq!(selected.expect("select")[0].selected, want);
            let shapes = column_shapes(&BTreeSet::from([0]), [&segment]).expect("shapes");
            let own = select_bytes(u32::MAX, program, &outputs, &shapes, ROWS);
            let (peak, what) = (ledger.peak(), format!("{list} bytes, {} outputs", outputs.len()));
            assert!(peak <= own + copies * copy, "{what}: {peak} of {own} + {copies} * {copy}");
            assert!((copies * copy..(copies + 1) * copy).contains(&peak), "{what}: {peak} of {copy}");
        }

        let count = |expr: &Arc<Expr>| AggregateSpec {
            kind: AggregateKind::Count,
            arg: Some(Arc::clone(expr)),
            filter: None,
        };
        let (scope, ledger) = counted(&device);
        let reduced = reduce(&scope, &selecting, &[count(&n)], std::slice::from_ref(&segment)).await;
        assert_eq!(reduced.expect("reduce")[0].states[0].count, ROWS as u64 / 2);
        assert!((copy..copy + (1 << 16)).contains(&ledger.peak()), "{} of {copy}", ledger.peak());

        // The gathering kernel reads keys again, which may be of a list.
        for (key, copies) in [(&n, 1), (&found, 2)] {
            let by = GroupBy {
                keys: vec![GroupKey::Value(Arc::clone(key))],
                aggregates: vec![count(&found)],
                ..GroupBy::default()
            };
            let (scope, ledger) = counted(&device);
            let hint = GroupHint { partitioned: Some(false), ..GroupHint::default() };
            group_by(&scope, &all, &by, &segment, &hint).await.expect("group_by");
            let (own, peak) = (group_by_bytes(&all, &by, ROWS, &hint), ledger.peak());
            assert!(peak <= own + copies * copy, "{peak} of {own} + {copies} * {copy}");
            assert!((copies * copy..(copies + 1) * copy).contains(&peak), "{peak} of {copies} * {copy}");
        }
    }
}

/// Parts of a batch have its tables: fewer rows make them no smaller.
#[tokio::test]
async fn tables_beyond_a_binding_are_too_large_for_any_rows() {
    let full = device();
    let with = |max_binding_bytes| {
        scope(&full.with_caps(DeviceCaps { max_binding_bytes, ..full.caps().as_ref().clone() }))
    };
    let too_large = |error: &GpuError| {
        matches!(error, GpuError::Limit { what: "bytes of look-up tables", by_rows: false, .. })
    };
    let list = LISTS[0] as u64;
    // As they are, and behind arguments.
    let ([found, _], segment, _) = searched(&with(list), LISTS[0]).await;
    let error = select(&with(list), &Program::default(), &[found], &[segment]).await.expect_err("a copy");
    assert!(too_large(&error), "{error:?}");
    let mut batch = GpuBatch::new(Arc::new(SourceBatch::new(Arc::new(Schema::empty()), vec![])));
    let table = batch.add_list(vec![0; LISTS[0] / 4].into());
    let error = batch.device_tables(&with(list - 16), &BTreeSet::from([table])).await.expect_err("a list");
    assert!(too_large(&error), "{error:?}");
}
