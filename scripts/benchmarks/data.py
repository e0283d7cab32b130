"""From SMILES to batches: cost per molecule of every step, compared with RDKit's parser, OGB and plain copying."""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem, rdBase

from benchmarks.report import figure, interleaved
from graphslice.chem.molecule import MolArrays, read_smiles
from graphslice.config import GraphConfig
from graphslice.data.batch_loader import BatchLoader, collate_rows
from graphslice.data.batch_samplers import TrainBatches
from graphslice.data.featurize import featurize_stream, featurizer_pool
from graphslice.data.labels import Labels
from graphslice.data.preprocess import build_store
from graphslice.data.rows import LabelledRows
from graphslice.data.store import GraphStore, StoreInfo
from graphslice.evaluation.plots import new_figure
from graphslice.system.machine import DEMO_CSV

# The original code (Cython preprocessing and collate, every epoch), and MolFromSmiles on the same
# machine: 2-core AMD EPYC, the first 1,024 molecules of PCQM4Mv2.
ORIGINAL_US, ORIGINAL_PARSE_US, ORIGINAL_BYTES = 989, 46, 52_000
BATCH = 256
SETTINGS = {"path_ties": "mean", "max_path": 5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--molecules", default=DEMO_CSV, help="a CSV file with a column smiles (default: the demo set)")
    parser.add_argument("--rows", type=int, default=1024, help="how many of its molecules are parsed")
    parser.add_argument("--plot", metavar="FILE.png", help="draw cost per molecule against size, 10 to 500 atoms")


def run(options: argparse.Namespace) -> list[dict]:
    smiles = pd.read_csv(options.molecules)["smiles"].tolist()
    figures = [*_featurizing(smiles[: options.rows]), *_storing(smiles), *_batching(smiles)]
    if options.plot:
        _plot(Path(options.plot))
    return figures


def _featurizing(smiles: list[str]) -> list[dict]:
    smiles2graph = _ogb()
    functions = {
        "parse": _parse,
        "ogb": lambda texts: [smiles2graph(text) for text in texts],
        "input": lambda texts: read_smiles(texts, atom_order="input"),
        "canonical": read_smiles,
    }
    # In turns of a few milliseconds: the clock of a machine changes within a second.
    parts = [smiles[begin : begin + 64] for begin in range(0, len(smiles), 64)]
    turns = [interleaved({name: partial(function, part) for name, function in functions.items()}, 5) for part in parts]
    us = {name: sum(turn[name] for turn in turns) / len(smiles) * 1e6 for name in functions}
    many = smiles * max(1, 16_384 // len(smiles))
    with featurizer_pool(workers=None) as pool:
        all_cores = interleaved({"all": lambda: next(featurize_stream([many], GraphConfig(), pool=pool))}, 3)["all"]
    return [
        figure("RDKit MolFromSmiles, the floor", us["parse"], "us"),
        figure("OGB smiles2graph", us["ogb"] / us["parse"], "x MolFromSmiles"),
        figure("SMILES to graph, input order", us["input"] / us["parse"], "x MolFromSmiles", goal="<= 1.6"),
        figure("SMILES to graph, canonical order", us["canonical"] / us["parse"], "x MolFromSmiles", goal="<= 2"),
        figure("SMILES to store, all cores", len(many) / all_cores, "molecules/s"),
    ]


def _parse(texts: list[str]) -> None:
    with rdBase.BlockLogs():
        for text in texts:
            Chem.MolFromSmiles(text)


def _ogb():
    """``smiles2graph``, imported without OGB's look at the network."""
    sys.modules.setdefault("outdated", None)
    from ogb.utils import smiles2graph

    return smiles2graph


def _storing(smiles: list[str]) -> list[dict]:
    count = len(smiles)
    rows = LabelledRows(smiles, Labels.of_molecules(np.zeros((count, 1))), np.zeros(count, np.int8), {})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "benchmark.arrow"
        store = build_store(path, [rows], StoreInfo("benchmark", "", ("y",)))
        opened = interleaved({"open": lambda: GraphStore.open(path)}, 3)["open"]
        size = path.stat().st_size
        atoms = store.sizes.mean()
    return [
        figure(f"store, a label and a split included ({atoms:.1f} atoms)", size / count, "bytes", goal="<= 300"),
        figure("opening a store, its check included", size / opened / 1e9, "GB/s"),
    ]


def _batching(smiles: list[str]) -> list[dict]:
    arrays, *_ = read_smiles(smiles)
    arrays = MolArrays.join([arrays] * max(1, 60_000 // len(smiles)))
    store = GraphStore.from_arrays(arrays)
    rows = np.flatnonzero(store.sizes > 0)
    batches = list(TrainBatches(store.sizes[rows], BATCH, seed=0))
    some = [rows[batch] for batch in batches[:40]]
    made = [collate_rows(store, batch, **SETTINGS) for batch in some]
    count = sum(map(len, made))
    texts = smiles[:1024]

    def epoch(threads: int) -> None:
        for _ in BatchLoader(store, rows, batches, SETTINGS, threads=threads):
            pass

    times = interleaved(
        {
            "parse": lambda: _parse(texts),
            "mean": lambda: [collate_rows(store, batch, **SETTINGS) for batch in some],
            "one": lambda: [collate_rows(store, batch, path_ties="floyd-warshall", max_path=5) for batch in some],
            "copy": lambda: [batch._map(lambda tensor: tensor.clone()) for batch in made],
            "loader": lambda: epoch(2),
        },
        5,
    )
    ours, one, copy = (times[name] / count * 1e6 for name in ("mean", "one", "copy"))
    parsed = times["parse"] / len(texts) * 1e6
    faster = (ORIGINAL_US / ORIGINAL_PARSE_US) / (ours / parsed)
    slots = sum(len(batch) * store.sizes[rows[batch]].max() for batch in batches)
    padding = 1 - sum(store.sizes[rows[batch]].sum() for batch in batches) / slots
    wide = _of_width(store, rows, 18)
    bytes_each = sum(tensor.nbytes for tensor in vars(wide).values() if tensor is not None) / len(wide)
    original = f"{ORIGINAL_US} us where MolFromSmiles takes {ORIGINAL_PARSE_US}"
    return [
        figure("store to batch of 256, one core", ours, "us", goal="<= 10", comparison=original),
        figure("the same, less than the original", faster, "x", goal=">= 100", comparison="both over MolFromSmiles"),
        figure("the same, Floyd-Warshall's choice", one, "us"),
        figure("copying such a batch, the floor", copy, "us"),
        figure(
            "handed to the device, 18 atoms",
            bytes_each,
            "bytes",
            goal="<= 2048",
            comparison=f"{ORIGINAL_BYTES:,} bytes",
        ),
        figure("loader, 2 threads", len(rows) / times["loader"], "molecules/s", goal=">= 150,000"),
        figure("padding of atom slots, batch 256", 100 * padding, "%", goal="<= 5"),
    ]


def _of_width(store: GraphStore, rows: np.ndarray, width: int):
    """A batch padded to some number of atoms, of molecules about as large."""
    near = rows[(store.sizes[rows] <= width) & (store.sizes[rows] > width - 3)]
    at_width = rows[store.sizes[rows] == width]
    return collate_rows(store, np.concatenate([at_width[:1], np.unique(near)])[:BATCH], **SETTINGS)


_RESIDUES = ("C", "CC(C)C", "Cc1ccccc1", "CO", "CCC(=O)O", "CCCCN", "Cc1c[nH]c2ccccc12", "CCSC", "C(C)C", "CC(=O)N")


def _peptide(atoms: int, random: np.random.Generator) -> str:
    text, count = "N", 0
    while count < atoms:
        side = _RESIDUES[random.integers(len(_RESIDUES))]
        text += f"[C@@H]({side})C(=O)N"
        count = Chem.MolFromSmiles(text).GetNumAtoms()
    return text


def _plot(path: Path) -> None:
    from matplotlib.ticker import NullFormatter

    sizes = (10, 15, 20, 30, 45, 64, 70, 100, 150, 220, 330, 480)
    random = np.random.default_rng(0)
    lines: dict[str, list[float]] = {"MolFromSmiles": [], "SMILES to graph": [], "store to batch": []}
    actual = []
    for atoms in sizes:
        smiles = [_peptide(atoms, random) for _ in range(32)]
        arrays, *_ = read_smiles(smiles)
        store, rows = GraphStore.from_arrays(arrays), np.arange(32)
        actual.append(float(store.sizes.mean()))
        times = interleaved(
            {
                "MolFromSmiles": partial(_parse, smiles),
                "SMILES to graph": partial(read_smiles, smiles),
                "store to batch": partial(collate_rows, store, rows, **SETTINGS),
            }
        )
        for name, seconds in times.items():
            lines[name].append(seconds / 32 * 1e6)
    drawing, (axes,) = new_figure(1, (6, 4))
    axes.set(xlabel="heavy atoms (peptides)", ylabel="us per molecule, one core")
    for name, values in lines.items():
        axes.loglog(actual, values, marker="o", label=name)
    axes.set_xticks([10, 20, 50, 100, 200, 500], ["10", "20", "50", "100", "200", "500"])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend()
    axes.grid(True, which="both", alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=120)
