"""Judge a model on labelled molecules."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graphslice.config import DataConfig
from graphslice.data.columns import listed
from graphslice.data.featurize import check_graphs, featurizers
from graphslice.data.labels import joined_names
from graphslice.data.site_orders import ordered
from graphslice.data.source import Source
from graphslice.data.sources import from_any_folder, is_name, load_source
from graphslice.data.splits import SPLITS, Splits
from graphslice.data.store import STORE_SUFFIX
from graphslice.data.tables import is_table_name, open_table
from graphslice.errors import InputError
from graphslice.evaluation.coverage import LEVEL, add_coverage, coverage
from graphslice.evaluation.metrics import scores_of_rows
from graphslice.inference.predictions import Predictions
from graphslice.inference.predictor import Predictor
from graphslice.model_files import dataset_of, find_members, home_of
from graphslice.resources import is_shipped

# Rows that are predicted at a time.
_CHUNK_ROWS = 16_384
# Similarity of one fingerprint with itself, but for rounding.
_THE_SAME = 1 - 1e-6


def load_labelled(
    predictor: Predictor, model: Path | None, given: dict[str, Any], split: str | None = None
) -> tuple[Source, Splits | None]:
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
    trained = replace(trained, dataset=dataset_of(trained.dataset, None if model is None else home_of(model)))
    dataset = from_any_folder(given.get("dataset", trained.dataset))
    if model is not None and is_shipped(model) and "dataset" not in given:
        raise InputError(
            f"{model} came with the package, without what it learned: give labelled molecules by --dataset"
        )
    # The labels that were learned beside belong to the data of the run, and are not judged.
    learned = trained.targets if dataset == trained.dataset else None
    targets = given.get("targets") or learned or joined_names(predictor.targets)
    if dataset == "pyg":
        raise InputError("the model was trained on PyG data: give labelled molecules with --dataset")
    if dataset == trained.dataset:
        data = replace(trained, **{**given, "dataset": dataset, "targets": targets})
    else:
        known = {"root": trained.root, "features": trained.features, "level": predictor.level}
        known["smiles_column"] = _column_there(trained.smiles_column, dataset)
        if split == "all" and not is_name(dataset):
            known["split"] = "random"
        data = DataConfig(**{**known, **given, "dataset": dataset, "targets": targets})
    whole = load_source(data, predictor.tasks)
    source = replace(checked(predictor, whole), auxiliary={})
    if dataset != trained.dataset or source.is_pcqm4m or trained.fingerprint is None:
        return source, source.splits
    if whole.fingerprint() == trained.fingerprint:
        return source, splits_to_judge(predictor, model, whole)
    if given.keys() & {"dataset", "targets", "smiles_column"}:
        return source, None
    raise InputError(
        f"{dataset} has changed since {model or 'the model'} was trained on it: name it with --dataset to use it so"
    )


def _column_there(column: str | None, dataset: str) -> str | None:
    """A column, if the data set is a table that has it."""
    if column is None or is_name(dataset) or dataset.lower().endswith(STORE_SUFFIX):
        return None
    path = Path(dataset)
    if not (path.is_dir() or is_table_name(dataset)):
        return None  # dataset_path says what it should be
    with open_table(path) as table:
        return column if column in table.columns else None


def checked(predictor: Predictor, source: Source) -> Source:
    """A source that a model can be judged on: rows whose lists are of another length than their molecule are rejected.

    Raises:
        InputError: if it has not as many targets as the model.
    """
    if len(source.target_names) != len(predictor.targets):
        raise InputError(
            f"the model predicts {len(predictor.targets)} targets, and --targets names {len(source.target_names)}: "
            f"name a column for each of {listed(predictor.targets)}, in this order; their cells may be empty"
        )
    if source.sites is None:
        return source
    _, faults = ordered(source.sites, source.smiles, predictor.config.graph, source.target_names)
    rows, targets = list(faults), source.targets.copy()
    targets[rows] = np.nan
    rejected = source.rejected | {row: why for row, why in faults.items() if row not in source.rejected}
    return replace(source, targets=targets, sites=source.sites.without(rows), rejected=rejected)


def splits_to_judge(predictor: Predictor, model: Path | None, source: Source) -> Splits | None:
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
    if predictor.in_turn:
        raise InputError(
            f"all molecules of {source.name} were learned by models of {model}: what each scores by the model that "
            "did not learn it stands in its metrics.json and out_of_fold.csv; name other data with --dataset"
        )
    home = home_of(model)
    splits = source.splits if home is None else splits_of_run(home) or source.splits
    others = [splits_of_run(member) or {} for member in (find_members(model) if model.is_dir() else [])]
    if splits is None or not others:
        return splits

    def common(name: str) -> bool:
        """What one model validates by, another one may have learned."""
        return all(np.array_equal(splits[name], each.get(name, ())) for each in others)

    return {name: rows for name, rows in splits.items() if common(name)}


def splits_of_run(folder: Path) -> Splits | None:
    """The rows of each split as ``split.csv`` of a run folder has them; None where there is none."""
    path = folder / "split.csv"
    if not path.is_file():
        return None
    splits: dict[str, list[int]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            splits.setdefault(line["split"], []).append(int(line["row"]) - 1)
    return {split: np.array(rows, dtype=np.int64) for split, rows in splits.items()}


def predict_rows(predictor: Predictor, source: Source, rows: np.ndarray, interval: float | None = None) -> Predictions:
    """Answers for some rows of a source, with intervals if a level is given."""
    if source.store is not None:
        check_graphs(source.store, predictor.config.graph)
        return predictor.answers(source.store, rows, interval=interval)
    chunks = [rows[begin : begin + _CHUNK_ROWS] for begin in range(0, len(rows), _CHUNK_ROWS)] or [rows]
    smiles = ([source.smiles[row] for row in chunk] for chunk in chunks)
    columns = None if source.columns is None else (source.columns[chunk] for chunk in chunks)
    with featurizers(len(rows), kinds=predictor.kinds) as pool:
        return Predictions.joined(list(predictor.predict_stream(smiles, pool, columns, interval=interval)))


def evaluate(predictor: Predictor, source: Source, split: str, splits: Splits | None) -> dict:
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
    level = None if predictor.calibration is None else LEVEL
    found = predict_rows(predictor, source, rows, level)
    answered = np.flatnonzero([error is None for error in found.errors])
    if not len(answered):
        raise InputError(f"no molecule of {source.name} {split} could be predicted; the first: {found.errors[0]}")
    own, places = rows[answered], found.places(answered)
    result = scores_of_rows(source, own, found.values[places])
    if found.interval is not None:
        given = (found.interval.of_rows(places), source.labels(own), source.molecules(own), source.tasks)
        add_coverage(result, coverage(*given))
    if found.neighbours is not None:
        result["learned"] = int((found.neighbours.similarity[answered] > _THE_SAME).sum())
    return {**result, "unanswered": len(rows) - len(answered)}
