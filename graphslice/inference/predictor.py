"""Predictor: SMILES in, numbers out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, overload

import numpy as np
import torch

from graphslice.batch import GraphBatch
from graphslice.checkpoint import Checkpoint, read_checkpoint
from graphslice.chem.molecule import NO_GRAPH, MolArrays, MoleculeError, MolGraph, check_graph, read_smiles
from graphslice.data.collate import collate_rows
from graphslice.data.featurize.pool import Pool, featurize_stream
from graphslice.data.loader import BatchLoader, EvalBatches
from graphslice.data.store import GraphStore
from graphslice.inference.on_gpu import free_memory, molecules_of_a_batch, tf32_products
from graphslice.machine import default_device
from graphslice.ops.threads import one_core_each
from graphslice.tasks import answer_columns, output_slices, predicted_classes, to_answers

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphslice.tasks import Task

    Molecule: TypeAlias = str | MolGraph | Data


# Molecules of a batch, but on a GPU.
_BATCH = 128


@dataclass
class Predictions:
    """Answers, row by row.

    Attributes:
        values: ``float32 [R, W]``; nan where there is no answer. A number in its unit for a target that is one, the
            probability of the second class for one of two classes, of each class for one of several.
        errors: for each row None, or why it has no answer.
        tasks: the T targets.
    """

    values: np.ndarray
    errors: list[str | None]
    tasks: list[Task]

    @property
    def targets(self) -> list[str]:
        """T names."""
        return [task.name for task in self.tasks]

    @property
    def columns(self) -> list[str]:
        """W names of the values."""
        return answer_columns(self.tasks)

    def classes(self, target: str) -> list[str | None]:
        """The most probable class of each row; raises KeyError for a target that has no classes."""
        for task, where in zip(self.tasks, output_slices(self.tasks), strict=True):
            if task.name == target and task.classes:
                return predicted_classes(self.values[:, where], task)
        raise KeyError(target)


class Predictor:
    """A trained model that answers for molecules.

    Args:
        checkpoint: of the model.
        device: where it computes; a CUDA GPU where there is one, else the CPU.

    Attributes:
        tasks: what it predicts.
        config: how it was made.
    """

    def __init__(self, checkpoint: Checkpoint, device: str | torch.device | None = None) -> None:
        self.config, self.tasks = checkpoint.config, checkpoint.tasks
        self.device = torch.device(device or default_device())
        self.model = checkpoint.model().to(self.device)

    @property
    def targets(self) -> list[str]:
        """Names of what it predicts."""
        return [task.name for task in self.tasks]

    @property
    def columns(self) -> list[str]:
        """Names of the W numbers that it predicts with: see :class:`Predictions`."""
        return answer_columns(self.tasks)

    @overload
    def predict(self, molecules: Molecule | Iterable[Molecule], *, details: Literal[False] = False) -> np.ndarray: ...
    @overload
    def predict(self, molecules: Molecule | Iterable[Molecule], *, details: Literal[True]) -> Predictions: ...
    def predict(self, molecules, *, details=False):
        """Predict some molecules.

        Args:
            molecules: SMILES, :class:`MolGraph`, or PyG ``Data`` with OGB features; one or many. A ``Batch`` of PyG is
                its graphs.
            details: also say why a molecule has no answer.

        Returns:
            ``float32 [R, W]``, the values of :class:`Predictions`: a number in the unit of its target, and
            probabilities of classes; with ``details`` all of it.
        """
        if isinstance(molecules, str) or _is_graph(molecules):
            molecules = [molecules]
        molecules = [one for given in molecules for one in _each(given)]
        graphs: list[MolGraph] = [NO_GRAPH] * len(molecules)
        reasons: list[str | None] = [None] * len(molecules)
        texts = [i for i, molecule in enumerate(molecules) if not _is_graph(molecule)]
        arrays, text_reasons = read_smiles([molecules[i] for i in texts], **self._graph_settings)
        for at, i in enumerate(texts):
            graphs[i], reasons[i] = arrays.graph(at), text_reasons[at]
        for i, molecule in enumerate(molecules):
            if _is_graph(molecule):
                try:
                    graphs[i] = self._checked(molecule)
                except MoleculeError as reason:
                    reasons[i] = str(reason)
        store = GraphStore.from_arrays(MolArrays.from_graphs(graphs), reasons)
        answers = self.answers(store, np.arange(len(store)))
        return answers if details else answers.values

    def predict_stream(self, chunks: Iterable[Sequence[str]], pool: Pool = None) -> Iterator[Predictions]:
        """Predict SMILES chunk by chunk, parsed in the processes of a pool of :func:`featurizers`."""
        on_gpu = self.device.type != "cpu"
        for store, reasons in featurize_stream(chunks, self.config.graph, pool=pool, ahead=on_gpu):
            yield self.answers(store, np.arange(len(store)), {i: why for i, why in enumerate(reasons) if why})

    def predict_store(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """``float32 [R, W]`` for some rows of a store that have molecules, in batches of similar sizes."""
        values = np.full((len(rows), len(self.columns)), np.nan, dtype=np.float32)
        on_gpu = self.device.type == "cuda"
        most = molecules_of_a_batch(free_memory(self.device), self.config.model) if on_gpu else _BATCH
        batches = list(EvalBatches(store.sizes[rows], most))
        settings = self.config.collate_settings
        if self.device.type != "cpu":
            loader = BatchLoader(store, rows, batches, settings, threads=2, pin_memory=on_gpu)
            for indices, batch in zip(batches, loader, strict=True):
                values[indices] = self._forward(batch)
            return values

        def predict(indices: list[int]) -> None:
            values[indices] = self._forward(collate_rows(store, rows[indices], **settings))

        one_core_each(predict, batches)
        return values

    def _forward(self, batch: GraphBatch) -> np.ndarray:
        with torch.inference_mode(), tf32_products(self.device, self.config.model.mixer):
            outputs = self.model(batch.to(self.device, non_blocking=True)).float().cpu().numpy()
        return to_answers(outputs, self.tasks)

    def answers(self, store: GraphStore, rows: np.ndarray, reasons: dict[int, str] | None = None) -> Predictions:
        """Answers for any rows of a store.

        Args:
            store: made as ``config.graph`` says.
            rows: ``int64 [R]``.
            reasons: why a row of the store has no molecule, by row; read from it when not given.
        """
        reasons = store.errors if reasons is None else reasons
        values = np.full((len(rows), len(self.columns)), np.nan, dtype=np.float32)
        present = store.sizes[rows] > 0
        values[present] = self.predict_store(store, rows[present])
        errors = [None if there else reasons.get(int(row)) for row, there in zip(rows, present, strict=True)]
        for i in np.flatnonzero(present & ~np.isfinite(values).all(axis=1)):
            values[i], errors[i] = np.nan, "the model's answer is not a finite number"
        return Predictions(values, errors, self.tasks)

    @property
    def _graph_settings(self) -> dict:
        return {"atom_order": self.config.graph.atom_order, "max_atoms": self.config.graph.max_atoms}

    @property
    def checkpoint(self) -> Checkpoint:
        """The model as a file would hold it, to be sent elsewhere."""
        return Checkpoint(self.config, self.tasks, {k: v.cpu() for k, v in self.model.state_dict().items()})

    def _checked(self, molecule: MolGraph | Data) -> MolGraph:
        if not isinstance(molecule, MolGraph):
            from graphslice.data.pyg import from_pyg

            molecule = from_pyg(molecule)
        molecule = check_graph(molecule)
        if molecule.num_atoms == 0:
            raise MoleculeError("the graph has no atoms")
        if molecule.num_atoms > self.config.graph.max_atoms:
            raise MoleculeError(f"{molecule.num_atoms} atoms, more than the limit of {self.config.graph.max_atoms}")
        return molecule


def _each(given: object) -> list:
    """The graphs of a batch of PyG, or what is given."""
    return given.to_data_list() if hasattr(given, "to_data_list") else [given]


def _is_graph(molecule: object) -> bool:
    """Whether it is a :class:`MolGraph` or a PyG ``Data``; told without importing PyG, which takes seconds."""
    return isinstance(molecule, MolGraph) or hasattr(molecule, "edge_index")


def load(path: str | Path, device: str | torch.device | None = None) -> Predictor:
    """Load a model from a run folder or a checkpoint file. Reads weights only, never runs code.

    Raises:
        InputError: if there is no model there, or it cannot be read.
    """
    return Predictor(read_checkpoint(path), device)
