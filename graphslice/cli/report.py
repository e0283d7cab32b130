"""``graphslice report``."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

#: The module that :func:`run` works with.
MODULE = "graphslice.report.write"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """The options of the command; ``arguments`` are the words that follow its name."""
    parser.add_argument("run", help="a run folder; report.html is written there")


def run(options: Namespace, arguments: list[str]) -> None:
    """Write the report of a run again; raises InputError for what cannot be used."""
    from graphslice.report.write import write_report

    print(write_report(options.run))
