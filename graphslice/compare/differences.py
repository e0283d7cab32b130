"""Paired differences of the variants of a comparison over their seeds, with confidence intervals."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from graphslice.evaluation.confidence import MIN_SEEDS, mean_interval
from graphslice.evaluation.format_scores import markdown_table
from graphslice.evaluation.metrics import Metric


def compared_split(runs: Iterable[dict]) -> str:
    """Return the split whose metric is compared: ``"test"``, or ``"valid"`` if no run has test labels (PCQM4M)."""
    return "test" if any("test" in run for run in runs) else "valid"


def differences(variants: dict[str, list[dict]], metric: Metric) -> list[dict]:
    """Compute the differences of all variants from the first one with at least ``MIN_SEEDS`` seeds.

    The runs of a seed see the same molecules in the same order, so pairing by seed removes the effect of the seed.

    Args:
        variants: the finished runs of each variant, the best on the validation set first.
        metric: metric by which they are compared.

    Returns:
        A difference for every other variant that shares at least ``MIN_SEEDS`` seeds with the first. The intervals are
        by Student's t and hold simultaneously in 95% of comparisons, for all pairs of variants (Bonferroni), since the
        first variant was chosen by its results.
    """
    split = compared_split(chain.from_iterable(variants.values()))
    by_seed = {
        name: {run["seed"]: run[split] for run in runs if run.get(split) is not None} for name, runs in variants.items()
    }
    by_seed = {name: runs for name, runs in by_seed.items() if len(runs) >= MIN_SEEDS}
    first, *others = by_seed or [""]
    shared = {name: sorted(by_seed[first].keys() & by_seed[name].keys()) for name in others}
    pairs = {name: seeds for name, seeds in shared.items() if len(seeds) >= MIN_SEEDS}
    # The reference is the best of all, so the intervals have to hold for the differences of all pairs of variants.
    comparisons = len(pairs) * (len(pairs) + 1) // 2
    results = []
    for name, seeds in pairs.items():
        values = np.array([by_seed[name][seed] - by_seed[first][seed] for seed in seeds])
        mean, (low, high) = float(values.mean()), mean_interval(values, comparisons=comparisons)
        verdict = "worse" if metric.loss(mean) > metric.loss(0.0) else "better"
        verdict = "no significant difference" if low <= 0 <= high else verdict
        result = {"variant": name, "beside": first, "seeds": len(seeds)}  # codespell:ignore beside
        results.append({**result, "mean": mean, "low": low, "high": high, "verdict": verdict})
    return results


def describe(results: list[dict], label: str) -> list[str]:
    """Format differences of a metric from one reference variant as a Markdown table; no lines without any."""
    if not results:
        return []
    intervals = "95% intervals" if len(results) == 1 else "simultaneous 95% intervals of all pairs"
    reference = results[0]["beside"]  # codespell:ignore beside
    lines = [
        f"\n{label} minus that of `{reference}`, the best on the validation set, paired by seed; means with "
        f"{intervals}:",
        "",
    ]
    rows = (
        (
            f"`{one['variant']}`",
            f"{one['mean']:+.4f}",
            f"{one['low']:+.4f} to {one['high']:+.4f}",
            one["seeds"],
            one["verdict"],
        )
        for one in results
    )
    return [*lines, *markdown_table(["mixer", "difference", "interval", "seeds", "conclusion"], rows)]
