"""OGB-LSC submission files, written by OGB's own evaluators."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from graphslice.config import DataConfig
from graphslice.data.dataset_loaders import load_dataset
from graphslice.data.labelled_dataset import LabelledDataset
from graphslice.data.ogb_lsc import OGB_TARGET, import_ogb_lsc
from graphslice.errors import InputError, nearest
from graphslice.inference.predictor import Predictor

#: The splits that are submitted, and how many molecules OGB has in each.
TEST_SPLIT_SIZES = {
    "pcqm4m": {"test": 377_423},
    "pcqm4mv2": {"test-dev": 147_037, "test-challenge": 147_432},
}


def write_submission(dataset: str, split: str, predictions: np.ndarray, folder: str | Path) -> Path:
    """Write the file that OGB-LSC takes.

    Args:
        dataset: ``pcqm4m`` or ``pcqm4mv2``.
        split: ``test``, or for v2 ``test-dev`` or ``test-challenge``.
        predictions: ``[R]`` gaps in eV, in the order of OGB's split.
        folder: made when absent; the file appears in it whole or not at all.

    Returns:
        The file's path.

    Raises:
        InputError: if the number of predictions is not OGB's, or one of them is no number.
    """
    if split not in TEST_SPLIT_SIZES.get(dataset, {}):
        raise InputError(f"{dataset} has no split {split!r} to submit")
    expected = TEST_SPLIT_SIZES[dataset][split]
    if predictions.shape != (expected,):
        raise InputError(
            f"a submission of {dataset} {split} has {expected:,} predictions, not {predictions.size:,}: "
            "is the data folder whole?"
        )
    if not np.isfinite(predictions).all():
        missing = int((~np.isfinite(predictions)).sum())
        raise InputError(f"{missing:,} of {expected:,} molecules of {dataset} {split} have no prediction")
    lsc = import_ogb_lsc()
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from None
    with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as temporary:
        if dataset == "pcqm4m":
            lsc.PCQM4MEvaluator().save_test_submission({"y_pred": predictions}, temporary)
        else:
            lsc.PCQM4Mv2Evaluator().save_test_submission({"y_pred": predictions}, temporary, split)
        (written,) = Path(temporary).iterdir()
        return written.replace(folder / written.name)


def submit(predictor: Predictor, dataset: str, root: str | Path, folder: str | Path) -> list[Path]:
    """Predict what OGB-LSC keeps the answers of, and write its files.

    Args:
        predictor: a model of the HOMO-LUMO gap.
        dataset: ``pcqm4m`` or ``pcqm4mv2``.
        root: where OGB's folder lies, or is downloaded to.
        folder: of the files; every split is predicted before the first is written.

    Raises:
        InputError: if the files could not be right.
    """
    if dataset not in TEST_SPLIT_SIZES:
        raise InputError(
            f"nothing to submit for {dataset!r}{nearest(dataset, TEST_SPLIT_SIZES)}: "
            f"choose {' or '.join(TEST_SPLIT_SIZES)}"
        )
    if predictor.targets != [OGB_TARGET]:
        raise InputError(f"the model predicts {', '.join(predictor.targets)}, and {dataset} asks for {OGB_TARGET}")
    source = load_dataset(DataConfig(dataset=dataset, root=str(root)))
    splits = source.splits or {}
    for split, expected in TEST_SPLIT_SIZES[dataset].items():
        found = len(splits.get(split, ()))
        if found != expected:
            raise InputError(
                f"OGB's {split} of {dataset} has {expected:,} molecules, and the folder in {root} {found:,}"
            )
    predictions = {
        split: _predict_split(predictor, source, split, splits[split]) for split in TEST_SPLIT_SIZES[dataset]
    }
    return [write_submission(dataset, split, values, folder) for split, values in predictions.items()]


def _predict_split(predictor: Predictor, source: LabelledDataset, split: str, rows: np.ndarray) -> np.ndarray:
    """``float32 [R]``, the gaps in eV of some rows.

    Raises:
        InputError: if one of them cannot be predicted.
    """
    from graphslice.evaluation.evaluate import predict_rows

    found = predict_rows(predictor, source, rows)
    failed = [(row, error) for row, error in zip(rows, found.errors, strict=True) if error]
    if failed:
        row, error = failed[0]
        raise InputError(f"{len(failed):,} molecules of {source.name} {split} have no prediction; row {row}: {error}")
    return found.values[:, 0]
