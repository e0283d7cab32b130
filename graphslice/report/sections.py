"""Sections of a report on the data and the run."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
from markupsafe import Markup

from graphslice.data.splits import SPLITS, Splits, split_name
from graphslice.errors import pluralize
from graphslice.evaluation.format_scores import (
    MINUS,
    NONE,
    PRINTED_METRICS,
    describe_bounds,
    describe_covered,
    describe_width,
    label_noun,
    mean_and_std,
    number,
    plain,
)
from graphslice.evaluation.metrics import COVERAGE_LEVEL, METRICS, prediction_count
from graphslice.report.figures import Figure, Figures, Heading, Part, Section, Table, Text, learning_curves
from graphslice.report.load_run import Run, read_curve
from graphslice.runs.checkpoint import Checkpoint
from graphslice.runs.run_files import REJECTED, is_finished, read_metrics, read_splits
from graphslice.stacking.stacking import NAMES, NETWORK, STACK
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION, TASK_KINDS, Task, bound_text
from graphslice.training.data_summary import WITHOUT_LABEL, describe_bounded

_MAX_REJECTED, _MAX_CLASSES = 10, 20


def data_section(run: Run) -> Section:
    """Build the section on splits, rejected rows, duplicates and labels."""
    section = Section("data", "Data")
    if run.data is None:
        note = f"The molecules cannot be shown: {run.data_error}. This report shows what the run directory contains."
        section.parts.append(Text(note, note=True))
    section.parts.append(_sizes(run))
    section.parts += _rejected(run)
    if run.data is None:
        return section
    repeated = run.data.duplicates.describe()
    summary = f"{repeated[:1].upper()}{repeated[1:]}." if repeated else "No molecule occurs in more than one row."
    section.parts += [Heading("Duplicates"), Text(summary)]
    section.parts += _labels(run)
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
        caption = "Rows of each split of the first model; further members may have different validation sets."
    return Table(caption, ["split", "rows", "share"], rows)


def _splits_by_name(splits: Splits) -> Splits:
    return {split: splits[split] for split in SPLITS if len(splits.get(split, ()))}


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f}%" if total else NONE


def _rejected(run: Run) -> list[Part]:
    path, lines = run.folder / REJECTED, list[dict[str, str]]()
    if path.is_file():
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            lines = list(csv.DictReader(file))
    parts: list[Part] = [Heading("Rejected rows and labels")]
    if not lines:
        return [*parts, Text("No row and no label was rejected.")]
    used = sum(line["reason"].endswith(WITHOUT_LABEL) for line in lines)
    caption = f"{pluralize(len(lines) - used, 'row')} rejected"
    caption += f", {pluralize(used, 'row')} used without an invalid label" * bool(used) + f"; {REJECTED} lists all."
    numbers = defaultdict[str, list[str]](list)
    for line in lines:
        numbers[line["reason"]].append(line["row"])
    rows = [[reason, f"{len(each):,}", each[0]] for reason, each in numbers.items()][:_MAX_REJECTED]
    return [*parts, Table(f"{caption} Row numbers count from 1.", ["reason", "rows", "first row"], rows)]


def _labels(run: Run) -> list[Part]:
    """Tabulate the quantiles (regression) and class counts of the labels of the first targets."""
    data = run.molecules
    dataset, splits = data.dataset, _splits_by_name(data.splits)
    if run.folds:  # every molecule is in the training, validation or test set of some fold
        splits = {"all": data.usable_rows}
    numbers: list[list[str]] = []
    classes: list[list[str]] = []
    for t, task in enumerate(dataset.tasks[:MAX_TARGETS]):
        labels = {split: dataset.targets[rows, t] for split, rows in splits.items()}
        known = {split_name(split): y[~np.isnan(y)] for split, y in labels.items()}
        if task.kind == REGRESSION:
            for split, y in known.items():
                if len(y):
                    quantiles = (plain(float(q)) for q in np.quantile(y, (0, 0.25, 0.5, 0.75, 1)))
                    numbers.append([task.name, split, f"{len(y):,}", *quantiles])
        else:
            counts = np.array([np.bincount(y.astype(int), minlength=len(task.classes)) for y in known.values()])
            for k in np.argsort(-counts.sum(axis=0), kind="stable")[:_MAX_CLASSES].tolist():
                cells = zip(counts[:, k].tolist(), counts.sum(axis=1).tolist(), strict=True)
                shares = (f"{count:,} ({_share(count, total)})" for count, total in cells)
                classes.append([task.name, task.classes[k], *shares])
    parts: list[Part] = [Heading("Labels")]
    if numbers:
        head = ["target", "split", "labels", "least", "lower quartile", "median", "upper quartile", "largest"]
        parts.append(Table("Quantiles of the labels.", head, numbers))
    if classes:
        caption = f"Labels of the {_MAX_CLASSES} most frequent classes, and their share of all labels of the split."
        parts.append(Table(caption, ["target", "class", *map(split_name, splits)], classes))
    bounds = describe_bounded(dataset.tasks, dataset.bounds(data.usable_rows))
    for split in ("valid", "test"):
        bounds += describe_bounds(run.split_name(split), run.metrics[split]) if split in run.metrics else []
    parts += [Text(f"{line[:1].upper()}{line[1:]}.") for line in bounds]
    if (more := len(dataset.tasks) - MAX_TARGETS) > 0:
        parts.append(Text(f"Labels of the first {MAX_TARGETS} targets; {more:,} more targets are not shown."))
    return parts


def label_text(task: Task, label: float, bounds: np.ndarray | None = None) -> str:
    """Format a label: a number, the name of a class, or if it is nan its ``bounds``, ``float64 [2]``; else a dash."""
    if np.isnan(label):
        return NONE if bounds is None else bound_text(bounds) or NONE
    return plain(label) if task.kind == REGRESSION else task.classes[int(label)]


#: Maximum number of targets shown in detail.
MAX_TARGETS = 12

# Scores in the unit of the target.
_ERRORS = ("mae", "rmse", "median_error")
# Splits on which a model is evaluated, in the order of the table columns.
_SPLITS = ("valid", "test")


# Scores of a headline, and their names there.
_HEADLINE_SCORES = {
    REGRESSION: {"median_error": "typical error (median)", "spearman": "rank correlation"},
    BINARY: {"auroc": "AUROC", "balanced_accuracy": "balanced accuracy"},
    MULTICLASS: {"accuracy": "accuracy", "auroc": "AUROC"},
}
# Scores of fewer molecules, or of fewer of a class, vary widely by chance.
_MIN_SCORED, _MIN_OF_CLASS = 20, 5
# A column name that ends with a unit, such as "Solubility (uM)" or "dose [mg/kg]".
_WITH_UNIT = re.compile(
    r"(.*\S)\s*[(\[]((?:[npuµμmk]?(?:M|g|L|s|mol|eV|cal|J|m)|cm|Å|min|h|d|K|°C|Da|%|[/·^\d⁻¹²³ -])+)[)\]]"
)


def _few(scores: Mapping) -> str:
    """Say of what a target has too few labels for its scores; empty if it has enough."""
    if prediction_count(dict(scores))[0] < _MIN_SCORED:
        return f"fewer than {_MIN_SCORED}"
    is_rare = scores["kind"] == BINARY and min(scores["counts"].values()) < _MIN_OF_CLASS
    return f"fewer than {_MIN_OF_CLASS} of a class" * is_rare


def headlines(run: Run) -> list[Markup]:
    """Describe the scores of each of the first targets in a sentence: on held-out folds before the test set, or on the
    test set alone; without either, on the validation set."""
    sentences = []
    for task in run.checkpoints[0].tasks[:MAX_TARGETS]:
        by_split = {split: run.metrics[split]["targets"].get(task.name) for split in _SPLITS if split in run.metrics}
        scored = [(split, scores) for split, scores in by_split.items() if scores and prediction_count(scores)[0]]
        named = None if task.unit else _WITH_UNIT.fullmatch(task.name)
        name, unit = named.groups() if named else (task.name, task.unit)
        clauses: list[Markup] = []
        for split, scores in scored if run.held_out_folds else scored[-1:]:
            count, noun = prediction_count(scores)
            sample = pluralize(count, f"{run.split_name(split)} {noun[:-1]}")
            if few := _few(scores):
                sample += f" ({few}: largely chance)"
            values = []
            for metric, label in _HEADLINE_SCORES[task.kind].items():
                value = _value(metric, scores[metric], 2) + f" {unit}".rstrip() * (metric in _ERRORS)
                if metric == "median_error" and (factor := scores.get("median_factor")) is not None:
                    value = f"a factor of {plain(factor, 3)}"
                values.append(Markup("{}<strong>{}</strong>").format("" if clauses else f"{label} ", value))
            clauses.append(Markup(" and " if clauses else ", ").join(values) + f"{',' * (not clauses)} on {sample}")
        if clauses:
            sentences.append(Markup("<b>{}</b>: {}.").format(name, Markup("; ").join(clauses)))
    return sentences


def facts(run: Run) -> list[tuple[str, str]]:
    """Summarise the run as pairs of name and value."""
    training, start = run.training, run.start
    model = f"{run.config.model.mixer} mixer, {pluralize(run.config.model.layers, 'layer')}"
    if run.folds:
        model = f"cross-validation with {len(run.models)} models, one per fold; each {model}"
    elif len(run.models) > 1:
        model = f"ensemble of {len(run.models)} models, whose predictions are averaged; each {model}"
    devices = f" x {training['devices']}" if training["devices"] > 1 else ""
    rows = [
        ("model", f"{model}; {training['parameters']:,} parameters"),
        ("split", _split(run)),
        ("device", f"{training['device']}{devices}"),
        (f"training time of the {'final ' * run.held_out_folds}network", _duration(training["seconds"])),
    ]
    if "total_seconds" in training:
        rows.append(("time of the whole run", _duration(training["total_seconds"])))
    if origin := run.metrics.get("init_from"):
        rows.append(("initialised from", origin))
    if start:
        machine = start["machine"]
        rows.append(("date", datetime.fromisoformat(start["date"]).strftime("%Y-%m-%d %H:%M %z")))
        rows.append(("machine", f"{machine.get('gpu', machine['machine'])}, {machine['cores']} cores"))
        rows.append(("version", f"GraphSlice {start['version']}, torch {machine['torch']}, RDKit {machine['rdkit']}"))
    return rows


def _split(run: Run) -> str:
    data = run.config.data
    if run.folds:
        return f"{data.folds} folds, {data.split or 'random'}"
    if run.data is None:
        return data.split or "given in the dataset, else random"
    return data.split or ("random" if run.data.dataset.splits is None else "given in the dataset")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def scores_section(run: Run) -> Section:
    """Build the section on scores: per split, per target, and of network and base models separately."""
    notes = [Text(f"Initial model: {note}.", note=True) for note in run.start.get("notes", [])]
    parts: list[Part] = [*notes, *_targets(run), *_component_scores(run), *_intervals(run)]
    return Section("scores", "Scores", parts)


def _intervals(run: Run) -> list[Heading | Table]:
    """Tabulate coverage and width of the prediction intervals on the test set, and of sets their size."""
    test_scores = run.metrics.get("test", {})
    width, classes = (f"{name}_{COVERAGE_LEVEL}" for name in ("width", "classes"))
    intervals, sets = [], []
    for name, scores in test_scores.get("targets", {}).items():
        if width in scores:  # computed, and not infinite because of too few validation molecules
            intervals.append([name, describe_covered(scores), describe_width(scores)])
        elif classes in scores:
            sets.append([name, describe_covered(scores), number(scores[classes]), f"{scores['temperature']:.2f}"])
    if not intervals and not sets:
        return []
    labels = label_noun(test_scores)
    covered = f"on the test set: share of {labels} covered{' and what chance allows' * (labels == 'labels')}"
    unit = "in the unit of the target, or the factor between the bounds"
    of_intervals = f"{COVERAGE_LEVEL}% prediction intervals {covered}, and mean width {unit}."
    of_sets = f"{COVERAGE_LEVEL}% prediction sets {covered}, mean number of classes, and temperature of the logits."
    tables = [
        (of_intervals, ["target", "coverage", "mean width"], intervals),
        (of_sets, ["target", "coverage", "classes", "temperature"], sets),
    ]
    parts = [Table(caption, head, rows, folded=len(rows) > 2 * MAX_TARGETS) for caption, head, rows in tables if rows]
    return [Heading("Prediction intervals" if intervals else "Prediction sets"), *parts]


def _value(metric: str, value: float | None, digits: int = 3) -> str:
    """Format an error with significant digits in the unit of the target, and any other score with two decimals."""
    if value is None:
        return NONE
    if metric in _ERRORS:
        return number(float(f"{value:.{digits}g}"), digits)
    return f"{value:z.2f}".replace("-", MINUS) if abs(value) < 100 else number(value)


def _targets(run: Run) -> list[Text | Table]:
    """Tabulate the scores of the targets of each task type: the best first, and after them those of few molecules."""
    splits = [split for split in _SPLITS if split in run.metrics]
    note = f"The best epoch was selected by validation {METRICS[run.metric].label}."
    if run.held_out_folds:
        note = "Held-out are folds of the training set, predicted by models that were trained without them."
    parts: list[Text | Table] = [Text(note)]
    tasks = run.checkpoints[0].tasks
    for kind in TASK_KINDS if splits else ():
        scores = {
            split: {name: values for name, values in run.metrics[split]["targets"].items() if values["kind"] == kind}
            for split in splits
        }
        ranked = scores[splits[0 if run.held_out_folds else -1]]
        if not ranked:
            continue
        first = [run.metric] * (run.metric != "loss" and kind in METRICS[run.metric].kinds)
        names = list(dict.fromkeys([*first, *_HEADLINE_SCORES[kind], *PRINTED_METRICS[kind]]))
        metric, several = METRICS[names[0]], len(ranked) > 1
        few = {name: _few(values) for name, values in ranked.items()}
        known = {name: values[names[0]] for name, values in ranked.items() if values[names[0]] is not None}
        losses = {name: metric.loss(known[name]) if name in known else np.inf for name in ranked}
        rows = []
        for name in sorted(ranked, key=lambda name: (few[name] != "", losses[name])):
            for split, targets in scores.items():
                values = [_value(one, targets[name][one]) for one in names]
                count = f"{prediction_count(targets[name])[0]:,}"
                rows.append([*[name] * (len(tasks) > 1), run.split_name(split), *values, count])
        caption = f"Scores of {pluralize(len(ranked), f'{kind} target')}" + ", the best first" * several
        if any(few.values()):
            reasons = " or ".join(sorted({*few.values()} - {""}))
            caption += f"; those of {reasons} are largely chance" + ", and last" * several
        if several and known and (names[0] not in _ERRORS or first):
            caption += f"; mean {metric.label} {_value(names[0], float(np.mean([*known.values()])))}"
        caption += "; errors are in the unit of the target" * (kind == REGRESSION)
        head = [*["target"] * (len(tasks) > 1), "set", *(METRICS[name].label for name in names), "n"]
        parts.append(Table(f"{caption}.", head, rows, folded=len(ranked) > 2 * MAX_TARGETS))
    return parts


def _component_scores(run: Run) -> list[Heading | Text | Table]:
    """Tabulate the scores of the stack and of its components: network, random forest, boosting, kernel machine."""
    runs = [read_metrics(folder) for folder in run.models if is_finished(folder)]
    # A member whose validation set does not define the metric was evaluated by another.
    comparable = [metrics for metrics in runs if metrics.get("metric", "mae") == run.metric]
    baselines: list[dict] = [metrics["baselines"] for metrics in comparable if metrics.get("baselines")]
    if not baselines:
        return []
    splits = [split for split in _SPLITS if all(split in scores for scores in baselines)]
    weights, rows = _mean_weights(run.checkpoints), []
    for name in baselines[0][splits[0]] if splits else ():
        means = (_mean(run.metric, [scores[split].get(name) for scores in baselines]) for split in splits)
        rows.append([NAMES.get(name, name), "" if name == STACK else f"{100 * weights[name]:.0f}%", *means])
    metric = METRICS[run.metric]
    better = "higher is better" if metric.higher_is_better else "lower is better"
    of = "the weights are chosen on held-out molecules"
    if len(baselines) > 1:
        of = f"mean ± standard deviation over {len(baselines)} models"
    caption = f"Scores of the stack and of each component: {metric.label} ({better}); {of}."
    if run.metric == "loss":
        caption += " The loss is MAE / standard deviation of the labels (regression) or log loss (classification)."
    head = ["component", "weight", *map(run.split_name, splits)]
    return [Heading("Network and base models"), Table(caption, head, rows)]


def _mean_weights(checkpoints: Sequence[Checkpoint]) -> Mapping[str, float]:
    """Return the weight of each component, averaged over the targets and the models."""
    weights: defaultdict[str, float] = defaultdict(float)
    for stack in (checkpoint.stacking for checkpoint in checkpoints):
        names, means = ((NETWORK,), [1.0]) if stack is None else ((NETWORK, *stack.models), stack.weights.mean(1))
        for name, mean in zip(names, means, strict=True):
            weights[name] += mean / len(checkpoints)
    return weights


def _mean(metric: str, values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    if len(known) > 1:
        return mean_and_std(known, 3).replace("-", MINUS)
    return _value(metric, known[0])


def training_section(run: Run) -> Section:
    """Build the section with the learning curves."""
    section = Section("training", "Training")
    metric = METRICS[run.metric]
    curves = [read_curve(folder, run.metric, metric.higher_is_better) for folder in run.models]
    figures = []
    if losses := [curve.loss for curve in curves if curve.loss]:
        svg = learning_curves(losses, "training loss", [None] * len(losses))
        figures.append(Figure(svg, "Loss on the training set, mean of each epoch.", "Loss"))
    if valid := [(curve.valid, curve.best) for curve in curves if curve.valid]:
        best = [epoch for _, epoch in valid]
        svg = learning_curves([points for points, _ in valid], f"validation {metric.label}", best)
        at = ", ".join("?" if epoch is None else str(epoch) for epoch in best[:10]) + ", …" * (len(best) > 10)
        caption = "One line per model. " if len(curves) > 1 else ""
        caption += f"Validation {metric.label} of the network. The marked epoch ({at}) was selected; it has the best "
        caption += "mean over itself and up to four preceding epochs."
        figures.append(Figure(svg, caption, "Validation"))
    section.parts.append(Figures(figures) if figures else Text("The run directory holds no training log."))
    return section
