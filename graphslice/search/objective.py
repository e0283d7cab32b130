"""Objective of the search: the error of a configuration on inner folds of the training set.

The network is trained without a fold of the training rows, as a run trains it (fine-tuned or from scratch, with its
number of epochs), and predicts the fold. Base models are fitted to the other folds once, since no hyperparameter
changes them. The score is that of their stack, whose weights are chosen without the molecules that they predict: a
trial costs the training of a network, and its score is that of the default pipeline. Without base models
(``--baselines off``, atoms and bonds, many labels) it is the score of the network.

As in a run, one of five folds is held out, and more of them where they are small. Each seed holds out other folds, so
that the average over seeds also averages over molecules. A validation set of the data only selects the epoch, as in
a run. The test set is removed before the search.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from graphslice.config import RunConfig
from graphslice.data.batches import batches_per_epoch
from graphslice.data.datamodule import MoleculeData
from graphslice.errors import InputError
from graphslice.evaluation.metrics import selection_score
from graphslice.inference.predictor import Predictor
from graphslice.stacking.stacking import NETWORK
from graphslice.system.console import QUIET, status
from graphslice.training.devices import quiet_lightning
from graphslice.training.loop import TrainingLoop
from graphslice.training.resolve import complete_config, is_defined
from graphslice.training.run import fold_steps, train_without
from graphslice.training.stack import FOLDS, cross_fit, fit_to_rows, num_held_out, predict_rows

#: Scores of the network are reported after each of these shares of a training, in fifths.
_REPORTS = (1, 2, 3, 4)

#: Called after every epoch with the score of the network on its fold and the number of the report. The score is nan
#: except after each fifth of a training.
Report = Callable[[float, int], object]


class Objective:
    """Scores of configurations on inner folds of the training set. ``metric`` is that of the run, or ``loss`` if it is
    undefined on some folds; ``epochs`` the default number of a training without a fold."""

    def __init__(self, config: RunConfig, data: MoleculeData, console: Console) -> None:
        self.data, self.console = data.without_test_set(), console
        self.folds = self.data.inner_folds(FOLDS)
        if len(self.folds) < 2:
            raise InputError(
                f"{data.dataset.name}: its {len(data.splits['train'])} training rows are of one family or scaffold, so "
                "no fold can be held out: tuning needs more molecules"
            )
        self.count = min(num_held_out(self.data), len(self.folds))
        self._base_predictions: dict[int, dict[str, np.ndarray]] = {}
        complete = complete_config(config, self.data)
        rest, batch_size = self.data.without(self.folds[0]), config.trainer.batch_size
        self.epochs = fold_steps(complete, rest) // batches_per_epoch(len(rest.splits["train"]), batch_size, 1)
        metric = complete.metric
        held_out = [self._rows(seed) for seed in range(len(self.folds))]
        self.metric = metric if all(is_defined(metric, data.dataset, rows) for rows in held_out) else "loss"

    def score(self, config: RunConfig, seed: int = 0, report: Report | None = None) -> float:
        """Train without each held-out fold, and return the metric of the predictions of these folds, in its own unit
        and direction; raises :class:`InputError` if the training diverged. ``seed`` is added to that of the
        configuration and selects the folds; ``report`` is called after every epoch, and an exception ends the
        training."""
        config = replace(config, trainer=replace(config.trainer, seed=(config.trainer.seed + seed) % 2**32))
        data = self.data.with_config(config)
        complete = complete_config(config, data)
        parts = []
        for number, fold in enumerate(self._held_out(seed)):
            rows = self.folds[fold]
            reports = None if report is None else self._reporter(report, rows, number * len(_REPORTS))
            with tempfile.TemporaryDirectory() as folder, quiet_lightning():
                network = train_without(rows, complete, data, Path(folder), "", QUIET, after_epoch=reports)
            predictions = {NETWORK: network.predict_store(data.store, rows)}
            if not np.isfinite(predictions[NETWORK]).all():
                raise InputError("the training diverged: its predictions are not finite")
            parts.append(predictions | self._predict_base_models(fold))
        return self._score(parts, self._rows(seed))

    def _reporter(self, report: Report, rows: np.ndarray, first: int) -> Callable[[TrainingLoop], None]:
        """Return a function that reports the score of a network on ``rows`` of the held-out fold whenever another fifth
        of its training is done; ``first`` is the number of the first report."""
        last = 0

        def after_epoch(loop: TrainingLoop) -> None:
            nonlocal last
            fifth = int(loop.fraction_done * (1 + len(_REPORTS)) + 1e-9)
            value = float("nan")
            if last < fifth <= len(_REPORTS):
                last = fifth
                network = Predictor(loop.module.trained(), loop.fabric.device)
                predicted = network.predict_store(self.data.store, rows)
                if np.isfinite(predicted).all():
                    value = selection_score(self.metric, self.data.dataset, rows, predicted)
            report(value, first + last)

        return after_epoch

    def _score(self, parts: list[dict[str, np.ndarray]], rows: np.ndarray) -> float:
        """Return the metric of the stacked predictions; ``parts``: predictions of each fold by model."""
        predictions = [np.concatenate([part[name] for part in parts]) for name in parts[0]]
        values = predictions[0]
        if len(predictions) > 1:  # targets of molecules; in the order of the dataset, as a run stacks them
            order = np.argsort(rows, kind="stable")
            rows, predictions = rows[order], [values[order] for values in predictions]
            values = cross_fit(predictions, self.data, rows, self.metric)[0]
        return selection_score(self.metric, self.data.dataset, rows, values)

    def _held_out(self, seed: int) -> list[int]:
        """Return the indices of the folds that are held out with a seed."""
        return [(seed * self.count + k) % len(self.folds) for k in range(self.count)]

    def _rows(self, seed: int) -> np.ndarray:
        return np.concatenate([self.folds[fold] for fold in self._held_out(seed)])

    def _predict_base_models(self, fold: int) -> dict[str, np.ndarray]:
        """Return the predictions of a fold by base models that were fitted without it; empty without base models."""
        if self.data.config.trainer.baselines != "on":
            return {}
        if fold not in self._base_predictions:
            with status("fitting base models", self.console):
                rows = self.folds[fold]
                models = fit_to_rows(self.data, np.setdiff1d(self.data.splits["train"], rows))
                self._base_predictions[fold] = predict_rows(models, self.data, rows)
        return self._base_predictions[fold]
