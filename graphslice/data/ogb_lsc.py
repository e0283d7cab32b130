"""Loading of PCQM4M-LSC with OGB's loaders, without their prompts, version check and calls of exit().

When imported, OGB 1.3.6 looks up its newest version on the network. It asks on stdin before a large download and when a
folder lacks its release file, calls exit(-1) if the user declines, and unpickles its split with the defaults of
``torch.load``. The table is loaded by OGB. The split is unpickled here without running code: only the shapes, types and
bytes of NumPy arrays are used.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from filelock import FileLock

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


def table_path(name: str, root: str | Path) -> Path:
    """Return the path of OGB's table of a dataset of :data:`OGB_FOLDERS`."""
    return Path(root) / OGB_FOLDERS[name] / "raw" / "data.csv.gz"


def load_pcqm4m(name: str, root: str | Path) -> tuple[list[str], np.ndarray, Splits]:
    """Load SMILES, HOMO-LUMO gaps and OGB's splits of PCQM4M-LSC v1 (``pcqm4m``) or v2 (``pcqm4mv2``).

    An existing folder is read without network access; otherwise OGB downloads it to ``root``. Several processes may
    need it at once: one downloads, and the others wait.

    Args:
        name: ``pcqm4m`` or ``pcqm4mv2``.
        root: folder of the datasets.

    Returns:
        SMILES; HOMO-LUMO gaps in eV, float64, nan where OGB does not publish them; int64 rows of each split
        (v1: train, valid, test; v2: train, valid, test-dev, test-challenge).

    Raises:
        InputError: if the folder is damaged, is missing and cannot be downloaded, or is itself given as ``root``.
    """
    folder, table = Path(root) / OGB_FOLDERS[name], table_path(name, root)
    if Path(root).resolve().name == folder.name:  # OGB would download the dataset into its own folder
        raise InputError(f"--root {root} is the folder of {name} itself: give the folder that holds it")
    if not folder.exists():
        _download(name, folder)
    missing = [path for path in (folder / "RELEASE_v1.txt", table) if not path.exists()]
    if missing:
        raise InputError(
            f"{folder} lacks OGB's {missing[0].relative_to(folder)}, so it is not the current release: move it away so "
            "that it is downloaded again"
        )
    again = "move the folder away so that it is downloaded again"
    try:
        dataset = _open(name, root)
        gaps = np.asarray(dataset.labels, dtype=np.float64)
        if np.isinf(gaps).any():
            raise ValueError("it has infinite labels")
    except (OSError, EOFError, KeyError, ValueError, zlib.error) as error:
        reason = first_line(error)
        raise InputError(f"{folder} is damaged: its raw/data.csv.gz cannot be read ({reason}): {again}") from None
    try:
        splits = _read_split(folder / "split_dict.pt", len(gaps), name)
    except Exception as error:  # a damaged file fails in many ways
        reason = first_line(error)
        raise InputError(f"{folder} is damaged: its split_dict.pt cannot be read ({reason}): {again}") from None
    return [text if isinstance(text, str) else "" for text in dataset.graphs], gaps, splits


def _open(name: str, root: str | Path) -> Any:
    """Open a dataset with OGB's class, which downloads it if it is not there."""
    lsc = import_ogb_lsc()
    dataset_class = {"pcqm4m": lsc.PCQM4MDataset, "pcqm4mv2": lsc.PCQM4Mv2Dataset}[name]
    # Naming the dataset implies consent to its download.
    consent = mock.patch.object(sys.modules[dataset_class.__module__], "decide_download", lambda url: True)
    with consent, contextlib.redirect_stdout(io.StringIO()):
        return dataset_class(root=str(root), only_smiles=True)


def _download(name: str, folder: Path) -> None:
    """Download a dataset, or unpack the archive next to its folder, which appears when it is complete.

    Raises:
        InputError: if it cannot be downloaded, or the archive is damaged.
    """
    archive, partial = folder.with_suffix(".zip"), folder.with_name(f".{folder.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if folder.exists():  # another process has downloaded it
                return
            print(f"downloading {name} to {folder}", file=sys.stderr)
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
            try:
                partial.mkdir()
                if archive.exists():  # which OGB uses
                    shutil.copyfile(archive, partial / archive.name)
                _open(name, partial)
                (partial / folder.name).replace(folder)
                archive.unlink(missing_ok=True)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except zipfile.BadZipFile:
        archive.unlink(missing_ok=True)
        raise InputError(f"the downloaded archive of {name} was damaged and is removed: try again") from None
    except (OSError, EOFError, RuntimeError, KeyError, ValueError, zlib.error) as error:
        cause = error.__context__ or error  # OGB hides the reason of a broken download
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        what = f"{name} is not in {folder} (set with --root)"
        if archive.exists():
            raise InputError(f"{what}, and {archive} cannot be unpacked ({first_line(cause)})") from None
        raise InputError(
            f"{what} and cannot be downloaded ({first_line(cause)}): connect to the network, or put OGB's folder there"
        ) from None


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
