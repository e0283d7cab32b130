"""Evaluation on labelled molecules, and tables: ``test_predictions.csv``, ``out_of_fold.csv``, ``evaluate -o``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from graphslice.config import MOLECULE, DataConfig, join_names, split_columns
from graphslice.data.columns import TableColumns, target_names
from graphslice.data.dataset import LabelledDataset, describe_reasons
from graphslice.data.featurize import featurizer_pool, parse
from graphslice.data.formats import split_sheet
from graphslice.data.labels import pointers, ragged_indices
from graphslice.data.loaders import (
    absolute_dataset,
    column_names,
    dataset_path,
    is_dataset_name,
    is_frame,
    load_dataset,
)
from graphslice.data.splits import TRAIN_AND_VALID, Splits
from graphslice.data.store import STORE_SUFFIX, GraphStore, stored_info
from graphslice.data.tables import Rows, list_array, number_array, open_table, text_array, write_table
from graphslice.errors import InputError, check_choice, quoted_list
from graphslice.evaluation.metrics import COVERAGE_LEVEL, add_coverage, coverage, score_rows
from graphslice.inference.predictions import Predictions, output_arrays
from graphslice.inference.predictor import IDENTICAL_SIMILARITY, Predictor
from graphslice.runs.run_files import find_members, locate_dataset, read_splits, run_directory_of
from graphslice.system.console import QUIET, molecule_progress
from graphslice.tasks import UNBOUNDED, Task, bound_text, is_bounded


def load_evaluation_data(
    predictor: Predictor,
    model: Path | None,
    overrides: dict[str, Any],  # of DataConfig
    split: str | None = None,
    frame: Any = None,  # or PyG graphs
    others: Sequence[Path] = (),  # models that the predictor averages with the first
) -> tuple[LabelledDataset, Splits | None]:
    """Load the data of a ``frame`` or that ``overrides`` name, else those of the training, with all targets of the
    model, and their splits or None; ``all`` ignores a split column. InputError: unreadable data, other targets, or
    training data that are gone or have changed."""
    if frame is None and "dataset" not in overrides:
        return _load_training_data(predictor, model, overrides, split, others)
    if frame is None:
        overrides = {**overrides, "dataset": absolute_dataset(overrides["dataset"])}
    columns = _columns(overrides["dataset"]) if frame is None else column_names(frame) if is_frame(frame) else []
    data = _named_data(predictor, overrides, split, columns)
    tasks = _select_tasks(predictor, data.targets)
    dataset = load_dataset(data, tasks, frame)
    dataset = align_targets(predictor, dataset, data.targets)
    return dataset, dataset.splits


def _load_training_data(
    predictor: Predictor, model: Path | None, overrides: dict[str, Any], split: str | None, others: Sequence[Path]
) -> tuple[LabelledDataset, Splits | None]:
    folder, trained = None if model is None else run_directory_of(model), predictor.config.data
    source = locate_dataset(trained.dataset, folder)
    exists = is_dataset_name(source) or split_sheet(Path(source))[0].is_file() or Path(source).is_dir()
    if model is None or folder is None or not source or not exists:
        raise InputError(
            f"the training data of {model or 'the model'} is not there: give labelled molecules with data.dataset"
        )
    targets = overrides.get("targets")
    if _targets_of_model(predictor, targets) is not None:  # all targets are read, since the fingerprint is that of all
        targets = trained.targets or join_names(predictor.targets)
    data = replace(trained, **{**overrides, "dataset": source, "targets": targets})
    dataset = load_dataset(data, _select_tasks(predictor, targets))
    if not dataset.is_pcqm4m and dataset.fingerprint() != trained.fingerprint:
        raise InputError(
            f"{source} has changed since {model} was trained on it: name it with data.dataset to evaluate on all of it"
        )
    # Auxiliary labels count in the fingerprint, but are not evaluated.
    aligned = replace(align_targets(predictor, dataset, overrides.get("targets")), auxiliary={})
    if predictor.calibration is not None and split in ("train", "valid", "all"):
        note = "the model or its intervals were fitted to some of these molecules: the coverage is no test"
        aligned = replace(aligned, notes=(*aligned.notes, note))
    if dataset.is_pcqm4m:
        return aligned, dataset.splits
    return aligned, _splits_of_run(predictor, [folder, *filter(None, map(run_directory_of, others))], dataset)


def _columns(dataset: str) -> list[str]:
    """Column names of a table, or the targets of a preprocessed dataset; none of a built-in dataset."""
    if is_dataset_name(dataset) or dataset.endswith(STORE_SUFFIX):
        return [*getattr(stored_info(Path(dataset)), "targets", ())]
    with open_table(dataset_path(dataset)) as table:
        return list(table.columns)


def _named_data(
    predictor: Predictor, overrides: dict[str, Any], split: str | None, columns: Sequence[str]
) -> DataConfig:
    """Return how named data are read: as the user says, else as at the training, with the targets of the model that are
    among the columns."""
    trained = predictor.config.data
    defaults = {name: getattr(trained, name) for name in ("root", "features", "decimal")}
    is_named = is_dataset_name(overrides.get("dataset", ""))  # whose split is fixed
    defaults |= {"level": predictor.level, "split": "random" if split == "all" and not is_named else None}
    if overrides.get("dataset") == trained.dataset and trained.split == TRAIN_AND_VALID:
        defaults["split"] = trained.split
    defaults["smiles_column"] = trained.smiles_column if trained.smiles_column in columns else None
    defaults["targets"] = join_names([name for name in predictor.targets if name in columns] or predictor.targets)
    for name in ("long", "id_column"):
        named = getattr(trained, name)
        defaults[name] = named if named and {*split_columns(named)} <= {*columns} else None
    return DataConfig(**{**defaults, **{name: value for name, value in overrides.items() if value}})


def _targets_of_model(predictor: Predictor, targets: str | None) -> list[str] | None:
    """Return the targets of the model that ``data.targets`` names, by default all; None if it names other columns."""
    names = target_names(targets, predictor.targets) or predictor.targets
    return names if {*names} <= {*predictor.targets} else None


def _select_tasks(predictor: Predictor, targets: str | None) -> list[Task]:
    """Return the tasks of named targets: by name for targets of the model, in the order of the model otherwise."""
    tasks = dict(zip(predictor.targets, predictor.tasks, strict=True))
    return [tasks[name] for name in _targets_of_model(predictor, targets) or predictor.targets]


def align_targets(predictor: Predictor, dataset: LabelledDataset, targets: str | None = None) -> LabelledDataset:
    """Bring the targets of a dataset into the order of a model, whose names they have, or as many others in its order;
    those that it lacks, and those not in ``targets``, are unknown. Rows whose labels of atoms or bonds do not fit are
    rejected."""
    names, given, labels = predictor.targets, dataset.target_names, dataset.all_labels
    if set(given) <= set(names):
        evaluated = _targets_of_model(predictor, targets) or names
        columns = [column for column, name in enumerate(given) if name in evaluated]
        places = [names.index(given[column]) for column in columns]

        def align(values: np.ndarray, unknown: float | tuple[float, float]) -> np.ndarray:
            aligned = np.full((len(values), len(names), *values.shape[2:]), unknown)
            aligned[:, places] = values[:, columns]
            return aligned

        bounds = None if labels.bounds is None else align(labels.bounds, UNBOUNDED)
        labels = replace(labels, values=align(labels.values, np.nan), bounds=bounds)
        dataset = replace(dataset, all_labels=labels, tasks=list(predictor.tasks))
    elif len(given) != len(names) or any(a != b and a in names for a, b in zip(given, names, strict=True)):
        raise InputError(
            f"the model predicts {len(names)} targets, and data.targets names {len(given)}: "
            f"name a column for each of {quoted_list(names)}, in this order, or some of these"
        )
    if dataset.level == MOLECULE:
        return dataset
    with featurizer_pool(len(dataset)) as pool:
        arrays, *_ = parse(dataset.smiles, predictor.config.graph, pool)
    faults = labels.length_errors(arrays.atom_bond_counts(dataset.level), dataset.target_names)
    return replace(dataset, all_labels=labels.without(list(faults)), faults=faults | dataset.faults)


def _splits_of_run(predictor: Predictor, folders: Sequence[Path], dataset: LabelledDataset) -> Splits:
    """Return the splits of the runs that trained a model; of an ensemble those that are the same for all members."""
    if predictor.is_cross_validation:
        raise InputError(
            f"all molecules of {dataset.name} are in training sets of the cross-validation {folders[0]}: its "
            "metrics.json and out_of_fold.csv hold the out-of-fold results; name other data with data.dataset"
        )
    splits = read_splits(folders[0]) or dataset.splits or {}
    runs = [*folders[1:], *(member for folder in folders for member in find_members(folder))]
    others = [read_splits(run) or {} for run in runs]
    return {
        name: rows
        for name, rows in splits.items()
        if all(np.array_equal(rows, other.get(name, ())) for other in others)
    }


def evaluation_notes(dataset: LabelledDataset) -> list[str]:
    """Return remarks on a dataset, and on its labels that cannot be read."""
    problems = {"not usable": dataset.unreadable(), "evaluated without an invalid label": dataset.invalid_labels}
    return [*dataset.notes, *(describe_reasons(rows, problem) for problem, rows in problems.items() if rows)]


def predict_rows(
    predictor: Predictor,
    dataset: LabelledDataset,
    rows: np.ndarray,  # int64 [R]
    interval: float | None = None,  # coverage in percent of prediction intervals, or None
    console: Console = QUIET,  # shows the progress
) -> Predictions:
    """Predict rows of a dataset."""
    if dataset.graphs is not None:
        store = predictor.featurize_molecules([dataset.graphs[row] for row in rows])
        return predictor.predict_featurized(store, interval=interval)
    predicting = molecule_progress("predicting", len(rows), console)
    if dataset.store is not None and predictor.can_read(dataset.store):
        with predicting as advance:
            return predictor.predict_store_rows(dataset.store, rows, interval=interval, progress=advance)
    features = tuple(predictor.feature_columns)
    columns = {} if dataset.columns is None else dict(zip(features, dataset.columns[rows].T, strict=True))
    chunk = Rows.of_smiles([dataset.smiles[row] for row in rows], columns)
    read = TableColumns("smiles", features=features)
    reading = molecule_progress("reading molecules", len(rows), console)
    with reading as advance, featurizer_pool(len(rows), kinds=predictor.kinds) as pool:
        ((_, store),) = predictor.featurize_rows([chunk], read, pool, advance)
    with predicting as advance:
        return predictor.predict_featurized(store, interval=interval, progress=advance)


def evaluate(
    predictor: Predictor,
    dataset: LabelledDataset,
    split: str,
    splits: Splits | None,
    out: Path | None = None,  # table of labels and predictions
    console: Console = QUIET,  # shows the progress
) -> dict:
    """Return the scores on a split of a dataset of :func:`align_targets`; with ``unanswered``, the number of molecules
    without a prediction, ``first_unanswered``, row and reason of the first, and of a calibrated model ``learned``, the
    number of molecules with the fingerprint of a stored training molecule, and the coverage."""
    existing = {**(splits or {}), "all": np.arange(len(dataset))}
    check_choice(f"split of {dataset.name}", split, existing)
    rows = existing[split]
    rows = rows[dataset.all_labels.known()[rows]]
    if not len(rows):
        first = [f"; the first, row {row + 1}: {reason}" for row, reason in dataset.unreadable().items()][:1]
        where = "" if split == "all" else f" in the split {split}"
        raise InputError(f"{dataset.name} has no usable labels{where}{''.join(first)}")
    level = None if predictor.calibration is None else COVERAGE_LEVEL
    predictions = predict_rows(predictor, dataset, rows, level, console)
    predicted = np.flatnonzero([error is None for error in predictions.errors])
    if not len(predicted):
        raise InputError(f"{dataset.name} {split}: no molecule could be predicted; the first: {predictions.errors[0]}")
    if out is not None:
        write_predictions(out, dataset, rows, predictions)
    predicted_rows, indices = rows[predicted], predictions.places(predicted)
    result = score_rows(dataset, predicted_rows, predictions.values[indices])
    if predictions.interval is not None and predictor.calibration is not None:
        interval, labels = predictions.interval.take_rows(indices), dataset.all_labels[predicted_rows]
        covered = coverage(interval, labels, dataset.all_labels.molecules(predicted_rows), dataset.tasks)
        add_coverage(result, covered, predictor.calibration)
    if predictions.neighbours is not None:
        result["learned"] = int((predictions.neighbours.similarity[predicted] > IDENTICAL_SIMILARITY).sum())
    failures = [(row, error) for row, error in zip(rows.tolist(), predictions.errors, strict=True) if error is not None]
    return {**result, "unanswered": len(failures), "first_unanswered": failures[0] if failures else None}


def write_predictions(
    path: Path, dataset: LabelledDataset, rows: np.ndarray, predictions: Predictions, store: GraphStore | None = None
) -> None:
    """Write a table of some rows: row (from 1), smiles, identifiers, each label ``<target>_true``, and the columns of
    ``graphslice predict``; lists of atoms and bonds in the order of the SMILES, also from the graph order of a
    ``store``."""
    labels, ptr = dataset.all_labels[rows], None
    if predictions.ptr is not None:
        ptr = pointers(dataset.all_labels.counts_of(rows))
        if store is not None:
            order = store.order(rows)
            predictions = predictions.in_smiles_order(order)
            labels = labels[np.repeat(ptr[:-1], np.diff(ptr)) + order[:, 0]]
    texts = {"smiles": dataset.smiles or [""] * len(dataset), **dataset.identifiers}
    columns: dict[str, pa.Array] = {"row": number_array(rows + 1)}
    columns |= {name: text_array([cells[row] for row in rows.tolist()]) for name, cells in texts.items()}
    bounds = dataset.bounds(rows)
    for t, task in enumerate(dataset.tasks):
        array = _label_array(task, labels[:, t], ptr)
        bounded = None if bounds is None or task.classes or ptr is not None else bounds[:, t]
        columns[f"{task.name}_true"] = array if bounded is None else _with_bounds(array, bounded)
    columns |= output_arrays(predictions)
    if not any(predictions.errors):
        del columns["error"]
    with write_table(path) as sink:
        sink.write(pa.table(columns))


def as_predictions(dataset: LabelledDataset, rows: np.ndarray, values: np.ndarray) -> Predictions:
    """Return predicted values of some rows, ``float32 [R, W]`` or ``[M, W]`` of atoms or bonds, without intervals."""
    ptr = None if dataset.level == MOLECULE else pointers(dataset.all_labels.counts_of(rows))
    return Predictions(values, [None] * len(rows), dataset.tasks, ptr=ptr)


def _label_array(task: Task, labels: np.ndarray, ptr: np.ndarray | None) -> pa.Array:
    """Return the labels of a target, ``float64 [M]``, as numbers or class names, null where unknown."""
    known = ~np.isnan(labels)
    if task.classes:
        names = [task.classes[int(label)] if is_known else None for label, is_known in zip(labels, known, strict=True)]
        items = text_array(names)
    else:
        items = number_array(labels, known)
    return items if ptr is None else list_array(items, ptr, np.ones(len(ptr) - 1, bool))


def _with_bounds(labels: pa.Array, bounds: np.ndarray) -> pa.Array:
    """Return the labels as texts, with bounds ``float64 [R, 2]``, ``>5`` or ``>5 and <9``, where there is no number."""
    texts = [None if label is None else f"{label:.12g}" for label in labels.to_pylist()]
    for row in np.flatnonzero(is_bounded(bounds)).tolist():
        texts[row] = bound_text(bounds[row])
    return text_array(texts)


# --- out-of-fold predictions: every model predicts molecules outside its training set -----------------------


def rows_in_split(splits: Sequence[Splits], split: str) -> np.ndarray:
    """Return the rows that are in a split of at least one model, ``int64 [R]``, ascending."""
    return np.unique(np.concatenate([np.asarray(rows_of.get(split, []), np.int64) for rows_of in splits]))


def predict_held_out(
    predictors: Sequence[Predictor], splits: Sequence[Splits], split: str, store: GraphStore, rows: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return means over the models that have each of some ascending rows in their own split, such as a test fold: the
    uncalibrated predictions, ``float32 [S, W]`` by molecule, atom or bond, and difficulty estimates, ``[S, T]`` by
    name."""
    ptr = pointers(store.atom_bond_counts(predictors[0].level, rows))
    sums: dict[str, np.ndarray] = {}
    num_models = np.zeros((ptr[-1], 1))
    for predictor, rows_of in zip(predictors, splits, strict=True):
        held_out = np.intersect1d(rows, rows_of.get(split, []))
        if not len(held_out):
            continue
        indices = ragged_indices(ptr, np.searchsorted(rows, held_out))
        num_models[indices] += 1
        domain = None if predictor.calibration is None else predictor.calibration.domain
        values, difficulty = predictor.predict_uncalibrated(store, held_out, domain)
        for name, part in {"values": values, **difficulty}.items():
            sums.setdefault(name, np.zeros((ptr[-1], part.shape[1])))[indices] += part
    means = {name: (total / num_models).astype(np.float32) for name, total in sums.items()}
    return means.pop("values"), means
