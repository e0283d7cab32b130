"""Pretraining corpus: the unique molecules of some files with their targets, as one preprocessed dataset.

Targets are computed from RDKit descriptors and Morgan fingerprints: regression and binary. Atom- and bond-level labels
are lists with one number for each atom or bond of a SMILES.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.chem.descriptors import DESCRIPTORS
from graphslice.config import ATOM, BOND, MOLECULE, GraphConfig
from graphslice.data.batches import Progress, no_progress
from graphslice.data.cells import column_cells
from graphslice.data.columns import TableColumns, check_unique, find_smiles_column
from graphslice.data.dataset import LabelledDataset, check_usable
from graphslice.data.featurize import featurizer_pool, molecule_keys, parse
from graphslice.data.labels import Labels, group_means, pointers
from graphslice.data.preprocess import build_store_from_tables, cached_store
from graphslice.data.rows import labelled_rows
from graphslice.data.splits import SPLITS, random_subset
from graphslice.data.store import BATCH_ROWS, GraphStore, StoreInfo, atom_bond_column, nested_lists
from graphslice.data.tables import number_array, open_table, reject_other_atom_order, text_array
from graphslice.data.targets import infer_level, list_cells
from graphslice.errors import InputError, nearest
from graphslice.tasks import BINARY, Task, is_bounded

# Percent of families in the validation and in the test set.
_VALID, _TEST = 2, 5
# Maximum number of training molecules by which the targets are chosen.
_MAX_SAMPLE = 50_000
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class Corpus:
    """Pretraining corpus, as returned by :func:`build_corpus`."""

    store: GraphStore  # preprocessed molecules with targets and splits
    rows: int  # number of rows in the input files
    unreadable: int  # number of rows without a valid molecule
    unlabelled: int  # number of rows with labels that are bounds, no numbers, or lists of the wrong length or order
    left_out: int  # number of molecules that were excluded
    targets: PretrainingTargets  # computed targets
    own: list[str]  # names of the molecule-level targets read from the files


def build_corpus(
    path: Path,
    tables: Sequence[Path],
    config: GraphConfig,
    *,
    labels: Sequence[str] = (),
    without: Sequence[Path] = (),
    smiles_column: str | None = None,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> Corpus:
    """Build and write a pretraining corpus from files of molecules; an :class:`InputError` leaves nothing written. The
    split of a family of molecules is determined by its hash, so it does not change when molecules are added. ``labels``
    are columns, each in at least one of the files, that are further targets: numbers are molecule-level labels,
    averaged over the rows of a molecule (0 and 1 must agree); lists are atom- or bond-level labels, depending on their
    length, of which the first of a molecule is used. All members of the families of the files ``without`` are
    excluded."""
    levels = levels_of_lists(tables, labels, smiles_column)
    list_names = {level: tuple(n for n in labels if levels.get(n) == level) for level in dict.fromkeys(levels.values())}
    molecule_labels = [name for name in labels if name not in levels]
    rows = _read_rows(tables, molecule_labels, smiles_column)
    store_row = {smiles: row for row, smiles in enumerate(dict.fromkeys(rows.smiles))}
    store_rows = np.array([store_row[smiles] for smiles in rows.smiles])
    store = cached_store(_unlabelled_dataset("corpus", [*store_row]), config, cache, progress, DESCRIPTOR_KINDS)
    usable = np.flatnonzero((store.sizes > 0) & (store.sizes <= config.max_atoms))
    if not len(usable):
        check_usable(", ".join(map(str, tables)), len(store), store.errors)
    excluded = _excluded_families(without, smiles_column, config, cache)
    chosen, molecule_of_row, left_out = _select_molecules(store, usable, excluded)
    split = split_by_hash(molecule_keys(store, chosen).family)
    molecule = molecule_of_row[store_rows]
    own = group_means(rows.targets[molecule >= 0], molecule[molecule >= 0], len(chosen))
    is_binary = (np.isin(rows.targets, (0, 1)) | np.isnan(rows.targets)).all(axis=0)
    own[is_binary & (own % 1 != 0)] = np.nan  # the rows of the molecule contradict each other
    _check_labelled(own, molecule_labels)
    training = chosen[split == SPLITS.index("train")]
    targets = choose_targets(store, random_subset(training, _MAX_SAMPLE), labels)
    if not (molecule_labels or targets.tasks) or not all((split == number).any() for number in range(2)):
        raise InputError(
            f"too few molecules in the corpus ({len(chosen):,}) for training and validation: some hundreds are needed, "
            "since the split is determined by a hash"
        )
    atom_bond_labels, invalid = {}, set(rows.faults)
    for level, names in list_names.items():
        listed = _read_rows(tables, names, smiles_column, level)
        atom_bond_labels[level], rejected = select_molecule_labels(
            replace(listed.all_labels, names=names), rows.smiles, molecule, store_rows, store, chosen, config
        )
        invalid |= listed.faults.keys() | rejected
    info = StoreInfo(
        "corpus",
        targets=(*molecule_labels, *(task.name for task in targets.tasks)),
        atom_order=config.atom_order,
        max_atoms=config.max_atoms,
        tasks=tuple(task for task in targets.tasks if task.classes),
        atom_targets=list_names.get(ATOM, ()),
        bond_targets=list_names.get(BOND, ()),
    )
    chunks = _corpus_tables(store, chosen, split, own, targets, info, atom_bond_labels)
    corpus = build_store_from_tables(path, chunks, info)
    unreadable = len(rows) - int(np.isin(store_rows, usable).sum())
    return Corpus(corpus, len(rows), unreadable, len(invalid), left_out, targets, molecule_labels)


def _select_molecules(
    store: GraphStore, usable: np.ndarray, families: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Select the G unique molecules of the usable rows, without those of excluded families, in the order of the files.
    Returns ``int64 [G]``, row of each molecule in the store; the molecule of each row of the store, -1 for none; and
    the number of rows that were excluded."""
    hashes = molecule_keys(store, usable)
    allowed = ~np.isin(hashes.family, families)
    _, first, group = np.unique(hashes.identity[allowed], return_index=True, return_inverse=True)
    order = np.argsort(first)
    molecule_of_row = np.full(len(store), -1)
    molecule_of_row[usable[allowed]] = np.argsort(order)[group]
    return usable[allowed][first[order]], molecule_of_row, int((~allowed).sum())


def _check_labelled(values: np.ndarray, names: Sequence[str]) -> None:
    """Raise :class:`InputError` for a label column without any number."""
    for name, column in zip(names, values.T, strict=True):
        if np.isnan(column).all():
            raise InputError(
                f"the column {name!r} has neither a number for any molecule of the corpus, nor a list of numbers for "
                "its atoms or bonds"
            )


def split_by_hash(family: np.ndarray) -> np.ndarray:
    """Return the splits of molecules by their family hash ``uint64 [G]``: indices of ``SPLITS``, ``int8 [G]``."""
    percentile = ((family * _HASH_MULTIPLIER) >> np.uint64(32)) % np.uint64(100)
    valid, test, train = map(SPLITS.index, ("valid", "test", "train"))
    return np.select([percentile < _VALID, percentile < _VALID + _TEST], [valid, test], train).astype(np.int8)


def levels_of_lists(tables: Sequence[Path], names: Sequence[str], smiles_column: str | None) -> dict[str, str]:
    """Return the level, atom or bond, of the columns with lists of numbers; raise InputError if one is unclear."""
    lists: dict[str, list[np.ndarray]] = {name: [] for name in names}
    written: dict[str, list[object]] = {name: [] for name in names}  # the SMILES of the rows with a list
    for path in tables:
        with open_table(path) as table:
            smiles, present = _find_columns(table.columns, path, names, smiles_column)
            for chunk in table.chunks:
                molecules = column_cells(chunk, smiles)
                for name in present:
                    if cells := list_cells(chunk, name):
                        reject_other_atom_order(path)
                    written[name] += [molecules[row] for row in cells]
                    lists[name] += cells.values()
    return {name: infer_level(name, written[name], lists[name]) for name in names if lists[name]}


def _find_columns(
    columns: Sequence[str], path: Path, labels: Sequence[str], smiles_column: str | None
) -> tuple[str, list[str]]:
    """Return the column of the SMILES and those of the labels that the file has."""
    smiles = find_smiles_column(columns, None, str(path), smiles_column)
    present = [name for name in labels if name in columns]
    check_unique(columns, [smiles, *present], str(path))
    return smiles, present


def _read_rows(
    tables: Sequence[Path], labels: Sequence[str], smiles_column: str | None, level: str = MOLECULE
) -> LabelledDataset:
    """Read the rows of all files with labels of one level; those of columns that a file lacks are nan."""
    chunks, known = [], dict.fromkeys(labels, False)
    for path in tables:
        with open_table(path) as table:
            columns = table.columns
        smiles, present = _find_columns(columns, path, labels, smiles_column)
        known |= dict.fromkeys(columns, True)
        for chunk in labelled_rows(path, TableColumns(smiles, present, level=level if present else MOLECULE)):
            found = replace(chunk.all_labels, level=level)
            if level != MOLECULE and not present:
                found = found.without(np.arange(len(chunk)))
            values = np.full((len(found.values), len(labels)), np.nan)
            values[:, [list(labels).index(name) for name in present]] = found.values
            bounded = [] if found.bounds is None else np.flatnonzero(is_bounded(found.bounds).any(axis=1)).tolist()
            faults = chunk.faults | dict.fromkeys(bounded, "a label is a bound")
            chunks.append(replace(chunk, all_labels=replace(found, values=values, bounds=None), faults=faults))
    for name in labels:
        if not known[name]:
            raise InputError(f"no input file has a column {name!r}{nearest(name, known.keys() - {*labels})}")
    return LabelledDataset.join(chunks)


def _unlabelled_dataset(name: str, smiles: Sequence[str]) -> LabelledDataset:
    """Return a dataset of SMILES without labels, so that the cache does not depend on other columns."""
    return LabelledDataset(name, smiles, Labels.of_molecules(np.empty((len(smiles), 0))), [])


def _excluded_families(
    tables: Sequence[Path], smiles_column: str | None, config: GraphConfig, cache: Path | None
) -> np.ndarray:
    """Return the family hashes, ``uint64``, of the molecules in some files."""
    if not tables:
        return np.empty(0, np.uint64)
    store = cached_store(_unlabelled_dataset("left out", _read_rows(tables, (), smiles_column).smiles), config, cache)
    return molecule_keys(store, np.flatnonzero(store.sizes > 0)).family


def _corpus_tables(
    store: GraphStore,
    rows: np.ndarray,
    split: np.ndarray,
    own: np.ndarray,
    targets: PretrainingTargets,
    info: StoreInfo,
    atom_bond_labels: Mapping[str, Labels],
) -> Iterator[pa.Table]:
    schema = info.schema()
    for number, batch in enumerate(store.batches):
        in_batch = np.flatnonzero(rows // BATCH_ROWS == number)
        if not len(in_batch):
            continue
        graphs = batch.take(number_array(rows[in_batch] % BATCH_ROWS))
        values = np.concatenate([own[in_batch], targets.compute(store, rows[in_batch])], axis=1)
        columns = [graphs.column(name) for name in ("smiles", "atoms", "bonds", "error")]
        columns.append(pa.FixedSizeListArray.from_arrays(number_array(values.reshape(-1)), values.shape[1]))
        columns.append(pa.DictionaryArray.from_arrays(number_array(split[in_batch]), text_array(SPLITS)))
        columns += [graphs.column(name) for name in ("identity", "family")]
        for level in info.atom_bond_targets:
            labels, kind = atom_bond_labels[level], schema.field(atom_bond_column(level)).type
            columns.append(nested_lists(labels[in_batch], pointers(labels.counts_of(in_batch)), kind))
        yield pa.table(columns, names=schema.names)


#: Descriptor kinds from which targets are computed.
DESCRIPTOR_KINDS = ("rdkit2d", "morgan")

# If more than this share of the molecules have the same value of a descriptor, the target is binary: the value differs
# from it. As a regression target, always predicting that value would minimise the absolute error.
_COMMONEST = 0.6
# Minimum share of each class of a binary target.
_RARE = 0.1
# Standardised descriptors are clipped at this many standard deviations.
_CLIP = 5.0


@dataclass(frozen=True)
class PretrainingTargets:
    """Pretraining targets, and how they are computed from descriptors."""

    tasks: tuple[Task, ...]  # T targets, named as their descriptors: regression, robustly standardised, and binary
    columns: np.ndarray  # int64 [T], descriptor column of each target
    centre: np.ndarray  # float32 [T], median of a regression target; for a binary target, the most common value
    scale: np.ndarray
    """``float32 [T]``, interquartile range of a regression target divided by that of the standard normal distribution;
    nan for a binary target."""

    def compute(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """Compute the targets ``float64 [R, T]`` of ``rows``, int64 ``[R]``, of a store with :data:`DESCRIPTOR_KINDS`;
        nan where a descriptor is undefined."""
        values = store.descriptors(rows, DESCRIPTOR_KINDS)[:, self.columns]
        with np.errstate(invalid="ignore"):
            standardised = ((values - self.centre) / self.scale).clip(-_CLIP, _CLIP)
        differs = np.where(np.isnan(values), np.nan, values != self.centre)
        return np.where(np.isnan(self.scale), differs, standardised).astype(np.float64)


def choose_targets(store: GraphStore, rows: np.ndarray, exclude: Collection[str] = ()) -> PretrainingTargets:
    """Choose the pretraining targets by the distribution of the descriptors in the training set: regression for spread
    values, binary for one value of most, but not nearly all, molecules. Descriptors that are known for less than half
    of the molecules are skipped."""
    from scipy.stats import iqr

    names = [name for kind in DESCRIPTOR_KINDS for name in DESCRIPTORS[kind].names]
    values = store.descriptors(rows, DESCRIPTOR_KINDS)
    tasks, columns, centre, scale = [], [], [], []
    for column, name in enumerate(names):
        known = values[:, column]
        known = known[~np.isnan(known)]
        if name in exclude or not len(known) or len(known) < len(rows) / 2:
            continue
        numbers, counts = np.unique(known, return_counts=True)
        commonest, share = numbers[counts.argmax()], counts.max() / len(known)
        if share <= _COMMONEST and (spread := iqr(known, scale="normal")) > 0:
            tasks.append(Task(name))
            centre.append(np.median(known))
            scale.append(spread)
        elif _RARE <= 1 - share <= 1 - _RARE:
            tasks.append(Task(name, BINARY, ("no", "yes")))
            centre.append(commonest)
            scale.append(np.nan)
        else:
            continue
        columns.append(column)
    arrays = (np.array(values, dtype) for values, dtype in ((columns, int), (centre, np.float32), (scale, np.float32)))
    return PretrainingTargets(tuple(tasks), *arrays)


def select_molecule_labels(
    labels: Labels,  # of R rows
    smiles: Sequence[str],  # of the R rows
    rows: np.ndarray,  # int64 [R], index of the molecule of each row; -1 for none
    store_rows: np.ndarray,  # int64 [R], row of the store of each row's SMILES
    store: GraphStore,  # all molecules that were read
    chosen: np.ndarray,  # int64 [G], row of the store of each molecule of the corpus
    config: GraphConfig,
) -> tuple[Labels, set[int]]:
    """Select the labels of each of G molecules of a corpus from its first labelled row, in the order of its graph, and
    the rows whose lists do not fit the molecule, since their length or, for bonds, their order differs."""
    labelled = np.flatnonzero((labels.counts > 0) & (rows >= 0))
    ordered = replace(labels, values=labels[labelled], ptr=pointers(labels.counts[labelled]))
    with featurizer_pool(len(labelled)) as pool:
        texts = [smiles[row] for row in labelled.tolist()]
        arrays, _, order, _ = parse(texts, config, pool, level=labels.level)
    counts = arrays.atom_bond_counts(labels.level)
    invalid = set(labelled[list(ordered.length_errors(counts, labels.names))].tolist())
    ordered = ordered.in_graph_order(counts, order)
    first: dict[int, int] = {}
    for i in np.flatnonzero(ordered.counts).tolist():
        molecule, store_row = int(rows[labelled[i]]), int(store_rows[labelled[i]])
        if molecule in first:
            continue
        # Two graphs of a molecule have the same order of atoms, but perhaps not of bonds.
        if labels.level == BOND and not np.array_equal(store[store_row].bonds, store[int(chosen[molecule])].bonds):
            invalid.add(int(labelled[i]))
        else:
            first[molecule] = i
    molecules = sorted(first)
    picked = np.array([first[molecule] for molecule in molecules], np.int64)
    chosen_counts = np.zeros(len(chosen), np.int64)
    chosen_counts[molecules] = ordered.counts[picked]
    return replace(ordered, values=ordered[picked], ptr=pointers(chosen_counts)), invalid
