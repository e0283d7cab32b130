"""What a comparison trains: its variants, the budget of a run, and which run goes into which folder."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphslice.config import FROM_SCRATCH, DataConfig, RunConfig, parse_value, read_yaml
from graphslice.errors import InputError, nearest
from graphslice.run_files import CONFIG
from graphslice.tasks import Task

# More epochs than any budget of time or steps allows.
_UNLIMITED_EPOCHS = 10**6
#: What a comparison decides itself, and how.
FIXED_OPTIONS = {
    **dict.fromkeys(
        ("trainer.max_epochs", "trainer.max_steps", "trainer.max_minutes"), "--budget says how long each run is"
    ),
    "trainer.baselines": "networks are compared, without trees beside them",
    "trainer.devices": "every run has one device, and --jobs says how many are trained at a time",
    **dict.fromkeys(("model.tasks", "model.level", "model.descriptors"), "the data decide it"),
}
# Options by which runs are not of the same molecules, or not scored alike; of those of data all but the latter.
_EVALUATION_OPTIONS = ("trainer.metric", "graph.max_atoms")
_READING_OPTIONS = ("data.features", "data.transform", "data.cache")
# What makes the molecules of a run and their split; the fingerprint last, for the others say more.
_DATA_KEYS = (
    "dataset",
    "valid_file",
    "test_file",
    "targets",
    "level",
    "task",
    "transform",
    "split",
    "carve",
    "folds",
    "fold",
    "duplicates",
    "features",
    "seed",
    "fingerprint",
)


@dataclass(frozen=True)
class Variant:
    """One of the models compared: a mixer, perhaps with other settings than the rest has.

    Attributes:
        label: as in the table, such as ``"csp:groups=2"``.
        changes: the values that differ from the common configuration, by section and key.
        tuning_group: one name for all variants that differ only in what is tuned. Of these, the one with the
            smallest validation error of the first seed is run with the other seeds too.
    """

    label: str
    changes: dict[str, dict[str, Any]] = field(hash=False)
    tuning_group: str

    @property
    def folder(self) -> str:
        """The name of the folder of its runs, below that of the comparison."""
        return re.sub(r"[^\w.=-]+", "_", self.label)

    def run_directory(self, out: Path, seed: int) -> Path:
        """The folder of its run with a seed, in a comparison's folder ``out``."""
        return out / self.folder / f"seed-{seed}"

    def config(self, base: RunConfig, seed: int) -> RunConfig:
        """The configuration of its run with a seed.

        Args:
            base: what the variants have in common.
            seed: of the run.
        """
        values = base.to_dict()
        for section, changes in self.changes.items():
            values[section] = {**values[section], **changes}
        values["trainer"]["seed"] = seed
        values["init_from"] = FROM_SCRATCH  # on equal terms: what comes with the package has one mixer
        return RunConfig.from_dict(values)


@dataclass(frozen=True)
class Run:
    """One training of a comparison.

    Attributes:
        variant: what is trained.
        config: the variant's, with the seed of this run.
        folder: the run folder.
    """

    variant: Variant
    config: RunConfig
    folder: Path


def parse_variants(mixers: str, varied: Sequence[str] = (), tuned: Sequence[str] = ()) -> list[Variant]:
    """The variants that a user names.

    Args:
        mixers: names separated by commas, with settings of their own after colons, such as
            ``"softmax,csp:groups=2:shifts=linear"``.
        varied: for each an option of the configuration and its values, such as
            ``"model.distance_start=false,true"``; every mixer is tried with every combination.
        tuned: options and values as these; every mixer keeps the combination that does best.

    Raises:
        InputError: if a mixer, a setting or an option is not known.
    """
    from graphslice.nn.mixers import mixer_class

    options = [_parse_option(text) for text in (*varied, *tuned)]
    names = [option[0][0] for option in options]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{repeated[0]} is varied twice: give all of its values at once, {repeated[0]}=...,...")
    variants = []
    for text in filter(None, (word.strip() for word in mixers.split(","))):
        name, *settings = text.split(":")
        mixer_class(name)  # refuses a name that is not known
        own = {key: parse_value(value) for key, value in (_parse_setting(setting, text) for setting in settings)}
        for chosen in itertools.product(*options):
            changes: dict[str, dict[str, Any]] = {"model": {"mixer": name, "mixer_settings": own or None}}
            for key, value in chosen:
                section, _, option = key.partition(".")
                changes.setdefault(section, {})[option] = parse_value(value)
            words = [text, *(f"{key.split('.')[-1]}={value}" for key, value in chosen)]
            group = " ".join(words[: 1 + len(varied)])
            variants.append(Variant(" ".join(words), changes, tuning_group=group))
    if not variants:
        raise InputError("name at least one mixer to compare, such as --mixers softmax,slice-max")
    if len({variant.folder for variant in variants}) < len(variants):
        raise InputError("the same mixer with the same settings is named twice: name each once")
    return variants


def _parse_setting(text: str, mixer: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not (key and sign and value):
        raise InputError(f"{mixer!r}: write settings of a mixer as csp:groups=2:shifts=linear")
    return key, value


def _parse_option(text: str) -> list[tuple[str, str]]:
    """``[(option, value), ...]`` of ``"option=value,value"``."""
    key, sign, values = text.partition("=")
    known = [f"{section}.{name}" for section, options in RunConfig().to_dict().items() for name in options]
    if sign and key not in known:
        raise InputError(f"cannot vary {key!r}: there is no such option{nearest(key, known)}")
    if not sign or key in ("model.mixer", "model.mixer_settings", "trainer.seed"):
        raise InputError(f"cannot vary {text!r}: write an option and its values, as model.distance_start=false,true")
    if key in FIXED_OPTIONS:
        raise InputError(f"cannot vary {key!r}: {FIXED_OPTIONS[key]}")
    if key in _EVALUATION_OPTIONS or (key.startswith("data.") and key not in _READING_OPTIONS):
        raise InputError(f"cannot vary {key!r}: the runs would be scored on other molecules, or by another metric")
    return [(key, value) for value in values.split(",")]


def parse_budget(text: str) -> dict[str, Any]:
    """Settings of the trainer for a budget such as ``90s``, ``10m``, ``2h``, ``5000steps`` or ``20epochs``.

    Raises:
        InputError: if the text is none of these, or not positive.
    """
    match = re.fullmatch(r"([\d.]+)\s*(s|m|h|steps?|epochs?)", text.strip())
    try:
        amount = float(match.group(1)) if match else 0.0
    except ValueError:  # such as 1.2.3
        amount = 0.0
    if match is None or not 0 < amount < float("inf"):
        raise InputError(f"cannot read the budget {text!r}: write 90s, 10m, 2h, 5000steps or 20epochs")
    limits: dict[str, Any] = {"max_epochs": _UNLIMITED_EPOCHS, "max_steps": None, "max_minutes": None}
    unit = match.group(2)
    if unit in "smh":
        return limits | {"max_minutes": amount * {"s": 1 / 60, "m": 1, "h": 60}[unit]}
    if amount != int(amount):
        raise InputError(f"the budget {text!r} must be a whole number of {unit}")
    return limits | {"max_steps" if unit.startswith("step") else "max_epochs": int(amount)}


def tuning_groups(variants: Iterable[Variant]) -> list[list[Variant]]:
    """The variants by tuning group, in the order in which the groups are first named."""
    groups: dict[str, list[Variant]] = {}
    for variant in variants:
        groups.setdefault(variant.tuning_group, []).append(variant)
    return list(groups.values())


def plan_runs(variants: Iterable[Variant], seeds: Iterable[int], base: RunConfig, out: Path) -> list[Run]:
    """The runs of these variants: those with the first seed, then those with the second, and so on.

    Args:
        variants: what is trained.
        seeds: one run of each variant for each.
        base: what the variants have in common.
        out: the folder of the comparison.
    """
    pairs = itertools.product(seeds, variants)
    return [Run(variant, variant.config(base, seed), variant.run_directory(out, seed)) for seed, variant in pairs]


def check_runs(runs: Sequence[Run]) -> None:
    """Say once, and before anything is trained, what is wrong with a mixer, the data, a metric, a loss or a folder.

    Raises:
        InputError: if a setting is not possible, the data cannot be had, its targets have no such metric or loss, or
            a folder holds a run of other settings or other data.
    """
    from graphslice.data.dataset_loaders import load_dataset
    from graphslice.data.finalize_config import finalize_config
    from graphslice.evaluation.metrics import check_metric
    from graphslice.nn.mixers import build_mixer, check_mixer
    from graphslice.training.losses import check_losses

    for run in runs:
        model = run.config.model
        check_mixer(model.mixer, model.mixer_settings)
        build_mixer(model.mixer, model.dim, model.heads, **(model.mixer_settings or {}))
    read: dict[str, tuple[DataConfig, Sequence[Task]]] = {}  # once for all runs that share it
    for run in runs:
        key = repr(run.config.data)
        if key not in read:
            dataset = load_dataset(run.config.data)
            read[key] = finalize_config(run.config, dataset).data, dataset.tasks
        data, tasks = read[key]
        if run.config.trainer.metric is not None:
            check_metric(run.config.trainer.metric, tasks)
        check_losses(run.config.trainer, tasks)
        _check_folder(run, data)


def _check_folder(run: Run, data: DataConfig) -> None:
    """Refuse a folder that holds a run of other settings, or of other data than ``data`` as it is now."""
    if not (run.folder / CONFIG).exists():
        return
    # By way of a configuration: one of a former version lacks the options that came since.
    found, wanted = RunConfig.from_dict(read_yaml(run.folder / CONFIG)).to_dict(), run.config.to_dict()
    for name in ("tasks", "level", "descriptors"):  # what the data decides
        found["model"][name] = wanted["model"][name]
    wanted["data"] = {key: getattr(data, key) for key in _DATA_KEYS}
    sections = {section: values for section, values in wanted.items() if isinstance(values, dict)}
    for section, values in sections.items():
        for key, value in values.items():
            if (there := found[section].get(key)) == value:
                continue
            if key == "fingerprint":
                raise InputError(f"the data of {run.folder} has changed since it was trained: choose another --out")
            raise InputError(
                f"{run.folder} holds a run with {section}.{key} {there}, not {value}: "
                "choose another --out, or give the same settings"
            )
