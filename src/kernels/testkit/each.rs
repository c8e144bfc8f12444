//! Expressions row by row: value, NULL and fault of each on its own, where a selection tells one fault for all of them.

use std::fmt::Write;
use std::sync::Arc;

use crate::error::GpuResult;
use crate::kernels::expr::widths::Class;
use crate::kernels::expr::{Emitter, Expr, Node};
use crate::kernels::launch::{Grid, allocate, argument_slices, bind, dispatch, pack};
use crate::kernels::program::{ColumnShape, Program, Segment, column_shapes, columns_of};
use crate::kernels::shader::{
    Bindings, ENTRY, Loads, Slot, argument_block, fitted, param_loads, param_variables, params_at,
    reads_tables,
};
use crate::memory::{BindingKind, LaunchScope, ShaderSource, download};

/// What the device says to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Null,
    /// The value in the register class of its type: the low bits are the value's.
    Value(u128),
    /// The CPU is to decide.
    Fault,
}

/// Words of an output and row: flags, then the value.
const WORDS: usize = 5;

/// The kernel that writes each expression's flags and value.
pub(crate) struct EachPlan {
    pub shader: ShaderSource,
    /// Distinct nodes.
    pub nodes: usize,
    slots: Vec<Slot>,
    columns: Vec<ColumnShape>,
    tables: bool,
    outputs: usize,
}

impl EachPlan {
    pub fn build(program: &Program, exprs: &[Arc<Expr>], columns: &[ColumnShape]) -> GpuResult<EachPlan> {
        let params_at = params_at(columns);
        let mut emitter = Emitter::new(columns, &program.params, params_at);
        let nodes = exprs.iter().map(|expr| emitter.emit(expr)).collect::<GpuResult<Vec<_>>>()?;
        let mut bindings = Bindings::new(columns)?;
        bindings.own(BindingKind::Storage, "result", "u32");
        let loads = Loads::new(columns);
        let mut text = param_variables(&emitter);
        let stores: String = nodes.iter().enumerate().map(|(number, node)| store(number, node)).collect();
        let _ = writeln!(
            text,
            "fn row(i: u32{}) {{\n{}    let at = i * {}u;\n{stores}}}",
            loads.parameters()?,
            emitter.body,
            nodes.len() * WORDS
        );
        text.push_str(ENTRY);
        text.push_str(&loads.masks());
        text.push_str(&param_loads(&emitter, params_at));
        text.push_str("    let i = group * 256u + l;\n    if (i < rows) {\n");
        text.push_str(&loads.statements("i", "_0", "        "));
        let _ = writeln!(text, "        row(i{});\n    }}\n}}", loads.arguments("_0"));
        Ok(EachPlan {
            shader: bindings.shader("each", &text),
            nodes: emitter.size(),
            slots: bindings.slots,
            columns: columns.to_vec(),
            tables: reads_tables(&emitter),
            outputs: nodes.len(),
        })
    }
}

fn store(number: usize, node: &Node) -> String {
    let faults: Vec<&str> = node.faults.iter().map(String::as_str).collect();
    let fault = if faults.is_empty() { "false".to_owned() } else { faults.join(" | ") };
    let at = number * WORDS;
    let mut text =
        format!("    result[at + {at}u] = select(0u, 1u, {}) | select(0u, 2u, {fault});\n", node.validity());
    let value = &node.value;
    let halves = |value: &str| [format!("u32({value} & 0xfffffffflu)"), format!("u32({value} >> 32u)")];
    let words: Vec<String> = match node.class {
        Class::Bool => vec![format!("select(0u, 1u, {value})")],
        Class::I32 => vec![format!("bitcast<u32>({value})")],
        Class::U32 => vec![value.clone()],
        // Decimals of 128 bits may lie in fewer: the sign fills the rest.
        Class::I64 => {
            let sign = format!("select(0u, 0xffffffffu, {value} < 0li)");
            [halves(&format!("bitcast<u64>({value})")), [sign.clone(), sign]].concat()
        }
        Class::U64 => halves(value).to_vec(),
        Class::Wide => [halves(&format!("{value}.x")), halves(&format!("{value}.y"))].concat(),
    };
    for (word, value) in words.iter().enumerate() {
        let _ = writeln!(text, "    result[at + {}u] = {value};", at + 1 + word);
    }
    text
}

/// Evaluates each expression at each row of a segment; AND and OR take both sides, as in every kernel.
pub(crate) async fn each(
    scope: &LaunchScope,
    program: &Program,
    exprs: &[Arc<Expr>],
    segment: &Segment,
) -> GpuResult<Vec<Vec<Verdict>>> {
    let columns = column_shapes(&columns_of(exprs), [segment])?;
    let columns = fitted(columns, 1, scope.context.caps().max_storage_buffers);
    let plan = EachPlan::build(program, exprs, &columns)?;
    let pipeline = scope.context.compile(plan.shader.clone(), &scope.stats).await?;
    let block = argument_block(&[segment.rows as u32], &plan.columns, plan.tables, segment, &program.params)?;
    let args = argument_slices(scope, &[block])?;
    let bytes = (segment.rows * plan.outputs * WORDS * 4) as u64;
    let result = allocate(scope, "result", bytes)?;
    let mut encoder = scope.context.device().create_command_encoder(&Default::default());
    let pack = pack(scope, &mut encoder, &plan.columns, segment)?;
    let own: Vec<_> = pack.iter().chain([&result]).collect();
    let group = bind(scope, &pipeline, &plan.slots, segment, &args[0], &own)?;
    let grid = Grid::of((segment.rows as u32).div_ceil(256), scope.context.caps())?;
    dispatch(scope, &mut scope.timer().pass(&mut encoder, "each"), &pipeline, &group, grid);
    let read = download(scope, encoder, &[(&result, bytes)]).await?;
    let words: Vec<u32> = bytemuck::pod_collect_to_vec(&read[0]);
    let verdict = |row: usize, output: usize| {
        let at = (row * plan.outputs + output) * WORDS;
        let value = (1..WORDS).rev().fold(0, |value, word| (value << 32) | u128::from(words[at + word]));
        match words[at] {
            0 => Verdict::Null,
            1 => Verdict::Value(value),
            _ => Verdict::Fault,
        }
    };
    Ok((0..plan.outputs).map(|output| (0..segment.rows).map(|row| verdict(row, output)).collect()).collect())
}
