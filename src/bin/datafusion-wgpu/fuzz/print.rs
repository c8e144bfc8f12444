//! Queries as SQL.

use std::fmt;

use super::ast::{Arg, Body, Expr, OrderKey, Query, Relation, Select, Target};

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (text, arg) in self.text.iter().zip(&self.args) {
            f.write_str(text)?;
            match arg {
                Arg::Expr(expr) => expr.fmt(f)?,
                Arg::Query(query) => query.fmt(f)?,
            }
        }
        f.write_str(self.text.last().map_or("", |last| last))
    }
}

fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: impl Iterator<Item = T>) -> fmt::Result {
    for (index, item) in items.enumerate() {
        write!(f, "{}{item}", if index == 0 { "" } else { ", " })?;
    }
    Ok(())
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.with.is_empty() {
            f.write_str("WITH ")?;
            list(f, self.with.iter().map(|(name, query)| format!("{name} AS ({query})")))?;
            f.write_str(" ")?;
        }
        match &self.body {
            Body::Select(select) => select.fmt(f)?,
            Body::Set { op, left, right } => write!(f, "({left}) {op} ({right})")?,
        }
        if !self.order.is_empty() {
            f.write_str(" ORDER BY ")?;
            list(f, self.order.iter())?;
        }
        if let Some(limit) = self.limit {
            write!(f, " LIMIT {limit}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, " OFFSET {offset}")?;
        }
        Ok(())
    }
}

impl fmt::Display for OrderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Column(index) => write!(f, "{}", index + 1)?,
            Target::Hidden(expr) => expr.fmt(f)?,
        }
        f.write_str(if self.descending { " DESC" } else { "" })?;
        match self.nulls_first {
            None => Ok(()),
            Some(true) => f.write_str(" NULLS FIRST"),
            Some(false) => f.write_str(" NULLS LAST"),
        }
    }
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.distinct { "SELECT DISTINCT " } else { "SELECT " })?;
        list(f, self.visible().map(|item| format!("{} AS {}", item.expr, item.alias)))?;
        if let Some(from) = &self.from {
            write!(f, " FROM {from}")?;
        }
        if let Some(filter) = &self.filter {
            write!(f, " WHERE {filter}")?;
        }
        if !self.keys.is_empty() {
            f.write_str(" GROUP BY ")?;
            if !self.grouping.is_empty() {
                write!(f, "{} (", self.grouping)?;
            }
            list(f, self.keys.iter().filter_map(|key| self.items.get(*key)).map(|item| &item.expr))?;
            if !self.grouping.is_empty() {
                f.write_str(")")?;
            }
        }
        if let Some(having) = &self.having {
            write!(f, " HAVING {having}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Relation::Table { name, alias } if name == alias => f.write_str(name),
            Relation::Table { name, alias } => write!(f, "{name} AS {alias}"),
            Relation::Derived { query, alias } => write!(f, "({query}) AS {alias}"),
            Relation::Join { kind, left, right, on } => {
                write!(f, "{left} {kind} ")?;
                // A join on the right side needs its own parentheses.
                if matches!(right.as_ref(), Relation::Join { .. }) {
                    write!(f, "({right})")?;
                } else {
                    right.fmt(f)?;
                }
                on.as_ref().map_or(Ok(()), |on| write!(f, " ON {on}"))
            }
        }
    }
}
