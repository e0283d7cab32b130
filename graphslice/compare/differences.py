"""What the seeds of a comparison can tell: differences of variants over the same seeds, with their intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphslice.evaluation.metrics import Metric
from graphslice.evaluation.seeds import LEAST_SEEDS, mean_interval


@dataclass(frozen=True)
class Difference:
    """How a variant differs from another one on the test molecules.

    Attributes:
        variant, beside: their names.
        seeds: that both have.
        mean: of the differences of the metric, seed by seed.
        low, high: the ends of the 95% interval of the mean, by Student's t.
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
    """The differences of all variants from the first one, where they share seeds enough.

    The runs of a seed have the same molecules in the same order, so the seeds' own share of the scores falls out.

    Args:
        variants: the finished runs of each, the best on validation first.
        metric: that they are compared by.
    """
    names = list(variants)
    by_seed = {
        name: {run["seed"]: run["test"] for run in variants[name] if run.get("test") is not None} for name in names
    }
    found = []
    for name in names[1:]:
        shared = sorted(by_seed[names[0]].keys() & by_seed[name].keys())
        if len(shared) >= LEAST_SEEDS:
            values = np.array([by_seed[name][seed] - by_seed[names[0]][seed] for seed in shared])
            found.append(_difference(name, names[0], values, metric))
    return found


def _difference(variant: str, beside: str, values: np.ndarray, metric: Metric) -> Difference:
    mean, (low, high) = float(values.mean()), mean_interval(values)
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
    lines = [
        f"\nTest {label} less that of `{found[0].beside}`, seed by seed, with the 95% interval of the mean:",
        "",
        "| mixer | difference | interval | seeds | |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        interval = f"{one.low:+.4f} to {one.high:+.4f}"
        lines.append(f"| `{one.variant}` | {one.mean:+.4f} | {interval} | {one.seeds} | {one.verdict} |")
    return lines
