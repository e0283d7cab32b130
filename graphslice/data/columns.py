"""Roles of the columns of a table: SMILES, targets, split, and descriptors (numeric model inputs). In all functions
``columns`` are the names of all columns of the table, and ``name`` is its own, for messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphslice.chem.descriptors import DESCRIPTORS, feature_column_names
from graphslice.config import MOLECULE, DataConfig, join_names, quote_item, split_columns, split_words
from graphslice.data.cells import COMMA_ADVICE, cell_text, has_comma, parse_number_column
from graphslice.data.tables import Rows, texts
from graphslice.errors import InputError, NoSmilesColumnError, nearest, quoted_list
from graphslice.tasks import Task

#: Largest magnitude of a number: models compute in float32 (up to 3.4e38) and square values when standardising.
MAX_MAGNITUDE = 1e18
# Names of the SMILES column, in order of preference: before, and after, the only name that contains "smiles". TDC's
# tables call it "Drug".
_SMILES_NAMES, _OTHER_SMILES_NAMES = ("smiles", "canonical_smiles", "smi"), ("mol", "structure", "drug")
_TRUTH = {"true": 1.0, "false": 0.0}
# Columns that files of a run have in addition to the identifiers.
_RESERVED = {"row", "smiles", "split", "reason"}


@dataclass
class TableColumns:
    """The columns of a table that are read, and problems of the cells of its feature columns."""

    smiles: str
    targets: Sequence[str] = ()
    split: str | None = None
    features: tuple[str, ...] = ()  # K numeric inputs
    tasks: tuple[Task, ...] = ()  # if empty, all targets are regression
    level: str = MOLECULE  # of the targets: molecule, atom or bond
    weights: str | None = None  # weights of the rows
    decimal: str | None = None  # how numbers are written, as in data.decimal
    identifiers: tuple[str, ...] = ()  # columns by which the user recognises rows
    long: tuple[str, ...] = ()  # of a long table: names of targets, values, and relations if there are any
    feature_names: tuple[str, ...] = ()  # of the model; default: those of the table
    ranges: np.ndarray | None = field(default=None, compare=False)  # float32 [2, K], limits of features in training
    _rows: int = field(default=0, init=False, compare=False)  # parsed so far
    _notes: dict[tuple[str, str], str] = field(default_factory=dict, init=False, compare=False)  # by column and problem

    def parse_features(self, rows: Rows) -> np.ndarray:
        """Parse the features of the next rows: ``float32 [R, K]``, 1 for true, 0 for false, nan where there is none."""
        if not self.features:
            return np.empty((len(rows), 0), np.float32)
        parsed = [_feature_cells(rows, name) for name in self.features]
        values = as_descriptors([numbers for numbers, _ in parsed])
        for k, (name, (numbers, empty)) in enumerate(zip(self.features, parsed, strict=True)):
            if (wrong := ~empty & ~np.isfinite(numbers)).any():
                cell = cell_text(rows.table.column(name), int(wrong.argmax()))
                first = f"{cell!r} in row {self._rows + wrong.argmax() + 1}"
                first += f" ({COMMA_ADVICE})" if has_comma(cell) else ""
                self._note(name, "cells that are not numbers", first, "they are treated as unknown")
            if self.ranges is not None:
                low, high = self.ranges[:, k]
                if (outside := (values[:, k] < low) | (values[:, k] > high)).any():
                    first = f"{values[outside.argmax(), k]:g} in row {self._rows + outside.argmax() + 1}"
                    what = f"values outside the range of the training set ({low:g} to {high:g})"
                    self._note(name, what, first, "the network reads the nearest end of the range")
        self._rows += len(rows)
        return values

    def _note(self, name: str, what: str, first: str, consequence: str) -> None:
        text = f"the column {name!r} of data.features has {what}, the first is {first}: {consequence}"
        self._notes.setdefault((name, what), text)

    def notes(self) -> list[str]:
        """Return a warning for each feature with cells that are neither empty nor a number, or outside its range."""
        return list(self._notes.values())


def find_columns(
    columns: Sequence[str], config: DataConfig, name: str, split_methods: Sequence[str] = ()
) -> TableColumns:
    """Find the columns of a table that are used; ``config.split`` may name one of ``split_methods`` instead."""
    smiles = find_smiles_column(columns, config.smiles_column, name)
    long = [require_column(one, columns, name) for one in split_columns(config.long or "")]
    targets = [] if long else target_names(config.targets, columns)
    split = _find_split_column([c for c in columns if c not in targets], config.split, name, split_methods)
    weights, ids = config.weight_column, config.id_column or ""
    weights = weights and require_column(weights, columns, name)
    named = [ids] if ids and ids in columns else split_words(ids)
    identifiers = [require_column(one, columns, name) for one in named]
    features = [require_column(one, columns, name, [*DESCRIPTORS]) for one in feature_column_names(config.descriptors)]
    targets = [require_column(target, columns, name) for target in targets]
    roles = {
        "the SMILES": [smiles],
        "a target": targets,
        "in data.long": long,
        "an input (data.features)": features,
        "an identifier": identifiers,
    }
    roles |= {role: [column] for role, column in (("the split", split), ("the weight", weights)) if column}
    role_of: dict[str, str] = {}
    for role, names in roles.items():
        for column in names:
            if column in role_of:
                raise InputError(f"{name}: {column!r} cannot be {role_of[column]} and {role}")
            role_of[column] = role
    if reserved := _RESERVED.intersection(map(str.lower, identifiers)):
        raise InputError(
            f"data.id_column cannot name {reserved.pop()!r}, since files of a run have a column of that name"
        )
    check_unique(columns, role_of, name)
    optional = config.level, weights, config.decimal, tuple(identifiers), tuple(long)
    return TableColumns(smiles, targets, split, tuple(features), (), *optional)


def match_column(column: str, columns: Sequence[str]) -> str | None:
    """Return the column of this name: exactly, else one without outer spaces, else one in any case."""
    if column in columns:
        return column
    for key in (str.strip, lambda name: name.strip().casefold()):
        if len(found := [one for one in columns if key(one) == key(column)]) == 1:
            return found[0]
    return None


def require_column(column: str, columns: Sequence[str], name: str, others: Sequence[str] = ()) -> str:
    """Return what :func:`match_column` finds, or raise :class:`InputError`; ``others`` are further names to suggest."""
    if (found := match_column(column, columns)) is None:
        suggestion, known = nearest(column, [*others, *columns], quote_item), quoted_list(columns, quote=quote_item)
        raise InputError(f"{name} has no column {column!r}{suggestion}; it has {known}")
    return found


def find_smiles_column(
    columns: Sequence[str], requested: str | None, name: str, training_column: str | None = None
) -> str:
    """Find the SMILES column: the requested one, else that of the training set, else one with a usual name."""
    if requested is None and training_column:
        requested = match_column(training_column, columns)
    if requested is not None:
        return require_column(requested, columns, name)
    by_name = {str(column).strip().lower(): column for column in reversed(columns)}
    usual, other = ([own for own in names if own in by_name][:1] for names in (_SMILES_NAMES, _OTHER_SMILES_NAMES))
    found = usual or [own for own in by_name if "smiles" in own] or other
    if len(found) == 1:
        return by_name[found[0]]
    title = "; if a later line names them, delete the lines above it" if len(columns) == 1 else ""
    raise NoSmilesColumnError(
        f"{name}: which column holds the SMILES? The first line must name the columns: call one smiles, or give its "
        f"name with data.smiles_column; the columns are {quoted_list(columns)}{title}"
    )


def _find_split_column(columns: Sequence[str], requested: str | None, name: str, methods: Sequence[str]) -> str | None:
    if requested is None:
        candidates = [column for column in columns if column.strip().lower() == "split"]
        return "split" if "split" in columns else candidates[0] if len(candidates) == 1 else None
    if requested in methods:
        return None
    return require_column(requested, columns, name, methods)


def target_names(text: str | Sequence[str] | None, columns: Sequence[str]) -> list[str]:
    """Parse ``data.targets``: one of the columns, or several separated by commas, quoted if a name contains a comma."""
    if not text:
        return []
    if not isinstance(text, str):
        text = join_names([str(name) for name in text])
    names = [text] if text in columns else [name for name in split_columns(text) if name]
    names = [match_column(name, columns) or name.strip() for name in names]
    if len(set(names)) != len(names):
        raise InputError(f"data.targets names a column twice: {', '.join(names)}")
    return names


def label_names(names: Sequence[object], width: int, source: str) -> list[str]:
    """Return the names of the labels of ``source``, which has no columns: those given, else y, or y0, y1, ..."""
    texts = [str(name) for name in names] or (["y"] if width == 1 else [f"y{i}" for i in range(width)])
    if len(texts) != width:
        raise InputError(f"{len(texts)} names for {width} targets: {', '.join(texts)}")
    check_unique(texts, texts, source)
    return texts


def check_unique(columns: Sequence[str], used: Iterable[str], name: str) -> None:
    """Raise :class:`InputError` if the name of a used column is not unique among the columns of the table ``name``."""
    for column in used:
        if list(columns).count(column) > 1:
            raise InputError(f"{name} has two columns called {column!r}")


def as_descriptors(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Stack K columns ``[R]`` to ``float32 [R, K]``: nan for non-finite values, clipped to 1e18 in magnitude."""
    values = np.stack([np.asarray(column, np.float64) for column in columns], axis=1)
    return np.where(np.isfinite(values), values.clip(-MAX_MAGNITUDE, MAX_MAGNITUDE), np.nan).astype(np.float32)


def check_feature_columns(values: np.ndarray, names: Sequence[str], name: str) -> None:
    """Raise :class:`InputError` if one of K columns, ``float32 [R, K]``, of the table ``name`` has no number."""
    for column, empty in zip(names, np.isnan(values).all(axis=0), strict=True):
        if empty:
            raise InputError(f"{name}: the column {column!r} of data.features has no number in any row")


def _feature_cells(rows: Rows, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Apply :func:`parse_number_column` to a feature column, which may hold true and false."""
    numbers, empty = parse_number_column(rows, name)
    words = np.flatnonzero(~empty & np.isnan(numbers))
    if len(words):
        cells, numbers = texts(rows.table.column(name)), numbers.copy()
        numbers[words] = [_TRUTH.get(cells[row].strip().lower(), np.nan) for row in words.tolist()]
    return numbers, empty
