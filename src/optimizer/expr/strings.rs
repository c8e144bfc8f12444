//! Expressions over one string or binary column: look-up tables over the column's distinct values.
//!
//! An expression tree is cut at its largest parts that read one such column and no other. DataFusion's own expression is
//! evaluated once a distinct value, so that its meaning is DataFusion's; kernels look its results up by the rows' codes.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Operator, Volatility};
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal,
    NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::kernels::expr::{Expr, ValueType};
use crate::memory::dictionary::is_encodable;
use crate::physical_plan::aggregate::group::Text;
use crate::physical_plan::lookup::{EagerLogic, ExprFunction};
use crate::physical_plan::rank::RankFunction;

use super::function::tells_scalars_apart;
use super::{Declined, Lowered, Lowering, constant};

/// Functions that have a value for every string. Only a hint: kernels look for no values that raise then, and if there are
/// some nevertheless, the CPU answers for the batch.
const TOTAL_FUNCTIONS: &[&str] = &[
    "ascii",
    "bit_length",
    "btrim",
    "character_length",
    "coalesce",
    "concat",
    "concat_ws",
    "contains",
    "ends_with",
    "initcap",
    "left",
    "lower",
    "ltrim",
    "nullif",
    "octet_length",
    "regexp_count",
    "regexp_like",
    "regexp_match",
    "regexp_replace",
    "replace",
    "reverse",
    "right",
    "rtrim",
    "split_part",
    "starts_with",
    "strpos",
    "substr",
    "to_hex",
    "translate",
    "upper",
];

impl Lowering {
    /// The look-up of an expression whose results live on the device; `None` for other expressions.
    pub(super) fn lookup(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<Lowered> {
        if expr.is::<Column>() {
            return None;
        }
        if let Some(presence) = self.column_presence(expr) {
            return Some(Ok(presence));
        }
        let column = self.string_column(expr)?;
        let data_type = match self.arrow_type(expr) {
            Ok(data_type) => data_type,
            Err(declined) => return Some(Err(declined)),
        };
        match ValueType::from_arrow(&data_type).filter(|ty| *ty != ValueType::Null) {
            Some(ty) => {
                self.columns.insert(column);
                Some(self.table(expr, column, data_type, ty))
            }
            None => Some(Err(self.unsupported(
                expr,
                &format!("its result of type {data_type} is used together with what is no constant"),
            ))),
        }
    }

    /// The look-up of an expression whose results the host takes: of any type.
    pub(super) fn host_lookup(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<Arc<Expr>> {
        if expr.is::<Column>() {
            return None;
        }
        if let Some(known) = self.hosted.get(expr).or_else(|| self.seen.get(expr)) {
            return matches!(known.as_ref(), Expr::Lookup { .. }).then(|| Arc::clone(known));
        }
        let column = self.string_column(expr)?;
        let data_type = expr.data_type(&self.schema).ok()?;
        let ty = ValueType::from_arrow(&data_type).filter(|ty| *ty != ValueType::Null);
        let lookup = self.table(expr, column, data_type, ty.unwrap_or(ValueType::Opaque)).ok()?;
        let known = if ty.is_some() { &mut self.seen } else { &mut self.hosted };
        known.insert(Arc::clone(expr), Arc::clone(&lookup));
        Some(lookup)
    }

    /// A column that can have a dictionary, or a function of one, as text: what tells its values apart for kernels, and where the host
    /// has them; `None` for others. `ranks` asks for their order too.
    pub(super) fn text(&mut self, expr: &Arc<dyn PhysicalExpr>, ranks: bool) -> Option<Text> {
        let plain = expr.is::<Column>();
        let column = self.string_column(expr)?;
        let values = if plain {
            Arc::new(Expr::Column { index: column, ty: ValueType::Opaque })
        } else {
            self.host_lookup(expr)?
        };
        self.columns.insert(column);
        if plain && !ranks {
            return Some(Text { kernel: None, values });
        }
        let of = match plain {
            true => None,
            false => Some(
                self.function_of(expr, column, expr.data_type(&self.schema).ok()?, ValueType::Opaque).ok()?,
            ),
        };
        let fallible = of.as_ref().is_some_and(|function| function.fallible);
        let rank = Arc::new(RankFunction { of });
        let kernel = self.params.push_table(column, rank, ValueType::UInt32, fallible);
        Some(Text { kernel: Some(kernel), values })
    }

    /// A column, or a function of one, whose type does not live on the device, for those who only ask whether it is NULL.
    pub(super) fn opaque(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<Arc<Expr>> {
        let data_type = expr.data_type(&self.schema).ok()?;
        if ValueType::from_arrow(&data_type).is_some() || constant::is_constant(expr, &self.schema) {
            return None;
        }
        if let Some(column) = expr.downcast_ref::<Column>() {
            let index = column.index();
            self.schema.fields().get(index)?;
            self.columns.insert(index);
            return Some(Arc::new(Expr::Column { index, ty: ValueType::Opaque }));
        }
        let lookup = self.host_lookup(expr)?;
        let mut read = std::collections::BTreeSet::new();
        lookup.collect_columns(&mut read);
        self.columns.extend(read);
        Some(lookup)
    }

    /// `IS [NOT] NULL` of a column, which needs no dictionary.
    fn column_presence(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Option<Arc<Expr>> {
        let (arg, null) = match (expr.downcast_ref::<IsNullExpr>(), expr.downcast_ref::<IsNotNullExpr>()) {
            (Some(is_null), _) => (is_null.arg(), true),
            (_, Some(is_not_null)) => (is_not_null.arg(), false),
            _ => return None,
        };
        if !arg.is::<Column>() {
            return None;
        }
        let column = self.opaque(arg)?;
        Some(Arc::new(if null { Expr::IsNull(column) } else { Expr::IsNotNull(column) }))
    }

    /// Why an expression that takes or gives strings cannot be looked up, where the reason is that it reads several columns.
    pub(super) fn mixed_strings(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<&'static str> {
        let textual = |expr: &Arc<dyn PhysicalExpr>| {
            expr.data_type(&self.schema).is_ok_and(|ty| is_encodable(&ty))
                && !constant::is_constant(expr, &self.schema)
        };
        // The conditions of CASE are looked at one by one, its operand against each of them.
        let takes = || !expr.is::<CaseExpr>() && expr.children().into_iter().any(textual);
        if expr.is::<Column>() || !(textual(expr) || takes()) {
            return None;
        }
        let columns = collect_columns(expr);
        let encodable = |column: &&Column| {
            self.schema.fields().get(column.index()).is_some_and(|field| is_encodable(field.data_type()))
        };
        match (columns.iter().filter(encodable).count(), columns.len()) {
            (2.., _) => Some("strings of several columns have no dictionary in common"),
            (1, 2..) => Some("strings that depend on several columns have no dictionary"),
            _ => None,
        }
    }

    /// The table of an expression over one column.
    fn table(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        column: usize,
        data_type: DataType,
        ty: ValueType,
    ) -> Lowered {
        let function = self.function_of(expr, column, data_type, ty)?;
        let fallible = function.fallible;
        Ok(self.params.push_table(column, Arc::new(function), ty, fallible))
    }

    /// An expression over one column as a function of its values.
    fn function_of(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        column: usize,
        data_type: DataType,
        ty: ValueType,
    ) -> Result<ExprFunction, Declined> {
        let own = over_values(expr).map_err(|error| self.unsupported(expr, &error.to_string()))?;
        // The column as it is: functions may ask about it.
        let schema = Arc::new(Schema::new(vec![self.schema.field(column).clone()]));
        // The values of an Arrow dictionary may have a NULL even so.
        let keyed =
            |field: &Field| !field.is_nullable() && matches!(field.data_type(), DataType::Dictionary(..));
        let fallible = may_raise(expr, &self.schema) || keyed(self.schema.field(column));
        let required = !expr.nullable(&self.schema).unwrap_or(true);
        Ok(ExprFunction { expr: own, schema, ty, data_type, fallible, required })
    }

    /// The only column of the expression, if it can have a dictionary and the expression is a function of its values.
    fn string_column(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
        let mut column = None;
        is_function(expr, &self.schema, &mut column).ok()?;
        column
    }
}

/// Whether the value of the expression depends on the value of one encodable column only; the column is noted.
fn is_function(
    expr: &Arc<dyn PhysicalExpr>,
    schema: &Schema,
    only: &mut Option<usize>,
) -> std::result::Result<(), Declined> {
    if let Some(column) = expr.downcast_ref::<Column>() {
        let index = column.index();
        let encodable = schema.fields().get(index).is_some_and(|field| is_encodable(field.data_type()));
        if !encodable || only.is_some_and(|known| known != index) {
            return Err(Declined);
        }
        *only = Some(index);
        return Ok(());
    }
    let known = expr.is::<Literal>()
        || expr.is::<ScalarSubqueryExpr>()
        || expr.is::<BinaryExpr>()
        || expr.is::<NotExpr>()
        || expr.is::<IsNullExpr>()
        || expr.is::<IsNotNullExpr>()
        || expr.is::<InListExpr>()
        || expr.is::<LikeExpr>()
        || expr.is::<CastExpr>()
        || expr.is::<TryCastExpr>()
        || expr.is::<CaseExpr>()
        || expr.is::<NegativeExpr>()
        || expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(is_immutable);
    let open = tells_scalars_apart(expr) && expr.children().into_iter().any(has_case);
    if !known || open || expr.is_volatile_node() || constant::always_raises(expr, schema) {
        return Err(Declined);
    }
    expr.children().into_iter().try_for_each(|child| is_function(child, schema, only))
}

fn is_immutable(function: &ScalarFunctionExpr) -> bool {
    function.fun().signature().volatility == Volatility::Immutable
}

fn has_case(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.is::<CaseExpr>() || expr.children().into_iter().any(has_case)
}

/// Whether values of the column are expected for which the expression raises.
fn may_raise(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    let own = if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        matches!(
            binary.op(),
            Operator::Plus | Operator::Minus | Operator::Multiply | Operator::Divide | Operator::Modulo
        )
    } else if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        let from = cast.expr().data_type(schema);
        let textual = |ty: &DataType| match ty {
            DataType::Dictionary(_, values) => values.is_string(),
            ty => ty.is_string() || *ty == DataType::Null,
        };
        let to = cast.cast_type();
        !from.is_ok_and(|from| textual(to) && textual(&from) || constant::cast_cannot_raise(&from, to))
    } else if let Some(function) = expr.downcast_ref::<ScalarFunctionExpr>() {
        !TOTAL_FUNCTIONS.contains(&function.fun().name())
    } else {
        expr.is::<NegativeExpr>()
    };
    own || expr.children().into_iter().any(|child| may_raise(child, schema))
}

/// The expression over a batch that has nothing but the column's values.
fn over_values(expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
    Arc::clone(expr)
        .transform_up(|node| {
            if let Some(column) = node.downcast_ref::<Column>() {
                let only: Arc<dyn PhysicalExpr> = Arc::new(Column::new(column.name(), 0));
                return Ok(Transformed::new(only, true, TreeNodeRecursion::Continue));
            }
            Ok(match EagerLogic::of(&node) {
                Some(eager) => Transformed::yes(eager),
                None => Transformed::no(node),
            })
        })
        .data()
}
