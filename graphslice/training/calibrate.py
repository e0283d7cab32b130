"""Calibration of a trained model on molecules that it did not learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from graphslice.calibration import Calibration, Domain, fit_calibration
from graphslice.calibration.domain import BITS, MOST_KEPT
from graphslice.checkpoint import BEST, add_to_checkpoint, read_checkpoint, save_together, write_domain
from graphslice.data.datamodule import MoleculeData
from graphslice.data.hashes import fingerprint_rows
from graphslice.data.splits import Splits
from graphslice.inference.doubt import difficulty_of, nearest_of
from graphslice.inference.predictor import Predictor, load

#: The most molecules that a calibration is made of; of more, as many at random.
MOST_ROWS = 5_000


def calibrate(folder: Path, data: MoleculeData, device: torch.device) -> Calibration:
    """Calibrate the best checkpoint of a run on its validation molecules, and keep that in it.

    Args:
        folder: of the run.
        data: what it was trained on.
        device: that predicts.
    """
    predictor = Predictor(replace(read_checkpoint(folder), calibration=None), device)
    rows, seed = _some(data.splits["valid"], MOST_ROWS, data), data.config.trainer.seed
    domain = _domain_of(data, data.splits["train"], seed)
    answers, found = predictor.measure(data.store, rows)
    difficulty = difficulty_of(found, nearest_of(domain, data.store, rows)[0], len(predictor.tasks))
    calibration = fit_calibration(answers, difficulty, data.source.targets[rows], predictor.tasks, domain)
    add_to_checkpoint(folder / BEST, calibration)
    _write_names(folder, data, domain)
    return calibration


def calibrate_members(
    out: Path, folders: Sequence[Path], splits: Sequence[Splits], split: str, data: MoleculeData
) -> Calibration:
    """Calibrate several models together, each molecule by those that did not learn it, and keep that beside them.

    Where each has molecules of its own, as folds have, the errors are those of one model, and not less than those of
    the mean of all, by which new molecules are answered (cross-conformal: Vovk 2015, doi:10.1007/s10472-013-9368-4).

    Args:
        out: the folder of the run.
        folders: those of its models, each calibrated.
        splits: of each.
        split: whose molecules each did not learn.
        data: what they were trained on.
    """
    source, tasks = data.source, data.source.tasks
    learned = np.unique(np.concatenate([each["train"] for each in splits]))  # by any of them, but no common test
    domain = _domain_of(data, learned, data.config.trainer.seed)
    same = all(np.array_equal(each[split], splits[0][split]) for each in splits)
    rows = np.unique(np.concatenate([each[split] for each in splits]))
    if same:
        answers, found = load(out).measure(data.store, rows)
        difficulty = difficulty_of(found, nearest_of(domain, data.store, rows)[0], len(tasks))
    else:
        answers, difficulty = _by_others(folders, splits, split, rows, data)
    chosen = np.isin(rows, _some(rows, MOST_ROWS, data))
    difficulty = {name: each[chosen] for name, each in difficulty.items()}
    labels = source.targets[rows[chosen]]
    calibration = fit_calibration(answers[chosen], difficulty, labels, tasks, domain)
    save_together(calibration, out)
    _write_names(out, data, domain)
    return calibration


def _by_others(
    folders: Sequence[Path], splits: Sequence[Splits], split: str, rows: np.ndarray, data: MoleculeData
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Answers and difficulties of some rows, each the mean over the models for which the row is in a split."""
    totals: dict[str, np.ndarray] = {}
    count = np.zeros((len(rows), 1))
    for folder, each in zip(folders, splits, strict=True):
        own, predictor = each[split], load(folder)
        answers, found = predictor.measure(data.store, own)
        assert predictor.calibration is not None
        similarity = nearest_of(predictor.calibration.domain, data.store, own)[0]
        places = np.searchsorted(rows, own)
        count[places] += 1
        for name, values in {"": answers, **difficulty_of(found, similarity, len(data.source.tasks))}.items():
            total = totals.setdefault(name, np.zeros((len(rows), values.shape[1])))
            total[places] += values
    means = {name: (total / count).astype(np.float32) for name, total in totals.items()}
    return means.pop(""), means


def _domain_of(data: MoleculeData, rows: np.ndarray, seed: int) -> Domain:
    rows = np.sort(_some(rows, MOST_KEPT, data))
    return Domain.of(fingerprint_rows(data.store, rows, BITS), rows, seed)


def _some(rows: np.ndarray, most: int, data: MoleculeData) -> np.ndarray:
    """As many rows at most, at random."""
    if len(rows) <= most:
        return rows
    return np.random.default_rng(data.config.trainer.seed).choice(rows, most, replace=False)


def _write_names(folder: Path, data: MoleculeData, domain: Domain) -> None:
    if data.source.smiles:
        write_domain(folder, domain.rows, [data.source.smiles[row] for row in domain.rows.tolist()])
