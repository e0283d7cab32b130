"""Results of a comparison, ``comparison.json``, a table and a plot, written from the run directories."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphslice._version import __version__
from graphslice.atomic_write import atomic_write
from graphslice.compare.differences import compared_split, describe, differences
from graphslice.compare.plan import Run
from graphslice.config import RunConfig
from graphslice.evaluation.format_scores import markdown_table, mean_and_std
from graphslice.evaluation.metrics import METRICS, Metric
from graphslice.hardware import hardware_info
from graphslice.run_files import is_finished, read_metric_logs, read_metrics, read_training

RESULT, TABLE, PICTURE = "comparison.json", "comparison.md", "comparison.png"

# --- reading run directories --------------------------------------------------------------------


def describe_outcome(scores: dict) -> str:
    """Describe the test score of a finished run in one line; the validation score if there are no test labels."""
    name, split = scores["metric"], "test" if "test" in scores else "valid"
    value = scores[split][name]
    return f"{split} {METRICS[name].label} {float('nan') if value is None else value:.4f}"


def read_run(run: Run, reason: str | None) -> dict | None:
    """Read the record of a run for ``comparison.json``; None if it is not finished. ``reason``: why it failed."""
    record: dict[str, Any] = {"variant": run.variant.label, "seed": run.config.trainer.seed}
    if reason is not None:
        return record | {"error": reason}
    if not is_finished(run.folder):
        return None
    scores = read_metrics(run.folder)
    name = scores["metric"]
    record |= {split: scores[split][name] for split in ("valid", "test") if split in scores}
    record |= read_training(run.folder)
    return record | {"metric": name, "curve": _read_curve(run.folder, f"val_{name}")}


def _read_curve(folder: Path, logged: str) -> list[list[float]]:
    """Read ``[seconds, steps, metric]`` of every validation, over all resumptions."""
    points: dict[int, list[float]] = {}
    for row in read_metric_logs(folder):
        if row.get(logged) and row.get("seconds"):
            steps = int(row["step"]) + 1
            points[steps] = [round(float(row["seconds"]), 2), steps, round(float(row[logged]), 6)]
    return [points[steps] for steps in sorted(points)]


# --- writing results ----------------------------------------------------------------------------


def summary(base: RunConfig, budget: str, jobs: int, runs: list[dict]) -> dict:
    """Return the contents of ``comparison.json``; ``budget`` as the user wrote it, ``runs`` from :func:`read_run`."""
    common = base.to_dict()
    data = common.pop("data")  # only its name and split are part of the result, not its path
    result = {"dataset": Path(data["dataset"]).name, "split": data["split"], "budget": budget}
    result |= {"jobs": jobs, "version": __version__, "machine": hardware_info(), "config": common, "runs": runs}
    return result | {"differences": differences(group_by_variant(result), _metric(result))}


def write_files(result: dict, out: Path) -> None:
    """Write ``comparison.json`` and ``comparison.md`` (both atomically), and ``comparison.png``."""
    for name, text in ((RESULT, json.dumps(result, indent=1) + "\n"), (TABLE, table(result))):
        with atomic_write(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    draw(result, out / PICTURE)


def group_by_variant(result: dict) -> dict[str, list[dict]]:
    """Return the finished runs of each variant, the best on the validation set first.

    Comparisons of former versions, which selected hyperparameters, have runs that are not selected.
    """
    variants: dict[str, list[dict]] = {}
    for run in result["runs"]:
        if "error" not in run and "not_selected" not in run:
            variants.setdefault(run["variant"], []).append(run)
    metric = _metric(result)

    def loss(runs: list[dict]) -> float:
        """Mean validation loss; infinite, so sorted last, if undefined (such as AUROC of a single class)."""
        mean = metric.loss(np.array([run["valid"] for run in runs], np.float64).mean())
        return float("inf") if np.isnan(mean) else mean

    return dict(sorted(variants.items(), key=lambda item: loss(item[1])))


def _metric(result: dict) -> Metric:
    """Return the metric of a comparison, which all its runs share."""
    return METRICS[next((run.get("metric", "mae") for run in result["runs"] if "error" not in run), "mae")]


def table(result: dict) -> str:
    """Format the contents of ``comparison.json`` as Markdown: mean and standard deviation over the seeds by variant."""
    label = _metric(result).label
    head = [
        "mixer",
        f"test {label}",
        f"validation {label}",
        "parameters",
        "steps",
        "molecules/s",
        "peak memory",
        "seeds",
    ]
    rows = []
    for variant, runs in group_by_variant(result).items():
        steps = np.mean([run["steps"] for run in runs])
        rate = np.mean([run["molecules_per_second"] for run in runs])
        memory = max(run["peak_memory_bytes"] or 0 for run in runs) / 2**30
        cells = [f"`{variant}`", _mean_and_std(runs, "test"), _mean_and_std(runs, "valid")]
        cells += [f"{runs[0]['parameters']:,}", f"{steps:,.0f}", f"{rate:,.0f}"]
        rows.append([*cells, f"{memory:.2f} GiB" if memory else "", len(runs)])
    lines = [*markdown_table(head, rows)]
    split = "Test" if compared_split(result["runs"]) == "test" else "Validation"
    lines += describe(differences(group_by_variant(result), _metric(result)), f"{split} {label}")
    rejected = [run for run in result["runs"] if "not_selected" in run and "error" not in run]
    if rejected:
        errors = ", ".join(f"`{run['variant']}` {_mean_and_std([run], 'valid') or 'undefined'}" for run in rejected)
        lines.append(f"\nNot selected by the validation error of the first seed, which is among those above: {errors}.")
    failed = [run for run in result["runs"] if "error" in run]
    lines += [f"\n{run['variant']}, seed {run['seed']}: {run['error']}" for run in failed]
    return "\n".join(lines) + "\n"


def _mean_and_std(runs: list[dict], split: str) -> str:
    """Format mean and standard deviation of an error over the seeds; empty if there are no values."""
    values = [run[split] for run in runs if run.get(split) is not None]
    return mean_and_std(values) if values else ""


def _align_curves(curves: Sequence[np.ndarray], by: int) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate the validation curves of several seeds at common points.

    Args:
        curves: ``[n, 3]`` for each of S seeds: seconds, steps, errors.
        by: column by which they are aligned: 0 for seconds, 1 for steps (whose seconds are averaged over the seeds).

    Returns:
        ``[P]`` seconds and ``[S, P]`` errors, over the range that all curves cover; the last point of each curve
        (P = 1) if there is no common range.
    """
    first, last = max(curve[0, by] for curve in curves), min(curve[-1, by] for curve in curves)
    if first >= last:
        ends = np.stack([curve[-1] for curve in curves])
        return ends[:, :1].mean(0), ends[:, 2:]
    grid = np.linspace(first, last, 200)
    aligned = [[np.interp(grid, curve[:, by], curve[:, column]) for column in (0, 2)] for curve in curves]
    return np.mean([seconds for seconds, _ in aligned], axis=0), np.stack([errors for _, errors in aligned])


def draw(result: dict, path: Path) -> None:
    """Plot the validation metric against training time: mean over the seeds as a line, their range shaded."""
    from matplotlib import colormaps

    from graphslice.evaluation.plots import new_figure, use_log_scale

    variants = {label: [run for run in runs if run["curve"]] for label, runs in group_by_variant(result).items()}
    figure, (axes,) = new_figure(1, (8, 5))
    metric = _metric(result)
    colours: Callable[[int], Any] = colormaps["tab10" if len(variants) <= 10 else "tab20"]
    for number, (label, runs) in enumerate(variants.items()):
        if not runs:
            continue
        curves = [np.array(run["curve"]) for run in runs]
        times, errors = _align_curves(curves, 0 if re.search(r"\d\s*[smh]$", result["budget"]) else 1)
        marker = "o" if len(times) == 1 else None
        axes.plot(times, errors.mean(0), color=colours(number), label=label, linewidth=1.4, marker=marker)
        axes.fill_between(times, errors.min(0), errors.max(0), color=colours(number), alpha=0.15, linewidth=0)
    axes.set(xlabel="training time (s)", ylabel=f"validation {metric.label}")
    if not metric.higher_is_better:
        runs = [run for found in variants.values() for run in found]
        use_log_scale(axes, "y", np.array([error for run in runs for *_, error in run["curve"]]))
    if any(variants.values()):
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
