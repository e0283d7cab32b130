"""Calibration of a trained model on molecules that it did not learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from graphslice.calibration import Calibration, Domain, fit_calibration
from graphslice.calibration.domain import BITS, MOST_KEPT
from graphslice.checkpoint import add_to_checkpoint, read_checkpoint, save_together
from graphslice.data.datamodule import MoleculeData
from graphslice.data.hashes import fingerprint_rows, number_molecules
from graphslice.data.splits import Splits
from graphslice.evaluation.several import ask_each, rows_of
from graphslice.inference.doubt import difficulty_of, nearest_of
from graphslice.inference.predictor import Predictor, load
from graphslice.model_files import BEST, write_domain

#: The most molecules that a calibration is made of; of more, as many at random.
MOST_ROWS = 5_000


def calibrate(folder: Path, data: MoleculeData, device: torch.device) -> Calibration:
    """Calibrate the best checkpoint of a run on its validation molecules, and keep that in it.

    Args:
        folder: of the run.
        data: what it was trained on.
        device: that predicts.
    """
    predictor, source = Predictor(replace(read_checkpoint(folder), calibration=None), device), data.source
    rows, seed = _some(data.splits["valid"], MOST_ROWS, data), data.config.trainer.seed
    domain = _domain_of(data, data.splits["train"], seed)
    answers, difficulty = _measured(predictor, domain, data, rows)
    molecules = _molecules_of(data, rows)
    calibration = fit_calibration(answers, difficulty, source.labels(rows), molecules, source.tasks, domain)
    add_to_checkpoint(folder / BEST, calibration)
    _write_names(folder, data, domain)
    return calibration


def calibrate_members(
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
    source = data.source
    learned = np.unique(np.concatenate([each["train"] for each in splits]))  # by any of them, but no common test
    domain = _domain_of(data, learned, data.config.trainer.seed)
    rows = np.sort(_some(rows_of(splits, split), MOST_ROWS, data))
    if all(np.array_equal(each[split], splits[0][split]) for each in splits):
        answers, difficulty = _measured(load(out, models[0].device), domain, data, rows)
    else:
        own = ask_each(models, splits, split, data.store, rows)
        answers, difficulty = own.mean, own.difficulty
    molecules = _molecules_of(data, rows)
    calibration = fit_calibration(answers, difficulty, source.labels(rows), molecules, source.tasks, domain)
    save_together(calibration, out)
    _write_names(out, data, domain)
    return calibration


def _molecules_of(data: MoleculeData, rows: np.ndarray) -> np.ndarray:
    """Which molecule each label of some rows is of: a molecule that was measured several times is one."""
    return number_molecules(data.store, rows)[data.source.molecules(rows)]


def _measured(
    predictor: Predictor, domain: Domain, data: MoleculeData, rows: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What a model answers for some rows, and what may tell of the size of its errors; see :func:`fit_calibration`."""
    answers, found = predictor.measure(data.store, rows)
    similarity, counts = nearest_of(domain, data.store, rows)[0], data.store.site_counts(predictor.level, rows)
    return answers, difficulty_of(found, similarity, counts, len(predictor.tasks))


def _domain_of(data: MoleculeData, rows: np.ndarray, seed: int) -> Domain:
    most_atoms = int(data.store.sizes[rows].max(initial=0))
    rows = np.sort(_some(rows, MOST_KEPT, data))
    return Domain.of(fingerprint_rows(data.store, rows, BITS), rows, seed, most_atoms)


def _some(rows: np.ndarray, most: int, data: MoleculeData) -> np.ndarray:
    """As many rows at most, at random."""
    if len(rows) <= most:
        return rows
    return np.random.default_rng(data.config.trainer.seed).choice(rows, most, replace=False)


def _write_names(folder: Path, data: MoleculeData, domain: Domain) -> None:
    if data.source.smiles:
        write_domain(folder, domain.rows, [data.source.smiles[row] for row in domain.rows.tolist()])
