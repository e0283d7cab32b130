"""``graphslice import-checkpoint``."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

#: The module that :func:`run` works with.
MODULE = "graphslice.originals"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """The options of the command; ``arguments`` are the words that follow its name."""
    parser.add_argument("file", help="a Lightning checkpoint with state_dict, or a plain state dict")
    parser.add_argument("-o", "--out", required=True, help="the run folder")
    parser.add_argument("--mixer", help="softmax is recognised; for Sliceformer slice-released is assumed")
    parser.add_argument("--target", default="homolumogap", help="name of the predicted column")


def run(options: Namespace, arguments: list[str]) -> None:
    """Write a run folder, and print what was taken; raises InputError for what cannot be used."""
    from graphslice.checkpoint import write_run_folder
    from graphslice.originals import import_checkpoint

    checkpoint = import_checkpoint(options.file, mixer=options.mixer, target=options.target)
    write_run_folder(checkpoint, Path(options.out))
    config = checkpoint.config.model
    print(f"{options.out}: {config.mixer}, {config.layers} layers, {config.dim} channels, {config.heads} heads")
    if options.mixer is None and config.mixer != "softmax":
        print(
            "the weights do not tell which sort they were trained with: --mixer slice-ascend would be the other",
            file=sys.stderr,
        )
