"""What a configuration leaves to the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from graphslice.chem.descriptors import descriptor_width
from graphslice.config import MOLECULE, RunConfig, join_names
from graphslice.data.dataset_loaders import absolute_dataset
from graphslice.data.labelled_dataset import LabelledDataset
from graphslice.errors import InputError
from graphslice.tasks import num_network_outputs
from graphslice.trees.stacking import TREE_DESCRIPTORS

# Of more labels trees take longer than they help.
_MOST_TREE_LABELS = 20_000


def check_atom_bond_options(config: RunConfig) -> None:
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


def finalize_config(config: RunConfig, dataset: LabelledDataset) -> RunConfig:
    """The configuration with what the data decides, and with paths that hold from any folder."""
    data = config.data
    if dataset.name == "pyg":
        data = replace(data, dataset="pyg")
        if data.valid_file or data.test_file:
            raise InputError("valid_file and test_file go with tables of labelled molecules, not with PyG data")
    else:
        valid_file, test_file = (file and absolute_dataset(file) for file in (data.valid_file, data.test_file))
        data = replace(data, dataset=absolute_dataset(data.dataset), valid_file=valid_file, test_file=test_file)
    if dataset.is_pcqm4m:
        data = replace(data, root=str(Path(data.root).resolve()))
    data = replace(data, targets=join_names(dataset.all_target_names), fingerprint=dataset.fingerprint())
    data = replace(data, features=join_names(data.descriptors) or None)
    trainer = replace(config.trainer, baselines=_finalize_baselines(config.trainer.baselines, dataset))
    model = replace(
        config.model,
        tasks=num_network_outputs(dataset.tasks, trainer.loss),
        descriptors=descriptor_width(data.descriptors),
        level=dataset.level,
    )
    return replace(config, data=data, model=model, trainer=trainer)


def _finalize_baselines(asked: str, dataset: LabelledDataset) -> str:
    """Whether trees are trained beside the network: on or off.

    Raises:
        InputError: if they are asked for where there is nothing that they could read.
    """
    if dataset.level != MOLECULE:
        return "off"
    readable = bool(dataset.smiles) or (
        dataset.store is not None and set(TREE_DESCRIPTORS) <= set(dataset.store.info.descriptors)
    )
    if asked == "on" and not readable:
        raise InputError(
            f"{dataset.name} has no SMILES, of which the forest and the boosting are made: leave --baselines out; a "
            "store has what they read when it was featurized with --features " + ",".join(TREE_DESCRIPTORS)
        )
    labels = int((~np.isnan(dataset.targets)).sum())
    return asked if asked != "auto" else "on" if readable and labels <= _MOST_TREE_LABELS else "off"
