"""What the seeds of a comparison can tell: differences of variants over the same seeds, with their intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphslice.evaluation.confidence import MIN_SEEDS, mean_interval
from graphslice.evaluation.metrics import Metric


@dataclass(frozen=True)
class Difference:
    """How a variant differs from another one on the test molecules.

    Attributes:
        variant, beside: their names.
        seeds: that both have.
        mean: of the differences of the metric, seed by seed.
        low, high: the ends of the interval of the mean, by Student's t; those of all variants hold at once in 95% of
            comparisons.
        verdict: better or worse where the interval excludes 0, else that it cannot be told.
    """

    variant: str
    beside: str
    seeds: int
    mean: float
    low: float
    high: float
    verdict: str


def differences(variants: dict[str, list[dict]], metric: Metric) -> list[Difference]:
    """The differences of all variants from the first one that has seeds enough, where they share so many.

    The runs of a seed have the same molecules in the same order, so the seeds' own share of the scores falls out.

    Args:
        variants: the finished runs of each, the best on validation first.
        metric: that they are compared by.
    """
    by_seed = {
        name: {run["seed"]: run["test"] for run in runs if run.get("test") is not None}
        for name, runs in variants.items()
    }
    by_seed = {name: runs for name, runs in by_seed.items() if len(runs) >= MIN_SEEDS}
    first, *others = by_seed or [""]
    shared = {name: sorted(by_seed[first].keys() & by_seed[name].keys()) for name in others}
    pairs = {name: seeds for name, seeds in shared.items() if len(seeds) >= MIN_SEEDS}
    found = []
    for name, seeds in pairs.items():
        values = np.array([by_seed[name][seed] - by_seed[first][seed] for seed in seeds])
        found.append(_difference(name, first, values, metric, len(pairs)))
    return found


def _difference(variant: str, beside: str, values: np.ndarray, metric: Metric, comparisons: int) -> Difference:
    mean, (low, high) = float(values.mean()), mean_interval(values, comparisons=comparisons)
    if low <= 0 <= high:
        verdict = "cannot be told apart"
    else:
        verdict = "worse" if (metric.loss(mean) > metric.loss(0.0)) else "better"
    return Difference(variant, beside, len(values), mean, low, high, verdict)


def describe(found: list[Difference], label: str) -> list[str]:
    """Markdown lines: a table of differences; none where there are none.

    Args:
        found: from one variant.
        label: of the metric.
    """
    if not found:
        return []
    all_of = f"intervals, which hold all {len(found)} at once in 95% of cases"
    intervals = "95% intervals" if len(found) == 1 else all_of
    lines = [
        f"\nTest {label} less that of `{found[0].beside}`, the best on validation in these runs, seed by seed; means "
        f"with {intervals}:",
        "",
        "| mixer | difference | interval | seeds | |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        interval = f"{one.low:+.4f} to {one.high:+.4f}"
        lines.append(f"| `{one.variant}` | {one.mean:+.4f} | {interval} | {one.seeds} | {one.verdict} |")
    return lines
