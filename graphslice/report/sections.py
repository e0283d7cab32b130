"""Sections of a report on the data and the run."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from graphslice.data.featurize import molecule_keys
from graphslice.data.split_maker import Duplicates, count_shared
from graphslice.data.splits import SPLITS, Splits, random_subset
from graphslice.errors import InputError
from graphslice.evaluation.coverage import COVERAGE_LEVEL
from graphslice.evaluation.format_scores import MINUS, NONE, describe_bounds, label_noun, number, plain, with_std
from graphslice.evaluation.metrics import METRICS, prediction_count
from graphslice.report.drawing import draw_molecule, drawing_module
from graphslice.report.figures import (
    Card,
    Cards,
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

_MAX_REASONS, _MAX_DRAWN, _MAX_CLASSES = 8, 12, 20


def data_section(run: Run) -> Section:
    """Build the section on splits, rejected rows, duplicates, labels and example molecules."""
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
    section.parts += _example_molecules(run)
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
        caption = "Rows of each split of the first model; the other members may have other validation sets."
    return Table(caption, ["split", "rows", "share"], rows)


def _splits_by_name(splits: Splits) -> Splits:
    return {split: splits[split] for split in SPLITS if split in splits}


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f}%" if total else NONE


def _rejected(run: Run) -> list[Part]:
    """List the most frequent reasons; those that differ only in numbers and quoted names are counted together."""
    path, counts, first = run.folder / REJECTED, Counter[str](), dict[str, list[str]]()
    if path.is_file():
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            for line in csv.DictReader(file):
                group = re.sub(r"'[^']*'|\d[\d,.]*", "…", line["reason"] or "")
                counts[group] += 1
                first.setdefault(group, [line["reason"] or "", line["row"]])
    parts: list[Part] = [Heading("Rejected rows and labels")]
    if not counts:
        return [*parts, Text("No row and no label was rejected.")]
    rows = [[*first[group], f"{count:,}"] for group, count in counts.most_common(_MAX_REASONS)]
    more = f" {len(counts) - len(rows):,} less frequent reasons are not listed." if len(counts) > len(rows) else ""
    were = "row was" if counts.total() == 1 else "rows were"
    caption = f"{counts.total():,} {were} rejected, or used without an invalid label."
    caption += " Similar reasons are grouped; row numbers count from 1."
    return [*parts, Table(f"{caption}{more} rejected.csv lists all.", ["first reason", "first row", "rows"], rows)]


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
    parts: list[Part] = [Heading("Labels")]
    for t, task in enumerate(dataset.tasks[:MAX_TARGETS]):
        labels = {split: dataset.targets[rows, t] for split, rows in splits.items()}
        known = {split: y[~np.isnan(y)] for split, y in labels.items()}
        known = {split: y for split, y in known.items() if len(y)}
        if not known:
            continue
        if task.kind == REGRESSION:
            parts.append(_quantiles(task, known))
        else:
            parts.append(_class_counts(task, known, {split: len(y) for split, y in labels.items()}))
    bounds = describe_bounded(dataset.tasks, dataset.bounds(data.usable_rows))
    for split in ("valid", "test"):
        bounds += describe_bounds(split, run.metrics[split]) if split in run.metrics else []
    parts += [Text(f"{line[:1].upper()}{line[1:]}.") for line in bounds]
    if (more := len(dataset.tasks) - MAX_TARGETS) > 0:
        parts.append(Text(f"Labels of the first {MAX_TARGETS} targets; {more:,} more targets are not shown."))
    return parts


def _quantiles(task: Task, known: dict[str, np.ndarray]) -> Table:
    rows = [
        [split_name(split), f"{len(y):,}", *(plain(float(q)) for q in np.quantile(y, (0, 0.25, 0.5, 0.75, 1)))]
        for split, y in known.items()
    ]
    head = ["split", "labels", "least", "lower quartile", "median", "upper quartile", "largest"]
    return Table(f"Labels of {task.name}.", head, rows)


def _class_counts(task: Task, known: dict[str, np.ndarray], rows: dict[str, int]) -> Table:
    counts = {split: np.bincount(y.astype(int), minlength=len(task.classes)) for split, y in known.items()}
    order = np.argsort(-sum(counts.values()), kind="stable")
    lines = [
        [task.classes[k], *(f"{count[k]:,} ({_share(int(count[k]), int(count.sum()))})" for count in counts.values())]
        for k in order[:_MAX_CLASSES].tolist()
    ]
    more = f" {len(order) - _MAX_CLASSES:,} rarer classes are not listed." * (len(order) > _MAX_CLASSES)
    empty = {split: rows[split] - len(y) for split, y in known.items()}
    if any(empty.values()):
        lines.append(["no label", *(f"{empty[split]:,}" for split in known)])
    caption = f"Classes of {task.name}: number of labels in each split, and share of all labels of the split.{more}"
    return Table(caption, ["class", *map(split_name, counts)], lines)


def _example_molecules(run: Run) -> list[Part]:
    parts: list[Part] = [Heading("Example molecules")]
    if run.smiles is None:
        return [*parts, Text("The dataset holds graphs without SMILES, so no molecules are drawn.", note=True)]
    try:
        drawing_module()
    except InputError as error:
        return [*parts, Text(f"{error}.", note=True)]
    usable_rows = run.molecules.usable_rows
    rows = random_subset(usable_rows, _MAX_DRAWN)
    split_of = {
        int(row): split for split, members in run.molecules.splits.items() for row in np.intersect1d(members, rows)
    }
    cards = []
    for row in rows.tolist():
        where = "" if run.folds else f", {split_name(split_of.get(row, 'no split'))}"
        cards.append(molecule_card(run, row, f"{run.name_of(row)}{where}", labels_of(run, row)))
    return [
        *parts,
        Cards(cards),
        Text(f"{len(cards)} of {len(usable_rows):,} molecules, chosen at random. Rows count from 1."),
    ]


def molecule_card(run: Run, row: int, title: str, facts: list[tuple[str, str]]) -> Card:
    """Return the card of a molecule, drawn if it has a SMILES."""
    smiles = run.smiles[row] if run.smiles else ""
    return Card(draw_molecule(smiles) if smiles else None, smiles, title, facts)


def labels_of(run: Run, row: int, most: int = 2) -> list[tuple[str, str]]:
    """List names and known labels of a molecule's first targets, at most ``most``, as pairs of text."""
    dataset = run.molecules.dataset
    known = np.flatnonzero(~np.isnan(dataset.targets[row]))
    labels = [(dataset.tasks[t].name, label_text(dataset.tasks[t], dataset.targets[row, t])) for t in known[:most]]
    return [*labels, ("", f"and {len(known) - most:,} more")] if len(known) > most else labels


def label_text(task: Task, label: float) -> str:
    """Format a label: a number, or the name of a class; a dash if it is nan."""
    if np.isnan(label):
        return NONE
    return plain(label) if task.kind == REGRESSION else task.classes[int(label)]


#: Maximum number of targets shown in detail.
MAX_TARGETS = 12
# A table of targets lists at most this many of the best and of the worst.
_MAX_LISTED = 50

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
    kind = f"cross-validation with {len(run.models)} models, one per fold; each"
    if not run.folds:
        kind = f"ensemble of {len(run.models)} models, whose predictions are averaged; each"
    layers = run.config.model.layers
    model = f"{run.config.model.mixer} mixer, {layers} layer{'s' * (layers != 1)}"
    model = f"{kind} {model}" if len(run.models) > 1 else model
    machine = start.get("machine", {})
    rows = [
        ("targets", listed or "unknown"),
        ("model", f"{model}; {training['parameters']:,} parameters"),
        ("split", _split(run)),
        ("device", f"{training['device']}{f' x {devices}' if (devices := training['devices']) > 1 else ''}"),
        ("training time of the network", _duration(training["seconds"])),
    ]
    if start:
        rows.append(("date", datetime.fromisoformat(start["date"]).strftime("%Y-%m-%d %H:%M %z")))
        rows.append(("machine", f"{machine.get('gpu', machine['machine'])}, {machine['cores']} cores"))
        rows.append(("version", f"GraphSlice {start['version']}, torch {machine['torch']}, RDKit {machine['rdkit']}"))
    return rows


def _split(run: Run) -> str:
    data = run.config.data
    if run.folds:
        return f"{data.folds} folds, {data.split or 'random'}"
    own = run.data is not None and run.data.dataset.splits is not None
    return data.split or (
        "given in the dataset" if own else "given in the dataset, else random" if run.data is None else "random"
    )


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
    covered, width, classes = (f"{name}_{COVERAGE_LEVEL}" for name in ("coverage", "width", "classes"))
    rows = []
    for name, scores in targets.items():
        size = scores.get(classes, scores.get(width))
        if size is None:  # not computed, or infinite because of too few validation molecules
            continue
        of = "classes" if classes in scores else "wide"
        temperature = f"{scores['temperature']:.2f}" if "temperature" in scores else ""
        rows.append([name, f"{100 * scores[covered]:.0f}%", f"{number(size, 3)} {of}", temperature])
    if not rows:
        return []
    caption = (
        f"{COVERAGE_LEVEL}% prediction intervals and prediction sets on the test set: share of "
        f"{label_noun(test_scores)} covered, mean width in the unit of the target or mean number of classes, and "
        "temperature of the probabilities."
    )
    if len(rows) > MAX_TARGETS:
        caption += f" The first {MAX_TARGETS} of {len(rows):,} targets; metrics.json lists all."
    head = ["target", "coverage", "size", "temperature"]
    return [Heading("Prediction intervals"), Table(caption, head, rows[:MAX_TARGETS])]


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
    return (
        NONE
        if value is None
        else f"{value:.4f}".replace("-", MINUS)
        if 1e-3 <= abs(value) < 10 or not value
        else number(value, 4)
    )


def _targets(run: Run) -> list[Table]:
    """Tabulate the scores of each of several targets, best first, on the test set if there is one."""
    split = "test" if "test" in run.metrics else "valid"
    targets = run.metrics.get(split, {}).get("targets", {})
    if len(targets) < 2:
        return []
    kinds = {target["kind"] for target in targets.values()}
    parts: list[Table] = []
    for kind in (kind for kind in TASK_KINDS if kind in kinds):
        of_kind = {name: target for name, target in targets.items() if target["kind"] == kind}
        names = [name for name, metric in METRICS.items() if kind in metric.kinds and name != "loss"]
        first = run.metric if run.metric in names else names[0]
        names = [first, *(name for name in names if name != first)][:5]
        metric = METRICS[first]
        losses = {n: np.inf if one[first] is None else metric.loss(one[first]) for n, one in of_kind.items()}
        ordered = sorted(of_kind, key=losses.__getitem__)
        rows = [[n, *(_value(of_kind[n][m]) for m in names), f"{prediction_count(of_kind[n])[0]:,}"] for n in ordered]
        caption = (
            f"Scores of {len(of_kind):,} {kind} target{'s' * (len(of_kind) != 1)} on the {run.split_name(split)} set"
        )
        caption += ", the best first" * (len(of_kind) > 1)
        if len(rows) > 2 * _MAX_LISTED:
            caption += f"; {len(rows) - 2 * _MAX_LISTED:,} targets in between are not shown, metrics.json lists all"
            rows = [*rows[:_MAX_LISTED], ["…"] + [""] * (len(names) + 1), *rows[-_MAX_LISTED:]]
        head = ["target", *(METRICS[name].label for name in names), "n"]
        parts.append(Table(f"{caption}.", head, rows, folded=len(of_kind) > 2 * MAX_TARGETS))
    return parts


def _component_scores(run: Run) -> list[Heading | Text | Table]:
    """Tabulate the scores of the weighted ensemble and of its components: network, random forest, boosting."""
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
    metric, several = METRICS[run.metric], len(baselines) > 1
    better = "higher is better" if metric.higher_is_better else "lower is better"
    of = (
        f"mean ± standard deviation over {len(baselines)} models, each evaluated alone"
        if several
        else (
            "weights are chosen on held-out molecules and shrunk towards equal weights if these are few, so a single "
            "component may score better"
        )
    )
    caption = f"{metric.label} ({better}) of the weighted ensemble and of each component alone; {of}."
    head = ["component", "weight", *map(run.split_name, splits)]
    return [Heading("Network and base models"), Table(caption, head, rows)]


def _mean_weights(checkpoints: Sequence[Checkpoint]) -> Mapping[str, float]:
    """Return the weight of each component, averaged over the targets and the models."""
    weights: defaultdict[str, float] = defaultdict(float)
    for stack in (checkpoint.stacking for checkpoint in checkpoints):
        shares = (
            [(NETWORK, 1.0)] if stack is None else zip((NETWORK, *stack.models), stack.weights.mean(1), strict=True)
        )
        for name, share in shares:
            weights[name] += share / len(checkpoints)
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
    curves = [curve for curve in curves if len(curve.loss[0]) or len(curve.valid[0])]
    if not curves:
        section.parts.append(Text("The run directory holds no training log."))
        return section
    best = [curve.best for curve in curves]
    figures = []
    if losses := [curve.loss for curve in curves if len(curve.loss[0])]:
        svg = learning_curves(losses, "training loss", [None] * len(losses))
        figures.append(Figure(svg, "Loss on the training set, mean of each epoch.", "Training"))
    if valid := [(curve.valid, curve.best) for curve in curves if len(curve.valid[0])]:
        label = f"validation {metric.label}"
        svg = learning_curves([points for points, _ in valid], label, [chosen for _, chosen in valid])
        at = ", ".join("?" if epoch is None else str(epoch) for epoch in best[:10]) + ", …" * (len(best) > 10)
        lines = "One line per model. " if len(curves) > 1 else ""
        caption = (
            f"{lines}Validation {metric.label} of the network alone. The marked epoch ({at}) was selected; it has "
        )
        caption += "the best mean over itself and up to four preceding epochs."
        figures.append(Figure(svg, caption, "Validation"))
    section.parts.append(Figures(figures))
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
