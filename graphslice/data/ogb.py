"""PCQM4M-LSC, loaded by OGB's own classes."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from filelock import FileLock

from graphslice.data.splits import Splits
from graphslice.errors import InputError, first_line

#: Folder of each dataset below the root.
OGB_FOLDERS = {"pcqm4mv2": "pcqm4m-v2", "pcqm4m": "pcqm4m_kddcup2021"}
OGB_TARGET = "homolumogap"
#: What OGB prints of a dataset, which :func:`load_pcqm4m` hides.
OGB_NOTES = {"pcqm4m": ("the leaderboard of pcqm4m is closed; that of pcqm4mv2 is open",), "pcqm4mv2": ()}


def import_ogb_lsc() -> Any:
    """Import ``ogb.lsc``, without the look-up of OGB's newest version on the network."""
    if not sys.modules.keys() & {"ogb", "outdated"}:
        # OGB has no option against it, and without a network it delays the end of the process. It does without the
        # function that this empty module lacks.
        sys.modules["outdated"] = ModuleType("outdated")
        import ogb

        del sys.modules["outdated"]
    import ogb.lsc

    return ogb.lsc


def load_pcqm4m(name: str, root: str | Path) -> tuple[list[str], np.ndarray, Splits]:
    """Load SMILES, HOMO-LUMO gaps (float64, eV; nan where unpublished) and OGB's splits (int64 rows) of PCQM4M-LSC v1
    or v2; OGB downloads it to ``root`` unless the folder exists, which needs no network."""
    folder = Path(root) / OGB_FOLDERS[name]
    if not folder.exists():
        _download(name, folder)
    try:
        if not (folder / "RELEASE_v1.txt").exists():  # OGB would ask on stdin whether to remove the folder
            raise FileNotFoundError("RELEASE_v1.txt is missing")
        dataset = _open(name, root)
        gaps = np.asarray(dataset.labels, dtype=np.float64)
        splits = read_ogb_splits(name, root)
    except Exception as error:  # a damaged file fails in many ways
        raise InputError(
            f"{folder} is damaged ({first_line(error)}): move the folder away so that it is downloaded again"
        ) from None
    return [text if isinstance(text, str) else "" for text in dataset.graphs], gaps, splits


def _open(name: str, root: str | Path) -> Any:
    lsc = import_ogb_lsc()
    with contextlib.redirect_stdout(io.StringIO()):
        return (lsc.PCQM4MDataset if name == "pcqm4m" else lsc.PCQM4Mv2Dataset)(root=str(root), only_smiles=True)


def _download(name: str, folder: Path) -> None:
    """Let OGB download a dataset, which it does without a question below 1 GB; the folder appears when complete."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not folder.exists():
                print(f"downloading {name} to {folder}", file=sys.stderr)
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as partial:
                    _open(name, partial)
                    (Path(partial) / folder.name).replace(folder)
    except (OSError, RuntimeError, zipfile.BadZipFile) as error:
        reason = first_line(error.__context__ or error)  # OGB hides the reason of a broken download
        what = f"{name} is not in {folder} (set with data.root) and cannot be downloaded ({reason})"
        raise InputError(f"{what}: connect to the network, or put OGB's folder there") from None


def read_ogb_splits(name: str, root: str | Path) -> Splits:
    """Read the rows of each split, in the order of OGB's evaluator, without running code."""
    import torch

    rebuild: Any = np.empty(0).__reduce__()[0]  # as NumPy 2 and NumPy 1 name it
    kinds: list[Any] = [type(np.dtype(kind)) for kind in (np.int32, np.int64)]
    with torch.serialization.safe_globals(
        [np.ndarray, np.dtype, *kinds, rebuild, (rebuild, "numpy.core.multiarray._reconstruct")]
    ):
        contents = torch.load(Path(root) / OGB_FOLDERS[name] / "split_dict.pt", weights_only=True)
    return {name: np.asarray(rows, np.int64) for name, rows in contents.items()}
