//! Random expression trees over a table of edge values full of NULLs, against DataFusion: the same bits, and a fault in
//! some row where DataFusion raises.
//!
//! Many trees share a kernel, as the outputs of a projection do. `GPU_TREES` and `GPU_TREES_SEED` in the environment give
//! another number of trees and another seed; without them a run is the same each time.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::physical_expr::PhysicalExpr;

use crate::kernels::program::{columns_of, tables_of};
use crate::kernels::testkit::{GuardedScope, Rng, Verdict, device, each, scope, with_checks};
use crate::kernels::{Program, Segment};
use crate::memory::batch::{GpuBatch, SourceBatch};
use crate::memory::dictionary::is_encodable;
use crate::memory::{DeviceCaps, ShaderChecks};
use crate::physical_plan::params::rebase;

use super::compare::{Agreed, agree, is_plain, on_cpu};
use super::data::{Kind, column};
use super::*;

/// Trees of a kernel.
const TREES: usize = 32;
/// Rows of the table.
const ROWS: usize = 300;
/// Columns that the trees of a kernel may read: software adapters bind few buffers.
const COLUMNS: usize = 14;
const MAX_LEVELS: usize = 5;
const MAX_TEXT: usize = 1_500;

/// A tree in SQL.
#[derive(Debug, Clone)]
struct Tree {
    sql: String,
    ty: DataType,
    levels: usize,
    /// Template and what fills its holes; none for a column or a constant.
    inner: Option<(usize, Vec<Tree>)>,
}

impl Tree {
    fn leaf(sql: String, ty: DataType) -> Tree {
        Tree { sql, ty, levels: 0, inner: None }
    }
}

/// The table: two columns of each type that may be on the device or have a dictionary, named `c0`, `c1`, ...
struct Table {
    planner: Planner,
    batch: RecordBatch,
    templates: Vec<Template>,
    /// Templates by group.
    groups: Vec<Vec<usize>>,
    caps: DeviceCaps,
}

impl Table {
    fn new(rng: &mut Rng, caps: DeviceCaps) -> Table {
        let known = |ty: &DataType| (is_plain(ty) || is_encodable(ty)) && !ty.is_null();
        let types: Vec<DataType> = subjects().into_iter().filter(known).collect();
        let (mut fields, mut columns) = (vec![], vec![]);
        for (at, ty) in types.iter().flat_map(|ty| [ty, ty]).enumerate() {
            let kind = if rng.one_in(3) { Kind::Plain } else { Kind::Edges };
            // Some columns without NULLs: their kernels have no validity bitmap.
            let nulls = [20, 50, 2, 0][rng.below(4)];
            fields.push(Field::new(format!("c{at}"), ty.clone(), nulls > 0));
            columns.push(column(ty, kind, ROWS, at % 2 == 1, nulls, rng));
        }
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns).expect("batch");
        let templates = templates();
        let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        templates.iter().enumerate().for_each(|(at, of)| groups.entry(of.group).or_default().push(at));
        let groups = groups.into_values().collect();
        Table { planner: Planner::new(schema), batch, templates, groups, caps }
    }

    /// The tree as DataFusion plans it, if it does.
    fn plan(&self, sql: &str) -> Option<Arc<dyn PhysicalExpr>> {
        let expr = self.planner.plan(sql).ok()?;
        let empty = RecordBatch::new_empty(Arc::clone(&self.planner.schema));
        // `None` too where a kernel of DataFusion's panics on no rows.
        on_cpu(&expr, &empty)?.is_ok().then_some(expr)
    }

    fn is_lowered(&self, expr: &Arc<dyn PhysicalExpr>) -> bool {
        lower(&self.planner.schema, std::slice::from_ref(expr), &self.caps).is_ok()
    }

    fn build(&self, template: usize, inner: Vec<Tree>) -> Option<(Tree, Arc<dyn PhysicalExpr>)> {
        let mut holes = inner.iter();
        let sql = self.templates[template].filled(&mut |_| match holes.next() {
            Some(tree) if tree.inner.is_some() => format!("({})", tree.sql),
            Some(tree) => tree.sql.clone(),
            None => "NULL".to_owned(),
        });
        if sql.len() > MAX_TEXT {
            return None;
        }
        let expr = self.plan(&sql)?;
        let ty = expr.data_type(&self.planner.schema).ok()?;
        let levels = 1 + inner.iter().map(|tree| tree.levels).max().unwrap_or(0);
        Some((Tree { sql, ty, levels, inner: Some((template, inner)) }, expr))
    }
}

/// Whether the device has values of the type: strings and others leave it as codes.
fn is_comparable(ty: &DataType) -> bool {
    is_plain(ty) && value_type(ty).is_some()
}

/// Numbers over a run.
#[derive(Debug, Default)]
struct Counts {
    trees: usize,
    declined: usize,
    raised: usize,
    rows: usize,
    guarded: usize,
    panicked: usize,
}

/// Grows the trees of one kernel.
struct Grower<'a> {
    table: &'a Table,
    rng: &'a mut Rng,
    pool: Vec<Tree>,
    /// Templates with types that DataFusion does not plan.
    unknown: &'a mut HashSet<(usize, Vec<DataType>)>,
    declined: usize,
}

impl Grower<'_> {
    fn plant(&mut self) {
        let fields = self.table.planner.schema.fields();
        let mut picked = HashSet::new();
        while picked.len() < COLUMNS {
            let at = self.rng.below(fields.len());
            if picked.insert(at) {
                self.pool.push(Tree::leaf(format!("c{at}"), fields[at].data_type().clone()));
                // Its twin, half of the time, so that two columns of one type meet.
                if picked.len() < COLUMNS && self.rng.one_in(2) && picked.insert(at ^ 1) {
                    self.pool.push(Tree::leaf(format!("c{}", at ^ 1), fields[at].data_type().clone()));
                }
            }
        }
    }

    fn pick(&mut self, wanted: impl Fn(&DataType) -> bool) -> Option<Tree> {
        let fits: Vec<usize> = (0..self.pool.len())
            .filter(|at| self.pool[*at].levels < MAX_LEVELS && wanted(&self.pool[*at].ty))
            .collect();
        (!fits.is_empty()).then(|| self.pool[fits[self.rng.below(fits.len())]].clone())
    }

    fn pick_or_constant(&mut self, ty: &DataType) -> Option<Tree> {
        self.pick(|other| other == ty).or_else(|| self.constant(ty))
    }

    fn constant(&mut self, ty: &DataType) -> Option<Tree> {
        let sql = literal(ty, self.rng.below(2))?;
        Some(Tree::leaf(sql, ty.clone()))
    }

    /// A new tree, lowered or not; `None` when the pieces do not fit together.
    fn grow(&mut self) -> Option<(Tree, Arc<dyn PhysicalExpr>)> {
        // Groups first: casts to every type are most of the templates.
        let groups = &self.table.groups;
        let group = &groups[self.rng.below(groups.len())];
        let template = group[self.rng.below(group.len())];
        // A function of strings among them, whatever else the pool is full of.
        let textual = self.table.templates[template].group == "Strings and bytes";
        let mut inner: Vec<Tree> = vec![];
        for hole in self.table.templates[template].holes() {
            let first = inner.first().map(|tree| tree.ty.clone());
            let tree = match (hole, first) {
                ("{p}", _) => self.pick_or_constant(&DataType::Boolean),
                ("{n}", _) => self.pick_or_constant(&DataType::Int64),
                ("{l}" | "{m}", Some(ty)) => self.constant(&ty),
                (_, Some(ty)) if !self.rng.one_in(5) => self.pick(|other| *other == ty),
                _ => self.pick(|ty| !textual || is_encodable(ty)),
            };
            inner.push(tree?);
        }
        let key = (template, inner.iter().map(|tree| tree.ty.clone()).collect::<Vec<_>>());
        if self.unknown.contains(&key) {
            return None;
        }
        let built = self.table.build(template, inner);
        if built.is_none() {
            self.unknown.insert(key);
        }
        built
    }

    /// Trees that the lowering takes, and that fit into one kernel.
    fn trees(&mut self, many: usize) -> Vec<(Tree, Arc<dyn PhysicalExpr>)> {
        self.plant();
        let mut grown = vec![];
        for _ in 0..100 * many {
            if grown.len() == many {
                break;
            }
            let Some((tree, expr)) = self.grow() else { continue };
            if !self.table.is_lowered(&expr) {
                self.declined += 1;
                continue;
            }
            self.pool.push(tree.clone());
            if is_comparable(&tree.ty) {
                grown.push((tree, expr));
            }
        }
        grown
    }
}

/// A tree as it is shown, and as DataFusion's expression.
pub(super) type Grown = (String, Arc<dyn PhysicalExpr>);

/// The rows of kernel `kernel`, and trees over them that the lowering takes, in SQL and as DataFusion plans them.
pub(super) fn grown(kernel: u64, caps: &DeviceCaps) -> (RecordBatch, Vec<Grown>) {
    let mut rng = seeded(kernel);
    let table = Table::new(&mut rng, caps.clone());
    let mut unknown = HashSet::new();
    let mut grower =
        Grower { table: &table, rng: &mut rng, pool: vec![], unknown: &mut unknown, declined: 0 };
    let trees = grower.trees(TREES).into_iter().map(|(tree, expr)| (tree.sql, expr)).collect();
    (table.batch, trees)
}

fn seeded(kernel: u64) -> Rng {
    Rng::new(kernel.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ 77)
}

/// A table's schema and trees over it that the lowering takes.
pub(super) fn samples(rng: &mut Rng, many: usize) -> (SchemaRef, Vec<Arc<dyn PhysicalExpr>>) {
    let table = Table::new(rng, DeviceCaps::for_tests());
    let mut unknown = HashSet::new();
    let mut grower = Grower { table: &table, rng, pool: vec![], unknown: &mut unknown, declined: 0 };
    let exprs = grower.trees(many).into_iter().map(|(_, expr)| expr).collect();
    (Arc::clone(&table.planner.schema), exprs)
}

/// What the device says to each row of each expression; they share a kernel.
pub(super) async fn verdicts(
    scope: &GuardedScope,
    batch: &RecordBatch,
    exprs: &[Arc<dyn PhysicalExpr>],
    caps: &DeviceCaps,
) -> Result<Vec<Vec<Verdict>>, String> {
    let (lowered, params) = lower(&batch.schema(), exprs, caps).map_err(|reasons| short(&reasons))?;
    let answer = async {
        let source = Arc::new(SourceBatch::new(batch.schema(), vec![batch.clone()]));
        let mut lazy = GpuBatch::new(Arc::clone(&source));
        let bound = params.bind(&mut lazy, &params.resolve()?)?;
        let rebased = lowered.iter().map(|expr| rebase(expr, &|index| lazy.column_expr(index), &bound));
        let exprs: Vec<_> = rebased.map(|expr| expr.expect("columns of the batch")).collect();
        let tables = tables_of(&exprs).into_keys().collect();
        lazy.prepare(&tables).await?;
        let columns = source.device_columns(scope, &columns_of(&exprs)).await?;
        let tables = lazy.device_tables(scope, &tables).await?;
        let program = Program { selection: None, params: lazy.params().to_vec() };
        let segment = Segment { columns, rows: batch.num_rows(), tables };
        let mut all = each(scope, &program, &exprs, &segment).await?;
        for (expr, verdicts) in exprs.iter().zip(&mut all) {
            // As in a query: the CPU answers for the whole batch.
            let raised = |table| lazy.table(table).is_some_and(|(table, _)| table.raised);
            if tables_of([expr]).into_keys().any(raised) {
                verdicts.fill(Verdict::Fault);
            }
        }
        Ok::<_, datafusion::error::DataFusionError>(all)
    };
    answer.await.map_err(|error| error.to_string())
}

/// The trees on the device, and what came out against DataFusion: of each the counts, or what was wrong.
fn compare(
    scope: &GuardedScope,
    table: &Table,
    exprs: &[Arc<dyn PhysicalExpr>],
) -> Result<Vec<Result<Agreed, String>>, String> {
    let verdicts = pollster::block_on(verdicts(scope, &table.batch, exprs, &table.caps))?;
    Ok(exprs.iter().zip(&verdicts).map(|(expr, verdicts)| agree(expr, &table.batch, verdicts)).collect())
}

/// The smallest tree below or beside `tree` that still goes wrong, and how.
fn shrink(scope: &GuardedScope, table: &Table, mut tree: Tree, mut wrong: String) -> (Tree, String) {
    let fails = |tree: &Tree| -> Option<String> {
        let expr = table.plan(&tree.sql).filter(|expr| is_comparable(&tree.ty) && table.is_lowered(expr))?;
        match compare(scope, table, &[expr]) {
            Err(wrong) => Some(wrong),
            Ok(results) => results.into_iter().find_map(Result::err),
        }
    };
    'smaller: for _ in 0..40 {
        for candidate in smaller(table, &tree) {
            if let Some(why) = fails(&candidate) {
                (tree, wrong) = (candidate, why);
                continue 'smaller;
            }
        }
        break;
    }
    (tree, wrong)
}

/// Trees with fewer nodes: the inner ones, and the tree with an inner one replaced by one of its own, or by a leaf.
fn smaller(table: &Table, tree: &Tree) -> Vec<Tree> {
    let Some((template, inner)) = &tree.inner else { return vec![] };
    let mut all = inner.clone();
    for (at, child) in inner.iter().enumerate().filter(|(_, child)| child.inner.is_some()) {
        let fields = table.planner.schema.fields().iter().filter(|field| *field.data_type() == child.ty);
        let mut others: Vec<Tree> =
            fields.map(|field| Tree::leaf(field.name().clone(), child.ty.clone())).collect();
        others.extend(smaller(table, child));
        for other in others {
            let mut inner = inner.clone();
            inner[at] = other;
            all.extend(table.build(*template, inner).map(|(tree, _)| tree));
        }
    }
    all
}

pub(super) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs `trees` trees on one device, with the kernels numbered from `first` on.
fn run(checks: ShaderChecks, first: u64, trees: usize) -> Counts {
    let device = if checks == ShaderChecks::Bounds { device() } else { with_checks(checks) };
    let scope = scope(&device);
    let mut caps = DeviceCaps::for_tests();
    caps.float64 = device.caps().float64;
    caps.numerics = device.caps().numerics;
    let (mut counts, mut unknown, mut failures) = (Counts::default(), HashSet::new(), vec![]);
    for kernel in (0..trees.div_ceil(TREES) as u64).map(|kernel| first + kernel) {
        let mut rng = seeded(kernel);
        let table = Table::new(&mut rng, caps.clone());
        let mut grower =
            Grower { table: &table, rng: &mut rng, pool: vec![], unknown: &mut unknown, declined: 0 };
        let grown = grower.trees(TREES);
        counts.declined += grower.declined;
        let exprs: Vec<_> = grown.iter().map(|(_, expr)| Arc::clone(expr)).collect();
        let results = match compare(&scope, &table, &exprs) {
            Ok(results) => results,
            // Something of one tree broke the kernel of all.
            Err(wrong) => exprs
                .iter()
                .map(|expr| compare(&scope, &table, std::slice::from_ref(expr)))
                .map(|result| result.unwrap_or_else(|wrong| vec![Err(wrong)]).remove(0))
                .chain([Err(wrong)])
                .collect(),
        };
        for (at, result) in results.into_iter().enumerate() {
            match result {
                Ok(agreed) => {
                    counts.trees += 1;
                    counts.raised += usize::from(agreed.raised);
                    counts.rows += agreed.rows;
                    counts.guarded += agreed.guarded;
                    counts.panicked += usize::from(agreed.panicked);
                }
                Err(wrong) => failures.push(match grown.get(at) {
                    Some((tree, _)) => {
                        let (small, why) = shrink(&scope, &table, tree.clone(), wrong);
                        format!("kernel {kernel}: {}\n    {why}", small.sql)
                    }
                    None => format!("kernel {kernel}: {wrong}"),
                }),
            }
        }
        if failures.len() > 20 {
            break;
        }
    }
    assert!(failures.is_empty(), "checks {checks:?}, {counts:?}\n{}", failures.join("\n"));
    counts
}

/// A third of the trees under each kind of shader checks.
fn run_share(checks: ShaderChecks, share: u64) {
    let trees = number("GPU_TREES", 2_000) as usize / 3;
    let first = number("GPU_TREES_SEED", 1) * 1_000_000 + share * 100_000;
    let counts = run(checks, first, trees);
    println!("checks {checks:?}: {counts:?}");
    assert!(counts.trees + TREES >= trees, "{counts:?}");
    assert!(counts.declined > 0 && counts.raised > 0, "{counts:?}");
    assert!(
        counts.rows > 20 * counts.guarded && counts.trees > 10 * counts.panicked,
        "too many rows are left to the CPU: {counts:?}"
    );
}

#[test]
fn random_trees_agree_with_datafusion() {
    run_share(ShaderChecks::Bounds, 0);
}

#[test]
fn random_trees_under_all_checks() {
    run_share(ShaderChecks::All, 1);
}

#[test]
fn random_trees_under_no_checks() {
    run_share(ShaderChecks::None, 2);
}
