"""What the compiled reader of RDKit's binary molecules (``chem/rdkit_pickle.py``) gains in whole runs of the commands.

Each command is run with it and without, in turns: without it ``chem/features.py`` reads every molecule through RDKit's
Python interface. Both must write the same bytes. The gain is the share of the time that the reader saves, the median
over the turns: of the time on the clock, and of the processors' time, which other programs on the machine change less.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rdkit import rdBase

from benchmarks.report import figure
from graphslice.chem import molecule
from graphslice.chem.features import molecule_features
from graphslice.chem.molecule import EMPTY_GRAPH, MolArrays, MolGraph
from graphslice.chem.parse import MAX_ATOMS, MoleculeError, canonical_ranks
from graphslice.chem.renumber import renumber
from graphslice.data import featurize as pool
from graphslice.package_data import DEMO_CSV

COMMANDS = ("predict", "featurize", "train")
# What a child runs in place of ``graphslice``; the first argument says whether the reader is used.
_CHILD = "import sys; from benchmarks.reader import command; command(sys.argv[1], sys.argv[2:])"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--molecules", default=DEMO_CSV, help="a table of SMILES; for train, with one target")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=["predict", "featurize"])
    parser.add_argument("--model", default="gap", help="the model that predicts (default: gap)")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of train, whose cache is empty (default: 1)")
    parser.add_argument("--turns", type=int, default=3)


def run(options: argparse.Namespace) -> list[dict]:
    return [row for name in options.commands for row in _compare(name, options)]


def _compare(name: str, options: argparse.Namespace) -> list[dict]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        arguments = {
            "predict": [options.model, options.molecules, "-o", str(folder / "out.csv"), "--overwrite", "--device=cpu"],
            "featurize": [options.molecules, "-o", str(folder / "out.arrow"), "--overwrite"],
            "train": [
                *("--dataset", options.molecules, "-o", str(folder / "run"), "--cache", str(folder / "cache")),
                *("--init-from", "none", "--epochs", str(options.epochs), "--overwrite"),
            ],
        }[name]
        seconds: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
        for turn in range(-1, options.turns):  # the first one warms the caches of files and kernels
            written = {}
            for reader, found in seconds.items():
                shutil.rmtree(folder / "cache", ignore_errors=True)
                taken = _seconds([reader, name, *arguments])
                written[reader] = b"".join(path.read_bytes() for path in sorted(folder.glob("out.*")))
                if turn >= 0:
                    found.append(taken)
                    print(f"{name} {reader}: {taken[0]:.2f} s, {taken[1]:.2f} s of processors", file=sys.stderr)
            assert written["with"] == written["without"], f"{name} writes something else without the reader"
    ours, plain = (np.array(found) for found in seconds.values())
    wall, processors = 100 * np.median(1 - ours / plain, axis=0)
    return [
        figure(f"{name}: with the reader", float(np.median(ours[:, 0])), "s"),
        figure(f"{name}: without it", float(np.median(plain[:, 0])), "s"),
        figure(f"{name}: time that the reader saves", float(wall), "%", goal=">= 5"),
        figure(f"{name}: processors' time that it saves", float(processors), "%"),
    ]


def _seconds(arguments: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds, and those of the processors."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", _CHILD, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def command(reader: str, arguments: list[str]) -> None:
    """Run ``graphslice`` with the reader, or without."""
    from graphslice.cli.main import main

    if reader == "without":
        pool.read_smiles = _read_plainly  # processes of the pool are forked, so they have it too
    sys.exit(main(arguments))


def _read_plainly(
    smiles: Sequence[str], *, atom_order: str = "canonical", max_atoms: int = MAX_ATOMS
) -> tuple[MolArrays, list[str | None]]:
    """``read_smiles``, with ``features.py`` alone."""
    canonical = atom_order == "canonical"
    graphs, reasons, ranks = [], [], []
    with rdBase.BlockLogs():
        for text in smiles:
            try:
                mol = molecule._parse_for_graph(text, max_atoms, canonical)
            except MoleculeError as reason:
                graphs.append(EMPTY_GRAPH)
                reasons.append(str(reason))
                continue
            graphs.append(MolGraph(*molecule_features(mol)))
            reasons.append(None)
            if canonical:
                ranks += canonical_ranks(mol)
    arrays = MolArrays.from_graphs(graphs)
    if canonical:
        numbers = np.array(ranks, np.int32)
        renumber(numbers, arrays.atom_ptr, arrays.bond_ptr, arrays.atoms, arrays.bonds, arrays.bond_type_ids)
    return arrays, reasons
