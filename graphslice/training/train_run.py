"""Train a model, or several that answer together, into a run folder; or continue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from graphslice.checkpoint import read_checkpoint
from graphslice.config import RunConfig, join_names
from graphslice.data.dataset_loaders import load_dataset
from graphslice.data.finalize_config import check_atom_bond_options, finalize_config
from graphslice.data.frames import dataset_from_frame, is_frame
from graphslice.data.labelled_dataset import LabelledDataset
from graphslice.data.labels import target_names
from graphslice.data.pyg_dataset import dataset_from_pyg
from graphslice.errors import InputError
from graphslice.evaluation.metrics import check_metric
from graphslice.folder_lock import locked
from graphslice.inference.predictions import check_output_columns
from graphslice.nn.mixers import check_mixer
from graphslice.run_files import BEST, CONFIG, LAST, MOLECULES, contains_run, find_checkpoint, find_members
from graphslice.training.ensemble import member_configs, train_ensemble
from graphslice.training.losses import check_losses
from graphslice.training.run import RunResult, is_first_process, run, saved_splits
from graphslice.training.run_directory import check_run_directory, read_config

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch_geometric.data import Data


def train(
    config: RunConfig,
    out: str | Path,
    *,
    data: Iterable[Data] | DataFrame | None = None,
    target_names: Sequence[str] | None = None,
    overwrite: bool = False,
    profile: bool = False,
    command: str | None = None,
    console: Console | None = None,
) -> RunResult:
    """Train a model into a run folder.

    Args:
        config: of the run.
        out: the run folder; must not hold a run already.
        data: in place of ``config.data.dataset`` a data frame (pandas, polars or Arrow), which is read as a file of the
            same cells, its columns named by ``config.data``; or a PyG dataset or list of ``Data`` with OGB features
            and ``y``.
        target_names: names of the targets of ``data``; the columns of a data frame.
        overwrite: replace the run that ``out`` holds.
        profile: report at the end where the time of training went.
        command: that began it, which the run notes; None where Python does.
        console: where to report.

    Returns:
        The run folder and the scores. The folder holds ``best.ckpt``, ``last.ckpt``, ``config.yaml``,
        ``start.json``, ``metrics.json``, ``training.json``, ``split.csv``, ``rejected.csv``, ``test.png`` (predicted
        against true) and ``logs``; :func:`graphslice.report.write_report` adds ``report.html``.

    Raises:
        InputError: if the data or the configuration cannot be used, or another process works in the folder; nothing
            is written then.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise InputError(f"cannot write the run folder {out}: it is a file")
    with _alone_in(out):
        if is_first_process() and contains_run(out) and not overwrite:
            raise InputError(
                f"{out} holds a run already: choose another --out, continue it with --resume {out}, or give --overwrite"
            )
        if is_first_process():
            check_run_directory(out, config.data, frame=is_frame(data))
        if config.origin is not None and _belongs_to_run(find_checkpoint(config.origin), out):
            raise InputError(
                f"{out} holds the weights that the run is to start from, which it would remove first: choose "
                "another --out"
            )
        check_mixer(config.model.mixer, config.model.mixer_settings)
        check_atom_bond_options(config)
        dataset, config, graphs = _load_dataset(config, out, data, target_names)
        config = finalize_config(config, dataset)
        check_output_columns(dataset.tasks)
        if config.trainer.metric is not None:
            check_metric(config.trainer.metric, dataset.tasks)
        check_losses(config.trainer, dataset.tasks)
        if members := member_configs(config):
            return train_ensemble(members, config, dataset, out, graphs, fresh=True, command=command, console=console)
        return run(config, dataset, out, fresh=True, profile=profile, command=command, console=console)


def _alone_in(folder: Path) -> AbstractContextManager[None]:
    """The lock of a run folder, which the first process of a distributed run holds for all of them."""
    return locked(folder) if is_first_process() else nullcontext()


def _belongs_to_run(checkpoint: Path, folder: Path) -> bool:
    """Whether a checkpoint is one of the run in a folder, or of one of its members."""
    homes = (folder, *find_members(folder))
    return checkpoint.resolve() in {(home / name).resolve() for home in homes for name in (BEST, LAST)}


def _load_dataset(
    config: RunConfig, out: Path, data: Iterable[Data] | DataFrame | None, targets: Sequence[str] | None
) -> tuple[LabelledDataset, RunConfig, list[Data] | None]:
    """The labelled molecules of a run, the configuration that finds them again, and the graphs that it cannot find."""
    if data is None:
        return load_dataset(config.data), config, None
    if is_frame(data):  # which the run folder keeps as a table
        columns = config.data if targets is None else replace(config.data, targets=join_names(list(targets)))
        found = replace(columns, dataset=str(out.resolve() / MOLECULES))
        return dataset_from_frame(data, columns), replace(config, data=found), None
    if isinstance(data, str | Path):
        raise InputError(f"data is a data frame or PyG graphs: name a file in config.data.dataset, as {str(data)!r}")
    graphs = list(data)  # an iterator is read once, and each of several models wants it
    return dataset_from_pyg(graphs, targets, config.data), config, graphs


def resume(folder: str | Path, *, data: Iterable[Data] | None = None, console: Console | None = None) -> RunResult:
    """Continue a run that was stopped or killed, to the result it would have had.

    Args:
        folder: of the run.
        data: the same PyG data again, if the run was trained on such.

    Raises:
        InputError: if the folder holds no run, another process works in it, or its data has changed since.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"{folder} holds no run to continue: it has no {CONFIG}, which is written when the molecules are read; "
            "begin it with the command that was meant to, without --resume"
        )
    with _alone_in(folder):
        config = read_config(folder)
        if config.data.dataset == "pyg" and data is None:
            raise InputError(
                f"{folder} was trained on PyG data: continue it with graphslice.training.resume(folder, data=...)"
            )
        if config.data.fingerprint is None:
            raise InputError(f"{folder} holds a model that was not trained there: there is no run to continue")
        targets = target_names(config.data.targets, ())
        data = None if data is None else list(data)
        dataset = dataset_from_pyg(data, targets, config.data) if data is not None else load_dataset(config.data)
        if dataset.fingerprint() != config.data.fingerprint:
            raise InputError(f"the data of {folder} has changed since it was trained: start a new run instead")
        if members := member_configs(config):
            return train_ensemble(members, config, dataset, folder, data, fresh=False, console=console)
        if (folder / LAST).exists():
            read_checkpoint(folder / LAST)  # a damaged one is told apart here
        return run(config, dataset, folder, fresh=False, splits=saved_splits(config, folder), console=console)
