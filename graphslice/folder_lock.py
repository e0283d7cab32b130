"""A lock that lets one process at a time write a folder."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from graphslice.errors import InputError

LOCK = ".lock"

#: Seconds that a process gets to end whose parent was killed: it is interrupted then, and saves what it has.
ENDING = 60.0

# What a file system without locks raises.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def locked(folder: Path, wait: float = 2) -> Iterator[None]:
    """Context manager that holds the lock of a folder, which a thread that holds it may take again.

    The system releases the lock when the process ends, however it ends. The lock file and folders that were made for
    it are removed at the end, the folders if they are empty. A file system without locks is used without.

    Args:
        folder: made if it does not exist.
        wait: seconds until another process is given up; some pass until a killed one has gone.

    Raises:
        InputError: if another process holds the lock, or the folder cannot be written.
    """
    # One object for all who name the file, so that it counts how often a thread has taken it.
    lock = FileLock(folder.resolve() / LOCK, is_singleton=True)
    again, made = lock.is_locked, []
    try:
        try:
            made = [each for each in (folder, *folder.parents) if not each.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=wait)
        except Timeout:
            raise InputError(
                f"another process works in {folder}: wait until it ends, or choose another folder"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise InputError(f"cannot write the folder {folder}: {error.strerror or error}") from None
        yield
    finally:
        if lock.is_locked and not again:
            with suppress(OSError):
                Path(lock.lock_file).unlink()
        lock.release()
        with suppress(OSError):
            for each in made:
                each.rmdir()


def holds_only_lock(folder: Path) -> bool:
    """Whether a folder holds its lock file and nothing else, as a process leaves it that is killed at the start."""
    return folder.is_dir() and [path.name for path in folder.iterdir()] == [LOCK]
