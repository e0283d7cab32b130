"""Removal of compiled kernels that another version of the package left in numba's cache."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def remove_kernels_of_other_versions(package: Path, version: str) -> None:
    """Remove the compiled kernels in a package's folders, unless they are of this version.

    Numba compiles a kernel again if its own file has changed, but not if the file of a function that it calls has. An
    upgrade changes both kinds, and leaves the compiled kernels where they are.

    Args:
        package: folder of the package; nothing is done if it cannot be written, since numba then writes elsewhere.
        version: the version, which a file in the folder ``__pycache__`` of the package keeps.
    """
    folder = package / "__pycache__"
    stamp = folder / "kernels"
    with suppress(OSError):
        if stamp.is_file() and stamp.read_text() == version:
            return
        folder.mkdir(exist_ok=True)
        if os.access(folder, os.W_OK):
            for index in package.rglob("__pycache__/*.nbi"):
                index.unlink(missing_ok=True)
            stamp.write_text(version)
