"""Inference of the target column, its level and its task (regression, binary or multiclass) from its cells.

In all functions ``chunks`` are all rows of a table, and ``name`` is its name, for messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from graphslice.config import MOLECULE, DataConfig, quote_item, quote_setting
from graphslice.data.class_words import merge_class_words
from graphslice.data.column_contents import FEW_CLASSES, MOST_CLASSES, ColumnContents, scan_columns
from graphslice.data.columns import LabelColumns, check_unique, quoted_list
from graphslice.data.decimals import COMMA_ADVICE
from graphslice.data.labels import Labels
from graphslice.data.list_columns import list_cells, numbers_of_lists
from graphslice.data.parse_cells import NO_WORDS, YES_WORDS, list_or_none, number_key
from graphslice.data.tables import file_columns
from graphslice.errors import InputError
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION, TASK_KINDS, TRANSFORMS, Task, parse_per_target

# Up to this ratio of cells with commas to numbers, the commas are taken for errors in single rows.
_FEW_COMMAS = 0.1
#: Words that name the positive class, the second of two, whose probability is predicted and scored.
POSITIVE = YES_WORDS | {"+", "toxic", "hit", "pass", "high", "binder"}
# Words that name the negative class.
_NEGATIVE = NO_WORDS | {"-", "nontoxic", "non-toxic", "fail", "low"}
# Beginnings of a word for the negation of the rest.
_NEGATIONS = ("non", "not a", "not", "no", "un")


def infer_tasks(
    chunks: Iterable[pa.Table], targets: Sequence[str], config: DataConfig, name: str, smiles: str | None = None
) -> list[Task]:
    """Determine the task of each target: from ``config.task``, else from its values.

    A column of 0 and 1, or of two different words, is binary, also if yes and no are written by different words. A
    column of more words is multiclass if there are at most 100 different words and, on average, at least 3 rows of
    each. Other numbers, including integers, are regression.

    Of atom- and bond-level targets the values are the numbers of all lists.

    Args:
        targets: names of the target columns.
        config: data settings of the user.
        smiles: column of the SMILES; rows without one are left out.

    Raises:
        InputError: if a column cannot be trained on: it is empty, has a single class, holds neither numbers nor
            classes, contradicts ``config.task``, or has a value without a logarithm where ``log`` is configured.
    """
    if config.level != MOLECULE:
        chunks, smiles = [numbers_of_lists(list(chunks), targets, name)], None
    kinds = parse_per_target(config.task, targets, TASK_KINDS, "--task")
    transforms = parse_per_target(config.transform, targets, TRANSFORMS, "--transform")
    contents = scan_columns(chunks, targets, smiles)
    tasks = []
    for target, column_contents in zip(targets, contents, strict=True):
        task = _infer_task(target, column_contents, kinds.get(target), f"{name}: the target {target!r}")
        tasks.append(_with_transform(task, column_contents, transforms, name, config.transform in TRANSFORMS))
    if config.transform in TRANSFORMS[1:] and not any(task.kind == REGRESSION for task in tasks):
        raise InputError(f"--transform {config.transform}: {name} has no regression target")
    return tasks


def infer_tasks_from_values(labels: np.ndarray, targets: Sequence[str], config: DataConfig, name: str) -> list[Task]:
    """Run :func:`infer_tasks` on numeric labels, ``float64 [R, T]``, nan where unknown."""
    return infer_tasks([pa.table(list(labels.T), names=list(targets))], targets, config, name)


def _infer_task(target: str, contents: ColumnContents, kind: str | None, label: str) -> Task:
    """Return the task of a column; ``kind`` is the configured one, ``label`` names the column in messages."""
    if not contents.measurements + contents.words and "word" not in contents.firsts:
        raise InputError(f"{label} is empty in every row: leave it out, or write its labels")
    others = contents.numbers + contents.words + contents.commas
    if "bound" in contents.firsts and not others and kind in (None, REGRESSION):
        row, cell = contents.first("bound")
        raise InputError(
            f"{label} has bounds alone, such as {cell!r} in row {row}: training needs numbers too; to learn the bounds "
            f"as classes give --task {quote_setting(target, BINARY)}"
        )
    row, cell = contents.first("word")
    if list_or_none(cell) is not None:
        raise InputError(
            f"{label} holds lists of numbers (row {row}): to train on atom-level targets give graphslice train "
            "--level atom, on bond-level targets --level bond"
        )
    # Single words among numbers are errors, reported in rejected.csv. Where classes are configured, bounds are words.
    numeric = contents.numbers >= contents.words + (contents.bounds if kind in (BINARY, MULTICLASS) else 0)
    if not numeric and kind in (None, BINARY):
        names = merge_class_words(contents.names, map(number_key, contents.values), label)
        if names is not None:
            contents = replace(contents, names=names, values=set())
    # Where they separate thousands only large numbers have them: a model would be trained on small values only.
    if contents.commas > max(contents.numbers * _FEW_COMMAS, contents.words) and kind in (None, REGRESSION):
        row, cell = contents.first("comma")
        raise InputError(f"{label} has numbers with commas, such as {cell!r} in row {row}: {COMMA_ADVICE}")
    if kind is None:
        kind = BINARY if contents.values == {0.0, 1.0} and numeric and not contents.bounds else REGRESSION
        if not numeric:
            kind = contents.word_kind
    if kind != REGRESSION and contents.numbers + contents.words + contents.bounds:
        return _classification_task(target, contents, kind, numeric, label)
    if contents.numbers:
        return Task(target)
    row, cell = contents.first("word" if "word" in contents.firsts else "comma")
    raise InputError(
        f"{label} is not numeric (row {row} is {cell!r}): write plain numbers, without units; or, if these are "
        f"classes, give --task {quote_setting(target, MULTICLASS)}"
    )


def _classification_task(target: str, contents: ColumnContents, kind: str, numeric: bool, label: str) -> Task:
    """Return a classification task with the numbers as classes, or with the words (and numbers among them)."""
    if "none" in contents.firsts and not numeric:
        row, cell = contents.first("none")
        raise InputError(
            f"{label} is {cell!r} in row {row}, among words: leave cells with unknown values empty, or write another "
            "word if it is a class"
        )
    names = {key: counts.most_common(1)[0][0] for key, counts in contents.names.items()}
    numbers = list(dict.fromkeys(map(number_key, sorted(contents.values))))
    keys = numbers if numeric else [*sorted(names), *(key for key in numbers if key not in names)]
    if len(keys) > MOST_CLASSES:
        raise InputError(
            f"{label} has more than {MOST_CLASSES} different values, too many to be classes: train it as regression, "
            "or leave it out"
        )
    if len(keys) == 1:
        only = names.get(keys[0], keys[0])
        hint = ", or write a word in place of '-' if that is a class" if contents.dashes else ""
        raise InputError(
            f"{label} is {only!r} in every row with a label: there is nothing to learn, leave it out{hint}"
        )
    if numeric and len(keys) > max(FEW_CLASSES, contents.numbers / 2):
        raise InputError(
            f"{label} has {len(keys)} different numbers in {contents.numbers} rows: too many to be classes; leave out "
            f"--task, or give --task {quote_setting(target, REGRESSION)}"
        )
    if kind == BINARY and len(keys) > 2:
        raise InputError(
            f"{label} has {len(keys)} different values instead of two, such as {names.get(keys[-1], keys[-1])!r}: "
            f"leave cells with unknown values empty, or give --task {quote_setting(target, MULTICLASS)} or {REGRESSION}"
        )
    if len(keys) == 2 and not numeric and _is_positive(*keys):
        keys = keys[::-1]
    return Task(target, BINARY if len(keys) == 2 else MULTICLASS, tuple(names.get(key, key) for key in keys))


def _is_positive(key: str, other: str) -> bool:
    """True if, of the two classes of a target, the words say that the first one is the positive class."""
    if key in POSITIVE or (other in _NEGATIVE and key not in _NEGATIVE):
        return True
    negations = (f"{word}{space}{key}" for word in _NEGATIONS for space in ("", " ", "-"))
    return other in negations or (key[:-1] == other[:-1] and (key[-1:], other[-1:]) == ("+", "-"))


def _with_transform(task: Task, contents: ColumnContents, transforms: dict[str, str], name: str, for_all: bool) -> Task:
    """Return a task with its configured transform; one configured for all targets applies to regression only."""
    transform = transforms.get(task.name, "none")
    if transform == "none" or (for_all and task.kind != REGRESSION):
        return task
    if task.kind != REGRESSION:
        raise InputError(f"--transform {transform}: the target {task.name!r} is {task.kind}, not {REGRESSION}")
    if transform == "log":
        _check_positive(contents.smallest, task.name, name)
    return replace(task, transform=transform)


def check_transforms(labels: Labels, tasks: Sequence[Task], name: str) -> None:
    """Raise :class:`InputError` for a label of the table ``name`` that the transform of its task cannot have."""
    largest = np.fmin(labels.means(), labels.bounds[..., 1] if labels.bounds is not None else np.inf)
    for t, task in enumerate(tasks):
        if task.transform == "log" and len(largest):
            row = int(largest[:, t].argmin())
            _check_positive((largest[row, t], row + 1), task.name, name)


def _check_positive(smallest: tuple[float, int], target: str, name: str) -> None:
    value, row = smallest
    if not value <= 0:
        return
    advice = "leave out zeros, or leave out --transform"
    if value < 0:
        advice = "if it is a logarithm already, leave out --transform; otherwise leave out negative values"
    raise InputError(f"{name}: the target {target!r} is {value:g} in row {row}, which has no logarithm: {advice}")


def infer_target(
    chunks: Sequence[pa.Table], columns: LabelColumns, config: DataConfig, name: str
) -> tuple[str, list[str]]:
    """Infer the target column if the user names none: the only numeric column, or the only column without a role.

    A column of distinct integers may hold catalogue numbers, so it is not chosen if another column holds classes.

    Args:
        columns: the columns that have another role.
        config: data settings of the user; targets of atoms and bonds are lists of numbers.

    Returns:
        The target column; the columns of classes that the user may want to predict too.

    Raises:
        InputError: if there is not exactly one candidate.
    """
    used = (columns.smiles, columns.split, columns.weights, *columns.descriptors, *columns.identifiers)
    others = [column for column in file_columns(chunks[0]).column_names if column not in used]
    if others.count("") > 1:  # spreadsheets write additional commas at the ends of lines
        others = [column for column in others if column]
    check_unique(others, others, name)

    if config.level != MOLECULE:
        numeric = [column for column in others if any(list_cells(chunk, column) for chunk in chunks)]
        if len(numeric) == 1:
            return numeric[0], []
    else:
        contents = dict(zip(others, scan_columns(chunks, others), strict=True))
        numeric = [name for name in others if contents[name].measurements > contents[name].words]
        classes = [column for column in others if column not in numeric and contents[column].looks_like_classes]
        if len(numeric) == 1 and not (classes and contents[numeric[0]].looks_like_ids):
            return numeric[0], classes
        if len(others) == 1:
            return others[0], []  # a column of words: classes, or infer_tasks reports what is wrong with it
    if not others:
        raise InputError(f"{name} has no column that could be predicted, only {quoted_list(filter(None, used))}")
    raise InputError(
        f"{name}: which columns are the targets? Name them with --targets; the columns are "
        f"{quoted_list(others, quote=quote_item)}"
    )
