//! Runs a script of a failure again.

use std::path::Path;
use std::process::ExitCode;

use datafusion::error::Result;

use crate::output::print;

use super::compare::Answer;
use super::judge::{Care, Judgement, Question};
use super::plant::Plant;
use super::runner::{Engine, Verdict};
use super::{cells, script};

/// Runs a script again and shows both answers.
pub async fn replay(engine: &Engine, path: &Path, plant: &Plant) -> Result<ExitCode> {
    let script = script::read(path).await?;
    let stored = script.dataset.store().await?;
    let header = script.header;
    let question = Question::of_sql(engine, &stored, script.sql, header.reference, header.spec).await;
    print(&format!("{}\noff:    {}\n", question.sql, shown(&question.oracle.verdict)))?;
    let (run, judgement) = question.run(engine, &header.options, plant, Care::Thorough).await;
    print(&format!("forced: {}\n", shown(&run.verdict)))?;
    print(&format!("GPU nodes: {:?}, fallbacks: {:?}\n", run.gpu.nodes, run.gpu.fallbacks))?;
    Ok(match judgement {
        Judgement::Wrong(wrong, detail) => {
            print(&format!("{wrong:?}: {detail}\n"))?;
            ExitCode::FAILURE
        }
        other => {
            print(&format!("{other:?}\n"))?;
            ExitCode::SUCCESS
        }
    })
}

/// A verdict for people, with the first rows.
fn shown(verdict: &Verdict) -> String {
    const SHOWN: usize = 40;
    let Verdict::Rows(Answer { batches, .. }) = verdict else { return format!("{verdict:?}") };
    let mut lines = vec![];
    for batch in batches {
        for row in 0..batch.num_rows() {
            let cells = batch.columns().iter().map(|column| cells::show(column.as_ref(), row));
            lines.push(format!("  ({})", cells.collect::<Vec<_>>().join(", ")));
        }
    }
    let count = lines.len();
    lines.truncate(SHOWN);
    format!("{count} rows\n{}", lines.join("\n"))
}
