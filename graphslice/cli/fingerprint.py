"""``graphslice fingerprint``: learned embeddings of molecules (not Morgan fingerprints)."""

from __future__ import annotations

import sys
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import (
    add_model,
    add_output_file,
    add_smiles_column,
    file_progress,
    load_model,
    output_file,
    table_document,
    table_path,
)
from graphslice.errors import InputError

MODULE = "graphslice.cli.prediction_modules"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """Add the options of the command; ``arguments`` is the command line after the command's name."""
    add_model(parser)
    parser.add_argument(
        "molecules", nargs="+", help="CSV, TSV, Excel, Parquet, SDF or .smi file, folder of these, or SMILES"
    )
    add_output_file(parser, ".npy (the matrix only), CSV, TSV, Excel or Parquet file (default: standard output)")
    add_smiles_column(parser)
    parser.add_argument("--device", help="cpu, cuda or mps (default: a GPU if there is one)")
    parser.add_argument("--workers", type=int | None, help="number of processes (default: one per core)")


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Write the embeddings of molecules; raise InputError for unusable input."""
    from graphslice.inference.embedding import embed_file

    predictor, table = load_model(options), table_path(options.molecules)
    out = output_file(options, table)
    with file_progress("embedding", table) as advance:
        report = embed_file(
            predictor,
            options.molecules if table is None else table,
            out,
            smiles_column=options.smiles_column,
            workers=options.workers,
            overwrite=options.overwrite,
            progress=advance,
        )
    sys.stdout.flush()
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    if report.failed == report.rows:
        raise InputError(
            f"none of the {report.rows:,} rows is a valid molecule; the first reason: {report.first_error}"
        )
    if report.failed:
        print(
            f"{report.failed:,} of {report.rows:,} rows are not valid molecules and have no embedding", file=sys.stderr
        )
    return table_document(options, report)
