"""Format atom contributions; console, table and figures share these texts and digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

import numpy as np

from graphslice.analysis.attribution import Attribution, attribute
from graphslice.data.columns import quoted_list
from graphslice.errors import InputError, nearest
from graphslice.inference.inputs import Columns
from graphslice.inference.predictor import Predictor
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION, Task, output_slices, predicted_classes

#: Below this weight of the network in the prediction, atom contributions explain little of the prediction.
SMALL_WEIGHT = 0.3
#: Legend and meaning of blue and red where the molecules are explained for different classes.
SEVERAL_CLASSES = ("contribution to the logit of the class named with each molecule", "away from it", "towards it")
# Numbers with more decimals, or larger ones, are written with a power of ten.
_MAX_DECIMALS, _LARGEST = 4, 1e5


@dataclass(frozen=True)
class Digits:
    """Number format of one molecule: the same number of decimals and the same power of ten for all values."""

    decimals: int
    power: int = 0  # exponent of the power of ten by which very large or very small values are divided

    @classmethod
    def of(cls, values: np.ndarray, error: float) -> Digits:
        """Choose two or three digits of the largest value, none below ``error``, the standard error (0: unknown)."""
        largest = float(np.abs(values).max(initial=0))
        if not isfinite(largest) or largest < 1e-30:
            return cls(2)
        by_size = round(2 - log10(largest))
        decimals = min(by_size, _places(error)) if error > 0 else by_size
        if decimals <= _MAX_DECIMALS and largest < _LARGEST:
            return cls(max(0, decimals))
        power = floor(log10(largest))
        return cls(min(2, max(0, decimals + power)), power)

    def rounded(self, value: float) -> float:
        """Round a number to the digits that are displayed."""
        return round(value / 10.0**self.power, self.decimals) * 10.0**self.power + 0.0  # + 0.0 removes a negative zero

    def text(self, value: float, sign: bool = False) -> str:
        """Format a number without its power of ten; ``sign``: with a plus or minus sign, except before zero."""
        number = round(value / 10.0**self.power, self.decimals) + 0.0
        return f"{number:{'+' if sign and number else ''}.{self.decimals}f}".replace("-", "\N{MINUS SIGN}")

    def plain(self, value: float) -> str:
        """Format a number for the CSV file, with the same digits, and with an exponent if ``power`` is not 0."""
        return self.text(value).replace("\N{MINUS SIGN}", "-") + (f"e{self.power}" if self.power else "")

    @property
    def times(self) -> str:
        """Suffix with the power of ten, such as `` x 10^6``; empty if ``power`` is 0."""
        return f" x 10^{self.power}" if self.power else ""


@dataclass(frozen=True)
class Explanation:
    """Atom contributions to one network output, with the texts that describe it."""

    quantity: str  # such as ``logp``, ``ln(clearance)``, ``logit of active = yes``
    legend: str
    down: str  # meaning of blue
    up: str  # meaning of red
    values: np.ndarray  # float64 [N]
    errors: np.ndarray  # float64 [N], standard errors; nan if unknown
    weight: float  # of the network in the model's prediction
    prediction: float  # of the network
    baseline: float  # for blank atoms
    digits: Digits
    model_prediction: str  # if it differs from that of the network or is on another scale; else empty
    notes: tuple[str, ...]

    @property
    def error_bound_text(self) -> str:
        """Bound on the standard errors, ``each ± 0.02 or less (standard error)``; empty if exact or unknown."""
        error = _largest_error(self.errors)
        return f"each ± {_one_digit(_rounded_up(error))} or less (standard error)" if error > 0 else ""

    @property
    def warning(self) -> str:
        """Warning if the weight of the network in the prediction is small; else empty."""
        return weight_warning(self.weight)

    @property
    def sum(self) -> str:
        """Decomposition ``2.31 = 1.10 (baseline) + 1.21 (atoms)``, which adds up as displayed."""
        total, baseline = self.digits.rounded(self.prediction), self.digits.rounded(self.baseline)
        added = self.digits.text(abs(total - baseline))
        sign = "+" if total >= baseline else "\N{MINUS SIGN}"
        text = f"{self.digits.text(total)} = {self.digits.text(baseline)} (baseline) {sign} {added} (atoms)"
        return f"({text}){self.digits.times}" if self.digits.power else text


def explain_targets(
    predictor: Predictor, smiles: str, *, orders: int = 256, columns: Columns | None = None
) -> list[Explanation]:
    """Explain the prediction of each target of a molecule; arguments and errors as of :func:`attribute`."""
    attribution = attribute(predictor, smiles, orders=orders, columns=columns)
    (predictions,) = predictor.predict(smiles, columns=columns)
    tasks = predictor.tasks
    return [explain_target(attribution, predictions, tasks, t, predictor.num_models) for t in range(len(tasks))]


def explain_target(
    attribution: Attribution, predictions: np.ndarray, tasks: Sequence[Task], target: int, models: int
) -> Explanation:
    """Describe the contributions to one target of a molecule; of several classes, the most probable one is explained.

    ``predictions``: ``float32 [W]``, those of the complete model; ``models``: number of averaged networks.
    """
    task, where = tasks[target], output_slices(tasks)[target]
    column = where.start + (int(np.argmax(predictions[where])) if task.kind == MULTICLASS else 0)
    values, errors = attribution.values[:, column], attribution.errors[:, column]
    digits = Digits.of(values, _largest_error(errors))
    quantity, legend, down, up = _legend_texts(task, column - where.start)
    weight = float(attribution.network_weight[column])
    notes = [f"mean of {models} networks"] if models > 1 else []
    if weight < 1:
        notes.append(f"network only: weight {weight:.2f} in the prediction, base models have the rest")
    plain = task.kind == REGRESSION and task.transform == "none" and weight == 1
    model_prediction = "" if plain else _model_prediction(task, predictions[where])
    totals = float(attribution.prediction[column]), float(attribution.baseline[column])
    return Explanation(
        quantity, legend, down, up, values, errors, weight, *totals, digits, model_prediction, tuple(notes)
    )


def _legend_texts(task: Task, index: int) -> tuple[str, str, str, str]:
    """Return the name of the output, the legend, and the meanings of blue and red."""
    name = task.name
    if task.kind == REGRESSION and task.transform == "log":
        legend = f"contribution to the natural logarithm of {name} (+0.69 doubles it)"
        return f"ln({name})", legend, f"lowers {name}", f"raises {name}"
    if task.kind == REGRESSION:
        return name, f"contribution to {name}, in its unit", f"lowers {name}", f"raises {name}"
    named = task.classes[1] if task.kind == BINARY else task.classes[index]
    quantity = f"logit of {name} = {named}"
    away = f"towards {task.classes[0]}" if task.kind == BINARY else f"away from {named}"
    return quantity, f"contribution to the {quantity}", away, f"towards {named}"


def _model_prediction(task: Task, predictions: np.ndarray) -> str:
    if task.kind == REGRESSION:
        return f"{task.name} {short_number(float(predictions[0]))}"
    (named,) = predicted_classes(predictions[None], task)
    if task.kind == BINARY:
        return f"probability of {task.name} = {task.classes[1]}: {predictions[0]:.2f}"
    return f"probability of {task.name} = {named}: {predictions.max():.2f}"


def short_number(value: float) -> str:
    """Format a number with three significant digits, or all digits before the decimal point."""
    text = f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:#.3g}".rstrip(".")
    return text.replace("-", "\N{MINUS SIGN}")


def _largest_error(errors: np.ndarray) -> float:
    return float(errors.max()) if np.isfinite(errors).all() else 0.0


def _places(error: float) -> int:
    """Return the number of decimals of an error with one significant digit."""
    return -floor(log10(float(f"{error:.0e}")))


def _rounded_up(error: float) -> float:
    """Round an error up to one significant digit."""
    unit = 10.0 ** floor(log10(error))
    return ceil(error / unit - 1e-9) * unit


def _one_digit(error: float) -> str:
    places = _places(error)
    return f"{error:.{max(0, places)}f}" if places <= _MAX_DECIMALS else f"{error:.0e}"


def weight_warning(weight: float) -> str:
    """Return a warning if the network, which is explained, has a small weight in the prediction; else an empty text."""
    if weight >= SMALL_WEIGHT:
        return ""
    return (
        f"these atom contributions explain little of the model's predictions: the weight of the network is "
        f"{weight:.2f}; base models, which are not explained, have the rest"
    )


def match_target(text: str | None, names: Sequence[str]) -> int:
    """Return the index of a target, given its name or an unambiguous part of it; None is the first target.

    Case is ignored unless the name matches exactly.

    Raises:
        InputError: if no target matches, or more than one.
    """
    if text is None:
        return 0
    if not isinstance(text, str):
        raise InputError(f"a target is given by its name, not as {text!r}: choose one of {', '.join(names)}")
    if text in names:
        return list(names).index(text)
    lowered = text.strip().lower()
    matches = [t for t, name in enumerate(names) if name.lower() == lowered]
    matches = matches or [t for t, name in enumerate(names) if lowered and lowered in name.lower()]
    if not matches:
        raise InputError(f"the model has no target {text!r}{nearest(text, names)}: it has {quoted_list(names)}")
    if len(matches) > 1:
        listed = quoted_list(names[t] for t in matches)
        raise InputError(f"the target {text!r} is ambiguous, it matches {listed}: give more of its name")
    return matches[0]
