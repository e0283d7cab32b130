"""Files of trees and kernel machines with other numbers, lengths and types."""

import random
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from fuzzing.mutations import NUMBERS
from graphslice.runs.checkpoint_file import read_values, write_values
from graphslice.stacking.kernel import KernelMachine, fit_kernel
from graphslice.stacking.trees import Trees, fit_boosting, fit_forest

_FEATURES = 6
_KINDS = (("regression", 9), ("binary", 2), ("multiclass", 3))


def target(folder: Path) -> Callable[[random.Random], None]:
    warnings.simplefilter("ignore")  # of numbers that other types do not hold
    generator = np.random.default_rng(0)
    x = generator.normal(size=(24, _FEATURES)).astype(np.float32)
    y = np.digitize(x[:, 0] + x[:, 1], [-0.5, 0.5]) * 1.0
    whole = [
        _first_trees(fit(x, np.minimum(y, classes - 1), kind, classes, 0))
        for fit in (fit_forest, fit_boosting)
        for kind, classes in _KINDS
    ]
    counts = np.abs(x).round()
    whole += [
        fit_kernel(counts, np.minimum(y, classes - 1), kind, classes, 0, counts=4).to_arrays()
        for kind, classes in _KINDS
    ]

    def run(draw: random.Random) -> None:
        arrays = dict(draw.choice(whole))
        for _ in range(draw.choice((0, 1, 1, 2, 4))):
            name = draw.choice(list(arrays))
            arrays[name] = _changed(draw, arrays[name])
        write_values(folder / "changed.safetensors", arrays)
        model = read_values(folder / "changed.safetensors", _model)
        if not 0 < model.features <= 1000 or not model.width:  # a wide row is the caller's, and takes its memory
            return
        with suppress(ArithmeticError):
            model.predict(np.resize(x, (8, model.features)))

    return run


def _model(arrays: dict[str, np.ndarray]) -> Trees | KernelMachine:
    return KernelMachine.from_arrays(arrays) if "intercepts" in arrays else Trees(**arrays)


def _first_trees(trees: Trees, count: int = 5) -> dict[str, np.ndarray]:
    """Few trees, so that changes meet what matters."""
    arrays = trees.to_arrays()
    nodes = arrays["roots"][count]
    arrays |= {name: arrays[name][:nodes] for name in ("feature", "threshold", "child")}
    return arrays | {"roots": arrays["roots"][: count + 1], "columns": arrays["columns"][:count]}


def _changed(draw: random.Random, array: np.ndarray) -> np.ndarray:
    array, kind = array.copy(), draw.randrange(10)
    if kind < 7 and array.size:
        place = draw.randrange(array.size)
        near = np.array(float(array.flat[place]) + draw.choice((-2, -1, 1, 2))).astype(array.dtype)
        far = np.array(draw.choice((*NUMBERS, -1, 1e300, float("nan")))).astype(array.dtype)
        array.flat[place] = near if kind < 5 else far
    elif kind == 7:
        array = array[draw.randrange(2) : len(array) - draw.randrange(2)]
    elif kind == 8:
        array = array.astype(draw.choice((np.int8, np.int16, np.int32, np.int64, np.float32, np.float64, np.complex64)))
    else:
        array = draw.choice((array[None], array.reshape(-1), array[:0], np.concatenate([array, array])))
    return array
