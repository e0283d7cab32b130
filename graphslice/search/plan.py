"""Plan of a comparison: its variants, the training budget, and the folder of every run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graphslice.config import FROM_SCRATCH, DataConfig, RunConfig, read_yaml
from graphslice.config.reading import check_same_settings, parse_value
from graphslice.errors import InputError, nearest
from graphslice.runs.run_files import CONFIG
from graphslice.tasks import Task

# More epochs than fit in any budget of time or steps.
_UNLIMITED_EPOCHS = 10**6
# Settings of the model that the data determines.
_FROM_DATA = ("tasks", "level", "descriptors")
#: Options that a comparison sets itself, and the reason.
FIXED_OPTIONS = {
    **dict.fromkeys(
        ("trainer.max_epochs", "trainer.max_steps", "trainer.max_minutes"), "--budget sets the length of each run"
    ),
    "trainer.baselines": "networks are compared without base models",
    "trainer.seed": "--seeds sets the number of seeds, which are 0, 1, 2 and so on",
    "trainer.refit": "networks are compared on a validation set",
    "trainer.ensemble": "single networks are compared",
    "trainer.devices": "every run uses one device, and --jobs sets the number of parallel runs",
    **{f"model.{name}": "it is determined by the data" for name in _FROM_DATA},
}
# Options that change the molecules or the metric of a run. All options of `data` do, except the second group.
_EVALUATION_OPTIONS = ("trainer.metric", "graph.max_atoms", "graph.standardize")
_READING_OPTIONS = ("data.features", "data.transform", "data.cache")
# Options of the data that change neither the molecules nor the labels of a run.
_UNCOMPARED = ("root", "smiles_column", "id_column", "rejected", "cache")


@dataclass(frozen=True)
class Variant:
    """One of the compared models: a mixer, optionally with settings that differ from the common configuration."""

    label: str  # name in the table, such as "csp:groups=2"
    changes: dict[str, Any] = field(hash=False)  # values that differ, by name, such as model.mixer

    @property
    def folder(self) -> str:
        """Name of the folder of its runs, inside the folder of the comparison."""
        return re.sub(r"[^\w.=-]+", "_", self.label)

    def config(self, base: RunConfig, seed: int) -> RunConfig:
        """Return the configuration of its run with a seed; ``base``: the common configuration."""
        # From scratch: the packaged models all have the same mixer, which would be favoured.
        fixed = {"trainer.seed": seed, "init_from": FROM_SCRATCH}
        return base.with_options({"optimizer.peak_lr": base.optimizer.max_lr, **self.changes, **fixed})


@dataclass(frozen=True)
class Run:
    """One training run of a comparison; ``config`` is that of its variant, with the seed of this run."""

    variant: Variant
    config: RunConfig
    folder: Path


def parse_variants(mixers: str, varied: Sequence[str] = ()) -> list[Variant]:
    """Parse the variants of a comparison, such as ``"softmax,csp:groups=2:shifts=linear"``: mixers with their settings,
    each with every combination of ``varied`` options, such as ``"model.distance_start=false,true"``. Raises
    :class:`InputError` if a mixer, setting or option is unknown."""
    from graphslice.nn.mixers import mixer_class

    options = [_parse_option(text) for text in varied]
    variants = []
    for text in filter(None, (word.strip() for word in mixers.split(","))):
        name, *settings = text.split(":")
        mixer_class(name)  # raises InputError for an unknown name
        own = {key: parse_value(value) for key, value in (_parse_setting(setting, text) for setting in settings)}
        for combination in itertools.product(*options):
            changes = {"model.mixer": name, "model.mixer_settings": own or None}
            changes |= {key: parse_value(value) for key, value in combination}
            words = [text, *(f"{key.split('.')[-1]}={value}" for key, value in combination)]
            variants.append(Variant(" ".join(words), changes))
    if not variants:
        raise InputError("give at least one mixer to compare, such as --mixers softmax,slice-max")
    if len({variant.folder for variant in variants}) < len(variants):
        raise InputError("the same mixer with the same settings is given twice: give it once")
    return variants


def _parse_setting(text: str, mixer: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not (key and sign and value):
        raise InputError(f"{mixer!r}: write the settings of a mixer as csp:groups=2:shifts=linear")
    return key, value


def _parse_option(text: str) -> list[tuple[str, str]]:
    """Parse ``"option=value,value"`` into ``[(option, value), ...]``."""
    key, sign, values = text.partition("=")
    known = RunConfig().options()
    if sign and key not in known:
        raise InputError(f"cannot vary {key!r}: unknown option{nearest(key, known)}")
    if not sign or key in ("model.mixer", "model.mixer_settings", "trainer.seed"):
        raise InputError(f"cannot vary {text!r}: give an option and its values, as model.distance_start=false,true")
    if key in FIXED_OPTIONS:
        raise InputError(f"cannot vary {key!r}: {FIXED_OPTIONS[key]}")
    if key in _EVALUATION_OPTIONS or (key.startswith("data.") and key not in _READING_OPTIONS):
        raise InputError(f"cannot vary {key!r}: runs with different molecules or metrics are not comparable")
    return [(key, value) for value in values.split(",")]


def parse_budget(text: str) -> dict[str, Any]:
    """Parse a training budget such as ``90s``, ``10m``, ``2h``, ``5000steps`` or ``20epochs`` to settings of the
    trainer; raises :class:`InputError` if the text has another form, or the amount is not positive."""
    match = re.fullmatch(r"([\d.]+)\s*(s|m|h|steps?|epochs?)", text.strip())
    try:
        amount = float(match.group(1)) if match else 0.0
    except ValueError:  # such as 1.2.3
        amount = 0.0
    is_time = match is not None and match.group(2) in "smh"
    if match is None or not 0 < amount < float("inf") or not (is_time or amount.is_integer()):
        raise InputError(f"cannot read the budget {text!r}: write 90s, 10m, 2h, 5000steps or 20epochs")
    limits: dict[str, Any] = {"max_epochs": _UNLIMITED_EPOCHS, "max_steps": None, "max_minutes": None}
    unit = match.group(2)
    if is_time:
        return limits | {"max_minutes": amount * {"s": 1 / 60, "m": 1, "h": 60}[unit]}
    return limits | {"max_steps" if unit.startswith("step") else "max_epochs": int(amount)}


def uncompiled_mixers(runs: Sequence[Run]) -> list[str]:
    """Return the names of mixers outside the package that do not run as compiled programs on CPUs."""
    from graphslice.nn import GraphTransformer
    from graphslice.nn.mixers import is_user_mixer
    from graphslice.nn.traced_model import inference_program

    models = {run.config.model.mixer: run.config.model for run in runs}
    user = {name: replace(model, layers=1, descriptors=0) for name, model in models.items() if is_user_mixer(name)}
    return [name for name, model in user.items() if inference_program(GraphTransformer(model).eval()) is None]


def plan_runs(variants: Iterable[Variant], seeds: Iterable[int], base: RunConfig, out: Path) -> list[Run]:
    """List the runs of all variants with the first seed, then with the second, and so on, in the folder ``out``."""
    pairs = itertools.product(seeds, variants)
    return [Run(variant, variant.config(base, seed), out / variant.folder / f"seed-{seed}") for seed, variant in pairs]


def check_runs(runs: Sequence[Run]) -> dict[Path, str | None]:
    """Check mixers, data, metrics, losses and folders of all runs before training; return the fingerprint of the data
    of each run, by its folder. Raises :class:`InputError` if a setting is invalid, the data cannot be read, the
    metric or loss does not apply to the targets, or a folder holds a run with other settings or other data."""
    from graphslice.data.loaders import load_dataset
    from graphslice.nn.mixers import build_mixer
    from graphslice.training.resolve import check_options, check_tasks, fit_to_dataset

    for run in runs:
        check_options(run.config)
        model = run.config.model
        build_mixer(model.mixer, model.dim, model.heads, **(model.mixer_settings or {}))
    read: dict[str, tuple[DataConfig, Sequence[Task]]] = {}  # every dataset is read only once
    fingerprints = {}
    for run in runs:
        key = repr(run.config.data)
        if key not in read:
            dataset = load_dataset(run.config.data)
            read[key] = fit_to_dataset(run.config, dataset, run.folder).data, dataset.tasks
        data, tasks = read[key]
        check_tasks(run.config, tasks)
        _check_folder(run, data)
        fingerprints[run.folder] = data.fingerprint
    return fingerprints


def _check_folder(run: Run, data: DataConfig) -> None:
    """Raise InputError if a folder holds a run with other settings, or with other data than the current ``data``."""
    if not (run.folder / CONFIG).exists():
        return
    saved = RunConfig.from_dict(read_yaml(run.folder / CONFIG)).options()
    wanted = run.config.options() | {f"data.{name}": value for name, value in vars(data).items()}
    ignored = [*(f"model.{name}" for name in _FROM_DATA), *(f"data.{name}" for name in _UNCOMPARED)]
    saved |= {name: wanted[name] for name in ignored}
    check_same_settings(saved, wanted, run.folder, "run")
