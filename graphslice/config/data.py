"""The part of a configuration that is about data: which molecules, how they are split, how they become graphs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from graphslice.errors import InputError, nearest, shown

#: What a label is of.
LEVELS = MOLECULE, ATOM, BOND = ("molecule", "atom", "bond")


def split_words(text: str) -> list[str]:
    """What a text lists after commas, without empty ones; quotes keep a comma in a word: ``"a,b",c``, ``"a,b"=2``."""
    return [word.strip() for word in split_columns(text) if word.strip()]


def split_columns(text: str) -> list[str]:
    """What stands between the commas of a text, and between its lines, as it is but for quotes and leading spaces.

    Raises:
        InputError: if that cannot be told.
    """
    try:
        return [word for line in csv.reader(io.StringIO(text, newline=""), skipinitialspace=True) for word in line]
    except csv.Error as error:
        raise InputError(f"cannot read the names {shown(text[:40])}: {error}") from None


def join_names(names: Sequence[str]) -> str:
    """The text in which :func:`split_columns` finds some names."""
    text = io.StringIO()
    if any(name != name.strip() for name in names):  # without quotes the spaces would go
        writer = csv.writer(text, lineterminator="", quoting=csv.QUOTE_ALL)
    else:
        writer = csv.writer(text, lineterminator="")
    writer.writerow(names)
    return text.getvalue()


@dataclass
class DataConfig:
    """Where the labelled molecules come from.

    Attributes:
        dataset: demo, pcqm4m, pcqm4mv2, or the path of a CSV, TSV or Parquet file, of a folder of such
            files, or of a store of ``graphslice featurize``.
        valid_file: a table as dataset of the molecules for validation, which are not among those of dataset.
        test_file: the same for the test. Rows are counted on from dataset to valid_file to test_file.
        root: where OGB's folders lie, or are downloaded to.
        smiles_column: the column of the SMILES; found by its name when not given.
        targets: the columns to predict, separated by commas; need not be given where there is only one of numbers.
        level: molecule, or what the targets are of: atom or bond, whose cells are lists of one number for each atom of
            the SMILES, or for each bond, in RDKit's order.
        task: regression, binary or multiclass, of all targets or as TARGET=binary,OTHER=regression; found from their
            values where not given.
        transform: log learns the logarithms of all numbers, TARGET=log those of one; none when not given.
        features: what the model reads beside the graph, separated by commas: morgan (counts of the environments of
            atoms), rdkit2d (RDKit's descriptors), and names of numeric columns of the table.
        split: random, scaffold, cluster, or the name of a column that says train, valid or test; the column
            "split" when there is one, else random. Validation that neither a column nor a file gives is taken
            from the rows for training.
        carve: which of many choices of the rows for validation, where the data does not name them.
        folds: split into so many folds ("5"), or that several times ("5x3": three times) for a cross-validation.
        fold: which of them is the test, from 0 (of 5x3, to 14); all in turn when not given.
        duplicates: keep, or merge: rows for training of one and the same molecule become one.
        rejected: few stops a run where fewer than half of the rows that have a label can be used; any trains on the
            others however few these are.
        seed: of the split.
        cache: folder where featurized molecules are kept from run to run; the user's cache folder when
            not given ($GRAPHSLICE_CACHE names another).
        fingerprint: hash of the molecules, labels and split that a run was trained on; noted by it.
    """

    dataset: str = "demo"
    valid_file: str | None = None
    test_file: str | None = None
    root: str = "dataset"
    smiles_column: str | None = None
    targets: str | None = None
    level: str = MOLECULE
    task: str | None = None
    transform: str | None = None
    features: str | None = None
    split: str | None = None
    carve: int = 0
    folds: str | None = None
    fold: int | None = None
    duplicates: str = "keep"
    rejected: str = "few"
    seed: int = 0
    cache: str | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if len(set(self.descriptors)) < len(self.descriptors):
            raise InputError(f"data.features names one twice: {self.features}")
        if self.level not in LEVELS:
            raise InputError(f"data.level is {', '.join(LEVELS)}, not {shown(self.level)}{nearest(self.level, LEVELS)}")
        if self.duplicates not in ("keep", "merge"):
            raise InputError(f"data.duplicates is keep or merge, not {shown(self.duplicates)}")
        if self.rejected not in ("few", "any"):
            raise InputError(f"data.rejected is few or any, not {shown(self.rejected)}")
        for name in ("seed", "carve"):
            if getattr(self, name) < 0:
                raise InputError(f"data.{name} must be at least 0, not {getattr(self, name)}")
        folds, repeats = self.folds_and_repeats
        if self.folds is not None and not (folds >= 2 and repeats >= 1):
            raise InputError(f"data.folds is a number from 2, or with repeats such as 5x3, not {shown(self.folds)}")
        if self.folds is None and self.fold is not None:
            raise InputError(f"data.fold {self.fold} says which of some folds is the test: give data.folds too")
        if self.fold is not None and not 0 <= self.fold < folds * repeats:
            raise InputError(f"data.fold is from 0 to {folds * repeats - 1} where data.folds is {self.folds}")

    @property
    def descriptors(self) -> tuple[str, ...]:
        """The names of ``features``: kinds of descriptors, and columns."""
        features = self.features or ""
        names = split_words(features) if isinstance(features, str) else map(str, features)  # in Python a list does too
        return tuple(name.strip() for name in names if name.strip())

    @property
    def is_cross_validation(self) -> bool:
        """Whether all folds are the test in turn, each of a model of its own."""
        return self.folds is not None and self.fold is None

    @property
    def folds_and_repeats(self) -> tuple[int, int]:
        """How many folds, and how many times they are made; 0 folds where there are none."""
        match = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", self.folds or "")
        return (int(match[1]), int(match[2] or 1)) if match else (0, 1)


@dataclass
class GraphConfig:
    """How a molecule becomes a graph.

    Attributes:
        atom_order: canonical (a prediction does not depend on how the SMILES is written) or input
            (as written, as the original code does).
        path_ties: mean of all shortest paths, or the one of floyd-warshall, as the original does.
        max_atoms: the largest molecule accepted; at most 65,535.
    """

    atom_order: str = "canonical"
    path_ties: str = "mean"
    max_atoms: int = 512

    def __post_init__(self) -> None:
        if self.atom_order not in ("canonical", "input"):
            raise InputError(f"graph.atom_order is canonical or input, not {shown(self.atom_order)}")
        if self.path_ties not in ("mean", "floyd-warshall"):
            raise InputError(f"graph.path_ties is mean or floyd-warshall, not {shown(self.path_ties)}")
        if not 1 <= self.max_atoms <= 65_535:
            raise InputError(f"graph.max_atoms must be from 1 to 65535, not {self.max_atoms}")
