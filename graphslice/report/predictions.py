"""Predictions of a run for the molecules of a split, their spread over models, and similarity to the training set.

The report sections on them compare predictions with true values, and show errors and the most uncertain molecules.
Error and uncertainty of a molecule are one number for any set of targets. Labels ``true`` are ``float64 [R, T]`` for R
molecules and T tasks, nan where unknown, and class indices for classification; predictions ``values`` and their
standard deviations ``std`` over the models are ``float [R, W]``.
"""

from __future__ import annotations

import csv
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from graphslice.calibration import Calibration
from graphslice.calibration.domain import DOMAIN_BITS, ApplicabilityDomain
from graphslice.data.datamodule import MoleculeData
from graphslice.data.featurize import fingerprint_rows
from graphslice.data.splits import Splits, random_subset
from graphslice.errors import pluralize
from graphslice.evaluation.format_scores import MINUS, number, plain, with_std
from graphslice.evaluation.out_of_fold import predict_held_out, rows_in_split
from graphslice.inference.predictor import Predictor
from graphslice.report.drawing import draw_molecule, scaffold_of
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
from graphslice.report.sections import MAX_TARGETS, label_text, molecule_card
from graphslice.runs.ensemble import read_calibration
from graphslice.runs.run_files import OUT_OF_FOLD, read_splits
from graphslice.tasks import BINARY, REGRESSION, Task, each_target, output_slices, predicted_classes, prediction_columns

# Maximum number of molecules of a split to predict with a single model; of a larger split, a random sample is used.
_MAX_PREDICTED = 5_000
# Minimum of this maximum when it is divided among several models.
_MIN_PREDICTED = 1_000
# Maximum number of training molecules for the similarity search, which then takes less than a second.
_MAX_TRAINING = 20_000


@dataclass(frozen=True)
class SplitPredictions:
    """Predictions for R molecules of a split."""

    rows: np.ndarray  # int64 [R], ascending
    values: np.ndarray  # float32 [R, W], mean over the models, calibrated
    std: np.ndarray | None  # float32 [R, W], over the models, nan where only one predicts; None if that is every row
    num_labelled: int  # of the split, of which R were sampled at random


def predict_split(
    predictors: Sequence[Predictor],
    calibration: Calibration | None,  # of the averaged predictions
    splits: Sequence[Splits],
    split: str,
    data: MoleculeData,
) -> SplitPredictions | None:
    """Predict the molecules of a split with every model that has them in that split of its own, and average; None if no
    molecule of the split has a label."""
    rows = rows_in_split(splits, split)
    rows = rows[~np.isnan(data.dataset.targets[rows]).all(axis=1)]
    if not len(rows):
        return None
    sample = random_subset(rows, max(_MIN_PREDICTED, _MAX_PREDICTED // len(predictors)))
    held_out = predict_held_out(predictors, splits, split, data.store, sample)
    values = held_out.mean if calibration is None else calibration.probabilities(held_out.mean, data.dataset.tasks)
    several = held_out.num_models > 1
    if not several.any():
        return SplitPredictions(sample, values, None, len(rows))
    std = np.full(values.shape, np.nan, np.float32)
    std[several] = np.nanstd(held_out.values[:, several], axis=0, ddof=1, dtype=np.float64)
    return SplitPredictions(sample, values, std, len(rows))


def read_out_of_fold(folder: Path, data: MoleculeData) -> SplitPredictions | None:
    """Read the out-of-fold predictions of a cross-validation run; None if the file is missing or no row has a label."""
    path = folder / OUT_OF_FOLD
    if not path.is_file():
        return None
    labelled = np.flatnonzero(~np.isnan(data.dataset.targets).all(axis=1))
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = np.array([int(line["row"]) - 1 for line in csv.DictReader(file)], np.int64)
        rows = rows[np.isin(rows, labelled)]
        if not len(rows):
            return None
        sample = set(random_subset(np.sort(rows), _MAX_PREDICTED).tolist())
        file.seek(0)
        lines = [line for line in csv.DictReader(file) if int(line["row"]) - 1 in sample]
    names = prediction_columns(data.dataset.tasks)
    names = [f"{name}_pred" if f"{name}_pred" in lines[0] else name for name in names]
    sampled = np.array([int(line["row"]) - 1 for line in lines], np.int64)
    values = np.array([[float(line[name]) for name in names] for line in lines], np.float32)
    return SplitPredictions(sampled, values, None, len(rows))


@dataclass(frozen=True)
class TrainingSimilarity:
    """Similarity of R molecules to the nearest training molecule."""

    similarity: np.ndarray  # float64 [R], Tanimoto similarity of Morgan fingerprints of radius 2
    neighbours: np.ndarray  # int64 [R], row of the nearest training molecule; -1 for rows that were not compared
    num_compared: int  # training molecules in the search
    num_training: int  # from which these were sampled at random


def nearest_training(rows: np.ndarray, splits: Sequence[Splits], split: str, data: MoleculeData) -> TrainingSimilarity:
    """Find the nearest training molecule of each row, in the training sets of the models that have it in ``split``."""
    compared = [random_subset(np.sort(own["train"]), _MAX_TRAINING) for own in splits]
    similarity, neighbours = np.zeros(len(rows)), np.full(len(rows), -1)
    bits = fingerprint_rows(data.store, rows, DOMAIN_BITS)
    for training_rows, own in zip(compared, splits, strict=True):
        selected = np.isin(rows, own.get(split, []))
        if selected.any():
            domain = ApplicabilityDomain.from_fingerprints(
                fingerprint_rows(data.store, training_rows, DOMAIN_BITS), training_rows, 0
            )
            found, indices = domain.nearest(bits[selected])
            is_nearer = (found > similarity[selected]) | (neighbours[selected] < 0)
            nearer = np.flatnonzero(selected)[is_nearer]
            similarity[nearer], neighbours[nearer] = found[is_nearer], training_rows[indices[is_nearer]]
    num_compared, num_training = max(map(len, compared)), max(len(own["train"]) for own in splits)
    return TrainingSimilarity(similarity, neighbours, num_compared, num_training)


_MAX_WORST, _MAX_UNCERTAIN, _MAX_SCAFFOLDS = 20, 12, 12


@dataclass(frozen=True)
class EvaluatedSplit(SplitPredictions):
    """Predictions for a split and their errors."""

    true: np.ndarray  # float64 [R, T], nan where unknown
    by_target: np.ndarray  # float64 [R, T] of errors_by_target, divided by error_scales
    error: np.ndarray  # float64 [R], over all targets
    stds: np.ndarray | None  # float64 [R, T], standard deviations over the models, scaled as by_target
    uncertainty: np.ndarray | None  # float64 [R], their mean over all targets


def prediction_sections(run: Run) -> list[Section]:
    """Build the sections that need predictions; none if the molecules cannot be read."""
    if run.data is None:
        return []
    splits = [read_splits(folder) or run.data.splits for folder in run.models]
    predictors = [Predictor(checkpoint, run.config.trainer.inference_device) for checkpoint in run.checkpoints]
    calibration = read_calibration(run.folder, run.checkpoints)
    evaluated: dict[str, EvaluatedSplit] = {}
    for split in ("test", "valid"):
        predictions = None
        of_folds = run.folds and split == "test" and run.config.data.folds_and_repeats[1] == 1
        if of_folds or (run.held_out_folds and split == "valid"):
            predictions = read_out_of_fold(run.folder, run.data)
        predictions = predictions or predict_split(predictors, calibration, splits, split, run.data)
        if predictions is not None:
            evaluated[split] = _evaluate_split(run, predictions)
    sections = [_predictions(run, evaluated)]
    split = "test" if "test" in evaluated else "valid"
    if split in evaluated and not (run.held_out_folds and split == "valid"):  # those are training molecules
        selected = evaluated[split]
        near, name = nearest_training(selected.rows, splits, split, run.data), run.split_name(split)
        sections.append(_error_analysis(run, selected, near, name))
        sections.append(_worst_molecules(run, selected, near, name))
        if len(run.models) > 1:
            sections.append(_most_uncertain_molecules(run, selected, near))
    return sections


def _evaluate_split(run: Run, predictions: SplitPredictions) -> EvaluatedSplit:
    data = run.molecules
    tasks, labels = data.dataset.tasks, data.dataset.targets
    true = labels[predictions.rows]
    scales = error_scales(tasks, labels[data.splits["train"]])
    by_target = errors_by_target(tasks, true, predictions.values) / scales
    stds = None if predictions.std is None else std_by_target(tasks, predictions.values, predictions.std) / scales
    return EvaluatedSplit(
        **vars(predictions),
        true=true,
        by_target=by_target,
        error=mean_of_known(by_target),
        stds=stds,
        uncertainty=None if stds is None else mean_of_known(stds),
    )


def _predictions(run: Run, evaluated: dict[str, EvaluatedSplit]) -> Section:
    section, tasks = Section("predictions", "Predicted against true"), run.molecules.dataset.tasks
    if not evaluated:
        section.parts.append(Text("No test or validation molecule has a label, so predictions cannot be evaluated."))
        return section
    if "test" not in evaluated:
        text = "These results are for the validation set, by which the best epoch was selected, so they are better "
        text += "than the results on new molecules will be."
        if run.held_out_folds:
            text = (
                "These results are for folds of the training set, predicted by models that were trained without them."
            )
        section.parts.append(Text(f"No test molecule has a label. {text}", note=True))
    for split, scored in evaluated.items():
        count, total = len(scored.rows), scored.num_labelled
        if total > count:
            section.parts.append(
                Text(
                    f"A random sample of {count:,} of {total:,} {run.split_name(split)} molecules is shown.", note=True
                )
            )
    for t, (task, where) in enumerate(zip(tasks[:MAX_TARGETS], output_slices(tasks), strict=False)):
        if len(tasks) > 1:
            section.parts.append(Heading(task.name))
        figures = [
            figure
            for split, scored in evaluated.items()
            for figure in target_figures(task, scored.true[:, t], scored.values[:, where], run.split_name(split))
        ]
        section.parts.append(Figures(figures) if figures else Text("No molecule has a label for this target."))
    if (more := len(tasks) - MAX_TARGETS) > 0:
        section.parts.append(Text(f"The first {MAX_TARGETS} targets; {more:,} more targets are not shown."))
    return section


def _error_analysis(run: Run, evaluated: EvaluatedSplit, near: TrainingSimilarity, split: str) -> Section:
    tasks = run.molecules.dataset.tasks
    note = f"{pluralize(len(near.similarity), 'molecule')}, compared with {near.num_compared:,} training molecules"
    if near.num_compared < near.num_training:
        note += f" sampled at random from {near.num_training:,}, so the nearest neighbour may be missed"
    parts = [
        Text(f"For the {split} set. {describe_error(tasks)}"),
        Heading("By similarity to the training set"),
        Figures([error_by_similarity(near.similarity, evaluated.error, error_name(tasks))]),
        Text(f"{note}. Tanimoto similarity of Morgan fingerprints of radius 2 ({DOMAIN_BITS:,} bits)."),
        *_by_scaffold(run, evaluated),
    ]
    return Section("errors", "Error analysis", parts)


def _by_scaffold(run: Run, evaluated: EvaluatedSplit) -> list[Part]:
    if run.smiles is None:
        return []
    parts: list[Part] = [Heading("By scaffold")]
    members: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(evaluated.rows.tolist()):
        if (scaffold := scaffold_of(run.smiles[row])) is not None:
            members[scaffold].append(place)
    repeated = {scaffold: places for scaffold, places in members.items() if len(places) > 1}
    if not repeated:
        return [*parts, Text("No scaffold occurs in more than one molecule.")]
    frequent = sorted(repeated.items(), key=lambda item: -len(item[1]))[:_MAX_SCAFFOLDS]
    cards = []
    for scaffold, places in frequent:
        errors = evaluated.error[places]
        standard_error = float(errors.std(ddof=1) / np.sqrt(len(errors)))
        facts = [("mean error", with_std(float(errors.mean()), standard_error))]
        svg = draw_molecule(scaffold) if scaffold else None
        cards.append(Card(svg, scaffold, f"n = {len(places):,}", facts, "no rings" if not scaffold else "not drawn"))
    overall = number(float(evaluated.error.mean()))
    text = f"The most frequent of {len(members):,} Bemis-Murcko scaffolds: number of molecules (n) and mean error with "
    return [
        *parts,
        Text(f"{text}its standard error. The mean error over all molecules is {overall}."),
        Cards(cards),
    ]


def _worst_molecules(run: Run, evaluated: EvaluatedSplit, near: TrainingSimilarity, split: str) -> Section:
    worst = np.argsort(-evaluated.error, kind="stable")[:_MAX_WORST].tolist()
    cards = [_card(run, evaluated, near, place, evaluated.by_target, compare=True) for place in worst]
    several = " Of several targets, the one with the largest error is shown." if evaluated.true.shape[1] > 1 else ""
    text = (
        f"The {split} molecules with the largest errors, in descending order.{several} "
        "A similar training molecule with a different label suggests an activity cliff or a labelling error."
    )
    return Section("worst", "Largest errors", [Text(text), Cards(cards)])


def _card(
    run: Run, evaluated: EvaluatedSplit, near: TrainingSimilarity, place: int, of: np.ndarray, *, compare: bool = False
) -> Card:
    """Build the card of a molecule, of the target with the largest number in ``of``, ``[R, T]``; ``compare``: with that
    of the nearest training molecule."""
    row, dataset = int(evaluated.rows[place]), run.molecules.dataset
    t = int(np.nanargmax(of[place])) if np.isfinite(of[place]).any() else 0
    task, where = dataset.tasks[t], output_slices(dataset.tasks)[t]
    values = evaluated.values[place, where]
    facts = [("target", task.name)] if len(dataset.tasks) > 1 else []
    facts += [("true", label_text(task, evaluated.true[place, t])), ("predicted", _prediction_text(task, values))]
    if evaluated.std is not None:
        facts.append(("standard deviation", number(float(evaluated.std[place, where].max()), 2)))
    compared = None
    if (training_row := int(near.neighbours[place])) >= 0:
        facts.append(("similarity to training set", f"{near.similarity[place]:.2f}"))
        if compare and run.smiles is not None:
            label = dataset.targets[training_row, t]
            known = [] if np.isnan(label) else [("true", label_text(task, label))]
            compared = molecule_card(
                run, training_row, f"nearest training molecule: {run.name_of(training_row)}", known
            )
    return replace(molecule_card(run, row, run.name_of(row), facts), compared=compared)


def _prediction_text(task: Task, values: np.ndarray) -> str:
    if task.kind == REGRESSION:
        return plain(float(values[0]))
    predicted = predicted_classes(values[None], task)[0]
    probability = float(values.max()) if len(values) > 1 else max(float(values[0]), 1 - float(values[0]))
    return f"{predicted} ({100 * probability:.0f}%)"


def _most_uncertain_molecules(run: Run, evaluated: EvaluatedSplit, near: TrainingSimilarity) -> Section:
    identifier, title, uncertainty = "unsure", "Most uncertain molecules", evaluated.uncertainty
    if uncertainty is None or evaluated.stds is None:
        text = "Every molecule is predicted by the one model that did not train on it, so a standard deviation over "
        text += "models is not available. Repeated cross-validation (data.folds 5x3) gives one."
        return Section(identifier, title, [Text(text)])
    known = np.flatnonzero(np.isfinite(uncertainty))
    uncertain = known[np.argsort(-uncertainty[known], kind="stable")[:_MAX_UNCERTAIN]]
    text = f"The {len(uncertain)} molecules with the largest standard deviation over the models, in descending order"
    if len(run.molecules.dataset.tasks) > 1:
        text += " of its mean over the targets, each relative to the scatter of its labels; the target with the largest"
        text += " one is shown"
    cards = Cards([_card(run, evaluated, near, place, evaluated.stds) for place in uncertain.tolist()])
    return Section(identifier, title, [Text(text + "."), cards])


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


def std_by_target(tasks: Sequence[Task], values: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Compute the standard deviation for each target, ``float64 [R, T]``; of several classes, the largest one."""
    by_target = np.empty((len(values), len(tasks)))
    for t, task, where in each_target(tasks):
        by_target[:, t] = std[:, where].max(axis=1)
        if task.transform == "log":
            by_target[:, t] /= np.maximum(values[:, where.start], _MIN_VALUE) * np.log(10)
    return by_target


def error_scales(tasks: Sequence[Task], labels: np.ndarray) -> np.ndarray:
    """Compute the scales of the errors of several targets, ``float64 [T]``: the scatter of labels; 1 for classes."""
    scales = np.ones(len(tasks))
    for t, task in enumerate(tasks if len(tasks) > 1 else ()):
        known = labels[~np.isnan(labels[:, t]), t]
        if task.kind == REGRESSION and len(known) > 1:
            scales[t] = np.std(_log10(known) if task.transform == "log" else known) or 1.0
    return scales


def mean_of_known(by_target: np.ndarray) -> np.ndarray:
    """Average the known values over the targets: ``float64 [R, T]`` to ``float64 [R]``, nan where none is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows without any
        return np.nanmean(by_target, axis=1)


def error_name(tasks: Sequence[Task]) -> str:
    """Return the axis label of the combined error."""
    if len(tasks) > 1:
        return "error, mean of the targets"
    (task,) = tasks
    if task.kind != REGRESSION:
        return f"1 {MINUS} P(true class)"
    return "absolute error in decades" if task.transform == "log" else "absolute error"


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
