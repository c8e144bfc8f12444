//! The ratios as bars: above the line at 1 the GPU is faster, below it the CPU is.

use std::error::Error;

use datafusion::error::{DataFusionError, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::flags::Source;
use super::report::{Report, SourceReport, Status};

const PARQUET: RGBColor = RGBColor(0x4c, 0x72, 0xb0);
const MEMORY: RGBColor = RGBColor(0xdd, 0x84, 0x52);
const ON_CPU: RGBColor = RGBColor(0xb0, 0xb0, 0xb0);
const WRONG: RGBColor = RGBColor(0xc4, 0x1e, 0x3a);

/// Pixels of a query, of the rest of the width, and of the height.
const QUERY_WIDTH: u32 = 36;
const OTHER_WIDTH: u32 = 230;
const HEIGHT: u32 = 420;
/// Half the height of a bar without a ratio, as a power of 2.
const FLAT: f64 = 0.02;
/// Margin for the legend.
const LEGEND_WIDTH: u32 = 120;

struct Bar {
    /// Position among the queries, and the bar's place in a query's slot of width 1.
    from: f64,
    to: f64,
    ratio: f64,
    color: RGBColor,
}

/// The drawing: a bar for each query and source. Queries that stay on the CPU have a flat grey one, since their plan is the
/// CPU's own, and so have those of which no batch came from the device; a wrong answer is a flat red one.
///
/// # Errors
/// None that are known of.
pub fn svg(report: &Report) -> Result<String> {
    let mut text = String::new();
    draw(report, &mut text)?;
    Ok(text)
}

fn draw(report: &Report, text: &mut String) -> Result<()> {
    let bars = bars(report);
    let count = report.queries.len().max(1);
    let width = OTHER_WIDTH + QUERY_WIDTH * u32::try_from(count).unwrap_or(1).max(10);
    let root = SVGBackend::with_string(text, (width, HEIGHT)).into_drawing_area();
    root.fill(&WHITE).map_err(undrawn)?;
    // The axis is in powers of 2, from one whole power to another.
    let powers = || bars.iter().map(|bar| bar.ratio.log2());
    let low = powers().fold(-1.0, f64::min).floor();
    let high = powers().fold(1.0, f64::max).ceil();
    let adapter = report
        .machine
        .adapter
        .as_ref()
        .map_or("without a GPU".to_owned(), |adapter| format!("on {}", adapter.name));
    let title = format!("{} at {} {adapter}", report.suite, report.size());
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .margin_right(LEGEND_WIDTH)
        .x_label_area_size(28)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..count as f64, low..high)
        .map_err(undrawn)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels((high - low) as usize + 1)
        .y_label_formatter(&|power| ratio_text(*power))
        .light_line_style(TRANSPARENT)
        .y_desc("CPU time / GPU time")
        .draw()
        .map_err(undrawn)?;
    let rectangle = |bar: &Bar| {
        let power = bar.ratio.log2();
        let (low, high) = (power.min(-FLAT), power.max(FLAT));
        Rectangle::new([(bar.from, low), (bar.to, high)], bar.color.filled())
    };
    chart.draw_series(bars.iter().map(rectangle)).map_err(undrawn)?;
    let line = LineSeries::new([(0.0, 0.0), (count as f64, 0.0)], &BLACK);
    chart.draw_series(line).map_err(undrawn)?;
    let style = TextStyle::from(("sans-serif", 12).into_font()).pos(Pos::new(HPos::Center, VPos::Top));
    for (at, query) in report.queries.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(at as f64 + 0.5, low));
        root.draw(&Text::new(query.query.to_string(), (x, y + 6), style.clone())).map_err(undrawn)?;
    }
    legend(&root, width)?;
    root.present().map_err(undrawn)
}

/// A power of 2 as a ratio.
fn ratio_text(power: f64) -> String {
    let ratio = power.abs().exp2();
    if power < 0.0 { format!("1/{ratio:.3}") } else { format!("{ratio:.3}") }.replace(".000", "")
}

fn bars(report: &Report) -> Vec<Bar> {
    let mut bars = vec![];
    for (at, query) in report.queries.iter().enumerate() {
        let sources: Vec<(Source, &SourceReport)> = query.sources().collect();
        let width = 0.8 / sources.len().max(1) as f64;
        for (place, (source, measured)) in sources.into_iter().enumerate() {
            let from = at as f64 + 0.1 + place as f64 * width;
            let (ratio, color) = match (&measured.gpu, measured.status) {
                (Some(gpu), Some(Status::Equal)) => (gpu.ratio, color(source)),
                (_, Some(Status::Wrong | Status::Failed)) => (1.0, WRONG),
                _ => (1.0, ON_CPU),
            };
            bars.push(Bar { from, to: from + width * 0.92, ratio, color });
        }
    }
    bars
}

fn color(source: Source) -> RGBColor {
    match source {
        Source::Parquet => PARQUET,
        Source::Memory => MEMORY,
    }
}

/// What the colours mean, in words of those colours.
fn legend(root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>, width: u32) -> Result<()> {
    let names = [
        ("from Parquet", PARQUET),
        ("from memory", MEMORY),
        ("on the CPU", ON_CPU),
        ("wrong or failed", WRONG),
    ];
    let right = i32::try_from(width).unwrap_or(0) - 16;
    for ((name, color), line) in names.into_iter().zip(0..) {
        let style = TextStyle::from(("sans-serif", 12).into_font()).color(&color);
        let style = style.pos(Pos::new(HPos::Right, VPos::Top));
        root.draw(&Text::new(name, (right, 10 + 14 * line), style)).map_err(undrawn)?;
    }
    Ok(())
}

fn undrawn(error: impl Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error)).context("the plot could not be drawn")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{query, report, source};
    use super::*;

    #[test]
    fn every_query_has_a_bar_of_its_colour() {
        let text = svg(&report(vec![
            query(1, source(Status::Equal, 8.0, Some(2.0))),
            query(2, source(Status::Equal, 1.0, Some(64.0))),
            query(3, source(Status::Cpu, 5.0, None)),
            query(4, source(Status::Wrong, 1.0, None)),
            query(5, source(Status::Unused, 1.0, Some(64.0))),
        ]))
        .unwrap();
        let bars = |color: &str| {
            text.lines().filter(|line| line.starts_with("<rect") && line.contains(color)).count()
        };
        assert_eq!((bars("#4C72B0"), bars("#B0B0B0"), bars("#C41E3A")), (2, 2, 1), "{text}");
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("tpch at scale 1"));
        assert_eq!([-2.0, 0.0, 3.0, 0.5].map(ratio_text), ["1/4", "1", "8", "1.414"]);
    }
}
