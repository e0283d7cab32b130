"""A lock that allows one process at a time to write to a folder."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from graphslice.errors import InputError

LOCK = ".lock"

#: Seconds to wait for a process whose parent was killed: it is interrupted then, and saves its state before it ends.
ENDING = 60.0

# Error codes of a file system without locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def locked(folder: Path, wait: float = 2) -> Iterator[None]:
    """Context manager that holds the lock of a folder; a thread that holds it may acquire it again.

    The system releases the lock when the process ends for any reason. The lock file and the folders that were created
    for it are removed at the end, the folders only if they are empty. On a file system without locks, the folder is
    used without one. It waits some seconds, since a killed process may take some time to end.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"cannot write the folder {folder}: it is a file")
    # One object per lock file, so that it counts how often a thread has acquired it.
    lock = FileLock(folder.resolve() / LOCK, is_singleton=True)
    reentered, created = lock.is_locked, []
    try:
        try:
            created = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=wait)
        except Timeout:
            raise InputError(
                f"another process is using {folder}: wait until it ends, or choose another folder"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise InputError(f"cannot write the folder {folder}: {error.strerror or error}") from None
        yield
    finally:
        if lock.is_locked and not reentered:
            with suppress(OSError):
                Path(lock.lock_file).unlink()
        lock.release()
        with suppress(OSError):
            for path in created:
                path.rmdir()
