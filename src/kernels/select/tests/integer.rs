//! Functions of the integer family and CASE on the device, against their twins.

use arrow::array::AsArray;

use crate::kernels::expr::{ExtremeFn, IntegerFn, widths};
use crate::kernels::table::pack_list;

use super::*;

const EXTREMES: [ExtremeFn; 2] = [ExtremeFn::Greatest, ExtremeFn::Least];
const INTEGERS: [ValueType; 8] = [Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];

fn array(ty: ValueType, values: &[Scalar]) -> ArrayRef {
    array_of(ty, values).expect("array")
}

/// Operators on all pairs of edge values that have a result, around the size of a workgroup and with odd offsets.
#[tokio::test]
async fn operators_on_edge_pairs() {
    use IntegerFn::*;
    let functions = [Divide, Remainder, BitAnd, BitOr, BitXor, ShiftLeft, ShiftRight];
    let scopes = CHECKS.map(|checks| scope(&with_checks(checks)));
    for types in INTEGERS.chunks(4) {
        let (mut columns, mut outputs) = (vec![], vec![]);
        for &ty in types {
            let (left, right) = edge_pairs(ty, ty);
            let pairs = left.into_iter().zip(right).filter(|(x, y)| {
                let minimum = edges(ty).into_iter().min();
                *y != Some(0) && !(widths::is_signed(ty) && *x == minimum && *y == Some(-1))
            });
            let (left, right): (Vec<Scalar>, Vec<Scalar>) = pairs.unzip();
            let (l, r) = (col(columns.len(), ty), col(columns.len() + 1, ty));
            outputs.extend(functions.map(|f| call(f, vec![Arc::clone(&l), Arc::clone(&r)], ty)));
            outputs.extend(EXTREMES.map(|f| extreme(f, vec![Arc::clone(&l), Arc::clone(&r)])));
            columns.extend([(ty, left), (ty, right)]);
        }
        let data: Vec<Data> = [1, 255, 256, 257, 900]
            .into_iter()
            .map(|rows| {
                let cycled = |(ty, values): &(ValueType, Vec<Scalar>)| {
                    let long: Vec<Scalar> = values.iter().copied().cycle().take(rows + 5).collect();
                    array(*ty, &long).slice(5, rows)
                };
                (columns.iter().map(cycled).collect(), rows)
            })
            .collect();
        let program = Program::default();
        let twin = twin_answer(&program, &outputs, &data);
        assert!(twin.iter().all(|result| !result.fault));
        for (scope, checks) in scopes.iter().zip(CHECKS) {
            let device = answer(scope, &program, &outputs, &data).await;
            assert_equal(&device, &twin, &format!("{types:?}, checks {checks:?}"));
        }
    }
}

/// One segment a pair, since a fault voids its segment: exactly those fault that have no result.
#[tokio::test]
async fn faults_of_division_and_absolute_values() {
    let scope = scope(&device());
    for ty in [Int8, Int32, Int64, UInt8, UInt64] {
        let (left, right) = edge_pairs(ty, ty);
        let data: Vec<Data> = left
            .into_iter()
            .zip(right)
            .filter(|(_, y)| y.is_none_or(|y| (-1..2).contains(&y)))
            .map(|(x, y)| (vec![array(ty, &[Some(1), x]), array(ty, &[Some(1), y])], 2))
            .collect();
        let mut faults = 0;
        for function in [IntegerFn::Divide, IntegerFn::Remainder, IntegerFn::Abs] {
            let args =
                if function == IntegerFn::Abs { vec![col(0, ty)] } else { vec![col(0, ty), col(1, ty)] };
            let expr = call(function, args, ty);
            if crate::kernels::expr::check(&expr).is_err() {
                continue;
            }
            let outputs = [expr];
            let device = answer(&scope, &Program::default(), &outputs, &data).await;
            faults += device.iter().filter(|result| result.fault).count();
            assert_same(&device, &Program::default(), &outputs, &data, &format!("{function:?} of {ty:?}"));
        }
        assert!(faults > 0 && faults < 3 * data.len(), "{faults} faults of {ty:?}");
    }
}

/// Rounding to powers of ten, which are data; a segment for all values that stay in range, and one for each of some that don't.
#[tokio::test]
async fn rounding_to_powers_of_ten() {
    let scope = scope(&device());
    for ty in INTEGERS {
        let (low, high) = (edges(ty).into_iter().min(), edges(ty).into_iter().max());
        let inside = |v: &i128| low <= Some(*v) && Some(*v) <= high;
        let powers: Vec<i128> = (0..20).map(|n| 10i128.pow(n)).filter(inside).chain([0]).collect();
        let around = powers.iter().flat_map(|&p| [p, p / 2, p / 2 * 3, p * 5 / 2]);
        let around = around.flat_map(|v| [v - 1, v, v + 1, -v - 1, -v, 1 - v]).chain(edges(ty));
        let values: Vec<Scalar> = around.filter(inside).map(Some).chain([None]).collect();
        let outputs = [call(IntegerFn::Round, vec![col(0, ty), param(0, ty)], ty)];
        let (mut faults, mut compiled) = (0, vec![]);
        for factor in powers.into_iter().map(Some).chain([None]) {
            let program = Program { selection: None, params: vec![(ty, factor)] };
            let fits =
                |v: &Scalar| reference::eval(&outputs[0], &program.params, &[array(ty, &[*v])], 0).is_ok();
            let (good, bad): (Vec<Scalar>, Vec<Scalar>) = values.iter().copied().partition(fits);
            faults += bad.len();
            let mut data = vec![(vec![array(ty, &good)], good.len())];
            data.extend(bad.into_iter().step_by(3).map(|v| (vec![array(ty, &[Some(0), v, None])], 3)));
            let device = answer(&scope, &program, &outputs, &data).await;
            assert_same(&device, &program, &outputs, &data, &format!("{ty:?}, {factor:?}"));
            compiled.push(scope.stats.pipelines_compiled.load(std::sync::atomic::Ordering::Relaxed));
        }
        assert!(faults > 0, "{ty:?}");
        assert_eq!(compiled.first(), compiled.last(), "{ty:?}: {compiled:?}");
    }
}

/// TRY_CAST of everything in one shader a source type; CAST a segment a value.
#[tokio::test]
async fn casts_in_all_directions() {
    let scope = scope(&device());
    let types = [INTEGERS.as_slice(), &[Boolean]].concat();
    for &from in &types {
        let range = edges(from);
        let inside = |v: &i128| range.iter().min() <= Some(v) && Some(v) <= range.iter().max();
        let around = types.iter().flat_map(|&ty| edges(ty)).flat_map(|v| [v - 1, v, v + 1]);
        let values: Vec<Scalar> = around.filter(inside).map(Some).chain([None]).collect();
        let data = vec![(vec![array(from, &values)], values.len())];
        let convert = |safe, to| call(IntegerFn::Convert { safe }, vec![col(0, from)], to);
        let outputs: Vec<Arc<Expr>> = types.iter().map(|&to| convert(true, to)).collect();
        let device = answer(&scope, &Program::default(), &outputs, &data).await;
        assert_same(&device, &Program::default(), &outputs, &data, &format!("TRY_CAST of {from:?}"));

        if !matches!(from, Int16 | Int32 | Int64 | UInt64) {
            continue;
        }
        let data: Vec<Data> = edges(from)
            .into_iter()
            .flat_map(|v| [v, v / 2])
            .map(|v| (vec![array(from, &[None, Some(v)])], 2))
            .collect();
        for to in [Int8, UInt8, Int32, UInt32, Int64, UInt64] {
            let outputs = [convert(false, to)];
            let device = answer(&scope, &Program::default(), &outputs, &data).await;
            assert_same(
                &device,
                &Program::default(),
                &outputs,
                &data,
                &format!("CAST of {from:?} to {to:?}"),
            );
        }
    }
}

/// Greatest and least of every type, NULLs among them, and CASE over every type.
#[tokio::test]
async fn extremes_and_cases_of_every_type() {
    let scope = scope(&device());
    for types in TYPES.chunks(6) {
        let (mut columns, mut outputs, mut rows) = (vec![], vec![], 0);
        for &ty in types {
            let (left, right) = edge_pairs(ty, ty);
            let (l, r) = (col(columns.len(), ty), col(columns.len() + 1, ty));
            rows = rows.max(left.len());
            columns.extend([(ty, left), (ty, right)]);
            outputs.extend(EXTREMES.map(|f| extreme(f, vec![Arc::clone(&l), Arc::clone(&r)])));
            let branches = vec![
                (cmp(CompareOp::Lt, Arc::clone(&l), Arc::clone(&r)), Arc::clone(&r)),
                (Arc::new(Expr::IsNull(Arc::clone(&l))), Arc::clone(&r)),
            ];
            outputs.push(Arc::new(Expr::Case { branches: branches.clone(), otherwise: Some(l), ty }));
            outputs.push(Arc::new(Expr::Case { branches, otherwise: None, ty }));
        }
        let padded = |(ty, values): (ValueType, Vec<Scalar>)| {
            array(ty, &values.iter().copied().cycle().take(rows).collect::<Vec<_>>())
        };
        let data = vec![(columns.into_iter().map(padded).collect(), rows)];
        let device = answer(&scope, &Program::default(), &outputs, &data).await;
        assert_same(&device, &Program::default(), &outputs, &data, &format!("{types:?}"));
    }
}

/// Faults count for the rows that meet them: a condition for rows that no branch took before, a value for rows that take
/// it. One segment a row of all combinations.
#[tokio::test]
async fn faults_of_cases() {
    let scope = scope(&device());
    let ty = Int32;
    let few = [None, Some(0), Some(1), Some(7)];
    let data: Vec<Data> = few
        .iter()
        .flat_map(|&a| few.iter().map(move |&b| (a, b)))
        .flat_map(|(a, b)| few.iter().map(move |&c| [a, b, c]))
        .map(|row| (row.iter().map(|v| array(ty, &[*v])).collect(), 1))
        .collect();
    let (a, b, c) = (col(0, ty), col(1, ty), col(2, ty));
    let divide =
        |l: &Arc<Expr>, r: &Arc<Expr>| call(IntegerFn::Divide, vec![Arc::clone(l), Arc::clone(r)], ty);
    let not_zero = |e: &Arc<Expr>| cmp(CompareOp::NotEq, Arc::clone(e), param(0, ty));
    let one = |e: Arc<Expr>| cmp(CompareOp::Eq, e, param(1, ty));
    let case = |branches, otherwise| Arc::new(Expr::Case { branches, otherwise, ty });
    let guarded = case(vec![(not_zero(&b), divide(&a, &b))], None);
    let cases = [
        Arc::clone(&guarded),
        case(vec![(not_zero(&a), divide(&a, &b))], Some(divide(&b, &c))),
        case(
            vec![(not_zero(&b), Arc::clone(&a)), (one(divide(&a, &c)), Arc::clone(&b))],
            Some(divide(&c, &a)),
        ),
        case(vec![(one(Arc::clone(&guarded)), divide(&b, &c)), (not_zero(&c), Arc::clone(&guarded))], None),
        // A part that is shared, once guarded and once not.
        case(
            vec![(not_zero(&a), divide(&a, &b)), (one(divide(&a, &b)), Arc::clone(&c))],
            Some(Arc::clone(&b)),
        ),
    ];
    let mut program = Program { selection: None, params: vec![(ty, Some(0)), (ty, Some(1))] };
    for (number, expr) in cases.into_iter().enumerate() {
        let outputs = [Arc::clone(&expr)];
        let device = answer(&scope, &program, &outputs, &data).await;
        let faults = device.iter().filter(|result| result.fault).count();
        assert_eq!(faults > 0, number > 0, "case {number}: {faults} of {} faults", data.len());
        assert_same(&device, &program, &outputs, &data, &format!("case {number}"));
        program.selection = Some(one(expr));
        let device = answer(&scope, &program, &[], &data).await;
        assert_same(&device, &program, &[], &data, &format!("selection by case {number}"));
        program.selection = None;
    }
}

/// The segment with lists as its tables, one after another.
async fn with_lists(scope: &LaunchScope, segment: Segment, lists: Vec<Vec<u32>>) -> Segment {
    let source = crate::memory::batch::SourceBatch::new(Arc::new(arrow::datatypes::Schema::empty()), vec![]);
    let mut batch = crate::memory::batch::GpuBatch::new(Arc::new(source));
    let numbers = lists.into_iter().map(|words| batch.add_list(words.into())).collect();
    Segment { tables: batch.device_tables(scope, &numbers).await.expect("lists"), ..segment }
}

/// Binary search of every type, with and without NULL in the list, over values in the list, beside them and NULL: the answers of a
/// comparison with each candidate.
#[tokio::test]
async fn long_lists() {
    let scope = scope(&device());
    for types in TYPES.chunks(6) {
        let (mut columns, mut searches, mut comparisons) = (vec![], vec![], vec![]);
        let (mut lists, mut params) = (vec![], vec![]);
        for &ty in types {
            let mut rng = Rng::new(lists.len() as u64);
            let mut values: Vec<i128> = edges(ty).into_iter().step_by(2).collect();
            values.extend((0..40).map(|_| value(ty, &mut rng, 2)));
            let mut tested: Vec<Scalar> = values.iter().chain(&edges(ty)).copied().map(Some).collect();
            tested.extend((0..200).map(|_| Some(value(ty, &mut rng, 1))));
            tested.push(None);
            let needle = col(columns.len(), ty);
            let all = values.len();
            for (negated, from, nulls) in [
                (false, 0, 0),
                (true, 0, 0),
                (false, 3, 3),
                (true, 3, 1),
                (false, all, 2),
                (true, all - 1, 0),
            ] {
                let candidates: Vec<Scalar> =
                    values[from..].iter().copied().map(Some).chain(vec![None; nulls]).collect();
                let (first, table) = (params.len(), lists.len());
                params.extend(candidates.iter().map(|value| (ty, *value)));
                let list = (first..params.len()).map(|slot| param(slot, ty)).collect();
                comparisons.push(Arc::new(Expr::InList { expr: Arc::clone(&needle), list, negated }));
                lists.push(pack_list(ty, &candidates, 64));
                let expr = Arc::clone(&needle);
                searches.push(Arc::new(Expr::InSorted { expr, table, len: 64, negated }));
            }
            columns.push(array(ty, &tested.iter().copied().cycle().take(257).collect::<Vec<_>>()));
        }
        let twin = reference::select(&Program { selection: None, params }, &comparisons, &columns, 257);
        let twin = twin.expect("twin").outputs;
        let segment = segment(&scope, &columns, 257).await.expect("columns");
        let segment = with_lists(&scope, segment, lists).await;
        let device = select(&scope, &Program::default(), &searches, std::slice::from_ref(&segment)).await;
        assert_eq!(device.expect("select")[0].outputs, twin, "{types:?}");
        let some = Program { selection: Some(Arc::clone(&searches[0])), params: vec![] };
        let device = select(&scope, &some, &searches[1..2], &[segment]).await.expect("select");
        let want = twin[0].as_boolean();
        assert_eq!(device[0].selected, want.true_count(), "{types:?}");
    }
}

/// As many candidates as the lowering takes, and more than fit a block of arguments.
#[tokio::test]
async fn the_longest_list() {
    let full = device();
    let len = 1usize << 16;
    let values: Vec<Scalar> = (0..len as i128).map(|at| Some(at * 3 - 50_000)).collect();
    let tested: Vec<Scalar> = (0..1000i128).map(|at| Some(at * 211 - 60_000)).collect();
    let columns = [array(Int64, &tested), array(Int32, &tested)];
    let found = |value: &Scalar| values.binary_search(value).is_ok();
    let want: Vec<bool> = tested.iter().map(found).collect();
    for max_storage_buffers in [full.caps().max_storage_buffers, 8] {
        let caps = DeviceCaps { max_storage_buffers, ..full.caps().as_ref().clone() };
        let scope = scope(&full.with_caps(caps));
        let lists = [Int64, Int32].map(|ty| pack_list(ty, &values, len));
        let segment = segment(&scope, &columns, tested.len()).await.expect("columns");
        let segment = with_lists(&scope, segment, lists.to_vec()).await;
        let search =
            |table, ty| Arc::new(Expr::InSorted { expr: col(table, ty), table, len, negated: false });
        let outputs = [search(0, Int64), search(1, Int32)];
        let results = select(&scope, &Program::default(), &outputs, &[segment]).await.expect("select");
        for output in &results[0].outputs {
            let got: Vec<bool> = output.as_boolean().values().iter().collect();
            assert_eq!(got, want);
        }
        assert!(want.iter().filter(|found| **found).count() > 200);
    }
}
