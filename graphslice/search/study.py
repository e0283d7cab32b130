"""The Optuna study of a search: its file, its trials, and the scores of further seeds.

The search space has the learning rate around the default, and a few values of other options (docs/tuning.md has them).
The defaults are the user's configuration. They are always among the values. Base models are no hyperparameter: the
stacking weights, chosen on held-out molecules, decide how much each counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphslice.config import RunConfig
from graphslice.errors import InputError, first_line, optional_packages
from graphslice.tasks import REGRESSION, Task

if TYPE_CHECKING:
    from optuna import Study, Trial

#: Journal of the study, which several processes may write.
STUDY = "study.journal"
_NAME = "graphslice"
#: Keys of user attributes of the study: what identifies the search, its options, its seconds over all continuations.
IDENTITY, OPTIONS, SECONDS = "identity", "options", "seconds"
_STOPPED, _KILLED = "stopped", "its process was killed"


class OutOfTime(RuntimeError):
    """The time for a training is used up."""


@dataclass
class Record:
    """One trial."""

    number: int  # 0 has the defaults
    state: str  # complete, pruned, failed, running or waiting
    value: float | None  # score of its first seed; None unless complete
    seconds: float
    params: dict[str, Any]  # value of each hyperparameter
    reason: str  # why it failed
    seeds: dict[int, float] = field(default_factory=dict)  # scores of the further seeds, by seed
    counts: bool = True  # part of the budget: started, and not repeated by another trial


def import_optuna() -> Any:
    """Import Optuna, without its messages; raises :class:`InputError` if it is not installed."""
    with optional_packages("graphslice tune", "tune"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return optuna


def open_study(folder: Path, higher_is_better: bool | None = None) -> Study:
    """Open the study of a folder, or create one if the direction of its metric is given; raises :class:`InputError` if
    there is no study and none is to be created."""
    optuna = import_optuna()
    path = folder / STUDY
    if higher_is_better is None and not path.is_file():
        raise InputError(f"{folder} holds no search to continue: it has no {STUDY}")
    journal = optuna.storages.journal
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(
            journal.JournalFileBackend(str(path), journal.JournalFileOpenLock(str(path)))
        ),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
        study_name=_NAME,
        direction="maximize" if higher_is_better else "minimize",
        load_if_exists=True,
    )


def run_trial(study: Study, space: Space, seed: int, score: Callable[[Trial], float]) -> int:
    """Run the next trial, and return its number. ``score`` may report values, and ends with a score or an exception.

    The values depend on the seed and on the trials that count, so that a continued search equals an uninterrupted one.
    """
    optuna, started = import_optuna(), []
    seed = (seed + sum(trial.counts for trial in records(study))) % 2**32
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=8)

    def objective(trial: Trial) -> float:
        started.append(trial.number)
        trial.set_user_attr("reason", _KILLED)  # until it ends
        for name, values in space.items():
            if isinstance(values, LogRange):
                trial.suggest_float(name, values.low, values.high, log=True)
            else:
                trial.suggest_categorical(name, values)
        try:
            return score(trial)
        except optuna.TrialPruned:
            raise
        except (Exception, KeyboardInterrupt) as error:
            is_stopped = isinstance(error, OutOfTime | KeyboardInterrupt)
            trial.set_user_attr("reason", _STOPPED if is_stopped else first_line(error))
            raise

    # Such as divergence, or too little memory for a wide model; any other error ends the search.
    study.optimize(objective, n_trials=1, catch=(ValueError, RuntimeError, MemoryError))
    return started[0]


def prepare_trials(study: Study, defaults: Mapping[str, Any]) -> None:
    """Repeat trials that were stopped, and once those of killed processes; enqueue the defaults unless they are
    complete. No other process may use the study."""
    optuna = import_optuna()
    state, again = optuna.trial.TrialState, optuna.storages.RetryHeartbeatStaleTrialCallback
    for trial in study.get_trials(states=[state.RUNNING]):
        study.tell(trial.number, state=state.FAIL)
    repeat = {_STOPPED: again(), _KILLED: again(max_retry=1)}
    for trial, record in zip(study.get_trials(), records(study), strict=True):
        if record.state == "failed" and record.counts and record.reason in repeat:
            repeat[record.reason](study, trial)
    if not any(trial.state in ("complete", "waiting") and trial.params == defaults for trial in records(study)):
        study.enqueue_trial(dict(defaults))


def set_seed_score(study: Study, number: int, seed: int, value: float) -> None:
    """Save the score of a trial with a further seed."""
    study.set_user_attr(f"seed-{number}-{seed}", value)


def records(study: Study) -> list[Record]:
    """Return all trials by number."""
    trials = study.get_trials(deepcopy=False)
    seeds: dict[int, dict[int, float]] = {}
    for key, value in study.user_attrs.items():
        if key.startswith("seed-"):
            number, seed = map(int, key.split("-")[1:])
            seeds.setdefault(number, {})[seed] = value
    repeated = {number for trial in trials for number in trial.system_attrs.get("retry_history", ())}
    return [
        Record(
            trial.number,
            {"FAIL": "failed"}.get(trial.state.name, trial.state.name.lower()),
            trial.value if trial.state.name == "COMPLETE" else None,
            trial.duration.total_seconds() if trial.duration is not None else 0.0,
            trial.params or trial.system_attrs.get("fixed_params", {}),
            trial.user_attrs.get("reason", "") if trial.state.name == "FAIL" else "",
            dict(sorted(seeds.get(trial.number, {}).items())),
            trial.state.name != "WAITING" and trial.number not in repeated,
        )
        for trial in trials
    ]


_RATE_FACTOR, _EPOCH_FACTORS = 4.0, (0.5, 2.0)
_CHOICES: dict[str, tuple[float, ...]] = {"optimizer.weight_decay": (0.0, 0.01, 0.1), "model.dropout": (0.0, 0.1, 0.2)}
_FINE_TUNED: dict[str, tuple[float, ...]] = {"optimizer.layer_lr_decay": (0.7, 1.0)}
_FROM_SCRATCH: dict[str, tuple[float, ...]] = {"model.layers": (2, 4, 6), "model.dim": (64, 128, 256)}
_DIM, _MIXER = "model.dim", "model.mixer"


@dataclass(frozen=True)
class LogRange:
    """All numbers between two bounds, on a logarithmic scale."""

    low: float
    high: float


#: Values of each option: a range, or a choice.
Space = dict[str, LogRange | tuple[Any, ...]]


def search_space(config: RunConfig, tasks: Sequence[Task], epochs: int, mixers: Sequence[str] = ()) -> Space:
    """Return the search space around complete defaults, with ``mixers`` in addition to their own; raises
    :class:`InputError` if mixers are given for a fine-tuned model."""
    if mixers and config.origin is not None:
        raise InputError(
            f"--mixers needs training from scratch, but the model is fine-tuned from {config.init_from}: add "
            "init_from none"
        )
    rate = config.optimizer.max_lr
    choices: dict[str, tuple[Any, ...]] = {}
    trainer = config.trainer
    if trainer.max_epochs is None and trainer.max_steps is None and trainer.max_minutes is None:
        choices["trainer.max_epochs"] = tuple(max(1, round(factor * epochs)) for factor in _EPOCH_FACTORS)
    choices |= _CHOICES | (_FROM_SCRATCH if config.origin is None else _FINE_TUNED)
    if trainer.loss == "auto" and any(task.kind == REGRESSION for task in tasks):
        choices["trainer.loss"] = ("huber", "mse")
    if _DIM in choices:
        choices[_DIM] = tuple(dim for dim in choices[_DIM] if dim % config.model.heads == 0)
    if mixers:
        choices[_MIXER] = tuple(mixers)
    present = config.options()
    space: Space = {"optimizer.peak_lr": LogRange(rate / _RATE_FACTOR, rate * _RATE_FACTOR)}
    return space | {name: tuple(dict.fromkeys([present[name], *values])) for name, values in choices.items()}


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return the configuration with other values of some options; another ``model.dim`` scales ``model.ffn_dim``, and
    another ``model.mixer`` has its default settings."""
    dim = values.get(_DIM, config.model.dim)
    changes = {**values, "model.ffn_dim": max(1, config.model.ffn_dim * dim // config.model.dim)}
    if values.get(_MIXER, config.model.mixer) != config.model.mixer:
        changes["model.mixer_settings"] = None
    return config.with_options(changes)
