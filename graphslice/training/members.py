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
from graphslice.data.datamodule import MoleculeData
from graphslice.data.featurize import featurizers
from graphslice.data.pyg_source import pyg_source
from graphslice.data.site_orders import orders_of
from graphslice.data.sites import pointers
from graphslice.data.source import Source
from graphslice.data.sources import load_source
from graphslice.data.splits import SPLITS
from graphslice.errors import InputError
from graphslice.evaluation.coverage import LEVEL
from graphslice.evaluation.evaluate import splits_of_run
from graphslice.evaluation.metrics import METRICS
from graphslice.evaluation.several import ask_each, rows_of
from graphslice.inference.predictions import Predictions
from graphslice.inference.predictor import load
from graphslice.machine import cores, visible_gpus
from graphslice.model_files import (
    CONFIG,
    LAST,
    MEMBER,
    find_members,
    holds_run,
    is_finished,
    read_metrics,
    read_training,
)
from graphslice.processes import each_in_a_process
from graphslice.tasks import answer_columns
from graphslice.training.advice import describe_data
from graphslice.training.baselines import describe_seeds
from graphslice.training.calibrate import calibrate_members
from graphslice.training.fine_tuning import choose_start
from graphslice.training.judge import choose_metric, judge_split
from graphslice.training.run import (
    Interrupted,
    RunResult,
    finished_run,
    is_first_process,
    read_molecules,
    run,
    splits_begun_with,
)
from graphslice.training.run_folder import (
    OUT_OF_FOLD,
    read_config,
    write_metrics,
    write_start,
    write_training,
)

if TYPE_CHECKING:
    from torch_geometric.data import Data


def member_configs(config: RunConfig) -> dict[str, RunConfig]:
    """The configuration of each member of a run, by the name of its folder; empty for a run of one model.

    An ensemble has a seed for each, which no ensemble of another seed has, and where the data does not say which rows
    validate, other rows for each; of folds each member has one, held out as its test.
    """
    number, repeats = config.data.folds_and_repeats
    folds = 0 if config.data.fold is not None else number * repeats
    if folds and config.trainer.ensemble > 1:
        raise InputError("--folds trains a model for each fold, and these are an ensemble: leave out --ensemble")
    count = folds or config.trainer.ensemble
    if count < 2:
        return {}
    members = {}
    for number in range(count):
        seed = (config.trainer.seed * count + number) % 2**32
        trainer = replace(config.trainer, ensemble=1, seed=seed)
        data = replace(config.data, fold=number) if folds else replace(config.data, carve=number)
        members[f"{MEMBER}{number + 1}"] = replace(config, data=data, trainer=trainer)
    return members


def run_members(
    members: dict[str, RunConfig],
    config: RunConfig,
    source: Source,
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
    data = read_molecules(replace(first, data=replace(first.data, duplicates="keep")), source, console)
    if not fresh and all(is_finished(folder) for folder in (out, *(out / name for name in members))):
        return finished_run(out, data, console)
    metric = choose_metric(config.trainer.metric, data)
    if fresh:
        for member in members.values():  # none is trained if one of them cannot be
            data.check_split_of(member)
        for folder in (out / name for name in members):
            if folder.exists() and not holds_run(folder):
                raise InputError(f"{folder} is there, and holds no run: choose another --out")
        write_start(out, config, data, command)
    describe_data(console, data)
    if config.data.in_turn:
        console.print("each of the models has another fold as its test", highlight=False)
    elif source.splits is None or "valid" not in source.splits:
        console.print("each of the models has validation molecules of its own", highlight=False)
    start = choose_start(first, data.store, data.splits["train"]).origin if fresh else None
    if start is not None:
        console.print(f"each of the models starts from {start}", highlight=False, markup=False, soft_wrap=True)
    try:
        train_members(members, out, metric, console, graphs, source.target_names)
    except KeyboardInterrupt:
        raise Interrupted from None
    metrics = judge_members(out, data, metric, console)
    return RunResult(out, metrics, read_training(out), data)


def train_member(config: RunConfig, folder: Path, graphs: list[Data] | None, target_names: Sequence[str]) -> None:
    """Train a member, or continue it where it was stopped.

    Raises:
        InputError: if it cannot be trained.
        KeyboardInterrupt: if it was stopped; what was done lies in the folder.
    """
    source = load_source(config.data) if graphs is None else pyg_source(graphs, target_names, config.data)
    fresh = not (folder / CONFIG).exists()
    if not fresh:  # it has its weights and learning rate to start with by then
        config = replace(read_config(folder), data=config.data)
        if (folder / LAST).exists():
            read_checkpoint(folder / LAST)  # a damaged one is told apart here
    splits = None if fresh else splits_begun_with(config, folder)
    try:
        run(config, source, folder, fresh=fresh, splits=splits, console=Console(quiet=True))
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
    with closing(each_in_a_process(train_member, tasks, jobs, gpus)) as ended:
        for done, (name, reason) in enumerate(ended, len(members) - len(tasks) + 1):
            if reason is not None:
                raise InputError(f"{out / name}: {reason}")
            values = read_values(out / name, metric)
            said = ", ".join(f"{split} {METRICS[metric].label} {value:.4f}" for split, value in values.items())
            console.print(f"{done} of {len(members)}: {name}: {said}", highlight=False)


def read_values(folder: Path, metric: str) -> dict[str, float]:
    """A metric of a finished run by split, where it is defined."""
    found = read_metrics(folder)
    values = {split: found[split].get(metric) for split in ("valid", "test") if split in found}
    return {split: value for split, value in values.items() if value is not None}


def judge_members(out: Path, data: MoleculeData, metric: str, console: Console) -> dict:
    """Calibrate and score the members together: every molecule of a split by those for which it is one of that split.

    So is a molecule that each member but one learned judged by that one: of folds each molecule is tested once.

    Returns:
        What ``metrics.json`` holds: as of a run of one model, and ``members``, the values of each.
    """
    folders, source = find_members(out), data.source
    metrics: dict = {"metric": metric}
    splits = [splits_of_run(folder) or source.splits or {} for folder in folders]
    config = read_config(out)
    whole, device = config.data, config.trainer.answers_on  # that of data is of the first member
    models = [load(folder, device) for folder in folders]
    calibration = calibrate_members(out, models, splits, "test" if whole.in_turn else "valid", data)
    for split in ("valid", "test"):
        rows = rows_of(splits, split)
        if len(rows) == 0 or np.isnan(source.targets[rows]).all():
            continue
        answers = calibration.probabilities(ask_each(models, splits, split, data.store, rows).mean, source.tasks)
        interval = None
        if split == "test" and not whole.in_turn:
            interval = load(out, device).answers(data.store, rows, interval=LEVEL).interval
        given = (out, source, split, rows, answers, metric, console)
        metrics[split] = judge_split(*given, calibration, interval)
        if split == "test" and whole.in_turn:
            write_answers(out / OUT_OF_FOLD, data, rows, answers)
            said = "intervals are made of these errors, so that no molecules are left to count how many they hold"
            console.print(said, highlight=False)
            console.print(
                f"each molecule by the models that did not learn it: {out / OUT_OF_FOLD}", highlight=False, markup=False
            )
    metrics["members"] = {folder.name: read_values(folder, metric) for folder in folders}
    folds = whole.folds_and_repeats[0] if whole.in_turn else 0
    _describe_members(folders, metrics["members"], metric, folds, console)
    write_training(out, _together(folders))
    write_metrics(out, metrics)
    console.print(f"model: {out}", highlight=False, markup=False, soft_wrap=True)
    return metrics


def write_answers(path: Path, data: MoleculeData, rows: np.ndarray, answers: np.ndarray) -> None:
    """Write the answers for some rows as CSV: row from 1, SMILES where there is one, and a column a number.

    Args:
        path: of the file.
        data: that the rows are of.
        rows: ``int64 [R]``.
        answers: ``float32 [R, W]``; of atoms or bonds ``[M, W]``, row by row in the order of the store. They are
            written as lists in that of the SMILES.
    """
    source = data.source
    smiles = [source.smiles[row] if source.smiles else "" for row in rows.tolist()]
    if source.sites is None:
        columns = [[f"{value:.7g}" for value in column] for column in answers.T.tolist()]
    else:
        ptr, known = pointers(source.sites.counts[rows]), np.ones(len(rows), bool)
        with featurizers(len(rows)) as pool:
            orders = orders_of(smiles, source.level, data.config.graph, pool, alike=True)
        found = Predictions(answers, [None] * len(rows), source.tasks, ptr=ptr).in_order(orders).values
        columns = [json_lists(list_array(number_array(column), ptr, known)) for column in found.T]
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["row", "smiles", *(f"{name}_pred" for name in answer_columns(source.tasks))])
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


def _together(folders: Sequence[Path]) -> dict:
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
