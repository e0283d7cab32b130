"""Support vector machines on the sum of two kernels: of counts of atom environments, and of descriptors.

The kernel of the counts is that of Tanimoto, also called min-max (Ralaivola et al. 2005,
doi:10.1016/j.neunet.2005.07.009); that of the descriptors is Gaussian:

    k(a, b) = (sum_i min(a_i, b_i) / sum_i max(a_i, b_i)  +  exp(-|z_a - z_b|^2 / (2 D))) / 2

where z are the logarithms of the D descriptors, standardised on the training set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import njit

from graphslice.chem.fingerprints import FINGERPRINT_BITS
from graphslice.program.simd.lanes import address_of, exp, float32x16, load, maximum, splat, store
from graphslice.program.simd.small_product import NO_START, Matrix, small_product
from graphslice.stacking.trees import (
    LOGISTIC,
    NUMBER,
    as_inputs,
    check_arrays,
    form,
    label_scores,
    labelled_rows,
    logistic,
    shares,
)
from graphslice.system.threads import parallel_for
from graphslice.tasks import interpolate

if TYPE_CHECKING:
    from sklearn.svm import SVR

#: Largest number of training rows; of more, a random sample is used.
MAX_ROWS = 4_000
# Hyperparameters, chosen by cross-validation on datasets of ADMET properties: 1, 3 and 10 hardly differ.
_C, _EPSILON = 3.0, 0.1
_PLATT_FOLDS = 3
# Standardised logarithms of descriptors are clipped to this magnitude.
_CLIP = 4.0
# Decision value of a class without training rows, or of the only class.
_SURE = 1e9
# Rows whose kernel is computed at a time.
_BLOCK = 64
# A count of more than one in so many support vectors is stored for all of them.
_FREQUENT = 16

_SMALLER = {"ptr": "int32", "vectors": "int16", "sizes": "float32", "descriptors": "float16"}


class Support(NamedTuple):
    """Support vectors as compiled code reads them; S is rounded up to a multiple of 16, the last ones are zeros."""

    ptr: np.ndarray  # ptr, vectors and counts as in KernelMachine
    vectors: np.ndarray
    counts: np.ndarray
    place: np.ndarray  # int64 [C], row of each count in `frequent`, or -1
    frequent: np.ndarray  # uint8 [K, S], counts that many support vectors have: added in vectors
    sizes: np.ndarray  # float32 [S], sum of the counts
    descriptors: np.ndarray  # float32 [D, S]
    norms: np.ndarray  # float32 [S], squared, of the descriptors


def _arrange(
    ptr: np.ndarray, vectors: np.ndarray, counts: np.ndarray, sizes: np.ndarray, descriptors: np.ndarray
) -> Support:
    padded = -(-len(sizes) // 16) * 16
    many = np.flatnonzero(np.diff(ptr) * _FREQUENT > len(sizes))
    place, frequent = np.full(len(ptr) - 1, -1), np.zeros((len(many), padded), np.uint8)
    place[many] = np.arange(len(many))
    for row, c in zip(frequent, many, strict=True):
        row[vectors[ptr[c] : ptr[c + 1]]] = counts[ptr[c] : ptr[c + 1]]
    columns = np.zeros((descriptors.shape[1], padded), np.float32)
    columns[:, : len(sizes)] = descriptors.T
    norms, sizes = (columns**2).sum(axis=0), np.pad(sizes, (0, padded - len(sizes))).astype(np.float32)
    return Support(ptr, vectors, counts, place, frequent, sizes, columns, norms)


@dataclass(frozen=True, eq=False)
class KernelMachine:
    """Support vector machine with S support vectors; an input has C counts, then D descriptors."""

    ptr: np.ndarray = field(metadata=form("C+1", "int64"))  # entries of count c: ptr[c]:ptr[c + 1]
    vectors: np.ndarray = field(metadata=form("Z", "int32"))  # of each entry, ascending within a count
    counts: np.ndarray = field(metadata=form("Z", "uint8"))  # of each entry, at least 1
    sizes: np.ndarray = field(metadata=form("S", "float64"))  # sum of the counts of each support vector
    descriptors: np.ndarray = field(metadata=form("S D", "float32"))  # standardised logarithms
    shift: np.ndarray = field(metadata=form("D", "float32"))  # mean of the logarithms of the training set
    scale: np.ndarray = field(metadata=form("D", "float32"))  # standard deviation of the same
    coefficients: np.ndarray = field(metadata=form("S W", "float64"))
    intercepts: np.ndarray = field(metadata=form("W", "float64"))
    knots: np.ndarray = field(metadata=form("2 P", "float64"))  # map from decision values to numbers as in Trees
    link: np.ndarray = field(metadata=form("1", "int64"))
    """``NUMBER`` (:mod:`~graphslice.stacking.trees`), or ``LOGISTIC`` for probabilities: of class 1 (W = 1), or of W
    classes, normalised."""

    def __post_init__(self) -> None:
        check_arrays(self, self._index_error)

    def _index_error(self) -> str:
        """Check the assumptions of the compiled code."""
        ptr, vectors = self.ptr, self.vectors
        if ptr[0] != 0 or ptr[-1] != len(vectors) or (ptr[1:] < ptr[:-1]).any():
            return "ptr is not ascending"
        if not (self.scale > 0).all():
            return "a scale is not above 0"
        return "a count of no support vector" if ((vectors < 0) | (vectors >= len(self.sizes))).any() else ""

    @cached_property
    def _support(self) -> Support:
        return _arrange(self.ptr, self.vectors, self.counts, self.sizes, self.descriptors)

    @property
    def width(self) -> int:
        """W, number of columns of a prediction."""
        return len(self.intercepts)

    @property
    def features(self) -> int:
        """C + D, number of input features."""
        return len(self.ptr) - 1 + len(self.shift)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Predict each row ``float32 [R, C + D]`` as :meth:`Trees.predict`: ``float64 [R, W]``. Counts are rounded down
        and limited to 0 to 255, nan counts as 0."""
        x = as_inputs(x, self.features)
        values = np.zeros((len(x), self.width))

        def decide(rows: slice) -> None:
            _decide(x[rows], self.shift, self.scale, self._support, self.coefficients, values[rows])

        if len(self.sizes):
            _in_blocks(decide, len(x), len(x) * self.descriptors.size)
        values += self.intercepts
        if self.link[0] == NUMBER:
            return interpolate(values, self.knots) if self.knots.size else values
        probabilities = np.array([logistic(value) for value in values.ravel()]).reshape(values.shape)
        return probabilities if self.width == 1 else shares(np.maximum(probabilities, 1e-12))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the attributes by name, for :meth:`from_arrays`, in a smaller dtype if it holds their values."""
        arrays = {each.name: getattr(self, each.name) for each in fields(self)}
        smaller = {name: arrays[name].astype(dtype) for name, dtype in _SMALLER.items()}
        return arrays | {name: small for name, small in smaller.items() if np.array_equal(small, arrays[name])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> KernelMachine:
        """Restore the output of :meth:`to_arrays`."""
        kinds = {each.name: each.metadata["dtypes"][0] for each in fields(cls)}
        return cls(**{name: arrays[name].astype(kind, casting="safe") for name, kind in kinds.items()})


def fit_kernel(
    x: np.ndarray,
    y: np.ndarray,
    kind: str,
    classes: int,
    seed: int,
    weights: np.ndarray | None = None,
    counts: int = FINGERPRINT_BITS,
) -> KernelMachine:
    """Fit a support vector machine by scikit-learn; arguments as of :func:`~graphslice.stacking.trees.fit_forest`,
    and the first ``counts`` columns are counts. Decision values of classes become probabilities by a logistic function
    (Platt 1999), fitted to three inner folds; of more than two classes, each has a machine against the rest."""
    from sklearn.svm import SVC

    x, y, weights = labelled_rows(x, y, weights)
    if len(y) > MAX_ROWS:
        chosen = _stratified_sample(y if kind != "regression" else np.zeros(len(y)), seed)
        x, y, weights = x[chosen], y[chosen], None if weights is None else weights[chosen]
    training = _prepare(x, counts)
    is_constant = (y == y[0]).all()
    kernel = np.empty((0, 0)) if is_constant else kernel_matrix(training["rows"], training["z"])
    if kind == "regression":
        if is_constant:
            return _machine(training, np.zeros((len(y), 1)), y[:1], np.empty((2, 0)), NUMBER)
        knots, scores = label_scores(y, kind)
        model = fit_regression(kernel, scores, weights)
        coefficients = np.zeros((len(y), 1))
        coefficients[model.support_, 0] = model.dual_coef_[0]
        return _machine(training, coefficients, model.intercept_, knots, NUMBER)
    positives = [1] if kind == "binary" else range(classes)
    coefficients, intercepts = np.zeros((len(y), len(positives))), np.full(len(positives), -_SURE)
    for column, positive in enumerate(positives):
        is_positive = y == positive
        if is_positive.all() or not is_positive.any():
            intercepts[column] = _SURE if is_positive.all() else -_SURE
            continue
        slope, offset = _platt(kernel, is_positive, seed, weights)
        model = SVC(kernel="precomputed", C=_C).fit(kernel, is_positive, weights)
        coefficients[model.support_, column] = slope * model.dual_coef_[0]
        intercepts[column] = slope * model.intercept_[0] + offset
    return _machine(training, coefficients, intercepts, np.empty((2, 0)), LOGISTIC)


def training_kernel(x: np.ndarray, counts: int = FINGERPRINT_BITS) -> np.ndarray:
    """Return the kernel of all pairs of training rows, ``float64 [R, R]``; arguments as of :func:`fit_kernel`."""
    training = _prepare(x, counts)
    return kernel_matrix(training["rows"], training["z"])


def fit_regression(kernel: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> SVR:
    """Fit a support vector regression to standardised labels ``[R]`` by the kernel of the training rows ``[R, R]``, all
    float64; it predicts other rows from their kernel with these."""
    from sklearn.svm import SVR

    return SVR(kernel="precomputed", C=_C, epsilon=_EPSILON).fit(kernel, y, weights)


def kernel_matrix(
    counts: np.ndarray,  # uint8 [R, C]
    z: np.ndarray,  # float32 [R, D], standardised logarithms of descriptors
) -> np.ndarray:
    """Return the kernel of all pairs of rows, ``float64 [R, R]``."""
    support = _arrange(*_by_column(counts), counts.sum(axis=1), z)
    kernel = np.empty((len(z), len(z)))

    def fill(rows: slice) -> None:
        values = np.empty((len(z[rows]), len(support.norms)), np.float32)
        _fill_kernel(counts[rows], z[rows], support, values)
        kernel[rows] = values[:, : len(z)]

    _in_blocks(fill, len(z), len(z) * z.size)
    return kernel


def _in_blocks(function: Callable[[slice], None], rows: int, values: int) -> None:
    """Call a function of compiled code for blocks of rows, in parallel as by :func:`parallel_for`."""

    def call(begin: int, end: int) -> None:
        for first in range(begin, end, _BLOCK):
            function(slice(first, min(first + _BLOCK, end)))

    parallel_for(call, rows, values)


# --- fitting ---------------------------------------------------------------------------------------


def _stratified_sample(classes: np.ndarray, seed: int) -> np.ndarray:
    """Return :data:`MAX_ROWS` random rows, ``int64``, with the same shares of the classes, and one row of each."""
    shuffled = np.random.default_rng(seed).permutation(len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    _, first, counts = np.unique(classes[by_class], return_index=True, return_counts=True)
    place = (np.arange(len(classes)) - np.repeat(first, counts)) / np.repeat(counts, counts)
    return np.sort(by_class[np.argsort(place, kind="stable")[:MAX_ROWS]])


def _prepare(x: np.ndarray, counts: int) -> dict[str, np.ndarray]:
    """Return counts ``rows`` uint8 ``[R, C]``, standardised logarithms ``z`` float32 ``[R, D]``, and their mean and
    standard deviation, ``shift`` and ``scale`` ``[D]``; a constant descriptor does not count."""
    counts = min(counts, x.shape[1])
    rows, z = np.empty((len(x), counts), np.uint8), np.empty((len(x), x.shape[1] - counts), np.float32)
    _split_rows(np.ascontiguousarray(x, np.float32), rows, z)
    shift, deviation = z.mean(axis=0, dtype=np.float64).astype(np.float32), z.std(axis=0, dtype=np.float64)
    scale = np.where(deviation > 1e-6, deviation, 1e30).astype(np.float32)
    _standardise_rows(z, shift, scale)
    return {"rows": rows, "z": z, "shift": shift, "scale": scale}


def _platt(
    kernel: np.ndarray, is_positive: np.ndarray, seed: int, row_weights: np.ndarray | None
) -> tuple[float, float]:
    """Return slope and offset of the logit as a function of the decision value, fitted to inner folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, cross_val_predict
    from sklearn.svm import SVC

    positive, negative = is_positive.sum(), (~is_positive).sum()
    _, molecules = np.unique(kernel, axis=0, return_inverse=True)
    distinct = [len(np.unique(molecules[rows])) for rows in (is_positive, ~is_positive)]
    if min(distinct) < 2:
        return 1.0, 0.0
    # Rows of one molecule are in one fold: the values of others would be those of training rows.
    kind, groups = (StratifiedKFold, None) if molecules.max() + 1 == len(kernel) else (StratifiedGroupKFold, molecules)
    splitter = kind(min(_PLATT_FOLDS, *distinct), shuffle=True, random_state=seed)
    folds = list(splitter.split(kernel, is_positive, groups))
    if any(len(np.unique(is_positive[train])) < 2 for train, _ in folds):  # groups may hold all rows of a class
        return 1.0, 0.0
    model, fit_arguments = SVC(kernel="precomputed", C=_C), {"sample_weight": row_weights}
    values = cross_val_predict(model, kernel, is_positive, cv=folds, method="decision_function", params=fit_arguments)
    # Labels count as less than certain by their number, as Platt proposed.
    targets = np.where(is_positive, (positive + 1) / (positive + 2), 1 / (negative + 2))
    labels = np.repeat([True, False], len(values))
    weights = np.concatenate([targets, 1 - targets])
    if row_weights is not None:
        weights *= np.tile(row_weights, 2)
    fit = LogisticRegression(C=1e6).fit(np.tile(values, 2)[:, None], labels, weights)
    if fit.coef_[0, 0] <= 0:  # no relation: the frequency of the class
        return 0.0, float(np.log(weights[: len(values)].sum() / weights[len(values) :].sum()))
    return float(fit.coef_[0, 0]), float(fit.intercept_[0])


def _by_column(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the counts that are not 0 by column: ``ptr``, ``vectors`` and ``counts`` of :class:`KernelMachine`."""
    columns, vectors = np.nonzero(counts.T)
    ptr = np.searchsorted(columns, np.arange(counts.shape[1] + 1)).astype(np.int64)
    return ptr, vectors.astype(np.int32), counts[vectors, columns]


def _machine(
    training: Mapping[str, Any], coefficients: np.ndarray, intercepts: np.ndarray, knots: np.ndarray, link: int
) -> KernelMachine:
    """Return the machine of the training rows with a coefficient other than 0."""
    support = (coefficients != 0).any(axis=1)
    rows = training["rows"][support]
    ptr, vectors, counts = _by_column(rows)
    return KernelMachine(
        ptr=ptr,
        vectors=vectors,
        counts=counts,
        sizes=rows.sum(axis=1, dtype=np.float64),
        descriptors=np.ascontiguousarray(training["z"][support]),
        shift=training["shift"],
        scale=training["scale"],
        coefficients=np.ascontiguousarray(coefficients[support]),
        intercepts=np.asarray(intercepts, np.float64).copy(),
        knots=np.ascontiguousarray(knots),
        link=np.array([link]),
    )


# --- compiled --------------------------------------------------------------------------------------


@njit(cache=True)
def _add_shared_counts(counts, support, shared):
    """Add ``sum_i min(a_i, b_i)`` of one row and each support vector to ``shared``; return ``sum_i a_i``."""
    size = np.float32(0)
    for c in range(len(counts)):
        count = counts[c]
        if count:
            size += count
            if support.place[c] >= 0:
                column = support.frequent[support.place[c]]
                for s in range(len(shared)):
                    shared[s] += min(count, column[s])
            else:
                for k in range(support.ptr[c], support.ptr[c + 1]):
                    shared[support.vectors[k]] += min(count, support.counts[k])
    return size


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_kernel(counts, z, support, out):
    """Fill ``out [R, S]`` with the kernel of rows, of ``counts`` and ``z``, and each support vector."""
    (rows, width), columns, lanes = z.shape, out.shape[1], float32x16()
    products = Matrix(address_of(out), columns)
    vectors = Matrix(address_of(support.descriptors), columns)
    small_product(Matrix(address_of(z), width), vectors, NO_START, products, rows, width, columns)
    shared, norms = np.empty(columns, np.int32), address_of(support.norms)
    for row in range(rows):
        norm, exponents = splat(lanes, (z[row] * z[row]).sum()), address_of(out[row])
        for s in range(0, columns, 16):
            distance = norm + load(lanes, norms, s) - splat(lanes, np.float32(2)) * load(lanes, exponents, s)
            factor = splat(lanes, np.float32(-0.5) / max(1, width))
            store(exponents, s, exp(factor * maximum(distance, lanes)))
        shared[:] = 0
        size = _add_shared_counts(counts[row], support, shared)
        for s in range(columns):
            both = np.float32(shared[s])
            either = max(size + support.sizes[s] - both, np.float32(1))  # of two rows without counts it is 0
            out[row, s] = np.float32(0.5) * (both / either + out[row, s])


@njit(cache=True, nogil=True)
def _split_rows(x, counts, logs):
    """Split inputs into counts and signed logarithms of descriptors; nan counts as 0."""
    columns = counts.shape[1]
    for row in range(len(x)):
        for c in range(columns):
            count = x[row, c]
            counts[row, c] = np.uint8(min(count, np.float32(255))) if count >= 1 else np.uint8(0)
        for k in range(logs.shape[1]):
            value = x[row, columns + k]
            log = np.log1p(abs(np.float64(value))) if value == value else 0.0
            logs[row, k] = np.float32(-log if value < 0 else log)


@njit(cache=True, nogil=True)
def _standardise_rows(logs, shift, scale):
    for row in range(len(logs)):
        for k in range(len(shift)):
            standardised = (logs[row, k] - shift[k]) / scale[k]
            logs[row, k] = min(max(standardised, np.float32(-_CLIP)), np.float32(_CLIP))


@njit(cache=True, nogil=True)
def _decide(x, shift, scale, support, coefficients, out):
    """Fill ``out`` with the decision values of rows without intercepts, in a fixed order of summation."""
    kernel, z = np.empty((len(x), len(support.norms)), np.float32), np.empty((len(x), len(shift)), np.float32)
    counts = np.empty((len(x), len(support.place)), np.uint8)
    _split_rows(x, counts, z)
    _standardise_rows(z, shift, scale)
    _fill_kernel(counts, z, support, kernel)
    for row in range(len(x)):
        for k in range(out.shape[1]):
            total = 0.0
            for s in range(len(coefficients)):
                total += coefficients[s, k] * kernel[row, s]
            out[row, k] = total
