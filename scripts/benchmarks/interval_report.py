"""Tables of docs/intervals.md, made from the results of ``benchmark.py intervals``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.intervals import LEVELS, SIMILARITIES
from benchmarks.results import markdown
from graphslice.evaluation.format_scores import mean_and_std


def interval_tables(results: Sequence[dict]) -> dict[str, str]:
    """Return the tables of the document by name."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for line in results:
        groups.setdefault((line["task"], line["split"]), []).append(line)
    numbers = {key: lines for key, lines in groups.items() if "jackknife" in lines[0]}
    classes = {key: lines for key, lines in groups.items() if "temperature" in lines[0]}
    versions = sorted({f"{line['version']}, {line['machine']}" for line in results})
    return {
        "interval-versions": f"{'; '.join(versions)}.\n",
        "interval-widths": _numbers(numbers),
        "set-sizes": _classes(classes),
        "temperatures": _calibration(classes),
        "errors-by-distance": _distance(groups),
    }


def _percent(values: Sequence[float]) -> str:
    spread = f" ± {100 * np.std(values, ddof=1):.0f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.0f}{spread}%"


def _column(lines: Sequence[dict], part: str, level: int, name: str) -> list[float]:
    return [line[part][str(level)][name] for line in lines]


def _numbers(groups: dict) -> str:
    parts = ("intervals", "jackknife")
    heads = [*(f"{level}%" for level in LEVELS), "width at 90%"]
    rows = [["task", "split", "seeds", *(f"{head}: GraphSlice, jackknife" for head in heads)]]
    for (task, split), lines in groups.items():
        cells = [", ".join(_percent(_column(lines, part, level, "coverage")) for part in parts) for level in LEVELS]
        widths = [mean_and_std(_column(lines, part, 90, "width"), 3) for part in parts]
        rows.append([task, split, len(lines), *cells, ", ".join(widths)])
    for split, lines in _by_split(groups).items():
        means = [
            ", ".join(f"{100 * np.mean(_column(lines, part, level, 'coverage')):.0f}%" for part in parts)
            for level in LEVELS
        ]
        rows.append(["mean", split, len(lines), *means, ""])
    return markdown(rows)


def _classes(groups: dict) -> str:
    rows = [
        ["task", "split", "seeds", *(f"{level}%" for level in LEVELS), *(f"classes at {level}%" for level in LEVELS)]
    ]
    means = {("mean", split): lines for split, lines in _by_split(groups).items()}
    for (task, split), lines in (groups | means).items():
        covered = [_column(lines, "intervals", level, "coverage") for level in LEVELS]
        cells = [f"{100 * np.mean(values):.0f}%" if task == "mean" else _percent(values) for values in covered]
        sizes = [f"{np.mean(_column(lines, 'intervals', level, 'classes')):.2f}" for level in LEVELS]
        rows.append([task, split, len(lines), *cells, *sizes])
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
        cells = [", ".join(mean_and_std([line[name][i] for line in lines], 3) for i in (0, 1)) for name in names]
        rows.append([task, split, mean_and_std([line["temperature"] for line in lines], 2), *cells])
    return markdown(rows)


def _distance(groups: dict) -> str:
    ends = [f"{low:g} to {high:g}" for low, high in zip(SIMILARITIES, [*SIMILARITIES[1:], 1], strict=True)]
    rows = [["similarity", "regression: molecules", "error", "classification: molecules", "error"]]
    for part, names in (("by_similarity", ends), ("in_domain", ["in domain", "outside"])):
        tables = [_relative(groups, part, kind) for kind in ("jackknife", "temperature")]
        for place, name in enumerate(names):
            rows.append([name, *(cell for table in tables for cell in _cells(table, place))])
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
