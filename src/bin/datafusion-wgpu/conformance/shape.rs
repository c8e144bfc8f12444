//! What a statement is, as far as comparing its rows goes.

use std::collections::VecDeque;

use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::dialect::{Dialect, GenericDialect, PostgreSqlDialect};

/// What a statement asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// Its answer is a plan.
    Plan,
    /// Its answer lists settings, functions or optimizer rules, ours among them.
    Listing,
    /// A query without ORDER BY at its top: rows in any order.
    Unordered,
    /// A query without ORDER BY that takes some of its rows; the text is the query that gives them all.
    SomeRows {
        /// The query without LIMIT, OFFSET and FETCH.
        all: String,
    },
    /// Rows in the order in which they come; statements too, and what cannot be parsed.
    Ordered,
}

impl Shape {
    /// The shape of one statement.
    pub fn of(sql: &str) -> Self {
        let words = bare(sql);
        let first = words.split_whitespace().next().unwrap_or_default();
        if first == "explain" {
            // The verbose form lists the rules.
            return if words.contains("verbose") { Self::Listing } else { Self::Plan };
        }
        if first == "show" {
            return Self::Listing;
        }
        if is_query_word(first) && words.contains("information_schema") {
            return Self::Listing;
        }
        match parse(sql) {
            Some(ast::Statement::Query(query)) => of_query(*query),
            _ => Self::Ordered,
        }
    }
}

/// Whether a statement is a query, which changes nothing.
pub fn is_query(sql: &str) -> bool {
    bare(sql).split_whitespace().next().is_some_and(is_query_word)
}

fn is_query_word(first: &str) -> bool {
    matches!(first, "select" | "from" | "with" | "table" | "values") || first.starts_with('(')
}

/// The text in lower case without comments at its start.
fn bare(sql: &str) -> String {
    let mut rest = sql.trim_start();
    loop {
        if let Some(comment) = rest.strip_prefix("--") {
            rest = comment.split_once('\n').map_or("", |(_, after)| after).trim_start();
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, after)| after).trim_start();
        } else {
            return rest.to_lowercase();
        }
    }
}

fn parse(sql: &str) -> Option<ast::Statement> {
    let dialects: [&dyn Dialect; 2] = [&GenericDialect {}, &PostgreSqlDialect {}];
    let statement = dialects.into_iter().find_map(|dialect| {
        let mut parser = DFParserBuilder::new(sql).with_dialect(dialect).build().ok()?;
        let mut statements: VecDeque<Statement> = parser.parse_statements().ok()?;
        statements.pop_front()
    })?;
    match statement {
        Statement::Statement(statement) => Some(*statement),
        _ => None,
    }
}

fn of_query(mut query: ast::Query) -> Shape {
    if !query.pipe_operators.is_empty() {
        return Shape::Ordered;
    }
    let (ordered, limited) = strip(&mut query);
    match (ordered, limited) {
        (true, _) => Shape::Ordered,
        (false, false) => Shape::Unordered,
        (false, true) => Shape::SomeRows { all: query.to_string() },
    }
}

/// Takes the limits away; tells whether there is an ORDER BY, and whether there was a limit.
fn strip(query: &mut ast::Query) -> (bool, bool) {
    let fetched = query.fetch.take().is_some();
    let limited = query.limit_clause.take().is_some() || fetched;
    if query.order_by.is_some() {
        return (true, limited);
    }
    // In parentheses alone the inner query is the outer one.
    if let ast::SetExpr::Query(inner) = query.body.as_mut() {
        let (inner_ordered, inner_limited) = strip(inner);
        return (inner_ordered, limited || inner_limited);
    }
    (false, limited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        for (sql, shape) in [
            ("SELECT a FROM t", Shape::Unordered),
            ("-- a comment\nEXPLAIN SELECT 1", Shape::Plan),
            ("EXPLAIN VERBOSE SELECT 1", Shape::Listing),
            ("/* c */ show all", Shape::Listing),
            ("SELECT * FROM information_schema.df_settings", Shape::Listing),
            ("CREATE TABLE x AS SELECT * FROM information_schema.tables", Shape::Ordered),
            ("SELECT a FROM t ORDER BY a LIMIT 2", Shape::Ordered),
            ("(SELECT a FROM t ORDER BY a)", Shape::Ordered),
            ("SELECT a FROM (SELECT a FROM t ORDER BY a) s", Shape::Unordered),
            ("SELECT a FROM t UNION ALL SELECT b FROM u", Shape::Unordered),
            ("SELECT a FROM t LIMIT 2 OFFSET 1", Shape::SomeRows { all: "SELECT a FROM t".into() }),
            ("WITH c AS (SELECT 1 LIMIT 1) SELECT * FROM c", Shape::Unordered),
            ("INSERT INTO t VALUES (1)", Shape::Ordered),
            ("SELEC 1", Shape::Ordered),
        ] {
            assert_eq!(Shape::of(sql), shape, "{sql}");
        }
    }
}
