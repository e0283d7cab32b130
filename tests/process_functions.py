"""Functions that tests/test_processes.py calls in child processes, which import this file.

As a program, ``python process_functions.py FOLDER``, it runs three calls that never end, two in parallel.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from graphslice.errors import InputError
from graphslice.system.processes import in_processes, report_to_parent


def run(function: Callable[[], None]) -> None:
    """Call a function."""
    function()


def note(path: Path) -> None:
    """Write the process id, the number of threads and the visible GPUs to a file."""
    path.write_text(f"{os.getpid()} {os.environ['OMP_NUM_THREADS']} {os.environ.get('CUDA_VISIBLE_DEVICES')}")


def finish() -> None:
    pass


def report_twice(first: float, second: float) -> None:
    """Report at a time that is due, at one that is not, and again."""
    report_to_parent(first, "due")
    report_to_parent(first, "too early")
    time.sleep(0.6)
    report_to_parent(second, "due")


def raise_input_error() -> None:
    raise InputError("no such data")


def raise_error() -> None:
    raise ZeroDivisionError("a mixer\nthat is being written")


def exit_with_7() -> None:
    os._exit(7)


def wait_forever(path: Path) -> None:
    path.touch()
    try:
        for _ in range(6000):  # bounded, so that a failed test does not leave a process running forever
            time.sleep(0.1)  # short, since an interrupt just before it is only handled after it
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
