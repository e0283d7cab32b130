"""Scores in words."""

from __future__ import annotations

from graphslice.data.columns import quoted_list
from graphslice.evaluation.metrics import METRICS, prediction_count
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION

# What is said of each kind of target; metrics.json has all.
_PRINTED_METRICS = {
    REGRESSION: ("mae", "rmse", "r2", "spearman"),
    BINARY: ("auroc", "auprc", "balanced_accuracy", "mcc"),
    MULTICLASS: ("accuracy", "balanced_accuracy", "auroc", "mcc"),
}
# More targets than these are not listed one by one.
_MOST_TARGETS = 12


def describe_scores(
    split: str, found: dict, first: str | None = None, *, targets: bool = False, digits: int = 4
) -> str:
    """One line a split, and with ``targets`` one for each of several targets that have labels.

    Args:
        split: its name.
        found: of :func:`~graphslice.evaluation.metrics.scores`.
        first: the metric that is named first.
        targets: also say what each target has.
        digits: behind the point.
    """
    by_target = {name: one for name, one in found["targets"].items() if prediction_count(one)[0] > 0} or found[
        "targets"
    ]
    unknown = [name for name in found["targets"] if name not in by_target]
    kinds = {target["kind"] for target in by_target.values()}
    names = [name for kind in _PRINTED_METRICS if kind in kinds for name in _PRINTED_METRICS[kind]]
    if first is not None and first in found:
        names = [first, *names]
    count, many = prediction_count(found)
    lines = [f"{split} {_values(found, names, digits)} on {count:,} {many if count != 1 else many[:-1]}"]
    if many != "molecules":
        lines[0] += f" of {found['molecules']:,} molecule{'s' * (found['molecules'] != 1)}"
    if len(by_target) > 1:
        lines[0] += f" (mean of {len(by_target):,} targets)"
    elif unknown:
        lines[0] += f" ({next(iter(by_target))})"
    if targets and len(by_target) > 1:
        lines += [
            f"  {name}: {_values(one, _PRINTED_METRICS[one['kind']], digits)}"
            for name, one in list(by_target.items())[:_MOST_TARGETS]
        ]
        if (more := len(by_target) - _MOST_TARGETS) > 0:
            lines.append(f"  and {more:,} more targets")
    if targets and unknown:
        lines.append(f"  no labels of {quoted_list(unknown)}")
    return "\n".join(lines)


def describe_coverage(split: str, found: dict, level: int) -> list[str]:
    """How many labels lie where they were expected, and what temperatures changed: a line of numbers, one of classes.

    Args:
        split: its name.
        found: scores, of each target with what :func:`~graphslice.evaluation.coverage.add_coverage` puts there; of
            classes there may be ``temperature`` and ``calibration_error_before``.
        level: in percent.
    """
    targets, labels, lines = found["targets"], label_noun(found), []
    covered, sizes, widths = f"coverage_{level}", f"classes_{level}", f"width_{level}"
    numbers = [one for one in targets.values() if covered in one and one["kind"] == REGRESSION]
    if bounded := [one for one in numbers if widths in one]:
        width = f", on average {bounded[0][widths]:.3g} wide" if len(targets) == 1 else ""
        lines.append(f"{split}: {_mean(bounded, covered):.0%} of the {labels} lie in the intervals of {level}%{width}")
    elif numbers:
        lines.append(f"too few validation molecules for intervals of {level}%: they have no end")
    if classes := [one for one in targets.values() if covered in one and sizes in one]:
        certain = [one for one in classes if one[sizes] < len(one["counts"])]
        line = (
            f"{split}: {_mean(classes, covered):.0%} of the {labels} are in the sets of {level}%, of "
            f"{_mean(classes, sizes):.2f} classes on average"
        )
        if any(one.get("temperature", 1) != 1 for one in classes):
            before, after = _mean(classes, "calibration_error_before"), _mean(classes, "calibration_error")
            temperature = f" {classes[0]['temperature']:.2f}" if len(classes) == 1 else "s"
            line += f"; temperature{temperature}: calibration error {before:.3f} before, {after:.3f} after"
        lines.append(line if certain else f"too few validation molecules for sets of {level}%: they hold all classes")
    return lines


def label_noun(found: dict) -> str:
    """Of what some scores' intervals hold a share, in words: of atoms and bonds of those of a molecule, in the mean."""
    many = prediction_count(found)[1]
    return "labels" if many == "molecules" else f"labels of a molecule's {many}"


def _mean(found: list[dict], name: str) -> float:
    values = [one[name] for one in found if one[name] == one[name]]
    return sum(values) / len(values) if values else float("nan")


def _values(found: dict, names: list[str] | tuple[str, ...], digits: int) -> str:
    return ", ".join(
        f"{METRICS[name].label} {found[name]:.{digits}f}" for name in dict.fromkeys(names) if name in found
    )
