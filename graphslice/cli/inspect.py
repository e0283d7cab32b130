"""``graphslice inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import MOLECULE_FILES, add_device, add_model, add_molecules, load_model
from graphslice.errors import check_new, pluralize
from graphslice.runs.run_files import run_directory_of
from graphslice.system.console import molecule_progress, remark, standard_error
from graphslice.system.hub import is_hub_model

if TYPE_CHECKING:
    from graphslice.explain.inspect import Inspected, Inspection

MODULE = "graphslice.explain.inspect"
EXAMPLES = "runs/my CCO", "runs/my molecules.csv --target logp -o pictures"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    add_model(parser)
    add_molecules(parser, f"SMILES, or any {MOLECULE_FILES}; the first 100 molecules are drawn")
    parser.add_argument(
        "-o", "--out", metavar="FOLDER", help="output directory (default: inspect in the run directory)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the files of an earlier call in --out")
    parser.add_argument("--target", metavar="COLUMN", help="target to draw, or part of its name (default: the first)")
    parser.add_argument(
        "--orders",
        type=int,
        metavar="N",
        default=256,
        help="number of sampled atom permutations (default: 256); more reduces the standard error",
    )
    add_device(parser)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Write pictures and tables, and print the contribution of each atom; raise InputError for unusable input."""
    from graphslice.explain.inspect import MAX_DRAWN, TABLE, inspect, read_input_molecules

    home = None if is_hub_model(options.model) else run_directory_of(options.model)
    out = Path(options.out) if options.out else (home or Path()) / "inspect"
    check_new(out / TABLE, options.overwrite or not options.out)
    predictor = load_model(options)
    console = standard_error()
    with molecule_progress("explaining", None, console) as advance:
        inspection = inspect(
            predictor,
            read_input_molecules(predictor, options.molecules, options.smiles_column),
            out,
            target=options.target,
            orders=options.orders,
            progress=advance,
        )
    for one in inspection.found:
        _print_molecule(one, inspection.target)
    _print_summary(inspection, predictor.targets)
    if inspection.more:
        remark(f"only the first {MAX_DRAWN} molecules are drawn")
    print(f"{len(inspection.files)} files in {out}")
    files = [str(path) for path in inspection.files]
    return {"folder": str(out), "files": files, **inspection.to_dict(predictor.targets)}


def _print_molecule(one: Inspected, target: int) -> None:
    """Print the contributions that the picture of a molecule shows."""
    explanations = one.explanations[target]
    values = [
        f"{element} {explanations.digits.text(value, sign=True)}"
        for element, value in zip(one.elements, explanations.values, strict=True)
    ]
    lines = [
        f"{explanations.quantity}: {explanations.sum}"
        + (f"; prediction of the model: {explanations.model_prediction}" if explanations.model_prediction else ""),
        f"{' '.join(values)}{explanations.digits.times}"
        + (f"; {explanations.error_text}" if explanations.error_text else ""),
    ]
    print(one.smiles, *(line.replace("\N{MINUS SIGN}", "-") for line in lines), sep="\n  ")


def _print_summary(inspection: Inspection, targets: list[str]) -> None:
    """Print the legend, warnings and the molecules left out."""
    from graphslice.explain.attribution import SEVERAL_CLASSES

    if inspection.left_out:
        _, text, reason = inspection.left_out[0]
        count = pluralize(len(inspection.left_out), "molecule")
        remark(f"{count} left out; the first is {text!r}: {reason}", kind="warning")
    explanations = inspection.found[0].explanations[inspection.target]
    legend, up, down = explanations.legend, explanations.up, explanations.down
    if len({one.explanations[inspection.target].quantity for one in inspection.found}) > 1:
        legend, down, up = SEVERAL_CLASSES
    print(f"{legend}: red {up}, blue {down}" + "".join(f"; {note}" for note in explanations.notes))
    if explanations.warning:
        remark(explanations.warning, kind="warning")
    if len(targets) > 1:
        drawn = f"{targets[inspection.target]} of {len(targets)} targets"
        remark(f"drawn: {drawn} (--target names another); atoms.csv has all")
