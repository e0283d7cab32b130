"""OGB-LSC submission files, written by OGB's own evaluators."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from rich.console import Console

from graphslice.config import DataConfig
from graphslice.data.loaders import load_dataset
from graphslice.data.ogb import OGB_TARGET, import_ogb_lsc, read_ogb_splits
from graphslice.errors import InputError, check_choice, check_new, pluralize
from graphslice.evaluation.evaluate import predict_rows
from graphslice.inference.predictor import Predictor
from graphslice.runs.run_files import TRAINING, read_training, run_directory_of
from graphslice.system.console import QUIET, remark
from graphslice.system.machine import device_name

#: Splits to submit, with the number of molecules that OGB has in each.
TEST_SPLIT_SIZES = {"pcqm4mv2": {"test-dev": 147_037, "test-challenge": 147_432}, "pcqm4m": {"test": 377_423}}


def submit(
    predictor: Predictor,
    dataset: str,
    root: str | Path,
    folder: str | Path,
    *,
    overwrite: bool = False,
    console: Console = QUIET,  # shows the progress
) -> list[Path]:
    """Predict the hidden test sets of OGB-LSC with a HOMO-LUMO gap model, all before writing; return the paths."""
    folder = Path(folder)
    check_choice("--dataset", dataset, TEST_SPLIT_SIZES)
    sizes = TEST_SPLIT_SIZES[dataset]
    if predictor.targets != [OGB_TARGET]:
        raise InputError(f"the model predicts {', '.join(predictor.targets)}, but {dataset} requires {OGB_TARGET}")
    files = [folder / ("y_pred_pcqm4m.npz" if s == "test" else f"y_pred_pcqm4m-v2_{s}.npz") for s in sizes]
    for file in files:
        check_new(file, overwrite)
    data = load_dataset(DataConfig(dataset=dataset, root=str(root)))
    for note in data.notes:
        remark(note, console)
    splits = read_ogb_splits(dataset, root)  # the order of a submission
    for split, expected in sizes.items():
        if (size := len(splits.get(split, ()))) != expected:
            found = f"{split} of {dataset} in {root} has {size:,} molecules"
            raise InputError(f"{found}, but a submission needs OGB's {expected:,}")
    folder.mkdir(parents=True, exist_ok=True)  # now, not after the predictions
    predicted: dict[str, np.ndarray] = {}
    begin = monotonic()
    for split in sizes:
        predictions = predict_rows(predictor, data, splits[split], console=console)
        if failed := [(row, reason) for row, reason in zip(splits[split], predictions.errors, strict=True) if reason]:
            what = f"no prediction of {pluralize(len(failed), 'molecule')} of {dataset} {split}"
            raise InputError(f"{what}; the first, row {failed[0][0] + 1}: {failed[0][1]}")
        predicted[split] = predictions.values[:, 0]
    time, count = timedelta(seconds=round(monotonic() - begin)), sum(sizes.values())
    console.print(f"{count:,} molecules predicted in {time} on {device_name(predictor.device)}", highlight=False)
    lsc = import_ogb_lsc()
    evaluator = lsc.PCQM4MEvaluator() if dataset == "pcqm4m" else lsc.PCQM4Mv2Evaluator()
    for split, values in predicted.items():
        evaluator.save_test_submission({"y_pred": values}, str(folder), *([] if dataset == "pcqm4m" else [split]))
    return files


def read_training_record(model: str | Path) -> dict[str, Any]:
    """Return ``training.json`` of the run of a model, with what OGB's form asks; empty if there is none."""
    folder = run_directory_of(model)
    return read_training(folder) if folder is not None and (folder / TRAINING).is_file() else {}


def describe_training(record: dict[str, Any]) -> str:
    """Describe the result of :func:`read_training_record` for the user: parameters, time and hardware."""
    if not record:
        return "no record of its training"
    members, devices = (f"{record[name]} x " if record.get(name, 1) > 1 else "" for name in ("members", "devices"))
    time = timedelta(seconds=round(record["seconds"]))
    return f"{members}{record['parameters']:,} parameters, trained in {time} on {devices}{record['device']}"
