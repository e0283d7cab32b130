"""Formats of numbers and scores, of the coverage of prediction intervals, and of tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphslice.errors import pluralize, quoted_list
from graphslice.evaluation.metrics import (
    COVERAGE_LEVEL,
    METRICS,
    MIN_SEEDS,
    mean_interval,
    mean_of_defined,
    prediction_count,
)
from graphslice.stacking.stacking import NAMES, NETWORK, STACK
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION

#: Typographic minus sign, and the placeholder for a missing number.
MINUS, NONE = "\u2212", "\u2013"
#: Metrics that are printed for every task type; metrics.json has all of them.
PRINTED_METRICS = {
    REGRESSION: ("mae", "rmse", "r2", "spearman"),
    BINARY: ("auroc", "auprc", "balanced_accuracy", "mcc"),
    MULTICLASS: ("accuracy", "balanced_accuracy", "auroc", "mcc"),
}
# Largest number of targets that are listed one by one.
_MAX_TARGETS = 12


def number(value: float, digits: int = 3) -> str:
    """Format a score with ``digits`` significant digits, trailing zeros and a typographic minus sign."""
    return _format_like(f"{value:#.{digits}g}", value).rstrip(".")


def plain(value: float, digits: int = 4) -> str:
    """Format a number with at most ``digits`` significant digits, without trailing zeros."""
    return _format_like(f"{value:.{digits}g}", value)


def score_text(value: float, decimals: int = 4, scale: float | None = None, sign: str = "") -> str:
    """Format a score with decimals; with significant digits, one fewer, if it or the ``scale`` of all is small."""
    is_small = 0 < abs(value if scale is None else scale) < 0.01
    return f"{value:{sign}.{decimals - 1}g}" if is_small else f"{value:{sign}.{decimals}f}"


def mean_and_std(values: Sequence[float] | np.ndarray, decimals: int = 4) -> str:
    """Format the mean of values, and of several their standard deviation."""
    mean = float(np.mean(values))
    deviation = f" ± {score_text(float(np.std(values, ddof=1)), decimals, scale=mean)}" if len(values) > 1 else ""
    return score_text(mean, decimals) + deviation


def _format_like(text: str, value: float) -> str:
    if not math.isfinite(value):
        return NONE
    if 1000 <= abs(value) < 1e6 or ("e" in text and 1 <= abs(value) < 1e6):
        text = f"{value:,.0f}"
    return text.replace("-", MINUS)


def shortened(text: str, most: int = 40) -> str:
    """Shorten a text to at most ``most`` characters by replacing its middle with an ellipsis."""
    text, most = text.encode(errors="replace").decode(), max(most, 5)  # undecodable bytes of a file cannot be drawn
    return text if len(text) <= most else f"{text[: most // 2]}…{text[most // 2 + 1 - most :]}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table; ``|`` in a cell is escaped."""
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |"


def describe_scores(split: str, result: dict, first: str | None = None, *, digits: int = 4) -> str:
    """Format scores as one line, ``first`` a metric, and one line for each target with labels if there are several."""
    by_target = {name: target for name, target in result["targets"].items() if prediction_count(target)[0] > 0}
    if not by_target and any("bounds" in target for target in result["targets"].values()):
        return f"{split.removesuffix(':')}: all labels are bounds, so there are no errors to report"
    by_target = by_target or result["targets"]
    unlabelled = [name for name in result["targets"] if name not in by_target]
    kinds = {target["kind"] for target in by_target.values()}
    names = [name for kind in PRINTED_METRICS if kind in kinds for name in PRINTED_METRICS[kind]]
    if first is not None and first in result:
        names = [first, *names]
    count, unit = prediction_count(result)
    sole = next(iter(by_target.values())) if len(by_target) == 1 else {}
    lines = [f"{split} {_values(sole | result, names, digits)} on {pluralize(count, unit[:-1])}"]
    if unit != "molecules":
        lines[0] += f" of {pluralize(result['molecules'], 'molecule')}"
    if len(by_target) > 1:
        lines[0] += f" (mean of {len(by_target):,} targets)"
    elif unlabelled:
        lines[0] += f" ({next(iter(by_target))})"
    if len(by_target) > 1:
        lines += [
            f"  {name}: {_values(target, PRINTED_METRICS[target['kind']], digits)}"
            for name, target in list(by_target.items())[:_MAX_TARGETS]
        ]
        if (more := len(by_target) - _MAX_TARGETS) > 0:
            lines.append(f"  and {more:,} more targets")
    if unlabelled:
        lines.append(f"  no labels for {quoted_list(unlabelled)}")
    return "\n".join(lines)


def describe_width(target: Mapping[str, Any]) -> str:
    """Format the mean width of the intervals of a target: a factor, if it is trained on its logarithm."""
    factor, width = (target.get(f"{name}_{COVERAGE_LEVEL}") for name in ("factor", "width"))
    return f"about a factor of {plain(factor, 2)}" if factor is not None else f"{width:.3g}"


def describe_covered(target: Mapping[str, Any], noun: str = "") -> str:
    """Format the coverage of a target, such as ``16 of 23 (70%; by chance 17 to 23)``, if molecules are exchangeable.
    Atoms and bonds of a molecule are not, so they have the share alone."""
    share, (count, unit) = target[f"coverage_{COVERAGE_LEVEL}"], prediction_count(dict(target))
    if unit != "molecules":
        return f"{share:.0%}"
    low, high = _chance(target)
    return f"{round(share * count):,} of {count:,}{noun} ({share:.0%}; by chance {low:,.0f} to {high:,.0f})"


def _chance(target: Mapping[str, Any]) -> tuple[float, float]:
    """Return the central 95% of the number of covered labels. It is beta-binomial, since the coverage of intervals that
    were calibrated on n molecules has a beta distribution of n + 1 counts (Vovk 2012, arXiv:1209.2673)."""
    from scipy.stats import betabinom

    counts, level = target["calibration_molecules"] + 1, COVERAGE_LEVEL / 100
    return betabinom.interval(0.95, target["molecules"], counts * level, counts * (1 - level))


def describe_coverage(split: str, result: dict) -> list[str]:
    """Format the coverage of intervals and sets: one line for regression, one for classification targets, and advice if
    a target has less than chance allows."""
    targets, labels, lines, level = result["targets"], label_noun(result), [], COVERAGE_LEVEL
    coverage, sizes, widths = f"coverage_{level}", f"classes_{level}", f"width_{level}"
    regressions = [target for target in targets.values() if coverage in target and target["kind"] == REGRESSION]
    if bounded := [target for target in regressions if widths in target]:
        width = f", mean width {describe_width(bounded[0])}" if len(targets) == 1 else ""
        lines.append(f"{split}: {level}% prediction intervals cover {_covered(bounded, labels)}{width}")
    elif regressions:
        lines.append(f"too few validation molecules for {level}% prediction intervals: they are infinite")
    if classes := [target for target in targets.values() if coverage in target and sizes in target]:
        informative = [target for target in classes if target[sizes] < len(target["counts"])]
        line = (
            f"{split}: {level}% prediction sets cover {_covered(classes, labels)}, mean size "
            f"{_mean(classes, sizes):.2f} classes"
        )
        if any(target.get("temperature", 1) != 1 for target in classes):
            before, after = _mean(classes, "calibration_error_before"), _mean(classes, "calibration_error")
            temperature = f" {classes[0]['temperature']:.2f}" if len(classes) == 1 else "s"
            line += f"; temperature{temperature}: calibration error {before:.3f} before, {after:.3f} after"
        too_few = (
            f"{level}% prediction sets contain all classes: the model hardly separates them, or too few are held out"
        )
        lines.append(line if informative else too_few)
    low = [
        name
        for name, target in targets.items()
        if labels == "labels" and target.get(coverage) is not None
        if round(target[coverage] * target["molecules"]) < _chance(target)[0]
    ]
    if low:
        which = f" for {quoted_list(low, _MAX_TARGETS)}" if len(targets) > 1 else ""
        lines.append(
            f"{split}: less than chance allows{which}: predict such molecules with a higher level, such as "
            "--interval 95 (docs/howto/uncertainty.md)"
        )
    return lines


def describe_bounds(split: str, result: dict) -> list[str]:
    """Format the number of bounds among the labels, and how many are respected: one line, if there are any."""
    counts = [
        f"{round(target['bounds'] * target['bounds_respected']):,} of {pluralize(target['bounds'], 'label')} "
        f"with < or > ({name})"
        for name, target in result["targets"].items()
        if "bounds" in target
    ]
    if not counts:
        return []
    listed = quoted_list(counts, _MAX_TARGETS, str)
    return [f"{split}: predictions agree with {listed}; other scores leave these labels out"]


def label_noun(result: dict) -> str:
    """Return the noun for covered labels; atoms and bonds are counted within molecules, averaged over molecules."""
    unit = prediction_count(result)[1]
    return "labels" if unit == "molecules" else f"labels of a molecule's {unit}"


def _covered(targets: list[dict], labels: str) -> str:
    if len(targets) == 1 and labels == "labels":
        return describe_covered(targets[0], " labels")
    return f"{_mean(targets, f'coverage_{COVERAGE_LEVEL}'):.0%} of the {labels}"


def _mean(scores: list[dict], name: str) -> float:
    return mean_of_defined(target[name] for target in scores)


def _values(scores: dict, names: list[str] | tuple[str, ...], digits: int) -> str:
    """Format the named metrics, separated by commas."""
    texts = [
        f"{METRICS[name].label} {score_text(scores[name], digits)}" for name in dict.fromkeys(names) if name in scores
    ]
    if (factor := scores.get("median_factor")) is not None:
        texts.append(f"typical error a factor of {plain(factor, 3)}")
    return ", ".join(texts)


def describe_seeds(split: str, scores: Sequence[dict[str, float]], metric: str, folds: int = 0) -> list[str]:
    """Describe the scores of the network over several seeds or folds (each the metric by model), and compare it with
    base models if there are any; no lines for fewer than two, or if the network's metric is undefined."""
    if len(scores) < 2:
        return []
    # Undefined scores were read as None, which becomes nan.
    values = {name: np.array([member[name] for member in scores], np.float64) for name in scores[0]}
    means = {name: float(column.mean()) for name, column in values.items() if np.isfinite(column).all()}
    if NETWORK not in means:
        return []
    named = [f"{NAMES[name]} {mean_and_std(values[name])}" for name in means]
    summary = ", ".join(named) if len(scores[0]) > 1 else mean_and_std(values[NETWORK])
    lines = [
        f"{split} {METRICS[metric].label} of the {len(scores)} individual models (mean ± standard deviation): {summary}"
    ]
    rivals = [name for name in means if name not in (NETWORK, STACK)]
    if rivals:
        loss = METRICS[metric].loss
        rival = min(rivals, key=lambda name: loss(means[name]))
        winner, loser = sorted((NETWORK, rival), key=lambda name: loss(means[name]))
        gains = (values[loser] - values[winner]) * loss(1.0)
        summary = f"{NAMES[winner]} is better than {NAMES[loser]} by {gains.mean():.3g}"
        kind = "folds" if folds else "seeds"
        if len(scores) < MIN_SEEDS:
            return [*lines, f"{summary}; {len(scores)} models are too few to estimate the variation between {kind}"]
        low, high = mean_interval(gains, folds, len(rivals))  # one of several rivals was chosen by these scores
        significant = "significant" if low > 0 else "not significant"
        lines.append(
            f"{summary} (95% confidence interval: {low:.3g} to {high:.3g}), {significant} given the variation "
            f"between {kind}"
        )
    return lines
