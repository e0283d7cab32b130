"""``graphslice submit``."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import load_model

#: The module that :func:`run` works with.
MODULE = "graphslice.evaluation.submission"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """The options of the command; ``arguments`` are the words that follow its name."""
    parser.add_argument("model", help="a run folder or a checkpoint")
    parser.add_argument("--dataset", required=True, help="pcqm4m (test) or pcqm4mv2 (test-dev, test-challenge)")
    parser.add_argument(
        "--root", default="dataset", help="where OGB's data folders lie or are downloaded to (default: dataset)"
    )
    parser.add_argument("-o", "--out", default="submission", help="the folder of the files (default: submission)")
    parser.add_argument("--device", help="cpu, cuda, mps; a GPU where there is one")


def run(options: Namespace, arguments: list[str]) -> None:
    """Write the files, and print their paths; raises InputError for what cannot be used."""
    from graphslice.evaluation.submission import submit

    for path in submit(load_model(options), options.dataset, options.root, options.out):
        print(path)
