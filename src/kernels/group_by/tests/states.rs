//! What records hold: no more words than states need, and what tells whether a group has rows.

use super::*;
use crate::kernels::group_by::accumulate::{Fold, Told};

/// Columns 0 to 2 without NULL and 3 to 5 with, in pairs of the same type.
fn shapes() -> Vec<ColumnShape> {
    let types = [Int64, Int32, dec(15, 2), Int64, Int32, dec(15, 2)];
    let shape = |(index, ty): (usize, ValueType)| ColumnShape {
        index,
        ty,
        repr: if is_decimal(ty) { ColumnRepr::DecimalNarrow } else { ColumnRepr::Arrow },
        nullable: index > 2,
        magnitude: MagnitudeBits(if is_decimal(ty) { 20 } else { 63 }),
        packed: false,
    };
    types.into_iter().enumerate().map(shape).collect()
}

/// Folds of a record over rows of `shapes`, in order, and the text of the kernel that accumulates.
fn folds(aggregates: Vec<AggregateSpec>, uncounted: &[usize]) -> (Vec<Fold>, String) {
    let (caps, program) = (DeviceCaps::for_tests(), Program::default());
    let by = {
        let uncounted = uncounted.iter().copied().collect();
        GroupBy { keys: vec![key(1, Int32)], aggregates, uncounted, ..GroupBy::default() }
    };
    let used = columns_used(&program, &by);
    let columns: Vec<ColumnShape> = shapes().into_iter().filter(|c| used.contains(&c.index)).collect();
    for shader in group_by_shaders(&caps, &program, &by, &columns, &groups(1000)).expect("shaders") {
        validate(&shader);
    }
    let plan =
        Plan::build(&caps, &program, &by, &columns, 1 << 20, &groups(1000), Form::PLAIN).expect("plan");
    (plan.accumulators.into_iter().map(|acc| acc.fold).collect(), plan.accumulate.shader.wgsl)
}

fn sum(words: u32) -> Fold {
    Fold::Sum { words, signed: true }
}

fn bits(told: Vec<Told>, stored: bool) -> Fold {
    Fold::Seen { stored, told }
}

/// A sum of what is never NULL is the only thing that a row adds; others share a word of bits, unless rows are counted all the same.
#[test]
fn rows_are_counted_where_their_number_is_needed() {
    let sums = |index| agg(AggregateKind::SumInt, col(index, Int64));
    let decimals = |index| agg(AggregateKind::SumDecimal, col(index, dec(15, 2)));
    assert_eq!(folds(vec![sums(0)], &[]).0, [sum(2)]);
    assert_eq!(folds(vec![decimals(2)], &[0]).0, [sum(2)]);
    assert_eq!(folds(vec![decimals(2)], &[]).0, [Fold::Count, sum(2)]);
    let (nullable, text) = folds(vec![sums(3), agg(AggregateKind::BitOr, col(4, Int32))], &[]);
    assert!(matches!(
        nullable.as_slice(),
        [Fold::Sum { .. }, Fold::Bits { .. }, Fold::Seen { stored: true, .. }]
    ));
    assert!(text.contains("select(0u, 1u, n") && text.contains("select(0u, 2u, n"), "{text}");
    let counted = folds(vec![sums(3), agg(AggregateKind::Count, col(3, Int64))], &[]).0;
    assert_eq!(counted, [sum(2), Fold::Count]);
    // A row's number is not 0.
    let best = folds(vec![agg(AggregateKind::Max, col(3, Int64))], &[]).0;
    let told = vec![Told { bit: 0, words: vec![0] }];
    assert_eq!(best, [Fold::Best { min: false, function: 0 }, bits(told, false)]);
    assert_eq!(folds(vec![], &[]).0, []);
}

/// Sum and average of one argument have one sum.
#[test]
fn equal_sums_are_one() {
    let decimals = |index| agg(AggregateKind::SumDecimal, col(index, dec(15, 2)));
    assert_eq!(folds(vec![decimals(2), decimals(2)], &[0]).0, [sum(2), Fold::Count]);
    assert_eq!(folds(vec![decimals(5), decimals(5)], &[1]).0, [Fold::Count, sum(2)]);
    let ints = |kind| agg(kind, col(1, Int32));
    let (both, _) = folds(vec![ints(AggregateKind::SumInt), ints(AggregateKind::SumAsFloat64)], &[]);
    assert_eq!(both, [sum(2), Fold::Count, sum(2)]);
}

/// More conditions than a word has bits, in all strategies: filters that no, some and all rows of a group pass.
#[tokio::test]
async fn many_conditions() {
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    let kinds = [AggregateKind::SumInt, AggregateKind::Min, AggregateKind::Max, AggregateKind::BitXor];
    let params: Vec<(ValueType, Scalar)> = (0..40).map(|at| (Int32, Some(at * 5 - 20))).collect();
    let aggregates = (0..40).map(|at| AggregateSpec {
        filter: Some(cmp(CompareOp::Lt, col(1, Int32), param(at, Int32))),
        ..agg(kinds[at % 4], if at % 3 == 0 { col(2, Int64) } else { col(1, Int32) })
    });
    let by = GroupBy { keys: vec![key(0, Int64)], aggregates: aggregates.collect(), ..GroupBy::default() };
    let program = Program { selection: None, params };
    let mut rng = Rng::new(21);
    let rows = 3000;
    for (scope, many) in scopes.iter().zip([3, 700]) {
        let digits: Vec<Scalar> = (0..rows).map(|_| Some(rng.below(150) as i128)).collect();
        let columns = [
            keys_below(many, rows, &mut rng),
            array_of(Int32, &digits).expect("array"),
            pooled(Int64, rows, 50, 30, &mut rng),
        ];
        let range = vec![Some(KeyRange { min: 0, max: many as i128 - 1 })];
        let parted = GroupHint { partitioned: Some(true), ..groups(many) };
        for hint in [groups(many), groups(100_000), GroupHint { ranges: range, ..groups(many) }, parted] {
            let what = format!("{many} groups, {hint:?}");
            let result = check(scope, &program, &by, &columns, rows, &hint, &what).await;
            assert!(result.states[0].counts.iter().all(|count| *count == 0), "{what}: below -20");
        }
    }
}

/// Sums that go through zero, word by word: of every width, by values near powers of two, in few groups and many.
#[tokio::test]
async fn signed_sums_carry() {
    let scope = scope(&device());
    let types = [Int8, Int32, Int64, dec(9, 2), dec(18, 0), dec(38, 4)];
    let sums = types.iter().enumerate().map(|(at, &ty)| match is_decimal(ty) {
        true => agg(AggregateKind::SumDecimal, col(at + 1, ty)),
        false => agg(AggregateKind::SumInt, col(at + 1, ty)),
    });
    let averages = [Int32, Int64].iter().zip([2, 3]);
    let averages = averages.map(|(&ty, at)| agg(AggregateKind::SumAsFloat64, col(at, ty)));
    let aggregates = sums.chain(averages).collect();
    let uncounted = BTreeSet::from([4, 6]);
    let by = GroupBy { keys: vec![key(0, Int64)], aggregates, uncounted, ..GroupBy::default() };
    let mut rng = Rng::new(31);
    let rows = 4000;
    for many in [1, 5, 900] {
        let mut columns = vec![keys_below(many, rows, &mut rng)];
        for (ty, bits) in types.into_iter().zip([7, 31, 63, 29, 59, 120]) {
            let values = (0..rows).map(|row| {
                let power = 1i128 << [bits, 32, 1, 16][row / 2 % 4].min(bits);
                // Pairs that end each other, but for a bit now and then.
                let value = (power - 1 - i128::from(rng.one_in(9))).max(0);
                Some(if row % 2 == 0 { value } else { -value })
            });
            columns.push(array_of(ty, &values.collect::<Vec<Scalar>>()).expect("array"));
        }
        for hint in [groups(many), groups(100_000), GroupHint { partitioned: Some(true), ..groups(many) }] {
            check(&scope, &Program::default(), &by, &columns, rows, &hint, &format!("{many}, {hint:?}"))
                .await;
        }
    }
}
