"""``graphslice submit``."""

from __future__ import annotations

from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import add_device, add_model, load_model
from graphslice.system.console import standard_error

MODULE = "graphslice.evaluation.submission"
EXAMPLES = "runs/v2 --dataset pcqm4mv2", "runs/a runs/b --dataset pcqm4mv2 -o submission"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    add_model(parser, several=True)
    parser.add_argument(
        "--dataset",
        metavar="NAME",
        required=True,
        help="pcqm4mv2 (test-dev, test-challenge); pcqm4m (test), whose leaderboard is closed",
    )
    text = "folder of OGB's data, downloaded if missing (default: that of the training)"
    parser.add_argument("--root", metavar="FOLDER", help=text)
    parser.add_argument(
        "-o", "--out", metavar="FOLDER", default="submission", help="output directory (default: submission)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    add_device(parser)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Write the files, print their paths and what OGB's form asks of the runs; raise InputError for unusable input."""
    from graphslice.evaluation.submission import describe_training, read_training_record, submit

    predictor = load_model(options)
    root = predictor.config.data.root if options.root is None else options.root
    console = standard_error()
    files = submit(predictor, options.dataset, root, options.out, overwrite=options.overwrite, console=console)
    runs = {model: read_training_record(model) for model in options.model}
    for model, record in runs.items():
        console.out(f"{model}: {describe_training(record)}", highlight=False)
    parameters = sum(record["parameters"] * record.get("members", 1) for record in runs.values() if record)
    console.out(f"in all: {parameters:,} parameters", highlight=False)
    print(*files, sep="\n")
    return {"files": [str(path) for path in files], "runs": runs}
