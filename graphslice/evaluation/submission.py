"""OGB-LSC submission files, written by OGB's own evaluators."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from graphslice.data.ogb_lsc import import_ogb_lsc
from graphslice.errors import InputError

#: The parts that are submitted, and how many molecules OGB has in each.
SUBMITTED = {
    "pcqm4m": {"test": 377_423},
    "pcqm4mv2": {"test-dev": 147_037, "test-challenge": 147_432},
}


def write_submission(dataset: str, part: str, predictions: np.ndarray, folder: str | Path) -> Path:
    """Write the file that OGB-LSC takes.

    Args:
        dataset: ``pcqm4m`` or ``pcqm4mv2``.
        part: ``test``, or for v2 ``test-dev`` or ``test-challenge``.
        predictions: ``[R]`` gaps in eV, in the order of OGB's split.
        folder: made when absent; the file appears in it whole or not at all.

    Returns:
        The file's path.

    Raises:
        InputError: if the number of predictions is not OGB's, or one of them is no number.
    """
    if part not in SUBMITTED.get(dataset, {}):
        raise InputError(f"{dataset} has no part {part!r} to submit")
    expected = SUBMITTED[dataset][part]
    if predictions.shape != (expected,):
        raise InputError(
            f"a submission of {dataset} {part} has {expected:,} predictions, not {predictions.size:,}: "
            "is the data folder whole?"
        )
    if not np.isfinite(predictions).all():
        missing = int((~np.isfinite(predictions)).sum())
        raise InputError(f"{missing:,} of {expected:,} molecules of {dataset} {part} have no prediction")
    lsc = import_ogb_lsc()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as temporary:
        if dataset == "pcqm4m":
            lsc.PCQM4MEvaluator().save_test_submission({"y_pred": predictions}, temporary)
        else:
            lsc.PCQM4Mv2Evaluator().save_test_submission({"y_pred": predictions}, temporary, part)
        (written,) = Path(temporary).iterdir()
        return written.replace(folder / written.name)
