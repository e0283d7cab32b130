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
from graphslice.model_files import home_of
from graphslice.progress import molecule_progress

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
    from graphslice.analysis.inspection import MOST_DRAWN, inspect, read_listed, refuse_table_of_others

    if options.orders < 2:
        raise InputError(f"--orders must be at least 2, not {options.orders}")
    words = [*options.molecules, *options.smiles]
    if not words:
        raise InputError("inspect needs molecules: SMILES, or a file of them; see graphslice inspect --help")
    out = Path(options.out) if options.out else (home_of(options.model) or Path()) / "inspect"
    refuse_table_of_others(words, out)
    predictor = load_model(options)
    console = Console(stderr=True)
    with molecule_progress("explaining", None, console) as advance:
        found = inspect(
            predictor,
            read_listed(predictor, words, options.smiles_column),
            out,
            target=options.target,
            orders=options.orders,
            everything=options.all,
            progress=advance,
        )
    for one in found.found:
        _print(one, found.target)
    _say(found, predictor.targets)
    if found.more:
        print(f"the first {MOST_DRAWN} molecules are drawn; there are more")
    print(f"{len(found.files)} files in {out}")


def _print(one: Inspected, target: int) -> None:
    """What is in the picture of a molecule, in words."""
    told = one.told[target]
    values = [
        f"{element} {told.digits.text(value, sign=True)}"
        for element, value in zip(one.elements, told.values, strict=True)
    ]
    lines = [
        f"{told.quantity}: {told.sum}" + (f"; the model answers: {told.answer}" if told.answer else ""),
        f"{' '.join(values)}{told.digits.times}" + (f"; {told.within}" if told.within else ""),
    ]
    print(one.smiles, *(line.replace("\N{MINUS SIGN}", "-") for line in lines), sep="\n  ")


def _say(found: Inspection, targets: list[str]) -> None:
    """What is to be known of them all."""
    from graphslice.analysis.wording import SEVERAL_CLASSES

    for _, text, reason in found.left_out[:_REASONS]:
        print(f"left out {text!r}: {reason}", file=sys.stderr)
    if (others := len(found.left_out) - _REASONS) > 0:
        print(f"left out {others:,} more that cannot be read", file=sys.stderr)
    told = found.found[0].told[found.target]
    legend, up, down = told.legend, told.up, told.down
    if len({one.told[found.target].quantity for one in found.found}) > 1:  # of several classes each has its own
        legend, down, up = SEVERAL_CLASSES
    print(f"{legend}: red {up}, blue {down}" + "".join(f"; {note}" for note in told.notes))
    if told.warning:
        print(told.warning, file=sys.stderr)
    if len(targets) > 1:
        print(f"drawn: {targets[found.target]} of {len(targets)} targets (--target names another); atoms.csv has all")
