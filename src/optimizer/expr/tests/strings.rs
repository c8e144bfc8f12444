//! Strings: functions of one column become tables, those of several decline.

use super::*;

/// A tree is cut at its largest parts over one string column.
#[test]
fn functions_of_one_string_column_become_tables() {
    let lookup = |table, ty, fallible| {
        Arc::new(Expr::Lookup {
            codes: Arc::new(Expr::Column { index: 11, ty: ValueType::Opaque }),
            table,
            ty,
            fallible,
        })
    };
    for sql in [
        "s = 'x'",
        "s LIKE 'a%'",
        "s NOT ILIKE '%b'",
        "s ~ '^a'",
        "s IN ('a', 'b', NULL)",
        "upper(s) = 'X'",
        "starts_with(s, 'a')",
        "s < 'b' OR length(s) > 3",
        "CASE s WHEN 'a' THEN true ELSE s > 'c' END",
        "s IS NULL OR s = ''",
        "s || '!' = 'a!'",
        "NOT (s = 'a')",
    ] {
        let (expr, params) = taken(sql);
        assert_eq!(expr, lookup(0, ValueType::Boolean, false), "{sql}");
        assert_eq!((params.tables.len(), params.tables[0].column, params.sources.len()), (1, 11, 0), "{sql}");
    }
    let (expr, _) = taken("CAST(s AS INT)");
    assert_eq!(expr, lookup(0, ValueType::Int32, true));
    let (expr, params) = taken("s LIKE 'a%' AND i32 > length(s) AND s LIKE 'a%'");
    assert_eq!(params.tables.len(), 2, "{expr:?}");
    assert_eq!(taken("s IS NULL").1.tables.len(), 0);
    // A changed literal is another table of the same expression.
    assert_eq!(taken("s = 'x' AND i64 > 1").0, taken("s = 'another' AND i64 > 2").0);
    for sql in ["s = CAST(i64 AS VARCHAR)", "s LIKE CAST(i8 AS VARCHAR)", "s = CAST(random() AS VARCHAR)"] {
        declined(sql);
    }
}

/// Each column has a dictionary of its own.
#[test]
fn strings_of_several_columns_are_declined() {
    let common = "strings of several columns have no dictionary in common";
    let made = "strings that depend on several columns have no dictionary";
    let mut wrong = vec![];
    for (sql, expression, why) in [
        ("s = t", "s@11 = ", common),
        ("i64 > 3 AND s < t", "s@11 < ", common),
        ("s IS DISTINCT FROM upper(t)", "s@11 IS DISTINCT FROM", common),
        ("s LIKE t", "s@11 LIKE", common),
        ("s ~ t", "s@11 ~ ", common),
        ("s IN ('a', t)", "s@11", common),
        ("starts_with(s, t)", "starts_with(", common),
        ("length(concat(s, t)) > 3", "concat(s@11", common),
        ("s || t", "s@11 || ", common),
        ("coalesce(s, t)", "s@11", common),
        ("CASE WHEN i64 > 3 THEN s ELSE t END", "THEN s@11", common),
        ("CASE WHEN i64 > 3 THEN s END", "THEN s@11", made),
        ("CASE WHEN s = 'a' THEN 'x' WHEN b THEN 'y' END", "CASE WHEN", made),
        ("s = CAST(i64 AS VARCHAR)", "CAST(i64@2", made),
        ("s LIKE concat(CAST(i8 AS VARCHAR), '%')", "s@11 LIKE", made),
        ("y = z", "y@14 = z@15", common),
    ] {
        let mut lowering = Lowering::new(schema());
        let lowered = lowering.output(&plan(sql));
        let reasons = lowering.finish(&DeviceCaps::for_tests(), lowered).unwrap_err();
        let [reason @ Reason::UnsupportedExpression { expression: found, why: told }] = reasons.as_slice()
        else {
            panic!("{sql}: {reasons:?}")
        };
        wrong.extend((told != why || !found.contains(expression)).then(|| format!("{sql}: {reason}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Each of them is of one column, and the results meet.
    for sql in [
        "s = 'a' AND t = 'b'",
        "(s = 'a') = (t = 'b')",
        "CASE s WHEN 'a' THEN i64 WHEN 'b' THEN i64 + 1 END",
        "CASE WHEN t LIKE 'a%' THEN length(s) ELSE i32 END",
        "s IS NULL OR t IS NOT NULL",
    ] {
        taken(sql);
    }
}
