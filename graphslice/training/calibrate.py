"""Calibration of a trained model on molecules that it did not learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from graphslice.calibration import ApplicabilityDomain, Calibration, fit_calibration
from graphslice.calibration.applicability_domain import DOMAIN_BITS, MAX_TRAINING_MOLECULES
from graphslice.checkpoint import add_to_checkpoint, read_checkpoint, save_ensemble_calibration
from graphslice.data.datamodule import MoleculeData
from graphslice.data.molecule_keys import fingerprint_rows, molecule_ids
from graphslice.data.splits import Splits
from graphslice.evaluation.out_of_fold import predict_held_out, rows_in_split
from graphslice.inference.predictor import Predictor
from graphslice.inference.uncertainty import difficulty_estimates, nearest_training_molecules
from graphslice.run_files import BEST, write_training_smiles

#: The most molecules that a calibration is made of; of more, as many at random.
MAX_CALIBRATION_ROWS = 5_000


def calibrate(folder: Path, data: MoleculeData, device: torch.device) -> Calibration:
    """Calibrate the best checkpoint of a run on its validation molecules, and keep that in it.

    Args:
        folder: of the run.
        data: what it was trained on.
        device: that predicts.
    """
    predictor, dataset = Predictor(replace(read_checkpoint(folder), calibration=None), device), data.dataset
    rows, seed = _random_subset(data.splits["valid"], MAX_CALIBRATION_ROWS, data), data.config.trainer.seed
    domain = _fit_domain(data, data.splits["train"], seed)
    answers, difficulty = _predict_with_difficulty(predictor, domain, data, rows)
    molecules = _molecule_ids(data, rows)
    calibration = fit_calibration(answers, difficulty, dataset.labels(rows), molecules, dataset.tasks, domain)
    add_to_checkpoint(folder / BEST, calibration)
    _write_domain_smiles(folder, data, domain)
    return calibration


def calibrate_ensemble(
    out: Path, models: Sequence[Predictor], splits: Sequence[Splits], split: str, data: MoleculeData
) -> Calibration:
    """Calibrate several models together, each molecule by those that did not learn it, and keep that beside them.

    Where each has molecules of its own, as folds have, the errors are those of one model, and not less than those of
    the mean of all, by which new molecules are answered (cross-conformal: Vovk 2015, doi:10.1007/s10472-013-9368-4).

    Args:
        out: the folder of the run.
        models: its models, each calibrated.
        splits: of each.
        split: whose molecules each did not learn.
        data: what they were trained on.
    """
    dataset = data.dataset
    learned = np.unique(np.concatenate([each["train"] for each in splits]))  # by any of them, but no common test
    domain = _fit_domain(data, learned, data.config.trainer.seed)
    rows = np.sort(_random_subset(rows_in_split(splits, split), MAX_CALIBRATION_ROWS, data))
    if all(np.array_equal(each[split], splits[0][split]) for each in splits):
        checkpoints = [checkpoint for model in models for checkpoint in model.checkpoints]
        answers, difficulty = _predict_with_difficulty(Predictor(checkpoints, models[0].device), domain, data, rows)
    else:
        own = predict_held_out(models, splits, split, data.store, rows)
        answers, difficulty = own.mean, own.difficulty
    molecules = _molecule_ids(data, rows)
    calibration = fit_calibration(answers, difficulty, dataset.labels(rows), molecules, dataset.tasks, domain)
    save_ensemble_calibration(calibration, out)
    _write_domain_smiles(out, data, domain)
    return calibration


def _molecule_ids(data: MoleculeData, rows: np.ndarray) -> np.ndarray:
    """Which molecule each label of some rows is of: a molecule that was measured several times is one."""
    return molecule_ids(data.store, rows)[data.dataset.molecules(rows)]


def _predict_with_difficulty(
    predictor: Predictor, domain: ApplicabilityDomain, data: MoleculeData, rows: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What a model answers for some rows, and what may tell of the size of its errors; see :func:`fit_calibration`."""
    answers, found = predictor.predict_uncalibrated(data.store, rows)
    similarity, counts = (
        nearest_training_molecules(domain, data.store, rows)[0],
        data.store.atom_bond_counts(predictor.level, rows),
    )
    return answers, difficulty_estimates(found, similarity, counts, len(predictor.tasks))


def _fit_domain(data: MoleculeData, rows: np.ndarray, seed: int) -> ApplicabilityDomain:
    max_training_atoms = int(data.store.sizes[rows].max(initial=0))
    rows = np.sort(_random_subset(rows, MAX_TRAINING_MOLECULES, data))
    return ApplicabilityDomain.from_fingerprints(
        fingerprint_rows(data.store, rows, DOMAIN_BITS), rows, seed, max_training_atoms
    )


def _random_subset(rows: np.ndarray, most: int, data: MoleculeData) -> np.ndarray:
    """As many rows at most, at random."""
    if len(rows) <= most:
        return rows
    return np.random.default_rng(data.config.trainer.seed).choice(rows, most, replace=False)


def _write_domain_smiles(folder: Path, data: MoleculeData, domain: ApplicabilityDomain) -> None:
    if data.dataset.smiles:
        write_training_smiles(folder, domain.rows, [data.dataset.smiles[row] for row in domain.rows.tolist()])
