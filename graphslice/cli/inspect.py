"""``graphslice inspect``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from graphslice.cli.options import add_model, add_smiles_column, load_model
from graphslice.errors import InputError
from graphslice.progress import molecule_progress
from graphslice.run_files import run_directory_of

if TYPE_CHECKING:
    from graphslice.analysis.inspection import Inspected, Inspection

#: The module that :func:`run` works with.
MODULE = "graphslice.analysis.inspection"
# Reasons that are printed one by one.
_REASONS = 5


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """The options of the command; ``arguments`` are the words that follow its name."""
    add_model(parser)
    parser.add_argument(
        "molecules", nargs="*", help="SMILES, and CSV, TSV, Parquet or .smi files; the first 100 molecules are drawn"
    )
    parser.add_argument("--smiles", nargs="+", default=[], help=argparse.SUPPRESS)  # as it was called once
    parser.add_argument("-o", "--out", help="the folder of tables and pictures (default: inspect in the run folder)")
    parser.add_argument("--target", help="whose contributions are drawn, or a part of its name (default: the first)")
    parser.add_argument(
        "--all", action="store_true", help="also spectra, residuals and attention maps of what is inside the network"
    )
    add_smiles_column(parser)
    parser.add_argument(
        "--orders", type=int, default=256, help="in which the atoms appear: more for smaller errors (default: 256)"
    )
    parser.add_argument("--device", help="cpu, cuda, mps; a GPU where there is one")


def run(options: Namespace, arguments: list[str]) -> None:
    """Write pictures and tables, and print what each atom adds; raises InputError for what cannot be used."""
    from graphslice.analysis.inspection import MAX_DRAWN, check_output_table, inspect, read_input_molecules

    if options.orders < 2:
        raise InputError(f"--orders must be at least 2, not {options.orders}")
    words = [*options.molecules, *options.smiles]
    if not words:
        raise InputError("inspect needs molecules: SMILES, or a file of them; see graphslice inspect --help")
    out = Path(options.out) if options.out else (run_directory_of(options.model) or Path()) / "inspect"
    check_output_table(words, out)
    predictor = load_model(options)
    console = Console(stderr=True)
    with molecule_progress("explaining", None, console) as advance:
        found = inspect(
            predictor,
            read_input_molecules(predictor, words, options.smiles_column),
            out,
            target=options.target,
            orders=options.orders,
            everything=options.all,
            progress=advance,
        )
    for one in found.found:
        _print_molecule(one, found.target)
    _print_summary(found, predictor.targets)
    if found.more:
        print(f"the first {MAX_DRAWN} molecules are drawn; there are more")
    print(f"{len(found.files)} files in {out}")


def _print_molecule(one: Inspected, target: int) -> None:
    """What is in the picture of a molecule, in words."""
    explanations = one.explanations[target]
    values = [
        f"{element} {explanations.digits.text(value, sign=True)}"
        for element, value in zip(one.elements, explanations.values, strict=True)
    ]
    lines = [
        f"{explanations.quantity}: {explanations.sum}"
        + (f"; the model answers: {explanations.model_prediction}" if explanations.model_prediction else ""),
        f"{' '.join(values)}{explanations.digits.times}"
        + (f"; {explanations.error_bound_text}" if explanations.error_bound_text else ""),
    ]
    print(one.smiles, *(line.replace("\N{MINUS SIGN}", "-") for line in lines), sep="\n  ")


def _print_summary(found: Inspection, targets: list[str]) -> None:
    """What is to be known of them all."""
    from graphslice.analysis.formatting import SEVERAL_CLASSES

    for _, text, reason in found.left_out[:_REASONS]:
        print(f"left out {text!r}: {reason}", file=sys.stderr)
    if (others := len(found.left_out) - _REASONS) > 0:
        print(f"left out {others:,} more that cannot be read", file=sys.stderr)
    explanations = found.found[0].explanations[found.target]
    legend, up, down = explanations.legend, explanations.up, explanations.down
    if len({one.explanations[found.target].quantity for one in found.found}) > 1:  # of several classes each has its own
        legend, down, up = SEVERAL_CLASSES
    print(f"{legend}: red {up}, blue {down}" + "".join(f"; {note}" for note in explanations.notes))
    if explanations.warning:
        print(explanations.warning, file=sys.stderr)
    if len(targets) > 1:
        print(f"drawn: {targets[found.target]} of {len(targets)} targets (--target names another); atoms.csv has all")
