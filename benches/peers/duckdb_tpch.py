#!/usr/bin/env python3
"""TPC-H through DuckDB, over the Parquet files and the query texts of `datafusion-wgpu bench tpch`.

Each query runs once unmeasured and then several times, from Parquet and from tables in memory. The report has the shape of
`bench tpch --json`. With that of ours beside it, numbers of rows and sums of columns are compared.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

TABLES = ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"]
REPOSITORY = Path(__file__).resolve().parents[2]
QUERIES = REPOSITORY / "src/bin/datafusion-wgpu/bench/tpch"
# Averages and quotients of decimals are decimals in DataFusion, cut after a few digits, and doubles in DuckDB.
TOLERANCE = 1e-4


def numbers(text: str) -> list[int]:
    """Query numbers of a list such as 1,6 or 1-5,14."""
    chosen: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        chosen += range(int(first), int(last or first) + 1)
    if not all(1 <= number <= 22 for number in chosen):
        raise argparse.ArgumentTypeError("TPC-H has queries 1 to 22")
    return sorted(set(chosen))


def sources(text: str) -> list[str]:
    """Sources of a list such as parquet,memory."""
    chosen = text.split(",")
    if not set(chosen) <= {"parquet", "memory"}:
        raise argparse.ArgumentTypeError("expected parquet, memory or both with a comma between them")
    return chosen


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="scale factor of the data")
    parser.add_argument("--data", type=Path, default=Path("data/bench"), help="the --data of `bench tpch`")
    parser.add_argument("--queries", type=numbers, default=list(range(1, 23)), help="such as 1,6 or 1-5,14")
    parser.add_argument("--runs", type=int, default=5, help="measured runs of a query")
    parser.add_argument("--sources", type=sources, default=["parquet", "memory"], help="such as parquet,memory")
    parser.add_argument("--threads", type=int, default=0, help="threads of DuckDB; all cores without it")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--ours", type=Path, help="what `bench tpch --json` wrote, to compare with")
    return parser.parse_args()


def query(number: int, scale: float) -> tuple[str, str]:
    """Title and text of a query."""
    lines = (QUERIES / f"{number:02}.sql").read_text().splitlines()
    title = " ".join(line.lstrip("- ") for line in lines if line.startswith("--"))
    sql = "\n".join(line for line in lines if not line.startswith("--"))
    return title, sql.replace(":fraction", f"{0.0001 / scale:.12f}")


def connect(duckdb: Any, folder: Path, source: str, threads: int) -> Any:
    """A database with the tables: views of the files, or copies of them in memory."""
    connection = duckdb.connect()
    if threads:
        connection.execute(f"SET threads = {threads}")
    kind = "VIEW" if source == "parquet" else "TABLE"
    for table in TABLES:
        files = str(folder / table / "*.parquet").replace("'", "''")
        connection.execute(f"CREATE {kind} {table} AS SELECT * FROM read_parquet('{files}')")
    return connection


def column_sum(values: list[Any]) -> float | None:
    """Sum of a numeric column, none for another."""
    present = [value for value in values if value is not None]
    if any(isinstance(value, bool) or not isinstance(value, (int, float, Decimal)) for value in present):
        return None
    return float(sum(present))


def measure(connection: Any, sql: str, runs: int) -> dict[str, Any]:
    """Times of a query, and the shape of its answer. Rows are fetched outside of the time."""
    times: list[float] = []
    rows: list[tuple[Any, ...]] = []
    columns = 0
    for _ in range(runs + 1):
        start = time.perf_counter()
        connection.execute(sql)
        times.append(time.perf_counter() - start)
        columns = len(connection.description)
        rows = connection.fetchall()
    first, *measured = times
    return {
        "status": "cpu",
        "cpu": {
            "first_s": first,
            "median_s": statistics.median(measured),
            "best_s": min(measured),
            "runs_s": measured,
        },
        "result": {
            "rows": len(rows),
            "sums": [column_sum([row[at] for row in rows]) for at in range(columns)],
        },
    }


def difference(mine: dict[str, Any], ours: dict[str, Any] | None) -> str:
    """Whether the answer has the rows and the sums of ours, in words."""
    if not ours or not ours.get("result"):
        return "no answer of ours"
    expected = ours["result"]
    if mine["rows"] != expected["rows"]:
        return f"DIFFERENT: {mine['rows']} rows, ours has {expected['rows']}"
    for at, (left, right) in enumerate(zip(mine["sums"], expected["sums"])):
        if left is None or right is None:
            continue
        if not math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=1e-9):
            return f"DIFFERENT: column {at + 1} sums up to {left}, ours to {right}"
    return "same"


def machine(version: str, threads: int) -> dict[str, Any]:
    cpu = None
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else None
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": threads,
        "os": platform.system().lower(),
        "architecture": platform.machine(),
        "duckdb": version,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def main() -> int:
    options = arguments()
    try:
        import duckdb
    except ImportError:
        print("DuckDB's wheel is missing: pip install duckdb", file=sys.stderr)
        return 2
    folder = options.data / f"tpch-sf{options.scale:g}"
    missing = [table for table in TABLES if not list((folder / table).glob("*.parquet"))]
    if missing:
        print(
            f"'{folder}' has no {', '.join(missing)}: run `datafusion-wgpu bench tpch --scale {options.scale:g} "
            f"--data '{options.data}'` first",
            file=sys.stderr,
        )
        return 2
    ours: dict[int, dict[str, Any]] = {}
    if options.ours:
        report = json.loads(options.ours.read_text())
        if report.get("suite") != "tpch" or report.get("scale") != options.scale:
            print(f"'{options.ours}' is no report of TPC-H at scale {options.scale:g}", file=sys.stderr)
            return 2
        ours = {entry["query"]: entry for entry in report["queries"]}

    entries: dict[int, dict[str, Any]] = {}
    totals: dict[str, dict[str, Any]] = {}
    different = 0
    threads = 0
    for source in options.sources:
        connection = connect(duckdb, folder, source, options.threads)
        threads = connection.execute("SELECT current_setting('threads')").fetchall()[0][0]
        total = 0.0
        for number in options.queries:
            title, sql = query(number, options.scale)
            entry = entries.setdefault(number, {"query": number, "title": title})
            entry[source] = measure(connection, sql, options.runs)
            median = entry[source]["cpu"]["median_s"]
            total += median
            line = f"query {number:2} from {source:7}  {median * 1e3:10.2f} ms"
            if options.ours:
                verdict = difference(entry[source]["result"], ours.get(number, {}).get(source))
                different += verdict.startswith("DIFFERENT")
                entry[source]["comparison"] = verdict
                line += f"  {verdict}"
            print(line, flush=True)
        totals[source] = {"queries": len(options.queries), "cpu_s": total}
        print(f"all of {len(options.queries)} from {source}: {total * 1e3:.2f} ms", flush=True)
        connection.close()
    report = {
        "suite": "tpch",
        "scale": options.scale,
        "engine": "duckdb",
        "runs": options.runs,
        "machine": machine(duckdb.__version__, threads),
        "queries": [entries[number] for number in options.queries],
        "totals": totals,
    }
    print(f"DuckDB {duckdb.__version__}, {threads} threads, scale {options.scale:g}, median of {options.runs} runs")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
