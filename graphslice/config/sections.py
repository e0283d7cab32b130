"""Configuration of the data: dataset and columns, tasks, splits and cross-validation, conversion to graphs."""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from graphslice.config.reading import Section
from graphslice.errors import InputError, check_number, shown

#: Levels of targets: molecule-level, atom-level (node) or bond-level (edge) predictions.
LEVELS = MOLECULE, ATOM, BOND = ("molecule", "atom", "bond")
_SPLIT_SIZES = "0.8,0.1,0.1"


def split_words(text: str) -> list[str]:
    """Split a comma-separated list and drop empty items; quotes keep a comma in a name: ``"a,b",c``, ``"a,b"=2``."""
    return [word.strip() for word in split_columns(text) if word.strip()]


def split_columns(text: str) -> list[str]:
    """Split a text at commas and line breaks, as CSV: without quotes and leading spaces, but with empty items."""
    return [word for line in csv.reader(io.StringIO(text, newline=""), skipinitialspace=True) for word in line]


def join_names(names: Sequence[str]) -> str:
    """Join names with commas: the inverse of :func:`split_columns`."""
    text, end = io.StringIO(), "\r\n"  # characters of the line end are quoted in names
    spaces = any(name != name.strip() for name in names)  # quotes keep leading and trailing spaces
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL if spaces else csv.QUOTE_MINIMAL).writerow(names)
    return text.getvalue().removesuffix(end)


def quote_item(name: str) -> str:
    """Quote a name for a shell, as an item of an option that lists names: ``'logp'``, or ``'"IC50, uM"'``."""
    item = join_names([name])
    is_plain = item == name and name.isprintable() and not {*"'\\"} & {*name}
    return repr(name) if is_plain else shlex.quote(item)


def quote_setting(name: str, value: str) -> str:
    """Quote ``NAME=VALUE`` for a shell, as an item of an option such as --task."""
    return shlex.quote(f"{join_names([name])}={value}")


@dataclass
class DataConfig(Section):
    """Dataset of labelled molecules: files, columns, tasks and split into training, validation and test set."""

    dataset: str = "demo"
    """demo, pcqm4mv2, pcqm4m (whose leaderboard is closed), or the path of a CSV, TSV, Excel, Parquet or SDF file, of a
    folder of such files, or of a preprocessed dataset from ``graphslice featurize``"""
    valid_file: str | None = None  # separate file with the validation set, in the format of dataset
    test_file: str | None = None
    """separate file with the test set; rows are numbered through dataset, valid_file and test_file"""
    root: str = "dataset"  # directory of OGB's datasets, downloaded if missing; default: dataset
    smiles_column: str | None = None  # column with the SMILES; default: detected by its name
    id_column: str | None = None  # columns that identify the rows in files and reports, separated by commas
    targets: str | None = None  # columns to predict, separated by commas; default: the only column that can be one
    long: str | None = None
    """columns of a long table, with a row for each measurement: the name of the target, the value and, if there is one,
    the relation (<, >, =), such as target,value; targets are then names in the first of them, by default all"""
    level: str = MOLECULE
    """molecule, atom or bond: a cell is then a list with a number per atom or bond of the SMILES, in RDKit's order"""
    task: str | None = None
    """regression, binary or multiclass, or TARGET=binary,OTHER=regression; default: inferred from the values"""
    transform: str | None = None
    """scale of regression targets: none, log, or TARGET=log,OTHER=none; default: by inner validation"""
    decimal: str | None = None  # comma reads numbers such as 3,14; default: such cells are errors
    features: str | None = None
    """descriptors used in addition to the graph, separated by commas: morgan (counts of atom environments), rdkit2d
    (RDKit descriptors), and names of numeric columns of the dataset"""
    weight_column: str | None = None
    """column with the weight of each row in training, stacking and calibration; 0 leaves a row out; default: equal"""
    split: str | None = None
    """random, scaffold, cluster, or a column with the values train, valid (else drawn from train) or test; default: the
    column "split" if it exists, else random. pcqm4mv2 and pcqm4m have OGB's split; train+valid trains on both sets"""
    split_sizes: str | None = None
    """shares of the training, validation and test set in a random, scaffold or cluster split; default: 0.8,0.1,0.1.
    0.9,0.1,0 keeps no test set"""
    carve: int = 0  # index of the random draw of the validation set, if the dataset does not specify one
    folds: str | None = None
    """number of cross-validation folds ("5"), or folds and repeats ("5x3": 5 folds, three times)"""
    fold: int | None = None  # index of the fold that is the test set, from 0 (to 14 for 5x3); default: each fold once
    rejected: str = "few"
    """few: stop if fewer than half of the labelled rows are valid; any: train on the valid rows, however few"""
    seed: int = 0  # random seed of the split
    cache: str | None = None
    """folder of preprocessed molecules; default: the user's cache directory, or $GRAPHSLICE_CACHE"""
    fingerprint: str | None = None  # hash of the molecules, labels and split of a run; set by the run

    def __post_init__(self) -> None:
        for name in ("targets", "id_column", "long"):  # in Python they may be lists
            if isinstance(names := getattr(self, name), list | tuple):
                setattr(self, name, join_names([*map(str, names)]))
        self._check_choices(level=LEVELS, rejected=("few", "any"), decimal=("comma", None))
        self._check_least(0, "seed", "carve")
        if self.long is not None and len(split_columns(self.long)) not in (2, 3):
            raise InputError(f"data.long names two or three columns (target, value, relation), not {shown(self.long)}")
        self._check_split_sizes()
        folds, repeats = self.folds_and_repeats
        if self.folds is not None:
            self._check_form(folds="N|NxN")
            check_number("data.folds", folds, 2)
            check_number("data.folds", repeats, 1)
            check_number("data.fold", self.fold, 0, folds * repeats - 1)
        elif self.fold is not None:
            raise InputError(f"data.fold {self.fold} selects the fold that is the test set: set data.folds too")

    def _check_split_sizes(self) -> None:
        if self.split_sizes is None:
            return
        if self.folds is not None:
            raise InputError("data.split_sizes: folds decide the sizes of the sets, so leave it out or leave out folds")
        try:
            train, valid, test = self.split_shares
        except ValueError:
            train = valid = test = math.nan
        if not (train > 0 and valid > 0 and test >= 0 and abs(train + valid + test - 1) < 1e-6):
            raise InputError(
                "data.split_sizes must be three shares with the sum 1 (training, validation, test; only the last can "
                f"be 0), such as {_SPLIT_SIZES}, not {shown(self.split_sizes)}"
            )

    @property
    def split_shares(self) -> tuple[float, float, float]:
        """Shares of the training, validation and test set in ``split_sizes``."""
        sizes = _SPLIT_SIZES if self.split_sizes is None else self.split_sizes
        train, valid, test = (float(share) for share in sizes.split(","))
        return train, valid, test

    @property
    def descriptors(self) -> tuple[str, ...]:
        """Names in ``features``: kinds of descriptors, and columns."""
        features = self.features or ""
        # In Python it may be a list.
        names = split_words(features) if isinstance(features, str) else map(str, features)
        return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))

    @property
    def is_cross_validation(self) -> bool:
        """True for cross-validation: one model per fold, with that fold as its test set."""
        return self.folds is not None and self.fold is None

    @property
    def folds_and_repeats(self) -> tuple[int, int]:
        """Number of folds and of repeats; (0, 1) without folds."""
        match = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", self.folds or "")
        return (int(match[1]), int(match[2] or 1)) if match else (0, 1)


@dataclass
class GraphConfig(Section):
    """Conversion of a molecule to a graph."""

    atom_order: str = "canonical"
    """canonical (canonical order: predictions do not depend on the SMILES notation) or input (order of the SMILES, as
    in the original Graphormer)"""
    path_ties: str = "mean"
    """several shortest paths between two atoms: mean over all, or the one that floyd-warshall finds, as in the original
    Graphormer"""
    max_atoms: int = 512  # atoms of the largest accepted molecule; at most 65,535
    standardize: str = "none"
    """none, or parent: the graph is that of the largest organic fragment, neutralised, so that salts and charge states
    of a compound have the same prediction. Molecules that are given as graphs are not changed"""

    def __post_init__(self) -> None:
        self._check_choices(atom_order=("canonical", "input"), path_ties=("mean", "floyd-warshall"))
        self._check_choices(standardize=("none", "parent"))
        check_number("graph.max_atoms", self.max_atoms, 1, 65_535)
