//! One line an operator: what `soak` runs, the fault walk breaks at every call of the device, and guard bands watch.

/// An operator, and a query that runs it.
pub struct Operator {
    /// The node that must be in the plan.
    pub node: &'static str,
    /// A query over `t` in memory, `p` in Parquet files, or `r`, which is not known to be repeatable: the same rows; or over
    /// `u`, fewer rows in one partition in memory. Columns: id, v, k, d, f, day, s. Its answer must not depend on the order
    /// of rows.
    pub sql: &'static str,
    /// The node is only there under `gpu.exchanges = 'keep'`, or differs there.
    pub keeps_exchanges: bool,
    /// All groups that may stay on the device do: `gpu.merge_groups = 1`.
    pub keeps_groups: bool,
}

const fn op(node: &'static str, sql: &'static str) -> Operator {
    Operator { node, sql, keeps_exchanges: false, keeps_groups: false }
}

impl Operator {
    const fn with_exchanges(mut self) -> Self {
        self.keeps_exchanges = true;
        self
    }

    const fn with_kept_groups(mut self) -> Self {
        self.keeps_groups = true;
        self
    }
}

/// All operators.
pub const OPERATORS: &[Operator] = &[
    op("GpuFilterExec", "SELECT id, s FROM t WHERE v > 80000"),
    op("GpuProjectionExec", "SELECT v + id AS w, d * d AS dd FROM t"),
    // Look-ups, whose codes and tables are uploaded, of the kernel and of the host; CASE, and floats.
    op(
        "GpuProjectionExec",
        "SELECT upper(s), CASE WHEN k > 500 THEN f * 1.5 ELSE f END AS w FROM t WHERE v > 80000 AND s LIKE '%7'",
    ),
    // A cast that may raise.
    op("GpuAggregateExec", "SELECT sum(CAST(substr(s, 6) AS INT)), count(k) FROM t WHERE s <> 'name 5'"),
    op(
        "GpuAggregateExec",
        "SELECT count(k), sum(v), avg(id), sum(d) FILTER (WHERE k > 500) FROM t WHERE v > 2000",
    ),
    op("GpuAggregateExec", "SELECT count(*), sum(v), max(f) FROM t WHERE v > 2000").with_exchanges(),
    op("GpuAggregateExec", "SELECT sum(v), count(k), max(f) FROM r WHERE v > 2000"),
    op("GpuAggregateExec", "SELECT sum(f), avg(f * f), sum(f) FILTER (WHERE k > 500) FROM t WHERE v > 2000"),
    op("GpuAggregateExec", "SELECT min(v), max(id) FROM p WHERE v >= 0").with_exchanges(),
    op(
        "GpuAggregateExec",
        "SELECT k, count(*), sum(v), min(d), avg(id) FILTER (WHERE v > 9000) FROM t WHERE v > 2000 GROUP BY k",
    ),
    // Groups that are merged on the device.
    op(
        "GpuAggregateExec",
        "SELECT id % 2500, k, count(*), sum(v), min(d), avg(id) FILTER (WHERE v > 9000) FROM r GROUP BY id % 2500, k",
    )
    .with_kept_groups(),
    op("GpuAggregateExec", "SELECT DISTINCT k, day FROM p WHERE v >= 0").with_kept_groups().with_exchanges(),
    op(
        "GpuAggregateExec",
        "SELECT s, k % 3, min(f), max(upper(s)), avg(d) FROM r GROUP BY ROLLUP (s, k % 3)",
    )
    .with_exchanges(),
    op("GpuAggregateExec", "SELECT substr(s, 1, 6), max(s), count(*) FROM p WHERE v >= 0 GROUP BY 1")
        .with_exchanges(),
    op(
        "GpuAggregateExec",
        "SELECT count(*), sum(n) FROM (SELECT id % 5000, count(*) AS n FROM t GROUP BY id % 5000)",
    ),
    op("GpuFilterExec", "SELECT id, v FROM r WHERE v > 80000 ORDER BY v, id"),
    op("GpuFilterExec", "SELECT a.s, b.v FROM u a JOIN u b ON a.id = b.id WHERE a.v > 90000 AND b.v < 95000"),
];
