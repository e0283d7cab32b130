"""Atomic writes: a file appears under its name only once it is complete.

A lock that allows one process at a time to write to a folder.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from graphslice.errors import InputError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Context manager that provides a temporary file to write and renames it to ``path`` at the end.

    It is in the same folder and has a unique name, so that several processes can write the same ``path``: each replaces
    it by a complete file, and the last one remains. If the block raises, the temporary file is removed and ``path`` is
    unchanged. A new file has the permissions given by the umask, and a replaced file keeps its permissions. A symbolic
    link is replaced by the file. A folder, a device or a pipe is an :class:`InputError`, raised before the block runs.
    """
    try:
        former = path.stat().st_mode
    except OSError:
        former = None
    if former is not None and not stat.S_ISREG(former):
        raise InputError(f"cannot write {path}: it is a {'folder' if stat.S_ISDIR(former) else 'device or a pipe'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
