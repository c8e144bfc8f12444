//! Holds the layers of the crate: SQL, optimizer, physical_plan, kernels, memory, each naming only what is below it.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// What a layer may name.
struct Layer {
    /// Module directly below the crate root.
    module: &'static str,
    /// Modules of this crate that it may name, besides itself and `error`. A path means that module only.
    uses: &'static [&'static str],
    /// Other crates, or modules of them, that it must not name; its tests may, since DataFusion is their oracle.
    without: &'static [&'static str],
    /// Words that may not occur in its code or string literals.
    without_words: &'static [&'static str],
}

/// The value types and expression IR of `kernels::expr` are the vocabulary that all layers share; it uses nothing.
const LAYERS: &[Layer] = &[
    Layer { module: "error", uses: &[], without: &["wgpu", "naga"], without_words: &[] },
    Layer { module: "observe", uses: &[], without: &["datafusion", "wgpu", "naga"], without_words: &[] },
    Layer {
        module: "memory",
        uses: &["kernels::expr", "observe"],
        without: &["datafusion"],
        without_words: &[],
    },
    Layer { module: "kernels", uses: &["memory"], without: &["datafusion"], without_words: &[] },
    Layer { module: "config", uses: &["memory"], without: &["wgpu", "naga"], without_words: &[] },
    Layer {
        module: "physical_plan",
        uses: &["config", "kernels", "memory", "observe"],
        without: &["wgpu", "naga"],
        without_words: &["@compute", "@group", "@binding", "workgroup_size"],
    },
    Layer {
        module: "optimizer",
        uses: &["config", "kernels", "memory", "observe", "physical_plan"],
        without: &["wgpu", "naga"],
        without_words: &["GpuDevice", "DeviceContext", "GpuRuntime", "@compute"],
    },
    Layer {
        module: "functions",
        uses: &["config", "kernels", "memory", "observe", "optimizer", "physical_plan"],
        without: &["wgpu", "naga"],
        without_words: &["@compute"],
    },
    Layer {
        module: "session",
        uses: &["config", "functions", "kernels", "memory", "observe", "optimizer", "physical_plan"],
        without: &["wgpu", "naga"],
        without_words: &["@compute"],
    },
    // Tests of all layers together.
    Layer {
        module: "matrix",
        uses: &["config", "kernels", "memory", "optimizer", "physical_plan", "session"],
        without: &["wgpu", "naga"],
        without_words: &[],
    },
];

type TestResult = Result<(), Box<dyn Error>>;

#[test]
fn layers_name_only_what_is_below() -> TestResult {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut violations = vec![];
    let mut checked = BTreeSet::new();
    for file in rust_files(&src)? {
        let module = module_path(file.strip_prefix(&src)?);
        let Some(top) = module.first() else { continue };
        // A program sees the crate from outside: the compiler holds it to what is public.
        if top == "bin" {
            continue;
        }
        let Some(layer) = LAYERS.iter().find(|layer| layer.module == top) else {
            violations.push(format!("{}: no layer is declared for the module {top}", file.display()));
            continue;
        };
        checked.insert(layer.module);
        let text = fs::read_to_string(&file)?;
        violations
            .extend(layer.violations(&text, &module).into_iter().map(|v| format!("{}: {v}", file.display())));
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    for needed in ["kernels", "memory", "optimizer", "physical_plan"] {
        assert!(checked.contains(needed), "{needed} was not found, so nothing was checked");
    }
    Ok(())
}

impl Layer {
    fn violations(&self, text: &str, module: &[String]) -> Vec<String> {
        let code = without_comments_and_strings(text);
        let mut found = vec![];
        for path in paths(&code) {
            let path = resolve(path, module);
            match path.first().map(String::as_str) {
                Some("crate") if path.len() > 1 => {
                    let path = path[1..].join("::");
                    let own = within(&path, self.module) || within(&path, "error");
                    let known = LAYERS.iter().any(|layer| within(&path, layer.module));
                    if known && !own && !self.uses.iter().any(|used| within(&path, used)) {
                        found.push(format!("{} may not use crate::{path}", self.module));
                    }
                }
                Some(_) => {
                    let path = path.join("::");
                    let test = module.iter().any(|part| part == "tests");
                    if !test && self.without.iter().any(|other| within(&path, other)) {
                        found.push(format!("{} may not use {path}", self.module));
                    }
                }
                None => {}
            }
        }
        for word in self.without_words {
            if without_comments(text).contains(word) {
                found.push(format!("{} may not name {word}", self.module));
            }
        }
        found
    }
}

/// True when `path` is `root` or below it.
fn within(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn rust_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = vec![];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Module path of a file below `src`, e.g. `memory/mod.rs` and `memory.rs` are both `memory`; `lib.rs` is empty.
fn module_path(file: &Path) -> Vec<String> {
    let mut path: Vec<String> = file
        .with_extension("")
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    if path.last().is_some_and(|last| last == "mod" || last == "lib") {
        path.pop();
    }
    path
}

/// Turns `self::`, `super::` into `crate::`. An inline module is taken for its file, which errs on the side of the parent.
fn resolve(path: Vec<String>, module: &[String]) -> Vec<String> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    let is_self = path.first().is_some_and(|part| part == "self");
    if supers == 0 && !is_self {
        return path;
    }
    let base = module.len().saturating_sub(supers);
    let rest = path.into_iter().skip(supers + usize::from(is_self));
    std::iter::once("crate".to_string()).chain(module[..base].iter().cloned()).chain(rest).collect()
}

fn without_comments(text: &str) -> String {
    strip(text, false)
}

fn without_comments_and_strings(text: &str) -> String {
    strip(text, true)
}

/// The text less comments and, if wanted, less what stands in string literals. Knows raw strings and nested comments.
fn strip(text: &str, strings: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = string_literal(rest, out.chars().next_back()) {
            out.push_str(if strings { "\"\"" } else { &rest[..length] });
            length
        } else {
            out.push(c);
            c.len_utf8()
        };
        rest = &rest[skip..];
    }
    out
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// Length of the string or character literal that `text` starts with. `before` is the character in front of it.
fn string_literal(text: &str, before: Option<char>) -> Option<usize> {
    if text.starts_with('r') && !before.is_some_and(is_word) {
        let hashes = text[1..].chars().take_while(|c| *c == '#').count();
        if text[1 + hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = hashes + 2;
            return Some(start + text[start..].find(&end)? + end.len());
        }
    }
    if text.starts_with('"') {
        let mut escaped = false;
        for (at, c) in text.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => return Some(at + 1),
                _ => {}
            }
        }
        return None;
    }
    // A character literal matters only where it holds a quote, which would start a string.
    ["'\"'", "'\\\"'", "b'\"'"].iter().find(|quote| text.starts_with(**quote)).map(|quote| quote.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// All paths of two segments and more, with the groups of `use a::{b, c::d}` written out.
fn paths(code: &str) -> Vec<Vec<String>> {
    let compact = spaced_out(code);
    let mut found = vec![];
    let mut at = 0;
    while at < compact.len() {
        let rest = &compact[at..];
        let Some(c) = rest.chars().next() else { break };
        let before = compact[..at].chars().next_back();
        if is_word(c) && !before.is_some_and(|b| is_word(b) || b == ':') {
            let length = path(rest, &[], &mut found);
            at += length.max(1);
        } else {
            at += c.len_utf8();
        }
    }
    found.retain(|path| path.len() > 1);
    found
}

/// The code with no blanks around `::`, `{` and `,`, so that a `use` tree is one run of characters.
fn spaced_out(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    for token in code.split_whitespace() {
        let glue = |c: char| "{},:".contains(c);
        if out.chars().next_back().is_some_and(|c| !glue(c)) && !token.starts_with(glue) {
            out.push(' ');
        }
        out.push_str(token);
    }
    out
}

/// Reads one path or group below `prefix` from the start of `text`; returns its length.
fn path(text: &str, prefix: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let name: String = text.chars().take_while(|c| is_word(*c)).collect();
    let mut here = prefix.to_vec();
    here.push(name.clone());
    let mut at = name.len();
    if let Some(rest) = text[at..].strip_prefix("::") {
        at += 2;
        if rest.starts_with('{') {
            return at + group(rest, &here, found);
        }
        if rest.starts_with(is_word) {
            return at + path(rest, &here, found);
        }
        // A glob or generic arguments.
        here.push("*".to_string());
    }
    found.push(here);
    at
}

fn group(text: &str, prefix: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut at = 1;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with('}') {
            return at + 1;
        }
        if rest.starts_with(is_word) {
            at += path(rest, prefix, found);
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

#[test]
fn finds_violations() {
    let module = |path: &str| path.split("::").map(str::to_string).collect::<Vec<_>>();
    let check = |layer: &str, text: &str| {
        LAYERS.iter().find(|l| l.module == layer).map(|l| l.violations(text, &module(&format!("{layer}::x"))))
    };
    for (layer, text) in [
        ("kernels", "use datafusion::physical_plan::ExecutionPlan;"),
        ("kernels", "fn f(p: &dyn datafusion::physical_plan::ExecutionPlan) {}"),
        ("kernels", "use crate::{error::GpuError, physical_plan::{exec::GpuExec}};"),
        ("memory", "use super::super::optimizer::reason::Reason;"),
        ("memory", "use crate::kernels::reduce;"),
        ("optimizer", "use {arrow::array, wgpu::Device};"),
        ("optimizer", "fn f(d: GpuDevice) {}"),
        ("physical_plan", "let a = wgpu::Limits::default();"),
        ("physical_plan", "let a = \"@compute\";"),
        ("physical_plan", "use crate :: optimizer :: reason;"),
    ] {
        assert_eq!(check(layer, text).map(|v| v.len()), Some(1), "{layer}: {text}");
    }
    let tests = LAYERS.iter().find(|l| l.module == "kernels");
    let oracle = tests.map(|l| {
        l.violations("use datafusion::prelude::*; use crate::optimizer::Reason;", &module("kernels::tests"))
    });
    assert_eq!(oracle.map(|v| v.len()), Some(1), "tests may name other crates, not other layers");
    for (layer, text) in [
        ("kernels", "// use datafusion::physical_plan::ExecutionPlan;\nuse arrow::array::Array;"),
        (
            "kernels",
            "/* a /* datafusion::x */ */ let s = \"datafusion::x \\\" wgpu\"; let r = r#\"datafusion::x\"#;",
        ),
        (
            "memory",
            "use crate::kernels::expr::ValueType; use super::device::DeviceContext; use wgpu::Device;",
        ),
        ("optimizer", "use crate::physical_plan::exec::GpuExec; use datafusion::common::Result;"),
        ("physical_plan", "use my_wgpu::x; use self::wgpu_names::y;"),
    ] {
        assert_eq!(check(layer, text), Some(vec![]), "{layer}: {text}");
    }
}
