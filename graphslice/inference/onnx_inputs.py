"""Inputs of an exported network (``graphslice export``): the arrays of a batch, made of SMILES without torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from graphslice.config import MOLECULE, RunConfig
from graphslice.data.batches import batch_arrays
from graphslice.data.labels import pointers
from graphslice.errors import InputError
from graphslice.inference.inputs import Columns, to_valid_store

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from graphslice.inference.predictor import Molecules

#: Key of the configuration in the metadata of an exported file, as JSON.
CONFIG_KEY = "graphslice.config"


def onnx_inputs(
    session: InferenceSession, molecules: Molecules, *, columns: Columns | None = None
) -> dict[str, np.ndarray]:
    """Featurize molecules for a network that ``graphslice export`` wrote.

    Args:
        session: the file, opened by ``onnxruntime.InferenceSession``; ``session.run(None, inputs)`` predicts.
        molecules, columns: as in :meth:`Predictor.predict`.

    Returns:
        The inputs of the network by name: one batch of all molecules, padded to the largest. They are the tensors of a
        :class:`~graphslice.batch.GraphBatch`, with ``path_types`` in int32; atoms or bonds that are predicted are in
        the order of the SMILES.

    Raises:
        InputError: if the file is not one of GraphSlice, or a molecule is invalid (the message names its row).
    """
    metadata = session.get_modelmeta().custom_metadata_map
    if CONFIG_KEY not in metadata:
        raise InputError("the ONNX file holds no settings of GraphSlice: write it with graphslice export")
    return network_inputs(RunConfig.from_dict(json.loads(metadata[CONFIG_KEY])), molecules, columns)


def network_inputs(config: RunConfig, molecules: Any, columns: Columns | None = None) -> dict[str, np.ndarray]:
    """Featurize molecules for the networks of a configuration, as :func:`onnx_inputs`."""
    store = to_valid_store(molecules, columns, config)
    rows, level = np.arange(len(store)), config.model.level
    arrays: dict[str, np.ndarray] = batch_arrays(store, rows, **config.collate_settings)
    del arrays["rows"]
    arrays["path_types"] = arrays["path_types"].astype(np.int32)
    if level != MOLECULE:
        counts = store.atom_bond_counts(level, rows)
        first = np.repeat(pointers(counts)[:-1], counts)
        arrays["atom_bond_index"] = arrays["atom_bond_index"][first + store.order(rows)[:, 0]]
    return arrays
