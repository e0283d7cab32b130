"""Search hyperparameters: trials within the budget, further seeds of the best, a choice; then train the final run."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock
from rich.console import Console

from graphslice.config import RunConfig
from graphslice.data.loaders import load_dataset
from graphslice.errors import InputError, check_number, check_positive, first_line, shell_command
from graphslice.evaluation.metrics import METRICS
from graphslice.nn.mixers import check_mixer
from graphslice.runs.run_files import CONFIG, TRIALS, contains_run, read_config, write_csv
from graphslice.search.objective import Objective
from graphslice.search.study import (
    FINISHED,
    OPTIONS,
    SECONDS,
    STUDY,
    STUDY_LOCK,
    Record,
    Space,
    ask,
    check_identity,
    fail,
    import_optuna,
    open_study,
    prepare_trials,
    records,
    search_space,
    set_seed_score,
    stop,
    with_values,
)
from graphslice.system.console import signals_handled
from graphslice.system.files import atomic_write, locked
from graphslice.system.machine import visible_gpus
from graphslice.system.processes import in_processes, is_first_process
from graphslice.training import RunResult, train
from graphslice.training import resume as resume_run
from graphslice.training.data_summary import print_data_summary
from graphslice.training.loop import Interrupted
from graphslice.training.resolve import check_options, fit_to_dataset, resolve
from graphslice.training.train_run import check_run_directory

if TYPE_CHECKING:
    from optuna import Study, Trial

#: Number of the best trials that are trained with further seeds, in addition to the defaults.
FINALISTS = 3
# At most this share of the time is kept for further seeds.
_SEEDS_SHARE = 0.4


@dataclass(frozen=True)
class Limits:
    """Limits of a search."""

    trials: int | None  # with those before; None for no limit
    seconds: float | None  # for trials and further seeds, also that used before; None for no limit
    end: float  # time of the clock at which it is used up; infinite without a limit
    seeds: int  # number of further seeds
    processes: int  # number of processes that share the trials


class _OutOfTime(Exception):
    """The time for a training is used up."""


@dataclass(frozen=True)
class Setup:
    """What a search needs."""

    user_config: RunConfig
    """The defaults, without what the dataset decides, so that other data and splits can be trained on."""
    config: RunConfig  # the defaults, complete, as the final run trains them
    trial_config: RunConfig  # the same for a single model on one device, as every trial trains it
    objective: Objective  # scores of configurations
    space: Space
    defaults: dict[str, Any]  # value of each hyperparameter in the defaults

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies the search: see :func:`~graphslice.search.study.check_identity`."""
        return {"config": self.config.to_dict(), "space": repr(self.space)}


def prepare(config: RunConfig, mixers: Sequence[str], console: Console) -> Setup:
    """Read the molecules, complete the configuration of the user, and make objective and search space; raises
    :class:`InputError` if the data or the configuration cannot be used."""
    if config.data.folds is not None:
        raise InputError(
            "data.folds tests on every row, so no row is left for the search: tune without it, then train with it and "
            "--config best.yaml"
        )
    if config.trainer.devices not in ("auto", "1") or not is_first_process():
        raise InputError("each trial of a search trains on a single device: leave out trainer.devices")
    check_options(config)
    for mixer in mixers:
        check_mixer(mixer)
    user_config, dataset = config, load_dataset(config.data)
    config = fit_to_dataset(config, dataset, Path())  # whether its ensemble has a validation set
    single = replace(config, trainer=replace(config.trainer, ensemble=1, devices="1"))
    resolved, data = resolve(single, dataset, Path(), console)
    complete = resolved.config
    print_data_summary(console, data)
    objective = Objective(complete, data, console)
    space = search_space(complete, dataset.tasks, objective.epochs, mixers)
    trainer = replace(complete.trainer, ensemble=config.trainer.ensemble, devices=config.trainer.devices)
    paths = replace(config.data, transform=user_config.data.transform, fingerprint=None)
    user_config = replace(user_config, data=paths, optimizer=complete.optimizer, init_from=complete.init_from)
    options = complete.options()
    defaults = {name: options[name] for name in space}
    return Setup(user_config, replace(complete, trainer=trainer), complete, objective, space, defaults)


def search(setup: Setup, out: Path, limits: Limits, index: int, console: Console) -> None:
    """Run trials until the budget is used up; ``index``: of this process."""
    study = open_study(out)
    while trial := next_trial(study, out, setup, limits, index):
        _run_trial(study, trial, setup, limits)
        console.print(_describe_trial(records(study), trial.number, setup), highlight=False, markup=False)


def next_trial(study: Study, out: Path, setup: Setup, limits: Limits, index: int) -> Trial | None:
    """Start the next trial of a process; None if the budget is used up. One process at a time: with SQLite, Optuna
    would give a waiting trial to two processes that ask at the same time."""
    with FileLock(out / STUDY_LOCK):
        if not _has_budget(records(study), limits, setup.defaults):
            return None
        return ask(study, setup.space, setup.config.trainer.seed + 1_000_003 * index)


def _has_budget(trials: Sequence[Record], limits: Limits, defaults: dict[str, Any]) -> bool:
    """True if another trial can be started; the defaults always can."""
    if any(trial.state == "waiting" and trial.params == defaults for trial in trials):
        return True
    if limits.trials is not None and sum(trial.counts for trial in trials) >= limits.trials:
        return False
    return time.time() < _search_end(trials, limits)


def _search_end(trials: Sequence[Record], limits: Limits) -> float:
    """Return the time of the clock at which the search ends, so that time is left for further seeds."""
    if limits.seconds is None:
        return limits.end
    durations = [trial.seconds for trial in trials if trial.state == "complete"]
    needed = (1 + FINALISTS) * limits.seeds * (float(np.mean(durations)) if durations else 0.0) / limits.processes
    return limits.end - min(needed, _SEEDS_SHARE * limits.seconds)


def _run_trial(study: Study, trial: Trial, setup: Setup, limits: Limits) -> None:
    """Run one trial and save its score, or why it has none. The defaults are neither pruned nor stopped."""
    optuna, are_defaults = import_optuna(), trial.params == setup.defaults
    end = float("inf") if are_defaults else _search_end(records(study), limits)

    def report(value: float, number: int) -> None:
        if np.isfinite(value):
            trial.report(value, number)
            if trial.should_prune() and not are_defaults:
                raise optuna.TrialPruned
        _check_time(end)

    try:
        value = setup.objective.score(with_values(setup.trial_config, trial.params), 0, report)
        if not np.isfinite(value):
            raise InputError(f"{METRICS[setup.objective.metric].label} is undefined")
        study.tell(trial, value)
    except optuna.TrialPruned:
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    except _OutOfTime:
        stop(study, trial.number, "stopped")
    except Exception as error:  # such as divergence, or too little memory for a wide model
        fail(study, trial.number, first_line(error))
        if are_defaults and not isinstance(error, InputError):
            raise
    except KeyboardInterrupt:
        with suppress(ValueError):  # it was just finished
            stop(study, trial.number, "stopped")
        raise


def _check_time(end: float) -> None:
    if time.time() > end:
        raise _OutOfTime


def _describe_trial(trials: Sequence[Record], number: int, setup: Setup) -> str:
    trial, metric = trials[number], METRICS[setup.objective.metric]
    outcome = trial.state if trial.value is None else f"{metric.label} {trial.value:.4f}"
    outcome += f" ({trial.reason})" if trial.reason else ""
    best = min((t for t in trials if t.value is not None), key=lambda t: metric.loss(t.value or 0.0), default=None)
    so_far = "" if best is None else f"; best {best.value:.4f} (trial {best.number})"
    name = f"trial {number}" + " (defaults)" * (trial.params == setup.defaults)
    return f"{name}: {outcome}, {trial.seconds:.0f} s{so_far}"


def repeat(setup: Setup, out: Path, limits: Limits, index: int, console: Console) -> None:
    """Train the defaults and the best trials with further seeds, which also hold out other folds."""
    study = open_study(out)
    trials = finalists(records(study), setup)
    pairs = [(seed, trial) for seed in range(1, 1 + limits.seeds) for trial in trials]
    if len(trials) < 2:  # nothing to choose from
        return
    for seed, trial in pairs[index :: limits.processes]:
        if seed in trial.seeds:
            continue
        config = with_values(setup.trial_config, trial.params)
        try:
            _check_time(limits.end)
            value = setup.objective.score(config, seed, lambda *_: _check_time(limits.end))
        except _OutOfTime:
            return
        except Exception as error:  # as of a trial
            if trial.params == setup.defaults and not isinstance(error, InputError):
                raise
            value = float("nan")
        set_seed_score(study, trial.number, seed, value)
        label = METRICS[setup.objective.metric].label
        console.print(f"trial {trial.number} with seed {seed}: {label} {value:.4f}", highlight=False, markup=False)


def finalists(trials: Sequence[Record], setup: Setup) -> list[Record]:
    """Return the trials that are trained with further seeds: the defaults, then the best others by their first seed."""
    metric = METRICS[setup.objective.metric]
    complete = [trial for trial in trials if trial.value is not None]
    complete.sort(key=lambda trial: metric.loss(trial.value or 0.0))
    defaults = [trial for trial in complete if trial.params == setup.defaults][:1]
    others: dict[str, Record] = {}
    for trial in complete:
        if trial.params != setup.defaults:
            others.setdefault(repr(trial.params), trial)
    return [*defaults, *list(others.values())[:FINALISTS]]


@dataclass(frozen=True)
class Choice:
    """The selected trial."""

    trial: Record
    score: float  # its mean over the further seeds; the score of its first seed if there was no time for others
    default_score: float | None  # the same of the defaults; None if these have no score
    seeds: list[int]  # further seeds over which the scores are averaged
    means: dict[int, float]  # over these seeds, of each trial that was compared, by number; empty without further seeds


def choose(trials: Sequence[Record], setup: Setup, seeds: int) -> Choice | None:
    """Select the finalist with the best mean over further seeds, the defaults in a tie; None if no trial is complete.
    If the time ended before all finalists had a further seed, those that have one are compared; scores of the first
    seed decide only for less than two: that of the best of many trials is optimistic."""
    candidates = finalists(trials, setup)
    if not candidates:
        return None
    repeated = [trial for trial in candidates if 1 in trial.seeds] if seeds else []
    shared: list[int] = []
    if len(repeated) > 1:
        candidates = repeated
        shared = [seed for seed in range(1, 1 + seeds) if all(seed in trial.seeds for trial in candidates)]

    def mean(trial: Record) -> float:
        return float(np.mean([trial.seeds[seed] for seed in shared] if shared else [trial.value]))

    def loss(trial: Record) -> float:
        return METRICS[setup.objective.metric].loss(mean(trial)) if np.isfinite(mean(trial)) else float("inf")

    best = min(candidates, key=loss)
    default = next((mean(trial) for trial in candidates if trial.params == setup.defaults), None)
    means = {trial.number: mean(trial) for trial in candidates} if shared else {}
    return Choice(best, mean(best), default, shared, means)


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
    """Continue a search with its own settings; result and errors as of :func:`tune`, and InputError if the folder holds
    no search."""
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
    """Run a stage in a process of its own: :func:`~graphslice.search.tune.search` or ``repeat``."""
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
