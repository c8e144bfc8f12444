//! Second pass: islands. Neighbouring supported nodes are priced together and kept or given up together.

use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::statistics::StatisticsContext;

use crate::config::{GpuOptions, Placement};

use super::cost::{Cost, Machine, estimated_rows, groups, joined, kept};
use super::reason::Reason;
use super::tag::{Tagged, Verdict};

/// Turns the verdicts of single nodes into those of the plan.
///
/// With placement 'auto' an island starts at a node that reads all of its input (an aggregate); the filters and
/// projections below it belong to it. It stays on the CPU when its input is small, or when the CPU is estimated to be faster on
/// `machine`; without one there is no estimate. With 'force' every supported node
/// is kept. Either way projections that only rename are kept between GPU nodes, and left alone at an island's border.
///
/// The islands that are kept come back.
pub(crate) fn review(tagged: &mut Tagged, options: &GpuOptions, machine: Option<Machine>) -> Vec<Island> {
    cover(tagged);
    let mut islands = vec![];
    if !tagged.nodes.is_empty() {
        find_islands(tagged, 0, None, options.placement == Placement::Auto, &mut islands);
    }
    islands.retain(|island| match judge(tagged, island, options, machine) {
        Some(reason) => {
            give_up(tagged, island, &reason);
            false
        }
        None => {
            trim(tagged, island);
            true
        }
    });
    islands
}

/// Marks the nodes that a proposal further up stands for.
fn cover(tagged: &mut Tagged) {
    for id in 0..tagged.nodes.len() {
        for covered in tagged.covered(id) {
            tagged.nodes[covered].verdict = Verdict::Covered;
        }
    }
}

/// GPU nodes that are connected, directly or through transparent nodes; the topmost comes first.
pub(crate) type Island = Vec<usize>;

fn find_islands(
    tagged: &mut Tagged,
    id: usize,
    island: Option<usize>,
    auto: bool,
    islands: &mut Vec<Island>,
) {
    let (next, below) = match &tagged.nodes[id].verdict {
        Verdict::Gpu(proposal) => {
            let against = match proposal {
                _ if island.is_some() || proposal.breaker => None,
                _ if !proposal.works => Some(Reason::NothingToCompute),
                _ => auto.then_some(Reason::LoneRowLocal),
            };
            if let Some(reason) = against {
                tagged.nodes[id].verdict = Verdict::Cpu(vec![reason]);
                (None, tagged.nodes[id].children.clone())
            } else {
                let island = island.unwrap_or_else(|| {
                    islands.push(vec![]);
                    islands.len() - 1
                });
                islands[island].push(id);
                (Some(island), tagged.inputs(id).to_vec())
            }
        }
        Verdict::Transparent => (island, tagged.nodes[id].children.clone()),
        Verdict::Covered | Verdict::Cpu(_) => (None, tagged.nodes[id].children.clone()),
    };
    for child in below {
        find_islands(tagged, child, next, auto, islands);
    }
}

/// The reason to give an island up, if there is one.
fn judge(
    tagged: &Tagged,
    island: &[usize],
    options: &GpuOptions,
    machine: Option<Machine>,
) -> Option<Reason> {
    if options.placement == Placement::Force {
        return None;
    }
    let mut rows = 0u64;
    let statistics = StatisticsContext::new();
    for input in border(tagged, island) {
        match estimated_rows(tagged.nodes[input].plan.as_ref(), &statistics) {
            Some(estimate) => rows = rows.saturating_add(estimate),
            None => return Some(Reason::UnknownRows),
        }
    }
    let enough = usize::try_from(rows).map_or(true, |rows| rows >= options.min_rows);
    if !enough {
        return Some(Reason::TooFewRows { rows, min_rows: options.min_rows });
    }
    let cost = cost(tagged, island, machine?, &statistics);
    let micros = |nanos: f64| (nanos / 1e3) as u64;
    (cost.cpu < cost.gpu).then(|| Reason::CpuIsFaster { cpu_us: micros(cost.cpu), gpu_us: micros(cost.gpu) })
}

/// How many times as fast an island above a join is to be.
const JOINED: f64 = 2.0;

/// The island's estimated times.
fn cost(tagged: &Tagged, island: &[usize], machine: Machine, statistics: &StatisticsContext) -> Cost {
    let mut cost = Cost::of_launches();
    let Some(top) = island.first() else { return cost };
    flow(tagged, *top, machine, statistics, &mut cost);
    let joins =
        border(tagged, island).iter().any(|input| joined(&tagged.nodes[*input].plan, statistics).is_some());
    if joins {
        // Their rows may be a tenth of what is expected, and launches and transfers then weigh more.
        cost.gpu *= JOINED;
    }
    cost
}

/// Adds the node and what is below it in its island; gives the rows that leave it.
fn flow(
    tagged: &Tagged,
    id: usize,
    machine: Machine,
    statistics: &StatisticsContext,
    cost: &mut Cost,
) -> f64 {
    let plan = &tagged.nodes[id].plan;
    let below = match &tagged.nodes[id].verdict {
        Verdict::Gpu(_) => tagged.inputs(id),
        Verdict::Transparent => &tagged.nodes[id].children,
        Verdict::Covered | Verdict::Cpu(_) => {
            let rows = estimated_rows(plan.as_ref(), statistics).unwrap_or_default() as f64;
            let rows = joined(plan, statistics).map_or(rows, |(joined, share)| rows.min(joined * share));
            cost.add_input(&plan.schema(), rows, machine);
            return rows;
        }
    };
    let rows: f64 = below.iter().map(|input| flow(tagged, *input, machine, statistics, cost)).sum();
    // Of an aggregate and its exchange, the node that reads the rows.
    let reads = tagged.covered(id).last().map_or(plan, |bottom| &tagged.nodes[*bottom].plan);
    cost.add_node(reads.as_ref(), rows, machine);
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        return kept(filter, rows, statistics);
    }
    let Some(aggregate) = reads.downcast_ref::<AggregateExec>() else { return rows };
    let found = groups(aggregate, rows, statistics);
    cost.add_groups(aggregate, found, machine);
    found
}

/// The nodes on the host side of an island's border.
fn border(tagged: &Tagged, island: &[usize]) -> Vec<usize> {
    let mut border = vec![];
    for id in island {
        let mut open = tagged.inputs(*id).to_vec();
        while let Some(input) = open.pop() {
            match &tagged.nodes[input].verdict {
                Verdict::Gpu(_) => {}
                Verdict::Transparent => open.extend(&tagged.nodes[input].children),
                Verdict::Covered | Verdict::Cpu(_) => border.push(input),
            }
        }
    }
    border
}

/// Leaves projections that only rename on the CPU where their input is there too.
fn trim(tagged: &mut Tagged, island: &[usize]) {
    // From the bottom up, so that a chain of them goes.
    for id in island.iter().rev() {
        let idle = matches!(&tagged.nodes[*id].verdict, Verdict::Gpu(proposal) if !proposal.works);
        let inputs = tagged.inputs(*id).len();
        if idle && border(tagged, &[*id]).len() == inputs {
            tagged.nodes[*id].verdict = Verdict::Cpu(vec![Reason::NothingToCompute]);
        }
    }
}

/// Leaves every node of an island on the CPU.
pub(crate) fn give_up(tagged: &mut Tagged, island: &[usize], reason: &Reason) {
    for id in island {
        let covered = tagged.covered(*id);
        for node in std::iter::once(*id).chain(covered) {
            tagged.nodes[node].verdict = Verdict::Cpu(vec![reason.clone()]);
        }
    }
}

/// What `work` says to the plan with no GPU nodes but those of one island.
pub(crate) fn alone<T>(tagged: &mut Tagged, island: &[usize], work: impl Fn(&Tagged) -> T) -> T {
    let verdicts: Vec<Verdict> = tagged.nodes.iter().map(|node| node.verdict.clone()).collect();
    for (id, node) in tagged.nodes.iter_mut().enumerate() {
        if matches!(node.verdict, Verdict::Gpu(_)) && !island.contains(&id) {
            node.verdict = Verdict::Cpu(vec![]);
        }
    }
    let said = work(tagged);
    for (node, verdict) in tagged.nodes.iter_mut().zip(verdicts) {
        node.verdict = verdict;
    }
    said
}
