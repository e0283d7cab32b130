"""Results of a comparison, ``comparison.json`` and a table, written from the run directories."""

from __future__ import annotations

import json
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

RESULT, TABLE = "comparison.json", "comparison.md"

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
    return result | {"differences": differences(group_by_variant(result), metric_of(result))}


def write_files(result: dict, out: Path) -> None:
    """Write ``comparison.json`` and ``comparison.md``."""
    for name, text in ((RESULT, json.dumps(result, indent=1) + "\n"), (TABLE, table(result))):
        with atomic_write(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def group_by_variant(result: dict) -> dict[str, list[dict]]:
    """Return the finished runs of each variant, the best on the validation set first."""
    variants: dict[str, list[dict]] = {}
    for run in result["runs"]:
        if "error" not in run:
            variants.setdefault(run["variant"], []).append(run)
    metric = metric_of(result)

    def loss(runs: list[dict]) -> float:
        """Mean validation loss; infinite, so sorted last, if undefined (such as AUROC of a single class)."""
        mean = metric.loss(np.array([run["valid"] for run in runs], np.float64).mean())
        return float("inf") if np.isnan(mean) else mean

    return dict(sorted(variants.items(), key=lambda item: loss(item[1])))


def metric_of(result: dict) -> Metric:
    """Return the metric of a comparison, which all its runs share."""
    return METRICS[next((run.get("metric", "mae") for run in result["runs"] if "error" not in run), "mae")]


def table(result: dict) -> str:
    """Format the contents of ``comparison.json`` as Markdown: mean and standard deviation over the seeds by variant."""
    label = metric_of(result).label
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
    lines += describe(differences(group_by_variant(result), metric_of(result)), f"{split} {label}")
    failed = [run for run in result["runs"] if "error" in run]
    lines += [f"\n{run['variant']}, seed {run['seed']}: {run['error']}" for run in failed]
    return "\n".join(lines) + "\n"


def _mean_and_std(runs: list[dict], split: str) -> str:
    """Format mean and standard deviation of an error over the seeds; empty if there are no values."""
    values = [run[split] for run in runs if run.get(split) is not None]
    return mean_and_std(values) if values else ""
