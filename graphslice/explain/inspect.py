"""Implementation of ``graphslice inspect``: explain predictions for molecules, in tables and figures."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rdkit import Chem

from graphslice.chem.parse import MoleculeError
from graphslice.data.tables import is_table_name, texts
from graphslice.errors import InputError
from graphslice.explain.attribution import Explanation, explain_targets, graph_of, match_target, require_molecule_level
from graphslice.explain.pictures import draw_atoms, draw_overview
from graphslice.inference.files import open_molecules
from graphslice.inference.predictor import Predictor

#: Maximum number of molecules that are explained and drawn.
MAX_DRAWN = 100
# Name of the output table, and pattern of the names of all output files.
TABLE = "atoms.csv"
_OUTPUT_FILES = re.compile(r"atoms\.csv|atoms-\d+\.(png|svg)|overview\.png")


@dataclass
class InputMolecule:
    """A molecule to inspect."""

    smiles: str
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)  # features in addition to the graph
    error: str | None = None  # why the input row is unusable, if already known


@dataclass
class Inspected:
    """Explanations of the predictions for one molecule."""

    number: int  # among the input molecules, from 1; in tables and file names
    smiles: str
    explanations: list[Explanation]  # one per target, in SMILES order

    @property
    def elements(self) -> list[str]:
        """Element symbols of its atoms."""
        return [atom.GetSymbol() for atom in Chem.MolFromSmiles(self.smiles).GetAtoms()]

    def to_dict(self, targets: Sequence[str]) -> dict[str, Any]:
        """Convert to plain values, given the names of the targets."""
        by_target = {
            target: {
                "explained": explanation.quantity,
                "contributions": explanation.values.tolist(),
                "standard_errors": explanation.errors.tolist(),
                "prediction": explanation.prediction,
                "baseline": explanation.baseline,
                "network_weight": explanation.weight,
            }
            for target, explanation in zip(targets, self.explanations, strict=True)
        }
        return {"number": self.number, "smiles": self.smiles, "elements": self.elements, "targets": by_target}


@dataclass
class Inspection:
    """Result of inspecting molecules."""

    found: list[Inspected]  # the valid molecules
    left_out: list[tuple[int, str, str]]  # number, SMILES and error message of each invalid molecule
    target: int  # index of the drawn one
    more: bool  # whether there are valid molecules beyond those that are explained
    files: list[Path] = field(default_factory=list)

    def to_dict(self, targets: Sequence[str]) -> dict[str, Any]:
        """Convert the explanations to plain values, given the names of the targets."""
        left_out = [{"number": number, "smiles": smiles, "error": error} for number, smiles, error in self.left_out]
        return {
            "molecules": [molecule.to_dict(targets) for molecule in self.found],
            "left_out": left_out,
            "more": self.more,
        }


def inspect(
    predictor: Predictor,
    molecules: Iterable[str | InputMolecule],
    out: str | Path,  # created if missing
    *,
    target: str | None = None,  # to draw, by its name or a part of it; by default the first
    orders: int = 256,  # as of attribute
    progress: Callable[[int], None] | None = None,  # called with the number of newly explained molecules
) -> Inspection:
    """Explain the predictions of a model for the first :data:`MAX_DRAWN` valid molecules, and write tables and
    figures.

    The files are ``atoms.csv`` (contributions to every target), ``atoms-1.png`` and ``atoms-1.svg`` and so on, and
    ``overview.png`` for several molecules; those of an earlier call are removed. Raises :class:`InputError` if no
    molecule is valid or the target is unknown; then nothing is written.
    """
    out = Path(out)
    inspection = explain(predictor, molecules, target=target, orders=orders, progress=progress)
    out.mkdir(parents=True, exist_ok=True)
    _remove_old_outputs(out)
    inspection.files += _write_explanations(inspection.found, predictor.targets, inspection.target, out)
    return inspection


def explain(
    predictor: Predictor,
    molecules: Iterable[str | InputMolecule],
    *,
    target: str | None = None,
    orders: int = 256,
    progress: Callable[[int], None] | None = None,
) -> Inspection:
    """Explain the predictions of a model for molecules; arguments and errors as of :func:`inspect`."""
    require_molecule_level(predictor)
    drawn = match_target(target, predictor.targets)
    left_out: list[tuple[int, str, str]] = []
    usable = _valid_molecules(predictor, molecules, left_out)
    inspected = []
    for number, molecule in islice(usable, MAX_DRAWN):
        explanations = explain_targets(predictor, molecule.smiles, orders=orders, columns=molecule.columns or None)
        inspected.append(Inspected(number, molecule.smiles, explanations))
        if progress:
            progress(1)
    if not inspected:
        first = [f"{text!r}: {reason}" for _, text, reason in left_out[:1]]
        raise InputError(f"cannot inspect {first[0] if first else 'no molecule'}")
    return Inspection(inspected, left_out, drawn, next(usable, None) is not None)


def read_input_molecules(
    predictor: Predictor, words: Iterable[str | Path], smiles_column: str | None = None
) -> Iterator[InputMolecule]:
    """Iterate over the molecules of SMILES and tables, with the feature columns of the model; arguments as of
    :func:`~graphslice.inference.files.predict_file`. Unusable rows of a file have an error message."""
    for word in words:
        path = Path(word)
        if not (is_table_name(str(word)) or os.path.exists(path)):
            yield InputMolecule(str(word))
            continue
        with open_molecules(predictor, path, smiles_column) as (table, read):
            for rows in table.chunks:
                values = read.parse_features(rows)
                for row, smiles in enumerate(texts(rows.table.column(read.smiles))):
                    columns = dict(zip(read.feature_names, values[row, :, None], strict=True))
                    yield InputMolecule(smiles, columns, rows.faults.get(row))


def _valid_molecules(
    predictor: Predictor, molecules: Iterable[str | InputMolecule], left_out: list[tuple[int, str, str]]
) -> Iterator[tuple[int, InputMolecule]]:
    """Iterate over the valid molecules with their numbers; append the others to ``left_out``."""
    for number, given in enumerate(molecules, 1):
        molecule = given if isinstance(given, InputMolecule) else InputMolecule(given)
        try:
            if molecule.error:
                raise MoleculeError(molecule.error)
            graph_of(predictor, molecule.smiles)
        except MoleculeError as reason:
            left_out.append((number, molecule.smiles, str(reason)))
        else:
            yield number, molecule


def _remove_old_outputs(out: Path) -> None:
    """Remove the output files of an earlier call, whose figures would be mistaken for those of this one."""
    if not (out / TABLE).exists():
        return
    for path in out.iterdir():
        if _OUTPUT_FILES.fullmatch(path.name):
            path.unlink()


def _write_explanations(found: Sequence[Inspected], targets: Sequence[str], drawn: int, out: Path) -> Iterator[Path]:
    path = out / TABLE
    rows = [row for molecule in found for row in _atom_rows(molecule, targets)]
    pd.DataFrame(rows).to_csv(path, index=False)
    yield path
    for molecule in found:
        svg, png = draw_atoms(molecule.smiles, molecule.explanations[drawn])
        for path, contents in (
            (out / f"atoms-{molecule.number}.png", png),
            (out / f"atoms-{molecule.number}.svg", svg.encode()),
        ):
            path.write_bytes(contents)
            yield path
    if len(found) > 1:
        smiles, numbers = [molecule.smiles for molecule in found], [molecule.number for molecule in found]
        path = out / "overview.png"
        path.write_bytes(draw_overview(smiles, [molecule.explanations[drawn] for molecule in found], numbers))
        yield path


def _atom_rows(molecule: Inspected, targets: Sequence[str]) -> Iterator[dict[str, object]]:
    for i, element in enumerate(molecule.elements):
        for target, explanation in zip(targets, molecule.explanations, strict=True):
            yield {
                "molecule": molecule.number,
                "smiles": molecule.smiles,
                "atom": i,
                "element": element,
                "target": target,
                "explained": explanation.quantity,
                "contribution": explanation.digits.plain(explanation.values[i]),
                "standard_error": f"{explanation.errors[i]:.2g}",
                "prediction": explanation.digits.plain(explanation.prediction),
                "baseline": explanation.digits.plain(explanation.baseline),
                "network_weight": f"{explanation.weight:.3g}",
            }
