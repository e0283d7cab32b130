"""``graphslice export``: a model as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import add_model, add_output_file
from graphslice.errors import check_new
from graphslice.system.console import remark

MODULE = "graphslice.inference.onnx_export"
EXAMPLES = "runs/my -o my.onnx", "gap -o gap.onnx --overwrite"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    add_model(parser)
    add_output_file(parser, "ONNX file to write", required=True)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Write the file and print its name; raise InputError for a model that ONNX cannot express."""
    from graphslice.inference.onnx_export import export_onnx
    from graphslice.runs.ensemble import read_calibration, read_checkpoints

    out = Path(options.out)
    check_new(out, options.overwrite)
    checkpoints = read_checkpoints(options.model)
    notes = export_onnx(checkpoints, read_calibration(options.model, checkpoints), out)
    print(out)
    for note in notes:
        remark(note)
    return {"files": [str(out)], "notes": notes}
