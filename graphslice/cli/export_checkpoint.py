"""``graphslice export-checkpoint``."""

from __future__ import annotations

import sys
from typing import Any

from jsonargparse import ArgumentParser, Namespace

#: Module that :func:`run` imports.
MODULE = "graphslice.originals.export"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """Add the options of the command; ``arguments`` is the command line after the command's name."""
    parser.add_argument("model", help="run directory or checkpoint with the architecture of the original")
    parser.add_argument("-o", "--out", required=True, help="output directory")
    parser.add_argument("--format", default="huggingface", help="huggingface or graphormer-v1 (default: huggingface)")


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Write the files and print their names; raise InputError for a model that the format cannot hold."""
    from graphslice.checkpoint import read_checkpoint
    from graphslice.originals.export import export_checkpoint

    checkpoint = read_checkpoint(options.model)
    files, notes = export_checkpoint(checkpoint, options.out, options.format), []
    print(*files, sep="\n")
    if classes := [task.name for task in checkpoint.tasks if task.classes]:
        notes.append(f"the exported model returns logits of {', '.join(classes)}, not probabilities")
    if checkpoint.stacking is not None:
        weight = checkpoint.stacking.weights[0].mean()
        notes.append(
            f"only the network is exported, which has the weight {weight:.2f} in the ensemble; base models cannot be "
            "exported"
        )
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return {"files": [str(path) for path in files], "notes": notes}
