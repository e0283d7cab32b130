"""What the server computes: rows of predictions, atom contributions and drawings, as plain JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from graphslice.api.model import Model
from graphslice.api.picture import explain_molecule
from graphslice.chem.parse import MoleculeError, parse_molecule
from graphslice.data.featurize import Pool
from graphslice.data.tables import plain_rows
from graphslice.errors import InputError
from graphslice.inference.inputs import Columns
from graphslice.inference.predictions import output_arrays
from graphslice.report.drawing import draw_molecule
from graphslice.run_files import without_nan

# The time of an explanation grows with the square of the atoms.
_MAX_EXPLAINED_ATOMS = 120


class ServedModel:
    """A model in memory. Files of its run directory are read when it is made, and never later.

    :meth:`predict` is called by one thread at a time, and so is :meth:`explain`. The two may run concurrently, since
    explanations have networks of their own.

    Args:
        name: name by which requests choose the model.
        model: the model.
        pool: processes of :func:`~graphslice.data.featurize.featurizer_pool` that parse SMILES; None parses here.
    """

    def __init__(self, name: str, model: Model, pool: Pool = None) -> None:
        self.name, self.model, self._pool = name, model, pool
        values = {column: np.zeros(1, np.float32) for column in model.feature_columns}
        # Loads the names of training molecules, and compiles kernels, before the first request.
        self.predict(["CCO"], values, None, nearest=model.calibration is not None)

    def describe(self) -> dict[str, Any]:
        """Describe the model as :meth:`Model.describe` does, without paths, with what requests must or may give."""
        facts = {key: value for key, value in self.model.describe().items() if key != "folder"}
        return {"name": self.name, **facts, "columns": self.model.feature_columns}

    def predict(
        self, smiles: Sequence[str], columns: dict[str, np.ndarray], interval: float | None, nearest: bool
    ) -> list[dict[str, Any]]:
        """Predict R molecules; ``columns``: feature columns, ``float32 [R]`` by name; errors as in Model.predict.

        Returns:
            For every molecule its SMILES and the columns that ``graphslice predict`` writes; None where there is no
            prediction, and for bounds that are infinite.
        """
        matrix = [np.stack(list(columns.values()), axis=1)] if columns else None
        (predictions,) = self.model.predict_stream([smiles], self._pool, matrix, interval=interval, nearest=nearest)
        rows = plain_rows(pa.table(output_arrays(predictions)))
        return [{"smiles": text} | row for text, row in zip(smiles, rows, strict=True)]

    @cached_property
    def _explained(self) -> Model:
        """The model with its networks as torch modules, which round differently from the compiled program."""
        return Model(self.model.checkpoints, self.model.device, calibration=self.model.calibration)

    def explain(self, smiles: str, target: str | None, columns: Columns, orders: int) -> dict[str, Any]:
        """Explain a prediction; arguments and errors as in :meth:`Model.draw`, and an error for more than 120 atoms.

        Returns:
            The attributes of :class:`~graphslice.analysis.formatting.Explanation` that are numbers or texts, and
            ``svg``, the picture.
        """
        atoms = self._count_atoms(smiles)
        if isinstance(atoms, str):
            raise InputError(f"cannot explain the prediction: {atoms}")
        if atoms > _MAX_EXPLAINED_ATOMS:
            raise InputError(f"atom contributions are for up to {_MAX_EXPLAINED_ATOMS} atoms; the molecule has {atoms}")
        explanation, picture = explain_molecule(self._explained, smiles, target, orders, columns)
        return {
            "quantity": explanation.quantity,
            "prediction": explanation.prediction,
            "baseline": explanation.baseline,
            "contributions": explanation.values.tolist(),
            "standard_errors": without_nan(explanation.errors.tolist()),
            "notes": list(explanation.notes),
            "warning": explanation.warning or None,
            "svg": picture.svg,
        }

    def _count_atoms(self, smiles: str) -> int | str:
        """Return the number of atoms, or why there is none; RDKit may crash or hang, and would stop the server."""
        work = partial(_count_atoms, max_atoms=self.model.config.graph.max_atoms)
        if self._pool is None:
            return work([smiles])[0]
        (((atoms,), reason),) = self._pool.submit(work, [smiles]).result()
        return reason or atoms


def _count_atoms(smiles: Sequence[str], max_atoms: int) -> list[int | str]:
    """Return the number of atoms of each SMILES, or the reason why it is invalid."""
    counts: list[int | str] = []
    for text in smiles:
        try:
            counts.append(parse_molecule(text, max_atoms).GetNumAtoms())
        except MoleculeError as reason:
            counts.append(str(reason))
    return counts


def draw_molecules(smiles: Sequence[str], pool: Pool = None) -> list[str | None]:
    """Draw molecules as SVG; None where there is no drawing: see :func:`~graphslice.report.drawing.draw_molecule`."""
    if pool is None:
        return _draw(smiles)
    return [svg or None for drawings, _ in pool.submit(_draw, smiles).result() for svg in drawings]


def _draw(smiles: Sequence[str]) -> list[str | None]:
    return [draw_molecule(text) for text in smiles]
