"""Report sections on predictions: comparison with true values, error analysis, and the most uncertain molecules."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from graphslice.calibration.applicability_domain import DOMAIN_BITS
from graphslice.data.labels import pluralize
from graphslice.ensemble_check import read_calibration
from graphslice.evaluation.format_scores import number, plain, with_std
from graphslice.inference.predictor import Predictor
from graphslice.report.drawing import draw_molecule, scaffold_of
from graphslice.report.figures import error_by_similarity, target_figures
from graphslice.report.load_run import Run
from graphslice.report.molecule_errors import (
    describe_error,
    error_name,
    error_scales,
    errors_by_target,
    mean_of_known,
    std_by_target,
)
from graphslice.report.page_elements import Card, Cards, Figures, Heading, Part, Section, Text
from graphslice.report.predictions import (
    SplitPredictions,
    TrainingSimilarity,
    nearest_training,
    predict_split,
    read_out_of_fold,
)
from graphslice.report.sections.data import label_text, molecule_card
from graphslice.report.sections.run import MAX_TARGETS
from graphslice.run_files import read_splits
from graphslice.tasks import REGRESSION, Task, output_slices, predicted_classes

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
    """Build the card of a molecule, of the target with the largest number in ``of``, ``[R, T]``.

    ``compare``: with the card of the nearest training molecule.
    """
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
