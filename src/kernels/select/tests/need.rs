//! What a selection asks for against what it holds.

use super::*;

/// What a work asks for is what it holds: no less, or it is refused half way, and not much more, or others wait for nothing.
#[tokio::test]
async fn the_need_covers_what_is_held() {
    // Without guard bands, which take memory of their own.
    let device = testing::device();
    let mut rng = Rng::new(7);
    let types = [UInt8, Int64, Boolean, Decimal { precision: 20, scale: 2 }, Int32];
    let all: Vec<Arc<Expr>> = types.iter().enumerate().map(|(at, &ty)| col(at, ty)).collect();
    for rows in [1, 1000, 5000, 70_000] {
        let shape = DataShape { nulls: 20, edgy: 3, offset: 0 };
        let columns = table(&types, rows, shape, &mut rng);
        for percent in [None, Some(3), Some(100)] {
            let program = percent.map_or_else(Program::default, |percent| share(percent, 0));
            for outputs in [&all[..], &all[2..3], &all[..0]] {
                if outputs.is_empty() && percent.is_none() {
                    continue;
                }
                let input = testing::scope(&device);
                let segment = segment(&input, &columns, rows).await.expect("upload");
                let ledger = DeviceLedger::detached(u64::MAX);
                let mut scope = testing::scope(&device);
                scope.memory = MemoryScope::new(&ledger, "select", u64::MAX);
                select(&scope, &program, outputs, std::slice::from_ref(&segment)).await.expect("select");
                let shapes = column_shapes(&(0..types.len()).collect(), [&segment]).expect("shapes");
                let need = select_bytes(device.caps().max_storage_buffers, &program, outputs, &shapes, rows);
                let peak = ledger.peak();
                let what = format!("{rows} rows, {percent:?}, {} outputs: {need} for {peak}", outputs.len());
                assert!(peak <= need, "{what}");
                assert!(need <= 2 * peak + 16_384 || percent == Some(3), "{what}");
            }
        }
    }
}

/// Columns that share a buffer are held twice.
#[tokio::test]
async fn the_need_counts_packed_columns() {
    let device = testing::device();
    let caps = DeviceCaps { max_storage_buffers: 8, ..device.caps().as_ref().clone() };
    let device = device.with_caps(caps);
    let rows = 70_000;
    let mut rng = Rng::new(11);
    let columns = table(&[Int64; 4], rows, DataShape { nulls: 20, edgy: 3, offset: 0 }, &mut rng);
    let pair = |at: usize| (col(at, Int64), col(at + 1, Int64));
    let less = |(left, right)| cmp(CompareOp::Lt, left, right);
    let sum = |(left, right)| arith(ArithOp::Add, left, right);
    let selection = Arc::new(Expr::Or(less(pair(0)), less(pair(2))));
    let outputs = [sum(pair(0)), sum(pair(2)), col(0, Int64)];
    let segment = segment(&testing::scope(&device), &columns, rows).await.expect("upload");
    let shapes = column_shapes(&(0..4).collect(), [&segment]).expect("shapes");
    for (program, outputs, copies) in [
        (Program { selection: Some(selection), params: vec![] }, &outputs[..], 4 + 2 + 2),
        (Program::default(), &outputs[2..], 0),
    ] {
        let ledger = DeviceLedger::detached(u64::MAX);
        let mut scope = testing::scope(&device);
        scope.memory = MemoryScope::new(&ledger, "select", u64::MAX);
        select(&scope, &program, outputs, std::slice::from_ref(&segment)).await.expect("select");
        let need = select_bytes(device.caps().max_storage_buffers, &program, outputs, &shapes, rows);
        let unpacked = select_bytes(u32::MAX, &program, outputs, &shapes, rows);
        let peak = ledger.peak();
        assert!(peak <= need && need <= 2 * peak, "{need} for {peak}");
        assert!(need - unpacked >= copies * 8 * rows as u64, "{need} and {unpacked}");
        assert_eq!(need == unpacked, copies == 0, "{need} and {unpacked}");
    }
}
