"""Execution of a comparison: train or continue every run and update the results after each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from graphslice.compare.plan import Variant, check_runs, parse_budget, plan_runs, uncompiled_mixers
from graphslice.compare.report import describe_outcome, read_run, summary, write_files
from graphslice.config import RunConfig
from graphslice.errors import InputError, check_number
from graphslice.folder_lock import ENDING, locked
from graphslice.hardware import visible_gpus
from graphslice.processes import in_processes
from graphslice.run_files import CONFIG, is_finished, read_config, read_metrics


def compare(
    base: RunConfig,
    variants: Sequence[Variant],
    seeds: int,
    budget: str,
    out: str | Path,
    *,
    jobs: int | None = None,
    console: Console | None = None,
) -> dict:
    """Train every variant with every seed, each run in a process of its own, and summarise the results.

    Finished runs in ``out`` are kept and interrupted ones are continued. An interrupted comparison is therefore
    continued by the same call, and a call with more mixers or seeds extends it.

    Args:
        base: the common configuration.
        variants: the variants to compare.
        seeds: number of runs of each variant, with seeds from 0.
        budget: training budget of each run: see :func:`~graphslice.compare.plan.parse_budget`. A time includes
            validation.
        out: folder for the run directories, ``comparison.json`` and ``comparison.md``.
        jobs: number of parallel runs, each with its share of the cores and one GPU; by default the number of GPUs, or
            1 without a GPU. Parallel runs slow each other down: compare training rates only within one setting, or
            use 1.
        console: console for progress messages.

    Returns:
        The contents of ``comparison.json``: dataset, budget, machine, and for each run its variant, seed, validation
        and test metric, number of parameters, rate, memory and curve (seconds, steps, validation metric), or
        the error message if it failed.

    Raises:
        InputError: if a run in ``out`` has other settings, another comparison is using ``out``, several devices per
            run are configured, or no run could be finished.
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
    """Train a run, or resume it if it was interrupted; errors as of :func:`~graphslice.training.train_run.train`.

    Raises:
        InputError: also if the data is no longer that of the ``fingerprint``.
    """
    from graphslice.training.train_run import resume, train

    quiet = Console(quiet=True)
    with locked(folder, wait=ENDING):
        if (folder / CONFIG).exists():
            resume(folder, console=quiet)
        else:
            train(config, folder, overwrite=True, console=quiet)
        if read_config(folder).data.fingerprint != fingerprint:
            raise InputError(f"{config.data.dataset} has changed since the comparison was started")
