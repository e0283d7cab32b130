"""The folder that the tools may read and write."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

from graphslice.data.excel import split_sheet
from graphslice.errors import InputError, shown

# Most bytes of a file, so that a client cannot occupy the machine for days.
_MOST_BYTES = 1 << 30


class Folder:
    """A folder that holds all files that are read and written.

    A path is checked when it is named. Who may replace files of the folder by links meanwhile can lead outside.

    Args:
        path: the folder, which must exist.

    Raises:
        InputError: if it is no folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        if not self.path.is_dir():
            raise InputError(f"--folder {path} is not a folder")

    def inside(self, name: str) -> Path:
        """Return the absolute path of a file or folder inside, which need not exist.

        Args:
            name: path relative to the folder, or absolute; of an Excel workbook with or without a sheet.

        Raises:
            InputError: if it is outside or too large, has a part ``..``, or is or has a link that leads out.
        """
        path = self.path / name
        try:
            path.exists()  # raises for a name that is too long
            file, _ = split_sheet(path)
            within = (Path(root, one) for root, folders, files in os.walk(file) for one in (*folders, *files))
            outside = next((one for one in chain([file], within) if not one.resolve().is_relative_to(self.path)), None)
        except (OSError, RuntimeError, ValueError):  # also for a loop of links, and a null character
            raise InputError(f"{shown(name)} is not a path") from None
        if outside is not None or ".." in path.parts:
            link = "" if outside in (None, file) else f" by the link {outside.name!r}"
            raise InputError(
                f"{shown(name)} leads out of the folder{link}: give a path inside {self.path}, without '..'"
            )
        if file.is_file() and file.stat().st_size > _MOST_BYTES:
            raise InputError(f"{shown(name)} has more than {_MOST_BYTES:,} bytes: use the command line")
        return path
