"""Predictor: inference with a trained model or an ensemble, combined with base models, and its uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np

from graphslice.calibration import (
    DOMAIN_DISTANCE,
    ENSEMBLE_STD,
    NETWORK_STD,
    PARTS_STD,
    ApplicabilityDomain,
    Calibration,
    coverage_of_level,
)
from graphslice.calibration.domain import DOMAIN_BITS
from graphslice.chem.descriptors import descriptor_kinds, descriptor_width, feature_column_names
from graphslice.chem.molecule import MolGraph
from graphslice.config import MOLECULE
from graphslice.data.batches import Progress, no_progress
from graphslice.data.columns import TableColumns
from graphslice.data.featurize import Pool, featurize_rows, fingerprint_rows, graph_input_rows, parse
from graphslice.data.labels import pointers, ragged_indices
from graphslice.data.store import GraphStore
from graphslice.data.tables import Rows
from graphslice.errors import InputError
from graphslice.inference.compiled_networks import Networks, load_networks
from graphslice.inference.inputs import Columns, as_feature_columns, to_store
from graphslice.inference.predictions import Neighbours, PredictionInterval, Predictions
from graphslice.runs.checkpoint import Checkpoint
from graphslice.runs.ensemble import read_calibration, read_checkpoints
from graphslice.runs.run_files import MEMBER, METRICS, read_training_smiles, run_directory_of
from graphslice.stacking import Stacking
from graphslice.stacking.stacking import combine_predictions, weighted_std
from graphslice.system.machine import default_device
from graphslice.tasks import Task, prediction_columns, to_predictions, to_standard_deviations

if TYPE_CHECKING:
    import torch
    from pandas import DataFrame
    from rdkit.Chem import Mol
    from torch_geometric.data import Data

    from graphslice.nn import GraphTransformer

    Molecule: TypeAlias = str | MolGraph | Mol | Data
    Molecules: TypeAlias = Molecule | Iterable[Molecule] | DataFrame


class Predictor:
    """A trained model, or an ensemble whose mean is predicted.

    Args:
        checkpoints: one checkpoint, or one per ensemble member.
        device: torch device for inference. Default: a CUDA GPU if available, else the CPU.
        calibration: calibration of the ensemble. A single model uses that of its checkpoint.
        folder: the run directory, which lists the training molecules.

    Attributes:
        tasks: the T prediction tasks, one per target.
        config: the :class:`~graphslice.config.RunConfig` of the (first) model.
        networks: the networks of all members, run by torch or without it.
        stackings: the :class:`~graphslice.stacking.Stacking` of each member, or None.
        calibration: the :class:`~graphslice.calibration.Calibration`, or None.
        folder: the run directory, or None.
    """

    def __init__(
        self,
        checkpoints: Checkpoint | Sequence[Checkpoint],
        device: str | torch.device | None = None,
        *,
        calibration: Calibration | None = None,
        folder: Path | None = None,
    ) -> None:
        checkpoints = [checkpoints] if isinstance(checkpoints, Checkpoint) else checkpoints
        self.config, self.tasks = checkpoints[0].config, checkpoints[0].tasks
        self._device = str(device or default_device())
        self._member_configs = [(checkpoint.config, checkpoint.calibration) for checkpoint in checkpoints]
        self.networks: Networks = load_networks(checkpoints, self._device)
        self.stackings = [checkpoint.stacking for checkpoint in checkpoints]
        self.calibration = calibration if len(checkpoints) > 1 else checkpoints[0].calibration
        self.folder = None if folder is None else folder.absolute()  # also after a change of the working directory
        self._metrics = metrics_text(self.folder)

    @property
    def device(self) -> torch.device:
        """The torch device."""
        import torch

        return torch.device(self._device)

    @property
    def models(self) -> list[GraphTransformer]:
        """The networks as modules, one per member; from now on they predict, so changes and hooks have their effect."""
        self.networks = networks = self.networks.as_torch()
        return networks.modules

    @property
    def num_models(self) -> int:
        """Number of ensemble members; 1 for a single model."""
        return len(self.stackings)

    @property
    def model(self) -> GraphTransformer:
        """The network of a single model, as in :attr:`models`; raises InputError for an ensemble."""
        self.require_single()
        return self.models[0]

    def require_single(self) -> None:
        """Raise InputError for an ensemble."""
        if self.num_models > 1:
            raise InputError(
                f"this is an ensemble of {self.num_models} models: load one member, such as {MEMBER}1 in the run "
                "directory"
            )

    @property
    def targets(self) -> list[str]:
        """Names of the T targets."""
        return [task.name for task in self.tasks]

    @property
    def is_cross_validation(self) -> bool:
        """True if the models are those of a cross-validation, each with another fold as test set."""
        return len({config.data.fold for config, _ in self._member_configs}) > 1

    @property
    def columns(self) -> list[str]:
        """Names of the W predicted columns: see :class:`Predictions`."""
        return prediction_columns(self.tasks)

    @property
    def level(self) -> str:
        """Level of the targets: ``molecule``, ``atom`` or ``bond``."""
        return self.config.model.level

    @overload
    def predict(
        self,
        molecules: Molecules,
        *,
        columns: Columns | None = None,
        details: Literal[False] = False,
        interval: None = None,
        nearest: Literal[False] = False,
    ) -> np.ndarray | list[np.ndarray]: ...
    @overload
    def predict(
        self,
        molecules: Molecules,
        *,
        columns: Columns | None = None,
        details: bool = False,
        interval: float | None = None,
        nearest: bool = False,
    ) -> Predictions: ...
    def predict(self, molecules, *, columns=None, details=False, interval=None, nearest=False):
        """Predict the targets of molecules.

        Predictions do not depend on the batch, nor, with the default ``graph.atom_order``, on how the SMILES is
        written. Invalid molecules do not raise: they get nan, and an error message in :attr:`Predictions.errors`.

        Args:
            molecules: SMILES, RDKit molecules, :class:`MolGraph`, or PyG ``Data`` with OGB features; one, or R in a
                list, an array, a Series or a PyG ``Batch``. In a data frame (pandas, polars or Arrow) the SMILES column
                is detected by name as in a file, and the feature columns of the model are read.
            columns: feature columns of a model that was trained with some: R numbers by name. Unknown values are nan or
                None and are replaced by the mean of the training set.
            details: return :class:`Predictions`, with an error message for every invalid molecule.
            interval: coverage in percent, such as 90. Adds conformal prediction intervals and prediction sets, and the
                applicability domain. For atom- and bond-level targets the coverage is that within a molecule, averaged
                over molecules.
            nearest: add the nearest training molecules and the applicability domain.

        Returns:
            ``float32 [R, W]``: numbers in the unit of their target, and class probabilities, as in
            :attr:`Predictions.values`. At atom or bond level a list of R arrays ``float32 [n, W]``, with one row per
            atom or bond of the SMILES in RDKit's order (of a graph in its own order), none for an invalid molecule.
            With ``details``, ``interval`` or ``nearest`` a :class:`Predictions`.

        Raises:
            InputError: if feature columns are missing; if the model reads descriptors of the SMILES and gets graphs; if
                ``interval`` or ``nearest`` needs a calibration that the model lacks; if ``molecules`` holds no
                molecules; or if an atom- or bond-level model gets RDKit molecules, which have no SMILES order.
        """
        self.check_calibrated(interval, nearest)
        store = self.featurize_molecules(molecules, columns)
        predictions = self.predict_featurized(store, interval=interval, nearest=nearest)
        predictions.index = getattr(molecules, "index", None) if hasattr(molecules, "iloc") else None
        if details or interval is not None or nearest:
            return predictions
        return predictions.values if predictions.ptr is None else predictions.by_row

    def featurize_molecules(self, molecules: Molecules, columns: Columns | None = None) -> GraphStore:
        """Featurize molecules for the model, row by row; arguments and errors as in :meth:`predict`."""
        return to_store(molecules, columns, self.config, self.feature_ranges)

    def check_calibrated(self, interval: float | None, nearest: bool) -> None:
        """Raise :class:`InputError` if the interval is invalid, or a calibration is needed but missing."""
        if interval is not None:
            coverage_of_level(interval)
        if (interval is not None or nearest) and self.calibration is None:
            raise InputError(
                "the model has no calibration, which prediction intervals and nearest training molecules need; those "
                "trained by GraphSlice have one"
            )

    def can_read(self, store: GraphStore) -> bool:
        """True if a store has all that the model reads, else its SMILES are read again; InputError if it has none."""
        has_descriptors = set(self.kinds) <= set(store.info.descriptors)
        if store.has_graphs_of(self.config.graph) and self.level == MOLECULE and has_descriptors:
            return True
        if len(store.smiles):
            return False
        store.check_graphs(self.config.graph)
        store.check_descriptors(self.kinds)
        raise InputError(f"{store.name} has no SMILES, which define the order of {self.level}-level predictions")

    @property
    def kinds(self) -> list[str]:
        """Kinds of SMILES descriptors that the network reads."""
        return descriptor_kinds(self.config.data.descriptors)

    @property
    def feature_columns(self) -> list[str]:
        """K feature columns of a dataset that the model reads."""
        return feature_column_names(self.config.data.descriptors)

    @cached_property
    def feature_ranges(self) -> np.ndarray | None:
        """``float32 [2, K]``, the range to which the network clips each feature column; None for K = 0."""
        names = self.config.data.descriptors
        positions = [descriptor_width(names[:n]) for n, name in enumerate(names) if name in self.feature_columns]
        if not positions:
            return None
        weights = self.networks.weights[0]
        return np.stack([np.asarray(weights[f"descriptors.{end}"])[positions] for end in ("low", "high")])

    def descriptors(self, smiles: str, columns: Columns | None = None) -> dict[str, np.ndarray]:
        """Compute the descriptors of one molecule that the model reads; InputError if feature columns are missing."""
        computed = parse([smiles], self.config.graph, kinds=self.kinds)[-1]
        return computed | as_feature_columns(self.feature_columns, columns or {}, 1)

    def featurize_rows(
        self, chunks: Iterable[Rows], columns: TableColumns, pool: Pool = None, progress: Progress = no_progress
    ) -> Iterator[tuple[Rows, GraphStore]]:
        """Featurize a table for the model chunk by chunk, in the processes of a pool of :func:`featurizer_pool`."""
        settings: dict[str, Any] = {"prefetch": self._device != "cpu", "kinds": self.kinds, "level": self.level}
        return featurize_rows(chunks, columns, self.config.graph, pool=pool, progress=progress, **settings)

    def predict_featurized(self, store: GraphStore, **options: Any) -> Predictions:
        """Predict all rows of a store of :meth:`featurize_rows`, atoms and bonds in the order of the SMILES; options as
        of :meth:`predict_store_rows`."""
        rows = np.arange(len(store))
        predictions = self.predict_store_rows(store, rows, **options)
        return predictions if self.level == MOLECULE else predictions.in_smiles_order(store.order(rows))

    def predict_store(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """Predict valid rows ``int64 [R]``: ``float32 [R, W]``, or ``[S, W]`` of S atoms or bonds in its order."""
        return self._calibrated(self.predict_uncalibrated(store, rows)[0])

    def predict_uncalibrated(
        self, store: GraphStore, rows: np.ndarray, domain: ApplicabilityDomain | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return uncalibrated predictions as of :meth:`predict_store`, and by name difficulty estimates
        ``float32 [R, T]``, which may scale the intervals; with a ``domain`` its distance is one of them."""
        member_values, difficulty = self._predict(store, rows)
        if domain is not None:
            similarity = nearest_training_molecules(domain, store, rows)[0]
            counts = store.atom_bond_counts(self.level, rows)
            difficulty = difficulty_estimates(difficulty, similarity, counts, len(self.tasks))
        return _mean(member_values), difficulty

    def _calibrated(self, values: np.ndarray) -> np.ndarray:
        return values if self.calibration is None else self.calibration.probabilities(values, self.tasks)

    def _predict(
        self, store: GraphStore, rows: np.ndarray, progress: Progress = no_progress
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Predictions of M models, ``float32 [M, R, W]``, and difficulty estimates ``float32 [R, T]`` by name."""
        outputs = self.networks.predict(store, rows, progress)
        values = np.stack([to_predictions(output, self.tasks) for output in outputs])
        values, difficulty = stack_predictions(values, self.stackings, store, rows, self.tasks)
        pairs = zip(outputs, self.networks.target_stds, strict=True)
        stds = [one for pair in pairs if (one := to_standard_deviations(pair[0], self.tasks, pair[1])) is not None]
        return values, difficulty | ({NETWORK_STD: np.asarray(np.mean(stds, axis=0), np.float32)} if stds else {})

    def predict_store_rows(
        self,
        store: GraphStore,
        rows: np.ndarray,
        *,
        interval: float | None = None,
        nearest: bool = False,
        progress: Progress = no_progress,
    ) -> Predictions:
        """Predict rows ``int64 [R]`` of a store, atoms and bonds in its order: mean and standard deviation (ddof=1) of
        the members. Invalid molecules get nan and an error message; other arguments as in :meth:`predict`."""
        self.check_calibrated(interval, nearest)
        is_valid, counts = store.sizes[rows] > 0, store.atom_bond_counts(self.level, rows)
        ptr = pointers(counts)
        values = np.full((ptr[-1], len(self.columns)), np.nan, dtype=np.float32)
        std = None if self.num_models == 1 else values.copy()
        predicted = ragged_indices(ptr, np.flatnonzero(is_valid))
        member_values, difficulty = self._predict(store, rows[is_valid], progress)
        values[predicted] = self._calibrated(_mean(member_values))
        if std is not None:
            std[predicted] = member_values.std(axis=0, ddof=1, dtype=np.float64)
        faults = store.faults
        errors = [faults.get(row) for row in rows.tolist()]
        not_finite = np.repeat(np.arange(len(rows)), counts)[~np.isfinite(values).all(axis=1)]
        for i in np.unique(not_finite[is_valid[not_finite]]).tolist():
            values[ptr[i] : ptr[i + 1]], errors[i] = np.nan, "the prediction is not a finite number"
            if std is not None:
                std[ptr[i] : ptr[i + 1]] = np.nan
        predictions = Predictions(values, errors, self.tasks, std, ptr=None if self.level == MOLECULE else ptr)
        if interval is not None or nearest:
            assert self.calibration is not None
            domain, indices = self.calibration.domain, np.full(len(rows), -1)
            similarity = np.full(len(rows), np.nan, np.float32)
            similarity[is_valid], indices[is_valid] = nearest_training_molecules(domain, store, rows[is_valid])
            predictions.neighbours = Neighbours(similarity, domain.contains(similarity, store.sizes[rows]), None)
            if nearest:
                names = self._training_molecule_names
                predictions.neighbours.nearest = [None if i < 0 else names[i] for i in indices.tolist()]
        if interval is not None:
            difficulty = difficulty_estimates(difficulty, similarity[is_valid], counts[is_valid], len(self.tasks))
            predictions.interval = self._interval(values, predicted, difficulty, interval)
        return predictions

    def _interval(
        self, values: np.ndarray, predicted: np.ndarray, difficulty: dict[str, np.ndarray], level: float
    ) -> PredictionInterval:
        """Return the intervals of predictions ``float32 [S, W]``: unknown, but for the places ``predicted``, ``[P]``,
        which have the estimates ``difficulty``, ``float32 [P, T]`` by name; ``level``: coverage in percent."""
        assert self.calibration is not None
        coverage, known = coverage_of_level(level), values[predicted]
        low, high = (np.full((len(values), len(self.tasks)), np.nan, np.float32) for _ in range(2))
        low[predicted], high[predicted] = self.calibration.prediction_intervals(known, difficulty, self.tasks, coverage)
        sets = {}
        for name, classes in self.calibration.prediction_sets(known, self.tasks, coverage).items():
            sets[name] = np.zeros((len(values), classes.shape[1]), bool)
            sets[name][predicted] = classes
        return PredictionInterval(level, low, high, sets)

    @cached_property
    def _training_molecule_names(self) -> list[str]:
        """SMILES, or else rows, of the molecules of the applicability domain; read once, from a file of all rows."""
        assert self.calibration is not None
        self.check_folder()
        domain = self.calibration.domain
        smiles = {} if domain.smiles else read_training_smiles(self.folder)
        return list(domain.smiles) or [smiles.get(row, f"row {row + 1}") for row in domain.rows.tolist()]

    def check_folder(self) -> None:
        """Raise :class:`InputError` if the run directory was moved, or another run replaced that of the model in it."""
        if self.folder is not None and metrics_text(self.folder) != self._metrics:
            raise InputError(f"{self.folder} no longer holds the run of this model: load it from where it is now")

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Checkpoints of the models on the CPU, for storage or another process."""
        members = zip(self._member_configs, self.networks.weights, self.stackings, strict=True)
        return [
            Checkpoint(config, self.tasks, weights, {}, stacking, calibration)
            for (config, calibration), weights, stacking in members
        ]


def metrics_text(folder: Path | None) -> str | None:
    """Return the contents of ``metrics.json`` of a run directory; None if there is none."""
    path = None if folder is None else folder / METRICS
    return path.read_text(errors="replace") if path is not None and path.is_file() else None


def _mean(member_values: np.ndarray) -> np.ndarray:
    return member_values.mean(axis=0, dtype=np.float64).astype(np.float32)


def load(path: str | Path, device: str | torch.device | None = None, others: Sequence[str | Path] = ()) -> Predictor:
    """Load a run directory, checkpoint file or packaged model (else InputError), with ``others`` as one ensemble, which
    has no calibration; no code of the files is run."""
    checkpoints = read_checkpoints(path, *others)
    if others:
        return Predictor(checkpoints, device)
    return Predictor(
        checkpoints, device, calibration=read_calibration(path, checkpoints), folder=run_directory_of(path)
    )


# Number of molecules whose inputs are computed for the base models at once.
_CHUNK_ROWS = 2048


def stack_predictions(
    networks: np.ndarray,  # float32 [M, R, W], modified in place
    stackings: Sequence[Stacking | None],  # base models and weights of each model
    store: GraphStore,
    rows: np.ndarray,  # int64 [R] of the store
    tasks: Sequence[Task],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Average networks and base models by their weights (stacking): ``float32 [M, R, W]``, and by name the standard
    deviations between components of a model (averaged) and between models, ``float32 [R, T]``."""
    values = networks
    stacked = [(model, stacking) for model, stacking in enumerate(stackings) if stacking is not None]
    parts_std = np.zeros((len(rows), len(tasks)), np.float32)
    for start in range(0, len(rows) if stacked else 0, _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        inputs = graph_input_rows(store, rows[chunk])
        for model, stacking in stacked:
            parts = stacking.base_predictions(values[model, chunk], inputs)
            values[model, chunk] = combine_predictions(parts, stacking.weights, tasks)
            parts_std[chunk] += weighted_std(parts, stacking.weights, tasks) / len(stacked)
    difficulty = {PARTS_STD: parts_std} if stacked else {}
    if len(values) > 1:
        equal = np.full((len(values), len(tasks)), 1 / len(values))
        difficulty[ENSEMBLE_STD] = weighted_std(list(values), equal, tasks)
    return values, difficulty


#: Smallest similarity that counts as the same fingerprint, allowing for rounding.
IDENTICAL_SIMILARITY = 1 - 1e-6


def nearest_training_molecules(
    domain: ApplicabilityDomain, store: GraphStore, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest training molecules of valid rows ``int64 [R]``: similarity ``float32``, index in the domain."""
    return domain.nearest(fingerprint_rows(store, rows, DOMAIN_BITS))


def difficulty_estimates(
    difficulty: dict[str, np.ndarray], similarity: np.ndarray, counts: np.ndarray, targets: int
) -> dict[str, np.ndarray]:
    """Add the distance to the training set to ``float32 [S, T]`` by name; S is the sum of ``counts`` by molecule."""
    return difficulty | {DOMAIN_DISTANCE: np.repeat(np.repeat(1 - similarity, counts)[:, None], targets, axis=1)}
