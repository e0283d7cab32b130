"""Summary of a run's dataset, printed before training: targets, splits, and warnings about suspicious values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console

from graphslice.config import MOLECULE
from graphslice.data.datamodule import MoleculeData
from graphslice.data.dataset import UNLABELLED, describe_reasons
from graphslice.data.splits import split_name
from graphslice.errors import pluralize, quoted_list
from graphslice.runs.run_files import REJECTED
from graphslice.system.console import remark
from graphslice.tasks import BINARY, REGRESSION, TASK_KINDS, Task, is_bounded

# At most this many names are listed; integer targets with at most this many distinct values may be classes.
_MOST_NAMES, _FEW_VALUES = 6, 10

#: End of the reason of a row that is used without a label that is invalid.
WITHOUT_LABEL = "used without this label"
# With fewer molecules for training and validation than this, a warning is printed.
_FEW_MOLECULES = 50


def print_data_summary(console: Console, data: MoleculeData) -> None:
    """Print the targets, the number of molecules in each split, and warnings about the data."""
    if (count := data.num_development_rows) < _FEW_MOLECULES:
        advice = "" if data.config.data.folds else "; data.folds 5 evaluates on all molecules"
        few = f"only {count} molecules for training and validation: predictions and scores are unreliable{advice}"
        remark(few, console, "warning")
    tasks, labels = data.dataset.tasks, data.dataset.all_labels[data.usable_rows]
    lines = describe_tasks(tasks, labels)
    if (level := data.dataset.level) != MOLECULE:
        molecules = f"{len(data.usable_rows):,} molecules"
        lines.insert(0, f"{level}-level targets of {len(labels):,} {level}s in {molecules}:")
    lines += describe_bounded(tasks, data.dataset.bounds(data.usable_rows))
    for line in lines:
        console.out(line, highlight=False)
    parts = {split: data.dataset.all_labels[rows] for split, rows in data.splits.items() if len(rows)}
    invalid = data.invalid_labels()
    for line in [
        *data.dataset.notes,
        *([describe_reasons(invalid, f"used without an invalid label (see {REJECTED})")] if invalid else []),
        *data_warnings(tasks, labels),
        *outlier_notes(tasks, labels, data.usable_rows[data.dataset.all_labels.molecules(data.usable_rows)]),
        *split_warnings(tasks, parts),
        *filter(None, [data.duplicates.describe()]),
    ]:
        remark(line, console)
    sizes = {split: len(rows) for split, rows in data.splits.items() if len(rows) or split == "test"}
    splits = ", ".join(f"{size:,} {split_name(split)}" for split, size in sizes.items())
    console.out(f"split: {splits} rows", highlight=False)
    if wrong := {row: reason for row, reason in data.rejected.items() if reason != UNLABELLED}:
        remark(describe_reasons(wrong, f"rejected (see {REJECTED})"), console, "warning")
    if unlabelled := len(data.rejected) - len(wrong):
        verbs = "has no value of any target and is" if unlabelled == 1 else "have no value of any target and are"
        remark(f"{pluralize(unlabelled, 'row')} {verbs} not used", console)


def describe_tasks(tasks: Sequence[Task], labels: np.ndarray) -> list[str]:
    """Describe the targets, one line per task type; ``labels`` are ``float64 [R, T]``, nan where missing."""
    lines = []
    for kind in TASK_KINDS:
        named = [_describe_task(task, labels[:, t]) for t, task in enumerate(tasks) if task.kind == kind]
        if named:
            lines.append(f"{kind}: {quoted_list(named, _MOST_NAMES, str)}")
    return lines


def describe_bounded(tasks: Sequence[Task], bounds: np.ndarray | None) -> list[str]:
    """Describe the bounds ``float64 [R, T, 2]`` among the labels; no line without any."""
    if bounds is None:
        return []
    counts = {task.name: int(is_bounded(bounds[:, t]).sum()) for t, task in enumerate(tasks)}
    named = [f"{count:,} of {name}" for name, count in counts.items() if count]
    names = quoted_list(named, _MOST_NAMES, str)
    return [f"bounds, such as >5, among the labels: {names}; predictions beyond a bound are not errors"]


def _describe_task(task: Task, labels: np.ndarray) -> str:
    if task.kind == REGRESSION:
        return task.name if task.transform == "none" else f"{task.transform} of {task.name}"
    counts = np.bincount(labels[~np.isnan(labels)].astype(int), minlength=len(task.classes))
    shown = [f"{count:,} {name}" for name, count in zip(task.classes, counts.tolist(), strict=True)]
    more = ", ..." if len(shown) > _MOST_NAMES else ""
    if task.kind == BINARY and task.classes[1] != "1":
        more = f"; scores are those of {task.classes[1]}"
    return f"{task.name} ({', '.join(shown[:_MOST_NAMES])}{more})"


def data_warnings(tasks: Sequence[Task], labels: np.ndarray) -> list[str]:
    """Check regression targets for suspicious values: at most one line per kind of problem, which names the targets."""
    targets_by_reason: dict[str, list[str]] = {}
    for t, task in enumerate(tasks):
        known = labels[~np.isnan(labels[:, t]), t]
        if task.kind == REGRESSION and len(known) and (reason := _target_warning(known)):
            targets_by_reason.setdefault(reason, []).append(task.name)
    return [f"{quoted_list(names, _MOST_NAMES, str)} {reason}" for reason, names in targets_by_reason.items()]


def outlier_notes(tasks: Sequence[Task], labels: np.ndarray, rows: np.ndarray) -> list[str]:
    """List the :func:`outliers` of each regression target, in labels ``float64 [R, T]`` of some rows ``int64 [R]``."""
    lines = []
    for t, task in enumerate(tasks):
        known = np.flatnonzero(~np.isnan(labels[:, t])) if task.kind == REGRESSION else np.empty(0, np.int64)
        far = known[outliers(labels[known, t])]
        listed = quoted_list((f"{labels[i, t]:g} (row {rows[i] + 1})" for i in far), _MOST_NAMES, str)
        if len(far):
            verb = "is" if len(far) == 1 else "are"
            lines.append(
                f"{task.name}: {pluralize(len(far), 'number')} {verb} far from the others: {listed}; is one of them a "
                "placeholder, or in another unit? They are trained on as they are"
            )
    return lines


# Numbers are outliers beyond this many interquartile ranges from the median (on a logarithmic scale beyond the second),
# or beyond a gap between neighbours of this factor.
_FAR, _FAR_LOG, _GAP = 10.0, 5.0, 100.0


def outliers(y: np.ndarray) -> np.ndarray:
    """Return the mask of numbers ``float64 [R]`` that are far from the others: ``bool [R]``. Of a positive median,
    positive numbers have to be far on a logarithmic scale too, or on the smaller side of a gap."""
    far = _quartile_distance(y) > _FAR
    if len(y) and np.median(y) > 0:
        order = np.flatnonzero(y > 0)[np.argsort(y[y > 0])]
        logs = np.log10(y[order])
        far[order] &= _quartile_distance(logs) > _FAR_LOG
        for end in (np.flatnonzero(np.diff(logs) >= np.log10(_GAP)) + 1).tolist():
            far[order[:end] if 2 * end < len(order) else order[end:]] = True
    return far


def _quartile_distance(y: np.ndarray) -> np.ndarray:
    """Distance from the median in interquartile ranges; 0 if these are 0."""
    low, middle, high = np.quantile(y, [0.25, 0.5, 0.75]) if len(y) else (0.0, 0.0, 0.0)
    return np.abs(y - middle) / (high - low) if high > low else np.zeros(len(y))


def split_warnings(tasks: Sequence[Task], parts: dict[str, np.ndarray]) -> list[str]:
    """Name classification targets with a single class in the validation or test set."""
    lines = []
    for split, labels in parts.items():
        known = [np.unique(labels[~np.isnan(labels[:, t]), t]) for t in range(len(tasks))]
        one = [task.name for task, classes in zip(tasks, known, strict=True) if task.classes and len(classes) == 1]
        if split in ("valid", "test") and one:
            names = quoted_list(one, _MOST_NAMES, str)
            lines.append(f"the {split_name(split)} set has only one class of {names}: see data.folds")
    return lines


def _target_warning(known: np.ndarray) -> str | None:
    """Return the warning about the values ``float64 [R]`` of a regression target, to follow its name, or None."""
    distinct = np.unique(known)
    if len(distinct) == 1:
        return "has a single value: there is nothing to learn"
    if len(distinct) <= _FEW_VALUES and len(known) > 5 * len(distinct) and (distinct % 1 == 0).all():
        return f"has {len(distinct)} distinct values and is treated as regression: use data.task multiclass for classes"
    return None
