"""Measure how much predictions depend on the batch and on the SMILES notation.

    python scripts/check_promises.py                        # the embedded demo set, fresh models
    python scripts/check_promises.py molecules.csv --runs runs/demo

For every mixer (and every run folder given), each molecule is predicted in sorted batches, in
random batches, alone, and under random rewritings of its SMILES. The largest difference is printed
as a share of the standard deviation of the predictions over molecules. A rewriting that gives the
same arrays gives the same prediction up to its batch, so only those that give others are predicted
again; their molecules are listed, since RDKit's canonical ranking is what differed.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from rdkit import Chem, RDLogger

from graphslice.chem import MoleculeError, MolGraph, smiles_to_graph
from graphslice.config import RunConfig
from graphslice.data.batches import collate
from graphslice.inference.predictor import Predictor, load
from graphslice.nn import GraphTransformer
from graphslice.nn.mixers import MIXERS
from graphslice.runs.checkpoint import Checkpoint
from graphslice.system.machine import DEMO_CSV
from graphslice.tasks import regression_tasks

_REWRITINGS = 20  # of each molecule


def smiles_rewritings(smiles: str) -> tuple[MolGraph, list[MolGraph]] | None:
    """The graph of a SMILES, and the graphs of its rewritings that are not the same arrays."""
    RDLogger.DisableLog("rdApp.*")
    try:
        graph = smiles_to_graph(smiles)
    except MoleculeError:
        return None
    others = []
    for text in Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(smiles), _REWRITINGS, randomSeed=1):
        other = smiles_to_graph(text)
        same = all(np.array_equal(getattr(graph, f), getattr(other, f)) for f in ("atoms", "bonds", "bond_features"))
        if not same:
            others.append(other)
    return graph, others


def fresh_model(mixer: str) -> Predictor:
    """An untrained model of the demo's size."""
    config = RunConfig.preset("small")
    config = replace(config, model=replace(config.model, mixer=mixer))
    torch.manual_seed(0)
    model = GraphTransformer(config.model)
    return Predictor(Checkpoint(config, regression_tasks(["y"]), model.state_dict()))


def predict_in_order(predictor: Predictor, graphs: list[MolGraph], order: np.ndarray, batch_size: int) -> np.ndarray:
    """Predictions of the first target, in batches of the given order."""
    values = np.empty(len(graphs))
    with torch.inference_mode():
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            batch = collate([graphs[row] for row in rows], path_ties=predictor.config.graph.path_ties)
            values[rows] = predictor.model(batch.to(predictor.device))[:, 0].double().cpu().numpy()
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", nargs="?", type=Path, default=DEMO_CSV)
    parser.add_argument("--runs", nargs="*", default=[], help="trained models to measure in addition")
    arguments = parser.parse_args()

    table = pd.read_csv(arguments.csv)
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(smiles_rewritings, table["smiles"], chunksize=64))
    graphs = [item[0] for item in found if item is not None]
    odd = [(i, other) for i, item in enumerate(x for x in found if x is not None) for other in item[1]]
    names = [smiles for smiles, item in zip(table["smiles"], found, strict=True) if item is not None]
    print(f"{len(graphs):,} molecules, {_REWRITINGS} rewritings each")
    print(f"{len({i for i, _ in odd})} molecules with a rewriting that RDKit ranks otherwise", flush=True)
    for i in sorted({i for i, _ in odd}):
        print(f"  {names[i]}")

    shuffled = np.random.default_rng(0).permutation(len(graphs))
    by_size = np.argsort([graph.num_atoms for graph in graphs], kind="stable")
    models = {f"fresh {mixer}": partial(fresh_model, mixer) for mixer in sorted(MIXERS)}
    models |= {run: partial(load, run) for run in arguments.runs}
    print(f"{'model':32} {'std':>9} {'mixed batch':>12} {'alone':>12} {'rewritten':>12}   (largest difference / std)")
    for name, make in models.items():
        predictor = make()
        reference = predict_in_order(predictor, graphs, by_size, 128)
        spread = reference.std()
        mixed = np.abs(predict_in_order(predictor, graphs, shuffled, 64) - reference).max() / spread
        alone = np.abs(predict_in_order(predictor, graphs, by_size, 1) - reference).max() / spread
        again = 0.0
        if odd:
            values = predict_in_order(predictor, [other for _, other in odd], np.arange(len(odd)), 1)
            again = np.abs(values - reference[[i for i, _ in odd]]).max() / spread
        print(f"{name:32} {spread:9.4f} {mixed:12.2e} {alone:12.2e} {max(again, alone):12.2e}", flush=True)


if __name__ == "__main__":
    main()
