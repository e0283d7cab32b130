"""Create a packaged model from a run: ``python scripts/pack_model.py RUN NAME [options]``.

Weights are stored as float16, except mean and standard deviation of the targets, and paths of the run are removed.
The calibration is kept, with fingerprints of training molecules, and with their SMILES if ``--table`` gives the table
from which the preprocessed dataset was made. ``--bare`` removes the calibration too.
"""

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from graphslice.calibration import Calibration
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.featurize import molecule_keys, parse
from graphslice.data.store import GraphStore
from graphslice.runs.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from graphslice.runs.run_files import CORPUS

WEIGHTS = Path(__file__).parents[1] / "graphslice" / "weights"
EXACT = ("target_mean", "target_std")


def strip_checkpoint(checkpoint: Checkpoint, bare: bool) -> Checkpoint:
    """Remove paths and training settings from a checkpoint without descriptors, tree ensembles and frozen layers."""
    config = checkpoint.config
    if config.data.descriptors or checkpoint.stacking or config.trainer.freeze != "none":
        raise ValueError("models with descriptors, tree ensembles or frozen layers cannot be packaged")
    weights = {
        name: weight if name in EXACT or weight.dtype.kind != "f" else weight.astype(np.float16)
        for name, weight in checkpoint.weights.items()
    }
    trainer = replace(config.trainer, target_weights=None, metric=None)
    config = replace(config, data=DataConfig(dataset="corpus"), trainer=trainer, init_from=None)
    return Checkpoint(config, checkpoint.tasks, weights, calibration=None if bare else checkpoint.calibration)


def elements(corpus: GraphStore) -> list[int]:
    """Return the elements of a corpus as OGB indices; datasets with others are not fine-tuned from the model."""
    found = [
        np.unique(np.asarray(batch.column("atoms").values.values).reshape(-1, 9)[:, 0]) for batch in corpus.batches
    ]
    return np.unique(np.concatenate(found)).tolist()


def with_smiles(calibration: Calibration, corpus: GraphStore, table: Path) -> Calibration:
    """Add the SMILES of the training molecules, which are rows of the corpus, to a calibration."""
    texts = pd.read_csv(table, usecols=["smiles"])["smiles"].tolist()
    store = GraphStore.from_arrays(*parse(texts, GraphConfig())[:2])
    known = dict(zip(molecule_keys(store, np.arange(len(store))).identity.tolist(), texts, strict=True))
    wanted = molecule_keys(corpus, calibration.domain.rows).identity.tolist()
    return replace(calibration, domain=replace(calibration.domain, smiles=tuple(known[one] for one in wanted)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--corpus", type=Path, help="dataset of the training (default: that of the pretraining)")
    parser.add_argument("--peak-lr", type=float, help="peak learning rate for fine-tuning (default: its own)")
    parser.add_argument(
        "--bare", action="store_true", help="without calibration: for a model used only for fine-tuning"
    )
    parser.add_argument("--units", default="", metavar="TARGET=UNIT,...", help="units of the targets")
    parser.add_argument("--table", type=Path, help="source of the dataset, with a column smiles")
    options = parser.parse_args()
    corpus = GraphStore.open(options.corpus or options.run / CORPUS)
    known = elements(corpus)
    made = replace(strip_checkpoint(read_checkpoint(options.run), options.bare), extra={"elements": known})
    if options.table and made.calibration:
        made = replace(made, calibration=with_smiles(made.calibration, corpus, options.table))
    units = dict(pair.split("=") for pair in options.units.split(",") if pair)
    made.tasks = [replace(task, unit=units.get(task.name, "")) for task in made.tasks]
    if options.peak_lr:
        optimizer = replace(made.config.optimizer, peak_lr=options.peak_lr)
        made = replace(made, config=replace(made.config, optimizer=optimizer))
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "kept.safetensors"
        save_checkpoint(made, kept)
        parameters = read_checkpoint(kept).model().num_parameters  # it can be read back
        WEIGHTS.mkdir(exist_ok=True)
        path = shutil.copyfile(kept, WEIGHTS / f"{options.name}.safetensors")
    size = path.stat().st_size / 1e6
    print(f"{path}: {size:.2f} MB, {parameters:,} parameters, {len(known)} elements")


if __name__ == "__main__":
    main()
