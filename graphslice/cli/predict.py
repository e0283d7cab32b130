"""``graphslice predict``."""

from __future__ import annotations

import sys
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import (
    add_engine_options,
    add_model,
    add_output_file,
    add_smiles_column,
    load_model,
    output_file,
    table_document,
    table_path,
)
from graphslice.errors import InputError
from graphslice.package_data import PRETRAINED_MODEL, is_packaged_model

#: Module that :func:`run` imports.
MODULE = "graphslice.cli.prediction_modules"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """Add the options of the command; ``arguments`` is the command line after the command's name."""
    add_model(parser)
    parser.add_argument(
        "molecules",
        nargs="+",
        help="CSV, TSV, Excel, Parquet, SDF or .smi file, folder of these, preprocessed dataset, or SMILES",
    )
    add_output_file(parser, "CSV, TSV or Parquet file (default: standard output)")
    add_smiles_column(parser)
    parser.add_argument(
        "--interval",
        type=float,
        metavar="PERCENT",
        help="coverage in percent, such as 90: add conformal prediction intervals (or prediction sets of classes), "
        "the similarity to the nearest training molecule, and in_domain (applicability domain)",
    )
    parser.add_argument("--nearest", action="store_true", help="add the most similar training molecule")
    parser.add_argument("--device", help="cpu, cuda or mps (default: a GPU if there is one)")
    add_engine_options(parser)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Predict and write a table to a file or to standard output; raise InputError for unusable input."""
    import pyarrow as pa

    from graphslice.data.arrow import text_array
    from graphslice.data.tables import count_rows
    from graphslice.inference.files import interval_notes, predict_file, with_predictions, write_rows
    from graphslice.inference.predictions import output_columns

    if options.model == PRETRAINED_MODEL and is_packaged_model(PRETRAINED_MODEL):
        raise InputError(f"{PRETRAINED_MODEL} is a pretrained model for fine-tuning and predicts no property: use gap")
    predictor = load_model(options)
    molecules = options.molecules
    table = table_path(molecules)
    out = output_file(options, table)
    if table is not None:
        from rich.console import Console

        from graphslice.progress import molecule_progress

        console = Console(stderr=True)
        total = count_rows(table) if console.is_terminal else None
        with molecule_progress("predicting", total, console) as advance:
            report = predict_file(
                predictor,
                table,
                out,
                smiles_column=options.smiles_column,
                engine=options.engine,
                workers=options.workers,
                interval=options.interval,
                nearest=options.nearest,
                progress=advance,
            )
    else:
        if options.smiles_column is not None:
            raise InputError("--smiles-column names a column of a table, but the input is SMILES: leave it out")
        predictions = predictor.predict(molecules, details=True, interval=options.interval, nearest=options.nearest)
        report = write_rows(iter([with_predictions(pa.table({"smiles": text_array(molecules)}), predictions)]), out)
    sys.stdout.flush()
    report.notes += interval_notes(predictor, options.interval)
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    rows, failed = report.rows, report.failed
    if failed == rows:
        raise InputError(f"none of the {rows:,} rows could be predicted; the first reason: {report.first_error}")
    if failed:
        print(f"{failed:,} of {rows:,} rows have no prediction: see the reasons in column 'error'", file=sys.stderr)
    columns = output_columns(predictor.tasks, predictor.num_models > 1, options.interval, options.nearest)
    return table_document(options, report, columns=columns)
