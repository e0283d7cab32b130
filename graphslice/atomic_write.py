"""Atomic writes: a file appears under its name only once it is complete."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphslice.errors import InputError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Context manager that provides a temporary file to write and renames it to ``path`` at the end.

    The temporary file is in the same folder and has a unique name, so that several processes can write the same
    ``path``: each replaces it by a complete file, and the last one remains. If the block raises, the temporary file
    is removed and ``path`` is unchanged. A new file has the permissions given by the umask, and a replaced file keeps
    its permissions. A symbolic link is replaced by the file. A folder, a device or a pipe is an :class:`InputError`,
    raised before the block runs.
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
