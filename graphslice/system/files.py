"""Atomic writes: a file appears under its name only once it is complete; and the lock of a folder."""

from __future__ import annotations

import errno
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from filelock import FileLock, Timeout

from graphslice.errors import InputError, file_errors

LOCK = ".lock"
#: Seconds to wait for a process whose parent was killed: it is interrupted then, and saves its state before it ends.
ENDING = 60.0
# Error codes of a file system without locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary file in the folder of ``path``, and renames it to ``path`` at the end.

    Several processes can write the same ``path``: the last one remains. If the block raises, ``path`` is unchanged. A
    replaced file keeps its permissions, and a symbolic link is replaced by the file.
    """
    with file_errors("write", path):
        former = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        if former is not None and not path.is_file():
            raise InputError(f"cannot write {path}: it is not a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.writing")
        try:  # a signal may come right after the creation
            temporary.touch(0o666 if former is None else 0o600, exist_ok=False)
            yield temporary
            if former is not None:
                temporary.chmod(former)
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink()


def remove_rests(path: Path) -> None:
    """Remove what killed processes left of an :func:`atomic_write` of ``path``, which no process may be writing now."""
    for rest in path.parent.glob(f".{escape(path.name)}.*.writing"):
        rest.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, wait: float = 2) -> Iterator[None]:
    """Context manager that holds the lock of a folder, which the system releases when the process ends.

    A thread that holds it may acquire it again. The lock file is removed at the end, and so are folders that were
    created for it, if they are empty. A file system without locks is used without.
    """
    # One object per lock file, so that it counts how often a thread has acquired it.
    lock = FileLock(folder.resolve() / LOCK, is_singleton=True)
    reentered = lock.is_locked
    created: list[Path] = []
    try:
        with file_errors("write", folder):
            created = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=wait)
            except Timeout:
                reason = "wait until it ends, or choose another folder"
                raise InputError(f"another process is using {folder}: {reason}") from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
        yield
    finally:
        if lock.is_locked and not reentered:
            with suppress(OSError):
                Path(lock.lock_file).unlink()
        lock.release()
        with suppress(OSError):
            for path in created:
                path.rmdir()
