"""``graphslice inspect``: what a model makes of some molecules, in numbers and pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem

from graphslice.analysis.activations import activations
from graphslice.analysis.atom_maps import draw_atoms, draw_overview
from graphslice.analysis.attribution import Attribution, attribute, descriptors_of, graph_of, require_molecule_level
from graphslice.analysis.formatting import Explanation, explain_target, match_target
from graphslice.analysis.internals import MoleculeActivations, write_internals
from graphslice.chem.parse import MoleculeError
from graphslice.data.columns import parse_feature_columns
from graphslice.data.store import STORE_SUFFIX
from graphslice.data.tables import is_table_name, malformed_rows, open_table, texts
from graphslice.errors import InputError
from graphslice.inference.files import check_feature_columns, smiles_column_index
from graphslice.inference.predictor import Predictor

#: Molecules that are drawn of a longer list.
MAX_DRAWN = 100
# The table that an inspection writes, and all that it does, by name.
_ATOMS = "atoms.csv"
_OUTPUT_FILES = re.compile(
    r"(atoms|map_atoms|map_bonds)(-\d+)?\.(csv|png|svg)|(spectra|residuals|map_distances|overview)\..{3}"
)


@dataclass
class InputMolecule:
    """A molecule to look at.

    Attributes:
        smiles: of it.
        columns: the numbers that the model reads beside it.
        wrong: why there is none, where that is known already.
    """

    smiles: str
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    error: str | None = None


@dataclass
class Inspected:
    """One molecule, explained.

    Attributes:
        number: its place among the molecules given, from 1; in the tables and the names of the files.
        given: the molecule.
        attribution: of its atoms, in the order of the SMILES.
        told: for each target, that in words.
    """

    number: int
    given: InputMolecule
    attribution: Attribution
    explanations: list[Explanation]

    @property
    def smiles(self) -> str:
        """Of the molecule."""
        return self.given.smiles

    @property
    def elements(self) -> list[str]:
        """Of its atoms."""
        return [atom.GetSymbol() for atom in Chem.MolFromSmiles(self.smiles).GetAtoms()]


@dataclass
class Inspection:
    """What came of some molecules.

    Attributes:
        found: those that are molecules.
        left_out: the numbers, the texts and the reasons of the others.
        target: the place of the one that is drawn.
        more: whether there are molecules after the first that are drawn.
        files: that were written.
    """

    found: list[Inspected]
    left_out: list[tuple[int, str, str]]
    target: int
    more: bool
    files: list[Path]


def inspect(
    predictor: Predictor,
    molecules: Iterable[str | InputMolecule],
    out: str | Path,
    *,
    target: str | None = None,
    orders: int = 256,
    everything: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Inspection:
    """Explain a model's answers for some molecules, and write tables and pictures.

    Args:
        predictor: the model.
        molecules: SMILES, or what :func:`read_input_molecules` gives; of more than :data:`MAX_DRAWN` the first.
        out: a folder, made where it is not there. ``atoms.csv`` (contributions to every target), ``atoms-1.png`` and
            ``.svg`` and so on go there, of several molecules ``overview.png``, and with ``everything`` what
            :func:`~graphslice.analysis.internals.write_internals` writes. What another call left there is removed.
        target: whose contributions are drawn, by its name or a part of it; the first one when not given.
        orders: of :func:`~graphslice.analysis.attribute`.
        everything: also follow the molecules through the model.
        progress: called with the number of molecules done, from time to time.

    Raises:
        InputError: if nothing is a molecule, the target is not known, or ``everything`` is asked of several models;
            nothing is written then.
    """
    require_molecule_level(predictor)
    check_output_table((), Path(out))
    drawn = match_target(target, predictor.targets)
    network = predictor.model if everything else None  # says so where there are several
    left_out: list[tuple[int, str, str]] = []
    usable = _valid_molecules(predictor, molecules, left_out)
    found = []
    for number, given in islice(usable, MAX_DRAWN):
        found.append(_inspect_one(predictor, number, given, orders))
        if progress:
            progress(1)
    if not found:
        if not left_out:
            raise InputError("give at least one molecule to inspect")
        _, text, reason = left_out[0]
        raise InputError(f"cannot inspect {text!r}: {reason}")
    more = next(usable, None) is not None
    traced = [] if network is None else [_molecule_activations(predictor, one) for one in found]
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write the folder {out}: {error.strerror}") from None
    _remove_old_outputs(out)
    files = [*_explanations(found, predictor.targets, drawn, out), *(write_internals(traced, out) if traced else [])]
    return Inspection(found, left_out, drawn, more, files)


def read_input_molecules(
    predictor: Predictor, words: Iterable[str | Path], smiles_column: str | None = None
) -> Iterator[InputMolecule]:
    """The molecules of some SMILES and files, in turn, read as they are asked for.

    Args:
        predictor: the model; the columns of a table that it reads come with the molecules.
        words: SMILES, and CSV, TSV, Parquet and ``.smi`` files or folders of such.
        smiles_column: of the files; as of :func:`~graphslice.inference.files.predict_file` when not given.

    Raises:
        InputError: for a file that cannot be read.
    """
    for word in words:
        path = Path(word)
        if not (is_table_name(str(word)) or _exists(path)):
            yield InputMolecule(str(word))
            continue
        if path.name.endswith(STORE_SUFFIX):
            raise InputError(f"{path} is a store, which keeps no SMILES: give the table that it was made of")
        with open_table(path) as table:
            column = smiles_column_index(predictor, table, smiles_column, str(path))
            own = predictor.feature_columns
            check_feature_columns(own, table.columns, str(path))
            for chunk in table.chunks:
                values = parse_feature_columns(chunk, own) if own else np.empty((len(chunk), 0), np.float32)
                error = malformed_rows(chunk)
                for row, smiles in enumerate(texts(chunk.column(column))):
                    columns = dict(zip(own, values[row, :, None], strict=True))
                    yield InputMolecule(smiles, columns, error.get(row))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a SMILES too long for a name
        return False


def _valid_molecules(
    predictor: Predictor, molecules: Iterable[str | InputMolecule], left_out: list[tuple[int, str, str]]
) -> Iterator[tuple[int, InputMolecule]]:
    """The molecules with their numbers; what is none goes where it is left out."""
    for number, one in enumerate(molecules, 1):
        given = one if isinstance(one, InputMolecule) else InputMolecule(one)
        try:
            if given.error:
                raise MoleculeError(given.error)
            graph_of(predictor, given.smiles)
        except MoleculeError as reason:
            left_out.append((number, given.smiles, str(reason)))
        else:
            yield number, given


def _inspect_one(predictor: Predictor, number: int, given: InputMolecule, orders: int) -> Inspected:
    columns = given.columns or None
    found = attribute(predictor, given.smiles, orders=orders, columns=columns)
    (answers,) = predictor.predict(given.smiles, columns=columns)
    models, targets = len(predictor.models), range(len(predictor.tasks))
    explanations = [explain_target(found, answers, predictor.tasks, t, models) for t in targets]
    return Inspected(number, given, found, explanations)


def _molecule_activations(predictor: Predictor, one: Inspected) -> MoleculeActivations:
    graph, atom_rows = graph_of(predictor, one.smiles)
    known = descriptors_of(predictor, one.smiles, one.given.columns)
    return MoleculeActivations(one.number, one.smiles, atom_rows, activations(predictor, graph, known))


def check_output_table(words: Iterable[str | Path], out: Path) -> None:
    """Raise :class:`InputError` if a table of molecules lies where an inspection writes, or a table that none wrote."""
    table = out / _ATOMS
    if not table.exists():
        return
    for word in words:
        if _exists(Path(word)) and table.samefile(word):
            raise InputError(f"{word} lies where the table of atoms is to be written: choose another --out")
    if not _is_inspection_table(table):
        raise InputError(f"{out} has an {_ATOMS} that no inspection wrote: choose another --out")


def _is_inspection_table(table: Path) -> bool:
    if not table.is_file():
        return False
    with table.open("rb") as file:
        return file.readline().startswith(b"molecule,smiles,atom,element,target,")


def _remove_old_outputs(out: Path) -> None:
    """A picture of a molecule that was looked at before would pass for one of these."""
    if not _is_inspection_table(out / _ATOMS):
        return
    for path in out.iterdir():
        if _OUTPUT_FILES.fullmatch(path.name):
            path.unlink()


def _explanations(found: Sequence[Inspected], targets: Sequence[str], drawn: int, out: Path) -> Iterator[Path]:
    path = out / _ATOMS
    rows = [row for one in found for row in _atom_rows(one, targets)]
    pd.DataFrame(rows).to_csv(path, index=False)
    yield path
    for one in found:
        yield from draw_atoms(one.smiles, one.explanations[drawn], out / f"atoms-{one.number}")
    if len(found) > 1:
        smiles, numbers = [one.smiles for one in found], [one.number for one in found]
        yield from draw_overview(smiles, [one.explanations[drawn] for one in found], out / "overview", numbers)


def _atom_rows(one: Inspected, targets: Sequence[str]) -> Iterator[dict[str, object]]:
    for i, element in enumerate(one.elements):
        for target, explanations in zip(targets, one.explanations, strict=True):
            yield {
                "molecule": one.number,
                "smiles": one.smiles,
                "atom": i,
                "element": element,
                "target": target,
                "explained": explanations.quantity,
                "contribution": explanations.digits.plain(explanations.values[i]),
                "standard_error": f"{explanations.errors[i]:.2g}",
                "prediction": explanations.digits.plain(explanations.prediction),
                "baseline": explanations.digits.plain(explanations.baseline),
                "network_weight": f"{explanations.weight:.3g}",
            }
