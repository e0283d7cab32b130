"""OGB-LSC submission files, written by OGB's own evaluators."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from graphslice.config import DataConfig
from graphslice.data.dataset import LabelledDataset
from graphslice.data.dataset_loaders import load_dataset
from graphslice.data.labels import pluralize
from graphslice.data.ogb_lsc import OGB_TARGET, import_ogb_lsc
from graphslice.errors import InputError, nearest
from graphslice.inference.predictor import Predictor

#: Splits to submit, with the number of molecules that OGB has in each.
TEST_SPLIT_SIZES = {
    "pcqm4m": {"test": 377_423},
    "pcqm4mv2": {"test-dev": 147_037, "test-challenge": 147_432},
}
# Patterns of OGB's file names.
_FILES = {"pcqm4m": "y_pred_pcqm4m.npz", "pcqm4mv2": "y_pred_pcqm4m-v2_*.npz"}


def write_submission(dataset: str, split: str, predictions: np.ndarray, folder: str | Path) -> Path:
    """Write a submission file for OGB-LSC.

    Args:
        dataset: ``pcqm4m`` or ``pcqm4mv2``.
        split: ``test``, or for v2 ``test-dev`` or ``test-challenge``.
        predictions: ``float [R]``, HOMO-LUMO gaps in eV, in the order of OGB's split; all of them finite.
        folder: output folder, created if it does not exist. The file is written atomically.

    Returns:
        The path of the file.

    Raises:
        InputError: if the split is unknown, the predictions are not finite or their number is another one, or the
            folder cannot be written.
    """
    if (size := _split_sizes(dataset).get(split)) is None:
        raise InputError(f"{dataset} has no split {split!r} to submit: choose {' or '.join(TEST_SPLIT_SIZES[dataset])}")
    predictions = np.asarray(predictions)
    if predictions.shape != (size,) or not np.isfinite(predictions).all():
        raise InputError(f"{dataset} {split} needs {size:,} finite predictions, one for each molecule of the split")
    lsc = import_ogb_lsc()
    folder = Path(folder)
    with _temporary_directory(folder) as temporary:
        if dataset == "pcqm4m":
            lsc.PCQM4MEvaluator().save_test_submission({"y_pred": predictions}, temporary)
        else:
            lsc.PCQM4Mv2Evaluator().save_test_submission({"y_pred": predictions}, temporary, split)
        (written,) = Path(temporary).iterdir()
        return written.replace(folder / written.name)


def _split_sizes(dataset: str) -> dict[str, int]:
    if dataset not in TEST_SPLIT_SIZES:
        raise InputError(
            f"{dataset!r} has no submission{nearest(dataset, TEST_SPLIT_SIZES)}: choose {' or '.join(TEST_SPLIT_SIZES)}"
        )
    return TEST_SPLIT_SIZES[dataset]


@contextmanager
def _temporary_directory(folder: Path) -> Iterator[str]:
    """Create a directory in an output folder; raise InputError if the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as temporary:
            yield temporary
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from None


def submit(
    predictor: Predictor, dataset: str, root: str | Path, folder: str | Path, *, overwrite: bool = False
) -> list[Path]:
    """Predict the test sets of OGB-LSC, whose labels are hidden, and write the submission files.

    Args:
        predictor: a model of the HOMO-LUMO gap.
        dataset: ``pcqm4m`` or ``pcqm4mv2``.
        root: folder of the OGB data, downloaded if it is missing.
        folder: output folder. All splits are predicted before the first file is written.
        overwrite: replace existing files.

    Returns:
        The paths of the files.

    Raises:
        InputError: if the dataset or the model does not fit, a molecule cannot be predicted, the folder cannot be
            written, or a file exists.
    """
    sizes = _split_sizes(dataset)
    if predictor.targets != [OGB_TARGET]:
        raise InputError(f"the model predicts {', '.join(predictor.targets)}, but {dataset} requires {OGB_TARGET}")
    if not overwrite and (existing := sorted(Path(folder).glob(_FILES[dataset]))):
        raise InputError(f"{existing[0]} exists already: choose another --out, or give --overwrite")
    data = load_dataset(DataConfig(dataset=dataset, root=str(root)))
    splits = data.splits or {}
    for split, expected in sizes.items():
        size = len(splits.get(split, ()))
        if size != expected:
            raise InputError(
                f"OGB's {split} of {dataset} has {expected:,} molecules, but the folder in {root} has {size:,}"
            )
    with _temporary_directory(Path(folder)):  # an error now, not after the predictions
        pass
    predictions = {split: _predict_split(predictor, data, split, splits[split]) for split in sizes}
    return [write_submission(dataset, split, values, folder) for split, values in predictions.items()]


def _predict_split(predictor: Predictor, dataset: LabelledDataset, split: str, rows: np.ndarray) -> np.ndarray:
    """Predict the HOMO-LUMO gaps of some rows in eV, ``float32 [R]``; raises InputError if a row fails."""
    from graphslice.evaluation.evaluate import predict_rows

    predictions = predict_rows(predictor, dataset, rows)
    failed = [(row, error) for row, error in zip(rows, predictions.errors, strict=True) if error]
    if failed:
        row, error = failed[0]
        raise InputError(
            f"no prediction of {pluralize(len(failed), 'molecule')} of {dataset.name} {split}; the first, row "
            f"{row + 1}: {error}"
        )
    return predictions.values[:, 0]
