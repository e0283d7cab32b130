"""Where numba keeps compiled kernels, and the removal of those of another version of the package."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from graphslice.package_data import private_folder


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
            for index in package.rglob("__pycache__/*.nb[ic]"):
                index.unlink(missing_ok=True)
            stamp.write_text(version)


def choose_kernel_folder(package: Path) -> None:
    """Let numba keep kernels in a folder for temporary files if it can write to no other.

    If there is none either, numba raises an error where the first kernel is defined.

    To be called before numba is imported.

    Args:
        package: folder of the package, where numba would keep them first.
    """
    if "NUMBA_CACHE_DIR" in os.environ or os.access(package, os.W_OK):
        return
    with suppress(OSError, RuntimeError):  # there may be no home
        user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        existing = next(folder for folder in (user, *user.parents) if folder.exists())
        if os.access(existing, os.W_OK):
            return
    with suppress(OSError):
        os.environ["NUMBA_CACHE_DIR"] = str(private_folder("graphslice-kernels-"))
