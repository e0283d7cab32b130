"""Cache of featurized datasets."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from graphslice.chem.descriptors import feature_column_names
from graphslice.config import GraphConfig
from graphslice.data.featurize.build import build_store
from graphslice.data.store import GraphStore, StoreInfo
from graphslice.errors import InputError

if TYPE_CHECKING:
    from graphslice.data.dataset import LabelledDataset


def default_cache() -> Path:
    """Return the cache directory: ``$GRAPHSLICE_CACHE``, else one in the user's cache directory.

    If that is not writable, it is a directory for temporary files.
    """
    if directory := os.environ.get("GRAPHSLICE_CACHE"):
        return Path(directory)
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "graphslice"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.gettempdir()) / f"graphslice-cache-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def cached_store(
    dataset: LabelledDataset,
    config: GraphConfig,
    cache: Path | None = None,
    progress: Callable[[int], None] | None = None,
    descriptors: Sequence[str] = (),
) -> GraphStore:
    """Return the store of a dataset, from the cache if possible; featurize it on first use.

    Args:
        dataset: a dataset of SMILES, of graphs, or of a store, which is returned as it is if it has the descriptors.
        config: settings of the graphs.
        cache: cache directory; by default :func:`default_cache`.
        progress: called with the number of newly finished rows.
        descriptors: names of the descriptors that the store must have.

    Returns:
        A store with one row for every row of the dataset.

    Raises:
        InputError: if the cache is not writable, the dataset is a store with other graph settings or without a
            descriptor column, or descriptors are requested for a dataset of graphs.
    """
    if dataset.store is not None:
        check_graphs(dataset.store, config)
        dataset.store.check_descriptors(feature_column_names(descriptors))
        if set(descriptors) <= set(dataset.store.info.descriptors):
            return dataset.store
    if dataset.graphs is not None:
        if descriptors:
            raise InputError(
                f"descriptors such as {descriptors[0]} are computed from SMILES or read from columns of a table, and "
                "graphs have neither: leave out data.features"
            )
        return GraphStore.from_graphs(dataset.graphs)
    info = StoreInfo(
        safe_file_name(Path(dataset.name).name),  # independent of the directory of the file
        dataset.fingerprint(),
        tuple(dataset.target_names),
        config.atom_order,
        config.max_atoms,
        descriptors=tuple(descriptors),
        level=dataset.level,
    )
    key = hashlib.sha256(repr((info.fingerprint, info.to_metadata())).encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "_", Path(dataset.name).name)[:40]
    path = (cache or default_cache()) / f"{name}-{key}.arrow"
    store = _cached(path, info)
    return build_store(path, dataset.chunks(), info, rows=len(dataset), progress=progress) if store is None else store


def safe_file_name(name: str) -> str:
    """Replace bytes of a file name that are not valid text by question marks."""
    return name.encode(errors="replace").decode()


def _cached(path: Path, info: StoreInfo) -> GraphStore | None:
    if not path.exists():
        return None
    try:
        store = GraphStore.open(path)
    except InputError as error:
        print(f"{str(error).split(':')[0]}: recreating it", file=sys.stderr)
        return None
    return store if store.info == info else None


def check_graphs(store: GraphStore, config: GraphConfig) -> None:
    """Raise :class:`InputError` if the graph settings of a store differ from those of a model."""
    info = store.info
    if (info.atom_order, info.max_atoms) != (config.atom_order, config.max_atoms):
        raise InputError(
            f"{store.name} has atoms in {info.atom_order} order and molecules of at most {info.max_atoms} atoms; "
            f"the model requires {config.atom_order} order and {config.max_atoms} atoms: featurize with "
            f"--graph.atom_order {config.atom_order} --graph.max_atoms {config.max_atoms}"
        )
