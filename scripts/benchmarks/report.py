"""The table of a benchmark, and its times."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np


def figure(what: str, value: float, unit: str, *, asked: str = "", beside: str = "") -> dict:
    """One line of the table."""
    return {"what": what, "value": float(f"{value:.4g}"), "unit": unit, "asked": asked, "beside": beside}


def print_table(figures: list[dict]) -> None:
    """As Markdown."""
    columns = ("what", "value", "unit", "asked", "beside")
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for line in figures:
        print("| " + " | ".join(f"{line[c]:,}" if c == "value" else str(line[c]) for c in columns) + " |")


def interleaved(
    functions: dict[str, Callable[[], object]], repeats: int = 7, synchronize: Callable[[], None] | None = None
) -> dict[str, float]:
    """Median seconds of each function, taken in turns so that a drifting machine drifts for all.

    ``synchronize`` waits for a device that works on after a function has returned.
    """
    wait = synchronize or (lambda: None)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()  # compile, fill the caches
    wait()
    for _ in range(repeats):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            wait()
            times[name].append(time.perf_counter() - begin)
    return {name: float(np.median(values)) for name, values in times.items()}
