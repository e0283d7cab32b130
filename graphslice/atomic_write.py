"""Atomic writes: a file appears under its name only once it is complete."""

from __future__ import annotations

import glob
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from graphslice.errors import InputError

if sys.platform != "win32":
    import fcntl


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Context manager that provides a temporary file to write and renames it to ``path`` at the end.

    The temporary file is in the same folder and has a unique name, so that several processes can write the same
    ``path``: each replaces it by a complete file, and the last one remains. If the block raises, the temporary file is
    removed and ``path`` is unchanged. The temporary file of a killed process is removed by the next write of
    the same ``path``.

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
        temporary, lock_handle = _new_file(path, 0o666 if former is None else 0o600)
        try:
            yield temporary
            if former is not None:
                temporary.chmod(stat.S_IMODE(former) & 0o777)
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink()
            lock_handle.close()
    except OSError as error:
        # Arrow replaces the message of the system by its own.
        reason = os.strerror(error.errno) if error.errno else error
        raise InputError(f"cannot write {path}: {reason}") from None


def _new_file(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Create an empty temporary file for ``path``; return it with the open file whose lock marks it as in use."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.writing")
        # Mode "x" fails if the file exists or the name is a symbolic link.
        file = open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
        # Before it was locked, another process may have removed it as abandoned.
        if _lock(file) is not False and temporary.exists():
            if sys.platform == "win32":  # Windows cannot rename an open file
                file.close()
            return temporary, file
        file.close()


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files of processes that were killed while writing ``path``."""
    for abandoned in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.writing"):
        with suppress(OSError), open(abandoned, "r+b", opener=_open_without_following) as file:
            if _lock(file):
                abandoned.unlink()


def _open_without_following(name: str, flags: int) -> int:
    """Open a file without following symbolic links and without blocking on a pipe."""
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _lock(file: BinaryIO) -> bool | None:
    """Lock an open file until it is closed.

    Returns:
        True if the lock was acquired, False if another process holds it, None if the system or file system does not
        support locks.
    """
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
