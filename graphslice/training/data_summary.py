"""What a user is told of the targets before training: what they are taken for, and what looks wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape

from graphslice.config import MOLECULE
from graphslice.data.datamodule import MoleculeData
from graphslice.run_files import CORPUS
from graphslice.tasks import REGRESSION, TASK_KINDS, Task
from graphslice.training.run_directory import REJECTED

# So many names are listed; of so many different whole numbers the values may be classes.
_MOST_NAMES, _FEW_VALUES = 6, 10
# Positive numbers whose largest is so many times their median are skewed, if their logarithms are less so.
_SKEWED = 10.0

# A spread below this share of the size is hardly left of float32, which has 7 digits.
_MIN_RELATIVE_STD = 1e-6

# Fewer usable rows than these are worth a warning.
_FEW_ROWS = 10


def print_data_summary(console: Console, data: MoleculeData) -> None:
    """Say what will be learned, of how many molecules, and what looks wrong with it."""
    if len(data.usable_rows) < _FEW_ROWS:
        few = f"only {len(data.usable_rows)} of {len(data.dataset):,} rows are usable: too few to train and evaluate on"
        console.print(f"[yellow]warning[/]: {few}", highlight=False, soft_wrap=True)
    tasks, labels = data.dataset.tasks, data.dataset.labels(data.usable_rows)
    if (level := data.dataset.level) != MOLECULE:
        console.print(f"of {len(labels):,} {level}s of {len(data.usable_rows):,} molecules:", highlight=False)
    for line in describe_tasks(tasks, labels):
        console.print(line, highlight=False, markup=False)
    for beside, some in data.dataset.auxiliary.items():
        names = ", ".join(some.names)
        count = int(some.counts_of(data.usable_rows).sum())
        console.print(f"beside: {names} of {count:,} {beside}s, not predicted", highlight=False, markup=False)
    pretrained = Path(data.config.data.dataset).name == CORPUS  # of which there are no folds
    parts = {split: data.dataset.labels(rows) for split, rows in data.splits.items() if len(rows)}
    for line in [
        *data.dataset.notes,
        *data_warnings(tasks, labels),
        *split_warnings(tasks, parts, folds=not pretrained),
    ]:
        console.print(f"[yellow]note[/]: {escape(line)}", highlight=False, soft_wrap=True)
    sizes = {split: len(rows) for split, rows in data.splits.items()}
    splits = ", ".join(f"{size:,} {split}" for split, size in sizes.items())
    lost = ""
    if data.rejected:
        row = min(data.rejected)
        lost = f"; {len(data.rejected):,} rows rejected ({REJECTED}), the first, row {row + 1}: {data.rejected[row]}"
    if (repeated := data.duplicates.describe()) is not None:
        console.print(repeated, highlight=False, soft_wrap=True)
    console.print(f"{splits}{lost}", highlight=False, markup=False, soft_wrap=True)


def describe_tasks(tasks: Sequence[Task], labels: np.ndarray) -> list[str]:
    """One line for each kind of target that there is.

    Args:
        tasks: T targets.
        labels: ``float64 [R, T]`` in the user's unit, or places of classes; nan where unknown.
    """
    lines = []
    for kind in TASK_KINDS:
        named = [_describe_task(task, labels[:, t]) for t, task in enumerate(tasks) if task.kind == kind]
        more = f" and {len(named) - _MOST_NAMES:,} more" if len(named) > _MOST_NAMES else ""
        if named:
            lines.append(f"{kind}: {', '.join(named[:_MOST_NAMES])}{more}")
    return lines


def _describe_task(task: Task, labels: np.ndarray) -> str:
    if task.kind == REGRESSION:
        return task.name if task.transform == "none" else f"{task.transform} of {task.name}"
    counts = np.bincount(labels[~np.isnan(labels)].astype(int), minlength=len(task.classes))
    shown = [f"{count:,} {name}" for name, count in zip(task.classes, counts.tolist(), strict=True)]
    return f"{task.name} ({', '.join(shown[:_MOST_NAMES])}{', ...' if len(shown) > _MOST_NAMES else ''})"


def data_warnings(tasks: Sequence[Task], labels: np.ndarray) -> list[str]:
    """What to think of before numbers are believed: at most one line for each thing that was found.

    Args:
        tasks, labels: as of :func:`describe_tasks`.
    """
    found: dict[str, list[str]] = {}
    for t, task in enumerate(tasks):
        known = labels[~np.isnan(labels[:, t]), t]
        reason = _target_warning(task, known) if task.kind == REGRESSION and len(known) else None
        if reason:
            found.setdefault(reason, []).append(task.name)
    return [f"{_shorten_list(names)} {reason}" for reason, names in found.items()]


def split_warnings(tasks: Sequence[Task], parts: dict[str, np.ndarray], *, folds: bool = True) -> list[str]:
    """Which splits cannot judge a target of classes, for want of one: at most one line a split.

    Args:
        tasks: T targets.
        parts: ``float64 [R, T]``, the labels of each split.
        folds: whether there could be some.
    """
    lines = []
    for split, labels in parts.items():
        known = [np.unique(labels[~np.isnan(labels[:, t]), t]) for t in range(len(tasks))]
        one = [task.name for task, found in zip(tasks, known, strict=True) if task.classes and len(found) == 1]
        if split in ("valid", "test") and one:
            way = ": --folds judges by all molecules" if folds else ""
            lines.append(f"the {split} molecules have one class alone of {_shorten_list(one)}{way}")
    return lines


def _target_warning(task: Task, known: np.ndarray) -> str | None:
    """What is said of a target of numbers, ``float64 [R]``, behind its name."""
    different = np.unique(known)
    if len(different) == 1:
        return "has one value alone: there is nothing to learn"
    if known.std() < _MIN_RELATIVE_STD * np.abs(known.mean()):
        return (
            "spreads by less than a millionth of its size, which float32 hardly tells apart: subtract a constant first"
        )
    if len(different) <= _FEW_VALUES and len(known) > 5 * len(different) and (different % 1 == 0).all():
        return f"has {len(different)} different values, learned as numbers: --task multiclass makes them classes"
    if task.transform == "none" and different[0] > 0 and len(known) >= 10 and is_skewed(known):
        return "is positive and skewed, its largest values far from the others: --transform log may predict it better"
    return None


def is_skewed(values: np.ndarray) -> bool:
    """Whether some positive numbers are, and their logarithms are not: ``float64 [R]``."""
    if values.max() < _SKEWED * np.median(values):
        return False
    logs = np.log(values)
    return abs(_skewness(logs)) < abs(_skewness(values))


def _skewness(values: np.ndarray) -> float:
    spread = values.std()
    return float((((values - values.mean()) / spread) ** 3).mean()) if spread > 0 else 0.0


def _shorten_list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"
