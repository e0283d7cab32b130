"""``graphslice pretrain``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import add_setting, add_settings, build_config, stoppable
from graphslice.errors import shell_command
from graphslice.system.console import standard_error

MODULE = "graphslice.pretraining.run"
EXAMPLES = "molecules.csv -o runs/pretrained", "library/ -o runs/pretrained --without test.csv"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.usage = "graphslice pretrain FILE [FILE ...] -o FOLDER [options]"
    parser.add_argument("tables", nargs="+", metavar="FILE", help="files or folders of molecules")
    run = parser.add_argument_group("input and output")
    run.add_argument(
        "-o", "--out", metavar="FOLDER", required=True, help="run directory, for --init-from of other runs"
    )
    run.add_argument("--overwrite", action="store_true", help="replace an existing run")
    add_setting(
        run,
        "data.targets",
        help="additional target columns, separated by commas: numbers, or lists with one number per atom or bond",
    )
    run.add_argument(
        "--without",
        nargs="+",
        metavar="FILE",
        help="tables of molecules to exclude, with their salts, tautomers and stereoisomers: for example a test set",
    )
    for name in ("smiles_column", "cache"):
        add_setting(run, f"data.{name}")
    add_settings(parser, arguments)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Train a model on a corpus; raise InputError for unusable input."""
    from graphslice.data.columns import target_names
    from graphslice.pretraining.run import pretrain
    from graphslice.runs.run_files import CONFIG, resume_command

    console, folder = standard_error(), Path(options.out)
    config = build_config(options)
    with stoppable(folder / CONFIG, resume_command(folder), console):
        result = pretrain(
            [Path(table) for table in options.tables],
            config,
            folder,
            labels=target_names(config.data.targets, ()),
            without=[Path(table) for table in options.without or ()],
            overwrite=options.overwrite,
            command=shell_command(["graphslice", *arguments]),
            console=console,
        )
    return result.to_dict()
