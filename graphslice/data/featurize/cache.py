"""Featurized molecules kept for the next time."""

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

from graphslice.config import GraphConfig
from graphslice.data.featurize.build import build_store
from graphslice.data.store import GraphStore, StoreInfo
from graphslice.errors import InputError

if TYPE_CHECKING:
    from graphslice.data.labelled_dataset import LabelledDataset


def default_cache() -> Path:
    """Where featurized molecules are kept: ``$GRAPHSLICE_CACHE``, else the user's cache folder."""
    if given := os.environ.get("GRAPHSLICE_CACHE"):
        return Path(given)
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
    """The molecules of a source, row by row: from the cache, where they are put when first asked for.

    Args:
        source: of SMILES, of graphs, or a store itself.
        config: how molecules become graphs.
        cache: folder; :func:`default_cache` when not given.
        progress: called with the number of rows done, from time to time.
        descriptors: names of those that the store shall have.

    Raises:
        InputError: if the cache cannot be written, the source is a store of other graphs or without the descriptors, or
            one of graphs, which have none.
    """
    if dataset.store is not None:
        check_graphs(dataset.store, config)
        dataset.store.check_descriptors(descriptors)
        return dataset.store
    if dataset.graphs is not None:
        if descriptors:
            raise InputError(
                f"descriptors such as {descriptors[0]} are made of SMILES and of columns of tables, and graphs have "
                "neither: leave out data.features"
            )
        return GraphStore.from_graphs(dataset.graphs)
    info = StoreInfo(
        safe_file_name(Path(dataset.name).name),  # the same file is the same wherever it is named from
        dataset.fingerprint(),
        tuple(dataset.target_names),
        config.atom_order,
        config.max_atoms,
        descriptors=tuple(descriptors),
    )
    key = hashlib.sha256(repr((info.fingerprint, info.to_metadata())).encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "_", Path(dataset.name).name)[:40]
    path = (cache or default_cache()) / f"{name}-{key}.arrow"
    found = _cached(path, info)
    return build_store(path, dataset.chunks(), info, rows=len(dataset), progress=progress) if found is None else found


def safe_file_name(name: str) -> str:
    """The name of a file, of which some bytes may be no text."""
    return name.encode(errors="replace").decode()


def _cached(path: Path, info: StoreInfo) -> GraphStore | None:
    if not path.exists():
        return None
    try:
        store = GraphStore.open(path)
    except InputError as error:
        print(f"{str(error).split(':')[0]}: making it again", file=sys.stderr)
        return None
    return store if store.info == info else None


def check_graphs(store: GraphStore, config: GraphConfig) -> None:
    """Raise :class:`InputError` if a store's molecules were made otherwise than a model wants them."""
    info = store.info
    if (info.atom_order, info.max_atoms) != (config.atom_order, config.max_atoms):
        raise InputError(
            f"{store.name} has atoms in {info.atom_order} order and molecules of at most {info.max_atoms} atoms; "
            f"the model wants {config.atom_order} and {config.max_atoms}: featurize with "
            f"--graph.atom_order {config.atom_order} --graph.max_atoms {config.max_atoms}"
        )
