//! Strings and their functions.

use std::borrow::Cow;

use datafusion::arrow::datatypes::DataType;

use super::super::ast::Expr;
use super::super::types::{Class, Flavour};
use super::{Generator, Scope};

const BOOL: DataType = DataType::Boolean;

/// Functions of one text and literals that give a text.
const TO_TEXT: [&str; 26] = [
    "upper({})",
    "lower({})",
    "btrim({})",
    "ltrim({}, 'a')",
    "reverse({})",
    "initcap({})",
    "md5({})",
    "substr({}, 2)",
    "substr({}, 2, 3)",
    "left({}, 2)",
    "left({}, -1)",
    "right({}, 2)",
    "lpad({}, 5, 'xy')",
    "replace({}, 'a', 'bc')",
    "regexp_replace({}, '[ab]+', '<\\0>')",
    "translate({}, 'ab', 'b')",
    "split_part({}, 'b', 1)",
    "repeat({}, 2)",
    "concat({}, '!')",
    "concat('<', {}, '>')",
    "concat_ws('-', {}, 'x')",
    "({} || '!')",
    "('<' || {})",
    "COALESCE({}, 'none')",
    "NULLIF({}, 'a')",
    "CAST({} AS VARCHAR)",
];

/// Functions of one text that give an integer; the last one may raise.
const TO_INTEGER: [&str; 9] = [
    "character_length({})",
    "octet_length({})",
    "bit_length({})",
    "ascii({})",
    "strpos({}, 'a')",
    "strpos({}, '')",
    "regexp_count({}, 'a|b')",
    "TRY_CAST({} AS BIGINT)",
    "CAST({} AS INT)",
];

/// Tests of one text.
const TESTS: [&str; 11] = [
    "starts_with({}, 'a')",
    "ends_with({}, 'c')",
    "contains({}, 'b')",
    "({} ~ '^a.*')",
    "({} ~* 'B')",
    "({} !~ '[0-9]')",
    "({} !~* 'A$')",
    "regexp_like({}, 'a|ä')",
    "({} SIMILAR TO '%(b|c)%')",
    "(CASE WHEN {} LIKE 'a%' THEN true WHEN {} > 'b' THEN false END)",
    "(length({}) > 2)",
];

impl Generator<'_> {
    /// A function of one column and literals, which the device looks up in a table of the column's distinct values.
    pub fn text_of_one(&mut self, scope: &Scope, depth: usize) -> Expr {
        let column = self.leaf(scope, Class::Text);
        self.function_of(&column, depth)
    }

    /// `column`, or a function of it.
    fn function_of(&mut self, column: &Expr, depth: usize) -> Expr {
        if depth == 0 {
            return column.clone();
        }
        let inner = self.function_of(column, depth - 1);
        match self.rng.below(8) {
            0 => {
                let text = "CASE WHEN {} LIKE 'a%' THEN {} ELSE 'other' END";
                Expr::new("CASE", DataType::Utf8, text, vec![column.clone().into(), inner.into()])
            }
            1 => {
                let (one, two) = (self.literal(column), self.literal(column));
                let text = "CASE {} WHEN {} THEN 'one' WHEN {} THEN {} END";
                let args = vec![column.clone().into(), one.into(), two.into(), inner.into()];
                Expr::new("CASE with operand", DataType::Utf8, text, args)
            }
            _ => {
                let template = self.rng.choose(&TO_TEXT);
                Expr::new("text function", DataType::Utf8, template, vec![inner.into()])
            }
        }
    }

    pub fn text_to_integer(&mut self, scope: &Scope, depth: usize) -> Expr {
        let text = if self.device || self.rng.chance(50) {
            let levels = self.rng.below(depth + 1);
            self.text_of_one(scope, levels)
        } else {
            self.value(scope, Class::Text, depth)
        };
        // Next to no column holds nothing but numbers.
        let most = TO_INTEGER.len() - usize::from(self.rng.chance(90));
        let template = self.rng.choose(&TO_INTEGER[..most]);
        Expr::new("text to integer", DataType::Int32, template, vec![text.into()]).known(Flavour::Edge, 1e6)
    }

    /// LIKE, a regular expression, or another test of a text.
    pub fn text_test(&mut self, scope: &Scope, depth: usize) -> Expr {
        let operand = self.value(scope, Class::Text, depth);
        if self.rng.chance(45) {
            let template = self.rng.choose(&TESTS);
            let args = vec![operand.into(); template.matches("{}").count()];
            return Expr::new("text test", BOOL, template, args);
        }
        let pattern =
            self.rng.choose(&["'a%'", "'%b'", "'%'", "'_b%'", "''", "'%ä%'", "'a\\_c'", "'abc'", "'%a%b%'"]);
        let pattern = Expr::leaf("literal", DataType::Utf8, pattern.to_string());
        let template =
            self.rng.choose(&["({} LIKE {})", "({} NOT LIKE {})", "({} ILIKE {})", "({} NOT ILIKE {})"]);
        Expr::new("LIKE", BOOL, template, vec![operand.into(), pattern.into()])
    }

    /// Functions of any texts, several columns among them.
    pub fn text(&mut self, scope: &Scope, depth: usize) -> Expr {
        let left = self.value(scope, Class::Text, depth);
        match self.rng.below(5) {
            0 | 1 => {
                let template = self.rng.choose(&TO_TEXT);
                Expr::new("text function", DataType::Utf8, template, vec![left.into()])
            }
            2 => {
                let integer = self.value(scope, Class::Int, depth);
                Expr::new("CAST", DataType::Utf8, "CAST({} AS VARCHAR)", vec![integer.into()])
            }
            _ => {
                let right = if self.rng.chance(50) {
                    self.literal(&left)
                } else {
                    self.value(scope, Class::Text, depth)
                };
                let template = self.rng.choose(&["({} || {})", "concat({}, {})"]);
                Expr::new("text function", DataType::Utf8, template, vec![left.into(), right.into()])
            }
        }
    }

    /// A long IN list over one column: values of it, others and perhaps NULL.
    pub fn long_list(&mut self, operand: Expr) -> Expr {
        let entries = self.rng.choose(&[40, 100, 300]);
        let mut text: Vec<Cow<'static, str>> = vec!["(".into()];
        let mut list = if self.rng.chance(70) { " IN (".to_string() } else { " NOT IN (".to_string() };
        for index in 0..entries {
            let literal = self.literal(&operand);
            list.push_str(if index > 0 { ", " } else { "" });
            list.push_str(&literal.text.concat());
        }
        list.push_str(if self.rng.chance(20) { ", NULL))" } else { "))" });
        text.push(list.into());
        Expr::of_parts("long IN", BOOL, text, vec![operand.into()])
    }
}
