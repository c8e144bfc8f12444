#!/usr/bin/env python3
"""Times CUDA's own primitives through PyTorch and CuPy, at the sizes of `cargo bench --bench kernels`.

They are what the kernels of this crate are measured against on an NVIDIA GPU: sort, select, top-k, scan, scatter-add, unique,
histogram, gather, searchsorted, reductions and transfers. A library or a device that is missing is named and left out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any

# Name, work, and the bytes a row that the work cannot do without reading or writing.
Case = tuple[str, Callable[[], Any], float]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(float(text)), nargs="+", default=[1 << 22, 1 << 26])
    parser.add_argument("--runs", type=int, default=20, help="measured runs of a primitive")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    return parser.parse_args()


class Torch:
    """PyTorch on the first CUDA device."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no CUDA device")
        self.torch = torch
        self.version = torch.__version__
        self.device = torch.cuda.get_device_name(0)

    def time(self, work: Callable[[], Any]) -> float:
        """Seconds that the device needs for the work."""
        start = self.torch.cuda.Event(enable_timing=True)
        end = self.torch.cuda.Event(enable_timing=True)
        start.record()
        result = work()
        end.record()
        end.synchronize()
        del result
        return float(start.elapsed_time(end)) / 1e3

    def cases(self, rows: int) -> list[Case]:
        torch = self.torch
        options = {"device": "cuda"}
        torch.manual_seed(1)
        keys = torch.randint(0, 2**31 - 1, (rows,), dtype=torch.int32, **options)
        longs = torch.randint(-(2**62), 2**62, (rows,), dtype=torch.int64, **options)
        floats = torch.rand(rows, dtype=torch.float64, **options)
        share = torch.randint(0, 1000, (rows,), dtype=torch.int32, **options)
        few = torch.randint(0, 1_000, (rows,), dtype=torch.int64, **options)
        many = torch.randint(0, max(rows // 10, 1), (rows,), dtype=torch.int64, **options)
        places = torch.randperm(rows, **options)
        sorted_longs = torch.sort(longs).values
        host = torch.empty(rows, dtype=torch.int64)
        pinned = torch.empty(rows, dtype=torch.int64, pin_memory=True)
        groups = int(many.max().item()) + 1
        cases: list[Case] = [
            ("sum of i64", lambda: longs.sum(), 8),
            ("min and max of f64", lambda: torch.aminmax(floats), 8),
            ("sort i32", lambda: torch.sort(keys), 8),
            ("sort i64", lambda: torch.sort(longs), 16),
            ("top 10 of i64", lambda: torch.topk(longs, min(10, rows)), 8),
            ("top 1000 of i64", lambda: torch.topk(longs, min(1000, rows)), 8),
            ("scan i32 to i64", lambda: torch.cumsum(keys, 0), 12),
            ("scatter-add i64 into 1000", lambda: self.scatter(few, longs, 1_000), 16),
            ("scatter-add i64 into rows / 10", lambda: self.scatter(many, longs, groups), 16),
            ("unique i64 of rows / 10", lambda: torch.unique(many), 8),
            ("histogram of 1000", lambda: torch.bincount(few, minlength=1_000), 8),
            ("gather i64 at random", lambda: longs[places], 24),
            ("searchsorted i64", lambda: torch.searchsorted(sorted_longs, longs), 16),
            ("upload i64, pageable", lambda: host.to("cuda"), 8),
            ("upload i64, pinned", lambda: pinned.to("cuda", non_blocking=True), 8),
            ("download i64, pinned", lambda: pinned.copy_(longs, non_blocking=True), 8),
        ]
        for percent in (1, 50, 99):
            mask = share < percent * 10
            cases.append((f"select {percent} % of i64", partial(getitem, longs, mask), 9 + percent / 100 * 8))
        return cases

    def scatter(self, groups: Any, values: Any, count: int) -> Any:
        sums = self.torch.zeros(count, dtype=values.dtype, device=values.device)
        return sums.index_add_(0, groups, values)


class Cupy:
    """CuPy on the first CUDA device."""

    name = "cupy"

    def __init__(self) -> None:
        import cupy

        if cupy.cuda.runtime.getDeviceCount() == 0:
            raise RuntimeError("CuPy finds no CUDA device")
        self.cupy = cupy
        self.version = cupy.__version__
        self.device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()

    def time(self, work: Callable[[], Any]) -> float:
        """Seconds that the device needs for the work."""
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        start.record()
        result = work()
        end.record()
        end.synchronize()
        del result
        return float(self.cupy.cuda.get_elapsed_time(start, end)) / 1e3

    def cases(self, rows: int) -> list[Case]:
        cp = self.cupy
        cp.random.seed(1)
        keys = cp.random.randint(0, 2**31 - 1, rows, dtype=cp.int32)
        longs = cp.random.randint(-(2**62), 2**62, rows, dtype=cp.int64)
        floats = cp.random.random(rows)
        share = cp.random.randint(0, 1000, rows, dtype=cp.int32)
        few = cp.random.randint(0, 1_000, rows, dtype=cp.int64)
        many = cp.random.randint(0, max(rows // 10, 1), rows, dtype=cp.int64)
        places = cp.random.permutation(rows)
        sorted_longs = cp.sort(longs)
        groups = int(many.max()) + 1
        cases: list[Case] = [
            ("sum of i64", lambda: longs.sum(), 8),
            ("min and max of f64", lambda: (floats.min(), floats.max()), 8),
            ("sort i32", lambda: cp.sort(keys), 8),
            ("sort i64", lambda: cp.sort(longs), 16),
            ("argsort i32", lambda: cp.argsort(keys), 12),
            ("top 10 of i64", lambda: cp.partition(longs, max(rows - 10, 0))[-10:], 8),
            ("scan i32 to i64", lambda: cp.cumsum(keys, dtype=cp.int64), 12),
            ("scatter-add i64 into 1000", lambda: self.scatter(few, longs, 1_000), 16),
            ("scatter-add i64 into rows / 10", lambda: self.scatter(many, longs, groups), 16),
            ("unique i64 of rows / 10", lambda: cp.unique(many), 8),
            ("histogram of 1000", lambda: cp.bincount(few, minlength=1_000), 8),
            ("gather i64 at random", lambda: longs[places], 24),
            ("searchsorted i64", lambda: cp.searchsorted(sorted_longs, longs), 16),
        ]
        for percent in (1, 50, 99):
            mask = share < percent * 10
            cases.append((f"select {percent} % of i64", partial(getitem, longs, mask), 9 + percent / 100 * 8))
        return cases

    def scatter(self, groups: Any, values: Any, count: int) -> Any:
        sums = self.cupy.zeros(count, dtype=self.cupy.uint64)
        # CUDA adds 64-bit integers atomically as unsigned ones, with the same bits.
        self.cupy.add.at(sums, groups, values.view(self.cupy.uint64))
        return sums


def measure(library: Torch | Cupy, rows: int, runs: int) -> list[dict[str, Any]]:
    """A line for each primitive; one that fails is reported with its error."""
    results: list[dict[str, Any]] = []
    for name, work, floor in library.cases(rows):
        entry: dict[str, Any] = {"library": library.name, "primitive": name, "rows": rows, "floor_bytes": floor * rows}
        try:
            for _ in range(3):
                library.time(work)
            times = [library.time(work) for _ in range(runs)]
        except Exception as error:  # Whatever a library or a driver raises: the others still run.
            entry["error"] = str(error).splitlines()[0] if str(error) else type(error).__name__
            print(f"{library.name:6} {name:32} {rows:12} {entry['error']}", flush=True)
        else:
            median = statistics.median(times)
            entry |= {"median_s": median, "best_s": min(times), "runs_s": times}
            rates = f"{rows / median / 1e9:8.2f} Grows/s {floor * rows / median / 1e9:9.1f} GB/s"
            print(f"{library.name:6} {name:32} {rows:12} {median * 1e6:12.1f} us {rates}", flush=True)
        results.append(entry)
    return results


def main() -> int:
    options = arguments()
    report: dict[str, Any] = {
        "engine": "cuda",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "libraries": {},
        "missing": {},
        "results": [],
    }
    for library in (Torch, Cupy):
        try:
            opened = library()
        except Exception as error:  # An import or a driver may fail in many ways; each means that it is not there.
            report["missing"][library.name] = str(error).splitlines()[0] if str(error) else type(error).__name__
            print(f"{library.name} is left out: {report['missing'][library.name]}", flush=True)
            continue
        report["libraries"][library.name] = {"version": opened.version, "device": opened.device}
        print(f"{library.name} {opened.version} on {opened.device}", flush=True)
        for rows in options.rows:
            try:
                report["results"] += measure(opened, rows, options.runs)
            except Exception as error:  # Such as too little device memory for the inputs.
                message = str(error).splitlines()[0] if str(error) else type(error).__name__
                report["missing"][f"{library.name}, {rows} rows"] = message
                print(f"{library.name} with {rows} rows is left out: {message}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
