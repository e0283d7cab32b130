"""Judge a model on labelled molecules."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graphslice.config import DataConfig, join_names
from graphslice.data.atom_bond_order import to_graph_order
from graphslice.data.columns import quoted_list
from graphslice.data.dataset_loaders import absolute_dataset, is_dataset_name, load_dataset
from graphslice.data.featurize import check_graphs, featurizer_pool
from graphslice.data.labelled_dataset import LabelledDataset
from graphslice.data.labels import target_names
from graphslice.data.splits import SPLITS, Splits
from graphslice.data.store import STORE_SUFFIX
from graphslice.data.tables import is_table_name, open_table
from graphslice.errors import InputError
from graphslice.evaluation.coverage import COVERAGE_LEVEL, add_coverage, coverage
from graphslice.evaluation.metrics import score_rows
from graphslice.inference.predictions import Predictions
from graphslice.inference.predictor import Predictor
from graphslice.package_data import is_packaged_model
from graphslice.run_files import find_members, locate_dataset, run_directory_of
from graphslice.tasks import Task

# Rows that are predicted at a time.
_CHUNK_ROWS = 16_384
# Similarity of one fingerprint with itself, but for rounding.
_IDENTICAL_SIMILARITY = 1 - 1e-6


def load_evaluation_data(
    predictor: Predictor, model: Path | None, given: dict[str, Any], split: str | None = None
) -> tuple[LabelledDataset, Splits | None]:
    """Labelled molecules to judge a model on, and their splits.

    Args:
        predictor: the model.
        model: its run folder or checkpoint, if there is one.
        given: fields of :class:`~graphslice.config.DataConfig` that differ from what it was trained on.
        split: that is to be judged; of all rows of other data no column is asked for its split.

    Returns:
        The source, and the rows of each split: those of the run for the data it was trained on, else
        those that the data itself tells; None where nothing does.

    Raises:
        InputError: if the data cannot be had, has other targets, or has changed since the training.
    """
    trained = predictor.config.data
    if not trained.dataset and "dataset" not in given:
        raise InputError(f"{model} was imported, without what it learned: give labelled molecules by --dataset")
    trained = replace(
        trained, dataset=locate_dataset(trained.dataset, None if model is None else run_directory_of(model))
    )
    dataset = absolute_dataset(given.get("dataset", trained.dataset))
    if model is not None and is_packaged_model(model) and "dataset" not in given:
        raise InputError(
            f"{model} came with the package, without what it learned: give labelled molecules by --dataset"
        )
    if dataset == "pyg":
        raise InputError("the model was trained on PyG data: give labelled molecules with --dataset")
    if "dataset" not in given and not (is_dataset_name(dataset) or Path(dataset).exists()):
        raise InputError(f"what the model learned is not at {dataset} any more: give labelled molecules by --dataset")
    asked = given.get("targets")
    if dataset == trained.dataset:
        if are_model_targets(predictor, asked):  # all are read, so that the data is known as that of the training
            given = {name: value for name, value in given.items() if name != "targets"}
        # The labels that were learned beside belong to the data of the run, and are not judged.
        own = {"targets": trained.targets or join_names(predictor.targets)}
        data = replace(trained, **{**own, **given, "dataset": dataset})
    else:
        known = {"root": trained.root, "features": trained.features, "level": predictor.level}
        columns = _columns(dataset)
        known["smiles_column"] = trained.smiles_column if trained.smiles_column in columns else None
        if split == "all" and not is_dataset_name(dataset):
            known["split"] = "random"
        data = DataConfig(
            **{**known, **given, "targets": available_targets(predictor, asked, columns), "dataset": dataset}
        )
    whole = load_dataset(data, select_tasks(predictor, data.targets))
    source = replace(align_targets(predictor, whole, asked), auxiliary={})
    if dataset != trained.dataset or source.is_pcqm4m or trained.fingerprint is None:
        return source, source.splits
    if whole.fingerprint() == trained.fingerprint:
        return source, evaluation_splits(predictor, model, whole)
    if given.keys() & {"dataset", "targets", "smiles_column"}:
        return source, None
    raise InputError(
        f"{dataset} has changed since {model or 'the model'} was trained on it: name it with --dataset to use it so"
    )


def _columns(dataset: str) -> list[str]:
    """The columns of a data set that is a table; none of another, or of what is not there, which is told later."""
    if is_dataset_name(dataset) or dataset.lower().endswith(STORE_SUFFIX):
        return []
    path = Path(dataset)
    if not (path.is_dir() or is_table_name(dataset)):
        return []
    with open_table(path) as table:
        return list(table.columns)


def are_model_targets(predictor: Predictor, targets: str | None) -> bool:
    """Whether the targets that are named are a model's own, so that their order means nothing; so it is of none."""
    return set(target_names(targets, predictor.targets)) <= set(predictor.targets)


def available_targets(predictor: Predictor, asked: str | None, columns: Sequence[str]) -> str:
    """The targets to read of some columns, as ``--targets`` names them: what is asked for, where these are none of a
    model's or not there; else those of the model's that are there, and all of them where none is."""
    names = target_names(asked, predictor.targets)
    if asked and not set(names) <= set(predictor.targets) & set(columns):
        return asked
    return join_names([name for name in predictor.targets if name in columns] or predictor.targets)


def select_tasks(predictor: Predictor, targets: str | None) -> list[Task]:
    """What is asked of targets that are named: of a model's own by their names, of others in the model's order."""
    if not are_model_targets(predictor, targets):
        return predictor.tasks
    known = dict(zip(predictor.targets, predictor.tasks, strict=True))
    return [known[name] for name in target_names(targets, predictor.targets)] or predictor.tasks


def align_targets(predictor: Predictor, source: LabelledDataset, asked: str | None = None) -> LabelledDataset:
    """A source that a model can be judged on, with all of its targets; unknown are those that the source has not.

    Rows whose lists are of another length than their molecule are rejected.

    Args:
        predictor: the model.
        source: with some of its targets by their names, or as many others in its order.
        asked: of the model's targets those to be judged by, as ``--targets`` names them.

    Raises:
        InputError: if it has not as many targets as the model.
    """
    judged = target_names(asked, predictor.targets) if are_model_targets(predictor, asked) else []
    source = _align_to_model(predictor, source, judged or predictor.targets)
    if source.atom_bond_labels is None:
        return source
    _, faults = to_graph_order(source.atom_bond_labels, source.smiles, predictor.config.graph, source.target_names)
    rows, targets = list(faults), source.targets.copy()
    targets[rows] = np.nan
    rejected = source.rejected | {row: why for row, why in faults.items() if row not in source.rejected}
    return replace(source, targets=targets, atom_bond_labels=source.atom_bond_labels.without(rows), rejected=rejected)


def _align_to_model(predictor: Predictor, source: LabelledDataset, judged: Sequence[str]) -> LabelledDataset:
    """A source with a model's targets in their order; those that it has not, or that are not judged, are unknown."""
    names, there = predictor.targets, source.target_names
    if not set(there) <= set(names):
        if len(there) == len(names):
            return source
        raise InputError(
            f"the model predicts {len(names)} targets, and --targets names {len(there)}: "
            f"name a column for each of {quoted_list(names)}, in this order, or some of these"
        )
    if there == names == list(judged):
        return source
    places = [(names.index(name), place) for place, name in enumerate(there) if name in judged]

    def placed(values: np.ndarray) -> np.ndarray:
        wide = np.full((len(values), len(names)), np.nan)
        for here, origin in places:
            wide[:, here] = values[:, origin]
        return wide

    atom_bond_labels = (
        None
        if source.atom_bond_labels is None
        else replace(source.atom_bond_labels, values=placed(source.atom_bond_labels.values))
    )
    return replace(
        source, targets=placed(source.targets), tasks=list(predictor.tasks), atom_bond_labels=atom_bond_labels
    )


def evaluation_splits(predictor: Predictor, model: Path | None, source: LabelledDataset) -> Splits | None:
    """The splits of a source: those of the run, if it is what the model was trained on, else those it tells itself.

    Args:
        predictor: the model.
        model: its run folder or checkpoint, if there is one.
        source: labelled molecules.

    Raises:
        InputError: if every molecule was learned by one of the models of a cross-validation.
    """
    trained = predictor.config.data
    if model is None or source.fingerprint() != trained.fingerprint:
        return source.splits
    if predictor.is_cross_validation:
        raise InputError(
            f"all molecules of {source.name} were learned by models of {model}: what each scores by the model that "
            "did not learn it stands in its metrics.json and out_of_fold.csv; name other data with --dataset"
        )
    home = run_directory_of(model)
    splits = source.splits if home is None else read_splits(home) or source.splits
    others = [read_splits(member) or {} for member in (find_members(model) if model.is_dir() else [])]
    if splits is None or not others:
        return splits

    def common(name: str) -> bool:
        """What one model validates by, another one may have learned."""
        return all(np.array_equal(splits[name], each.get(name, ())) for each in others)

    return {name: rows for name, rows in splits.items() if common(name)}


def read_splits(folder: Path) -> Splits | None:
    """The rows of each split as ``split.csv`` of a run folder has them; None where there is none."""
    path = folder / "split.csv"
    if not path.is_file():
        return None
    splits: dict[str, list[int]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            splits.setdefault(line["split"], []).append(int(line["row"]) - 1)
    return {split: np.array(rows, dtype=np.int64) for split, rows in splits.items()}


def predict_rows(
    predictor: Predictor, source: LabelledDataset, rows: np.ndarray, interval: float | None = None
) -> Predictions:
    """Answers for some rows of a source, with intervals if a level is given."""
    if source.store is not None:
        check_graphs(source.store, predictor.config.graph)
        return predictor.predict_store_rows(source.store, rows, interval=interval)
    chunks = [rows[begin : begin + _CHUNK_ROWS] for begin in range(0, len(rows), _CHUNK_ROWS)] or [rows]
    smiles = ([source.smiles[row] for row in chunk] for chunk in chunks)
    columns = None if source.columns is None else (source.columns[chunk] for chunk in chunks)
    with featurizer_pool(len(rows), kinds=predictor.kinds) as pool:
        return Predictions.concatenate(list(predictor.predict_stream(smiles, pool, columns, interval=interval)))


def evaluate(predictor: Predictor, source: LabelledDataset, split: str, splits: Splits | None) -> dict:
    """Scores of a model on a split of a source (see :func:`~graphslice.evaluation.metrics.scores`).

    Args:
        predictor: whose targets the source has.
        source: labelled molecules.
        split: one of ``splits``, or ``"all"``.
        splits: rows of each split.

    Returns:
        The scores, with ``unanswered``: how many molecules have no prediction and are left out; of a calibrated model
        ``learned``: how many of the others have the fingerprint of a training molecule that it keeps; and of each
        target how many labels lie in intervals, as :func:`~graphslice.evaluation.coverage.add_coverage` says.

    Raises:
        InputError: if there is no such split, or no labels in it.
    """
    if split == "all":
        rows = np.arange(len(source))
    elif splits is None:
        raise InputError(f"{source.name} has no splits: give --split all")
    elif split not in splits:
        several = len(predictor.models) > 1 and split in SPLITS
        why = "; each of its models has others, and metrics.json what they score" if several else ""
        raise InputError(f"{source.name} has no split {split!r}: it has {', '.join(splits)} and all{why}")
    else:
        rows = splits[split]
    rows = rows[~np.isnan(source.targets[rows]).all(axis=1)]
    if len(rows) == 0:
        lost = [f"; the first, row {row + 1}: {why}" for row, why in source.unreadable().items()][:1]
        raise InputError(f"{source.name} has no labels in {split}: nothing to compare with{''.join(lost)}")
    level = None if predictor.calibration is None else COVERAGE_LEVEL
    found = predict_rows(predictor, source, rows, level)
    answered = np.flatnonzero([error is None for error in found.errors])
    if not len(answered):
        raise InputError(f"no molecule of {source.name} {split} could be predicted; the first: {found.errors[0]}")
    own, places = rows[answered], found.places(answered)
    result = score_rows(source, own, found.values[places])
    if found.interval is not None:
        given = (found.interval.take_rows(places), source.labels(own), source.molecules(own), source.tasks)
        add_coverage(result, coverage(*given))
    if found.neighbours is not None:
        result["learned"] = int((found.neighbours.similarity[answered] > _IDENTICAL_SIMILARITY).sum())
    return {**result, "unanswered": len(rows) - len(answered)}
