"""The document of ``benchmark.py intervals``, made from its results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.table_report import markdown

INTRODUCTION = """\
# Intervals

Measured coverage of conformal prediction intervals and prediction sets. Made by
`python scripts/benchmark.py intervals render` from the lines of [intervals.jsonl](benchmarks/intervals.jsonl), which
`python scripts/benchmark.py intervals run --data DIR` adds to; do not edit.

- **Data.** All rows of a table of TDC's ADMET group, split 80 / 10 / 10 at random or by scaffold, another split for
  each seed.
- **Model.** `graphslice train` with its defaults, then `predict --interval`. Up to 3,000 rows the intervals are
  calibrated on predictions of held-out folds of the training set, otherwise on a validation set.
- **Independence.** Stacking weights for a held-out fold come from the other held-out molecules, and the number of
  epochs is fixed. A validation set also selects the epoch, so errors on it are a little smaller than on new molecules.
- **Figures.** Means over the test molecules of the seeds, ± their standard deviation over the seeds. The coverage of
  100 test molecules deviates by about 3% at a level of 90% by chance.
- **Assumption.** Intervals have their coverage for molecules that are exchangeable with the training set. A scaffold
  split violates this.
"""


def rendered(results: Sequence[dict], levels: Sequence[int], similarities: Sequence[float]) -> str:
    """The whole document.

    Args:
        results: lines of the results.
        levels: in percent.
        similarities: where the bins of similarity begin.
    """
    groups: dict[tuple[str, str], list[dict]] = {}
    for line in results:
        groups.setdefault((line["task"], line["split"]), []).append(line)
    numbers = {key: lines for key, lines in groups.items() if "jackknife" in lines[0]}
    classes = {key: lines for key, lines in groups.items() if "temperature" in lines[0]}
    versions = sorted({f"{line['version']}, {line['machine']}" for line in results})
    return "\n".join(
        [
            INTRODUCTION + f"\n{'; '.join(versions)}.\n",
            _NUMBERS + _numbers(numbers, levels),
            _CLASSES + _classes(classes, levels),
            _CALIBRATION + _calibration(classes),
            _DISTANCE + _distance(groups, similarities),
        ]
    )


_NUMBERS = """\
## Regression: coverage and width

Compared with the jackknife+ after bootstrap of a random forest (200 trees on Morgan counts, trained on the training and
validation rows). Widths are in the unit of the table.

"""
_CLASSES = """\
## Classification: coverage and size of prediction sets

The coverage holds for each class. A set of one class is a prediction; a set of both classes means that the model cannot
decide.

"""
_CALIBRATION = """\
## Probabilities: before and after temperature scaling

Expected calibration error (15 bins, torchmetrics) and log loss on the test rows. With so few molecules, perfectly
calibrated probabilities have a calibration error above 0 too. The temperature is 1 where scaling does not improve the
log loss of the calibration molecules.

"""
_DISTANCE = """\
## Error by distance to the training molecules

Tanimoto similarity to the nearest training molecule (Morgan, 1,024 bits, radius 2); all splits and seeds. Errors are
relative to the mean of their task, split and seed, so 1 is the average. The error of a classification is a wrong class.
The last two rows are by the column `in_domain` of `predict`.

"""


def _mean(values: Sequence[float], digits: int = 3) -> str:
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def _percent(values: Sequence[float]) -> str:
    spread = f" ± {100 * np.std(values, ddof=1):.0f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.0f}{spread}%"


def _column(lines: Sequence[dict], part: str, level: int, name: str) -> list[float]:
    return [line[part][str(level)][name] for line in lines]


def _numbers(groups: dict, levels: Sequence[int]) -> str:
    head = [
        "task",
        "split",
        "seeds",
        *(f"{level}%: GraphSlice, jackknife" for level in levels),
        "width at 90%: GraphSlice, jackknife",
    ]
    rows, parts = [head], ("intervals", "jackknife")
    for (task, split), lines in groups.items():
        cells = [", ".join(_percent(_column(lines, part, level, "coverage")) for part in parts) for level in levels]
        widths = [_mean(_column(lines, part, 90, "width")) for part in parts]
        rows.append([task, split, str(len(lines)), *cells, ", ".join(widths)])
    for split, lines in _by_split(groups).items():
        cells = [
            ", ".join(f"{100 * np.mean(_column(lines, part, level, 'coverage')):.0f}%" for part in parts)
            for level in levels
        ]
        rows.append(["mean", split, str(len(lines)), *cells, ""])
    return markdown(rows)


def _classes(groups: dict, levels: Sequence[int]) -> str:
    rows = [
        ["task", "split", "seeds", *(f"{level}%" for level in levels), *(f"classes at {level}%" for level in levels)]
    ]
    for (task, split), lines in groups.items():
        cells = [_percent(_column(lines, "intervals", level, "coverage")) for level in levels]
        sizes = [f"{np.mean(_column(lines, 'intervals', level, 'classes')):.2f}" for level in levels]
        rows.append([task, split, str(len(lines)), *cells, *sizes])
    for split, lines in _by_split(groups).items():
        cells = [f"{100 * np.mean(_column(lines, 'intervals', level, 'coverage')):.0f}%" for level in levels]
        sizes = [f"{np.mean(_column(lines, 'intervals', level, 'classes')):.2f}" for level in levels]
        rows.append(["mean", split, str(len(lines)), *cells, *sizes])
    return markdown(rows)


def _by_split(groups: dict) -> dict[str, list[dict]]:
    """The lines of every split, of all tasks."""
    found: dict[str, list[dict]] = {}
    for (_, split), lines in groups.items():
        found.setdefault(split, []).extend(lines)
    return dict(sorted(found.items()))


def _calibration(groups: dict) -> str:
    names = ("calibration_error", "log_loss")
    rows = [["task", "split", "temperature", *(f"{name.replace('_', ' ')}: before, after" for name in names)]]
    for (task, split), lines in groups.items():
        cells = [", ".join(_mean([line[name][i] for line in lines]) for i in (0, 1)) for name in names]
        rows.append([task, split, _mean([line["temperature"] for line in lines], 2), *cells])
    return markdown(rows)


def _distance(groups: dict, similarities: Sequence[float]) -> str:
    ends = [f"{low:g} to {high:g}" for low, high in zip(similarities, [*similarities[1:], 1], strict=True)]
    rows = [["similarity", "regression: molecules", "error", "classification: molecules", "error"]]
    tables = [_relative(groups, "by_similarity", kind) for kind in ("jackknife", "temperature")]
    inside = [_relative(groups, "in_domain", kind) for kind in ("jackknife", "temperature")]
    for place, end in enumerate(ends):
        rows.append([end, *(cell for table in tables for cell in _cells(table, place))])
    for place, name in enumerate(("in domain", "outside")):
        rows.append([name, *(cell for table in inside for cell in _cells(table, place))])
    return markdown(rows)


def _relative(groups: dict, part: str, kind: str) -> list[tuple[int, float]]:
    """The number of molecules of each bin, and the sum of their errors relative to the mean error of their line."""
    total: list[list[float]] = []
    for line in (line for lines in groups.values() for line in lines if kind in line):
        count, errors = np.array(line[part], float).T
        mean = errors.sum() / count.sum() or 1.0
        total.append(list(zip(count, errors / mean, strict=True)))
    return [tuple(map(float, each)) for each in np.sum(total, axis=0)] if total else []


def _cells(table: list[tuple[int, float]], place: int) -> list[str]:
    if not table or table[place][0] == 0:
        return ["0", ""]
    count, error = table[place]
    return [f"{count:,.0f}", f"{error / count:.2f}"]
