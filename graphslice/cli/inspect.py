"""``graphslice inspect``."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import load_model
from graphslice.errors import InputError

#: The module that :func:`run` works with.
MODULE = "graphslice.analysis.inspection"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """The options of the command; ``arguments`` are the words that follow its name."""
    parser.add_argument("model", help="a run folder or a checkpoint")
    parser.add_argument("--smiles", nargs="+", required=True, help="the molecules to look at it with")
    parser.add_argument("-o", "--out", help="the folder of tables and figures (default: inspect in the run folder)")
    parser.add_argument("--target", help="whose contributions are drawn (default: the first)")
    parser.add_argument(
        "--orders", type=int, default=256, help="in which the atoms appear: more for smaller errors (default: 256)"
    )
    parser.add_argument("--device", help="cpu, cuda, mps; a GPU where there is one")


def run(options: Namespace, arguments: list[str]) -> None:
    """Write tables and figures, and print what each atom adds; raises InputError for what cannot be used."""
    from graphslice.analysis.inspection import inspect
    from graphslice.analysis.spectra import rank_one_residual

    if options.orders < 2:
        raise InputError(f"--orders must be at least 2, not {options.orders}")
    model = Path(options.model)
    out = Path(options.out) if options.out else (model if model.is_dir() else model.parent) / "inspect"
    predictor = load_model(options)
    found, reasons, files = inspect(predictor, options.smiles, out, target=options.target, orders=options.orders)
    for smiles, reason in reasons.items():
        print(f"left out {smiles!r}: {reason}", file=sys.stderr)
    outputs = [name for task in predictor.tasks for name in task.output_names]
    for one in found:
        print(one.smiles)
        gave = one.attribution
        for t, target in enumerate(outputs):
            values, error = gave.values[one.places, t], gave.errors[:, t].max()
            print(
                f"  {target}: {gave.prediction[t]:.4f} = {gave.baseline[t]:.4f} of blank atoms "
                f"{values.sum():+.4f} of its atoms: {' '.join(f'{value:+.3f}' for value in values)}"
                + (f" (each ± {error:.1g} or less)" if error > 0 else "")
            )
        print(f"  rank-1 residual by depth: {' '.join(f'{rank_one_residual(rows):.3f}' for rows in one.trace.rows)}")
    print(f"{len(files)} files in {out}")
