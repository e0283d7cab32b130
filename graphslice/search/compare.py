"""A comparison: train or continue every run, and update ``comparison.json`` and its table after each. They have the
best variant, and paired differences over seeds with confidence intervals.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console

from graphslice._version import __version__
from graphslice.config import RunConfig
from graphslice.errors import InputError, check_number
from graphslice.evaluation.format_scores import markdown_table, mean_and_std, score_text
from graphslice.evaluation.metrics import METRICS, MIN_SEEDS, Metric, mean_interval
from graphslice.runs.run_files import is_finished, read_metric_logs, read_metrics, read_training
from graphslice.search.plan import Run, Variant, check_single_networks, parse_budget, plan_runs
from graphslice.system.console import standard_error
from graphslice.system.files import atomic_write, locked
from graphslice.system.machine import hardware_info, visible_gpus
from graphslice.system.processes import in_processes

RESULT, TABLE = "comparison.json", "comparison.md"
_Key = TypeVar("_Key", bound=Hashable)


def compare(
    base: RunConfig,
    variants: Sequence[Variant],
    seeds: int,  # number of runs of each variant, with seeds from 0
    budget: str,  # of each run, as of parse_budget; a time includes validation
    out: str | Path,  # for the run directories, comparison.json and comparison.md
    *,
    jobs: int | None = None,  # parallel runs, which slow each other down; by default one per GPU, else 1
    console: Console | None = None,
) -> dict:
    """Train every variant with every seed, each run in a process of its own, and return the contents of
    ``comparison.json``. Finished runs in ``out`` are kept and interrupted ones are continued, so the same call
    continues a comparison, and one with more mixers or seeds extends it. Raises :class:`InputError` if a run in ``out``
    has other settings, another comparison is using ``out``, or no run could be finished."""
    from graphslice.training.train_run import train_member

    out, console = Path(out), console or standard_error()
    check_single_networks(base, "comparison")
    gpus = visible_gpus(base.trainer.accelerator)
    jobs = max(1, len(gpus)) if jobs is None else jobs
    check_number("seeds", seeds, 1)
    check_number("jobs", jobs, 1)
    # Without base models, which would be the same for all variants, and on one scale for all seeds.
    data = replace(base.data, transform=base.data.transform or "none")
    base = replace(base, data=data, trainer=replace(base.trainer, baselines="off", refit="off", **parse_budget(budget)))
    runs = plan_runs(variants, range(seeds), base, out)
    reasons: dict[Path, str] = {}  # error messages of failed runs

    def write_results() -> dict:
        records = [record for run in runs if (record := read_run(run, reasons.get(run.folder))) is not None]
        result = summary(base, budget, jobs, records)
        for name, text in ((RESULT, json.dumps(result, indent=1) + "\n"), (TABLE, table(result))):
            with atomic_write(out / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
        return result

    with locked(out):
        tasks = {run.folder: (run.config, run.folder, None) for run in runs if not is_finished(run.folder)}
        console.print(f"{len(runs)} runs of {budget}, {len(tasks)} to do", highlight=False)
        with closing(in_processes(train_member, tasks, jobs, gpus)) as ended:
            for done, (folder, reason) in enumerate(ended, 1):
                if reason:
                    reasons[folder] = reason
                outcome = reason or describe_outcome(read_metrics(folder))
                text = f"{done} of {len(tasks)}: {folder.relative_to(out)}: {outcome}"
                console.print(text, highlight=False, markup=False)
                write_results()
        result = write_results()
    if len(reasons) == len(result["runs"]):
        raise InputError(f"all runs failed; the first with: {next(iter(reasons.values()))}")
    return result


def best_first(scores: Mapping[_Key, Sequence[float | None]], metric: Metric) -> dict[_Key, float]:
    """Return the mean over the seeds of each variant's scores, the best first and undefined ones (None, nan) last; ties
    keep their order."""
    means = {key: float(np.array(values, np.float64).mean()) for key, values in scores.items()}
    losses = {key: metric.loss(mean) if np.isfinite(mean) else float("inf") for key, mean in means.items()}
    return {key: means[key] for key in sorted(means, key=losses.__getitem__)}


def describe_outcome(scores: dict) -> str:
    """Describe the test score of a finished run in one line; the validation score if there are no test labels."""
    name, split = scores["metric"], "test" if "test" in scores else "valid"
    value = scores[split][name]
    return f"{split} {METRICS[name].label} {score_text(float('nan') if value is None else value)}"


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


def summary(base: RunConfig, budget: str, jobs: int, runs: list[dict]) -> dict:
    """Return the contents of ``comparison.json``; ``budget`` as the user wrote it, ``runs`` from :func:`read_run`."""
    common = base.to_dict()
    data = common.pop("data")  # only its name and split are part of the result, not its path
    result = {"dataset": Path(data["dataset"]).name, "split": data["split"], "budget": budget}
    result |= {"jobs": jobs, "version": __version__, "machine": hardware_info(), "config": common, "runs": runs}
    return result | {"differences": differences(group_by_variant(result), metric_of(result))}


def group_by_variant(result: dict) -> dict[str, list[dict]]:
    """Return the finished runs of each variant, the best on the validation set first."""
    variants: dict[str, list[dict]] = {}
    for run in result["runs"]:
        if "error" not in run:
            variants.setdefault(run["variant"], []).append(run)
    scores = {variant: [run["valid"] for run in runs] for variant, runs in variants.items()}
    return {variant: variants[variant] for variant in best_first(scores, metric_of(result))}


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
    found = differences(group_by_variant(result), metric_of(result))
    lines += describe(found, f"{split} {label}")
    if len(rows) > 1 and not found:
        lines.append(
            f"\nNo difference between these variants can be claimed: that takes {MIN_SEEDS} seeds in common, better 5 "
            "(`--seeds 5`)."
        )
    elif found and all(difference["low"] <= 0 <= difference["high"] for difference in found):
        lines.append(f"\nNo difference from `{found[0]['reference']}` can be claimed: every interval contains 0.")
    sizes = [run["parameters"] for run in result["runs"] if "error" not in run]
    if sizes and max(sizes) > 1.05 * min(sizes):
        lines.append(
            f"\nThe numbers of parameters differ by up to {max(sizes) / min(sizes) - 1:.0%}: also compare at equal "
            "numbers (such as `--mixers softmax:model.dim=104`)."
        )
    failed = [run for run in result["runs"] if "error" in run]
    lines += [f"\n{run['variant']}, seed {run['seed']}: {run['error']}" for run in failed]
    return "\n".join(lines) + "\n"


def _mean_and_std(runs: list[dict], split: str) -> str:
    values = [run[split] for run in runs if run.get(split) is not None]
    return mean_and_std(values) if values else ""


def compared_split(runs: Iterable[dict]) -> str:
    """Return the split whose metric is compared: ``"test"``, or ``"valid"`` if no run has test labels (PCQM4M)."""
    return "test" if any("test" in run for run in runs) else "valid"


def differences(variants: dict[str, list[dict]], metric: Metric) -> list[dict]:
    """Compute the differences of the variants, the best on the validation set first, from the first one with at least
    ``MIN_SEEDS`` seeds, if they share as many with it: paired by seed, since the runs of a seed see the same molecules
    in the same order, with 95% intervals that hold simultaneously."""
    split = compared_split(chain.from_iterable(variants.values()))
    by_seed = {
        name: {run["seed"]: run[split] for run in runs if run.get(split) is not None} for name, runs in variants.items()
    }
    by_seed = {name: runs for name, runs in by_seed.items() if len(runs) >= MIN_SEEDS}
    reference, *compared = by_seed or [""]
    shared = {name: sorted(by_seed[reference].keys() & by_seed[name].keys()) for name in compared}
    pairs = {name: seeds for name, seeds in shared.items() if len(seeds) >= MIN_SEEDS}
    # The reference is the best of all, so the intervals have to hold for the differences of all pairs of variants.
    comparisons = len(pairs) * (len(pairs) + 1) // 2
    results = []
    for name, seeds in pairs.items():
        values = np.array([by_seed[name][seed] - by_seed[reference][seed] for seed in seeds])
        mean, (low, high) = float(values.mean()), mean_interval(values, comparisons=comparisons)
        verdict = "worse" if metric.loss(mean) > metric.loss(0.0) else "better"
        verdict = "no significant difference" if low <= 0 <= high else verdict
        result = {"variant": name, "reference": reference, "seeds": len(seeds)}
        results.append({**result, "mean": mean, "low": low, "high": high, "verdict": verdict})
    return results


def describe(results: list[dict], label: str) -> list[str]:
    """Format differences of a metric from a reference variant as a Markdown table; no lines without any."""
    if not results:
        return []
    intervals = "95% intervals" if len(results) == 1 else "simultaneous 95% intervals of all pairs"
    title = f"{label} minus that of `{results[0]['reference']}`, the best on the validation set, paired by seed; means "
    rows = []
    for result in results:
        scale = max(abs(result["low"]), abs(result["high"]))
        mean, low, high = (score_text(result[name], scale=scale, sign="+") for name in ("mean", "low", "high"))
        rows.append([f"`{result['variant']}`", mean, f"{low} to {high}", result["seeds"], result["verdict"]])
    head = ["mixer", "difference", "interval", "seeds", "conclusion"]
    return [f"\n{title}with {intervals}:", "", *markdown_table(head, rows)]
