"""A run on a corpus: the trainer is that of every run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from graphslice.config import FROM_SCRATCH, RunConfig
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.evaluation.metrics import check_metric
from graphslice.folder_lock import locked
from graphslice.nn.mixers import check_mixer
from graphslice.pretraining.corpus import Corpus, build_corpus
from graphslice.progress import molecule_progress
from graphslice.run_files import BEST, CONFIG, CORPUS, LAST, contains_run, find_members
from graphslice.tasks import BINARY, Task
from graphslice.training.devices import choose_devices, launched_processes
from graphslice.training.losses import check_losses
from graphslice.training.run import RunResult, is_first_process
from graphslice.training.run_directory import check_not_overwriting
from graphslice.training.train_run import train

# Of numbers and questions together.
_METRIC = "loss"


def pretrain(
    tables: Sequence[Path],
    config: RunConfig,
    out: Path,
    *,
    labels: Sequence[str] = (),
    without: Sequence[Path] = (),
    overwrite: bool = False,
    command: str | None = None,
    console: Console | None = None,
) -> RunResult:
    """Train a model on what is computed of the molecules of some tables.

    Args:
        tables: of molecules; whatever else they hold is not read.
        config: of the run; of its data the column of the SMILES and the cache.
        out: the run folder, which keeps the corpus too.
        labels: columns that are targets beside what is computed: together they weigh as much as that, but for those of
            atoms or bonds, of which see :mod:`~graphslice.training.auxiliary`.
        without: tables of molecules that the corpus shall not have.
        overwrite: replace the run that ``out`` holds.
        command: that began it; None where Python does.
        console: where to report.

    Returns:
        As of :func:`~graphslice.training.train_run.train`, whose ``resume`` continues it.

    Raises:
        InputError: if a table cannot be read, the configuration not be used, or another process works
            in the folder.
    """
    console = console or Console(stderr=True, soft_wrap=True)
    _check_config(config, labels)
    launched, machines = launched_processes(os.environ)
    if overwrite and (launched or 1) * machines > 1 and (out / CORPUS).exists():  # which the others would learn
        raise InputError(f"{out} holds a corpus already, and several processes begin at once: remove {out} first")
    if not is_first_process():  # the first one has made the corpus when it begins the others, or makes it now
        while not (out / CORPUS).exists():
            time.sleep(1)
        return train(_corpus_config(config, out, labels), out, overwrite=overwrite, console=console)
    with locked(out):
        if contains_run(out) and not overwrite:
            raise InputError(
                f"{out} holds a run already: choose another --out, continue it with graphslice train --resume {out}, "
                "or give --overwrite"
            )
        check_not_overwriting(out, [*tables, *without])
        with _replacing_previous_run(out):
            with molecule_progress("reading molecules", None, console) as advance:
                corpus = build_corpus(
                    out / CORPUS,
                    tables,
                    config.graph,
                    labels=labels,
                    without=without,
                    smiles_column=config.data.smiles_column,
                    cache=None if config.data.cache is None else Path(config.data.cache),
                    progress=advance,
                )
            _describe(console, corpus)
            return train(
                _corpus_config(config, out, labels), out, overwrite=overwrite, command=command, console=console
            )


@contextmanager
def _replacing_previous_run(out: Path) -> Iterator[None]:
    """Make a corpus and a run where another may stand, which stays whole with its corpus if the new one is refused."""
    corpus, former, begun = out / CORPUS, out / f".{CORPUS}.former", _run_start_files(out)
    if corpus.exists():
        corpus.replace(former)
    try:
        yield
    except BaseException:
        if _run_start_files(out) == begun:
            for written in (corpus, corpus.with_name(f".{CORPUS}.lock")):
                written.unlink(missing_ok=True)
            if former.exists():
                former.replace(corpus)
        raise
    finally:
        former.unlink(missing_ok=True)


def _run_start_files(out: Path) -> list[int]:
    """What is another list when another run has begun in a folder."""
    files = [folder / name for folder in (out, *find_members(out)) for name in (CONFIG, LAST, BEST)]
    return [file.stat().st_mtime_ns for file in files if file.exists()]


def _check_config(config: RunConfig, labels: Sequence[str]) -> None:
    """Raise :class:`InputError` for what would be found wrong only when the corpus is there."""
    check_mixer(config.model.mixer, config.model.mixer_settings)
    choose_devices(config.trainer)
    learned = [Task("number"), Task("question", BINARY, ("no", "yes"))]
    check_metric(config.trainer.metric or _METRIC, learned)
    for name, what in (
        ("target_weights", config.trainer.target_weights),
        ("baselines", config.trainer.baselines == "on"),
    ):
        if what:
            raise InputError(f"--trainer.{name} does not go with pretrain: leave it out")
    check_losses(config.trainer, learned)
    for label in labels:
        if re.search(r"[,=\"]", label):
            raise InputError(f"the column {label!r} cannot be a target of pretrain: rename it, without , = and quotes")


def _corpus_config(config: RunConfig, out: Path, labels: Sequence[str]) -> RunConfig:
    """The configuration of a run on its corpus."""
    known = GraphStore.open(out / CORPUS).info.targets
    numbers = [name for name in labels if name in known]  # the others are of atoms or bonds
    count = len(known) - len(numbers)
    weights = ",".join(f"{name}={max(1, count) / len(numbers):g}" for name in numbers)
    metric = config.trainer.metric or _METRIC
    trainer = replace(config.trainer, baselines="off", target_weights=weights or None, metric=metric)
    data = replace(config.data, dataset=str(out / CORPUS), targets=None, smiles_column=None)
    return replace(config, data=data, trainer=trainer, init_from=FROM_SCRATCH)


def _describe(console: Console, corpus: Corpus) -> None:
    numbers = sum(not task.classes for task in corpus.targets.tasks)
    questions = len(corpus.targets.tasks) - numbers
    lost = f"; {corpus.unlabelled:,} rows have labels that do not fit" if corpus.unlabelled else ""
    learned = [f"{numbers} numbers and {questions} yes or no of RDKit's descriptors and fingerprints", *corpus.own]
    learned += [f"{name} of {level}s" for level, names in corpus.store.info.atom_bond_targets.items() for name in names]
    console.print(
        f"corpus: {len(corpus.store):,} different molecules of {corpus.rows:,} rows ({corpus.unreadable:,} are none, "
        f"{corpus.left_out:,} left out); targets: {', '.join(learned)}{lost}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
