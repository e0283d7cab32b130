"""Predictor: SMILES in, numbers out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
import pyarrow as pa
import torch

from graphslice.checkpoint import Checkpoint, read_checkpoint
from graphslice.chem import MoleculeError, MolGraph
from graphslice.data.batch import collate
from graphslice.data.module import EvalBatches
from graphslice.data.sources import find_smiles_column
from graphslice.data.store import featurize, featurizers
from graphslice.data.tables import open_table, texts, write_table
from graphslice.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data

    Molecule = str | MolGraph | Data


@dataclass
class Predictions:
    """Answers, row by row.

    Attributes:
        values: ``float32 [R, T]`` in the unit of the targets; nan where there is no answer.
        errors: for each row None, or why it has no answer.
        targets: T names.
    """

    values: np.ndarray
    errors: list[str | None]
    targets: list[str]


class Predictor:
    """A trained model that answers for molecules.

    Args:
        checkpoint: of the model.
        device: where it computes; a GPU where there is one.

    Attributes:
        targets: names of what it predicts.
        config: how it was made.
    """

    def __init__(self, checkpoint: Checkpoint, device: str | torch.device | None = None) -> None:
        self.config, self.targets = checkpoint.config, checkpoint.targets
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = checkpoint.model().to(self.device)

    @overload
    def predict(self, molecules: Molecule | Iterable[Molecule], *, details: Literal[False] = False) -> np.ndarray: ...
    @overload
    def predict(self, molecules: Molecule | Iterable[Molecule], *, details: Literal[True]) -> Predictions: ...
    def predict(self, molecules, *, details=False):
        """Predict some molecules.

        Args:
            molecules: SMILES, :class:`MolGraph`, or PyG ``Data`` with OGB features; one or many.
            details: also say why a molecule has no answer.

        Returns:
            ``float32 [R, T]`` in the unit of the targets, nan where there is no answer; with
            ``details`` a :class:`Predictions`.
        """
        from torch_geometric.data import Data

        if isinstance(molecules, (str, MolGraph, Data)):
            molecules = [molecules]
        molecules = list(molecules)
        graphs: list[MolGraph | None] = [None] * len(molecules)
        errors: list[str | None] = [None] * len(molecules)
        texts = [i for i, m in enumerate(molecules) if not isinstance(m, (MolGraph, Data))]
        store, reasons = featurize([molecules[i] for i in texts], self.config.graph)
        found = iter(store)
        for i, reason in zip(texts, reasons, strict=True):
            errors[i] = reason
            graphs[i] = next(found) if reason is None else None
        for i, molecule in enumerate(molecules):
            if isinstance(molecule, (MolGraph, Data)):
                try:
                    graphs[i] = self._checked(molecule)
                except MoleculeError as reason:
                    errors[i] = str(reason)
        return self._answers(graphs, errors) if details else self._answers(graphs, errors).values

    def predict_smiles(self, smiles: Sequence[str], pool: ProcessPoolExecutor | None = None) -> Predictions:
        """Predict SMILES, parsed in the processes of :func:`graphslice.data.store.featurizers`."""
        store, errors = featurize(smiles, self.config.graph, pool=pool)
        found = iter(store)
        return self._answers([None if reason else next(found) for reason in errors], errors)

    def predict_graphs(self, graphs: Sequence[MolGraph]) -> np.ndarray:
        """``float32 [R, T]`` for molecules that are graphs already, in batches of similar sizes."""
        values = np.full((len(graphs), len(self.targets)), np.nan, dtype=np.float32)
        sizes = np.array([graph.num_atoms for graph in graphs], dtype=np.int64)
        settings = {"path_ties": self.config.graph.path_ties, "max_path": self.config.model.max_path}
        with torch.inference_mode():
            for rows in EvalBatches(sizes):
                batch = collate([graphs[row] for row in rows], **settings)
                values[rows] = self.model(batch.to(self.device)).float().cpu().numpy()
        return values

    def _answers(self, graphs: list[MolGraph | None], errors: list[str | None]) -> Predictions:
        values = np.full((len(graphs), len(self.targets)), np.nan, dtype=np.float32)
        good = [i for i, graph in enumerate(graphs) if graph is not None]
        values[good] = self.predict_graphs([graphs[i] for i in good])
        errors = list(errors)
        for i in good:
            if not np.isfinite(values[i]).all():
                values[i], errors[i] = np.nan, "the model's answer is not a finite number"
        return Predictions(values, errors, self.targets)

    def _checked(self, molecule: MolGraph | Data) -> MolGraph:
        if not isinstance(molecule, MolGraph):
            from graphslice.data.pyg import from_pyg

            molecule = from_pyg(molecule)
        if molecule.num_atoms == 0:
            raise MoleculeError("the graph has no atoms")
        if molecule.num_atoms > self.config.graph.max_atoms:
            raise MoleculeError(f"{molecule.num_atoms} atoms, more than the limit of {self.config.graph.max_atoms}")
        return molecule


def load(path: str | Path, device: str | torch.device | None = None) -> Predictor:
    """Load a model from a run folder or a checkpoint file. Reads weights only, never runs code.

    Raises:
        InputError: if there is no model there, or it cannot be read.
    """
    return Predictor(read_checkpoint(path), device)


@dataclass
class FileReport:
    """How the prediction of a file went: rows read, rows without an answer, the first reason."""

    rows: int
    failed: int
    first_reason: str | None


def predict_file(
    predictor: Predictor,
    source: str | Path,
    out: str | Path | None,
    *,
    smiles_column: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> FileReport:
    """Predict every row of a CSV, TSV, Parquet or ``.smi`` file.

    The same rows come out in the same order, with their columns, then one ``<target>_pred`` a
    target, then ``error``. Memory does not grow with the file.

    Args:
        predictor: the model.
        source: the file of molecules.
        out: a CSV, TSV or Parquet file; it appears when whole. None: CSV on stdout.
        smiles_column: the column of the SMILES; found by its name when not given.
        progress: called with the number of rows done, from time to time.

    Raises:
        InputError: if either file cannot be used.
    """
    source, out = Path(source), None if out is None else Path(out)
    if out is not None and out.exists() and source.exists() and out.samefile(source):
        raise InputError(f"{out} is the input itself: choose another output")
    report = FileReport(0, 0, None)
    with open_table(source) as table, featurizers(source.stat().st_size // 32) as pool:
        column = find_smiles_column(table.columns, smiles_column, str(source))
        added = [f"{target}_pred" for target in predictor.targets] + ["error"]
        for name in added:
            if name in table.columns:
                raise InputError(f"{source} has a column {name!r} already: rename it first")
        at = table.columns.index(column)
        with write_table(out) as sink:
            for piece in table.pieces:
                answers = predictor.predict_smiles(texts(piece.column(at)), pool)
                for name, values in zip(added, answers.values.T, strict=False):
                    piece = piece.append_column(name, pa.array(values, pa.float32()))
                sink.write(piece.append_column("error", pa.array(answers.errors, pa.string())))
                failed = [reason for reason in answers.errors if reason]
                report.rows += len(answers.errors)
                report.failed += len(failed)
                report.first_reason = report.first_reason or (failed[0] if failed else None)
                if progress:
                    progress(len(answers.errors))
    return report
