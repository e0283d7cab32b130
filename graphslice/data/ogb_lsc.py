"""OGB's PCQM4M-LSC loaders, without their prompts, their network look-ups and their exit().

OGB 1.3.6 looks up its newest version on the network when imported, asks on stdin before a large
download and when a folder lacks its release file, calls exit(-1) when refused, and unpickles its
split with whatever ``torch.load`` allows. The split is read here, without running code: of NumPy's arrays only their
shape, type and bytes are taken. The loaders of the table are OGB's.
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

from graphslice.checkpoint import load_weights
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
        splits = _read_split(folder / "split_dict.pt")
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


def _read_split(path: Path) -> Splits:
    """The rows of each split: tensors or NumPy arrays of integers by name."""
    stubs: list = [(_Dtype, "numpy.dtype"), (_Array, "numpy.ndarray")]
    for core in ("numpy.core", "numpy._core"):
        stubs += [(_reconstruct, f"{core}.multiarray._reconstruct"), (_frombuffer, f"{core}.numeric._frombuffer")]
    with torch.serialization.safe_globals(stubs):
        found = load_weights(path)
    return {name: _rows(values) for name, values in found.items()}


def _rows(values: object) -> np.ndarray:
    if isinstance(values, _Array):
        return values.values
    if not isinstance(values, torch.Tensor) or values.is_floating_point() or values.is_complex():
        raise ValueError("a split is no list of rows")
    return values.numpy().astype(np.int64)


class _Dtype:
    """Stands for a type of NumPy in a pickle."""

    def __init__(self, code: object, *_: object) -> None:
        if code not in ("i4", "i8", "u4", "u8"):
            raise ValueError("a split is no list of rows")
        self.code = f"<{code}"

    def __setstate__(self, state: tuple) -> None:
        """Takes the order of the bytes alone: ``(version, order, ...)``."""
        self.code = {"<": "<", ">": ">", "=": "="}[state[1]] + self.code[1:]


class _Array:
    """Stands for an array of NumPy in a pickle: rows of integers, which are made of its bytes."""

    def __init__(self) -> None:
        self.values = np.empty(0, np.int64)

    def __setstate__(self, state: tuple) -> None:
        """Takes ``(version, shape, type, order, bytes)``."""
        _, shape, dtype, _, content = state
        # Bytes are a text in protocol 2, the only one that PyTorch reads.
        content = content.encode("latin-1") if isinstance(content, str) else bytes(content)
        self.values = np.frombuffer(content, dtype.code).astype(np.int64)
        if tuple(shape) != self.values.shape:
            raise ValueError("a split is no list of rows")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _frombuffer(content: bytes, dtype: _Dtype, shape: tuple, *_: object) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, dtype, False, content))
    return array


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
