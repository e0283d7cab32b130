"""A comparison: train or continue every run, and update ``comparison.json`` and its table after each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from graphslice.config import RunConfig
from graphslice.errors import InputError, check_number
from graphslice.runs.run_files import is_finished, read_metrics
from graphslice.search.plan import Variant, check_runs, check_single_networks, parse_budget, plan_runs
from graphslice.search.table import describe_outcome, read_run, summary, write_files
from graphslice.system.console import standard_error
from graphslice.system.files import locked
from graphslice.system.machine import visible_gpus
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
    runs = check_runs(plan_runs(variants, range(seeds), base, out))
    reasons: dict[Path, str] = {}  # error messages of failed runs

    def write_results() -> dict:
        records = [record for run in runs if (record := read_run(run, reasons.get(run.folder))) is not None]
        result = summary(base, budget, jobs, records)
        write_files(result, out)
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
