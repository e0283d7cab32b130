"""Predictor: SMILES in, numbers out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, overload

import numpy as np
import torch

from graphslice.batch import GraphBatch
from graphslice.checkpoint import MEMBER, Checkpoint, read_checkpoints
from graphslice.chem.descriptors import kinds_of, own_of, read_descriptors
from graphslice.chem.molecule import NO_GRAPH, MolArrays, MoleculeError, MolGraph, check_graph, read_smiles
from graphslice.data.collate import collate_rows
from graphslice.data.featurize.pool import Pool, featurize_stream
from graphslice.data.frames import is_frame
from graphslice.data.loader import BatchLoader, EvalBatches
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.inference.inputs import Columns, frame_molecules, given_columns, given_molecules, is_graph
from graphslice.inference.on_gpu import free_memory, molecules_of_a_batch, tf32_products
from graphslice.inference.predictions import Predictions
from graphslice.machine import default_device
from graphslice.ops.threads import one_core_each
from graphslice.tasks import answer_columns, to_answers

if TYPE_CHECKING:
    from pandas import DataFrame
    from rdkit.Chem import Mol
    from torch_geometric.data import Data

    from graphslice.nn import GraphTransformer

    Molecule: TypeAlias = str | MolGraph | Mol | Data
    Molecules: TypeAlias = Molecule | Iterable[Molecule] | DataFrame


# Molecules of a batch, but on a GPU.
_BATCH = 128
# Molecules whose descriptors trees get at a time.
_TREE_ROWS = 4096


class Predictor:
    """A trained model that answers for molecules, or several whose mean does.

    Args:
        checkpoints: of the model, or of the models.
        device: where it computes; a CUDA GPU where there is one, else the CPU.

    Attributes:
        tasks: what it predicts.
        config: how it was made.
    """

    def __init__(
        self, checkpoints: Checkpoint | Sequence[Checkpoint], device: str | torch.device | None = None
    ) -> None:
        checkpoints = [checkpoints] if isinstance(checkpoints, Checkpoint) else checkpoints
        self.config, self.tasks = checkpoints[0].config, checkpoints[0].tasks
        self.device = torch.device(device or default_device())
        self._configs = [checkpoint.config for checkpoint in checkpoints]
        self.models = [checkpoint.model().to(self.device) for checkpoint in checkpoints]
        self.blends = [checkpoint.blend for checkpoint in checkpoints]

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
    def columns(self) -> list[str]:
        """Names of the W numbers that it predicts with: see :class:`Predictions`."""
        return answer_columns(self.tasks)

    @overload
    def predict(
        self,
        molecules: Molecules,
        *,
        columns: Columns | None = None,
        details: Literal[False] = False,
    ) -> np.ndarray: ...
    @overload
    def predict(
        self, molecules: Molecules, *, columns: Columns | None = None, details: Literal[True]
    ) -> Predictions: ...
    def predict(self, molecules, *, columns=None, details=False):
        """Predict some molecules.

        Args:
            molecules: SMILES, RDKit molecules, :class:`MolGraph`, or PyG ``Data`` with OGB features; one or many, in
                a list, an array or a Series. A ``Batch`` of PyG is its graphs. Of a data frame (pandas, polars or
                Arrow) the column of the SMILES is found by its name, as in a file, and those that the model reads.
            columns: R numbers by name, of a model that was trained with columns of a table as features; nan or None
                where unknown, for which the mean of the training stands.
            details: also say why a molecule has no answer.

        Returns:
            ``float32 [R, W]``, the values of :class:`Predictions`: a number in the unit of its target, and
            probabilities of classes; with ``details`` all of it.

        Raises:
            InputError: if the model reads columns that are not given, or descriptors of SMILES and is given graphs; if
                what is given holds no molecules.
        """
        store = self.store_of(molecules, columns)
        answers = self.answers(store, np.arange(len(store)))
        return answers if details else answers.values

    def store_of(self, molecules: Molecules, columns: Columns | None = None) -> GraphStore:
        """The molecules as the model reads them, row by row; arguments and errors of :meth:`predict`."""
        if is_frame(molecules):
            molecules, found = frame_molecules(molecules, self.config.data.smiles_column, self.own_columns)
            columns = {**found, **(columns or {})}
        else:
            molecules = given_molecules(molecules)
        graphs: list[MolGraph] = [NO_GRAPH] * len(molecules)
        reasons: list[str | None] = [str(one) if isinstance(one, MoleculeError) else None for one in molecules]
        texts = [i for i, molecule in enumerate(molecules) if isinstance(molecule, str)]
        smiles = [molecule if isinstance(molecule, str) else "" for molecule in molecules]
        descriptors = self._descriptors(smiles, not any(map(is_graph, molecules)), columns)
        arrays, text_reasons = read_smiles([smiles[i] for i in texts], **self._graph_settings)
        for at, i in enumerate(texts):
            graphs[i], reasons[i] = arrays.graph(at), text_reasons[at]
        for i, molecule in enumerate(molecules):
            if is_graph(molecule):
                try:
                    graphs[i] = self._checked(molecule)
                except MoleculeError as reason:
                    reasons[i] = str(reason)
        return GraphStore.from_arrays(MolArrays.from_graphs(graphs), reasons, descriptors)

    @property
    def kinds(self) -> list[str]:
        """The kinds of descriptors of a SMILES that the model, or the trees beside it, read."""
        of_trees = [kind for blend in self.blends if blend is not None for kind in blend.kinds]
        return list(dict.fromkeys([*kinds_of(self.config.data.descriptors), *of_trees]))

    @property
    def own_columns(self) -> list[str]:
        """The columns of a table that the model reads."""
        return own_of(self.config.data.descriptors)

    def _descriptors(self, molecules: list, all_texts: bool, columns: Columns | None) -> dict[str, np.ndarray]:
        if self.kinds and not all_texts:
            raise InputError(
                f"the model reads {', '.join(self.kinds)} beside the graph, which are made of a SMILES: give SMILES in "
                "place of graphs"
            )
        found = read_descriptors(molecules, self.kinds, self.config.graph.max_atoms) if self.kinds else {}
        return {**found, **given_columns(self.own_columns, columns or {}, len(molecules))}

    def descriptors(self, smiles: str) -> dict[str, np.ndarray]:
        """The descriptors of a molecule that the model reads, as :meth:`GraphStore.from_arrays` takes them.

        Raises:
            InputError: if it reads columns of a table.
        """
        return self._descriptors([smiles], True, None)

    def predict_stream(
        self,
        chunks: Iterable[Sequence[str]],
        pool: Pool = None,
        columns: Iterable[np.ndarray] | None = None,
    ) -> Iterator[Predictions]:
        """Predict SMILES chunk by chunk, parsed in the processes of a pool of :func:`featurizers`.

        Args:
            chunks: of SMILES.
            pool: None for this process.
            columns: for every chunk ``float32 [R, K]``, the values of ``own_columns``.

        Raises:
            InputError: if the model reads columns, and none are given.
        """
        on_gpu, own = self.device.type != "cpu", self.own_columns
        if own and columns is None:
            given_columns(own, {}, 0)
        more = None if not own or columns is None else (dict(zip(own, c.T, strict=True)) for c in columns)
        parsed = featurize_stream(chunks, self.config.graph, pool=pool, ahead=on_gpu, kinds=self.kinds, columns=more)
        for store, reasons in parsed:
            yield self.answers(store, np.arange(len(store)), {i: why for i, why in enumerate(reasons) if why})

    def predict_store(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """``float32 [R, W]`` for some rows of a store that have molecules, in batches of similar sizes."""
        return self._predict(store, rows).mean(axis=0, dtype=np.float64).astype(np.float32)

    def _predict(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """``float32 [M, R, W]``: what each of M models answers."""
        values = np.full((len(self.models), len(rows), len(self.columns)), np.nan, dtype=np.float32)
        self.in_batches(store, rows, self._forward, values)
        return self._blended(values, store, rows)

    def in_batches(
        self, store: GraphStore, rows: np.ndarray, compute: Callable[[GraphBatch], np.ndarray], found: np.ndarray
    ) -> None:
        """Compute something of some rows of a store that have molecules, in batches of similar sizes.

        Args:
            store: made as ``config.graph`` says.
            rows: ``int64 [R]``.
            compute: ``[..., B, C]`` of a batch of B molecules; called from several threads.
            found: ``[..., R, C]``, which is filled.
        """
        on_gpu = self.device.type == "cuda"
        most = molecules_of_a_batch(free_memory(self.device), self.config.model) if on_gpu else _BATCH
        batches = list(EvalBatches(store.sizes[rows], most))
        settings = self.config.collate_settings
        if self.device.type != "cpu":
            loader = BatchLoader(store, rows, batches, settings, threads=2, pin_memory=on_gpu)
            for indices, batch in zip(batches, loader, strict=True):
                found[..., indices, :] = compute(batch)
            return

        def fill(indices: list[int]) -> None:
            found[..., indices, :] = compute(collate_rows(store, rows[indices], **settings))

        one_core_each(fill, batches)

    def _blended(self, values: np.ndarray, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """``float32 [M, R, W]``: what the networks answer, with the trees beside them."""
        for model, blend in enumerate(self.blends):
            for begin in range(0, len(rows) if blend is not None else 0, _TREE_ROWS):
                assert blend is not None
                some = slice(begin, begin + _TREE_ROWS)
                x = store.descriptors(rows[some], blend.kinds)
                values[model, some] = blend.answers(values[model, some], x, self.tasks)
        return values

    def _forward(self, batch: GraphBatch) -> np.ndarray:
        """``float32 [M, B, W]``."""
        batch = batch.to(self.device, non_blocking=True)
        with torch.inference_mode(), tf32_products(self.device, self.config.model.mixer):
            outputs = [model(batch).float().cpu().numpy() for model in self.models]
        return np.stack([to_answers(each, self.tasks) for each in outputs])

    def answers(self, store: GraphStore, rows: np.ndarray, reasons: dict[int, str] | None = None) -> Predictions:
        """Answers for any rows of a store.

        Args:
            store: made as ``config.graph`` says.
            rows: ``int64 [R]``.
            reasons: why a row of the store has no molecule, by row; read from it when not given.
        """
        reasons = store.errors if reasons is None else reasons
        values = np.full((len(rows), len(self.columns)), np.nan, dtype=np.float32)
        spread = None if len(self.models) == 1 else values.copy()
        present = store.sizes[rows] > 0
        each = self._predict(store, rows[present])
        values[present] = each.mean(axis=0, dtype=np.float64)
        if spread is not None:
            spread[present] = each.std(axis=0, ddof=1, dtype=np.float64)
        errors = [None if there else reasons.get(int(row)) for row, there in zip(rows, present, strict=True)]
        for i in np.flatnonzero(present & ~np.isfinite(values).all(axis=1)):
            values[i], errors[i] = np.nan, "the model's answer is not a finite number"
            if spread is not None:
                spread[i] = np.nan
        return Predictions(values, errors, self.tasks, spread)

    @property
    def _graph_settings(self) -> dict:
        return {"atom_order": self.config.graph.atom_order, "max_atoms": self.config.graph.max_atoms}

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The models as files would hold them, to be sent elsewhere."""
        states = [{name: value.cpu() for name, value in model.state_dict().items()} for model in self.models]
        parts = zip(self._configs, states, self.blends, strict=True)
        return [Checkpoint(config, self.tasks, state, blend=blend) for config, state, blend in parts]

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


def load(path: str | Path, device: str | torch.device | None = None) -> Predictor:
    """Load the model of a run folder or of a checkpoint file, or the models of a folder of several.

    Reads weights only, never runs code.

    Raises:
        InputError: if there is no model there, or it cannot be read.
    """
    return Predictor(read_checkpoints(path), device)
