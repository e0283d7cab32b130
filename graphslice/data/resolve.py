"""What a configuration leaves to the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from graphslice.chem.descriptors import descriptor_width
from graphslice.config import MOLECULE, RunConfig, joined_names
from graphslice.data.source import Source
from graphslice.data.sources import from_any_folder
from graphslice.errors import InputError
from graphslice.tasks import network_outputs
from graphslice.trees.beside import KINDS

# Of more labels trees take longer than they help.
_MOST_TREE_LABELS = 20_000


def check_sites(config: RunConfig) -> None:
    """Raise :class:`InputError` for what a run of targets of atoms or bonds cannot have."""
    data, trainer = config.data, config.trainer
    asked = {
        "--features": bool(data.descriptors),
        "--transform": data.transform not in (None, "none"),
        "--duplicates merge": data.duplicates == "merge",
        "--baselines on": trainer.baselines == "on",
    }
    for option, there in asked.items():
        if there and data.level != MOLECULE:
            raise InputError(f"{option} goes with targets of molecules: leave it out with --level {data.level}")


def resolved(config: RunConfig, source: Source) -> RunConfig:
    """The configuration with what the data decides, and with paths that hold from any folder."""
    data = config.data
    if source.name == "pyg":
        data = replace(data, dataset="pyg")
        if data.valid_file or data.test_file:
            raise InputError("valid_file and test_file go with tables of labelled molecules, not with PyG data")
    else:
        valid_file, test_file = (file and from_any_folder(file) for file in (data.valid_file, data.test_file))
        data = replace(data, dataset=from_any_folder(data.dataset), valid_file=valid_file, test_file=test_file)
    if source.is_pcqm4m:
        data = replace(data, root=str(Path(data.root).resolve()))
    data = replace(data, targets=joined_names(source.learned_names), fingerprint=source.fingerprint())
    data = replace(data, features=joined_names(data.descriptors) or None)
    trainer = replace(config.trainer, baselines=_baselines(config.trainer.baselines, source))
    model = replace(
        config.model,
        tasks=network_outputs(source.tasks, trainer.loss),
        descriptors=descriptor_width(data.descriptors),
        level=source.level,
    )
    return replace(config, data=data, model=model, trainer=trainer)


def _baselines(asked: str, source: Source) -> str:
    """Whether trees are trained beside the network: on or off.

    Raises:
        InputError: if they are asked for where there is nothing that they could read.
    """
    if source.level != MOLECULE:
        return "off"
    readable = bool(source.smiles) or (source.store is not None and set(KINDS) <= set(source.store.info.descriptors))
    if asked == "on" and not readable:
        raise InputError(
            f"{source.name} has no SMILES, of which the forest and the boosting are made: leave --baselines out; a "
            "store has what they read when it was featurized with --features " + ",".join(KINDS)
        )
    labels = int((~np.isnan(source.targets)).sum())
    return asked if asked != "auto" else "on" if readable and labels <= _MOST_TREE_LABELS else "off"
