"""Atomic writes: a file appears under its name only once it is complete."""

from __future__ import annotations

import glob
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphslice.errors import InputError

# A temporary file that nothing was written to for this many seconds is that of a killed process.
_ABANDONED_SECONDS = 24 * 3600


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Context manager that provides a temporary file to write and renames it to ``path`` at the end.

    The temporary file is in the same folder and has a unique name, so that several processes can write the same
    ``path``: each replaces it by a complete file, and the last one remains. If the block raises, the temporary file is
    removed and ``path`` is unchanged. The temporary file of a killed process is removed by a write of the same
    ``path`` a day later.

    A new file has the permissions given by the umask, and a replaced file keeps its permissions. A symbolic link at
    ``path`` is replaced by the file; the file that it points to is unchanged.

    Args:
        path: path of the file; its folder is created if it does not exist.

    Yields:
        The path of an empty file.

    Raises:
        InputError: if the file cannot be written, or ``path`` is a folder, a device or a pipe; raised before the block
            runs where possible.
    """
    try:
        former = path.stat().st_mode
    except OSError:
        former = None
    if former is not None and not stat.S_ISREG(former):
        raise InputError(f"cannot write {path}: it is a {'folder' if stat.S_ISDIR(former) else 'device or a pipe'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.writing")
        temporary.touch(0o666 if former is None else 0o600, exist_ok=False)
        try:
            yield temporary
            if former is not None:
                temporary.chmod(stat.S_IMODE(former) & 0o777)
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink()
    except OSError as error:
        # Arrow replaces the message of the system by its own.
        reason = os.strerror(error.errno) if error.errno else error
        raise InputError(f"cannot write {path}: {reason}") from None


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files of processes that were killed while writing ``path``."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.writing"):
        with suppress(OSError):
            if time.time() - temporary.lstat().st_mtime > _ABANDONED_SECONDS:
                temporary.unlink()
