"""``graphslice mcp``."""

from __future__ import annotations

import os
import tempfile
from contextlib import chdir
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from graphslice.errors import optional_packages

MODULE = "graphslice.api.model"
EXAMPLES = "--folder data", "--folder data --model runs/my adme"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    text = "folder of all files that the tools may read and write"
    parser.add_argument("--folder", metavar="FOLDER", required=True, help=text)
    parser.add_argument(
        "--model",
        nargs="+",
        default=["gap"],
        metavar="MODEL",
        help="run directories, checkpoints or models of the Hub (hf://user/name), the first of which is the default of "
        "the tools (default: gap, a packaged model); runs in the folder can be used too",
    )


def run(options: Namespace, arguments: list[str]) -> None:
    """Serve tools over standard input and output; raise InputError for unusable input."""
    with optional_packages("graphslice mcp", "mcp"):
        from graphslice.serve.mcp import model_path, serve
    # Relative names, and modules that Python looks for where it works, must not be found in the folder.
    folder, models = Path(options.folder).resolve(), [model_path(name) for name in options.model]
    try:
        with tempfile.TemporaryDirectory() as empty, chdir(empty):
            serve(folder, models)
    except (KeyboardInterrupt, SystemExit) as stopped:  # a thread that waits for input would keep the process
        os._exit(getattr(stopped, "code", 130))
