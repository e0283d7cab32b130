"""Table and plot of a benchmark, interleaved timing, and memory of processes."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from graphslice.evaluation.format_scores import markdown_table


def figure(name: str, value: float, unit: str, *, goal: str = "", comparison: str = "") -> dict:
    """Return a row of the table: a measured value, the required value and one for comparison."""
    row = {"measurement": name, "value": float(f"{value:.4g}"), "unit": unit, "goal": goal}
    return row | {"comparison": comparison}


def print_table(figures: list[dict]) -> None:
    """Print the table as Markdown."""
    rows = [[f"{value:,}" if name == "value" else value for name, value in line.items()] for line in figures]
    print(*markdown_table(list(figures[0]), rows), sep="\n")


def interleaved(functions: dict[str, Callable[[], object]], repeats: int = 9) -> dict[str, float]:
    """Measure the median seconds of each function, interleaved so that changes of the machine affect all alike."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()  # compile, fill the caches
    for _ in range(repeats):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - begin)
    return {name: float(np.median(values)) for name, values in times.items()}


def memory_of_processes(root: int) -> int:
    """Return the bytes of a process and all below it (Linux); pages that several processes have count once."""
    parents, total = {}, 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    family = [root]
    for process in family:
        family += [child for child, parent in parents.items() if parent == process]
        with suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total
