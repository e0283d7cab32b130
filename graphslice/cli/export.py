"""``graphslice export``: a model in a format of other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import add_model
from graphslice.errors import InputError, shown

MODULE = "graphslice.originals.export"
# The format that is no checkpoint of an original.
_ONNX = "onnx"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """Add the options of the command; ``arguments`` is the command line after the command's name."""
    add_model(parser)
    parser.add_argument(
        "-o", "--out", required=True, help="output file (onnx) or directory (huggingface, graphormer-v1)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    parser.add_argument(
        "--format",
        default=_ONNX,
        help="onnx; or, for a model with the architecture of the original, its checkpoint: huggingface (config.json "
        "and model.safetensors) or graphormer-v1 (default: onnx)",
    )


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Write the files and print their names; raise InputError for a model that the format cannot hold."""
    from graphslice.originals.export import FORMATS

    if options.format not in (formats := [_ONNX, *FORMATS]):
        raise InputError(f"unknown format {shown(options.format)}: choose from {', '.join(formats)}")
    files, notes = _export_onnx(options) if options.format == _ONNX else _export_checkpoint(options)
    print(*files, sep="\n")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return {"files": [str(path) for path in files], "notes": notes}


def _export_onnx(options: Namespace) -> tuple[list[Path], list[str]]:
    from graphslice.ensemble_check import read_calibration, read_checkpoints
    from graphslice.inference.onnx_export import export_onnx

    out = Path(options.out)
    if out.exists() and not options.overwrite:
        raise InputError(f"{out} already exists: choose another --out, or give --overwrite")
    checkpoints = read_checkpoints(options.model)
    return [out], export_onnx(checkpoints, read_calibration(options.model, checkpoints), out)


def _export_checkpoint(options: Namespace) -> tuple[list[Path], list[str]]:
    from graphslice.checkpoint import read_checkpoint
    from graphslice.originals.export import export_checkpoint

    checkpoint = read_checkpoint(options.model)
    files, notes = export_checkpoint(checkpoint, options.out, options.format, overwrite=options.overwrite), []
    if (mixer := checkpoint.config.model.mixer) == "slice-ascend":
        notes.append(f"the file does not name the sort: give --mixer {mixer} to import it again")
    if classes := [task.name for task in checkpoint.tasks if task.classes]:
        notes.append(f"the exported model returns logits of {', '.join(classes)}, not probabilities")
    if checkpoint.stacking is not None:
        weight = checkpoint.stacking.weights[0].mean()
        notes.append(
            f"only the network is exported, which has the weight {weight:.2f} in the ensemble; base models cannot be "
            "exported"
        )
    return files, notes
