//! What came out, as lines for a terminal.

use std::fmt::Write;

use super::flags::Source;
use super::report::{QueryReport, Report, SourceReport, Status, Totals};
use crate::output::bytes;

const HEADER: [&str; 14] = [
    "query",
    "from",
    "CPU ms",
    "GPU cold",
    "GPU warm",
    "CPU/GPU",
    "up",
    "down",
    "kernel ms",
    "compile ms",
    "of peak",
    "nodes",
    "fallbacks",
    "answer",
];

/// The table, the totals, the machine, and what there is to say of answers that are wrong.
pub fn text(report: &Report) -> String {
    let mut lines = vec![HEADER.map(str::to_owned)];
    for query in &report.queries {
        for (source, measured) in query.sources() {
            lines.push(line(query, source.name(), measured));
        }
    }
    let mut text = format!(
        "{} at {}, median of {}\n\n",
        report.suite,
        report.size(),
        counted(report.runs, "run", "runs")
    );
    text += &aligned(&lines);
    text.push('\n');
    for source in [Source::Parquet, Source::Memory].map(Source::name) {
        text += &report.totals.get(source).map_or(String::new(), |totals| total_line(source, totals));
    }
    text += &remarks(report);
    let _ = writeln!(text, "{}", report.machine);
    text
}

fn line(query: &QueryReport, source: &str, report: &SourceReport) -> [String; 14] {
    let none = || "-".to_owned();
    let cpu = report.cpu.as_ref().map_or_else(none, |cpu| milliseconds(cpu.times.median_s));
    let gpu = report.gpu.as_ref();
    let warm = gpu.map(|gpu| &gpu.warm);
    let cold = gpu.map(|gpu| &gpu.cold);
    let fallbacks = gpu.map_or_else(none, |gpu| match gpu.fallbacks.is_empty() {
        true => "0".to_owned(),
        false => {
            let counts = gpu.fallbacks.iter().map(|(code, count)| format!("{count} {code}"));
            counts.collect::<Vec<_>>().join(", ")
        }
    });
    let answer = match report.status {
        Some(Status::Equal) if query.tier == "rounded" => "equal*".to_owned(),
        Some(Status::Equal) => "equal".to_owned(),
        Some(Status::Unused) => "not on GPU".to_owned(),
        Some(Status::Wrong) => "WRONG".to_owned(),
        Some(Status::Failed) => "FAILED".to_owned(),
        Some(Status::Cpu) | None => report.reason().map_or_else(none, |reason| format!("- {}", reason.code)),
    };
    [
        query.query.to_string(),
        source.to_owned(),
        cpu,
        gpu.map_or_else(none, |gpu| milliseconds(gpu.cold_s)),
        gpu.map_or_else(none, |gpu| milliseconds(gpu.times.median_s)),
        gpu.filter(|_| report.status == Some(Status::Equal))
            .map_or_else(none, |gpu| format!("{:.2}", gpu.ratio)),
        warm.map_or_else(none, |work| bytes(work.uploaded_bytes)),
        warm.map_or_else(none, |work| bytes(work.downloaded_bytes)),
        warm.and_then(|work| work.kernel_s).map_or_else(none, milliseconds),
        cold.map_or_else(none, |work| milliseconds(work.compile_s)),
        gpu.and_then(|gpu| gpu.share_of_bandwidth)
            .map_or_else(none, |share| format!("{:.0} %", share * 100.0)),
        format!("{}/{}", report.gpu_nodes, report.cpu_nodes),
        fallbacks,
        answer,
    ]
}

/// Columns side by side, the first two and the last two to the left, figures to the right.
fn aligned(lines: &[[String; 14]]) -> String {
    let mut widths = [0; 14];
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (at, (cell, width)) in line.iter().zip(widths).enumerate() {
            let _ = match at {
                0 | 1 | 12 | 13 => write!(row, "{cell:<width$}  "),
                _ => write!(row, "{cell:>width$}  "),
            };
        }
        text += row.trim_end();
        text.push('\n');
    }
    text
}

fn total_line(source: &str, totals: &Totals) -> String {
    let Totals { queries, on_gpu, cpu_s, with_gpu_s, on_gpu_cpu_s, on_gpu_gpu_s, mean_ratio, .. } = totals;
    let mut text =
        format!("{source}: {}, CPU {} ms", counted(*queries, "query", "queries"), milliseconds(*cpu_s));
    if let Some(mean) = mean_ratio {
        let _ = write!(
            text,
            ", with the GPU {} ms; the {on_gpu} on the GPU: CPU {} ms, GPU {} ms, geometric mean of the ratios {mean:.2}",
            milliseconds(*with_gpu_s),
            milliseconds(*on_gpu_cpu_s),
            milliseconds(*on_gpu_gpu_s)
        );
    } else {
        text += ", none on the GPU";
    }
    for (count, what) in
        [(totals.unused, "without a batch from the GPU"), (totals.wrong, "WRONG"), (totals.failed, "FAILED")]
    {
        if count > 0 {
            let _ = write!(text, "; {count} {what}");
        }
    }
    text.push('\n');
    text
}

/// Why there is no adapter, when there is none, and how a software adapter is measured all the same.
fn without_adapter(report: &Report) -> String {
    let sources = report.queries.iter().flat_map(QueryReport::sources);
    let mut reasons = sources.flat_map(|(_, source)| &source.reasons);
    let Some(reason) = reasons.find(|reason| reason.code == "NoAdapter") else { return String::new() };
    let hint = match reason.sentence.contains("software adapter") {
        true => "`--gpu force` measures a software adapter",
        false => "`datafusion-wgpu doctor` says why",
    };
    format!("nothing ran on a GPU: {}; {hint}\n", reason.sentence)
}

/// What the figures need to be understood.
fn remarks(report: &Report) -> String {
    let mut text = String::new();
    for query in &report.queries {
        for (source, measured) in query.sources() {
            if let (Some(Status::Unused | Status::Wrong | Status::Failed), Some(message)) =
                (measured.status, &measured.message)
            {
                let _ = writeln!(text, "query {} from {}: {message}", query.query, source.name());
            }
        }
    }
    text += &without_adapter(report);
    let shown = |query: &&QueryReport| {
        query.tier == "rounded" && query.sources().any(|(_, source)| source.status == Some(Status::Equal))
    };
    if let Some(query) = report.queries.iter().find(shown) {
        let _ = writeln!(
            text,
            "* but for the last digits of floats that were added up: relative difference at most {:.1e}",
            query.tolerance
        );
    }
    if let Some(bandwidth) = report.bandwidth {
        let _ = writeln!(
            text,
            "peak: {:.1} GB/s, {}",
            bandwidth.gb_s,
            match bandwidth.how {
                "given" => "as given",
                "wall" => "measured by the host's clock, for want of timestamps",
                _ => "measured by a sum over resident columns",
            }
        );
    }
    if let Some(error) = &report.bandwidth_error {
        let _ = writeln!(text, "peak: not measured: {error}");
    }
    if report.machine.build == "debug" {
        text += "This is a debug build: its times say nothing about a release build's.\n";
    }
    text
}

/// A number of things.
fn counted<N: Copy + PartialEq + From<u8> + std::fmt::Display>(number: N, one: &str, many: &str) -> String {
    let name = if number == N::from(1) { one } else { many };
    format!("{number} {name}")
}

/// Three digits that count.
fn milliseconds(seconds: f64) -> String {
    let value = seconds * 1e3;
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::ReasonReport;
    use super::super::report::tests::{query, report, source};
    use super::*;

    #[test]
    fn every_query_has_a_line_and_wrong_ones_no_figures() {
        let mut wrong = source(Status::Wrong, 0.1, None);
        wrong.message = Some("row (1), expected (2)".to_owned());
        let mut cpu = source(Status::Cpu, 0.5, None);
        cpu.reasons = vec![ReasonReport {
            node: "AggregateExec".to_owned(),
            code: "Grouping",
            sentence: String::new(),
        }];
        let mut unused = source(Status::Unused, 0.1, Some(0.2));
        if let Some(gpu) = &mut unused.gpu {
            gpu.fallbacks.insert("OutOfMemory".to_owned(), 3);
        }
        let text = text(&report(vec![
            query(1, source(Status::Equal, 0.25, Some(0.125))),
            query(2, wrong),
            query(3, cpu),
            query(4, unused),
        ]));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].starts_with("query  from"), "{text}");
        for part in ["1      parquet", "250", "125", "2.00", "1 MiB", "equal"] {
            assert!(lines[3].contains(part), "{part}: {text}");
        }
        assert!(lines[4].ends_with("WRONG") && lines[4].contains(" -  "), "{text}");
        assert!(lines[5].ends_with("- Grouping"), "{text}");
        assert!(text.contains("query 2 from parquet: row (1), expected (2)"), "{text}");
        assert!(lines[6].ends_with("3 OutOfMemory  not on GPU") && !lines[6].contains("0.50"), "{text}");
        let end = "geometric mean of the ratios 2.00; 1 without a batch from the GPU; 1 WRONG";
        assert!(text.contains(end), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()));
    }

    #[test]
    fn one_is_no_plural_and_a_software_adapter_is_hinted_at() {
        let mut cpu = source(Status::Cpu, 0.5, None);
        cpu.reasons = vec![ReasonReport {
            node: "FilterExec".to_owned(),
            code: "NoAdapter",
            sentence: "only software adapters exist".to_owned(),
        }];
        let text = text(&report(vec![query(1, cpu)]));
        assert!(text.contains("parquet: 1 query, CPU"), "{text}");
        assert!(text.contains("nothing ran on a GPU: only software adapters exist; `--gpu force`"), "{text}");
    }

    #[test]
    fn times_have_three_digits() {
        assert_eq!([0.001234, 0.0256, 1.5].map(milliseconds), ["1.23", "25.6", "1500"]);
    }
}
