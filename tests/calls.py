"""Calls that the tests make in other processes, which import this file.

As a program, ``python calls.py FOLDER``: three calls that never end, two at a time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from graphslice.errors import InputError
from graphslice.processes import in_processes


def run(function: Callable[[], None]) -> None:
    """Each of the functions below."""
    function()


def note(path: Path) -> None:
    """Write down the process, its number of threads and the GPUs that it sees."""
    path.write_text(f"{os.getpid()} {os.environ['OMP_NUM_THREADS']} {os.environ.get('CUDA_VISIBLE_DEVICES')}")


def finish() -> None:
    pass


def refuse() -> None:
    raise InputError("no such data")


def fail() -> None:
    raise ZeroDivisionError("a mixer\nthat is being written")


def die() -> None:
    os._exit(7)


def wait_forever(path: Path) -> None:
    path.touch()
    try:
        for _ in range(6000):  # a test that failed leaves nothing behind for ever
            time.sleep(0.1)  # no longer: an interrupt just before is seen after
    except KeyboardInterrupt:
        try:
            time.sleep(0.3)
        except KeyboardInterrupt:
            path.with_name("interrupted twice").touch()
        raise


def main(folder: Path) -> None:
    try:
        for _ in in_processes(wait_forever, {name: (folder / name,) for name in "abc"}, jobs=2):
            pass
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
