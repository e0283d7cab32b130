"""Labelled datasets of data frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from graphslice.config import MOLECULE, DataConfig
from graphslice.data.dataset_loaders import dataset_from_chunks
from graphslice.data.frames import NAME, as_table, reject_molecules
from graphslice.data.labelled_dataset import LabelledDataset
from graphslice.data.labels import find_columns
from graphslice.data.splits import SPLIT_METHODS
from graphslice.errors import InputError
from graphslice.tasks import Task


def dataset_from_frame(frame: Any, config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """Load the labelled molecules of a data frame, with the same result as for a file of the same cells.

    Args:
        frame: see :func:`~graphslice.data.frames.is_frame`.
        config: data settings of the user.
        tasks: see :func:`~graphslice.data.dataset_loaders.load_dataset`.

    Returns:
        The dataset; its ``table`` has the used columns, and can be saved as a file that gives the same dataset.

    Raises:
        InputError: as for a table; also if the frame has no rows, or separate files of splits are configured.
    """
    if config.valid_file or config.test_file:
        raise InputError("valid_file and test_file need a file as dataset: give the data frame a column split instead")
    if config.level != MOLECULE:
        reject_molecules(frame)
    table = as_table(frame)
    if not len(table):
        raise InputError(f"{NAME} has no rows")
    columns = find_columns(table.column_names, config, NAME, SPLIT_METHODS)
    dataset = dataset_from_chunks([table], columns, config, NAME, tasks)
    used = [columns.smiles, *dataset.target_names, *([columns.split] if columns.split else []), *columns.descriptors]
    return replace(dataset, table=table.select(list(dict.fromkeys(used))))
