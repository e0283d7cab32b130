"""Predictor: SMILES in, numbers out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, overload

import numpy as np
import torch

from graphslice.batch import GraphBatch
from graphslice.calibration import Calibration, coverage_of_level
from graphslice.checkpoint import Checkpoint
from graphslice.chem.descriptors import descriptor_kinds, feature_column_names
from graphslice.chem.molecule import MolGraph
from graphslice.config import MOLECULE
from graphslice.data.atom_bond_labels import pointers, ragged_indices
from graphslice.data.atom_bond_order import atom_bond_orders
from graphslice.data.featurize.pool import Pool, featurize_stream
from graphslice.data.store import GraphStore
from graphslice.ensemble_check import read_calibration, read_checkpoints
from graphslice.errors import InputError
from graphslice.hardware import default_device
from graphslice.inference.batches import for_each_batch
from graphslice.inference.ensemble import network_predictions, stack_predictions
from graphslice.inference.gpu import tf32_matmul
from graphslice.inference.inputs import Columns, as_feature_columns, as_ordered_molecules, input_descriptors, to_store
from graphslice.inference.predictions import Predictions
from graphslice.inference.uncertainty import estimate_uncertainty, training_molecule_names
from graphslice.run_files import MEMBER, run_directory_of
from graphslice.tasks import prediction_columns

if TYPE_CHECKING:
    from pandas import DataFrame
    from rdkit.Chem import Mol
    from torch_geometric.data import Data

    from graphslice.nn import GraphTransformer

    Molecule: TypeAlias = str | MolGraph | Mol | Data
    Molecules: TypeAlias = Molecule | Iterable[Molecule] | DataFrame


class Predictor:
    """A trained model that answers for molecules, or several whose mean does.

    Args:
        checkpoints: of the model, or of the models.
        device: where it computes; a CUDA GPU where there is one, else the CPU.
        calibration: what their answers are worth together; of one model it has its own.
        folder: the run folder, which knows the training molecules.

    Attributes:
        tasks: what it predicts.
        config: how it was made.
        calibration: what its answers are worth, or None.
        folder: as given.
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
        self.device = torch.device(device or default_device())
        self._made = [(checkpoint.config, checkpoint.calibration) for checkpoint in checkpoints]
        self.models = [checkpoint.model().to(self.device) for checkpoint in checkpoints]
        self.stackings = [checkpoint.stacking for checkpoint in checkpoints]
        self.calibration = calibration if len(checkpoints) > 1 else checkpoints[0].calibration
        self.folder = folder

    @property
    def model(self) -> GraphTransformer:
        """The network; raises InputError where there are several."""
        if len(self.models) > 1:
            raise InputError(
                f"{len(self.models)} models answer together here: load one, as the folder {MEMBER}1 of the run folder"
            )
        return self.models[0]

    @property
    def targets(self) -> list[str]:
        """Names of what it predicts."""
        return [task.name for task in self.tasks]

    @property
    def is_cross_validation(self) -> bool:
        """Whether its models are of a cross-validation, each with another fold as its test."""
        return len({config.data.fold for config, _ in self._made}) > 1

    @property
    def columns(self) -> list[str]:
        """Names of the W numbers that it predicts with: see :class:`Predictions`."""
        return prediction_columns(self.tasks)

    @property
    def level(self) -> str:
        """What it answers for: molecule, atom or bond."""
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
        """Predict some molecules.

        Args:
            molecules: SMILES, RDKit molecules, :class:`MolGraph`, or PyG ``Data`` with OGB features; one or many, in
                a list, an array or a Series. A ``Batch`` of PyG is its graphs. Of a data frame (pandas, polars or
                Arrow) the column of the SMILES is found by its name, as in a file, and those that the model reads.
            columns: R numbers by name, of a model that was trained with columns of a table as features; nan or None
                where unknown, for which the mean of the training stands.
            details: also say why a molecule has no answer.
            interval: a level in percent, such as 90: also say between which numbers, or among which classes, so many
                of the labels are expected, and how near the training molecules are. Of atoms or bonds so many of those
                of a molecule are, in the mean over molecules.
            nearest: also say which training molecules are nearest.

        Returns:
            ``float32 [R, W]``, the values of :class:`Predictions`: a number in the unit of its target, and
            probabilities of classes. Of a model of atoms or bonds a list of R arrays ``float32 [n, W]``: a row for each
            atom of the SMILES, or for each bond, in RDKit's order, of a graph in its own; none of what is no molecule.
            With ``details``, ``interval`` or ``nearest`` all of the :class:`Predictions`.

        Raises:
            InputError: if the model reads columns that are not given, or descriptors of SMILES and is given graphs; if
                it has no calibration and is asked for what needs one; if what is given holds no molecules; if it
                answers for atoms or bonds and is given RDKit molecules, whose order is not that of their SMILES.
        """
        self.check_calibrated(interval, nearest)
        if self.level != MOLECULE:
            molecules = as_ordered_molecules(molecules, self.config.data.smiles_column)
        store = self.featurize_molecules(molecules, columns)
        answers = self.predict_store_rows(store, np.arange(len(store)), interval=interval, nearest=nearest)
        if self.level != MOLECULE:
            texts = [one if isinstance(one, str) else "" for one in molecules]
            answers = answers.reordered(atom_bond_orders(texts, self.level, self.config.graph, with_symmetry=True))
        if details or interval is not None or nearest:
            return answers
        return answers.values if answers.ptr is None else answers.by_row

    def featurize_molecules(self, molecules: Molecules, columns: Columns | None = None) -> GraphStore:
        """The molecules as the model reads them, row by row; arguments and errors of :meth:`predict`."""
        return to_store(molecules, columns, self.config, self.kinds)

    def check_calibrated(self, interval: float | None, nearest: bool) -> None:
        """Raise :class:`InputError` if there is no such interval, or no calibration for what is asked for."""
        if interval is not None:
            coverage_of_level(interval)
        if (interval is not None or nearest) and self.calibration is None:
            raise InputError(
                "the model has no calibration, which intervals and nearest molecules need: train it again with this "
                "version"
            )

    @property
    def kinds(self) -> list[str]:
        """The kinds of descriptors of a SMILES that the model, or the trees beside it, read."""
        of_trees = [kind for stacking in self.stackings if stacking is not None for kind in stacking.kinds]
        return list(dict.fromkeys([*descriptor_kinds(self.config.data.descriptors), *of_trees]))

    @property
    def feature_columns(self) -> list[str]:
        """The columns of a table that the model reads."""
        return feature_column_names(self.config.data.descriptors)

    def descriptors(self, smiles: str) -> dict[str, np.ndarray]:
        """The descriptors of a molecule that the model reads, as :meth:`GraphStore.from_arrays` takes them.

        Raises:
            InputError: if it reads columns of a table.
        """
        return input_descriptors([smiles], True, None, self.config, self.kinds)

    def predict_stream(
        self,
        chunks: Iterable[Sequence[str]],
        pool: Pool = None,
        columns: Iterable[np.ndarray] | None = None,
        *,
        interval: float | None = None,
        nearest: bool = False,
    ) -> Iterator[Predictions]:
        """Predict SMILES chunk by chunk, parsed in the processes of a pool of :func:`featurizer_pool`.

        Args:
            chunks: of SMILES.
            pool: None for this process.
            columns: for every chunk ``float32 [R, K]``, the values of ``feature_columns``.
            interval, nearest: as of :meth:`predict`.

        Returns:
            The answers of each chunk; of a model of atoms or bonds in the order of the SMILES.

        Raises:
            InputError: if the model reads columns, and none are given.
        """
        chunks, again = itertools.tee(chunks)
        on_gpu, own = self.device.type != "cpu", self.feature_columns
        if own and columns is None:
            as_feature_columns(own, {}, 0)
        more = None if not own or columns is None else (dict(zip(own, c.T, strict=True)) for c in columns)
        parsed = featurize_stream(chunks, self.config.graph, pool=pool, prefetch=on_gpu, kinds=self.kinds, columns=more)
        for (store, reasons), smiles in zip(parsed, again, strict=True):
            why = {i: reason for i, reason in enumerate(reasons) if reason}
            answers = self.predict_store_rows(store, np.arange(len(store)), why, interval=interval, nearest=nearest)
            if self.level != MOLECULE:
                read = [text if reason is None else "" for text, reason in zip(smiles, reasons, strict=True)]
                answers = answers.reordered(
                    atom_bond_orders(read, self.level, self.config.graph, pool, with_symmetry=True)
                )
            yield answers

    def predict_store(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """``float32 [R, W]`` for some rows of a store that have molecules, in batches of similar sizes; of a model of
        atoms or bonds ``[S, W]``, in the order of the store."""
        return self._ensemble_mean(self._predict(store, rows)[0])

    def predict_uncalibrated(self, store: GraphStore, rows: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """What a calibration is made of: answers without it, and what may tell of the size of their errors.

        Args:
            store, rows: as of :meth:`predict_store`.

        Returns:
            ``float32 [R, W]``, and by name ``float32 [R, T]``; of a model of atoms or bonds S rows, as those of
            :meth:`predict_store`.
        """
        each, difficulty = self._predict(store, rows)
        return each.mean(axis=0, dtype=np.float64).astype(np.float32), difficulty

    def _ensemble_mean(self, each: np.ndarray) -> np.ndarray:
        """``float32 [R, W]``: the answer of M models, ``float32 [M, R, W]``, at its temperature."""
        values = each.mean(axis=0, dtype=np.float64).astype(np.float32)
        return values if self.calibration is None else self.calibration.probabilities(values, self.tasks)

    def _predict(self, store: GraphStore, rows: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """``float32 [M, R, W]``: what each of M models answers; and how much its parts, and they, disagree."""
        counts = store.atom_bond_counts(self.level, rows)
        outputs = np.full((len(self.models), counts.sum(), self.config.model.tasks), np.nan, dtype=np.float32)
        for_each_batch(self.config, self.device, store, rows, self._forward, outputs, counts)
        stds = [model.target_std.cpu().numpy() for model in self.models]
        values, deviations = network_predictions(outputs, stds, self.tasks)
        values, difficulty = stack_predictions(values, self.stackings, store, rows, self.tasks)
        return values, difficulty | deviations

    def _forward(self, batch: GraphBatch) -> np.ndarray:
        """``float32 [M, B, W + D]``: what the networks put out, answers and D deviations of their errors."""
        batch = batch.to(self.device, non_blocking=True)
        with torch.inference_mode(), tf32_matmul(self.device, self.config.model.mixer):
            outputs = [model(batch).float().cpu().numpy() for model in self.models]
        return np.stack(outputs)

    def predict_store_rows(
        self,
        store: GraphStore,
        rows: np.ndarray,
        reasons: dict[int, str] | None = None,
        *,
        interval: float | None = None,
        nearest: bool = False,
    ) -> Predictions:
        """Answers for any rows of a store.

        Args:
            store: made as ``config.graph`` says. A model of atoms or bonds answers in its order of these.
            rows: ``int64 [R]``.
            reasons: why a row of the store has no molecule, by row; read from it when not given.
            interval, nearest: as of :meth:`predict`.
        """
        self.check_calibrated(interval, nearest)
        reasons = store.errors if reasons is None else reasons
        present, counts = store.sizes[rows] > 0, store.atom_bond_counts(self.level, rows)
        ptr = pointers(counts)
        values = np.full((ptr[-1], len(self.columns)), np.nan, dtype=np.float32)
        std = None if len(self.models) == 1 else values.copy()
        answered = ragged_indices(ptr, np.flatnonzero(present))
        each, difficulty = self._predict(store, rows[present])
        values[answered] = self._ensemble_mean(each)
        if std is not None:
            std[answered] = each.std(axis=0, ddof=1, dtype=np.float64)
        errors = [None if there else reasons.get(int(row)) for row, there in zip(rows, present, strict=True)]
        wrong = np.repeat(np.arange(len(rows)), counts)[~np.isfinite(values).all(axis=1)]
        for i in np.unique(wrong[present[wrong]]).tolist():
            values[ptr[i] : ptr[i + 1]], errors[i] = np.nan, "the model's answer is not a finite number"
            if std is not None:
                std[ptr[i] : ptr[i + 1]] = np.nan
        found = Predictions(values, errors, self.tasks, std, ptr=None if self.level == MOLECULE else ptr)
        if interval is not None or nearest:
            assert self.calibration is not None
            given = (self.calibration, store, rows, ptr, values, difficulty, self.tasks)
            found.interval, found.neighbours, places = estimate_uncertainty(*given, interval)
            if nearest:
                found.neighbours.nearest = training_molecule_names(self.calibration.domain, places, self.folder)
        return found

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The models as files would hold them, to be sent elsewhere."""
        states = [{name: value.cpu() for name, value in model.state_dict().items()} for model in self.models]
        parts = zip(self._made, states, self.stackings, strict=True)
        return [
            Checkpoint(config, self.tasks, state, {}, stacking, alone) for (config, alone), state, stacking in parts
        ]


def load(path: str | Path, device: str | torch.device | None = None) -> Predictor:
    """Load the model of a run folder, of a checkpoint file or of a name that comes with the package, or the models of a
    folder of several.

    Reads weights only, never runs code.

    Raises:
        InputError: if there is no model there, or it cannot be read.
    """
    checkpoints = read_checkpoints(path)
    return Predictor(
        checkpoints, device, calibration=read_calibration(path, checkpoints), folder=run_directory_of(path)
    )
