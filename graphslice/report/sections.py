"""Sections of a report on the data and the run."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from graphslice.data.featurize import molecule_keys
from graphslice.data.split_maker import Duplicates, count_shared
from graphslice.data.splits import SPLITS, Splits
from graphslice.errors import pluralize
from graphslice.evaluation.coverage import COVERAGE_LEVEL
from graphslice.evaluation.format_scores import (
    MINUS,
    NONE,
    describe_bounds,
    describe_covered,
    label_noun,
    number,
    plain,
    with_std,
)
from graphslice.evaluation.metrics import METRICS, prediction_count
from graphslice.report.figures import (
    Code,
    Figure,
    Figures,
    Heading,
    Part,
    Section,
    Table,
    Text,
    learning_curves,
    split_name,
)
from graphslice.report.load_run import Run, read_curve
from graphslice.runs.checkpoint import Checkpoint
from graphslice.runs.run_files import REJECTED, is_finished, read_metrics, read_splits
from graphslice.stacking.stacking import NAMES, NETWORK, STACK
from graphslice.tasks import REGRESSION, TASK_KINDS, Task
from graphslice.training.data_summary import describe_bounded

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
    repeated = _duplicates(run).describe()
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
    return {split: splits[split] for split in SPLITS if split in splits}


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
    caption = f"{pluralize(len(lines), 'row')} rejected, or used without an invalid label; {REJECTED} lists all."
    rows = [[line["reason"], line["row"]] for line in lines[:_MAX_REJECTED]]
    return [*parts, Table(f"{caption} Row numbers count from 1.", ["reason", "row"], rows)]


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
        bounds += describe_bounds(split, run.metrics[split]) if split in run.metrics else []
    parts += [Text(f"{line[:1].upper()}{line[1:]}.") for line in bounds]
    if (more := len(dataset.tasks) - MAX_TARGETS) > 0:
        parts.append(Text(f"Labels of the first {MAX_TARGETS} targets; {more:,} more targets are not shown."))
    return parts


def label_text(task: Task, label: float) -> str:
    """Format a label: a number, or the name of a class; a dash if it is nan."""
    if np.isnan(label):
        return NONE
    return plain(label) if task.kind == REGRESSION else task.classes[int(label)]


#: Maximum number of targets shown in detail.
MAX_TARGETS = 12

# Splits on which a model is evaluated, in the order of the table columns.
_SPLITS = ("valid", "test")


def dataset_name(run: Run) -> str:
    """Return the name of the dataset without its directory."""
    return Path(run.config.data.dataset).name or run.config.data.dataset


def target_names(run: Run) -> list[str]:
    """List the target names, in the order of the scores."""
    return next((list(run.metrics[split]["targets"]) for split in _SPLITS if split in run.metrics), [])


def main_score(run: Run) -> tuple[str, str, str] | None:
    """Return the label, value and sample of the main score; None if the model was not evaluated."""
    for split in ("test", "valid"):
        split_scores = run.metrics.get(split, {})
        if (value := split_scores.get(run.metric)) is not None:
            (count, noun), targets = prediction_count(split_scores), len(split_scores["targets"])
            mean = f", mean of {targets:,} targets" if targets > 1 else ""
            folds = ", out-of-fold predictions" if run.folds and split == "test" else ""
            label = f"{run.split_name(split)} {METRICS[run.metric].label}"
            return label, number(value), f"n = {count:,} {noun if count != 1 else noun[:-1]}{folds}{mean}"
    return None


def facts(run: Run) -> list[tuple[str, str]]:
    """Summarise the run as pairs of name and value."""
    names, training, start = target_names(run), run.training, run.start
    listed = ", ".join(names[:MAX_TARGETS]) + (f" and {len(names) - MAX_TARGETS:,} more" * (len(names) > MAX_TARGETS))
    model = f"{run.config.model.mixer} mixer, {pluralize(run.config.model.layers, 'layer')}"
    if run.folds:
        model = f"cross-validation with {len(run.models)} models, one per fold; each {model}"
    elif len(run.models) > 1:
        model = f"ensemble of {len(run.models)} models, whose predictions are averaged; each {model}"
    devices = f" x {training['devices']}" if training["devices"] > 1 else ""
    rows = [
        ("targets", listed or "unknown"),
        ("model", f"{model}; {training['parameters']:,} parameters"),
        ("split", _split(run)),
        ("device", f"{training['device']}{devices}"),
        ("training time of the network", _duration(training["seconds"])),
    ]
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


def training_command(run: Run) -> Code:
    """Return the command that started the run, or the configuration if no command was recorded."""
    if command := run.start.get("command"):
        return Code(command, "command that started this run")
    return Code(run.config.to_yaml(), "configuration of this run", "Configuration (run started from Python)")


def scores_section(run: Run) -> Section:
    """Build the section on scores: per split, per target, and of network and base models separately."""
    parts: list[Part] = [_table_of_means(run), *_targets(run), *_component_scores(run), *_intervals(run)]
    return Section("scores", "Scores", parts)


def _intervals(run: Run) -> list[Heading | Table]:
    """Tabulate coverage and size of the prediction intervals and sets on the test set, and the temperatures."""
    test_scores = run.metrics.get("test", {})
    targets = test_scores.get("targets", {})
    width, classes = (f"{name}_{COVERAGE_LEVEL}" for name in ("width", "classes"))
    rows = []
    for name, scores in targets.items():
        size = scores.get(classes, scores.get(width))
        if size is None:  # not computed, or infinite because of too few validation molecules
            continue
        of = "classes" if classes in scores else "wide"
        temperature = f"{scores['temperature']:.2f}" if "temperature" in scores else ""
        rows.append([name, describe_covered(scores), f"{number(size, 3)} {of}", temperature])
    if not rows:
        return []
    caption = (
        f"{COVERAGE_LEVEL}% prediction intervals and prediction sets on the test set: share of "
        f"{label_noun(test_scores)} covered and what chance allows, mean width in the unit of the target or mean "
        "number of classes, and temperature of the probabilities."
    )
    head = ["target", "coverage", "size", "temperature"]
    return [Heading("Prediction intervals"), Table(caption, head, rows, folded=len(rows) > 2 * MAX_TARGETS)]


def _table_of_means(run: Run) -> Table:
    splits = [split for split in _SPLITS if split in run.metrics]
    names = [name for name in METRICS if any(run.metrics[split].get(name) is not None for split in splits)]
    # The training loss is shown only if it selected the epoch: its scale is not that of the predictions.
    names = [name for name in names if name != "loss" or run.metric == "loss"]
    names = sorted(names, key=lambda name: name != run.metric)
    rows = [[METRICS[name].label, *(_value(run.metrics[split].get(name)) for split in splits)] for name in names]
    rows.append(["molecules", *(f"{run.metrics[split]['molecules']:,}" for split in splits)])
    several = len(target_names(run)) > 1
    mean = "Means over the targets with a score. " if several else ""
    unit = "MAE and RMSE are in the unit of the target. " if "mae" in names else ""
    chosen = f"The best epoch was selected by validation {METRICS[run.metric].label}."
    if run.held_out_folds:
        chosen = "Held-out are folds of the training set, predicted by models that were trained without them."
    if run.metric == "loss":
        chosen += " The loss is MAE / standard deviation of the labels (regression) or log loss (classification)."
    return Table(f"{mean}{unit}{chosen}", ["score", *map(run.split_name, splits)], rows)


def _value(value: float | None) -> str:
    if value is None:
        return NONE
    has_four_decimals = 1e-3 <= abs(value) < 10 or not value
    return f"{value:.4f}".replace("-", MINUS) if has_four_decimals else number(value, 4)


def _targets(run: Run) -> list[Table]:
    """Tabulate the scores of each of several targets, best first, on the test set if there is one."""
    split = "test" if "test" in run.metrics else "valid"
    targets = run.metrics.get(split, {}).get("targets", {})
    if len(targets) < 2:
        return []
    parts: list[Table] = []
    for kind in TASK_KINDS:
        of_kind = {name: scores for name, scores in targets.items() if scores["kind"] == kind}
        if not of_kind:
            continue
        names = [name for name, metric in METRICS.items() if kind in metric.kinds and name != "loss"]
        names = sorted(names, key=lambda name: name != run.metric)[:5]
        metric = METRICS[names[0]]
        values = {name: scores[names[0]] for name, scores in of_kind.items()}
        losses = {name: np.inf if value is None else metric.loss(value) for name, value in values.items()}
        rows = []
        for name in sorted(of_kind, key=losses.__getitem__):
            scores = of_kind[name]
            rows.append([name, *(_value(scores[m]) for m in names), f"{prediction_count(scores)[0]:,}"])
        order = ", the best first" if len(rows) > 1 else ""
        caption = f"Scores of {pluralize(len(rows), f'{kind} target')} on the {run.split_name(split)} set{order}."
        head = ["target", *(METRICS[name].label for name in names), "n"]
        parts.append(Table(caption, head, rows, folded=len(rows) > 2 * MAX_TARGETS))
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
        means = (_mean([scores[split].get(name) for scores in baselines]) for split in splits)
        rows.append([NAMES.get(name, name), "" if name == STACK else f"{100 * weights[name]:.0f}%", *means])
    metric = METRICS[run.metric]
    better = "higher is better" if metric.higher_is_better else "lower is better"
    of = "the weights are chosen on held-out molecules"
    if len(baselines) > 1:
        of = f"mean ± standard deviation over {len(baselines)} models"
    caption = f"{metric.label} ({better}) of the stack and of each component; {of}."
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


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    if len(known) > 1:
        return with_std(float(np.mean(known)), float(np.std(known, ddof=1)))
    return _value(known[0])


def training_section(run: Run) -> Section:
    """Build the section with the learning curves."""
    section = Section("training", "Training")
    metric = METRICS[run.metric]
    curves = [read_curve(folder, run.metric, metric.higher_is_better) for folder in run.models]
    figures = []
    if losses := [curve.loss for curve in curves if curve.loss]:
        svg = learning_curves(losses, "training loss", [None] * len(losses))
        figures.append(Figure(svg, "Loss on the training set, mean of each epoch.", "Training"))
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


def reproduction_section(run: Run) -> Section:
    """Build the section on reproducing the run: configuration, initialisation and training cost."""
    section = Section("making", "Reproducibility")
    if run.start.get("command"):
        section.parts.append(Code(run.config.to_yaml(), "resolved configuration", "config.yaml, every setting"))
    origin = run.metrics.get("init_from")
    if origin:
        section.parts.append(Text(f"The weights were initialised from {origin}."))
    seconds, rate = run.training["seconds"], run.training["molecules_per_second"]
    peak = run.training.get("peak_memory_bytes") or 0
    rows = [
        ["steps", f"{run.training['steps']:,}"],
        ["seconds", f"{seconds:,.0f}"],
        ["molecules per second", f"{rate:,.0f}"],
        ["precision", str(run.training["precision"])],
        ["peak memory", f"{peak / 2**30:.2f} GiB" if peak else NONE],
        ["seed", str(run.config.trainer.seed)],
    ]
    section.parts.append(Table("Training cost.", ["", ""], rows))
    return section
