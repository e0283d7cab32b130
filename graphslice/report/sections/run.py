"""Report sections on the run: header, scores, training and reproduction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np

from graphslice.checkpoint import Checkpoint
from graphslice.evaluation.coverage import COVERAGE_LEVEL
from graphslice.evaluation.format_scores import MINUS, NONE, label_noun, number, with_std
from graphslice.evaluation.metrics import METRICS, prediction_count
from graphslice.report.figures import learning_curves
from graphslice.report.load_run import Run, read_curve
from graphslice.report.page_elements import Code, Figure, Figures, Heading, Part, Section, Table, Text
from graphslice.run_files import is_finished, read_metrics
from graphslice.stacking.stacking import NAMES, NETWORK, STACK
from graphslice.tasks import TASK_KINDS

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
