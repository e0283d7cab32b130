"""A comparison from start to finish: every run trained or continued, and the results written as they come."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

from rich.console import Console

from graphslice.compare.plan import Run, Variant, check_runs, parse_budget, plan_runs, tuning_groups
from graphslice.compare.report import (
    describe_outcome,
    read_run,
    summary,
    validation_error,
    write_files,
)
from graphslice.config import RunConfig
from graphslice.errors import InputError
from graphslice.folder_lock import ENDING, locked
from graphslice.hardware import visible_gpus
from graphslice.processes import in_processes
from graphslice.run_files import CONFIG, is_finished, read_metrics


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
    """Train every variant with every seed, each run in a process of its own, and put the results together.

    What is finished in ``out`` is kept and what was stopped is continued, so a call that was
    interrupted is continued by the same call, and a call with more mixers or seeds adds to it.

    Args:
        base: what the variants have in common.
        variants: what is compared.
        seeds: runs of each variant, with seeds from 0; of a tuning group, all but one are run with the first alone.
        budget: of each run: see :func:`~graphslice.compare.plan.parse_budget`. Time is that of training,
            validation included.
        out: a folder; a run folder for each run, ``comparison.json``, ``comparison.md`` and
            ``comparison.png`` go there.
        jobs: runs at a time, each with its share of the cores and one GPU; as many as there are GPUs when not
            given, else 1. They slow each other down: compare rates only within one setting, or use 1.
        console: where to report.

    Returns:
        What ``comparison.json`` holds: dataset, budget, machine, and for each run its variant, seed, mean
        absolute errors, parameters, rate, memory and curve (seconds, steps, validation error), or
        the reason why it has none, and ``not_selected`` where another of its tuning group did better.

    Raises:
        InputError: if a run of ``out`` has other settings, another comparison works there, a run shall have
            several devices, or no run could be finished.
    """
    out, console = Path(out), console or Console(stderr=True)
    if base.trainer.devices not in ("auto", "1"):
        raise InputError(
            f"every run of a comparison has one device, not --trainer.devices {base.trainer.devices}: leave it out; "
            "--jobs says how many are trained at a time"
        )
    gpus = visible_gpus(base.trainer.accelerator)
    jobs = max(1, len(gpus)) if jobs is None else jobs
    if seeds < 1 or jobs < 1:
        raise InputError(f"seeds and jobs must be at least 1, not {min(seeds, jobs)}")
    # Of networks: the trees beside them would be the same for all.
    base = replace(base, trainer=replace(base.trainer, baselines="off", **parse_budget(budget)))
    check_runs(plan_runs(variants, range(seeds), base, out))
    work = _Comparison(base, budget, out, jobs, gpus, console)
    groups = tuning_groups(variants)
    alone = [group[0] for group in groups if len(group) == 1]
    tuned = [group for group in groups if len(group) > 1]
    with locked(out):
        first = plan_runs(chain.from_iterable(tuned), [0], base, out)
        work.train([*plan_runs(alone, range(seeds), base, out), *first])
        if tuned:
            work.train(plan_runs(work.select(tuned), range(1, seeds), base, out))
        result = work.report()
    if len(work.reasons) == len(result["runs"]):
        raise InputError(f"none of the runs could be finished; the first: {next(iter(work.reasons.values()))}")
    return result


def train_run(config: RunConfig, folder: Path) -> None:
    """Train a run, or continue it where it was stopped.

    Args:
        config: of the run.
        folder: the run folder.

    Raises:
        InputError: if it cannot be trained.
        KeyboardInterrupt: if it was stopped; what was done lies in the folder.
    """
    from graphslice.training.run import Interrupted
    from graphslice.training.train_run import resume, train

    quiet = Console(quiet=True)
    try:
        with locked(folder, wait=ENDING):
            if (folder / CONFIG).exists():
                resume(folder, console=quiet)
            else:
                train(config, folder, console=quiet)
    except Interrupted:
        raise KeyboardInterrupt from None


class _Comparison:
    """The runs of a comparison, as they are done.

    Attributes:
        runs: those begun so far, in the order of the report.
        reasons: why those that failed did, by folder.
    """

    def __init__(
        self, base: RunConfig, budget: str, out: Path, jobs: int, gpus: Sequence[str], console: Console
    ) -> None:
        self.base, self.budget, self.out, self.console = base, budget, out, console
        self.jobs, self.gpus = jobs, gpus
        self.runs: list[Run] = []
        self.reasons: dict[Path, str] = {}
        self._not_selected: set[Variant] = set()

    def train(self, runs: Sequence[Run]) -> None:
        """Train what of these is not finished yet, and report after each."""
        self.runs += runs
        tasks = {run.folder: (run.config, run.folder) for run in runs if not is_finished(run.folder)}
        self.console.print(f"{len(self.runs)} runs of {self.budget}, {len(tasks)} to do", highlight=False)
        with closing(in_processes(train_run, tasks, self.jobs, self.gpus)) as ended:
            for done, (folder, reason) in enumerate(ended, 1):
                if reason:
                    self.reasons[folder] = reason
                outcome = reason or describe_outcome(read_metrics(folder))
                name = folder.relative_to(self.out)
                self.console.print(f"{done} of {len(tasks)}: {name}: {outcome}", highlight=False, markup=False)
                self.report()

    def select(self, groups: Sequence[Sequence[Variant]]) -> list[Variant]:
        """Of each tuning group the variant that did best with the first seed, unless all of them failed."""

        def error(variant: Variant) -> float:
            return validation_error(variant.run_directory(self.out, seed=0))

        best = [min(group, key=error) for group in groups]
        selected = [variant for variant in best if error(variant) < float("inf")]
        self._not_selected = set(chain.from_iterable(groups)) - set(selected)
        return selected

    def report(self) -> dict:
        """Write the result so far; runs that are still to come are not in it."""
        records = []
        for run in self.runs:
            record = read_run(run, self.reasons.get(run.folder))
            if record is not None:
                records.append(record | ({"not_selected": True} if run.variant in self._not_selected else {}))
        result = summary(self.base, self.budget, self.jobs, records)
        write_files(result, self.out)
        return result
