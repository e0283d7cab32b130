"""What a report says of the run itself: its head, its scores, its training, and how it was made."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np

from graphslice.evaluation.coverage import COVERAGE_LEVEL
from graphslice.evaluation.format_scores import label_noun
from graphslice.evaluation.metrics import METRICS, prediction_count
from graphslice.report.figures import learning_curves, score_histogram, split_name
from graphslice.report.load_run import Run, read_curve
from graphslice.report.page_elements import Code, Figure, Figures, Heading, Section, Table, Text
from graphslice.report.svg import MINUS, NONE, number, with_std
from graphslice.run_files import is_finished, read_metrics
from graphslice.tasks import TASK_KINDS

#: Of more targets the first so many have details.
MAX_TARGETS = 12
# Of more targets a table names the best and the worst of them, so many of each.
_MAX_LISTED = 50

# What a model is judged by, in the order of tables.
_SPLITS = ("valid", "test")


def dataset_name(run: Run) -> str:
    """The name of the data without its folder."""
    return Path(run.config.data.dataset).name or run.config.data.dataset


def target_names(run: Run) -> list[str]:
    """The targets, as the scores name them."""
    return next((list(run.metrics[split]["targets"]) for split in _SPLITS if split in run.metrics), [])


def main_score(run: Run) -> tuple[str, str, str] | None:
    """The score that sums the run up: its metric, its value and what it is of; None where nothing was judged."""
    for split in ("test", "valid"):
        found = run.metrics.get(split)
        value = None if found is None else found.get(run.metric)
        if found is not None and value is not None:
            (count, many), targets = prediction_count(found), len(found["targets"])
            mean = f", mean of {targets:,} targets" if targets > 1 else ""
            folds = " by the models that did not learn them" if run.folds and split == "test" else ""
            label = f"{split_name(split)} {METRICS[run.metric].label}"
            return label, number(value), f"n = {count:,} {many if count != 1 else many[:-1]}{folds}{mean}"
    return None


def facts(run: Run) -> list[tuple[str, str]]:
    """What a reader wants to know first, in pairs of name and value."""
    names, training, start = target_names(run), run.training, run.start
    listed = ", ".join(names[:MAX_TARGETS]) + (f" and {len(names) - MAX_TARGETS:,} more" * (len(names) > MAX_TARGETS))
    several = f"{len(run.models)} models, {'one for each fold' if run.folds else 'whose mean answers'}; each "
    model = f"{several if len(run.models) > 1 else ''}{run.config.model.mixer} with {run.config.model.layers} layers"
    machine = start.get("machine", {})
    found = [
        ("targets", listed or "unknown"),
        ("model", f"{model}; {training['parameters']:,} parameters{' together' * (len(run.models) > 1)}"),
        ("split", _split(run)),
        ("trained on", f"{training['device']}{f' x {devices}' if (devices := training['devices']) > 1 else ''}"),
        ("training took", _duration(training["seconds"])),
    ]
    if start:
        found.append(("date", datetime.fromisoformat(start["date"]).strftime("%Y-%m-%d %H:%M %z")))
        found.append(("machine", f"{machine.get('gpu', machine['machine'])}, {machine['cores']} cores"))
        found.append(("version", f"GraphSlice {start['version']}, torch {machine['torch']}, RDKit {machine['rdkit']}"))
    return found


def _split(run: Run) -> str:
    data = run.config.data
    if run.folds:
        return f"{data.folds} folds, {data.split or 'random'}"
    own = run.data is not None and run.data.dataset.splits is not None
    return data.split or (
        "as the data says" if own else "as the data says, else random" if run.data is None else "random"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def training_command(run: Run) -> Code:
    """The command that made the run; of one that Python began its configuration."""
    if command := run.start.get("command"):
        return Code(command, "the command that made this run")
    why = "begun from Python" if run.start else "a run of an older version, which notes no command"
    return Code(run.config.to_yaml(), "the configuration that made this run", f"Configuration ({why})")


def scores_section(run: Run) -> Section:
    """The scores of each split and of each target, and what network, forest and boosting reach alone."""
    section = Section("scores", "Scores")
    section.parts.append(_table_of_means(run))
    section.parts += _targets(run)
    section.parts += _component_scores(run)
    section.parts += _intervals(run)
    return section


_OF_TEMPERATURES = "; the temperature of probabilities, and their calibration error before and after."


def _intervals(run: Run) -> list[Heading | Table]:
    """How many test labels lie in the intervals and sets of the model, and what its temperatures change."""
    judged = run.metrics.get("test", {})
    targets = judged.get("targets", {})
    covered, width, classes = (f"{name}_{COVERAGE_LEVEL}" for name in ("coverage", "width", "classes"))
    rows = []
    for name, found in targets.items():
        size = found.get(classes, found.get(width))
        if size is None:  # not asked for, or of too few validation molecules without end
            continue
        of = "classes" if classes in found else "wide"
        errors = [found.get(key) for key in ("calibration_error_before", "calibration_error")]
        tempered = "" if found.get("temperature", 1) == 1 else f"{found['temperature']:.2f}"
        said = f"{_value(errors[0])}, {_value(errors[1])}" if tempered else ""
        share = f"{100 * found[covered]:.0f}%"
        rows.append([name, share, f"{number(size, 3)} {of}", tempered, said])
    if not rows:
        return []
    caption = (
        f"Intervals and sets of {COVERAGE_LEVEL}% on test: how many {label_noun(judged)} lie in them, and how large "
        f"they are on average, in the unit of the table or in classes{_OF_TEMPERATURES}"
    )
    if len(rows) > MAX_TARGETS:
        caption += f" The first {MAX_TARGETS} of {len(rows):,} targets; metrics.json has all."
    head = ["target", "coverage", "size", "temperature", "calibration error"]
    if not any(row[3] for row in rows):  # no probabilities, or none that a temperature makes better
        caption, head, rows = caption.replace(_OF_TEMPERATURES, "."), head[:3], [row[:3] for row in rows]
    return [Heading("Intervals"), Table(caption, head, rows[:MAX_TARGETS])]


def _table_of_means(run: Run) -> Table:
    splits = [split for split in _SPLITS if split in run.metrics]
    names = [name for name in METRICS if any(run.metrics[split].get(name) is not None for split in splits)]
    # The loss is the network's own, and says little to others.
    names = [name for name in names if name != "loss" or run.metric == "loss"]
    names = sorted(names, key=lambda name: name != run.metric)
    rows = [[METRICS[name].label, *(_value(run.metrics[split].get(name)) for split in splits)] for name in names]
    rows.append(["molecules", *(f"{run.metrics[split]['molecules']:,}" for split in splits)])
    several = len(target_names(run)) > 1
    mean = "Means over the targets that have a score. " if several else ""
    unit = "MAE and RMSE are in the unit of the table. " if "mae" in names else ""
    chosen = f"The best epoch was chosen by validation {METRICS[run.metric].label}."
    if run.metric == "loss":
        chosen += " The loss is of numbers the MAE over the deviation of the labels, of classes the log loss."
    return Table(f"{mean}{unit}{chosen}", ["score", *map(split_name, splits)], rows)


def _value(value: float | None) -> str:
    return (
        NONE
        if value is None
        else f"{value:.4f}".replace("-", MINUS)
        if 1e-3 <= abs(value) < 10 or not value
        else number(value, 4)
    )


def _targets(run: Run) -> list[Table | Figures]:
    """Of several targets the scores of each, the best first, on test where there is one."""
    split = "test" if "test" in run.metrics else "valid"
    targets = run.metrics.get(split, {}).get("targets", {})
    if len(targets) < 2:
        return []
    kinds = {target["kind"] for target in targets.values()}
    parts: list[Table | Figures] = []
    for kind in (kind for kind in TASK_KINDS if kind in kinds):
        own = {name: target for name, target in targets.items() if target["kind"] == kind}
        names = [name for name, metric in METRICS.items() if kind in metric.kinds and name != "loss"]
        first = run.metric if run.metric in names else names[0]
        names = [first, *(name for name in names if name != first)][:5]
        metric = METRICS[first]
        ordered = sorted(own, key=lambda name: _sort_key(own[name][first], metric.loss))
        rows = [[n, *(_value(own[n][m]) for m in names), f"{prediction_count(own[n])[0]:,}"] for n in ordered]
        said = f"Scores of {len(own):,} {kind} target{'s' * (len(own) != 1)} on {split_name(split)}"
        said += ", the best first" * (len(own) > 1)
        if len(rows) > 2 * _MAX_LISTED:
            said += f"; {len(rows) - 2 * _MAX_LISTED:,} between them are left out here and stand in metrics.json"
            rows = [*rows[:_MAX_LISTED], ["…"] + [""] * (len(names) + 1), *rows[-_MAX_LISTED:]]
        values = np.array([own[name][first] for name in ordered if own[name][first] is not None])
        if len(own) > MAX_TARGETS and len(values):
            parts.append(Figures([score_histogram(values, f"{split_name(split)} {metric.label}")]))
        head = ["target", *(METRICS[name].label for name in names), "n"]
        parts.append(Table(f"{said}.", head, rows, folded=len(own) > 2 * MAX_TARGETS))
    return parts


def _sort_key(value: float | None, loss) -> float:
    return np.inf if value is None else loss(value)


def _component_scores(run: Run) -> list[Heading | Text | Table]:
    """What network, forest and boosting reach alone, of a model that blends them."""
    every = [read_metrics(folder) for folder in run.models if is_finished(folder)]
    # One whose validation molecules do not define the metric was judged by another.
    alike = [each for each in every if each.get("metric", "mae") == run.metric]
    found: list[dict] = [each["baselines"] for each in alike if each.get("baselines")]
    if not found:
        return []
    splits = [split for split in _SPLITS if all(split in each for each in found)]
    rows = []
    for name in found[0][splits[0]] if splits else ():
        rows.append([name, *(_mean([each[split].get(name) for each in found]) for split in splits)])
    metric, several = METRICS[run.metric], len(found) > 1
    better = "more is better" if metric.higher_is_better else "less is better"
    of = (
        f"mean ± standard deviation of {len(found)} models, each alone"
        if several
        else ("weights chosen on validation, nearly even where few molecules cannot tell: a part may be better then")
    )
    caption = f"{metric.label} ({better}) of what answers together, and of each part alone; {of}."
    return [Heading("Network and trees"), Table(caption, ["part", *map(split_name, splits)], rows)]


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    if len(known) > 1:
        return with_std(float(np.mean(known)), float(np.std(known, ddof=1)))
    return _value(known[0])


def training_section(run: Run) -> Section:
    """The learning curves."""
    section = Section("training", "Training")
    metric = METRICS[run.metric]
    each = [read_curve(folder, run.metric, metric.higher_is_better) for folder in run.models]
    each = [curve for curve in each if len(curve.loss[0]) or len(curve.valid[0])]
    if not each:
        section.parts.append(Text("The run folder holds no log of the training."))
        return section
    best = [curve.best for curve in each]
    figures = []
    if losses := [curve.loss for curve in each if len(curve.loss[0])]:
        svg = learning_curves(losses, "training loss", [None] * len(losses), "c1")
        figures.append(Figure([svg], "Loss on the training molecules, mean of each epoch.", "Training"))
    if valid := [(curve.valid, curve.best) for curve in each if len(curve.valid[0])]:
        label = f"validation {metric.label}"
        svg = learning_curves([points for points, _ in valid], label, [chosen for _, chosen in valid], "c1")
        at = ", ".join("?" if epoch is None else str(epoch) for epoch in best[:10]) + ", …" * (len(best) > 10)
        lines = "A line a model. " if len(each) > 1 else ""
        caption = f"{lines}Validation {metric.label} of the network alone. The marked epoch was chosen "
        caption += f"({at}), which ends the five with the best mean."
        figures.append(Figure([svg], caption, "Validation"))
    section.parts.append(Figures(figures))
    return section


def reproduction_section(run: Run) -> Section:
    """What is needed to make the run again, and where to read on."""
    section = Section("making", "How it was made")
    if run.start.get("command"):
        section.parts.append(Code(run.config.to_yaml(), "the resolved configuration", "config.yaml, every setting"))
    origin = run.metrics.get("init_from")
    if origin:
        section.parts.append(Text(f"The weights were started from {origin}."))
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
    section.parts.append(Table("What the training took.", ["", ""], rows))
    return section
