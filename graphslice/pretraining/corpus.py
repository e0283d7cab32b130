"""The corpus: every molecule of some tables once, with what is computed of it as targets, in one store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.config import ATOM, BOND, GraphConfig
from graphslice.data.arrow import number_array, text_array
from graphslice.data.atom_bond_labels import AtomBondLabels
from graphslice.data.columns import check_unique
from graphslice.data.featurize import cached_store
from graphslice.data.featurize.build import build_store_from_tables
from graphslice.data.labelled_dataset import LabelledDataset
from graphslice.data.labelled_rows import LabelledRows
from graphslice.data.labels import LabelColumns, find_smiles_column, labelled_rows
from graphslice.data.molecule_keys import molecule_keys
from graphslice.data.splits import SPLITS
from graphslice.data.store import BATCH_ROWS, GraphStore, StoreInfo
from graphslice.data.store_schema import atom_bond_column
from graphslice.data.tables import open_table
from graphslice.errors import InputError, nearest
from graphslice.pretraining.atom_bond_labels import atom_bond_array, read_label_lists, select_molecule_labels
from graphslice.pretraining.targets import DESCRIPTOR_KINDS, PretrainingTargets, choose_targets

# Of every hundred families of molecules so many validate, and so many test.
_VALID, _TEST = 2, 5
# Molecules of which the targets are chosen.
_MOST_LOOKED_AT = 50_000
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class Corpus:
    """What :func:`build_corpus` has made.

    Attributes:
        store: of the molecules, their targets and splits.
        rows: that the tables have.
        unreadable: of these, how many are no molecule.
        unlabelled: how many rows have labels that are no numbers, or lists that do not fit.
        left_out: how many molecules are those of the tables that were to be left out.
        targets: what is computed of each molecule.
        own: names of the labels of molecules that the tables have themselves.
    """

    store: GraphStore
    rows: int
    unreadable: int
    unlabelled: int
    left_out: int
    targets: PretrainingTargets
    own: list[str]


def build_corpus(
    path: Path,
    tables: Sequence[Path],
    config: GraphConfig,
    *,
    labels: Sequence[str] = (),
    without: Sequence[Path] = (),
    smiles_column: str | None = None,
    cache: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """Write the corpus of some tables.

    Molecules are the same where ``identity`` of :class:`~graphslice.chem.molecule_hash.MoleculeHashes` is; a family
    of them lies in one split, of which its hash decides: so a molecule stays where it is when others are added.

    Args:
        path: of the store.
        tables: files or folders with a column of SMILES.
        config: how molecules become graphs.
        labels: columns that are targets too, each in at least one of the tables: of numbers, of which where a molecule
            has several their mean is; or of lists, which are labels of its atoms or bonds, as their lengths say, and of
            which the first is taken.
        without: tables of molecules that are left out, with all of their families: those of a test, say.
        smiles_column: the column of the SMILES in those tables that have it; in others it is found by its name.
        cache: folder of what is computed of the molecules; the user's when not given.
        progress: called with the number of molecules read, from time to time.

    Raises:
        InputError: if a table cannot be read, no table has a label, one has no number, or too few molecules are left;
            nothing is written then.
    """
    for name in labels:
        if list(labels).count(name) > 1:
            raise InputError(f"the target {name!r} is named twice")
    lists, unfit = read_label_lists(tables, labels, smiles_column)
    of_sites = {level: some.names for level, some in lists.items()}
    numbers = [name for name in labels if all(name not in names for names in of_sites.values())]
    rows = _read_rows(tables, numbers, smiles_column)
    place = {text: number for number, text in enumerate(dict.fromkeys(rows.smiles))}
    of_row = np.array([place[text] for text in rows.smiles])
    store = cached_store(_unlabelled_dataset("corpus", [*place]), config, cache, progress, DESCRIPTOR_KINDS)
    kept = np.flatnonzero((store.sizes > 0) & (store.sizes <= config.max_atoms))
    if not len(kept):
        raise InputError(f"none of the {len(rows):,} rows of {', '.join(map(str, tables))} is a molecule")
    molecules = _select_molecules(store, kept, _excluded_families(without, smiles_column, config, cache))
    own = _group_means(rows.targets, molecules.molecule_of_row[of_row], len(molecules.rows))
    _check_labelled(own, numbers)
    targets = _choose_targets(store, molecules, labels)
    if not (numbers or targets.tasks):
        raise InputError("the molecules for training are too few: nothing of them differs")
    for number, purpose in enumerate(("training", "validation")):
        if not (molecules.split == number).any():
            raise InputError(
                f"the molecules of the corpus are too few, {len(molecules.rows):,}: none is for {purpose}, by a hash; "
                "some hundreds are needed"
            )
    sites, unfit = {}, unfit | set(rows.rejected)
    for level, some in lists.items():
        places = molecules.molecule_of_row[of_row], of_row
        sites[level], faults = select_molecule_labels(some, rows.smiles, *places, store, molecules.rows, config)
        unfit |= faults
    info = StoreInfo(
        "corpus",
        targets=(*numbers, *targets.names),
        atom_order=config.atom_order,
        max_atoms=config.max_atoms,
        tasks=tuple(task for task in targets.tasks if task.classes),
        atom_targets=of_sites.get(ATOM, ()),
        bond_targets=of_sites.get(BOND, ()),
    )
    made = build_store_from_tables(path, _corpus_tables(store, molecules, own, targets, info, sites), info)
    lost = len(rows) - int(np.isin(of_row, kept).sum())
    return Corpus(made, len(rows), lost, len(unfit), molecules.left_out, targets, numbers)


@dataclass(frozen=True, eq=False)
class _DemoBatches:
    """The G molecules of a corpus, in the order in which the tables have them.

    Attributes:
        rows: ``int64 [G]``, of the store of all that was read.
        split: ``int8 [G]``, of each.
        molecule_of_row: ``int64 [rows of the store]``, which molecule each is; -1 of none.
        left_out: how many rows of the store are of molecules that the corpus shall not have.
    """

    rows: np.ndarray
    split: np.ndarray
    molecule_of_row: np.ndarray
    left_out: int


def _select_molecules(store: GraphStore, kept: np.ndarray, families: np.ndarray) -> _DemoBatches:
    """Every molecule once, without those of some families. ``kept``: rows that are molecules."""
    hashes = molecule_keys(store, kept)
    allowed = ~np.isin(hashes.family, families)
    if not allowed.any():
        raise InputError("--without leaves no molecule of the corpus")
    _, first, group = np.unique(hashes.identity[allowed], return_index=True, return_inverse=True)
    order = np.argsort(first)
    molecule_of_row = np.full(len(store), -1)
    molecule_of_row[kept[allowed]] = np.argsort(order)[group]
    chosen = first[order]
    return _DemoBatches(
        kept[allowed][chosen], split_by_hash(hashes.family[allowed][chosen]), molecule_of_row, int((~allowed).sum())
    )


def _check_labelled(values: np.ndarray, names: Sequence[str]) -> None:
    for name, column in zip(names, values.T, strict=True):
        if np.isnan(column).all():
            raise InputError(
                f"the column {name!r} has no number for a molecule of the corpus, nor a list of them for its atoms or "
                "bonds"
            )


def _choose_targets(store: GraphStore, molecules: _DemoBatches, exclude: Sequence[str]) -> PretrainingTargets:
    looked_at = molecules.rows[molecules.split == SPLITS.index("train")]
    if len(looked_at) > _MOST_LOOKED_AT:
        looked_at = np.sort(np.random.default_rng(0).choice(looked_at, _MOST_LOOKED_AT, replace=False))
    return choose_targets(store, looked_at, exclude)


def split_by_hash(family: np.ndarray) -> np.ndarray:
    """``int8 [G]``: the split of molecules by the hash of their families, ``uint64 [G]``."""
    place = ((family * _HASH_MULTIPLIER) >> np.uint64(32)) % np.uint64(100)
    found = np.full(len(family), SPLITS.index("train"), np.int8)
    found[place < _VALID + _TEST] = SPLITS.index("test")
    found[place < _VALID] = SPLITS.index("valid")
    return found


def _read_rows(tables: Sequence[Path], labels: Sequence[str], smiles_column: str | None) -> LabelledRows:
    """The rows of all tables, nan where one has no such label."""
    chunks, known = [], dict.fromkeys(labels, False)
    for path in tables:
        with open_table(path) as table:
            columns = table.columns
        smiles = find_smiles_column(columns, None, str(path), smiles_column)
        present = [name for name in labels if name in columns]
        check_unique(columns, [smiles, *present], str(path))
        known |= dict.fromkeys(columns, True)
        for chunk in labelled_rows(path, LabelColumns(smiles, present, None)):
            targets = np.full((len(chunk), len(labels)), np.nan)
            targets[:, [list(labels).index(name) for name in present]] = chunk.targets
            chunks.append(replace(chunk, targets=targets))
    for name in labels:
        if not known[name]:
            raise InputError(f"no table of the corpus has a column {name!r}{nearest(name, known.keys() - {*labels})}")
    return LabelledRows.join(chunks)


def _unlabelled_dataset(name: str, smiles: list[str]) -> LabelledDataset:
    """Molecules alone: what is computed of them is the same whatever else a table says."""
    return LabelledDataset(name, smiles, np.empty((len(smiles), 0)), [])


def _excluded_families(
    tables: Sequence[Path], smiles_column: str | None, config: GraphConfig, cache: Path | None
) -> np.ndarray:
    if not tables:
        return np.empty(0, np.uint64)
    store = cached_store(_unlabelled_dataset("left out", _read_rows(tables, (), smiles_column).smiles), config, cache)
    return molecule_keys(store, np.flatnonzero(store.sizes > 0)).family


def _group_means(values: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """``float64 [count, T]``, the mean of the known values of each group, nan where there is none; those of -1 are
    left out."""
    values, group = values[group >= 0], group[group >= 0]
    known = ~np.isnan(values)
    total, number = np.zeros((2, count, values.shape[1]))
    np.add.at(total, group, np.where(known, values, 0))
    np.add.at(number, group, known)
    with np.errstate(invalid="ignore"):
        return total / number


def _corpus_tables(
    store: GraphStore,
    molecules: _DemoBatches,
    own: np.ndarray,
    targets: PretrainingTargets,
    info: StoreInfo,
    sites: Mapping[str, AtomBondLabels],
) -> Iterator[pa.Table]:
    """The rows of the corpus in the columns of its store."""
    schema, rows, split = info.schema(), molecules.rows, molecules.split
    for number, batch in enumerate(store.batches):
        here = np.flatnonzero(rows // BATCH_ROWS == number)
        if not len(here):
            continue
        some = batch.take(number_array(rows[here] % BATCH_ROWS))
        values = np.concatenate([own[here], targets.compute(store, rows[here])], axis=1)
        columns = [some.column(name) for name in ("atoms", "bonds", "error")]
        columns.append(pa.FixedSizeListArray.from_arrays(number_array(values.reshape(-1)), values.shape[1]))
        columns.append(pa.DictionaryArray.from_arrays(number_array(split[here]), text_array(SPLITS)))
        for level in info.atom_bond_targets:
            columns.append(atom_bond_array(sites[level], here, schema.field(atom_bond_column(level)).type))
        yield pa.table(columns, names=schema.names)
