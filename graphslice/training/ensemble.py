"""Several models as one: an ensemble, or one for each fold, trained side by side, with one prediction."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from graphslice.checkpoint import read_checkpoint
from graphslice.config import RunConfig
from graphslice.data.arrow import json_lists, list_array, number_array
from graphslice.data.atom_bond_labels import pointers
from graphslice.data.atom_bond_order import atom_bond_orders
from graphslice.data.datamodule import MoleculeData
from graphslice.data.dataset_loaders import load_dataset
from graphslice.data.featurize import featurizer_pool
from graphslice.data.labelled_dataset import LabelledDataset
from graphslice.data.pyg_dataset import dataset_from_pyg
from graphslice.data.splits import SPLITS
from graphslice.ensemble_check import check_folder, check_one_run
from graphslice.errors import InputError
from graphslice.evaluation.coverage import COVERAGE_LEVEL
from graphslice.evaluation.evaluate import read_splits
from graphslice.evaluation.metrics import METRICS
from graphslice.evaluation.out_of_fold import predict_held_out, rows_in_split
from graphslice.folder_lock import ENDING, holds_only_lock, locked
from graphslice.hardware import cores, visible_gpus
from graphslice.inference.predictions import Predictions
from graphslice.inference.predictor import Predictor, load
from graphslice.processes import in_processes
from graphslice.run_files import (
    CONFIG,
    LAST,
    MEMBER,
    contains_run,
    find_members,
    is_finished,
    read_metrics,
    read_training,
)
from graphslice.tasks import prediction_columns
from graphslice.training.baselines import describe_seeds
from graphslice.training.calibrate import calibrate_ensemble
from graphslice.training.data_summary import print_data_summary
from graphslice.training.evaluate_run import choose_metric, evaluate_split
from graphslice.training.fine_tuning import choose_init_from
from graphslice.training.run import (
    Interrupted,
    RunResult,
    finished_result,
    is_first_process,
    load_molecule_data,
    run,
    saved_splits,
)
from graphslice.training.run_directory import (
    OUT_OF_FOLD,
    init_run_directory,
    read_config,
    write_metrics,
    write_training,
)

if TYPE_CHECKING:
    from torch_geometric.data import Data


def member_configs(config: RunConfig) -> dict[str, RunConfig]:
    """The configuration of each member of a run, by the name of its folder; empty for a run of one model.

    An ensemble has a seed for each, which no ensemble of another seed has, and where the data does not say which rows
    validate, other rows for each; of folds each member has one, held out as its test.
    """
    count = config.num_models
    if count < 2:
        return {}
    members = {}
    for number in range(count):
        seed = (config.trainer.seed * count + number) % 2**32
        trainer = replace(config.trainer, ensemble=1, seed=seed)
        data = (
            replace(config.data, fold=number) if config.data.is_cross_validation else replace(config.data, carve=number)
        )
        members[f"{MEMBER}{number + 1}"] = replace(config, data=data, trainer=trainer)
    return members


def train_ensemble(
    members: dict[str, RunConfig],
    config: RunConfig,
    dataset: LabelledDataset,
    out: Path,
    graphs: list[Data] | None,
    *,
    fresh: bool,
    command: str | None = None,
    console: Console | None,
) -> RunResult:
    """Train several models, each in a process of its own, and judge them together."""
    console = console or Console(stderr=True, soft_wrap=True)
    if config.trainer.devices not in ("auto", "1") or not is_first_process():
        raise InputError("every model of an ensemble, or of folds, has one device: leave out --trainer.devices")
    # Not merged: every model is judged by the rows as they are, also by those that another one learned as one.
    first = next(iter(members.values()))
    data = load_molecule_data(replace(first, data=replace(first.data, duplicates="keep")), dataset, console)
    if not fresh:
        _check_begun(out, list(members))
    if not fresh and all(is_finished(folder) for folder in (out, *(out / name for name in members))):
        return finished_result(out, data, console)
    metric = choose_metric(config.trainer.metric, data)
    if fresh:
        for member in members.values():  # none is trained if one of them cannot be
            data.check_split(member)
        for folder in (out / name for name in members):
            if folder.exists() and not contains_run(folder) and not holds_only_lock(folder):
                raise InputError(f"{folder} is there, and holds no run: choose another --out")
        init_run_directory(out, config, data, command)
    print_data_summary(console, data)
    if config.data.is_cross_validation:
        console.print("each of the models has another fold as its test", highlight=False)
    elif dataset.splits is None or "valid" not in dataset.splits:
        console.print("each of the models has validation molecules of its own", highlight=False)
    start = choose_init_from(first, data.store, data.splits["train"]).origin if fresh else None
    if start is not None:
        console.print(f"each of the models starts from {start}", highlight=False, markup=False, soft_wrap=True)
    try:
        train_members(members, out, metric, console, graphs, dataset.target_names)
    except KeyboardInterrupt:
        raise Interrupted from None
    metrics = evaluate_ensemble(out, data, metric, console)
    return RunResult(out, metrics, read_training(out), data)


def _check_begun(out: Path, names: Sequence[str]) -> None:
    """Check that what stands in the run folder of an ensemble is of it: its members of these names, finished or not."""
    check_folder(out, len(names))
    begun = [out / name for name in names if (out / name / CONFIG).is_file()]
    finished = [read_checkpoint(folder).config if is_finished(folder) else read_config(folder) for folder in begun]
    check_one_run(begun, finished)


def train_member(config: RunConfig, folder: Path, graphs: list[Data] | None, target_names: Sequence[str]) -> None:
    """Train a member, or continue it where it was stopped.

    Raises:
        InputError: if it cannot be trained.
        KeyboardInterrupt: if it was stopped; what was done lies in the folder.
    """
    with locked(folder, wait=ENDING):
        dataset = load_dataset(config.data) if graphs is None else dataset_from_pyg(graphs, target_names, config.data)
        fresh = not (folder / CONFIG).exists()
        if not fresh:  # it has its weights and learning rate to start with by then
            config = replace(read_config(folder), data=config.data)
            if (folder / LAST).exists():
                read_checkpoint(folder / LAST)  # a damaged one is told apart here
        splits = None if fresh else saved_splits(config, folder)
        try:
            run(config, dataset, folder, fresh=fresh, splits=splits, console=Console(quiet=True))
        except Interrupted:
            raise KeyboardInterrupt from None


def train_members(
    members: dict[str, RunConfig],
    out: Path,
    metric: str,
    console: Console,
    graphs: list[Data] | None,
    target_names: Sequence[str],
) -> None:
    """Train what is not finished of the members, as many at a time as there are GPUs, else cores.

    Args:
        members: of :func:`member_configs`.
        out: the folder in which each gets its own.
        metric: that chooses the best epoch of each.
        console: where to report.
        graphs, target_names: PyG data where the molecules are none of ``config.data``, and names of its targets.

    Raises:
        InputError: if one of them could not be trained.
        KeyboardInterrupt: if they were stopped; the same call continues.
    """
    accelerator = next(iter(members.values())).trainer.accelerator
    gpus = visible_gpus(accelerator)
    tasks = {
        name: (config, out / name, graphs, target_names)
        for name, config in members.items()
        if not is_finished(out / name)
    }
    jobs = min(len(gpus) or cores(), len(tasks))
    console.print(f"{len(members)} models, {jobs} at a time", highlight=False)
    with closing(in_processes(train_member, tasks, jobs, gpus)) as ended:
        for done, (name, reason) in enumerate(ended, len(members) - len(tasks) + 1):
            if reason is not None:
                raise InputError(f"{out / name}: {reason}")
            values = read_metric(out / name, metric)
            said = ", ".join(f"{split} {METRICS[metric].label} {value:.4f}" for split, value in values.items())
            console.print(f"{done} of {len(members)}: {name}: {said}", highlight=False)


def read_metric(folder: Path, metric: str) -> dict[str, float]:
    """A metric of a finished run by split, where it is defined."""
    found = read_metrics(folder)
    values = {split: found[split].get(metric) for split in ("valid", "test") if split in found}
    return {split: value for split, value in values.items() if value is not None}


def evaluate_ensemble(out: Path, data: MoleculeData, metric: str, console: Console) -> dict:
    """Calibrate and score the members together: every molecule of a split by those for which it is one of that split.

    So is a molecule that each member but one learned judged by that one: of folds each molecule is tested once.

    Returns:
        What ``metrics.json`` holds: as of a run of one model, and ``members``, the values of each.
    """
    folders, dataset = find_members(out), data.dataset
    metrics: dict = {"metric": metric}
    splits = [read_splits(folder) or dataset.splits or {} for folder in folders]
    config = read_config(out)
    whole, device = config.data, config.trainer.inference_device  # that of data is of the first member
    models = [load(folder, device) for folder in folders]
    checkpoints = [checkpoint for model in models for checkpoint in model.checkpoints]
    calibration = calibrate_ensemble(out, models, splits, "test" if whole.is_cross_validation else "valid", data)
    for split in ("valid", "test"):
        rows = rows_in_split(splits, split)
        if len(rows) == 0 or np.isnan(dataset.targets[rows]).all():
            continue
        answers = calibration.probabilities(
            predict_held_out(models, splits, split, data.store, rows).mean, dataset.tasks
        )
        interval = None
        if split == "test" and not whole.is_cross_validation:
            ensemble = Predictor(checkpoints, device, calibration=calibration)
            interval = ensemble.predict_store_rows(data.store, rows, interval=COVERAGE_LEVEL).interval
        given = (out, dataset, split, rows, answers, metric, console)
        metrics[split] = evaluate_split(*given, calibration, interval)
        if split == "test" and whole.is_cross_validation:
            write_out_of_fold(out / OUT_OF_FOLD, data, rows, answers)
            said = "intervals are made of these errors, so that no molecules are left to count how many they hold"
            console.print(said, highlight=False)
            console.print(
                f"each molecule by the models that did not learn it: {out / OUT_OF_FOLD}", highlight=False, markup=False
            )
    metrics["members"] = {folder.name: read_metric(folder, metric) for folder in folders}
    folds = whole.folds_and_repeats[0] if whole.is_cross_validation else 0
    _describe_members(folders, metrics["members"], metric, folds, console)
    write_training(out, _training_totals(folders))
    write_metrics(out, metrics)
    console.print(f"model: {out}", highlight=False, markup=False, soft_wrap=True)
    return metrics


def write_out_of_fold(path: Path, data: MoleculeData, rows: np.ndarray, answers: np.ndarray) -> None:
    """Write the answers for some rows as CSV: row from 1, SMILES where there is one, and a column a number.

    Args:
        path: of the file.
        data: that the rows are of.
        rows: ``int64 [R]``.
        answers: ``float32 [R, W]``; of atoms or bonds ``[M, W]``, row by row in the order of the store. They are
            written as lists in that of the SMILES.
    """
    dataset = data.dataset
    smiles = [dataset.smiles[row] if dataset.smiles else "" for row in rows.tolist()]
    if dataset.atom_bond_labels is None:
        columns = [[f"{value:.7g}" for value in column] for column in answers.T.tolist()]
    else:
        ptr, known = pointers(dataset.atom_bond_labels.counts[rows]), np.ones(len(rows), bool)
        with featurizer_pool(len(rows)) as pool:
            orders = atom_bond_orders(smiles, dataset.level, data.config.graph, pool, with_symmetry=True)
        found = Predictions(answers, [None] * len(rows), dataset.tasks, ptr=ptr).reordered(orders).values
        columns = [json_lists(list_array(number_array(column), ptr, known)) for column in found.T]
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["row", "smiles", *(f"{name}_pred" for name in prediction_columns(dataset.tasks))])
        writer.writerows(zip((rows + 1).tolist(), smiles, *columns, strict=True))


def _describe_members(
    folders: Sequence[Path], members: dict[str, dict[str, float]], metric: str, folds: int, console: Console
) -> None:
    every = [read_metrics(folder) for folder in folders]
    # One whose validation molecules do not define the metric was judged by another.
    parts = [each.get("baselines", {}) if each.get("metric", "mae") == metric else {} for each in every]
    for split in SPLITS[1:3]:
        if all(split in found for found in parts):
            for line in describe_seeds(split, [found[split] for found in parts], metric, folds):
                console.print(line, highlight=False, soft_wrap=True)
            continue
        values = [found[split] for found in members.values() if split in found]
        if len(values) > 1:
            console.print(
                f"{split} {METRICS[metric].label} of the {len(values)} models alone: "
                f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}",
                highlight=False,
            )


def _training_totals(folders: Sequence[Path]) -> dict:
    """What the members took, together: sums, and what they have in common."""
    each = [read_training(folder) for folder in folders]
    sums = {name: sum(one[name] for one in each) for name in ("parameters", "steps", "seconds")}
    rate = {"molecules_per_second": sum(one["molecules_per_second"] * one["seconds"] for one in each)}
    rate["molecules_per_second"] = round(rate["molecules_per_second"] / max(sums["seconds"], 1e-9), 3)
    peak = max((one["peak_memory_bytes"] or 0) for one in each)
    same = {name: each[0][name] for name in ("device", "devices", "precision", "compiled")}
    beside_of = [one.get("auxiliary_mae", {}) for one in each]  # without what no validation molecule has
    names = [name for name in beside_of[0] if all(name in one for one in beside_of)]
    errors = {name: float(np.mean([one[name] for one in beside_of])) for name in names}
    beside = {"auxiliary_mae": errors} if errors else {}
    return {**sums, **rate, **beside, "peak_memory_bytes": peak, **same, "members": len(each)}
