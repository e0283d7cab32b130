"""``graphslice tune``."""

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

MODULE = "graphslice.search.tune"
EXAMPLES = "my.csv --targets logp --minutes 60", "--resume tuned/my"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.usage = "graphslice tune [--dataset] FILE [--targets COLUMN] [--minutes N] [options]"
    search = parser.add_argument_group("search")
    search.add_argument("--minutes", type=float | None, metavar="N", help="time without the final run (default: 30)")
    search.add_argument(
        "--trials", type=int | None, metavar="N", help="number of trials, in place of or in addition to --minutes"
    )
    search.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        default=3,
        help="further seeds of the best trials, whose mean decides (default: 3)",
    )
    search.add_argument("--mixers", help="mixers to search too, separated by commas; only from scratch")
    search.add_argument(
        "--processes", type=int, metavar="N", default=1, help="processes that share the trials (default: 1)"
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--out", metavar="FOLDER", help="folder of the search (default: tuned/ and the name of the dataset)"
    )
    output.add_argument("--resume", metavar="FOLDER", help="continue a search; no other option is allowed")
    add_init_from(output)
    add_config_options(parser, arguments)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Search, and train the final run; raise InputError for unusable input."""
    from graphslice.config import split_words
    from graphslice.runs.run_files import default_run_directory
    from graphslice.search.study import STUDY
    from graphslice.search.tune import resume, tune

    console = standard_error()
    if options.resume:
        check_only_resume(arguments)
        folder = Path(options.resume)
    else:
        config = build_config(options)
        folder = Path(options.out) if options.out else Path("tuned") / default_run_directory(config.data).name
    command = shell_command(["graphslice", "tune", "--resume", str(folder)])
    with stoppable(folder / STUDY, command, console):
        if options.resume:
            result = resume(folder, console=console)
        else:
            result = tune(
                config,
                folder,
                minutes=options.minutes,
                trials=options.trials,
                seeds=options.seeds,
                mixers=split_words(options.mixers or ""),
                processes=options.processes,
                console=console,
            )
        report_run(result, console)
    return {"search": str(folder), **result.to_dict()}
