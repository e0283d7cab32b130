"""Completion of a run configuration with the settings that depend on the dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from graphslice.chem.descriptors import descriptor_width
from graphslice.config import MOLECULE, RunConfig, join_names
from graphslice.data.dataset import LabelledDataset
from graphslice.data.dataset_loaders import absolute_dataset
from graphslice.errors import InputError
from graphslice.tasks import num_network_outputs

# Up to this many labels, tree ensembles are trained by default; with more, they take longer than they help.
_MOST_TREE_LABELS = 20_000


def check_atom_bond_options(config: RunConfig) -> None:
    """Raise :class:`InputError` for options that are not supported for atom- and bond-level targets."""
    data, trainer = config.data, config.trainer
    options = {
        "--features": bool(data.descriptors),
        "--transform": data.transform not in (None, "none"),
        "--duplicates merge": data.duplicates == "merge",
        "--baselines on": trainer.baselines == "on",
    }
    for option, is_set in options.items():
        if is_set and data.level != MOLECULE:
            raise InputError(f"{option} needs molecule-level targets: leave it out with --level {data.level}")


def finalize_config(config: RunConfig, dataset: LabelledDataset) -> RunConfig:
    """Fill in the settings that depend on the dataset, and make paths absolute.

    Args:
        config: configuration of the user.
        dataset: its labelled molecules.

    Raises:
        InputError: if the configuration does not fit the dataset.
    """
    data = config.data
    if dataset.name == "pyg":
        data = replace(data, dataset="pyg")
        if data.valid_file or data.test_file:
            raise InputError("valid_file and test_file need tables of labelled molecules, not PyG data")
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


def _finalize_baselines(setting: str, dataset: LabelledDataset) -> str:
    """Decide whether tree ensembles are trained with the network: on or off.

    Raises:
        InputError: if they are requested but the dataset has neither SMILES nor their descriptors.
    """
    if dataset.level != MOLECULE:
        return "off"
    readable = len(dataset.smiles) > 0
    if setting == "on" and not readable:
        raise InputError(
            f"{dataset.name} has no SMILES, which the descriptors of random forest and gradient boosting are computed "
            "from: leave out --baselines"
        )
    labels = int((~np.isnan(dataset.targets)).sum())
    return setting if setting != "auto" else "on" if readable and labels <= _MOST_TREE_LABELS else "off"
