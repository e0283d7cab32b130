"""``graphslice export-checkpoint``."""

from __future__ import annotations

import sys

from jsonargparse import ArgumentParser, Namespace

#: The module that :func:`run` works with.
MODULE = "graphslice.originals.export"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """The options of the command; ``arguments`` are the words that follow its name."""
    parser.add_argument("model", help="a run folder or a checkpoint, of the original's architecture")
    parser.add_argument("-o", "--out", required=True, help="the folder to write")
    parser.add_argument("--format", default="huggingface", help="huggingface or graphormer-v1 (default: huggingface)")


def run(options: Namespace, arguments: list[str]) -> None:
    """Write the files, and print their names; raises InputError for a model that the original cannot hold."""
    from graphslice.checkpoint import read_checkpoint
    from graphslice.originals.export import export_checkpoint

    checkpoint = read_checkpoint(options.model)
    for path in export_checkpoint(checkpoint, options.out, options.format):
        print(path)
    if classes := [task.name for task in checkpoint.tasks if task.classes]:
        print(f"note: of {', '.join(classes)} the files give logits, and here come probabilities", file=sys.stderr)
    if checkpoint.stacking is not None:
        weight = checkpoint.stacking.weights[0].mean()
        print(
            f"note: this is the network alone, which has a weight of {weight:.2f} in the model's answers: the trees "
            "beside it cannot be written so",
            file=sys.stderr,
        )
