"""OGB-LSC submission files, written by OGB's own evaluators."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graphslice.config import DataConfig
from graphslice.data.loaders import load_dataset
from graphslice.data.ogb import OGB_TARGET, import_ogb_lsc
from graphslice.errors import InputError, nearest, pluralize
from graphslice.inference.predictor import Predictor

#: Splits to submit, with the number of molecules that OGB has in each.
TEST_SPLIT_SIZES = {
    "pcqm4m": {"test": 377_423},
    "pcqm4mv2": {"test-dev": 147_037, "test-challenge": 147_432},
}


def submit(
    predictor: Predictor, dataset: str, root: str | Path, folder: str | Path, *, overwrite: bool = False
) -> list[Path]:
    """Predict the hidden test sets of OGB-LSC with a HOMO-LUMO gap model, all before writing; return the paths."""
    from graphslice.evaluation.evaluate import predict_rows

    folder = Path(folder)
    if (sizes := TEST_SPLIT_SIZES.get(dataset)) is None:
        known = " or ".join(TEST_SPLIT_SIZES)
        raise InputError(f"{dataset!r} has no submission{nearest(dataset, TEST_SPLIT_SIZES)}: choose {known}")
    if predictor.targets != [OGB_TARGET]:
        raise InputError(f"the model predicts {', '.join(predictor.targets)}, but {dataset} requires {OGB_TARGET}")
    files = [folder / ("y_pred_pcqm4m.npz" if s == "test" else f"y_pred_pcqm4m-v2_{s}.npz") for s in sizes]
    if not overwrite and (existing := [file for file in files if file.exists()]):
        raise InputError(f"{existing[0]} exists already: choose another --out, or give --overwrite")
    data = load_dataset(DataConfig(dataset=dataset, root=str(root)))
    splits = data.splits or {}
    for split, expected in sizes.items():
        if (size := len(splits.get(split, ()))) != expected:
            raise InputError(f"OGB's {split} of {dataset} has {expected:,} molecules, but that in {root} has {size:,}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # now, not after the predictions
        raise InputError(f"cannot write to {folder}: {error.strerror}") from None
    predicted: dict[str, np.ndarray] = {}
    for split in sizes:
        predictions = predict_rows(predictor, data, splits[split])
        if failed := [(row, reason) for row, reason in zip(splits[split], predictions.errors, strict=True) if reason]:
            what = f"no prediction of {pluralize(len(failed), 'molecule')} of {dataset} {split}"
            raise InputError(f"{what}; the first, row {failed[0][0] + 1}: {failed[0][1]}")
        predicted[split] = predictions.values[:, 0]
    lsc = import_ogb_lsc()
    evaluator = lsc.PCQM4MEvaluator() if dataset == "pcqm4m" else lsc.PCQM4Mv2Evaluator()
    for split, values in predicted.items():
        evaluator.save_test_submission({"y_pred": values}, str(folder), *([] if dataset == "pcqm4m" else [split]))
    return files
