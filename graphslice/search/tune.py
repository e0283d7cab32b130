"""Search hyperparameters: trials within the budget, further seeds of the best, a choice; then train the final run."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from graphslice.config import RunConfig
from graphslice.data.loaders import load_dataset
from graphslice.errors import InputError, check_number, check_positive, shell_command
from graphslice.evaluation.format_scores import score_text
from graphslice.evaluation.metrics import METRICS
from graphslice.nn.mixers import check_mixer
from graphslice.runs.run_files import CONFIG, contains_run, read_config, write_csv
from graphslice.search.compare import best_first
from graphslice.search.objective import Objective
from graphslice.search.plan import check_folder, check_single_networks
from graphslice.search.study import (
    IDENTITY,
    OPTIONS,
    SECONDS,
    STUDY,
    OutOfTime,
    Record,
    Space,
    import_optuna,
    open_study,
    prepare_trials,
    records,
    run_trial,
    search_space,
    set_seed_score,
    with_values,
)
from graphslice.system.console import QUIET, result, signals_handled, standard_error
from graphslice.system.files import atomic_write, locked
from graphslice.system.machine import visible_gpus
from graphslice.system.processes import in_processes
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
#: The best configuration, all trials, and the final run, in the folder of a search.
BEST_CONFIG, TRIALS, RUN = "best.yaml", "trials.csv", "run"
#: Default time of a search in minutes.
MINUTES = 30.0


@dataclass(frozen=True)
class Limits:
    """Limits of a search."""

    trials: int | None  # number of further trials; None for no limit
    seconds: float | None  # for trials and further seeds, also that used before; None for no limit
    end: float  # time of the clock at which it is used up; infinite without a limit
    seeds: int  # number of further seeds
    processes: int  # number of processes that share the trials

    def check_time(self) -> None:
        """Raise :class:`OutOfTime` if the time is used up."""
        if time.time() > self.end:
            raise OutOfTime


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


#: A stage of the search: :func:`search` or :func:`repeat`, with the index of the process.
Stage = Callable[[Setup, Path, Limits, int, Console], None]


def prepare(config: RunConfig, mixers: Sequence[str], console: Console) -> Setup:
    """Read the molecules, complete the configuration of the user, and make objective and search space; raises
    :class:`InputError` if the data or the configuration cannot be used."""
    check_single_networks(config, "search")
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
    """Run trials until the limits are reached; ``index``: of this process, which runs its share of the trials."""
    study, endless = open_study(out), itertools.count()
    for _ in endless if limits.trials is None else range(index, limits.trials, limits.processes):
        trials = records(study)
        timed = replace(limits, end=_search_end(trials, limits))
        if time.time() >= timed.end and not _are_defaults_waiting(trials, setup):
            return
        seed = setup.config.trainer.seed + 1_000_003 * index
        number = run_trial(study, setup.space, seed, partial(_score, setup, timed))
        console.print(_describe_trial(records(study), number, setup), highlight=False, markup=False)


def _are_defaults_waiting(trials: Sequence[Record], setup: Setup) -> bool:
    return any(trial.state == "waiting" and trial.params == setup.defaults for trial in trials)


def _search_end(trials: Sequence[Record], limits: Limits) -> float:
    """Return the time of the clock at which the search ends, so that time is left for further seeds."""
    if limits.seconds is None:
        return limits.end
    durations = [trial.seconds for trial in trials if trial.state == "complete"]
    needed = (1 + FINALISTS) * limits.seeds * (float(np.mean(durations)) if durations else 0.0) / limits.processes
    return limits.end - min(needed, _SEEDS_SHARE * limits.seconds)


def _score(setup: Setup, limits: Limits, trial: Trial) -> float:
    """Return the score of a trial; the defaults are neither pruned nor stopped."""
    optuna, are_defaults = import_optuna(), trial.params == setup.defaults

    def report(value: float, number: int) -> None:
        if np.isfinite(value):
            trial.report(value, number)
        if not are_defaults:
            limits.check_time()
            if np.isfinite(value) and trial.should_prune():
                raise optuna.TrialPruned

    value = setup.objective.score(with_values(setup.trial_config, trial.params), 0, report)
    if not np.isfinite(value):
        raise ValueError(f"{METRICS[setup.objective.metric].label} is undefined")
    return value


def _describe_trial(trials: Sequence[Record], number: int, setup: Setup) -> str:
    trial, metric = trials[number], METRICS[setup.objective.metric]
    outcome = trial.state if trial.value is None else f"{metric.label} {score_text(trial.value)}"
    outcome += f" ({trial.reason})" if trial.reason else ""
    best = best_first({t.number: [t.value] for t in trials if t.value is not None}, metric)
    so_far = "".join(f"; best {score_text(value)} (trial {first})" for first, value in list(best.items())[:1])
    name = f"trial {number}" + " (defaults)" * (trial.params == setup.defaults)
    return f"{name}: {outcome}, {trial.seconds:.0f} s{so_far}"


def repeat(setup: Setup, out: Path, limits: Limits, index: int, console: Console) -> None:
    """Train the defaults and the best trials with further seeds, which also hold out other folds."""
    study = open_study(out)
    trials = finalists(records(study), setup)
    if len(trials) < 2:  # nothing to choose from
        return
    pairs = list(itertools.product(range(1, 1 + limits.seeds), trials))
    for seed, trial in pairs[index :: limits.processes]:
        if seed in trial.seeds:
            continue
        config = with_values(setup.trial_config, trial.params)
        try:
            limits.check_time()
            value = setup.objective.score(config, seed, lambda *_: limits.check_time())
        except OutOfTime:
            return
        except (ValueError, RuntimeError, MemoryError):  # as of a trial
            value = float("nan")
        set_seed_score(study, trial.number, seed, value)
        text = f"{METRICS[setup.objective.metric].label} {score_text(value)}"
        console.print(f"trial {trial.number} with seed {seed}: {text}", highlight=False, markup=False)


def finalists(trials: Sequence[Record], setup: Setup) -> list[Record]:
    """Return the trials that are trained with further seeds: the defaults, then the best ones by their first seed."""
    scores = {trial.number: [trial.value] for trial in trials if trial.value is not None}
    unique: dict[str, Record] = {}
    for number in best_first(scores, METRICS[setup.objective.metric]):
        unique.setdefault(repr(trials[number].params), trials[number])
    defaults = [trial for trial in unique.values() if trial.params == setup.defaults]
    return [*defaults, *[trial for trial in unique.values() if trial.params != setup.defaults][:FINALISTS]]


@dataclass(frozen=True)
class Choice:
    """The selected trial."""

    trial: Record
    score: float  # its mean over the further seeds; the score of its first seed if there was no time for further ones
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
    shared: list[int] = []
    if seeds and len(repeated := [trial for trial in candidates if 1 in trial.seeds]) > 1:
        candidates = repeated
        shared = [seed for seed in range(1, 1 + seeds) if all(seed in trial.seeds for trial in candidates)]
    scores = {trial.number: [trial.seeds[seed] for seed in shared] if shared else [trial.value] for trial in candidates}
    means = best_first(scores, METRICS[setup.objective.metric])
    best, score = next(iter(means.items()))
    default = next((means[trial.number] for trial in candidates if trial.params == setup.defaults), None)
    return Choice(trials[best], score, default, shared, means if shared else {})


def tune(
    config: RunConfig,  # the defaults
    out: str | Path,  # for study.journal (an Optuna study), best.yaml, trials.csv and run, the final run
    *,
    minutes: float | None = None,  # without the final run; by default 30 unless trials is given
    trials: int | None = None,
    seeds: int = 3,  # further ones
    mixers: Sequence[str] = (),  # to search in addition to that of config; only from scratch
    processes: int = 1,
    console: Console | None = None,
) -> RunResult:
    """Search hyperparameters by the error on inner folds of the training set, then train with the best.

    The first trial has the defaults, and is always finished. The best trials and the defaults are trained with further
    seeds, whose mean decides. The test set is read once, by the final run. The same call continues a search, and one
    with a larger budget extends it. Raises :class:`InputError` if ``out`` holds another search or a run, another
    process is using it, or no trial could be finished; Interrupted after ``best.yaml`` and ``trials.csv`` are written.
    """
    import_optuna()
    out, console = Path(out), console or standard_error()
    check_positive("minutes", minutes)
    check_number("trials", trials, 1)
    check_number("seeds", seeds, 0)
    check_number("processes", processes, 1)
    if contains_run(out):
        raise InputError(f"{out} holds a run, not a search: choose another --out")
    with locked(out), signals_handled(signal.default_int_handler, [signal.SIGTERM]):
        check_run_directory(out / RUN, config, overwrite=(out / STUDY).is_file())
        setup = prepare(config, mixers, console)
        study = open_study(out, METRICS[setup.objective.metric].higher_is_better)
        settings = setup.config.options() | {"mixers": [*mixers]}
        check_folder(study.user_attrs.get(IDENTITY, settings), settings, out, "search")
        study.set_user_attr(IDENTITY, settings)
        options = {"minutes": minutes, "trials": trials, "seeds": seeds, "mixers": [*mixers], "processes": processes}
        study.set_user_attr(OPTIONS, options | {"config": setup.user_config.to_dict()})
        minutes = MINUTES if minutes is None and trials is None else minutes
        seconds = None if minutes is None else 60 * minutes
        left = float("inf") if seconds is None else max(0.0, seconds - study.user_attrs.get(SECONDS, 0.0))
        limits = Limits(trials, seconds, time.time() + left, seeds, processes)
        try:
            run_stages(study, setup, out, limits, mixers, console)
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


def run_stages(study: Study, setup: Setup, out: Path, limits: Limits, mixers: Sequence[str], console: Console) -> None:
    """Run all trials, then the further seeds; raise :class:`Interrupted` if they were interrupted."""
    begin = time.time()
    try:
        prepare_trials(study, setup.defaults)
        trials = records(study)
        if limits.trials is not None:
            started, least = sum(trial.counts for trial in trials), int(_are_defaults_waiting(trials, setup))
            limits = replace(limits, trials=max(limits.trials - started, least))
        for stage in (search, repeat):
            _run_stage(stage, setup, out, limits, mixers, console)
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        study.set_user_attr(SECONDS, study.user_attrs.get(SECONDS, 0.0) + time.time() - begin)


def _run_stage(stage: Stage, setup: Setup, out: Path, limits: Limits, mixers: Sequence[str], console: Console) -> None:
    """Run a stage of the search in this process, or in several."""
    if limits.processes == 1:
        stage(setup, out, limits, 0, console)
        return
    tasks = {index: (stage, setup.user_config, out, limits, mixers, index) for index in range(limits.processes)}
    gpus = visible_gpus(setup.config.trainer.accelerator)
    with closing(in_processes(run_in_process, tasks, limits.processes, gpus)) as ended:
        for _, reason in ended:
            if reason is not None:
                raise InputError(reason)


def run_in_process(
    stage: Stage, config: RunConfig, out: Path, limits: Limits, mixers: Sequence[str], index: int
) -> None:
    """Run a stage of the search in a child process."""
    setup = prepare(config, mixers, QUIET)
    stage(setup, out, limits, index, standard_error())


def _write_results(out: Path, trials: list[Record], setup: Setup, seeds: int, console: Console) -> Choice | None:
    """Write ``trials.csv``, and if a trial is complete ``best.yaml``; return the choice."""
    choice = choose(trials, setup, seeds)
    _write_trials(out / TRIALS, trials, setup, choice)
    if choice is None:
        return None
    label = METRICS[setup.objective.metric].label
    count = len(choice.seeds)
    over = f"mean over {count} further seed{'s' * (count != 1)}" if count else "of a single seed"
    text = f"trial {choice.trial.number}: {label} on held-out folds {score_text(choice.score)}, {over}"
    if choice.default_score is not None:
        text = f"{text}; the defaults {score_text(choice.default_score)}"
    with atomic_write(out / BEST_CONFIG) as new:
        new.write_text(f"# {text}\n{with_values(setup.user_config, choice.trial.params).to_yaml()}", encoding="utf-8")
    result(f"chosen: {text}", console)
    result(f"configuration: {out / BEST_CONFIG}", console)
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
    # On one device: Lightning would start the search again for each further one.
    folder, values = out / RUN, choice.trial.params | {"trainer.devices": "1"}
    wanted = with_values(setup.config, values).to_dict()
    trained = with_values(read_config(folder), {"trainer.devices": "1"}) if (folder / CONFIG).is_file() else None
    if trained is not None and trained.to_dict() == wanted:
        return resume_run(folder, console=console)
    command = shell_command(["graphslice", "train", "--config", str(out / BEST_CONFIG), "--out", str(folder)])
    return train(with_values(setup.user_config, values), folder, overwrite=True, command=command, console=console)
