"""Inference of the target column, its level and its task (regression, binary or multiclass) from its cells.

In all functions ``chunks`` are all rows of a table, and ``name`` is its name, for messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from graphslice.config import MOLECULE, DataConfig, quote_item, quote_setting
from graphslice.data.column_contents import MOST_CLASSES, ColumnContents, scan_columns
from graphslice.data.columns import LabelColumns, check_unique, quoted_list
from graphslice.data.decimals import COMMA_ADVICE
from graphslice.data.list_columns import list_cells, numbers_of_lists
from graphslice.data.parse_cells import list_or_none, number_key
from graphslice.data.tables import file_columns
from graphslice.errors import InputError
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION, TASK_KINDS, TRANSFORMS, Task, parse_per_target

# Up to this ratio of cells with commas to numbers, the commas are taken for errors in single rows.
_FEW_COMMAS = 0.1


def infer_tasks(
    chunks: Iterable[pa.Table], targets: Sequence[str], config: DataConfig, name: str, smiles: str | None = None
) -> list[Task]:
    """Determine the task of each target: from ``config.task``, else from its values.

    Numbers are regression; only 0 and 1, or exactly two words, are binary (the second word in alphabetical order is the
    positive class, as in scikit-learn); at most 100 words with, on average, at least three rows each are multiclass.
    Anything else is an error.

    Of atom- and bond-level targets the values are the numbers of all lists. Rows without a SMILES are left out, if
    ``smiles`` names that column.
    """
    if config.level != MOLECULE:
        chunks, smiles = [numbers_of_lists(list(chunks), targets, name)], None
    kinds = parse_per_target(config.task, targets, TASK_KINDS, "data.task")
    transforms = parse_per_target(config.transform, targets, TRANSFORMS, "data.transform")
    tasks = [
        _infer_task(target, contents, kinds.get(target), f"{name}: the target {target!r}")
        for target, contents in zip(targets, scan_columns(chunks, targets, smiles), strict=True)
    ]
    return [_with_transform(task, transforms, config.transform in TRANSFORMS) for task in tasks]


def infer_tasks_from_values(labels: np.ndarray, targets: Sequence[str], config: DataConfig, name: str) -> list[Task]:
    """Run :func:`infer_tasks` on numeric labels, ``float64 [R, T]``, nan where unknown."""
    return infer_tasks([pa.table(list(labels.T), names=list(targets))], targets, config, name)


def _infer_task(target: str, contents: ColumnContents, kind: str | None, label: str) -> Task:
    """Return the task of a column; ``kind`` is the configured one, ``label`` names the column in messages."""
    if not contents.numbers + contents.bounds + contents.words:
        raise InputError(f"{label} is empty in every row: leave it out, or write its labels")
    row, cell = contents.firsts.get("word", (0, ""))
    if list_or_none(cell) is not None:
        raise InputError(
            f"{label} holds lists of numbers (row {row}): to train on atom-level targets give graphslice train "
            "data.level atom, on bond-level targets data.level bond"
        )
    # Where they separate thousands only large numbers have them: a model would be trained on small values only.
    others = contents.words - contents.commas
    if contents.commas > max(contents.numbers * _FEW_COMMAS, others) and kind in (None, REGRESSION):
        row, cell = contents.firsts["comma"]
        raise InputError(f"{label} has numbers with commas, such as {cell!r} in row {row}: {COMMA_ADVICE}")
    is_flag = contents.values == {0.0, 1.0} and contents.is_numeric and not contents.bounds
    if kind in (BINARY, MULTICLASS) or (kind is None and (is_flag or contents.are_classes)):
        return _classification_task(target, contents, kind or MULTICLASS, label)
    if contents.is_numeric or (kind == REGRESSION and contents.numbers):
        return Task(target)
    raise InputError(
        f"{label} is not numeric (row {row} is {cell!r}): write plain numbers, without units; or, if these are "
        f"classes, give data.task {quote_setting(target, MULTICLASS)}"
    )


def _classification_task(target: str, contents: ColumnContents, kind: str, label: str) -> Task:
    """Return a classification task with the numbers as classes, or with the words (and numbers among them)."""
    keys = {number_key(value): number_key(value) for value in sorted(contents.values)}
    if contents.numbers < contents.words + contents.bounds:
        if "none" in contents.firsts:
            row, cell = contents.firsts["none"]
            raise InputError(
                f"{label} is {cell!r} in row {row}, among words: leave cells with unknown values empty, or write "
                "another word if it is a class"
            )
        keys = dict(sorted((keys | contents.names).items()))
    names = tuple(keys.values())
    if len(names) == 1:
        raise InputError(f"{label} is {names[0]!r} in every row with a label: there is nothing to learn, leave it out")
    most = MOST_CLASSES if kind == MULTICLASS else 2
    if len(names) > most:
        raise InputError(
            f"{label} has more than {most} different values, such as {names[-1]!r}: leave cells with unknown values "
            f"empty, or give data.task {quote_setting(target, MULTICLASS if kind == BINARY else REGRESSION)}"
        )
    return Task(target, BINARY if len(names) == 2 else MULTICLASS, names)


def _with_transform(task: Task, transforms: dict[str, str], for_all: bool) -> Task:
    """Return a task with its configured transform; one configured for all targets applies to regression only."""
    transform = transforms.get(task.name, "none")
    if transform == "none" or (for_all and task.kind != REGRESSION):
        return task
    if task.kind != REGRESSION:
        raise InputError(f"data.transform {transform}: the target {task.name!r} is {task.kind}, not {REGRESSION}")
    return replace(task, transform=transform)


def infer_target(chunks: Sequence[pa.Table], columns: LabelColumns, config: DataConfig, name: str) -> str:
    """Infer the target column if the user names none: the only one that can be a target, or the only other column."""
    used = (columns.smiles, columns.split, columns.weights, *columns.descriptors, *columns.identifiers)
    names = file_columns(chunks[0]).column_names
    others = [column for column in names if column not in used and column.strip().lower() != "split"]
    if others.count("") > 1:  # spreadsheets write additional commas at the ends of lines
        others = [column for column in others if column]
    check_unique(others, others, name)
    if config.level != MOLECULE:
        possible = [column for column in others if any(list_cells(chunk, column) for chunk in chunks)]
    else:
        contents = dict(zip(others, scan_columns(chunks, others), strict=True))
        possible = [column for column in others if contents[column].can_be_target]
    found = possible if len(possible) == 1 else others
    if len(found) == 1:
        return found[0]  # also a column of other words: infer_tasks says what is wrong with it
    if not others:
        raise InputError(f"{name} has no column that could be predicted, only {quoted_list(filter(None, used))}")
    raise InputError(
        f"{name}: which columns are the targets? Name them with data.targets; the columns are "
        f"{quoted_list(others, quote=quote_item)}"
    )
