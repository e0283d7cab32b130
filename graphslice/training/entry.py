"""Train a model, or several that answer together, into a run folder; or continue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from graphslice.checkpoint import read_checkpoint
from graphslice.config import RunConfig, joined_names
from graphslice.data.frames import frame_source, is_frame
from graphslice.data.labels import target_names
from graphslice.data.pyg_source import pyg_source
from graphslice.data.resolve import check_sites, resolved
from graphslice.data.source import Source
from graphslice.data.sources import load_source
from graphslice.errors import InputError
from graphslice.evaluation.metrics import check_metric
from graphslice.inference.predictions import check_names
from graphslice.model_files import BEST, CONFIG, LAST, MOLECULES, find_checkpoint, find_members, holds_run
from graphslice.nn.mixers import check_mixer
from graphslice.training.losses import check_losses
from graphslice.training.members import member_configs, run_members
from graphslice.training.run import RunResult, is_first_process, run, splits_begun_with
from graphslice.training.run_folder import read_config, refuse_files_of_others

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
        InputError: if the data or the configuration cannot be used; nothing is written then.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise InputError(f"cannot write the run folder {out}: it is a file")
    if is_first_process() and holds_run(out) and not overwrite:
        raise InputError(
            f"{out} holds a run already: choose another --out, continue it with --resume {out}, or give --overwrite"
        )
    if is_first_process():
        refuse_files_of_others(out, config.data, frame=is_frame(data))
    if config.origin is not None and _is_of(find_checkpoint(config.origin), out):
        raise InputError(
            f"{out} holds the weights that the run is to start from, which it would remove first: choose another --out"
        )
    check_mixer(config.model.mixer, config.model.mixer_settings)
    check_sites(config)
    source, config, graphs = _labelled(config, out, data, target_names)
    config = resolved(config, source)
    check_names(source.tasks)
    if config.trainer.metric is not None:
        check_metric(config.trainer.metric, source.tasks)
    check_losses(config.trainer, source.tasks)
    if members := member_configs(config):
        return run_members(members, config, source, out, graphs, fresh=True, command=command, console=console)
    return run(config, source, out, fresh=True, profile=profile, command=command, console=console)


def _is_of(checkpoint: Path, folder: Path) -> bool:
    """Whether a checkpoint is one of the run in a folder, or of one of its members."""
    homes = (folder, *find_members(folder))
    return checkpoint.resolve() in {(home / name).resolve() for home in homes for name in (BEST, LAST)}


def _labelled(
    config: RunConfig, out: Path, data: Iterable[Data] | DataFrame | None, targets: Sequence[str] | None
) -> tuple[Source, RunConfig, list[Data] | None]:
    """The labelled molecules of a run, the configuration that finds them again, and the graphs that it cannot find."""
    if data is None:
        return load_source(config.data), config, None
    if is_frame(data):  # which the run folder keeps as a table
        columns = config.data if targets is None else replace(config.data, targets=joined_names(list(targets)))
        found = replace(columns, dataset=str(out.resolve() / MOLECULES))
        return frame_source(data, columns), replace(config, data=found), None
    if isinstance(data, str | Path):
        raise InputError(f"data is a data frame or PyG graphs: name a file in config.data.dataset, as {str(data)!r}")
    graphs = list(data)  # an iterator is read once, and each of several models wants it
    return pyg_source(graphs, targets, config.data), config, graphs


def resume(folder: str | Path, *, data: Iterable[Data] | None = None, console: Console | None = None) -> RunResult:
    """Continue a run that was stopped or killed, to the result it would have had.

    Args:
        folder: of the run.
        data: the same PyG data again, if the run was trained on such.

    Raises:
        InputError: if the folder holds no run, or its data has changed since.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"{folder} holds no run to continue: it has no {CONFIG}, which is written when the molecules are read; "
            "begin it with the command that was meant to, without --resume"
        )
    config = read_config(folder)
    if config.data.dataset == "pyg" and data is None:
        raise InputError(
            f"{folder} was trained on PyG data: continue it with graphslice.training.resume(folder, data=...)"
        )
    if config.data.fingerprint is None:
        raise InputError(f"{folder} holds a model that was not trained there: there is no run to continue")
    targets = target_names(config.data.targets, ())
    data = None if data is None else list(data)
    source = pyg_source(data, targets, config.data) if data is not None else load_source(config.data)
    if source.fingerprint() != config.data.fingerprint:
        raise InputError(f"the data of {folder} has changed since it was trained: start a new run instead")
    if members := member_configs(config):
        return run_members(members, config, source, folder, data, fresh=False, console=console)
    if (folder / LAST).exists():
        read_checkpoint(folder / LAST)  # a damaged one is told apart here
    return run(config, source, folder, fresh=False, splits=splits_begun_with(config, folder), console=console)
