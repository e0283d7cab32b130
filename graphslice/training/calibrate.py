"""Calibration of trained models on held-out molecules."""

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
from graphslice.data.splits import Splits, sample_rows
from graphslice.evaluation.out_of_fold import predict_held_out, rows_in_split
from graphslice.inference.predictor import Predictor
from graphslice.inference.uncertainty import difficulty_estimates, nearest_training_molecules
from graphslice.run_files import BEST, write_training_smiles

#: Maximum number of molecules used for calibration; of more, a random sample is used.
MAX_CALIBRATION_ROWS = 5_000


def calibrate(folder: Path, data: MoleculeData, device: torch.device) -> Calibration:
    """Calibrate the best checkpoint of a run on its validation set, and save the calibration in the checkpoint.

    Args:
        folder: run directory.
        data: molecules of the run.
        device: device that predicts.

    Returns:
        The calibration.
    """
    predictor, dataset = Predictor(replace(read_checkpoint(folder), calibration=None), device), data.dataset
    seed = data.config.trainer.seed
    random = np.random.default_rng(seed)
    rows = sample_rows(data.splits["valid"], MAX_CALIBRATION_ROWS, random, ascending=False)
    domain = _fit_domain(data, data.splits["train"], seed)
    predictions, difficulty = _predict_with_difficulty(predictor, domain, data, rows)
    molecules = _molecule_ids(data, rows)
    calibration = fit_calibration(predictions, difficulty, dataset.labels(rows), molecules, dataset.tasks, domain)
    add_to_checkpoint(folder / BEST, calibration)
    _write_domain_smiles(folder, data, domain)
    return calibration


def calibrate_ensemble(
    out: Path, models: Sequence[Predictor], splits: Sequence[Splits], split: str, data: MoleculeData
) -> Calibration:
    """Calibrate an ensemble on predictions of held-out molecules, and save the calibration in its run directory.

    If the members have different held-out molecules, as in a cross-validation, the errors are those of single members.
    They are not smaller than those of the ensemble mean that is predicted for new molecules (cross-conformal
    prediction, Vovk 2015, doi:10.1007/s10472-013-9368-4).

    Args:
        out: run directory of the ensemble.
        models: its members, each calibrated.
        splits: split of each member.
        split: name of the split whose molecules each member held out.
        data: molecules of the run.

    Returns:
        The calibration.
    """
    dataset = data.dataset
    # Training molecules of any member: a test set shared by all is not part of the applicability domain.
    training = np.unique(np.concatenate([member["train"] for member in splits]))
    seed = data.config.trainer.seed
    domain = _fit_domain(data, training, seed)
    rows = np.sort(sample_rows(rows_in_split(splits, split), MAX_CALIBRATION_ROWS, np.random.default_rng(seed)))
    if all(np.array_equal(member[split], splits[0][split]) for member in splits):
        checkpoints = [checkpoint for model in models for checkpoint in model.checkpoints]
        predictions, difficulty = _predict_with_difficulty(Predictor(checkpoints, models[0].device), domain, data, rows)
    else:
        held_out = predict_held_out(models, splits, split, data.store, rows)
        predictions, difficulty = held_out.mean, held_out.difficulty
    molecules = _molecule_ids(data, rows)
    calibration = fit_calibration(predictions, difficulty, dataset.labels(rows), molecules, dataset.tasks, domain)
    save_ensemble_calibration(calibration, out)
    _write_domain_smiles(out, data, domain)
    return calibration


def _molecule_ids(data: MoleculeData, rows: np.ndarray) -> np.ndarray:
    """Return the molecule index of each label; repeated measurements of a molecule share one."""
    return molecule_ids(data.store, rows)[data.dataset.molecules(rows)]


def _predict_with_difficulty(
    predictor: Predictor, domain: ApplicabilityDomain, data: MoleculeData, rows: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the predictions and the estimates of their difficulty, as :func:`fit_calibration` takes them."""
    predictions, estimates = predictor.predict_uncalibrated(data.store, rows)
    similarity, counts = (
        nearest_training_molecules(domain, data.store, rows)[0],
        data.store.atom_bond_counts(predictor.level, rows),
    )
    return predictions, difficulty_estimates(estimates, similarity, counts, len(predictor.tasks))


def _fit_domain(data: MoleculeData, rows: np.ndarray, seed: int) -> ApplicabilityDomain:
    """Return the applicability domain of a training set, or of a sample of it."""
    max_training_atoms = int(data.store.sizes[rows].max(initial=0))
    rows = np.sort(sample_rows(rows, MAX_TRAINING_MOLECULES, np.random.default_rng(seed)))
    return ApplicabilityDomain.from_fingerprints(
        fingerprint_rows(data.store, rows, DOMAIN_BITS), rows, seed, max_training_atoms
    )


def _write_domain_smiles(folder: Path, data: MoleculeData, domain: ApplicabilityDomain) -> None:
    """Write the SMILES of the molecules of an applicability domain, if there are any."""
    if data.dataset.smiles:
        write_training_smiles(folder, domain.rows, [data.dataset.smiles[row] for row in domain.rows.tolist()])
