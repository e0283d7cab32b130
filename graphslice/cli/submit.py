"""``graphslice submit``."""

from __future__ import annotations

from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from graphslice.cli.options import add_device, load_model

MODULE = "graphslice.evaluation.submission"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument("model", help="run directory or checkpoint")
    parser.add_argument(
        "--dataset",
        required=True,
        help="pcqm4mv2 (test-dev, test-challenge) or pcqm4m (test), whose leaderboard is closed",
    )
    parser.add_argument("--root", help="directory of OGB's data, downloaded if missing (default: that of the training)")
    parser.add_argument("-o", "--out", default="submission", help="output directory (default: submission)")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    add_device(parser)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Write the files and print their paths; raise InputError for unusable input."""
    from graphslice.evaluation.submission import submit

    model = load_model(options)
    root = model.config.data.root if options.root is None else options.root
    console = Console(stderr=True, soft_wrap=True)
    files = submit(model, options.dataset, root, options.out, overwrite=options.overwrite, console=console)
    print(*files, sep="\n")
    return {"files": [str(path) for path in files]}
