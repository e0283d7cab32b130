"""``graphslice report``."""

from __future__ import annotations

from typing import Any

from jsonargparse import ArgumentParser, Namespace

MODULE = "graphslice.report.write"
EXAMPLES = "runs/my", "runs/my --json"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument("run", metavar="FOLDER", help="run directory, where report.html is written")


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Regenerate the report of a run; raise InputError for unusable input."""
    from graphslice.report.write import write_report

    path = write_report(options.run)
    print(path)
    return {"report": str(path)}
