"""Files of an installation: presets, models and the demo dataset of the package, and the user's cache.

In a wheel they are inside ``graphslice``; in a source checkout at its top level.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent


def package_directory(folder: str) -> Path:
    """Return the folder ``configs`` or ``data`` of this installation."""
    packaged = _PACKAGE / "_files" / folder
    return packaged if packaged.is_dir() else _PACKAGE.parent / folder


CONFIGS = package_directory("configs")
DEMO_CSV = package_directory("data") / "demo.csv"
#: Checkpoints of the packaged models by name; a name can be given instead of a run directory.
MODELS = {path.stem: path for path in sorted((_PACKAGE / "weights").glob("*.safetensors"))}

#: The packaged model that is fine-tuned on small datasets. Its architecture is that of the preset of this name.
PRETRAINED_MODEL = "small"


def is_packaged_model(path: str | Path) -> bool:
    """True if ``path`` is the name of a packaged model and not an existing file or folder."""
    return str(path) in MODELS and not Path(path).exists()


def default_cache() -> Path:
    """Return the cache directory: ``$GRAPHSLICE_CACHE``, else one in the user's cache directory.

    If that is not writable, it is a directory for temporary files.
    """
    if directory := os.environ.get("GRAPHSLICE_CACHE"):
        return Path(directory)
    with suppress(OSError, RuntimeError):  # there may be no home
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "graphslice")
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return private_folder("graphslice-cache-")


def private_folder(prefix: str) -> Path:
    """Return a folder for temporary files that belongs to this user, since what is read there may be run."""
    user = os.getuid() if hasattr(os, "getuid") else None  # elsewhere the folder for temporary files is the user's own
    folder = Path(tempfile.gettempdir()) / f"{prefix}{'user' if user is None else user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder if user is None or folder.lstat().st_uid == user else _new_folder(prefix)


@cache
def _new_folder(prefix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=prefix))
