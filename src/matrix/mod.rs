//! Every expression with every type: what the lowering takes and declines, as docs/supported.md, and the tests that hold
//! what it takes against DataFusion. Tests only.
//!
//! [`templates`] are expressions over columns `a` and `b` of one type, which [`subjects`] lists. Nothing here says what is
//! supported: [`answer`] asks the lowering.

mod aggregates;
mod compare;
mod data;
mod docs;
mod hostile;
mod queries;
mod shapes;
mod table;
mod templates;
mod trees;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::common::DFSchema;
use datafusion::error::Result;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::prelude::SessionContext;

use crate::kernels::expr::{Expr, ValueType};
use crate::kernels::program::columns_of;
use crate::memory::{DeviceCaps, value_type};
use crate::optimizer::{Lowering, Reason};
use crate::physical_plan::params::ParamTable;

use templates::{Template, templates};

/// The types that expressions are tried with.
fn subjects() -> Vec<DataType> {
    use DataType::*;
    let mut types = vec![
        Boolean, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float16, Float32, Float64, Date32,
        Date64,
    ];
    types.extend([TimeUnit::Second, TimeUnit::Millisecond].map(Time32));
    types.extend([TimeUnit::Microsecond, TimeUnit::Nanosecond].map(Time64));
    let units = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
    types.extend(units.map(|unit| Timestamp(unit, None)));
    types.extend(units.map(|unit| Timestamp(unit, Some("UTC".into()))));
    types.push(Timestamp(TimeUnit::Nanosecond, Some("Europe/Paris".into())));
    types.extend(units.map(Duration));
    types.push(Interval(arrow::datatypes::IntervalUnit::MonthDayNano));
    types.extend([
        Decimal32(7, 2),
        Decimal64(15, 2),
        Decimal128(15, 2),
        Decimal128(38, 4),
        Decimal256(50, 2),
    ]);
    types.extend([Utf8, LargeUtf8, Utf8View, Dictionary(Box::new(Int32), Box::new(Utf8))]);
    types.extend([Binary, LargeBinary, BinaryView, FixedSizeBinary(4), Null]);
    types.push(List(Arc::new(Field::new_list_field(Int64, true))));
    types
}

/// SQL of a constant of the type; `which` tells two of them apart. `None` where SQL has none.
fn literal(ty: &DataType, which: usize) -> Option<String> {
    use DataType::*;
    let pick = |values: [&'static str; 2]| values[which % 2];
    let of = match ty {
        Boolean => return Some(pick(["true", "false"]).to_owned()),
        Null => return Some("NULL".to_owned()),
        Interval(_) => return Some(pick(["INTERVAL '1 month'", "INTERVAL '90 minutes'"]).to_owned()),
        ty if ty.is_integer() => pick(["3", "7"]),
        ty if ty.is_floating() || ty.is_decimal() => pick(["2.5", "-1.25"]),
        Date32 | Date64 => pick(["DATE '2024-02-29'", "DATE '1969-12-31'"]),
        Time32(_) | Time64(_) => pick(["TIME '12:34:56'", "TIME '00:00:01'"]),
        Timestamp(..) => pick(["TIMESTAMP '2024-02-29 12:34:56'", "TIMESTAMP '1969-12-31 23:59:59'"]),
        Duration(_) => pick(["90", "3600"]),
        Utf8 | LargeUtf8 | Utf8View | Dictionary(..) | Binary | LargeBinary | BinaryView => {
            pick(["'b'", "'abc'"])
        }
        FixedSizeBinary(_) => pick(["X'61626364'", "X'00000000'"]),
        _ => return None,
    };
    Some(format!("arrow_cast({of}, '{ty}')"))
}

/// Columns `a` and `b` of the type, a boolean `p` and a small integer `n`.
fn schema_of(ty: &DataType, nullable: bool) -> SchemaRef {
    let field = |name: &str, ty: &DataType| Field::new(name, ty.clone(), nullable || ty.is_null());
    let (flag, number) = (DataType::Boolean, DataType::Int64);
    Arc::new(Schema::new(vec![field("a", ty), field("b", ty), field("p", &flag), field("n", &number)]))
}

/// SQL expressions over one schema as DataFusion plans them.
struct Planner {
    ctx: SessionContext,
    schema: SchemaRef,
    columns: Arc<DFSchema>,
}

impl Planner {
    fn new(schema: SchemaRef) -> Self {
        let columns = DFSchema::try_from(schema.as_ref().clone()).expect("columns have names of their own");
        Planner { ctx: SessionContext::new(), schema, columns: Arc::new(columns) }
    }

    /// The physical expression: coerced and simplified, as in a query.
    fn plan(&self, sql: &str) -> Result<Arc<dyn PhysicalExpr>> {
        let expr = self.ctx.parse_sql_expr(sql, &self.columns)?;
        let context = SimplifyContext::builder().with_schema(Arc::clone(&self.columns)).build();
        let simplifier = ExprSimplifier::new(context);
        let expr = simplifier.simplify(simplifier.coerce(expr, &self.columns)?)?;
        self.ctx.create_physical_expr(expr, &self.columns)
    }
}

/// Expressions that share a kernel, as the lowering gives them.
type Lowered = (Vec<Arc<Expr>>, ParamTable);

/// What the lowering says to the expressions together.
fn lower(
    schema: &SchemaRef,
    exprs: &[Arc<dyn PhysicalExpr>],
    caps: &DeviceCaps,
) -> Result<Lowered, Vec<Reason>> {
    let mut lowering = Lowering::new(Arc::clone(schema));
    let lowered: Vec<_> = exprs.iter().map(|expr| lowering.output(expr)).collect();
    lowering.finish(caps, lowered.into_iter().collect())
}

/// Whether an expression is computed from its columns alone. Those over strings look up what the CPU computed, and
/// need a whole query.
fn is_direct(schema: &SchemaRef, expr: &Arc<dyn PhysicalExpr>, caps: &DeviceCaps) -> bool {
    let opaque =
        |index: &usize| value_type(schema.field(*index).data_type()).is_none_or(|ty| ty == ValueType::Opaque);
    lower(schema, std::slice::from_ref(expr), caps)
        .is_ok_and(|(exprs, params)| params.tables.is_empty() && !columns_of(&exprs).iter().any(opaque))
}

/// What becomes of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// DataFusion has no such expression for the type.
    Unknown,
    /// It runs on the GPU.
    Gpu,
    /// It stays on the CPU; the reason in short.
    Cpu(String),
}

/// What the lowering says to a template with a type.
fn answer(template: &Template, ty: &DataType, planner: &Planner, caps: &DeviceCaps) -> Answer {
    let Some(sql) = template.sql(ty) else { return Answer::Unknown };
    let Ok(expr) = planner.plan(&sql) else { return Answer::Unknown };
    // A call that no kernel of DataFusion's takes is none that it has.
    let empty = arrow::array::RecordBatch::new_empty(Arc::clone(&planner.schema));
    if expr.evaluate(&empty).is_err() {
        return Answer::Unknown;
    }
    match lower(&planner.schema, &[expr], caps) {
        Ok(_) => Answer::Gpu,
        Err(reasons) => Answer::Cpu(short(&reasons)),
    }
}

/// Reasons without the expressions that they name.
fn short(reasons: &[Reason]) -> String {
    let mut texts: Vec<String> = reasons
        .iter()
        .map(|reason| match reason {
            Reason::UnsupportedExpression { why, .. } => why.clone(),
            Reason::UnsupportedType { data_type, .. } => format!("{data_type} is not on the device"),
            other => match other.expression() {
                Some(expression) => other.to_string().replace(&format!("{expression}: "), ""),
                None => other.to_string(),
            },
        })
        .collect();
    texts.dedup();
    texts.join("; ")
}
