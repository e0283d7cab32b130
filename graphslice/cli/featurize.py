"""``graphslice featurize``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import (
    FEATURES,
    STANDARDIZE,
    add_decimal_option,
    add_engine_options,
    add_smiles_column,
    file_progress,
)
from graphslice.config import DataConfig, GraphConfig

MODULE = "graphslice.data.featurize"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    """Add the options of the command; ``arguments`` is the command line after the command's name."""
    parser.add_argument(
        "dataset", help="demo, pcqm4m, pcqm4mv2, a CSV, TSV, Excel, Parquet, SDF or .smi file, or a folder of these"
    )
    parser.add_argument("-o", "--out", required=True, help="output file, NAME.arrow; an interrupted call is continued")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--root", default="dataset", help="directory of OGB's data, downloaded if missing (default: ./dataset)"
    )
    add_smiles_column(parser, "default: detected by its name")
    parser.add_argument("--targets", help="label columns, separated by commas (default: none)")
    add_decimal_option(parser)
    parser.add_argument("--features", help=FEATURES)
    parser.add_argument("--split", help="column with train, valid or test (default: split, if there is one)")
    parser.add_argument("--standardize", help=STANDARDIZE)
    add_engine_options(parser)
    parser.add_argument("--graph", type=GraphConfig)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Write a preprocessed dataset and print its rows and size; raise InputError for unusable input."""
    from graphslice.data.preprocess import featurize_dataset

    names = ("dataset", "root", "smiles_column", "decimal", "targets", "features", "split")
    data = DataConfig(**{name: options[name] for name in names})
    with file_progress("featurizing", Path(options.dataset)) as advance:
        graph = GraphConfig(**options.graph.as_dict())
        graph = graph if options.standardize is None else replace(graph, standardize=options.standardize)
        store = featurize_dataset(
            data,
            graph,
            options.out,
            workers=options.workers,
            engine=options.engine,
            overwrite=options.overwrite,
            progress=advance,
        )
    rows, failed, size = len(store), len(store.unusable_rows()), Path(options.out).stat().st_size
    print(f"{options.out}: {rows:,} rows, {size / rows:.0f} bytes each")
    if failed:
        print(f"{failed:,} of {rows:,} rows are not usable: see the reasons in column 'error'", file=sys.stderr)
    return {"out": options.out, "rows": rows, "failed": failed, "bytes": size}
