"""``graphslice featurize``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import (
    MOLECULE_FILES,
    add_engine,
    add_output_file,
    add_setting,
    add_workers,
    file_progress,
)
from graphslice.config import DataConfig, GraphConfig
from graphslice.system.console import remark

MODULE = "graphslice.data.featurize"
EXAMPLES = "my.csv -o my.arrow --targets logp", "pcqm4mv2 -o pcqm4mv2.arrow"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument(
        "dataset", metavar="FILE", help=f"demo, pcqm4mv2, pcqm4m, a {MOLECULE_FILES}, or a folder of these"
    )
    add_output_file(parser, "output file, NAME.arrow; an interrupted call is continued", required=True)
    add_setting(parser, "data.root", default="dataset")
    for name in ("smiles_column", "decimal", "features"):
        add_setting(parser, f"data.{name}")
    add_setting(parser, "data.targets", help="label columns, separated by commas (default: none)")
    add_setting(parser, "data.split", help="column with train, valid or test (default: split, if there is one)")
    add_setting(parser, "graph.standardize", "standardize")
    add_workers(parser)
    add_engine(parser)
    parser.add_argument("--graph", type=GraphConfig)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Write a preprocessed dataset and print its rows and size; raise InputError for unusable input."""
    from graphslice.data.preprocess import featurize_dataset

    names = ("dataset", "root", "smiles_column", "decimal", "targets", "features", "split")
    data, notes = DataConfig(**{name: options[name] for name in names}), list[str]()
    with file_progress("featurizing", Path(options.dataset)) as advance:
        graph = GraphConfig(**options.graph.as_dict())
        graph = graph if options.standardize is None else replace(graph, standardize=options.standardize)
        given = {name: options[name] for name in ("workers", "engine", "overwrite")}
        store = featurize_dataset(data, graph, options.out, **given, progress=advance, note=notes.append)
    rows, failed, size = len(store), len(store.unusable_rows()), Path(options.out).stat().st_size
    print(f"{options.out}: {rows:,} rows, {size / rows:.0f} bytes each")
    for note in notes:
        remark(note)
    if failed:
        remark(f"{failed:,} of {rows:,} rows are not usable: see the reasons in column 'error'", kind="warning")
    return {"out": options.out, "rows": rows, "failed": failed, "bytes": size, "notes": notes}
