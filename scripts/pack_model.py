"""Make a model that comes with the package: ``python scripts/pack_model.py RUN NAME [options]``.

Weights are kept in float16, but for the mean and deviation of the targets; what the run knows of its files is left out.
What it knows of its errors stays, with fingerprints of training molecules, and their SMILES where ``--table`` names
the table that its store was made of; ``--bare`` leaves that out too.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from graphslice.calibration import Calibration
from graphslice.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.featurize import featurize
from graphslice.data.molecule_keys import molecule_keys
from graphslice.data.store import GraphStore
from graphslice.run_files import CORPUS

WEIGHTS = Path(__file__).parents[1] / "graphslice" / "weights"
EXACT = ("target_mean", "target_std")


def strip_checkpoint(checkpoint: Checkpoint, bare: bool) -> Checkpoint:
    """The model without where it was made; raises ValueError for one that is more than a network of graphs."""
    config = checkpoint.config
    if config.data.descriptors or checkpoint.stacking or config.trainer.freeze != "none":
        raise ValueError("models that read descriptors, answer with trees or were partly frozen are not packed")
    weights = {
        name: weight.clone() if name in EXACT or not weight.is_floating_point() else weight.half()
        for name, weight in checkpoint.weights.items()
    }
    trainer = replace(config.trainer, target_weights=None, metric=None)
    config = replace(config, data=DataConfig(dataset="corpus"), trainer=trainer, init_from=None)
    return Checkpoint(config, checkpoint.tasks, weights, calibration=None if bare else checkpoint.calibration)


def elements(corpus: GraphStore) -> list[int]:
    """The elements of a store's molecules, as OGB numbers them: small tables of others do not start from the model."""
    found = [
        np.unique(np.asarray(batch.column("atoms").values.values).reshape(-1, 9)[:, 0]) for batch in corpus.batches
    ]
    return np.unique(np.concatenate(found)).tolist()


def with_smiles(calibration: Calibration, corpus: GraphStore, table: Path) -> Calibration:
    """A calibration that knows the SMILES of its training molecules, which are rows of the corpus."""
    texts = pd.read_csv(table, usecols=["smiles"])["smiles"].tolist()
    store, _ = featurize(texts, GraphConfig())
    known = dict(zip(molecule_keys(store, np.arange(len(store))).identity.tolist(), texts, strict=True))
    wanted = molecule_keys(corpus, calibration.domain.rows).identity.tolist()
    return replace(calibration, domain=replace(calibration.domain, smiles=tuple(known[one] for one in wanted)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--corpus", type=Path, help="the store that it learned (default: that of a pretraining)")
    parser.add_argument("--peak-lr", type=float, help="of runs that begin with it (default: its own)")
    parser.add_argument("--bare", action="store_true", help="without intervals: for a model that is only begun with")
    parser.add_argument("--table", type=Path, help="what the store was made of, with the column smiles")
    options = parser.parse_args()
    corpus = GraphStore.open(options.corpus or options.run / CORPUS)
    known = elements(corpus)
    made = replace(strip_checkpoint(read_checkpoint(options.run), options.bare), extra={"elements": known})
    if options.table and made.calibration:
        made = replace(made, calibration=with_smiles(made.calibration, corpus, options.table))
    if options.peak_lr:
        optimizer = replace(made.config.optimizer, peak_lr=options.peak_lr)
        made = replace(made, config=replace(made.config, optimizer=optimizer))
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "kept.ckpt"
        save_checkpoint(made, kept)
        parameters = read_checkpoint(kept).model().num_parameters  # it can be read back
        WEIGHTS.mkdir(exist_ok=True)
        path = shutil.copyfile(kept, WEIGHTS / f"{options.name}.ckpt")
    size = path.stat().st_size / 1e6
    print(f"{path}: {size:.2f} MB, {parameters:,} parameters, {len(known)} elements")


if __name__ == "__main__":
    main()
