"""What a report says of the molecules that a run had: how many, which, their labels, and what was left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphslice.data.duplicates import Duplicates, count_shared
from graphslice.data.molecule_keys import molecule_keys
from graphslice.data.splits import SPLITS, Splits
from graphslice.evaluation.evaluate import read_splits
from graphslice.report.drawing import draw_molecule
from graphslice.report.figures import histogram, split_name
from graphslice.report.load_run import Run, read_rejected
from graphslice.report.page_elements import Card, Cards, Figures, Heading, Part, Section, Table, Text
from graphslice.report.sections.run import MAX_TARGETS
from graphslice.report.svg import NONE, plain
from graphslice.tasks import REGRESSION, Task

_MAX_REASONS, _MAX_DRAWN, _MAX_CLASSES = 8, 12, 20


def data_section(run: Run) -> Section:
    """Rows and splits, rejected rows, duplicates, labels, and some molecules."""
    section = Section("data", "The data")
    if run.data is None:
        note = f"The molecules cannot be shown: {run.data_error}. What follows is what the run folder holds."
        section.parts.append(Text(note, note=True))
    section.parts.append(_sizes(run))
    section.parts += _rejected(run)
    if run.data is None:
        return section
    repeated = _duplicates(run).describe()
    said = f"{repeated[:1].upper()}{repeated[1:]}." if repeated else "No molecule has several rows."
    section.parts += [Heading("Duplicates"), Text(said)]
    section.parts += _labels(run)
    section.parts += _example_molecules(run)
    return section


def _sizes(run: Run) -> Table:
    splits = _splits_by_name(run.data.splits if run.data is not None else read_splits(run.models[0]) or {})
    total = sum(map(len, splits.values()))
    rows = [[split_name(split), f"{len(rows):,}", _share(len(rows), total)] for split, rows in splits.items()]
    rows.append(["together", f"{total:,}", _share(total, total)])
    how = "Rows of each split."
    if run.folds:
        how = "Rows of each split of the first model; each of the others has another fold as its test."
    elif len(run.models) > 1:
        how = "Rows of each split of the first model; the others may have other molecules for validation."
    return Table(how, ["split", "rows", "share"], rows)


def _splits_by_name(splits: Splits) -> Splits:
    """The splits in the order of their names, whatever the data begin with."""
    return {split: splits[split] for split in SPLITS if split in splits}


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else NONE


def _rejected(run: Run) -> list[Part]:
    found = read_rejected(run.folder, _MAX_REASONS)
    parts: list[Part] = [Heading("Rejected rows")]
    if not found.count:
        return [*parts, Text("Every row could be used.")]
    rows = [[reason, row, f"{count:,}"] for count, row, reason in found.reasons]
    more = f" {found.more:,} less frequent kinds are left out here." if found.more else ""
    were = "row was" if found.count == 1 else "rows were"
    caption = f"{found.count:,} {were} rejected, counted by kind of reason, with the first row of each (from 1)."
    return [*parts, Table(f"{caption}{more} All are in rejected.csv.", ["first reason", "first row", "rows"], rows)]


def _duplicates(run: Run) -> Duplicates:
    """What is repeated; of a run whose splits are known already what they share is counted here."""
    assert run.data is not None
    data = run.data
    if data.dataset.splits is None or data.dataset.is_pcqm4m or data.duplicates.shared:
        return data.duplicates
    return replace(
        data.duplicates,
        shared=count_shared(data.splits, data.usable_rows, molecule_keys(data.store, data.usable_rows).family),
    )


def _labels(run: Run) -> list[Part]:
    """Histograms of numbers and counts of classes, of the first targets."""
    assert run.data is not None
    dataset, splits = run.data.dataset, _splits_by_name(run.data.splits)
    if run.folds:  # each molecule is all of them in turn
        splits = {"all": run.data.usable_rows}
    parts: list[Part] = [Heading("Labels")]
    figures = []
    tables: list[Part] = []
    for t, task in enumerate(dataset.tasks[:MAX_TARGETS]):
        labels = {split: dataset.targets[rows, t] for split, rows in splits.items()}
        known = {split: y[~np.isnan(y)] for split, y in labels.items()}
        known = {split: y for split, y in known.items() if len(y)}
        if not known:
            continue
        if task.kind == REGRESSION:
            figures.append(histogram(task, known))
        else:
            tables.append(_class_counts(task, known, {split: len(y) for split, y in labels.items()}))
    if figures:
        parts.append(Figures(figures))
    parts += tables
    if (more := len(dataset.tasks) - MAX_TARGETS) > 0:
        parts.append(Text(f"Labels of the first {MAX_TARGETS} targets; {more:,} others are left out here."))
    return parts


def _class_counts(task: Task, known: dict[str, np.ndarray], rows: dict[str, int]) -> Table:
    counts = {split: np.bincount(y.astype(int), minlength=len(task.classes)) for split, y in known.items()}
    order = np.argsort(-sum(counts.values()), kind="stable")
    lines = [
        [task.classes[k], *(f"{count[k]:,} ({_share(int(count[k]), int(count.sum()))})" for count in counts.values())]
        for k in order[:_MAX_CLASSES].tolist()
    ]
    more = f" {len(order) - _MAX_CLASSES:,} rarer classes are left out here." * (len(order) > _MAX_CLASSES)
    empty = {split: rows[split] - len(y) for split, y in known.items()}
    if any(empty.values()):
        lines.append(["no label", *(f"{empty[split]:,}" for split in known)])
    caption = f"Classes of {task.name}: labels of each split, and shares of them.{more}"
    return Table(caption, ["class", *map(split_name, counts)], lines)


def _example_molecules(run: Run) -> list[Part]:
    assert run.data is not None
    parts: list[Part] = [Heading("Some of the molecules")]
    if run.smiles is None:
        return [*parts, Text("The data holds graphs and no SMILES, so that no molecules are drawn.", note=True)]
    usable_rows = run.data.usable_rows
    rows = np.sort(np.random.default_rng(0).choice(usable_rows, min(_MAX_DRAWN, len(usable_rows)), replace=False))
    split_of = {int(row): split for split, members in run.data.splits.items() for row in np.intersect1d(members, rows)}
    cards = []
    for row in rows.tolist():
        smiles = run.smiles[row]
        where = "" if run.folds else f", {split_name(split_of.get(row, 'no split'))}"
        svg = draw_molecule(smiles, f"molecule of row {row + 1}")
        cards.append(Card(svg, smiles, f"row {row + 1}{where}", labels_of(run, row)))
    return [
        *parts,
        Cards(cards),
        Text(f"{len(cards)} of {len(usable_rows):,} molecules, drawn at random. Rows count from 1."),
    ]


def labels_of(run: Run, row: int, most: int = 2) -> list[tuple[str, str]]:
    """Names and labels of a molecule, of the first targets that it has one of."""
    assert run.data is not None
    dataset = run.data.dataset
    known = np.flatnonzero(~np.isnan(dataset.targets[row]))
    found = [(dataset.tasks[t].name, label_text(dataset.tasks[t], dataset.targets[row, t])) for t in known[:most]]
    return [*found, ("", f"and {len(known) - most:,} more")] if len(known) > most else found


def label_text(task: Task, label: float) -> str:
    """A label in words: a number, or the name of a class."""
    return plain(label) if task.kind == REGRESSION else task.classes[int(label)]
