//! The comments above a query that say where it has to run.
//!
//! - `# gpu: GpuAggregateExec GpuFilterExec`: with the rule forced, exactly these kinds of GPU node are in the plan, and
//!   they ran on the device.
//! - `# keep: GpuFilterExec`: the same for a plan with several partitions whose exchanges are kept, where it differs; `none`
//!   for no node.
//! - `# cpu: UnsupportedType`: the placement report gives these reasons. Without a `# gpu:` line there is no GPU node.
//! - `# fallback: Fault`: at run time batches were handed to the CPU for exactly these reasons.
//! - `# idle:` beside `# gpu:`: nothing is launched, because there is no row.
//!
//! A comment line that starts with another lower-case word and a colon is an error, so that a typo is no silent pass.

use std::collections::BTreeSet;

use super::engine::Ran;

/// What the comments above one query claim.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Convention {
    nodes: BTreeSet<String>,
    kept_nodes: Option<BTreeSet<String>>,
    reasons: BTreeSet<String>,
    fallbacks: BTreeSet<String>,
    idle: bool,
}

impl Convention {
    /// `None` when the comment has no line of the convention.
    pub fn parse(lines: &[String]) -> Result<Option<Self>, String> {
        let mut convention = Convention::default();
        let mut seen = BTreeSet::new();
        for line in lines {
            let Some((word, rest)) = line.trim().split_once(':') else { continue };
            if word.is_empty() || !word.chars().all(|c| c.is_ascii_lowercase()) {
                continue;
            }
            if !seen.insert(word) {
                return Err(format!("two '# {word}:' lines above one query"));
            }
            let values: BTreeSet<String> = rest.split_whitespace().map(str::to_string).collect();
            if values.is_empty() != (word == "idle") {
                return Err(format!("'# {word}:' has too few or too many values: {line}"));
            }
            match word {
                "gpu" => convention.nodes = values,
                "keep" if values.contains("none") => convention.kept_nodes = Some(BTreeSet::new()),
                "keep" => convention.kept_nodes = Some(values),
                "cpu" => convention.reasons = values,
                "fallback" => convention.fallbacks = values,
                "idle" => convention.idle = true,
                _ => return Err(format!("unknown word '# {word}:'")),
            }
        }
        if seen.is_empty() {
            return Ok(None);
        }
        if !seen.contains("gpu") && (!seen.contains("cpu") || seen.len() > 1) {
            return Err(format!("'# keep:', '# fallback:' and '# idle:' need '# gpu:': {lines:?}"));
        }
        Ok(Some(convention))
    }

    /// True when it claims nothing but a CPU run for no named reason, which no comment does.
    pub fn is_empty(&self) -> bool {
        *self == Convention::default()
    }

    /// What does not hold. `reasons` are the codes of the placement report; `kept` tells that the plan has several
    /// partitions and keeps its exchanges.
    pub fn check(&self, ran: &Ran, kept: bool, reasons: Result<BTreeSet<String>, String>) -> Vec<String> {
        let mut failures = vec![];
        let nodes = self.kept_nodes.as_ref().filter(|_| kept).unwrap_or(&self.nodes);
        if ran.gpu_nodes != *nodes {
            failures.push(format!("GPU nodes: {:?}, claimed {nodes:?}", ran.gpu_nodes));
        }
        match reasons {
            Ok(reasons) if self.reasons.is_subset(&reasons) => {}
            Ok(reasons) => failures.push(format!("reasons: {reasons:?}, claimed {:?}", self.reasons)),
            Err(error) => failures.push(format!("no placement report: {error}")),
        }
        if ran.finished && ran.fallbacks != self.fallbacks {
            failures.push(format!("fallbacks: {:?}, claimed {:?}", ran.fallbacks, self.fallbacks));
        }
        let launches_expected = !nodes.is_empty() && !self.idle;
        if ran.finished && (ran.dispatches > 0) != launches_expected {
            failures.push(format!("{} kernel launches with {:?} in the plan", ran.dispatches, ran.gpu_nodes));
        }
        failures
    }
}

#[test]
fn parses() {
    let parse = |text: &str| Convention::parse(&text.lines().map(str::to_string).collect::<Vec<_>>());
    let set = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<BTreeSet<_>>();
    assert_eq!(
        parse(" gpu: A B\n cpu: C"),
        Ok(Some(Convention { nodes: set(&["A", "B"]), reasons: set(&["C"]), ..Default::default() }))
    );
    assert_eq!(
        parse(" gpu: A\n idle:"),
        Ok(Some(Convention { nodes: set(&["A"]), idle: true, ..Default::default() }))
    );
    assert_eq!(parse(" Prose: with a colon\n and more"), Ok(None));
    for wrong in [
        " gqu: A",
        " gpu:",
        " gpu: A\n gpu: B",
        " idle:",
        " fallback: Fault",
        " cpu: C\n idle:",
        " gpu: A\n idle: x",
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn checks() {
    let set = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<BTreeSet<_>>();
    let claim = Convention { nodes: set(&["A"]), reasons: set(&["R"]), ..Default::default() };
    let ran = Ran { gpu_nodes: set(&["A"]), dispatches: 1, finished: true, ..Default::default() };
    assert_eq!(claim.check(&ran, false, Ok(set(&["R", "S"]))), Vec::<String>::new());
    assert_eq!(claim.check(&ran, false, Ok(set(&["S"]))).len(), 1);
    assert_eq!(claim.check(&ran, false, Err("none".into())).len(), 1);
    let reasons = || Ok(set(&["R"]));
    assert_eq!(claim.check(&Ran { gpu_nodes: set(&["A", "B"]), ..ran.clone() }, false, reasons()).len(), 1);
    assert_eq!(claim.check(&Ran { dispatches: 0, ..ran.clone() }, false, reasons()).len(), 1);
    assert_eq!(claim.check(&Ran { fallbacks: set(&["Fault"]), ..ran.clone() }, false, reasons()).len(), 1);
    let kept = Convention { kept_nodes: Some(set(&["B"])), ..claim.clone() };
    let ran_b = Ran { gpu_nodes: set(&["B"]), ..ran.clone() };
    assert_eq!(kept.check(&ran_b, true, reasons()), Vec::<String>::new());
    assert_eq!(kept.check(&ran_b, false, reasons()).len(), 1);
    assert_eq!(
        claim.check(&Ran { finished: false, dispatches: 0, ..ran }, false, reasons()),
        Vec::<String>::new()
    );
}
