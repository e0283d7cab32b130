"""What a comparison writes: ``comparison.json``, a table and a picture, of what the run folders hold."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from graphslice.atomic_write import atomic_write
from graphslice.compare.differences import describe, differences
from graphslice.compare.plan import Run
from graphslice.config import RunConfig
from graphslice.evaluation.metrics import METRICS, Metric
from graphslice.hardware import hardware_info
from graphslice.run_files import is_finished, metric_logs, read_metrics, read_training

RESULT, TABLE, PICTURE = "comparison.json", "comparison.md", "comparison.png"

# What a run leaves in its folder of each resumption.


# --- what the run folders hold ------------------------------------------------------------------


def selection_metric(found: dict) -> str:
    """The metric that chose the best epoch of a run, of its scores or of a comparison of some."""
    return found.get("metric", "mae")


def validation_error(folder: Path) -> float:
    """What is wrong with a run on the validation molecules, by its metric, less for a better run; infinite if it is
    not finished."""
    if not is_finished(folder):
        return float("inf")
    found = read_metrics(folder)
    name = selection_metric(found)
    value = found.get("valid", {}).get(name)
    return float("inf") if value is None else METRICS[name].loss(value)


def describe_outcome(found: dict) -> str:
    """What a finished run reached, of its scores by split, in one line."""
    name = selection_metric(found)
    value = found.get("test", {}).get(name)
    return f"test {METRICS[name].label} {float('nan') if value is None else value:.4f}"


def read_run(run: Run, reason: str | None) -> dict | None:
    """A run as ``comparison.json`` has it, or None if it is not finished.

    Args:
        run: of the comparison.
        reason: why it failed, if it did.
    """
    record: dict[str, Any] = {"variant": run.variant.label, "seed": run.config.trainer.seed}
    if reason is not None:
        return record | {"error": reason}
    if not is_finished(run.folder):
        return None
    found = read_metrics(run.folder)
    name = selection_metric(found)
    record |= {split: found[split][name] for split in ("valid", "test") if split in found}
    record |= read_training(run.folder)
    return record | {"metric": name, "curve": _read_curve(run.folder, f"val_{name}")}


def _read_curve(folder: Path, logged: str) -> list[list[float]]:
    """Seconds, steps and the metric of every validation, over all resumptions."""
    points: dict[int, list[float]] = {}
    for log in metric_logs(folder):
        with log.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row.get(logged) and row.get("seconds"):
                    steps = int(row["step"]) + 1
                    points[steps] = [round(float(row["seconds"]), 2), steps, round(float(row[logged]), 6)]
    return [points[steps] for steps in sorted(points)]


# --- what is written ----------------------------------------------------------------------------


def summary(base: RunConfig, budget: str, jobs: int, runs: list[dict]) -> dict:
    """What ``comparison.json`` holds.

    Args:
        base: what the variants have in common.
        budget: of each run, as the user wrote it.
        jobs: runs at a time.
        runs: as :func:`read_run` gives them.
    """
    common = base.to_dict()
    data = common.pop("data")  # its name and split: where it lies is no part of the result
    result = {"dataset": Path(data["dataset"]).name, "split": data["split"], "budget": budget}
    result |= {"jobs": jobs, "machine": hardware_info(), "config": common, "runs": runs}
    return result | {"differences": [asdict(one) for one in differences(group_by_variant(result), _metric(result))]}


def write_files(result: dict, out: Path) -> None:
    """Write ``comparison.json``, ``comparison.md`` and ``comparison.png``; a reader never sees half of a text."""
    for name, text in ((RESULT, json.dumps(result, indent=1) + "\n"), (TABLE, table(result))):
        with atomic_write(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    draw(result, out / PICTURE)


def group_by_variant(result: dict) -> dict[str, list[dict]]:
    """The finished runs of each selected variant, the best on validation first."""
    variants: dict[str, list[dict]] = {}
    for run in result["runs"]:
        if "error" not in run and "not_selected" not in run:
            variants.setdefault(run["variant"], []).append(run)
    metric = _metric(result)

    def loss(runs: list[dict]) -> float:
        """The last of all where it is not defined, as of one class alone."""
        found = metric.loss(np.array([run["valid"] for run in runs], np.float64).mean())
        return float("inf") if np.isnan(found) else found

    return dict(sorted(variants.items(), key=lambda item: loss(item[1])))


def _metric(result: dict) -> Metric:
    """The metric of a comparison, which is that of each of its runs."""
    return METRICS[next((selection_metric(run) for run in result["runs"] if "error" not in run), "mae")]


def table(result: dict) -> str:
    """Markdown: a line a variant, with mean and standard deviation over its seeds.

    Args:
        result: what ``comparison.json`` holds.
    """
    label = _metric(result).label
    lines = [
        f"| mixer | test {label} | validation {label} | parameters | steps | molecules/s | peak memory | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for variant, runs in group_by_variant(result).items():
        steps = np.mean([run["steps"] for run in runs])
        rate = np.mean([run["molecules_per_second"] for run in runs])
        memory = max(run["peak_memory_bytes"] or 0 for run in runs) / 2**30
        cells = [
            f"`{variant}`",
            _mean_and_std(runs, "test"),
            _mean_and_std(runs, "valid"),
            f"{runs[0]['parameters']:,}",
        ]
        cells += [f"{steps:,.0f}", f"{rate:,.0f}", f"{memory:.2f} GiB" if memory else "", str(len(runs))]
        lines.append("| " + " | ".join(cells) + " |")
    lines += describe(differences(group_by_variant(result), _metric(result)), label)
    rest = [run for run in result["runs"] if "not_selected" in run and "error" not in run]
    if rest:
        errors = ", ".join(f"`{run['variant']}` {_mean_and_std([run], 'valid') or 'undefined'}" for run in rest)
        lines.append(f"\nNot selected by the validation error of the first seed, which is among those above: {errors}.")
    failed = [run for run in result["runs"] if "error" in run]
    lines += [f"\n{run['variant']}, seed {run['seed']}: {run['error']}" for run in failed]
    return "\n".join(lines) + "\n"


def _mean_and_std(runs: list[dict], split: str) -> str:
    """Mean and standard deviation of an error over the seeds; nothing if there is none."""
    values = [run[split] for run in runs if run.get(split) is not None]
    if not values:
        return ""
    deviation = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{deviation}"


def _align_curves(curves: Sequence[np.ndarray], by: int) -> tuple[np.ndarray, np.ndarray]:
    """Curves of seconds, steps and errors, where all have something: ``[P]`` seconds and ``[S, P]`` errors.

    Args:
        curves: ``[n, 3]`` each, of S seeds.
        by: the column in which they have the same place: 0, or 1 for as many steps, of which the seconds are the mean.

    Returns:
        One point, the last one of each, where no two validations of all lie between the same two.
    """
    first, last = max(curve[0, by] for curve in curves), min(curve[-1, by] for curve in curves)
    if first >= last:
        ends = np.stack([curve[-1] for curve in curves])
        return ends[:, :1].mean(0), ends[:, 2:]
    places = np.linspace(first, last, 200)
    found = [[np.interp(places, curve[:, by], curve[:, column]) for column in (0, 2)] for curve in curves]
    return np.mean([seconds for seconds, _ in found], axis=0), np.stack([errors for _, errors in found])


def draw(result: dict, path: Path) -> None:
    """The metric on validation against time: the mean of the seeds as a line, their range shaded.

    Args:
        result: what ``comparison.json`` holds.
        path: of the picture.
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    variants = {label: [run for run in runs if run["curve"]] for label, runs in group_by_variant(result).items()}
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes, metric = figure.add_subplot(), _metric(result)
    colours: Callable[[int], Any] = colormaps["tab10" if len(variants) <= 10 else "tab20"]
    for number, (label, runs) in enumerate(variants.items()):
        if not runs:
            continue
        curves = [np.array(run["curve"]) for run in runs]
        times, errors = _align_curves(curves, 0 if re.search(r"\d\s*[smh]$", result["budget"]) else 1)
        marker = "o" if len(times) == 1 else None
        axes.plot(times, errors.mean(0), color=colours(number), label=label, linewidth=1.4, marker=marker)
        axes.fill_between(times, errors.min(0), errors.max(0), color=colours(number), alpha=0.15, linewidth=0)
    axes.set(
        xlabel="seconds of training",
        ylabel=f"validation {metric.label}",
        yscale="linear" if metric.higher_is_better else "log",
    )
    if any(variants.values()):
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
