"""Plan of a comparison or a search: variants, training budget, folders of the runs, and checks before training."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphslice.config import FROM_SCRATCH, RunConfig, read_yaml
from graphslice.config.reading import check_same_settings, parse_value
from graphslice.errors import InputError, nearest
from graphslice.runs.run_files import CONFIG

if TYPE_CHECKING:
    from graphslice.data.dataset import LabelledDataset

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
# Options that change neither the molecules nor the labels of a run.
_UNCOMPARED = [f"data.{name}" for name in ("root", "smiles_column", "id_column", "rejected", "cache")]


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
    """Parse the variants of a comparison, such as ``"softmax:model.dim=96,csp:groups=2:shifts=linear"``: mixers with
    settings, of the mixer or of the run, each with every combination of ``varied`` options, such as
    ``"model.distance_start=false,true"``. Raises :class:`InputError` if a mixer, setting or option is unknown."""
    from graphslice.nn.mixers import check_mixer

    options = [_parse_option(text) for text in varied]
    variants = []
    for text in map(str.strip, mixers.split(",")):
        name, *words = text.split(":")
        check_mixer(name)
        settings = dict(_parse_setting(word, text) for word in words)
        own = {key: settings.pop(key) for key in list(settings) if "." in key}  # settings of the run
        for combination in itertools.product(*options):
            changes = {"model.mixer": name, "model.mixer_settings": settings or None, **own}
            changes |= {key: parse_value(value) for key, value in combination}
            labels = [text, *(f"{key.split('.')[-1]}={value}" for key, value in combination)]
            variants.append(Variant(" ".join(labels), changes))
    return list({variant.folder: variant for variant in variants}.values())


def _parse_setting(text: str, mixer: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not (key and sign and value):
        raise InputError(f"{mixer!r}: write the settings of a mixer as csp:groups=2:shifts=linear")
    if "." in key:
        _parse_option(text)  # for its checks
    return key, parse_value(value)


def _parse_option(text: str) -> list[tuple[str, str]]:
    """Parse ``"option=value,value"`` into ``[(option, value), ...]``."""
    key, _, values = text.partition("=")
    known, reason = RunConfig().options(), FIXED_OPTIONS.get(key)
    if key not in known or key.startswith("model.mixer") or not values:
        reason = f"give an option and its values, as model.distance_start=false,true{nearest(key, known)}"
    elif key in _EVALUATION_OPTIONS or (key.startswith("data.") and key not in _READING_OPTIONS):
        reason = "runs with different molecules or metrics are not comparable"
    if reason is not None:
        raise InputError(f"cannot vary {text!r}: {reason}")
    return [(key, value) for value in values.split(",")]


def parse_budget(text: str) -> dict[str, Any]:
    """Parse a training budget such as ``90s``, ``10m``, ``2h``, ``5000steps`` or ``20epochs`` to settings of the
    trainer; raises :class:`InputError` if the text has another form, or the amount is not positive."""
    limits: dict[str, Any] = {"max_epochs": _UNLIMITED_EPOCHS, "max_steps": None, "max_minutes": None}
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip()):
        limits["max_minutes"] = float(match[1]) * {"s": 1 / 60, "m": 1, "h": 60}[match[2]]
    elif match := re.fullmatch(r"(\d+)\s*(step|epoch)s?", text.strip()):
        limits[f"max_{match[2]}s"] = int(match[1])
    if match is None or not float(match[1]):
        raise InputError(f"cannot read the budget {text!r}: write 90s, 10m, 2h, 5000steps or 20epochs")
    return limits


def check_single_networks(config: RunConfig, what: str) -> None:
    """Raise :class:`InputError` for a configuration of several models or devices per training of a comparison or
    search, ``what``."""
    from graphslice.training.resolve import check_one_device

    if config.data.folds is not None or (config.num_models > 1 and what == "comparison"):
        raise InputError(f"a {what} trains single networks: leave out trainer.ensemble and data.folds")
    check_one_device(config, f"each training of a {what}")


def check_folder(saved: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path, what: str) -> None:
    """Raise :class:`InputError` if a folder holds a run or search, ``what``, with other settings or other data."""
    check_same_settings({**saved, **{name: wanted[name] for name in _UNCOMPARED}}, {**wanted}, folder, what)


def plan_runs(variants: Iterable[Variant], seeds: Iterable[int], base: RunConfig, out: Path) -> list[Run]:
    """List the runs of all variants with the first seed, then with the second, and so on, in the folder ``out``; raises
    :class:`InputError` before training if a setting is invalid, the data cannot be read, the metric or loss does not
    apply to the targets, or a folder holds a run with other settings or other data."""
    from graphslice.data.loaders import load_dataset
    from graphslice.nn.mixers import build_mixer
    from graphslice.training.resolve import check_options, check_tasks, fit_to_dataset

    datasets: dict[str, LabelledDataset] = {}  # every dataset is read only once
    runs = []
    for seed, variant in itertools.product(seeds, variants):
        config, folder = variant.config(base, seed), out / variant.folder / f"seed-{seed}"
        check_options(config)
        model, key = config.model, repr(config.data)
        build_mixer(model.mixer, model.dim, model.heads, **(model.mixer_settings or {}))
        if key not in datasets:
            datasets[key] = load_dataset(config.data)
        config = fit_to_dataset(config, datasets[key], folder)
        check_tasks(config, datasets[key].tasks)
        if (folder / CONFIG).exists():
            saved = RunConfig.from_dict(read_yaml(folder / CONFIG)).options()
            check_folder(saved, config.options(), folder, "run")
        runs.append(Run(variant, config, folder))
    return runs
