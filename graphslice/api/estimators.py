"""Scikit-learn estimators whose input ``X`` is SMILES."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from graphslice.api.arguments import label_array, labelled_table, name_setting
from graphslice.api.fitting import base_config, fit
from graphslice.api.model import Model, load
from graphslice.chem.descriptors import feature_column_names
from graphslice.config import RunConfig, split_words
from graphslice.config.reading import flattened
from graphslice.data.loaders import column_names, is_frame
from graphslice.errors import InputError, check_choice, quoted_list
from graphslice.inference.files import compute_embeddings, embedding_column
from graphslice.inference.inputs import as_molecules, frame_rows
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION

# Columns in addition to those of X and y.
_SPLIT, _WEIGHT = "the split", "the weight"
_SET_BY_FIT = {"data.targets", "data.smiles_column", "data.weight_column", "data.task", "data.split", "data.carve"}
_SET_BY_FIT |= {"data.folds", "data.fold", "data.seed", "trainer.seed"}


class _SmilesInput(BaseEstimator):
    """Base class of estimators whose ``X`` is SMILES."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


class _Estimator(_SmilesInput):
    """Base class of the regressor and the classifier."""

    def __init__(
        self,
        *,
        features: str | Sequence[str] | None = None,
        ensemble: int | None = None,
        preset: str | None = None,
        init_from: str | None = None,
        epochs: int | None = None,
        minutes: float | None = None,
        baselines: bool | None = None,
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
        self.baselines = baselines
        self.config = config
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def _train(
        self, X: Any, labels: np.ndarray, kind: str, sample_weight: Any, names: list[str] | None = None
    ) -> Model:
        """Train on all rows, or all but a validation set; users of an estimator hold out a test set themselves."""
        wanted = feature_column_names(split_words(name_setting(self.features) or ""))
        smiles, columns = _read(X, features=wanted)
        if missing := [name for name in wanted if name not in columns]:
            raise InputError(
                f"features has {quoted_list(missing)}: X must be a data frame of the SMILES and these columns, or give "
                "morgan and rdkit2d alone"
            )
        if len(smiles) < 2:
            raise InputError("X has 1 sample: at least two molecules are needed, one to train on and one to validate")
        table = labelled_table(smiles, labels, names)
        first, *targets = table.column_names
        if is_frame(X) and len(column_names(X)) == 1:  # by whose name predict finds it
            first = column_names(X)[0]
            table = table.rename_columns([first, *targets])
        for name, values in columns.items():
            table = table.append_column(name, values)
        table = table.append_column(_SPLIT, pa.array(["train"] * len(table)))
        if sample_weight is not None:
            weights = np.broadcast_to(np.asarray(sample_weight, np.float64), np.shape(sample_weight) or (len(smiles),))
            if weights.shape != (len(smiles),) or not (np.isfinite(weights) & (weights >= 0)).all():
                raise InputError(f"sample_weight must be a finite number from 0 up for each of {len(smiles)} rows")
            table = table.append_column(_WEIGHT, pa.array(weights))
        config = base_config(self.preset, self.config, self.init_from)
        settings = flattened(self.config) if isinstance(self.config, Mapping) else {}
        for name in sorted(_SET_BY_FIT & settings.keys()):
            raise InputError(f"an estimator sets {name} itself, from X, y and random_state: leave it out in config")
        state = self.random_state
        seed = int(state) if isinstance(state, Integral) else int(check_random_state(state).randint(2**31 - 1))
        model = fit(
            table,
            targets,
            smiles=first,
            split=_SPLIT,
            weights=None if sample_weight is None else _WEIGHT,
            features=self.features,
            ensemble=self.ensemble,
            epochs=self.epochs,
            minutes=self.minutes,
            baselines=self.baselines,
            seed=seed,
            config=replace(config, data=replace(config.data, task=kind)),
            quiet=not self.verbose,
        )
        # Without the temporary run directory, which is deleted.
        return Model(model.checkpoints, model.device, calibration=model.calibration)

    def _predict_with_errors(self, X: Any) -> tuple[np.ndarray, list[str | None]]:
        check_is_fitted(self, "model_")
        predictions = self.model_.predict(X, details=True)
        return predictions.values.astype(np.float64), predictions.errors


class GraphSliceRegressor(RegressorMixin, _Estimator):
    """Scikit-learn regressor for molecules; ``X`` is SMILES.

    ``X`` is a list, an array, a Series, or one column of a data frame, of SMILES or RDKit molecules; a data frame may
    hold the columns that ``features`` names too. ``y`` may have several targets; unknown labels are nan. The final
    models are trained on all molecules, or, of more than 3,000, on nine tenths, and the others choose the best epoch.
    Input that cannot be used raises a ValueError.

    Args:
        features, ensemble, preset, init_from, epochs, minutes, baselines, config: as in :func:`graphslice.fit`.
        random_state: seed of the validation set, the initial weights and the order of the molecules.
        verbose: print progress during training.

    Attributes:
        model_: the trained :class:`~graphslice.api.model.Model`.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GraphSliceRegressor:
        """Train the model.

        Args:
            X: R SMILES.
            y: labels, numbers ``[R]`` or ``[R, T]``, nan where unknown.
            sample_weight: ``[R]``, weight of each molecule, from 0 up; 0 leaves it out. Default: equal weights.
        """
        labels = label_array(y)
        known = np.where(pd.isna(labels), np.nan, labels) if labels.dtype == object else labels  # pandas.NA
        numbers = known.astype(np.float64)
        assert_all_finite(numbers, allow_nan=True, input_name="y")
        names = [str(name) for name in y.columns] if labels.ndim == 2 and hasattr(y, "columns") else None
        self.model_ = self._train(X, numbers, REGRESSION, sample_weight, names)
        self._one_dimensional = numbers.ndim == 1
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict ``float64 [R]``, or ``[R, T]`` if ``y`` was two-dimensional; nan for invalid molecules."""
        values, _ = self._predict_with_errors(X)
        return values[:, 0] if self._one_dimensional else values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class GraphSliceClassifier(ClassifierMixin, _Estimator):
    """Scikit-learn classifier for molecules, binary or multiclass; arguments as of :class:`GraphSliceRegressor`.

    Attributes:
        classes_: ``[K]``, the sorted class labels.
        model_: the trained :class:`~graphslice.api.model.Model`, whose classes are indices into ``classes_``.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GraphSliceClassifier:
        """Train the model on ``[R]`` class labels, numbers or strings, of at least two classes."""
        labels = column_or_1d(label_array(y), warn=True)
        if missing := int(pd.isna(labels).sum()):
            raise InputError(f"Input y contains NaN: {missing:,} molecules have no class, leave them out")
        if labels.dtype == object:  # such as booleans of a column without its empty cells
            labels = pd.Series(labels).infer_objects().to_numpy()
        check_classification_targets(labels)
        self.classes_, indices = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y has only one class, {self.classes_.tolist()}: at least two are needed")
        kind = BINARY if len(self.classes_) == 2 else MULTICLASS
        self.model_ = self._train(X, indices.astype(np.float64), kind, sample_weight)
        # Rows without a SMILES are left out, and classes that occur in these alone.
        self.classes_ = self.classes_[[int(name) for name in self.model_.tasks[0].classes]]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict ``float64 [R, K]``, probabilities in the order of ``classes_``; nan for invalid molecules."""
        values, _ = self._predict_with_errors(X)
        # In float64, since scikit-learn checks the sum of float64 more narrowly than float32 adds up to 1.
        two = len(self.classes_) == 2
        return np.hstack([1 - values, values]) if two else values / values.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable class of molecules, ``[R]``; raise InputError (a ValueError) for an invalid one."""
        values, errors = self._predict_with_errors(X)
        if (row := next((row for row, error in enumerate(errors) if error), None)) is not None:
            raise InputError(f"row {row} of X has no class: {errors[row]}; predict_proba returns nan for it")
        return self.classes_[(values[:, 0] >= 0.5).astype(int) if len(self.classes_) == 2 else values.argmax(axis=1)]


class GraphSliceTransformer(TransformerMixin, _SmilesInput):
    """Scikit-learn transformer of SMILES to the learned embeddings of a trained model, :meth:`Model.embed`.

    ``X`` is as for :class:`GraphSliceRegressor`; a frame of several columns may hold the feature columns of the model.
    Nothing is trained: :meth:`fit` loads the model, and :meth:`transform` without it does so too.

    Args:
        model: a trained :class:`~graphslice.api.model.Model`, or what :func:`graphslice.load` reads: a run directory, a
            checkpoint, or the name of a packaged model.
        invalid: ``"raise"`` rejects invalid molecules by their row; ``"nan"`` gives them rows of nan.
        device: torch device of a model that is loaded. Default: a CUDA GPU if available, else the CPU.

    Attributes:
        model_: the :class:`~graphslice.api.model.Model`.
    """

    def __init__(
        self, model: str | Path | Model = "small", *, invalid: str = "raise", device: str | None = None
    ) -> None:
        self.model = model
        self.invalid = invalid
        self.device = device

    def fit(self, X: Any, y: Any = None) -> GraphSliceTransformer:
        """Load the model; ``y`` is ignored."""
        check_choice("invalid", self.invalid, ("raise", "nan"))
        self.model_ = self.model if isinstance(self.model, Model) else load(self.model, self.device)
        _read(X, self.model_.config.data.smiles_column)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Compute the embeddings of molecules, ``float32 [R, C]``, or the frame that ``set_output`` asks for."""
        model = self.model_ if hasattr(self, "model_") else self.fit(X).model_
        store = model.featurize_molecules(X)
        if self.invalid == "raise" and store.errors:
            row = min(store.errors)
            raise InputError(
                f"row {row} of X has no embedding: {store.errors[row]}; invalid='nan' gives it a row of nan"
            )
        return compute_embeddings(model, store)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return ``object [C]``, the names ``embedding_0``, ``embedding_1``, ...; ``input_features`` are ignored."""
        check_is_fitted(self, "model_")
        return np.array([embedding_column(number) for number in range(self.model_.networks.width)], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []
        return tags


def _read(X: Any, column: str | None = None, features: Sequence[str] = ()) -> tuple[list, dict[str, pa.ChunkedArray]]:
    """Return the molecules of ``X``, and those of the feature columns that it has; raise InputError without molecules.

    The molecules of a frame are in ``column``, if it has one of this name.
    """
    if is_frame(X):
        rows, smiles = frame_rows(X, column, features)
        molecules = rows.smiles(smiles)
        columns = {name: rows.table.column(name) for name in features if name in rows.table.column_names}
    else:
        molecules, columns = as_molecules(X), {}
    if not molecules:
        raise InputError("X has no molecules (0 samples): at least one is needed")
    return molecules, columns
