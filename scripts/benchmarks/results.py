"""Results of benchmarks as lines of JSON: each training is done once, and a failed one is reported and left out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.table_methods import CommandError


def read_results(path: Path) -> list[dict]:
    """Return the lines of the results; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_result(path: Path, key: dict, compute: Callable[[], dict]) -> dict | None:
    """Append a result unless the file has one with its key.

    Args:
        path: the file, which is created.
        key: what identifies the result.
        compute: trains and returns the rest of the line.

    Returns:
        The new line; None if there is one already, or a command failed.
    """
    if any(key.items() <= line.items() for line in read_results(path)):
        return None
    try:
        line = key | compute()
    except CommandError as error:
        print(f"{key}: {error}", file=sys.stderr, flush=True)
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return line
