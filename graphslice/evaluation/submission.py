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
from graphslice.system.machine import device_name

#: Splits to submit, with the number of molecules that OGB has in each.
TEST_SPLIT_SIZES = {
    "pcqm4m": {"test": 377_423},
    "pcqm4mv2": {"test-dev": 147_037, "test-challenge": 147_432},
}


def submit(
    predictor: Predictor,
    dataset: str,
    root: str | Path,
    folder: str | Path,
    *,
    overwrite: bool = False,
    console: Console | None = None,  # shows the progress
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
    console = console or Console(quiet=True)
    for note in data.notes:
        console.print(note, highlight=False)
    splits = read_ogb_splits(dataset, root)  # the order of a submission
    for split, expected in sizes.items():
        if (size := len(splits.get(split, ()))) != expected:
            raise InputError(f"OGB's {split} of {dataset} has {expected:,} molecules, but that in {root} has {size:,}")
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
    model = f"{pluralize(predictor.num_models, 'network')}, {predictor.total_parameters:,} parameters"
    console.print(f"{model}: {count:,} molecules in {time} on {device_name(predictor.device)}", highlight=False)
    lsc = import_ogb_lsc()
    evaluator = lsc.PCQM4MEvaluator() if dataset == "pcqm4m" else lsc.PCQM4Mv2Evaluator()
    for split, values in predicted.items():
        evaluator.save_test_submission({"y_pred": values}, str(folder), *([] if dataset == "pcqm4m" else [split]))
    return files


def training_facts(model: str | Path) -> dict[str, Any]:
    """Return what OGB's form asks of a training, from the records of the run: parameters of a network, seconds, device,
    number of devices, and of an ensemble its members; empty without records."""
    folder = run_directory_of(model)
    recorded = read_training(folder) if folder is not None and (folder / TRAINING).is_file() else {}
    names = ("parameters", "seconds", "device", "devices", "members")
    return {name: recorded[name] for name in names if name in recorded}


def describe_training(facts: dict[str, Any]) -> str:
    """Describe the result of :func:`training_facts` for the user."""
    if not facts:
        return "no record of its training"
    members = f"{facts['members']} x " if "members" in facts else ""
    devices = f"{facts['devices']} x " if facts["devices"] > 1 else ""
    time = timedelta(seconds=round(facts["seconds"]))
    return f"{members}{facts['parameters']:,} parameters, trained in {time} on {devices}{facts['device']}"
