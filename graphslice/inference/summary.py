"""Predictions to be read: for each molecule a table of the targets, with units and percentiles."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa

from graphslice.tasks import MULTICLASS, Task


class SummaryTables:
    """Prints the rows of a table of predictions as tables of all targets; columns without any content are left out.

    Args:
        tasks: the prediction tasks, of molecule-level targets.
        added: names of the columns that predictions add; the others are those of the input.
        file: where to print.
    """

    def __init__(self, tasks: Sequence[Task], added: Collection[str], file: IO[str]) -> None:
        self.tasks, self.added, self.file = tasks, added, file

    def write(self, chunk: pa.Table) -> None:
        """Print rows of a table."""
        for row in chunk.to_pylist():
            print(*self._lines(row), "", sep="\n", file=self.file)

    def _lines(self, row: dict[str, Any]) -> list[str]:
        given = (value for column, value in row.items() if column not in self.added)
        name = ", ".join(one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in given)
        if row["error"] is not None:
            return [f"{name}: {row['error']}"]
        if row.get("in_domain") is not None:
            where = "inside" if row["in_domain"] else "outside"
            name += f": {where} the applicability domain, similarity {row['similarity']:.2f}"
        head = ("target", "prediction", "interval or set", "percentile", "description")
        table = zip(head, *(_cells(task, row) for task in self.tasks), strict=True)
        columns = [column for column in table if any(column[1:])]
        widths = [max(map(len, column)) for column in columns]
        lines = ("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in zip(*columns, strict=True))
        return [name, *lines]


def _cells(task: Task, row: dict[str, Any]) -> tuple[str, ...]:
    """Return name, prediction, interval or prediction set, percentile and description of a target as texts."""
    predicted, interval = row[f"{task.name}_pred"], ""
    if task.classes:
        name = predicted if task.kind == MULTICLASS else task.classes[1]
        value = row[task.columns[task.classes.index(name) - len(task.classes)]]
        text, classes = f"{name}: {value:.2f}", row.get(f"{task.name}_set")
        interval = "" if classes is None else classes.replace("|", " or ") or "no class"
    else:
        value, text, low = predicted, f"{predicted:.4g} {task.unit}".rstrip(), row.get(f"{task.name}_low")
        interval = "" if low is None else f"{low:.4g} to {row[f'{task.name}_high']:.4g}"
    known = task.reference and task.kind != MULTICLASS
    return task.name, text, interval, f"{percentile(task, value):.0f}" if known else "", task.description


def percentile(task: Task, value: float) -> float:
    """Return the percentage of the reference molecules with a smaller prediction, where half of equal ones count."""
    reference = np.array(task.reference)
    below, up_to = (np.searchsorted(reference, value, side) for side in ("left", "right"))
    return float(50 * (below + up_to) / len(reference))
