"""Where numba keeps compiled kernels, and the removal of those of another version of the package."""

from __future__ import annotations

import os
import stat
import tempfile
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


def choose_kernel_folder(package: Path) -> None:
    """Let numba keep kernels in a folder for temporary files if it can write to no other; it raises an error then.

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
    os.environ["NUMBA_CACHE_DIR"] = str(_private_folder())


def _private_folder() -> str | Path:
    """Return a folder for temporary files that no other user can write to, since numba runs what it reads there."""
    prefix = "graphslice-kernels-"
    if hasattr(os, "getuid"):
        folder = Path(tempfile.gettempdir()) / f"{prefix}{os.getuid()}"
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
                return folder
    return tempfile.mkdtemp(prefix=prefix)
