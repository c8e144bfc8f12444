//! Smaller queries: what the shrinker tries. Candidates need not be valid, since one that does not plan fails on both sides.

use datafusion::arrow::datatypes::DataType;

use super::ast::{Arg, Body, Expr, Query, Relation, Select, Target};
use super::types::{Class, class};

/// Queries that are a step smaller than `query`, the largest steps first.
pub fn reductions(query: &Query) -> Vec<Query> {
    let mut out = vec![];
    out.extend(query.with.iter().map(|(_, inner)| inner.clone()));
    match &query.body {
        Body::Set { left, right, .. } => out.extend([left.as_ref().clone(), right.as_ref().clone()]),
        Body::Select(select) => {
            select.from.iter().for_each(|from| inner_queries(from, &mut |inner| out.push(inner.clone())));
        }
    }
    if let Some(inlined) = without_with(query) {
        out.push(inlined);
    }
    if query.limit.is_some() || query.offset.is_some() {
        out.push(query.unlimited());
        if query.limit.is_some() && query.offset.is_some() {
            out.push(Query { offset: None, ..query.clone() });
        }
    }
    if !query.order.is_empty() {
        out.push(Query { order: vec![], ..query.clone() });
        for index in 0..query.order.len() {
            let mut next = query.clone();
            next.order.remove(index);
            out.push(next);
        }
    }
    out.extend(parts(query));
    // A step that changes nothing would be taken for ever.
    let text = query.to_string();
    out.retain(|smaller| smaller.to_string() != text);
    out
}

/// The same for a query within another: LIMIT and its total order go together.
fn nested(query: &Query) -> Vec<Query> {
    let mut out = vec![];
    if query.limit.is_some() {
        out.push(Query { order: vec![], ..query.unlimited() });
    }
    if let Body::Set { left, right, .. } = &query.body {
        out.extend([left.as_ref().clone(), right.as_ref().clone()]);
    }
    out.extend(parts(query));
    out
}

/// Reductions of the parts of a query.
fn parts(query: &Query) -> Vec<Query> {
    let mut out = vec![];
    for (index, (name, inner)) in query.with.iter().enumerate() {
        let mut next = query.clone();
        next.with.remove(index);
        out.push(next);
        out.extend(nested(inner).into_iter().map(|inner| {
            let mut next = query.clone();
            next.with[index] = (name.clone(), inner);
            next
        }));
    }
    match &query.body {
        Body::Select(select) => {
            out.extend(fewer_items(query, select));
            let body = |select: Select| Query { body: Body::Select(Box::new(select)), ..query.clone() };
            out.extend(selects(select).into_iter().map(body));
        }
        Body::Set { op, left, right } => {
            let body = |op, left: &Query, right: &Query| {
                let (left, right) = (Box::new(left.clone()), Box::new(right.clone()));
                Query { body: Body::Set { op, left, right }, ..query.clone() }
            };
            if *op != "UNION ALL" {
                out.push(body("UNION ALL", left, right));
            }
            out.extend(nested(left).iter().map(|left| body(op, left, right)));
            out.extend(nested(right).iter().map(|right| body(op, left, right)));
        }
    }
    out
}

/// Queries with fewer columns; keys of GROUP BY and ORDER BY follow.
fn fewer_items(query: &Query, select: &Select) -> Vec<Query> {
    let count = select.items.len();
    let mut ranges = vec![(0, count / 2), (count / 2, count)];
    ranges.extend((0..count).map(|index| (index, index + 1)));
    let kept = |range: &(usize, usize)| range.0 < range.1 && range.1 - range.0 < count;
    let some_left = |query: &Query| !query.tiers().is_empty();
    let fewer = ranges.into_iter().filter(kept).map(|(from, to)| without_items(query, select, from, to));
    fewer.filter(some_left).collect()
}

fn without_items(query: &Query, select: &Select, from: usize, to: usize) -> Query {
    let place = |index: usize| match index {
        index if index < from => Some(index),
        index if index < to => None,
        index => Some(index - (to - from)),
    };
    let mut next = query.clone();
    let mut select = select.clone();
    select.items.drain(from..to);
    select.keys = select.keys.iter().filter_map(|key| place(*key)).collect();
    next.body = Body::Select(Box::new(select));
    next.order.retain_mut(|key| match &mut key.target {
        Target::Hidden(_) => true,
        Target::Column(column) => match place(*column) {
            Some(moved) => {
                *column = moved;
                true
            }
            None => false,
        },
    });
    next
}

fn selects(select: &Select) -> Vec<Select> {
    let mut out = vec![];
    if let Some(inlined) = inlined(select) {
        out.push(inlined);
    }
    if select.having.is_some() {
        out.push(Select { having: None, ..select.clone() });
    }
    if select.filter.is_some() {
        out.push(Select { filter: None, ..select.clone() });
    }
    if select.distinct {
        out.push(Select { distinct: false, ..select.clone() });
    }
    if !select.grouping.is_empty() {
        out.push(Select { grouping: "", ..select.clone() });
    }
    if let Some(from) = &select.from {
        out.extend(relations(from).into_iter().map(|from| Select { from: Some(from), ..select.clone() }));
    }
    for (index, item) in select.items.iter().enumerate() {
        out.extend(expressions(&item.expr).into_iter().map(|expr| {
            let mut next = select.clone();
            next.items[index].expr = expr;
            next
        }));
    }
    if let Some(filter) = &select.filter {
        out.extend(
            expressions(filter).into_iter().map(|expr| Select { filter: Some(expr), ..select.clone() }),
        );
    }
    if let Some(having) = &select.having {
        out.extend(
            expressions(having).into_iter().map(|expr| Select { having: Some(expr), ..select.clone() }),
        );
    }
    out
}

fn relations(relation: &Relation) -> Vec<Relation> {
    match relation {
        Relation::Table { .. } => vec![],
        Relation::Derived { query, alias } => {
            let derived = |query| Relation::Derived { query: Box::new(query), alias: alias.clone() };
            nested(query).into_iter().map(derived).collect()
        }
        Relation::Join { kind, left, right, on } => {
            let mut out = vec![left.as_ref().clone(), right.as_ref().clone()];
            let join = |left: &Relation, right: &Relation, on: Option<Expr>| {
                let (left, right) = (Box::new(left.clone()), Box::new(right.clone()));
                Relation::Join { kind, left, right, on }
            };
            out.extend(relations(left).iter().map(|left| join(left, right, on.clone())));
            out.extend(relations(right).iter().map(|right| join(left, right, on.clone())));
            let conditions = on.iter().flat_map(expressions);
            out.extend(conditions.map(|on| join(left, right, Some(on))));
            out
        }
    }
}

/// Smaller expressions.
fn expressions(expr: &Expr) -> Vec<Expr> {
    let mut out = vec![];
    let of = class(&expr.data_type);
    let is_leaf = expr.args.is_empty();
    if !is_leaf {
        let literals: &[&'static str] = match of {
            Class::Bool => &["TRUE", "FALSE"],
            Class::Int => &["1"],
            _ => &[],
        };
        out.extend(literals.iter().map(|text| {
            Expr::leaf("literal", expr.data_type.clone(), (*text).to_string()).known(expr.flavour, expr.bound)
        }));
    }
    let same_class = |arg: &&Arg| matches!(arg, Arg::Expr(arg) if class(&arg.data_type) == of);
    out.extend(expr.args.iter().filter(same_class).filter_map(|arg| match arg {
        Arg::Expr(arg) => Some(arg.clone()),
        Arg::Query(_) => None,
    }));
    // What a window function is ordered by must stay all of its input.
    if expr.kind.starts_with("window") {
        return out;
    }
    for index in 1..expr.args.len() {
        if expr.text[index] == ", " {
            for (arg, text) in [(index, index), (index - 1, index)] {
                let mut next = expr.clone();
                next.args.remove(arg);
                next.text.remove(text);
                out.push(next);
            }
        }
    }
    for (index, arg) in expr.args.iter().enumerate() {
        let smaller: Vec<Arg> = match arg {
            Arg::Expr(arg) => expressions(arg).into_iter().map(Arg::from).collect(),
            Arg::Query(query) => nested(query).into_iter().map(Arg::from).collect(),
        };
        out.extend(smaller.into_iter().map(|arg| {
            let mut next = expr.clone();
            next.args[index] = arg;
            next
        }));
    }
    out
}

fn inner_queries(relation: &Relation, f: &mut dyn FnMut(&Query)) {
    match relation {
        Relation::Table { .. } => {}
        Relation::Derived { query, .. } => f(query),
        Relation::Join { left, right, .. } => {
            inner_queries(left, f);
            inner_queries(right, f);
        }
    }
}

/// The query with its common table expressions put where they are used, if all of them are in FROM.
fn without_with(query: &Query) -> Option<Query> {
    let Body::Select(select) = &query.body else { return None };
    if query.with.is_empty() {
        return None;
    }
    let mut select = select.as_ref().clone();
    select.from = select.from.as_ref().map(|from| expanded(from, &query.with));
    Some(Query { with: vec![], body: Body::Select(Box::new(select)), ..query.clone() })
}

fn expanded(relation: &Relation, with: &[(String, Query)]) -> Relation {
    match relation {
        Relation::Table { name, alias } => match with.iter().find(|(known, _)| known == name) {
            Some((_, query)) => Relation::Derived { query: Box::new(query.clone()), alias: alias.clone() },
            None => relation.clone(),
        },
        Relation::Derived { .. } => relation.clone(),
        Relation::Join { kind, left, right, on } => Relation::Join {
            kind,
            left: Box::new(expanded(left, with)),
            right: Box::new(expanded(right, with)),
            on: on.clone(),
        },
    }
}

/// `SELECT f(d.x) FROM (SELECT g AS x FROM t WHERE p) AS d` as `SELECT f(g) FROM t WHERE p`.
fn inlined(select: &Select) -> Option<Select> {
    let Some(Relation::Derived { query, alias }) = &select.from else { return None };
    let Body::Select(inner) = &query.body else { return None };
    let plain = query.with.is_empty()
        && query.limit.is_none()
        && query.offset.is_none()
        && !inner.distinct
        && inner.keys.is_empty()
        && inner.having.is_none();
    if !plain {
        return None;
    }
    let names: Vec<(String, &Expr)> =
        inner.items.iter().map(|item| (format!("{alias}.{}", item.alias), &item.expr)).collect();
    let mut next = select.clone();
    next.items.iter_mut().for_each(|item| substitute(&mut item.expr, &names));
    for condition in [&mut next.filter, &mut next.having].into_iter().flatten() {
        substitute(condition, &names);
    }
    next.from.clone_from(&inner.from);
    next.filter = match (inner.filter.clone(), next.filter.take()) {
        (Some(inner), Some(outer)) => {
            Some(Expr::new("AND", DataType::Boolean, "({} AND {})", vec![inner.into(), outer.into()]))
        }
        (inner, outer) => inner.or(outer),
    };
    Some(next)
}

fn substitute(expr: &mut Expr, names: &[(String, &Expr)]) {
    if let (true, Some((_, value))) =
        (expr.args.is_empty(), names.iter().find(|(name, _)| expr.text[0] == *name))
    {
        *expr = (*value).clone();
        return;
    }
    for arg in &mut expr.args {
        if let Arg::Expr(arg) = arg {
            substitute(arg, names);
        }
    }
}
