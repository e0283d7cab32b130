"""Where labelled molecules come from, and how they become graphs."""

from __future__ import annotations

from dataclasses import dataclass

from graphslice.errors import InputError


@dataclass
class DataConfig:
    """Where the labelled molecules come from.

    Attributes:
        dataset: demo, pcqm4m, pcqm4mv2, or the path of a CSV, TSV or Parquet file, of a folder of such
            files, or of a store of ``graphslice featurize``.
        root: where OGB's folders lie, or are downloaded to.
        smiles_column: the column of the SMILES; found by its name when not given.
        targets: the columns to predict, separated by commas; need not be given where there is only one of numbers.
        task: regression, binary or multiclass, of all targets or as TARGET=binary,OTHER=regression; found from their
            values where not given.
        transform: log learns the logarithms of all numbers, TARGET=log those of one; none when not given.
        split: random, scaffold, or the name of a column that says train, valid or test; the column
            "split" when there is one, else random.
        seed: of the random split.
        cache: folder where featurized molecules are kept from run to run; the user's cache folder when
            not given ($GRAPHSLICE_CACHE names another).
        fingerprint: hash of the molecules, labels and split that a run was trained on; noted by it.
    """

    dataset: str = "demo"
    root: str = "dataset"
    smiles_column: str | None = None
    targets: str | None = None
    task: str | None = None
    transform: str | None = None
    split: str | None = None
    seed: int = 0
    cache: str | None = None
    fingerprint: str | None = None


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
            raise InputError(f"graph.atom_order is canonical or input, not {self.atom_order!r}")
        if self.path_ties not in ("mean", "floyd-warshall"):
            raise InputError(f"graph.path_ties is mean or floyd-warshall, not {self.path_ties!r}")
        if not 1 <= self.max_atoms <= 65_535:
            raise InputError(f"graph.max_atoms must be from 1 to 65535, not {self.max_atoms}")
