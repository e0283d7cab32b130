"""Loading of PCQM4M-LSC with OGB's loaders, without their prompts, version check and calls of exit().

When imported, OGB 1.3.6 looks up its newest version on the network. It asks on stdin before a large download and when a
folder lacks its release file, calls exit(-1) if the user declines, and unpickles its split with the defaults of
``torch.load``. The table is loaded by OGB. The split is unpickled here without running code: only the shapes, types and
bytes of NumPy arrays are used.
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

from graphslice.data.splits import Splits
from graphslice.errors import InputError, first_line

#: Folder of each dataset below the root.
OGB_FOLDERS = {"pcqm4m": "pcqm4m_kddcup2021", "pcqm4mv2": "pcqm4m-v2"}
OGB_TARGET = "homolumogap"


def import_ogb_lsc():
    """Import ``ogb.lsc`` without OGB's version check on the network."""
    if "ogb" not in sys.modules:
        known = sys.modules.get("outdated")
        sys.modules["outdated"] = None  # marks it as not installed, so that OGB skips its version check
        try:
            import ogb
        finally:
            del sys.modules["outdated"]
            if known is not None:
                sys.modules["outdated"] = known
    import ogb.lsc

    return ogb.lsc


def load_pcqm4m(name: str, root: str | Path) -> tuple[list[str], np.ndarray, Splits]:
    """Load SMILES, HOMO-LUMO gaps and OGB's splits of PCQM4M-LSC v1 (``pcqm4m``) or v2 (``pcqm4mv2``).

    An existing folder is read without network access; otherwise OGB downloads it to ``root``.

    Args:
        name: ``pcqm4m`` or ``pcqm4mv2``.
        root: folder of the datasets.

    Returns:
        SMILES; HOMO-LUMO gaps in eV, float64, nan where OGB does not publish them; int64 rows of each split
        (v1: train, valid, test; v2: train, valid, test-dev, test-challenge).

    Raises:
        InputError: if the folder is damaged, is missing and cannot be downloaded, or is itself given as ``root``.
    """
    folder = Path(root) / OGB_FOLDERS[name]
    if Path(root).resolve().name == folder.name:  # OGB would download the dataset into its own folder
        raise InputError(f"--root {root} is the folder of {name} itself: give the folder that holds it")
    if folder.is_dir() and not (folder / "RELEASE_v1.txt").exists():
        raise InputError(
            f"{folder} lacks OGB's RELEASE_v1.txt, so it is not the current release: "
            "move it away so that it is downloaded again"
        )
    lsc = import_ogb_lsc()
    dataset_class = {"pcqm4m": lsc.PCQM4MDataset, "pcqm4mv2": lsc.PCQM4Mv2Dataset}[name]
    location = f"{folder} (set with --root)"
    table = folder / "raw" / "data.csv.gz"
    if not table.exists():
        print(f"downloading {name} to {folder}", file=sys.stderr)
    # Naming the dataset implies consent to its download.
    consent = mock.patch.object(sys.modules[dataset_class.__module__], "decide_download", lambda url: True)
    try:
        with consent, contextlib.redirect_stdout(io.StringIO()):
            dataset = dataset_class(root=str(root), only_smiles=True)
            gaps = np.asarray(dataset.labels, dtype=np.float64)
    except zipfile.BadZipFile:
        archive = Path(root) / f"{OGB_FOLDERS[name]}.zip"
        archive.unlink(missing_ok=True)  # else OGB would reuse the damaged archive
        raise InputError(f"the downloaded archive of {name} was damaged and is removed: try again") from None
    except (OSError, EOFError, RuntimeError, KeyError, ValueError, zlib.error) as error:
        if table.exists():
            raise InputError(
                f"{location} is damaged: its raw/data.csv.gz cannot be read ({first_line(error)})"
            ) from None
        raise InputError(
            f"{name} is not in {location} and cannot be downloaded ({first_line(error)}): "
            "connect to the network, or put OGB's folder there"
        ) from None
    if np.isinf(gaps).any():
        raise InputError(f"{location} is damaged: its raw/data.csv.gz has infinite labels")
    try:
        splits = _read_split(folder / "split_dict.pt", len(gaps), name)
    except Exception as error:  # a damaged file fails in many ways
        raise InputError(f"{location} is damaged: its split_dict.pt cannot be read ({first_line(error)})") from None
    return [text if isinstance(text, str) else "" for text in dataset.graphs], gaps, splits


def _read_split(path: Path, molecules: int, name: str) -> Splits:
    """Read the rows of each split, stored as NumPy arrays of integers by name; raises ValueError for other contents."""
    import torch

    from graphslice.torch_io import load_weights

    stubs: list = [(_Dtype, "numpy.dtype"), (_Array, "numpy.ndarray")]
    stubs += [(_reconstruct, f"{core}.multiarray._reconstruct") for core in ("numpy.core", "numpy._core")]
    with torch.serialization.safe_globals(stubs):
        splits = {name: array.values for name, array in load_weights(path).items()}
    rows = np.concatenate(list(splits.values()))
    known = {"pcqm4m": {"train", "valid", "test"}, "pcqm4mv2": {"train", "valid", "test-dev", "test-challenge"}}[name]
    if not {"train", "valid"} <= splits.keys() <= known:
        raise ValueError(f"it has other splits than OGB's: {', '.join(splits)}")
    if len(np.unique(rows)) < len(rows) or rows.min() < 0 or rows.max() >= molecules:
        raise ValueError("it names a row twice, or a row that the data do not have")
    return splits


class _Dtype:
    """Placeholder for a NumPy dtype in a pickle."""

    def __init__(self, code: object, *_: object) -> None:
        if code not in ("i4", "i8", "u4", "u8"):
            raise ValueError("a split is not a list of rows")
        self.code = f"<{code}"

    def __setstate__(self, state: tuple) -> None:
        """Set the byte order from the state ``(version, order, ...)`` and ignore the rest."""
        self.code = {"<": "<", ">": ">", "=": "="}[state[1]] + self.code[1:]


class _Array:
    """Placeholder for a NumPy array in a pickle: row numbers, decoded from its bytes."""

    def __init__(self) -> None:
        self.values = np.empty(0, np.int64)

    def __setstate__(self, state: tuple) -> None:
        """Decode the state ``(version, shape, type, order, bytes)``."""
        _, shape, dtype, _, content = state
        # In pickle protocol 2, the only one that PyTorch reads, bytes are stored as text.
        content = content.encode("latin-1") if isinstance(content, str) else bytes(content)
        self.values = np.frombuffer(content, dtype.code).astype(np.int64)
        if tuple(shape) != self.values.shape:
            raise ValueError("a split is not a list of rows")


def _reconstruct(*_: object) -> _Array:
    return _Array()
