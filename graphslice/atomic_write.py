"""Files that are written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphslice.errors import InputError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A file to write to, which takes the name ``path`` when it is whole, and else goes away.

    Raises:
        InputError: if it cannot be written, at once where nothing can be written there.
    """
    temporary = path.with_name(f".{path.name}.writing")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()
