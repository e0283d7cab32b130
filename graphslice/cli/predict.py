"""``graphslice predict``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import (
    add_engine_options,
    add_model,
    add_output_file,
    add_setting,
    file_progress,
    load_model,
    molecule_source,
    output_file,
    reject_pretrained,
    report_rows,
)
from graphslice.errors import InputError

if TYPE_CHECKING:
    from graphslice.data.tables import TableSink

MODULE = "graphslice.inference.files"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """Add the options of the command; ``arguments`` is the command line after the command's name."""
    add_model(parser)
    parser.add_argument(
        "molecules",
        nargs="+",
        help="CSV, TSV, Excel, Parquet, SDF or .smi file, folder of these, preprocessed dataset, or SMILES",
    )
    add_output_file(parser, "CSV, TSV, Excel or Parquet file (default: standard output)")
    add_setting(parser, "data.smiles_column", default="as in training, else detected by its name")
    parser.add_argument(
        "--interval",
        type=float,
        metavar="PERCENT",
        help="coverage in percent, such as 90: add conformal prediction intervals (or prediction sets of classes), "
        "the similarity to the nearest training molecule, and in_domain (applicability domain)",
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="print for each molecule a table of all targets: prediction, unit, interval (default: of 90 percent), and "
        "percentile among the reference molecules of the model; --out and --json keep their form",
    )
    parser.add_argument("--nearest", action="store_true", help="add the most similar training molecule")
    parser.add_argument("--device", help="cpu, cuda or mps (default: a GPU if there is one)")
    add_engine_options(parser)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Predict and write a table to a file or to standard output; raise InputError for unusable input."""
    from graphslice.config import MOLECULE
    from graphslice.inference.files import interval_notes, predict_file
    from graphslice.inference.predictions import SummaryTables, output_columns

    reject_pretrained(options.model)
    predictor = load_model(options)
    source, interval = molecule_source(options.molecules), options.interval
    out: Path | TableSink | None = output_file(options)
    if options.summary and predictor.level != MOLECULE:
        raise InputError("--summary needs molecule-level targets: leave it out")
    if options.summary and interval is None and predictor.calibration is not None:
        interval = 90.0
    columns = output_columns(predictor.tasks, predictor.num_models > 1, interval, options.nearest)
    if options.summary and out is None:
        out = SummaryTables(predictor.tasks, columns, sys.stdout)
    with file_progress("predicting", source) as advance:
        report = predict_file(
            predictor,
            source,
            out,
            smiles_column=options.smiles_column,
            engine=options.engine,
            workers=options.workers,
            interval=interval,
            nearest=options.nearest,
            overwrite=options.overwrite,
            progress=advance,
        )
    report.notes += interval_notes(predictor, interval)
    return report_rows(options, report, "have no prediction: see the reasons in column 'error'", columns=columns)
