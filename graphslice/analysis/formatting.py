"""Contributions in words and digits: the same on the screen, in the table and in the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10

import numpy as np

from graphslice.analysis.attribution import Attribution
from graphslice.data.columns import quoted_list
from graphslice.errors import InputError, nearest
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION, Task, output_slices, predicted_classes

#: With a smaller weight in the answer, what the network says explains little of it.
SMALL_WEIGHT = 0.3
#: The legend, and what is down and up, of molecules that are explained for different classes.
SEVERAL_CLASSES = ("contribution to the logit of the class named with each molecule", "away from it", "towards it")
# Decimals beyond which numbers are written in a power of ten.
_MAX_DECIMALS, _LARGEST = 4, 1e5


@dataclass(frozen=True)
class Digits:
    """How the numbers of one molecule are written: all with as many decimals, in units of a power of ten.

    Attributes:
        decimals: of every number.
        power: 0, or the power of ten that very large and very small numbers are divided by.
    """

    decimals: int
    power: int = 0

    @classmethod
    def of(cls, values: np.ndarray, error: float) -> Digits:
        """Those of some contributions: two or three digits of the largest, none that their error makes void.

        Args:
            values: ``float [N]``.
            error: the largest standard error; 0 or nan where it is not known.
        """
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
        """The number as it is written."""
        return round(value / 10.0**self.power, self.decimals) * 10.0**self.power + 0.0  # no minus zero

    def text(self, value: float, sign: bool = False) -> str:
        """The number, without its power of ten; ``sign``: a plus or a minus before it, none before zero."""
        number = round(value / 10.0**self.power, self.decimals) + 0.0
        return f"{number:{'+' if sign and number else ''}.{self.decimals}f}".replace("-", "\N{MINUS SIGN}")

    def plain(self, value: float) -> str:
        """The number as a table has it, with the same digits."""
        number = round(value / 10.0**self.power, self.decimals) + 0.0
        return f"{number:.{self.decimals}f}" + (f"e{self.power}" if self.power else "")

    @property
    def times(self) -> str:
        """`` x 10^6``, or nothing."""
        return f" x 10^{self.power}" if self.power else ""


@dataclass(frozen=True)
class Explanation:
    """One number that the network puts out, in words, and what its atoms add to it.

    Attributes:
        quantity: its name, such as ``logp``, ``ln(clearance)`` or ``logit of active = yes``.
        legend: what is drawn.
        down: what blue means.
        up: what red means.
        values: ``float64 [N]``.
        errors: ``float64 [N]``, their standard errors; nan where they are not known.
        weight: of the network in the model's answer.
        prediction: of the network.
        baseline: of blank atoms.
        digits: of all these.
        answer: what the model answers, where that is another number than the prediction; else "".
        notes: what else is to be known.
    """

    quantity: str
    legend: str
    down: str
    up: str
    values: np.ndarray
    errors: np.ndarray
    weight: float
    prediction: float
    baseline: float
    digits: Digits
    model_prediction: str
    notes: tuple[str, ...]

    @property
    def error_bound_text(self) -> str:
        """``each ± 0.02 or less (standard error)``, or nothing."""
        error = _largest_error(self.errors)
        return f"each ± {_one_digit(error)} or less (standard error)" if error > 0 else ""

    @property
    def warning(self) -> str:
        """What to say where the network has little part in the answer, or nothing."""
        if self.weight >= SMALL_WEIGHT:
            return ""
        return (
            f"these maps explain little of the model's answers: the network's weight in them is {self.weight:.2f}, and "
            "trees, which have no maps, decide the rest"
        )

    @property
    def sum(self) -> str:
        """``2.31 = 1.10 (baseline) + 1.21 (atoms)``, which agrees as it is written."""
        whole, base = self.digits.rounded(self.prediction), self.digits.rounded(self.baseline)
        added = self.digits.text(abs(whole - base))
        sign = "+" if whole >= base else "\N{MINUS SIGN}"
        text = f"{self.digits.text(whole)} = {self.digits.text(base)} (baseline) {sign} {added} (atoms)"
        return f"({text}){self.digits.times}" if self.digits.power else text


def explain_target(
    found: Attribution, answers: np.ndarray, tasks: Sequence[Task], target: int, models: int
) -> Explanation:
    """What is said of one target of a molecule; of several classes, of the most probable.

    Args:
        found: contributions to its W numbers.
        answers: ``float32 [W]``, what the whole model answers.
        tasks: T targets.
        target: which of these.
        models: how many networks answer together.
    """
    task, where = tasks[target], output_slices(tasks)[target]
    at = where.start + (int(np.argmax(answers[where])) if task.kind == MULTICLASS else 0)
    values, errors = found.values[:, at], found.errors[:, at]
    digits = Digits.of(values, _largest_error(errors))
    quantity, legend, down, up = _legend_texts(task, at - where.start)
    weight = float(found.network_weight[at])
    notes = [f"mean of {models} networks"] if models > 1 else []
    if weight < 1:
        notes.append(f"the network's part alone: weight {weight:.2f} in the answer, trees have the rest")
    plain = task.kind == REGRESSION and task.transform == "none" and weight == 1
    model_prediction = "" if plain else _model_prediction(task, answers[where])
    ends = float(found.prediction[at]), float(found.baseline[at])
    return Explanation(
        quantity, legend, down, up, values, errors, weight, *ends, digits, model_prediction, tuple(notes)
    )


def _legend_texts(task: Task, place: int) -> tuple[str, str, str, str]:
    """The quantity, the legend, and what blue and red mean."""
    name = task.name
    if task.kind == REGRESSION and task.transform == "log":
        legend = f"contribution to the natural logarithm of {name} (+0.69 doubles it)"
        return f"ln({name})", legend, f"lowers {name}", f"raises {name}"
    if task.kind == REGRESSION:
        return name, f"contribution to {name}, in its unit", f"lowers {name}", f"raises {name}"
    named = task.classes[1] if task.kind == BINARY else task.classes[place]
    quantity = f"logit of {name} = {named}"
    away = f"towards {task.classes[0]}" if task.kind == BINARY else f"away from {named}"
    return quantity, f"contribution to the {quantity}", away, f"towards {named}"


def _model_prediction(task: Task, answers: np.ndarray) -> str:
    if task.kind == REGRESSION:
        return f"{task.name} {short_number(float(answers[0]))}"
    (named,) = predicted_classes(answers[None], task)
    if task.kind == BINARY:
        return f"probability of {task.name} = {task.classes[1]}: {answers[0]:.2f}"
    return f"probability of {task.name} = {named}: {answers.max():.2f}"


def short_number(value: float) -> str:
    """Three digits of a number, all those before its point."""
    text = f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:#.3g}".rstrip(".")
    return text.replace("-", "\N{MINUS SIGN}")


def _largest_error(errors: np.ndarray) -> float:
    return float(errors.max()) if np.isfinite(errors).all() else 0.0


def _places(error: float) -> int:
    """Decimals of an error that is written with one digit."""
    return -floor(log10(float(f"{error:.0e}")))


def _one_digit(error: float) -> str:
    places = _places(error)
    return f"{error:.{max(0, places)}f}" if places <= _MAX_DECIMALS else f"{error:.0e}"


def match_target(given: str | None, names: Sequence[str]) -> int:
    """Which target a text means: the one of that name, else the one with it in its name, in capitals or not.

    Args:
        given: the text; None for the first target.
        names: of the targets.

    Raises:
        InputError: if there is none, or more than one.
    """
    if given is None:
        return 0
    if given in names:
        return list(names).index(given)
    small = given.strip().lower()
    alike = [t for t, name in enumerate(names) if name.lower() == small]
    alike = alike or [t for t, name in enumerate(names) if small and small in name.lower()]
    if not alike:
        raise InputError(f"the model has no target {given!r}{nearest(given, names)}: it has {quoted_list(names)}")
    if len(alike) > 1:
        among = quoted_list(names[t] for t in alike)
        raise InputError(f"the target {given!r} may be any of {among}: give more of its name")
    return alike[0]
