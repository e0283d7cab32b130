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
    """Split a text at commas and line breaks, as CSV: without quotes and leading spaces, but with empty items.

    Raises:
        InputError: if the text is not valid CSV.
    """
    try:
        return [word for line in csv.reader(io.StringIO(text, newline=""), skipinitialspace=True) for word in line]
    except csv.Error as error:
        raise InputError(f"cannot read the names {shown(text[:40])}: {error}") from None


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
    """Dataset of labelled molecules: files, columns, tasks and split into training, validation and test set.

    Attributes:
        dataset: demo, pcqm4m, pcqm4mv2, or the path of a CSV, TSV, Excel, Parquet or SDF file, of a folder of such
            files, or of a preprocessed dataset from ``graphslice featurize``.
        valid_file: separate file with the validation set, in the format of dataset.
        test_file: separate file with the test set. Rows are numbered through dataset, valid_file and test_file.
        root: directory of OGB's datasets, downloaded if missing; default: dataset.
        smiles_column: column with the SMILES; default: detected by its name.
        id_column: columns that identify the rows in files and reports, separated by commas.
        targets: columns to predict, separated by commas; default: the only column that can be one.
        level: molecule (default), or atom or bond for atom- and bond-level targets: a cell is then a list with one
            number per atom or bond of the SMILES, in RDKit's order.
        task: task type regression, binary or multiclass, of all targets or as TARGET=binary,OTHER=regression; default:
            inferred from the values.
        transform: scale of regression targets: none, log, or TARGET=log,OTHER=none; default: by inner validation.
        decimal: comma reads numbers such as 3,14; default: such cells are errors.
        features: descriptors used in addition to the graph, separated by commas: morgan (counts of atom environments),
            rdkit2d (RDKit descriptors), and names of numeric columns of the dataset.
        weight_column: column with the weight of each row in training, stacking and calibration, from 0 up; 0 leaves a
            row out; default: equal weights.
        split: random, scaffold, cluster, or the name of a column with the values train, valid or test; default: the
            column "split" if it exists, else random. Without a validation set in a column or file, it is drawn from
            the training set.
        split_sizes: shares of the training, validation and test set in a random, scaffold or cluster split, separated
            by commas; default: 0.8,0.1,0.1. 0.9,0.1,0 keeps no test set.
        carve: index of the random draw of the validation set, if the dataset does not specify one.
        folds: number of cross-validation folds ("5"), or folds and repeats ("5x3": 5 folds, three times).
        fold: index of the fold that is the test set, from 0 (to 14 for 5x3); default: each fold once.
        rejected: few (default): stop the run if fewer than half of the labelled rows are valid; any: train on the
            valid rows, however few.
        seed: random seed of the split.
        cache: directory in which preprocessed molecules are stored between runs; default: the user's cache directory,
            or $GRAPHSLICE_CACHE.
        fingerprint: hash of the molecules, labels and split of a run; set by the run.
    """

    dataset: str = "demo"
    valid_file: str | None = None
    test_file: str | None = None
    root: str = "dataset"
    smiles_column: str | None = None
    id_column: str | None = None
    targets: str | None = None
    level: str = MOLECULE
    task: str | None = None
    transform: str | None = None
    decimal: str | None = None
    features: str | None = None
    weight_column: str | None = None
    split: str | None = None
    split_sizes: str | None = None
    carve: int = 0
    folds: str | None = None
    fold: int | None = None
    rejected: str = "few"
    seed: int = 0
    cache: str | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        for name in ("targets", "id_column"):  # in Python they may be lists
            if isinstance(names := getattr(self, name), list | tuple):
                setattr(self, name, join_names([*map(str, names)]))
        if len(set(self.descriptors)) < len(self.descriptors):
            raise InputError(f"data.features contains a duplicate name: {self.features}")
        self._check_choices(level=LEVELS, rejected=("few", "any"), decimal=("comma", None))
        self._check_least(0, "seed", "carve")
        self._check_split_sizes()
        folds, repeats = self.folds_and_repeats
        if self.folds is not None and not (folds >= 2 and repeats >= 1):
            raise InputError(f"data.folds must be a number from 2, or such as 5x3 (repeats), not {shown(self.folds)}")
        if self.folds is None and self.fold is not None:
            raise InputError(f"data.fold {self.fold} selects the fold that is the test set: set data.folds too")
        check_number("data.fold", self.fold, 0, folds * repeats - 1)

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
        return tuple(name.strip() for name in names if name.strip())

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
    """Conversion of a molecule to a graph.

    Attributes:
        atom_order: canonical (canonical order: predictions do not depend on the SMILES notation) or input (order of
            the SMILES, as in the original Graphormer).
        path_ties: several shortest paths between two atoms: mean over all, or the one that floyd-warshall finds, as in
            the original Graphormer.
        max_atoms: atoms of the largest accepted molecule; at most 65,535.
        standardize: none, or parent: the graph is that of the largest organic fragment, neutralised, so that salts and
            charge states of a compound have the same prediction. Molecules that are given as graphs are not changed.
    """

    atom_order: str = "canonical"
    path_ties: str = "mean"
    max_atoms: int = 512
    standardize: str = "none"

    def __post_init__(self) -> None:
        self._check_choices(atom_order=("canonical", "input"), path_ties=("mean", "floyd-warshall"))
        self._check_choices(standardize=("none", "parent"))
        check_number("graph.max_atoms", self.max_atoms, 1, 65_535)
