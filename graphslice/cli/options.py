"""Options that several commands have, and what they make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jsonargparse import ArgumentParser, Namespace

from graphslice.config import (
    PRESETS,
    GraphConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TrainerConfig,
    check_keys,
    read_preset,
    read_yaml,
)
from graphslice.errors import InputError

if TYPE_CHECKING:
    import torch

    from graphslice.inference import Predictor

_SECTIONS = {"graph": GraphConfig, "model": ModelConfig, "optimizer": OptimizerConfig, "trainer": TrainerConfig}
_DATA_FLAGS = ("dataset", "root", "smiles_column", "targets", "task", "transform", "split", "seed", "cache")
_DEFAULT_PRESETS = {"pcqm4m": "pcqm4m-slice", "pcqm4mv2": "pcqm4m-slice"}


def add_config_options(parser: ArgumentParser, arguments: list[str]) -> None:
    """All that makes a :class:`RunConfig`: a preset, a file and flags."""
    parser.add_argument("--preset", help=f"published or ready-made settings: {', '.join(PRESETS)}")
    parser.add_argument("--config", help="a YAML file with the same sections as config.yaml of a run folder")
    add_data_options(parser)
    parser.add_argument(
        "--split", help="random, scaffold or the name of a column; the column 'split' where there is one"
    )
    parser.add_argument("--task", help="regression, binary or multiclass, or TARGET=binary,... (found from the values)")
    parser.add_argument("--transform", help="log, or TARGET=log,...: learn logarithms, and predict what they are of")
    parser.add_argument("--seed", type=int | None, help="seed of the random split (default: 0)")
    parser.add_argument("--cache", help="folder that keeps featurized molecules (default: the user's cache folder)")
    for name, kind in _SECTIONS.items():
        parser.add_argument(f"--{name}", type=kind)
    names = (("--preset",), ("--config",), ("--dataset",), ("--init-from", "--init_from"))
    base = _base_config(*(_value_of(arguments, *options) for options in names))
    parser.set_defaults({key: value for key, value in _flat(base).items() if key.split(".")[0] in _SECTIONS})


def config_of(options: Namespace) -> RunConfig:
    """The configuration that the options of :func:`add_config_options` make."""
    config = _base_config(options.preset, options.config, options.dataset, options.get("init_from"))
    given = {key: options[key] for key in _DATA_FLAGS if options[key] is not None}
    sections: dict[str, Any] = {name: kind(**options[name].as_dict()) for name, kind in _SECTIONS.items()}
    if settings := sections["model"].mixer_settings:  # given one by one, --model.mixer_settings.groups 2 is a text
        typed = {key: yaml.safe_load(value) if isinstance(value, str) else value for key, value in settings.items()}
        sections["model"] = replace(sections["model"], mixer_settings=typed)
    return replace(config, data=replace(config.data, **given), **sections)


def add_data_options(parser: ArgumentParser) -> None:
    """Which labelled molecules."""
    parser.add_argument(
        "--dataset", help="demo, pcqm4m, pcqm4mv2, a CSV, TSV or Parquet file, a folder of such, or a store"
    )
    parser.add_argument("--root", help="where OGB's data folders lie or are downloaded to (default: dataset)")
    parser.add_argument("--smiles_column", "--smiles-column", help="column of the SMILES; found by its name")
    parser.add_argument("--targets", help="columns to predict, separated by commas")


def _base_config(preset: str | None, file: str | None, dataset: str | None, init_from: str | None = None) -> RunConfig:
    """The configuration before the flags: a preset, then the run that is started from, then a file."""
    from_file = read_yaml(Path(file)) if file is not None else {}
    check_keys(from_file, RunConfig)
    dataset = dataset or (from_file.get("data") or {}).get("dataset", "demo")
    merged = read_preset(preset or _DEFAULT_PRESETS.get(dataset, "small"))
    if init_from is not None:
        if preset is not None:
            raise InputError("--init-from brings its own model: leave out --preset")
        merged = _continued(merged, init_from)
    for section, values in from_file.items():
        merged[section] = {**merged.get(section, {}), **values} if isinstance(values, dict) else values
    return RunConfig.from_dict(merged)


def _continued(preset: dict[str, Any], init_from: str) -> dict[str, Any]:
    from graphslice.checkpoint import read_checkpoint

    origin = read_checkpoint(init_from).config
    return RunConfig.from_dict(preset).continued_from(origin, init_from).to_dict()


def _flat(config: RunConfig) -> dict[str, object]:
    sections = {name: values for name, values in config.to_dict().items() if isinstance(values, dict)}
    return {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}


def _value_of(arguments: list[str], *options: str) -> str | None:
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
        "--engine", choices=("local", "ray"), default="local", help="ray: on a cluster (pip install graphslice[ray])"
    )


def load_model(options: Namespace) -> Predictor:
    """The model that a command names, on the device that it names."""
    from graphslice.inference import load

    return load(options.model, device_of(options.device))


def device_of(name: str | None) -> torch.device | None:
    """The device of an option; None where it is not given; raises InputError for one that this machine lacks."""
    import torch

    if not name:
        return None
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        return device
    except (RuntimeError, AssertionError):
        raise InputError(f"this machine has no device {name!r}") from None
