"""Reproduce the papers' figures and compare them with the published numbers.

``python scripts/reproduce_figures.py smoothing|speed|spectra|depth``

Each prints a table and writes a figure to --out.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from graphslice.system.machine import hardware_info

sys.path.append(str(Path(__file__).parents[1] / "examples"))  # theory.py
FIGURES = ("smoothing", "speed", "spectra", "depth")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsers = parser.add_subparsers(dest="figure", required=True)
    modules = {name: importlib.import_module(f"paper_figures.{name}") for name in FIGURES}
    for name, module in modules.items():
        subparser = parsers.add_parser(name, help=module.__doc__, description=module.__doc__)
        module.add_arguments(subparser)
        subparser.add_argument("--out", type=Path, default=Path("docs/figures"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print(" | ".join(f"{name} {value}" for name, value in hardware_info().items()) + "\n")
    modules[options.figure].draw(options)


if __name__ == "__main__":
    main()
