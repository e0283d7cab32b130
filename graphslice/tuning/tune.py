"""Search hyperparameters within a budget, then train the final run with the best."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from graphslice.atomic_write import atomic_write
from graphslice.config import RunConfig
from graphslice.errors import InputError, check_number, check_positive, shell_command
from graphslice.evaluation.metrics import METRICS
from graphslice.folder_lock import locked
from graphslice.hardware import visible_gpus
from graphslice.processes import in_processes
from graphslice.run_files import CONFIG, TRIALS, contains_run, read_config, write_csv
from graphslice.signals import signals_handled
from graphslice.training import RunResult, train
from graphslice.training import resume as resume_run
from graphslice.training.loop import Interrupted
from graphslice.training.train_run import check_run_directory
from graphslice.tuning.search import Choice, Limits, Setup, choose, prepare, repeat, search
from graphslice.tuning.space import with_values
from graphslice.tuning.study import (
    FINISHED,
    OPTIONS,
    SECONDS,
    STUDY,
    STUDY_LOCK,
    Record,
    check_identity,
    import_optuna,
    open_study,
    prepare_trials,
    records,
)

if TYPE_CHECKING:
    from optuna import Study

#: The best configuration, and the final run, in the folder of a search.
BEST_CONFIG, RUN = "best.yaml", "run"
#: Default time of a search in minutes.
MINUTES = 30.0
_STAGES = {"search": search, "repeat": repeat}


def tune(
    config: RunConfig,
    out: str | Path,
    *,
    minutes: float | None = None,
    trials: int | None = None,
    seeds: int = 3,
    mixers: Sequence[str] = (),
    processes: int = 1,
    console: Console | None = None,
) -> RunResult:
    """Search hyperparameters by the error on inner folds of the training set, then train with the best.

    The first trial has the defaults. The best trials and the defaults are trained with further seeds, whose mean
    decides, so the result is not worse than the defaults on the held-out folds. The test set is read once, by the final
    run. The same call continues a search, and one with a larger budget extends it.

    Args:
        config: the defaults.
        out: folder of the search. It holds ``study.sqlite3`` (an Optuna study), ``best.yaml``, ``trials.csv`` and
            ``run``, the run directory of the final run.
        minutes: time for the search and the further seeds, without the final run; by default 30 unless ``trials`` is
            given. The trial with the defaults is always finished.
        trials: number of trials.
        seeds: number of further seeds.
        mixers: mixers to search in addition to that of ``config``; only from scratch.
        processes: number of processes that share the trials.
        console: where to report.

    Returns:
        The final run.

    Raises:
        InputError: if the data or the configuration cannot be used, ``out`` holds another search or a run, another
            process is using it, Optuna is not installed, or no trial could be finished.
        Interrupted: if the search is interrupted; ``best.yaml`` and ``trials.csv`` are written before.
    """
    import_optuna()
    out, console = Path(out), console or Console(stderr=True, soft_wrap=True)
    _check_options(minutes, trials, seeds, processes)
    if contains_run(out):
        raise InputError(f"{out} holds a run, no search: choose another --out")
    with locked(out), signals_handled(signal.default_int_handler, [signal.SIGTERM]):
        check_run_directory(out / RUN, config, overwrite=(out / STUDY).is_file())
        setup = prepare(config, mixers, console)
        study = open_study(out, setup.objective.higher_is_better)
        check_identity(study, setup.identity, out)
        options = {"minutes": minutes, "trials": trials, "seeds": seeds, "mixers": [*mixers], "processes": processes}
        study.set_user_attr(OPTIONS, options | {"config": setup.user_config.to_dict()})
        minutes = MINUTES if minutes is None and trials is None else minutes
        seconds = None if minutes is None else 60 * minutes
        left = float("inf") if seconds is None else max(0.0, seconds - study.user_attrs.get(SECONDS, 0.0))
        limits = Limits(trials, seconds, time.time() + left, seeds, processes)
        budget = [trials, seconds, seeds]
        try:
            if study.user_attrs.get(FINISHED) != budget:
                _run_stages(study, setup, out, limits, mixers, console)
                study.set_user_attr(FINISHED, budget)
        finally:
            choice = _write_results(out, records(study), setup, seeds, console)
        if choice is None:
            reasons = [trial.reason for trial in records(study) if trial.reason]
            raise InputError(f"no trial could be finished; the last one: {reasons[-1] if reasons else 'unknown'}")
        return _train_final(out, setup, choice, console)


def resume(folder: str | Path, *, console: Console | None = None) -> RunResult:
    """Continue a search with its own settings; arguments and result as of :func:`tune`.

    Raises:
        InputError: if the folder holds no search.
    """
    folder = Path(folder)
    options = open_study(folder).user_attrs[OPTIONS]
    return tune(RunConfig.from_dict(options.pop("config")), folder, **options, console=console)


def _check_options(minutes: float | None, trials: int | None, seeds: int, processes: int) -> None:
    check_positive("minutes", minutes)
    for name, value, least in (("trials", trials, 1), ("seeds", seeds, 0), ("processes", processes, 1)):
        check_number(name, value, least)


def _run_stages(study: Study, setup: Setup, out: Path, limits: Limits, mixers: Sequence[str], console: Console) -> None:
    """Run all trials and further seeds; raise :class:`Interrupted` if they were interrupted."""
    begin = time.time()
    try:
        prepare_trials(study, setup.defaults)
        for stage in _STAGES:
            _run_stage(stage, setup, out, limits, mixers, console)
    except KeyboardInterrupt:
        raise Interrupted from None
    except import_optuna().exceptions.StorageInternalError as error:  # such as a full disk; what was written is kept
        raise InputError(f"cannot write {out / STUDY}: {error.__cause__ or error}") from None
    finally:
        (out / STUDY_LOCK).unlink(missing_ok=True)
        with suppress(import_optuna().exceptions.StorageInternalError):
            study.set_user_attr(SECONDS, study.user_attrs.get(SECONDS, 0.0) + time.time() - begin)


def _run_stage(stage: str, setup: Setup, out: Path, limits: Limits, mixers: Sequence[str], console: Console) -> None:
    """Run a stage of the search in this process, or in several."""
    if limits.processes == 1:
        _STAGES[stage](setup, out, limits, 0, console)
        return
    tasks = {index: (stage, setup.user_config, out, limits, mixers, index) for index in range(limits.processes)}
    gpus = visible_gpus(setup.config.trainer.accelerator)
    with closing(in_processes(run_in_process, tasks, limits.processes, gpus)) as ended:
        for _, reason in ended:
            if reason is not None:
                raise InputError(reason)


def run_in_process(stage: str, config: RunConfig, out: Path, limits: Limits, mixers: Sequence[str], index: int) -> None:
    """Run a stage in a process of its own: :func:`~graphslice.tuning.search.search` or ``repeat``."""
    setup = prepare(config, mixers, Console(quiet=True))
    check_identity(open_study(out), setup.identity, out)  # the data may have changed since the search began
    _STAGES[stage](setup, out, limits, index, Console(stderr=True, soft_wrap=True))


def _write_results(out: Path, trials: list[Record], setup: Setup, seeds: int, console: Console) -> Choice | None:
    """Write ``trials.csv``, and if a trial is complete ``best.yaml``; return the choice."""
    choice = choose(trials, setup, seeds)
    _write_trials(out / TRIALS, trials, setup, choice)
    if choice is None:
        return None
    label = METRICS[setup.objective.metric].label
    count = len(choice.seeds)
    over = f"mean over {count} further seed{'s' * (count != 1)}" if count else "of a single seed"
    text = f"trial {choice.trial.number}: {label} on held-out folds {choice.score:.4f}, {over}"
    if choice.default_score is not None:
        text = f"{text}; the defaults {choice.default_score:.4f}"
    with atomic_write(out / BEST_CONFIG) as new:
        new.write_text(f"# {text}\n{with_values(setup.user_config, choice.trial.params).to_yaml()}", encoding="utf-8")
    console.out(f"chosen: {text}", highlight=False)
    console.out(f"configuration: {out / BEST_CONFIG}", highlight=False)
    return choice


def _write_trials(path: Path, trials: list[Record], setup: Setup, choice: Choice | None) -> None:
    """Write the table of trials: one row each, with the value of every hyperparameter."""
    options = list(setup.space)
    head = ["trial", "state", "metric", "value", "seconds", "seeds", "mean", "chosen", "reason", *options]
    rows = []
    for trial in trials:
        mean = "" if choice is None else choice.means.get(trial.number, "")
        chosen = "yes" if choice is not None and trial.number == choice.trial.number else ""
        value = "" if trial.value is None else trial.value
        cells = [trial.number, trial.state, setup.objective.metric, value, round(trial.seconds, 1)]
        cells += [len(choice.seeds) if choice is not None and mean != "" else 0, mean, chosen, trial.reason]
        rows.append([*cells, *(trial.params.get(name, "") for name in options)])
    write_csv(path, head, rows)


def _train_final(out: Path, setup: Setup, choice: Choice, console: Console) -> RunResult:
    """Train the final run, unless it was trained with the same configuration before; or continue it."""
    # On one device: the processes of others would be further searches.
    folder, values = out / RUN, choice.trial.params | {"trainer.devices": "1"}
    wanted = with_values(setup.config, values).to_dict()
    trained = with_values(read_config(folder), {"trainer.devices": "1"}) if (folder / CONFIG).is_file() else None
    if trained is not None and trained.to_dict() == wanted:
        result = resume_run(folder, console=console)
    else:
        command = ["graphslice", "train", "--config", str(out / BEST_CONFIG), "--out", str(folder)]
        config = with_values(setup.user_config, values)
        result = train(config, folder, overwrite=True, command=shell_command(command), console=console)
    shutil.copyfile(out / TRIALS, folder / TRIALS)
    return result
