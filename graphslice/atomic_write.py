"""Atomic writes: a file appears under its name when it is complete, or not at all."""

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
    """Context manager that gives a temporary file to write, and renames it to ``path`` at the end.

    The temporary file lies in the same folder and has a name of its own, so that several processes can write one
    ``path``: each replaces it by a complete file, and the last one stays. If the block raises, the temporary file is
    removed and ``path`` is left as it was. The temporary file of a killed process is removed by the next write of
    the same ``path``.

    A new file has the permissions that the umask gives, and a replaced one keeps its permissions. A symbolic link at
    ``path`` is replaced by the file; the file that it points to is not changed.

    Args:
        path: of the file; its folder is created if it does not exist.

    Yields:
        The path of an empty file.

    Raises:
        InputError: if it cannot be written, or ``path`` is a folder, a device or a pipe; raised before anything is
            computed where possible.
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
        temporary, held = _new_file(path, 0o666 if former is None else 0o600)
        try:
            yield temporary
            if former is not None:
                temporary.chmod(stat.S_IMODE(former) & 0o777)
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink()
            held.close()
    except OSError as error:
        # Arrow puts words of its own in the place of the system's.
        reason = os.strerror(error.errno) if error.errno else error
        raise InputError(f"cannot write {path}: {reason}") from None


def _new_file(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """An empty temporary file for ``path``, and the open file whose lock shows others that it is in use."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.writing")
        # Never one that exists, or that a symbolic link names.
        held = open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
        # Another process may have taken it for abandoned before it was locked.
        if _lock(held) is not False and temporary.exists():
            if sys.platform == "win32":  # which renames no open file
                held.close()
            return temporary, held
        held.close()


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files of processes that were killed while they wrote ``path``."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.writing"):
        with suppress(OSError), open(left, "r+b", opener=_without_following) as held:
            if _lock(held):
                left.unlink()


def _without_following(name: str, flags: int) -> int:
    """Open a file, but neither the target of a symbolic link nor, with waiting, a pipe."""
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _lock(file: BinaryIO) -> bool | None:
    """Lock an open file, until it is closed.

    Returns:
        Whether no other process holds the lock; None where the system or the file system has no locks.
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
