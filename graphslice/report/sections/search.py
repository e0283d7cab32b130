"""Report section on the search of hyperparameters that selected the configuration of a run."""

from __future__ import annotations

import csv

import numpy as np
from markupsafe import Markup

from graphslice.evaluation.format_scores import NONE, number
from graphslice.evaluation.metrics import METRICS, Metric
from graphslice.report.load_run import Run
from graphslice.report.page_elements import Section, Table, Text
from graphslice.run_files import TRIALS

# Maximum number of trials in the table.
_MAX_LISTED = 15


def search_section(run: Run) -> Section | None:
    """Build the section on the search; None if the run has no ``trials.csv``."""
    path = run.folder / TRIALS
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8") as file:
        trials = list(csv.DictReader(file))
    complete = [trial for trial in trials if np.isfinite(_as_number(trial["value"]))]
    section = Section("search", "Hyperparameter search")
    if not complete:
        return section
    metric = METRICS[trials[0]["metric"]]
    pruned = sum(trial["state"] == "pruned" for trial in trials)
    text = f"{len(trials):,} trials, of which {len(complete):,} were complete and {pruned:,} pruned. "
    text += f"Each is scored by {metric.label} on held-out folds of the training set; the test set was not read. "
    text += "The mean over further seeds, which also hold out other folds, selected the configuration."
    section.parts.append(Text(text))
    section.parts.append(_table(complete, metric))
    return section


def _as_number(text: str) -> float:
    """Return nan for an empty text, and for one that is no number."""
    try:
        return float(text)
    except ValueError:
        return np.nan


def _is_chosen(trial: dict[str, str]) -> bool:
    return trial["chosen"] == "yes"


def _table(trials: list[dict[str, str]], metric: Metric) -> Table:
    """Tabulate the best trials, those with further seeds first."""

    def order(trial: dict[str, str]) -> tuple[bool, bool, float]:
        value, mean = _as_number(trial["value"]), _as_number(trial["mean"])
        return not _is_chosen(trial), not np.isfinite(mean), metric.loss(mean if np.isfinite(mean) else value)

    options = [name for name in trials[0] if "." in name]
    rows: list[list[str | Markup]] = []
    for trial in sorted(trials, key=order)[:_MAX_LISTED]:
        value, mean, seconds = (_as_number(trial[name]) for name in ("value", "mean", "seconds"))
        scores = [number(value, 4), number(mean, 4) if np.isfinite(mean) else NONE, f"{seconds:.0f}"]
        name = f"{trial['trial']}{' (selected)' * _is_chosen(trial)}"
        rows.append([name, *scores, *(_shorter(trial[option]) for option in options)])
    head = ["trial", f"{metric.label}, first seed", "mean of further seeds", "seconds", *options]
    shown = "" if len(rows) == len(trials) else f"; the best {len(rows)} of {len(trials):,}"
    return Table(f"Complete trials, {TRIALS} lists all{shown}.", head, rows)


def _shorter(text: str) -> str:
    """Shorten a number to three digits; an empty text is the default."""
    return "default" if not text else f"{float(text):.3g}" if np.isfinite(_as_number(text)) else text
