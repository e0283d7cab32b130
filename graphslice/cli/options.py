"""Options that several commands have, and what they make."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli import HELP_ALL
from graphslice.config import (
    FROM_SCRATCH,
    PRESETS,
    GraphConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TrainerConfig,
    check_keys,
    merge_sections,
    parse_value,
    read_preset,
    read_yaml,
)
from graphslice.errors import InputError
from graphslice.package_data import MODELS

if TYPE_CHECKING:
    import torch

    from graphslice.inference import Predictor

_SECTIONS = {"graph": GraphConfig, "model": ModelConfig, "optimizer": OptimizerConfig, "trainer": TrainerConfig}
_DEFAULT_PRESETS = {"pcqm4m": "pcqm4m-slice", "pcqm4mv2": "pcqm4m-slice"}

# Options by the name of their group and their own; the names are those of the fields that they set.
_DATA_OPTIONS = {
    "the table": {
        "targets": "columns to predict, separated by commas (default: the only one)",
        "level": "molecule, atom or bond: what the targets are of; of atoms and bonds cells are lists of numbers",
        "task": "regression, binary or multiclass, or TARGET=binary,... (default: found from the values)",
        "transform": "log, or TARGET=log,...: learn logarithms; answers are in the target's own unit",
        "features": "what is read beside the graph: morgan, rdkit2d, numeric columns; separated by commas",
        "smiles_column": "column of the SMILES (default: found by its name)",
        "rejected": "any: train even where fewer than half of the rows with a label can be used (default: few)",
    },
    "how it is split": {
        "split": "random, scaffold, cluster, or a column that says train, valid, test (default: the column split)",
        "valid_file": "a table of the molecules for validation",
        "test_file": "a table of the molecules for the test",
        "folds": "5, or 5x3 for three times five: cross-validation, a model for each fold",
        "duplicates": "merge training rows of one molecule into one (default: keep)",
        "seed": "of the split (default: 0)",
    },
}
#: Short names of settings, by the option that they stand for.
SHORT_OPTIONS = {
    "epochs": "trainer.max_epochs",
    "batch_size": "trainer.batch_size",
    "lr": "optimizer.peak_lr",
    "metric": "trainer.metric",
    "ensemble": "trainer.ensemble",
    "baselines": "trainer.baselines",
}
_TRAINING_OPTIONS = {
    "epochs": "passes over the training set (default: by the number of molecules)",
    "batch_size": "molecules per optimiser step, over all devices (default: by the preset)",
    "lr": "peak learning rate (default: by the preset, or by the run that weights are taken from)",
}
_TRAINER_OPTIONS = {
    "metric": "what chooses the best epoch: mae, rmse, spearman, auroc, auprc, ... (default: by the task)",
    "ensemble": "train so many models, whose mean is the prediction and whose deviation its spread",
    "baselines": "on or off: a forest and boosting beside the network, compared and blended (default: on small tables)",
}


def add_config_options(parser: ArgumentParser, arguments: list[str]) -> None:
    """All that makes a :class:`RunConfig`: flags of the data, a preset, a file, and each setting of its sections."""
    where = parser.add_argument_group("where the molecules are")
    where.add_argument("--dataset", help=_DATASET)
    where.add_argument("--root", help=_ROOT)
    where.add_argument("--cache", help="folder that keeps featurized molecules (default: the user's cache folder)")
    for title, options in _DATA_OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, text in options.items():
            group.add_argument(*_option_strings(name), type=int | None if name == "seed" else str, help=text)
    add_settings(parser, arguments, _TRAINER_OPTIONS)


def add_settings(parser: ArgumentParser, arguments: list[str], more: Mapping[str, str] = MappingProxyType({})) -> None:
    """A preset, a file, each setting of the sections of a :class:`RunConfig`; and more options with their help."""
    group = parser.add_argument_group("the model")
    group.add_argument("--preset", help=f"ready-made or published settings: {', '.join(PRESETS)}")
    group.add_argument("--config", help="a YAML file with the sections of config.yaml of a run folder")
    kinds = {"ensemble": int | None, "epochs": int | None, "batch_size": int | None, "lr": float | None}
    for name, text in {**_TRAINING_OPTIONS, **more}.items():
        group.add_argument(*_option_strings(name), type=kinds.get(name, str), help=text)
    for name, kind in _SECTIONS.items():
        parser.add_argument(f"--{name}", type=kind)
    names = (("--preset",), ("--config",), ("--dataset",), ("--init-from", "--init_from"))
    base = _base_config(*(_given_value(arguments, *options) for options in names))
    parser.set_defaults({key: value for key, value in _flat(base).items() if key.split(".")[0] in _SECTIONS})
    if HELP_ALL not in arguments:
        _hide_sections(parser)


def _option_strings(name: str) -> list[str]:
    """The ways to write an option: with underscores, as in a file, and with dashes."""
    return list(dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]))


def _hide_sections(parser: ArgumentParser) -> None:
    """Leave the settings of the sections out of the help, but for a line that says how to see them."""
    for action in parser._actions:
        if action.dest.split(".")[0] in _SECTIONS:
            action.help = argparse.SUPPRESS
    for group in parser._action_groups:
        if all(action.help is argparse.SUPPRESS for action in group._group_actions):
            group.title = group.description = None
    parser.epilog = (
        f"{HELP_ALL} lists every setting of the graph, the model, the optimizer and the trainer, such as "
        "--model.mixer, --optimizer.peak_lr and --trainer.max_minutes. graphslice compare tries several mixers, and "
        "with --tune several values of a setting."
    )


def build_config(options: Namespace) -> RunConfig:
    """The configuration that the options of :func:`add_config_options` or :func:`add_settings` make."""
    config = _base_config(options.preset, options.config, options.get("dataset"), options.get("init_from"))
    names = ["dataset", "root", "cache", *(name for group in _DATA_OPTIONS.values() for name in group)]
    given = {key: options[key] for key in names if options.get(key) is not None}
    sections: dict[str, Any] = {name: kind(**options[name].as_dict()) for name, kind in _SECTIONS.items()}
    if settings := sections["model"].mixer_settings:  # given one by one, --model.mixer_settings.groups 2 is a text
        typed = {key: parse_value(value) if isinstance(value, str) else value for key, value in settings.items()}
        sections["model"] = replace(sections["model"], mixer_settings=typed)
    for name, setting in SHORT_OPTIONS.items():
        section, key = setting.split(".")
        if options.get(name) is not None:
            sections[section] = replace(sections[section], **{key: options[name]})
    return replace(config, data=replace(config.data, **given), **sections)


_DATASET = "demo, pcqm4m, pcqm4mv2, a CSV, TSV or Parquet file, a folder of such, or a store (default: demo)"
_ROOT = "where OGB's data folders lie or are downloaded to (default: dataset)"


def add_data_options(parser: ArgumentParser) -> None:
    """Which labelled molecules."""
    parser.add_argument("--dataset", help=_DATASET.replace(" (default: demo)", ""))
    parser.add_argument("--root", help=_ROOT)
    add_smiles_column(parser)
    parser.add_argument(
        "--targets", help="columns of the labels, separated by commas: some of the model's targets, or as many others"
    )


def add_smiles_column(parser: Any, where: str = "default: that of the training, else found by its name") -> None:
    """Where a file that a model is asked about has its SMILES; ``parser`` may be a group of one."""
    parser.add_argument(*_option_strings("smiles_column"), help=f"column of the SMILES ({where})")


def add_features_option(parser: ArgumentParser) -> None:
    """Which descriptors."""
    parser.add_argument("--features", help=_DATA_OPTIONS["the table"]["features"])


def _base_config(preset: str | None, file: str | None, dataset: str | None, init_from: str | None = None) -> RunConfig:
    """The configuration before the flags: a preset, then the run that is started from, then a file."""
    from_file = read_yaml(Path(file)) if file is not None else {}
    check_keys(from_file, RunConfig)
    if init_from is not None:  # what is given last counts
        from_file = {name: value for name, value in from_file.items() if name != "init_from"}
    dataset = dataset or (from_file.get("data") or {}).get("dataset", "demo")
    usual = _DEFAULT_PRESETS.get(dataset, "small") if isinstance(dataset, str) else "small"
    merged = read_preset(preset or usual)
    if init_from is not None and init_from != FROM_SCRATCH:
        if preset is not None:
            raise InputError("--init-from brings its own model: leave out --preset")
        from graphslice.checkpoint import fine_tuning_preset

        merged = fine_tuning_preset(merged, init_from)
    config = RunConfig.from_dict(merge_sections(merged, from_file))
    return replace(config, init_from=FROM_SCRATCH) if init_from == FROM_SCRATCH else config


def _flat(config: RunConfig) -> dict[str, object]:
    sections = {name: values for name, values in config.to_dict().items() if isinstance(values, dict)}
    return {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}


def _given_value(arguments: list[str], *options: str) -> str | None:
    """The value given to an option, before the parser that depends on it is built."""
    value = None  # the last one counts, as for the parser
    for i, argument in enumerate(arguments):
        if argument in options and i + 1 < len(arguments):
            value = arguments[i + 1]
        elif argument.split("=", 1)[0] in options and "=" in argument:
            value = argument.split("=", 1)[1]
    return value


def add_engine_options(parser: ArgumentParser) -> None:
    """On what the work is done."""
    parser.add_argument("--workers", type=int | None, help="processes; every core by default")
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="local (default), or ray: on a cluster (pip install graphslice[ray])",
    )


def add_model(parser: ArgumentParser) -> None:
    """The argument that :func:`load_model` reads."""
    shipped = f", or a model that comes with the package: {', '.join(MODELS)}" if MODELS else ""
    parser.add_argument("model", help=f"a run folder, a checkpoint{shipped}")


def table_path(molecules: Sequence[str]) -> Path | None:
    """The file or folder that the molecules of a command are in; None where they are SMILES.

    Raises:
        InputError: for a file among several molecules.
    """
    from graphslice.data.tables import is_table_name

    if len(molecules) == 1:
        name = molecules[0]
        return Path(name) if is_table_name(name) or os.path.exists(name) else None
    if files := [name for name in molecules if is_table_name(name) or os.path.isfile(name)]:
        raise InputError(f"{files[0]} stands among other molecules: give one file, or a folder of files, or SMILES")
    return None


def load_model(options: Namespace) -> Predictor:
    """The model that a command names, on the device that it names."""
    from graphslice.inference import load

    return load(options.model, parse_device(options.device))


def parse_device(name: str | None) -> torch.device | None:
    """The device of an option; None where it is not given; raises InputError for one that this machine lacks."""
    import torch

    if not name:
        return None
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
        return device
    except (RuntimeError, AssertionError):
        raise InputError(f"this machine has no device {name!r}") from None
