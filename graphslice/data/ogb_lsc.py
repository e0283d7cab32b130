"""OGB's PCQM4M-LSC loaders, without their prompts, their network look-ups and their exit().

OGB 1.3.6 looks up its newest version on the network when imported, asks on stdin before a large
download and when a folder lacks its release file, calls exit(-1) when refused, and unpickles its
split with a ``torch.load`` that torch >= 2.6 refuses. The loaders themselves are OGB's.
"""

from __future__ import annotations

import contextlib
import io
import sys
import zipfile
import zlib
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from graphslice.data.splits import SPLITS, Splits
from graphslice.errors import InputError

#: The folder below the root of each data set.
OGB_FOLDERS = {"pcqm4m": "pcqm4m_kddcup2021", "pcqm4mv2": "pcqm4m-v2"}
OGB_TARGET = "homolumogap"


def import_ogb_lsc():
    """``ogb.lsc``, imported without a look at the network."""
    if "ogb" not in sys.modules:
        known = sys.modules.get("outdated")
        sys.modules["outdated"] = None  # "not installed": OGB then does not ask for its newest version
        try:
            import ogb
        finally:
            del sys.modules["outdated"]
            if known is not None:
                sys.modules["outdated"] = known
    import ogb.lsc

    return ogb.lsc


def load_pcqm4m(name: str, root: str | Path) -> tuple[list[str], np.ndarray, Splits]:
    """SMILES, gaps and OGB's own splits of PCQM4M-LSC v1 (``pcqm4m``) or v2 (``pcqm4mv2``).

    A folder already there is read without the network; otherwise OGB downloads it to ``root``.

    Returns:
        SMILES; HOMO-LUMO gaps in eV, float64, nan where OGB keeps the answer to itself; and int64
        indices for each split (v1: train, valid, test; v2: train, valid, test-dev, test-challenge).

    Raises:
        InputError: if the folder is damaged, or absent and cannot be downloaded.
    """
    folder = Path(root) / OGB_FOLDERS[name]
    if folder.is_dir() and not (folder / "RELEASE_v1.txt").exists():
        raise InputError(
            f"{folder} lacks OGB's RELEASE_v1.txt, so it is not the current release: "
            "move it away to have it downloaded anew"
        )
    lsc = import_ogb_lsc()
    dataset_class = {"pcqm4m": lsc.PCQM4MDataset, "pcqm4mv2": lsc.PCQM4Mv2Dataset}[name]
    here = f"{folder} (choose where with --root)"
    table = folder / "raw" / "data.csv.gz"
    new_root = not Path(root).exists()
    if not table.exists():
        print(f"downloading {name} to {folder}", file=sys.stderr)
    try:
        with _without_prompts(dataset_class), contextlib.redirect_stdout(io.StringIO()):
            dataset = dataset_class(root=str(root), only_smiles=True)
    except zipfile.BadZipFile:
        archive = Path(root) / f"{OGB_FOLDERS[name]}.zip"
        archive.unlink(missing_ok=True)  # OGB would take the damaged archive for a whole one for ever
        raise InputError(f"the downloaded archive of {name} was damaged and is removed: try again") from None
    except (OSError, EOFError, RuntimeError, KeyError, ValueError, zlib.error) as error:
        if table.exists():
            raise InputError(f"{here} is damaged: its raw/data.csv.gz cannot be read ({_first_line(error)})") from None
        if new_root:
            with contextlib.suppress(OSError):
                Path(root).rmdir()
        raise InputError(
            f"{name} is not in {here} and cannot be downloaded ({_first_line(error)}): "
            "connect to the network, or put OGB's folder there"
        ) from None
    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            splits = {name: np.asarray(rows, dtype=np.int64) for name, rows in dataset.get_idx_split().items()}
    except Exception as error:  # a damaged file fails in many ways
        raise InputError(f"{here} is damaged: its split_dict.pt cannot be read ({_first_line(error)})") from None
    try:
        gaps = np.asarray(dataset.labels, dtype=np.float64)
    except ValueError as error:
        raise InputError(f"{here} is damaged: a gap is no number ({_first_line(error)})") from None
    of_a_split = np.concatenate(list(splits.values())) if splits else np.empty(0)
    if not {"train", "valid"} <= splits.keys() <= {*SPLITS} or of_a_split.ndim != 1:
        raise InputError(f"{here} is damaged: its split_dict.pt has other splits than OGB's: {', '.join(splits)}")
    if len(np.unique(of_a_split)) < len(of_a_split):
        raise InputError(f"{here} is damaged: its split_dict.pt names a row twice")
    if any(len(rows) and (rows.min() < 0 or rows.max() >= len(gaps)) for rows in splits.values()):
        raise InputError(f"{here} is damaged: its split names rows that its data does not have")
    return [text if isinstance(text, str) else "" for text in dataset.graphs], gaps, splits


@contextlib.contextmanager
def _without_prompts(dataset_class):
    """Let OGB download without asking: naming the data set is consent enough."""
    module = sys.modules[dataset_class.__module__]
    with mock.patch.object(module, "decide_download", lambda url: True):
        yield


def _numpy_globals() -> list:
    """What a pickled numpy integer array may name, and nothing else."""
    from numpy._core import multiarray, numeric

    return [
        np.ndarray,
        np.dtype,
        type(np.dtype(np.int64)),
        type(np.dtype(np.int32)),
        (multiarray._reconstruct, "numpy.core.multiarray._reconstruct"),
        (multiarray._reconstruct, "numpy._core.multiarray._reconstruct"),
        (numeric._frombuffer, "numpy.core.numeric._frombuffer"),  # type: ignore[attr-defined]
        (numeric._frombuffer, "numpy._core.numeric._frombuffer"),  # type: ignore[attr-defined]
    ]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
