"""What a report says of the answers: against the truth, where they err, and where the models are unsure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from graphslice.calibration.domain import BITS
from graphslice.checkpoint import read_calibration
from graphslice.inference.predictor import load
from graphslice.report.about import MOST_TARGETS
from graphslice.report.about_data import label_text
from graphslice.report.answers import Answers, Nearest, answer, nearest_trained, read_out_of_fold, splits_of
from graphslice.report.drawing import draw_molecule, scaffold_of
from graphslice.report.errors import describe_error, errors_by_target, name_of_error, scales, spread_by_target, together
from graphslice.report.figures import by_similarity, by_spread, of_target, split_name
from graphslice.report.gather import Run
from graphslice.report.parts import Card, Cards, Figures, Heading, Part, Section, Text
from graphslice.report.svg import number, plain, with_deviation
from graphslice.tasks import REGRESSION, Task, output_slices, predicted_classes

_MOST_WORST, _MOST_UNSURE, _MOST_SCAFFOLDS = 20, 12, 12


@dataclass(frozen=True)
class Judged:
    """The answers for a split, and how wrong each is.

    Attributes:
        answers: of the models.
        true: ``float64 [R, T]``, nan where unknown.
        by_target: ``float64 [R, T]`` of :func:`~graphslice.report.errors.errors_by_target`.
        error: ``float64 [R]``, of all targets together.
        spread: ``float64 [R]``, how much the models disagree; None of one.
    """

    answers: Answers
    true: np.ndarray
    by_target: np.ndarray
    error: np.ndarray
    spread: np.ndarray | None


def answer_sections(run: Run) -> list[Section]:
    """The sections that are made of answers; none where the molecules are not there."""
    if run.data is None:
        return []
    splits = splits_of(run.models, run.data)
    predictors = [load(folder, run.device) for folder in run.models]
    checkpoints = [checkpoint for predictor in predictors for checkpoint in predictor.checkpoints]
    calibration = read_calibration(run.folder, checkpoints)
    judged: dict[str, Judged] = {}
    for split in ("test", "valid"):
        found = None
        if run.folds and split == "test" and run.config.data.folds_and_repeats[1] == 1:
            found = read_out_of_fold(run.folder, run.data)
        found = found or answer(predictors, calibration, splits, split, run.data)
        if found is not None:
            judged[split] = _judge(run, found)
    sections = [_predictions(run, judged)]
    split = "test" if "test" in judged else "valid"
    if split in judged:
        chosen = judged[split]
        worst = np.argsort(-chosen.error, kind="stable")[:_MOST_WORST]
        unsure = _most_unsure(chosen)
        near = nearest_trained(chosen.answers.rows, splits, split, run.data)
        sections.append(_where_it_errs(run, chosen, near, split))
        sections.append(_worst(run, chosen, near, worst, split))
        if len(run.models) > 1:
            sections.append(_unsure(run, chosen, near, unsure))
    return sections


def _judge(run: Run, answers: Answers) -> Judged:
    assert run.data is not None
    source = run.data.source
    true = source.targets[answers.rows]
    divided_by = scales(source.tasks, source.targets[run.data.splits["train"]])
    by_target = errors_by_target(source.tasks, true, answers.values)
    spread = None
    if answers.spread is not None:
        spread = together(spread_by_target(source.tasks, answers.values, answers.spread), divided_by)
    # Of several targets each counts as a part of its deviation, so that they can be compared.
    scaled = by_target if by_target.shape[1] == 1 else by_target / divided_by
    return Judged(answers, true, scaled, together(by_target, divided_by), spread)


def _predictions(run: Run, judged: dict[str, Judged]) -> Section:
    assert run.data is not None
    section = Section("predictions", "Predicted against true")
    tasks = run.data.source.tasks
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
        if found.answers.whole > len(found.answers.rows):
            some, whole = len(found.answers.rows), found.answers.whole
            section.parts.append(
                Text(f"Of {whole:,} {split_name(split)} molecules {some:,}, drawn at random, are shown.", note=True)
            )
    for t, (task, where) in enumerate(zip(tasks[:MOST_TARGETS], output_slices(tasks), strict=False)):
        if len(tasks) > 1:
            section.parts.append(Heading(task.name))
        figures = [
            figure
            for split, found in judged.items()
            for figure in of_target(task, found.true[:, t], found.answers.values[:, where], split_name(split))
        ]
        section.parts.append(Figures(figures) if figures else Text("No molecule here has a label of it."))
    if (more := len(tasks) - MOST_TARGETS) > 0:
        section.parts.append(Text(f"The first {MOST_TARGETS} targets; {more:,} others are left out here."))
    return section


def _where_it_errs(run: Run, found: Judged, near: Nearest, split: str) -> Section:
    assert run.data is not None
    section = Section("errors", "Where it errs")
    name = name_of_error(run.data.source.tasks)
    section.parts.append(Text(f"Of the {split_name(split)} molecules. {describe_error(run.data.source.tasks)}"))
    section.parts.append(Heading("By distance to the training molecules"))
    error = found.error[np.searchsorted(found.answers.rows, near.rows)]
    section.parts.append(Figures([by_similarity(near.similarity, error, name)]))
    said = f"{len(near.rows):,} molecules, each compared with {near.trained:,} training molecules"
    said += f" of {near.whole:,}, drawn at random, so that the nearest may be nearer" * (near.trained < near.whole)
    section.parts.append(
        Text(f"{said}. Similarities are Tanimoto's, of Morgan fingerprints of radius 2 ({BITS:,} bits).")
    )
    section.parts += _by_scaffold(run, found)
    return section


def _by_scaffold(run: Run, found: Judged) -> list[Part]:
    parts: list[Part] = [Heading("By scaffold")]
    if run.smiles is None:
        return [*parts, Text("The data holds graphs and no SMILES, of which scaffolds are made.", note=True)]
    members: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(found.answers.rows.tolist()):
        if (scaffold := scaffold_of(run.smiles[row])) is not None:
            members[scaffold].append(place)
    several = {scaffold: places for scaffold, places in members.items() if len(places) > 1}
    if not several:
        return [*parts, Text("Every molecule has a scaffold of its own.")]
    frequent = sorted(several.items(), key=lambda item: -len(item[1]))[:_MOST_SCAFFOLDS]
    cards = []
    for scaffold, places in frequent:
        errors = found.error[places]
        deviation = float(errors.std(ddof=1) / np.sqrt(len(errors))) if len(errors) > 1 else 0.0
        facts = [("mean error", with_deviation(float(errors.mean()), deviation))]
        drawn = draw_molecule(scaffold, f"scaffold {scaffold}") if scaffold else None
        cards.append(Card(drawn, scaffold, f"n = {len(places):,}", facts, "no rings" if not scaffold else "not drawn"))
    whole = number(float(found.error.mean()))
    said = f"The most frequent of {len(members):,} Bemis-Murcko scaffolds: how many molecules have it, and their mean "
    return [
        *parts,
        Text(f"{said}error with its standard error. Over all molecules it is {whole}."),
        Cards(cards),
    ]


def _worst(run: Run, found: Judged, near: Nearest, worst: np.ndarray, split: str) -> Section:
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


def _card(run: Run, found: Judged, near: Nearest, place: int) -> Card:
    """A molecule with its label, its answer, how much the models disagree, and the nearest training molecule."""
    assert run.data is not None
    row, tasks = int(found.answers.rows[place]), run.data.source.tasks
    errors = found.by_target[place]
    t = int(np.nanargmax(errors)) if np.isfinite(errors).any() else 0
    task, where = tasks[t], output_slices(tasks)[t]
    given = found.answers.values[place, where]
    facts = [("target", task.name)] if len(tasks) > 1 else []
    facts += [("true", label_text(task, found.true[place, t])), ("predicted", _answer_text(task, given))]
    if found.answers.spread is not None:
        spread = found.answers.spread[place, where]
        facts.append(("deviation", number(float(spread.max()), 2)))
    if (similarity := near.of(row)) is not None:
        facts.append(("nearest similarity", f"{similarity:.2f}"))
    smiles = run.smiles[row] if run.smiles else ""
    return Card(
        draw_molecule(smiles, f"molecule of row {row + 1}") if smiles else None, smiles, f"row {row + 1}", facts
    )


def _answer_text(task: Task, given: np.ndarray) -> str:
    if task.kind == REGRESSION:
        return plain(float(given[0]))
    predicted = predicted_classes(given[None], task)[0]
    probability = float(given.max()) if len(given) > 1 else max(float(given[0]), 1 - float(given[0]))
    return f"{predicted} ({100 * probability:.0f}%)"


def _most_unsure(found: Judged) -> np.ndarray:
    """``int64``: places of the answers on which the models disagree most."""
    if found.spread is None:
        return np.empty(0, np.int64)
    known = np.flatnonzero(np.isfinite(found.spread))
    return known[np.argsort(-found.spread[known], kind="stable")[:_MOST_UNSURE]]


def _unsure(run: Run, found: Judged, near: Nearest, unsure: np.ndarray) -> Section:
    assert run.data is not None
    section = Section("unsure", "What it is most unsure of")
    if found.spread is None:
        text = "Each molecule is answered by the one model that did not learn it, so that nothing is to be compared; "
        section.parts.append(Text(f"{text}folds that are repeated (--folds 5x3) say how much the models differ."))
        return section
    known = np.isfinite(found.spread) & np.isfinite(found.error)
    name = name_of_error(run.data.source.tasks)
    section.parts.append(Figures([by_spread(found.spread[known], found.error[known], name)]))
    section.parts.append(Text(f"The {len(unsure)} molecules on which the models disagree most, the first most of all."))
    section.parts.append(Cards([_card(run, found, near, place) for place in unsure.tolist()]))
    return section
