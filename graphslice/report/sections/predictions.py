"""What a report says of the answers: against the truth, where they err, and where the models are unsure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from graphslice.calibration.applicability_domain import DOMAIN_BITS
from graphslice.ensemble_check import read_calibration, read_checkpoints
from graphslice.inference.predictor import Predictor
from graphslice.report.drawing import draw_molecule, scaffold_of
from graphslice.report.figures import error_by_similarity, error_by_std, split_name, target_figures
from graphslice.report.load_run import Run
from graphslice.report.molecule_errors import (
    combine_targets,
    describe_error,
    error_name,
    error_scales,
    errors_by_target,
    std_by_target,
)
from graphslice.report.page_elements import Card, Cards, Figures, Heading, Part, Section, Text
from graphslice.report.predictions import (
    SplitPredictions,
    TrainingSimilarity,
    nearest_training,
    predict_split,
    read_out_of_fold,
    splits_of_models,
)
from graphslice.report.sections.data import label_text
from graphslice.report.sections.run import MAX_TARGETS
from graphslice.report.svg import number, plain, with_std
from graphslice.tasks import REGRESSION, Task, output_slices, predicted_classes

_MAX_WORST, _MAX_UNCERTAIN, _MAX_SCAFFOLDS = 20, 12, 12


@dataclass(frozen=True)
class EvaluatedSplit:
    """The answers for a split, and how wrong each is.

    Attributes:
        answers: of the models.
        true: ``float64 [R, T]``, nan where unknown.
        by_target: ``float64 [R, T]`` of :func:`~graphslice.report.molecule_errors.errors_by_target`.
        error: ``float64 [R]``, of all targets together.
        spread: ``float64 [R]``, how much the models disagree; None of one.
    """

    predictions: SplitPredictions
    true: np.ndarray
    by_target: np.ndarray
    error: np.ndarray
    std: np.ndarray | None


def prediction_sections(run: Run) -> list[Section]:
    """The sections that are made of answers; none where the molecules are not there."""
    if run.data is None:
        return []
    splits = splits_of_models(run.models, run.data)
    checkpoints = read_checkpoints(run.folder)
    predictors = [Predictor(checkpoint, run.device) for checkpoint in checkpoints]
    calibration = read_calibration(run.folder, checkpoints)
    judged: dict[str, EvaluatedSplit] = {}
    for split in ("test", "valid"):
        found = None
        if run.folds and split == "test" and run.config.data.folds_and_repeats[1] == 1:
            found = read_out_of_fold(run.folder, run.data)
        found = found or predict_split(predictors, calibration, splits, split, run.data)
        if found is not None:
            judged[split] = _evaluate_split(run, found)
    sections = [_predictions(run, judged)]
    split = "test" if "test" in judged else "valid"
    if split in judged:
        chosen = judged[split]
        worst = np.argsort(-chosen.error, kind="stable")[:_MAX_WORST]
        unsure = _most_uncertain(chosen)
        near = nearest_training(chosen.predictions.rows, splits, split, run.data)
        sections.append(_error_analysis(run, chosen, near, split))
        sections.append(_worst_molecules(run, chosen, near, worst, split))
        if len(run.models) > 1:
            sections.append(_most_uncertain_molecules(run, chosen, near, unsure))
    return sections


def _evaluate_split(run: Run, predictions: SplitPredictions) -> EvaluatedSplit:
    assert run.data is not None
    dataset = run.data.dataset
    true = dataset.targets[predictions.rows]
    divided_by = error_scales(dataset.tasks, dataset.targets[run.data.splits["train"]])
    by_target = errors_by_target(dataset.tasks, true, predictions.values)
    std = None
    if predictions.std is not None:
        std = combine_targets(std_by_target(dataset.tasks, predictions.values, predictions.std), divided_by)
    # Of several targets each counts as a part of its deviation, so that they can be compared.
    scaled = by_target if by_target.shape[1] == 1 else by_target / divided_by
    return EvaluatedSplit(predictions, true, scaled, combine_targets(by_target, divided_by), std)


def _predictions(run: Run, judged: dict[str, EvaluatedSplit]) -> Section:
    assert run.data is not None
    section = Section("predictions", "Predicted against true")
    tasks = run.data.dataset.tasks
    if not judged:
        section.parts.append(Text("Neither a test nor a validation molecule has a label: nothing can be compared."))
        return section
    if "test" not in judged:
        section.parts.append(
            Text(
                "No test molecule has a label: what follows is of the validation molecules, by which "
                "the best epoch was chosen, and so looks better than new molecules will.",
                note=True,
            )
        )
    for split, found in judged.items():
        if found.predictions.whole > len(found.predictions.rows):
            some, whole = len(found.predictions.rows), found.predictions.whole
            section.parts.append(
                Text(f"Of {whole:,} {split_name(split)} molecules {some:,}, drawn at random, are shown.", note=True)
            )
    for t, (task, where) in enumerate(zip(tasks[:MAX_TARGETS], output_slices(tasks), strict=False)):
        if len(tasks) > 1:
            section.parts.append(Heading(task.name))
        figures = [
            figure
            for split, found in judged.items()
            for figure in target_figures(task, found.true[:, t], found.predictions.values[:, where], split_name(split))
        ]
        section.parts.append(Figures(figures) if figures else Text("No molecule here has a label of it."))
    if (more := len(tasks) - MAX_TARGETS) > 0:
        section.parts.append(Text(f"The first {MAX_TARGETS} targets; {more:,} others are left out here."))
    return section


def _error_analysis(run: Run, found: EvaluatedSplit, near: TrainingSimilarity, split: str) -> Section:
    assert run.data is not None
    section = Section("errors", "Where it errs")
    name = error_name(run.data.dataset.tasks)
    section.parts.append(Text(f"Of the {split_name(split)} molecules. {describe_error(run.data.dataset.tasks)}"))
    section.parts.append(Heading("By distance to the training molecules"))
    error = found.error[np.searchsorted(found.predictions.rows, near.rows)]
    section.parts.append(Figures([error_by_similarity(near.similarity, error, name)]))
    said = f"{len(near.rows):,} molecules, each compared with {near.trained:,} training molecules"
    said += f" of {near.whole:,}, drawn at random, so that the nearest may be nearer" * (near.trained < near.whole)
    section.parts.append(
        Text(f"{said}. Similarities are Tanimoto's, of Morgan fingerprints of radius 2 ({DOMAIN_BITS:,} bits).")
    )
    section.parts += _by_scaffold(run, found)
    return section


def _by_scaffold(run: Run, found: EvaluatedSplit) -> list[Part]:
    parts: list[Part] = [Heading("By scaffold")]
    if run.smiles is None:
        return [*parts, Text("The data holds graphs and no SMILES, of which scaffolds are made.", note=True)]
    members: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(found.predictions.rows.tolist()):
        if (scaffold := scaffold_of(run.smiles[row])) is not None:
            members[scaffold].append(place)
    several = {scaffold: places for scaffold, places in members.items() if len(places) > 1}
    if not several:
        return [*parts, Text("Every molecule has a scaffold of its own.")]
    frequent = sorted(several.items(), key=lambda item: -len(item[1]))[:_MAX_SCAFFOLDS]
    cards = []
    for scaffold, places in frequent:
        errors = found.error[places]
        deviation = float(errors.std(ddof=1) / np.sqrt(len(errors))) if len(errors) > 1 else 0.0
        facts = [("mean error", with_std(float(errors.mean()), deviation))]
        drawn = draw_molecule(scaffold, f"scaffold {scaffold}") if scaffold else None
        cards.append(Card(drawn, scaffold, f"n = {len(places):,}", facts, "no rings" if not scaffold else "not drawn"))
    whole = number(float(found.error.mean()))
    said = f"The most frequent of {len(members):,} Bemis-Murcko scaffolds: how many molecules have it, and their mean "
    return [
        *parts,
        Text(f"{said}error with its standard error. Over all molecules it is {whole}."),
        Cards(cards),
    ]


def _worst_molecules(
    run: Run, found: EvaluatedSplit, near: TrainingSimilarity, worst: np.ndarray, split: str
) -> Section:
    section = Section("worst", f"The worst {len(worst)}" if len(worst) > 1 else "The worst")
    if run.smiles is None:
        section.parts.append(
            Text("The data holds graphs and no SMILES, so that rows are named and not drawn.", note=True)
        )
    cards = [_card(run, found, near, place) for place in worst.tolist()]
    several = " Of several targets the one with the largest error is shown." if found.true.shape[1] > 1 else ""
    section.parts.append(
        Text(
            f"The {split_name(split)} molecules with the largest errors, the worst first.{several} "
            "Similar training molecules with other labels point to a cliff or to a wrong label."
        )
    )
    section.parts.append(Cards(cards))
    return section


def _card(run: Run, found: EvaluatedSplit, near: TrainingSimilarity, place: int) -> Card:
    """A molecule with its label, its answer, how much the models disagree, and the nearest training molecule."""
    assert run.data is not None
    row, tasks = int(found.predictions.rows[place]), run.data.dataset.tasks
    errors = found.by_target[place]
    t = int(np.nanargmax(errors)) if np.isfinite(errors).any() else 0
    task, where = tasks[t], output_slices(tasks)[t]
    given = found.predictions.values[place, where]
    facts = [("target", task.name)] if len(tasks) > 1 else []
    facts += [("true", label_text(task, found.true[place, t])), ("predicted", _prediction_text(task, given))]
    if found.predictions.std is not None:
        std = found.predictions.std[place, where]
        facts.append(("deviation", number(float(std.max()), 2)))
    if (similarity := near.of(row)) is not None:
        facts.append(("nearest similarity", f"{similarity:.2f}"))
    smiles = run.smiles[row] if run.smiles else ""
    return Card(
        draw_molecule(smiles, f"molecule of row {row + 1}") if smiles else None, smiles, f"row {row + 1}", facts
    )


def _prediction_text(task: Task, given: np.ndarray) -> str:
    if task.kind == REGRESSION:
        return plain(float(given[0]))
    predicted = predicted_classes(given[None], task)[0]
    probability = float(given.max()) if len(given) > 1 else max(float(given[0]), 1 - float(given[0]))
    return f"{predicted} ({100 * probability:.0f}%)"


def _most_uncertain(found: EvaluatedSplit) -> np.ndarray:
    """``int64``: places of the answers on which the models disagree most."""
    if found.std is None:
        return np.empty(0, np.int64)
    known = np.flatnonzero(np.isfinite(found.std))
    return known[np.argsort(-found.std[known], kind="stable")[:_MAX_UNCERTAIN]]


def _most_uncertain_molecules(run: Run, found: EvaluatedSplit, near: TrainingSimilarity, unsure: np.ndarray) -> Section:
    assert run.data is not None
    section = Section("unsure", "What it is most unsure of")
    if found.std is None:
        text = "Each molecule is answered by the one model that did not learn it, so that nothing is to be compared; "
        section.parts.append(Text(f"{text}folds that are repeated (--folds 5x3) say how much the models differ."))
        return section
    known = np.isfinite(found.std) & np.isfinite(found.error)
    name = error_name(run.data.dataset.tasks)
    section.parts.append(Figures([error_by_std(found.std[known], found.error[known], name)]))
    section.parts.append(Text(f"The {len(unsure)} molecules on which the models disagree most, the first most of all."))
    section.parts.append(Cards([_card(run, found, near, place) for place in unsure.tolist()]))
    return section
