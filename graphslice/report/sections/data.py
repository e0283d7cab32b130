"""Report section on the data: sizes of the splits, rejected rows, duplicates, labels and example molecules."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import replace

import numpy as np

from graphslice.data.duplicates import Duplicates, count_shared
from graphslice.data.molecule_keys import molecule_keys
from graphslice.data.splits import SPLITS, Splits, random_subset
from graphslice.errors import InputError
from graphslice.evaluation.format_scores import NONE, describe_bounds, plain
from graphslice.report.drawing import draw_molecule, drawing_module
from graphslice.report.figures import split_name
from graphslice.report.load_run import Run
from graphslice.report.page_elements import Card, Cards, Heading, Part, Section, Table, Text
from graphslice.report.sections.run import MAX_TARGETS
from graphslice.run_files import REJECTED, read_splits
from graphslice.tasks import REGRESSION, Task
from graphslice.training.data_summary import describe_bounded

_MAX_REASONS, _MAX_DRAWN, _MAX_CLASSES = 8, 12, 20


def data_section(run: Run) -> Section:
    """Build the section on splits, rejected rows, duplicates, labels and example molecules."""
    section = Section("data", "Data")
    if run.data is None:
        note = f"The molecules cannot be shown: {run.data_error}. This report shows what the run directory contains."
        section.parts.append(Text(note, note=True))
    section.parts.append(_sizes(run))
    section.parts += _rejected(run)
    if run.data is None:
        return section
    repeated = _duplicates(run).describe()
    summary = f"{repeated[:1].upper()}{repeated[1:]}." if repeated else "No molecule occurs in more than one row."
    section.parts += [Heading("Duplicates"), Text(summary)]
    section.parts += _labels(run)
    section.parts += _example_molecules(run)
    return section


def _sizes(run: Run) -> Table:
    splits = _splits_by_name(run.data.splits if run.data is not None else read_splits(run.models[0]) or {})
    total = sum(map(len, splits.values()))
    rows = [[split_name(split), f"{len(rows):,}", _share(len(rows), total)] for split, rows in splits.items()]
    rows.append(["total", f"{total:,}", _share(total, total)])
    caption = "Rows of each split."
    if run.folds:
        caption = "Rows of each split of the first model; every other model has another fold as its test set."
    elif len(run.models) > 1:
        caption = "Rows of each split of the first model; the other members may have other validation sets."
    return Table(caption, ["split", "rows", "share"], rows)


def _splits_by_name(splits: Splits) -> Splits:
    """Sort splits in the fixed order of their names."""
    return {split: splits[split] for split in SPLITS if split in splits}


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f}%" if total else NONE


def _rejected(run: Run) -> list[Part]:
    """List the most frequent reasons; those that differ only in numbers and quoted names are counted together."""
    path, counts, first = run.folder / REJECTED, Counter[str](), dict[str, list[str]]()
    if path.is_file():
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            for line in csv.DictReader(file):
                group = re.sub(r"'[^']*'|\d[\d,.]*", "…", line["reason"] or "")
                counts[group] += 1
                first.setdefault(group, [line["reason"] or "", line["row"]])
    parts: list[Part] = [Heading("Rejected rows and labels")]
    if not counts:
        return [*parts, Text("No row and no label was rejected.")]
    rows = [[*first[group], f"{count:,}"] for group, count in counts.most_common(_MAX_REASONS)]
    more = f" {len(counts) - len(rows):,} less frequent reasons are not listed." if len(counts) > len(rows) else ""
    were = "row was" if counts.total() == 1 else "rows were"
    caption = f"{counts.total():,} {were} rejected, or used without an invalid label."
    caption += " Similar reasons are grouped; row numbers count from 1."
    return [*parts, Table(f"{caption}{more} rejected.csv lists all.", ["first reason", "first row", "rows"], rows)]


def _duplicates(run: Run) -> Duplicates:
    """Duplicates of the data; for splits given in the dataset, rows shared between splits are counted here."""
    data = run.molecules
    if data.dataset.splits is None or data.dataset.is_pcqm4m or data.duplicates.shared:
        return data.duplicates
    return replace(
        data.duplicates,
        shared=count_shared(data.splits, data.usable_rows, molecule_keys(data.store, data.usable_rows).family),
    )


def _labels(run: Run) -> list[Part]:
    """Tabulate the quantiles (regression) and class counts of the labels of the first targets."""
    data = run.molecules
    dataset, splits = data.dataset, _splits_by_name(data.splits)
    if run.folds:  # every molecule is in the training, validation or test set of some fold
        splits = {"all": data.usable_rows}
    parts: list[Part] = [Heading("Labels")]
    for t, task in enumerate(dataset.tasks[:MAX_TARGETS]):
        labels = {split: dataset.targets[rows, t] for split, rows in splits.items()}
        known = {split: y[~np.isnan(y)] for split, y in labels.items()}
        known = {split: y for split, y in known.items() if len(y)}
        if not known:
            continue
        if task.kind == REGRESSION:
            parts.append(_quantiles(task, known))
        else:
            parts.append(_class_counts(task, known, {split: len(y) for split, y in labels.items()}))
    bounds = describe_bounded(dataset.tasks, dataset.bounds(data.usable_rows))
    for split in ("valid", "test"):
        bounds += describe_bounds(split, run.metrics[split]) if split in run.metrics else []
    parts += [Text(f"{line[:1].upper()}{line[1:]}.") for line in bounds]
    if (more := len(dataset.tasks) - MAX_TARGETS) > 0:
        parts.append(Text(f"Labels of the first {MAX_TARGETS} targets; {more:,} more targets are not shown."))
    return parts


def _quantiles(task: Task, known: dict[str, np.ndarray]) -> Table:
    rows = [
        [split_name(split), f"{len(y):,}", *(plain(float(q)) for q in np.quantile(y, (0, 0.25, 0.5, 0.75, 1)))]
        for split, y in known.items()
    ]
    head = ["split", "labels", "least", "lower quartile", "median", "upper quartile", "largest"]
    return Table(f"Labels of {task.name}.", head, rows)


def _class_counts(task: Task, known: dict[str, np.ndarray], rows: dict[str, int]) -> Table:
    counts = {split: np.bincount(y.astype(int), minlength=len(task.classes)) for split, y in known.items()}
    order = np.argsort(-sum(counts.values()), kind="stable")
    lines = [
        [task.classes[k], *(f"{count[k]:,} ({_share(int(count[k]), int(count.sum()))})" for count in counts.values())]
        for k in order[:_MAX_CLASSES].tolist()
    ]
    more = f" {len(order) - _MAX_CLASSES:,} rarer classes are not listed." * (len(order) > _MAX_CLASSES)
    empty = {split: rows[split] - len(y) for split, y in known.items()}
    if any(empty.values()):
        lines.append(["no label", *(f"{empty[split]:,}" for split in known)])
    caption = f"Classes of {task.name}: number of labels in each split, and share of all labels of the split.{more}"
    return Table(caption, ["class", *map(split_name, counts)], lines)


def _example_molecules(run: Run) -> list[Part]:
    parts: list[Part] = [Heading("Example molecules")]
    if run.smiles is None:
        return [*parts, Text("The dataset holds graphs without SMILES, so no molecules are drawn.", note=True)]
    try:
        drawing_module()
    except InputError as error:
        return [*parts, Text(f"{error}.", note=True)]
    usable_rows = run.molecules.usable_rows
    rows = random_subset(usable_rows, _MAX_DRAWN)
    split_of = {
        int(row): split for split, members in run.molecules.splits.items() for row in np.intersect1d(members, rows)
    }
    cards = []
    for row in rows.tolist():
        where = "" if run.folds else f", {split_name(split_of.get(row, 'no split'))}"
        cards.append(molecule_card(run, row, f"{run.name_of(row)}{where}", labels_of(run, row)))
    return [
        *parts,
        Cards(cards),
        Text(f"{len(cards)} of {len(usable_rows):,} molecules, chosen at random. Rows count from 1."),
    ]


def molecule_card(run: Run, row: int, title: str, facts: list[tuple[str, str]]) -> Card:
    """Return the card of a molecule, drawn if it has a SMILES."""
    smiles = run.smiles[row] if run.smiles else ""
    return Card(draw_molecule(smiles) if smiles else None, smiles, title, facts)


def labels_of(run: Run, row: int, most: int = 2) -> list[tuple[str, str]]:
    """List names and known labels of a molecule's first targets, at most ``most``, as pairs of text."""
    dataset = run.molecules.dataset
    known = np.flatnonzero(~np.isnan(dataset.targets[row]))
    labels = [(dataset.tasks[t].name, label_text(dataset.tasks[t], dataset.targets[row, t])) for t in known[:most]]
    return [*labels, ("", f"and {len(known) - most:,} more")] if len(known) > most else labels


def label_text(task: Task, label: float) -> str:
    """Format a label: a number, or the name of a class; a dash if it is nan."""
    if np.isnan(label):
        return NONE
    return plain(label) if task.kind == REGRESSION else task.classes[int(label)]
