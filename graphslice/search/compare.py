"""A comparison: train or continue every run, update the results after each, and write ``comparison.json`` and a table.

Paired differences of the variants over their seeds have confidence intervals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from graphslice._version import __version__
from graphslice.config import RunConfig
from graphslice.errors import InputError, check_number
from graphslice.evaluation.format_scores import markdown_table, mean_and_std
from graphslice.evaluation.metrics import METRICS, MIN_SEEDS, Metric, mean_interval
from graphslice.runs.run_files import CONFIG, is_finished, read_config, read_metric_logs, read_metrics, read_training
from graphslice.search.plan import Run, Variant, check_runs, parse_budget, plan_runs, uncompiled_mixers
from graphslice.system.files import ENDING, atomic_write, locked
from graphslice.system.machine import hardware_info, visible_gpus
from graphslice.system.processes import in_processes


def compare(
    base: RunConfig,
    variants: Sequence[Variant],
    seeds: int,  # number of runs of each variant, with seeds from 0
    budget: str,  # of each run, as of parse_budget; a time includes validation
    out: str | Path,  # for the run directories, comparison.json and comparison.md
    *,
    jobs: int | None = None,
    console: Console | None = None,
) -> dict:
    """Train every variant with every seed, each run in a process of its own, and return the contents of
    ``comparison.json``: dataset, budget, machine, and of each run variant, seed, validation and test metric, number
    of parameters, rate, memory and curve (seconds, steps, validation metric), or the error message if it failed.

    Finished runs in ``out`` are kept and interrupted ones are continued, so the same call continues a comparison,
    and one with more mixers or seeds extends it. Parallel runs (``jobs``, each with its share of the cores and one
    GPU; by default the number of GPUs, or 1 without a GPU) slow each other down: compare training rates only within
    one setting, or use 1. Raises :class:`InputError` if a run in ``out`` has other settings, another comparison is
    using ``out``, several devices per run are configured, or no run could be finished.
    """
    out, console = Path(out), console or Console(stderr=True)
    if base.trainer.devices not in ("auto", "1"):
        raise InputError(
            f"every run of a comparison uses one device, not trainer.devices {base.trainer.devices}: leave it out; "
            "--jobs sets the number of parallel runs"
        )
    if base.num_models > 1:
        raise InputError("single networks are compared: leave out trainer.ensemble and data.folds")
    gpus = visible_gpus(base.trainer.accelerator)
    jobs = max(1, len(gpus)) if jobs is None else jobs
    check_number("seeds", seeds, 1)
    check_number("jobs", jobs, 1)
    # Without base models, which would be the same for all variants, and on one scale for all seeds.
    data = replace(base.data, transform=base.data.transform or "none")
    base = replace(base, data=data, trainer=replace(base.trainer, baselines="off", refit="off", **parse_budget(budget)))
    runs = plan_runs(variants, range(seeds), base, out)
    fingerprints = check_runs(runs)
    if base.trainer.max_minutes is not None and (slow := uncompiled_mixers(runs)):
        console.print(
            f"not compiled on CPUs, so fewer steps in the same time: {', '.join(slow)}; --budget 20epochs compares by "
            "epochs",
            highlight=False,
        )
    reasons: dict[Path, str] = {}  # error messages of failed runs

    def report() -> dict:
        records = [record for run in runs if (record := read_run(run, reasons.get(run.folder))) is not None]
        result = summary(base, budget, jobs, records)
        write_files(result, out)
        return result

    with locked(out):
        tasks = {
            run.folder: (run.config, run.folder, fingerprints[run.folder])
            for run in runs
            if not is_finished(run.folder)
        }
        console.print(f"{len(runs)} runs of {budget}, {len(tasks)} to do", highlight=False)
        with closing(in_processes(train_run, tasks, jobs, gpus)) as ended:
            for done, (folder, reason) in enumerate(ended, 1):
                if reason:
                    reasons[folder] = reason
                outcome = reason or describe_outcome(read_metrics(folder))
                text = f"{done} of {len(tasks)}: {folder.relative_to(out)}: {outcome}"
                console.print(text, highlight=False, markup=False)
                report()
        result = report()
    if len(reasons) == len(result["runs"]):
        raise InputError(f"all runs failed; the first with: {next(iter(reasons.values()))}")
    return result


def train_run(config: RunConfig, folder: Path, fingerprint: str | None) -> None:
    """Train a run, or resume it if it was interrupted; errors as of :func:`~graphslice.training.train_run.train`, and
    InputError if the data is no longer that of the ``fingerprint``."""
    from graphslice.training.train_run import resume, train

    quiet = Console(quiet=True)
    with locked(folder, wait=ENDING):
        if (folder / CONFIG).exists():
            resume(folder, console=quiet)
        else:
            train(config, folder, overwrite=True, console=quiet)
        if read_config(folder).data.fingerprint != fingerprint:
            raise InputError(f"{config.data.dataset} has changed since the comparison was started")


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
    values = [run[split] for run in runs if run.get(split) is not None]
    return mean_and_std(values) if values else ""


def compared_split(runs: Iterable[dict]) -> str:
    """Return the split whose metric is compared: ``"test"``, or ``"valid"`` if no run has test labels (PCQM4M)."""
    return "test" if any("test" in run for run in runs) else "valid"


def differences(variants: dict[str, list[dict]], metric: Metric) -> list[dict]:
    """Compute the differences of the variants, the best on the validation set first, from the first one with at least
    ``MIN_SEEDS`` seeds, if they share as many with it.

    The runs of a seed see the same molecules in the same order, so pairing by seed removes the effect of the seed.
    The intervals are by Student's t and hold simultaneously in 95% of comparisons, for all pairs of variants
    (Bonferroni), since the first variant was chosen by its results.
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
