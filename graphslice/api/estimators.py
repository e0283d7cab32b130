"""Estimators of scikit-learn: SMILES in place of a matrix of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from graphslice.api.fitting import base_config, fit, labelled_table
from graphslice.api.model import Model
from graphslice.config import RunConfig
from graphslice.data.frames import is_frame
from graphslice.errors import InputError
from graphslice.inference.inputs import as_molecules, frame_molecules
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION

# What fit decides of the data.
_SET_BY_FIT = {"targets", "smiles_column", "task", "split", "carve", "folds", "fold"}


class _Estimator(BaseEstimator):
    """What both have in common."""

    def __init__(
        self,
        *,
        features: str | Sequence[str] | None = None,
        ensemble: int | None = None,
        preset: str | None = None,
        init_from: str | None = None,
        epochs: int | None = None,
        minutes: float | None = None,
        config: RunConfig | Mapping | None = None,
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.features = features
        self.ensemble = ensemble
        self.preset = preset
        self.init_from = init_from
        self.epochs = epochs
        self.minutes = minutes
        self.config = config
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.target_tags.required = True
        return tags

    def _train(self, smiles: list, labels: np.ndarray, kind: str, names: list[str] | None = None) -> Model:
        """A model of all rows but those that it validates on: whoever uses an estimator keeps a test of his own."""
        if len(smiles) < 2:
            raise InputError("X has 1 sample: at least two molecules are needed, one to learn and one to choose by")
        table = labelled_table(smiles, labels, names)
        first, *targets = table.column_names
        split = next(name for name in ("split", "SPLIT", "the split") if name not in targets)
        table = table.append_column(split, pa.array(["train"] * len(table)))
        whole = base_config(self.preset, self.config, self.init_from)
        sections = self.config if isinstance(self.config, Mapping) else {}
        if "seed" in {*(sections.get("trainer") or {}), *(sections.get("data") or {})}:
            raise InputError("random_state is the seed: leave out the one in config")
        for name in sorted(_SET_BY_FIT & (sections.get("data") or {}).keys()):
            raise InputError(f"an estimator learns what fit is given, split at random: leave out data.{name} in config")
        state = self.random_state
        seed = int(state) if isinstance(state, Integral) else int(check_random_state(state).randint(2**31 - 1))
        model = fit(
            table,
            targets,
            smiles=first,
            split=split,
            features=self.features,
            ensemble=self.ensemble,
            epochs=self.epochs,
            minutes=self.minutes,
            seed=seed,
            config=replace(whole, data=replace(whole.data, task=kind)),
            quiet=not self.verbose,
        )
        # Without the run folder, which goes.
        return Model(model.checkpoints, model.device, calibration=model.calibration)

    def _predict_with_errors(self, X: Any) -> tuple[np.ndarray, list[str | None]]:
        check_is_fitted(self, "model_")
        found = self.model_.predict(_molecules(X), details=True)
        return found.values.astype(np.float64), found.errors


class GraphSliceRegressor(RegressorMixin, _Estimator):
    """Numbers of molecules, for scikit-learn: ``X`` is SMILES.

    A list, an array, a Series, or one column of a data frame; RDKit molecules too. Labels may be several a molecule,
    and nan where unknown. A tenth of the molecules is kept from training, to choose the best epoch.

    Args:
        features: what is read beside the graph: ``morgan``, ``rdkit2d``, or both.
        ensemble: train so many models, whose mean is the prediction.
        preset: of :data:`graphslice.config.PRESETS`; ``small`` when not given.
        init_from: whose weights it starts from, as of :func:`graphslice.fit`.
        epochs: passes over the training molecules (default: by their number).
        minutes: the longest that training may take.
        config: everything else, as of :func:`graphslice.fit`.
        random_state: of the rows for validation, the initial weights and the order of the molecules.
        verbose: report while it trains.

    Attributes:
        model_: the :class:`~graphslice.api.model.Model`.
    """

    def fit(self, X: Any, y: Any) -> GraphSliceRegressor:
        """Train.

        Args:
            X: R SMILES.
            y: ``[R]`` or ``[R, T]``.

        Raises:
            InputError: (a ValueError) if the labels are no numbers, not as many as SMILES, or infinite.
        """
        molecules, labels = _molecules(X), _labels(y)
        try:
            numbers = labels.astype(np.float64)
        except (TypeError, ValueError):
            raise InputError("y holds values that are no numbers") from None
        if np.isinf(numbers).any():
            raise InputError("y holds infinity: leave these molecules out")
        names = [str(name) for name in y.columns] if labels.ndim == 2 and hasattr(y, "columns") else None
        self.model_ = self._train(molecules, numbers, REGRESSION, names)
        self._one_dimensional = numbers.ndim == 1
        return self

    def predict(self, X: Any) -> np.ndarray:
        """``float64 [R]``, or ``[R, T]`` where the labels were; nan for what is no molecule."""
        values, _ = self._predict_with_errors(X)
        return values[:, 0] if self._one_dimensional else values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class GraphSliceClassifier(ClassifierMixin, _Estimator):
    """Classes of molecules, two or several, for scikit-learn: ``X`` is SMILES.

    A list, an array, a Series, or one column of a data frame; RDKit molecules too. A tenth of the molecules is kept
    from training, to choose the best epoch.

    Args:
        features, ensemble, preset, epochs, minutes, config, random_state, verbose: as of :class:`GraphSliceRegressor`.

    Attributes:
        classes_: the K classes, sorted.
        model_: the :class:`~graphslice.api.model.Model`, whose classes are their places among these.
    """

    def fit(self, X: Any, y: Any) -> GraphSliceClassifier:
        """Train.

        Args:
            X: R SMILES.
            y: ``[R]``, of at least two classes, numbers or texts.

        Raises:
            InputError: (a ValueError) for one class alone, or not as many labels as SMILES.
        """
        molecules, labels = _molecules(X), _labels(y)
        labels = column_or_1d(labels, warn=True)
        check_classification_targets(labels)
        self.classes_, places = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y has one class alone, {self.classes_.tolist()}: there is nothing to learn")
        kind = BINARY if len(self.classes_) == 2 else MULTICLASS
        self.model_ = self._train(molecules, places.astype(np.float64), kind)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """``float64 [R, K]``, of the classes as in ``classes_``; nan for what is no molecule."""
        values, _ = self._predict_with_errors(X)
        return np.hstack([1 - values, values]) if len(self.classes_) == 2 else values

    def predict(self, X: Any) -> np.ndarray:
        """``[R]``, the most probable class of each.

        Raises:
            InputError: (a ValueError) for what is no molecule, by its row: no class stands for that.
        """
        values, errors = self._predict_with_errors(X)
        if (row := next((row for row, error in enumerate(errors) if error), None)) is not None:
            raise InputError(f"row {row} of X has no class: {errors[row]}; predict_proba answers nan there")
        return self.classes_[(values[:, 0] >= 0.5).astype(int) if len(self.classes_) == 2 else values.argmax(axis=1)]


def _molecules(X: Any) -> list:
    """SMILES, or graphs, of whatever holds them; an InputError for none at all."""
    found = frame_molecules(X, None, ())[0] if is_frame(X) else as_molecules(X)
    if not found:
        raise InputError("X has no molecules (0 samples): at least one is needed")
    return found


def _labels(y: Any) -> np.ndarray:
    """``[R]`` or ``[R, T]``."""
    if y is None:
        raise InputError("y is None: the labels of the molecules are needed, as an array or a list")
    try:
        return np.asarray(y)
    except ValueError:
        raise InputError(
            "y holds lists of several lengths: targets of atoms and bonds are learned by graphslice.fit with level"
        ) from None
