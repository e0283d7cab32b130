"""Predictions that a run wrote for the molecules of its test set, their errors, and similarity to the training set.

Without test labels the validation set takes its place. The error of a molecule is one number for any set of targets.
Labels ``true`` are ``float64 [R, T]`` for R molecules and T tasks, nan where unknown, and class indices for
classification; predictions ``values`` are ``float32 [R, W]``.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphslice.calibration.domain import DOMAIN_BITS, ApplicabilityDomain
from graphslice.data.datamodule import MoleculeData
from graphslice.data.splits import Splits, random_subset
from graphslice.errors import pluralize
from graphslice.evaluation.format_scores import plain
from graphslice.evaluation.metrics import COVERAGE_LEVEL
from graphslice.inference.predictions import is_sure
from graphslice.inference.predictor import nearest_training_molecules
from graphslice.report.drawing import draw_molecule
from graphslice.report.figures import (
    Card,
    Cards,
    Figures,
    Heading,
    Part,
    Section,
    Text,
    error_by_similarity,
    target_figures,
)
from graphslice.report.load_run import Run
from graphslice.report.sections import MAX_TARGETS, label_text
from graphslice.runs.ensemble import read_calibration
from graphslice.runs.run_files import OUT_OF_FOLD, TEST_PREDICTIONS, VALID_PREDICTIONS, read_splits
from graphslice.tasks import BINARY, REGRESSION, Task, describe_class, each_target, output_slices, prediction_columns

# Maximum number of molecules of a split that are shown; of a larger split, a random sample.
_MAX_SHOWN = 5_000
_MAX_WORST = 20


def read_predictions(path: Path, data: MoleculeData) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Read the predictions of a split that the run wrote: rows ``int64 [R]``, ascending, values ``float32 [R, W]``, and
    the number of labelled rows, of which R are a random sample; None if there is no such file or no row has a label."""
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        lines = {int(line["row"]) - 1: line for line in csv.DictReader(file)}
    labelled = ~np.isnan(data.dataset.targets).all(axis=1)
    rows = np.array(sorted(row for row in lines if labelled[row]), np.int64)
    if not len(rows):
        return None
    sample = random_subset(rows, _MAX_SHOWN)
    first = lines[int(sample[0])]
    names = [f"{name}_pred" if f"{name}_pred" in first else name for name in prediction_columns(data.dataset.tasks)]
    values = np.array([[float(lines[row][name]) for name in names] for row in sample.tolist()], np.float32)
    return sample, values, len(rows)


def nearest_training(run: Run, rows: np.ndarray, splits: Sequence[Splits], split: str) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest training molecule of each row, among those stored with the models that have it in ``split``: the
    similarity, ``float32 [R]``, and its row, ``int64 [R]``, -1 if none was compared."""
    similarity, neighbours = np.full(len(rows), -1, np.float32), np.full(len(rows), -1)
    for domain, rows_of in zip(_domains(run), splits, strict=True):
        selected = np.flatnonzero(np.isin(rows, rows_of.get(split, [])))
        found, indices = nearest_training_molecules(domain, run.molecules.store, rows[selected])
        is_nearer = found > similarity[selected]
        nearer = selected[is_nearer]
        similarity[nearer], neighbours[nearer] = found[is_nearer], domain.rows[indices[is_nearer]]
    return similarity, neighbours


def _domains(run: Run) -> list[ApplicabilityDomain]:
    return [checkpoint.calibration.domain for checkpoint in run.checkpoints if checkpoint.calibration is not None]


@dataclass(frozen=True)
class EvaluatedSplit:
    """Predictions for a split and their errors."""

    name: str  # of the split, for the reader
    rows: np.ndarray  # int64 [R], ascending
    values: np.ndarray  # float32 [R, W], mean over the models, calibrated
    num_labelled: int  # of the split, of which R were sampled at random
    true: np.ndarray  # float64 [R, T], nan where unknown
    by_target: np.ndarray  # float64 [R, T] of errors_by_target, divided by error_scales
    error: np.ndarray  # float64 [R], over all targets
    sets: dict[str, np.ndarray]  # prediction sets of classes, bool [R, K]; empty without a calibration


def prediction_sections(run: Run) -> list[Section]:
    """Build the sections that need predictions; none if the molecules cannot be read."""
    if run.data is None:
        return []
    files = {"test": OUT_OF_FOLD if run.folds else TEST_PREDICTIONS}
    files["valid"] = OUT_OF_FOLD if run.held_out_folds else VALID_PREDICTIONS
    read = ((split, read_predictions(run.folder / file, run.data)) for split, file in files.items())
    split, found = next((each for each in read if each[1] is not None), ("", None))
    if found is None:
        text = "There is no file with predictions of labelled test or validation molecules."
        return [Section("predictions", "Predicted against true", [Text(text)])]
    evaluated = _evaluate(run, split, *found)
    sections = [_predictions(run, evaluated, split)]
    if not (run.held_out_folds and split == "valid"):  # those are training molecules
        splits = [read_splits(folder) or run.data.splits for folder in run.models]
        near = nearest_training(run, evaluated.rows, splits, split)
        sections += [_error_analysis(run, evaluated, near[0]), _worst_molecules(run, evaluated, *near)]
    return sections


def _evaluate(run: Run, split: str, rows: np.ndarray, values: np.ndarray, num_labelled: int) -> EvaluatedSplit:
    data = run.molecules
    tasks, labels = data.dataset.tasks, data.dataset.targets
    true = labels[rows]
    by_target = errors_by_target(tasks, true, values) / error_scales(tasks, labels[data.splits["train"]])
    calibration = read_calibration(run.folder, run.checkpoints)
    sets = calibration.prediction_sets(values, tasks, COVERAGE_LEVEL / 100) if calibration else {}
    error = np.nanmean(by_target, axis=1)
    return EvaluatedSplit(run.split_name(split), rows, values, num_labelled, true, by_target, error, sets)


def _predictions(run: Run, evaluated: EvaluatedSplit, split: str) -> Section:
    section, tasks = Section("predictions", "Predicted against true"), run.molecules.dataset.tasks
    if split == "valid":
        text = "These results are for the validation set, by which the best epoch was selected, so they are better "
        text += "than the results on new molecules will be."
        if run.held_out_folds:
            text = "These results are for folds of the training set, predicted by models trained without them."
        section.parts.append(Text(f"No test molecule has a label. {text}", note=True))
    count, total = len(evaluated.rows), evaluated.num_labelled
    if total > count:
        text = f"A random sample of {count:,} of {total:,} {evaluated.name} molecules is shown."
        section.parts.append(Text(text, note=True))
    for t, (task, where) in enumerate(zip(tasks[:MAX_TARGETS], output_slices(tasks), strict=False)):
        if len(tasks) > 1:
            section.parts.append(Heading(task.name))
        figures = target_figures(task, evaluated.true[:, t], evaluated.values[:, where], evaluated.name)
        section.parts.append(Figures(figures) if figures else Text("No molecule has a label for this target."))
    if (more := len(tasks) - MAX_TARGETS) > 0:
        section.parts.append(Text(f"The first {MAX_TARGETS} targets; {more:,} more targets are not shown."))
    return section


def _error_analysis(run: Run, evaluated: EvaluatedSplit, similarity: np.ndarray) -> Section:
    tasks = run.molecules.dataset.tasks
    note = f"{pluralize(len(similarity), 'molecule')}, compared with {_domains(run)[0].molecules}"
    parts: list[Part] = [
        Text(f"For the {evaluated.name} set. {describe_error(tasks)}"),
        Figures([error_by_similarity(similarity, evaluated.error)]),
        Text(f"{note}. Tanimoto similarity of Morgan fingerprints of radius 2 ({DOMAIN_BITS:,} bits)."),
    ]
    return Section("errors", "Error analysis", parts)


def _worst_molecules(run: Run, evaluated: EvaluatedSplit, similarity: np.ndarray, neighbours: np.ndarray) -> Section:
    worst = np.argsort(-evaluated.error, kind="stable")[:_MAX_WORST].tolist()
    several = " Of several targets, the one with the largest error is shown." if evaluated.true.shape[1] > 1 else ""
    text = (
        f"The {evaluated.name} molecules with the largest errors, in descending order.{several} "
        "A similar training molecule with a different label suggests an activity cliff or a labelling error."
    )
    cards = [_card(run, evaluated, i, float(similarity[i]), int(neighbours[i])) for i in worst]
    return Section("worst", "Largest errors", [Text(text), Cards(cards)])


def _card(run: Run, evaluated: EvaluatedSplit, place: int, similarity: float, training_row: int) -> Card:
    """Build the card of a molecule and of its nearest training molecule, for the target with the largest error."""
    row, dataset = int(evaluated.rows[place]), run.molecules.dataset
    t = int(np.nanargmax(evaluated.by_target[place]))
    task, where = dataset.tasks[t], output_slices(dataset.tasks)[t]
    facts = [("target", task.name)] if len(dataset.tasks) > 1 else []
    facts.append(("true", label_text(task, evaluated.true[place, t])))
    values, sets = evaluated.values[[place], where], evaluated.sets.get(task.name)
    text = describe_class(values[0], task) if task.classes else plain(float(values[0, 0]))
    if sets is not None:
        text += ", sure" if is_sure(sets[[place]], values, task)[0] else ", unsure"
    facts.append(("predicted", text))
    compared = None
    if training_row >= 0:
        facts.append(("similarity", f"{similarity:.2f}"))
        bounds = dataset.bounds(np.array([training_row]))
        label = label_text(task, dataset.targets[training_row, t], None if bounds is None else bounds[0, t])
        title = f"nearest training molecule: {run.name_of(training_row)}"
        compared = _molecule_card(run, training_row, title, [("true", label)])
    return _molecule_card(run, row, run.name_of(row), facts, compared)


def _molecule_card(run: Run, row: int, title: str, facts: list[tuple[str, str]], compared: Card | None = None) -> Card:
    smiles = run.smiles[row] if run.smiles else ""
    return Card(draw_molecule(smiles) if smiles else None, smiles, title, facts, compared)


# Lower bound of values before their logarithm is taken.
_MIN_VALUE = 1e-30


def errors_by_target(tasks: Sequence[Task], true: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Compute the error of each prediction as :func:`describe_error` says, ``float64 [R, T]``; nan without a label."""
    errors = np.full(true.shape, np.nan)
    for t, task, where in each_target(tasks):
        known = np.flatnonzero(~np.isnan(true[:, t]))
        y, predicted = true[known, t], values[known, where].astype(np.float64)
        if task.kind == REGRESSION:
            decades = task.transform == "log"
            errors[known, t] = np.abs(_log10(predicted[:, 0]) - _log10(y) if decades else predicted[:, 0] - y)
        elif task.kind == BINARY:
            errors[known, t] = np.abs(y - predicted[:, 0])
        else:
            errors[known, t] = 1 - predicted[np.arange(len(y)), y.astype(int)]
    return errors


def error_scales(tasks: Sequence[Task], labels: np.ndarray) -> np.ndarray:
    """Compute the scales of the errors of several targets, ``float64 [T]``: the scatter of labels; 1 for classes."""
    scales = np.ones(len(tasks))
    for t, task in enumerate(tasks if len(tasks) > 1 else ()):
        known = labels[~np.isnan(labels[:, t]), t]
        if task.kind == REGRESSION and len(known) > 1:
            scales[t] = np.std(_log10(known) if task.transform == "log" else known) or 1.0
    return scales


def describe_error(tasks: Sequence[Task]) -> str:
    """Describe the combined error in one sentence."""
    definitions = {
        "classes": "1 minus the predicted probability of the true class",
        "log": "the absolute difference of log10 of the predicted and true values",
        "none": "the absolute difference of the predicted and true values in the unit of the dataset",
    }
    kinds = {"classes" if task.classes else "log" if task.transform == "log" else "none" for task in tasks}
    if len(tasks) == 1:
        return f"The error of a molecule is {definitions[kinds.pop()]}."
    scale = ", divided by the standard deviation of the labels"
    names = {"classes": "class", "log": "log-transformed", "none": "regression"}
    parts = [f"for {names[kind]} targets, {definitions[kind]}{scale * (kind != 'classes')}" for kind in sorted(kinds)]
    return f"The error of a molecule is the mean over its targets: {'; '.join(parts)}."


def _log10(values: np.ndarray) -> np.ndarray:
    return np.log10(np.maximum(values, _MIN_VALUE))
