"""``graphslice pretrain``."""

from __future__ import annotations

import shlex
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from graphslice.cli.options import add_settings, add_smiles_column, build_config

#: The module that :func:`run` works with.
MODULE = "graphslice.pretraining.run"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """The options of the command; ``arguments`` are the words that follow its name."""
    parser.usage = "graphslice pretrain TABLE [TABLE ...] -o RUN [options]"
    parser.add_argument("tables", nargs="+", metavar="TABLE", help="files or folders of molecules")
    run = parser.add_argument_group("the run")
    run.add_argument("-o", "--out", required=True, help="the run folder, which other runs take with --init-from")
    run.add_argument("--overwrite", action="store_true", help="replace the run that the folder holds")
    run.add_argument(
        "--targets",
        help="columns that are learned too, separated by commas: of numbers, or of lists, one for each atom or bond",
    )
    run.add_argument("--without", nargs="+", metavar="TABLE", help="molecules that are left out: those of a test, say")
    add_smiles_column(run, "in the tables that have it; else found by its name")
    run.add_argument("--cache", help="folder that keeps what is computed (default: the user's cache folder)")
    add_settings(parser, arguments)


def run(options: Namespace, arguments: list[str]) -> None:
    """Train a model on a corpus; raises InputError for what cannot be used."""
    from graphslice.data.labels import target_names
    from graphslice.pretraining.run import pretrain
    from graphslice.training.run import Interrupted, is_first_process

    console = Console(stderr=True, soft_wrap=True)
    folder = Path(options.out)
    try:
        config = build_config(options)
        pretrain(
            [Path(table) for table in options.tables],
            config,
            folder,
            labels=target_names(config.data.targets, ()),
            without=[Path(table) for table in options.without or ()],
            overwrite=options.overwrite,
            command=shlex.join(["graphslice", *arguments]),
            console=console,
        )
    except Interrupted:
        if is_first_process():
            console.print(
                f"stopped; continue with: graphslice train --resume {folder}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        raise SystemExit(130) from None
