//! Functions of string columns whose results only the host holds.

use super::*;
use crate::physical_plan::lookup::ExprFunction;

fn two_texts() -> SchemaRef {
    let fields = [("s", DataType::Utf8View), ("t", DataType::Utf8View), ("v", DataType::Int64)];
    Arc::new(Schema::new(fields.map(|(name, ty)| Field::new(name, ty, true)).to_vec()))
}

fn planned(sql: &str) -> Arc<dyn PhysicalExpr> {
    let schema = DFSchema::try_from(two_texts().as_ref().clone()).unwrap();
    let ctx = SessionContext::new();
    let expr = ctx.parse_sql_expr(sql, &schema).unwrap();
    ctx.create_physical_expr(expr, &schema).unwrap()
}

/// Both functions are known as look-ups of the host when they are compared, which no kernel can.
#[test]
fn results_of_the_host_are_not_compared() {
    let listed = in_list(planned("upper(s)"), vec![planned("upper(t)")], &false, &two_texts()).unwrap();
    for compared in [
        planned("upper(s) = upper(t)"),
        planned("upper(s) IS DISTINCT FROM upper(t)"),
        listed,
        planned("CASE WHEN upper(s) < upper(t) THEN 1 END"),
    ] {
        for counted in [false, true] {
            let mut lowering = Lowering::new(two_texts());
            for sql in ["upper(s)", "upper(t)"] {
                let known = match counted {
                    false => lowering.output(&planned(sql)),
                    true => lowering.presence(&planned(sql)),
                };
                assert_eq!(known.unwrap().value_type(), ValueType::Opaque);
            }
            let lowered = lowering.lower(&compared);
            assert!(lowered.is_err(), "{compared} is {lowered:?}");
            let reasons = lowering.finish(&DeviceCaps::for_tests(), lowered).unwrap_err();
            assert_eq!(reasons[0].code(), "UnsupportedExpression", "{compared}: {reasons:?}");
        }
    }
}

/// They are found again by who takes them from the host.
#[test]
fn results_of_the_host_share_a_table() {
    let mut lowering = Lowering::new(two_texts());
    let first = lowering.output(&planned("upper(s)")).unwrap();
    assert_eq!(lowering.output(&planned("upper(s)")).unwrap(), first);
    assert_eq!(lowering.presence(&planned("upper(s)")).unwrap(), first);
    let (_, params) = lowering.finish(&DeviceCaps::for_tests(), Ok(())).unwrap();
    assert_eq!(params.tables.len(), 1);
    let function: &dyn std::any::Any = params.tables[0].function.as_ref();
    assert_eq!(function.downcast_ref::<ExprFunction>().unwrap().ty, ValueType::Opaque);
}

/// WebGPU's default of eight storage buffers is enough for look-ups and lists, which lie behind the arguments.
#[test]
fn eight_storage_buffers_are_enough() {
    let caps = DeviceCaps { max_storage_buffers: 8, ..DeviceCaps::for_tests() };
    let list = (0..3_000).map(|v| v.to_string()).collect::<Vec<_>>().join(", ");
    for sql in [
        "CASE WHEN s LIKE 'a%' THEN v ELSE 0 END",
        "v * length(s)",
        "s = 'x' AND t = 'y' AND v > 3",
        &format!("CASE WHEN s LIKE 'a%' THEN v IN ({list}) END"),
    ] {
        let mut lowering = Lowering::new(two_texts());
        let lowered = lowering.output(&planned(sql));
        let (expr, params) =
            lowering.finish(&caps, lowered).unwrap_or_else(|reasons| panic!("{sql}: {reasons:?}"));
        assert!(!params.tables.is_empty() && !matches!(expr.as_ref(), Expr::Lookup { .. }), "{sql}");
    }
}
