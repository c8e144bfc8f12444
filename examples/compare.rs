//! Runs SQL with the rule off and forced and compares the rows: `compare [FILE.sql]`, or from standard input.
//!
//! Statements end with `;`. Each query is run on DataFusion's own operators, then forced onto the GPU with exchanges
//! collapsed and kept; different rows, or different errors, are shown and make the exit code 1. Options are SET statements.
//! Statements must not contain a `;` within a literal.

use std::error::Error;
use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;

use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_wgpu::register_gpu;

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::from(2)
        }
    }
}

/// Number of queries whose answers differ.
async fn run() -> Result<usize, BoxError> {
    let mut text = String::new();
    match std::env::args().nth(1) {
        Some(path) => text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?,
        None => {
            std::io::stdin().read_to_string(&mut text)?;
        }
    }
    let config = SessionConfig::new().with_target_partitions(3).with_information_schema(true);
    let ctx = SessionContext::new_with_config(
        config.set_usize("datafusion.optimizer.repartition_file_min_size", 1),
    );
    register_gpu(&ctx)?;
    for option in ["allow_software_adapter = true", "fallback = 'silent'", "batch_rows = 3000"] {
        ctx.sql(&format!("SET gpu.{option}")).await?;
    }
    let (mut queries, mut differ, mut on_gpu) = (0, 0, 0);
    let text: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    let text = text.join("\n");
    for sql in text.split(';').map(str::trim).filter(|sql| !sql.is_empty()) {
        let word = sql.split_whitespace().next().unwrap_or_default().to_lowercase();
        if !["select", "with", "values", "("].iter().any(|start| word.starts_with(start)) {
            ctx.sql(sql).await?.collect().await?;
            continue;
        }
        queries += 1;
        let (want, _) = answer(&ctx, sql, "off", "collapse").await;
        for exchanges in ["collapse", "keep"] {
            let (got, nodes) = answer(&ctx, sql, "force", exchanges).await;
            on_gpu += usize::from(!nodes.is_empty());
            if got == want {
                println!("equal   [{nodes}] {sql}");
            } else {
                differ += 1;
                println!(
                    "DIFFER  [{nodes}] exchanges={exchanges} {sql}\n  off:   {want:?}\n  force: {got:?}"
                );
            }
        }
    }
    println!(
        "{queries} queries run with exchanges collapsed and kept: {on_gpu} plans with GPU nodes, {differ} differences"
    );
    Ok(differ)
}

/// The rows as sorted text, or the error's; and the Gpu nodes with their batches on the device and on the CPU.
async fn answer(
    ctx: &SessionContext,
    sql: &str,
    placement: &str,
    exchanges: &str,
) -> (Result<Vec<String>, String>, String) {
    let mut nodes = String::new();
    let rows = async {
        ctx.sql(&format!("SET gpu.placement = '{placement}'")).await?;
        ctx.sql(&format!("SET gpu.exchanges = '{exchanges}'")).await?;
        let plan = ctx.sql(sql).await?.create_physical_plan().await?;
        let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await;
        visit(&plan, &mut nodes);
        let options = FormatOptions::default().with_null("NULL");
        let mut rows = vec![];
        for batch in batches? {
            let columns = batch
                .columns()
                .iter()
                .map(|c| ArrayFormatter::try_new(c, &options))
                .collect::<Result<Vec<_>, _>>()?;
            for row in 0..batch.num_rows() {
                rows.push(columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join("|"));
            }
        }
        rows.sort();
        Ok::<_, BoxError>(rows)
    };
    let rows = rows.await.map_err(|error| error.to_string());
    (rows, nodes)
}

fn visit(plan: &Arc<dyn ExecutionPlan>, nodes: &mut String) {
    if plan.name().starts_with("Gpu") {
        let metrics = plan.metrics().unwrap_or_default();
        let count = |name: &str| metrics.sum_by_name(name).map_or(0, |value| value.as_usize());
        nodes.push_str(&format!(
            " {} gpu={} cpu={}",
            plan.name(),
            count("gpu_batches"),
            count("cpu_batches")
        ));
    }
    plan.children().into_iter().for_each(|child| visit(child, nodes));
}
