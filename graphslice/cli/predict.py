"""``graphslice predict``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
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
    no_usable_row,
    output_file,
    reject_pretrained,
    report_rows,
)
from graphslice.errors import InputError

if TYPE_CHECKING:
    from graphslice.inference.inputs import Columns
    from graphslice.inference.predictor import Predictor
    from graphslice.inference.summary import TargetSummary

MODULE = "graphslice.inference.embedding"
# Molecules of a file of which --summary prints tables.
_MAX_SUMMARIES = 100


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
        help="print a table of all targets for each molecule (of a file the first 100): prediction, unit, interval of "
        "90 percent, and percentile among the reference molecules of the model",
    )
    parser.add_argument("--nearest", action="store_true", help="add the most similar training molecule")
    parser.add_argument("--device", help="cpu, cuda or mps (default: a GPU if there is one)")
    add_engine_options(parser)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Predict and write a table to a file or to standard output; raise InputError for unusable input."""
    from graphslice.inference.files import interval_notes, predict_file
    from graphslice.inference.predictions import output_columns

    reject_pretrained(options.model)
    predictor = load_model(options)
    source = molecule_source(options.molecules)
    if options.summary:
        if options.out is not None or options.nearest or (options.smiles_column and isinstance(source, list)):
            raise InputError(
                "--summary prints tables: leave out --out and --nearest, and --smiles-column without a file"
            )
        if isinstance(source, Path):
            rows, features, notes = _first_rows(predictor, source, options.smiles_column)
        else:
            rows, features, notes = [(smiles, None) for smiles in source], {}, []
        return print_summaries(predictor, rows, features, options.interval, notes)
    with file_progress("predicting", source) as advance:
        report = predict_file(
            predictor,
            source,
            output_file(options),
            smiles_column=options.smiles_column,
            engine=options.engine,
            workers=options.workers,
            interval=options.interval,
            nearest=options.nearest,
            overwrite=options.overwrite,
            progress=advance,
        )
    report.notes += interval_notes(predictor, options.interval)
    columns = output_columns(predictor.tasks, predictor.num_models > 1, options.interval, options.nearest)
    return report_rows(options, report, "have no prediction: see the reasons in column 'error'", columns=columns)


def _first_rows(
    predictor: Predictor, table: Path, column: str | None
) -> tuple[list[tuple[str, str | None]], Columns, list[str]]:
    """Return SMILES and reason of the first rows of a file, the feature columns of those without one, and a note if
    there are more."""
    from graphslice.analysis.inspection import read_input_molecules

    found = list(islice(read_input_molecules(predictor, [table], column), _MAX_SUMMARIES + 1))
    if not found:
        raise InputError(f"{table} has no rows")
    more = len(found) > _MAX_SUMMARIES
    notes = [f"only the first {_MAX_SUMMARIES} molecules are printed; leave out --summary for all"] if more else []
    rows = [(molecule.smiles, molecule.error) for molecule in found[:_MAX_SUMMARIES]]
    usable = [molecule for molecule in found[:_MAX_SUMMARIES] if molecule.error is None]
    columns = {name: [float(one.columns[name][0]) for one in usable] for name in predictor.feature_columns}
    return rows, columns, notes


def print_summaries(
    predictor: Predictor,
    molecules: Sequence[tuple[str, str | None]],
    columns: Columns,
    level: float | None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Print a table of all targets for each molecule, and return the document.

    Args:
        predictor: the model.
        molecules: SMILES of each, and the reason if it cannot be predicted.
        columns: feature columns of those without a reason, for a model that reads some.
        level: coverage of the intervals in percent; None: 90 if the model is calibrated.
        notes: notes to print after the tables.

    Raises:
        InputError: if no molecule can be predicted, or the targets are properties of atoms or bonds.
    """
    from graphslice.inference.files import interval_notes
    from graphslice.inference.summary import summarize

    if level is None and predictor.calibration is not None:
        level = 90.0
    with warnings.catch_warnings(record=True) as warned:
        usable = [smiles for smiles, reason in molecules if reason is None]
        predictions = predictor.predict(usable, columns=columns, details=True, interval=level)
    remarks = [*notes, *(str(each.message) for each in warned), *interval_notes(predictor, level)]
    found = iter(enumerate(predictions.errors))
    results = [next(found) if reason is None else (-1, reason) for _, reason in molecules]
    if all(error for _, error in results):
        raise no_usable_row(results[0][1])
    documents: list[dict[str, Any]] = []
    for number, ((text, _), (row, error)) in enumerate(zip(molecules, results, strict=True), 1):
        targets = summarize(predictions, row) if error is None else []
        documents.append({"smiles": text, "error": error, "targets": [asdict(target) for target in targets]})
        if error is not None:
            print(f"{text or f'row {number}'}: {error}\n")
            continue
        neighbours = predictions.neighbours
        known = ""
        if neighbours is not None:
            where = "inside" if neighbours.in_domain[row] else "outside"
            known = f": {where} the applicability domain, similarity {neighbours.similarity[row]:.2f}"
            documents[-1] |= {
                "in_domain": bool(neighbours.in_domain[row]),
                "similarity": float(neighbours.similarity[row]),
            }
        print(f"{text}{known}", *_summary_lines(targets, level), "", sep="\n")
    failed = sum(error is not None for _, error in results)
    sys.stdout.flush()
    for note in remarks:
        print(f"note: {note}", file=sys.stderr)
    return {"summaries": documents, "columns": [], "total": len(results), "failed": failed, "notes": remarks}


def _summary_lines(targets: list[TargetSummary], level: float | None) -> list[str]:
    """Lay out the summaries in aligned columns; those without any content are left out."""
    columns = {
        "target": [each.target for each in targets],
        "prediction": [
            f"{each.class_name}: {each.prediction:.2f}" if each.class_name else f"{each.prediction:.4g} {each.unit}"
            for each in targets
        ],
        f"{level:g}% interval or set" if level else "": [_interval_text(each) for each in targets],
        "percentile": ["" if each.percentile is None else f"{each.percentile:.0f}" for each in targets],
        "description": [each.description for each in targets],
    }
    filled = [[name, *texts] for name, texts in columns.items() if any(texts)]
    widths = [max(map(len, column)) for column in filled]
    rows = zip(*filled, strict=True)
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _interval_text(target: TargetSummary) -> str:
    if target.interval is not None:
        low, high = target.interval
        return f"{low:.4g} to {high:.4g}"
    return "" if target.classes is None else " or ".join(target.classes) or "no class"
