"""``graphslice predict``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import (
    MOLECULE_FILES,
    TABLE_FILES,
    add_device,
    add_engine,
    add_model,
    add_molecules,
    add_output_file,
    add_workers,
    file_progress,
    load_model,
    molecule_source,
    output_file,
    reject_pretrained,
    report_rows,
)
from graphslice.errors import InputError, shown

if TYPE_CHECKING:
    from graphslice.data.tables import TableSink

MODULE = "graphslice.inference.files"
EXAMPLES = "runs/my molecules.csv -o predictions.csv --interval 90", "gap CCO c1ccccc1"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    add_model(parser)
    add_molecules(parser, f"{MOLECULE_FILES}, folder of these, preprocessed dataset, or SMILES")
    folder = "a name without suffix makes a folder of Parquet files, which a repeated call completes"
    add_output_file(parser, f"{TABLE_FILES}; {folder} (default: standard output)")
    parser.add_argument(
        "--interval",
        type=float,
        metavar="N",
        help="coverage in percent, such as 90: add conformal prediction intervals (or prediction sets of classes), "
        "the similarity to the nearest training molecule, and in_domain (applicability domain)",
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="print for each molecule a table of all targets: prediction, unit, interval (default: of 90 percent), and "
        "percentile of the prediction among those for approved drugs (adme); --out and --json keep their form",
    )
    parser.add_argument("--nearest", action="store_true", help="add the most similar training molecule")
    add_device(parser)
    add_workers(parser)
    add_engine(parser)
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="predict one of N parts of a folder, as a job of an array: 7/100 is the seventh of a hundred",
    )


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Predict and write a table to a file or to standard output; raise InputError for unusable input."""
    from graphslice.config import MOLECULE
    from graphslice.inference.files import interval_notes, predict_file
    from graphslice.inference.predictions import SummaryTables, output_columns
    from graphslice.inference.shards import predict_shards

    reject_pretrained(options.model)
    predictor = load_model(options)
    source, interval = molecule_source(options.molecules), options.interval
    out: Path | TableSink | None = output_file(options)
    if options.summary and predictor.level != MOLECULE:
        raise InputError("summary needs molecule-level targets: leave it out")
    if options.summary and interval is None and predictor.calibration is not None:
        interval = 90.0
    columns = output_columns(predictor.tasks, predictor.num_models > 1, interval, options.nearest)
    if options.summary and out is None:
        compared = "" if predictor.calibration is None else predictor.calibration.domain.molecules
        out = SummaryTables(predictor.tasks, columns, sys.stdout, compared)
    settings: dict[str, Any] = {"smiles_column": options.smiles_column, "interval": interval}
    settings |= {"nearest": options.nearest, "workers": options.workers}
    part = _part(options.shard)
    if isinstance(source, Path) and isinstance(out, Path) and (out.is_dir() or not out.suffix):
        if options.overwrite:
            raise InputError(f"overwrite replaces a file, not a folder: remove {out}, or choose another one")
        predict = partial(predict_shards, predictor, source, out, engine=options.engine, part=part)
    elif options.shard or options.engine != "local":
        raise InputError("engine ray and shard write a folder of Parquet files: give a table, and a folder as out")
    else:
        predict = partial(predict_file, predictor, source, out, overwrite=options.overwrite)
    with file_progress("predicting", source, part[1]) as advance:
        report = predict(progress=advance, **settings)
    report.notes += interval_notes(predictor, interval)
    return report_rows(options, report, "have no prediction: see the reasons in column 'error'", columns=columns)


def _part(text: str | None) -> tuple[int, int]:
    """Parse the option --shard."""
    number, _, parts = (text or "1/1").partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise InputError(f"shard must be I/N with I from 1 to N, such as 7/100, not {shown(text)}")
    return int(number), int(parts)
