"""``graphslice train``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import (
    add_config_options,
    add_init_from,
    build_config,
    check_only_resume,
    report_run,
    stoppable,
)
from graphslice.errors import shell_command
from graphslice.system.console import standard_error

MODULE = "graphslice.training.train_run"
EXAMPLES = "my.csv --targets logp,active", "--resume runs/my"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.usage = "graphslice train [--dataset] FILE [--targets COLUMN] [options]"
    run = parser.add_argument_group("output")
    run.add_argument("-o", "--out", metavar="FOLDER", help="run directory (default: runs/ and the name of the dataset)")
    run.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an existing run, whose model is deleted when the training begins",
    )
    run.add_argument("--resume", metavar="FOLDER", help="continue an interrupted run; no other option is allowed")
    add_init_from(run)
    add_config_options(parser, arguments)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Train a model into a run directory, or resume one; raise InputError for unusable input."""
    from graphslice.runs.run_files import CONFIG, default_run_directory, resume_command
    from graphslice.training.train_run import resume, train

    console = standard_error()
    if options.resume:
        check_only_resume(arguments)
        folder = Path(options.resume)
    else:
        config = build_config(options)
        folder = Path(options.out) if options.out else default_run_directory(config.data)
    with stoppable(folder / CONFIG, resume_command(folder), console):
        if options.resume:
            result = resume(folder, console=console)
        else:
            command = shell_command(["graphslice", *arguments])
            result = train(config, folder, overwrite=options.overwrite, command=command, console=console)
        report_run(result, console)
    return result.to_dict()
