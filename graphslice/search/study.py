"""The Optuna study of a search: its file, its trials, and the scores of further seeds.

The search space: which hyperparameters are searched, and their values.

| option | values | searched |
|---|---|---|
| optimizer.peak_lr | a quarter to four times the default, on a logarithmic scale | always |
| trainer.max_epochs | half, one or two times the default number of epochs | unless the length of the run is set |
| optimizer.weight_decay | 0, 0.01, 0.1 | always |
| model.dropout | 0, 0.1, 0.2 | always |
| trainer.loss | auto (mae), huber, mse | if it is auto, for regression targets |
| optimizer.layer_lr_decay | 0.7, 1 | for a fine-tuned model |
| model.layers | 2, 4, 6 | from scratch |
| model.dim | 64, 128, 256 with model.ffn_dim in proportion | from scratch |
| model.mixer | those of ``--mixers`` | from scratch, if given |

The defaults are the user's configuration. They are always among the values. Base models are no hyperparameter: the
stacking weights, chosen on held-out molecules, decide how much each counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphslice.config import RunConfig
from graphslice.config.reading import check_same_settings, flattened
from graphslice.errors import InputError, first_line
from graphslice.tasks import REGRESSION, Task

if TYPE_CHECKING:
    from optuna import Study, Trial

#: SQLite database of the study.
STUDY = "study.sqlite3"
#: File whose lock a process holds while it starts a trial.
STUDY_LOCK = f".{STUDY}.lock"
_NAME = "graphslice"
#: Keys of user attributes of the study: what identifies the search, its options, its seconds over all continuations,
#: and the budget with which it last ended.
IDENTITY, OPTIONS, SECONDS, FINISHED = "identity", "options", "seconds", "finished"


@dataclass
class Record:
    """One trial."""

    number: int  # 0 has the defaults
    state: str  # complete, pruned, failed, running or waiting
    value: float | None  # score of its first seed; None unless complete
    seconds: float
    params: dict[str, Any]  # value of each hyperparameter
    reason: str  # why it failed or was pruned
    seeds: dict[int, float] = field(default_factory=dict)  # scores of the further seeds, by seed
    counts: bool = True  # part of the budget: started, and not repeated by another trial


def import_optuna() -> Any:
    """Import Optuna, without its messages; raises :class:`InputError` if it is not installed."""
    try:
        import optuna
    except ImportError:
        raise InputError("graphslice tune needs the package optuna: pip install 'graphslice[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return optuna


def open_study(folder: Path, higher_is_better: bool | None = None) -> Study:
    """Open the study of a folder, or create one if the direction of its metric is given; raises :class:`InputError` if
    there is no study and none is to be created, or its file cannot be read."""
    optuna = import_optuna()
    path = folder / STUDY
    if higher_is_better is None and not path.is_file():
        raise InputError(f"{folder} holds no search to continue: it has no {STUDY}")
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1)
    engine = {"connect_args": {"timeout": 300}}  # seconds to wait for other processes that use the file
    try:
        from sqlalchemy import URL  # which Optuna needs

        url = URL.create("sqlite", database=str(path.resolve()))
        storage = optuna.storages.RDBStorage(url.render_as_string(), engine_kwargs=engine)
        if higher_is_better is not None and not optuna.get_all_study_names(storage):
            direction = "maximize" if higher_is_better else "minimize"
            optuna.create_study(storage=storage, study_name=_NAME, direction=direction)
        return optuna.load_study(study_name=_NAME, storage=storage, pruner=pruner)
    except Exception as error:  # of SQLAlchemy, Alembic or Optuna
        raise InputError(f"cannot read {path}: {first_line(error)}; choose another --out") from None


def ask(study: Study, space: Space, seed: int) -> Trial:
    """Start the next trial, whose values depend on the seed and on the trials that count, so that a continued search
    equals an uninterrupted one."""
    seed = (seed + sum(trial.counts for trial in records(study))) % 2**32
    study.sampler = import_optuna().samplers.TPESampler(seed=seed, n_startup_trials=8)
    return study.ask(_distributions(space))


def check_identity(study: Study, identity: Mapping[str, Any], folder: Path) -> None:
    """Save what identifies a search in a new study: the complete configuration (``config``) and the search space
    (``space``) as text. Raises :class:`InputError` if an old study has another dataset, other targets, configuration
    or search space."""
    saved = study.user_attrs.get(IDENTITY)
    if saved is None:
        study.set_user_attr(IDENTITY, dict(identity))
        return
    before, now = (flattened(one["config"]) | {"data.cache": None} for one in (saved, identity))
    check_same_settings(before, now, folder, "search")
    if saved["space"] != identity["space"]:
        raise InputError(f"{folder} holds a search over other values: choose another --out, or give the same --mixers")


def _distributions(space: Space) -> dict[str, Any]:
    optuna = import_optuna()
    return {
        name: optuna.distributions.FloatDistribution(values.low, values.high, log=True)
        if isinstance(values, LogRange)
        else optuna.distributions.CategoricalDistribution(values)
        for name, values in space.items()
    }


def prepare_trials(study: Study, defaults: Mapping[str, Any]) -> None:
    """Repeat the trials of killed processes once, and enqueue the defaults unless they are complete; no other process
    may use the study."""
    trials = records(study)
    for trial in trials:
        if trial.state == "running":  # killed, such as for lack of memory
            stop(study, trial.number, "its process was killed", repeats=1)
    if not any(trial.state in ("complete", "waiting") and trial.params == defaults for trial in records(study)):
        study.enqueue_trial(dict(defaults))


def stop(study: Study, number: int, reason: str, repeats: int | None = None) -> None:
    """Mark a running trial as failed, and enqueue it again unless it was repeated ``repeats`` times already; raises
    ``ValueError`` if it is finished."""
    fail(study, number, reason)
    retry = import_optuna().storages.RetryHeartbeatStaleTrialCallback(max_retry=repeats)
    retry(study, study.get_trials()[number])


def fail(study: Study, number: int, reason: str) -> None:
    """Mark a running trial as failed; raises ``ValueError`` if it is finished."""
    study.tell(number, state=import_optuna().trial.TrialState.FAIL)
    study.set_user_attr(f"reason-{number}", reason)


def set_seed_score(study: Study, number: int, seed: int, value: float) -> None:
    """Save the score of a trial with a further seed."""
    study.set_user_attr(f"seed-{number}-{seed}", value)


def records(study: Study) -> list[Record]:
    """Return all trials by number."""
    attributes, trials = study.user_attrs, study.get_trials(deepcopy=False)
    seeds: dict[int, dict[int, float]] = {}
    for key, value in attributes.items():
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
            attributes.get(f"reason-{trial.number}", ""),
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
