"""Pretraining runs: build a corpus, and train a model on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from graphslice.config import FROM_SCRATCH, RunConfig, join_names
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.pretraining.corpus import Corpus, build_corpus
from graphslice.runs.run_files import CORPUS, check_folder, write_start
from graphslice.system.console import molecule_progress, standard_error
from graphslice.system.files import locked
from graphslice.system.processes import is_first_process
from graphslice.tasks import BINARY, Task
from graphslice.training.devices import choose_devices, launched_processes
from graphslice.training.resolve import check_options, check_tasks
from graphslice.training.run import RunResult
from graphslice.training.train_run import train


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
    """Pretrain a model on targets that are computed from the molecules of some files, into a run directory that also
    holds the corpus; of the data settings, the SMILES column and the cache are used. ``labels``, with the same weight
    as all computed targets, and ``without`` are as of :func:`~graphslice.pretraining.corpus.build_corpus`."""
    console = console or standard_error()
    _check_config(config)
    launched, machines = launched_processes()
    several = (launched or 1) * machines > 1
    if overwrite and several and (out / CORPUS).exists():  # other processes would use the old one
        raise InputError(
            f"{out} already holds a corpus, and several processes were launched at once: remove {out} first"
        )
    if not is_first_process():  # the first process builds the corpus, before or after it launches the others
        while not (out / CORPUS).exists():
            time.sleep(1)
        return train(_corpus_config(config, out, labels), out, overwrite=overwrite, console=console)
    with locked(out):
        check_folder(out, [*tables, *without], overwrite=overwrite)
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
        write_start(out, command)
        return train(_corpus_config(config, out, labels), out, overwrite=True, command=command, console=console)


def _check_config(config: RunConfig) -> None:
    """Raise :class:`InputError` for invalid settings before the corpus is built."""
    check_options(config)
    choose_devices(config.trainer)
    for name, is_set in (
        ("target_weights", config.trainer.target_weights),
        ("baselines", config.trainer.baselines == "on"),
    ):
        if is_set:
            raise InputError(f"trainer.{name} cannot be used with pretrain: leave it out")
    check_tasks(config, [Task("number"), Task("question", BINARY, ("no", "yes"))])
    if config.graph.standardize != "none":
        raise InputError(
            "pretraining reads molecules as they are written: leave out graph.standardize, and give it when you "
            "fine-tune the model"
        )


def _corpus_config(config: RunConfig, out: Path, labels: Sequence[str]) -> RunConfig:
    known = GraphStore.open(out / CORPUS).info.targets
    molecule_labels = [name for name in labels if name in known]  # the others are atom- or bond-level
    count = len(known) - len(molecule_labels)
    weights = join_names([f"{name}={max(1, count) / len(molecule_labels):g}" for name in molecule_labels])
    metric = config.trainer.metric or "loss"  # defined for regression and binary targets together
    trainer = replace(config.trainer, baselines="off", target_weights=weights or None, metric=metric)
    data = replace(config.data, dataset=str(out / CORPUS), targets=None, smiles_column=None, transform="none")
    return replace(config, data=data, trainer=trainer, init_from=FROM_SCRATCH)


def _describe(console: Console, corpus: Corpus) -> None:
    regression = sum(not task.classes for task in corpus.targets.tasks)
    binary = len(corpus.targets.tasks) - regression
    invalid = f"; {corpus.unlabelled:,} rows with labels that cannot be used" if corpus.unlabelled else ""
    targets = [
        f"{regression} regression and {binary} binary targets from RDKit descriptors and fingerprints",
        *corpus.own,
    ]
    targets += [f"{name} of {level}s" for level, names in corpus.store.info.atom_bond_targets.items() for name in names]
    console.print(
        f"corpus: {len(corpus.store):,} unique molecules in {corpus.rows:,} rows ({corpus.unreadable:,} invalid, "
        f"{corpus.left_out:,} excluded); targets: {', '.join(targets)}{invalid}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
