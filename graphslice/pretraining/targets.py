"""What is computed of a molecule as targets: RDKit's descriptors, and which parts it has."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from graphslice.chem.descriptors import DESCRIPTORS
from graphslice.data.store import GraphStore
from graphslice.tasks import BINARY, Task

#: The kinds of descriptors that targets are made of.
DESCRIPTOR_KINDS = ("rdkit2d", "morgan")

# A descriptor that is one and the same number of more than this share of the molecules is a question instead: whether
# it is another one. The absolute error of a number would be least where always that one is said.
_COMMONEST = 0.6
# A question is asked where so many say yes at least, and no.
_RARE = 0.1
# A standardised descriptor is cut at so many deviations.
_CLIP = 5.0


@dataclass(frozen=True)
class PretrainingTargets:
    """Targets of molecules, as they are computed of descriptors.

    Attributes:
        tasks: T targets: numbers, of about 0 and of deviation 1 however they are distributed, and questions.
        columns: int64 ``[T]``, the descriptor that each is made of.
        centre: float32 ``[T]``, its median; of a question the number that most molecules have.
        scale: float32 ``[T]``, its quartiles' distance over that of the normal distribution; nan of a question.
    """

    tasks: tuple[Task, ...]
    columns: np.ndarray
    centre: np.ndarray
    scale: np.ndarray

    @property
    def names(self) -> list[str]:
        """T names, each of its descriptor."""
        return [task.name for task in self.tasks]

    def compute(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """``float64 [R, T]``, the targets of some molecules of a store; nan where there is no descriptor."""
        return self._standardise(store.descriptors(rows, DESCRIPTOR_KINDS)[:, self.columns])

    def _standardise(self, values: np.ndarray) -> np.ndarray:
        questions = np.isnan(self.scale)
        with np.errstate(invalid="ignore"):
            numbers = ((values - self.centre) / self.scale).clip(-_CLIP, _CLIP)
        asked = np.where(np.isnan(values), np.nan, values != self.centre)
        return np.where(questions, asked, numbers).astype(np.float64)


def choose_targets(store: GraphStore, rows: np.ndarray, exclude: Collection[str] = ()) -> PretrainingTargets:
    """The targets that some molecules of a store suggest.

    A number is made of a descriptor that is spread, and a question of one that most molecules share, unless nearly
    all do: bits of fingerprints that are neither rare nor common, and counts of groups that few molecules have.

    Args:
        store: that has :data:`DESCRIPTOR_KINDS`.
        rows: ``int64 [R]``, molecules for training.
        taken: names that other targets have.
    """
    from scipy.stats import iqr

    names = [name for kind in DESCRIPTOR_KINDS for name in DESCRIPTORS[kind].names]
    values = store.descriptors(rows, DESCRIPTOR_KINDS)
    tasks, columns, centre, scale = [], [], [], []
    for column, name in enumerate(names):
        known = values[:, column]
        known = known[~np.isnan(known)]
        if name in exclude or not len(known) or len(known) < len(rows) / 2:
            continue
        numbers, counts = np.unique(known, return_counts=True)
        commonest, share = numbers[counts.argmax()], counts.max() / len(known)
        spread = iqr(known, scale="normal")
        if share <= _COMMONEST and spread > 0:
            tasks.append(Task(name))
            centre.append(np.median(known))
            scale.append(spread)
        elif _RARE <= 1 - share <= 1 - _RARE:
            tasks.append(Task(name, BINARY, ("no", "yes")))
            centre.append(commonest)
            scale.append(np.nan)
        else:
            continue
        columns.append(column)
    made = (np.array(numbers, dtype) for numbers, dtype in ((columns, int), (centre, np.float32), (scale, np.float32)))
    return PretrainingTargets(tuple(tasks), *made)
